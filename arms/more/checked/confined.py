"""Run a command in limits: started as a process of its own, it becomes the parent of all that is left behind.

    python -I -S confined.py '{"seconds": 5, "memory": 1073741824, "output": 65536}' command argument ...

    the service --> watcher --> watcher --> the command --> what it starts

The exit code is that of the command; 124 if it ran out of time, 127 if it cannot be started, and 128 + n if
signal n ended it. Every process that the command has started is killed when the command ends, and when the
service does. There are two watchers, so that a command which kills its parent leaves nothing behind either.
Only the standard library is imported: the interpreter starts without packages.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

OUT_OF_TIME, NOT_STARTED, BY_SIGNAL = 124, 127, 128

PR_SET_PDEATHSIG = 1
"""Option of Linux: the signal that this process gets when its parent ends."""

PR_SET_CHILD_SUBREAPER = 36
"""Option of Linux: processes whose parent has ended become children of this one, and can be killed."""

KILLING_S = 2.0
"""Most seconds in which processes that are left behind are killed."""

AWAITED = frozenset((signal.SIGCHLD, signal.SIGTERM))
"""Signals that a watcher waits for: a child has ended, and the watcher has to end."""


def start(command: list[str], limits: dict[str, float]) -> int:
    """Become the command, in its limits; returns an exit code only if it cannot be started."""
    os.setsid()
    cpu_s, memory, output = int(limits["seconds"]) + 1, int(limits["memory"]), int(limits["output"])
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (output, output))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as a shell starts commands, and not as Python does
        signal.signal(number, signal.SIG_DFL)
    try:
        # Python adds variables of its own. A module that it compiles would be cut off at the limit of output,
        # and each later process would find it so
        environment = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONDONTWRITEBYTECODE": "1"}
        os.execvpe(command[0], command, environment)  # the operator's words # nosec B606
    except OSError as error:
        os.write(2, f"{command[0]!r} cannot be started: {error.strerror}".encode(errors="replace"))
    return NOT_STARTED


def wait_for(child: int, seconds: float) -> int:
    """Return the exit code of a child, or why it was not waited for."""
    until = time.monotonic() + seconds
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return BY_SIGNAL - code if code < 0 else code
        if (left := until - time.monotonic()) <= 0:
            return OUT_OF_TIME
        signalled = signal.sigtimedwait(AWAITED, left)
        if signalled is not None and signalled.si_signo == signal.SIGTERM:
            return BY_SIGNAL + signal.SIGTERM


def list_children() -> list[int]:
    """Return the children of this process."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # the name of a program, in parentheses, may have spaces: the state and the parent follow it
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def kill_rest() -> None:
    """Kill the processes that are left behind, in the session of the command or out of it."""
    until = time.monotonic() + KILLING_S
    with suppress(ChildProcessError):  # raised once no child is left
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            for pid in list_children():
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            signal.sigtimedwait(AWAITED, 0.01)


def watch(run: Callable[[], int], seconds: float) -> int:
    """Run a function in a child process, kill what it leaves behind, and return its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    child = os.fork()
    if not child:
        os._exit(run())
    code = wait_for(child, seconds)
    kill_rest()
    return code


def main(limits: dict[str, float], command: list[str]) -> int:
    """Run a command in limits, and return its exit code."""
    inner_s = limits["seconds"]
    return watch(lambda: watch(lambda: start(command, limits), inner_s), inner_s + KILLING_S + 1.0)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
