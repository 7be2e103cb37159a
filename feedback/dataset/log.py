"""The decisions of a training log that can be evaluated, as arrays.

Decisions    columns of decisions (`feedback.decisions`), such as the blocks of a `feedback.sources`
LogFilter    keeps the rows that can be evaluated, and counts the others by reason
Log          the kept rows; `Log.from_decisions(batches)` is all three
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from armwise.feedback.decisions import EVERYTHING, Decisions, DrawKey, Selection, encode, format_time
from armwise.feedback.events import ESTIMATED, LABELS, Mode

# -- what can be evaluated -------------------------------------------------------------------------


OUTSIDE = "outside the window"

UNSETTLED = "may still get feedback"

OTHER_VERSION = "another version"

OTHER_FEATURES = "other features"

OTHER_PROJECT = "another project"

NO_DISTRIBUTION = "no distribution"

NO_PROPENSITY = "no propensity on record"

NOT_ELIGIBLE = "drawn arm not in the distribution"

IMPOSSIBLE = "propensity not in (0, 1]"

DISAGREES = "propensity differs from the distribution"

FAILED = "failed"

NO_REWARD = "no reward"

UNREADABLE = "cannot be read"

_SAME = 1e-9
"""Largest difference of a propensity from the entry of its distribution."""


CLUSTERS = {"question": "questions", "episode": "episodes", "user": "users"}
"""Kinds of clusters, whose rows are one observation: the attribute of `Log` with their codes, by name."""


class EmptyLogError(ValueError):
    """No decision can be evaluated; the message names the selection and the contents of the log."""


class LogFilter:
    """Collects the rows that can be evaluated, in order, and counts the others by their first reason.

    Args:
        selection: Which decisions are selected.
        settled: Time before which rewards are final, seconds since the epoch; later decisions are left out.
        clusters: Names out of `CLUSTERS`, `question` among them: which codes the log has.

    Attributes:
        column: The column of each arm so far.
    """

    def __init__(
        self, selection: Selection, settled: float = np.inf, clusters: Collection[str] = tuple(CLUSTERS)
    ) -> None:
        self._selection, self._settled = selection, settled
        self._clusters = [CLUSTERS[what] for what in clusters]
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
        place = batch.place()
        alone = (batch.n_p == 1) & (batch.width > 1) & (place == 0)
        kept = np.ones(len(batch), dtype=np.bool_)
        none = (batch.n_p == 0) & np.isnan(batch.propensity)
        for reason, out in _reasons(batch, self._selection, self._settled, place, alone, none):
            if n := int((out & kept).sum()):
                self._excluded[reason] += n
                kept &= ~out
        rows = np.flatnonzero(kept)
        draws, first = np.unique(batch.draw.codes[rows], return_index=True)
        for code in draws[np.argsort(first)]:
            for name in batch.draw.values[code].arms:
                self.column.setdefault(name, len(self.column))
        places = np.where(none, 0, batch.start + place)[rows]
        p = batch.p[places] if len(batch.p) else np.zeros(len(rows))
        part = _part(self.column, batch, rows, np.where(none[rows], np.nan, p), self._clusters)
        self._p.append(_distributions(batch, rows, part, self.column))
        for name, values in part.items():
            self._columns[name].append(values)
        return batch.seq[rows]

    def take(self, readable: Flags | None = None) -> "tuple[Log, Flags]":
        """Return the log of the rows that were kept, and which of them are in it; the filter is empty then.

        Rows that lack a propensity are left out if others have one. If all lack it, they become a log
        without propensities, on which only predictions of rewards can be averaged.

        Args:
            readable: Whether each row that was kept could be read, shape (n_kept,); None: all could.

        Raises:
            EmptyLogError: All rows were left out.
        """
        column = {name: values.take() for name, values in self._columns.items()}
        propensity = column.get("propensity", np.zeros(0))
        kept = np.ones(len(propensity), dtype=np.bool_) if readable is None else readable.astype(np.bool_)
        unknown = kept & np.isnan(propensity)
        if 0 < (n := int(unknown.sum())) < int(kept.sum()):
            self._excluded[NO_PROPENSITY] += n
        else:
            unknown &= False
        if readable is not None and not readable.all():
            self._excluded[UNREADABLE] += int((~readable).sum())
        kept = kept & ~unknown
        if not kept.any():
            raise EmptyLogError(self._nothing(self._sort_excluded()))
        p_log = select_rows(self._p.read(len(self.column)), kept)
        if not kept.all():
            column = {name: values[kept] for name, values in column.items()}
        for name in self._clusters:
            column[name] = encode(column[name])
        estimated = int(column.pop("estimated").sum())
        given: dict[str, Any] = {**column, "excluded": self._sort_excluded(), "estimated": estimated}
        return Log(tuple(self.column), p_log=p_log, **given), kept

    def _sort_excluded(self) -> dict[str, int]:
        return dict(sorted((+self._excluded).items(), key=lambda item: (-item[1], item[0])))

    def _nothing(self, excluded: Mapping[str, int]) -> str:
        if not self._seen:
            return f"the training log is empty: nothing to evaluate (selected: {self._selection})"
        times = f" from {format_time(self._first)} to {format_time(self._last)}" if self._last > 0.0 else ""
        return (
            f"no decision can be evaluated (selected: {self._selection}): the training log has "
            f"{self._seen:,}{times}; left out: "
            + ", ".join(f"{n:,} {reason}" for reason, n in excluded.items())
        )


def _part(
    columns: Mapping[str, int],
    batch: Decisions,
    rows: Integers,
    propensity: Floats,
    clusters: Sequence[str],
) -> dict[str, NDArray[np.generic]]:
    """Return some rows of a batch as columns of a log."""
    column = np.array([columns.get(key.drawn, -1) for key in batch.draw.values], dtype=np.int32)
    codes = {"questions": batch.question, "episodes": batch.episode, "users": batch.user}
    return {
        **{name: codes[name][rows] for name in clusters},
        "drawn": column[batch.draw.codes[rows]],
        "propensity": propensity,
        "reward": batch.reward[rows],
        "seq": batch.seq[rows],
        "at": batch.at[rows],
        "version": batch.version[rows].astype(np.int32),
        "whole": batch.whole[rows],
        "estimated": batch.draw.each(_is_estimated)[rows],
    }


def _distributions(
    batch: Decisions, rows: Integers, part: Mapping[str, NDArray[Any]], columns: Mapping[str, int]
) -> Floats:
    """Return the distribution of each row, with a column for each arm, and note in `part` which are known.

    Where only the drawn arm's probability is on record, other eligible arms have NaN, or 0 if it is 1.
    """
    p = batch.distributions(rows, columns)
    alone = np.flatnonzero(~part["whole"])
    certain = alone[part["propensity"][alone] >= 1.0 - TOLERANCE]
    p[certain] = 0.0
    p[alone, part["drawn"][alone]] = part["propensity"][alone]
    part["whole"][certain] = True
    return p


def _is_estimated(draw: DrawKey) -> bool:
    return draw.policy == ESTIMATED


def _has_mode(mode: Mode, draw: DrawKey) -> bool:
    return draw.mode == mode


def _reasons(
    batch: Decisions,
    selection: Selection,
    settled: float,
    place: Integers,
    alone: Flags,
    none: Flags,
) -> Iterator[tuple[str, Flags]]:
    """Yield each reason with the rows that it excludes, by precedence."""
    yield OTHER_PROJECT, ~batch.has_id
    if selection.since is not None:
        yield OUTSIDE, batch.at < selection.since
    if selection.until is not None:
        yield OUTSIDE, batch.at >= selection.until
    if selection.versions:
        yield OTHER_VERSION, ~np.isin(batch.version, selection.versions)
    for name, value in selection.features.items():
        yield OTHER_FEATURES, batch.features[name] != value
    for mode in (Mode.GREEDY, Mode.FORCED, Mode.CONTINUED):
        yield str(mode), batch.draw.each(partial(_has_mode, mode))
    yield LABELS, batch.draw.each(lambda key: key.policy == LABELS)
    yield NO_DISTRIBUTION, ~(batch.whole | alone | none)
    yield NOT_ELIGIBLE, place < 0
    row = np.repeat(np.arange(len(batch)), batch.n_p)
    total = np.bincount(row, batch.p, minlength=len(batch))
    odd = np.bincount(row, ~(batch.p >= 0.0), minlength=len(batch)) > 0
    yield NO_DISTRIBUTION, batch.whole & (odd | ~(np.abs(total - 1.0) <= TOLERANCE))
    places = np.minimum(batch.start + np.maximum(place, 0), len(batch.p) - 1)
    p = batch.p[places] if len(batch.p) else batch.reward
    yield IMPOSSIBLE, ~none & ~((p > 0.0) & (p <= 1.0 + TOLERANCE))
    yield DISAGREES, ~none & ~(np.abs(p - batch.propensity) <= _SAME)
    yield FAILED, np.isnan(batch.reward) & batch.draw.each(lambda key: key.failed)
    yield NO_REWARD, np.isnan(batch.reward)
    yield UNSETTLED, batch.at >= settled


def _renumber(codes: Integers) -> Integers:
    """Return codes 0, 1, 2, without gaps, in the order of the old ones."""
    return np.unique(codes, return_inverse=True)[1]


# -- the log ---------------------------------------------------------------------------------------


ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the step, the amount that is done, and the total if it is known."""


@dataclass(frozen=True, eq=False)
class Log:
    """The decisions that can be evaluated, as arrays. Row i is one decision; rows are in order.

    Attributes:
        arms: Every arm that was eligible in some row.
        drawn: Column of the drawn arm, shape (n,).
        propensity: Probability with which it was drawn, shape (n,), in (0, 1]; NaN in all rows of a log
            without propensities.
        reward: Reward, shape (n,), finite.
        questions: Code of the question, shape (n,): 0, 1, 2, without gaps.
        seq: Position in the training log, shape (n,), rising.
        at: Time of the decision, seconds since the epoch, UTC, shape (n,).
        version: Version of the policy that drew it, shape (n,).
        p_log: The logged distribution, shape (n, n_arms), 0 for an arm that was not eligible, and NaN for an
            eligible one whose probability is not on record. None: only the probability of the drawn arm is
            known, and not which others were eligible.
        excluded: Number of examples that were left out, by reason.
        X: Features of each row, shape (n, d), sparse or dense, if there are any.
        estimated: Number of rows whose propensity was estimated from frequencies.
        episodes: Code of the episode, shape (n,): 0, 1, 2, without gaps; None: unknown.
        users: Code of the end user, like `episodes`.
        whole: Whether the distribution of each row is known, shape (n,); None: where there is a `p_log`.

    Raises:
        ValueError: Shapes differ, the log is empty, or a value is out of its range.
    """

    arms: tuple[str, ...]
    drawn: Integers
    propensity: Floats
    reward: Floats
    questions: Integers
    seq: Integers
    at: Floats
    version: Integers
    p_log: Floats | Matrix | None
    excluded: Mapping[str, int] = field(default_factory=dict)
    X: Any = None
    estimated: int = 0
    episodes: Integers | None = None
    users: Integers | None = None
    whole: Flags | None = None

    def __post_init__(self) -> None:
        n = len(self.reward)
        if not n:
            raise EmptyLogError(f"the log has no decision to evaluate; excluded: {dict(self.excluded)}")
        for name in ("drawn", "propensity", "reward", "questions", "seq", "at", "version"):
            if (shape := getattr(self, name).shape) != (n,):
                raise ValueError(f"{name} must have the shape ({n},) of reward, got {shape}")
        refuse("drawn", self.drawn, (self.drawn >= 0) & (self.drawn < len(self.arms)), "a column of arms")
        refuse("reward", self.reward, np.isfinite(self.reward), "finite")
        if self.has_propensities or isinstance(self.p_log, np.ndarray):
            possible = (self.propensity > 0.0) & (self.propensity <= 1.0 + TOLERANCE)
            refuse("propensity", self.propensity, possible, "in (0, 1]")
        for what, name in CLUSTERS.items():
            codes = getattr(self, name)
            if codes is None and what != "question":
                continue
            if codes.shape != (n,):
                raise ValueError(f"{name} must have the shape ({n},) of reward, got {codes.shape}")
            refuse(f"{what} code", codes, (codes >= 0) & (codes < n), f"below {n}")
            rows = np.bincount(codes)
            refuse(f"rows of a {what} code", rows, rows > 0, "above 0: codes are 0, 1, 2 and so on")
        if self.p_log is not None and self.p_log.shape != (n, len(self.arms)):
            raise ValueError(f"p_log must have the shape ({n}, {len(self.arms)}), got {self.p_log.shape}")
        if isinstance(self.p_log, np.ndarray):  # what a `LogFilter` kept was checked by it
            refuse_unless_distributions("p_log", self.p_log)
            same = np.abs(take_drawn(self.p_log, self.drawn) - self.propensity) <= TOLERANCE
            refuse("propensity", self.propensity, same, "the value of p_log for the drawn arm")

    def __len__(self) -> int:
        return len(self.reward)

    @cached_property
    def has_propensities(self) -> bool:
        """Whether propensities are known, which weights require."""
        return not bool(np.isnan(self.propensity).all())

    @cached_property
    def is_whole(self) -> bool:
        """Whether the distribution of every row is known, and with it the largest weight it could have."""
        return self.p_log is not None and (self.whole is None or bool(self.whole.all()))

    @property
    def n_questions(self) -> int:
        """Number of different questions."""
        return int(self.questions.max()) + 1

    @cached_property
    def column(self) -> Mapping[str, int]:
        """The column of each arm."""
        return {arm: j for j, arm in enumerate(self.arms)}

    def cluster(self, by: str | None) -> "Log":
        """Return the log with the clusters of another kind in the place of questions.

        Args:
            by: A name out of `CLUSTERS`; None: each row is an observation.

        Raises:
            ValueError: The name is unknown, or the log lacks the codes.

        >>> pairs = Log.from_arrays(("a",), np.array([0, 0]), np.ones(2), propensity=np.ones(2))
        >>> pairs.cluster(None).questions.tolist()
        [0, 1]
        """
        if by is None:
            return replace(self, questions=np.arange(len(self)))
        if by not in CLUSTERS:
            raise ValueError(f"unknown cluster {by!r}; available: {', '.join(CLUSTERS)}")
        codes = getattr(self, CLUSTERS[by])
        if codes is None:
            raise ValueError(f"the log does not say which rows share a {by}")
        return self if by == "question" else replace(self, questions=codes)

    def where(self, kept: Flags) -> "Log":
        """Return the log of the rows selected by `kept`, shape (n,); there must be at least one."""
        return replace(
            self,
            X=None if self.X is None else self.X[kept],
            drawn=self.drawn[kept],
            propensity=self.propensity[kept],
            reward=self.reward[kept],
            questions=_renumber(self.questions[kept]),
            episodes=None if self.episodes is None else _renumber(self.episodes[kept]),
            users=None if self.users is None else _renumber(self.users[kept]),
            seq=self.seq[kept],
            at=self.at[kept],
            version=self.version[kept],
            p_log=None if self.p_log is None else select_rows(self.p_log, kept),
            whole=None if self.whole is None else self.whole[kept],
        )

    def eligible(self, arm: str) -> Flags:
        """Return the rows in which an arm was eligible, shape (n,); all rows if that is unknown.

        Raises:
            ValueError: The log lacks the arm.
        """
        if arm not in self.column:
            raise ValueError(f"arm {arm!r} is not in the log; it has: {', '.join(self.arms)}")
        column = self.column[arm]
        return np.concatenate([self.possible(rows)[:, column] for rows in split(len(self))])

    def possible(self, rows: slice | Integers) -> Flags:
        """Return whether an arm could be drawn in some rows, shape (n_rows, n_arms).

        Where that is unknown, every arm could. A drawn arm of probability 1 says that the others had 0.
        """
        if self.p_log is not None:
            return np.asarray(~(self.p_log[rows] <= 0.0))
        certain = self.propensity[rows, np.newaxis] >= 1.0 - TOLERANCE
        return np.asarray(~certain | (self.drawn[rows, np.newaxis] == np.arange(len(self.arms))))

    def reach(self, p_target: Floats | Matrix) -> Floats:
        """Return the largest weight that each row could have had under a target, shape (n,).

        If only the propensity of the drawn arm is known, other eligible arms are assumed to be as likely: a
        guess for hedging rather than a bound. Without propensities, weights are 0.

        Args:
            p_target: The distribution of the target, shape (n, n_arms).

        >>> log = Log.from_arrays(("bm25", "dense"), np.array([0]), np.ones(1), p_log=np.array([[0.8, 0.2]]))
        >>> log.reach(np.array([[0.5, 0.5]])).tolist()
        [2.5]
        """
        if not self.has_propensities:
            return np.zeros(len(self))
        # A propensity may differ from p_log by a rounding error, and with it the drawn arm's weight.
        reach: Floats = take_drawn(p_target, self.drawn) / self.propensity
        for here in split(len(self)):
            target, alike = p_target[here], self.propensity[here, np.newaxis]
            log = np.broadcast_to(alike, target.shape) if self.p_log is None else self.p_log[here]
            if not self.is_whole:
                log = np.where(np.isnan(log), alike, log)
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
        questions: Integers | None = None,
        X: Any = None,  # noqa: N803 - a matrix, as in scikit-learn
        episodes: Integers | None = None,
        users: Integers | None = None,
    ) -> "Log":
        """Return a log made from arrays, such as those of a simulation.

        Args:
            arms: Names of the columns.
            drawn: Column of the drawn arm, shape (n,).
            reward: Reward, shape (n,).
            p_log: The logged distribution, shape (n, n_arms).
            propensity: Propensity of the drawn arm, shape (n,); by default taken from `p_log`.
            questions: Codes of the questions, shape (n,); None: all questions differ.
            X: Features, shape (n, d).
            episodes: Codes of the episodes, shape (n,), in the order of the rows.
            users: Codes of the end users, shape (n,).

        Raises:
            ValueError: Both `p_log` and `propensity` are missing, or `Log` refuses the arrays.
        """
        n = len(reward)
        if propensity is None:
            if p_log is None:
                raise ValueError("a log needs p_log, or the propensities of the drawn arms")
            propensity = take_drawn(p_log, drawn)
        return cls(
            arms=arms,
            drawn=drawn,
            propensity=propensity,
            reward=reward,
            questions=np.arange(n) if questions is None else questions,
            seq=np.arange(1, n + 1),
            at=np.zeros(n),
            version=np.zeros(n, dtype=np.int64),
            p_log=p_log,
            X=X,
            episodes=episodes,
            users=users,
        )

    @classmethod
    def from_decisions(
        cls,
        batches: Iterable[Decisions],
        selection: Selection = EVERYTHING,
        settled: float = np.inf,
    ) -> "Log":
        """Return a log of columns, which must include the features of the selection.

        Args:
            batches: The decisions, in order.
            selection: Which decisions are selected.
            settled: Time before which rewards are final, seconds since the epoch; later ones are left out.

        Raises:
            EmptyLogError: All decisions are left out.
        """
        rows = LogFilter(selection, settled)
        for batch in batches:
            rows.add(batch)
        return rows.take()[0]
