"""The verb that converts the log of another system to a file for `armwise replay`."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

from armwise.agent.cli.console import PLAIN, console, progress, report_errors
from armwise.agent.cli.options import parse_renaming, unique
from armwise.agent.reporting import moment
from armwise.arms.base import Progress
from armwise.arms.suggestions import did_you_mean
from armwise.feedback.events import Example
from armwise.feedback.exchange import (
    COSTS,
    LEAST_DRAWS,
    LEAST_ROWS,
    REWARD,
    Columns,
    Faults,
    ImportRequest,
    LogSummary,
    ProductionLog,
    make_rule,
    read_dsjson,
    read_obp,
)
from armwise.feedback.jsonl import ExchangeError, Header, appearing, write_export

REPORT_EVERY = 1000
"""Rows between two progress reports."""

Format = Literal[
    "table", "litellm", "langfuse", "tensorzero", "otel", "routerbench", "wide", "battles", "dsjson", "obp"
]

SHOWN = 3
"""Rows that a dry run prints."""

Reads = Callable[[Path, str, tuple[float, float], Faults], Iterator[Example]]

FACTS: Mapping[str, Reads] = {"dsjson": read_dsjson, "obp": read_obp}
"""Formats with recorded propensities and fixed columns."""


def import_log(
    source: Annotated[
        Path,
        typer.Argument(help="CSV, JSON lines, JSON or Parquet, or a folder of these; for obp also .npz."),
    ],
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="table: columns that you name. litellm, langfuse, tensorzero, otel: their "
            "exports. routerbench, wide, battles: outcomes of every arm. dsjson: Vowpal Wabbit, "
            "Personalizer. obp: Open Bandit Pipeline.",
        ),
    ] = "table",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write, such as log.jsonl or log.jsonl.gz.")
    ] = None,
    question: Annotated[str | None, typer.Option("--question", help="Column of the question.")] = None,
    arm: Annotated[str | None, typer.Option("--arm", help="Column of the arm that was drawn.")] = None,
    propensity: Annotated[
        str | None, typer.Option("--propensity", help="Column of the probability with which it was drawn.")
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option("--reward", help="Column of the reward; for feedback, the name of the score."),
    ] = None,
    cost: Annotated[
        list[str] | None,
        typer.Option("--cost", help=f"COST=COLUMN, with COST out of {', '.join(COSTS)}; repeatable."),
    ] = None,
    when: Annotated[
        str | None, typer.Option("--time", help="Column of the time: since the epoch, or ISO 8601.")
    ] = None,
    ident: Annotated[str | None, typer.Option("--id", help="Column of the unique id.")] = None,
    episode: Annotated[
        str | None, typer.Option("--episode", help="Column of the conversation or session.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="Column of the user, stored as a digest.")
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option("--feature", help="NAME=COLUMN of a feature, a number or a text; repeatable."),
    ] = None,
    distribution: Annotated[
        str | None,
        typer.Option(
            "--distribution", help="Column of all probabilities: JSON by arm, or in the order of --arms."
        ),
    ] = None,
    distribution_of: Annotated[
        str | None, typer.Option("--distribution-of", help="Prefix of the columns of each arm's probability.")
    ] = None,
    arms: Annotated[
        str | None, typer.Option("--arms", help="All arms, such as a,b,c. By default those in the rows.")
    ] = None,
    feedback: Annotated[
        list[Path] | None,
        typer.Option("--feedback", help="File or folder of feedback, joined by id; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="COLUMN=VALUE that a row must have; repeatable.")
    ] = None,
    metric: Annotated[
        str, typer.Option("--metric", help="Name of the reward in the converted log.")
    ] = REWARD,
    scale: Annotated[
        tuple[float, float], typer.Option("--range", help="Smallest and largest reward; others are left out.")
    ] = (-1.0, 1.0),
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first wrong row instead of leaving it out.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print how the rows are read, and write nothing.")
    ] = False,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate-propensities",
            help="Estimate missing propensities from how often each arm was drawn with the "
            "same features or question.",
        ),
    ] = False,
    least_rows: Annotated[
        int, typer.Option("--least-rows", min=1, help="Least rows with the same features for an estimate.")
    ] = LEAST_ROWS,
    least_draws: Annotated[
        int, typer.Option("--least-draws", min=1, help="Least draws of an arm with the same features.")
    ] = LEAST_DRAWS,
    draw: Annotated[
        str | None,
        typer.Option(
            "--draw",
            help="With outcomes of every arm: how to draw, such as a=0.7,b=0.3; by default all equally.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of these draws.")] = 0,
    score_of: Annotated[
        str | None,
        typer.Option("--score-of", help="Prefix of the columns of each arm's score, in the format wide."),
    ] = None,
    cost_of: Annotated[
        str | None,
        typer.Option("--cost-of", help="Prefix of the columns of each arm's dollars, in the format wide."),
    ] = None,
    outcomes: Annotated[
        bool,
        typer.Option(
            "--outcomes", help="Write the outcomes of all arms for `armwise lab train`, instead of a log."
        ),
    ] = False,
) -> None:
    """Convert the log of another system to a file for `armwise replay`.

    Armwise's own log does not change.
    """
    with report_errors():
        if output is None and not dry_run:
            raise ValueError("give --output FILE, or --dry-run")
        if form in FACTS:
            if dry_run or output is None:
                raise ValueError(f"--dry-run does not work with {form}: it needs a format with columns")
            _convert(source, FACTS[form], output, metric, scale, Faults(strict=strict))
            _print_declaration(metric, scale)
            return
        request = ImportRequest(
            form=form,
            columns=Columns(
                question=question,
                arm=arm,
                propensity=propensity,
                reward=reward,
                time=when,
                id=ident,
                episode=episode,
                user=user,
                distribution=distribution,
                prefix=distribution_of,
                costs=_costs(cost or ()),
                features=unique("--feature", map(parse_renaming, feature or ())),
            ),
            metric=metric,
            scale=scale,
            arms=None if arms is None else tuple(name.strip() for name in arms.split(",") if name.strip()),
            feedback=tuple(feedback or ()),
            only=unique("--only", map(_pair, only or ())),
            strict=strict,
            estimate=estimate,
            least_rows=least_rows,
            least_draws=least_draws,
            shares=None if draw is None else _shares(draw),
            seed=seed,
            score_prefix=score_of,
            cost_prefix=cost_of,
        )
        if outcomes:
            _write_outcomes(source, request, None if dry_run else output)
        else:
            _write_log(source, request, None if dry_run else output)


def _write_log(source: Path, request: ImportRequest, output: Path | None) -> None:
    """Write a log, or without an output only describe it. Raises ExchangeError."""
    rule, first = make_rule(request.metric, request.scale), list[Example]()
    with progress() as on_progress:
        log = ProductionLog(source, request, on_progress)
        if output is None:
            examples = log.examples()
            first += islice(examples, SHOWN)
            deque(examples, maxlen=0)
        else:
            with appearing(output) as file:
                write_export(log.examples(), file, Header(written_at=time.time(), reward=rule, arms=log.arms))
                if not log.summary.rows:
                    raise ExchangeError(f"{source}: no row can be used; {_describe_faults(log.faults)}")
    _print_understood(log)
    _print_rows(first)
    _print_summary(log, request.metric)
    say(
        "dry run: nothing was written"
        if output is None
        else f"{log.summary.rows:,} decisions written to {output}"
    )
    _print_faults(log.faults)
    _print_possible(log, request)
    _print_declaration(request.metric, request.scale)


def _write_outcomes(source: Path, request: ImportRequest, output: Path | None) -> None:
    """Write the outcomes of every arm, or without an output only count them. Raises ExchangeError."""
    with progress() as on_progress:
        log = ProductionLog(source, request, on_progress)
        if output is None:
            written = sum(1 for _ in log.outcomes())
        else:
            with appearing(output) as file:
                written = 0
                for line in log.outcomes():
                    file.write(line)
                    written += 1
                if not written:
                    raise ExchangeError(f"{source}: no row has an outcome; {_describe_faults(log.faults)}")
    say(
        f"{written:,} outcomes"
        + ("; dry run: nothing was written" if output is None else f" written to {output}")
    )
    _print_faults(log.faults)


def say(text: str) -> None:
    """Print a line without markup."""
    console.print(text, **PLAIN)


def _costs(pairs: Iterable[str]) -> dict[str, str]:
    """Read columns by cost. Raises ValueError."""
    columns = unique("--cost", map(parse_renaming, pairs))
    for name in columns:
        if name not in COSTS:
            raise ValueError(f"--cost {name}: unknown cost{did_you_mean(name, COSTS)}")
    return columns


def _pair(text: str) -> tuple[str, str]:
    """Read one COLUMN=VALUE. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"--only {text}: COLUMN=VALUE was expected")
    return name, value


def _shares(text: str) -> dict[str, float]:
    """Read the probabilities of arms, such as a=0.7,b=0.3. Raises ValueError.

    >>> _shares("a=0.75, b=0.25")
    {'a': 0.75, 'b': 0.25}
    """
    probabilities = {}
    for part in text.split(","):
        name, equals, value = part.strip().rpartition("=")
        try:
            probabilities[name] = float(value)
        except ValueError:
            equals = ""
        if not equals or not 0.0 <= probabilities[name] <= 1.0:
            raise ValueError(f"--draw {part.strip()!r}: ARM=PROBABILITY in [0, 1] was expected")
    if abs(sum(probabilities.values()) - 1.0) > 1e-6:
        raise ValueError(
            f"--draw {text}: the probabilities sum to {sum(probabilities.values()):g}; they must sum to 1"
        )
    return probabilities


def _convert(
    source: Path, read: Reads, output: Path, metric: str, scale: tuple[float, float], faults: Faults
) -> None:
    """Convert a log with recorded propensities. Raises ExchangeError."""
    with progress() as on_progress, appearing(output) as file:
        rows = _Counted(read(source, metric, scale, faults), on_progress)
        write_export(rows, file, Header(written_at=time.time(), reward=make_rule(metric, scale)))
        if not rows.count:
            raise ExchangeError(f"{source}: no row can be used; {_describe_faults(faults)}")
    say(f"{rows.count:,} decisions written to {output}")
    _print_faults(faults)


class _Counted:
    """Counts examples while they are read, and reports progress.

    Attributes:
        count: Examples so far.
    """

    def __init__(self, examples: Iterator[Example], on_progress: Progress) -> None:
        self._examples, self._on_progress = examples, on_progress
        self.count = 0

    def __iter__(self) -> Iterator[Example]:
        for example in self._examples:
            self.count += 1
            if self.count % REPORT_EVERY == 0:
                self._on_progress("decisions", self.count, None)
            yield example
        self._on_progress("decisions", self.count, self.count)


# -- what is printed -------------------------------------------------------------------------------


def _print_understood(log: ProductionLog) -> None:
    for what, column in log.columns.list_columns():
        if not column.startswith("_"):
            say(f"{what} <- {column}")
    if log.full:
        say("arm, reward, distribution <- drawn here: one arm per row, among those with an outcome")
    elif log.scored is not None:
        say(f"reward <- the newest score{f' {log.scored!r}' if log.scored else ''} of the feedback")
    elif log.columns.reward is None:
        say("reward <- nothing: no column was found; name it with --reward, or give --feedback FILE")


def _print_rows(examples: Iterable[Example]) -> None:
    for example in examples:
        decision = example.decision
        drawn_with = f"{decision.propensity:g}" if decision.probabilities else "unknown"
        rewarded = ", ".join(f"{name} {value:g}" for name, value in example.metrics.items()) or "no reward"
        question = decision.context.question
        say(
            f"{decision.id}: {question if len(question) <= 60 else question[:57] + '...'!r}, "
            f"arm {decision.drawn}, propensity {drawn_with}, {rewarded}"
            + (f", {_features(decision.context.features)}" if decision.context.features else "")
        )


def _features(features: Mapping[str, float]) -> str:
    return " ".join(
        name if "=" in name and value == 1.0 else f"{name} {value:g}" for name, value in features.items()
    )


def _print_summary(log: ProductionLog, metric: str) -> None:
    summary = log.summary
    say(f"rows: {summary.rows:,}")
    if summary.rows:
        arms = ", ".join(f"{arm} {n:,}" for arm, n in summary.arms.most_common(20))
        others = len(summary.arms) - 20
        say(f"arms: {arms}" + (f" and {others:,} others" if others > 0 else ""))
        say(_rewards(summary, metric))
        say(_propensities(summary))
        if summary.failed:
            say(f"failed: {summary.failed:,}")
        if summary.episodes:
            say(f"episodes: {summary.episodes:,}")
        if log.columns.time is None or summary.first is None or summary.last is None:
            say("time: not on record; rows are taken in the order of the file")
        else:
            say(f"time: {moment(summary.first)} to {moment(summary.last)}")
            if summary.backwards:
                say(
                    f"{summary.backwards:,} rows were decided before the one above them: candidates that "
                    "learn would learn in this order, so sort the file by time first"
                )


def _rewards(summary: LogSummary, metric: str) -> str:
    if not summary.rewarded:
        return f"{metric}: none; an evaluation needs some"
    mean, without = summary.total / summary.rewarded, summary.rows - summary.rewarded
    return f"{metric}: {summary.rewarded:,} from {summary.low:g} to {summary.high:g}, mean {mean:.4g}" + (
        f"; {without:,} decisions without one" if without else ""
    )


def _propensities(summary: LogSummary) -> str:
    parts = [f"{summary.recorded:,} on record"]
    if summary.recorded:
        parts.append(f"of these {summary.whole:,} with the probabilities of all arms")
    if summary.estimated:
        parts.append(f"{summary.estimated:,} estimated")
    return f"propensities: {', '.join(parts)}, {summary.unknown:,} unknown"


def _describe_faults(faults: Faults) -> str:
    reasons = "; ".join(
        f"{n:,} {reason}" + (f" (such as {faults.shown[reason][0]})" if faults.shown.get(reason) else "")
        for reason, n in faults.counts.most_common()
    )
    return f"left out: {reasons or 'none, it is empty'}"


def _print_faults(faults: Faults) -> None:
    for reason, n in faults.counts.most_common():
        say(f"left out {n:,}: {reason}")
        for named in faults.shown.get(reason, ()):
            say(f"  {named}")


def _print_possible(log: ProductionLog, request: ImportRequest) -> None:
    """Print which estimates the log permits."""
    summary = log.summary
    if log.frequencies is not None:
        say(
            f"propensities were estimated in {log.frequencies.counted:,} of {log.frequencies.contexts:,} "
            f"contexts, those with {request.least_rows:,} rows; every report on this log says so"
        )
    if summary.rows and summary.unknown == summary.rows:
        say(
            "the log has no propensities, so `armwise replay` can use only the direct model, dm. "
            "Log the probability of the drawn arm with each decision, or give --propensity, --distribution "
            "or --estimate-propensities"
        )
    elif summary.unknown:
        say(f"{summary.unknown:,} decisions without a propensity are left out of an evaluation of the others")


def _print_declaration(metric: str, scale: tuple[float, float]) -> None:
    low, high = scale
    say(f"its reward, which a replay takes from the file: {{{metric}: {{range: [{low:g}, {high:g}]}}}}")
