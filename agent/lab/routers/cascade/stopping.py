"""The stopping rules of a cascade: thresholds on the predicted gain of going on.

    reward  0: go on where the expected gain, net of the cost of what follows, is above 0
    share   a quantile: a declared share of the training questions goes on
    risk    the highest threshold whose loss against always going on is certified on held-out questions

The guarantee of `risk` is that of Learn then Test. Let L of a question be the score of the answer after all
stages minus that of the cascade, in [-1, 1]. For each threshold, in increasing order, the hypothesis that the
mean of L is above alpha is tested at level delta, until one is accepted; the threshold before it is taken
(fixed sequence testing). The lowest is -inf, which always goes on and loses nothing. So, with probability
1 - delta over the draw of the held-out questions, the mean of L is at most alpha on questions of the same
distribution. It holds for any number of held-out questions and any predictor fitted to other questions.

Source: Angelopoulos, Bates, Candès, Jordan and Lei (2021), "Learn then Test", arXiv:2110.01052; for the test,
Waudby-Smith and Ramdas (2024), "Estimating means of bounded random variables by betting".
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from armwise.agent.routers.dataset import Floats

BETS = 0.9 * 0.5 ** np.arange(6.0)
"""Bets, as shares of the largest bet that cannot lose all capital."""

CANDIDATES = 40
"""Number of tested thresholds, at quantiles of the predicted gains."""


class StopRule(BaseModel):
    """When a cascade stops."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: Literal["reward", "share", "risk"] = Field(
        default="reward",
        description="`reward`: go on where the expected gain is above the cost; `share`: in a declared "
        "share of the questions; `risk`: as seldom as a bound of the loss allows.",
    )
    shares: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = Field(
        default=(),
        description="For `share`: share of the questions at each stage but the last that go on.",
    )
    alpha: float | None = Field(
        default=None,
        gt=0.0,
        lt=1.0,
        description="For `risk`: mean score that may be lost against all stages.",
    )
    delta: float = Field(
        default=0.1, gt=0.0, lt=1.0, description="For `risk`: probability that more than alpha is lost."
    )
    held_out: float = Field(
        default=0.3,
        gt=0.0,
        lt=1.0,
        description="For `risk`: share of the questions held out for the bound.",
    )

    @model_validator(mode="after")
    def _complete(self) -> "StopRule":
        for by, name, given in (
            ("share", "shares", bool(self.shares)),
            ("risk", "alpha", self.alpha is not None),
        ):
            if given != (self.by == by):
                raise ValueError(
                    f"`by: {by}` needs {name}" if self.by == by else f"only `by: {by}` takes {name}"
                )
        return self


def share_thresholds(gains: Sequence[Floats], shares: Sequence[float]) -> Floats:
    """Return the threshold of each stage but the last, shape (n_stages - 1,).

    Args:
        gains: Predicted gains at each of these stages, each of shape (n,).
        shares: Share of the questions that go on, at each of these stages.

    >>> share_thresholds([np.array([0.1, 0.2, 0.3, 0.4])], [0.25]).round(3).tolist()
    [0.325]
    """
    here = np.ones(len(gains[0]), dtype=bool) if gains else np.ones(0, dtype=bool)
    thresholds = []
    for gain, share in zip(gains, shares, strict=True):
        reached = gain[here]
        threshold = float(np.quantile(reached, 1.0 - share)) if share > 0.0 and len(reached) else np.inf
        thresholds.append(-np.inf if share == 1.0 else threshold)
        here &= gain > thresholds[-1]
    return np.array(thresholds)


def p_value(losses: Floats, alpha: float) -> float:
    """Return the p-value of the hypothesis that the mean loss is above `alpha`; valid at any sample size.

    For a bet b below 1 / (1 - alpha), the product of 1 + b (alpha - L) has a mean of at most 1 under the
    hypothesis. So does the mean over all bets, and by Markov's inequality it exceeds 1 / p with
    probability at most p.

    Args:
        losses: Losses of independent questions, in [-1, 1], shape (n,).
        alpha: Mean loss of the hypothesis, in (0, 1).

    >>> p_value(np.zeros(200), 0.05) < 0.001, p_value(np.full(200, 0.06), 0.05)
    (True, 1.0)
    """
    bets = BETS[:, None] / (1.0 - alpha)
    capital = np.log1p(bets * (alpha - losses)).sum(axis=1)
    top = float(capital.max())
    evidence = top + float(np.log(np.exp(capital - top).mean()))
    return float(np.exp(min(0.0, -evidence)))


def certify_threshold(
    gains: Floats, losses_at: Callable[[float], Floats], alpha: float, delta: float
) -> tuple[float, float]:
    """Return the highest certified threshold, and its p-value.

    Args:
        gains: Predicted gains whose quantiles are the candidates; they must not depend on held-out outcomes.
        losses_at: Returns the losses of the held-out questions at a threshold, shape (n_held_out,).
        alpha: Allowed mean loss.
        delta: Probability that it is exceeded.
    """
    certified = -np.inf, 0.0
    for threshold in np.unique(np.quantile(gains, np.linspace(0.0, 1.0, CANDIDATES))):
        p = p_value(losses_at(float(threshold)), alpha)
        if p > delta:
            break
        certified = float(threshold), p
    return certified
