"""The log says with which probability each arm was drawn: over many turns, it was drawn as often.

`benchmarks/propensities.py` does the same over a million turns and prints what it finds.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from armwise.agent.policies import Exploration, choose, compute_served_distribution, sampling
from armwise.agent.policies.router import Routed
from armwise.agent.turn import Decider, Draft
from armwise.agent.turn.eligibility import list_allowed
from armwise.arms.base import Query, Retrieval
from armwise.feedback.events import Decision, Mode, Status
from tests.agent.draws import judge, verdicts
from tests.agent.traffic import ARMS, FALLBACK, MODES, STATUSES, Draws, Traffic

TURNS = 30_000
EXPLORE, GREEDY, FORCED = (MODES.index(mode) for mode in (Mode.EXPLORE, Mode.GREEDY, Mode.FORCED))


def status(*named: Status) -> list[int]:
    return [STATUSES.index(one) for one in named]


@pytest.fixture(scope="module")
def traffic() -> Traffic:
    """Many turns; each row was checked when it was logged."""
    traffic = Traffic(TURNS, seed=7)
    asyncio.run(traffic.run())
    return traffic


@pytest.fixture(scope="module")
def decided(traffic: Traffic) -> Draws:
    return traffic.draws.of(traffic.draws.drawn >= 0)


pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_arms_are_drawn_as_often_as_the_log_says(traffic: Traffic) -> None:
    found = list(verdicts(traffic.draws))
    assert len(found) > 20
    assert [verdict for verdict in found if not verdict.holds] == []


def test_whatever_can_go_wrong_did(traffic: Traffic, decided: Draws) -> None:
    for one in Status:
        if one is not Status.LLM_TIMEOUT:
            assert (decided.status == STATUSES.index(one)).sum() > 10, one
    assert set(decided.mode.tolist()) == {EXPLORE, GREEDY, FORCED}
    assert min(traffic.undecided[why] for why in ("overloaded", "no eligible arm", "gone")) > 20
    assert len(set(decided.mask.tolist())) == 2 ** len(ARMS) - 1, "every set of arms was left to be drawn"
    assert len(set(decided.version.tolist())) == 4
    assert set(decided.percent[decided.mode != FORCED].tolist()) == {0, 10, 50}, "of a candidate"
    assert set(decided.percent[decided.mode == FORCED].tolist()) == {0}


def test_no_arm_ever_has_more_searches_under_way_than_its_cap(traffic: Traffic) -> None:
    assert {arm: traffic.most[arm] for arm in traffic.caps} == dict(traffic.caps), "reached, and not passed"
    assert max(traffic.most[arm] for arm in ARMS if arm not in traffic.caps) > 10


def test_every_decision_is_a_distribution_over_the_arms_that_were_left(decided: Draws) -> None:
    left = decided.mask[:, None] >> np.arange(len(ARMS)) & 1
    assert ((decided.p > 0.0) == left).all()
    assert np.abs(decided.p.sum(axis=1) - 1.0).max() < 1e-12
    floors = np.minimum(0.02 / 4, 1.0 / left.sum(axis=1))[
        :, None
    ]  # a candidate's share counts as exploration
    assert (np.where(left, decided.p, 1.0) >= floors * (1 - 1e-12)).all()
    assert decided.p[np.arange(len(decided.drawn)), decided.drawn].min() > 0.0


def test_every_decision_can_be_computed_again_from_its_row(traffic: Traffic, decided: Draws) -> None:
    assert traffic.recomputed == len(decided.drawn)


def test_every_decision_has_one_end(traffic: Traffic, decided: Draws) -> None:
    assert (decided.status >= 0).all()
    assert len(decided.drawn) + traffic.undecided.total() == TURNS


def test_what_was_served_is_what_was_drawn_unless_the_row_says_otherwise(decided: Draws) -> None:
    fell_back = np.isin(decided.status, status(Status.FELL_BACK))
    assert (decided.served[fell_back] == ARMS.index(FALLBACK)).all()
    assert (decided.drawn[fell_back] != ARMS.index(FALLBACK)).all()
    failed = np.isin(decided.status, status(Status.ARM_FAILED))
    assert (decided.served[failed] == -1).all()
    whole = np.isin(decided.status, status(Status.OK, Status.LLM_FAILED))
    told = decided.of(whole & (decided.served != decided.drawn))
    assert (told.status == STATUSES.index(Status.LLM_FAILED)).all(), "the model failed after a fallback"
    assert len(told.drawn) < 50


def test_forced_and_greedy_turns_are_marked(decided: Draws) -> None:
    forced, greedy = decided.of(decided.mode == FORCED), decided.of(decided.mode == GREEDY)
    assert (forced.p.max(axis=1) == 1.0).all()
    assert (forced.mask == 1 << forced.drawn).all()
    assert (greedy.p.argmax(axis=1) == greedy.drawn).all()


# -- a router that looks at what is retrieved -----------------------------------------------------------


class Looking:
    """A router that likes what it sees, more or less."""

    backbone, arms, k = "tiny", frozenset(ARMS[:4]), 4

    async def scores(
        self, query: Query, arms: Sequence[str], found: Mapping[str, Retrieval]
    ) -> dict[str, float]:
        assert list(found) == list(arms)
        return {arm: sampling.uniform_from(query.text, arm) for arm in arms}


def test_arms_that_were_looked_at_are_drawn_as_often_as_the_log_says() -> None:
    policies = {version: Routed(0.9 / version) for version in (1, 2)}
    caps = {"graph": 12, "paid": 2}
    traffic = Traffic(10_000, seed=3, scorer=Looking(), policies=policies, caps=caps)
    draws = asyncio.run(traffic.run())
    found = [verdict for verdict in verdicts(draws) if verdict.stratum != "outcome"]
    assert [verdict for verdict in found if not verdict.holds] == []
    assert all(0 < traffic.most[arm] <= cap for arm, cap in caps.items())
    assert traffic.undecided["overloaded"] > 20
    assert (draws.status == STATUSES.index(Status.FELL_BACK)).sum() > 20
    assert traffic.recomputed == (draws.drawn >= 0).sum()


# -- lies are found -----------------------------------------------------------------------------------


class MaskedAfterTheDraw(Decider):
    """Draws from all arms, and passes over the one drawn where its breaker is open or it is full."""

    def decide(self, draft: Draft) -> Decision:
        """Draw among all arms, and take another one if the drawn arm is masked."""
        (everything, _), context = list_allowed(draft.ask, draft.arms), draft.context
        honest = super().decide(draft)
        if honest.mode is not Mode.EXPLORE:
            return honest
        floor = Exploration(0.1, 0.02).among(len(everything))
        p = compute_served_distribution(self.serving.policy, context, everything, floor)
        drawn = everything[choose(p, sampling.uniform_from(honest.id, self.salt, everything))]
        return replace(honest, drawn=drawn if drawn in honest.arms else honest.arms[0])


def fallback_written_as_drawn(draws: Draws) -> Draws:
    fell_back = draws.status == STATUSES.index(Status.FELL_BACK)
    return replace(draws, drawn=np.where(fell_back, draws.served, draws.drawn))


def failures_left_out(draws: Draws) -> Draws:
    return draws.of(~np.isin(draws.status, status(Status.FELL_BACK, Status.ARM_FAILED)))


def floor_left_out(draws: Draws) -> Draws:
    left = draws.p > 0.0
    n = left.sum(axis=1, keepdims=True)
    floor = np.minimum(0.02, 1.0 / n)
    bare = np.where(left, draws.p - floor, 0.0) / np.maximum(1.0 - n * floor, 1e-9)
    return replace(draws, p=np.where(n * floor < 1.0, bare, draws.p))


@pytest.mark.parametrize("lie", [fallback_written_as_drawn, failures_left_out, floor_left_out])
def test_a_log_that_lies_is_found(decided: Draws, lie: Callable[[Draws], Draws]) -> None:
    assert not all(verdict.holds for verdict in verdicts(lie(decided)))


def test_a_mask_applied_after_the_draw_is_found() -> None:
    draws = asyncio.run(Traffic(10_000, seed=7, make=MaskedAfterTheDraw).run())
    assert not all(verdict.holds for verdict in verdicts(draws))


# -- the statistic -------------------------------------------------------------------------------------


def test_where_all_distributions_are_the_same_the_statistic_is_that_of_pearson() -> None:
    rng = np.random.default_rng(0)
    p = np.array([0.5, 0.3, 0.15, 0.05])
    drawn = rng.choice(4, size=5000, p=p)
    verdict = judge("", "abcd", np.tile(p, (5000, 1)), drawn)
    expected = chisquare(np.bincount(drawn), 5000 * p)
    assert (verdict.chi_square, verdict.p_value) == pytest.approx((expected.statistic, expected.pvalue))
    assert verdict.df == 3


def test_where_the_log_is_true_every_p_value_is_as_likely_as_any() -> None:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(400):
        p = rng.dirichlet((0.5, 1.0, 2.0), size=500)
        drawn = (rng.random((500, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(max=2)
        found.append(judge("", "abc", p, drawn).p_value)
    assert kstest(found, "uniform").pvalue > 0.01


def test_what_cannot_be_drawn_and_was_is_no_matter_of_chance() -> None:
    p = np.tile([1.0, 0.0], (10, 1))
    assert judge("", "ab", p, np.zeros(10, dtype=np.int64)).holds
    with pytest.raises(AssertionError, match="drawn what had a probability of 0"):
        judge("", "ab", p, np.ones(10, dtype=np.int64))
