"""What a warm start asks of the log: how many decisions of the traffic, and which questions."""

from collections import Counter
from dataclasses import replace

from armwise.feedback.events import LABELS, Decision, Status, Tick
from armwise.feedback.log import Store, erasures
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log.examples import name_episode
from armwise.feedback.training_log.joiner import Joiner, read_examples, take_epoch
from armwise.feedback.training_log.label_turns import LabelTurn, insert
from armwise.feedback.training_log.traffic import (
    count_logged_decisions,
    count_rated_decisions,
    decisions_of_traffic,
    draw_in_turns,
    exists,
    find_confirmed_since,
    label_ids,
    list_asked_since,
)
from tests.feedback.conftest import decision, execution, value

RULE = RewardRule(correction_time="PT0S", metrics={"right": Metric()}, wait_time="PT1M")


def label(name: str, run: int | None = None) -> LabelTurn:
    episode = None if run is None else name_episode(run)
    made = replace(decision(name, at=100.0, wait_s=0.0), policy=LABELS, episode_id=episode)
    return LabelTurn(made, execution(name), (value(name, at=100.0),))


def about(name: str, question: str) -> Decision:
    made = decision(name)
    return replace(made, context=replace(made.context, question=question))


def test_a_label_that_was_learned_is_no_traffic(store: Store) -> None:
    store.append([decision("d1"), execution("d1"), value("d1")])
    insert(store, [label("label")])
    assert Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(110.0).examples_seq == 2
    assert decisions_of_traffic(store, RULE.join) == 1
    assert decisions_of_traffic(store, "another rule") == 0


def test_rated_decisions_have_settled_with_feedback_and_are_no_labels(store: Store) -> None:
    failed = execution("d2", status=Status.ARM_FAILED)
    store.append([decision("d1"), execution("d1"), value("d1"), decision("d2"), failed, decision("d3")])
    insert(store, [label("label")])
    rule = RULE.model_copy(update={"failed": 0.0})
    Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(1000.0)
    assert decisions_of_traffic(store, rule.join) == 2, "one of them failed"
    assert (count_logged_decisions(store), count_rated_decisions(store, rule.join)) == (3, 1)
    assert count_rated_decisions(store, "another rule") == 0


def test_rated_decisions_are_counted_from_a_position_up_to_a_limit(store: Store) -> None:
    for name in ("d1", "d2", "d3"):
        store.append([decision(name), execution(name), value(name)])
    assert Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(110.0).examples_seq == 3
    assert [count_rated_decisions(store, RULE.join, after) for after in range(5)] == [3, 2, 1, 0, 0]
    assert [count_rated_decisions(store, RULE.join, 1, most) for most in (1, 2, 9)] == [1, 2, 2]


def test_questions_are_listed_once_in_the_order_of_their_first_use(store: Store) -> None:
    store.append([about(f"d{n}", question) for n, question in enumerate("bcabc")])
    insert(store, [label("label")])
    assert list(list_asked_since(store, 0.0)) == ["b", "c", "a"]


def test_one_caller_cannot_fill_a_sample_nor_choose_what_is_drawn(store: Store) -> None:
    asked = [(f"{key} {user} {n}", key, user) for key, user, many in CALLERS for n in range(many)]
    store.append(
        [
            replace(about(f"d{n}", question), asked_by=key, user_digest=user or None)
            for n, (question, key, user) in enumerate(asked)
        ]
    )
    callers = list_asked_since(store, 0.0)
    drawn = draw_in_turns(callers, 12, "secret")
    counts = Counter(" ".join(question.split()[:-1]) for question in drawn)
    assert counts == {"flood": 4, "shop loud": 3, "shop quiet": 1, "few": 3, "once": 1}
    assert set(drawn) != set(draw_in_turns(callers, 12, "another secret"))
    assert drawn == draw_in_turns(dict(reversed(callers.items())), 12, "secret")
    assert len(draw_in_turns(callers, 10**6, "secret")) == len(asked)


CALLERS = [("flood", "", 300), ("shop", "loud", 90), ("shop", "quiet", 1), ("few", "", 3), ("once", "", 1)]
"""Keys, their users, and how many questions each asks."""


def test_a_question_counts_from_the_time_of_the_log_at_which_it_was_committed(store: Store) -> None:
    store.append([about("d1", "before")])
    store.append([Tick(150.0)])
    store.append([about("d2", "after")])
    assert list(list_asked_since(store, 150.0)) == ["after"]
    assert list_asked_since(store, 150.5) == {}


def test_labels_are_found_by_their_runs_and_those_of_none_on_demand(store: Store) -> None:
    store.append([replace(decision("traffic"), episode_id=name_episode(1)), decision("more")])
    insert(store, [label("of none"), label("of 1", 1), label("of 2", 2), label("of 3", 3)])
    assert label_ids(store, [], RULE.join) == {"of none"}
    assert label_ids(store, [2], RULE.join) == {"of none", "of 2"}
    Joiner(store, RULE, take_epoch(store, "joiner", 0.0)).advance(200.0)
    (seq,) = (one.seq for one in read_examples(store, RULE.join) if one.decision.id == "of none")
    assert label_ids(store, [1, 3], RULE.join, after=seq - 1) == {"of none", "of 1", "of 3"}
    assert label_ids(store, [1, 3], RULE.join, after=seq) == {"of 1", "of 3"}
    assert label_ids(store, [], "another", after=seq) == {"of none"}


def test_an_answer_counts_as_right_by_the_values_that_confirm_it(store: Store) -> None:
    def asked(name: str, number: float, answer: str | None, **fields: object) -> None:
        done = replace(execution(name), answer=answer)
        made = replace(about(name, name.split()[0]), **fields)  # type: ignore[arg-type]
        store.append([made, done, value(name, number=number)])

    def confirmed(metric: str = "right", since: float = 0.0, join: str = RULE.join) -> dict[str, str]:
        return find_confirmed_since(store, join, metric, lambda value: 0.25 < value < 0.75, since)

    asked("low", 0.25, "yes"), asked("in", 0.5, "first"), asked("high", 0.75, "yes"), asked("no", 0.5, None)
    asked("blank", 0.5, " "), asked("in again", 0.625, "newest"), asked("in wrong", 1.0, "wrong")
    asked("label", 0.5, "yes", policy=LABELS)
    asked("gone", 0.5, "secret")
    erasures.erase_decision(store, "gone", "cli", 200.0)
    store.append([Tick(150.0)])
    asked("late", 0.5, "yes", decided_at=100.0)
    Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(155.0)
    assert confirmed() == {"in": "newest", "late": "yes"}
    assert confirmed(since=150.0) == {"late": "yes"}
    assert confirmed("thumb") == confirmed(since=150.5) == confirmed(join="another rule") == {}
    assert "what" not in list_asked_since(store, 0.0)
    assert list(list_asked_since(store, 0.0)) == ["low", "in", "high", "no", "blank", "late"], (
        "without an erased one"
    )


def test_there_is_traffic_once_a_decision_is_no_label(store: Store) -> None:
    insert(store, [label("label")])
    assert not exists(store)
    store.append([decision("d1")])
    assert exists(store)
