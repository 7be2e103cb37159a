"""Logged feedback as labels: the scores of arms on the questions for which they were drawn.

The log has the score of one arm for each decision. All other cells of the table are unknown, rather than 0: a
reader must impute them or leave them out.

Labels that an operator inserted count too; labels of a warm start are for the candidate of their run alone.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from armwise.feedback.events import Decision, Example, Mode
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log.examples import find_run

REWARD = "reward"
"""Name of the declared reward, unless a metric has this name."""

Value = Callable[[Example], float | None]
"""Scores an example in [0, 1]; None: it lacks feedback."""


class LabelsError(ValueError):
    """The log has no usable feedback; the message counts the decisions left out."""


@dataclass(frozen=True, slots=True)
class LoggedLabels:
    """Scores of questions by arms, as far as the log has them.

    Attributes:
        questions: Distinct texts of the questions, in the order of the training log.
        arms: Names of the arms that were drawn, in the requested order.
        scores: Mean score of the decisions with this question and arm, in [0, 1]; NaN without decisions;
            shape (n_questions, n_arms), float32.
        chances: Probability that the log has each score: that a decision with this question draws the arm;
            in [0, 1], shape (n_questions, n_arms), float32. None: a decision lacks its distribution.
        costs: Mean cost of each arm over its decisions by name, each of shape (n_arms,): `steps` and
            `seconds` of the arm, and `total_tokens` and `usd` of arm and answer together.
        used: Number of decisions.
        excluded: Number of decisions that were left out, by reason.
    """

    questions: tuple[str, ...]
    arms: tuple[str, ...]
    scores: NDArray[np.float32]
    chances: NDArray[np.float32] | None
    costs: Mapping[str, NDArray[np.float64]]
    used: int
    excluded: Mapping[str, int]


def make_scale(rule: RewardRule, name: str) -> Value:
    """Return a function that scales a metric, or `reward`, to [0, 1] by its range; see `Metric.scale`.

    Raises:
        UnknownMetricError: No metric has this name.

    >>> from armwise.feedback.events import Context, Cost, Decision
    >>> from armwise.feedback.reward import Metric
    >>> thumb = make_scale(RewardRule(metrics={"thumb": Metric(range=(-1, 1))}), "thumb")
    >>> thumb(Example(1, Decision("d", Context("?"), ("a",), (1.0,), "a", "p", 1), Cost(), {"thumb": 0.5}))
    0.75
    """
    if name == REWARD and REWARD not in rule.metrics:
        possible = Metric(range=rule.reward_range)
        return lambda example: _scale(possible, rule.compute_reward(example))
    metric = rule.metric(name)
    return lambda example: _scale(metric, example.metrics.get(name))


def _scale(metric: Metric, value: float | None) -> float | None:
    return None if value is None else metric.scale(value)


def labels(examples: Iterable[Example], value: Value, arms: Collection[str]) -> LoggedLabels:
    """Build labels from a training log.

    Args:
        examples: The training log, in order.
        value: Scores an example.
        arms: Arms to label; decisions for others are left out.

    Raises:
        LabelsError: All examples are left out.
    """
    excluded: Counter[str] = Counter()
    rows: dict[str, int] = {}
    cells: dict[tuple[int, str], list[float]] = {}
    chances = _Chances()
    took: dict[str, NDArray[np.float64]] = {}
    for example in examples:
        decision, cost = example.decision, example.cost
        if find_run(decision) is not None:
            excluded["labels of a warm start"] += 1
        elif decision.mode is not Mode.EXPLORE:
            excluded[str(decision.mode)] += 1
        elif decision.drawn not in arms:
            excluded[f"of arm {decision.drawn!r}, which there is no longer"] += 1
        elif decision.erased:
            excluded["without a text, which was erased"] += 1
        elif (score := value(example)) is None:
            excluded["no reward"] += 1
        else:
            row = rows.setdefault(decision.context.question, len(rows))
            cells.setdefault((row, decision.drawn), []).append(score)
            chances.add(row, decision)
            tokens = cost.prompt_tokens + cost.completion_tokens
            spent = np.array([1.0, cost.steps, tokens, cost.retrieval_s, cost.usd])
            took[decision.drawn] = took.get(decision.drawn, 0.0) + spent
    if not took:
        reasons = ", ".join(f"{n} {reason}" for reason, n in excluded.items()) or "none"
        raise LabelsError(f"the log has no feedback to score arms with; decisions left out: {reasons}")
    drawn = tuple(arm for arm in arms if arm in took)
    column = {arm: number for number, arm in enumerate(drawn)}
    scores = np.full((len(rows), len(drawn)), np.nan, dtype=np.float32)
    for (row, arm), values in cells.items():
        scores[row, column[arm]] = np.mean(values)
    n, *sums = np.array([took[arm] for arm in drawn]).T
    names = ("steps", "total_tokens", "seconds", "usd")
    costs = {name: total / n for name, total in zip(names, sums, strict=True)}
    if not costs["usd"].any():
        del costs["usd"]
    known = chances.table(len(rows), column)
    return LoggedLabels(tuple(rows), drawn, scores, known, costs, int(n.sum()), dict(excluded))


class _Chances:
    """Probabilities that at least one decision with a question draws an arm."""

    def __init__(self) -> None:
        self._none: dict[tuple[int, str], float] = {}  # that no decision draws the arm
        self._are_known = True

    def add(self, row: int, decision: Decision) -> None:
        """Add a decision with the question of a row."""
        self._are_known = self._are_known and len(decision.probabilities) == len(decision.arms)
        for arm, p in zip(decision.arms, decision.probabilities, strict=False):
            self._none[row, arm] = self._none.get((row, arm), 1.0) * (1.0 - p)

    def table(self, n: int, column: Mapping[str, int]) -> NDArray[np.float32] | None:
        """Return the probabilities, shape (n, n_arms); None: a decision lacks its distribution."""
        table = np.zeros((n, len(column)), dtype=np.float32)
        for (row, arm), none in self._none.items():
            if arm in column:
                table[row, column[arm]] = 1.0 - none
        return table if self._are_known else None
