"""Where a training log is read from: the database of a service, or a file that was exported.

source = LogSource(store, rule)
log = source.log(rule, Selection(since=yesterday), tell)
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
"""Told what is done, how much of it, and out of how much, where that is known."""

_CHUNK = 4096
"""Examples at a time: whose features are made, and after which one is told of the progress."""


class Source(Protocol):
    """A training log, to be read as often as one likes: the same examples, in the same order."""

    def log(
        self, rule: RewardRule, selection: Selection = EVERYTHING, tell: ProgressCallback | None = None
    ) -> Log:
        """Return the decisions that can be evaluated, as arrays; their features are made when asked for.

        Args:
            rule: What a decision is worth.
            selection: Which decisions are looked at.
            tell: Told of the progress.

        Raises:
            EmptyLogError: No decision is left.
        """
        ...

    def examples(self) -> Iterator[Example]:
        """Yield all examples in order, labels included; a row of the arrays has the `seq` of its example."""
        ...

    def settled(self, since: float | None = None) -> float:
        """Return when the first decision was made that still waits for feedback; infinite where none does.

        Of those made before it, everything is there that will ever be learned.

        Args:
            since: Only decisions of then or later, seconds since the epoch.
        """
        ...

    def remarks(self, rule: RewardRule) -> list[str]:
        """Say what is to be known of rewards that are made by a rule; a sentence each."""
        ...


class LogSource(Source):
    """The training log of a rule in a database, up to where it was when this was first read.

    Args:
        store: The log, which may be written meanwhile.
        rule: Says which training log; `log` may be given another rule that joins alike.
    """

    def __init__(self, store: Store, rule: RewardRule) -> None:
        self._store = store
        self._rule = rule
        self._join = rule.join

    @override
    def log(
        self, rule: RewardRule, selection: Selection = EVERYTHING, tell: ProgressCallback | None = None
    ) -> Log:
        """Raises LogGapError, too; ValueError for a rule that joins otherwise."""
        if rule.join != self._join:
            raise ValueError("another rule may have other prices, weights and ranges, but must join alike")
        describe = described(self.examples)
        return read_log(self._store, rule, selection, tell, upto=self._upto, describe=describe)

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
    """A file that `armwise export` wrote; other layouts are made one by `armwise import`.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @override
    def log(
        self, rule: RewardRule, selection: Selection = EVERYTHING, tell: ProgressCallback | None = None
    ) -> Log:
        """Raises ExchangeError, too: also where the rule declares no metric of the file."""
        told = {name: metric for header in self._headers for name, metric in header.reward.metrics.items()}
        if told and rule.default is None and not told.keys() & rule.metrics.keys():
            document = {
                name: metric.model_dump(mode="json", exclude_defaults=True) for name, metric in told.items()
            }
            raise ExchangeError(
                f"{self._path} has the metrics {', '.join(told)}, of which the configuration declares none; "
                f"declare them under reward: {json.dumps({'metrics': document})}"
            )
        examples = self.examples() if tell is None else _told(self.examples(), tell)
        return Log.from_examples(examples, rule, selection, described(self.examples))

    @override
    def examples(self) -> Iterator[Example]:
        """Raises ExchangeError."""
        return read_export(self._path)

    @override
    def settled(self, since: float | None = None) -> float:
        """Goes by what was noted down when the file was written, whatever `since`."""
        return min(inf if header.settled is None else header.settled for header in self._headers)

    @override
    def remarks(self, rule: RewardRule) -> list[str]:
        return [one for header in self._headers for one in differences(header.reward, rule)]

    @cached_property
    def _headers(self) -> list[Header]:
        """Of all the exports in the file."""
        return list(read_headers(self._path))


def differences(theirs: RewardRule, ours: RewardRule) -> Iterator[str]:
    """Say how a rule declares metrics otherwise than that of a file; what both leave alone is passed over.

    >>> from feedback.reward import Metric
    >>> [*differences(RewardRule(metrics={"right": Metric()}), RewardRule())]
    ['The metric right of the file is not declared here and counts for nothing.']
    """
    for name, metric in theirs.metrics.items():
        if name not in ours.metrics:
            yield f"The metric {name} of the file is not declared here and counts for nothing."
        elif (mine := ours.metrics[name]) != metric:
            told, here = metric.model_dump(mode="json"), mine.model_dump(mode="json")
            changed = ", ".join(
                f"{key} {here[key]} for {told[key]}" for key in told if told[key] != here[key]
            )
            yield f"The metric {name} is declared otherwise than in the file: {changed}."


def _told(examples: Iterator[Example], tell: ProgressCallback) -> Iterator[Example]:
    for done, example in enumerate(examples, start=1):
        if done % _CHUNK == 0:
            tell("reading the export", done, None)
        yield example
