"""Child processes of low priority, which is lowered before anything heavy is imported.

It is a separate module, since importing a module of a room imports the entire room.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from armwise.arms.own_processes import python

BUILDER_NICE = 5
"""Nice value of what builds behind a service: a third of the share that a value of 0 has."""


def lower_priority() -> None:
    """Take the lowest CPU priority, and be the first process that is killed when memory runs out."""
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


def lower_priority_of_a_writer() -> None:
    """Take the lowest priority on one processor, for this session.

    Linux with autogroups first divides a processor among sessions, and a nice value counts only within a
    session, so the session needs a nice value as well.
    """
    os.nice(19)
    if hasattr(os, "sched_setaffinity"):  # leaves the other processors to serving
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    _nice_of_the_session(19)


def lower_priority_of_a_builder() -> None:
    """Take a quarter of a processor beside work of the usual priority, such as the service.

    For work that somebody waits for.
    """
    os.nice(BUILDER_NICE)
    _nice_of_the_session(BUILDER_NICE)


def _nice_of_the_session(value: int) -> None:
    if os.getsid(0) == os.getpid():  # the leader of a session of its own
        with suppress(OSError):  # no Linux, or no groups
            Path("/proc/self/autogroup").write_text(str(value))


def command_of_a_child(
    module: str, function: str, *arguments: str, lower: Callable[[], None] = lower_priority
) -> list[str]:
    """Return the command of a child that lowers its priority before it imports anything heavy.

    Args:
        module: Module to import after that.
        function: Function of the module to call with the arguments.
        arguments: Arguments of the function.
        lower: A function of this module that lowers the priority. A child that writes to the log needs
            another than the usual one, by which it could starve while it holds the lock.
    """
    script = (
        f"import sys; from {__name__} import {lower.__name__}; {lower.__name__}(); "
        f"from {module} import {function}; {function}(*sys.argv[1:])"
    )
    return python("-c", script, *arguments)
