"""A log read in bulk is the log read fact by fact, on each database; and so are its rewards."""

from collections.abc import Callable, Mapping
from unittest.mock import patch

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armwise.feedback import log_columns as columns
from armwise.feedback.decisions import Selection, list_priced, rewards, tabulate
from armwise.feedback.errors import LogGapError
from armwise.feedback.events import Context
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.log_columns import read_learned
from armwise.feedback.logged_draws import EmptyLogError, LoggedDraws
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.sources import LogSource
from armwise.feedback.training_log import read_examples
from tests.feedback.examples import (
    FEATURES,
    METRICS,
    example,
    log_of_examples,
    read_log,
    some_examples,
    some_rule,
    write,
)

RULE = RewardRule(correction_time="PT0S", metrics={"right": Metric()})

SELECTIONS = (
    Selection(),
    Selection(since=2.0, until=7.5),
    Selection(versions=(1, 2), features={"w=why": 1.0}),
    Selection(features={FEATURES[0]: 1.0}),
    Selection(features={FEATURES[0]: 0.0, FEATURES[1]: 0.5}),
    Selection(since=100.0),
    Selection(prefix="d1"),
    Selection(excluded_id_part="1", features={FEATURES[0]: 0.0}),
)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32), n=st.integers(0, 40), selection=st.sampled_from(SELECTIONS))
@pytest.mark.slow
def test_columns_say_what_facts_say(store: Store, seed: int, n: int, selection: Selection) -> None:
    rng = np.random.default_rng(seed)
    rule = some_rule(rng)
    write(store, rule.join, some_examples(rng, n))
    with patch.object(columns, "CHUNK", 17), patch.object(columns, "_FEW", 3):
        in_bulk = outcome(lambda: read_log(store, rule, selection))
    one_by_one = outcome(lambda: log_of_examples(read_examples(store, rule.join), rule, selection))
    assert_same(in_bulk, one_by_one)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
@pytest.mark.slow
def test_rewards_of_columns_are_those_of_the_rule_to_the_last_digit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rule, examples = some_rule(rng).model_copy(update={"token_prices": {}}), some_examples(rng, 8)
    found = rewards(
        rule,
        {name: np.array([x.metrics.get(name, np.nan) for x in examples]) for name in METRICS},
        {name: np.array([float(getattr(x.cost, name)) for x in examples]) for name in list_priced(rule.cost)},
        np.array([x.failed for x in examples]),
    )
    expected = [rule.compute_reward(x) for x in examples]
    assert [None if np.isnan(value) else value for value in found.tolist()] == expected


def test_what_disagrees_with_itself_is_counted_and_left_out(store: Store) -> None:
    write(store, RULE.join, [example(seq) for seq in range(1, 8)])
    change(store, 2, propensity=0.25 + 1e-8)
    change(store, 3, probabilities=[])
    change(store, 4, probabilities=[0.25, 0.25])
    change(store, 5, probabilities=[0.0, 1.0], propensity=0.0)
    change(store, 6, drawn="nobody")
    change(store, 7, propensity=0.25 + 1e-10)
    log = read_log(store, RULE)
    assert log.seq.tolist() == [1, 7], "which is as sums are rounded"
    assert log.excluded == {
        "propensity differs from the distribution": 1,
        "no distribution": 2,
        "propensity not in (0, 1]": 1,
        "drawn arm not in the distribution": 1,
    }


def test_a_gap_in_the_training_log_or_in_its_facts_is_an_error(store: Store) -> None:
    write(store, RULE.join, [example(seq) for seq in range(1, 6)])
    with store.writing() as connection:
        connection.execute(sa.delete(t.executions).where(t.executions.c.decision_id == "d3"))
    with pytest.raises(LogGapError, match="the training log continues at 4 after 2"):
        read_log(store, RULE)
    with store.writing() as connection:
        connection.execute(sa.delete(t.examples).where(t.examples.c.seq > 2))
    assert len(read_log(store, RULE)) == 2
    with pytest.raises(LogGapError, match="the training log ends at 2, not at 5"):
        read_learned(store, RULE, Selection(), 0, 5)


def test_what_is_appended_meanwhile_is_not_read(store: Store) -> None:
    write(store, RULE.join, [example(seq) for seq in range(1, 9)])
    told = []

    def tell(what: str, done: int, total: int | None) -> None:
        told.append((what, done, total))
        write(store, RULE.join, [example(seq) for seq in range(1, 20)])

    with patch.object(columns, "CHUNK", 5):
        assert read_log(store, RULE, Selection(), tell).seq.tolist() == list(range(1, 9))
    assert told == [("reading the log", 5, 8), ("reading the log", 8, 8)]
    assert len(read_log(store, RULE)) == 19


def test_decisions_share_questions_episodes_and_users(store: Store) -> None:
    """A database has the users; a decision that is read back has not, so that exports have none."""
    who = [("e", "u"), ("e", "v"), (None, "u"), ("f", None), ("f", "u"), (None, None)]
    examples = [
        example(seq, episode_id=episode, user_digest=user, context=Context(f"{seq // 2}?"))
        for seq, (episode, user) in enumerate(who, start=1)
    ]
    write(store, RULE.join, examples)
    shared = {"question": [0, 1, 1, 2, 2, 3], "episode": [0, 0, 1, 2, 2, 3], "user": [0, 1, 0, 2, 0, 3]}
    for group, codes in {**shared, "none": [*range(6)]}.items():
        blocks = (decisions for decisions, _ in LogSource(store, RULE).blocks(RULE))
        for batches in (blocks, tabulate(examples, RULE)):
            assert LoggedDraws.from_decisions(batches, group=group).groups.tolist() == codes


def test_a_log_of_another_rule_is_another_log(store: Store) -> None:
    write(store, RULE.join, [example()])
    other = RewardRule(correction_time="PT0S", metrics={"thumb": Metric()})
    with pytest.raises(EmptyLogError, match="the training log is empty"):
        read_log(store, other)


def test_facts_are_found_wherever_they_stand(store: Store) -> None:
    examples = [example(seq, id=f"it's {seq:b}%s") for seq in range(1, 61)]
    write(store, RULE.join, examples)
    for table in (t.decisions, t.executions):
        move(store, table, {x.decision.id: 1 + 17 * x.seq % 61 for x in examples})
    with store.writing() as connection:  # the facts about the others stay, among those that are read
        connection.execute(sa.delete(t.examples).where(t.examples.c.seq > 40))
    with patch.object(columns, "CHUNK", 17):
        assert_same(read_log(store, RULE), log_of_examples(examples[:40], RULE))


@pytest.mark.parametrize("table", [t.decisions, t.executions], ids=str)
def test_a_fact_that_is_missing_is_an_error_that_says_where(store: Store, table: sa.Table) -> None:
    write(store, RULE.join, [example(seq) for seq in range(1, 6)])
    with store.writing() as connection:
        connection.execute(sa.delete(table).where(ident(table) == "d4"))
    with pytest.raises(LogGapError, match="the training log continues at 5 after 3"):
        read_log(store, RULE)


def ident(table: sa.Table) -> sa.Column[str]:
    return table.c.id if table is t.decisions else table.c.decision_id


def move(store: Store, table: sa.Table, positions: Mapping[str, int]) -> None:
    """Have the rows about some decisions stand at other positions."""
    away = 10_000_000
    with store.writing() as connection:
        connection.execute(sa.update(table).values(seq=table.c.seq + away))
        for name, seq in positions.items():
            connection.execute(sa.update(table).where(ident(table) == name).values(seq=seq))


def change(store: Store, seq: int, **values: object) -> None:
    with store.writing() as connection:
        connection.execute(sa.update(t.decisions).where(t.decisions.c.seq == seq).values(**values))


def outcome(read: Callable[[], LoggedDraws]) -> LoggedDraws | str:
    try:
        return read()
    except EmptyLogError as error:
        return str(error)


def assert_same(one: LoggedDraws | str, other: LoggedDraws | str) -> None:
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    assert (one.arms, one.excluded) == (other.arms, other.excluded)
    for name in (
        "drawn",
        "propensity",
        "reward",
        "groups",
        "seq",
        "at",
        "version",
        "p_log",
    ):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
