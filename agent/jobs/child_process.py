"""This process, and those that it starts for work that can wait."""

import os
import socket
import sys


def this_process() -> str:
    """Return what stands on record for what this process holds: the machine and the number of the process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def environment_of_a_child() -> dict[str, str]:
    """Return the environment of a child that finds the same modules, and computes in one thread."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **one, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
