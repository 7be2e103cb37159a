"""The table of decisions: each reader gives the same rows, whatever a page of it holds."""

from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from armwise.feedback import log_columns
from armwise.feedback.decisions import concatenate, tabulate
from armwise.feedback.events import INCUMBENT, LABELS, OBSERVED, Mode, Status
from armwise.feedback.log import Store
from armwise.feedback.log_columns import read_decisions
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import Settled, settled
from tests.feedback.conftest import decision
from tests.feedback.examples import example, some_examples, some_rule, write

Steps = Mapping[str, Mapping[str, object]]

RULE = RewardRule(correction_time="PT0S", metrics={"right": Metric()}, cost_weight=0.0)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_decisions_next_to_each_other_are_read_over_the_ends_of_pages(store: Store, size: int) -> None:
    made = [replace(decision(f"d-{n}"), decided_at=100.0 + n) for n in range(7)]
    store.append(made)
    with patch.object(log_columns, "PAGE", size):
        served, everything, some = (
            concatenate([*read_decisions(store, RULE, *window)])
            for window in ((100.0, 106.0), (), (102.0, 105.0))
        )
    assert served.seq.tolist() == [1, 2, 3, 4, 5, 6]
    assert everything.id.tolist() == [hash(one.id) for one in made]
    assert some.at.tolist() == [102.0, 103.0, 104.0]
    assert np.isnan(everything.reward).all()
    assert {key.status for key in everything.draw.values} == {""}


def test_the_decision_at_the_settled_position_is_settled_and_the_next_one_is_not(store: Store) -> None:
    store.append([replace(decision(f"d-{n}"), decided_at=100.0 + n) for n in range(5)])
    with patch.object(settled, "read", return_value=Settled(position=3)):
        table = concatenate([*read_decisions(store, RULE)])
    assert table.settled[table.seq <= 3].all()
    assert not table.settled[table.seq > 3].any()
    assert table.seq.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_read_in_bulk_is_what_facts_say(store: Store, seed: int) -> None:
    """Also what a draw was made from, and what was seen; a database has statuses where an example has one."""
    rng = np.random.default_rng(seed)
    rule, examples = some_rule(rng), some_examples(rng, 30)
    write(store, rule.join, examples)
    in_bulk = concatenate([*read_decisions(store, rule, without=(), audited=True)])
    one_by_one = concatenate([*tabulate(examples, rule)])
    place = {name: row for row, name in enumerate(one_by_one.id.tolist())}
    order = np.argsort([place[name] for name in in_bulk.id.tolist()])
    same = ("id", "at", "version", "question", "episode", "user", "propensity", "n_p", "reward", "floor")
    for name in same:
        found, expected = getattr(in_bulk, name)[order], getattr(one_by_one, name)
        np.testing.assert_array_equal(found, expected, err_msg=name)
    contexts = [in_bulk.context[row] for row in order.tolist()]
    assert [context.features for context in contexts] == [one.features for one in one_by_one.context]
    failed = in_bulk.draw.each(lambda key: key.failed)[order]
    assert failed.tolist() == [one.failed for one in examples]


@pytest.mark.parametrize(
    ("policy", "canary", "floor"),
    [
        ("vowpal", {}, 0.25),
        ("vowpal", {"canary": {"version": 2, "share": 0.1}}, np.nan),
        (INCUMBENT, {"incumbent": {"share": 0.9, "pmf": {}, "shadow": {}}}, np.nan),
        (OBSERVED, {"incumbent": {"shadow": {}}}, np.nan),
    ],
)
def test_a_floor_is_claimed_only_where_the_policy_draws_alone(
    store: Store, policy: str, canary: Steps, floor: float
) -> None:
    one = example(1)
    steps = {"floor": {"least": 0.25}, **canary}
    one = replace(one, decision=replace(one.decision, policy=policy, steps=steps))
    write(store, RULE.join, [one])
    in_bulk = concatenate([*read_decisions(store, RULE, without=(), audited=True)])
    for table in (in_bulk, concatenate([*tabulate([one], RULE)])):
        np.testing.assert_array_equal(table.floor, [floor])


def test_rows_keep_their_distributions_however_they_are_cut_and_put_together() -> None:
    examples = [
        replace(one, decision=replace(one.decision, policy=LABELS)) if one.seq % 3 else one
        for one in (example(seq) for seq in range(1, 11))
    ]
    whole = concatenate([*tabulate(examples, RULE)])
    some = whole.where(whole.seq % 3 == 0)
    assert {key.policy for key in some.draw.values}.isdisjoint({LABELS})
    again = concatenate([whole.where(whole.seq <= 4), whole.where(whole.seq > 4)])
    arms = {arm: column for column, arm in enumerate(examples[0].decision.arms)}
    for part, rows in ((some, [2, 5, 8]), (again, range(10))):
        expected = [examples[row].decision.probabilities for row in rows]
        known = np.arange(len(part))
        np.testing.assert_array_equal(part.distributions(known, arms), np.array(expected))


def test_an_arm_with_a_probability_of_zero_could_not_be_drawn() -> None:
    first, other = example(1), example(2)
    zero = replace(first.decision, arms=("a", "b"), probabilities=(1.0, 0.0), drawn="a", mode=Mode.EXPLORE)
    alone = replace(other.decision, arms=("b", "a"), probabilities=(0.5,), drawn="b", mode=Mode.EXPLORE)
    table = concatenate([*tabulate([replace(first, decision=zero), replace(other, decision=alone)], RULE)])
    assert table.possible("b").tolist() == [False, True]
    assert table.possible("a").tolist() == [True, True]
    assert table.possible("c").tolist() == [False, False]
    assert table.place().tolist() == [0, 0]
    assert {key.status for key in table.draw.values} <= {Status.OK, Status.ARM_FAILED}
