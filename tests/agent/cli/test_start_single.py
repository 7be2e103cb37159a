"""A service in one process: it serves at once what is built, and has another process build the rest."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import typer
import yaml

from armwise.agent.cli import preparation, start_single
from armwise.agent.cli.console import report_errors
from armwise.agent.cli.first_start import build_service
from armwise.agent.cli.served_home import Server, find_servers, mark_served
from armwise.agent.config import AppConfig, load
from armwise.agent.hosts import single_process
from armwise.agent.run_folder import HAND_OVER, QUESTION, RUN_FOLDER
from tests.agent.fakes import CONFIG

URL = "http://127.0.0.1:8123"


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (RUN_FOLDER, "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    monkeypatch.delenv("ARMWISE_HOME", raising=False)


def configured(tmp_path: Path, **settings: object) -> Path:
    corpus = tmp_path / "corpus.jsonl"
    lines = [{"id": f"p{i}", "title": f"River {i}", "text": f"River {i} meets the sea."} for i in range(12)]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = {"name": "small", "source": str(corpus)}
    arms = {"bm25": {"kind": "bm25"}, "none": {"kind": "none"}}
    args = {**CONFIG, "home": str(tmp_path / "home"), "corpus": source, "arms": arms, **settings}
    path = tmp_path / "config.yaml"
    path.write_text(
        yaml.safe_dump({"http_options": {"port": 8123}, "applications": [{"args": args}]}), encoding="utf-8"
    )
    return path


class Served:
    """What a service would have served with, each time; it is ready at once, and ends then."""

    def __init__(self) -> None:
        self.marks, self.questions, self.announced = list[list[Server]](), list[str](), list[str]()
        self.replaces = list[bool | None]()

    async def serve(
        self,
        config: AppConfig,
        folder: Path,
        address: tuple[str, int],
        *,
        prepare: Callable[[], int],
        ready: Callable[[], bool],
        replaces: Callable[[], bool] | None,
    ) -> int:
        assert (address, os.environ[RUN_FOLDER]) == (("127.0.0.1", 8123), str(folder))
        assert os.environ["OMP_NUM_THREADS"] == "1"
        if code := prepare():
            return code
        self.marks.append(find_servers(config.home_path))
        self.questions.append((folder / QUESTION).read_text())
        self.replaces.append(None if replaces is None else replaces())
        assert ready()
        return 0

    def announce(self, url: str, folder: Path | None) -> bool:
        assert folder is not None
        self.announced.append(url)
        return True


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    stand_in = Served()
    monkeypatch.setattr(single_process, "serve", stand_in.serve)
    return stand_in


def begin(path: Path, served: Served, *, replace: bool = False) -> int:
    return start_single.serve_here(path, served.announce, lambda *_: None, replace=replace)


def failure(path: Path, served: Served, *, replace: bool = False) -> int:
    """Return the exit code of a service that does not begin."""
    with pytest.raises(typer.Exit) as ended, report_errors():
        begin(path, served, replace=replace)
    return int(ended.value.exit_code)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Builds what is missing in this process; whether there was something to build, each time."""
    asked = list[bool]()

    def build(path: Path, folder: Path, environment: dict[str, str]) -> None:
        assert "OMP_NUM_THREADS" not in environment, "what builds has all threads"
        asked.append(folder.exists())
        build_service(load(path), lambda *_: None, folder)

    monkeypatch.setattr(preparation, "start_builder", build)
    monkeypatch.setattr(preparation, "wait_for_builder", lambda _: 0)
    return asked


def test_what_is_missing_is_built_by_another_process_once_and_what_is_built_is_served_at_once(
    tmp_path: Path, served: Served, built: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(tmp_path)
    assert [begin(path, served) for _ in range(2)] == [0, 0]
    assert built == [True]
    assert capsys.readouterr().out.count("any program on this machine can use") == 2, "once for each start"
    assert served.marks == [[Server(os.getpid(), URL)]] * 2
    assert served.announced == [URL] * 2
    assert all("River" in question for question in served.questions)
    assert find_servers(tmp_path / "home") == []


def test_what_cannot_be_built_is_not_served(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "start_builder", lambda *_: None)
    monkeypatch.setattr(preparation, "wait_for_builder", lambda _: 7)
    assert begin(configured(tmp_path), served) == 7
    assert served.marks == []


@pytest.mark.parametrize(
    ("settings", "said"), [({"exploration": 2}, "exploration:"), ({"llm": {"engine": "none"}}, "llm")]
)
def test_a_wrong_configuration_ends_it_with_two_and_what_is_wrong(
    tmp_path: Path,
    served: Served,
    capsys: pytest.CaptureFixture[str],
    settings: dict[str, object],
    said: str,
) -> None:
    path = configured(tmp_path, **settings)
    assert failure(path, served) == 2
    assert f"{path}: {said}" in capsys.readouterr().err.replace("\n", "")
    assert (served.marks, (tmp_path / "home").exists()) == ([], False)


def test_an_open_service_on_a_network_is_refused_before_its_home_is_made(
    tmp_path: Path, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(tmp_path)
    document = yaml.safe_load(path.read_text()) | {"http_options": {"host": "0.0.0.0", "port": 8123}}
    path.write_text(yaml.safe_dump(document))
    assert failure(path, served) == 2
    assert "0.0.0.0" in capsys.readouterr().err
    assert served.marks == []


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.usefixtures("built")
def test_a_service_takes_the_place_of_one_of_its_home(
    tmp_path: Path,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    alive: bool,
) -> None:
    told = list[int]()
    monkeypatch.setattr(start_single, "bind_problem", lambda *_, **__: None)
    monkeypatch.setattr(psutil.Process, "is_running", lambda _: alive)
    monkeypatch.setattr(psutil.Process, "send_signal", lambda _, number: told.append(number))
    with mark_served(tmp_path / "home", URL):
        assert begin(configured(tmp_path), served, replace=True) == 0
    assert (served.replaces, told) == ([alive], [HAND_OVER] * alive)
    output = capsys.readouterr()
    assert ("Took over" in output.out) is alive
    assert "from the same home" not in output.err, "it is meant to end"


def test_a_service_that_does_not_share_its_port_is_not_replaced(
    tmp_path: Path, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        document = yaml.safe_load(path.read_text()) | {"http_options": {"port": port}}
        path.write_text(yaml.safe_dump(document))
        with mark_served(tmp_path / "home", f"http://127.0.0.1:{port}"):
            assert failure(path, served, replace=True) == 2
    assert f"process {os.getpid()} does not share its port: port {port} of" in capsys.readouterr().err
    assert served.marks == []


@pytest.mark.usefixtures("built")
def test_a_service_that_replaces_nobody_starts_as_usual(tmp_path: Path, served: Served) -> None:
    assert begin(configured(tmp_path), served, replace=True) == 0
    assert served.replaces == [None]


def test_what_is_wrong_with_a_log_is_said_before_it_is_served(
    tmp_path: Path, served: Served, built: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(tmp_path)
    begin(path, served)
    log = tmp_path / "home" / "log.db"
    log.write_bytes(b"no database" * 1000)
    assert failure(path, served) == 2
    assert "file is not a database" in capsys.readouterr().err
    assert (len(served.marks), len(built)) == (1, 1)
