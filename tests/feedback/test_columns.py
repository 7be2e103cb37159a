"""A log read in bulk is the log read fact by fact, on each database; and so are its rewards."""

from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedback import columns
from feedback import tables as t
from feedback.columns import length, read_log
from feedback.errors import LogGapError
from feedback.joins import read_examples
from feedback.logged import EmptyLogError, Log, Selection
from feedback.reward import Metric, RewardRule
from feedback.rewards import priced, rewards
from feedback.store import Store
from tests.feedback.examples import FEATURES, METRICS, example, some_examples, some_rule, write

RULE = RewardRule(metrics={"right": Metric()})

SELECTIONS = (
    Selection(),
    Selection(since=2.0, until=7.5),
    Selection(versions=(1, 2), policies=("greedy",)),
    Selection(features={FEATURES[0]: 1.0}),
    Selection(features={FEATURES[0]: 0.0, FEATURES[1]: 0.5}),
    Selection(since=100.0),
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), n=st.integers(0, 40), selection=st.sampled_from(SELECTIONS))
def test_columns_say_what_facts_say(store: Store, seed: int, n: int, selection: Selection) -> None:
    rng = np.random.default_rng(seed)
    rule = some_rule(rng)
    write(store, rule.join, some_examples(rng, n))
    with patch.object(columns, "CHUNK", 17), patch.object(columns, "_FEW", 3):
        in_bulk = outcome(lambda: read_log(store, rule, selection))
    one_by_one = outcome(
        lambda: Log.from_examples(read_examples(store, rule.join), rule.reward_of, selection)
    )
    assert_same(in_bulk, one_by_one)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_rewards_of_columns_are_those_of_the_rule_to_the_last_digit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rule, examples = some_rule(rng), some_examples(rng, 8)
    found = rewards(
        rule,
        {name: np.array([x.metrics.get(name, np.nan) for x in examples]) for name in METRICS},
        {name: np.array([float(getattr(x.cost, name)) for x in examples]) for name in priced(rule.cost)},
        np.array([x.failed for x in examples]),
    )
    expected = [rule.reward_of(x) for x in examples]
    assert [None if np.isnan(value) else value for value in found.tolist()] == expected


def test_what_disagrees_with_itself_is_counted_and_left_out(store: Store) -> None:
    write(store, RULE.join, [example(seq) for seq in range(1, 7)])
    change(store, 2, propensity=0.5)
    change(store, 3, probabilities=[])
    change(store, 4, probabilities=[0.25, 0.25])
    change(store, 5, probabilities=[0.0, 1.0], propensity=0.0)
    change(store, 6, drawn="nobody")
    log = read_log(store, RULE)
    assert log.seq.tolist() == [1]
    assert log.excluded == {
        "propensity not that of the distribution": 1,
        "no distribution": 2,
        "propensity not in (0, 1]": 1,
        "drawn arm not in the distribution": 1,
    }


def test_a_gap_in_the_training_log_or_in_its_facts_is_an_error(store: Store) -> None:
    write(store, RULE.join, [example(seq) for seq in range(1, 6)])
    with store.writing() as connection:
        connection.execute(sa.delete(t.executions).where(t.executions.c.decision_id == "d3"))
    with pytest.raises(LogGapError, match="the training log goes on at 4 after 2"):
        read_log(store, RULE)
    with store.writing() as connection:
        connection.execute(sa.delete(t.examples).where(t.examples.c.seq > 2))
    assert len(read_log(store, RULE)) == 2
    with pytest.raises(LogGapError, match="the training log ends at 2 and not at 5"):
        read_log(store, RULE, upto=5)


def test_what_is_appended_meanwhile_is_not_read(store: Store) -> None:
    write(store, RULE.join, [example(seq) for seq in range(1, 9)])
    told = []

    def tell(what: str, done: int, total: int | None) -> None:
        told.append((what, done, total))
        write(store, RULE.join, [example(seq) for seq in range(1, 20)])

    with patch.object(columns, "CHUNK", 5):
        assert read_log(store, RULE, progress=tell).seq.tolist() == list(range(1, 9))
    assert told == [("reading the log", 5, 8), ("reading the log", 8, 8)]
    assert length(store, RULE.join) == 19


def test_a_log_of_another_rule_is_another_log(store: Store) -> None:
    write(store, RULE.join, [example()])
    other = RewardRule(metrics={"thumb": Metric()})
    with pytest.raises(EmptyLogError, match="the training log is empty"):
        read_log(store, other)


def change(store: Store, seq: int, **values: object) -> None:
    with store.writing() as connection:
        connection.execute(sa.update(t.decisions).where(t.decisions.c.seq == seq).values(**values))


def outcome(read: Callable[[], Log]) -> Log | str:
    try:
        return read()
    except EmptyLogError as error:
        return str(error)


def assert_same(one: Log | str, other: Log | str) -> None:
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    assert (one.arms, one.excluded) == (other.arms, other.excluded)
    for name in ("drawn", "propensity", "reward", "questions", "seq", "at", "version", "p_log"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
