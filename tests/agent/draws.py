"""Are arms drawn as often as the log says they would be? A statistic that a lie cannot pass.

A decision draws one of its categories (arms, or arms and what became of them) with the probabilities
that were logged before. Decisions differ, so counts are compared with their sum: with `p` of shape
(n, m), the surplus of each category is `sum(drawn is it) - sum(p)`, whose mean is 0 and whose covariance
is exactly `sum(diag(p) - p p^T)`, whatever made `p`: the past may enter it, the draw itself may not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from armwise.feedback.events import Mode
from tests.agent.traffic import ARMS, MODES, Draws, failing

LEAST_P, LARGEST_Z = 1e-6, 5.0
"""A verdict beyond either of them is not an accident."""

LEAST_ROWS = 1500
"""Decisions in a stratum: with the floor of the traffic, 30 draws of the rarest arm are expected."""


@dataclass(frozen=True)
class Verdict:
    """What the counts say.

    Attributes:
        stratum: Which decisions.
        n: How many.
        names: Of the categories.
        expected: Sum of the logged probabilities, shape (m,).
        observed: How often each was drawn, shape (m,).
        z: Surplus in standard deviations, shape (m,); 0 where nothing could vary.
        chi_square: Of all of them together.
        df: Its degrees of freedom.
        p_value: Probability of one as large, were the log true.
    """

    stratum: str
    n: int
    names: Sequence[str]
    expected: NDArray[np.float64]
    observed: NDArray[np.float64]
    z: NDArray[np.float64]
    chi_square: float
    df: int
    p_value: float

    @property
    def holds(self) -> bool:
        return self.p_value > LEAST_P and bool((np.abs(self.z) < LARGEST_Z).all())


def judge(stratum: str, names: Sequence[str], p: NDArray[np.float64], drawn: NDArray[np.int64]) -> Verdict:
    """Compare how often categories were drawn with what was logged before.

    Args:
        stratum: Which decisions these are.
        names: Of the categories.
        p: Shape (n, m), each row summing to 1.
        drawn: Category of each decision, shape (n,).
    """
    expected, observed = p.sum(axis=0), np.bincount(drawn, minlength=len(names)).astype(np.float64)
    surplus, covariance = observed - expected, np.diag(expected) - p.T @ p
    deviation = np.sqrt(np.maximum(covariance.diagonal(), 0.0))
    possible = deviation > 1e-6
    if np.abs(surplus[~possible]).max(initial=0.0) > 1e-6:
        raise AssertionError(f"{stratum}: drawn what had a probability of 0, or not what had one of 1")
    z = np.divide(surplus, deviation, out=np.zeros_like(surplus), where=possible)
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-9 * max(values.max(), 1e-12)
    statistic = float(((vectors[:, kept].T @ surplus) ** 2 / values[kept]).sum())
    df = int(kept.sum())
    p_value = float(chi2.sf(statistic, df)) if df else 1.0
    return Verdict(stratum, len(drawn), names, expected, observed, z, statistic, df, p_value)


def verdicts(draws: Draws) -> Iterator[Verdict]:
    """Judge the decisions that explored: all of them, and by what was known before each draw."""
    draws = draws.of((draws.drawn >= 0) & (draws.mode == MODES.index(Mode.EXPLORE)))
    yield judge("all", ARMS, draws.p, draws.drawn)
    eligible = (draws.p > 0.0).sum(axis=1)
    for title, groups in (
        ("arms left", eligible),
        ("version", draws.version),
        ("percent", draws.percent),
        ("mask", draws.mask),
        ("period", (draws.at // 600.0).astype(np.int64)),
    ):
        for group in np.unique(groups):
            if (groups == group).sum() >= LEAST_ROWS:
                part = draws.of(groups == group)
                yield judge(f"{title} {group}", ARMS, part.p, part.drawn)
    yield calibration(draws)
    yield outcomes(draws)


def calibration(draws: Draws) -> Verdict:
    """Judge whether what was logged as likely as this is drawn as often: by tenths of the probability."""
    tenth = np.minimum((draws.p * 10).astype(np.int64), 9)
    rows = np.arange(len(tenth))
    p = np.stack([np.where(tenth == i, draws.p, 0.0).sum(axis=1) for i in range(10)], axis=1)
    names = [f"{i / 10:.1f} to {(i + 1) / 10:.1f}" for i in range(10)]
    return judge("probability", names, p, tenth[rows, draws.drawn])


def outcomes(draws: Draws) -> Verdict:
    """Judge arms and how their searches ended, by the rates at which they fail: no ending hides a draw.

    Left out are clients who go away, as what became of their search may not be known.
    """
    draws = draws.of(~draws.left)
    fails = np.array([[failing(arm, at) for arm in ARMS] for at in draws.at.tolist()])
    p = np.concatenate([draws.p * (1.0 - fails), draws.p * fails], axis=1)
    names = [*ARMS, *(f"{arm}, fails" for arm in ARMS)]
    return judge("outcome", names, p, draws.drawn + len(ARMS) * (draws.served != draws.drawn))


__all__ = ["Verdict", "judge", "verdicts"]
