"""Routers fitted offline on outcomes, and what needs no router: single arms, chance, the oracle."""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from routing_data import DataSet
from routing_online import Curve, Player, learn_online
from routing_rows import Row

from armwise.agent.lab.routers import cross_validation, utilities
from armwise.agent.routers import Features, RoutingDataset, Stage, build_router, dataset
from armwise.agent.routers.utility import R3AG
from armwise.arms.lab.portfolio import Outcomes

Floats = NDArray[np.float64]

REPEATS = 5
"""Folds, seeds and orders."""

LIMIT = 2000
"""Questions of the larger files."""

ASKED = 3000
"""Most questions of an order."""


@dataclass
class Played:
    """What a row of the table earned on each scored question.

    Attributes:
        values: Name of a column to its values, NaN where it was not scored, each of shape (n_questions,).
        sees: How far it looks; `online` for a policy.
        gaps: Share of the gap that was closed in each fold, with each seed or in each order.
        fit_s: Seconds that one fit took, features given.
        realised: Whether the arm that was really drawn was right; for tests of policies, which explore.
    """

    values: dict[str, Floats]
    sees: str = ""
    gaps: list[float] = field(default_factory=list)
    fit_s: float = 0.0
    realised: Floats | None = None


def labels_of(
    data: DataSet, row: Row, fit: NDArray[np.bool_], at: Sequence[int]
) -> tuple[Floats, Floats | None]:
    """Return what a router is fitted to on some questions, and its label of quality where it takes one."""
    outcomes = data.outcomes.only(fit)
    match row.label:
        case "reward":
            return compute_reward(data)[fit][:, at], None
        case "em + recall":
            return (outcomes.scores["em"] + outcomes.scores["recall"])[:, at], None
        case "r3ag":
            return utilities.utilities(outcomes, R3AG)[:, at], outcomes.scores["recall"][:, at]
        case score:
            return outcomes.scores[score][:, at], None


def quality(outcomes: Outcomes) -> Floats:
    """Return what a reward is made of: F1 where it is known, else whether the answer is right."""
    return outcomes.scores["f1" if "f1" in outcomes.scores else "em"]


def compute_reward(data: DataSet) -> Floats:
    """Return the reward of each arm on each question, net of cost."""
    cost, weight = data.cost
    spent = data.outcomes.costs.get(cost)
    return quality(data.outcomes) - (0.0 if spent is None else weight * spent)


def tokens_of(outcomes: Outcomes) -> Floats | None:
    """Return the tokens of each answer; None where nothing is known of them."""
    if "prompt_tokens" not in outcomes.costs:
        return None
    total: Floats = outcomes.costs["prompt_tokens"] + outcomes.costs["completion_tokens"]
    return total


def played(data: DataSet, picks: NDArray[np.intp], stage: Stage, arms: Sequence[int]) -> dict[str, Floats]:
    """Return what picking these arms earned and cost; -1 is not scored, and NaN.

    Args:
        data: The outcomes.
        picks: Column of an arm on each question, shape (n_questions,).
        stage: What had to be known for it.
        arms: Columns of the arms that were looked at.
    """
    outcomes = data.outcomes
    at = np.arange(len(picks))
    values = {name: outcomes.scores[name][at, picks] for name in ("em", "f1") if name in outcomes.scores}
    for name, spent in (("cost", outcomes.costs.get(data.cost[0])), ("tokens", tokens_of(outcomes))):
        if spent is None:
            continue
        picked, every = spent[at, picks], spent[:, list(arms)].sum(axis=1)
        if stage is Stage.RETRIEVED and name == "tokens":
            # an arm of several calls has asked all but the last of them while it searched
            calls = outcomes.costs["llm_calls"][:, list(arms)]
            searched = (spent[:, list(arms)] * (1.0 - 1.0 / calls)).sum(axis=1)
            last = spent[at, picks] / outcomes.costs["llm_calls"][at, picks]
            every = searched + last
        values[name] = picked if stage is Stage.QUESTION else every
    spent = data.cost[1] * values["cost"] if "cost" in values else 0.0
    values["reward"] = quality(outcomes)[at, picks] - spent
    return {name: np.where(picks < 0, np.nan, column) for name, column in values.items()}


def splits(data: DataSet) -> list[NDArray[np.bool_]]:
    """Return which questions to fit on: a published split, or five folds."""
    if data.fit is not None:
        return [data.fit]
    texts = [question.text for question in data.outcomes.questions]
    numbers = np.arange(len(texts))
    return [np.isin(numbers, fit) for fit, _ in cross_validation.folds(texts, REPEATS)]


HERE: list[DataSet] = []
"""The data set that a worker was given when it started."""


def adopt(data: DataSet) -> None:
    """Give a worker its data set."""
    HERE.append(data)


@cache
def seen(arms: tuple[str, ...]) -> Features:
    """Return what a router sees at most, worked out once a worker."""
    return HERE[0].features(arms)


def without(features: Features, unseen: Collection[str]) -> Features:
    """Return the features without some columns of what was retrieved."""
    table = features.retrieved
    if not unseen or table is None:
        return features
    kept = [number for number, name in enumerate(table.names) if name not in unseen]
    shown = dataset.ArmTable(tuple(table.names[number] for number in kept), table.values[:, :, kept])
    return replace(features, retrieved=shown)


def in_all_orders(player: Player) -> list[Curve]:
    """Let a policy learn online in every order."""
    return [learn_online(player, HERE[0], compute_reward(HERE[0]), order, ASKED) for order in range(REPEATS)]


def fit_and_score(row: Row) -> Played:
    """Fit a router on each split, and play what it picks on the rest."""
    data = HERE[0]
    arms = row.arms or data.outcomes.arms
    looks = build_router(row.spec).stage is not Stage.QUESTION
    features = without(seen(arms), row.unseen) if looks else data.asked.select_arms(arms)
    at = [data.outcomes.arms.index(arm) for arm in arms]
    told: list[dict[str, Floats]] = []
    result = Played({}, build_router(row.spec).stage.name.lower())
    for fit in splits(data):
        router = build_router(row.spec)
        labels = RoutingDataset(features.rows(fit), *labels_of(data, row, fit, at))
        begun = time.perf_counter()
        router.fit(labels)
        result.fit_s += time.perf_counter() - begun
        scores = router.scores(features.rows(~fit))
        picks = np.full(len(fit), -1)
        picks[~fit] = np.array(at)[scores.argmax(axis=1)]
        told.append(played(data, picks, router.stage, at))
        result.gaps.append(gap(told[-1]["em"], data))
    result.fit_s /= len(told)
    result.values = {name: nanmean([fold[name] for fold in told]) for name in told[0]}
    return result


def nanmean(columns: Sequence[Floats]) -> Floats:
    """Return the mean of what is known of each question, NaN where nothing is."""
    stacked = np.stack(columns)
    present = ~np.isnan(stacked)
    total = np.where(present, stacked, 0.0).sum(axis=0)
    return np.where(present.any(axis=0), total / np.maximum(present.sum(axis=0), 1), np.nan)


def gap(em: Floats, data: DataSet) -> float:
    """Return the share of the gap between the best single arm and the oracle that is closed."""
    scored = ~np.isnan(em)
    scores = data.outcomes.scores["em"][scored]
    best = scores.mean(axis=0).max()
    return float((em[scored].mean() - best) / (scores.max(axis=1).mean() - best))


def baselines(data: DataSet) -> Iterator[tuple[str, Played]]:
    """Yield what needs no router: chance, single arms, the best one of each group, the oracle."""
    em = data.outcomes.scores["em"]
    every = range(len(data.outcomes.arms))
    scored = np.any([~fit for fit in splits(data)], axis=0)

    def fixed(picks: NDArray[np.intp]) -> dict[str, Floats]:
        return played(data, np.where(scored, picks, -1), Stage.QUESTION, every)

    single = {arm: fixed(np.full(len(em), column)) for column, arm in enumerate(data.outcomes.arms)}
    chance = {
        name: nanmean([figures[name] for figures in single.values()])
        for name in single[data.outcomes.arms[0]]
    }
    yield "random arm", Played(chance)
    for arm, values in sorted(single.items(), key=lambda item: np.nanmean(item[1]["em"])):
        yield f"always {arm}", Played(values)
    groups = np.array([question.dataset for question in data.outcomes.questions])
    told = []
    for fit in splits(data):
        picks = np.full(len(em), -1)
        for group in np.unique(groups):
            training = fit & (groups == group)
            best = em[training if training.any() else fit].mean(axis=0).argmax()
            picks[~fit & (groups == group)] = best
        told.append(played(data, picks, Stage.QUESTION, every))
    yield (
        "best arm of each source",
        Played({name: nanmean([fold[name] for fold in told]) for name in told[0]}),
    )
    cheapest = em + 1e-6 * compute_reward(data)  # of several right arms the one that earns most
    yield "oracle", Played(fixed(cheapest.argmax(axis=1)))
