"""The draws of a log that can be evaluated, as arrays.

Decisions     what a reader yields (`feedback.decisions`)
DrawFilter    keeps the draws that can be evaluated, and counts the others by reason
LoggedDraws   what it kept: the input of estimators and of the gate
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from armwise.feedback.arrays import (
    TOLERANCE,
    Flags,
    Floats,
    Growing,
    Integers,
    Matrix,
    Spool,
    refuse,
    refuse_unless_distributions,
    select_rows,
    split,
    take_drawn,
)
from armwise.feedback.decisions import EVERYTHING, Decisions, Selection, encode, format_time
from armwise.feedback.events import ESTIMATED, LABELS, Mode

UNSETTLED = "may still get feedback"

UNREADABLE = "cannot be read"

NO_REWARD = "no reward"

_SAME = 1e-9
"""Largest difference of a propensity from the entry of its distribution."""


class EmptyLogError(ValueError):
    """No decision can be evaluated; the message names the selection and the contents of the log."""


# -- the draws -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LoggedDraws:
    """Draws that can be evaluated, as arrays. Row i is one decision; rows are in order, and at least one.

    Attributes:
        arms: Every arm that was eligible in some row.
        drawn: Column of the drawn arm, shape (n,).
        propensity: Probability with which it was drawn, shape (n,), in (0, 1]; NaN in all rows if no
            propensity is on record.
        reward: Reward, shape (n,), finite.
        p_log: Probability of each arm, shape (n, n_arms): 0 for an arm that could not be drawn, and NaN for
            one that could be, with a probability that is not on record.
        whole: Whether the probability of every arm is on record, shape (n,).
        groups: Code of the observation that a row belongs to, such as its question, shape (n,): 0, 1, 2,
            without gaps.
        seq: Position in the training log, shape (n,), rising.
        at: Time of the decision, seconds since the epoch, UTC, shape (n,).
        n_eligible: Number of eligible arms, shape (n,), of which some may have had the probability 0.
        version: Version of the policy that drew it, shape (n,).
        excluded: Number of decisions that were left out, by reason.
        estimated: Number of rows whose propensity was estimated from frequencies.
    """

    arms: tuple[str, ...]
    drawn: Integers
    propensity: Floats
    reward: Floats
    p_log: Floats | Matrix
    whole: Flags
    groups: Integers
    seq: Integers
    at: Floats
    n_eligible: Integers
    version: Integers
    excluded: Mapping[str, int] = field(default_factory=dict)
    estimated: int = 0

    def __len__(self) -> int:
        return len(self.reward)

    @cached_property
    def has_propensities(self) -> bool:
        """Whether propensities are known, which weights require."""
        return not bool(np.isnan(self.propensity).all())

    @cached_property
    def is_whole(self) -> bool:
        """Whether the distribution of every row is known, and with it the largest weight it could have."""
        return bool(self.whole.all())

    @property
    def n_groups(self) -> int:
        """Number of observations."""
        return int(self.groups.max()) + 1

    @cached_property
    def column(self) -> Mapping[str, int]:
        """The column of each arm."""
        return {arm: j for j, arm in enumerate(self.arms)}

    def where(self, kept: Flags) -> "LoggedDraws":
        """Return the rows selected by `kept`, shape (n,), at least one."""
        names = ("drawn", "propensity", "reward", "whole", "seq", "at", "n_eligible", "version")
        return replace(
            self,
            **{name: getattr(self, name)[kept] for name in names},
            groups=np.unique(self.groups[kept], return_inverse=True)[1],
            p_log=select_rows(self.p_log, kept),
        )

    def possible(self, rows: slice | Integers) -> Flags:
        """Return whether an arm could be drawn in some rows, shape (n_rows, n_arms)."""
        return np.asarray(~(self.p_log[rows] <= 0.0))

    def reach(self, p_target: Floats | Matrix) -> Floats:
        """Return the largest weight that each row could have had under a target, shape (n,).

        An arm whose probability is not on record is assumed to be as likely as the drawn one: a guess for
        hedging rather than a bound. Without propensities, weights are 0.

        Args:
            p_target: The distribution of the target, shape (n, n_arms).

        >>> arms, p_log = ("bm25", "dense"), np.array([[0.8, 0.2]])
        >>> draws = LoggedDraws.from_arrays(arms, np.array([0]), np.ones(1), p_log=p_log)
        >>> draws.reach(np.array([[0.5, 0.5]])).tolist()
        [2.5]
        """
        if not self.has_propensities:
            return np.zeros(len(self))
        # A propensity may differ from p_log by a rounding error, and with it the drawn arm's weight.
        reach: Floats = take_drawn(p_target, self.drawn) / self.propensity
        for here in split(len(self)):
            target, log = p_target[here], self.p_log[here]
            if not self.is_whole:
                log = np.where(np.isnan(log), self.propensity[here, np.newaxis], log)
            ratio = np.divide(target, log, out=np.zeros_like(target), where=log > 0.0)
            reach[here] = np.maximum(ratio.max(axis=1), reach[here])
        return reach

    @classmethod
    def from_arrays(
        cls,
        arms: tuple[str, ...],
        drawn: Integers,
        reward: Floats,
        *,
        p_log: Floats | None = None,
        propensity: Floats | None = None,
        groups: Integers | None = None,
    ) -> "LoggedDraws":
        """Return draws from arrays, such as those of a simulation: an arm of probability 0 is not eligible.

        Args:
            arms: Names of the columns.
            drawn: Column of the drawn arm, shape (n,).
            reward: Reward, shape (n,).
            p_log: The logged distribution, shape (n, n_arms).
            propensity: Propensity of the drawn arm, shape (n,); by default taken from `p_log`.
            groups: Codes of the observations, shape (n,); None: each row is one.

        Raises:
            ValueError: Both `p_log` and `propensity` are missing, shapes differ, there is no row, or a value
                is out of its range.
        """
        n, k = len(reward), len(arms)
        if not n:
            raise EmptyLogError("there is no draw to evaluate")
        if p_log is not None and p_log.shape != (n, k):
            raise ValueError(f"p_log must have the shape ({n}, {k}), got {p_log.shape}")
        if propensity is None:
            if p_log is None:
                raise ValueError("a log needs p_log, or the propensities of the drawn arms")
            propensity = take_drawn(p_log, drawn)
        groups = np.arange(n) if groups is None else groups
        for name, column in (("drawn", drawn), ("propensity", propensity), ("groups", groups)):
            if column.shape != (n,):
                raise ValueError(f"{name} must have the shape ({n},) of reward, got {column.shape}")
        refuse("drawn", drawn, (drawn >= 0) & (drawn < k), "a column of arms")
        refuse("reward", reward, np.isfinite(reward), "finite")
        refuse("propensity", propensity, (propensity > 0.0) & (propensity <= 1.0 + TOLERANCE), "in (0, 1]")
        refuse("group", groups, (groups >= 0) & (groups < n), f"at least 0 and below {n}")
        size = np.bincount(groups)
        refuse("rows of a group", size, size > 0, "above 0: codes are 0, 1, 2 and so on")
        if p_log is None:
            p_log = np.where(propensity[:, np.newaxis] >= 1.0 - TOLERANCE, np.zeros(k), np.nan)
            p_log[np.arange(n), drawn] = propensity
        else:
            refuse_unless_distributions("p_log", p_log)
            same = np.abs(take_drawn(p_log, drawn) - propensity) <= TOLERANCE
            refuse("propensity", propensity, same, "the value of p_log for the drawn arm")
        return cls(
            *(arms, drawn, propensity, reward, p_log),
            whole=np.asarray(~np.isnan(p_log).any(axis=1)),
            groups=groups,
            seq=np.arange(1, n + 1),
            at=np.zeros(n),
            n_eligible=(~(p_log <= 0.0)).sum(axis=1),
            version=np.zeros(n, dtype=np.int64),
        )

    @classmethod
    def from_decisions(
        cls,
        batches: Iterable[Decisions],
        selection: Selection = EVERYTHING,
        settled: float = np.inf,
        group: str = "question",
    ) -> "LoggedDraws":
        """Return what a `DrawFilter` keeps of batches. Raises EmptyLogError if that is nothing."""
        rows = DrawFilter(selection, settled, group)
        for batch in batches:
            rows.add(batch)
        return rows.take()[0]


# -- what can be evaluated -------------------------------------------------------------------------


class DrawFilter:
    """Collects the draws that can be evaluated, in order, and counts other decisions by their first reason.

    Args:
        selection: Which decisions are selected; batches must have its features.
        settled: Time before which rewards are final, seconds since the epoch; later decisions are left out.
        group: What rows of an observation share: `question`, `episode` or `user`; `none`: nothing.

    Attributes:
        column: The column of each arm so far.
    """

    def __init__(self, selection: Selection, settled: float = np.inf, group: str = "question") -> None:
        self._selection, self._settled, self._group = selection, settled, group
        self._excluded: Counter[str] = Counter()
        self.column: dict[str, int] = {}
        self._columns: defaultdict[str, Growing] = defaultdict(Growing)
        self._p = Spool()
        self._first, self._last, self._seen = np.inf, -np.inf, 0

    def add(self, batch: Decisions) -> Integers:
        """Append the rows that can be evaluated, count the others, and return the positions of the former."""
        self._seen += len(batch) + batch.unreadable
        self._excluded[UNREADABLE] += batch.unreadable
        if not len(batch):
            return batch.seq
        self._first = min(self._first, float(batch.at.min()))
        self._last = max(self._last, float(batch.at.max()))
        unknown = (batch.n_p == 0) & np.isnan(batch.propensity)
        kept = np.ones(len(batch), dtype=np.bool_)
        for reason, out in self._reasons(batch, unknown):
            if n := int((out & kept).sum()):
                self._excluded[reason] += n
                kept &= ~out
        rows = np.flatnonzero(kept)
        draws, first = np.unique(batch.draw.codes[rows], return_index=True)
        for code in draws[np.argsort(first)]:
            for name in batch.draw.values[code].arms:
                self.column.setdefault(name, len(self.column))
        of_drawn = np.array([self.column.get(key.drawn, -1) for key in batch.draw.values], dtype=np.int32)
        part: dict[str, Any] = {
            "drawn": of_drawn[batch.draw.codes[rows]],
            "propensity": np.where(unknown, np.nan, _take_drawn(batch))[rows],
            "reward": batch.reward[rows],
            "seq": batch.seq[rows],
            "at": batch.at[rows],
            "n_eligible": batch.width[rows].astype(np.int32),
            "version": batch.version[rows].astype(np.int32),
            "estimated": batch.draw.each(lambda key: key.policy == ESTIMATED)[rows],
            "groups": (batch.seq if self._group == "none" else getattr(batch, self._group))[rows],
        }
        p = batch.distributions(rows, self.column)
        alone = np.flatnonzero(~batch.whole[rows])
        certain = alone[part["propensity"][alone] >= 1.0 - TOLERANCE]
        p[certain] = 0.0
        p[alone, part["drawn"][alone]] = part["propensity"][alone]
        self._p.append(p)
        part["whole"] = batch.whole[rows]
        part["whole"][certain] = True
        for name, values in part.items():
            self._columns[name].append(values)
        return batch.seq[rows]

    def _reasons(self, batch: Decisions, unknown: Flags) -> Iterator[tuple[str, Flags]]:
        """Yield each reason with the rows that it excludes, by precedence."""
        selection, place = self._selection, batch.place()
        yield "another project", ~batch.has_id
        if selection.since is not None:
            yield "outside the window", batch.at < selection.since
        if selection.until is not None:
            yield "outside the window", batch.at >= selection.until
        if selection.versions:
            yield "another version", ~np.isin(batch.version, selection.versions)
        for name, value in selection.features.items():
            yield "other features", batch.features[name] != value
        for mode in (Mode.GREEDY, Mode.FORCED, Mode.CONTINUED):
            yield str(mode), batch.draw.each(lambda key, mode=mode: key.mode == mode)  # type: ignore[misc]
        yield LABELS, batch.draw.each(lambda key: key.policy == LABELS)
        alone = (batch.n_p == 1) & (batch.width > 1) & (place == 0)
        yield "no distribution", ~(batch.whole | alone | unknown)
        yield "drawn arm not in the distribution", place < 0
        row = np.repeat(np.arange(len(batch)), batch.n_p)
        total = np.bincount(row, batch.p, minlength=len(batch))
        odd = np.bincount(row, ~(batch.p >= 0.0), minlength=len(batch)) > 0
        yield "no distribution", batch.whole & (odd | ~(np.abs(total - 1.0) <= TOLERANCE))
        p = _take_drawn(batch)
        yield "propensity not in (0, 1]", ~unknown & ~((p > 0.0) & (p <= 1.0 + TOLERANCE))
        yield "propensity differs from the distribution", ~unknown & ~(np.abs(p - batch.propensity) <= _SAME)
        yield "failed", np.isnan(batch.reward) & batch.draw.each(lambda key: key.failed)
        yield NO_REWARD, np.isnan(batch.reward)
        yield UNSETTLED, batch.at >= self._settled

    def take(self, readable: Flags | None = None) -> tuple[LoggedDraws, Flags]:
        """Return the rows that were kept, and which of those that `add` appended these are; it is empty then.

        Rows that lack a propensity are left out if others have one. If all lack it, only predictions of
        rewards can be averaged on them.

        Args:
            readable: Whether each row that was kept could be read, shape (n_kept,); None: all could.

        Raises:
            EmptyLogError: All rows were left out.
        """
        column = {name: values.take() for name, values in self._columns.items()}
        propensity = column.get("propensity", np.zeros(0))
        kept = np.ones(len(propensity), dtype=np.bool_) if readable is None else readable.astype(np.bool_)
        self._excluded[UNREADABLE] += int((~kept).sum())
        unknown = kept & np.isnan(propensity)
        if 0 < (n := int(unknown.sum())) < int(kept.sum()):
            self._excluded["no propensity on record"] += n
            kept &= ~unknown
        excluded = dict(sorted((+self._excluded).items(), key=lambda item: (-item[1], item[0])))
        if not kept.any():
            raise EmptyLogError(self._explain_nothing(excluded))
        if not kept.all():
            column = {name: values[kept] for name, values in column.items()}
        column["groups"] = encode(column["groups"])
        estimated = int(column.pop("estimated").sum())
        p_log, arms = select_rows(self._p.read(len(self.column)), kept), tuple(self.column)
        return LoggedDraws(arms, p_log=p_log, excluded=excluded, estimated=estimated, **column), kept

    def _explain_nothing(self, excluded: Mapping[str, int]) -> str:
        if not self._seen:
            return f"the training log is empty: nothing to evaluate (selected: {self._selection})"
        times = f" from {format_time(self._first)} to {format_time(self._last)}" if self._last > 0.0 else ""
        return (
            f"no decision can be evaluated (selected: {self._selection}): the training log has "
            f"{self._seen:,}{times}; left out: "
            + ", ".join(f"{n:,} {reason}" for reason, n in excluded.items())
        )


def _take_drawn(batch: Decisions) -> Floats:
    """Return the probability on record of each drawn arm, shape (n,); without meaning if there is none."""
    if not len(batch.p):
        return np.full(len(batch), np.nan)
    return batch.p[np.minimum(batch.start + np.maximum(batch.place(), 0), len(batch.p) - 1)]
