"""A replica of the ingress: its folder and its log on another machine, and what it tells of deployments."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray import serve
from ray.serve.exceptions import RayServeException
from ray.serve.schema import DeploymentStatus, DeploymentStatusOverview, DeploymentStatusTrigger

from agent.hosts.ingress import deployments
from feedback.log import Store
from tests.agent.fakes import CONFIG
from tests.postgres import Server

OPEN = """
import json, os, sys
from agent.config import parse
from agent.hosts.ingress import open_replica
from agent.serving import Backends
from tests.agent.fakes import FakeArms, FakeEmbedders
from arms.llm.base import ScriptedGenerator
config, counters = parse(json.loads(sys.argv[1])), sys.argv[2]
open_replica(config, Backends(FakeArms(), FakeEmbedders(), {"default": ScriptedGenerator({})}), counters)
os._exit(0)  # the writer of the log runs on
"""


def test_a_replica_makes_the_folder_of_its_counters(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "metrics" / "of this service"
    config = json.dumps({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})
    subprocess.run([sys.executable, "-c", OPEN, config, str(folder)], check=True)
    assert list(folder.glob("*.db"))


SHOW = OPEN.replace("open_replica(config", "replica = open_replica(config").replace(
    "os._exit(0)",
    """with replica.service.store.reading() as connection:
    print(connection.exec_driver_sql("SHOW statement_timeout").scalar(), flush=True)
os._exit(0)""",
)


def test_statements_of_requests_are_shorter_than_those_of_the_learner(
    postgres: Server, tmp_path: Path
) -> None:
    url = postgres.fresh()
    config = json.dumps({**CONFIG, "log_url": url})
    command = [sys.executable, "-c", SHOW, config, str(tmp_path / "counters")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "10s"
    with closing(Store(url)) as store, store.reading() as connection:
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "1min"


def overview(status: DeploymentStatus, message: str = "", **replicas: int) -> DeploymentStatusOverview:
    return DeploymentStatusOverview(status, DeploymentStatusTrigger.UNSPECIFIED, replicas, message)  # type: ignore[arg-type]


def test_each_deployment_of_this_service_is_told_with_its_replicas_and_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = {
        "Learner": overview(DeploymentStatus.UNHEALTHY, "it has died", STARTING=1, RUNNING=2),
        "Jobs": overview(DeploymentStatus.UPDATING),
        "Arms": overview(DeploymentStatus.HEALTHY, RUNNING=3),
    }
    applications = {
        name: SimpleNamespace(deployments=found) for name, found in (("theirs", {}), ("ours", ours))
    }
    monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(app_name="ours"))
    monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(applications=applications))
    assert list(deployments().items()) == [
        ("Arms", (True, "3 running")),
        ("Jobs", (False, "no replica")),
        ("Learner", (False, "2 running, 1 starting it has died")),
    ]


@pytest.mark.parametrize("error", [RayServeException("the controller is away"), KeyError("ours")])
def test_a_ray_serve_that_does_not_answer_is_told_in_the_place_of_its_deployments(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def away() -> None:
        raise error

    monkeypatch.setattr(serve, "status", away)
    ((name, (healthy, said)),) = deployments().items()
    assert (name, healthy) == ("Ray Serve", False)
    assert str(error.args[0]) in said
