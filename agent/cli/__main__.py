"""Run the command line: `python -m agent.cli`."""

from agent.cli.main import main

if __name__ == "__main__":
    main()
