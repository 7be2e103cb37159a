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
    "code",
    [
        "import armwise.agent.policies",
        "import armwise.agent.policies.sampling",
        "from armwise.agent.policies import choose, compute_served_distribution",
        "import armwise.agent.policies.catalog",
    ],
)
@pytest.mark.slow
def test_importing_policies_loads_no_library_of_one(code: str) -> None:
    assert loaded_by(code) == set()


@pytest.mark.parametrize(
    ("kind", "library"),
    [
        ("vowpal", {"vowpalwabbit"}),
        ("epsilon_greedy", set()),
        ("linucb", set()),
        ("neural", set()),
        ("routed", set()),
    ],
)
@pytest.mark.slow
def test_building_a_policy_loads_its_own_library_alone(kind: str, library: set[str]) -> None:
    assert loaded_by(BUILD.format(kind)) == library
