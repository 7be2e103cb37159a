"""From a policy's distribution to one drawn arm: validation, the uniform floor, mixing, the draw."""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import Policy, PolicyError, ReplayStep
from armwise.feedback.events import Context

TOLERANCE = 1e-6
"""How far a distribution may be from summing to 1 before it is refused (VW's are float32)."""


def validate(probabilities: NDArray[np.float64], n_arms: int) -> NDArray[np.float64]:
    """Return the distribution as float64, normalised.

    Args:
        probabilities: From a policy.
        n_arms: Number of eligible arms.

    Returns:
        Shape (n_arms,), non-negative, summing to 1 to rounding.

    Raises:
        PolicyError: Wrong shape, not finite, negative, or not summing to 1.

    >>> validate(np.array([0.25, 0.75]), 2).tolist()
    [0.25, 0.75]
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.shape != (n_arms,):
        raise PolicyError(f"a distribution over {n_arms} arms was expected, got shape {p.shape}")
    values = p.tolist()  # for a few numbers, Python's sum is faster than numpy's
    total: float = sum(values)
    # Negated, so that a total of NaN is refused too.
    if not abs(total - 1.0) <= TOLERANCE or min(values) < 0.0:
        raise PolicyError(f"not a distribution: {values} sums to {total}")
    return p / total


def mix_floor(probabilities: NDArray[np.float64], floor: float) -> NDArray[np.float64]:
    """Mix a uniform distribution in, so that every arm has at least `floor`.

    Args:
        probabilities: Shape (n_arms,), summing to 1.
        floor: Smallest probability that an arm may get, in [0, 1 / n_arms].

    Raises:
        PolicyError: `floor` is too large for this many arms.

    >>> mix_floor(np.array([1.0, 0.0]), 0.1).round(3).tolist()
    [0.9, 0.1]
    """
    n = len(probabilities)
    if not 0.0 <= floor * n <= 1.0:
        raise PolicyError(f"floor {floor} is too large for {n} arms: at most {1 / n:.4g}")
    return (1.0 - floor * n) * probabilities + floor


SPAN = 5.0
"""Standard deviations that normal variables reach."""

GRID, OWN = np.linspace(0.0, 1.0, 97), np.array([-3.5, -2.2, -1.3, -0.6, 0.0, 0.6, 1.3, 2.2, 3.5])
"""Nodes in the range of the largest variable, and those of a variable narrower than `NARROW` of them."""

NARROW = 4.0


def best_probabilities(mean: NDArray[np.float64], deviation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return with which probability each of independent normal variables is the largest, shape (n,).

    Deterministic, and continuous in its arguments, which argmax is not. The logarithms of the distribution
    functions are taken to be linear between nodes: each variable then has a share in the increase of their
    product that is its share in the increase of their sum. The error is below 0.005, and mostly below 0.0005.
    Where no variable varies, the largest ones share it.

    Args:
        mean: Means, shape (n,).
        deviation: Standard deviations, shape (n,), not negative.

    >>> best_probabilities(np.array([0.5, 0.5, 0.0]), np.array([0.1, 0.1, 0.1])).round(3).tolist()
    [0.5, 0.5, 0.0]
    >>> best_probabilities(np.array([0.6, 0.5]), np.array([0.1, 0.0])).round(2).tolist()
    [0.84, 0.16]
    """
    if not deviation.any():
        return greedy(mean)
    from scipy.special import ndtr  # a host that never decides does without

    scale = np.maximum(deviation, TIE * max(1.0, float(np.abs(mean).max())))
    low, high = float((mean - SPAN * scale).max()), float((mean + SPAN * scale).max())
    nodes = low + (high - low) * GRID
    narrow = (scale < NARROW * (nodes[1] - low)) & (mean + SPAN * scale > low)
    if narrow.any():
        own = (mean[narrow] + OWN[:, None] * scale[narrow]).ravel()
        nodes = np.sort(np.concatenate([nodes, own]))
    below = np.log(np.maximum(ndtr((nodes - mean[:, None]) / scale[:, None]), 1e-300))
    total = below.sum(axis=0)
    product, increase = np.exp(total), total[1:] - total[:-1]  # np.diff takes five times as long
    flat = increase < TIE  # where nothing increases, the ratio is the product itself
    slope = np.where(flat, product[1:], (product[1:] - product[:-1]) / np.where(flat, 1.0, increase))
    p = (below[:, 1:] - below[:, :-1]) @ slope
    return np.asarray(p / p.sum())


@dataclass(frozen=True, slots=True)
class Exploration:
    """The share of the draws that every eligible arm gets, whatever the policy prefers.

    Attributes:
        share: Share of the draws that all eligible arms get together, in (0, 1).
        floor: Least probability of each arm instead, in (0, 1); None: the share over the number of arms.

    >>> Exploration(0.03).among(3), Exploration(0.03, 0.02).among(3), Exploration(0.03, 0.02).among(100)
    (0.01, 0.02, 0.01)
    """

    share: float
    floor: float | None = None

    def among(self, n_arms: int) -> float:
        """Return the least probability of each of `n_arms` eligible arms, at most 1 / n_arms."""
        return self.share / n_arms if self.floor is None else lower_floor(self.floor, n_arms)


KEPT_FLOOR = 0.25
"""Part of the floor that is kept however large the share of a canary is."""

TEMPERATURE = 0.1
"""Reward that shifts the odds of two arms by e, where a policy gives no scores to subtract a penalty from."""


def compute_served_distribution(
    policy: Policy,
    context: Context,
    arms: Sequence[str],
    floor: float,
    penalty: Sequence[float] = (),
) -> NDArray[np.float64]:
    """Return the distribution to draw from: the policy's with the floor mixed in, shape (n_arms,).

    Args:
        policy: Called once.
        context: Context of the question.
        arms: The eligible arms, at least one.
        floor: Smallest probability of an arm; lowered to 1 / n_arms if that is less.
        penalty: Reward that each arm loses under a budget; empty without one. If the policy predicts rewards,
            they are reduced by it; otherwise the odds of the arms are shifted.

    Raises:
        PolicyError: The policy returned no distribution over the arms.

    >>> from armwise.agent.policies.base import Fixed
    >>> compute_served_distribution(Fixed("bm25"), Context("who?"), ["none", "bm25"], 0.1).round(3).tolist()
    [0.1, 0.9]
    """
    # ten times as fast as `isinstance` with a protocol
    if penalty and (penalise := getattr(policy, "penalise", None)) is not None:
        return _apply_floor(penalise(context, arms, np.array(penalty)), len(arms), floor)
    p = _apply_floor(policy.probabilities(context, arms), len(arms), floor)
    return _apply_floor(tilt(p, np.array(penalty) / TEMPERATURE), len(arms), floor) if penalty else p


def replay(policy: Policy, steps: Sequence[ReplayStep]) -> Sequence[NDArray[np.float64] | None]:
    """Return the distribution to draw from at each step of a replay, None where a policy is not asked.

    The policy learns each step before the next one.

    Raises:
        PolicyError: The policy returned no distribution over the arms, or cannot learn from a decision.
    """
    if (in_block := getattr(policy, "replay", None)) is not None:
        active = [i for i, step in enumerate(steps) if step.arms or step.reward is not None]
        served: list[NDArray[np.float64] | None] = [None] * len(steps)
        for i, distribution in zip(active, in_block([steps[i] for i in active]), strict=True):
            served[i] = distribution
        for n_arms in {len(step.arms) for step in steps if step.arms}:
            rows = [i for i, step in enumerate(steps) if len(step.arms) == n_arms]
            p, floors = np.array([served[i] for i in rows]), np.array([steps[i].floor for i in rows])
            total, least = p.sum(axis=1), np.minimum(floors, 1.0 / n_arms)[:, None]
            if p.shape[1:] != (n_arms,) or not (p.min() >= 0.0 and np.abs(total - 1.0).max() <= TOLERANCE):
                p = np.array([validate(row, n_arms) for row in p])
            for i, row in zip(rows, (1.0 - least * n_arms) * (p / total[:, None]) + least, strict=True):
                served[i] = row
        return served
    learn: Any = policy.learn
    learns_costs, found = getattr(policy, "learns_costs", False), []
    for decision, arms, floor, penalty, reward, cost in steps:
        context = decision.context
        found.append(compute_served_distribution(policy, context, arms, floor, penalty) if arms else None)
        if reward is not None:
            learn(decision, reward, *((cost,) if learns_costs else ()))
    return found


def tilt(probabilities: NDArray[np.float64], penalty: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply each probability by exp(-penalty), and normalise.

    Of all distributions with the mean penalty of the result, it is the nearest to `probabilities` in
    Kullback-Leibler divergence.

    Args:
        probabilities: Shape (n_arms,), summing to 1.
        penalty: By which the logarithm of each is reduced, shape (n_arms,).

    >>> tilt(np.array([0.5, 0.5]), np.array([0.0, np.log(3.0)])).round(3).tolist()
    [0.75, 0.25]
    """
    weights = probabilities * np.exp(penalty.min() - penalty)
    return np.asarray(weights / weights.sum())


def _apply_floor(probabilities: NDArray[np.float64], n_arms: int, floor: float) -> NDArray[np.float64]:
    return mix_floor(validate(probabilities, n_arms), lower_floor(floor, n_arms))


def mix_canary(
    live: NDArray[np.float64], candidate: NDArray[np.float64], share: float
) -> NDArray[np.float64]:
    """Return the distribution to draw from while a canary takes a share of the traffic, shape (n_arms,).

    An arm that has at least the floor in both has it in the mixture.

    Args:
        live: Distribution of the live policy, shape (n_arms,).
        candidate: Distribution of the canary over the same arms, shape (n_arms,).
        share: The canary's share, in [0, 1].

    >>> mix_canary(np.array([0.9, 0.1]), np.array([0.1, 0.9]), 0.25).round(3).tolist()
    [0.7, 0.3]
    """
    return (1.0 - share) * live + share * candidate


def count_share(floor: float, n_arms: int, share: float) -> float:
    """Return the floor where a canary has a share of the traffic, which counts as exploration.

    Its draws decide whether it is promoted, and those of the floor hardly do: they make way for it, but for a
    part that lets other policies be evaluated as well.

    >>> count_share(0.02, 4, 0.04), count_share(0.02, 4, 0.5)
    (0.01, 0.005)
    """
    return max(KEPT_FLOOR * floor, floor - share / n_arms)


def lower_floor(floor: float, n_arms: int) -> float:
    """Return the floor, lowered to the largest that is possible for this many arms.

    >>> lower_floor(0.01, 3), lower_floor(0.4, 4)
    (0.01, 0.25)
    """
    return min(floor, 1.0 / n_arms)


def seed_of_arm(decision_id: str, salt: str) -> int:
    """Return the seed of the search of a decision, below 2^53: the same whenever it is repeated."""
    return int(uniform_from(decision_id, salt + "/arm") * (1 << 53))


def uniform_from(decision_id: str, salt: str, arms: Sequence[str] = ()) -> float:
    r"""Hash a decision id to a number in [0, 1): BLAKE2b, 53 bits.

    The draw of an arm also hashes the names of the eligible arms. A decision whose commit failed may be made
    again under its id, without the arm that it drew first; with the same number, the second draw would
    depend on the first.

    Args:
        decision_id: Unique.
        salt: Separates services, and uses within a service. Only one who knows it can foresee the number,
            so that of a service holds the secret of its log.
        arms: The eligible arms in their order, for the draw of one; their names contain no NUL.

    >>> 0.0 <= uniform_from("d-1", "salt", ["none", "bm25"]) < 1.0
    True
    """
    text = "\0".join((decision_id, *arms))
    digest = hashlib.blake2b(text.encode(), key=_key(salt), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


@lru_cache(maxsize=8)
def _key(salt: str) -> bytes:
    """Return a key of 64 bytes, the longest that BLAKE2b takes, for a salt of any length."""
    return hashlib.blake2b(salt.encode()).digest()


def choose(probabilities: NDArray[np.float64], u: float) -> int:
    """Draw an arm: return the index of the first one whose cumulative probability exceeds `u`.

    Args:
        probabilities: Shape (n_arms,), summing to 1.
        u: In [0, 1), from `uniform_from`.

    >>> choose(np.array([0.25, 0.0, 0.75]), 0.25)
    2
    """
    values = probabilities.tolist()  # for a few numbers, Python is faster than numpy
    index = bisect_right(list(accumulate(values)), u)
    # Rounding can leave the last cumulative probability below `u`.
    return index if index < len(values) else max(i for i, p in enumerate(values) if p)


TIE = 1e-9
"""Two scores that differ by less than this, times the best score if that is above 1, count as equal.

Rounding differs between processors, and between orders of a sum, by some 1e-14: else it would decide between
a half and nothing.
"""


def softmax(scores: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Return probabilities in proportion to exp(score / temperature).

    >>> softmax(np.array([0.0, np.log(3.0)]), 1.0).round(3).tolist()
    [0.25, 0.75]
    """
    weights = np.exp((scores - scores.max()) / temperature)
    return np.asarray(weights / weights.sum())


def greedy(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Put all mass on the best arms, split evenly among ties; scores that differ only by rounding tie.

    Args:
        scores: Shape (n_arms,) or (n, n_arms).

    Raises:
        PolicyError: A score is not a number.

    >>> greedy(np.array([1.0, 3.0, 3.0])).tolist()
    [0.0, 0.5, 0.5]
    >>> greedy(np.array([0.3, 0.1 + 0.2, 0.29])).tolist()
    [0.5, 0.5, 0.0]
    """
    if scores.ndim > 1:
        tops = scores.max(axis=1, keepdims=True)
        if not np.isfinite(tops).all():
            return np.array([greedy(row) for row in scores])
        are_best = scores >= tops - TIE * np.maximum(1.0, np.abs(tops))
        return np.asarray(are_best / are_best.sum(axis=1, keepdims=True))
    top = float(scores.max())
    best = scores >= top - TIE * max(1.0, abs(top)) if np.isfinite(top) else scores == top
    n_best = np.count_nonzero(best)
    if n_best == 0:
        raise PolicyError(f"no best arm among the scores {scores.tolist()}")
    return np.asarray(best / n_best)
