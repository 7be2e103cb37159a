"""A log read in bulk is the log read fact by fact, on each database; and so are its rewards."""

from collections.abc import Callable, Mapping
from typing import Any
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


STANDS = {
    "before its range": lambda seq: -1_000_000 if seq == 7 else seq,
    "long after its range": lambda seq: 1_000_000 if seq == 7 else seq,
    "in no order": lambda seq: 1 + 17 * seq % 61,
    "far apart": lambda seq: 1000 * seq,
}
"""Where in the log the facts about some decisions may stand, by their position in the training log."""


@pytest.mark.parametrize("spread", [0, 1_000_000])
@pytest.mark.parametrize("stands", STANDS)
@pytest.mark.parametrize("table", [t.decisions, t.executions], ids=str)
def test_facts_are_found_wherever_they_stand(store: Store, table: sa.Table, stands: str, spread: int) -> None:
    examples = [example(seq, id=f"it's {seq:b}%s") for seq in range(1, 61)]
    write(store, RULE.join, examples)
    move(store, table, {x.decision.id: STANDS[stands](x.seq) for x in examples})
    with store.writing() as connection:  # the facts about the others stay, among those that are read
        connection.execute(sa.delete(t.examples).where(t.examples.c.seq > 40))
    sizes = {"CHUNK": 17, "_SAMPLE": 3, "_SPREAD": spread, "_MAX_IDS": 2}
    with patch.multiple(columns, **sizes):
        assert_same(read_log(store, RULE), log_of_examples(examples[:40], RULE))


def test_a_range_is_read_at_once_and_what_stands_elsewhere_is_looked_up(store: Store) -> None:
    examples = [example(seq) for seq in range(1, 61)]
    write(store, RULE.join, examples)
    move(store, t.decisions, {x.decision.id: -1_000 if x.seq == 7 else x.seq for x in examples})
    asked = []

    def fetched(connection: sa.Connection, query: sa.Select[Any]) -> columns.Columns:
        found = real(connection, query)
        asked.append((query.get_final_froms()[0], len(found[query.selected_columns[0].name])))
        return found

    real = columns._fetch  # noqa: SLF001 - what is asked of a database has no other name
    with patch.object(columns, "_fetch", fetched), patch.object(columns, "_SAMPLE", 3):
        assert len(read_log(store, RULE)) == 60
    assert asked == [(t.examples, 60), (t.decisions, 59), (t.decisions, 1), (t.executions, 60)]


def test_rows_are_in_the_order_of_the_training_log_however_the_database_returns_them(store: Store) -> None:
    examples = [example(seq) for seq in range(1, 31)]
    write(store, RULE.join, examples)

    def unordered(connection: sa.Connection, query: sa.Select[Any]) -> columns.Columns:
        """Return the rows backwards, as a database may where a statement does not order them."""
        found = real(connection, query)
        return found if "ORDER BY" in str(query) else {name: values[::-1] for name, values in found.items()}

    real = columns._fetch  # noqa: SLF001 - what is asked of a database has no other name
    with patch.object(columns, "_fetch", unordered):
        assert_same(read_log(store, RULE), log_of_examples(examples, RULE))


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
