"""Prints the table of environments at the end of a run."""

import pytest

ROWS = pytest.StashKey[list[tuple[str, str, float]]]()
"""Of each environment its name, what came of it, and the seconds that it took."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash[ROWS]
    if rows:
        terminalreporter.section("environments")
    for name, outcome, seconds in rows:
        terminalreporter.write_line(f"{name:42} {seconds:5.0f} s  {outcome}")
