"""The child of `agent.warmstart.job`. It gives way to everybody else before it loads anything.

It writes to the log, so it must not wait for its turn for long while it holds the lock: it has the lowest
priority of the usual kind. What evaluates for it only reads, and runs while nobody else wants to.
"""

import os
import sys


def main() -> None:
    """Do the run that the standard input tells of."""
    os.nice(19)
    from agent.warmstart.job import be_the_child

    be_the_child(sys.stdin.fileno())


if __name__ == "__main__":
    main()
