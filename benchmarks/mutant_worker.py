"""A process that forks for each run of tests of a mutation run, once all that the project imports is loaded.

It reads requests from its standard input, one a line, and answers each with a JSON list of what failed. The
project itself is loaded by each fork anew, so that it sees what is planted, at import too.
"""

import ast
import json
import os
import resource
import select
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

OWN = {"armwise", "agent", "arms", "feedback", "tests", "benchmarks", "examples"}
MOST_S = 45
"""Seconds after which a test fails: a change may let it wait for ever."""

MOST_BYTES = 8 << 30
"""Memory that a fork may take: a change may let a loop run without an end."""


class Failures:
    """A pytest plugin that keeps what fails, and lets hypothesis stop at the first failing example."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Leave out the phases that shrink and explain what failed."""
        from hypothesis import Phase, settings  # after the profile of the tests is loaded

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings(), phases=phases)
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the id of a test that failed."""
        if report.failed:
            self.found.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep that a file does not load."""
        if report.failed:
            self.found.append("the code does not load")


def _modules() -> Iterator[str]:
    """Yield what files of the project and its tests import when they are loaded."""
    for folder in ("agent", "arms", "feedback", "tests"):
        for file in Path(folder).rglob("*.py"):
            for node in ast.parse(file.read_bytes()).body:
                match node:
                    case ast.Import(names=names):
                        yield from (alias.name for alias in names)
                    case ast.ImportFrom(module=str(module), level=0):
                        yield module


def load() -> None:
    """Import what the project imports, and nothing of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(set(_modules())):
            if name.split(".")[0] not in OWN:
                with suppress(Exception):
                    import_module(name)


def run(tests: list[str], *, first: bool) -> list[str]:
    """Run tests in this process and return what failed."""
    failures = Failures()
    arguments = [
        *("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
        *("--timeout", str(MOST_S), "--continue-on-collection-errors", *tests),
    ]
    status = pytest.main(["-x", *arguments] if first else arguments, plugins=[failures])
    if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return []
    return failures.found or ["the code does not load"]


def forked(tests: list[str], limit_s: float, *, first: bool) -> list[str]:
    """Run tests in a fork and return what failed."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        status = 1
        try:
            os.setpgid(0, 0)
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
            quiet = os.open(os.environ.get("MUTANTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for stream in (0, 1, 2):
                os.dup2(quiet, stream)
            os.write(writing, json.dumps(run(tests, first=first)[:1000]).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with suppress(ProcessLookupError):
        os.setpgid(child, child)  # whichever of the two comes first
    try:
        ended = select.select([reading], [], [], limit_s)[0]
        answer = os.read(reading, 1 << 20) if ended else b""
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.close(reading)
        os.waitpid(child, 0)
    if not ended:
        return ["a test does not end"]
    return json.loads(answer) if answer else ["the process ended"]


def main() -> None:
    """Answer requests until there are no more."""
    sys.path[0] = str(Path.cwd())
    load()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(forked(request["tests"], request["limit_s"], first=request["first"])), flush=True)


if __name__ == "__main__":
    main()
