"""The marks of the processes that serve from a home, by which one is found and told to hand over."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from armwise.agent.cli import served_home
from armwise.agent.cli.served_home import Server, find_process, find_servers, mark_served
from armwise.agent.run_folder import HAND_OVER

FIRST, SECOND = "http://127.0.0.1:8001", "http://127.0.0.1:8002"

SERVER = f"""
import sys
from pathlib import Path
from armwise.agent.cli.served_home import mark_served
with mark_served(Path(sys.argv[1]), {FIRST!r}):
    print(flush=True)
    sys.stdin.read()
"""


def test_each_process_of_a_home_is_told_of_all_others_and_of_none_that_has_ended(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    with mark_served(home, FIRST) as others:
        assert others == []
        with mark_served(home, SECOND) as others:
            assert others == [Server(os.getpid(), FIRST)]
            both = sorted(server.url for server in find_servers(home))
            assert both == [FIRST, SECOND], "to look takes no mark away"
        with mark_served(tmp_path / "other", SECOND) as others:
            assert others == []
    assert list(home.iterdir()) == []
    assert home.stat().st_mode & 0o077 == 0


def test_the_mark_of_a_killed_process_ends_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert find_servers(tmp_path) == [Server(server.pid, FIRST)]
        server.kill()
    assert len(list(tmp_path.iterdir())) == 1, "it could not clear up"
    with mark_served(tmp_path, SECOND) as others:
        assert others == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("refused", [OSError("no locks"), PermissionError(13, "closed")])
def test_a_home_that_takes_no_lock_is_served_without_a_mark_and_failures_of_the_service_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: OSError
) -> None:
    def refuse(*_: object) -> None:
        raise refused

    monkeypatch.setattr("fcntl.flock", refuse)

    def serve() -> None:
        with mark_served(tmp_path, FIRST) as others:
            assert others == []
            raise FileNotFoundError("of the service")

    with pytest.raises(FileNotFoundError, match="of the service"):
        serve()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_home_is_left_to_those_who_write_there(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with mark_served(tmp_path / "home", FIRST) as others:
        assert others == []


def test_a_mark_that_nobody_has_written_so_is_no_server(tmp_path: Path) -> None:
    mark = tmp_path / ".serving-x"
    mark.write_text("not a process")
    with mark.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert find_servers(tmp_path) == []
    (tmp_path / ".serving-y").mkdir()
    assert find_servers(tmp_path) == []


# -- a takeover -----------------------------------------------------------------------------------------

SERVE = """
import signal, sys
from pathlib import Path
from armwise.agent.cli.served_home import mark_served
with mark_served(Path(sys.argv[1]), sys.argv[2]):
    print(flush=True)
    signal.sigwait([signal.SIGTERM])
"""


@contextmanager
def serving(home: Path, url: str = FIRST) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process with a mark in a home, which `HAND_OVER` ends."""
    command = [sys.executable, "-c", SERVE, str(home), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_a_service_is_found_by_its_home_and_address_and_is_told_to_hand_over(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        assert find_process(tmp_path, SECOND) is None
        assert find_process(tmp_path / "other", FIRST) is None
        found = find_process(tmp_path, FIRST)
        assert found is not None
        assert (found.pid, found.is_running()) == (process.pid, True)
        found.send_signal(HAND_OVER)
        assert process.wait(10) == -HAND_OVER
        assert not found.is_running()
    assert find_process(tmp_path, FIRST) is None


def test_a_process_that_has_the_id_of_a_service_that_ended_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = iter([[Server(os.getpid(), FIRST)], []])
    monkeypatch.setattr(served_home, "find_servers", lambda _: next(marks))
    assert find_process(tmp_path, FIRST) is None
