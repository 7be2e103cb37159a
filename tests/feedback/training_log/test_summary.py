"""The sums of a summary are those of the rows, however often they were continued."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.feedback.events import LABELS, Context, Cost, Decision, Execution, Feedback, Mode, Status
from armwise.feedback.log import Store, listing
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Metric, Prices, RewardRule
from armwise.feedback.training_log import Joiner, summary, take_epoch
from armwise.feedback.training_log.draws import newest_draws
from armwise.feedback.training_log.summary import LogSums

RULE = RewardRule(
    correction_time="PT0S",
    metrics={"right": Metric()},
    cost_weight=0.1,
    cost=Prices(steps=1.0, usd=2.0),
    token_prices={"large": (0.25, 1.0, 0.125)},
    failed=0.0,
)
ARMS = ("a", "b", "c")
N = 120
HOUR = 3600
STATUSES = (Status.OK,) * 6 + (Status.ARM_FAILED, Status.FELL_BACK, Status.LLM_TIMEOUT, Status.CANCELLED)


def turns(rng: np.random.Generator) -> Iterator[tuple[Decision, Execution, Feedback | None]]:
    """Turns of some hours: draws of several distributions, of which some earn and some fail."""
    for i in range(N):
        arms = ARMS if i % 5 else ARMS[:2]
        p = rng.dirichlet(np.ones(len(arms)) * 3)
        drawn, at = int(rng.choice(len(arms), p=p)), 1000.0 * HOUR + i * 97.0
        mode = Mode.FORCED if i % 17 == 0 else Mode.EXPLORE
        policy = LABELS if i % 23 == 0 else "linucb"
        decision = Decision(
            *(f"d{i}", Context("?"), arms, tuple(p.tolist()), arms[drawn], policy, 1, mode, at, at + 60.0)
        )
        cost = Cost(int(rng.integers(3)), 10, i, rng.random(), rng.random(), 0.01)
        answer = None if i % 3 else "yes"
        status = STATUSES[i % len(STATUSES)]
        tokens = {"large": (1000, i, 500, 0.5) if i % 4 == 1 else (1000, i, 500)} if i % 2 else {}
        done = f"d{i}", arms[drawn], status, cost, (), answer, "", at + 1
        execution = Execution(*done, tokens_by_model=tokens)
        value = Feedback(f"f{i}", f"d{i}", "right", float(rng.integers(2)), at + 2) if i % 4 else None
        yield decision, execution, value


@pytest.fixture
def filled(store: Store) -> Store:
    facts = [fact for turn in turns(np.random.default_rng(3)) for fact in turn if fact is not None]
    for some in range(0, len(facts), 40):
        store.append(facts[some : some + 40])
    joiner = Joiner(store, RULE, take_epoch(store, "test", 0.0))
    joiner.advance(2000.0 * HOUR)
    return store


MADE = [turn for turn in turns(np.random.default_rng(3)) if turn[0].policy != LABELS]


@pytest.mark.parametrize("batch", [7, 64, 10_000])
def test_the_sums_are_those_of_the_rows_however_often_they_are_continued(
    filled: Store, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(summary, "BATCH", batch)
    found = summary.add_up(filled, LogSums())
    assert found.arms.keys() == {*ARMS}
    for arm, sums in found.arms.items():
        decisions = [d for d, _, _ in MADE if d.drawn == arm]
        ended = [e for d, e, _ in MADE if d.drawn == arm]
        assert sums == {
            "decisions": len(decisions),
            "explored": sum(d.mode is Mode.EXPLORE for d in decisions),
            "finished": len(ended),
            "fell_back": sum(e.status is Status.FELL_BACK for e in ended),
            "failed": sum(e.status in ("arm_failed", "llm_failed", "llm_timeout") for e in ended),
            "cancelled": sum(e.status is Status.CANCELLED for e in ended),
            "answers": sum(e.answer is not None for e in ended),
            "steps": sum(e.cost.steps for e in ended),
            "tokens": sum(e.cost.prompt_tokens + e.cost.completion_tokens for e in ended),
            "retrieval_s": pytest.approx(sum(e.cost.retrieval_s for e in ended)),
            "llm_s": pytest.approx(sum(e.cost.llm_s for e in ended)),
            "usd": pytest.approx(sum(e.cost.usd for e in ended)),
        }
    assert summary.add_up(filled, found) == found


@pytest.mark.parametrize("batch", [7, 10_000])
def test_the_course_has_each_decision_in_the_stretch_of_its_position(
    filled: Store, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(summary, "BATCH", batch)
    monkeypatch.setattr(summary, "MOST_STRETCHES", 10)
    found = summary.add_up(filled, LogSums())
    assert 5 <= len(found.course) <= 10
    d = t.decisions.c
    with filled.reading() as connection:
        rows = connection.execute(sa.select(d.seq, d.drawn, d.mode).where(d.policy != LABELS)).all()
    for number, stretch in enumerate(found.course):
        here = [row for row in rows if number * found.width < row.seq <= (number + 1) * found.width]
        assert stretch == {
            arm: (
                sum(row.drawn == arm for row in here),
                sum(row.drawn == arm and row.mode == Mode.EXPLORE for row in here),
            )
            for arm in {row.drawn for row in here}
        }


@pytest.mark.parametrize("damaged", [float("inf"), -1.0, 1e300, 2**62])
def test_a_damaged_cost_does_not_hide_the_others(filled: Store, damaged: Any) -> None:
    sound = summary.total(summary.add_up(filled, LogSums()).arms.values())
    with filled.writing() as connection:
        hit = connection.execute(sa.select(t.executions.c.seq, t.executions.c.usd).limit(1)).one()
        which = t.executions.c.seq == hit.seq
        connection.execute(sa.update(t.executions).where(which).values(usd=damaged))
    found = summary.total(summary.add_up(filled, LogSums()).arms.values())
    assert sound["usd"] - 0.011 < found["usd"] <= sound["usd"]
    assert found["tokens"] == sound["tokens"]


def test_the_newest_turns_have_their_latencies(filled: Store) -> None:
    made = [e for _, e, _ in MADE][:-6:-1]
    found = summary.read_newest(filled, 5)
    assert summary.total(found.arms.values())["finished"] == 5
    for stage, seconds in (
        ("arm", [e.cost.retrieval_s for e in made]),
        ("language model", [e.cost.llm_s for e in made if e.answer is not None]),
    ):
        assert found.seconds[stage] == pytest.approx(np.quantile(seconds, (0.5, 0.95, 0.99)))


def test_the_newest_document_replaces_the_last_one(store: Store) -> None:
    assert summary.read_document(store) is None
    for number in (1, 2):
        summary.write_document(store, {"number": number})
    assert summary.read_document(store) == {"number": 2}


def test_the_newest_draws_are_explored_ones_with_the_features_of_their_questions(filled: Store) -> None:
    """Newest first, as many as are wanted, that meet criteria; forced ones and labels are none."""
    made = [d for d, _, _ in turns(np.random.default_rng(3)) if d.policy != LABELS and d.mode is Mode.EXPLORE]
    found = newest_draws(filled, 10, listing.DecisionFilter())
    assert [one.arm for one in found] == [one.drawn for one in made[:-11:-1]]
    of_b = newest_draws(filled, 1000, listing.DecisionFilter(arm="b"))
    assert len(of_b) == sum(one.drawn == "b" for one in made)
    context = Context("?", {"tier=free": 1.0, "length": 0.5})
    receipts = filled.append([replace(made[0], id="late", context=context)])
    assert newest_draws(filled, 1, listing.DecisionFilter()) == [
        (receipts[0].seq, made[0].drawn, {"tier=free": 1.0, "length": 0.5}, "?", (), "late")
    ]


def test_old_draws_are_beyond_what_is_looked_at(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rare criterion does not read the whole log."""
    monkeypatch.setattr(listing, "WINDOW_BY_REWARD", 9)
    assert 0 < len(newest_draws(filled, 1000, listing.DecisionFilter())) <= 4
