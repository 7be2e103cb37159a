"""The worlds of `learners.py`: questions whose every outcome is known, and what happens while they are asked.

    calm        nothing changes
    swap        the best and the worst arm change their rewards after half of the questions
    cold        as swap, without the scores of a router
    misled      as calm, with scores that say nothing
    sparse      as swap; a reward comes on 20 % of the questions
    delayed     as swap; a reward comes 100 questions later
    censored    as swap; a reward below the mean comes half as often as one above it
    poisoned    as swap; one reward in ten is turned around
    rise        the worst arm becomes better by .1 than the best after half of the questions
    recovery    the best arm earns nothing for 500 questions, and is then as good as before
    empty       an arm that earns nothing is added after 500 questions
    newcomer    an arm that is better by .1 than the best is added after 500 questions
    drift       the best arm earns what the worst one does on ever more questions, and the other way round
    season      the best and the worst arm change their rewards every 500 questions, and back
    scarce      as swap; a reward comes on 2 % of the questions
    rare        a reward is 1 on one question in a hundred, more often the better the answer, and else 0
    good        a reward is 0 on one question in twenty, less often the better the answer, and else 1
    equal       every arm earns .5 on every question
    many        beside the four, 196 arms that answer as one of them does on half of the questions
    cold rise   as rise, without the scores of a router
    price       an arm that is better by .1 than the best costs .3, after half of the questions .03

Arms that are not named stay as they are in `calm`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from routing_data import RETRIEVERS, qa_outcomes
from routing_online import CALIBRATED, FORM

from armwise.agent.policies import describe
from armwise.agent.routers import RoutingDataset, build_router
from armwise.agent.routers import features as router_features
from armwise.agent.routers.dataset import Features
from armwise.arms.retrievers import catalog
from armwise.feedback.events import Context

Floats = NDArray[np.float64]

FOUR = ("none", "bm25", "graph", "rrf")
"""One arm without passages, by words, by names, and a fusion."""

LABELLED = 1000
"""Questions that the router is fitted to; they are not asked."""

ASKED = 3000
"""Questions of a run."""

HALF, ADDED, RECOVERED = 1500, 500, 1500
"""When the world changes, an arm is added, an arm is well again."""

SEASON, MANY = 500, 200
"""Questions of a season, and arms where there are many."""

ILL = 1000
"""When an arm falls ill."""

BETTER = 0.1
"""By how much a newcomer, or an arm that rises, is better than the best."""

PRICE, CUT = 0.3, 0.03
"""What an answer of the dear arm costs in rewards, before and after its price is cut."""

DEAR = "large"
"""The arm whose price is cut."""


@dataclass(frozen=True, eq=False)
class World:
    """What is asked, and what each arm would earn.

    Attributes:
        contexts: What a policy sees of each question.
        arms: All arms that there ever are.
        reward: Of each arm at each question, shape (n, n_arms).
        told: The reward that is learned if the arm is drawn, NaN where none comes, shape (n, n_arms).
        segments: Starts of the times in which one arm is the best, and the end.
        added: When each arm comes that is not there from the start.
        delay: Questions until a reward is learned.
        watched: The arm whose share is of interest.
        repriced: What is seen and told of all questions at the prices after the change; None where none
            changes. The router of the old prices goes with them.
    """

    contexts: tuple[Context, ...]
    arms: tuple[str, ...]
    reward: Floats
    told: Floats
    segments: tuple[int, ...]
    added: Mapping[str, int]
    delay: int = 0
    watched: str = ""
    repriced: tuple[tuple[Context, ...], Floats] | None = None

    def live(self, turn: int) -> tuple[str, ...]:
        """Return the arms that can be chosen at a question."""
        return tuple(arm for arm in self.arms if turn >= self.added.get(arm, 0))

    @property
    def best(self) -> Floats:
        """The reward of the arm that is best in its time, shape (n,)."""
        rewards = np.empty(len(self.reward))
        for start, end in zip(self.segments, self.segments[1:], strict=False):
            there = [self.added.get(arm, 0) <= start for arm in self.arms]
            means = np.where(there, self.reward[start:end].mean(axis=0), -np.inf)
            rewards[start:end] = self.reward[start:end, means.argmax()]
        return rewards


@dataclass(frozen=True, eq=False)
class Asked:
    """Questions in one order, with the rewards of four arms and the scores of a router for them."""

    texts: tuple[str, ...]
    reward: Floats
    scores: Floats
    about: Mapping[str, Mapping[str, float]]


@lru_cache(maxsize=1)
def _outcomes(folder: Path) -> tuple[tuple[str, ...], Floats]:
    every = qa_outcomes(folder)
    at = [every.arms.index(arm) for arm in FOUR]
    reward = every.scores["f1"] - 0.02 * every.costs["steps"]
    return tuple(question.text for question in every.questions), reward[:, at]


@lru_cache(maxsize=2)
def asked_in(folder: Path, seed: int) -> Asked:
    """Return the questions of one order: a router is fitted to those that come before."""
    texts, reward = _outcomes(folder)
    order = np.random.default_rng(seed).permutation(len(texts))
    fit, ask = order[:LABELLED], order[LABELLED : LABELLED + ASKED]

    def features_of(rows: NDArray[np.intp]) -> Features:
        some = [texts[row] for row in rows]
        table = router_features.build_question_table(some)
        return Features(FOUR, tuple(some), router_features.QUESTION, table, np.zeros((len(some), 0)))

    router = build_router(CALIBRATED).fit(RoutingDataset(features_of(fit), reward[fit]))
    about = {arm: catalog.arm_features(arm, RETRIEVERS[arm]) for arm in FOUR}
    return Asked(tuple(texts[row] for row in ask), reward[ask], router.scores(features_of(ask)), about)


def _many(contexts: tuple[Context, ...], reward: Floats, rng: np.random.Generator) -> World:
    """Return a world of 200 arms, of which the first four are the real ones."""
    like = rng.integers(reward.shape[1], size=MANY - reward.shape[1])
    silent = rng.random((len(reward), len(like))) < 0.5
    every = np.column_stack([reward, np.where(silent, reward.min(), reward[:, like])])
    arms = (*FOUR, *(f"arm-{number}" for number in range(len(like))))
    return World(contexts, arms, every, every, (0, len(reward)), {})


@lru_cache(maxsize=1)
def worlds(folder: Path, seed: int) -> dict[str, World]:
    """Return every world for one order of the questions."""
    questions, rng = asked_in(folder, seed), np.random.default_rng([seed, 1])
    reward, n = questions.reward, len(questions.reward)
    means = reward.mean(axis=0)
    best, worst = int(means.argmax()), int(means.argmin())
    whole, halves = (0, n), (0, HALF, n)

    def contexts(scores: Floats | None, arms: Sequence[str] = FOUR) -> tuple[Context, ...]:
        rows = [{}] * n if scores is None else [dict(zip(arms, row, strict=True)) for row in scores.tolist()]
        return tuple(
            describe(
                text,
                FORM,
                arms={
                    arm: questions.about.get(arm, questions.about[FOUR[best]])
                    | ({"router": row[arm]} if row else {})
                    for arm in arms
                },
            )
            for text, row in zip(questions.texts, rows, strict=True)
        )

    told = contexts(questions.scores)
    calm = World(told, FOUR, reward, reward, whole, {}, watched=FOUR[best])
    swapped = reward.copy()
    swapped[HALF:, [best, worst]] = swapped[HALF:, [worst, best]]
    swap = replace(calm, reward=swapped, told=swapped, segments=halves, watched=FOUR[worst])
    rare = rng.random(n) < 0.2
    above = rng.random(n)[:, None] < np.where(swapped > means.mean(), 1.0, 0.5)
    turned = rng.random(n) < 0.1
    upside_down = np.where(turned[:, None], swapped.max() + swapped.min() - swapped, swapped)
    risen = reward.copy()
    risen[HALF:, worst] = risen[HALF:, best] + BETTER
    ill = reward.copy()
    ill[ILL:RECOVERED, best] = min(0.0, float(reward[:, best].min()))
    useless = questions.scores[rng.permutation(n)][:, rng.permutation(len(FOUR))]
    world_by_name = {
        "calm": calm,
        "swap": swap,
        "cold": replace(swap, contexts=contexts(None)),
        "misled": replace(calm, contexts=contexts(useless)),
        "sparse": replace(swap, told=np.where(rare[:, None], swapped, np.nan)),
        "delayed": replace(swap, delay=100),
        "censored": replace(swap, told=np.where(above, swapped, np.nan)),
        "poisoned": replace(swap, told=upside_down),
        "rise": replace(calm, reward=risen, told=risen, segments=halves, watched=FOUR[worst]),
        "recovery": replace(calm, reward=ill, told=ill, segments=(0, ILL, RECOVERED, n)),
    }
    moved = (np.arange(n) / n)[:, None]
    drifting, seasons = reward.copy(), reward.copy()
    drifting[:, [best, worst]] = np.where(
        rng.random((n, 1)) < moved, reward[:, [worst, best]], reward[:, [best, worst]]
    )
    odd = np.arange(n) // SEASON % 2 == 1
    seasons[np.ix_(odd, [best, worst])] = reward[np.ix_(odd, [worst, best])]
    thirds, scarce = (0, n // 3, 2 * n // 3, n), np.where(rng.random(n)[:, None] < 0.02, swapped, np.nan)
    chance, luck = reward - reward.min(), rng.random(reward.shape)
    seldom = luck < 0.01 * chance / chance.mean()
    good = luck < 0.9 + 0.1 * chance / chance.max()
    world_by_name |= {
        "drift": replace(calm, reward=drifting, told=drifting, segments=thirds),
        "season": replace(calm, reward=seasons, told=seasons, segments=tuple(range(0, n + 1, SEASON))),
        "scarce": replace(swap, told=scarce),
        "rare": replace(calm, contexts=contexts(None), reward=seldom * 1.0, told=seldom * 1.0),
        "good": replace(calm, contexts=contexts(None), reward=good * 1.0, told=good * 1.0),
        "equal": replace(calm, contexts=contexts(None), reward=0.0 * reward + 0.5, told=0.0 * reward + 0.5),
        "many": _many(contexts(None), reward, rng),
    }
    for name, value in (("empty", np.full(n, -0.02)), ("newcomer", reward[:, best] + BETTER)):
        more = np.column_stack([reward, value])
        world_by_name[name] = World(
            told, (*FOUR, "new"), more, more, (0, ADDED, n), {"new": ADDED}, watched="new"
        )
    dear = reward[:, best] + BETTER - PRICE, reward[:, best] + BETTER - CUT
    before, after = (np.column_stack([reward, column]) for column in dear)
    cut = np.concatenate([before[:HALF], after[HALF:]])
    scores = np.column_stack([questions.scores, questions.scores[:, best] + BETTER - PRICE])
    five = (*FOUR, DEAR)
    told, bare = contexts(scores, five), contexts(None, five)
    half_told = told[:HALF] + bare[HALF:]
    world_by_name["price"] = World(
        half_told, five, cut, cut, halves, {}, watched=DEAR, repriced=(bare, after)
    )
    world_by_name["cold rise"] = replace(world_by_name["rise"], contexts=contexts(None))
    return world_by_name
