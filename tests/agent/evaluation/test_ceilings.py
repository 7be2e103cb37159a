"""A log is replayed under another ceiling, and under the prices that it was written with."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armwise.agent.config import parse
from armwise.agent.evaluation.candidates import PolicyCandidate
from armwise.agent.policies import Exploration, build_policy, compute_served_distribution
from armwise.feedback.budget import Budget, Pacer
from armwise.feedback.events import LABELS, Cost, Decision, Example
from armwise.feedback.log import Store
from tests.agent.asking import join
from tests.agent.evaluation.test_evaluate import ARMS, STEPS, evaluated, of, turn, values
from tests.agent.fakes import CONFIG
from tests.steps import record

NO_COST = Cost()
CANDIDATE = "policy:{kind: linucb}"


@pytest.mark.parametrize("ceiling", [0.3, 0.6, 1.2])
@pytest.mark.slow
def test_a_candidate_is_evaluated_under_another_ceiling(tmp_path: Path, ceiling: float) -> None:
    config = parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})
    with closing(Store(config.database_url, config.reward.join)) as store:
        draws = np.random.default_rng(0).choice(ARMS, 2000)
        store.append([fact for number, drawn in enumerate(draws) for fact in turn(number, str(drawn))])
        join(store, config)
        budget: dict[str, Any] = {"steps_per_request": ceiling}
        report = evaluated(config, store, CANDIDATE, estimators=["snips"], budget=budget)
        free = evaluated(config, store, CANDIDATE, estimators=["snips"])
    (note,) = of(report, CANDIDATE)["notes"]
    prefix, suffix = f"Under a ceiling of {ceiling:g} steps a request it would have spent ", ", by the mean"
    assert note.startswith(prefix)
    assert float(note.removeprefix(prefix).partition(suffix)[0]) == pytest.approx(ceiling, rel=0.02)
    assert not of(free, CANDIDATE)["notes"]
    assert values(of(report, CANDIDATE))["snips"]["value"] < values(of(free, CANDIDATE))["snips"]["value"]


def decide(one: PolicyCandidate, made: Decision, arms: tuple[str, ...], cost: Cost = NO_COST) -> np.ndarray:
    (found,) = one.replay([Example(1, made, cost, {"thumb": 1.0})], [arms], [0.5])
    assert not isinstance(found, str)
    return found


def test_by_default_a_candidate_has_the_price_that_the_decision_was_made_with() -> None:
    policy, context = build_policy(parse(CONFIG).policy, ARMS), turn(0, "none")[0].context
    p, priced = (0.2, 0.3, 0.5), {"price": 0.1, "costs": (0.0, 1.0, 4.0), "floor": 0.01}
    made = Decision("d-1", context, ARMS, p, "none", "vowpal", 1, steps=record(ARMS, **priced))
    one = PolicyCandidate("", "", frozenset(ARMS), policy, Exploration(0.1, 0.01))
    found = decide(one, made, ("none", "dense"))
    expected = compute_served_distribution(policy, context, ["none", "dense"], 0.01, (0.0, 0.4))
    assert found.tolist() == expected.tolist()
    assert found[0] > 0.9


def test_a_candidate_counts_what_caches_lacked_beside_its_own_ceiling() -> None:
    policy, context = build_policy(parse(CONFIG).policy, ARMS), turn(0, "none")[0].context
    p, missed = (0.2, 0.3, 0.5), {"miss_costs": (0.0, 0.01, 0.05), "usd_weight": 10.0, "floor": 0.01}
    made = Decision("d-1", context, ARMS, p, "none", "vowpal", 1, steps=record(ARMS, **missed))
    expected = compute_served_distribution(policy, context, ["none", "dense"], 0.01, (0.0, 0.5))
    for pacer in (None, Pacer(Budget(steps_per_request=1.0))):
        one = PolicyCandidate("", "", frozenset(ARMS), policy, Exploration(0.1, 0.01), pacer=pacer)
        assert decide(one, made, ("none", "dense")).tolist() == expected.tolist()


def test_a_candidate_pays_what_its_own_distribution_would() -> None:
    pacer = Pacer(Budget(steps_per_request=1.0))
    one = PolicyCandidate(
        "", "", frozenset(ARMS), build_policy(parse(CONFIG).policy, ARMS), Exploration(0.03), pacer=pacer
    )
    for number in range(300):
        decision, execution, _ = turn(number, ARMS[number % 3])
        decide(one, decision, ARMS, execution.cost)
    (note,) = one.notes()
    assert "ceiling of 1 steps" in note
    assert pacer.costs(ARMS) == tuple(map(float, STEPS.values()))


def test_what_a_candidate_pays_in_a_block_changes_the_next_price_and_labels_cost_nothing() -> None:
    block = []
    for number in range(90):
        decision, execution, _ = turn(number, ARMS[number % 3])
        made = replace(decision, policy=LABELS) if number % 5 == 4 else decision
        block.append(Example(number + 1, made, execution.cost, {"thumb": 1.0}))
    arms = [() if one.decision.policy == LABELS else ARMS for one in block]
    found = []
    for size in (len(block), 1):
        pacer = Pacer(Budget(steps_per_request=1.0))
        policy, explores = build_policy(parse(CONFIG).policy, ARMS), Exploration(0.03)
        one = PolicyCandidate("", "", frozenset(ARMS), policy, explores, pacer=pacer)
        parts = [slice(at, at + size) for at in range(0, len(block), size)]
        ps = [p for part in parts for p in one.replay(block[part], arms[part], [None] * len(block[part]))]
        found.append((pacer.price, pacer.debt, [p.tolist() for p in ps if not isinstance(p, str)]))
    assert found[0] == found[1]
    alone = Pacer(Budget(steps_per_request=1.0))
    one = PolicyCandidate("", "", frozenset(ARMS), policy, explores, pacer=alone)
    [*one.replay(block[4:5], [()], [None])]
    assert alone.arms == Pacer(Budget(steps_per_request=1.0)).arms


def test_a_turn_of_a_conversation_is_a_request_of_its_budget() -> None:
    pacers = [Pacer(Budget(steps_per_request=1.0)) for _ in "ab"]
    for turns, pacer in zip((1, 3), pacers, strict=True):
        one = PolicyCandidate(
            "", "", frozenset(ARMS), build_policy(parse(CONFIG).policy, ARMS), Exploration(0.03), pacer=pacer
        )
        for number in range(30):
            decision, execution, _ = turn(number, ARMS[number % 3])
            cost = replace(execution.cost, steps=turns * execution.cost.steps)
            [*one.replay([Example(number + 1, decision, cost, {"thumb": 1.0}, turns=turns)], [()], [0.5])]
    assert pacers[0].costs(ARMS) == pacers[1].costs(ARMS) == tuple(map(float, STEPS.values()))
    assert (pacers[0].price, pacers[0].debt) == (pacers[1].price, pacers[1].debt)
