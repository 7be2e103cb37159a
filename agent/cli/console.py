"""The terminal: errors in one line, progress as bars, and as lines where there is no terminal."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from armwise.agent.file_errors import describe_file_error
from armwise.agent.reporting import Terminal, log_plainly
from armwise.agent.run_folder import Building, Pace

if TYPE_CHECKING:
    from armwise.arms.corpus import Corpus

console = Terminal()

errors = Terminal(stderr=True, highlight=False)

STDERR = 2
"""File descriptor of the standard error, which libraries write to past Python."""

RAY_LOG = "ray.log"
"""File in the home with what the Ray of a warm start reported."""

PLAIN: Any = {"highlight": False, "soft_wrap": True}

ProgressCallback = Callable[[str, int, int | None], None]

NOT_WRONG = (
    "armwise.agent.evaluation.candidate_names.DoubtfulLogError",
    "armwise.feedback.errors.LogGapError",
    "armwise.feedback.errors.LogUnavailableError",
)
"""What exits with 1 although it derives from a wrong request: the log is away, or does not answer."""

WRONG_REQUEST = (
    "builtins.ValueError",
    "armwise.agent.cli.serve_config.LaunchError",
    "armwise.arms.base.ArmError",
    "armwise.arms.indexes.build_once.IndexMismatchError",
    "armwise.arms.models.files.ModelNotFoundError",
    "armwise.feedback.errors.StoreError",
)
"""What exits with 2. By name: a verb must not import the rooms that it does not use."""

FAILURE = (
    "builtins.OSError",
    "armwise.agent.cli.preparation.ProcessLostError",
    "armwise.agent.cli.start_ray.DeploymentError",
    "armwise.arms.local_ray.RayNotStartedError",
    "armwise.agent.client.errors.ClientError",
    "armwise.agent.lab.simulation.simulation.SimulationError",
    "armwise.arms.llm.base.GeneratorError",
)
"""What exits with 1."""


SEVERAL_LINES = ("ConfigError", "PoolError")
"""Errors with a line for each thing that is wrong in a file of the operator; the others are one line."""


@contextmanager
def report_errors() -> Iterator[None]:
    """Print an error that a user can correct; exit with 2 for a wrong request, 1 for everything else."""
    log_plainly()
    try:
        yield
    except Exception as error:
        names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
        if not names.intersection((*WRONG_REQUEST, *FAILURE)):
            raise
        for line in message_lines(error):
            errors.print(line, style="red", soft_wrap=True)
        wrong = names.intersection(WRONG_REQUEST) and not names.intersection(NOT_WRONG)
        raise typer.Exit(2 if wrong else 1) from None


def message_lines(error: Exception) -> Iterator[str]:
    """Return the message of an error; of the options of a verb a line for each that is wrong."""
    if isinstance(error, OSError) and error.filename is not None:
        yield f"{os.fspath(error.filename)}: {describe_file_error(error)}"
        return
    if type(error).__name__ != "ValidationError":
        remedy = getattr(error, "remedy", "")
        message = f"{error}; {remedy}" if remedy else str(error)
        names = {kind.__name__ for kind in type(error).__mro__}
        yield from message.splitlines() if names.intersection(SEVERAL_LINES) else [message]
        return
    problems: list[dict[str, Any]] = error.errors()  # type: ignore[attr-defined]  # of pydantic
    for problem in problems:
        where, message = ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
        yield f"{where}: {message}, got {problem['input']!r}" if where else message


@contextmanager
def native_messages_in(file: Path) -> Iterator[None]:
    """Write to a file what libraries of C++, such as the core of Ray, send to stderr; print where it is.

    What Python writes to stderr stays on the terminal.

    Args:
        file: Replaced, and removed again where nothing was written.
    """
    try:
        with open(file, "wb") as log, os.fdopen(os.dup(STDERR), "w", buffering=1) as terminal:
            before = sys.stderr
            if before is sys.__stderr__:  # else something has it write elsewhere already
                sys.stderr = terminal
            os.dup2(log.fileno(), STDERR)
            try:
                yield
            finally:
                os.dup2(terminal.fileno(), STDERR)
                sys.stderr = before
    finally:
        if file.stat().st_size:
            console.print(f"Ray's messages are in {file}", style="dim", **PLAIN)
        else:
            file.unlink()


def print_left_out(corpora: "Sequence[Corpus]") -> None:
    """Print what of corpora could not be read, and what was read with a remark, a line for each reason.

    Where a line stands for several, the files that list all of them are named.
    """
    from armwise.arms.corpus import group_skipped

    skipped = [line for corpus in corpora for line in corpus.list_skipped()]
    remarks = [line for corpus in corpora for line in corpus.remarks()]
    lines = [f"Left out: {line}" for line in group_skipped(skipped)]
    lines += [f"Note:     {line}" for line in group_skipped(remarks)]
    if len(lines) < len(skipped) + len(remarks):
        files = [part.find_list() for corpus in corpora for part in corpus.parts.values()]
        lines.append(f"The full list is in {', '.join(str(file) for file in files if file)}")
    for line in lines:
        errors.print(line, style="yellow", **PLAIN)


@contextmanager
def progress(to: Terminal | None = None) -> Iterator[ProgressCallback]:
    """Show a bar for each piece of work that is reported; where there is no terminal, a line now and then.

    Args:
        to: Where; None for the standard output. `errors` for a verb whose output is piped.
    """
    to = console if to is None else to
    if not to.is_terminal:
        yield _ProgressLines(to)
        return
    from rich import progress as bar

    columns = (
        bar.SpinnerColumn(),
        bar.TextColumn("{task.description}", markup=False),
        bar.BarColumn(),
        bar.MofNCompleteColumn(),
        bar.TimeElapsedColumn(),
        bar.TimeRemainingColumn(),
    )
    with bar.Progress(*columns, console=to) as bars:
        tasks: dict[str, bar.TaskID] = {}

        def on_progress(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield on_progress


class _ProgressLines:
    """Print the progress of each piece of work: at its start, at its end, and every few seconds."""

    def __init__(self, to: Terminal, every_s: float = 5.0) -> None:
        self._to, self._every_s, self._pace = to, every_s, Pace()
        self._next: dict[str, float] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now, left_s = time.monotonic(), self._pace.expect(what, done, total)
        if done == total or now >= self._next.get(what, 0.0):
            self._next[what] = now + self._every_s
            self._to.print(str(Building(what, done, total or None, left_s or None)), highlight=False)
