"""Logged feedback as labels: what an arm earned on the questions on which it was drawn.

Of each decision the log knows one arm. All other cells of the table are unknown, which
is not the same as worthless: whoever reads it must fill them in or leave them out.

What an operator entered as a label counts too: an arm is worth the same whoever drew it. Labels of a warm
start do not, since they count for nothing but the candidate of their run.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feedback.events import Example, Mode
from feedback.reward import RewardRule
from feedback.training_log.examples import run_of

REWARD = "reward"
"""Stands for the declared reward, where no metric has this name."""

Value = Callable[[Example], float | None]
"""What an example is worth, in [0, 1]; None when it was not judged."""


class LabelsError(ValueError):
    """The log holds no label; the message says what was left out."""


@dataclass(frozen=True, slots=True)
class LoggedLabels:
    """Questions by arms, as far as the log knows.

    Attributes:
        questions: Their texts, each once, in the order in which they were learned.
        arms: Those that were drawn, by name, in the order that was asked for.
        scores: Mean value of all decisions with this question and arm, in [0, 1], NaN
            where there was none, shape (n_questions, n_arms), float32.
        costs: Name of a cost to its mean for each arm over all its decisions, each of
            shape (n_arms,): `steps` and `seconds` of the arm, and `total_tokens`: what the arm
            spent and what the answer took, which the log does not tell apart.
        used: How many decisions that are.
        excluded: Decisions that were left out, by reason.
    """

    questions: tuple[str, ...]
    arms: tuple[str, ...]
    scores: NDArray[np.float32]
    costs: Mapping[str, NDArray[np.float64]]
    used: int
    excluded: Mapping[str, int]


def value_of(rule: RewardRule, name: str) -> Value:
    """Return what scales a metric, or `reward`, into [0, 1] by its declared range; 1 is best.

    A sum of several values that leaves the range is cut to it.

    Raises:
        UnknownMetricError: No metric has this name.

    >>> from feedback.events import Context, Cost, Decision
    >>> from feedback.reward import Metric
    >>> thumb = value_of(RewardRule(metrics={"thumb": Metric(range=(-1, 1))}), "thumb")
    >>> thumb(Example(1, Decision("d", Context("?"), ("a",), (1.0,), "a", "p", 1), Cost(), {"thumb": 0.5}))
    0.75
    """
    if name == REWARD and REWARD not in rule.metrics:
        return lambda example: _scaled(rule.reward_of(example), rule.clip)
    metric = rule.metric(name)
    low, high = metric.range if metric.optimize == "max" else metric.range[::-1]
    return lambda example: _scaled(example.metrics.get(name), (low, high))


def _scaled(value: float | None, ends: tuple[float, float]) -> float | None:
    """Return where a value is on the way from the worst to the best, cut to [0, 1].

    >>> _scaled(2.0, (5.0, 1.0)), _scaled(9.0, (0.0, 1.0))
    (0.75, 1.0)
    """
    if value is None:
        return None
    worst, best = ends
    return min(1.0, max(0.0, (value - worst) / (best - worst)))


def labels(examples: Iterable[Example], value: Value, arms: Collection[str]) -> LoggedLabels:
    """Make labels of the training log.

    Args:
        examples: The training log, in order.
        value: What an example is worth.
        arms: Those that may be labelled; decisions for others are left out.

    Raises:
        LabelsError: No example is left.
    """
    excluded: Counter[str] = Counter()
    rows: dict[str, int] = {}
    cells: dict[tuple[int, str], list[float]] = {}
    took: dict[str, NDArray[np.float64]] = {}
    for example in examples:
        decision, cost = example.decision, example.cost
        if run_of(decision) is not None:
            excluded["labels of a warm start"] += 1
        elif decision.mode is not Mode.EXPLORE:
            excluded[str(decision.mode)] += 1
        elif decision.drawn not in arms:
            excluded[f"of arm {decision.drawn!r}, which there is no longer"] += 1
        elif (worth := value(example)) is None:
            excluded["not judged"] += 1
        else:
            row = rows.setdefault(decision.context.question, len(rows))
            cells.setdefault((row, decision.drawn), []).append(worth)
            tokens = cost.prompt_tokens + cost.completion_tokens
            one = np.array([1.0, cost.steps, tokens, cost.retrieval_s])
            took[decision.drawn] = took.get(decision.drawn, 0.0) + one
    if not took:
        told = ", ".join(f"{n} {reason}" for reason, n in excluded.items()) or "none"
        raise LabelsError(f"the log holds no feedback to score arms by; decisions left out: {told}")
    drawn = tuple(arm for arm in arms if arm in took)
    column = {arm: number for number, arm in enumerate(drawn)}
    scores = np.full((len(rows), len(drawn)), np.nan, dtype=np.float32)
    for (row, arm), found in cells.items():
        scores[row, column[arm]] = np.mean(found)
    n, *sums = np.array([took[arm] for arm in drawn]).T
    costs = {name: total / n for name, total in zip(("steps", "total_tokens", "seconds"), sums, strict=True)}
    return LoggedLabels(tuple(rows), drawn, scores, costs, int(n.sum()), dict(excluded))
