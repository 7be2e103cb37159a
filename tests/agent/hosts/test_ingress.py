"""A replica of the ingress: its folder and its log on another machine, and what it tells of deployments."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from ray import serve
from ray.serve.exceptions import RayServeException
from ray.serve.schema import DeploymentStatus, DeploymentStatusOverview, DeploymentStatusTrigger

from armwise.agent.access.hosts import OpenServiceError
from armwise.agent.config import Http, parse
from armwise.agent.hosts import ingress
from armwise.agent.hosts.ingress import deployments
from armwise.feedback.log import Store
from tests.agent.fakes import CONFIG
from tests.postgres import Server

OPEN = """
import json, os, sys
from pathlib import Path
from armwise.agent.config import parse
from armwise.agent.hosts.replica import open_replica
from armwise.agent.serving import Backends
from tests.agent.fakes import FakeArms, FakeEmbedders
from armwise.arms.llm.base import ScriptedGenerator
config, counters = parse(json.loads(sys.argv[1])), Path(sys.argv[2])
backends = Backends(FakeArms(), FakeEmbedders(), {"default": ScriptedGenerator({})})
open_replica(config, backends, counters, dict)
os._exit(0)  # the writer of the log runs on
"""


@pytest.mark.slow
def test_a_replica_makes_the_folder_of_its_counters(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "metrics" / "of this service"
    config = json.dumps({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})
    subprocess.run([sys.executable, "-c", OPEN, config, str(folder)], check=True)
    assert list(folder.glob("*.db"))


SHOW = OPEN.replace("open_replica(config", "replica = open_replica(config").replace(
    "os._exit(0)",
    """with replica.store.reading() as connection:
    print(connection.exec_driver_sql("SHOW statement_timeout").scalar(), flush=True)
os._exit(0)""",
)


@pytest.mark.slow
def test_statements_of_requests_have_shorter_limits(postgres: Server, tmp_path: Path) -> None:
    url = postgres.fresh()
    config = json.dumps({**CONFIG, "log_url": url})
    command = [sys.executable, "-c", SHOW, config, str(tmp_path / "counters")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "10s"
    with closing(Store(url)) as store, store.reading() as connection:
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "1min"


def overview(status: DeploymentStatus, message: str = "", **replicas: int) -> DeploymentStatusOverview:
    return DeploymentStatusOverview(status, DeploymentStatusTrigger.UNSPECIFIED, replicas, message)  # type: ignore[arg-type]


def test_each_deployment_is_told_with_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {
        "Learner": overview(DeploymentStatus.UNHEALTHY, "it has died", STARTING=1, RUNNING=2),
        "Generator": overview(DeploymentStatus.UPDATING),
        "Arms": overview(DeploymentStatus.HEALTHY, RUNNING=3),
    }
    applications = {
        name: SimpleNamespace(deployments=found) for name, found in (("theirs", {}), ("ours", ours))
    }
    monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(app_name="ours"))
    monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(applications=applications))
    assert list(deployments().items()) == [
        ("Arms", (True, "3 running")),
        ("Generator", (False, "no replica")),
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


# -- the replica -----------------------------------------------------------------------------------


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Callable[..., Any], list[str]]:
    """Constructs a replica whose log is open, and what it did: it has no key, and is ready."""
    done: list[str] = []
    keyring = SimpleNamespace(is_open=True)
    replica = SimpleNamespace(keyring=keyring, ready=False, check=lambda: done.append("check"))
    monkeypatch.delenv("ARMWISE_RUN", raising=False)
    monkeypatch.setattr(ingress, "begin", lambda spec: done.append(f"begin {spec.logs}"))
    monkeypatch.setattr(ingress, "listens_on", lambda: "127.0.0.1")
    monkeypatch.setattr(ingress, "open_here", lambda *_: {})
    monkeypatch.setattr(ingress, "open_replica", lambda *_: replica)
    monkeypatch.setattr(ingress, "keep_what_is_loaded", lambda: done.append("keep"))
    monkeypatch.setattr(ingress, "create_app", lambda _: "the application")

    def construct(**changes: Any) -> Any:
        config = parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}", **changes})
        plain: Any = ingress.Ingress.__mro__[1]  # without what Ray Serve wraps around it
        return plain(config, {}, {}, {"default": None}, None, str(tmp_path))

    return construct, done


def test_a_replica_behind_the_proxy_of_ray_listens_to_others_only_with_a_key_or_where_it_may(
    opened: tuple[Callable[..., Any], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    construct, _ = opened
    construct()
    monkeypatch.setattr(ingress, "listens_on", lambda: "10.0.0.7")
    with pytest.raises(OpenServiceError, match=r"would listen on 10\.0\.0\.7 without any key"):
        construct()
    construct(open=True)
    monkeypatch.setenv("ARMWISE_RUN", "/run/armwise")
    construct()


async def test_a_replica_keeps_what_is_loaded_at_its_start_and_once_more_when_it_is_ready(
    opened: tuple[Callable[..., Any], list[str]],
) -> None:
    construct, done = opened
    replica = construct()
    assert done == ["begin plain", "keep"]
    await replica.check_health()
    replica._replica.ready = True  # noqa: SLF001
    for _ in range(2):
        await replica.check_health()
    assert done[2:] == ["check", "check", "keep", "check"]


def test_behind_haproxy_a_replica_listens_on_a_socket(
    opened: tuple[Callable[..., Any], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = opened[0]()
    assert replica.__serve_build_asgi_app__() == "the application", "behind the proxy of Ray"
    monkeypatch.setattr(ingress, "behind_haproxy", lambda app, folder, _: (app, folder))
    monkeypatch.setenv("ARMWISE_RUN", "/run/armwise")
    assert replica.__serve_build_asgi_app__() == ("the application", Path("/run/armwise"))


async def test_a_replica_behind_haproxy_answers_on_a_socket_by_the_address_that_haproxy_sends() -> None:
    app = FastAPI()

    @app.get("/")
    async def client(request: Request) -> str:
        assert request.client is not None
        return request.client.host

    with tempfile.TemporaryDirectory(prefix="armwise-") as folder:  # a short path
        app = ingress.behind_haproxy(app, Path(folder), Http())
        async with app.router.lifespan_context(app):
            transport = httpx.AsyncHTTPTransport(uds=f"{folder}/ingress-0.sock")
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
                answer = await http.get("/", headers={"x-forwarded-for": "192.0.2.7"})
        assert answer.json() == "192.0.2.7"
        assert not Path(folder, "ingress-0.sock").exists()
