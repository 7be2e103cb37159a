"""The child process of `agent.evaluation.job`; it lowers its priority before importing anything heavy."""

import logging
import os
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def main(descriptor: int) -> None:
    """Handle one request, which comes through a pipe.

    Args:
        descriptor: File descriptor of this end of the pipe.
    """
    lower_priority()
    pipe: Connection[Any, Any] = Connection(descriptor)
    task = pipe.recv_bytes()
    threading.Thread(target=_exit_with_parent, args=(pipe,), daemon=True).start()
    from agent.evaluation.job import handle_request
    from agent.reporting import log_plainly

    logging.basicConfig(level=logging.INFO)
    log_plainly()
    handle_request(pipe, task)


def lower_priority() -> None:
    """Take the lowest CPU priority, and be the first process to be killed when memory runs out."""
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


def _exit_with_parent(pipe: "Connection[Any, Any]") -> None:
    with suppress(EOFError, OSError):
        pipe.recv_bytes()
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
