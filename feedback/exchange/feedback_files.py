"""Feedback beside the decisions: scores that name what they are on, in files of their own or between rows.

Two shapes are known by their columns: one line a score, with the name of the metric (`target_id`,
`metric_name`, `value` of TensorZero; `traceId`, `name`, `value` of Langfuse), and a table with an id and a
reward. Of several scores of one name on one thing the newest counts, as in TensorZero's own queries
(`ROW_NUMBER() OVER (PARTITION BY target_id ORDER BY timestamp DESC)`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from armwise.feedback.exchange.jsonl import ExchangeError
from armwise.feedback.exchange.records import Record, names_in, value_at
from armwise.feedback.exchange.table import is_missing, nearest, seconds


@dataclass(frozen=True, slots=True)
class Score:
    """One score on something.

    Attributes:
        target: What it is on.
        name: Name of the metric; empty without one.
        value: As it is in the file.
        at: When it was given, seconds since the epoch; 0 where that is not on record.
    """

    target: str
    name: str
    value: Any
    at: float = 0.0


TARGETS = ("target_id", "trace_id", "traceId", "decision_id", "request_id", "inference_id", "id")
"""Columns of a table of feedback that name what it is on, the first that occurs counts."""

TIMES = ("timestamp", "created_at", "createdAt", "updated_at", "time")


class TableScores:
    """Reads scores from a table with an id and a reward a row.

    Args:
        target: Column of the id; None to try `TARGETS`.
        reward: Column of the reward, or name of the metric where each row has a name and a value.
    """

    def __init__(self, target: str | None, reward: str | None) -> None:
        self._target, self._reward = target, reward

    def __call__(self, record: Record) -> Iterator[Score]:
        """Yield the score of a row; none where the value is missing. Raises ExchangeError."""
        values = record.values
        if record.fault:
            raise ExchangeError(f"{record.where}: {record.fault}")
        tried = (self._target, *TARGETS) if self._target else TARGETS
        target = next((name for name in tried if not is_missing(value_at(values, name))), None)
        if target is None:
            raise ExchangeError(
                f"{record.where}: no column says what the feedback is on: the column of the decisions' ids "
                f"({', '.join(tried)}) was expected{nearest(tried[0], names_in(values))}"
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
            yield Score(str(values.get(target, value_at(values, target))), name, value, time_of(values))


def time_of(values: Mapping[str, Any]) -> float:
    """Return when a score was given; 0 where that cannot be read."""
    for name in TIMES:
        if not is_missing(value := values.get(name)):
            try:
                return seconds(value)
            except (ValueError, TypeError, OverflowError):
                continue
    return 0.0


class Scores:
    """The newest score on each thing, by name of the metric.

    Attributes:
        counts: How many scores there are, by name.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._newest: dict[tuple[str, str], tuple[float, Any]] = {}

    def add(self, scores: Iterable[Score]) -> None:
        """Note scores; of equally new ones the last."""
        for score in scores:
            self.counts[score.name] += 1
            key = (score.name, score.target)
            if key not in self._newest or self._newest[key][0] <= score.at:
                self._newest[key] = score.at, score.value

    def metric(self, asked: str | None, source: object) -> str:
        """Return the metric that is the reward. Raises ExchangeError where that is not clear."""
        if asked is not None and asked in self.counts:
            return asked
        if len(self.counts) == 1 and (asked is None or "" in self.counts):
            return next(iter(self.counts))
        listed = ", ".join(f"{name or 'without a name'} ({n:,})" for name, n in self.counts.most_common(20))
        if asked is None:
            raise ExchangeError(f"{source}: feedback has several scores, name one with --reward: {listed}")
        raise ExchangeError(f"{source}: no score is called {asked!r}; there are: {listed}")

    def reader(self, metric: str, joins: Sequence[str]) -> Callable[[Mapping[str, Any]], Any]:
        """Return a function from a row to its score: by the first of some columns with one."""

        def read(row: Mapping[str, Any]) -> Any:
            for column in joins:
                target = value_at(row, column)
                if target is not None and (newest := self._newest.get((metric, str(target)))) is not None:
                    return newest[1]
            return None

        return read
