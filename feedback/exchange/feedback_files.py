"""Feedback apart from the decisions: scores with the id of their target, in separate files or between rows.

Two layouts are recognised by their columns: a line for each score, with the name of the metric (`target_id`,
`metric_name`, `value` of TensorZero; `traceId`, `name`, `value` of Langfuse), and a table with an id and a
reward. Of the scores of a name on a target the newest counts, as in TensorZero's queries
(`ROW_NUMBER() OVER (PARTITION BY target_id ORDER BY timestamp DESC)`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from armwise.feedback.exchange.identity import NewestById
from armwise.feedback.exchange.imported import BadValue, Faults
from armwise.feedback.exchange.records import FileRecord, names_in, value_at
from armwise.feedback.exchange.table import is_missing, nearest, read_reward, seconds
from armwise.feedback.jsonl import ExchangeError


@dataclass(frozen=True, slots=True)
class GivenScore:
    """A score in a file.

    Attributes:
        where: File, and the line or row.
        targets: Ids of the decisions or episodes that it is on.
        name: Name of the metric; empty if the file lacks it.
        value: The value, as in the file.
        at: When it was given, seconds since the epoch; 0: unknown.
        ident: Id of the score; empty if the file lacks it.
    """

    where: str
    targets: tuple[str, ...]
    name: str
    value: Any
    at: float = 0.0
    ident: str = ""


TARGETS = ("target_id", "trace_id", "traceId", "decision_id", "request_id", "inference_id", "id")
"""Columns of a table of feedback that hold its target; the first that occurs counts."""

NO_TARGET = "feedback on nothing"
"""Reason that is counted for feedback without the id of a target."""

UNMATCHED = "feedback on no decision"
"""Reason that is counted for feedback whose decision is missing from the files."""

TIMES = ("updated_at", "updatedAt", "timestamp", "created_at", "createdAt", "time")


class TableScores:
    """Reads scores from a table with an id and a reward in each row.

    Args:
        target: Column of the id; None: try `TARGETS`.
        reward: Column of the reward, or name of the metric if each row has a name and a value.
    """

    def __init__(self, target: str | None, reward: str | None) -> None:
        self._target, self._reward = target, reward

    def __call__(self, record: FileRecord) -> Iterator[GivenScore]:
        """Yield the score of a row, if it has a value.

        Raises:
            BadValue: The row cannot be read, or its id is empty.
            ExchangeError: The column of the id or of the reward is missing.
        """
        values = record.values
        if record.fault:
            raise BadValue(record.reason, record.fault)
        tried = (self._target, *TARGETS) if self._target else TARGETS
        target = next((name for name in tried if not is_missing(value_at(values, name))), None)
        if target is None and (empty := next((name for name in tried if name in values), None)):
            raise BadValue(NO_TARGET, f"{empty} is empty; it must hold a decision's id")
        if target is None:
            raise ExchangeError(
                f"{record.where}: no column says which decision the feedback is about; name it "
                f"{' or '.join(tried)}{nearest(tried[0], names_in(values))}"
            )
        name, column = "", self._reward
        if column is None or column not in values:
            named = next((key for key in ("metric_name", "name", "metric") if key in values), None)
            name = "" if named is None else str(values[named])
            column = next((key for key in ("value", "reward", "score", "rating") if key in values), None)
        if column is None:
            raise ExchangeError(
                f"{record.where}: no column for the reward: name it with --reward{nearest('reward', values)}"
            )
        if not is_missing(value := values[column]):
            on = (str(value_at(values, target)),)
            ident = str(values.get("id") or "") if "metric_name" in values and target != "id" else ""
            yield GivenScore(record.where, on, name, value, read_time(values), ident)


def read_time(values: Mapping[str, Any]) -> float:
    """Return when a row was last written; 0: unknown."""
    latest = 0.0
    for name in TIMES:
        if not is_missing(value := values.get(name)):
            with suppress(ValueError, TypeError, OverflowError):
                latest = max(latest, seconds(value))
    return latest


class Scores:
    """Scores, each once: the newest version of each id, and the newest of each name on a target."""

    def __init__(self) -> None:
        self._scores: NewestById[tuple[object, ...], GivenScore] = NewestById()

    def add(self, score: GivenScore) -> bool:
        """Record a score; return whether it occurred before, in this or in another version."""
        ident = (
            (score.ident, score.name)
            if score.ident
            else (score.name, score.targets, score.at, str(score.value))
        )
        return self._scores.add(ident, score.at, score)

    @property
    def counts(self) -> Counter[str]:
        """Number of scores by name."""
        return Counter(score.name for score in self._scores)

    def metric(self, asked: str | None, source: object) -> str:
        """Return the metric that is the reward. Raises ExchangeError if that is ambiguous."""
        counts = self.counts
        if asked is not None and asked in counts:
            return asked
        if len(counts) == 1 and (asked is None or "" in counts):
            return next(iter(counts))
        listed = ", ".join(f"{name or 'without a name'} ({n:,})" for name, n in counts.most_common(20))
        if asked is None:
            raise ExchangeError(f"{source}: there are several scores; choose one with --reward: {listed}")
        raise ExchangeError(f"{source}: there is no score {asked!r}; available: {listed}")

    def join_rows(self, metric: str, joins: Sequence[str], faults: Faults) -> "JoinedScores":
        """Return the scores of a metric, joined with rows by columns."""
        return JoinedScores((score for score in self._scores if score.name == metric), joins, faults)


class JoinedScores:
    """Returns the score of a row: the newest by the first column that has one.

    Args:
        scores: Scores of a metric.
        joins: Columns that hold the target of a score, or a list of targets.
        faults: Records the scores that are not numbers; their decisions get no reward.
    """

    def __init__(self, scores: Iterable[GivenScore], joins: Sequence[str], faults: Faults) -> None:
        self._joins, self._faults = joins, faults
        self._scores: NewestById[str, GivenScore] = NewestById()
        self._all = list(scores)
        self._newest: NewestById[str, GivenScore] = NewestById()
        for score in map(self._readable, self._all):
            for target in score.targets:
                self._newest.add(target, score.at, score)
        self._matched: set[str] = set()

    def _readable(self, score: GivenScore) -> GivenScore:
        """Return a score, its value cleared if that is not a number."""
        try:
            read_reward(score.value)
        except (ValueError, TypeError):
            right = "a number, true/false, yes/no or pass/fail was expected"
            self._faults.add(
                score.where, BadValue("score is not a number", f"it is {score.value!r:.80}; {right}")
            )
            return replace(score, value=None)
        return score

    def __call__(self, row: Mapping[str, Any]) -> Any:
        """Return the value of the score, if a column has one."""
        for target in self._targets(row):
            if (score := self._newest.get(target)) is not None:
                return score.value
        return None

    def match(self, row: Mapping[str, Any]) -> None:
        """Record that the scores on a row are matched."""
        self._matched.update(target for target in self._targets(row) if target in self._newest)

    def _targets(self, row: Mapping[str, Any]) -> Iterator[str]:
        for column in self._joins:
            target = value_at(row, column)
            for part in target if isinstance(target, list) else (target,):
                if part is not None:
                    yield str(part)

    def list_unmatched(self) -> Iterator[GivenScore]:
        """Yield the scores whose targets are missing from the rows."""
        return (score for score in self._all if self._matched.isdisjoint(score.targets))
