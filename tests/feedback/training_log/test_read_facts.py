"""Facts as the fold gets them: all between two positions in order, and those of open decisions at one."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from armwise.feedback.events import LABELS, Decision, Feedback, FeedbackKind, Mode, Status, Tick
from armwise.feedback.log import Store
from armwise.feedback.reward import Complete, Metric, RewardRule
from armwise.feedback.training_log.join import (
    DecisionFact,
    Executed,
    FeedbackFact,
    JoinedFact,
    Joiner,
    TickFact,
    read_facts,
    read_unlearned,
    take_epoch,
)
from tests.feedback.conftest import decision, execution, value

RULE = RewardRule(
    metrics={"right": Metric(), "thumb": Metric(range=(-1, 1))}, wait_time="PT1M", complete=Complete.ANY
)


def between(store: Store, after: int, upto: int) -> list[JoinedFact]:
    with store.reading() as connection:
        return list(read_facts(connection, after, upto))


def unlearned(
    store: Store, since: float = 0.0, upto: int | None = None, join: str = RULE.join
) -> dict[str, tuple[DecisionFact, Status | None]]:
    """Return what is not learned, by the id of the decision."""
    with store.reading() as connection:
        found = list(read_unlearned(connection, join, since, store.log_seq() if upto is None else upto))
    by_id = {fact.id: (fact, status) for fact, status in found}
    assert len(by_id) == len(found), "each once"
    return by_id


def of_episode(item: Feedback, episode: str) -> Feedback:
    return replace(item, decision_id=None, episode_id=episode)


def as_read(item: Feedback) -> Feedback:
    """Feedback without what the fold does not use."""
    return replace(item, tags={})


def ids(found: Sequence[Feedback]) -> list[str]:
    return [item.id for item in found]


def named(name: str, episode: str | None = None, **fields: float) -> Decision:
    return replace(decision(name, **fields), episode_id=episode)  # type: ignore[arg-type]


def test_every_kind_of_fact_is_read_whole_and_in_order(store: Store) -> None:
    one = replace(decision("d1", at=100.0), episode_id="e", deferred=True)
    label = replace(decision("d2", at=90.0, mode=Mode.FORCED), policy=LABELS)
    said, thumb = value("d1"), value("d1", "thumb", 0.5, at=107.0)
    retracted = replace(of_episode(value("all"), "e"), value=None, kind=FeedbackKind.RETRACTION)
    store.append([one, execution("d1", Status.ARM_FAILED)])
    store.append([said, thumb])
    store.append([retracted])
    store.append([label, Tick(120.0)])
    facts = [
        DecisionFact(1, "d1", 100.0, 100.0, Mode.EXPLORE, "e", deferred=True),
        Executed(2, "d1", 101.0, Status.ARM_FAILED),
        FeedbackFact(3, as_read(said), more=True),
        FeedbackFact(4, as_read(thumb)),
        FeedbackFact(5, as_read(retracted)),
        DecisionFact(6, "d2", 90.0, 107.0, Mode.FORCED, past=True),
        TickFact(7, 120.0),
    ]
    assert between(store, 0, 7) == facts
    assert [between(store, seq, seq + 1) for seq in range(7)] == [[fact] for fact in facts]
    assert between(store, 7, 7) == []


def test_a_decision_comes_with_the_feedback_before_it_that_may_count_in_order(store: Store) -> None:
    store.append([value("d1", at=90.0), of_episode(value("of-earlier-turns", at=95.0), "e")])
    store.append([value("d1", "thumb", at=97.0), value("d2", at=98.0)])
    store.append([of_episode(value("said-2", at=99.0), "another")])
    store.append([named("d1", "e"), named("d2"), of_episode(value("said-3"), "e"), value("d2", "thumb")])
    store.append([named("d3", "e")])
    facts = {fact.id: fact for fact in between(store, 5, store.log_seq()) if isinstance(fact, DecisionFact)}
    assert {name: ids(fact.earlier) for name, fact in facts.items()} == {
        "d1": ["d1:right", "d1:thumb"],
        "d2": ["d2:right"],
        "d3": ["said-3:right"],
    }
    assert facts["d2"].earlier == [as_read(value("d2", at=98.0))]


def test_a_retraction_on_an_episode_comes_with_later_decisions(store: Store) -> None:
    said = of_episode(value("said", at=90.0), "e")
    store.append([named("d1", "e", at=80.0), said])
    store.append(
        [replace(said, id="other"), replace(said, value=None, kind=FeedbackKind.RETRACTION, received_at=95.0)]
    )
    store.append([named("d2", "e", at=100.0)])
    (_, *_, d2) = between(store, 0, store.log_seq())
    assert isinstance(d2, DecisionFact)
    assert [(item.id, item.kind) for item in d2.earlier] == [("said:right", FeedbackKind.RETRACTION)]
    opened = {name: [item.id for item in fact.earlier] for name, (fact, _) in unlearned(store).items()}
    assert opened == {"d1": ["said:right", "other", "said:right"], "d2": ["said:right"]}


def test_a_value_on_an_episode_counts_from_a_decision_of_the_same_moment_on(store: Store) -> None:
    store.append([of_episode(value("said", at=100.0), "e")])
    store.append([named("d1", "e", at=100.0), named("d2", "e", at=100.5)])
    read = {fact.id: fact for fact in between(store, 1, 3) if isinstance(fact, DecisionFact)}
    expected = {"d1": ["said:right"], "d2": []}
    assert {name: ids(fact.earlier) for name, fact in read.items()} == expected
    assert {name: ids(fact.earlier) for name, (fact, _) in unlearned(store).items()} == expected


def test_what_is_learned_not_drawn_or_beyond_the_position_is_not_open(store: Store) -> None:
    store.append([decision("learned"), execution("learned"), value("learned")])
    store.append([decision("forced", mode=Mode.FORCED), decision("open")])
    Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(110.0)
    store.append([decision("later")])
    assert set(unlearned(store)) == {"open", "later"}
    assert set(unlearned(store, upto=5)) == {"open"}
    assert set(unlearned(store, join="another rule")) == {"learned", "open", "later"}


def test_what_was_committed_before_a_time_of_the_log_is_not_read(store: Store) -> None:
    store.append([decision("d1", at=100.0)])
    store.append([Tick(150.0)])
    store.append([decision("d2", at=120.0)])
    assert [set(unlearned(store, since)) for since in (100.0, 100.5, 150.0, 150.5)] == [
        {"d1", "d2"},
        {"d2"},
        {"d2"},
        set(),
    ]


def test_a_status_counts_from_its_execution_on_if_that_followed_the_decision(store: Store) -> None:
    store.append([execution("d1"), decision("d1"), decision("d2"), execution("d2", Status.FELL_BACK)])
    status = {name: status for name, (_, status) in unlearned(store).items()}
    assert status == {"d1": None, "d2": Status.FELL_BACK}
    assert unlearned(store, upto=3)["d2"][1] is None


@pytest.mark.parametrize("looked_up", [1, 2, 10_000])
def test_an_open_decision_has_the_feedback_on_it_and_its_episode_in_order(
    store: Store, monkeypatch: pytest.MonkeyPatch, looked_up: int
) -> None:
    monkeypatch.setattr("armwise.feedback.training_log.join.LOOKED_UP", looked_up)
    store.append([named("d1", "e"), named("d2", "e"), named("d3", "f"), named("d4"), named("d5", "g")])
    store.append([of_episode(value("all"), "e"), value("d1"), value("d4"), of_episode(value("all-f"), "f")])
    store.append([value("d1", "thumb"), of_episode(value("all", "thumb"), "e"), value("d3"), value("d5")])
    found = unlearned(store)
    assert {name: ids(fact.earlier) for name, (fact, _) in found.items()} == {
        "d1": ["all:right", "d1:right", "d1:thumb", "all:thumb"],
        "d2": ["all:right", "all:thumb"],
        "d3": ["all-f:right", "d3:right"],
        "d4": ["d4:right"],
        "d5": ["d5:right"],
    }
    assert found["d4"][0] == DecisionFact(4, "d4", 100.0, 100.0, earlier=[as_read(value("d4"))])
    assert {name: ids(fact.earlier) for name, (fact, _) in unlearned(store, upto=9).items()} == {
        "d1": ["all:right", "d1:right"],
        "d2": ["all:right"],
        "d3": ["all-f:right"],
        "d4": ["d4:right"],
        "d5": [],
    }


def test_only_feedback_that_follows_at_once_was_sent_together(store: Store) -> None:
    store.append([value("d1"), Tick(110.0), value("d1", "thumb", at=111.0)])
    store.append([value("d2", at=112.0), value("d3", at=112.0), value("d3", "thumb", at=112.0)])
    store.append([value("d3", key="k", at=113.0)])
    feedback = [fact for fact in between(store, 0, 7) if isinstance(fact, FeedbackFact)]
    assert [fact.more for fact in feedback] == [False, False, False, True, False, False]
