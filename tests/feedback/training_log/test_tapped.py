"""A log with decisions of other systems: they are kept as they were, learned, and not what was served."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from armwise.feedback.budget import Budget
from armwise.feedback.decisions import Selection, concatenate
from armwise.feedback.drift import Monitor
from armwise.feedback.events import INCUMBENT, NOT_SERVED, OBSERVED, Decision, Example, Tick
from armwise.feedback.log import Store, listing
from armwise.feedback.log.facts import Fact
from armwise.feedback.log_columns import read_decisions
from armwise.feedback.registry import prices
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import Joiner, read_examples, settled, summary, take_epoch
from armwise.feedback.training_log.draws import newest_draws
from tests.feedback.conftest import decision, execution, value
from tests.feedback.examples import read_log
from tests.steps import change

RULE = RewardRule(correction_time="PT0S", metrics={"right": Metric()}, cost_weight=0.0)
WHOLE = change(decision("whole"), policy=OBSERVED, version=3, shadow=(0.5, 0.5))
ALONE = change(WHOLE, id="alone", arms=("b", "a"), probabilities=(0.75,), shadow=(0.25, 0.75))
UNKNOWN = replace(WHOLE, id="unknown", probabilities=())
SHARED = change(
    decision("shared"), policy=INCUMBENT, incumbent=(0.0, 1.0), incumbent_share=0.95, shadow=(0.5, 0.5)
)
TAPPED = (WHOLE, ALONE, UNKNOWN, SHARED)


def turn(made: Decision) -> Iterator[Fact]:
    yield made
    yield execution(made.id)
    yield value(made.id)


@pytest.fixture
def filled(store: Store) -> Store:
    """Two decisions that were served, around those of other systems."""
    made = (decision("first"), *TAPPED, decision("last"))
    store.append([fact for one in made for fact in turn(one)])
    Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(110.0)
    return store


def test_they_are_read_back_as_they_were_written(filled: Store) -> None:
    for made in TAPPED:
        found = filled.record(made.id)
        assert found is not None
        assert (found.decision, found.propensity) == (made, None if made is UNKNOWN else 0.75)
    assert {one.id for one in filled.newest(10)} == {"first", "last", *(one.id for one in TAPPED)}
    known = filled.decisions(["alone", "nothing", "shared"])
    assert {name: one for name, (one, _) in known.items()} == {"alone": ALONE, "shared": SHARED}
    assert {name: seq for name, (_, seq) in known.items()} == {"alone": 7, "shared": 13}


def test_each_is_an_example_and_one_without_a_propensity_is_not_evaluated(filled: Store) -> None:
    examples = list(read_examples(filled, RULE.join))
    assert [one.decision for one in examples[1:-1]] == list(TAPPED)
    log = read_log(filled, RULE, Selection())
    assert (len(log.seq), log.excluded["no propensity on record"]) == (5, 1)
    assert log.propensity.tolist() == [0.75] * 5


def test_what_was_served_is_without_them(filled: Store) -> None:
    filled.append([Tick(2500.0)])
    Joiner(filled, RULE, take_epoch(filled, "test", 0.0)).advance(2500.0)
    sums = summary.add_up(filled, summary.LogSums())
    total = summary.total(sums.arms.values())
    assert (total["decisions"], total["finished"], sums.elsewhere) == (2, 2, 4)
    assert len(newest_draws(filled, 100, listing.DecisionFilter())) == 2
    assert summary.total(summary.read_newest(filled, 100).arms.values())["finished"] == 2
    served = concatenate([*read_decisions(filled, RULE, 0.0, 200.0, without=NOT_SERVED)])
    assert served.seq.tolist() == [1, 16]
    spent = prices.read_spending(filled, Budget(steps_per_request=2.0), 0, 100)
    assert [seq for seq, _, _ in spent] == [2, 17]


def test_they_are_listed_and_found_by_the_version_that_looked_on(filled: Store) -> None:
    page = listing.decisions(filled, RULE, listing.DecisionFilter(version=3), 10)
    assert [one.decision.id for one in page.decisions] == ["unknown", "alone", "whole"]
    assert math.isnan(page.decisions[0].decision.propensity)


def test_one_that_waits_for_feedback_waits_as_any_other(store: Store) -> None:
    store.append([UNKNOWN, execution(UNKNOWN.id)])
    Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(101.0)
    assert settled.read(store, RULE).before == UNKNOWN.decided_at


def test_drift_is_looked_for_in_their_rewards_too() -> None:
    """A fall of the reward of an arm is a change, whoever drew it and however."""
    seen = []
    for made in (decision("d"), WHOLE, UNKNOWN):
        monitor = Monitor(RULE)
        changes = [
            change
            for n in range(1, 801)
            if (change := monitor.see(Example(n, made, execution("d").cost, {}), float(n <= 400)))
        ]
        seen.append([(change.subject, change.example_seq) for change in changes])
    assert seen[0]
    assert seen[0] == seen[1] == seen[2]
