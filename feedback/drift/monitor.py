"""Monitor a training log for drift.

    reward of <arm>           its reward, less the part that its questions explain
    length of questions       in words, up to `LONGEST`
    unknown features          share of a question's features that the reference questions did not have
    likeness of embeddings    to the mean of the reference questions, about a cosine

A policy that learns changes which questions an arm gets, so the arm's mean reward changes without drift. The
reward that features of a question predict is therefore learned, and subtracted.

All statistics restart every `BLOCK` examples. So the detected changes depend on the training log alone, not
on where a reader stopped, and a reader that resumes reads one block again at most. Labels are skipped: they
are not traffic.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul

import numpy as np
from numpy.typing import NDArray

from feedback.drift.detectors import DriftSpec, Stream
from feedback.events import LABELS, Context, Example
from feedback.reward import RewardRule

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
"""Named features that predict the reward of an arm, the first ones seen; bounds the memory."""


@dataclass(frozen=True, slots=True)
class Change:
    """A detected change.

    Attributes:
        subject: What has changed, such as `reward of bm25`.
        before: The expected mean of the last `RECENT` values without a change.
        after: The mean of the last `RECENT` values.
        example_seq: Position of the training log at which it was detected.
    """

    subject: str
    before: float
    after: float
    example_seq: int


class Monitor:
    """Detectors over a training log that is read from the start of a block, each example once and in order.

    Args:
        spec: Settings of the detectors.
        rule: Computes rewards; their range scales the values of the detectors.
    """

    def __init__(self, spec: DriftSpec, rule: RewardRule) -> None:
        self._spec = spec
        self._span = span(rule)
        self._block = -1
        self._arms: dict[str, _Arm] = {}
        self._questions = _Questions(spec)

    def see(self, example: Example, reward: float) -> list[Change]:
        """Add the next example and return the changes that it shows."""
        decision = example.decision
        if decision.policy == LABELS:
            return []
        block = start_of(example.seq) // BLOCK
        if block != self._block:
            self._block, self._arms, self._questions = block, {}, _Questions(self._spec)
        name, context = decision.drawn, decision.context
        arm = self._arms.get(name)
        if arm is None:
            arm = self._arms[name] = _Arm(self._spec, self._span)
        found = [(f"reward of {name}", *change)] if (change := arm.see(context, name, reward)) else []
        if found:
            del self._arms[name]
        if changed := self._questions.see(context):
            found += changed
            self._questions = _Questions(self._spec)
        return [Change(*one, example.seq) for one in found]


def start_of(seq: int) -> int:
    """Return the position of the training log after which the block of a position begins.

    >>> start_of(0), start_of(1), start_of(100_000), start_of(100_001)
    (0, 0, 0, 100000)
    """
    return max(0, seq - 1) // BLOCK * BLOCK


def span(rule: RewardRule) -> float:
    """Return how far apart two rewards can be, costs aside.

    >>> from feedback.reward import Metric
    >>> span(RewardRule(metrics={"right": Metric(), "thumb": Metric(range=(-1, 1))}))
    2.0
    """
    low, high = rule.clip
    widest = max((m.range[1] - m.range[0] for m in rule.metrics.values()), default=math.inf)
    return min(high - low, widest)


class _Arm:
    """The reward of an arm, less the prediction from the features of the question.

    Normalised least mean squares; the learning rate of a feature decreases with the sum of its squares. An
    intercept with a higher rate is learned but not subtracted, so that a change of the whole arm is detected
    before the prediction adapts to it.

    Source: Widrow, Hoff 1960, Adaptive switching circuits.
    """

    __slots__ = ("_dense", "_first", "_level", "_n", "_span", "_squares", "_stream", "_weights")

    def __init__(self, spec: DriftSpec, span: float) -> None:
        self._stream, self._span = Stream(spec, span), span
        self._n, self._level = 0, 0.0
        self._first: Mapping[str, float] | None = None  # features of the arm in the first example
        self._weights: dict[str, float] = {}
        self._squares: dict[str, float] = {}  # 1 plus the sum of squares of a feature
        self._dense = np.zeros((2, 0))  # weights and squares of the embedding, shape (2, dim)

    def see(self, context: Context, name: str, reward: float) -> tuple[float, float] | None:
        """Add a reward of the arm with this name; return the expected and the actual mean if that changed."""
        expected = self._update(self._named(context, name), context.embedding, reward)
        if self._n <= WARM:
            return None
        # the prediction is unbounded for a client's feature of a new magnitude
        return self._stream.see(reward, min(self._span, max(-self._span, expected)))

    def _update(self, named: Mapping[str, float], embedding: tuple[float, ...], reward: float) -> float:
        """Learn a reward, and return the prediction from the features before."""
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
            seen = squares[key] = squares[key] + value * value
            weights[key] += step * value / seen
        if embedding:
            self._dense[1] += x * x
            self._dense[0] += step * x / self._dense[1]
        return expected

    def _named(self, context: Context, name: str) -> Mapping[str, float]:
        """Return the named features of the question and of the arm; each has a weight."""
        named, own, weights = context.features, context.arms.get(name, {}), self._weights
        if self._first is None:
            self._first = own
        if own != self._first:  # such as a router's score; constant features carry no information
            named = {**named, **own}
        if len(weights) >= NAMES:
            return {key: value for key, value in named.items() if key in weights}
        for key in named:
            if key not in weights:
                weights[key], self._squares[key] = 0.0, 1.0
        return named


class _Questions:
    """The questions, compared with the first `REFERENCE` ones."""

    def __init__(self, spec: DriftSpec) -> None:
        self._names: set[str] = set()
        self._vectors: list[tuple[float, ...]] = []
        self._direction = np.zeros(0)
        self._length = Stream(spec, float(LONGEST))
        self._unknown = Stream(spec, 1.0)
        self._likeness = Stream(spec, 1.0)

    def see(self, context: Context) -> list[tuple[str, float, float]]:
        """Add a question; return the subject, the expected and the actual mean of each change."""
        features, embedding = context.features, context.embedding
        if len(self._vectors) < REFERENCE:
            self._names.update(features)
            self._vectors.append(embedding)
            if len(self._vectors) == REFERENCE:
                self._direction = _direction(self._vectors)
            return []
        words = min(context.question.count(" ") + 1, LONGEST)
        changes = {"length of questions": self._length.see(words)}
        if features:
            known = sum(map(self._names.__contains__, features))
            changes["unknown features"] = self._unknown.see(1.0 - known / len(features))
        if embedding and len(embedding) == len(self._direction):
            likeness = float(self._direction @ np.array(embedding))
            changes["likeness of embeddings"] = self._likeness.see(likeness)
        return [(subject, *change) for subject, change in changes.items() if change is not None]


def _direction(vectors: Sequence[tuple[float, ...]]) -> NDArray[np.float64]:
    """Return the mean of vectors, scaled so that a product with one of them is about a cosine, shape (dim,).

    Vectors of another dimension than the last one's are from another configuration, and left out.

    >>> _direction([(3.0,), (0.0, 2.0), (0.0, 4.0)]).round(3).tolist()
    [0.0, 0.333]
    """
    same = np.array([vector for vector in vectors if len(vector) == len(vectors[-1])])
    mean = same.mean(axis=0)
    scale = np.linalg.norm(mean) * np.linalg.norm(same, axis=1).mean()
    return np.asarray(mean / scale if scale else mean)
