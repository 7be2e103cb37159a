"""The child of `agent.warmstart.job`. It gives way to everybody else before it loads anything.

It writes to the log, so it must not wait for its turn for long while it holds the lock: it has the lowest
priority of the usual kind. What evaluates for it only reads, and runs while nobody else wants to.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path


def main() -> None:
    """Do the run that the standard input tells of."""
    give_way()
    from agent.warmstart.job import be_the_child

    be_the_child(sys.stdin.fileno())


def give_way() -> None:
    """Take the lowest priority on one processor, for all that this session does.

    Linux shares a processor among sessions first, where it groups tasks by these, and a process is nice
    only to those of its own session: so the session has to be nice as well.
    """
    os.nice(19)
    if hasattr(os, "sched_setaffinity"):  # whoever wakes finds the other processors at rest
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if os.getsid(0) == os.getpid():  # a session of its own, and nobody else's
        with suppress(OSError):  # no Linux, or no groups
            Path("/proc/self/autogroup").write_text("19")


if __name__ == "__main__":
    main()
