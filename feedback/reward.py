"""Reward: quality minus `cost_weight` times cost, declared once.

The log keeps raw metrics and the raw cost vector; the scalar is computed from
them when it is needed, so a changed rule can score all of history again.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from feedback.events import Cost, Example, Feedback


class RewardError(ValueError):
    """A value does not fit the declared metrics; the message names both."""


class UnknownMetricError(RewardError):
    """The metric is not declared."""


class Aggregation(StrEnum):
    """How several values of one metric on one decision become one."""

    FIRST = "first"
    LAST = "last"
    MEAN = "mean"
    SUM = "sum"


class Metric(BaseModel):
    """One thing that feedback can say about an answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["boolean", "float"] = Field(default="float", description="What its values are.")
    range: tuple[float, float] = Field(
        default=(0.0, 1.0), description="Smallest and largest value of a float."
    )
    optimize: Literal["max", "min"] = Field(default="max", description="Whether more is better.")
    weight: float = Field(default=1.0, gt=0, description="Share in quality, relative to the other metrics.")
    aggregation: Aggregation = Field(
        default=Aggregation.LAST, description="How several values become one: first, last, mean, sum."
    )

    @model_validator(mode="after")
    def _ordered(self) -> "Metric":
        low, high = self.range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"range [{low}, {high}] is empty: the first must be below the second")
        if self.type == "boolean" and self.range != (0.0, 1.0):
            raise ValueError(f"a boolean takes no range, got [{low}, {high}]")
        return self

    def parse(self, value: bool | float, name: str) -> float:
        """Return the value as a number. Raises RewardError for another type or outside the range."""
        number = float(value)
        if self.type == "float" and isinstance(value, bool):
            raise RewardError(f"metric {name!r} takes numbers, got {value!r}")
        if self.type == "boolean" and number not in (0.0, 1.0):
            raise RewardError(f"metric {name!r} is boolean: {value!r} is neither true nor false")
        low, high = self.range
        if not low <= number <= high:
            raise RewardError(f"metric {name!r} takes values in [{low:g}, {high:g}], got {value!r}")
        return number

    def aggregate(self, values: list[float]) -> float:
        """Fold the values, in the order in which they were recorded, into one."""
        match self.aggregation:
            case Aggregation.FIRST:
                return values[0]
            case Aggregation.LAST:
                return values[-1]
            case Aggregation.MEAN:
                return math.fsum(values) / len(values)
            case Aggregation.SUM:
                return math.fsum(values)


class Prices(BaseModel):
    """What one unit of each component of cost counts for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: float = Field(default=1.0, ge=0, description="A round of retrieval.")
    kilotokens: float = Field(default=0.0, ge=0, description="A thousand tokens, read or written.")
    seconds: float = Field(default=0.0, ge=0, description="A second in the arm or the language model.")
    usd: float = Field(default=0.0, ge=0, description="A dollar charged by a paid engine.")

    def total(self, cost: Cost) -> float:
        """Return the priced sum of a raw cost vector.

        >>> Prices(steps=1, kilotokens=2).total(Cost(steps=1, prompt_tokens=400, completion_tokens=100))
        2.0
        """
        tokens = cost.prompt_tokens + cost.completion_tokens
        seconds = cost.retrieval_s + cost.llm_s
        return (
            self.steps * cost.steps
            + self.kilotokens * tokens / 1000
            + self.seconds * seconds
            + self.usd * cost.usd
        )


class Complete(StrEnum):
    """When a decision has all the feedback that it will be learned with."""

    ANY = "any"
    """As soon as one metric has a value."""
    ALL = "all"
    """As soon as every declared metric has a value."""
    DEADLINE = "deadline"
    """When the wait time has passed."""


_DURATION = TypeAdapter(timedelta)


class RewardRule(BaseModel):
    """How a reward is made of what feedback said and what the answer cost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    metrics: dict[str, Metric] = Field(default_factory=dict)
    cost_weight: float = Field(default=0.1, ge=0, description="Quality given up for one unit of priced cost.")
    cost: Prices = Prices()
    wait_time: str = Field(default="PT30M", description="ISO 8601 duration in which feedback counts.")
    complete: Complete = Field(
        default=Complete.ANY, description="When a decision is learned: any, all, deadline."
    )
    default: float | None = Field(
        default=None, description="Quality of a decision without feedback; null leaves it out of learning."
    )
    failed: float | None = Field(
        default=None,
        description="Quality of a decision whose drawn arm failed; null leaves it out of learning.",
    )
    clip: tuple[float, float] = Field(default=(-1.0, 1.0), description="Rewards are cut to this range.")

    @model_validator(mode="after")
    def _sound(self) -> "RewardRule":
        if not self.clip[0] < self.clip[1]:
            raise ValueError(f"clip {self.clip} is empty: the first must be below the second")
        if self.wait_s <= 0:
            raise ValueError(f"wait_time {self.wait_time!r} must be longer than zero")
        return self

    @property
    def wait_s(self) -> float:
        """Seconds in which feedback counts."""
        try:
            return float(_DURATION.validate_python(self.wait_time).total_seconds())
        except ValidationError:
            raise ValueError(f"wait_time {self.wait_time!r} is no ISO 8601 duration such as PT30M") from None

    @property
    def join(self) -> str:
        """Digest of what decides which decisions are learned, when, and with which values.

        Prices, weights, ranges and the clip are no part of it: they are applied to what was joined.
        """
        document = {
            "metrics": {name: metric.aggregation.value for name, metric in self.metrics.items()},
            "complete": Complete(self.complete).value,
            "wait_s": self.wait_s,
            "silent": self.default is not None,
            "failed": self.failed is not None,
        }
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    def metric(self, name: str) -> Metric:
        """Return a declared metric. Raises UnknownMetricError, naming those declared."""
        try:
            return self.metrics[name]
        except KeyError:
            declared = ", ".join(sorted(self.metrics)) or "none"
            raise UnknownMetricError(f"metric {name!r} is not declared; declared are: {declared}") from None

    def aggregate(self, feedback: Iterable[Feedback]) -> dict[str, float]:
        """Fold feedback, in recorded order, into one value a metric; undeclared metrics are left out."""
        values: dict[str, list[float]] = {}
        for item in feedback:
            if item.metric in self.metrics and item.value is not None:
                values.setdefault(item.metric, []).append(item.value)
        return {name: self.metrics[name].aggregate(found) for name, found in values.items()}

    def is_complete(self, values: Mapping[str, float]) -> bool:
        """Whether a decision with these aggregated values can be learned before its deadline."""
        match self.complete:
            case Complete.ANY:
                return bool(values)
            case Complete.ALL:
                return bool(values) and values.keys() >= self.metrics.keys()
            case Complete.DEADLINE:
                return False

    def quality(self, values: Mapping[str, float]) -> float | None:
        """Return the weighted mean of the metrics that have a value; `default` when none has.

        A metric to be minimised counts as the mirror image of its value in its range.

        >>> rule = RewardRule(metrics={"right": Metric(weight=3), "thumb": Metric(range=(-1, 1))})
        >>> rule.quality({"right": 1.0, "thumb": -1.0})
        0.5
        """
        known = [(self.metrics[name], value) for name, value in values.items() if name in self.metrics]
        if not known:
            return self.default
        signed = [(m.weight, value if m.optimize == "max" else sum(m.range) - value) for m, value in known]
        return math.fsum(w * v for w, v in signed) / math.fsum(w for w, _ in signed)

    def reward(self, values: Mapping[str, float], cost: Cost) -> float | None:
        """Return quality minus `cost_weight` times priced cost, clipped; None without quality.

        >>> RewardRule(metrics={"right": Metric()}, cost_weight=0.1).reward({"right": 1.0}, Cost(steps=2))
        0.8
        """
        quality = self.quality(values)
        if quality is None:
            return None
        return self.net(quality, self.cost.total(cost))

    def reward_of(self, example: Example) -> float | None:
        """Return what a joined decision is worth; None where that is not declared."""
        if not example.failed:
            return self.reward(example.metrics, example.cost)
        return None if self.failed is None else self.net(self.failed, self.cost.total(example.cost))

    def net(self, quality: float, priced_cost: float) -> float:
        """Return quality minus `cost_weight` times a cost that is priced already, clipped.

        >>> RewardRule(cost_weight=0.5).net(1.0, 1.0), RewardRule(cost_weight=0.5).net(1.0, 9.0)
        (0.5, -1.0)
        """
        low, high = self.clip
        return min(high, max(low, quality - self.cost_weight * priced_cost))
