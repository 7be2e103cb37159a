"""Turns that are inserted after they happened: each once, as a whole."""

from dataclasses import replace

import pytest

from armwise.feedback.errors import ConflictError
from armwise.feedback.events import LABELS, Decision, FeedbackKind, Tick
from armwise.feedback.log import Store
from armwise.feedback.reward import Complete, Metric, RewardRule
from armwise.feedback.training_log.joiner import Joiner, read_examples, take_epoch
from armwise.feedback.training_log.label_turns import LabelTurn, insert, missing_from_log, read_turns
from tests.feedback.conftest import decision, execution, value

RULE = RewardRule(
    correction_time="PT0S", metrics={name: Metric() for name in ("right", "thumb", "other")}, cost_weight=0.0
)


def past(name: str) -> LabelTurn:
    return LabelTurn(
        replace(decision(name, at=100.0, wait_s=0.0), policy=LABELS),
        execution(name),
        (value(name, at=100.0), value(name, "thumb", 0.5, at=100.0)),
    )


def test_a_turn_is_entered_whole_and_once(store: Store) -> None:
    assert insert(store, [past("a"), past("b")]) == 2
    assert missing_from_log(store, [past("c"), past("a"), past("d")]) == [past("c"), past("d")]
    assert insert(store, [past("c"), past("a"), past("d")]) == 2
    assert insert(store, [past("c"), past("a")]) == 0
    assert insert(store, []) == 0
    record = store.record("c")
    assert record is not None
    assert LabelTurn(record.decision, record.execution or execution("?"), record.feedback) == past("c")
    counts = store.counts()
    assert (counts["decisions"], counts["executions"], counts["feedback"]) == (4, 4, 8)


def test_of_a_batch_that_cannot_be_entered_nothing_is(store: Store) -> None:
    with pytest.raises(ConflictError, match="already taken"):
        insert(store, [past("a"), past("b"), past("a")])
    assert store.counts()["decisions"] == 0


@pytest.mark.parametrize("complete", Complete)
@pytest.mark.parametrize("batch", [1, 3, 5000])
def test_turns_are_learned_once_in_order_and_whole(store: Store, complete: Complete, batch: int) -> None:
    rule = RULE.model_copy(update={"complete": complete, "default": 0.0})
    joiner = Joiner(store, rule, take_epoch(store, "test", 0.0), batch)
    insert(store, [past("z")])
    joiner.advance(1000.0)
    store.append([Tick(1000.0)])
    insert(store, [past("c"), past("a"), past("b")])
    for _ in range(store.log_seq()):
        joiner.advance(1000.25)
    joiner.advance(2000.0)
    found = [(example.decision.id, dict(example.metrics)) for example in read_examples(store, rule.join)]
    assert found == [(name, {"right": 1.0, "thumb": 0.5}) for name in ("z", "c", "a", "b")]


def test_labels_are_read_as_they_were_inserted_without_what_was_said_later(store: Store) -> None:
    one, other = (replace(past(name), decision=in_episode(past(name).decision)) for name in ("a", "b"))
    store.append([in_episode(decision("traffic")), execution("traffic")])
    insert(store, [one, other, past("of no episode")])
    store.append([replace(one.feedback[0], value=None, kind=FeedbackKind.RETRACTION)])
    store.append([value("b", key="later", at=100.5)])
    assert list(read_turns(store, ["e", "another"])) == [one, other]


def in_episode(made: Decision) -> Decision:
    return replace(made, episode_id="e")
