"""Reward: quality minus `cost_weight` times cost, declared once.

The log keeps raw metrics and the raw cost vector; the scalar is computed from them when it is needed, so a
changed rule can score all of history again.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from armwise.feedback.events import ARM_FAILURES, Cost, Example, Feedback, Status
from armwise.number import Number

if TYPE_CHECKING:  # the client of the service does without NumPy
    from armwise.feedback.arrays import Floats

V = TypeVar("V")
N = TypeVar("N", float, "Floats")
"""A number, or a column of them."""


class RewardError(ValueError):
    """A value conflicts with the declared metrics; the message names both."""


class UnknownMetricError(RewardError):
    """The metric is not declared."""


class Aggregation(StrEnum):
    """How the values of a metric on a decision are aggregated to one."""

    FIRST = "first"
    LAST = "last"
    MEAN = "mean"
    SUM = "sum"


NonNegative = Annotated[Number, Field(ge=0)]


class Signal(StrEnum):
    """What a service can observe by itself about an answer."""

    CHECK = "check"
    """What the check of a checked arm says of the answer that was sent, in [0, 1]."""
    GRADE = "grade"
    """What the language model says of the answer, in [0, 1], for the share of answers that it grades."""
    RETRY = "retry"
    """Whether the next turn of the conversation asks the same question again, or nearly the same."""
    ESCALATION = "escalation"
    """Whether the next turn of the conversation allows only arms dearer than the one that answered."""
    TOOL_ERROR = "tool_error"
    """Whether a result of the functions that the answer called reports an error."""
    SCHEMA_ERROR = "schema_error"
    """Whether the answer does not satisfy the JSON schema of `response_format`."""
    REFUSED = "refused"
    """Whether the language model, or the filter of its provider, refused to answer."""
    ABANDONED = "abandoned"
    """Whether no turn of the conversation follows within half of the wait time."""


SCORES = (Signal.CHECK, Signal.GRADE)
"""Signals that are scores of the operator; the others are observed in requests of callers."""

RATER_SHARE = 0.25
"""Largest share of a rater in the newest rated decisions, unless it had a large share before."""


class Metric(BaseModel):
    """A value that feedback can report about an answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["boolean", "float", "categorical"] = Field(
        default="float", description="Type of the values. The values of a categorical metric are labels."
    )
    range: tuple[Number, Number] = Field(
        default=(0.0, 1.0),
        description=(
            "Range of a float metric. When Armwise computes quality, the worse end counts as 0 and the "
            "better end as 1."
        ),
    )
    values: dict[str, Number] | None = Field(
        default=None,
        min_length=2,
        max_length=100,
        description="Number for each label of a categorical metric, such as `{good: 1, bad: 0}`.",
    )
    optimize: Literal["max", "min"] = Field(
        default="max", description="Whether larger (`max`) or smaller (`min`) values are better."
    )
    weight: Number = Field(default=1.0, gt=0, description="Weight in quality, relative to the other metrics.")
    aggregation: Aggregation = Field(
        default=Aggregation.LAST, description="Which value counts if a decision has several."
    )
    signal: Signal | None = Field(
        default=None,
        description=(
            "Signal that the service observes itself, and reports as this metric if callers do not send "
            "it. `check` and `grade` are scores from 0 to 1. The others are booleans for which false is "
            "best: `retry`, `escalation`, `tool_error`, `schema_error`, `refused` and `abandoned`. A signal "
            "sets `type` and `optimize`."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _complete_form(cls, given: Any) -> Any:
        """Return the parameters with the type of a signal and what is best, and the range of labels."""
        if not isinstance(given, Mapping):
            return given
        if given.get("signal") is not None and given["signal"] not in SCORES:
            given = {"type": "boolean", "optimize": "min", **given}
        if given.get("type") == "categorical":
            values = given.get("values")
            numbers = [*values.values()] if isinstance(values, Mapping) else []
            if numbers and all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
                return {**given, "range": (float(min(numbers)), float(max(numbers)))}
        return given

    @model_validator(mode="after")
    def _sound(self) -> "Metric":
        low, high = self.range
        if (self.type == "categorical") != (self.values is not None):
            raise ValueError("a categorical metric, and no other, needs `values`, such as {good: 1, bad: 0}")
        if self.signal is not None:
            kind, best = ("float", "max") if self.signal in SCORES else ("boolean", "min")
            if (self.type, self.optimize) != (kind, best) or self.range != (0.0, 1.0):
                raise ValueError(
                    f"signal {self.signal.value} is a {kind} in [0, 1] with optimize {best}: remove type, "
                    "range and optimize"
                )
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"range [{low}, {high}] is empty: the first must be below the second")
        if not math.isfinite(high - low):
            raise ValueError(f"range [{low}, {high}] is too wide: declare a narrower one")
        if self.type == "boolean" and self.range != (0.0, 1.0):
            raise ValueError(f"a boolean takes no range, got [{low}, {high}]")
        return self

    def parse(self, value: bool | float | str, name: str) -> float:
        """Return the value as a number. Raises RewardError for another type or outside the range.

        >>> Metric(type="categorical", values={"good": 1, "bad": 0}).parse("good", "verdict")
        1.0
        """
        if self.values is not None:
            if isinstance(value, str) and value in self.values:
                return self.values[value]
            labels = ", ".join(map(repr, self.values))
            raise RewardError(f"metric {name!r} takes one of {labels}, got {shortened(value)}")
        if isinstance(value, str):
            raise RewardError(f"metric {name!r} takes numbers, got {shortened(value)}")
        number = float(value)
        if self.type == "float" and isinstance(value, bool):
            raise RewardError(f"metric {name!r} takes numbers, got {value!r}")
        if self.type == "boolean" and number not in (0.0, 1.0):
            raise RewardError(f"metric {name!r} is boolean: {value!r} is neither true nor false")
        low, high = self.range
        if not low <= number <= high:
            raise RewardError(f"metric {name!r} takes values in [{low:g}, {high:g}], got {value!r}")
        return number

    def scale(self, value: N, arithmetic: "Arithmetic[N] | None" = None) -> N:
        """Return what a value counts in quality: its place from the worst of the range, 0, to the best, 1.

        A sum of values may lie outside the range; it counts as the nearer end.

        Args:
            value: An aggregated value, or a column of them.
            arithmetic: Arithmetic of a column; None: of numbers.

        >>> [Metric(range=(1, 5)).scale(stars) for stars in (1.0, 3.0, 5.0, 7.0)]
        [0.0, 0.5, 1.0, 1.0]
        >>> Metric(range=(0, 5000), optimize="min").scale(1000.0)
        0.8
        """
        low, high = self.range
        place: N = (value - low if self.optimize == "max" else high - value) / (high - low)
        return (arithmetic or NUMBERS).clip(place, 0.0, 1.0)  # type: ignore[arg-type, return-value]

    def value_at(self, place: float) -> float:
        """Return the value at a place from the worst of the range, 0, to the best, 1.

        >>> Metric(range=(0, 5000), optimize="min").value_at(0.75)
        1250.0
        """
        worst, best = self.range if self.optimize == "max" else self.range[::-1]
        return (1.0 - place) * worst + place * best

    def move(self, value: float, share: float) -> float:
        """Return a value moved by a share of the range, towards the best if the share is positive.

        The move stops at the end of the range; a value beyond that end stays.

        >>> Metric(range=(0, 10), optimize="min").move(4.0, 0.25)
        1.5
        """
        low, high = self.range
        step = share * (high - low) * (1 if self.optimize == "max" else -1)
        return min(max(high, value), max(min(low, value), value + step))

    def select(self, values: list[V]) -> list[V]:
        """Return those of the values, in the order in which they were recorded, that the aggregation uses.

        >>> Metric().select([1.0, 0.0]), Metric(aggregation="mean").select([1.0, 0.0])
        ([0.0], [1.0, 0.0])
        """
        match self.aggregation:
            case Aggregation.FIRST:
                return values[:1]
            case Aggregation.LAST:
                return values[-1:]
            case Aggregation.MEAN | Aggregation.SUM:
                return values

    def aggregate(self, values: list[float]) -> float:
        """Fold the values, in the order in which they were recorded, into one."""
        used = self.select(values)
        total = used[0] if len(used) == 1 else math.fsum(used)
        return total / len(used) if self.aggregation is Aggregation.MEAN else total


class Prices(BaseModel):
    """Prices that turn steps, tokens, seconds and dollars into one number, the priced cost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: Number = Field(default=1.0, ge=0, description="Price of each round of retrieval.")
    kilotokens: Number = Field(default=0.0, ge=0, description="Price of 1,000 tokens, read or written.")
    seconds: Number = Field(
        default=0.0, ge=0, description="Price of each second in the arm or the language model."
    )
    usd: Number = Field(default=0.0, ge=0, description="Price of each dollar that a provider charges.")

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


@dataclass(frozen=True, slots=True)
class Arithmetic(Generic[N]):
    """The two operations of the reward formula that differ between numbers and columns.

    Attributes:
        total: Returns the correctly rounded sum.
        clip: Takes a value, the smallest and the largest; returns the value inside of these.
    """

    total: Callable[[Sequence[N]], N]
    clip: Callable[[N, float, float], N]


NUMBERS: Arithmetic[float] = Arithmetic(math.fsum, lambda value, low, high: min(high, max(low, value)))
"""Arithmetic of numbers; `armwise.feedback.decisions` has the arithmetic of columns."""


class Complete(StrEnum):
    """When the feedback on a decision is complete."""

    ANY = "any"
    """As soon as one metric has a value."""
    ALL = "all"
    """As soon as every declared metric has a value."""
    DEADLINE = "deadline"
    """When the wait time has passed."""


_DURATION = TypeAdapter(timedelta)


def read_seconds(duration: str, setting: str, example: str) -> float:
    """Return the seconds of a setting that is an ISO 8601 duration. Raises ValueError.

    >>> read_seconds("PT1M30S", "wait_time", "PT30M")
    90.0
    """
    try:
        return float(_DURATION.validate_python(duration).total_seconds())
    except ValidationError:
        raise ValueError(f"{setting} {duration!r} is not an ISO 8601 duration such as {example}") from None


TokenPrices = Mapping[str, tuple[float, ...]]
"""USD for 1000 tokens read, written, and read from the engine's cache, by language model.

A fourth number is the price of those written to that cache, if they have one."""


def usd_today(paid: float, tokens_by_model: Mapping[str, Sequence[float]], prices: TokenPrices) -> float:
    """Return the cost of an answer in USD with its tokens at these prices, and its searches as charged.

    Args:
        paid: The charged cost; returned if the tokens or a price are unknown.
        tokens_by_model: Tokens read, tokens written, tokens of those read that the engine had cached, dollars
            of searches, and tokens of those read that the engine has cached now, if any; by model.
        prices: Prices of today.

    >>> usd_today(9.0, {"large": (30, 10, 20)}, {"large": (1.0, 2.0, 0.5)})
    0.04
    >>> usd_today(9.0, {"large": (30, 10, 20, 0.5)}, {"large": (1.0, 2.0, 0.5)})
    0.54
    >>> usd_today(9.0, {"large": (30, 10, 20, 0.0, 8)}, {"large": (1.0, 2.0, 0.5, 1.25)})
    0.042
    >>> usd_today(9.0, {"gone": (30, 10, 0)}, {}), usd_today(9.0, {}, {})
    (9.0, 9.0)
    """
    if not tokens_by_model or not tokens_by_model.keys() <= prices.keys():
        return paid
    total = searched = 0.0
    for model, (read, written, cached, *more) in tokens_by_model.items():
        per_read, per_written, per_cached, *of_its_own = prices[model]
        total += (read - cached) * per_read + cached * per_cached + written * per_written
        if of_its_own and len(more) > 1:
            total += more[1] * (of_its_own[0] - per_read)
        searched += sum(more[:1])
    return total / 1000 + searched


class RewardRule(BaseModel):
    """The reward is the quality, computed from `metrics`, minus `cost_weight` times the priced cost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    metrics: dict[str, Metric] = Field(
        default_factory=dict, description="Metrics that feedback can report about an answer, by name."
    )
    cost_weight: Number = Field(
        default=0.1,
        ge=0,
        description="Reward lost per unit of priced cost. With 0, cost does not count.",
    )
    cost: Prices = Prices()
    worth: Number | None = Field(
        default=None,
        gt=0,
        description=(
            "What a right answer is worth to you, in dollars. An answer that costs as much loses 1 of its "
            "reward. Sets `cost.usd`, so leave that out."
        ),
    )
    token_prices: dict[str, Annotated[tuple[NonNegative, ...], Field(min_length=3, max_length=4)]] = Field(
        default_factory=dict,
        description=(
            "Current prices by language model, in USD per 1,000 tokens. List the prices of input, output "
            "and cached input, in this order. If writing to the cache has its own price, add it as the "
            "fourth. If `cost.usd` is above 0, Armwise computes all rewards with these prices, even if "
            "past prices differed. By default, the prices under `llm` and `llms` apply."
        ),
    )
    wait_time: str = Field(
        default="PT30M", description="How long after a decision its feedback still counts."
    )
    complete: Complete = Field(
        default=Complete.ANY,
        description=(
            "When the policy learns from a decision. `any`: once one metric has a value. `all`: once all "
            "metrics have a value or the wait time has passed. This is the default for several metrics. "
            "`deadline`: once the wait time has passed. This is required with `default` or `failed`."
        ),
    )
    correction_time: str = Field(
        default="PT5S",
        description=(
            "How long a rating can still be corrected or retracted. With `complete: any` or `all`, the "
            "policy learns from a decision this long after its last missing rating, with the values that it "
            "has by then. With `PT0S`, it learns at once, and a correction never counts."
        ),
    )
    default: Number | None = Field(
        default=None,
        description=(
            "Quality to assume for a decision without feedback. If null, the policy does not learn from "
            "such a decision. If set, the policy learns from every decision only after the wait time."
        ),
    )
    failed: Number | None = Field(
        default=None,
        description=(
            "Quality to assume for a decision whose arm failed. As with `default`, the policy then learns "
            "only after the wait time."
        ),
    )
    rater_share: Number = Field(
        default=RATER_SHARE,
        gt=0,
        le=1,
        description=(
            "Maximum share of the newest 20 rated decisions that one rater may have. Regular raters may "
            "have more: up to twice their share of the previous 1,000. Ratings above the limit wait. If "
            "they still exceed it later, Armwise drops them. Judges and operators have no limit. Set this "
            "to 1 to limit nobody."
        ),
    )
    clip: tuple[Number, Number] = Field(
        default=(-1.0, 1.0),
        description="Range to which the reward is clipped. With a narrower range, the gate decides sooner.",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete_by_the_rest(cls, fields: Any) -> Any:
        """Choose `complete` if it is left out.

        If silence or a failure has a value, decisions wait for the deadline. If more than one metric is
        declared, they wait for all of them, so that the first to arrive is not the only one that counts.
        """
        if not isinstance(fields, dict) or "complete" in fields:
            return fields
        if fields.get("default") is not None or fields.get("failed") is not None:
            return fields | {"complete": Complete.DEADLINE}
        return fields | {"complete": Complete.ALL} if len(fields.get("metrics") or ()) > 1 else fields

    @model_validator(mode="after")
    def _price_dollars(self) -> "RewardRule":
        """Set the price of a dollar by what a right answer is worth."""
        if self.worth is None:
            return self
        if self.cost_weight == 0:
            raise ValueError("worth needs a cost_weight above 0: with 0, cost does not count")
        usd = 1 / self.worth / self.cost_weight
        if not math.isfinite(usd):
            raise ValueError(f"worth {self.worth:g} is too small: name the dollars of a right answer")
        if self.cost.usd not in (0.0, usd):
            raise ValueError("worth and cost.usd both price a dollar: remove one")
        object.__setattr__(self, "cost", self.cost.model_copy(update={"usd": usd}))
        return self

    @model_validator(mode="after")
    def _sound(self) -> "RewardRule":
        for name in ("default", "failed"):
            if (value := getattr(self, name)) is not None and self.complete is not Complete.DEADLINE:
                raise ValueError(
                    f"complete {self.complete.value!r} with {name} {value:g} would learn good and bad "
                    "rewards at different times: remove `complete`, so that each decision waits for its "
                    "deadline, and shorten `wait_time` if that is too late"
                )
        declared = [metric.signal for metric in self.metrics.values() if metric.signal is not None]
        if twice := [signal.value for signal in Signal if declared.count(signal) > 1]:
            raise ValueError(f"signal {twice[0]} is used by two metrics: use it in one")
        if not self.clip[0] < self.clip[1]:
            raise ValueError(f"clip {self.clip} is empty: the first must be below the second")
        if self.wait_s <= 0:
            raise ValueError(f"wait_time {self.wait_time!r} must be longer than zero")
        if self.correction_s < 0:
            raise ValueError(f"correction_time {self.correction_time!r} must not be negative")
        return self

    @property
    def signals(self) -> dict[Signal, str]:
        """The metrics that the service measures by itself, by their signal.

        >>> RewardRule(metrics={"again": {"signal": "retry"}, "thumb": {}}).signals[Signal.RETRY]
        'again'
        """
        return {metric.signal: name for name, metric in self.metrics.items() if metric.signal is not None}

    @property
    def wait_s(self) -> float:
        """Seconds after a decision in which feedback counts."""
        return read_seconds(self.wait_time, "wait_time", "PT30M")

    @property
    def correction_s(self) -> float:
        """Seconds in which a rating can be corrected before it is learned; 0 if the deadline decides that."""
        if self.learned_at is Complete.DEADLINE:
            return 0.0
        return read_seconds(self.correction_time, "correction_time", "PT5S")

    @property
    def learned_statuses(self) -> tuple[Status, ...]:
        """Statuses of the decisions that the policy learns from.

        >>> RewardRule().learned_statuses, RewardRule(failed=0.0).learned_statuses[1:] == ARM_FAILURES
        ((<Status.OK: 'ok'>,), True)
        """
        return (Status.OK,) if self.failed is None else (Status.OK, *ARM_FAILURES)

    @property
    def learned_at(self) -> Complete:
        """When a decision is learned: at its deadline if silence or failure has a value, else `complete`.

        The time must not depend on the reward. Otherwise a value that arrives at once would be learned
        before silence is, and an arm that gains traffic would show only its good rewards during the wait.
        """
        declared = self.default is not None or self.failed is not None
        return Complete.DEADLINE if declared else Complete(self.complete)

    @property
    def join(self) -> str:
        """Digest of the settings that determine which decisions are learned, when, and with which values.

        Prices, weights, ranges and the clip are left out: they are applied after the join.
        """
        document = {
            "metrics": {name: metric.aggregation.value for name, metric in self.metrics.items()},
            "complete": self.learned_at.value,
            "wait_s": self.wait_s,
            "correction_s": self.correction_s,
            "silent": self.default is not None,
            "failed": self.failed is not None,
            "rater_share": self.rater_share,
        }
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    @property
    def reward_range(self) -> tuple[float, float]:
        """Smallest and largest reward that the rule can give, for any feedback, cost and request.

        Quality lies in [0, 1], or is `default` or `failed`. Cost is subtracted, if it has a price and a
        weight. Only the clip bounds it, because a log keeps turns of arms that were removed.

        >>> RewardRule(metrics={"right": Metric()}, cost_weight=0.0).reward_range
        (0.0, 1.0)
        >>> RewardRule(metrics={"stars": Metric(range=(1, 5))}, clip=(-0.25, 2.0)).reward_range
        (-0.25, 1.0)
        """
        low, high = self.clip
        qualities = [each for each in (self.default, self.failed) if each is not None]
        qualities += [0.0, 1.0] if self.metrics else []
        if not qualities:
            return self.clip
        is_free = self.cost_weight == 0.0 or not any(price for _, price in self.cost)
        least, most = (NUMBERS.clip(end(qualities), low, high) for end in (min, max))
        least = least if is_free else low
        return (least, most) if least < most else self.clip

    def metric(self, name: str) -> Metric:
        """Return a declared metric. Raises UnknownMetricError, naming those declared."""
        try:
            return self.metrics[name]
        except KeyError:
            declared = ", ".join(sorted(self.metrics)) or "none"
            raise UnknownMetricError(f"metric {name!r} is not declared; available: {declared}") from None

    def aggregate(self, feedback: Iterable[Feedback]) -> dict[str, float]:
        """Combine feedback, in recorded order, into one value per metric; undeclared metrics are left out."""
        values: dict[str, list[float]] = {}
        for item in feedback:
            if item.metric in self.metrics and item.value is not None:
                values.setdefault(item.metric, []).append(item.value)
        return {name: self.metrics[name].aggregate(numbers) for name, numbers in values.items()}

    def select(self, feedback: Iterable[Feedback]) -> list[Feedback]:
        """Return the items of feedback, in recorded order, of which `aggregate` makes its values."""
        items: dict[str, list[Feedback]] = {}
        for item in feedback:
            if item.metric in self.metrics and item.value is not None:
                items.setdefault(item.metric, []).append(item)
        return [used for name, some in items.items() for used in self.metrics[name].select(some)]

    def mean_of_turns(self, turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return each metric's mean over the turns of a conversation that have a value of it.

        >>> RewardRule(metrics={"right": Metric()}).mean_of_turns([{"right": 1.0}, {}, {"right": 0.0}])
        {'right': 0.5}
        """
        values: dict[str, list[float]] = {}
        for turn in turns:
            for name, value in turn.items():
                values.setdefault(name, []).append(value)
        return {name: math.fsum(numbers) / len(numbers) for name, numbers in values.items()}

    def is_complete(self, values: Mapping[str, float]) -> bool:
        """Whether a decision with these values can be learned before its deadline."""
        match self.learned_at:
            case Complete.ANY:
                return bool(values)
            case Complete.ALL:
                return bool(values) and values.keys() >= self.metrics.keys()
            case Complete.DEADLINE:
                return False

    def quality(self, values: Mapping[str, float]) -> float | None:
        """Return the weighted mean of the metrics that have a value, or `default` if none has.

        Each value counts by its position in its metric's range, see `Metric.scale`.

        >>> rule = RewardRule(metrics={"right": Metric(weight=3), "stars": Metric(range=(1, 5))})
        >>> rule.quality({"right": 1.0, "stars": 1.0})
        0.75
        """
        return self._quality(values, NUMBERS)

    def reward(self, values: Mapping[str, float], cost: Cost) -> float | None:
        """Return quality minus `cost_weight` times priced cost, clipped; None without quality.

        >>> RewardRule(metrics={"right": Metric()}, cost_weight=0.1).reward({"right": 1.0}, Cost(steps=2))
        0.8
        """
        return self.formula(values, self.cost.total(cost), failed=False, arithmetic=NUMBERS)

    def usd_today(self, paid: float, tokens_by_model: Mapping[str, Sequence[float]]) -> float:
        """Return the cost of an answer in USD, with tokens at today's prices; see `usd_today`."""
        return usd_today(paid, tokens_by_model, self.token_prices)

    @property
    def prices_tokens(self) -> bool:
        """Whether dollars have a price and are computed from tokens at today's prices."""
        return bool(self.token_prices) and self.cost.usd > 0.0

    def price(self, cost: Cost, tokens_by_model: Mapping[str, Sequence[float]], turns: int = 1) -> float:
        """Return the priced sum of a raw cost, with tokens at today's prices.

        Args:
            cost: Cost of all turns.
            tokens_by_model: Tokens of all turns.
            turns: Number of turns; the result is the mean over them.

        >>> RewardRule().price(Cost(steps=3), {}, turns=2)
        1.5
        """
        if self.prices_tokens:
            cost = replace(cost, usd=self.usd_today(cost.usd, tokens_by_model))
        return self.cost.total(cost) / turns

    def compute_reward(self, example: Example) -> float | None:
        """Return the reward of a joined decision, if the rule declares one for it."""
        return self._reward(example, 0.0)

    def compute_learned_reward(self, example: Example) -> float | None:
        """Return the reward that a policy learns, as if every model had the conversation in its cache.

        The draw already counts the known cost of a cache miss, so a policy that also learned it would
        count it twice.

        >>> from armwise.feedback.events import Context, Decision
        >>> steps = {"cache": {"usd": {"a": 0.5}}}
        >>> decision = Decision("d", Context("?"), ("a",), (1.0,), "a", "uniform", 1, steps=steps)
        >>> rule = RewardRule(metrics={"right": Metric()}, cost=Prices(steps=0, usd=1.0), cost_weight=1.0)
        >>> example = Example(1, decision, Cost(usd=0.75), {"right": 1.0})
        >>> rule.compute_reward(example), rule.compute_learned_reward(example)
        (0.25, 0.75)
        >>> rule.compute_learned_cost(example)
        0.25
        """
        return self._reward(example, self._price_misses(example))

    def compute_learned_cost(self, example: Example) -> float:
        """Return what the learned reward lost to costs, before it was clipped."""
        total = self.price(example.cost, example.tokens_by_model, example.turns)
        return self.cost_weight * (total - self._price_misses(example))

    def _price_misses(self, example: Example) -> float:
        return self.cost.usd * example.decision.miss_usd / example.turns

    def _reward(self, example: Example, missed: float) -> float | None:
        """Return the reward of a joined decision without a part of its priced cost."""
        total = self.price(example.cost, example.tokens_by_model, example.turns) - missed
        return self.formula(example.metrics, total, failed=example.failed, arithmetic=NUMBERS)

    @property
    def usd_weight(self) -> float:
        """How much reward a dollar costs.

        >>> RewardRule(cost=Prices(usd=2.0), cost_weight=0.5).usd_weight
        1.0
        """
        return self.cost_weight * self.cost.usd

    def net(self, quality: float, priced_cost: float) -> float:
        """Return quality minus `cost_weight` times an already priced cost, clipped.

        >>> RewardRule(cost_weight=0.5).net(1.0, 1.0), RewardRule(cost_weight=0.5).net(1.0, 9.0)
        (0.5, -1.0)
        """
        return self._net(quality, priced_cost, NUMBERS)

    def formula(
        self,
        values: Mapping[str, N],
        priced_cost: N,
        *,
        failed: bool,
        arithmetic: Arithmetic[N],
    ) -> N | None:
        """Return the reward of one decision, or of a column of decisions that have the same metrics.

        Args:
            values: Aggregated value of each metric that has one.
            priced_cost: The result of `Prices.total`.
            failed: Whether the drawn arm failed.
            arithmetic: Arithmetic of numbers, or of columns.

        Returns:
            The reward; None if the rule declares none for these values.
        """
        quality = self.failed if failed else self._quality(values, arithmetic)
        return None if quality is None else self._net(quality, priced_cost, arithmetic)

    def _quality(self, values: Mapping[str, N], arithmetic: Arithmetic[N]) -> N | float | None:
        declared = [(self.metrics[name], value) for name, value in values.items() if name in self.metrics]
        if not declared:
            return self.default
        weighted = [m.weight * m.scale(value, arithmetic) for m, value in declared]
        return arithmetic.total(weighted) / math.fsum(m.weight for m, _ in declared)

    def _net(self, quality: N | float, priced_cost: N, arithmetic: Arithmetic[N]) -> N:
        return arithmetic.clip(quality - self.cost_weight * priced_cost, *self.clip)
