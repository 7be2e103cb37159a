"""What one rater teaches of what is learned: at once no more than a quarter, or twice its usual share."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from armwise.feedback.drift.alarms import Watch, read_alarms
from armwise.feedback.drift.monitor import Change
from armwise.feedback.events import Example, Feedback, Mode, Tick
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import raters
from armwise.feedback.training_log.join import Joined
from armwise.feedback.training_log.joiner import (
    Joiner,
    Position,
    delete_training_log,
    read_examples,
    read_position,
    take_epoch,
    write_position,
)
from armwise.feedback.training_log.raters import RaterShares
from armwise.feedback.training_log.refold import find_difference
from tests.feedback.conftest import decision, execution
from tests.feedback.fact_log import Sent
from tests.feedback.training_log.test_join import AFTER, decided, executed, joined, rule, said

NAMES = ("app", "guest", "other", "")

rated = st.integers(0, 2**32).map(
    lambda seed: [str(name) for name in np.random.default_rng(seed).choice([*["app"] * 4, *NAMES], 150)]
)


def by(fact: Feedback, rater: str | None) -> Feedback:
    return replace(fact, rater=rater)


def rating(name: str, rater: str | None, number: float = 1.0, at: float = 105.0) -> list[Sent]:
    """A decision, its execution and its rating."""
    return [decided(name), executed(name), by(said(number, at, on=name), rater)]


def ready(how: RewardRule, facts: Sequence[Sent]) -> list[Joined]:
    return joined(how, *facts)


def usual(n: int = 60) -> list[Sent]:
    return [fact for number in range(n) for fact in rating(f"u{number}", "app")]


def flood(n: int, rater: str | None, number: float = 0.0) -> list[Sent]:
    return [fact for each in range(n) for fact in rating(f"g{each}", rater, number)]


# -- shares ------------------------------------------------------------------------------------------


@given(rated, st.sampled_from([0.1, 0.25, 0.5, 1.0]))
def test_a_rater_teaches_its_share_or_twice_what_was_usual(names: list[str], most: float) -> None:
    shares, past = RaterShares(most), list[tuple[str, bool]]()
    for name in names:
        newest, older = past[-19:], past[:-19]
        before = [one for one, learned in older if learned][-1000:]
        share = before.count(name) / max(1, len(before))
        taught = sum(learned for one, learned in newest if one == name)
        limited = bool(name) and most < 1.0 and len(before) >= 20
        room = not limited or taught + 1 <= 20 * max(most, 2 * share)
        assert shares.has_room(name) is room
        shares.add(name, learned=room)
        past.append((name, room))


@pytest.mark.parametrize(
    ("flooding", "learned"),
    [
        (["acme~one", "acme~two", "acme~three"], 5),
        (["acme~one", "beta~one"], 10),
        (["one", "two"], 10),
    ],
)
def test_keys_of_one_project_share_what_one_rater_teaches(flooding: list[str], learned: int) -> None:
    how, facts = rule(), usual()
    for number in range(24):
        facts += rating(f"g{number}", flooding[number % len(flooding)])
    assert Counter(one.rater for one in ready(how, facts) if one.rater in flooding).total() == learned


def test_keys_of_a_project_that_always_rated_are_limited_one_by_one() -> None:
    shares = RaterShares(0.25)
    for number in range(100):
        shares.add(f"acme~{number % 10}", learned=True)
    flood = 0
    while shares.has_room("acme~new"):
        shares.add("acme~new", learned=True)
        flood += 1
    assert flood == 5
    assert shares.has_room("acme~0")
    assert not shares.has_room("acme~new")


def test_one_who_is_new_becomes_usual_though_what_it_rates_is_left_out() -> None:
    shares = RaterShares(0.25, [("app", True)] * 2000)
    taught = []
    for _ in range(8000):
        taught.append(shares.has_room("new"))
        shares.add("new", learned=taught[-1])
    assert sum(taught[:100]) == 25
    assert all(taught[-400:])


def test_what_was_long_ago_is_no_share() -> None:
    shares = RaterShares(0.25, [("old", True)] * 500 + [("app", True)] * 1020)
    for _ in range(5):
        assert shares.has_room("old")
        shares.add("old", learned=True)
    assert not shares.has_room("old")


# -- what is learned ---------------------------------------------------------------------------------


def test_a_flood_of_one_key_is_learned_a_quarter_at_once() -> None:
    facts = [*usual(), *flood(20, "guest")]
    learned = [one.decision_id for one in ready(rule(), facts) if one.learned]
    assert learned == [*(f"u{n}" for n in range(60)), *(f"g{n}" for n in range(5))]


@pytest.mark.parametrize("rater", [None, "", "app"])
def test_keys_of_judges_those_unknown_and_those_usual_are_not_limited(rater: str | None) -> None:
    joined = ready(rule(), [*usual(), *flood(60, rater)])
    assert len(joined) == 120
    assert all(one.learned for one in joined)


def test_what_is_left_over_is_learned_at_its_deadline_if_there_is_room_then() -> None:
    facts = [*usual(), *flood(7, "guest")]
    facts += [fact for number in range(15) for fact in rating(f"v{number}", "app")]
    joined = ready(rule(), [*facts, AFTER])
    assert [one.decision_id for one in joined[-2:]] == ["g5", "g6"]
    assert all(one.learned for one in joined)


def test_what_finds_no_room_until_its_deadline_is_left_out_and_not_learned_as_silence() -> None:
    silent = rule(default=0.0)
    joined = ready(silent, [*usual(), *flood(20, "guest", number=1.0), AFTER])
    left_out = [one for one in joined if not one.learned]
    assert [one.decision_id for one in left_out] == [f"g{n}" for n in range(5, 20)]
    assert len(joined) == len({one.decision_id for one in joined}) == 80
    assert {(one.rater, *one.metrics) for one in left_out} == {("guest",)}


def test_a_value_of_another_rater_counts_alone() -> None:
    facts = [*usual(), *flood(6, "guest", number=0.0), by(said(0.75, 106.0, on="g5"), "app")]
    last = ready(rule(), facts)[-1]
    assert (last.decision_id, last.metrics, last.rater) == ("g5", {"right": 0.75}, "app")


def test_the_rater_is_who_gave_the_last_value_of_a_metric() -> None:
    facts = [decided(), executed(), by(said(1.0, 105.0), "one"), by(said(0.0, 106.0), "two")]
    comment = by(said(0.0, 107.0, "undeclared"), "three")
    (joined,) = ready(rule(default=0.0), [*facts, comment, AFTER])
    assert joined.rater == "two"


def test_labels_are_neither_limited_nor_counted() -> None:
    labels = [
        fact
        for n in range(50)
        for fact in [
            decided(f"l{n}", past=True),
            executed(f"l{n}"),
            by(said(on=f"l{n}", at=100.0), "guest"),
        ]
    ]
    joined = ready(rule(), [*usual(), *flood(10, "guest"), *labels])[5:]
    assert [one.rater for one in joined[60:]] == [None] * 50
    assert all(one.learned for one in joined)


def test_silence_is_no_rating() -> None:
    silent = [fact for n in range(200) for fact in [decided(f"s{n}"), executed(f"s{n}")]]
    joined = ready(rule(default=0.0), [*usual(40), *silent, *flood(20, "guest"), AFTER])
    assert sum(one.learned for one in joined if one.rater == "guest") == 5


@pytest.mark.parametrize("answered", [3, 8])
def test_a_conversation_is_left_out_as_one(answered: int) -> None:
    facts = usual()
    for number in range(answered):
        draw = decided(f"d{number}", draw_id=f"d{number}", episode_id=f"e{number}")
        turn = decided(f"t{number}", 101.0, draw_id=f"d{number}", mode=Mode.CONTINUED)
        facts += [draw, executed(draw.id), turn, executed(turn.id), by(said(on=turn.id), "guest")]
    joined = ready(rule(), [*facts, Tick(170.0)])[60:]
    assert [one.learned for one in joined] == [number < 5 for number in range(answered)]
    assert all(one.turns for one in joined)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=60, max_size=60), st.sampled_from([None, 0.0]))
@settings(max_examples=15)
@pytest.mark.slow
def test_which_are_left_out_does_not_depend_on_values(values: list[float], default: float | None) -> None:
    def course(numbers: Sequence[float]) -> list[tuple[str, bool, int]]:
        facts = usual(40)
        for n, number in enumerate(numbers):
            facts += rating(f"g{n}", ("guest", "other", "guest", "app")[n % 4], number)
        return [
            (one.decision_id, one.learned, one.by) for one in ready(rule(default=default), [*facts, AFTER])
        ]

    assert course(values) == course([1.0 - value for value in values])


def test_a_share_is_part_of_the_training_log() -> None:
    plain = RewardRule(correction_time="PT0S", metrics={"right": Metric()})
    assert len({plain.join, *(plain.model_copy(update={"rater_share": s}).join for s in (0.1, 1.0))}) == 3
    with pytest.raises(ValueError, match="rater_share"):
        RewardRule(correction_time="PT0S", rater_share=0.0)


# -- on a log ----------------------------------------------------------------------------------------


def history(store: Store, seed: int, n: int = 400) -> None:
    """Decisions a second apart that raters rate, some of them late, one of them in floods."""
    rng = np.random.default_rng(seed)
    feedback = list[tuple[float, Feedback]]()
    for number in range(n):
        at = 1000.0 + number
        due = [one for received, one in feedback if received <= at]
        feedback = [pair for pair in feedback if pair[0] > at]
        made = replace(decision(f"d{number}", at=at, wait_s=20.0), episode_id=f"e{number // 4}")
        store.append([*due, made, replace(execution(f"d{number}"), finished_at=at)])
        for each in range(rng.integers(0, 3)):
            rater = "guest" if number % 100 > 60 else rng.choice(["app", "app", "app", "other", ""])
            received = at + float(rng.exponential(8.0)) + 0.01
            on = {"episode_id": f"e{number // 4}"} if rng.random() < 0.2 else {}
            name = None if on else f"d{number}"
            fact = Feedback(f"f{number}:{each}", name, "right", 1.0, received, rater=str(rater), **on)
            feedback.append((received, fact))


def table(store: Store, which: sa.Table) -> list[tuple[object, ...]]:
    with store.reading() as connection:
        return [
            tuple(row) for row in connection.execute(sa.select(which).order_by(which.c.join, which.c.seq))
        ]


def insert_rated(store: Store, join: str, rated: Sequence[raters.Rated]) -> None:
    """Write a training log of rated decisions, as its joiner does."""
    rows, left_out = list[dict[str, Any]](), list[str]()
    for rater, learned in rated:
        if not learned:
            left_out.append(rater)
            continue
        seq = len(rows) + 1
        row = {"join": join, "seq": seq, "decision_id": f"d{seq}", "metrics": {}, "joined_by": seq}
        rows.append({**row, "rater": rater, "left_out": left_out or None})
        left_out = []
    with store.writing() as connection:
        connection.execute(sa.insert(t.examples), rows)
        write_position(connection, join, Position(len(rows), 0.0, len(rows), tuple(left_out)))


X = t.examples

SHORT = RewardRule(correction_time="PT0S", metrics={"right": Metric()}, wait_time="PT20S")
SILENT = RewardRule(correction_time="PT0S", metrics={"right": Metric()}, wait_time="PT20S", default=0.0)


@pytest.mark.parametrize("how", [SHORT, SILENT], ids=["any", "silent"])
@pytest.mark.slow
def test_a_joiner_that_is_restarted_at_each_fact_writes_what_one_pass_does(how: RewardRule) -> None:
    with closing(Store("sqlite://")) as store, closing(Store("sqlite://")) as other:
        for log in (store, other):
            history(log, seed=3)
        at_once = Joiner(store, how, take_epoch(store, "test", 0.0))
        position = at_once.advance(1000.0)
        while position.log_seq < store.log_seq():
            position = at_once.advance(1000.0)
        epoch = take_epoch(other, "test", 0.0)
        while Joiner(other, how, epoch, batch=7).advance(1000.0).log_seq < other.log_seq():
            pass
        assert table(store, t.examples) == table(other, t.examples)
        assert raters.read_rated(store, how.join) == raters.read_rated(other, how.join)
        learned = Counter(learned for _, learned in raters.read_rated(store, how.join))
        assert min(learned[True], learned[False]) > 20
        assert find_difference(store, how)[1] == ""


@pytest.mark.parametrize(
    "damage",
    [
        sa.update(X).where(X.c.seq == 30).values(rater=None),
        sa.update(X).where(X.c.seq == 31).values(rater="nobody"),
        sa.update(X).values(left_out=None),
        sa.update(X).where(X.c.seq == 40).values(left_out=["nobody"]),
    ],
    ids=["missing", "rater", "learned", "surplus"],
)
def test_damage_to_what_raters_gave_is_found(damage: sa.Executable) -> None:
    with closing(Store("sqlite://")) as store:
        history(store, seed=4, n=250)
        epoch = take_epoch(store, "test", 0.0)
        joiner = Joiner(store, SHORT, epoch)
        while joiner.advance(1000.0).log_seq < store.log_seq():
            pass
        with store.writing() as connection:
            connection.execute(damage)
        assert " of examples is " in find_difference(store, SHORT)[1]


def test_the_newest_counts_name_who_rated_and_what_was_left_out() -> None:
    with closing(Store("sqlite://")) as store:
        insert_rated(store, "j", [("app", True)] * 1200 + [("guest", True)] * 3 + [("guest", False)] * 9)
        found = raters.newest_counts(store, "j")
        assert [(one.rater, one.rated, one.left_out) for one in found] == [("app", 988, 0), ("guest", 12, 9)]
        assert raters.newest_counts(store, "another") == []


@pytest.mark.parametrize(("flooded", "named"), [(12, "guest"), (4, None)])
@pytest.mark.slow
def test_an_alarm_names_who_rated_more_than_its_share(flooded: int, named: str | None) -> None:
    with closing(Store("sqlite://")) as store:
        for number in range(62 + flooded):
            name = f"d{number}"
            rater = "guest" if 60 <= number < 60 + flooded else "app"
            fact = Feedback(f"f{number}", name, "right", 1.0, 105.0, rater=rater)
            store.append([decision(name), execution(name), fact])
        epoch = take_epoch(store, "test", 0.0)
        Joiner(store, SHORT, epoch).advance(106.0)
        watch = Watch(store, SHORT, "r", epoch)
        first: Example = next(iter(read_examples(store, SHORT.join)))
        watch.add(Change("reward of a", 0.9, 0.1, 60), first, "policy")
        watch.report()
        alarm = read_alarms(store).newest
        assert alarm is not None
        assert alarm.rater == named


def test_shares_are_read_as_they_were_kept() -> None:
    rng = np.random.default_rng(0)
    rows = [(str(rng.choice(["app", "guest"], p=[0.6, 0.4])), bool(rng.random() < 0.6)) for _ in range(3000)]
    how = rule().model_copy(update={"rater_share": 0.25})
    kept = RaterShares(how.rater_share, rows)
    with closing(Store("sqlite://")) as store:
        insert_rated(store, how.join, rows)
        with store.reading() as connection:
            at = read_position(connection, how.join)
            read = raters.read_shares(connection, how, at.examples_seq, at.left_out)
            assert raters.read_shares(connection, rule(), 0, ()).has_room("guest")
    for _ in range(300):
        for name in ("app", "guest", "third"):
            assert read.has_room(name) is kept.has_room(name)
        name = str(rng.choice(["app", "guest", "third"]))
        for shares in (read, kept):
            shares.add(name, learned=shares.has_room(name))


def test_a_deleted_training_log_has_no_raters(store: Store) -> None:
    for name in ("this", "other"):
        insert_rated(store, name, [("app", True), ("guest", False)])
    with store.writing() as connection:
        delete_training_log(connection, "this")
    assert raters.read_rated(store, "this") == []
    assert raters.read_rated(store, "other") == [("app", True), ("guest", False)]


def test_the_newest_that_were_left_out_wait_for_a_rated_example(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raters, "BEFORE", 30)
    strict = SILENT.model_copy(update={"rater_share": 0.01})
    joiner = Joiner(store, strict, take_epoch(store, "test", 0.0))

    def learn(names: Sequence[str], at: float, rater: str | None) -> Position:
        for name in names:
            rated = [] if rater is None else [Feedback(name, name, "right", 1.0, at + 1.0, rater=rater)]
            done = replace(execution(name), finished_at=at)
            store.append([decision(name, at=at, wait_s=20.0), done, *rated])
        joiner.advance(at + 100.0)
        return joiner.advance(at + 100.0)

    learn([f"a{n}" for n in range(60)], 100.0, "app")
    assert learn([f"g{n}" for n in range(60)], 300.0, "guest").left_out == ("guest",) * 30
    silent = learn(["s"], 500.0, None)
    assert (silent.examples_seq, silent.left_out) == (61, ("guest",) * 30)
    assert learn(["b"], 700.0, "app") == Position(joiner.advance(800.0).log_seq, 800.0, 62)
    assert raters.read_rated(store, strict.join)[-31:] == [("guest", False)] * 30 + [("app", True)]
    assert find_difference(store, strict)[1] == ""
