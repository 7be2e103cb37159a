"""What the count of values beyond their limits notices, and how little of the log a step of it reads."""

import pytest
import sqlalchemy as sa

from armwise.feedback.events import Feedback, Observation, ObservationSource, Tick
from armwise.feedback.log import Store, damage
from armwise.feedback.log import tables as t
from tests.feedback.conftest import decision, execution


def counted(count: damage.DamageCount, steps: int) -> list[int]:
    for _ in range(steps):
        count.step()
    return sorted(count.positions)


def spend(store: Store, usd: float, *names: str) -> None:
    """Write what executions have cost, beside all checks."""
    e = t.executions.c
    with store.writing() as connection:
        connection.execute(sa.update(t.executions).where(e.decision_id.in_(names)).values(usd=usd))


@pytest.mark.slow
def test_a_value_is_counted_within_a_round_also_where_its_row_is_changed_later(store: Store) -> None:
    count = damage.DamageCount(store)
    assert counted(count, 2) == []
    for number in range(150):
        store.append([decision(f"d{number}"), execution(f"d{number}")])
    assert counted(count, 3) == []
    spend(store, 1e308, "d0", "d120")
    assert counted(count, 1) == [2], "of the first 100 positions"
    assert counted(count, 2) == [2, 242]
    assert counted(count, 3) == [2, 242], "each once"
    spend(store, 0.0, "d0")
    assert counted(count, 3) == [242]


def test_a_single_new_position_is_looked_at_and_none_where_there_is_none(store: Store) -> None:
    store.append([decision("d1"), execution("d1")])
    spend(store, 1e308, "d1")
    assert [damaged.seq for damaged in damage.read(store, 1, 2)] == [2]
    assert damage.read(store, 2, 2) == []
    assert damage.read(store, 0, 1) == []


@pytest.mark.parametrize(
    ("table", "column", "subject"),
    [
        (t.decisions, "price", "d1"),
        (t.executions, "usd", "d1"),
        (t.observations, "judge_usd", "d1"),
        (t.feedback, "value", "talk"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_value_is_named_with_its_column_and_its_subject_in_each_table(
    store: Store, table: sa.Table, column: str, subject: str
) -> None:
    observation = Observation("d1", ObservationSource.JUDGE, "b", 0.5, observed_at=100.0)
    on_episode = Feedback("f1", None, "right", 1.0, 100.0, episode_id="talk")
    store.append([decision("d1"), execution("d1"), observation, on_episode])
    documents = [each.name for each in table.c if isinstance(each.type, sa.JSON)]
    beyond = {column: 1e308, documents[0]: [1e308]}
    with store.writing() as connection:
        connection.execute(sa.update(table).values(beyond))
    value, document = damage.read(store, 0, 4)
    assert value.column == f"{table.name}.{column}"
    assert document.column == f"{table.name}.{documents[0]}"
    assert value.subject == document.subject == subject


def test_what_the_newest_positions_have_left_behind_is_counted_no_longer(store: Store) -> None:
    store.append([decision("d1"), execution("d1")])
    spend(store, 1e308, "d1")
    count = damage.DamageCount(store)
    assert counted(count, 1) == [2]
    store.append([Tick(float(second)) for second in range(100, 2098)])
    assert counted(count, 1) == [2]
    store.append([Tick(2098.0), Tick(2099.0)])
    assert counted(count, 21) == []


@pytest.mark.slow
def test_a_step_reads_a_hundred_positions_of_a_log_of_any_length(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([Tick(float(second)) for second in range(100, 5100)])
    ranges = list[tuple[int, int]]()

    def read(_: Store, after: int, upto: int) -> list[damage.Damaged]:
        ranges.append((after, upto))
        return []

    monkeypatch.setattr(damage, "read", read)
    counted(damage.DamageCount(store), 21)
    assert ranges == [(after, after + 100) for after in range(3000, 5000, 100)] + [(3000, 3100)]
