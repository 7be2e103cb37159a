"""The libraries of policies are loaded when a policy that needs one is built, and not before."""

import subprocess
import sys

import pytest

LIBRARIES = ("vowpalwabbit", "river", "torch", "transformers", "sklearn")

BUILD = "from armwise.agent.policies import *; build_policy(PolicySpec(kind={!r}), ['a', 'b'])"


def loaded_by(code: str) -> set[str]:
    """Return the libraries that a fresh interpreter has loaded after running some code."""
    script = f"{code}\nimport sys; print(*(name for name in {LIBRARIES} if name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(ran.stdout.split())


@pytest.mark.parametrize(
    ("code", "libraries"),
    [
        ("import armwise.agent.policies", set()),
        ("import armwise.agent.policies.catalog", set()),
        (BUILD.format("vowpal"), {"vowpalwabbit"}),
        *((BUILD.format(kind), set()) for kind in ("epsilon_greedy", "linucb", "neural", "routed")),
    ],
)
@pytest.mark.slow
def test_a_library_is_loaded_by_building_a_policy_that_needs_it(code: str, libraries: set[str]) -> None:
    assert loaded_by(code) == libraries
