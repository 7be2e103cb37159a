"""The child of `agent.warm_start_job`. It gives way to everybody else before it loads anything."""

import sys

from agent.evaluation_child import give_way


def main() -> None:
    """Do the run that the standard input tells of."""
    give_way()
    from agent.warm_start_job import be_the_child

    be_the_child(sys.stdin.fileno())


if __name__ == "__main__":
    main()
