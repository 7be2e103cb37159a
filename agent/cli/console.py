"""The terminal: errors in one line, progress as bars, and as lines where there is no terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import openai
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from agent.cli.launch import LaunchError
from agent.client import ClientError
from agent.config import ConfigError
from agent.simulation import SimulationError
from arms.base import ArmError
from arms.corpus import CorpusError
from arms.indexes import IndexMismatchError
from arms.llm import GeneratorError
from arms.models import ModelNotFoundError
from feedback.errors import LogGapError, LogUnavailableError, StoreError

console = Console()

errors = Console(stderr=True, highlight=False)

ProgressCallback = Callable[[str, int, int | None], None]


@contextmanager
def explained() -> Iterator[None]:
    """Turn what users can mend into one line and an exit code."""
    try:
        yield
    except ValidationError as error:  # of the options of a verb; a configuration's is told before
        for problem in error.errors():
            where, message = ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
            told = f"{where}: {message}, got {problem['input']!r}" if where else message
            errors.print(told, style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from None
    except (
        ArmError,
        ConfigError,
        CorpusError,
        IndexMismatchError,
        ModelNotFoundError,
        StoreError,
        LaunchError,
        ValueError,
    ) as error:
        errors.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1 if isinstance(error, LogUnavailableError | LogGapError) else 2) from None
    except (ClientError, SimulationError, GeneratorError, OSError, openai.OpenAIError) as error:
        errors.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


@contextmanager
def progress() -> Iterator[ProgressCallback]:
    """Show a bar for each piece of work that is told of; where there is no terminal, a line now and then."""
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield tell


class _Lines:
    """Print how far each piece of work is: at its first word, at its end, and every few seconds."""

    def __init__(self, every_s: float = 5.0) -> None:
        self._every_s = every_s
        self._next: dict[str, float] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if done == total or now >= self._next.get(what, 0.0):
            self._next[what] = now + self._every_s
            console.print(
                f"{what}: {done:,}" + (f" of {total:,}" if total else ""), markup=False, highlight=False
            )
