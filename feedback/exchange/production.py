"""Read a production log, in files of any format, as examples: survey it first, then yield one after another.

    log = ProductionLog(source, Request(form="table", columns=Columns(arm="route")))
    write_export(log.examples(), file, header)
    log.summary, log.faults

Files are read once for the feedback and costs of model calls that are joined with decisions, once for the
arms and for frequencies, and once for the examples, with a row in memory at a time. Ids, scores and the
counts of contexts stay in memory.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from armwise.feedback.events import ESTIMATED, Example
from armwise.feedback.exchange.feedback_files import UNMATCHED, JoinedScores
from armwise.feedback.exchange.identity import Ids
from armwise.feedback.exchange.imported import REWARD, BadValue, Faults
from armwise.feedback.exchange.outcomes import (
    WIDE,
    OutcomeDraws,
    Outcomes,
    battle,
    columns_of_arms,
    outcome_lines,
    wide,
)
from armwise.feedback.exchange.propensities import LEAST_DRAWS, LEAST_ROWS, Frequencies
from armwise.feedback.exchange.records import FileRecord, names_in, occurs, read_records, value_at
from armwise.feedback.exchange.systems import READERS, Reader
from armwise.feedback.exchange.table import (
    MOST_ARMS,
    QUESTIONS,
    SAMPLE,
    TABLE,
    Columns,
    RowReader,
    TableRow,
    as_it_is,
    make_example,
    nothing,
    understand,
)
from armwise.feedback.jsonl import ExchangeError

FULL = ("routerbench", "wide", "battles")
"""Formats that have the outcome of every arm."""

FORMATS = ("table", *READERS, *FULL)

REPORT_EVERY = 1000
"""Rows between two reports of progress."""

OTHERS = "not selected by --only"

Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """How a log is read.

    Attributes:
        form: The format, one of `FORMATS`.
        columns: The columns that options name.
        metric: Name of the metric that holds the reward.
        scale: Smallest and largest reward.
        arms: Names of all arms; None: those that occur.
        feedback: Files and folders of feedback on the decisions.
        only: Values that columns must have, as texts; other rows are left out.
        strict: Whether a wrong row is an error, instead of being left out and counted.
        estimate: Whether missing propensities are estimated from frequencies.
        least_rows: Fewest rows of a context for an estimate.
        least_draws: Fewest draws of an arm in its context for an estimate.
        shares: Probabilities with which the arms of a full table are drawn; None: uniform.
        seed: Seed of these draws.
        score_prefix: Prefix of the columns of scores in a wide table; None: they are named like the arms.
        cost_prefix: Prefix of the columns of dollars.
        questions: Whether a table's questions are read; otherwise the id serves as question.
    """

    form: str = "table"
    columns: Columns = field(default_factory=Columns)
    metric: str = REWARD
    scale: tuple[float, float] = (-1.0, 1.0)
    arms: tuple[str, ...] | None = None
    feedback: tuple[Path, ...] = ()
    only: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    estimate: bool = False
    least_rows: int = LEAST_ROWS
    least_draws: int = LEAST_DRAWS
    shares: Mapping[str, float] | None = None
    seed: int = 0
    score_prefix: str | None = None
    cost_prefix: str | None = None
    questions: bool = True

    def __post_init__(self) -> None:
        if self.columns.distribution is not None and self.columns.prefix is not None:
            raise ValueError("give either --distribution or --distribution-of, not both")
        if self.form not in FORMATS:
            raise ValueError(f"unknown format {self.form!r}; available: {', '.join(FORMATS)}")
        if self.arms is not None and len(set(self.arms)) != len(self.arms):
            raise ValueError(f"an arm occurs twice among {', '.join(self.arms)}")


@dataclass(slots=True)
class LogSummary:
    """Statistics of the examples of a log.

    Attributes:
        rows: Number of examples.
        arms: Number of draws by arm.
        rewarded: Examples with a reward.
        total: Sum of the rewards.
        low: Smallest reward.
        high: Largest reward.
        recorded: Examples with a recorded propensity.
        whole: Examples with a recorded complete distribution.
        estimated: Examples whose propensity was estimated.
        failed: Examples whose arm failed.
        first: Time of the earliest decision, seconds since the epoch.
        last: Time of the latest decision.
        backwards: Examples that were decided before the preceding example.
    """

    rows: int = 0
    arms: Counter[str] = field(default_factory=Counter)
    rewarded: int = 0
    total: float = 0.0
    low: float | None = None
    high: float | None = None
    recorded: int = 0
    whole: int = 0
    estimated: int = 0
    failed: int = 0
    first: float | None = None
    last: float | None = None
    backwards: int = 0
    _previous: float = field(default=float("-inf"), repr=False)
    _episodes: set[int] = field(default_factory=set, repr=False)

    def add(self, example: Example, reward: float | None) -> None:
        """Count an example."""
        decision = example.decision
        self.rows += 1
        self.arms[decision.drawn] += 1
        if reward is not None:
            self.rewarded += 1
            self.total += reward
            self.low = reward if self.low is None else min(self.low, reward)
            self.high = reward if self.high is None else max(self.high, reward)
        if decision.policy == ESTIMATED:
            self.estimated += 1
        elif decision.probabilities:
            self.recorded += 1
            self.whole += len(decision.probabilities) == len(decision.arms)
        self.failed += example.failed
        at = decision.decided_at
        self.first = at if self.first is None else min(self.first, at)
        self.last = at if self.last is None else max(self.last, at)
        self.backwards += at < self._previous
        self._previous = at
        if decision.episode_id is not None:
            self._episodes.add(hash(decision.episode_id))

    @property
    def unknown(self) -> int:
        """Number of examples that lack a propensity."""
        return self.rows - self.recorded - self.estimated

    @property
    def episodes(self) -> int:
        """Number of distinct episodes."""
        return len(self._episodes)


class ProductionLog:
    """The examples of a production log.

    Args:
        source: A file, or a folder of files.
        request: How it is read.
        on_progress: Called with the progress.

    Attributes:
        columns: The column of each field.
        arms: All arms; empty if each row has a distribution by name.
        scored: Name of the score that is the reward; None: rewards are in the rows.
        skipped: Columns of questions that are not read.
        summary: Statistics of the examples; complete after the last example.
        faults: Rows that were left out; complete after the last example.
        frequencies: Counts of contexts, if propensities are estimated.

    Raises:
        ExchangeError: A file cannot be read, a column is missing, or a row is wrong and that is strict.
    """

    def __init__(self, source: Path, request: ImportRequest, on_progress: Progress | None = None) -> None:
        self._source, self._request, self._on_progress = source, request, on_progress or _ignore_progress
        self._root = source if source.is_dir() else source.parent
        self.summary, self.faults = LogSummary(), Faults(strict=request.strict)
        self.frequencies: Frequencies | None = None
        named = [f"{column}." for _, column in request.columns.list_columns()]
        self.skipped = tuple(
            name
            for name in QUESTIONS
            if not request.questions and not any(column.startswith(f"{name}.") for column in named)
        )
        self._outcomes: Outcomes | None = None
        self._scores: JoinedScores | None = None
        self._reader = self._full() if request.form in FULL else self._system()
        self._join()
        given, layout = request.columns, self._reader.layout
        scores, self.scored = self._reader.scores, None
        if scores.counts:
            self.scored = scores.metric(given.reward, source)
            given = replace(given, reward=None)
            layout = replace(layout, fields={**layout.fields, "reward": ()})
        if not request.questions:
            layout = replace(layout, fields={**layout.fields, "question": ()})
        self._check_only()
        sample = islice(self._select_records(Counter()), SAMPLE)
        self.columns = understand(layout, given, sample, source)
        self._scores = self._join_scores()
        self._rows = RowReader(
            layout, self.columns, request.scale, request.arms, self._scores or nothing, self._root
        )
        self.arms: tuple[str, ...] = ()
        if request.form not in FULL:
            self._survey()

    @property
    def full(self) -> bool:
        """Whether the files have the outcome of every arm."""
        return self._outcomes is not None

    def _system(self) -> Reader:
        """Return the reader of a format whose rows have the drawn arm."""
        columns = self._request.columns
        kind, layout = READERS.get(self._request.form, (Reader, TABLE))
        if columns.propensity is not None:  # it may be `act_prob`
            layout = replace(layout, rows=as_it_is) if layout is TABLE else layout
        return kind(layout, self.faults, columns.id, columns.reward)

    def _full(self) -> Reader:
        """Return a reader of a table with all outcomes, which draws an arm for each row."""
        request = self._request
        if request.form == "battles":
            self._outcomes = battle
        else:
            names: dict[str, None] = {}
            for record in islice(read_records(self._source), SAMPLE):
                names.update(dict.fromkeys(record.values))
            arms, scores, dollars = columns_of_arms(
                request.form,
                list(names),
                request.arms,
                request.score_prefix,
                request.cost_prefix,
                self._source,
            )
            self._outcomes = wide(arms, scores, dollars)
            if wrong := [arm for arm in request.shares or () if arm not in arms]:
                raise ExchangeError(
                    f"--draw names {wrong[0]!r}, which is not one of the arms {', '.join(arms)}"
                )
        draws = OutcomeDraws(self._outcomes, request.shares, request.seed, f"{self._root}/")
        return Reader(replace(WIDE, rows=draws.rows), self.faults)

    def _join(self) -> None:
        """Read the feedback and costs that are joined with decisions."""
        if type(self._reader) is not Reader:
            for done, record in enumerate(read_records(self._source), start=1):
                self._reader.survey(record)
                self._report("reading what is joined", done)
        given = chain.from_iterable(map(read_records, self._request.feedback))
        for done, record in enumerate(given, start=1):
            self._reader.feedback(record)
            self._report("reading feedback", done)
        if self._request.feedback and not self._reader.scores.counts:
            raise ExchangeError(f"{', '.join(map(str, self._request.feedback))}: no feedback has a value")

    def _join_scores(self) -> JoinedScores | None:
        if self.scored is None:
            return None
        joins = (*self._reader.layout.joins, self.columns.id, self.columns.episode)
        named = tuple(dict.fromkeys(name for name in joins if name is not None))
        return self._reader.scores.join_rows(self.scored, named, self.faults)

    def _survey(self) -> None:
        """Read all rows for the names of arms, and for frequencies."""
        request = self._request
        if request.estimate:
            self.frequencies = Frequencies(
                by_features=bool(self.columns.features),
                least_rows=request.least_rows,
                least_draws=request.least_draws,
            )
        if request.arms is not None:
            self.arms = request.arms
            if self.frequencies is None:
                return
        arms: dict[str, None] = {}
        for done, row in enumerate(self._read(Faults(strict=request.strict)), start=1):
            arms.update(dict.fromkeys((row.arm, *row.distribution)))
            if len(arms) > MOST_ARMS:
                raise ExchangeError(
                    f"{self._source}: {self.columns.arm} has more than {MOST_ARMS:,} different values, such "
                    f"as {row.arm!r}; is it really the column of the arm?"
                )
            if self.frequencies is not None and row.propensity is None:
                self.frequencies.add(row)
            self._report("reading arms", done)
        self.arms = request.arms or tuple(sorted(arms))

    def examples(self) -> Iterator[Example]:
        """Yield the examples, numbered from 1. Raises ExchangeError."""
        seq = 0
        for row in self._read(self.faults):
            estimated = None
            if self.frequencies is not None and row.propensity is None:
                estimated = self.frequencies.distribution(row)
            try:
                example = make_example(seq + 1, row, self.arms, self._request.metric, estimated)
            except BadValue as bad:
                self.faults.add(row.where, bad)
                continue
            seq += 1
            self.summary.add(example, row.reward)
            self._report("decisions", seq)
            yield example
        self._note_unmatched()
        self._on_progress("decisions", seq, seq)

    def _note_unmatched(self) -> None:
        """Count the feedback and the calls that match no decision."""
        for score in self._scores.list_unmatched() if self._scores is not None else ():
            on = " and ".join(score.targets)
            self.faults.note(score.where, BadValue(UNMATCHED, f"{on} is no decision that was read"))
        for call in self._reader.calls.alone():
            detail = f"it is part of {call.group}, which is no decision that was read"
            self.faults.note(call.where, BadValue("call of no decision", detail))

    def outcomes(self) -> Iterator[bytes]:
        """Yield the outcomes of all arms as lines for `armwise lab train`; for formats in `FULL`.

        Raises:
            ExchangeError: The format lacks outcomes of other arms than the drawn one.
        """
        if self._outcomes is None:
            raise ExchangeError(
                f"format {self._request.form} has the outcome of one arm per row; for outcomes of all arms, "
                f"use one of {', '.join(FULL)}"
            )
        yield from outcome_lines(
            read_records(self._source), self._outcomes, self.columns, f"{self._root}/", self.faults
        )

    def _read(self, faults: Faults) -> Iterator[TableRow]:
        """Yield the rows that can be used."""
        ids = Ids()
        for record in self._select_records(faults.counts):
            if not record.wrong:
                faults.note(record.where, BadValue(record.reason, record.fault))
                continue
            try:
                row = self._rows.read(record)
                ids.require_new(row.id)
            except BadValue as bad:
                faults.add(record.where, bad)
            else:
                yield row

    def _select_records(self, left_out: Counter[str]) -> Iterator[FileRecord]:
        """Yield the selected decisions and the unreadable ones; count the others."""
        only = self._request.only.items()
        for record in read_records(self._source, self.skipped):
            for row in self._reader.rows(record):
                if self._scores is not None:
                    self._scores.match(row.values)
                if row.fault or all(_as_text(value_at(row.values, name)) == value for name, value in only):
                    yield row
                else:
                    left_out[OTHERS] += 1

    def _report(self, what: str, done: int) -> None:
        if done % REPORT_EVERY == 0:
            self._on_progress(what, done, None)

    def _check_only(self) -> None:
        """Check that the columns of `only` occur in the first rows. Raises ExchangeError."""
        if not self._request.only:
            return
        names: set[str] = set()
        for record in islice(_read_rows(self._reader, self._source), SAMPLE):
            names.update(names_in(record.values))
            names.update(name for name in self._request.only if occurs(record.values, name))
        if missing := [name for name in self._request.only if name not in names]:
            raise ExchangeError(f"--only {missing[0]}: no such column; available: {', '.join(sorted(names))}")


def _ignore_progress(what: str, done: int, total: int | None) -> None:
    del what, done, total


def _read_rows(reader: Reader, source: Path) -> Iterable[FileRecord]:
    return (row for record in read_records(source) for row in reader.rows(record))


def _as_text(value: Any) -> str:
    """Return a value as it is written in `--only`.

    >>> _as_text(True), _as_text(2.0), _as_text("chat"), _as_text(None)
    ('true', '2', 'chat', '')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
