"""Operations: rows of many kinds in one order, of which the newest about a subject counts."""

import pytest
import sqlalchemy as sa

from armwise.feedback.log import Store
from armwise.feedback.log.operations import (
    Operation,
    find_newest,
    find_newest_of_each,
    prune,
    read_all,
    record,
)


def fill(store: Store) -> list[int]:
    """Record switches of two arms and a price, and return their numbers."""
    said = [("a", Operation.SWITCH), ("b", Operation.SWITCH), ("a", Operation.PRICE), ("a", Operation.SWITCH)]
    with store.writing() as connection:
        return [
            record(connection, kind, 9.0 - i, {"n": i}, subject=subject)
            for i, (subject, kind) in enumerate(said)
        ]


def test_the_newest_about_a_subject_is_found_whatever_the_clock_says(store: Store) -> None:
    numbers = fill(store)
    with store.reading() as connection:
        newest = find_newest(connection, Operation.SWITCH, "a")
        assert newest is not None
        assert (newest.seq, newest.document, newest.at) == (numbers[3], {"n": 3}, 6.0)
        assert find_newest(connection, Operation.SWITCH) is None
        of_each = find_newest_of_each(connection, Operation.SWITCH)
    assert [row.seq for row in of_each] == [numbers[1], numbers[3]]


def test_rows_are_read_in_order_by_kind_subject_and_number(store: Store) -> None:
    first, second, third, fourth = fill(store)
    with store.reading() as connection:
        read = [
            read_all(connection, Operation.SWITCH),
            read_all(connection, Operation.SWITCH, Operation.PRICE, subject="a"),
            read_all(connection, Operation.SWITCH, after=first),
        ]
    expected = [[first, second, fourth], [first, third, fourth], [second, fourth]]
    assert [[row.seq for row in rows] for rows in read] == expected


def test_the_oldest_about_a_subject_go_and_their_numbers_stay_taken(store: Store) -> None:
    numbers = fill(store)
    with store.writing() as connection:
        prune(connection, Operation.SWITCH, "a", 1)
        prune(connection, Operation.PRICE, "a", 1)
    with store.reading() as connection:
        left = [row.seq for row in read_all(connection, Operation.SWITCH, Operation.PRICE)]
    assert left == numbers[1:]
    with store.writing() as connection:
        prune(connection, Operation.SWITCH, "a", 0)
        assert record(connection, Operation.EPOCH, 1.0, {}) > numbers[-1]


def test_what_may_be_once_is_refused_the_second_time_in_its_kind_alone(store: Store) -> None:
    with store.writing() as connection:
        record(connection, Operation.ALARM, 1.0, {}, once="x")
        record(connection, Operation.DISABLED_KEY, 1.0, {}, once="x")
        record(connection, Operation.ALARM, 1.0, {})
        record(connection, Operation.ALARM, 1.0, {})
    with pytest.raises(sa.exc.IntegrityError), store.writing() as connection:
        record(connection, Operation.ALARM, 2.0, {}, once="x")
    with store.reading() as connection:
        assert len(read_all(connection, Operation.ALARM)) == 3


def test_the_newest_is_found_in_an_index(store: Store) -> None:
    """The log grows, and each replica asks for its arms, its price and its keys every second."""
    executed: list[tuple[str, object]] = []
    sa.event.listen(store.engine, "before_cursor_execute", lambda *call: executed.append((call[2], call[3])))
    with store.reading() as connection:
        find_newest(connection, Operation.PRICE, "b")
        if connection.dialect.name == "sqlite":
            sql, values = executed[-1]
            (plan,) = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all()
            assert "INDEX operations_by_kind_subject_seq (kind=? AND subject=?)" in plan[3]
