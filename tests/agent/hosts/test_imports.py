"""What a worker of the service imports: a deployment's module alone, and no library that it does not use."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "sentence_transformers", "sklearn", "river", "scipy", "faiss", "matplotlib")


def imported(module: str, names: tuple[str, ...]) -> set[str]:
    script = f"import sys, {module}; print(*(name for name in {names} if name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    return set(found.split())


@pytest.mark.parametrize("module", ["ingress", "learner", "jobs", "arms"])
def test_a_host_imports_no_library_that_only_some_settings_need(module: str) -> None:
    assert imported(f"agent.hosts.{module}", HEAVY) == set()


@pytest.mark.parametrize("module", ["arms.deployments.arms", "arms.deployments.models"])
def test_a_host_of_arms_or_models_knows_no_agent(module: str) -> None:
    assert imported(module, ("agent.app", "agent.api.routes", "agent.hosts.ingress", "sqlalchemy")) == set()


@pytest.mark.parametrize(
    ("module", "others"),
    [
        ("agent.hosts.ingress", ("agent.hosts.learner", "agent.hosts.jobs", "agent.warmstart.run")),
        ("agent.hosts.learner", ("agent.hosts.ingress", "agent.hosts.jobs", "fastapi", "ray")),
        ("agent.hosts.jobs", ("agent.hosts.ingress", "agent.hosts.learner", "fastapi", "ray")),
        ("agent.hosts.arms", ("agent.hosts.ingress", "agent.hosts.learner", "agent.hosts.jobs", "fastapi")),
    ],
)
def test_a_host_does_not_import_the_other_hosts(module: str, others: tuple[str, ...]) -> None:
    assert imported(module, others) == set()
