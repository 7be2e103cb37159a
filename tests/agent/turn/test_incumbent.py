"""Decisions that are shared with the caller's own decider, and those that another system made."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.policies import Exploration, choose, compute_served_distribution, sampling
from armwise.agent.turn import ArmInfo, Ask, Canary, Decider, NoEligibleArmError, ObservedDecision, Serving
from armwise.agent.turn.steps.budget import BudgetStep
from armwise.agent.turn.steps.incumbent import IncumbentStep
from armwise.feedback.budget import Price
from armwise.feedback.events import INCUMBENT, OBSERVED, Context, Decision, Mode
from tests.agent.fakes import Preferring
from tests.agent.turns import draw, make_decider, verify
from tests.steps import change

ARMS = ("a", "b", "c")
SALT = "salt"
POLICY = Preferring(a=1.0, b=2.0, c=5.0)
SEEN = Context("?", {"x": 1.0})


def decider(share: float, floor: float = 0.05, price: Price | None = None) -> Decider:
    steps = (IncumbentStep(share), BudgetStep(lambda: price))
    return make_decider(Serving(POLICY, 7), Exploration(0.1, floor), SALT, steps=steps, clock=lambda: 100.0)


def draw_among(arms: Sequence[str], ask: Ask, by: Decider) -> Decision:
    return draw(by, ask, SEEN, {arm: ArmInfo() for arm in arms})


def decided(
    share: float,
    incumbent: Mapping[str, float] | None,
    name: str = "d-1",
    arms: Sequence[str] = ARMS,
    **ask: Any,
) -> Decision:
    return draw_among(
        arms,
        Ask(name, "?", steps={} if incumbent is None else {"incumbent": incumbent}, **ask),
        decider(share),
    )


def observe(by: Decider, observed: ObservedDecision, ask: Ask) -> Decision:
    infos = {arm: ArmInfo() for arm in observed.arms}
    return by.build_observed(by.draft(ask, infos, SEEN, by.serving, restricted=False), observed)


distributions = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3).map(
    lambda raw: {arm: p / math.fsum(raw) for arm, p in zip(ARMS, raw, strict=True)}
)


@given(st.floats(0.0, 0.999), distributions, st.integers(0, 10_000))
def test_the_mixture_is_what_was_drawn_from_and_what_is_verified(
    share: float, incumbent: Mapping[str, float], number: int
) -> None:
    found = decided(share, incumbent, f"d-{number}")
    own = compute_served_distribution(POLICY, SEEN, ARMS, 0.05)
    expected = [(1 - share) * incumbent[arm] + share * p for arm, p in zip(ARMS, own, strict=True)]
    assert found.probabilities == pytest.approx(expected, abs=1e-12)
    assert math.fsum(found.probabilities) == pytest.approx(1.0, abs=1e-12)
    assert (found.policy, found.version, found.mode) == (INCUMBENT, 7, Mode.EXPLORE)
    assert found.shadow == pytest.approx(own.tolist(), abs=1e-15)
    record = found.steps["incumbent"]
    assert (record["pmf"], record["share"]) == ({a: incumbent[a] for a in ARMS}, 1 - share)
    assert (found.candidate, found.share) == (0, 0.0)
    u = sampling.uniform_from(found.id, SALT, ARMS)
    assert found.drawn == ARMS[choose(np.array(found.probabilities), u)]
    assert verify(found, POLICY, SALT, found.propensity).verified


def test_a_point_mass_loses_exactly_the_share() -> None:
    found = decided(0.25, {"a": 1.0})
    own = compute_served_distribution(POLICY, SEEN, ARMS, 0.05)
    assert found.probabilities[0] == pytest.approx(0.75 + 0.25 * own[0])
    assert found.probabilities[1:] == pytest.approx((0.25 * own[1:]).tolist())
    assert min(found.probabilities) >= 0.25 * 0.05


@pytest.mark.parametrize(
    "changes",
    [
        {"incumbent": (0.0, 1.0, 0.0)},
        {"incumbent": ()},
        {"incumbent_share": 0.5},
        {"floor": 0.01},
        {"probabilities": (0.8, 0.1, 0.1)},
        {"shadow": (0.8, 0.1, 0.1)},
        {"drawn": "c"},
    ],
)
def test_a_changed_mixture_is_found_out(changes: Mapping[str, Any]) -> None:
    found = decided(0.25, {"a": 1.0}, "d-3")
    assert found.drawn != "c"
    assert not verify(change(found, **changes), POLICY, SALT).verified


def test_without_an_incumbent_the_share_does_nothing() -> None:
    assert decided(0.0, None) == decided(1.0, None)


def test_an_incumbent_that_cannot_be_drawn_is_refused_by_name() -> None:
    with pytest.raises(NoEligibleArmError, match=r"arm 'c' .*: a, b$"):
        decided(0.5, {"c": 1.0}, arms=("a", "b"))
    made = decided(0.5, {"a": 1.0, "c": 0.0}, arms=("a", "b"))
    assert made.steps["incumbent"]["pmf"] == {"a": 1.0, "b": 0.0}


def test_the_most_probable_arm_of_the_mixture_is_taken_on_request_and_a_forced_arm_is_forced() -> None:
    greedy = decided(0.1, {"a": 1.0}, explore=False)
    assert (greedy.mode, greedy.drawn) == (Mode.GREEDY, "a")
    assert verify(greedy, POLICY, SALT).verified
    assert decided(0.1, {"a": 1.0}, arms=("c",), forced="c").mode is Mode.FORCED


def test_no_canary_takes_part_beside_an_incumbent() -> None:
    shared = decider(0.5)
    shared.serving = replace(shared.serving, canaries=(Canary(Preferring(a=1.0, b=0.0, c=0.0), 9, 0.5),))
    found = draw_among(ARMS, Ask("d-1", "?", steps={"incumbent": {"b": 1.0}}), shared)
    assert (found.candidate, found.share) == (0, 0.0)
    assert verify(found, POLICY, SALT).verified
    assert draw_among(ARMS, Ask("d-1", "?"), shared).candidate == 9


# -- decisions that another system made ----------------------------------------------------------------


PRICE = Price("b", 3, 0.5, 0.0, {"a": (4, 1.0), "b": (4, 2.0), "c": (4, 0.0)}, 1, 50.0)


@pytest.mark.parametrize("probabilities", [(0.2, 0.3, 0.5), (0.4,), ()])
@pytest.mark.parametrize("price", [None, PRICE])
def test_a_decision_of_another_system_has_the_shadow_of_then(
    probabilities: tuple[float, ...], price: Price | None
) -> None:
    observed = ObservedDecision(("b", "a", "c"), probabilities, "b", 70.0)
    found = observe(decider(0.0, price=price), observed, Ask("o-1", "?", request_digest="x"))
    assert (found.policy, found.version, found.mode) == (OBSERVED, 7, Mode.EXPLORE)
    assert (found.arms, found.probabilities, found.drawn) == (("b", "a", "c"), probabilities, "b")
    assert (found.decided_at, found.deadline, found.floor) == (70.0, 130.0, 0.05)
    costs = () if price is None else tuple(found.steps["budget"]["costs"].values())
    penalty = tuple(0.5 * cost for cost in costs)
    own = compute_served_distribution(POLICY, SEEN, found.arms, 0.05, penalty)
    assert (found.shadow, costs) == (tuple(own.tolist()), () if price is None else (2.0, 1.0, 0.0))
    proof = verify(found, POLICY, SALT, found.propensity if probabilities else None)
    assert (proof.verified, proof.u, proof.arm) == (True, None, "b")
    for changes in ({"shadow": (1.0, 0.0, 0.0)}, {"floor": 0.2}, {"floor": None}, {"shadow": ()}):
        assert not verify(change(found, **changes), POLICY, SALT).verified
    assert not verify(found, Preferring(a=9.0, b=1.0, c=1.0), SALT).verified
    assert not verify(found, None, SALT).verified


def test_the_floor_of_a_shadow_over_many_arms_is_as_large_as_it_can_be() -> None:
    observed = ObservedDecision(ARMS, (), "a", 70.0)
    found = observe(decider(0.0, floor=0.9), observed, Ask("o-1", "?"))
    assert found.floor == pytest.approx(1 / 3)
    assert found.shadow == pytest.approx((1 / 3,) * 3)
