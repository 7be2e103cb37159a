"""The cores on which a language model computes: all but one.

The threads that compute a token wait for each other by spinning. When one of them shares
its core with the service, all of them wait: on a busy machine of two cores, two threads
wrote a quarter of the tokens of one thread, and at times a hundredth.
"""

import os


def compute_cores() -> list[int]:
    """Return the cores of this process without the first one; at least one core."""
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:  # not Linux
        cores = list(range(os.cpu_count() or 1))
    return cores[1:] or cores
