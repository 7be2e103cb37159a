"""Notice that the world has changed: detectors over the training log.

    reward of <arm>           what it earned, less what is due to the questions that it was shown
    length of questions       in words, up to `LONGEST`
    unknown features          share of a question's features that the first questions did not have
    likeness of embeddings    to the mean of the first questions, about a cosine

A policy that learns shows an arm other questions than before, so what the arm earns changes although the
world does not. What such questions are worth is therefore learned, and taken off.

All begins anew every `BLOCK` examples. So what is noticed follows from the training log alone, wherever a
reader stopped, and who takes it up reads one block again at most. Labels are passed over: no traffic.
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
"""Examples after which all begins anew."""

WARM = 200
"""Rewards that teach what to expect of an arm before it is watched."""

REFERENCE = 500
"""Questions that later ones are compared with."""

LONGEST = 32
"""Words from which on a question counts as simply long."""

LEVELLED = 0.02
"""Rate at which the level of an arm is followed, apart from what its features tell."""

SMALL = 1e-9
"""Squared length below which features are not scaled up."""

NAMES = 10_000
"""Features by name that the reward of an arm is predicted from, first come; bounds what is kept."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something is not what it was.

    Attributes:
        subject: What it is, such as `reward of bm25`.
        before: What it would have been lately, had nothing changed.
        after: What it was, the mean of the last `RECENT` values.
        example_seq: Position of the training log at which it was noticed.
    """

    subject: str
    before: float
    after: float
    example_seq: int


class Monitor:
    """Follow a training log from the start of a block on, each example once and in order.

    Args:
        spec: Which detector.
        rule: How rewards are made; detectors expect values that span about 1.
    """

    def __init__(self, spec: DriftSpec, rule: RewardRule) -> None:
        self._spec = spec
        self._span = span(rule)
        self._block = -1
        self._arms: dict[str, _Arm] = {}
        self._questions = _Questions(spec)

    def see(self, example: Example, reward: float) -> list[Change]:
        """Take in the next example and return what has changed by it, mostly nothing."""
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
        found = [(f"reward of {name}", *told)] if (told := arm.see(context, name, reward)) else []
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
    """What an arm earns, less what the features of a question are worth, as its rewards have taught.

    Least mean squares, normalised by the length of the features; the rate of a feature falls as one by
    how often it was there. A level beside them follows fast, and is not subtracted: so what happens to the
    arm as a whole is not learned away before it is noticed.

    Source: Widrow, Hoff 1960, Adaptive switching circuits.
    """

    __slots__ = ("_dense", "_level", "_span", "_squares", "_stream", "_taught", "_usual", "_weights")

    def __init__(self, spec: DriftSpec, span: float) -> None:
        self._stream, self._span = Stream(spec, span), span
        self._taught, self._level = 0, 0.0
        self._usual: Mapping[str, float] | None = None  # what was told of the arm at first
        self._weights: dict[str, float] = {}
        self._squares: dict[str, float] = {}  # 1 plus those that a feature had
        self._dense = np.zeros((2, 0))  # weights and squares of the embedding, shape (2, dim)

    def see(self, context: Context, name: str, reward: float) -> tuple[float, float] | None:
        """Take in a reward of the arm of this name; return how it would have been and is, if that changed."""
        expected = self._teach(self._named(context, name), context.embedding, reward)
        if self._taught <= WARM:
            return None
        # a caller's feature of a size that was never seen may be thought to be worth anything
        return self._stream.see(reward, min(self._span, max(-self._span, expected)))

    def _teach(self, named: Mapping[str, float], embedding: tuple[float, ...], reward: float) -> float:
        """Learn a reward, and return what the features were thought to be worth."""
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
        self._taught += 1
        self._level += error * max(1.0 / self._taught, LEVELLED)
        step = error / max(norm, SMALL)
        for key, value in named.items():
            seen = squares[key] = squares[key] + value * value
            weights[key] += step * value / seen
        if embedding:
            self._dense[1] += x * x
            self._dense[0] += step * x / self._dense[1]
        return expected

    def _named(self, context: Context, name: str) -> Mapping[str, float]:
        """Return the features by name, of the question and of the arm, all of which have a weight."""
        named, own, weights = context.features, context.arms.get(name, {}), self._weights
        if self._usual is None:
            self._usual = own
        if own != self._usual:  # such as a router's score; what never changes tells nothing
            named = {**named, **own}
        if len(weights) >= NAMES:
            return {key: value for key, value in named.items() if key in weights}
        for key in named:
            if key not in weights:
                weights[key], self._squares[key] = 0.0, 1.0
        return named


class _Questions:
    """What is asked, beside the first `REFERENCE` questions."""

    def __init__(self, spec: DriftSpec) -> None:
        self._names: set[str] = set()
        self._vectors: list[tuple[float, ...]] = []
        self._direction = np.zeros(0)
        self._length = Stream(spec, float(LONGEST))
        self._unknown = Stream(spec, 1.0)
        self._likeness = Stream(spec, 1.0)

    def see(self, context: Context) -> list[tuple[str, float, float]]:
        """Take in a question; return what has changed, how it was, and how it is."""
        features, embedding = context.features, context.embedding
        if len(self._vectors) < REFERENCE:
            self._names.update(features)
            self._vectors.append(embedding)
            if len(self._vectors) == REFERENCE:
                self._direction = _direction(self._vectors)
            return []
        words = min(context.question.count(" ") + 1, LONGEST)
        told = {"length of questions": self._length.see(words)}
        if features:
            known = sum(map(self._names.__contains__, features))
            told["unknown features"] = self._unknown.see(1.0 - known / len(features))
        if embedding and len(embedding) == len(self._direction):
            likeness = float(self._direction @ np.array(embedding))
            told["likeness of embeddings"] = self._likeness.see(likeness)
        return [(subject, *change) for subject, change in told.items() if change is not None]


def _direction(vectors: Sequence[tuple[float, ...]]) -> NDArray[np.float64]:
    """Return the mean of vectors, so long that a product with one of them is about a cosine, shape (dim,).

    Those that are not as long as the last one were made by another configuration, and do not count.

    >>> _direction([(3.0,), (0.0, 2.0), (0.0, 4.0)]).round(3).tolist()
    [0.0, 0.333]
    """
    same = np.array([vector for vector in vectors if len(vector) == len(vectors[-1])])
    mean = same.mean(axis=0)
    scale = np.linalg.norm(mean) * np.linalg.norm(same, axis=1).mean()
    return np.asarray(mean / scale if scale else mean)
