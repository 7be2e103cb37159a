"""A running `armwise serve` is found by the mark in its home, and it alone is told to hand over."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from armwise.agent.cli import predecessor
from armwise.agent.cli.predecessor import claim_port, find_predecessor
from armwise.agent.cli.serve_config import LaunchError
from armwise.agent.cli.served_home import Server
from armwise.agent.run_folder import HAND_OVER

URL = "http://127.0.0.1:8001"

SERVE = """
import signal, sys
from pathlib import Path
from armwise.agent.cli.served_home import mark_served
with mark_served(Path(sys.argv[1]), sys.argv[2]):
    print(flush=True)
    signal.sigwait([signal.SIGTERM])
"""


@contextmanager
def serving(home: Path, url: str = URL) -> Iterator["subprocess.Popen[bytes]"]:
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
        assert find_predecessor(tmp_path, "http://127.0.0.1:8002") is None
        assert find_predecessor(tmp_path / "other", URL) is None
        with claim_port(tmp_path, URL) as found:
            assert found is not None
            assert (found.pid, found.runs()) == (process.pid, True)
            found.retire()
            assert process.wait(10) == -HAND_OVER
            assert not found.runs()
            found.retire()  # nothing happens
    assert find_predecessor(tmp_path, URL) is None


def test_one_process_at_a_time_takes_a_port_over(tmp_path: Path) -> None:
    with serving(tmp_path) as process, claim_port(tmp_path, URL):
        message = f"is taking the port over from process {process.pid}: wait"
        with pytest.raises(LaunchError, match=message), claim_port(tmp_path, URL):
            pass
        process.kill()
        process.wait()
        with serving(tmp_path) as successor, claim_port(tmp_path, URL) as found:
            assert found is not None
            assert found.pid == successor.pid, "the first takeover goes on serving meanwhile"
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(predecessor.TAKEN)] == []


def test_a_process_that_has_the_id_of_a_service_that_ended_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = iter([[Server(os.getpid(), URL)], []])
    monkeypatch.setattr(predecessor, "find_servers", lambda _: next(marks))
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: pytest.fail("it is not the service"))
    with claim_port(tmp_path, URL) as found:
        assert found is None
