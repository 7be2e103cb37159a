"""Where a training log is read from: the database of a service, or an export.

source = LogSource(store, rule)
log = source.log(rule, Selection(since=yesterday))
for example in source.examples(): ...
"""

import json
from collections.abc import Callable, Iterator
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from feedback.dataset.features import described
from feedback.dataset.log import EVERYTHING, Log
from feedback.dataset.read_log import length, read_log
from feedback.dataset.selection import Selection
from feedback.events import Example
from feedback.exchange import ExchangeError, Header, read_export, read_headers
from feedback.log import Store
from feedback.reward import RewardRule
from feedback.training_log import lag, read_examples

ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the step, how much of it is done, and out of how much, where that is known."""

_CHUNK = 4096
"""Examples between two calls of the progress callback."""


class Source(Protocol):
    """A training log, which can be read repeatedly: the same examples, in the same order."""

    def log(
        self, rule: RewardRule, selection: Selection = EVERYTHING, on_progress: ProgressCallback | None = None
    ) -> Log:
        """Return the decisions that can be evaluated, as arrays; features are computed on first access.

        Args:
            rule: The rule of their rewards.
            selection: Which decisions are selected.
            on_progress: Called with the progress.

        Raises:
            EmptyLogError: No decision is left.
        """
        ...

    def examples(self) -> Iterator[Example]:
        """Yield all examples in order, labels included; a row of the arrays has the `seq` of its example."""
        ...

    def settled(self, since: float | None = None) -> float:
        """Return when the first decision was made that still waits for feedback; infinite where none does.

        All decisions before it are complete.

        Args:
            since: Only decisions of then or later, seconds since the epoch.
        """
        ...

    def remarks(self, rule: RewardRule) -> list[str]:
        """Return remarks on the rewards under a rule; a sentence each."""
        ...


class LogSource(Source):
    """The training log of a rule in a database, up to where it was when this was first read.

    Args:
        store: The log, which may be written meanwhile.
        rule: Names the training log; `log` may be given another rule with the same join.
    """

    def __init__(self, store: Store, rule: RewardRule) -> None:
        self._store = store
        self._rule = rule
        self._join = rule.join

    @override
    def log(
        self, rule: RewardRule, selection: Selection = EVERYTHING, on_progress: ProgressCallback | None = None
    ) -> Log:
        """Also raises LogGapError; ValueError for a rule with another join."""
        if rule.join != self._join:
            raise ValueError("another rule may have other prices, weights and ranges, but must join alike")
        describe = described(self.examples)
        return read_log(self._store, rule, selection, on_progress, upto=self._upto, describe=describe)

    @override
    def examples(self) -> Iterator[Example]:
        """Raises LogGapError."""
        return read_examples(self._store, self._join, upto=self._upto)

    @override
    def settled(self, since: float | None = None) -> float:
        return lag.first_waiting(self._store, self._rule, self._upto, since)

    @override
    def remarks(self, rule: RewardRule) -> list[str]:
        return []

    @cached_property
    def _upto(self) -> int:
        return length(self._store, self._join)


class ExportSource(Source):
    """A file that `armwise export` wrote; `armwise import` converts other layouts into one.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @override
    def log(
        self, rule: RewardRule, selection: Selection = EVERYTHING, on_progress: ProgressCallback | None = None
    ) -> Log:
        """Also raises ExchangeError, such as where the rule declares no metric of the file."""
        metrics = {name: metric for header in self._headers for name, metric in header.reward.metrics.items()}
        if metrics and rule.default is None and not metrics.keys() & rule.metrics.keys():
            document = {
                name: metric.model_dump(mode="json", exclude_defaults=True)
                for name, metric in metrics.items()
            }
            raise ExchangeError(
                f"{self._path} has the metrics {', '.join(metrics)}, none of which is configured; "
                f"declare them under reward: {json.dumps({'metrics': document})}"
            )
        examples = self.examples() if on_progress is None else _with_progress(self.examples(), on_progress)
        return Log.from_examples(examples, rule, selection, described(self.examples))

    @override
    def examples(self) -> Iterator[Example]:
        """Raises ExchangeError."""
        return read_export(self._path)

    @override
    def settled(self, since: float | None = None) -> float:
        """Returns what the file recorded when it was written, whatever `since`."""
        return min(inf if header.settled is None else header.settled for header in self._headers)

    @override
    def remarks(self, rule: RewardRule) -> list[str]:
        return [one for header in self._headers for one in differences(header.reward, rule)]

    @cached_property
    def _headers(self) -> list[Header]:
        """Total over all exports in the file."""
        return list(read_headers(self._path))


def differences(theirs: RewardRule, ours: RewardRule) -> Iterator[str]:
    """Yield how the metrics of a rule differ from those of a file.

    >>> from feedback.reward import Metric
    >>> [*differences(RewardRule(metrics={"right": Metric()}), RewardRule())]
    ['The metric right of the file is not declared here and has no effect on rewards.']
    """
    for name, metric in theirs.metrics.items():
        if name not in ours.metrics:
            yield f"The metric {name} of the file is not declared here and has no effect on rewards."
        elif (mine := ours.metrics[name]) != metric:
            there, here = metric.model_dump(mode="json"), mine.model_dump(mode="json")
            changed = ", ".join(
                f"{key} {here[key]} for {there[key]}" for key in there if there[key] != here[key]
            )
            yield f"The metric {name} is declared differently from the file: {changed}."


def _with_progress(examples: Iterator[Example], on_progress: ProgressCallback) -> Iterator[Example]:
    for done, example in enumerate(examples, start=1):
        if done % _CHUNK == 0:
            on_progress("reading the export", done, None)
        yield example
