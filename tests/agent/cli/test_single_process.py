"""The parent of the one process of a service: what it does when that ends."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from armwise.agent.cli.ray_processes import ProcessLostError
from armwise.agent.cli.single_process import ENDS, ENDS_S, SingleProcess
from armwise.agent.run_folder import GO_ON


class Starts:
    """Starts processes of a line of Python, one after another; the last line is used again."""

    def __init__(self, *lines: str) -> None:
        self.begun = list["subprocess.Popen[bytes]"]()
        self._lines = lines

    def __call__(self) -> "subprocess.Popen[bytes]":
        line = self._lines[min(len(self.begun), len(self._lines) - 1)]
        self.begun.append(
            subprocess.Popen(
                [sys.executable, "-c", line],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        )
        return self.begun[-1]


def wait_for_end(pid: int) -> None:
    """Wait until a process that was killed has ended; nobody may ever ask for its exit code."""
    deadline = time.monotonic() + 10.0
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} goes on"
        time.sleep(0.005)


ENDLESS = "import time; time.sleep(600)"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def looked(process: SingleProcess) -> int | None:
    """Return what is said once the process has ended."""
    process.process.wait(20)
    return process.check()


def closed(process: "subprocess.Popen[bytes]") -> None:
    """End a process, and close its pipes."""
    with process:
        process.kill()


def test_what_ends_before_it_has_served_has_said_why() -> None:
    for code in (0, 3):
        starts = Starts(f"raise SystemExit({code})")
        assert looked(SingleProcess(starts)) == code
        closed(starts.begun[0])
        assert len(starts.begun) == 1


def test_what_is_killed_before_it_has_served_ends_the_service() -> None:
    starts = Starts(KILLED)
    with pytest.raises(ProcessLostError, match=r"the process that serves \(killed by SIGKILL\)"):
        looked(SingleProcess(starts))
    closed(starts.begun[0])


@pytest.mark.parametrize("first", [KILLED, "raise SystemExit(1)", "raise SystemExit(0)"])
def test_what_ends_once_it_has_served_is_started_again_and_told_to_go_on(
    first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = Starts(first, "print(input(), flush=True); import time; time.sleep(600)")
    process = SingleProcess(starts)
    process.has_served()
    assert looked(process) is None
    one, two = starts.begun
    assert process.process is two
    assert process.check() is None
    assert two.stdout is not None
    assert two.stdout.readline().decode() == GO_ON
    process.end()
    assert two.poll() is not None
    for each in (one, two):
        closed(each)
    assert "has ended" in (shown := capsys.readouterr().err)
    assert "and was started again" in shown


def at(times: list[float]) -> Callable[[], float]:
    return iter(times).__next__


@pytest.mark.parametrize(("last_s", "lost"), [(ENDS_S - 0.1, True), (ENDS_S, False)])
def test_what_ends_five_times_within_a_minute_is_given_up(last_s: float, lost: bool) -> None:
    starts = Starts(KILLED)
    process = SingleProcess(starts, at([0.0] * (ENDS - 1) + [last_s]))
    process.has_served()
    for _ in range(ENDS - 1):
        assert looked(process) is None
    if lost:
        with pytest.raises(ProcessLostError, match="as 4 times before"):
            looked(process)
    else:
        assert looked(process) is None
    for each in starts.begun:
        closed(each)


def test_the_children_of_what_has_ended_end_before_it_is_started_again(tmp_path: Path) -> None:
    child = "import subprocess, sys, os, signal; c = subprocess.Popen(['sleep', '600']); "
    told = tmp_path / "child"
    starts = Starts(
        f"{child} open({str(told)!r}, 'w').write(str(c.pid)); os.kill(os.getpid(), signal.SIGKILL)", ENDLESS
    )
    process = SingleProcess(starts)
    process.has_served()
    assert looked(process) is None
    wait_for_end(int(told.read_text()))
    process.end()
    for each in starts.begun:
        closed(each)
