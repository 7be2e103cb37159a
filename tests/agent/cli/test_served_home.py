"""The marks of the processes that serve from a home."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from armwise.agent.cli.served_home import Server, find_servers, mark_served

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
