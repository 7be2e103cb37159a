"""Labels as decisions: what is known of arms on questions becomes what a policy learns from.

    outcomes of arms --labels_of--> what is entered --turns--> decision, execution, feedback

A label is a decision of the policy `labels`: of the arms that are known on a question one was drawn,
each as likely as any other. A learner takes it like any decision; evaluation leaves it out.

What its propensity means: with n known arms it is 1 / n. When all n are drawn, one decision each, that
is a stratified sample: any one of these draws, seen alone, is uniform, and their mean, weighted by one
over the propensity, is that of the question exactly, not only on average. But they exclude one
another: they are no independent draws, as those of a service are.
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
"""Components of a price that are two fields; where only a total is told, the first one holds it."""

OF_RUN = "."
"""Stands between what a label tells and the run that entered it, in the id of its decision."""


class WarmStartError(ValueError):
    """There is nothing to learn from; the message says what is left out, and why."""


@dataclass(frozen=True, slots=True)
class LabelDecisions:
    """What of the outcomes becomes decisions. All tables have the shape (n_questions, n_arms).

    Attributes:
        outcomes: What the arms did.
        arms: Those that are labelled and are actions, in the order of the actions.
        columns: Where each stands in the outcomes.
        values: The value of each metric, NaN where unknown.
        costs: What each arm took, by field of `Cost`, NaN where unknown.
        known: Which cells could be drawn.
        cells: Question and arm of each decision, in the order in which they are entered, shape (n, 2).
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
    """Choose what becomes a decision, and in which order.

    A cell is known when it has a value of every metric that some arm has on the question, and every cost
    that has a price: no arm shall look better for what nobody measured of it.

    Args:
        outcomes: What the arms did.
        rule: Declares the metrics, and the prices.
        metrics: Declared metric to the score that is its value, at least one.
        arms: The actions; those without labels are passed over, and labels of other arms, too.
        draws: Arms to draw on each question, without replacement; None for all.
        seed: Of the draws, which follow from it and the id of the question, and of the order.

    Raises:
        RewardError: A metric is not declared, or does not take a value.
        WarmStartError: There is no such score, or nothing is left.
    """
    asked = tuple(arm for arm in arms if arm in outcomes.arms)
    if not asked:
        raise WarmStartError(
            f"labelled are {', '.join(outcomes.arms)}: none of them is an action, which are {', '.join(arms)}"
        )
    columns = tuple(outcomes.arms.index(arm) for arm in asked)
    values = {metric: _values(outcomes, rule, metric, score)[:, columns] for metric, score in metrics.items()}
    costs = {field: values[:, columns] for field, values in _costs(outcomes).items()}
    told = ~np.isnan(list(values.values()))
    lacking = told.any(axis=2, keepdims=True) & ~told
    gaps = {"without a score": lacking.any(axis=0) | ~told.any(axis=0)}
    remedies: list[tuple[NDArray[np.bool_], str]] = []
    for component, names in (
        utility.needed(rule.cost, outcomes.costs).items() if rule.cost_weight > 0.0 else ()
    ):
        spent = np.array([_cost_of(outcomes, name)[:, columns] for name in names])
        unknown: NDArray[np.bool_] = np.isnan(spent).any(axis=0)
        gaps[f"without {component}, which have a price"] = unknown
        remedies.append((unknown, utility.remedy(component)))
    known = np.ones((len(outcomes.questions), len(asked)), dtype=np.bool_)
    left_out: dict[str, int] = {}
    for reason, gap in gaps.items():
        if n := int((known & gap).sum()):
            left_out[reason] = n
        known &= ~gap
    if not known.any():
        why = ", ".join(f"{n:,} {reason}" for reason, n in left_out.items())
        do = "; ".join(told for unknown, told in remedies if unknown.any())
        raise WarmStartError(f"no label of {', '.join(asked)} is left: {why}" + (f"; {do}" if do else ""))
    cells = np.argwhere(_drawn(known, outcomes.questions, draws, seed))
    order = np.random.default_rng(seed).permutation(len(cells))  # a policy shall see no arm in a block
    return LabelDecisions(outcomes, asked, columns, values, costs, known, cells[order], left_out)


def _values(outcomes: Outcomes, rule: RewardRule, metric: str, score: str) -> Floats:
    """Return the values of a metric, once it takes them."""
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
    """Return a cost, all NaN where nobody tells it."""
    shape = len(outcomes.questions), len(outcomes.arms)
    return outcomes.costs.get(name, np.full(shape, np.nan))


def _drawn(
    known: NDArray[np.bool_], questions: Sequence[Question], draws: int | None, seed: int
) -> NDArray[np.bool_]:
    """Draw cells that are known; more draws are the same ones, and some more."""
    if draws is None:
        return known
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
    """Yield what the log is told of each label.

    The id of a decision follows from what the arm did on the question, from `seen_as` and from the run:
    the same label is the same decision whenever it is entered, whatever the other labels and the order.

    Args:
        labels: What to tell of.
        contexts: What a policy sees of each question, shape (n_questions,).
        seen_as: How the contexts were made: a question that is described anew is another label.
        run: The warm start that enters them; None for labels that everybody learns.
        clock: Seconds since the epoch.
    """
    episode = None if run is None else examples.episode_of(run)
    outcomes = labels.outcomes
    for row, at in labels.cells.tolist():
        question, arm, column = outcomes.questions[row], labels.arms[at], labels.columns[at]
        values = _told(labels.values, row, at)
        cost = _cost(_told(labels.costs, row, at))
        passages, answer = outcomes.passages[row][column] or (), outcomes.answers[row][column]
        content = [seen_as, question.id, question.text, arm, values, cost, passages, answer]
        told = f"label-{blake2b(orjson.dumps(content), digest_size=16).hexdigest()}"
        name = told if run is None else f"{told}{OF_RUN}{run}"
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
                deadline=now,  # it is judged already: there is nothing to wait for
                episode_id=episode,
            ),
            Execution(name, arm, Status.OK, cost, passages, answer, finished_at=now),
            tuple(Feedback(f"{name}:{metric}", name, metric, value, now) for metric, value in values.items()),
        )


def told_by(decision_id: str) -> str:
    """Return the id that a label has whichever run enters it.

    >>> told_by("label-5eed.7"), told_by("label-5eed")
    ('label-5eed', 'label-5eed')
    """
    return decision_id.partition(OF_RUN)[0]


def _told(tables: Mapping[str, Floats], row: int, column: int) -> dict[str, float]:
    """Return what is known of a cell."""
    found = {name: table[row, column].item() for name, table in tables.items()}
    return {name: value for name, value in found.items() if not np.isnan(value)}


def _cost(told: Mapping[str, float]) -> Cost:
    """Return a cost as the log keeps it: counts are whole, and what is not told is 0.

    >>> _cost({"steps": 1.6, "llm_s": 0.5})
    Cost(steps=2, prompt_tokens=0, completion_tokens=0, retrieval_s=0.0, llm_s=0.5, usd=0.0)
    """
    steps, read, written, retrieval_s, llm_s, usd = (told.get(name, 0.0) for name in COSTS)
    return Cost(round(steps), round(read), round(written), retrieval_s, llm_s, usd)


def reward_of(turn: imported_turns.PastTurn, rule: RewardRule) -> float:
    """Return what a label is worth."""
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
    """Return labels as a learner reads them from the log: for `policy.learn`, one after the other.

    `contexts` are what a policy sees of the questions; all else is as `labels_of` says.
    """
    labels = labels_of(outcomes, rule, metrics, arms, draws=draws, seed=seed)
    return ((turn.decision, reward_of(turn, rule)) for turn in turns(labels, contexts, clock=lambda: 0.0))
