"""A running `armwise serve` is found by its port, and is the only process that is signalled to hand over."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from armwise.agent.cli.predecessor import HAND_OVER, Predecessor, find_predecessor
from armwise.agent.cli.serve_config import LaunchError
from armwise.agent.proxy import ADMIN_SOCKET, CONFIGURATION

HAPROXY = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as listening:
    print(listening.getsockname()[1], flush=True)
    sys.stdin.read()
"""

SERVE = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[2], "-f", sys.argv[3]], stdin=subprocess.PIPE).wait()
"""


@contextmanager
def begun(folder: Path, verb: str = "serve") -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Start what looks like `armwise serve` with its HAProxy; yield the process and its port."""
    words = [sys.executable, "-c", SERVE, verb, HAPROXY, str(folder / CONFIGURATION)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def asleep() -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process that nobody means to end."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process
        finally:
            process.kill()


def find(port: int) -> Predecessor:
    found = find_predecessor(port)
    assert found is not None
    return found


def test_a_service_is_found_by_its_port_and_ends_when_it_is_retired(tmp_path: Path) -> None:
    with begun(tmp_path) as (process, port):
        found = find(port)
        assert (found.pid, found.admin, found.has_ended()) == (process.pid, tmp_path / ADMIN_SOCKET, False)
        found.retire()
        assert process.wait(20) == -HAND_OVER
        assert found.has_ended()
        found.retire()  # does nothing: the process has ended
        os.close(found.descriptor)


def test_the_parent_of_another_haproxy_is_not_taken_for_a_service(tmp_path: Path) -> None:
    with begun(tmp_path, verb="watch") as (_, port):
        assert find_predecessor(port) is None


def test_a_process_that_got_the_id_of_an_ended_service_is_not_signalled(tmp_path: Path) -> None:
    with begun(tmp_path) as (process, port):
        found = find(port)
        process.kill()
        process.wait(20)
    with asleep() as unrelated:
        Predecessor(unrelated.pid, found.admin, found.descriptor).retire()
        with pytest.raises(subprocess.TimeoutExpired):
            unrelated.wait(0.2)
    os.close(found.descriptor)


def test_a_process_id_reused_during_the_search_is_no_predecessor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[int]()

    def after_reuse(pid: int) -> int:
        psutil.Process(pid).kill()  # the search looked at this one before
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.005)
        opened.append(os.open(os.devnull, os.O_RDONLY))
        return opened[-1]

    with begun(tmp_path) as (process, port):
        with monkeypatch.context() as patched:
            patched.setattr("os.pidfd_open", after_reuse)
            assert find_predecessor(port) is None
        assert process.wait(20) == -signal.SIGKILL
    (descriptor,) = opened
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(descriptor)


def test_only_one_start_at_a_time_takes_a_port_over(tmp_path: Path) -> None:
    found = Predecessor(77, tmp_path / ADMIN_SOCKET, 0)
    claim = (
        "import sys; from pathlib import Path; from armwise.agent.cli.predecessor import Predecessor\n"
        "with Predecessor(77, Path(sys.argv[1]), 0).claim_port():\n"
        " print('claimed', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", claim, str(found.admin)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "claimed\n"
        with (
            pytest.raises(LaunchError, match=r"another .* is taking the port over from process 77: wait"),
            found.claim_port(),
        ):
            pass
        other.communicate("")
        with found.claim_port():  # the other one has ended, and no longer takes it over
            pass
