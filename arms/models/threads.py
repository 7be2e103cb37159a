"""Which of the machine's cores a language model computes on: all but one.

The threads that compute a token together wait for each other while spinning.
Where one of them must share its core with the service, all of them wait for
it: on a busy machine of two cores, two threads wrote a quarter of the tokens
that one thread did, and at times a hundredth.
"""

import os


def compute_cores() -> list[int]:
    """Return the numbers of the cores that this process may use, but the first; at least one."""
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:  # not Linux
        cores = list(range(os.cpu_count() or 1))
    return cores[1:] or cores
