"""Sums of the log by time and arm are those of the rows, however they were added up."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa

from feedback.events import LABELS, Context, Cost, Decision, Execution, Feedback, Mode, Status
from feedback.log import Store
from feedback.log.rollup_tables import rollups as table
from feedback.ope import ESTIMATORS, Sample, intervals
from feedback.reward import Metric, RewardRule
from feedback.training_log import Joiner, read_examples, rollups, take_epoch

RULE = RewardRule(metrics={"right": Metric()}, cost_weight=0.1, failed=0.0)
ARMS = ("a", "b", "c")
N = 120
HOUR = 3600
STATUSES = (Status.OK,) * 6 + (Status.ARM_FAILED, Status.FELL_BACK, Status.LLM_TIMEOUT, Status.CANCELLED)


def turns(rng: np.random.Generator) -> Iterator[tuple[Decision, Execution, Feedback | None]]:
    """Turns of some hours: draws of several distributions, of which some earn and some fail."""
    for i in range(N):
        arms = ARMS if i % 5 else ARMS[:2]
        p = rng.dirichlet(np.ones(len(arms)) * 3)
        drawn, at = int(rng.choice(len(arms), p=p)), 1000.0 * HOUR + i * 97.0
        mode = Mode.FORCED if i % 17 == 0 else Mode.EXPLORE
        policy = LABELS if i % 23 == 0 else "linucb"
        decision = Decision(
            *(f"d{i}", Context("?"), arms, tuple(p.tolist()), arms[drawn], policy, 1, mode, at, at + 60.0)
        )
        cost = Cost(int(rng.integers(3)), 10, i, rng.random(), rng.random(), 0.01)
        answer = None if i % 3 else "yes"
        status = STATUSES[i % len(STATUSES)]
        execution = Execution(f"d{i}", arms[drawn], status, cost, (), answer, "", at + 1)
        value = Feedback(f"f{i}", f"d{i}", "right", float(rng.integers(2)), at + 2) if i % 4 else None
        yield decision, execution, value


@pytest.fixture
def filled(store: Store) -> Store:
    facts = [fact for turn in turns(np.random.default_rng(3)) for fact in turn if fact is not None]
    for some in range(0, len(facts), 40):
        store.append(facts[some : some + 40])
    joiner = Joiner(store, RULE, take_epoch(store, "test", 0.0))
    joiner.advance(2000.0 * HOUR)
    return store


def advance(store: Store, batch: int) -> None:
    while rollups.advance(store, RULE, batch).left:
        pass


def sums(store: Store) -> dict[tuple[object, ...], list[float]]:
    with store.reading() as connection:
        rows = connection.execute(sa.select(table)).all()
    return {tuple(row[:4]): list(row[4:]) for row in rows}


def test_the_sums_are_those_of_the_rows_and_snips_is_that_of_the_estimators(filled: Store) -> None:
    advance(filled, 37)
    first = rollups.first_start(filled)
    assert first == 1000 * HOUR
    found = rollups.read(filled, first, first + 10 * HOUR, HOUR)
    made = [one for one in turns(np.random.default_rng(3)) if one[0].policy != LABELS]
    for slot in range(5):
        for arm in ARMS:
            here = [
                one for one in made if one[0].drawn == arm and (one[0].decided_at - first) // HOUR == slot
            ]
            total = found.where((found.slot == slot) & (found.arm == arm)).total()
            assert total["decisions"] == total["finished"] == len(here)
            assert total["failed"] == sum(
                e.status in ("arm_failed", "llm_failed", "llm_timeout") for _, e, _ in here
            )
            assert total["fell_back"] == sum(e.status is Status.FELL_BACK for _, e, _ in here)
            assert total["cancelled"] == sum(e.status is Status.CANCELLED for _, e, _ in here)
            assert total["answers"] == sum(e.answer is not None for _, e, _ in here)
            assert total["tokens"] == sum(e.cost.prompt_tokens + e.cost.completion_tokens for _, e, _ in here)
            assert math.isclose(total["llm_s"], sum(e.cost.llm_s for _, e, _ in here), abs_tol=1e-12)

    examples = [one for one in read_examples(filled, RULE.join) if one.decision.policy != LABELS]
    rewards = [RULE.reward_of(one) for one in examples]
    rewarded = [(one.decision, r) for one, r in zip(examples, rewards, strict=True) if r is not None]
    reward = np.array([r for _, r in rewarded])
    propensity = np.array([one.probabilities[one.arms.index(one.drawn)] for one, _ in rewarded])
    drawn = np.array([ARMS.index(one.drawn) for one, _ in rewarded])
    uniform = np.array([[1 / len(one.arms) * (arm in one.arms) for arm in ARMS] for one, _ in rewarded])
    assert found.columns["rewarded"].sum() == len(reward) > 40
    for target, scale, among in [
        (uniform, 1 / found.n_arms, ARMS),
        *(
            (np.tile(np.eye(3)[i], (len(reward), 1)), np.ones(len(found.arm)), (arm,))
            for i, arm in enumerate(ARMS)
        ),
    ]:
        terms = ESTIMATORS["snips"](Sample(propensity, drawn, reward, target))
        share = scale * np.isin(found.arm.astype(str), among)
        once = (float(found.columns[name] @ share) for name in ("w", "wr"))
        twice = (float(found.columns[name] @ share**2) for name in ("w2", "w2r", "w2r2"))
        estimate = intervals.from_sums(len(reward), *once, *twice)
        assert estimate is not None
        assert math.isclose(estimate[0], terms.value)
        assert np.allclose(estimate[1], intervals.normal(terms))


def test_they_do_not_depend_on_how_many_facts_are_read_at_a_time_nor_on_a_restart(filled: Store) -> None:
    advance(filled, 11)
    by_few = sums(filled)
    rollups.clear(filled)
    assert sums(filled) == {}
    advance(filled, 100_000)
    assert sums(filled).keys() == by_few.keys()
    for key, values in sums(filled).items():
        assert np.allclose(values, by_few[key]), key
    assert rollups.advance(filled, RULE).left == 0
    assert sums(filled).keys() == by_few.keys()


def test_what_another_process_has_counted_meanwhile_is_not_counted_again(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollups.advance(filled, RULE, 10)
    writing = filled.writing

    def late() -> AbstractContextManager[sa.Connection]:
        monkeypatch.setattr(filled, "writing", writing)
        rollups.advance(filled, RULE, 10)  # by another process
        return writing()

    monkeypatch.setattr(filled, "writing", late)
    rollups.advance(filled, RULE, 10)
    advance(filled, 50)
    by_two = sums(filled)
    rollups.clear(filled)
    advance(filled, 50)
    assert by_two.keys() == sums(filled).keys()
    assert all(np.allclose(values, by_two[key]) for key, values in sums(filled).items())


def test_another_reward_rule_begins_anew_and_old_minutes_are_dropped(filled: Store) -> None:
    advance(filled, 500)
    before = sums(filled)
    other = RULE.model_copy(update={"cost_weight": 0.5})
    assert rollups.progress(filled, other).log_seq == 0
    while rollups.advance(filled, other, 500).left:
        pass
    after = sums(filled)
    assert after.keys() == before.keys()
    assert not np.allclose(list(before.values()), list(after.values()))
    at = 1000.0 * HOUR + 48 * HOUR + 61.0 + N * 97.0
    one, _, _ = next(turns(np.random.default_rng(9)))
    filled.append([replace(one, id="late", decided_at=at, deadline=at + 60, policy="linucb")])
    while rollups.advance(filled, other, 500).left:
        pass
    assert {key[0] for key in sums(filled) if key[1] < 1100 * HOUR} == {HOUR}
