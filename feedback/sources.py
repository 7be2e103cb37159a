"""Training logs, whose decisions can be read repeatedly: of a database, or of a file.

source = LogSource(store, rule)
for decisions, examples in source.blocks(rule, contexts=True): ...
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice
from math import inf
from pathlib import Path
from typing import Protocol

import numpy as np
from typing_extensions import override

from armwise.feedback import log_columns
from armwise.feedback.arrays import Integers
from armwise.feedback.decisions import EVERYTHING, Decisions, ProgressCallback, Selection, tabulate
from armwise.feedback.events import LABELS, Decision, Example, Mode
from armwise.feedback.jsonl import (
    ExchangeError,
    Header,
    count_lines,
    find_examples,
    number_export,
    read_export,
    read_headers,
)
from armwise.feedback.log import Store
from armwise.feedback.reward import Aggregation, RewardRule
from armwise.feedback.training_log import Settled, find_settled, read_examples

REPORTED = 4096
"""Examples of a file that are read at a time."""


class TrainingLog(Protocol):
    """A training log, which can be read repeatedly: the same decisions, in the same order."""

    def blocks(
        self,
        rule: RewardRule,
        selection: Selection = EVERYTHING,
        on_progress: ProgressCallback | None = None,
        *,
        contexts: bool = False,
    ) -> Iterator[tuple[Decisions, Iterable[Example]]]:
        """Yield the decisions in order, thousands at a time, labels included.

        Args:
            rule: The rule of their rewards.
            selection: Where to begin, and which columns of features to read; all decisions become rows.
            on_progress: Called with the progress.
            contexts: Whether the examples of the decisions are read too.

        Yields:
            Decisions as columns, and their examples, which can be read once; empty without `contexts`.
        """
        ...

    @property
    def settled(self) -> Settled:
        """The settled part of the log; for a file only its time counts, positions do not."""
        ...

    def sample(
        self, rule: RewardRule, selection: Selection, on_progress: ProgressCallback
    ) -> Iterator[Decisions]:
        """Yield selected decisions with all that is on record of their draws, as an audit reads them.

        Of more than `log_columns.CHECKED` draws, those in the stretches of `spread_stretches`.

        Args:
            rule: The rule of their rewards.
            selection: Which decisions are read; where it begins has no effect.
            on_progress: Called with the progress.
        """
        ...

    def remarks(self, rule: RewardRule) -> list[str]:
        """Return remarks on the rewards under a rule; a sentence each."""
        ...


class LogSource(TrainingLog):
    """The training log of a rule in a database, up to its end at the first access.

    Args:
        store: The log, which may be written meanwhile.
        rule: Names the training log; `blocks` may be given another rule with the same join.
    """

    def __init__(self, store: Store, rule: RewardRule) -> None:
        self._store = store
        self._rule = rule
        self._join = rule.join

    @override
    def blocks(
        self,
        rule: RewardRule,
        selection: Selection = EVERYTHING,
        on_progress: ProgressCallback | None = None,
        *,
        contexts: bool = False,
    ) -> Iterator[tuple[Decisions, Iterable[Example]]]:
        """Raises LogGapError; ValueError for a rule with another join."""
        if rule.join != self._join:
            raise ValueError(
                "this rule joins feedback differently; only prices, weights and ranges may differ"
            )
        for after in range(selection.after, self._upto, log_columns.CHUNK):
            last = min(after + log_columns.CHUNK, self._upto)
            decisions = log_columns.read_learned(self._store, rule, selection, after, last)
            yield decisions, (read_examples(self._store, self._join, after, last) if contexts else ())
            if on_progress:
                on_progress("reading the log", last, self._upto)

    @override
    def sample(
        self, rule: RewardRule, selection: Selection, on_progress: ProgressCallback
    ) -> Iterator[Decisions]:
        window = selection.since, selection.until
        parts = log_columns.read_decisions(
            self._store, rule, *window, audited=True, sampled=selection, on_progress=on_progress
        )
        return (part.where(part.match(selection)) for part in parts)

    @override
    def remarks(self, rule: RewardRule) -> list[str]:
        return []

    @property
    @override
    def settled(self) -> Settled:
        """The settled part at the first access."""
        return self._ends[1]

    @property
    def _upto(self) -> int:
        return self._ends[0]

    @cached_property
    def _ends(self) -> tuple[int, Settled]:
        with self._store.reading() as connection:
            settled_part = find_settled(connection, self._rule, counted=True)
            return log_columns.read_length(connection, self._join), settled_part


class ExportSource(TrainingLog):
    """A file that `armwise log export` wrote; `armwise import` converts other layouts into one.

    Attributes:
        outside: The values outside their ranges that the last `sample` read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.outside: OutsideValues | None = None

    def applicable_rule(self, configured: RewardRule) -> RewardRule:
        """Return the configured rule, or the rule of the file if none of its metrics is configured.

        Raises:
            ExchangeError: The file cannot be read.
        """
        rules = {header.reward.model_dump_json(): header.reward for header in self.headers}
        metrics = {name for rule in rules.values() for name in rule.metrics}
        if len(rules) > 1 or not metrics or metrics & configured.metrics.keys():
            return configured
        return self.headers[0].reward

    @override
    def blocks(
        self,
        rule: RewardRule,
        selection: Selection = EVERYTHING,
        on_progress: ProgressCallback | None = None,
        *,
        contexts: bool = False,
    ) -> Iterator[tuple[Decisions, Iterable[Example]]]:
        """Raises ExchangeError, such as if the rule declares no metric of the file."""
        metrics = {name: metric for header in self.headers for name, metric in header.reward.metrics.items()}
        if metrics and rule.default is None and not metrics.keys() & rule.metrics.keys():
            document = {
                name: metric.model_dump(mode="json", exclude_defaults=True)
                for name, metric in metrics.items()
            }
            raise ExchangeError(
                f"{self._path} has the metrics {', '.join(metrics)}, but none of them is configured; "
                f"declare them under reward: {json.dumps({'metrics': document})}"
            )
        rest, done = (one for one in read_export(self._path) if one.seq > selection.after), 0
        while chunk := list(islice(rest, REPORTED)):
            done += len(chunk)
            for decisions in tabulate(chunk, rule, selection):
                yield decisions, chunk if contexts else ()
            if on_progress:
                on_progress("reading the export", done, None)

    @override
    def sample(
        self, rule: RewardRule, selection: Selection, on_progress: ProgressCallback
    ) -> Iterator[Decisions]:
        selection, done = replace(selection, after=0), 0
        stretches, wanted = None, np.ones(count_lines(self._path) + 1, dtype=np.bool_)
        if len(wanted) > log_columns.CHECKED:
            stretches = log_columns.spread_stretches(self._find_draws(selection))
        if stretches is not None:
            wanted[:] = False
            for first, last in stretches:
                wanted[first : last + 1] = True
        self.outside, is_wanted = OutsideValues(rule), wanted.tolist().__getitem__
        lines = number_export(self._path, is_wanted)
        examples = self.outside.watch(one for number, one in lines if is_wanted(number))
        for part in tabulate(examples, rule, selection, self.settled.before):
            yield part.where(part.match(selection))
            done += len(part)
            on_progress("decisions", done, None)

    def _find_draws(self, selection: Selection) -> Integers:
        """Return the numbers of the lines of the selected draws."""

        def is_draw(made: Decision) -> bool:
            return made.mode == Mode.EXPLORE and made.policy != LABELS and selection.has(made)

        numbers = find_examples(self._path, is_draw, plainly=selection == EVERYTHING)
        return np.fromiter(numbers, dtype=np.int64)

    @property
    @override
    def settled(self) -> Settled:
        """Raises ExchangeError."""
        return Settled(min(inf if header.settled is None else header.settled for header in self.headers))

    @override
    def remarks(self, rule: RewardRule) -> list[str]:
        return [remark for header in self.headers for remark in differences(header.reward, rule)]

    @cached_property
    def headers(self) -> list[Header]:
        """Headers of all exports in the file. Raises ExchangeError."""
        return list(read_headers(self._path))


class OutsideValues:
    """Counts decisions with a value outside the range of its metric, which counts as the nearer end.

    Sums are left out, since they may lie outside.

    Attributes:
        n: Number of such decisions.
        rated: Number of decisions with feedback.
    """

    def __init__(self, rule: RewardRule) -> None:
        self.n, self.rated, self._example = 0, 0, ""
        self._ranges = {
            name: metric.range
            for name, metric in rule.metrics.items()
            if metric.aggregation is not Aggregation.SUM
        }

    def watch(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yield examples, and count them."""
        for one in examples:
            self.rated += bool(one.metrics)
            for name, value in one.metrics.items():
                low, high = self._ranges.get(name, (value, value))
                if not low <= value <= high:
                    self.n += 1
                    self._example = self._example or f"{value:g} for {name}, in [{low:g}, {high:g}]"
                    break
            yield one

    @property
    def remark(self) -> str:
        """What was found, with the remedy, in two sentences; empty: nothing was."""
        if not self.n:
            return ""
        return (
            f"{self.n:,} of {self.rated:,} ratings are outside the range of their metric, such as "
            f"{self._example}, and count as the nearer end. Declare the range that your ratings have, and "
            "export or import the log again."
        )


def differences(theirs: RewardRule, ours: RewardRule) -> Iterator[str]:
    """Yield how the metrics of a rule differ from those of a file.

    >>> from armwise.feedback.reward import Metric
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
