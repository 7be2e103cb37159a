"""A process that starts benchmarks for tests: it imports libraries once, and forks for each script that runs.

It reads requests from its standard input, one a line, and answers each with the exit status of the script.
Run it as a file, so that it finds what its user has: what is installed, and what PYTHONPATH names.
"""

import argparse
import json
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

import typer.core

ROOT = Path(__file__).parents[1]

BENCHMARKS = ROOT / "benchmarks"

OURS = {"benchmarks", "tests", *(path.stem for path in BENCHMARKS.glob("*.py"))}
"""Top-level modules that are imported anew for each script."""


def stop(*_: object) -> NoReturn:
    """End a script instead of running it."""
    sys.exit(0)


def parse_and_stop(parser: argparse.ArgumentParser) -> NoReturn:
    """Parse the arguments of a script, and end it."""
    _, unknown = parser.parse_known_args()
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    stop()


def start(script: str, words: Sequence[str], *, as_module: bool) -> int:
    """Run a script as the main program, and return its exit status."""
    path = BENCHMARKS / f"{script}.py"
    sys.argv = [str(path), *words]
    try:
        if as_module:
            sys.path.insert(0, str(ROOT))
            runpy.run_module(f"benchmarks.{script}", run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(BENCHMARKS))
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)  # noqa: T201
            return 1
        return end.code or 0
    except BaseException:  # its error is for the test  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


def parse(script: str, words: Sequence[str], *, as_module: bool) -> int:
    """Let a script parse its arguments and no more, and return its exit status."""
    places = [*sys.path]
    with (
        patch.object(argparse.ArgumentParser, "parse_args", parse_and_stop),
        patch.object(typer.core.TyperCommand, "invoke", stop),
        patch.dict(os.environ),
        Path("output").open("w") as output,
        Path("errors").open("w") as errors,
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        status = start(script, words, as_module=as_module)
    sys.path[:] = places
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    return status


def run(script: str, words: Sequence[str], *, as_module: bool) -> int:
    """Run a script in a process of its own, and return its exit status.

    It parses its arguments here first, so that the next one finds its libraries imported.
    """
    if status := parse(script, words, as_module=as_module):
        return status
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for descriptor, file in ((0, os.devnull), (1, "output"), (2, "errors")):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
    status = start(script, words, as_module=as_module)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads that libraries end have not come along


def main() -> None:
    """Answer the requests: each has the folder in which a script starts, and gets the files of its output."""
    for line in sys.stdin:
        request = json.loads(line)
        os.chdir(request["folder"])
        work = parse if request["parses"] else run
        print(work(request["script"], request["words"], as_module=request["as_module"]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
