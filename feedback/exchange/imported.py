"""Logs of other systems: a reward for each decision, and rows that cannot be used.

Such a log lacks metrics and costs. Its reward becomes a metric, under a rule that returns its place in the
declared range; a row that no evaluation can use is left out, counted and reported.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from armwise.feedback.arrays import TOLERANCE
from armwise.feedback.events import LABELS, LEAST_PROPENSITY, Decision, Example, Mode
from armwise.feedback.jsonl import ExchangeError, problems, unlikely
from armwise.feedback.reward import Metric, RewardRule

REWARD = "reward"
"""Default name of the metric that holds the reward of an imported log."""

SHOWN = 3
"""Rows that are named for each reason."""


NOT_A_PROBABILITY, NO_DISTRIBUTION = "propensity not in (0, 1]", "no distribution"
NOT_DRAWN = "drawn arm not in the distribution"
DISAGREES = "propensity differs from the distribution"

IMPOSSIBLE = (NOT_A_PROBABILITY, NO_DISTRIBUTION, NOT_DRAWN, DISAGREES)
"""Reasons of rows whose probabilities cannot be right."""


class BadValue(Exception):  # noqa: N818 - it is counted, and no error
    """A row that no evaluation can use; the message is the reason that is counted.

    Attributes:
        detail: The column, the value, and what would be right.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.detail = detail


@dataclass(slots=True)
class Faults:
    """Rows that were left out: counted by reason, the first of each named.

    Attributes:
        strict: Whether the first wrong row is an error.
        counts: Number of rows by reason.
        shown: The first rows by reason: the place, the value and what would be right.
    """

    strict: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    shown: dict[str, list[str]] = field(default_factory=dict)

    def add(self, where: str, bad: BadValue) -> None:
        """Record a wrong row. Raises ExchangeError if strict."""
        if self.strict:
            raise ExchangeError(f"{where}: {bad.detail}")
        self.note(where, bad)

    def note(self, where: str, bad: BadValue) -> None:
        """Record a row that is not a decision, or was counted before."""
        self.counts[str(bad)] += 1
        named = self.shown.setdefault(str(bad), [])
        if len(named) < SHOWN:
            named.append(f"{where}: {bad.detail}")


def make_rule(metric: str, scale: tuple[float, float]) -> RewardRule:
    """Return the rule of an imported reward: its place in the scale, 0 to 1, without costs.

    >>> make_rule("click", (0.0, 2.0)).quality({"click": 1.5})
    0.75
    """
    return RewardRule(metrics={metric: Metric(range=scale)}, cost_weight=0.0, clip=(0.0, 1.0))


def worth(name: str, reward: float, scale: tuple[float, float]) -> float:
    """Return the reward in a column within the scale. Raises BadValue.

    >>> worth("click", 2.0, (0.0, 1.0))
    Traceback (most recent call last):
    armwise.feedback.exchange.imported.BadValue: reward not in [0, 1]
    """
    low, high = scale
    if not math.isfinite(reward):
        raise BadValue("reward is not a number", f"{name} is {reward}; expected a number")
    if not low <= reward <= high:
        raise BadValue(
            f"reward not in [{low:g}, {high:g}]",
            f"{name} is {reward:g}; expected a reward in [{low:g}, {high:g}]; to change that, set --range",
        )
    return reward


def possible(name: str, propensity: float) -> float:
    """Return the probability in a column that an arm can have been drawn with. Raises BadValue."""
    if not LEAST_PROPENSITY <= propensity <= 1.0:
        raise BadValue(
            NOT_A_PROBABILITY,
            f"{name} is {propensity:g}; expected a probability in (0, 1], {LEAST_PROPENSITY:g} or more",
        )
    return propensity


LEAST_DIGITS = 3
"""Digits of the longest number below which a sum of printed probabilities must be 1."""


def rounding(printed: Sequence[float]) -> float:
    """Return the rounding error of the sum of printed probabilities: half a unit of the last digit of each.

    The longest number shows how many digits were printed, significant ones or decimals, since some programs
    omit zeros at the end.

    >>> rounding([0.333, 0.333, 0.333]), rounding([0.5, 0.4])
    (0.0015, 1e-06)
    """
    numbers = [Decimal(repr(p)) for p in printed]
    digits = max(len(p.normalize().as_tuple().digits) for p in numbers)
    if digits < LEAST_DIGITS:
        return TOLERANCE
    decimals = max(-int(p.normalize().as_tuple().exponent) for p in numbers)
    significant = math.fsum(10.0 ** (p.adjusted() - digits + 1) for p in numbers if p)
    return max(TOLERANCE, significant / 2, len(numbers) * 10.0**-decimals / 2)


def distribution(name: str, printed: Sequence[float]) -> tuple[float, ...]:
    """Return the probabilities in a column, scaled to sum to 1 if they were rounded.

    Raises:
        BadValue: They are not a distribution.

    >>> distribution("p", [0.3333, 0.3333, 0.3333])
    (0.3333333333333333, 0.3333333333333333, 0.3333333333333333)
    """
    total = math.fsum(printed)
    if not all(0.0 <= p <= 1.0 for p in printed) or _differ(total, 1.0, printed):
        raise BadValue(
            NO_DISTRIBUTION,
            f"{name} is {cut(list(printed))}; expected probabilities of the arms that sum to 1",
        )
    return tuple(printed) if abs(total - 1.0) <= TOLERANCE else tuple(p / total for p in printed)


def check_agreement(name: str, propensity: float, drawn: float, printed: Sequence[float]) -> None:
    """Check that the propensity in a column is the printed probability of the drawn arm. Raises BadValue."""
    if _differ(propensity, drawn, printed):
        raise BadValue(
            DISAGREES,
            f"{name} is {propensity:g}, but the distribution has {drawn:g} for the drawn arm; they must "
            "be equal",
        )


def _differ(a: float, b: float, printed: Sequence[float]) -> bool:
    """Return whether two numbers differ by more than the digits of a distribution explain."""
    away = abs(a - b)
    return away > TOLERANCE and away - rounding(printed) > 1e-12  # 1e-12: the rounding of doubles


def cut(value: object) -> str:
    """Return a value as a message shows it."""
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def sound(example: Example) -> Example:
    """Return an example that can be written and read back. Raises BadValue."""
    for wrong in problems(example):
        raise BadValue("row cannot be written", wrong)
    return example


def filter_rewarded(
    examples: Iterable[Example], reward: Callable[[Example], float | None], left_out: Counter[str]
) -> Iterator[tuple[Example, float]]:
    """Yield the examples that a policy drew and that have a reward, with the reward; count the others."""
    for example in examples:
        if example.decision.mode is not Mode.EXPLORE:
            left_out[str(example.decision.mode)] += 1
        elif example.decision.policy == LABELS:
            left_out[LABELS] += 1
        elif not example.decision.probabilities or any(unlikely(example.decision)):
            left_out[NO_DISTRIBUTION] += 1
        elif (earned := reward(example)) is None:
            left_out["failed" if example.failed else "no reward"] += 1
        else:
            yield example, earned


def order_drawn_first(decision: Decision) -> list[int]:
    """Return the places of the arms, that of the drawn one first and the others in their order."""
    drawn = decision.arms.index(decision.drawn)
    return [drawn, *(at for at in range(len(decision.arms)) if at != drawn)]
