"""Logs of other systems: one reward a decision, and rows that cannot be used.

Such a log has no metrics and no costs. Its reward becomes a metric, under a rule that returns its place in
the declared range; a row that no evaluation can use is left out and counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from armwise.feedback.events import LABELS, Decision, Example, Mode
from armwise.feedback.exchange.jsonl import ExchangeError, problems, unlikely
from armwise.feedback.reward import Metric, RewardRule

REWARD = "reward"
"""Default name of the metric that holds the reward of an imported log."""


REMEDIES: Mapping[str, str] = {
    "dangling observation": (
        "a reward whose decision is not in the file: an evaluation needs the line with c, a and p of the "
        "same EventId too, so join the decisions with their rewards, or export both"
    ),
    "no distribution": (
        "the probabilities of the arms are missing, do not fit the arms, or do not sum to 1; only what was "
        "drawn with known probabilities can be weighed, so log them with each decision"
    ),
    "no label": "a decision without _label_cost: join it with its reward first",
    "not learned: _skipLearn": "its activation never came, so nobody saw it",
    "several slots": "more than one action was drawn at once; write a line for each slot",
    "propensity not in (0, 1]": "no arm can be drawn with it: log the probability at the time of the draw",
    "propensity not that of the distribution": "the two probabilities of the drawn arm differ",
    "reward not in": "widen --range where these rewards are right",
}
"""What a reason means and what to do, by the beginning of the reason."""


def remedy_of(reason: str) -> str:
    """Return what a reason means and what to do; empty where the reason says it.

    >>> remedy_of("reward not in [0, 1]")
    'widen --range where these rewards are right'
    """
    return next((text for begins, text in REMEDIES.items() if reason.startswith(begins)), "")


class LeftOut(Exception):  # noqa: N818 - it is counted, and no error
    """A row that no evaluation can use; the message is the reason that is counted."""


def rule_of(metric: str, scale: tuple[float, float]) -> RewardRule:
    """Return the rule of an imported reward: it earns its place in the scale, 0 to 1, and costs nothing.

    >>> rule_of("click", (0.0, 2.0)).quality({"click": 1.5})
    0.75
    """
    return RewardRule(metrics={metric: Metric(range=scale)}, cost_weight=0.0, clip=(0.0, 1.0))


def worth(reward: float, scale: tuple[float, float]) -> float:
    """Return a reward within the scale. Raises LeftOut.

    >>> worth(2.0, (0.0, 1.0))
    Traceback (most recent call last):
    armwise.feedback.exchange.imported.LeftOut: reward not in [0, 1]
    """
    low, high = scale
    if not low <= reward <= high:
        raise LeftOut(f"reward not in [{low:g}, {high:g}]")
    return reward


def possible(propensity: float) -> float:
    """Return a probability that an arm can have been drawn with. Raises LeftOut."""
    if not 0.0 < propensity <= 1.0:
        raise LeftOut("propensity not in (0, 1]")
    return propensity


def sound(example: Example, where: str) -> Example:
    """Return an example that can be written and read back. Raises ExchangeError."""
    for wrong in problems(example):
        raise ExchangeError(f"{where}: {wrong}")
    return example


def rewarded(
    examples: Iterable[Example], reward: Callable[[Example], float | None], left_out: Counter[str]
) -> Iterator[tuple[Example, float]]:
    """Yield the examples that were drawn by a policy and have a reward, with it; count the others."""
    for example in examples:
        if example.decision.mode is not Mode.EXPLORE:
            left_out[str(example.decision.mode)] += 1
        elif example.decision.policy == LABELS:
            left_out[LABELS] += 1
        elif not example.decision.probabilities or any(unlikely(example.decision)):
            left_out["no distribution"] += 1
        elif (earned := reward(example)) is None:
            left_out["failed" if example.failed else "no reward"] += 1
        else:
            yield example, earned


def drawn_first(decision: Decision) -> list[int]:
    """Return the places of the arms, that of the drawn one first and the others in their order."""
    drawn = decision.arms.index(decision.drawn)
    return [drawn, *(at for at in range(len(decision.arms)) if at != drawn)]
