"""The child of `agent.evaluation.job`: it gives way to everybody else, before it loads what takes time."""

import logging
import os
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def main(descriptor: int) -> None:
    """Answer one request, which comes through a pipe.

    Args:
        descriptor: Of this end of the pipe.
    """
    give_way()
    pipe: Connection[Any, Any] = Connection(descriptor)
    task = pipe.recv_bytes()
    threading.Thread(target=_end_with_the_parent, args=(pipe,), daemon=True).start()
    from agent.evaluation.job import answer

    logging.basicConfig(level=logging.INFO)
    answer(pipe, task)


def give_way() -> None:
    """Run only while nobody else wants to, and be the first to go where memory is short."""
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):  # no Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


def _end_with_the_parent(pipe: "Connection[Any, Any]") -> None:
    with suppress(EOFError, OSError):
        pipe.recv_bytes()
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
