"""The verbs that carry logs out and in: export, import."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from agent.api import Export, Format, Window
from agent.cli.console import console, explained, progress
from agent.cli.options import CONFIG, ConfigPath
from agent.config import load
from arms.base import Progress
from feedback.events import Example
from feedback.exchange import ExchangeError, Header, imported, jsonl, read_dsjson, read_obp, write_export
from feedback.log import Store

TOLD = 1000
"""Rows between two words of progress."""

Foreign = Literal["dsjson", "obp"]


def export(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The file, compressed where it ends in .gz; of obp a folder."),
    ],
    form: Annotated[
        Format,
        typer.Option("--format", help="jsonl: all of it; dsjson: for VW; obp: the Open Bandit Pipeline."),
    ] = "jsonl",
    since: Annotated[
        str | None,
        typer.Option("--since", help="Decisions of then or later, such as 2026-01-31T12:00."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Decisions before then.")] = None,
    config: ConfigPath = CONFIG,
) -> None:
    """Write the training log to a file that others read, or `armwise replay --from`."""
    with explained():
        window = Window.model_validate({"since": since, "until": until})
        settings = load(config, without=["router"])
        store = Store(settings.database_url, settings.reward.join)
        try:
            export = Export(store, settings.reward, settings.actions, window)
            with progress() as tell:
                lost = _write(export, output, form, tell)
        finally:
            store.close()
        written = export.count - export.left_out.total()
        _tell_written(written, output, export.left_out)
        if lost:
            console.print(f"lost {lost:,} named features, those that fewest decisions have", markup=False)


def _write(export: Export, output: Path, form: Format, tell: Progress) -> int:
    """Write an export; return how many named features it has no column for. Raises ExchangeError."""
    if form == "obp":
        with jsonl.appearing_folder(output) as folder:
            return export.fill(folder, tell)
    with jsonl.appearing(output) as file:
        file.writelines(export.lines(form, tell))
        if not export.count:
            raise ExchangeError(f"no example of {export.length:,} is of that time: nothing was written")
    return 0


def import_log(
    source: Annotated[Path, typer.Argument(help="A file of dsjson; of obp a folder, or an .npz file.")],
    form: Annotated[
        Foreign,
        typer.Option("--format", help="dsjson: of VW or Personalizer; obp: the Open Bandit Pipeline."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file, such as log.jsonl or log.jsonl.gz.")
    ],
    metric: Annotated[
        str, typer.Option("--metric", help="What the reward is called from now on.")
    ] = imported.REWARD,
    scale: Annotated[
        tuple[float, float], typer.Option("--range", help="Smallest and largest reward; others are left out.")
    ] = (-1.0, 1.0),
) -> None:
    """Turn the log of another system into what `armwise replay --from` reads; no log of ours is touched."""
    with explained():
        rule = imported.rule_of(metric, scale)
        left_out: Counter[str] = Counter()
        read = read_dsjson if form == "dsjson" else read_obp
        with progress() as tell, jsonl.appearing(output) as file:
            rows = _Counted(read(source, metric, scale, left_out), tell)
            write_export(rows, file, Header(written_at=time.time(), reward=rule))
            if not rows.count:
                reasons = ", ".join(f"{n:,} {reason}" for reason, n in left_out.most_common())
                raise ExchangeError(
                    f"{source}: no row can be used; left out: {reasons or 'none, it is empty'}"
                )
        _tell_written(rows.count, output, left_out)
        low, high = scale
        console.print(
            f"to replay it, declare the metric: {{{metric}: {{range: [{low:g}, {high:g}]}}}}",
            markup=False,
            highlight=False,
        )


class _Counted:
    """Counts what goes by, and tells of it.

    Attributes:
        count: How many examples have gone by.
    """

    def __init__(self, examples: Iterator[Example], tell: Progress) -> None:
        self._examples, self._tell = examples, tell
        self.count = 0

    def __iter__(self) -> Iterator[Example]:
        for example in self._examples:
            self.count += 1
            if self.count % TOLD == 0:
                self._tell("decisions", self.count, None)
            yield example
        self._tell("decisions", self.count, self.count)


def _tell_written(count: int, output: Path, left_out: Counter[str]) -> None:
    console.print(f"{count:,} decisions written to {output}", markup=False, highlight=False, soft_wrap=True)
    for reason, n in left_out.most_common():
        console.print(f"left out {n:,}: {reason}", markup=False, highlight=False)
