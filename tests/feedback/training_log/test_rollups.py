"""Sums of the log by time and arm are those of the rows, however they were added up."""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from armwise.feedback.events import LABELS, Context, Cost, Decision, Execution, Feedback, Mode, Status
from armwise.feedback.log import Store, listing
from armwise.feedback.log import tables as t
from armwise.feedback.log.tables import decisions as decisions_table
from armwise.feedback.log.tables import examples as examples_table
from armwise.feedback.log.tables import rollups as table
from armwise.feedback.reward import Metric, Prices, RewardRule
from armwise.feedback.training_log import Joiner, read_examples, rollups, take_epoch

RULE = RewardRule(
    metrics={"right": Metric()},
    cost_weight=0.1,
    cost=Prices(steps=1.0, usd=2.0),
    token_prices={"large": (0.25, 1.0, 0.125)},
    failed=0.0,
)
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
        tokens = {"large": (1000, i, 500, 0.5) if i % 4 == 1 else (1000, i, 500)} if i % 2 else {}
        done = f"d{i}", arms[drawn], status, cost, (), answer, "", at + 1
        execution = Execution(*done, tokens_by_model=tokens)
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
    return {tuple(row[:3]): list(row[3:]) for row in rows}


def test_the_log_begins_with_its_first_minute_or_hour(store: Store) -> None:
    def summed(width: int, start: int) -> None:
        counts = dict.fromkeys(rollups.COUNTS, 1) | dict.fromkeys(rollups.SUMS, 0.0)
        with store.writing() as connection:
            connection.execute(sa.insert(table), {"width": width, "start": start, "arm": "a", **counts})

    assert rollups.first_start(store) is None
    summed(HOUR, 10 * HOUR)
    summed(rollups.MINUTE, 10 * HOUR + 17 * rollups.MINUTE)
    summed(rollups.MINUTE, 10 * HOUR + 18 * rollups.MINUTE)
    assert rollups.first_start(store) == 10 * HOUR + 17 * rollups.MINUTE
    summed(HOUR, 2 * HOUR)  # whose minutes are no longer kept
    assert rollups.first_start(store) == 2 * HOUR


@pytest.mark.slow
def test_the_sums_are_those_of_the_rows(filled: Store) -> None:
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
    rewards = [RULE.compute_reward(one) for one in examples]
    rewarded = [(one.decision, r) for one, r in zip(examples, rewards, strict=True) if r is not None]
    reward = np.array([r for _, r in rewarded])
    assert found.columns["rewarded"].sum() == len(reward) > 40
    for arm in ARMS:
        of_arm = reward[[one.drawn == arm for one, _ in rewarded]]
        total = found.where(found.arm == arm).total()
        assert (total["rewarded"], total["reward"]) == (len(of_arm), pytest.approx(of_arm.sum()))
        assert total["reward2"] == pytest.approx((of_arm**2).sum())


@pytest.mark.slow
def test_the_sums_by_position_are_those_of_the_decisions_that_stand_there(filled: Store) -> None:
    """Every decision counts once, in the stretch of its position, whatever the time; forced ones apart."""
    advance(filled, 37)
    found = rollups.by_position(filled)
    d, x = decisions_table.c, examples_table.c
    with filled.reading() as connection:
        rows = connection.execute(sa.select(d.seq, d.drawn, d.mode, d.id).where(d.policy != LABELS)).all()
        joined = set(connection.scalars(sa.select(x.decision_id)))
    examples = {one.decision.id: RULE.compute_reward(one) for one in read_examples(filled, RULE.join)}
    assert len(set(found.slot)) > 10
    for start in set(found.slot.tolist()):
        width = max(16, 2 ** (start.bit_length() - 1) // 32) if start else 16
        here = [row for row in rows if start <= row.seq < start + width]
        total = found.where(found.slot == start).total()
        assert total["decisions"] == len(here)
        assert total["explored"] == sum(row.mode == "explore" for row in here)
        rewards = [r for row in here if row.id in joined and (r := examples[row.id]) is not None]
        assert total["rewarded"] == len(rewards)
        assert math.isclose(total["reward"], sum(rewards), abs_tol=1e-9)
        for arm in ARMS:
            of_arm = found.where((found.slot == start) & (found.arm == arm)).total()
            assert of_arm["decisions"] == sum(row.drawn == arm for row in here)
    assert found.total()["decisions"] == len(rows) > found.total()["explored"]


@given(st.integers(1, 1 << 45))
def test_each_position_is_in_one_stretch_and_stretches_grow_with_the_log(position: int) -> None:
    """A stretch starts at most its width before its positions, and the next one where it ends."""
    start, width = rollups.find_stretch(position)
    assert start <= position < start + width
    assert width == 16 or width * 64 > position >= width * 32
    assert rollups.find_stretch(start + width)[0] == start + width
    assert rollups.find_stretch(start + width - 1) == (start, width)
    assert start == 0 or rollups.find_stretch(start) == (start, width)


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_facts_that_another_has_counted_count_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append([decision for decision, _, _ in islice(turns(np.random.default_rng(3)), 1, 4)])
    rollups.advance(store, RULE, 1)
    writing = store.writing

    def late() -> AbstractContextManager[sa.Connection]:
        monkeypatch.setattr(store, "writing", writing)
        rollups.advance(store, RULE, 1)  # by another process
        return writing()

    monkeypatch.setattr(store, "writing", late)
    rollups.advance(store, RULE, 1)
    assert rollups.read(store, 1000 * HOUR, 1001 * HOUR, HOUR).total()["decisions"] == 2


MOVED = {
    "log_seq": t.progress.c.log_seq + 1,
    "examples_seq": t.progress.c.examples_seq + 1,
    "rewarded_seq": t.progress.c.rewarded_seq + 1,
    "reader": "another",
}
"""What another process may have changed meanwhile: a position that it counted up to, or the rule."""


@pytest.mark.parametrize("changed", MOVED)
def test_sums_are_added_only_to_what_they_were_read_from(
    filled: Store, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    rollups.advance(filled, RULE, 10)
    before, writing = sums(filled), filled.writing

    def moved() -> AbstractContextManager[sa.Connection]:
        monkeypatch.setattr(filled, "writing", writing)
        with writing() as connection:
            of_sums = sa.update(t.progress).where(t.progress.c.rewarded_seq.is_not(None))
            connection.execute(of_sums.values({changed: MOVED[changed]}))
        return writing()

    monkeypatch.setattr(filled, "writing", moved)
    rollups.advance(filled, RULE, 10)
    assert sums(filled) == before


def test_a_reward_is_added_once_whether_its_decision_or_its_example_is_read_first(store: Store) -> None:
    numbers, begin = range(20), 1000.0 * HOUR
    ids = [f"d{i}" for i in numbers]
    made = [begin + 10.0 * (20 - i) for i in numbers]  # the last one is closed first
    drawn = Context("?"), ARMS, (0.25, 0.25, 0.5), "a", "linucb", 1, Mode.EXPLORE
    store.append([Decision(ids[i], *drawn, made[i], made[i] + 60.0) for i in numbers])
    store.append([Execution(name, "a", Status.OK, Cost(), (), None, "", begin + 300.0) for name in ids])
    store.append([Feedback(f"f{name}", name, "right", 1.0, begin + 300.0) for name in ids])
    for rule in (RULE, RULE.model_copy(update={"wait_time": "PT1H"})):  # the sums are of the first
        Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(2000.0 * HOUR)
    learned = [example.decision.id for example in read_examples(store, RULE.join)]
    assert learned == ids[::-1]
    left = rollups.progress(store, RULE).left
    assert left == 2 * store.log_seq() + len(ids), "facts, examples, and positions that are settled"
    advance(store, 1)
    assert rollups.read(store, 1000 * HOUR, 1001 * HOUR, HOUR).total()["rewarded"] == len(ids)


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
    assert {key[0] for key in sums(filled) if key[1] < 1100 * HOUR} == {0, HOUR}


def test_rewards_of_newly_settled_decisions_are_found_by_their_positions(tmp_path: Path) -> None:
    store, read = Store(f"sqlite:///{tmp_path / 'log.db'}"), list[str]()
    store.append([fact for turn in islice(turns(np.random.default_rng(3)), 9) for fact in turn if fact])
    Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(2000.0 * HOUR)

    @sa.event.listens_for(store.engine, "before_cursor_execute")
    def _(_: object, cursor: sqlite3.Cursor, statement: str, values: object, *__: object) -> None:
        if "FROM examples JOIN decisions" in statement:
            plan = cursor.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
            read.append(plan[0][-1])

    rollups.advance(store, RULE)
    store.close()
    assert read[0] == "SEARCH decisions USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"


def test_the_newest_seconds_are_those_of_the_last_executions(filled: Store) -> None:
    made = [e for _, e, _ in turns(np.random.default_rng(3))][:-6:-1]
    assert rollups.newest_seconds(filled, 5) == {
        "arm": [e.cost.retrieval_s for e in made],
        "language model": [e.cost.llm_s for e in made if e.answer is not None],
    }


def test_the_newest_rewards_are_those_of_the_last_examples_that_are_wanted(filled: Store) -> None:
    examples = [*read_examples(filled, RULE.join)][-30:]
    for wanted in (
        listing.DecisionFilter(),
        listing.DecisionFilter(arm="b"),
        listing.DecisionFilter(metric="right"),
    ):
        expected = sorted(
            (one.decision.drawn, reward)
            for one in examples
            if one.decision.policy != LABELS
            and (reward := RULE.compute_reward(one)) is not None
            and wanted.arm in (None, one.decision.drawn)
            and (wanted.metric is None or one.metrics or f"f{one.decision.id[1:]}" in VALUED)
        )
        found = rollups.newest_rewards(filled, RULE, 30, wanted)
        assert sorted((one.arm, one.reward) for one in found) == expected != []
    assert {
        len(one.features) for one in rollups.newest_rewards(filled, RULE, 30, listing.DecisionFilter())
    } == {0}


VALUED = {f.id for _, _, f in turns(np.random.default_rng(3)) if f is not None}


def test_minutes_are_read_within_their_window_and_kept_for_two_days(store: Store) -> None:
    assert rollups.first_start(store) is None
    made = [one for one, _, _ in turns(np.random.default_rng(3))][:3]
    start = 1000 * HOUR
    at = (start + 60.0, start + 119.9, start + 60.0 + 48 * HOUR)
    rows = [replace(one, decided_at=a, drawn="a", policy="p") for one, a in zip(made, at, strict=True)]
    store.append(rows)
    advance(store, 2)
    found = rollups.read(store, start, start + 180, 60)
    assert (found.slot.tolist(), found.columns["decisions"].tolist()) == ([1], [2.0])
    assert len(rollups.read(store, start, start + 60, 60).slot) == 0, "before its end"
    assert sum(key[0] == 60 for key in sums(store)) == 2
    store.append([replace(made[0], id="label", decided_at=at[2] + 0.5, policy=LABELS)])
    advance(store, 5000)
    assert {key[1] for key in sums(store) if key[0] == 60} == {start + 60 + 48 * HOUR}, (
        "two days later they go"
    )
    hours = rollups.read(store, start, start + 50 * HOUR, HOUR)
    assert (hours.slot.tolist(), hours.total()["decisions"]) == ([0, 48], 3.0), "a label counts in none"


RULES = {
    "": RULE,
    "metrics": RULE.model_copy(update={"metrics": {"right": Metric(weight=2.0)}}),
    "cost": RULE.model_copy(update={"cost": Prices(usd=1.0)}),
    "token prices": RULE.model_copy(update={"token_prices": {"large": (0.25, 1.0, 0.25)}}),
    "clip": RULE.model_copy(update={"clip": (0.0, 1.0)}),
    "failed": RULE.model_copy(update={"failed": 0.5}),
    "default": RULE.model_copy(update={"default": 0.5}),
    "wait_time": RULE.model_copy(update={"wait_time": "PT31M"}),
}


def test_rules_that_differ_in_anything_have_sums_of_their_own() -> None:
    assert len({rollups.digest_rule(rule) for rule in RULES.values()}) == len(RULES) == 8


def test_minutes_are_kept_for_two_days_and_facts_are_added_5_000_at_a_time() -> None:
    assert (rollups.MINUTE, rollups.HOUR, rollups.MINUTES_FOR_S, rollups.BATCH) == (60, 3600, 172_800, 5000)


def test_the_newest_draws_are_explored_ones_with_the_features_of_their_questions(filled: Store) -> None:
    """Newest first, as many as are wanted, that meet criteria; forced ones and labels are none."""
    made = [d for d, _, _ in turns(np.random.default_rng(3)) if d.policy != LABELS and d.mode is Mode.EXPLORE]
    found = rollups.newest_draws(filled, 10, listing.DecisionFilter())
    assert [one.arm for one in found] == [one.drawn for one in made[:-11:-1]]
    of_b = rollups.newest_draws(filled, 1000, listing.DecisionFilter(arm="b"))
    assert len(of_b) == sum(one.drawn == "b" for one in made)
    context = Context("?", {"tier=free": 1.0, "length": 0.5})
    receipts = filled.append([replace(made[0], id="late", context=context)])
    assert rollups.newest_draws(filled, 1, listing.DecisionFilter()) == [
        (receipts[0].seq, made[0].drawn, {"tier=free": 1.0, "length": 0.5}, "?", ())
    ]


def test_old_draws_are_beyond_what_is_looked_at(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rare criterion does not read the whole log."""
    monkeypatch.setattr(listing, "WINDOW_BY_REWARD", 9)
    assert 0 < len(rollups.newest_draws(filled, 1000, listing.DecisionFilter())) <= 4
