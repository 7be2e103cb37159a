"""Filter a training log: keep the decisions that can be evaluated, count the others by reason.

Examples come in batches of columns, from facts or from a database; `LogFilter` appends the kept rows to
arrays. Each excluded example is counted under the first reason that applies.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedback.arrays import TOLERANCE, Flags, Floats, Integers
from feedback.dataset.batches import Batch, DrawKey
from feedback.dataset.selection import Selection, shown
from feedback.events import LABELS, Mode

OUTSIDE = "outside the window"

OTHER_VERSION = "another version"

OTHER_POLICY = "another policy"

OTHER_FEATURES = "other features"

NO_DISTRIBUTION = "no distribution"

NOT_ELIGIBLE = "drawn arm not in the distribution"

IMPOSSIBLE = "propensity not in (0, 1]"

DISAGREES = "propensity not that of the distribution"

FAILED = "failed"

NO_REWARD = "no reward"

_SAME = 1e-9
"""How far a propensity may be from its distribution."""


class EmptyLogError(ValueError):
    """No decision can be evaluated; the message names the selection and the contents of the log."""


class LogFilter:
    """Collects the rows of batches that can be evaluated, in order.

    Args:
        selection: Which decisions are wanted.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._excluded: Counter[str] = Counter()
        self._column: dict[str, int] = {}
        self._parts: list[dict[str, NDArray[np.generic]]] = []
        self._whole = True  # whether every distribution that was kept is known whole
        self._first, self._last, self._seen = np.inf, -np.inf, 0

    def add(self, batch: Batch) -> None:
        """Append the rows that can be evaluated, and count the others."""
        if not len(batch.seq):
            return
        self._seen += len(batch.seq)
        self._first = min(self._first, float(batch.at.min()))
        self._last = max(self._last, float(batch.at.max()))
        draw = batch.draw
        place = np.array([_place(one) for one in draw.values])[draw.codes]
        width = np.array([len(one.arms) for one in draw.values])[draw.codes]
        alone = (batch.n_p == 1) & (width > 1) & (place == 0)
        start = np.cumsum(batch.n_p) - batch.n_p
        kept = np.ones(len(batch.seq), dtype=np.bool_)
        whole = (batch.n_p == width) & (batch.n_p > 0)
        for reason, out in _reasons(batch, self._selection, place, start, whole, alone):
            if found := int((out & kept).sum()):
                self._excluded[reason] += found
                kept &= ~out
        self._keep(batch, np.flatnonzero(kept), place, start, alone)

    def _keep(self, batch: Batch, rows: Integers, place: Integers, start: Integers, alone: Flags) -> None:
        draws, first, which = np.unique(batch.draw.codes[rows], return_index=True, return_inverse=True)
        for code in draws[np.argsort(first)]:
            for name in batch.draw.values[code].arms:
                self._column.setdefault(name, len(self._column))
        self._whole = self._whole and not alone[rows].any()
        column = np.array([self._column.get(one.drawn, -1) for one in batch.draw.values])
        part = {
            "drawn": column[batch.draw.codes[rows]],
            "propensity": batch.p[start[rows] + place[rows]],
            "reward": batch.reward[rows],
            "questions": batch.question[rows],
            "seq": batch.seq[rows],
            "at": batch.at[rows],
            "version": batch.version[rows],
        }
        if self._whole:
            p = np.zeros((len(rows), len(self._column)))
            for i, code in enumerate(draws):
                own = np.flatnonzero(which == i)
                columns = [self._column[name] for name in batch.draw.values[code].arms]
                p[own[:, np.newaxis], columns] = batch.p[
                    start[rows[own], np.newaxis] + np.arange(len(columns))
                ]
            part["p_log"] = p
        self._parts.append(part)

    def kept(self) -> dict[str, Any]:
        """Return the kept rows as arguments of `feedback.dataset.log.Log`; the filter is empty afterwards.

        Raises:
            EmptyLogError: No row was kept.
        """
        excluded = dict(sorted(self._excluded.items(), key=lambda item: (-item[1], item[0])))
        if not any(len(part["seq"]) for part in self._parts):
            raise EmptyLogError(self._nothing(excluded))
        p_log = self._distributions() if self._whole else None
        names = ("drawn", "propensity", "reward", "questions", "seq", "at", "version")
        column = {name: np.concatenate([part.pop(name) for part in self._parts]) for name in names}
        self._parts.clear()
        column["questions"] = _by_first(column["questions"])
        return {"arms": tuple(self._column), "p_log": p_log, "excluded": excluded, **column}

    def _distributions(self) -> Floats:
        """Move the distributions from the parts into one array, with a column for each arm."""
        p_log = np.zeros((sum(len(part["seq"]) for part in self._parts), len(self._column)))
        start = 0
        for part in self._parts:
            p = part.pop("p_log")
            p_log[start : start + len(p), : p.shape[1]] = p
            start += len(p)
        return p_log

    def _nothing(self, excluded: Mapping[str, int]) -> str:
        if not self._seen:
            return f"the training log is empty: nothing to evaluate (selected: {self._selection})"
        return (
            f"no decision can be evaluated (selected: {self._selection}): the training log has "
            f"{self._seen:,} from {shown(self._first)} to {shown(self._last)}; left out: "
            + ", ".join(f"{n:,} {reason}" for reason, n in excluded.items())
        )


def _has_mode(mode: Mode, draw: DrawKey) -> bool:
    return draw.mode == mode


def _place(draw: DrawKey) -> int:
    """Return the index of the drawn arm among the eligible ones; -1 where it is not."""
    return draw.arms.index(draw.drawn) if draw.drawn in draw.arms else -1


def _reasons(
    batch: Batch, selection: Selection, place: Integers, start: Integers, whole: Flags, alone: Flags
) -> Iterator[tuple[str, Flags]]:
    """Yield each reason with the rows that it excludes, by precedence."""
    if selection.since is not None:
        yield OUTSIDE, batch.at < selection.since
    if selection.until is not None:
        yield OUTSIDE, batch.at >= selection.until
    if selection.versions:
        yield OTHER_VERSION, ~np.isin(batch.version, selection.versions)
    if selection.policies:
        yield OTHER_POLICY, batch.draw.each(lambda one: one.policy not in selection.policies)
    for name, value in selection.features.items():
        yield OTHER_FEATURES, batch.features[name] != value
    for mode in (Mode.GREEDY, Mode.FORCED):
        yield str(mode), batch.draw.each(partial(_has_mode, mode))
    yield LABELS, batch.draw.each(lambda one: one.policy == LABELS)
    yield NO_DISTRIBUTION, ~(whole | alone)
    yield NOT_ELIGIBLE, place < 0
    row = np.repeat(np.arange(len(batch.seq)), batch.n_p)
    total = np.bincount(row, batch.p, minlength=len(batch.seq))
    odd = np.bincount(row, ~(batch.p >= 0.0), minlength=len(batch.seq)) > 0
    yield NO_DISTRIBUTION, ~alone & (odd | ~(np.abs(total - 1.0) <= TOLERANCE))
    p = batch.p[np.minimum(start + np.maximum(place, 0), len(batch.p) - 1)] if len(batch.p) else batch.reward
    yield IMPOSSIBLE, ~((p > 0.0) & (p <= 1.0 + TOLERANCE))
    yield DISAGREES, ~(np.abs(p - batch.propensity) <= _SAME)
    yield FAILED, np.isnan(batch.reward) & batch.draw.each(lambda one: one.failed)
    yield NO_REWARD, np.isnan(batch.reward)


def _by_first(values: Integers) -> Integers:
    """Code values by the order in which they first come, shape (n,).

    >>> _by_first(np.array([7, -2, 7, 5])).tolist()
    [0, 1, 0, 2]
    """
    _, first, code = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[code]
