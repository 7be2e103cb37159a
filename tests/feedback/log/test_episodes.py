"""Feedback on an episode: the status is exact, and the log does not read the whole episode for it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.feedback.events import Decision, Feedback, FeedbackKind, Tick
from armwise.feedback.log import episodes
from armwise.feedback.log import tables as t
from armwise.feedback.log.batch import FeedbackStatus
from armwise.feedback.log.store import Store
from tests.feedback.conftest import decision

GRACE_S = 2.0
"""Seconds after its deadline in which a decision is open, as the document has it."""

JOIN = "a join"
keys = count()


@pytest.fixture
def joined(url: str) -> Iterator[Store]:
    """A log that looks up what was learned."""
    store = Store(url, JOIN)
    yield store
    store.close()


def part(name: str, *, at: float = 100.0, wait_s: float = 60.0, episode: str = "talk") -> Decision:
    return replace(decision(name, at=at, wait_s=wait_s), episode_id=episode)


def said(at: float = 105.0, *, episode: str = "talk", kind: FeedbackKind = FeedbackKind.VALUE) -> Feedback:
    number = 1.0 if kind is FeedbackKind.VALUE else None
    return Feedback(f"k{next(keys)}", None, "right", number, at, episode_id=episode, kind=kind)


def learn(store: Store, *names: str) -> None:
    x = t.examples.c
    with store.writing() as connection:
        last = connection.scalar(sa.select(sa.func.coalesce(sa.func.max(x.seq), 0))) or 0
        rows = [
            {"join": JOIN, "seq": seq, "decision_id": name, "metrics": {}, "joined_by": 1}
            for seq, name in enumerate(names, start=last + 1)
        ]
        connection.execute(sa.insert(t.examples), rows)


def status(store: Store, *items: Feedback) -> str:
    return str(store.append(items)[-1].status)


def test_any_decision_that_awaits_a_value_accepts_it_not_the_oldest_one_alone(joined: Store) -> None:
    joined.append([part("soon over", wait_s=4.0), part("too late", at=108.0), part("fits", at=101.0)])
    assert status(joined, said(105.0)) == "accepted"
    learn(joined, "fits")
    assert status(joined, said(105.0)) == "late_not_learned"
    assert status(joined, said(105.0, kind=FeedbackKind.RETRACTION)) == "accepted", (
        "it is for decisions after it, too"
    )


def test_decisions_of_the_same_commit_count_from_where_they_are_in_it(joined: Store) -> None:
    joined.append([part("learned")])
    learn(joined, "learned")
    before, after = said(), said()
    receipts = joined.append([before, part("new"), after, replace(after)])
    assert [str(receipt.status) for receipt in receipts if receipt.status] == [
        "late_not_learned",
        "accepted",
        "duplicate",
    ]


def test_a_fact_of_the_same_commit_closes_decisions_for_the_items_after_it(joined: Store) -> None:
    joined.append([part("d1", at=107.0), part("d2", wait_s=10.0)])
    closing = Tick(110.5 + GRACE_S)
    first, _, second = joined.append([said(105.0), closing, said(105.0)])
    assert (first.status, second.status) == (FeedbackStatus.ACCEPTED, FeedbackStatus.LATE_NOT_LEARNED)


def test_what_was_settled_is_forgotten_when_an_older_log_was_restored(joined: Store) -> None:
    joined.append([part("d1"), part("d2"), said()])
    learn(joined, "d1", "d2")
    assert status(joined, said()) == "late_not_learned"
    with joined.writing() as connection:
        for table in (t.texts, t.decisions, t.feedback, t.examples):
            connection.execute(sa.delete(table))
        connection.execute(sa.update(t.log).values(seq=0, at=0.0))
    joined.append([part("d3")])
    assert status(joined, said()) == "accepted"


def test_of_many_episodes_the_latest_are_remembered(joined: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "REMEMBERED", 2)
    joined.append([part(name, episode=name) for name in "abc"])
    learn(joined, *"abc")
    for name in "abcab":
        assert status(joined, said(episode=name)) == "late_not_learned"
    assert status(joined, said(episode="unheard of")) == "pending_decision"


def expected(decisions: Sequence[tuple[Decision, float, bool]], item: Feedback, at: float) -> str:
    """Return the status of feedback by the definition of it, from every decision of the episode."""
    for one, logged_at, learned in decisions:
        early = item.kind is FeedbackKind.VALUE and item.received_at < one.decided_at
        closed = at > max(one.deadline, logged_at) + GRACE_S
        if not learned and not early and item.received_at <= one.deadline and not closed:
            return "accepted"
    return "late_not_learned" if decisions else "pending_decision"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_the_status_is_that_of_a_look_at_every_decision(joined: Store, seed: int) -> None:
    rng = np.random.default_rng(seed)
    log: dict[str, list[tuple[Decision, float, bool]]] = {"a": [], "b": [], "c": []}
    now = log_at = 100.0
    seen = set[str]()
    for n in range(150):
        episode = "abc"[rng.integers(3)]
        stamp = now + float(rng.integers(-8, 3))
        match rng.integers(4):
            case 0:
                one = part(f"d{n}", at=stamp, wait_s=float(rng.integers(1, 15)), episode=episode)
                joined.append([one])
                log_at = max(log_at, stamp)
                log[episode].append((one, log_at, False))
            case 1 if log[episode]:
                place = int(rng.integers(len(log[episode])))
                one, logged_at, learned = log[episode][place]
                if not learned:
                    learn(joined, one.id)
                log[episode][place] = one, logged_at, True
            case 2:
                joined.settle(["a", "b"])
            case _:
                kind = FeedbackKind.VALUE if rng.random() < 0.7 else FeedbackKind.RETRACTION
                item = said(stamp, episode=episode, kind=kind)
                log_at = max(log_at, stamp)
                seen.add(expected(log[episode], item, log_at))
                assert status(joined, item) == expected(log[episode], item, log_at)
        now += float(rng.integers(2))
    assert seen == {"accepted", "late_not_learned", "pending_decision"}


def steps(store: Store, call: Callable[[], Any]) -> int:
    """Return the steps of SQLite's virtual machine, in hundreds, that a call takes."""
    taken = count()

    def step() -> int:
        next(taken)
        return 0

    store.engine.dispose()
    sa.event.listen(store.engine, "connect", lambda driver, _: driver.set_progress_handler(step, 100))
    call()
    return next(taken)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.slow
def test_feedback_on_a_long_episode_costs_as_little_as_on_a_short(tmp_path: Path, learned: bool) -> None:
    taken = []
    for n in (10, 3000):
        store = Store(f"sqlite:///{tmp_path / str(n)}", JOIN)
        names = [f"d{i}" for i in range(n)]
        store.append([part(name) for name in names])
        if learned:
            learn(store, *names)
            store.settle(["talk"])
        taken.append(steps(store, lambda store=store: store.append([said()])))  # type: ignore[misc]
        store.close()
    assert taken[1] <= taken[0] + 1


def test_ten_thousand_episodes_are_remembered() -> None:
    assert episodes.REMEMBERED == 10_000
