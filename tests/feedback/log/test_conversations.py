"""The draw whose arm a conversation keeps is found in the log, on SQLite and on PostgreSQL."""

from dataclasses import replace
from itertools import count

import pytest
import sqlalchemy as sa

from armwise.feedback.events import LABELS, AnsweredTurn, Decision, KeptDraw, Mode, Status
from armwise.feedback.log import Store
from armwise.feedback.log.conversations import (
    ROUND,
    find_kept_draw,
    is_newest,
    list_answered_turns,
    previous_turn,
)
from tests.feedback.conftest import decision, execution


def draw(name: str, at: float, episode: str = "talk", **fields: object) -> Decision:
    one = replace(decision(name, at=at), episode_id=episode, draw_id=name)
    return replace(one, **fields)  # type: ignore[arg-type]


def turn(name: str, at: float, of: str, episode: str = "talk") -> Decision:
    return draw(name, at, episode, mode=Mode.CONTINUED, draw_id=of)


def test_an_episode_without_a_draw_that_may_be_kept_has_none(store: Store) -> None:
    store.append([replace(decision("d1"), episode_id="talk"), draw("d2", 100.0, "other")])
    store.append([replace(decision("d3", mode=Mode.FORCED), episode_id="talk")])
    assert find_kept_draw(store, "talk") is None
    assert find_kept_draw(store, "nobody") is None


def test_the_newest_draw_is_found_with_its_turns_alone(store: Store) -> None:
    store.append([draw("d1", 100.0), turn("d2", 101.0, "d1"), draw("d3", 102.0, drawn="a", version=4)])
    store.append([turn("d4", 103.0, "d3"), turn("d5", 104.5, "d3"), draw("x1", 105.0, "other")])
    store.append([execution("d3"), execution("d4"), replace(decision("d6", at=106.0), episode_id="talk")])
    assert find_kept_draw(store, "talk") == KeptDraw("d3", "a", "uniform", 4, 102.0, 104.5, turns=3)
    assert find_kept_draw(store, "other") == KeptDraw("x1", "b", "uniform", 1, 105.0, 105.0)


def test_a_turn_that_is_committed_late_continues_its_own_draw(store: Store) -> None:
    store.append([draw("d1", 100.0), draw("d2", 101.0), turn("d3", 102.0, "d1")])
    found = find_kept_draw(store, "talk")
    assert found is not None
    assert (found.id, found.turns) == ("d1", 2)


FAILED = {
    Status.OK: (False, False),
    Status.FELL_BACK: (True, True),
    Status.ARM_FAILED: (True, True),
    Status.LLM_FAILED: (True, True),
    Status.LLM_TIMEOUT: (True, True),
    Status.CANCELLED: (True, False),
}
"""Whether a draw that ended so is not kept, and one of which a later turn did."""


@pytest.mark.parametrize("status", Status)
def test_a_failure_of_the_draw_or_of_a_turn_ends_it(store: Store, status: Status) -> None:
    number = count(1)
    for which, expected in enumerate(FAILED[status]):
        names = [f"d{next(number)}" for _ in range(3)]
        episode = f"talk-{which}"
        first, second, third = names
        store.append([draw(first, 100.0, episode), turn(second, 101.0, first, episode)])
        store.append([turn(third, 102.0, first, episode), execution(names[which], status)])
        found = find_kept_draw(store, episode)
        assert found is not None
        assert found.failed is expected


@pytest.mark.parametrize(("asked_by", "other"), [("app", "guest"), (None, "guest"), ("app", None)])
def test_turns_of_another_caller_are_not_of_the_conversation(
    store: Store, asked_by: str | None, other: str | None
) -> None:
    callers = (asked_by, other, other, asked_by, other)
    turns = [
        replace(decision(f"d{n}", at=100.0 + n), episode_id="talk", asked_by=caller)
        for n, caller in enumerate(callers)
    ]
    store.append(turns)
    before = [previous_turn(store, turn) for turn in turns]
    assert [turn and turn.decision_id for turn in before] == [None, None, "d1", "d0", "d2"]
    assert [is_newest(store, turn) for turn in turns] == [False, False, False, True, True]
    assert [store.decisions([turn.id])[turn.id][0].asked_by for turn in turns] == list(callers)


def test_labels_are_no_draws(store: Store) -> None:
    store.append([replace(decision("d1"), policy=LABELS, episode_id="talk")])
    assert find_kept_draw(store, "talk") is None


def test_it_is_read_by_an_index(store: Store) -> None:
    seen: list[tuple[str, object]] = []

    def note(_: object, __: object, sql: str, values: object, *___: object) -> None:
        seen.append((sql, values))

    sa.event.listen(store.engine, "before_cursor_execute", note)
    find_kept_draw(store, "talk")
    sa.event.remove(store.engine, "before_cursor_execute", note)
    sql, values = next((sql, values) for sql, values in seen if "draw_id" in sql)
    if store.engine.dialect.name != "sqlite":
        return  # its planner goes by how many rows there are
    with store.reading() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all()  # type: ignore[arg-type]
    text = "\n".join(row[3] for row in plan)
    assert "decisions_kept_by_episode" in text
    assert "decisions_by_draw_id" in text
    assert "SCAN" not in text


def test_the_first_turn_and_the_newest_ones_say_what_models_read(store: Store) -> None:
    assert list_answered_turns(store, "talk") == []
    for number in range(ROUND + 3):
        made = replace(decision(f"d{number}", at=100.0 + number), episode_id="talk")
        read = replace(execution(made.id), tokens_by_model={"large": (number + 1, 2, 0)}, passages=())
        store.append([made, read])
        if number == ROUND - 1:
            first = [turn.tokens_by_model["large"][0] for turn in list_answered_turns(store, "talk")]
            assert first == [*range(1, ROUND + 1)], "each once"
    store.append([replace(decision("x"), episode_id="other"), replace(execution("x"), tokens_by_model={})])
    found = list_answered_turns(store, "talk")
    assert [turn.tokens_by_model["large"][0] for turn in found] == [1, *range(4, ROUND + 4)]
    assert found[0] == AnsweredTurn({"large": (1, 2, 0)}, 100.0)
    assert list_answered_turns(store, "other") == []


def test_turns_tell_whether_they_quoted_passages_and_labels_are_none(store: Store) -> None:
    quoted = replace(execution("d1"), tokens_by_model={"large": (9, 2, 4, 0.0, 3)})
    store.append([replace(decision("d1"), episode_id="talk"), quoted])
    store.append([replace(decision("d2"), episode_id="talk", policy=LABELS)])
    store.append([replace(execution("d2"), tokens_by_model={"large": (9, 2, 4)})])
    assert list_answered_turns(store, "talk") == [AnsweredTurn({"large": (9, 2, 4, 0.0, 3)}, 100.0, True)]
