"""Run the command line: `python -m armwise`."""

from armwise.agent.cli.main import main

main()
