"""Policies that learn online from the one arm that they draw, on questions whose every outcome is known."""

import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from routing_data import DataSet

from armwise.agent.lab.warmstart import label_decisions
from armwise.agent.policies import (
    FeatureSpec,
    Policy,
    PolicySpec,
    build_policy,
    choose,
    compute_served_distribution,
    describe,
    sampling,
)
from armwise.agent.policies import features as policy_features
from armwise.agent.routers import RouterSpec, RoutingDataset, build_router
from armwise.feedback.events import Context, Decision

Floats = NDArray[np.float64]

FORM = FeatureSpec(words=0)
WORDS = FeatureSpec(words=16)
DENSE = FeatureSpec(words=0, embedding=policy_features.EmbeddingSpec(backbone="minilm", dims=32))

LABELLED = 1000
"""Other questions whose labels a warm start is given."""


@dataclass(frozen=True)
class Player:
    """A policy, what it sees, and what it starts from.

    Attributes:
        policy: What learns.
        features: What it sees of a question.
        floor: Least probability of an arm.
        router: Fitted to the labels of other questions; its score is a feature of each arm.
        labels: Whether labels are learned as decisions.
        measure: What the router is fitted to: the reward, or a score, such as recall, which needs no answer.
    """

    policy: PolicySpec
    features: FeatureSpec
    floor: float
    router: RouterSpec | None = None
    labels: bool = False
    measure: str = "reward"


@dataclass(frozen=True)
class Curve:
    """What a policy drew from, in one order.

    Attributes:
        asked: Numbers of the questions, in order.
        probabilities: Shape (n_asked, n_arms).
        drawn: Columns of the arms that the draws fell on, shape (n_asked,).
        seconds: What deciding and learning took.
    """

    asked: NDArray[np.intp]
    probabilities: Floats
    drawn: NDArray[np.intp]
    seconds: float

    def lead(self, reward: Floats) -> Floats:
        """Return the expected reward of each turn less that of the best fixed arm, shape (n_asked,)."""
        rewards = reward[self.asked]
        expected: Floats = (self.probabilities * rewards).sum(axis=1)
        return expected - rewards[:, rewards.mean(axis=0).argmax()]


@dataclass(frozen=True)
class Feedback:
    """How rewards come back.

    Attributes:
        delay: Turns until a reward is learned.
        share: Of the turns that ever get one.
        first: Questions that come before all others, as a mask of shape (n_questions,); else None.
    """

    delay: int = 0
    share: float = 1.0
    first: NDArray[np.bool_] | None = None


def learn_online(
    player: Player,
    data: DataSet,
    reward: Floats,
    order: int,
    limit: int,
    feedback: Feedback = Feedback(),
) -> Curve:
    """Let a policy choose for questions in a random order, and learn the reward of what it drew.

    Args:
        player: The policy, and what it is given before.
        data: The questions.
        reward: Of each arm on each question, shape (n_questions, n_arms).
        order: Seed of the order. The labels of a warm start are of questions that it leaves out; where a
            split was published, of those to fit on, and all others are asked.
        limit: Most questions to ask.
        feedback: When and how often a reward is learned.
    """
    shuffled = np.random.default_rng(order).permutation(len(reward))
    if data.fit is None:
        labelled, others = shuffled[:LABELLED], shuffled[LABELLED:]
    else:
        labelled, others = shuffled[data.fit[shuffled]][:LABELLED], shuffled[~data.fit[shuffled]]
    texts = {data.outcomes.questions[row].text for row in labelled}
    rows = np.array([row for row in others if data.outcomes.questions[row].text not in texts])[:limit]
    if feedback.first is not None:
        rows = rows[np.argsort(~feedback.first[rows], kind="stable")]
    answered = np.random.default_rng([order, 1]).random(len(rows)) < feedback.share
    due: deque[tuple[Decision, float]] = deque()
    arms = data.outcomes.arms
    told: Floats | None = None
    if player.router is not None:
        worth = reward if player.measure == "reward" else data.outcomes.scores[player.measure]
        router = build_router(player.router).fit(RoutingDataset(data.asked.rows(labelled), worth[labelled]))
        told = router.scores(data.asked)
    policy = build_policy(player.policy, arms)
    if player.labels:
        _learn_labels(policy, player, data, labelled)
    probabilities = np.empty((len(rows), len(arms)))
    draws = np.empty(len(rows), dtype=np.intp)
    contexts = [_context(player, data, row, None if told is None else told[row]) for row in rows]
    begun = time.perf_counter()
    for turn, (row, context) in enumerate(zip(rows.tolist(), contexts, strict=True)):
        p = compute_served_distribution(policy, context, arms, player.floor)
        probabilities[turn] = p
        name = f"{order}/{turn}"
        drawn = draws[turn] = choose(p, sampling.uniform_from(name, "routing"))
        decision = Decision(name, context, arms, tuple(p.tolist()), arms[drawn], policy.kind, turn)
        due.append((decision, float(reward[row, drawn])))
        if len(due) > feedback.delay:
            learned, worth = due.popleft()
            if answered[turn - feedback.delay]:
                policy.learn(learned, worth)
    return Curve(rows, probabilities, draws, time.perf_counter() - begun)


def _context(player: Player, data: DataSet, row: int, told: Floats | None) -> Context:
    """Return what the policy sees of a question: the score of the router is a feature of each arm."""
    arms = data.outcomes.arms
    scores = [{}] * len(arms) if told is None else [{"router": score} for score in told.tolist()]
    about = {arm: {**data.about.get(arm, {}), **score} for arm, score in zip(arms, scores, strict=True)}
    embedding = data.vectors[row] if player.features.embedding else None
    return describe(data.outcomes.questions[row].text, player.features, embedding=embedding, arms=about)


def _learn_labels(policy: Policy, player: Player, data: DataSet, labelled: NDArray[np.intp]) -> None:
    """Let a policy learn every arm on the labelled questions, as decisions of a uniform draw."""
    contexts = [_context(player, data, row, None) for row in labelled.tolist()]
    score = "f1" if "f1" in data.outcomes.scores else "em"
    labels = label_decisions(
        data.outcomes.only(labelled), contexts, data.rule, {"quality": score}, data.outcomes.arms
    )
    for decision, reward in labels:
        policy.learn(decision, reward)


CALIBRATED = RouterSpec(
    kind="calibrated", params={"router": {"kind": "ridge", "params": {"sees": "features"}}}
)
"""A router whose scores are expected rewards, so that it can be the prior of a policy."""

VW = "--cb_explore_adf"


def vowpal(flags: str, features: FeatureSpec = FORM, floor: float = 0.001, **params: Any) -> Player:
    """Return Vowpal Wabbit with these flags, crossing what a question says with the arm's name."""
    args = f"{VW} {flags} --clip_p 1 --learning_rate 0.2 -q sa -q ea"
    return Player(PolicySpec(kind="vowpal", params={"args": args, **params}), features, floor)


def policy(kind: str, features: FeatureSpec = FORM, floor: float = 0.001, **params: Any) -> Player:
    """Return a policy of another kind, which starts cold."""
    return Player(PolicySpec(kind=kind, params=params), features, floor)


COLD: dict[str, Player] = {
    "uniform": policy("uniform"),
    "plain VW over words": policy("vowpal", WORDS, args=f"{VW} --epsilon 0.05 -q sa"),
    "VW epsilon": vowpal("--epsilon 0.05"),
    "VW SquareCB": vowpal("--squarecb --gamma_scale 20"),
    "VW RegCB": vowpal("--regcbopt --cb_min_cost -1 --cb_max_cost 2 --mellowness 0.01"),
    "VW bag": vowpal("--bag 5 --random_seed 7"),
    "VW cover": vowpal("--cover 3"),
    "VW softmax": vowpal("--softmax --lambda 20"),
    "VW synthetic cover": vowpal("--synthcover"),
    "epsilon-greedy": policy("epsilon_greedy"),
    "epsilon decay": policy("epsilon_greedy", epsilon=0.5, decay=100.0),
    "LinUCB": policy("linucb", ridge=100.0),
    "LinUCB, disjoint": policy("linucb", ridge=100.0, shared=False),
    "Thompson": policy("linear_thompson", scale=0.2, ridge=100.0, dims=8),
    "Thompson, embedding": policy("linear_thompson", DENSE, scale=0.2, ridge=100.0, dims=8),
    "neural (MBA-RAG, head)": policy("neural", DENSE),
}
"""What starts knowing nothing."""

WARM: dict[str, Player] = {
    "VW SquareCB, warm by labels": replace(COLD["VW SquareCB"], labels=True),
    "LinUCB, warm by labels": replace(COLD["LinUCB"], labels=True),
    "Thompson, warm by labels": replace(COLD["Thompson"], labels=True),
    "router": replace(policy("routed", epsilon=0.0), router=CALIBRATED),
    "router, epsilon 0.05": replace(policy("routed", epsilon=0.05), router=CALIBRATED),
    "router of recall": replace(policy("routed", epsilon=0.0), router=CALIBRATED, measure="recall"),
    "LinUCB from the router": replace(policy("linucb", prior_feature="router"), router=CALIBRATED),
    "Thompson from the router": replace(policy("linear_thompson", prior_feature="router"), router=CALIBRATED),
    "LinUCB from recall": replace(
        policy("linucb", prior_feature="router"), router=CALIBRATED, measure="recall"
    ),
}
"""What starts from labels of other questions: learned as decisions, or in a router."""


def players(data: DataSet) -> dict[str, Player]:
    """Return the policies of a data set: all whose labels it has."""
    told = {"reward", *data.outcomes.scores}
    return {name: player for name, player in (COLD | WARM).items() if player.measure in told}
