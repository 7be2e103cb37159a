"""The chain of the log: what was changed, removed or added is found, and an erasure breaks nothing."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armwise.feedback.events import (
    Context,
    Cost,
    FeedbackKind,
    Observation,
    ObservationSource,
    Tick,
)
from armwise.feedback.log import Fact, Store, chain, erasures
from armwise.feedback.log import tables as t
from armwise.feedback.log.chain import LogHead, fold, fold_all, verify_chain
from tests.feedback.conftest import decision, execution, value

NOW = 200.0

FACTS = (t.decisions, t.executions, t.feedback, t.observations, t.ticks)


@pytest.fixture
def at_noon(log_url: str) -> Iterator[Store]:
    """A log whose clock stands still."""
    store = Store(log_url, clock=lambda: NOW)
    yield store
    store.close()


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "PORTION", 3)


def verify(store: Store, **checkpoints: LogHead) -> tuple[str, ...]:
    """Return what was changed."""
    return verify_chain(store, checkpoints, lambda *_: None).changes


@pytest.mark.parametrize(
    "odd",
    [
        {"error": "no file \udcff.txt"},
        {"cost": replace(execution("d").cost, usd=np.float64(0.5), prompt_tokens=np.int64(12))},
        {"cost": replace(execution("d").cost, steps=1.5, completion_tokens=7.0)},
        {"cached": np.bool_(True)},
    ],
    ids=lambda odd: next(iter(odd)),
)
def test_odd_values_of_one_fact_are_written_and_change_no_other(at_noon: Store, odd: dict[str, Any]) -> None:
    small = replace(execution("d1"), stages=({"usd": 2e-5},))
    at_noon.append([decision("d1"), decision("d2"), small, replace(execution("d2"), **odd)])
    assert verify(at_noon) == ()


def head(store: Store) -> LogHead:
    return fold_all(store)


def turn(name: str, user: str | None = None) -> list[Fact]:
    """Return a fact of each kind, at five positions."""
    said = {"comment": f"left on {name}", "label": "good"}
    asked = replace(decision(name, digest=f"request of {name}"), user_digest=user, asked_by="k1")
    return [
        replace(asked, episode_id=f"e-{name}"),
        replace(execution(name), tokens_by_model={"large": (9, 8, 7)}, marks=("m1",), index_version="3"),
        replace(value(name), content=said, event_time=104.0, source="api", key="k1", rater="k1"),
        Observation(
            *(name, ObservationSource.SHADOW, "a", 0.5, 0.5, 0.25),
            judge="large", answer="second answer", passages=("p1",), observed_at=106.0,
        ),
        Tick(110.0 + int(name[-1])),
    ]  # fmt: skip


def execute(store: Store, *statements: sa.Executable) -> None:
    with store.writing() as connection:
        for statement in statements:
            connection.execute(statement)


def fill(store: Store, n: int = 3) -> dict[str, LogHead]:
    """Write turns, and return the head after each."""
    heads = {}
    for number in range(1, n + 1):
        store.append(turn(f"d{number}"))
        heads[f"turn {number}"] = head(store)
    return heads


# -- what nobody touched -------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_portions")
def test_a_log_that_nobody_touched_is_unchanged(store: Store) -> None:
    assert verify(store, start=head(store)) == ()
    heads = fill(store)
    seen: list[tuple[int, int]] = []
    report = verify_chain(store, heads, lambda *progress: seen.append(progress))
    assert (report.head, report.changes) == (heads["turn 3"], ())
    assert seen == [(3, 15), (6, 15), (9, 15), (12, 15), (15, 15)]
    assert len({one.chain for one in heads.values()}) == 3
    store.probe()
    assert head(store) == heads["turn 3"], "a probe leaves the log as it is"


anything = st.text(max_size=8)  # half of a surrogate pair, and NUL, among others
storable = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.floats() | st.integers(-(10**30), 10**30) | st.sampled_from([-0.0, 5, 1e16, 2**53, 0.1])
finite = st.floats(-1e300, 1e300) | st.integers(-5, 5) | st.just(-0.0)
documents = st.recursive(
    anything | numbers | st.booleans() | st.none(),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(anything, some, max_size=3),
    max_leaves=5,
)
ids = count()

costs = st.builds(Cost, *[st.integers(-5, 10**20)] * 3, *[numbers] * 3)
contexts = st.builds(
    Context,
    anything,
    st.dictionaries(storable, finite, max_size=3),
    st.lists(finite, max_size=3).map(tuple),
    st.just({"a": {}, "b": {}}),
)
steps = st.dictionaries(storable, st.dictionaries(storable, documents, max_size=2), max_size=2)
decided = st.fixed_dictionaries(
    {
        "context": contexts,
        "probabilities": st.tuples(finite, finite),
        "steps": steps,
        "deadline": finite,
        "user_digest": st.none() | st.just("u"),
        "asked_by": st.none() | st.just("k1"),
    }
)
executed = st.fixed_dictionaries(
    {
        "cost": costs,
        "answer": st.none() | anything,
        "error": anything,
        "passages": st.lists(anything, max_size=2).map(tuple),
        "stages": st.lists(st.dictionaries(anything, documents, max_size=2), max_size=2).map(tuple),
        "tokens_by_model": st.dictionaries(storable, st.lists(numbers, max_size=3).map(tuple), max_size=2),
        "index_version": storable,
        "finish_reason": anything,
        "marks": st.lists(anything, max_size=2).map(tuple),
    }
)
spoken = st.fixed_dictionaries(
    {
        "value": st.none() | finite,
        "tags": st.dictionaries(anything, anything, max_size=2),
        "content": st.dictionaries(st.sampled_from(["comment", "label", "rank"]), anything, max_size=3),
        "event_time": st.none() | st.floats(0.0, 4e9),
    }
)
observed = st.fixed_dictionaries(
    {
        "value": st.none() | numbers,
        "cost": costs,
        "judge": anything,
        "answer": st.none() | anything,
        "error": anything,
        "passages": st.lists(anything, max_size=2).map(tuple),
    }
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(decided=decided, executed=executed, spoken=spoken, observed=observed, at=st.floats(0.0, 199.0))
def test_any_fact_is_the_same_before_it_is_written_and_after_it_is_read(
    at_noon: Store,
    decided: Mapping[str, Any],
    executed: Mapping[str, Any],
    spoken: Mapping[str, Any],
    observed: Mapping[str, Any],
    at: float,
) -> None:
    name, before = f"d{next(ids)}", head(at_noon)
    seen = Observation(name, ObservationSource.SHADOW, "a", 0.5, observed_at=at)
    at_noon.append(
        [
            replace(decision(name, at=at), **decided),
            replace(execution(name), finished_at=at, **executed),
            replace(value(name, at=at), **spoken),
            replace(seen, **observed),
            Tick(at),
        ]
    )
    assert verify(at_noon, before=before) == ()


def test_the_chain_does_not_depend_on_how_much_is_folded_at_once(store: Store) -> None:
    heads = fill(store)
    with store.reading() as connection:
        for size in (1, 2, 4, 15):
            folded = LogHead(0, t.NO_FACTS)
            while folded.seq < 15:
                folded = fold(connection, folded, min(folded.seq + size, 15))
            assert folded == heads["turn 3"]


def test_writers_at_the_same_time_make_one_chain(url: str) -> None:
    stores, failed, heads = [Store(url) for _ in range(2)], list[Exception](), dict[str, LogHead]()

    def write(writer: int) -> None:
        try:
            for number in range(5):
                stores[writer % 2].append(turn(f"d{writer}-{number}"))
                heads[f"{writer}-{number}"] = head(stores[writer % 2])
        except Exception as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert verify(stores[0], **heads) == ()
    assert head(stores[0]).seq == 100
    for store in stores:
        store.close()


# -- what was changed, removed or added ----------------------------------------------------------------

COLUMNS = [(table, column.name) for table in FACTS for column in table.c if column.name != "seq"]

SEALED = {
    *("decisions.question_digest", "decisions.request_digest", "decisions.user_digest", "decisions.erased"),
    *(f"{table.name}.seal" for table in FACTS if table is not t.ticks),
}
"""Columns whose change names the fact."""


def alter(column: sa.Column[Any], old: Any) -> Any:
    """Return another value for a column."""
    match column.type:
        case sa.JSON():
            return {"other": 1} if isinstance(old, list) or old is None else [old]
        case sa.Boolean():
            return not old
        case sa.String():
            return f"{old or ''}x"[-(column.type.length or 9) :]
    return (old or 0) + 1


@pytest.mark.parametrize(("table", "name"), COLUMNS, ids=[f"{table.name}.{name}" for table, name in COLUMNS])
def test_a_change_of_any_column_is_found(store: Store, table: sa.Table, name: str) -> None:
    heads = fill(store)
    with store.reading() as connection:
        (seq,) = connection.scalars(sa.select(table.c.seq).where(table.c.seq.between(6, 10)))
        old = connection.scalar(sa.select(table.c[name]).where(table.c.seq == seq))
    execute(store, sa.update(table).where(table.c.seq == seq).values({name: alter(table.c[name], old)}))
    changes = verify(store, **heads)
    where = [change for change in changes if "between positions 6 and 10 " in change]
    if f"{table.name}.{name}" in SEALED:
        assert f"the fact at position {seq}, of the {table.name}, " in changes[0]
    else:
        assert len(changes) == 1
    if f"{table.name}.{name}" not in SEALED or name == "seal":
        assert len(where) == 1


@pytest.mark.parametrize("table", [t.decisions, t.executions, t.feedback, t.observations])
def test_a_change_of_texts_names_their_fact(store: Store, table: sa.Table) -> None:
    heads = fill(store)
    with store.reading() as connection:
        query = sa.select(t.texts).join(table, table.c.seq == t.texts.c.seq).where(t.texts.c.seq > 5)
        row = connection.execute(query.order_by(t.texts.c.seq)).first()
    assert row is not None
    its = t.texts.c.seq == row.seq
    named = f"the fact at position {row.seq}, of the {table.name}, "
    for changed in (
        {"document": {"answer": "another one"}},
        {"salt": "0" * t.SALT_CHARS},
        {"salt": " " * t.SALT_CHARS},
    ):
        execute(store, sa.update(t.texts).where(its).values(changed))
        (change,) = verify(store, **heads)
        assert change.startswith(named)
        execute(store, sa.update(t.texts).where(its).values(document=row.document, salt=row.salt))
    assert verify(store, **heads) == ()
    execute(store, sa.delete(t.texts).where(its))
    (change,) = verify(store, **heads)
    assert named in f"{change}, "


def test_texts_that_are_added_name_their_fact(store: Store) -> None:
    store.append([value("never")])
    store.append([replace(value("never", "other"), tags={})])
    execute(
        store,
        sa.insert(t.texts).values(seq=2, document={"content": {"comment": "?"}}, salt="0" * t.SALT_CHARS),
    )
    (change,) = verify(store)
    assert change.startswith("the fact at position 2, of the feedback, ")


def test_what_is_written_into_an_erased_decision_names_it(store: Store) -> None:
    fill(store)
    erasures.erase_decision(store, "d2", "k1", NOW)
    assert verify(store) == ()
    execute(
        store, sa.update(t.decisions).where(t.decisions.c.seq == 6).values(user_digest="of somebody else")
    )
    assert verify(store)[0].startswith("the fact at position 6, of the decisions, ")


@pytest.mark.parametrize("table", FACTS)
@pytest.mark.usefixtures("small_portions")
def test_a_fact_that_was_removed_is_named(store: Store, table: sa.Table) -> None:
    heads = fill(store)
    with store.reading() as connection:
        (seq,) = connection.scalars(sa.select(table.c.seq).where(table.c.seq.between(6, 10)))
    execute(store, sa.delete(table).where(table.c.seq == seq))
    changes = verify(store, **heads)
    assert changes[0] == f"there is no fact at position {seq}"
    assert "between positions 6 and 10 " in changes[1]


@pytest.mark.parametrize("table", FACTS)
def test_a_fact_that_was_removed_is_found_if_those_after_it_move_up(store: Store, table: sa.Table) -> None:
    heads = fill(store)
    with store.reading() as connection:
        (gone,) = connection.scalars(sa.select(table.c.seq).where(table.c.seq.between(6, 10)))
    for one in (table, t.texts):
        execute(store, sa.delete(one).where(one.c.seq == gone))
    for seq in range(gone + 1, 16):
        for one in (*FACTS, t.texts):
            execute(store, sa.update(one).where(one.c.seq == seq).values(seq=seq - 1))
    execute(store, sa.update(t.log).values(seq=14))
    (first, last) = verify(store, **heads)
    assert "a fact between positions 6 and 10 was changed" in first
    assert "the facts between positions 15 and 15 were removed: turn 3" in last


@pytest.mark.parametrize("table", FACTS)
def test_facts_that_were_swapped_are_found(store: Store, table: sa.Table) -> None:
    heads = fill(store)
    with store.reading() as connection:
        one, other = connection.scalars(sa.select(table.c.seq).where(table.c.seq < 11).order_by(table.c.seq))
    of = {seq: table.c.seq == seq for seq in (one, other, 99)}
    for before, after in ((one, 99), (other, one), (99, other)):
        execute(store, sa.update(table).where(of[before]).values(seq=after))
    assert any("between positions 1 and 5 " in change for change in verify(store, **heads))


def test_a_fact_that_was_added_is_named(store: Store) -> None:
    fill(store)
    execute(store, sa.insert(t.ticks).values(seq=6, at=110.0))
    assert verify(store)[0] == "there are several facts at position 6"
    execute(store, sa.delete(t.ticks).where(t.ticks.c.seq == 6))
    for seq in (0, 16):
        execute(store, sa.insert(t.ticks).values(seq=seq, at=110.0))
        assert verify(store) == (f"the ticks have a fact at position {seq}, outside of the log",)
        execute(store, sa.delete(t.ticks).where(t.ticks.c.seq == seq))
    assert verify(store) == ()


FORGED = {
    "name twice": ("decisions", "features", """'{"sparse": {}, ' || substr(features%s, 2)"""),
    "spaces": ("decisions", "probabilities", "' ' || probabilities%s"),
    "infinite": ("executions", "usd", "9e999"),
    "of another kind": ("feedback", "metric", "x'7269676874'"),
}


@pytest.mark.parametrize("what", FORGED)
def test_bytes_count_and_not_what_is_read_from_them(store: Store, what: str) -> None:
    heads = fill(store)
    table, column, forged = FORGED[what]
    if store.engine.dialect.name == "postgresql":
        cast = "json" if "%s" in forged else "text"
        forged = f"({forged.replace('%s', '::text')})::{cast}" if what != "infinite" else "'Infinity'"
    with store.writing() as connection:
        connection.exec_driver_sql(
            f"UPDATE {table} SET {column} = {forged.replace('%s', '')} WHERE seq BETWEEN 6 AND 10"
        )
    (change,) = verify(store, **heads)
    assert change.startswith("a fact between positions 6 and 10 was changed")


def test_texts_with_a_name_twice_name_their_fact(store: Store) -> None:
    fill(store)
    forged = """'{"question": "forged", ' || substr(document%s, 2)"""
    if store.engine.dialect.name == "postgresql":
        forged = f"({forged.replace('%s', '::text')})::json"
    with store.writing() as connection:
        forged = forged.replace("%s", "")
        connection.exec_driver_sql(f"UPDATE texts SET document = {forged} WHERE seq = 6")
    (change,) = verify(store)
    assert change.startswith("the fact at position 6, of the decisions, does not match its seal")


def test_a_text_that_became_bytes_is_found(tmp_path: Path) -> None:
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        heads = fill(store)
        with store.writing() as connection:
            connection.exec_driver_sql("UPDATE executions SET decision_id = CAST(decision_id AS BLOB)")
        assert "between positions 1 and 5 was changed" in verify(store, **heads)[0]


def test_the_range_of_a_change_is_between_the_checkpoints_around_it(store: Store) -> None:
    heads = fill(store, 5)
    execute(store, sa.update(t.executions).where(t.executions.c.seq == 12).values(usd=7.0))
    (change,) = verify(store, **heads)
    assert change == (
        "a fact between positions 11 and 15 was changed, removed or added: turn 3 has another chain"
    )
    (change,) = verify(store, last=heads["turn 5"])
    assert change.startswith("a fact between positions 1 and 25 was changed")


JOINED = {"reader": "j", "log_seq": 10, "log_at": 112.0, "examples_seq": 0, "settled_seq": 0, "left_out": []}


def test_a_checkpoint_that_was_changed_itself_is_named(store: Store) -> None:
    heads = fill(store)
    changed = {**heads, "turn 2": replace(heads["turn 2"], chain="f" * 64)}
    assert verify(store, **changed) == ("the chain of turn 2 at position 10 was changed",)
    moved = {**heads, "turn 2": replace(heads["turn 2"], seq=9)}
    assert verify(store, **moved) == ("the chain of turn 2 at position 9 was changed",)
    execute(store, sa.insert(t.progress).values({**JOINED, "chain": "f" * 64}))
    assert verify(store) == (
        "a fact between positions 1 and 10 was changed, removed or added: the learner of j has another chain",
    )


def test_a_log_that_was_cut_back_is_found_by_what_was_made_after(store: Store) -> None:
    heads = fill(store)
    execute(
        store,
        *(sa.delete(table).where(table.c.seq > 10) for table in (*FACTS, t.texts)),
        sa.update(t.log).values(seq=10),
    )
    assert verify(store, **{"turn 2": heads["turn 2"]}) == ()
    assert verify(store, **heads) == (
        "the facts between positions 11 and 15 were removed: turn 3 was made after them",
    )


def test_facts_at_the_end_that_are_missing_are_found_however_many_the_head_counts(store: Store) -> None:
    fill(store)
    execute(store, sa.update(t.log).values(seq=10**15))
    removed = "the facts between positions 16 and 1,000,000,000,000,000 were removed: the log counts them"
    assert verify(store) == (removed,)


def test_who_folds_another_chain_is_found_only_by_a_checkpoint_from_elsewhere(store: Store) -> None:
    heads = fill(store)
    execute(store, sa.update(t.executions).where(t.executions.c.seq == 7).values(usd=7.0))
    with store.reading() as connection:
        again = fold(connection, LogHead(0, t.NO_FACTS), 10)
    execute(store, sa.insert(t.progress).values({**JOINED, "chain": again.chain}))
    assert verify(store) == ()
    (change,) = verify(store, kept=heads["turn 2"])
    assert change == "the chain of kept at position 10 was changed"


# -- erasures ------------------------------------------------------------------------------------------


def erase_by_hand(store: Store, first: int, last: int, number: int) -> None:
    """Leave facts as an erasure would."""
    texts, d = t.texts.c, t.decisions.c
    emptied = {"question_digest": None, "request_digest": "", "user_digest": None, "erased": number}
    execute(
        store,
        sa.delete(t.texts).where(texts.seq.between(first, last)),
        sa.update(t.decisions).where(d.seq.between(first, last)).values(emptied),
    )


@pytest.mark.parametrize("number", [1, 99])
def test_texts_that_no_erasure_removed_name_their_fact(at_noon: Store, number: int) -> None:
    heads = fill(at_noon)
    erase_by_hand(at_noon, 6, 10, number)
    gone = "the texts of the fact at position 6, of the decisions, are gone, and no erasure on record"
    assert verify(at_noon, **heads)[0].startswith(gone)


@pytest.mark.parametrize("seq", [2, 3, 4])
def test_texts_of_facts_on_a_decision_that_is_not_erased_are_missed(at_noon: Store, seq: int) -> None:
    heads = fill(at_noon)
    erasures.erase_decision(at_noon, "d2", "k1", NOW)
    execute(at_noon, sa.delete(t.texts).where(t.texts.c.seq == seq))
    (change,) = verify(at_noon, **heads)
    assert change.startswith(f"the texts of the fact at position {seq}, of the ")


def digest(store: Store, user: str) -> str:
    return erasures.user_digest(store, "default", user)


ERASURES: Mapping[str, Callable[[Store], object]] = {
    "user": lambda store: erasures.erase_user(store, "default", "ada", "k1", NOW),
    "episode": lambda store: erasures.erase_episode(store, "e-d1", "k1", NOW),
    "decision": lambda store: erasures.erase_decision(store, "d1", "k1", NOW),
    "age": lambda store: erasures.erase_older(store, 1.0, NOW + 2 * 86_400.0),
}


@pytest.mark.parametrize("scope", ERASURES)
def test_an_erasure_keeps_the_chain_and_removes_the_salts(at_noon: Store, scope: str) -> None:
    heads = {}
    for number, user in enumerate(("ada", "bob", "ada")):
        at_noon.append(turn(f"d{number}", digest(at_noon, user)))
        heads[user] = head(at_noon)
    with at_noon.reading() as connection:
        salts = dict(map(tuple, connection.execute(sa.select(t.texts.c.seq, t.texts.c.salt))))
        seals = connection.scalars(sa.select(t.executions.c.seal)).all()
    assert len({*salts.values()}) == len(salts) == 12
    assert len({*seals}) == 3, "of the same texts"
    ERASURES[scope](at_noon)
    at_noon.forget()
    assert verify(at_noon, **heads) == ()
    erased = {"user": {0, 2}, "episode": {1}, "decision": {1}, "age": {0, 1, 2}}[scope]
    gone = {salt for seq, salt in salts.items() if (seq - 1) // 5 in erased}
    assert {salt for salt in salts.values() if has_salt(at_noon, salt)} == {*salts.values()} - gone
    at_noon.append([replace(value("d1", "other"), tags={"page": "late"}, received_at=120.0), *turn("d9")])
    assert verify(at_noon, **heads) == ()


def has_salt(store: Store, salt: str) -> bool:
    """Whether a salt is in the tables of a log, or in a file of its folder."""
    with store.reading() as connection:
        if connection.scalar(sa.select(sa.func.count()).where(t.texts.c.salt == salt)):
            return True
    if store.engine.dialect.name != "sqlite":
        return False
    folder = Path(store.engine.url.database or "").parent
    return any(salt.encode() in path.read_bytes() for path in folder.iterdir())


def test_what_is_written_without_texts_since_its_subject_was_erased_is_in_the_chain(at_noon: Store) -> None:
    ERASURES["user"](at_noon)
    at_noon.append(turn("d1", digest(at_noon, "ada")))
    with at_noon.reading() as connection:
        n_texts = connection.scalar(sa.select(sa.func.count()).select_from(t.texts))
    assert n_texts == 0
    assert verify(at_noon) == ()
    execute(at_noon, sa.update(t.decisions).values(erased=None))
    assert "of the decisions" in verify(at_noon)[0]


def test_feedback_that_is_found_by_its_pseudonym_is_in_the_chain(at_noon: Store) -> None:
    item = replace(value("d1"), id="Ada's value", tags={"page": "Ada's page"})
    at_noon.append([decision("d1"), item])
    ERASURES["decision"](at_noon)
    taken_back = replace(item, kind=FeedbackKind.RETRACTION, value=None, tags={}, received_at=112.0)
    at_noon.append([taken_back])
    assert verify(at_noon) == ()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("small_portions")
def test_random_histories_with_erasures_and_restarts_keep_the_chain(
    log_url: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(erasures, "AT_ONCE", 20)
    rng, store, heads, now = np.random.default_rng(seed), Store(log_url, clock=lambda: NOW), {}, NOW
    for number in range(40):
        facts = turn(f"d{number}", digest(store, str(rng.choice(["ada", "bob"]))))
        keep = [fact for fact in facts[1:] if rng.random() < 0.7]
        store.append([facts[0], *keep])
        heads[f"turn {number}"] = head(store)
        if rng.random() < 0.3:
            now += erasures.PAUSE_S
            match int(rng.integers(5)):
                case 0:
                    erasures.erase_user(store, "default", str(rng.choice(["ada", "bob"])), "k1", NOW)
                case 1:
                    erasures.erase_episode(store, f"e-d{rng.integers(number + 1)}", "k1", NOW)
                case 2:
                    erasures.erase_decision(store, f"d{rng.integers(number + 1)}", "k1", NOW)
                case 3:
                    erasures.erase_older(store, 1.0, now + 2 * 86_400.0)
                case _:
                    store.close()
                    store = Store(log_url, clock=lambda: NOW)
    assert verify(store, **heads) == ()
    store.close()
