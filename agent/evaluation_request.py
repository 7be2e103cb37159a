"""What is to be evaluated: candidates by name, the part of the log, the prices, the estimators."""

from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from agent.candidate_names import BASELINE, named
from agent.features import FeatureSpec, describe
from feedback.bounds import INTERVALS
from feedback.estimators import ESTIMATORS
from feedback.replay import USUAL
from feedback.reward import Prices, RewardRule
from feedback.reward_model import Model

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


MOST_VERSIONS = 10_000
"""Versions that may be named at once; a window of time tells more of them."""


class EvaluationRequest(BaseModel):
    """What to evaluate, on which part of the log, and how. It travels as JSON and comes back the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    candidates: tuple[str, ...] = Field(
        default=(),
        max_length=100,
        description="Of served, uniform, fixed:<arm>, configured, shadow, version:<n>, recipe:<n>, "
        "policy:<YAML> and router:<folder>; none for uniform, configured, and every arm that was logged.",
    )
    baseline: str = Field(default=BASELINE, description="The candidate that the others are compared with.")
    since: AwareDatetime | None = Field(default=None, description="Only decisions of then or later.")
    until: AwareDatetime | None = Field(default=None, description="Only decisions before then.")
    versions: tuple[int, int] | None = Field(
        default=None, description="Only decisions of these versions, both ends included."
    )
    features: dict[str, float | str | bool] = Field(
        default_factory=dict, description="Only decisions whose context says so, as a caller would say it."
    )
    cost_weight: Amount | None = Field(default=None, description="In place of the configured one.")
    cost: dict[Literal["steps", "kilotokens", "seconds", "usd"], Amount] = Field(
        default_factory=dict, description="Prices in place of the configured ones; others stay as they are."
    )
    estimators: tuple[str, ...] = Field(
        default=USUAL, min_length=1, description=f"Of {', '.join(ESTIMATORS)}."
    )
    interval: str = Field(default=INTERVALS[0], description=f"Kind of the intervals: {', '.join(INTERVALS)}.")
    reward_model: Model = Field(
        default="ridge", description="What predicts rewards, for the estimators that look at predictions."
    )
    gate: bool = Field(default=False, description="Whether the gate judges each candidate.")
    seed: int = Field(default=0, ge=0, description="Of folds, of resamples, and of what is recomputed.")

    @model_validator(mode="after")
    def _sound(self) -> Self:
        for name in (*self.candidates, self.baseline):
            named(name)
        _ = self.said  # refuses what no feature can be
        for what, asked, known in (
            ("estimator", self.estimators, tuple(ESTIMATORS)),
            ("interval", (self.interval,), INTERVALS),
        ):
            for name in asked:
                if name not in known:
                    raise ValueError(f"no {what} {name!r}; there are: {', '.join(known)}")
        if len(set(self.candidates)) != len(self.candidates):
            raise ValueError(f"a candidate is named twice: {', '.join(self.candidates)}")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError(f"since {self.since} must be before until {self.until}")
        if self.versions is not None and not 1 <= self.versions[0] <= self.versions[1]:
            first, last = self.versions
            raise ValueError(f"versions {first} to {last}: the first is at least 1 and not above the last")
        if self.versions is not None and self.versions[1] - self.versions[0] >= MOST_VERSIONS:
            first, last = self.versions
            raise ValueError(f"versions {first} to {last}: at most {MOST_VERSIONS:,}; a window tells more")
        return self

    @property
    def selects(self) -> bool:
        """Whether it looks at a part of the log only."""
        return any((self.since, self.until, self.versions, self.features))

    @property
    def said(self) -> dict[str, float]:
        """The features that a context must have, by the names that a policy sees."""
        return dict(describe("", FeatureSpec(words=0, shape=False), extra=self.features).features)

    def changed(self, rule: RewardRule) -> RewardRule:
        """Return a rule at the prices of this request.

        >>> EvaluationRequest(cost={"steps": 0.5}, cost_weight=0.2).changed(RewardRule()).cost.steps
        0.5
        """
        weight = rule.cost_weight if self.cost_weight is None else self.cost_weight
        prices = Prices.model_validate({**rule.cost.model_dump(), **self.cost})
        return rule.model_copy(update={"cost_weight": weight, "cost": prices})


def in_utc(moment: datetime) -> datetime:
    """Return a moment with the zone that it is in: UTC, where it names none.

    >>> in_utc(datetime(2026, 1, 2)).isoformat()
    '2026-01-02T00:00:00+00:00'
    """
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


__all__ = ["EvaluationRequest", "in_utc"]
