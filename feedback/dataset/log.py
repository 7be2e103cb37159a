"""The decisions of a training log that can be evaluated, as arrays.

    log = Log.from_examples(examples, rule)                from facts, one by one
    log = LogSource(store, rule).log(Selection(since=...))  from a database, in bulk

Both go through `feedback.dataset.filter`, which counts excluded decisions by reason.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from feedback.arrays import TOLERANCE, Flags, Floats, Integers, drawn_of, refuse, refuse_unless_distributions
from feedback.dataset.batches import Batch, batches_of
from feedback.dataset.filter import EmptyLogError, LogFilter
from feedback.dataset.selection import Selection
from feedback.events import Example
from feedback.reward import RewardRule

Describe = Callable[[Integers], Any]
"""Returns features of the rows at some positions of the training log, shape (n, d), sparse or dense."""


EVERYTHING = Selection()


@dataclass(frozen=True, eq=False)
class Log:
    """The decisions that can be evaluated, as arrays. Row i is one decision; rows are in order.

    Attributes:
        arms: Every arm that was eligible in some row.
        drawn: Column of the arm that was drawn, shape (n,).
        propensity: Probability with which it was drawn, shape (n,), in (0, 1].
        reward: Reward, shape (n,), finite.
        questions: Rows that ask the same have the same code, shape (n,), from 0, none left out.
        seq: Position in the training log, shape (n,), rising.
        at: When it was decided, seconds since the epoch, UTC, shape (n,).
        version: Version of the policy that it was drawn by, shape (n,).
        p_log: The logged distribution, shape (n, n_arms), 0 where an arm was not eligible; None where
            only the drawn arm's probability is known.
        excluded: Examples that were left out, by reason.
        describe: Returns the features of rows; None where there are none.

    Raises:
        ValueError: Shapes that differ, an empty log, or a value out of its range.
    """

    arms: tuple[str, ...]
    drawn: Integers
    propensity: Floats
    reward: Floats
    questions: Integers
    seq: Integers
    at: Floats
    version: Integers
    p_log: Floats | None
    excluded: Mapping[str, int] = field(default_factory=dict)
    describe: Describe | None = None

    def __post_init__(self) -> None:
        n = len(self.reward)
        if not n:
            raise EmptyLogError(f"no example can be evaluated; left out: {dict(self.excluded)}")
        for name in ("drawn", "propensity", "reward", "questions", "seq", "at", "version"):
            if (shape := getattr(self, name).shape) != (n,):
                raise ValueError(f"{name} must have the shape ({n},) of reward, got {shape}")
        refuse("drawn", self.drawn, (self.drawn >= 0) & (self.drawn < len(self.arms)), "a column of arms")
        refuse("reward", self.reward, np.isfinite(self.reward), "finite")
        possible = (self.propensity > 0.0) & (self.propensity <= 1.0 + TOLERANCE)
        refuse("propensity", self.propensity, possible, "in (0, 1]")
        refuse("question code", self.questions, (self.questions >= 0) & (self.questions < n), f"below {n}")
        rows = np.bincount(self.questions)
        refuse("rows of a question code", rows, rows > 0, "above 0: codes are 0, 1, 2 and so on")
        if self.p_log is not None:
            if self.p_log.shape != (n, len(self.arms)):
                raise ValueError(f"p_log must have the shape ({n}, {len(self.arms)}), got {self.p_log.shape}")
            refuse_unless_distributions("p_log", self.p_log)
            same = np.abs(drawn_of(self.p_log, self.drawn) - self.propensity) <= TOLERANCE
            refuse("propensity", self.propensity, same, "the value of p_log for the drawn arm")

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def n_questions(self) -> int:
        """Number of different questions."""
        return int(self.questions.max()) + 1

    @cached_property
    def column(self) -> Mapping[str, int]:
        """The column of each arm."""
        return {arm: j for j, arm in enumerate(self.arms)}

    @cached_property
    def X(self) -> Any:  # noqa: N802 - a matrix, as in scikit-learn
        """Features of each row, shape (n, d), sparse or dense; computed on first access.

        Raises:
            ValueError: The log has none.
        """
        if self.describe is None:
            raise ValueError("the log has no features: read it from a source, or give `describe`")
        return self.describe(self.seq)

    def where(self, kept: Flags) -> "Log":
        """Return the log of some rows, at least one; `kept` has shape (n,)."""
        _, questions = np.unique(self.questions[kept], return_inverse=True)
        describe = self.describe
        if "X" in self.__dict__:  # computing them again may take minutes

            def describe(seq: Integers) -> Any:
                return self.X[np.searchsorted(self.seq, seq)]

        return replace(
            self,
            describe=describe,
            drawn=self.drawn[kept],
            propensity=self.propensity[kept],
            reward=self.reward[kept],
            questions=questions,
            seq=self.seq[kept],
            at=self.at[kept],
            version=self.version[kept],
            p_log=None if self.p_log is None else self.p_log[kept],
        )

    def eligible(self, arm: str) -> Flags:
        """Return the rows in which an arm was eligible, shape (n,); all rows where that is not known.

        Raises:
            ValueError: The arm is not in the log.
        """
        if arm not in self.column:
            raise ValueError(f"arm {arm!r} is not in the log; it has: {', '.join(self.arms)}")
        if self.p_log is None:
            return np.ones(len(self), dtype=np.bool_)
        possible: Flags = self.p_log[:, self.column[arm]] > 0.0
        return possible

    def reach(self, p_target: Floats) -> Floats:
        """Return the largest weight that each row could have had under a target, shape (n,).

        Where only the propensity of the drawn arm is known, the other arms are taken to be as likely: a
        guess for hedging, not a bound.

        Args:
            p_target: The distribution of the target, shape (n, n_arms).

        >>> log = Log.from_arrays(("bm25", "dense"), np.array([0]), np.ones(1), p_log=np.array([[0.8, 0.2]]))
        >>> log.reach(np.array([[0.5, 0.5]])).tolist()
        [2.5]
        """
        # A propensity may differ from p_log by a rounding error, and with it the drawn arm's weight.
        weight = drawn_of(p_target, self.drawn) / self.propensity
        if self.p_log is None:
            ratio = p_target / self.propensity[:, np.newaxis]
        else:
            ratio = np.divide(p_target, self.p_log, out=np.zeros_like(p_target), where=self.p_log > 0.0)
        reach: Floats = np.maximum(ratio.max(axis=1), weight)
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
    ) -> "Log":
        """Return a log made from arrays, such as those of a simulation.

        Args:
            arms: Names of the columns.
            drawn: Column of the arm that was drawn, shape (n,).
            reward: Reward, shape (n,).
            p_log: The logged distribution, shape (n, n_arms).
            propensity: Propensity of the drawn arm, shape (n,); by default taken from `p_log`.
            questions: Codes of the questions, shape (n,); None where each row has its own.
            X: Features, shape (n, d).

        Raises:
            ValueError: Neither `p_log` nor `propensity`, or as `Log`.
        """
        n = len(reward)
        if propensity is None:
            if p_log is None:
                raise ValueError("a log needs p_log, or the propensity of the drawn arms")
            propensity = drawn_of(p_log, drawn)
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
            describe=None if X is None else lambda seq: X[seq - 1],
        )

    @classmethod
    def from_examples(
        cls,
        examples: Iterable[Example],
        rule: RewardRule,
        selection: Selection = EVERYTHING,
        describe: Describe | None = None,
    ) -> "Log":
        """Return a log of the examples that a policy drew from a distribution and that have a reward.

        Args:
            examples: The training log, in order.
            rule: The rule of their rewards.
            selection: Which of them are selected.
            describe: Returns their features.

        Raises:
            EmptyLogError: No example is left.
        """
        return cls.from_batches(batches_of(examples, rule, selection), selection, describe)

    @classmethod
    def from_batches(
        cls, batches: Iterable[Batch], selection: Selection = EVERYTHING, describe: Describe | None = None
    ) -> "Log":
        """Return a log of columns, which must include the features of the selection."""
        rows = LogFilter(selection)
        for batch in batches:
            rows.add(batch)
        return cls(**rows.kept(), describe=describe)
