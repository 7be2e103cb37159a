"""Examples as columns, in batches of some thousand rows, for `feedback.dataset.filter`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from feedback.arrays import Flags, Floats, Integers
from feedback.dataset.rewards import priced, rewards
from feedback.dataset.selection import Selection
from feedback.events import Example
from feedback.reward import RewardRule
from feedback.texts import value_of

T = TypeVar("T")

_CHUNK = 4096
"""Examples that become columns at a time."""


@dataclass(frozen=True, slots=True)
class Categorical(Generic[T]):
    """A dictionary-encoded column.

    Attributes:
        values: The distinct values.
        codes: Index of the value of each row, shape (n,).
    """

    values: Sequence[T]
    codes: Integers

    @classmethod
    def of(cls, column: Sequence[T]) -> "Categorical[T]":
        """Encode a column, values in order of first occurrence.

        >>> Categorical.of("abba").codes.tolist()
        [0, 1, 1, 0]
        """
        values = list(dict.fromkeys(column))
        code = {value: i for i, value in enumerate(values)}
        return cls(values, np.fromiter(map(code.__getitem__, column), np.int64, len(column)))

    def each(self, of: Callable[[T], bool]) -> Flags:
        """Return a predicate of each row, shape (n,), evaluated once for each value."""
        return np.array([of(value) for value in self.values], dtype=np.bool_)[self.codes]


class DrawKey(NamedTuple):
    """What many decisions share: everything about the draw that is not a number.

    Attributes:
        mode: How the arm was chosen.
        policy: Kind of policy.
        arms: The eligible arms.
        drawn: The arm that the draw fell on.
        failed: Whether that arm failed.
    """

    mode: str
    policy: str
    arms: tuple[str, ...]
    drawn: str
    failed: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples in a row, as columns of shape (n,).

    Attributes:
        seq: Positions in the training log.
        at: When they were decided, seconds since the epoch, UTC.
        version: Versions that they were drawn by.
        draw: How each arm was drawn.
        question: A hash of the question, the same in all batches of a log.
        propensity: Probability of the arms that were drawn, as it was logged.
        p: Probabilities of the first row, then those of the second, and so on; shape (sum of n_p,).
        n_p: How many probabilities each has: one an arm, or none; a single one of several arms is that
            of the first arm, where no more is known.
        reward: Their rewards; NaN where not known.
        features: Values of the named features that are selected by; 0 for one that a context lacks.
    """

    seq: Integers
    at: Floats
    version: Integers
    draw: Categorical[DrawKey]
    question: Integers
    propensity: Floats
    p: Floats
    n_p: Integers
    reward: Floats
    features: Mapping[str, Floats]


def batches_of(examples: Iterable[Example], rule: RewardRule, selection: Selection) -> Iterator[Batch]:
    """Yield examples as columns, some thousands at a time."""
    rest = iter(examples)
    parts = priced(rule.cost)
    while chunk := list(islice(rest, _CHUNK)):
        decisions = [example.decision for example in chunk]
        yield Batch(
            seq=np.array([example.seq for example in chunk]),
            at=np.array([d.decided_at for d in decisions], dtype=np.float64),
            version=np.array([d.version for d in decisions]),
            draw=Categorical.of(
                [
                    DrawKey(str(d.mode), d.policy, d.arms, d.drawn, x.failed)
                    for x, d in zip(chunk, decisions, strict=True)
                ]
            ),
            question=np.array([hash(d.id if d.erased else d.context.question) for d in decisions]),
            propensity=np.array([_propensity(d.arms, d.probabilities, d.drawn) for d in decisions]),
            p=np.fromiter(chain.from_iterable(d.probabilities for d in decisions), dtype=np.float64),
            n_p=np.array([len(d.probabilities) for d in decisions]),
            reward=rewards(
                rule,
                {name: _column(x.metrics.get(name, np.nan) for x in chunk) for name in rule.metrics},
                {name: _column(getattr(x.cost, name) for x in chunk) for name in parts},
                np.array([d.cost_weight for d in decisions], dtype=np.float64),
                np.array([x.failed for x in chunk], dtype=np.bool_),
            ),
            features={
                name: _column(value_of(d.context.features, name, 0.0) for d in decisions)
                for name in selection.features
            },
        )


def _column(values: Iterable[float]) -> Floats:
    return np.fromiter(values, np.float64)


def _propensity(arms: tuple[str, ...], p: tuple[float, ...], drawn: str) -> float:
    """Return the probability of the drawn arm; NaN where there is none."""
    return dict(zip(arms, p, strict=False)).get(drawn, np.nan)
