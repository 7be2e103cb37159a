"""The processes of a service: one that prepares, and one that serves until it is stopped."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from rich.console import Console

from armwise.agent.background import PAUSES_S, Work, WorkFailure, read_failures
from armwise.agent.cli import serve
from armwise.agent.cli.predecessor import HAND_OVER, Predecessor
from armwise.agent.cli.ray_processes import ProcessLostError
from armwise.agent.cli.serve_config import (
    LaunchError,
    Replicas,
    ingress_replicas,
    logs_json,
    read_listening_address,
)
from armwise.agent.proxy import ProxyError, socket_path
from armwise.agent.run_folder import BEHIND, PROGRESS, RUN_FOLDER, Building, BuildingProgress

PARENT = """
import sys
from pathlib import Path
from armwise.agent.cli import serve
sys.executable = sys.argv[1]
serve.prepare_in_process(Path("serve_config.yaml"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process that its parent has ended")
@pytest.mark.slow
def test_what_prepares_ends_with_the_service_that_started_it(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho $$\nexec sleep 600\n")
    program.chmod(0o700)
    with subprocess.Popen([sys.executable, "-c", PARENT, str(program)], stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        preparing = psutil.Process(int(service.stdout.readline()))
        service.terminate()
        psutil.wait_procs([preparing], timeout=60)
        left = preparing.is_running() and preparing.status() != psutil.STATUS_ZOMBIE
        if left:
            preparing.kill()
        assert not left


def test_what_prepares_has_the_environment_and_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[list[str], dict[str, str]]] = []
    popen = subprocess.Popen

    def begin(command: list[str], env: dict[str, str], **_: object) -> "subprocess.Popen[bytes]":
        begun.append((command, env))
        return popen(["sh", "-c", "exit 3"])

    monkeypatch.setattr("subprocess.Popen", begin)
    monkeypatch.setenv("OF_THE_USER", "kept")
    monkeypatch.delenv(RUN_FOLDER, raising=False)
    path = tmp_path / "config.yaml"
    assert serve.prepare_in_process(path, tmp_path) == 3
    assert serve.prepare_in_process(path) == 3
    words = ["armwise", "serve", "--prepare-only", "--config", str(path)]
    assert [command[3:] for command, _ in begun] == [words, words]
    assert [env["OF_THE_USER"] for _, env in begun] == ["kept", "kept"]
    assert [env.get(RUN_FOLDER) for _, env in begun] == [str(tmp_path), None]


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a script of the shell stand in for what prepares."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))


def test_what_prepares_and_is_killed_ends_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, "kill -9 $$")
    with pytest.raises(ProcessLostError, match=r"what is missing \(killed by SIGKILL\): start it again"):
        serve.prepare_in_process(tmp_path / "config.yaml")


@pytest.mark.parametrize("raises", [False, True])
def test_what_prepares_is_ended_at_once_where_ray_is_lost_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    looks = list[int]()

    def check() -> int | None:
        looks.append(len(looks))
        if len(looks) < 3:
            return None
        if raises:
            raise ProcessLostError("the raylet is gone")
        return 7

    program(tmp_path, monkeypatch, "exec sleep 600")
    monkeypatch.setattr(serve, "LOOK_S", 0.01)
    begun = list[psutil.Process]()
    popen = subprocess.Popen

    def begin(*words: Any, **options: Any) -> Any:
        process = popen(*words, **options)
        begun.append(psutil.Process(process.pid))
        return process

    monkeypatch.setattr("subprocess.Popen", begin)
    if raises:
        with pytest.raises(ProcessLostError, match="the raylet is gone"):
            serve.prepare_in_process(tmp_path / "config.yaml", check=check)
    else:
        assert serve.prepare_in_process(tmp_path / "config.yaml", check=check) == 7
    assert not begun[0].is_running()


@pytest.mark.parametrize("named", [None, "of_theirs:app"])
def test_an_application_without_a_path_is_that_of_armwise(tmp_path: Path, named: str | None) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"import_path": named, "args": {}}]}))
    written = serve._without_proxy(path, tmp_path)  # noqa: SLF001 - what Ray Serve is given
    (application,) = yaml.safe_load(written.read_text())["applications"]
    assert application["import_path"] == (named or serve.APPLICATION)


class Starting(BaseHTTPRequestHandler):
    """A service that is ready at the third request."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(200 if self.path == "/ready" and self.asked > 2 else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a service that becomes ready; signals are handled as before afterwards."""
    monkeypatch.setattr(serve, "LOOK_S", 0.01)
    monkeypatch.setattr(Starting, "asked", 0)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, HAND_OVER)}
    with ThreadingHTTPServer(("127.0.0.1", 0), Starting) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()
    for number, handler in before.items():
        signal.signal(number, handler)


@dataclass
class Launched:
    """What `run_service` began: the command and the options of its process, and what became of the proxy."""

    command: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    events: list[object] = field(default_factory=list)
    looks: int = 0


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """Let a process that sleeps stand in for Ray Serve."""
    popen, seen = subprocess.Popen, Launched()

    def begin(command: list[str], **options: Any) -> Any:
        seen.command, seen.options = command, options
        seen.processes.append(popen(["sleep", "600"], **options))
        return seen.processes[-1]

    monkeypatch.setattr("subprocess.Popen", begin)
    return seen


def launch(config: Path, folder: Path | None = None, **options: Any) -> int:
    """Run the service of a configuration, in a folder of its own if one is given."""
    if folder is not None:
        folder.mkdir(exist_ok=True)
    options.setdefault("console", Console(file=StringIO()))
    return serve.run_service(config, folder, read_listening_address(config), **options)


def configured(tmp_path: Path, port: int, **telemetry: str) -> Path:
    path = tmp_path / "config.yaml"
    document = {"http_options": {"port": port}, "applications": [{"args": {"telemetry": telemetry}}]}
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_service_is_asked_once_it_is_ready_and_stopped_then(
    tmp_path: Path, launched: Launched, starting: int
) -> None:
    config, asked = configured(tmp_path, starting), list[str]()

    def once(base: str) -> None:
        (process,) = launched.processes
        assert process.poll() is None
        assert os.getsid(process.pid) == process.pid, "Ctrl-C in a terminal does not reach it"
        for number in (signal.SIGINT, signal.SIGTERM):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
        asked.append(base)

    assert launch(config, once=once) == 0
    assert launched.command[1:] == ["-P", "-m", "armwise.agent.cli.start_ray", str(config)]
    assert RUN_FOLDER not in launched.options["env"]
    assert asked == [f"http://127.0.0.1:{starting}"]
    assert Starting.asked == 3
    assert launched.processes[0].poll() == -signal.SIGINT


@pytest.mark.parametrize("predecessor", [None, Predecessor(77, Path("admin.sock"), 0)])
@pytest.mark.usefixtures("starting")
def test_one_process_is_told_what_it_replaces(
    tmp_path: Path, launched: Launched, predecessor: Predecessor | None
) -> None:
    def prepare_first(_: Callable[[], int | None]) -> int:
        raise KeyboardInterrupt

    config = configured(tmp_path, 1)
    code = serve.run_service(
        config,
        tmp_path,
        ("127.0.0.1", 1),
        Console(file=StringIO()),
        prepare_first=prepare_first,
        predecessor=predecessor,
        single=True,
    )
    (process,) = launched.processes
    assert (code, process.poll()) == (-signal.SIGINT, -signal.SIGINT)
    told = [str(config), "" if predecessor is None else "77"]
    assert launched.command[1:] == ["-P", "-m", "armwise.agent.cli.start_single", *told]
    environment = launched.options["env"]
    assert (environment[RUN_FOLDER], environment["OMP_NUM_THREADS"]) == (str(tmp_path), "1")


@pytest.mark.usefixtures("launched")
def test_an_address_of_ipv6_stands_in_brackets(tmp_path: Path, starting: int) -> None:
    class Six(ThreadingHTTPServer):
        address_family = socket.AF_INET6

    asked = list[str]()
    config = configured(tmp_path, starting)
    try:
        server = Six(("::1", 0), Starting)
    except OSError:
        pytest.skip("there is no IPv6 here")
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        code = serve.run_service(
            config, None, ("::1", server.server_port), Console(file=StringIO()), asked.append
        )
        server.shutdown()
        assert (code, asked) == (0, [f"http://[::1]:{server.server_port}"])


def test_a_question_that_fails_stops_the_service_too(
    tmp_path: Path, launched: Launched, starting: int
) -> None:
    def once(base: str) -> None:
        raise ConnectionError(base)

    config = configured(tmp_path, starting)
    with pytest.raises(ConnectionError):
        launch(config, once=once)
    assert launched.processes[0].poll() == -signal.SIGINT


@pytest.mark.parametrize("telemetry", [{}, {"logs": "plain"}, {"logs": "json"}])
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_an_interrupted_service_is_drained_stopped_and_loses_its_proxy_last(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launched: Launched,
    starting: int,
    telemetry: dict[str, str],
    again: bool,
) -> None:
    class Recorded:
        """A proxy during whose fourth look, once the service is ready, Ctrl-C is pressed."""

        def __init__(self, configuration: Path, _taking: Path | None = None) -> None:
            launched.events.append(configuration.name)

        def watch(self) -> None:
            launched.looks += 1
            if launched.looks == 4:
                raise KeyboardInterrupt

        def has_looked(self) -> bool:
            return True

        def drain(self, limit_s: float) -> None:
            launched.events.append(("drain", limit_s, launched.processes[0].poll()))
            if again:
                raise KeyboardInterrupt

        def stop(self) -> None:
            launched.events.append(("stop", launched.processes[0].poll()))

    monkeypatch.setattr(serve, "Proxy", Recorded)
    monkeypatch.setenv("OF_THE_USER", "kept")
    for name in ("RAY_DISABLE_WORKER_LOG_PREFIX", "RAY_DEDUP_LOGS"):
        monkeypatch.delenv(name, raising=False)
    config, folder, printed = configured(tmp_path, starting, **telemetry), tmp_path / "run", StringIO()
    code = launch(config, folder, console=Console(file=printed, width=120))
    assert code == -signal.SIGINT
    assert launched.events == ["haproxy.cfg", ("drain", 300.0, None), ("stop", -signal.SIGINT)]
    assert f"http://127.0.0.1:{starting}/console" in printed.getvalue()
    assert launched.command[1:] == ["-P", "-m", "armwise.agent.cli.start_ray", str(folder / "serve.yaml")]
    without = yaml.safe_load((folder / "serve.yaml").read_text())
    (application,) = yaml.safe_load(config.read_text())["applications"]
    named = application | {"import_path": serve.APPLICATION}
    assert without == yaml.safe_load(config.read_text()) | {
        "proxy_location": "Disabled",
        "applications": [named],
    }
    environment = launched.options["env"]
    assert (environment[RUN_FOLDER], environment["OF_THE_USER"]) == (str(folder), "kept")
    whole = {"RAY_DISABLE_WORKER_LOG_PREFIX": "1", "RAY_DEDUP_LOGS": "0"}
    expected = whole if telemetry == {"logs": "json"} else {}
    assert {name: environment[name] for name in whole if name in environment} == expected


def test_a_service_whose_port_was_taken_over_accepts_nothing_more_and_ends_with_its_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: Launched, starting: int
) -> None:
    class Recorded:
        """A proxy during whose fourth look, once the service is ready, its successor sends the signal."""

        def __init__(self, *_: Path | None) -> None: ...

        def watch(self) -> None:
            launched.looks += 1
            if launched.looks == 4:
                signal.raise_signal(HAND_OVER)

        def has_looked(self) -> bool:
            return True

        def leave(self, limit_s: float) -> None:
            launched.events.append(("leave", limit_s, launched.processes[0].poll()))

        def stop(self) -> None:
            launched.events.append(("stop", launched.processes[0].poll()))

    monkeypatch.setattr(serve, "Proxy", Recorded)
    code = launch(configured(tmp_path, starting), tmp_path / "run")
    assert code == -signal.SIGINT
    assert launched.events == [("leave", 300.0, None), ("stop", -signal.SIGINT)]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the process is told that starts Ray, in whose place one copies it to a file and ends."""
    popen, copy = subprocess.Popen, tmp_path / "told"
    words = ["sh", "-c", 'cat >"$0"; exit 5', str(copy)]
    monkeypatch.setattr("subprocess.Popen", lambda _, **options: popen(words, **options))
    return copy


def test_ray_serve_goes_on_once_all_is_prepared(tmp_path: Path, starting: int, told: Path) -> None:
    config, order = configured(tmp_path, starting), list[str]()

    def prepare_first(check: Callable[[], int | None]) -> int:
        assert check() is None
        order.append(told.read_text() if told.exists() else "")
        return 0

    assert launch(config, prepare_first=prepare_first) == 5
    assert (order, told.read_text()) == ([""], "prepared\n")


def test_a_failed_preparation_ends_ray_in_order(tmp_path: Path, starting: int, told: Path) -> None:
    config = configured(tmp_path, starting)
    assert launch(config, prepare_first=lambda _: 4) == 4
    assert (told.read_text(), Starting.asked) == ("", 0)


def test_ctrl_c_while_all_is_prepared_stops_ray(tmp_path: Path, launched: Launched, starting: int) -> None:
    def prepare_first(_: Callable[[], int | None]) -> int:
        raise KeyboardInterrupt

    config = configured(tmp_path, starting)
    code = launch(config, prepare_first=prepare_first)
    assert (code, launched.processes[0].poll(), Starting.asked) == (-signal.SIGINT, -signal.SIGINT, 0)


def test_a_proxy_that_cannot_start_stops_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: Launched, starting: int
) -> None:
    def refuse(*_: Path | None) -> None:
        raise ProxyError("no such option")

    monkeypatch.setattr(serve, "Proxy", refuse)
    config, folder = configured(tmp_path, starting), tmp_path / "run"
    with pytest.raises(LaunchError, match=f"port {starting} of 127.0.0.1"):  # it was taken meanwhile
        launch(config, folder)
    assert launched.processes[0].poll() == -signal.SIGINT
    monkeypatch.setattr(serve, "require_free_port", lambda *_: None)
    with pytest.raises(ProxyError, match="no such option"):
        launch(config, folder)
    assert launched.processes[0].poll() == -signal.SIGINT


class UnixServer(ThreadingHTTPServer):
    """Listens on a Unix socket."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)

    def get_request(self) -> tuple[Any, Any]:
        return self.socket.accept()[0], ("", 0)


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.usefixtures("launched")
def test_a_port_is_taken_over_once_every_replica_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starting: int, late: int
) -> None:
    events, folder, admin = list[object](), tmp_path / "run", tmp_path / "admin.sock"

    def replica(slot: int) -> ThreadingHTTPServer:
        class Replica(Starting):
            asked = 0 if slot == late else 2

            def do_GET(self) -> None:
                super().do_GET()
                events.append((slot, self.asked > 2))

        server = UnixServer(str(socket_path(folder, slot)), Replica)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    class Taking(Quiet):
        def __init__(self, _: Path, taking: Path | None) -> None:
            events.append(taking)

    monkeypatch.setattr(serve, "Proxy", Taking)
    monkeypatch.setattr(Quiet, "looks", 0)
    monkeypatch.setattr(Predecessor, "has_ended", lambda _: False)
    monkeypatch.setattr(Predecessor, "retire", lambda replaced: events.append(replaced.pid))
    config, printed = configured(tmp_path, starting), StringIO()
    document = yaml.safe_load(config.read_text())
    document["applications"][0]["deployments"] = [{"name": "Ingress", "num_replicas": 2}]
    config.write_text(yaml.safe_dump(document))
    folder.mkdir()
    servers = [replica(slot) for slot in range(2)]
    address, predecessor = read_listening_address(config), Predecessor(77, admin, 0)
    serve.run_service(config, folder, address, Console(file=printed), predecessor=predecessor)
    for server in servers:
        server.shutdown()
        server.server_close()
    looks = [[(0, False)] * 2 * (late == 0), (0, True), [(1, False)] * 2 * (late == 1), (1, True)]
    assert events == [*looks[0], looks[1], *looks[2], looks[3], admin, 77]
    assert "from process 77" in printed.getvalue()


@pytest.mark.usefixtures("launched")
def test_a_service_whose_predecessor_has_ended_meanwhile_listens_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starting: int
) -> None:
    taken, free = list[Path | None](), list[int]()

    class Opened(Quiet):
        def __init__(self, _: Path, taking: Path | None) -> None:
            taken.append(taking)

    monkeypatch.setattr(serve, "Proxy", Opened)
    monkeypatch.setattr(Quiet, "looks", 0)
    monkeypatch.setattr(serve, "_wait_for_replicas", lambda *_: None)
    monkeypatch.setattr(serve, "require_free_port", lambda _, port: free.append(port))
    with subprocess.Popen(["sleep", "600"]) as ended:
        replaced = Predecessor(ended.pid, tmp_path / "admin.sock", os.pidfd_open(ended.pid))
        ended.kill()
    config, printed = configured(tmp_path, starting), StringIO()
    console = Console(file=printed, width=200)
    address = read_listening_address(config)
    serve.run_service(config, tmp_path, address, console, predecessor=replaced, single=True)
    assert (taken, free) == ([None], [starting])
    assert (
        f"Process {ended.pid}, which had http://127.0.0.1:{starting}, ended by itself" in printed.getvalue()
    )
    os.close(replaced.descriptor)


@pytest.mark.usefixtures("starting")
def test_a_port_taken_by_another_program_meanwhile_stops_the_start_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: Launched
) -> None:
    monkeypatch.setattr(serve, "_wait_for_replicas", lambda *_: None)
    monkeypatch.setattr(Predecessor, "has_ended", lambda _: True)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config, replaced = configured(tmp_path, port), Predecessor(77, tmp_path / "admin.sock", 0)
        console = Console(file=StringIO())
        with pytest.raises(LaunchError, match=f"port {port} of 127.0.0.1 cannot be used"):
            serve.run_service(
                config, tmp_path, ("127.0.0.1", port), console, predecessor=replaced, single=True
            )
    assert launched.processes[0].poll() == -signal.SIGINT


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"192\.0\.2\.1 cannot be used .*http_options\.port"):
        serve.require_free_port("192.0.2.1", 8000)


class Quiet:
    """A proxy during whose sixth look, once the service is ready, Ctrl-C is pressed."""

    looks = 0

    def __init__(self, *_: Path | None) -> None: ...

    def watch(self) -> None:
        type(self).looks += 1
        if self.looks == 6:
            raise KeyboardInterrupt

    def has_looked(self) -> bool:
        return True

    def drain(self, _: float) -> None: ...

    def stop(self) -> None: ...


@pytest.mark.slow
def test_what_a_first_start_has_left_is_built_once_the_service_is_ready_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: Launched, starting: int
) -> None:
    monkeypatch.setattr(serve, "Proxy", Quiet)
    monkeypatch.setattr(Quiet, "looks", 0)
    config, folder = configured(tmp_path, starting), tmp_path / "run"
    folder.mkdir()
    (folder / BEHIND).touch()
    launch(config, folder)
    _, building = launched.processes
    assert launched.command[1:] == ["-P", "-m", "armwise.agent.cli.first_start", str(config)]
    assert launched.options["env"][RUN_FOLDER] == str(folder)
    assert launched.options["start_new_session"]
    assert Starting.asked == 3, "not before"
    assert building.poll() == -signal.SIGTERM


def test_nothing_is_built_behind_a_service_that_never_became_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: Launched, starting: int
) -> None:
    monkeypatch.setattr(serve, "Proxy", Quiet)
    monkeypatch.setattr(Quiet, "looks", 0)
    monkeypatch.setattr(serve, "START_S", 0.0)
    config, folder = configured(tmp_path, starting), tmp_path / "run"
    folder.mkdir()
    (folder / BEHIND).touch()
    launch(config, folder)
    assert len(launched.processes) == 1


class Builder:
    """Builders that end with a code each, and the last one when it is told to."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *ends: str) -> None:
        self.folder, self.now, self.begun = tmp_path, 0.0, list["subprocess.Popen[bytes]"]()
        popen, scripts = subprocess.Popen, iter(ends)

        def begin(_: list[str], **options: Any) -> Any:
            self.begun.append(popen(["sh", "-c", next(scripts)], **options))
            return self.begun[-1]

        monkeypatch.setattr("subprocess.Popen", begin)
        monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
        monkeypatch.setattr(time, "time", lambda: 1000.0)
        (tmp_path / BEHIND).touch()
        BuildingProgress(tmp_path)("waiting for the service")
        self.builder = serve.BehindBuilder(tmp_path / "config.yaml", tmp_path, lambda: self.now)

    def ended(self) -> list[WorkFailure]:
        """Wait until the newest one has ended, look, and return what is on record."""
        self.begun[-1].wait()
        self.builder.watch()
        return read_failures()


@pytest.mark.parametrize(("end", "said"), [("kill -9 $$", "killed by SIGKILL"), ("exit 1", "exit code 1")])
@pytest.mark.slow
def test_a_builder_that_ends_in_the_middle_is_started_again_after_a_pause_twice_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, said: str
) -> None:
    builders = Builder(tmp_path, monkeypatch, *[end] * 3)
    why = f"the process that builds them has ended ({said})"
    for attempt, pause_s in enumerate(PAUSES_S, 1):
        failure = WorkFailure(Work.FIRST_START, why, attempt, 1000.0 + pause_s)
        assert builders.ended() == [failure]
        builders.now += pause_s - 0.1
        builders.builder.watch()
        assert len(builders.begun) == attempt, "not yet"
        assert Building.read() is not None
        builders.now += 0.1
        builders.builder.watch()
        assert len(builders.begun) == attempt + 1
    assert builders.ended() == [WorkFailure(Work.FIRST_START, why, len(PAUSES_S) + 1, None)]
    assert Building.read() is None, "nobody waits for it any more"
    builders.now = 1e9
    builders.builder.watch()
    assert len(builders.begun) == len(PAUSES_S) + 1


@pytest.mark.parametrize("code", [0, 1])
def test_a_builder_that_ends_by_itself_is_done_or_has_said_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    builders = Builder(tmp_path, monkeypatch, f"rm {tmp_path / PROGRESS}; exit {code}")
    assert builders.ended() == []
    builders.now = 1e9
    builders.builder.watch()
    assert len(builders.begun) == 1
    builders.builder.stop()


def test_a_builder_that_waits_is_stopped_like_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builders = Builder(tmp_path, monkeypatch, "kill -9 $$", "exec sleep 600")
    assert len(builders.ended()) == 1
    builders.builder.stop()
    builders.now = PAUSES_S[0]
    for _ in range(3):
        builders.builder.watch()
    builders.builder.stop()
    assert [process.returncode for process in builders.begun] == [-signal.SIGKILL, -signal.SIGTERM]


@pytest.mark.slow
def test_a_start_that_takes_long_is_said_once_and_what_is_left_is_built_all_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launched: Launched,
    starting: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(serve, "Proxy", Quiet)
    monkeypatch.setattr(Quiet, "looks", 0)
    monkeypatch.setattr(serve, "START_S", 0.0)
    monkeypatch.setattr(serve, "LATE_LOOK_S", 0.0)
    config, folder = configured(tmp_path, starting), tmp_path / "run"
    folder.mkdir()
    (folder / BEHIND).touch()
    launch(config, folder)
    assert capsys.readouterr().err.count("Not ready after 0 s, still starting") == 1
    assert len(launched.processes) == 2


def test_a_ray_that_is_lost_while_it_serves_ends_the_service_and_its_proxy_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: Launched, starting: int
) -> None:
    class Recorded(Quiet):
        def watch(self) -> None:
            launched.looks += 1
            if launched.looks == 5:
                launched.processes[0].kill()
                launched.processes[0].wait()

        def stop(self) -> None:
            launched.events.append("proxy stopped")

    monkeypatch.setattr(serve, "Proxy", Recorded)
    with pytest.raises(ProcessLostError, match=r"Ray Serve \(killed by SIGKILL\)"):
        launch(configured(tmp_path, starting), tmp_path / "run")
    assert launched.events == ["proxy stopped"]


def test_a_proxy_that_had_ended_is_named_when_it_is_started_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launched: Launched,
    starting: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Recorded(Quiet):
        def watch(self) -> bool:
            super().watch()
            return self.looks in (1, 5)

    monkeypatch.setattr(serve, "Proxy", Recorded)
    monkeypatch.setattr(Recorded, "looks", 0)
    launch(configured(tmp_path, starting), tmp_path / "run")
    assert len(launched.processes) == 1
    assert capsys.readouterr().err.splitlines() == ["HAProxy stopped and was restarted"] * 2


@pytest.mark.parametrize("start_s", [600.0, 0.0])
def test_a_service_that_ends_by_itself_passes_its_exit_code_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_s: float
) -> None:
    popen, printed = subprocess.Popen, StringIO()
    monkeypatch.setattr("subprocess.Popen", lambda _, **options: popen(["sh", "-c", "exit 3"], **options))
    monkeypatch.setattr(serve, "LOOK_S", 0.001)
    monkeypatch.setattr(serve, "START_S", start_s)
    config = configured(tmp_path, 1)
    assert launch(config, console=Console(file=printed)) == 3
    assert printed.getvalue() == ""


def test_ray_is_interrupted_then_terminated_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[tuple[str, int] | float | None]()

    class Deaf:
        """A process that ends by nothing but the kill of its session, and that late."""

        pid = 7

        def send_signal(self, number: int) -> None:
            sent.append(("process", number))

    def wait(process: Deaf, timeout: float | None = None) -> int:
        del process
        sent.append(timeout)
        if timeout is not None:
            raise subprocess.TimeoutExpired("ray", timeout)
        return -9

    monkeypatch.setattr(serve, "wait_for_end", wait)
    monkeypatch.setattr("os.killpg", lambda pid, number: sent.append((f"session {pid}", number)))
    assert serve._stop(Deaf()) == -9  # type: ignore[arg-type]  # noqa: SLF001
    assert sent == [
        *(("process", signal.SIGINT), 30.0),
        *(("process", signal.SIGTERM), 30.0),
        *(("session 7", signal.SIGKILL), 30.0),
        None,
    ]


# -- what the file says of Ray Serve -----------------------------------------------------------------


def written(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, ("127.0.0.1", 8000)),
        ([], ("127.0.0.1", 8000)),
        ({"http_options": None}, ("127.0.0.1", 8000)),
        ({"http_options": {"host": "0.0.0.0"}}, ("0.0.0.0", 8000)),
        ({"http_options": {"port": "80"}}, ("127.0.0.1", 80)),
    ],
)
def test_the_address_is_that_of_the_file_or_port_8000_of_this_machine(
    tmp_path: Path, document: object, expected: tuple[str, int]
) -> None:
    assert read_listening_address(written(tmp_path, document)) == expected


@pytest.mark.parametrize("options", ["here", {"port": "eighty"}, {"port": None}])
def test_an_address_of_another_form_is_refused(tmp_path: Path, options: object) -> None:
    with pytest.raises(LaunchError, match=r"is not of the form \{host: 127\.0\.0\.1, port: 8000\}"):
        read_listening_address(written(tmp_path, {"http_options": options}))


ARMS = {"name": "Arms", "num_replicas": 5}


@pytest.mark.parametrize(
    ("deployments", "expected"),
    [
        (None, (1, 1)),
        ([ARMS], (1, 1)),
        ([ARMS, {"name": "Ingress"}], (1, 1)),
        ([ARMS, {"name": "Ingress", "num_replicas": 3}], (3, 3)),
        ([ARMS, {"name": "Ingress", "num_replicas": 2, "autoscaling_config": None}], (2, 2)),
        ([{"name": "Ingress", "autoscaling_config": {"min_replicas": 3, "max_replicas": 4}}, ARMS], (3, 4)),
        ([{"name": "Ingress", "autoscaling_config": {"min_replicas": 1, "initial_replicas": 2}}], (2, 1)),
        ([{"name": "Ingress", "num_replicas": "auto"}], (1, 100)),
        ([{"name": "Ingress", "num_replicas": "auto", "autoscaling_config": {"max_replicas": 6}}], (1, 6)),
    ],
)
def test_the_first_and_the_most_replicas_of_the_ingress_are_read(
    tmp_path: Path, deployments: object, expected: tuple[int, int]
) -> None:
    application = {} if deployments is None else {"deployments": deployments}
    assert ingress_replicas(written(tmp_path, {"applications": [application]})) == Replicas(*expected)


@pytest.mark.parametrize("args", [None, {}, {"telemetry": None}])
def test_a_log_is_plain_where_the_file_says_nothing_of_it(tmp_path: Path, args: object) -> None:
    assert not logs_json(written(tmp_path, {"applications": [{"args": args}]}))


@pytest.mark.parametrize(
    ("cluster", "binary", "own"),
    [(None, Path("haproxy"), True), (None, None, False), ("auto", Path("haproxy"), False)],
)
def test_a_run_has_a_private_folder_unless_ray_serves_own_proxy_listens(
    monkeypatch: pytest.MonkeyPatch, cluster: str | None, binary: Path | None, own: bool
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if cluster is not None:
        monkeypatch.setenv("RAY_ADDRESS", cluster)
    monkeypatch.setattr(serve, "haproxy_binary", lambda: binary)
    with serve.run_folder() as folder:
        assert (folder is not None) is own
        if folder is not None:
            assert folder.stat().st_mode & 0o777 == 0o700
    assert folder is None or not folder.exists()
