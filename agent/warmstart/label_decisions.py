"""Labels as decisions: known outcomes of arms on questions become examples that a policy learns.

    outcomes of arms --labels_of--> labels --turns--> decision, execution, feedback

A label is a decision of the policy `labels`: one of the arms with a known outcome on the question was drawn
uniformly. A learner handles it like any decision; evaluation excludes it.

With n known arms its propensity is 1 / n. When all n are drawn, one decision each, that is a stratified
sample: each draw alone is uniform, and their mean weighted by the inverse propensity is exactly that of the
question. But they exclude one another, so they are not independent, as those of a service are.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import orjson
from numpy.typing import NDArray

from agent.routers import utility
from arms.jobs import seed_of
from arms.portfolio import Outcomes
from arms.questions import Question
from arms.suggestions import did_you_mean
from feedback.events import LABELS, Context, Cost, Decision, Execution, Feedback, Status
from feedback.reward import RewardRule
from feedback.training_log import examples, imported_turns

Floats = NDArray[np.float64]

COSTS = ("steps", "prompt_tokens", "completion_tokens", "retrieval_s", "llm_s", "usd")
"""The fields of `Cost`."""

IN_TWO = {"kilotokens": ("prompt_tokens", "completion_tokens"), "seconds": ("retrieval_s", "llm_s")}
"""Components of a price that are two fields; a total is stored in the first one."""

OF_RUN = "."
"""Separates the digest of a label from the run that inserted it, in the id of its decision."""


class WarmStartError(ValueError):
    """There are no usable labels or sources; the message says what is left out, and why."""


@dataclass(frozen=True, slots=True)
class LabelDecisions:
    """The outcomes that become decisions. All tables have the shape (n_questions, n_arms).

    Attributes:
        outcomes: Outcomes of the arms.
        arms: Labelled actions, in the order of the actions.
        columns: Column of each in the outcomes.
        values: The value of each metric, NaN where unknown.
        costs: By field of `Cost`, NaN where unknown.
        known: Which cells could be drawn.
        cells: Question and arm of each decision, in the order of insertion, shape (n, 2).
        left_out: How many cells are left out, by reason.
    """

    outcomes: Outcomes
    arms: tuple[str, ...]
    columns: tuple[int, ...]
    values: Mapping[str, Floats]
    costs: Mapping[str, Floats]
    known: NDArray[np.bool_]
    cells: NDArray[np.intp]
    left_out: Mapping[str, int]


def labels_of(
    outcomes: Outcomes,
    rule: RewardRule,
    metrics: Mapping[str, str],
    arms: Sequence[str],
    *,
    draws: int | None = None,
    seed: int = 0,
) -> LabelDecisions:
    """Choose the cells that become decisions, and their order.

    A cell is known when it has a value of every metric that some arm has on the question, and every cost
    that has a price: no arm gains from a missing measurement.

    Args:
        outcomes: Outcomes of the arms.
        rule: Declares the metrics, and the prices.
        metrics: Declared metric to the score that is its value, at least one.
        arms: The actions; those without labels, and labels of other arms, are skipped.
        draws: Arms to draw on each question, without replacement; None for all.
        seed: Seed that shuffles the questions and, with the id of a question, draws its arm.

    Raises:
        RewardError: A metric is not declared, or does not take a value.
        WarmStartError: There is no such score, or nothing is left.
    """
    labelled = tuple(arm for arm in arms if arm in outcomes.arms)
    if not labelled:
        raise WarmStartError(f"no labelled arm ({', '.join(outcomes.arms)}) is an action ({', '.join(arms)})")
    columns = tuple(outcomes.arms.index(arm) for arm in labelled)
    values = {metric: _values(outcomes, rule, metric, score)[:, columns] for metric, score in metrics.items()}
    costs = {field: values[:, columns] for field, values in _costs(outcomes).items()}
    given = ~np.isnan(list(values.values()))
    lacking = given.any(axis=2, keepdims=True) & ~given
    gaps = {"without a score": lacking.any(axis=0) | ~given.any(axis=0)}
    remedies: list[tuple[NDArray[np.bool_], str]] = []
    for component, names in (
        utility.needed(rule.cost, outcomes.costs).items() if rule.cost_weight > 0.0 else ()
    ):
        spent = np.array([_cost_of(outcomes, name)[:, columns] for name in names])
        unknown: NDArray[np.bool_] = np.isnan(spent).any(axis=0)
        gaps[f"without {component}, which have a price"] = unknown
        remedies.append((unknown, utility.remedy(component)))
    known = np.ones((len(outcomes.questions), len(labelled)), dtype=np.bool_)
    left_out: dict[str, int] = {}
    for reason, gap in gaps.items():
        if n := int((known & gap).sum()):
            left_out[reason] = n
        known &= ~gap
    if not known.any():
        why = ", ".join(f"{n:,} {reason}" for reason, n in left_out.items())
        do = "; ".join(remedy for unknown, remedy in remedies if unknown.any())
        raise WarmStartError(f"no label of {', '.join(labelled)} is left: {why}" + (f"; {do}" if do else ""))
    cells = np.argwhere(_drawn(known, outcomes.questions, draws, seed))
    order = np.random.default_rng(seed).permutation(len(cells))  # so that no arm comes in one block
    return LabelDecisions(outcomes, labelled, columns, values, costs, known, cells[order], left_out)


def _values(outcomes: Outcomes, rule: RewardRule, metric: str, score: str) -> Floats:
    """Return the values of a metric, checked against its declaration."""
    declared = rule.metric(metric)
    if score not in outcomes.scores:
        raise WarmStartError(f"metric {metric!r} is to get {score!r}{did_you_mean(score, outcomes.scores)}")
    values = outcomes.scores[score]
    for value in np.unique(values[~np.isnan(values)]).tolist():
        declared.parse(value, metric)
    return values


def _costs(outcomes: Outcomes) -> dict[str, Floats]:
    """Return the fields of `Cost`, each of shape (n_questions, n_arms); NaN where unknown."""
    costs = {field: _cost_of(outcomes, field) for field in COSTS}
    for component, (first, second) in IN_TWO.items():
        if len(way := utility.way_of(component, outcomes.costs)) == 1:
            costs |= {first: _cost_of(outcomes, way[0]), second: _cost_of(outcomes, "")}
    return costs


def _cost_of(outcomes: Outcomes, name: str) -> Floats:
    """Return a cost, all NaN where it was not measured."""
    shape = len(outcomes.questions), len(outcomes.arms)
    return outcomes.costs.get(name, np.full(shape, np.nan))


def _drawn(
    known: NDArray[np.bool_], questions: Sequence[Question], draws: int | None, seed: int
) -> NDArray[np.bool_]:
    """Draw known cells, all without a number of draws; a larger number extends a smaller one."""
    drawn = np.zeros_like(known)
    for row, question in enumerate(questions):
        order = np.random.default_rng(seed_of(seed, question.id)).permutation(np.flatnonzero(known[row]))
        drawn[row, order[:draws]] = True
    return drawn


def turns(
    labels: LabelDecisions,
    contexts: Sequence[Context],
    *,
    seen_as: str = "",
    run: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Iterator[imported_turns.PastTurn]:
    """Yield the facts of each label.

    The id of a decision is a digest of the outcome of the arm on the question, of `seen_as` and of the run:
    the same label is the same decision whenever it is inserted, whatever the other labels and the order.

    Args:
        labels: The labels.
        contexts: What a policy sees of each question, shape (n_questions,).
        seen_as: How the contexts were made: a question with other features is another label.
        run: The warm start that inserts them; None for labels that every recipe learns.
        clock: Seconds since the epoch.
    """
    episode = None if run is None else examples.episode_of(run)
    outcomes = labels.outcomes
    for row, at in labels.cells.tolist():
        question, arm, column = outcomes.questions[row], labels.arms[at], labels.columns[at]
        values = _known_of(labels.values, row, at)
        cost = _cost(_known_of(labels.costs, row, at))
        passages, answer = outcomes.passages[row][column] or (), outcomes.answers[row][column]
        content = [seen_as, question.id, question.text, arm, values, cost, passages, answer]
        digest = f"label-{blake2b(orjson.dumps(content), digest_size=16).hexdigest()}"
        name = digest if run is None else f"{digest}{OF_RUN}{run}"
        arms = tuple(other for other, could in zip(labels.arms, labels.known[row], strict=True) if could)
        now = clock()
        yield imported_turns.PastTurn(
            Decision(
                id=name,
                context=contexts[row],
                arms=arms,
                probabilities=(1.0 / len(arms),) * len(arms),
                drawn=arm,
                policy=LABELS,
                version=0,
                decided_at=now,
                deadline=now,  # its feedback is known already
                episode_id=episode,
            ),
            Execution(name, arm, Status.OK, cost, passages, answer, finished_at=now),
            tuple(Feedback(f"{name}:{metric}", name, metric, value, now) for metric, value in values.items()),
        )


def label_digest(decision_id: str) -> str:
    """Return the part of the id of a label that does not depend on the run.

    >>> label_digest("label-5eed.7"), label_digest("label-5eed")
    ('label-5eed', 'label-5eed')
    """
    return decision_id.partition(OF_RUN)[0]


def _known_of(tables: Mapping[str, Floats], row: int, column: int) -> dict[str, float]:
    """Return the known values of a cell."""
    found = {name: table[row, column].item() for name, table in tables.items()}
    return {name: value for name, value in found.items() if not np.isnan(value)}


def _cost(known: Mapping[str, float]) -> Cost:
    """Return a cost as the log keeps it: counts are integers, and a missing one is 0.

    >>> _cost({"steps": 1.6, "llm_s": 0.5})
    Cost(steps=2, prompt_tokens=0, completion_tokens=0, retrieval_s=0.0, llm_s=0.5, usd=0.0)
    """
    steps, read, written, retrieval_s, llm_s, usd = (known.get(name, 0.0) for name in COSTS)
    return Cost(round(steps), round(read), round(written), retrieval_s, llm_s, usd)


def reward_of(turn: imported_turns.PastTurn, rule: RewardRule) -> float:
    """Return the reward of a label."""
    reward = rule.reward(rule.aggregate(turn.feedback), turn.execution.cost)
    assert reward is not None  # every label has a value
    return reward


def label_decisions(
    outcomes: Outcomes,
    contexts: Sequence[Context],
    rule: RewardRule,
    metrics: Mapping[str, str],
    arms: Sequence[str],
    *,
    draws: int | None = None,
    seed: int = 0,
) -> Iterator[tuple[Decision, float]]:
    """Return labels as a learner reads them from the log, for `policy.learn`.

    `contexts` is what a policy sees of each question; the other arguments are those of `labels_of`.
    """
    labels = labels_of(outcomes, rule, metrics, arms, draws=draws, seed=seed)
    return ((turn.decision, reward_of(turn, rule)) for turn in turns(labels, contexts, clock=lambda: 0.0))
