"""The identity of this process, and the environment of its low-priority children."""

import os
import socket
import sys


def this_process() -> str:
    """Return the worker name of this process: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def environment_of_a_child() -> dict[str, str]:
    """Return the environment of a child process with the same modules and one thread for numerics."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **one, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
