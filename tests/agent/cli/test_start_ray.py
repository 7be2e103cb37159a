"""A service on Ray: how Ray's own `serve run` is started, what is said of deployments, and how it ends."""

import logging
import os
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, DeploymentStatusOverview
from ray.serve.schema import DeploymentStatus as Status
from ray.serve.schema import DeploymentStatusTrigger as Trigger

from armwise.agent.background import read_failures
from armwise.agent.cli import start_ray
from armwise.agent.cli.behind import ProcessLostError
from armwise.agent.cli.start_ray import DeploymentError, ServiceWatch, StopSignal, find_problems
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
            [
                (
                    "deployment Arms has failed for good: ValueError: mmap length is greater than file size",
                    True,
                ),
                ("deployment Ingress is unhealthy: no replica", False),
            ],
        ),
        (
            application(ApplicationStatus.DEPLOY_FAILED, "ConfigError: floor 2 is too large"),
            [("the application armwise cannot be deployed: ConfigError: floor 2 is too large", True)],
        ),
        (application(ApplicationStatus.DEPLOYING, "fine", Arms=(Status.UPDATING, "starting")), []),
        (WELL, []),
    ],
)
def test_what_is_wrong_with_deployments_is_named(
    applications: dict[str, Any], expected: list[tuple[str, bool]]
) -> None:
    assert list(find_problems(applications)) == expected


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    one = {"args": CONFIG, "runtime_env": {"env_vars": {"MINE": "1"}}}
    path.write_text(yaml.safe_dump({"proxy_location": "HeadOnly", "applications": [one]}))
    return path


@pytest.fixture
def settings() -> AppConfig:
    return parse(CONFIG)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """How Ray was started, and what was run on it instead of both; a signal ends it."""
    seen: dict[str, Any] = {"code": 0, "signal": signal.SIGTERM}

    def run(words: list[str], **options: Any) -> None:
        document = yaml.safe_load(Path(words[-1]).read_text())
        seen.update(words=words[:-1], options=options, document=document, environment=dict(os.environ))
        if seen["signal"] is not None:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(seen["signal"])
        raise SystemExit

    for name in (*start_ray.VARIABLES, *start_ray.WHOLE_LOG, "RAY_ADDRESS", RUN_FOLDER, CONFIG_FOLDER):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr("armwise.arms.local_ray.start", lambda *it, **options: seen.update(ray=(it, options)))
    monkeypatch.setattr("armwise.arms.local_ray.connect", lambda **options: seen.update(joined=options))
    monkeypatch.setattr("ray.serve.scripts.cli", run)
    monkeypatch.setattr(start_ray, "BuildProcess", lambda *_: SimpleNamespace(wait=lambda: seen["code"]))
    monkeypatch.setattr(
        start_ray, "ServiceWatch", lambda *_: SimpleNamespace(start=lambda: None, failure=None)
    )
    monkeypatch.setattr(start_ray, "haproxy_binary", lambda: Path("/bin/true"))
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
        ["run", "--app-dir", os.devnull],
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
    begun: dict[str, Any], config: Path, settings: AppConfig, log: dict[str, str], whole: bool
) -> None:
    document = yaml.safe_load(config.read_text())
    document["applications"][0]["args"] = CONFIG | {"telemetry": log}
    config.write_text(yaml.safe_dump(document))
    serve(config, settings, None)
    assert (begun["environment"].get("RAY_DEDUP_LOGS") == "0") is whole


def test_what_was_not_prepared_is_not_served(
    begun: dict[str, Any], config: Path, settings: AppConfig, tmp_path: Path
) -> None:
    begun["code"] = 2
    assert serve(config, settings, tmp_path) == 2
    assert "ray" in begun, "it starts meanwhile"
    assert "words" not in begun


def test_a_ray_that_ends_by_itself_is_a_failure(
    begun: dict[str, Any], config: Path, settings: AppConfig, tmp_path: Path
) -> None:
    begun["signal"] = None
    assert serve(config, settings, tmp_path) == 1


def test_the_first_signal_lets_requests_finish_and_the_second_does_not() -> None:
    waits, sent = list[float](), list[int]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        stop()  # the second one

    stop = StopSignal(SimpleNamespace(send_signal=sent.append, wait=wait))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        stop()
    assert (stop.called, waits, sent) == (True, [start_ray.DRAIN_S], [signal.SIGUSR1])


class Service:
    """A service on Ray for a watch: whether it is ready, its deployments, and HAProxy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *looks: Any) -> None:
        self.announced, self.stops, self.interrupted = 0, False, 0
        self.failures, left = list[list[tuple[str, int]]](), iter(looks)

        def status() -> object:
            self.failures.append([(one.why, one.attempts) for one in read_failures()])
            if (found := next(left)) is None:
                raise RuntimeError("the controller starts")
            return SimpleNamespace(applications=found)

        monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
        monkeypatch.setattr("ray.is_initialized", lambda: True)
        monkeypatch.setattr("ray.serve.status", status)
        monkeypatch.setattr("httpx.Client.get", lambda *_: SimpleNamespace(is_success=True))
        monkeypatch.setattr(start_ray, "LOOK_S", 0.0)
        monkeypatch.setattr(signal, "pthread_kill", self._interrupt)

    def _interrupt(self, *_: object) -> None:
        self.interrupted += 1

    def announce(self) -> bool:
        self.announced += 1
        return self.stops

    def watch(self, code: int | None = None) -> ServiceWatch:
        proxy: Any = SimpleNamespace(poll=lambda: code)
        watch = ServiceWatch(proxy, "http://127.0.0.1:1", self.announce, lambda: None)
        watch.run()
        return watch


def test_what_is_unhealthy_is_recorded_until_it_is_well_and_what_is_given_up_ends_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = application(ApplicationStatus.DEPLOY_FAILED, Arms=(Status.DEPLOY_FAILED, TRACEBACK))
    service = Service(monkeypatch, tmp_path, UNWELL, UNWELL, None, WELL, UNWELL, failed)
    watch = service.watch()
    assert isinstance(watch.failure, DeploymentError)
    assert "Arms has failed for good: ValueError" in str(watch.failure)
    why = "deployment Arms is unhealthy: no replica"
    assert service.failures == [[], [(why, 1)], [(why, 1)], [(why, 1)], [], [(why, 1)]]
    assert (service.announced, service.interrupted) == (1, 1)
    assert capsys.readouterr().err.count(why) == 2


def test_a_service_that_has_answered_its_one_question_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(monkeypatch, tmp_path)
    service.stops = True
    assert (service.watch().failure, service.interrupted) == (None, 1)


def test_a_question_that_fails_ends_the_service_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(monkeypatch, tmp_path)

    def fail() -> bool:
        raise ConnectionError("no answer")

    monkeypatch.setattr(service, "announce", fail)
    assert isinstance(service.watch().failure, ConnectionError)


def test_a_service_ends_with_its_haproxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Service(monkeypatch, tmp_path).watch(-9).failure
    assert isinstance(failure, ProcessLostError)
    assert "HAProxy has ended" in str(failure)


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
    assert start_ray.start_haproxy(settings, ("::1", 8000), tmp_path).wait() == 0
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
        proxy = start_ray.start_haproxy(parse(CONFIG), (host, port), tmp_path)
        try:
            with httpx.Client(transport=httpx.HTTPTransport(retries=5)) as client:  # until it listens
                lost = client.post(f"http://{host}:{port}/v1/retrieve")
        finally:
            proxy.kill()
            proxy.wait()
            replica.shutdown()
    assert lost.status_code == status
    assert code is None or lost.json()["error"]["code"] == code
