"""Child processes of low priority, which is lowered before anything heavy is imported.

    parent                                         child
    begin_child(module, function, task)  ------->  read_task()
    ends for any reason                  ------->  is killed, with all that it has started

It is a separate module, since importing a module of a room imports the entire room.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from armwise.arms.own_processes import importable, python

END_S = 5.0
"""Seconds from the termination of a child until it is killed."""

BUILDER_NICE = 5
"""Nice value of what builds behind a service: a third of the share that a value of 0 has."""


def lower_priority_of_a_builder() -> None:
    """Take a quarter of a processor beside work of the usual priority, such as the service.

    Linux with autogroups first divides a processor among sessions, and a nice value counts only within a
    session, so a session of its own gets a nice value as well.
    """
    os.nice(BUILDER_NICE)
    if os.getsid(0) == os.getpid():  # the leader of a session of its own
        with suppress(OSError):  # no Linux, or no groups
            Path("/proc/self/autogroup").write_text(str(BUILDER_NICE))


def lower_priority() -> None:
    """Take a quarter of one processor, and be the first process that is killed when memory runs out.

    Less than a quarter would be too little: on a machine that is busy for good the work would never end, and
    it may hold a lock of the log.
    """
    lower_priority_of_a_builder()
    if hasattr(os, "sched_setaffinity"):  # leaves the other processors to serving
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


def command_of_a_child(
    module: str, function: str, *arguments: str, lower: Callable[[], None] = lower_priority
) -> list[str]:
    """Return the command of a child that lowers its priority before it imports anything heavy.

    Args:
        module: Module to import after that.
        function: Function of the module to call with the arguments.
        arguments: Arguments of the function.
        lower: A function of this module that lowers the priority.
    """
    script = (
        f"import sys; from {__name__} import {lower.__name__}; {lower.__name__}(); "
        f"from {module} import {function}; {function}(*sys.argv[1:])"
    )
    return python("-c", script, *arguments)


def environment_of_a_child() -> dict[str, str]:
    """Return the environment of a child process with the same modules and one thread for numerics."""
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **limits, "PYTHONPATH": importable()}


def begin_child(
    module: str,
    function: str,
    task: Mapping[str, Any],
    *,
    lower: Callable[[], None] = lower_priority,
    **options: Any,
) -> "subprocess.Popen[bytes]":
    """Start a child in a session of its own, and give it a task; see `command_of_a_child`.

    Args:
        module: Module of the function.
        function: Calls `read_task`.
        task: What can be written as JSON.
        lower: A function of this module that lowers the priority.
        options: Options of `subprocess.Popen`.
    """
    child = subprocess.Popen(
        command_of_a_child(module, function, lower=lower),
        stdin=subprocess.PIPE,  # kept open: its end signals that this process has ended
        start_new_session=True,
        **{"env": environment_of_a_child(), **options},
    )
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already, which its status shows
        child.stdin.write(orjson.dumps(task, option=orjson.OPT_APPEND_NEWLINE))
        child.stdin.flush()
    return child


def end_child(child: "subprocess.Popen[bytes]") -> None:
    """End a child and all processes that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(END_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for pipe in filter(None, (child.stdin, child.stdout)):
        with suppress(BrokenPipeError):
            pipe.close()


def read_task() -> Any:
    """Return the task of this child. Its input stays open while the parent lives, and ends it afterwards."""
    descriptor = sys.stdin.fileno()
    with open(descriptor, "rb", buffering=0, closefd=False) as given:
        task = orjson.loads(given.readline())
    threading.Thread(target=_end_with_the_parent, args=(descriptor,), daemon=True).start()
    return task


def _end_with_the_parent(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
