"""The one process of a service: it serves at once what is built, and waits for the rest."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from armwise.agent.cli import serve, start_single
from armwise.agent.cli.before_serving import NotBuiltError, look, prepare_service
from armwise.agent.cli.served_home import Server, find_servers, mark_served
from armwise.agent.config import AppConfig, load
from armwise.agent.hosts import single_process
from armwise.agent.proxy import CONFIGURATION
from armwise.agent.run_folder import QUESTION, RUN_FOLDER, TO_BUILD
from tests.agent.fakes import CONFIG

URL = "http://127.0.0.1:8123"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run."""
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv(RUN_FOLDER, str(folder))
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    return folder


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


def build(path: Path) -> None:
    """Build what is missing, as the separate process does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(RUN_FOLDER)
        prepare_service(path, load(path), lambda *_: None)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[Server]]:
    """The marks of the home each time that it is served, by a server that ends at once."""
    marks = list[list[Server]]()

    async def serve_and_end(config: AppConfig, folder: Path) -> None:
        assert folder == tmp_path / "run"
        marks.append(find_servers(config.home_path))

    monkeypatch.setattr(single_process, "serve", serve_and_end)
    return marks


def never() -> bool:
    raise AssertionError("nothing is to build")


def test_a_built_home_is_served_at_once_under_the_process_that_the_user_knows(
    tmp_path: Path, run: Path, served: list[list[Server]]
) -> None:
    build(path := configured(tmp_path))
    assert start_single.main(str(path), "", never) == 0
    assert served == [[Server(os.getppid(), URL)]]
    assert (run / CONFIGURATION).exists()
    assert (run / QUESTION).read_text()
    assert not (run / TO_BUILD).exists()
    assert find_servers(tmp_path / "home") == []


@pytest.mark.parametrize("told", [True, False])
def test_what_is_missing_is_built_by_another_process_before_it_is_served(
    tmp_path: Path, run: Path, served: list[list[Server]], told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path, asked = configured(tmp_path), list[bool]()

    def prepared() -> bool:
        asked.append((run / TO_BUILD).exists())
        assert not (run / CONFIGURATION).exists()
        assert "any program on this machine can use" in capsys.readouterr().out
        prepare_service(path, load(path), lambda *_: None)
        assert "any program on this machine can use" not in capsys.readouterr().out, "it was said before"
        return told

    assert start_single.main(str(path), "", prepared) == 0
    assert asked == [True]
    assert len(served) == told


def test_a_process_that_is_started_again_prepares_nothing(
    tmp_path: Path, run: Path, served: list[list[Server]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / CONFIGURATION).touch()
    monkeypatch.setattr("armwise.agent.cli.before_serving.prepare_service", never)
    assert start_single.main(str(configured(tmp_path)), "", never) == 0
    assert len(served) == 1


@pytest.mark.parametrize(
    ("settings", "said"), [({"exploration": 2}, "exploration:"), ({"llm": {"engine": "none"}}, "llm")]
)
@pytest.mark.usefixtures("run")
def test_a_wrong_configuration_ends_it_with_two_and_what_is_wrong(
    tmp_path: Path,
    served: list[list[Server]],
    capsys: pytest.CaptureFixture[str],
    settings: dict[str, object],
    said: str,
) -> None:
    path = configured(tmp_path, **settings)
    assert start_single.main(str(path), "", never) == 2
    assert f"{path}: {said}" in capsys.readouterr().err.replace("\n", "")
    assert (served, (tmp_path / "home").exists()) == ([], False)


@pytest.mark.usefixtures("run")
def test_an_open_service_on_a_network_is_refused_before_its_home_is_made(
    tmp_path: Path, served: list[list[Server]], capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(tmp_path)
    document = yaml.safe_load(path.read_text()) | {"http_options": {"host": "0.0.0.0", "port": 8123}}
    path.write_text(yaml.safe_dump(document))
    assert start_single.main(str(path), "", never) == 2
    assert "0.0.0.0" in capsys.readouterr().err
    assert served == []


@pytest.mark.parametrize(
    ("replaced", "told"),
    [("", True), (str(os.getpid()), False), ("1", True)],
    ids=["nobody is replaced", "it is replaced", "another is replaced"],
)
@pytest.mark.usefixtures("run", "served")
def test_another_service_of_the_home_is_named_unless_it_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], replaced: str, told: bool
) -> None:
    build(path := configured(tmp_path))
    with mark_served(tmp_path / "home", "http://127.0.0.1:1"):
        assert start_single.main(str(path), replaced, never) == 0
    other = f"Process {os.getpid()} serves http://127.0.0.1:1 from the same home"
    assert (other in " ".join(capsys.readouterr().err.split())) is told


@pytest.mark.usefixtures("run")
def test_ctrl_c_before_it_serves_ends_it_in_order(tmp_path: Path) -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    assert start_single.main(str(configured(tmp_path)), "", interrupt) == 0


def test_a_service_without_a_run_marks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN_FOLDER, raising=False)
    path = configured(tmp_path)
    with pytest.raises(NotBuiltError):
        prepare_service(path, load(path), look)
    assert not list(tmp_path.rglob(TO_BUILD))


def checks(*codes: int | None) -> Callable[[], int | None]:
    return iter(codes).__next__


def test_the_parent_waits_and_builds_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "SHORT_LOOK_S", 0.0)
    begun = list[tuple[object, ...]]()

    def prepare(*arguments: object) -> int:
        begun.append(arguments)
        return 6

    monkeypatch.setattr(serve, "prepare_in_process", prepare)
    path = tmp_path / "config.yaml"
    assert serve.wait_until_prepared(path, tmp_path, checks(None, 5)) == 5, "it has ended"
    (tmp_path / TO_BUILD).touch()
    check = checks(None)
    assert serve.wait_until_prepared(path, tmp_path, check) == 6
    assert begun == [(path, tmp_path, check)]
    (tmp_path / CONFIGURATION).touch()
    assert serve.wait_until_prepared(path, tmp_path, checks()) == 0
    assert len(begun) == 1


LIGHT = "import sys, armwise.agent.cli.without_config, armwise.agent.cli.serve; print(*sys.modules)"


@pytest.mark.slow
def test_the_process_that_starts_a_service_loads_no_settings_and_nothing_heavy() -> None:
    ran = subprocess.run([sys.executable, "-c", LIGHT], check=True, capture_output=True, text=True)
    heavy = {"sqlalchemy", "numpy", "fastapi", "uvicorn", "httpx", "ray", "armwise.agent.config"}
    assert heavy.intersection(ran.stdout.split()) == set()


def test_what_is_wrong_with_a_log_is_said_before_it_is_served(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(path := configured(tmp_path))
    (tmp_path / "home" / "log.db").write_bytes(b"no database" * 100)
    assert start_single.main(str(path), "", never) == 2
    assert "file is not a database" in capsys.readouterr().err
    assert not (run / CONFIGURATION).exists()
