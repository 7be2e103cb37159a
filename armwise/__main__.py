"""Run the command line: `python -m armwise`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder, from which nothing is imported

from armwise.agent.cli.main import main

if __name__ == "__main__":
    main()
