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
