"""Child process of `agent.warmstart.job`. Lowers its priority before importing anything heavy.

It writes to the log, so it must not starve while it holds the lock: it has the highest nice value, not the
idle policy. Its own evaluations only read, and run with the idle policy.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path


def main() -> None:
    """Do the run that the standard input names."""
    lower_priority()
    from agent.warmstart.job import run_child

    run_child(sys.stdin.fileno())


def lower_priority() -> None:
    """Take the lowest priority on one processor, for this session.

    Linux with autogroups first divides a processor among sessions, and a nice value counts only within
    one: so the session needs a nice value as well.
    """
    os.nice(19)
    if hasattr(os, "sched_setaffinity"):  # leaves the other processors to serving
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if os.getsid(0) == os.getpid():  # the leader of a session of its own
        with suppress(OSError):  # no Linux, or no groups
            Path("/proc/self/autogroup").write_text("19")


if __name__ == "__main__":
    main()
