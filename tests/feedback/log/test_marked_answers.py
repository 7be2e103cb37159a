"""Which answer a request continues is found by its marks, and by its own caller alone, on both databases."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from armwise.feedback.events import Decision, Execution
from armwise.feedback.log import Fact, Store, erasures
from armwise.feedback.log import tables as t
from armwise.feedback.log.conversations import MOST_LOOKED_UP, MarkedAnswer, find_marked
from armwise.feedback.log.facts import LONGEST_FINISH, LONGEST_MARK, MOST_MARKS
from tests.feedback.conftest import decision, execution

NOW = 200.0


def asked(name: str, asked_by: str | None = "app", episode: str | None = None) -> Decision:
    return replace(decision(name), asked_by=asked_by, episode_id=episode)


def answered(name: str, *marks: str) -> Execution:
    return replace(execution(name), marks=marks)


def found(store: Store, *marks: str, asked_by: str | None = "app") -> dict[str, str]:
    """Return the ids of the decisions that marks lead to, by mark."""
    return {mark: one.decision_id for mark, one in find_marked(store, marks, asked_by).items()}


def n_rows(store: Store) -> int:
    with store.reading() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(t.answer_marks)) or 0


@pytest.mark.parametrize("together", [True, False])
def test_each_mark_of_an_answer_leads_to_its_decision(store: Store, together: bool) -> None:
    facts: list[Fact] = [asked("d1", episode="talk"), answered("d1", "msg_up", "call_1", "call_1")]
    for some in [facts] if together else [[fact] for fact in facts]:
        store.append(some)
    answer = MarkedAnswer("d1", "b", "msg_up", "talk", "what is d1?")
    assert find_marked(store, ["call_1", "nothing", "msg_up"], "app") == {"call_1": answer, "msg_up": answer}


def test_of_several_answers_with_a_mark_the_newest_is_found(store: Store) -> None:
    store.append([asked("d1"), asked("d2"), answered("d2", "two", "call_0")])
    store.append([answered("d1", "one", "call_0")])
    assert found(store, "call_0", "one", "two") == {"call_0": "d2", "one": "d1", "two": "d2"}


def test_a_caller_finds_its_own_answers_alone(store: Store) -> None:
    for name, caller in (("d1", "app"), ("d2", "guest"), ("d3", "acme~app"), ("d4", None)):
        store.append([asked(name, caller), answered(name, f"msg_{name}", "call_0")])
    every = ("msg_d1", "msg_d2", "msg_d3", "msg_d4", "call_0")
    assert found(store, *every) == {"msg_d1": "d1", "call_0": "d1"}
    assert found(store, *every, asked_by="acme~app") == {"msg_d3": "d3", "call_0": "d3"}
    assert found(store, *every, asked_by=None) == {}, "a caller that is not known has no answers"
    assert found(store, *every, asked_by="nobody") == {}


def test_a_provider_that_names_no_answer_leaves_its_id_empty(store: Store) -> None:
    store.append([asked("d1"), answered("d1", "", "call_1"), asked("d2"), answered("d2")])
    assert find_marked(store, ["call_1", ""], "app") == {
        "call_1": MarkedAnswer("d1", "b", "", None, "what is d1?")
    }


def test_an_answer_keeps_a_bounded_number_of_bounded_marks(store: Store) -> None:
    longest, longer = "m" * LONGEST_MARK, "m" * (LONGEST_MARK + 1)
    marks = (longer, longest, *(f"call_{n}" for n in range(MOST_MARKS)))
    store.append([asked("d1"), replace(answered("d1", *marks), finish_reason="f" * (LONGEST_FINISH + 1))])
    kept = store.record("d1")
    assert kept is not None
    assert kept.execution is not None
    assert kept.execution.marks == ("", *marks[1:MOST_MARKS])
    assert kept.execution.finish_reason == "f" * LONGEST_FINISH
    first, last = f"call_{MOST_MARKS - 3}", f"call_{MOST_MARKS - 2}"
    assert found(store, longer, longest, first, last) == {longest: "d1", first: "d1"}
    assert find_marked(store, [longest], "app")[longest].upstream_id == "", "no other mark stands for it"


def test_marks_that_no_database_stores_are_found_as_sent(store: Store) -> None:
    odd = ("nul\0", "half \ud800", "\U0001f600", "quote'\"\\")
    store.append([asked("d1"), answered("d1", *odd)])
    assert found(store, *odd) == dict.fromkeys(odd, "d1")


def test_of_very_many_marks_the_last_ones_are_looked_up(store: Store) -> None:
    store.append([asked("d1"), answered("d1", "msg_1", "call_1")])
    others = [f"other_{n}" for n in range(MOST_LOOKED_UP - 1)]
    assert found(store, "msg_1", *others, "call_1") == {"call_1": "d1"}
    assert found(store, "msg_1", *others) == {"msg_1": "d1"}


def test_many_marks_of_many_answers_are_all_found(store: Store) -> None:
    names = [f"d{n}" for n in range(600)]
    store.append([fact for name in names for fact in (asked(name), answered(name, f"msg_{name}"))])
    assert found(store, *(f"msg_{name}" for name in names)) == {f"msg_{name}": name for name in names}


@pytest.mark.parametrize("scope", ["user", "episode", "decision", "age"])
def test_an_erased_answer_is_not_found_and_others_are(store: Store, scope: str) -> None:
    ada = replace(asked("d1", episode="e1"), user_digest=erasures.user_digest(store, "default", "ada"))
    store.append([ada, answered("d1", "msg_1", "call_1")])
    before = n_rows(store)
    if scope == "user":
        erasures.erase_user(store, "default", "ada", "k1", NOW)
    elif scope == "episode":
        erasures.erase_episode(store, "e1", "k1", NOW)
    elif scope == "decision":
        erasures.erase_decision(store, "d1", "k1", NOW)
    else:
        erasures.erase_older(store, 1.0, NOW + 2 * 86_400.0)
    store.append([asked("d2"), answered("d2", "msg_2")])
    assert (before, n_rows(store)) == (2, 1)
    assert found(store, "msg_1", "call_1", "msg_2") == {"msg_2": "d2"}
    erased = store.record("d1")
    assert erased is not None
    assert erased.execution is not None
    assert erased.execution.marks == ()


def test_an_answer_that_ends_after_its_erasure_is_not_found(store: Store) -> None:
    store.append([asked("d1")])
    erasures.erase_decision(store, "d1", "k1", NOW)
    store.append([answered("d1", "msg_1")])
    assert (found(store, "msg_1"), n_rows(store)) == ({}, 0)


def test_an_execution_that_the_log_has_already_adds_no_marks(store: Store) -> None:
    store.append([asked("d1"), answered("d1", "msg_1")])
    store.append([answered("d1", "msg_2")])
    assert found(store, "msg_1", "msg_2") == {"msg_1": "d1"}


def test_marks_are_looked_up_by_an_index(store: Store) -> None:
    store.append([fact for n in range(50) for fact in (asked(f"d{n}"), answered(f"d{n}", f"m{n}", "call_0"))])
    seen: list[tuple[str, object]] = []

    def note(_: object, __: object, sql: str, values: object, *___: object) -> None:
        seen.append((sql, values))

    sa.event.listen(store.engine, "before_cursor_execute", note)
    find_marked(store, ["m7", "call_0"], "app")
    sa.event.remove(store.engine, "before_cursor_execute", note)
    queries = [(sql, values) for sql, values in seen if sql.startswith("SELECT")]
    assert len(queries) == 2, "one finds the positions, and one reads the answers"
    if store.engine.dialect.name != "sqlite":
        return  # its planner goes by how many rows there are
    with store.reading() as connection:
        plan = [
            row
            for sql, values in queries
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values)  # type: ignore[arg-type]
        ]
    text = "\n".join(row[3] for row in plan)
    assert "SEARCH answer_marks USING COVERING INDEX" in text
    assert "(asked_by=? AND mark=?)" in text
    assert [line for line in text.splitlines() if line.startswith("SCAN") and "VIRTUAL" not in line] == []
