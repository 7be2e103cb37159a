"""What a recipe learns: the labels of its runs, then the training log without the labels of any run."""

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.feedback.events import LABELS, Example
from armwise.feedback.log import Store
from armwise.feedback.reward import Aggregation, Complete, Metric, RewardRule
from armwise.feedback.training_log.examples import (
    StartingPoint,
    find_run,
    name_episode,
    read_learned_examples,
)
from armwise.feedback.training_log.joiner import Joiner, read_examples, take_epoch
from armwise.feedback.training_log.label_turns import LabelTurn, insert
from tests.feedback.conftest import decision, execution, value

RULE = RewardRule(
    correction_time="PT0S",
    metrics={"right": Metric(), "thumb": Metric()},
    cost_weight=0.0,
    complete=Complete.ANY,
)


def label(name: str, run: int | None = None, right: float = 1.0) -> LabelTurn:
    episode = None if run is None else name_episode(run)
    return LabelTurn(
        replace(decision(name, at=100.0, wait_s=0.0), policy=LABELS, episode_id=episode),
        execution(name),
        (value(name, number=right, at=100.0), value(name, "thumb", 0.5, at=100.0)),
    )


def live(store: Store, *names: str) -> None:
    for name in names:
        store.append([decision(name), execution(name), value(name)])


def joined(store: Store, rule: RewardRule = RULE) -> None:
    Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(1000.0)


def positions(examples: Iterable[Example]) -> list[tuple[int, str]]:
    return [(one.seq, one.decision.id) for one in examples]


@pytest.fixture
def mixed(store: Store) -> Store:
    """Traffic and labels of two runs and of none, in turn; all are joined."""
    live(store, "a")
    insert(store, [label("of-3", 3), label("of-5", 5)])
    live(store, "b")
    insert(store, [label("without run")])
    insert(store, [label("of-3 too", 3)])
    live(store, "c")
    joined(store)
    return store


def test_a_recipe_from_the_beginning_learns_all_but_the_labels_of_runs(mixed: Store) -> None:
    assert positions(read_learned_examples(mixed, RULE)) == [(1, "a"), (4, "b"), (5, "without run"), (7, "c")]


def test_a_recipe_that_starts_from_runs_learns_their_labels_first(mixed: Store) -> None:
    found = positions(read_learned_examples(mixed, RULE, StartingPoint(runs=(3,))))
    assert found == [(0, "of-3"), (0, "of-3 too"), (1, "a"), (4, "b"), (5, "without run"), (7, "c")]
    both = positions(read_learned_examples(mixed, RULE, StartingPoint(runs=(3, 5), after=4)))
    assert both == [(0, "of-3"), (0, "of-5"), (0, "of-3 too"), (5, "without run"), (7, "c")]
    assert positions(read_learned_examples(mixed, RULE, StartingPoint(runs=(4,), after=7))) == []


def test_who_knows_some_examples_knows_the_labels_with_them(mixed: Store) -> None:
    start = StartingPoint(runs=(3,))
    assert positions(read_learned_examples(mixed, RULE, start, after=4)) == [(5, "without run"), (7, "c")]
    assert positions(read_learned_examples(mixed, RULE, start, after=0, upto=4)) == [(1, "a"), (4, "b")]
    assert positions(read_learned_examples(mixed, RULE, start, upto=0)) == [(0, "of-3"), (0, "of-3 too")]
    assert positions(read_learned_examples(mixed, RULE, StartingPoint(after=5), after=1)) == [(7, "c")], (
        "it begins after its start"
    )
    assert positions(read_learned_examples(mixed, RULE, StartingPoint(after=5), upto=4)) == []


@pytest.mark.parametrize("aggregation", Aggregation)
def test_labels_are_learned_as_they_are_joined(store: Store, aggregation: Aggregation) -> None:
    metric = Metric(aggregation=aggregation)
    rule = RewardRule(correction_time="PT0S", metrics={"right": metric, "thumb": metric}, cost_weight=0.0)
    turn = label("twice", 3, right=0.25)
    more = value("twice", number=0.75, key="again", at=100.0)
    insert(store, [replace(turn, feedback=(*turn.feedback, more)), label("b", 3)])
    store.append([value("b", number=0.0, key="later", at=100.5)])
    joined(store, rule)
    found = list(read_learned_examples(store, rule, StartingPoint(runs=(3,))))
    assert [replace(one, seq=0, by=0) for one in read_examples(store, rule.join)] == found
    assert found[0].metrics["right"] == {"first": 0.25, "last": 0.75, "mean": 0.5, "sum": 1.0}[aggregation]
    assert found[1].metrics["right"] == 1.0, "what is said of a label later does not count"


def test_labels_are_read_chunk_by_chunk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.feedback.training_log.label_turns.CHUNK", 3)
    for first in range(0, 7, 2):
        insert(store, [label(f"label-{n}", 1) for n in range(first, min(first + 2, 7))])
    expected = [(0, f"label-{n}") for n in range(7)]
    assert positions(read_learned_examples(store, RULE, StartingPoint(runs=(1,)))) == expected, (
        "and before they are joined"
    )


def test_only_a_label_is_of_a_run() -> None:
    assert find_run(label("a", 12).decision) == 12
    assert find_run(label("a").decision) is None
    assert find_run(replace(label("a").decision, episode_id="a conversation")) is None
    assert find_run(replace(decision("a"), episode_id=name_episode(12))) is None


@given(runs=st.sets(st.integers(1, 50)), after=st.integers(0, 10**12))
def test_a_start_is_read_as_it_was_kept(runs: set[int], after: int) -> None:
    start = StartingPoint(tuple(sorted(runs)), after)
    assert StartingPoint.from_document(start.document()) == start
    assert StartingPoint.from_document(None) is None


@pytest.mark.parametrize(
    ("runs", "after", "words"),
    [
        *(
            (runs, 0, rf"runs {re.escape(str([*runs]))}: .*rising")
            for runs in ((0,), (2, 2), (3, 2), (-1, 4))
        ),
        ((), -1, "after example -1"),
    ],
)
def test_what_cannot_be_a_start_is_refused(runs: tuple[int, ...], after: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StartingPoint(runs, after)
