"""Every policy answers to the price of a budget, and only to the differences between penalties."""

import numpy as np
import pytest

from armwise.agent.policies import PolicySpec, build_policy, choose, compute_served_distribution
from armwise.feedback.budget import Budget, Pacer
from armwise.feedback.events import Context, Decision
from tests.agent.policies.test_contracts import EXAMPLES as SPECS
from tests.contracts import ARMS

FEATURES = {arm: {"steps": 0.3 * i, "router": 0.3 * i} for i, arm in enumerate(ARMS)}
COSTS = dict(zip(ARMS, (0.5, 2.0, 5.0), strict=True))
FLOOR = 0.01


def test_a_tenth_of_a_reward_shifts_the_odds_by_e_where_a_policy_predicts_no_rewards() -> None:
    policy = build_policy(SPECS["uniform"], ARMS)
    p = compute_served_distribution(policy, Context("q"), ARMS, 0.0, (0.0, 0.1, 0.2))
    assert np.log(p[0] / p[1:]) == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_a_penalty_moves_probability_away_from_its_arm(spec: PolicySpec) -> None:
    policy, context = build_policy(spec, ARMS), Context("q", {"w=river": 1.0}, (), FEATURES)
    plain = compute_served_distribution(policy, context, ARMS, FLOOR)
    penalised = compute_served_distribution(policy, context, ARMS, FLOOR, (0.0, 0.0, 50.0))
    assert penalised[2] <= plain[2]
    assert penalised[2] < 0.06
    assert penalised.sum() == pytest.approx(1.0)
    assert (penalised >= FLOOR - 1e-12).all()
    alike = compute_served_distribution(policy, context, ARMS, FLOOR, (3.0, 3.0, 3.0))
    tolerance = 1e-9 if hasattr(policy, "penalise") else 3 * FLOOR  # the floor is mixed in before and after
    assert np.abs(alike - plain).max() <= tolerance


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
@pytest.mark.slow
def test_every_kind_of_policy_holds_its_budget(spec: PolicySpec) -> None:
    rng, policy, ceiling = np.random.default_rng(1), build_policy(spec, ARMS), 1.5
    pacer, total = Pacer(Budget(steps_per_request=ceiling)), 0.0
    for number in range(2000):
        word = int(rng.integers(3))
        context = Context("q", {f"w={word}": 1.0}, (), FEATURES)
        penalty = tuple(pacer.price * cost for cost in pacer.costs(ARMS)) if pacer.arms else ()
        p = compute_served_distribution(policy, context, ARMS, FLOOR, penalty)
        drawn = choose(p, rng.random())
        spent = float(COSTS[ARMS[drawn]] * rng.gamma(4.0, 0.25))
        quality = float(rng.random() < 0.3 + 0.2 * drawn + 0.2 * (drawn == word))
        decision = Decision(
            f"d-{number}", context, tuple(ARMS), tuple(p.tolist()), ARMS[drawn], policy.kind, 1
        )
        policy.learn(decision, quality)
        pacer.note(ARMS[drawn], spent)
        total += spent
    assert total / 2000 == pytest.approx(ceiling, rel=0.01)
