"""A pytest plugin that keeps which test reaches which line, and how long each test takes.

    PYTHONPATH=benchmarks python -m pytest -p mutant_coverage ...

Each process writes two files into the folder that the variable `REACHED` names: what `coverage` wrote, with
the id of a test as the context of each line (its fixtures included), and one line per test that passed, of
JSON: its id and its seconds.
"""

import json
import os
from collections import Counter
from pathlib import Path

import coverage
import pytest

FOLDER = Path(os.environ["REACHED"])
PACKAGES = ("agent", "arms", "feedback")

_reached = coverage.Coverage(
    data_file=FOLDER / "lines",
    data_suffix=True,
    config_file=False,
    include=[f"{name}/*" for name in PACKAGES],
)
_reached.set_option("run:relative_files", value=True)
_seconds: Counter[str] = Counter()
_failed: set[str] = set()


def pytest_configure(config: pytest.Config) -> None:
    """Begin in each process that runs tests: a worker of xdist, or the only one."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        _reached.start()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    """Count the lines of a test as its own from here on."""
    if coverage.Coverage.current() is _reached:
        _reached.switch_context(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the seconds of a phase of a test."""
    _seconds[report.nodeid] += report.duration
    if report.outcome != "passed":
        _failed.add(report.nodeid)


def pytest_unconfigure() -> None:
    """Write what was found."""
    if coverage.Coverage.current() is _reached:
        _reached.stop()
        _reached.save()
        with (FOLDER / f"seconds-{os.getpid()}").open("w") as file:
            for nodeid, seconds in _seconds.items():
                if nodeid not in _failed:
                    file.write(json.dumps([nodeid, round(seconds, 3)]) + "\n")
