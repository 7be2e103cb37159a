"""Monitor a training log for drift.

    reward of <arm>           the reward, minus the part that its questions explain
    length of questions       in words, up to `LONGEST`
    unknown features          share of a question's features that the reference questions lack
    likeness of embeddings    to the mean of the reference questions, about a cosine

A policy that learns changes which questions an arm gets, so the arm's mean reward changes even without drift.
The reward that features of a question predict is therefore learned, and subtracted.

All statistics restart every `BLOCK` examples. So the detected changes are a function of the training log,
wherever a reader stopped, and a reader that resumes reads at most one block again. Labels, which are not
traffic, are skipped. The detectors are those of river.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from statistics import fmean
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from armwise.feedback.events import LABELS, Context, Example
from armwise.feedback.reward import RewardRule, read_seconds
from armwise.feedback.texts import by_pseudonym
from armwise.number import Number

if TYPE_CHECKING:
    from river.base import DriftDetector

RECENT = 32
"""Values whose mean is reported as the value after a change."""


DELTA = 0.01
"""Bound on the probability of a false alarm in one check; the measured rate is far below."""

CLOCK = 8
"""Number of values between two checks."""

GRACE = 32
"""Number of values before the first check."""


def build_detector() -> "DriftDetector":
    """Return a detector that has seen nothing.

    ADWIN has a window that grows while its values agree, and is cut where the means of two parts differ.
    """
    from river import drift

    adwin: DriftDetector = drift.ADWIN(  # type: ignore[no-untyped-call]  # this class of river has no types
        delta=DELTA, clock=CLOCK, grace_period=GRACE
    )
    return adwin


class DriftSpec(BaseModel):
    """How a drift alarm raises exploration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exploration: Number = Field(
        default=0.15,
        gt=0,
        lt=1,
        description="Share of the traffic that is spread evenly over all eligible arms after an alarm.",
    )
    floor: Number | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Minimum probability of each eligible arm after an alarm, instead of `exploration`.",
    )
    raised_for: str = Field(default="PT1H", description="How long an alarm raises exploration.")

    @model_validator(mode="after")
    def _sound(self) -> "DriftSpec":
        if self.raised_s <= 0:
            raise ValueError(f"raised_for {self.raised_for!r} must be longer than zero")
        return self

    @property
    def raised_s(self) -> float:
        """Seconds for which an alarm raises exploration."""
        return read_seconds(self.raised_for, "raised_for", "PT1H")


class MonitoredSeries:
    """A detector over the differences between the values of a series and their expectations.

    It is built with the first value: river takes a second and 80 MiB to load.

    Args:
        span: Scales the differences.
        possible: Smallest and largest possible value, to which an expected mean is cut.
    """

    __slots__ = ("_detector", "_n", "_possible", "_recent", "_span", "_total")

    def __init__(self, span: float, possible: tuple[float, float] = (-math.inf, math.inf)) -> None:
        self._detector = cast("DriftDetector | None", None)
        self._span, self._possible = span, possible
        self._n, self._total = 0, 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)

    def see(self, value: float, expected: float = 0.0) -> tuple[float, float] | None:
        """Add the next value; return the expected and the actual recent mean if that has changed."""
        residual = value - expected
        self._n += 1
        self._total += residual
        self._recent.append((value, residual))
        if self._detector is None:
            self._detector = build_detector()
        self._detector.update(residual / self._span)
        if not self._detector.drift_detected:
            return None
        after, recent_residual = (fmean(column) for column in zip(*self._recent, strict=True))
        k = len(self._recent)
        earlier_residual = (self._total - k * recent_residual) / max(1, self._n - k)
        (least, most), before = self._possible, after - recent_residual + earlier_residual
        return min(most, max(least, before)), after


# -- the monitor -----------------------------------------------------------------------------------


BLOCK = 100_000
"""Examples after which all statistics restart."""

WARM = 200
"""Rewards of an arm that train its prediction before it is monitored."""

REFERENCE = 500
"""Questions that later ones are compared with."""

LONGEST = 32
"""Length in words at which the length of a question is clipped."""

LEVELLED = 0.02
"""Learning rate of the mean reward of an arm, apart from its features."""

SMALL = 1e-9
"""Squared norm of the features below which they are not normalised."""

NAMES = 10_000
"""Largest number of named features that predict the reward of an arm, the first seen; bounds the memory."""


@dataclass(frozen=True, slots=True)
class Change:
    """A detected change.

    Attributes:
        subject: What has changed, such as `reward of bm25`.
        before: The expected mean of the last `RECENT` values had nothing changed.
        after: The mean of the last `RECENT` values.
        example_seq: Position of the training log at which it was detected.
    """

    subject: str
    before: float
    after: float
    example_seq: int


class Monitor:
    """Detectors over a training log that is read from the start of a block, in order.

    Args:
        rule: Computes rewards; their range scales the values of the detectors.
    """

    def __init__(self, rule: RewardRule) -> None:
        self._span, self._possible = span(rule), rule.reward_range
        self._block = -1
        self._arms: dict[str, _Arm] = {}
        self._questions = _Questions()

    def see(self, example: Example, reward: float) -> list[Change]:
        """Add the next example and return the changes that it shows."""
        decision = example.decision
        if decision.policy == LABELS:
            return []
        block = find_start(example.seq) // BLOCK
        if block != self._block:
            self._block, self._arms, self._questions = block, {}, _Questions()
        name, context = decision.drawn, _by_pseudonym(decision.context, decision.drawn)
        arm = self._arms.get(name)
        if arm is None:
            arm = self._arms[name] = _Arm(self._span, self._possible)
        changes = [(f"reward of {name}", *change)] if (change := arm.see(context, name, reward)) else []
        if changes:
            del self._arms[name]
        if changed := self._questions.see(context):
            changes += changed
            self._questions = _Questions()
        return [Change(*shift, example.seq) for shift in changes]


def _by_pseudonym(context: Context, arm: str) -> Context:
    """Return a context, as far as it is of an arm, as an erasure leaves it: else that would be a change."""
    of_arm = by_pseudonym(context.arms.get(arm, {}))
    return replace(context, features=by_pseudonym(context.features), arms={arm: of_arm})


def find_start(seq: int) -> int:
    """Return the position of the training log after which the block of a position begins.

    >>> find_start(0), find_start(1), find_start(100_000), find_start(100_001)
    (0, 0, 0, 100000)
    """
    return max(0, seq - 1) // BLOCK * BLOCK


def span(rule: RewardRule) -> float:
    """Return the largest difference between two rewards, costs aside.

    >>> from armwise.feedback.reward import Metric
    >>> span(RewardRule(metrics={"right": Metric(), "thumb": Metric(range=(-1, 1))}))
    1.0
    """
    low, high = rule.reward_range
    return min(high - low, 1.0) if rule.metrics else high - low


class _Arm:
    """The reward of an arm, less the prediction from the features of the question.

    Normalised least mean squares; the learning rate of a feature decreases with the sum of its squares. An
    intercept with a higher rate is learned but not subtracted, so that a change of the whole arm is detected
    before the prediction adapts to it.

    Source: Widrow, Hoff 1960, Adaptive switching circuits.
    """

    __slots__ = ("_dense", "_first", "_level", "_n", "_span", "_squares", "_stream", "_weights")

    def __init__(self, span: float, possible: tuple[float, float]) -> None:
        self._stream, self._span = MonitoredSeries(span, possible), span
        self._n, self._level = 0, 0.0
        self._first: Mapping[str, float] | None = None  # features of the arm in the first example
        self._weights: dict[str, float] = {}
        self._squares: dict[str, float] = {}  # 1 plus the sum of squares of a feature
        self._dense = np.zeros((2, 0))  # weights and squares of the embedding, shape (2, dim)

    def see(self, context: Context, name: str, reward: float) -> tuple[float, float] | None:
        """Add a reward of the arm with this name; return the expected and the actual mean if that changed."""
        expected = self._update(self._name_features(context, name), context.embedding, reward)
        if self._n <= WARM:
            return None
        # the prediction is unbounded for a client's feature of a new magnitude
        return self._stream.see(reward, min(self._span, max(-self._span, expected)))

    def _update(self, named: Mapping[str, float], embedding: tuple[float, ...], reward: float) -> float:
        """Learn a reward, and return the prediction from before."""
        weights, squares, values = self._weights, self._squares, named.values()
        expected: float = sum(map(mul, map(weights.__getitem__, named), values))
        norm: float = sum(map(mul, values, values))
        if embedding:
            x = np.array(embedding)
            if len(x) != len(self._dense[0]):
                self._dense = np.stack([np.zeros_like(x), np.ones_like(x)])
            expected += float(self._dense[0] @ x)
            norm += float(x @ x)
        error = reward - self._level - expected
        self._n += 1
        self._level += error * max(1.0 / self._n, LEVELLED)
        step = error / max(norm, SMALL)
        for key, value in named.items():
            total = squares[key] = squares[key] + value * value
            weights[key] += step * value / total
        if embedding:
            self._dense[1] += x * x
            self._dense[0] += step * x / self._dense[1]
        return expected

    def _name_features(self, context: Context, name: str) -> Mapping[str, float]:
        """Return the named features of the question and of the arm; each has a weight."""
        named, of_arm, weights = context.features, context.arms.get(name, {}), self._weights
        if self._first is None:
            self._first = of_arm
        if of_arm != self._first:  # such as a router's score; constant features carry no information
            named = {**named, **of_arm}
        if len(weights) >= NAMES:
            return {key: value for key, value in named.items() if key in weights}
        for key in named:
            if key not in weights:
                weights[key], self._squares[key] = 0.0, 1.0
        return named


class _Questions:
    """The questions, compared with the first `REFERENCE` ones."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._vectors: list[tuple[float, ...]] = []
        self._direction = np.zeros(0)
        self._length = MonitoredSeries(float(LONGEST), (0.0, LONGEST))
        self._unknown = MonitoredSeries(1.0, (0.0, 1.0))
        self._likeness = MonitoredSeries(1.0)

    def see(self, context: Context) -> list[tuple[str, float, float]]:
        """Add a question; return the subject, the expected and the actual mean of each change."""
        features, embedding = context.features, context.embedding
        if len(self._vectors) < REFERENCE:
            self._names.update(features)
            self._vectors.append(embedding)
            if len(self._vectors) == REFERENCE:
                self._direction = _direction(self._vectors)
            return []
        changes = dict[str, tuple[float, float] | None]()
        if context.question:  # else it was erased
            words = min(context.question.count(" ") + 1, LONGEST)
            changes["length of questions"] = self._length.see(words)
        if features:
            n_known = sum(map(self._names.__contains__, features))
            changes["unknown features"] = self._unknown.see(1.0 - n_known / len(features))
        if embedding and len(embedding) == len(self._direction):
            likeness = float(self._direction @ np.array(embedding))
            changes["likeness of embeddings"] = self._likeness.see(likeness)
        return [(subject, *change) for subject, change in changes.items() if change is not None]


def _direction(vectors: Sequence[tuple[float, ...]]) -> NDArray[np.float64]:
    """Return the mean of vectors, scaled so that a product with one of them is about a cosine, shape (dim,).

    Vectors of another dimension than that of the last are from another configuration, and left out.

    >>> _direction([(3.0,), (0.0, 2.0), (0.0, 4.0)]).round(3).tolist()
    [0.0, 0.333]
    """
    same = np.array([vector for vector in vectors if len(vector) == len(vectors[-1])])
    mean = same.mean(axis=0)
    scale = np.linalg.norm(mean) * np.linalg.norm(same, axis=1).mean()
    return np.asarray(mean / scale if scale else mean)
