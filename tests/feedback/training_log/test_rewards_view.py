"""The view `rewards` is the rule, on each database."""

import logging
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.feedback.events import LABELS, Cost, Example, Execution, Status
from armwise.feedback.log import Store, rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Metric, Prices, RewardRule
from armwise.feedback.training_log import create_rewards_view, read_examples
from tests.feedback.examples import example, some_examples, some_rule, write

ODD = '50 % of "it\'s"\\:x'
"""A name that SQL, JSON and a driver each read in their own way."""

COLUMNS = "decision, arm, propensity, reward, cost, net"

Earned = tuple[str, str, float | None, float | None, float, float | None]


def read(store: Store) -> list[Any]:
    with store.reading() as connection:
        query = sa.text(f"SELECT {COLUMNS} FROM rewards ORDER BY decision")
        return [tuple(row) for row in connection.execute(query)]


def expect(rule: RewardRule, one: Example) -> Earned:
    """Return what the rule says of an example."""
    gross = rule.model_copy(update={"cost_weight": 0.0, "clip": (-1e9, 1e9)}).compute_reward(one)
    cost = rule.cost_weight * rule.price(one.cost, one.tokens_by_model, one.turns)
    drawn = one.decision
    return drawn.id, drawn.drawn, drawn.propensity, gross, cost, rule.compute_reward(one)


def require_equal(store: Store, rule: RewardRule) -> None:
    """Compare the view with the rule, to the rounding of sums."""
    create_rewards_view(store, rule)
    examples = [one for one in read_examples(store, rule.join) if one.decision.policy != LABELS]
    expected = sorted((expect(rule, one) for one in examples), key=itemgetter(0))
    found = read(store)
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    earned, said = (np.array([row[3:] for row in rows], dtype=float) for rows in (found, expected))
    np.testing.assert_allclose(earned, said, rtol=1e-12, atol=1e-12)  # None is NaN in both


@pytest.mark.parametrize("seed", range(12))
def test_the_view_is_the_rule(store: Store, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rule = some_rule(rng)
    write(store, rule.join, some_examples(rng, 40))
    require_equal(store, rule)


def test_the_view_has_turns_of_conversations_prices_of_today_and_any_name(store: Store) -> None:
    dear, cheap = (100, 20, 60, 0.25, 30), (7, 3, 0)
    prices = {"dear": (1.0, 2.0, 0.1, 1.25), ODD: (0.5, 0.5, 0.5)}
    rule = RewardRule(
        metrics={ODD: Metric(range=(1, 5), weight=1 / 3), "late": Metric(range=(0, 9), optimize="min")},
        cost=Prices(steps=0.01, usd=1 / 7),
        cost_weight=0.3,
        token_prices=prices,
        clip=(-0.4, 0.9),
    )
    metrics = [{ODD: 4.0}, {ODD: 1.5, "late": 2.0}, {}, {"late": 20.0}, {ODD: 5.0}]
    used = [{"dear": dear}, {"dear": dear, ODD: cheap}, {}, {"gone": cheap, "dear": dear}, {ODD: cheap}]
    write(
        store,
        rule.join,
        [
            example(seq, metrics=said, cost=Cost(seq, usd=0.5 * seq), tokens=tokens)  # type: ignore[arg-type]
            for seq, (said, tokens) in enumerate(zip(metrics, used, strict=True), 1)
        ],
    )
    turns = [Execution("d1", "a", Status.OK, Cost(n, usd=n), tokens_by_model={"dear": dear}) for n in (1, 2)]
    kept = {"d1": rows.sum_turns(turns), "d5": rows.sum_turns([Execution("d5", "a", Status.OK, Cost(3))])}
    with store.writing() as connection:
        for name, summed in kept.items():
            connection.execute(
                sa.update(t.examples).where(t.examples.c.decision_id == name).values(turns=summed)
            )
    require_equal(store, rule)
    assert {row[0] for row in read(store) if row[3] is None} == {"d3"}, "no metric, and no default"


def test_another_rule_replaces_the_view(store: Store) -> None:
    rule = RewardRule(metrics={"right": Metric()}, cost_weight=0.1)
    write(store, rule.join, [example(1, cost=Cost(2))])
    create_rewards_view(store, rule)
    with store.writing() as connection:
        connection.exec_driver_sql("CREATE VIEW of_mine AS SELECT * FROM rewards")
    dearer = rule.model_copy(update={"cost_weight": 0.25})
    create_rewards_view(store, dearer)
    with store.writing() as connection:
        mine = connection.exec_driver_sql("SELECT reward, cost, net FROM of_mine").all()
        connection.exec_driver_sql("DROP VIEW of_mine")
    assert [tuple(row) for row in mine] == [(1.0, 0.5, 0.5)]
    assert [row[3:] for row in read(store)] == mine


def test_the_same_rule_does_not_wait_for_those_who_read_the_view(store: Store) -> None:
    rule = RewardRule(metrics={"right": Metric()}, cost_weight=0.1)
    write(store, rule.join, [example(1, cost=Cost(2))])
    create_rewards_view(store, rule)
    before = read(store)
    with ThreadPoolExecutor(1) as pool, store.reading() as reader:
        reader.execute(sa.text("SELECT * FROM rewards")).all()
        pool.submit(create_rewards_view, store, rule).result(timeout=20.0)
    assert read(store) == before


def test_where_the_view_cannot_be_made_the_log_is_used_without_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    rule = RewardRule(metrics={"right": Metric()})
    with store.writing() as connection:
        connection.exec_driver_sql("DROP VIEW IF EXISTS rewards")
        connection.exec_driver_sql("CREATE TABLE rewards (mine INTEGER)")
    with caplog.at_level(logging.WARNING):
        create_rewards_view(store, rule)
    assert "the view 'rewards' could not be made" in caplog.text
    with store.writing() as connection:
        connection.exec_driver_sql("DROP TABLE rewards")
    require_equal(store, rule)
