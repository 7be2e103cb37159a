"""A service on Ray: how Ray's own `serve run` is started, what is said of deployments, and how it ends."""

import logging
import os
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml
from ray.exceptions import RayError
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, DeploymentStatusOverview
from ray.serve.schema import DeploymentStatus as Status
from ray.serve.schema import DeploymentStatusTrigger as Trigger

from armwise.agent.cli import start_ray
from armwise.agent.cli.preparation import ProcessLostError
from armwise.agent.cli.start_ray import DeploymentError, require_deployable
from armwise.agent.config import AppConfig, parse
from armwise.agent.run_folder import CONFIG_FOLDER, RUN_FOLDER
from tests.agent.fakes import CONFIG

TRACEBACK = """The deployment failed to start 3 times in a row.
Traceback (most recent call last):
  File "arms/retrievers/bm25.py", line 214, in load
ValueError: mmap length is greater than file size
"""


def application(
    status: ApplicationStatus, message: str = "", **deployments: tuple[Status, str]
) -> dict[str, ApplicationStatusOverview]:
    """Return one application as `serve.status()` does."""
    of = {
        name: DeploymentStatusOverview(state, Trigger.UNSPECIFIED, {}, said)
        for name, (state, said) in deployments.items()
    }
    return {"armwise": ApplicationStatusOverview(status, message, 0.0, of)}


WELL = application(ApplicationStatus.RUNNING, Arms=(Status.HEALTHY, ""))
UNWELL = application(ApplicationStatus.UNHEALTHY, Arms=(Status.UNHEALTHY, "no replica"))


@pytest.mark.parametrize(
    ("applications", "expected"),
    [
        (
            application(
                ApplicationStatus.DEPLOY_FAILED,
                "The deployments ['Arms'] have failed.",
                Learner=(Status.HEALTHY, ""),
                Ingress=(Status.UNHEALTHY, "no replica"),
                Arms=(Status.DEPLOY_FAILED, TRACEBACK),
            ),
            "deployment Arms has failed for good: ValueError: mmap length is greater than file size",
        ),
        (
            application(ApplicationStatus.DEPLOY_FAILED, "ConfigError: floor 2 is too large"),
            "ConfigError: floor 2 is too large",
        ),
    ],
)
def test_what_ray_serve_has_given_up_is_named(applications: dict[str, Any], expected: str) -> None:
    with pytest.raises(DeploymentError) as raised:
        require_deployable(applications)
    assert str(raised.value) == expected


def test_what_starts_or_is_well_is_no_failure() -> None:
    for one in (WELL, UNWELL, application(ApplicationStatus.DEPLOYING, "", Arms=(Status.UPDATING, "starts"))):
        require_deployable(one)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    one = {"args": CONFIG, "runtime_env": {"env_vars": {"MINE": "1"}}}
    path.write_text(yaml.safe_dump({"proxy_location": "HeadOnly", "applications": [one]}))
    return path


@pytest.fixture
def settings() -> AppConfig:
    return parse(CONFIG)


class HAProxy:
    """A HAProxy that runs until it has ended, and waits for requests."""

    def __init__(self) -> None:
        self.codes, self.signals, self.waits = list[int](), list[int](), list[float]()

    def poll(self) -> int | None:
        return self.codes.pop() if self.codes else None

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        raise KeyboardInterrupt  # the second one


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """How Ray was started, and what was run on it instead of both; Ctrl-C is pressed after all looks."""
    seen: dict[str, Any] = {"code": 0, "looks": [], "haproxy": HAProxy(), "shut": 0, "printed": False}
    seen["signal"] = signal.SIGTERM

    def run(words: list[str], **options: Any) -> None:
        document = yaml.safe_load(Path(words[-1]).read_text())
        seen.update(words=words[:-1], options=options, document=document, environment=dict(os.environ))
        if seen["printed"]:
            raise SystemExit

    def status() -> object:
        if not seen["looks"]:
            signal.raise_signal(seen["signal"])
        if (found := seen["looks"].pop(0)) is None:
            raise RayError("the controller is busy")
        return SimpleNamespace(applications=found)

    def get(*_: object) -> None:
        raise httpx.ConnectError("not yet")

    for name in (*start_ray.VARIABLES, *start_ray.WHOLE_LOG, "RAY_ADDRESS", RUN_FOLDER, CONFIG_FOLDER):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)

    def start(*it: Any, **options: Any) -> None:
        seen.update(ray=(it, options))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Ray has a handler of its own

    monkeypatch.setattr("armwise.arms.local_ray.start", start)
    monkeypatch.setattr("armwise.arms.local_ray.connect", lambda **options: seen.update(joined=options))
    monkeypatch.setattr("ray.serve.scripts.cli", run)
    monkeypatch.setattr("ray.serve.status", status)
    monkeypatch.setattr("ray.serve.shutdown", lambda: seen.update(shut=seen["shut"] + 1))
    monkeypatch.setattr("httpx.Client.get", get)
    monkeypatch.setattr(start_ray, "LOOK_S", 0.0)
    monkeypatch.setattr(start_ray, "start_builder", lambda *_: None)
    monkeypatch.setattr(start_ray, "wait_for_builder", lambda _: seen["code"])
    monkeypatch.setattr(start_ray, "running_haproxy", lambda *_: nullcontext(seen["haproxy"]))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def serve(config: Path, settings: AppConfig, folder: Path | None) -> int:
    return start_ray.serve_on_ray(config, settings, ("127.0.0.1", 8000), folder, lambda *_: False)


QUIET = {"namespace": "serve", "logging_level": logging.WARNING}


def test_a_configuration_is_run_by_ray_itself_behind_haproxy(
    begun: dict[str, Any], config: Path, settings: AppConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_SERVE_THROUGHPUT_OPTIMIZED", "0")
    assert serve(config, settings, tmp_path) == 0
    assert begun["ray"] == ((tmp_path,), QUIET | {"object_store_memory": 268_435_456})
    assert (begun["words"], begun["options"]) == (
        ["run", "--non-blocking", "--app-dir", os.devnull],
        {"standalone_mode": False},
    )
    (application,) = begun["document"]["applications"]
    assert begun["document"]["proxy_location"] == "Disabled", "HAProxy listens"
    assert application["import_path"] == start_ray.APPLICATION
    environment = begun["environment"]
    assert environment["RAY_SERVE_THROUGHPUT_OPTIMIZED"] == "0", "what the user has set stays"
    assert environment["RAY_SERVE_ENABLE_DIRECT_INGRESS"] == "0"
    assert (environment[RUN_FOLDER], environment[CONFIG_FOLDER]) == (str(tmp_path), str(config.parent))


def test_without_haproxy_the_proxy_of_ray_listens(
    begun: dict[str, Any], config: Path, settings: AppConfig
) -> None:
    assert serve(config, settings, None) == 0
    assert begun["document"]["proxy_location"] == "HeadOnly"
    assert RUN_FOLDER not in begun["environment"]


def test_a_cluster_is_used_as_it_is_and_told_the_folder_of_the_configuration(
    begun: dict[str, Any], config: Path, settings: AppConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray.internal:6379")
    assert serve(config, settings, None) == 0
    assert "ray" not in begun
    assert begun["joined"] == QUIET
    (application,) = begun["document"]["applications"]
    assert application["runtime_env"]["env_vars"] == {CONFIG_FOLDER: str(config.parent), "MINE": "1"}


@pytest.mark.parametrize(("log", "whole"), [({}, False), ({"logs": "json"}, True)])
def test_a_log_in_json_has_every_line(
    begun: dict[str, Any], config: Path, log: dict[str, str], whole: bool
) -> None:
    serve(config, parse(CONFIG | {"telemetry": log}), None)
    assert (begun["environment"].get("RAY_DEDUP_LOGS") == "0") is whole


def test_what_was_not_prepared_is_not_served(
    begun: dict[str, Any], config: Path, settings: AppConfig, tmp_path: Path
) -> None:
    begun["code"] = 2
    assert serve(config, settings, tmp_path) == 2
    assert "ray" in begun, "it starts meanwhile"
    assert "words" not in begun


def test_a_configuration_that_ray_refuses_is_a_failure(
    begun: dict[str, Any], config: Path, settings: AppConfig, tmp_path: Path
) -> None:
    begun["printed"] = True
    assert serve(config, settings, tmp_path) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_requests_finish_and_the_second_does_not(
    begun: dict[str, Any], config: Path, settings: AppConfig, tmp_path: Path, number: signal.Signals
) -> None:
    begun["signal"] = number
    assert serve(config, settings, tmp_path) == 0
    haproxy = begun["haproxy"]
    assert (haproxy.signals, haproxy.waits) == ([signal.SIGUSR1], [start_ray.DRAIN_S])
    assert begun["shut"] == 1


@pytest.mark.parametrize("stops", [True, False])
def test_a_service_is_announced_once_it_is_ready_and_then_only_haproxy_is_looked_at(
    begun: dict[str, Any],
    config: Path,
    settings: AppConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stops: bool,
) -> None:
    answers, announced = iter([False, True]), list[str]()
    begun["looks"] = [WELL]
    monkeypatch.setattr("httpx.Client.get", lambda *_: SimpleNamespace(is_success=next(answers)))

    def announce(url: str, folder: Path | None) -> bool:
        announced.append(f"{url} {folder}")
        begun["haproxy"].codes.append(-9)
        return stops

    def ended() -> int:
        return start_ray.serve_on_ray(config, settings, ("127.0.0.1", 8000), tmp_path, announce)

    if stops:
        assert ended() == 0
    else:
        with pytest.raises(ProcessLostError, match=r"HAProxy has ended \(exit code -9\): start the service"):
            ended()
    assert announced == [f"http://127.0.0.1:8000 {tmp_path}"]
    assert begun["shut"] == 1


def test_what_ray_serve_gives_up_ends_the_service_with_the_reason(
    begun: dict[str, Any], config: Path, settings: AppConfig, tmp_path: Path
) -> None:
    begun["looks"] = [UNWELL, None, application(ApplicationStatus.DEPLOY_FAILED, "ConfigError: floor 2")]
    with pytest.raises(DeploymentError, match=r"^ConfigError: floor 2$"):
        serve(config, settings, tmp_path)
    assert (begun["looks"], begun["shut"]) == ([], 1)


needs_haproxy = pytest.mark.skipif(start_ray.haproxy_binary() is None, reason="there is no HAProxy here")


@needs_haproxy
@pytest.mark.parametrize("http", [{}, {"trusted_proxies": ["10.0.0.0/8", "192.0.2.1"]}])
def test_haproxy_accepts_its_file_with_the_limits_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, http: dict[str, Any]
) -> None:
    popen, environments = subprocess.Popen, list[dict[str, str]]()

    def check(command: list[str], *, env: dict[str, str], **_: object) -> Any:
        environments.append(env)
        return popen([command[0], "-c", "-f", command[-1]], env=env)

    monkeypatch.setattr("subprocess.Popen", check)
    settings = parse(CONFIG | {"http": {"request_s": 3.5, **http}})
    with start_ray.running_haproxy(settings, ("::1", 8000), tmp_path) as haproxy:
        assert haproxy.wait() == 0
    (environment,) = environments
    assert (environment["ARMWISE_HOST"], environment["ARMWISE_REQUEST_MS"]) == ("[::1]", "3500")
    assert environment["ARMWISE_SILENT_MS"] == "150000", "longer than a turn"


@needs_haproxy
@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (b"", 503, "replica_lost"),
        (b"HTTP/1.1 502 \r\nx-request-id: r-1\r\ncontent-length: 0\r\n\r\n", 502, None),
    ],
    ids=["none", "an error of its own"],
)
def test_haproxy_says_that_a_replica_is_lost_and_passes_its_errors_on(
    tmp_path: Path, answer: bytes, status: int, code: str | None
) -> None:
    class Replica(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            healthy = b"/health" in self.rfile.readline()
            self.wfile.write(b"HTTP/1.1 200 \r\ncontent-length: 0\r\n\r\n" if healthy else answer)

    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "ingress-0.sock"), Replica) as replica:
        threading.Thread(target=replica.serve_forever, args=(0.05,), daemon=True).start()
        with socket.create_server(("127.0.0.1", 0)) as free:
            host, port = free.getsockname()
        with (
            start_ray.running_haproxy(parse(CONFIG), (host, port), tmp_path),
            httpx.Client(transport=httpx.HTTPTransport(retries=5)) as client,  # until it listens
        ):
            lost = client.post(f"http://{host}:{port}/v1/retrieve")
        replica.shutdown()
    assert lost.status_code == status
    assert code is None or lost.json()["error"]["code"] == code
