"""A metric keeps its type and its range for as long as there are values of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from armwise.feedback.errors import LogUnavailableError, MetricRedefinedError
from armwise.feedback.events import FeedbackKind
from armwise.feedback.log import Operation, operations
from armwise.feedback.log.open import declare, open_log
from armwise.feedback.log.store import Store
from armwise.feedback.reward import Aggregation, Metric, RewardRule
from tests.feedback.conftest import value

GOOD_BAD = {"good": 1.0, "bad": 0.0}


def rule(**metrics: Metric) -> RewardRule:
    return RewardRule(correction_time="PT0S", metrics=metrics)


def written(store: Store) -> list[tuple[Any, ...]]:
    with store.reading() as connection:
        rows = operations.read_all(connection, Operation.METRIC)
    return [(row.subject, *(row.document[name] for name in ("type", "low", "high")), row.at) for row in rows]


def test_what_is_new_is_written_once(store: Store) -> None:
    both = rule(right=Metric(type="boolean"), thumb=Metric(range=(-1, 1)))
    declare(store, both, 1.0)
    declare(store, both, 2.0)
    declare(store, rule(thumb=Metric(range=(-1, 1)), stars=Metric(range=(1, 5))), 3.0)
    assert written(store) == [
        ("right", "boolean", 0.0, 1.0, 1.0),
        ("thumb", "float", -1.0, 1.0, 1.0),
        ("stars", "float", 1.0, 5.0, 3.0),
    ]


def test_nothing_is_locked_where_nothing_changed(store: Store) -> None:
    declare(store, rule(right=Metric()), 1.0)
    with store.writing():  # another writer would wait for this, and fail
        declare(store, rule(right=Metric()), 2.0)
    assert written(store) == [("right", "float", 0.0, 1.0, 1.0)]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (Metric(range=(-1, 1)), Metric(), r"as float in \[0, 1\], but was float in \[-1, 1\]"),
        (Metric(), Metric(range=(0, 2)), r"as float in \[0, 2\], but was float in \[0, 1\]"),
        (Metric(), Metric(type="boolean"), r"as boolean, but was float in \[0, 1\]"),
        (Metric(type="boolean"), Metric(), r"as float in \[0, 1\], but was boolean"),
    ],
)
def test_a_metric_cannot_be_redefined_while_there_are_values_of_it(
    store: Store, before: Metric, after: Metric, change: str
) -> None:
    declare(store, rule(right=before), 1.0)
    store.append([value("d1"), value("d2"), value("d3", "thumb")])
    with pytest.raises(MetricRedefinedError, match=f"metric 'right' is declared {change} when its 2 values"):
        declare(store, rule(right=after, thumb=Metric()), 2.0)
    with pytest.raises(MetricRedefinedError, match="metric 'right'"):
        declare(store, rule(better=Metric(), right=after), 2.0)
    assert [name for name, *_ in written(store)] == ["right"], "nothing of it is written"
    declare(store, rule(right=before, better=after), 3.0)
    assert [name for name, *_ in written(store)] == ["right", "better"]


def test_a_metric_without_values_may_be_redefined(store: Store) -> None:
    declare(store, rule(right=Metric()), 1.0)
    store.append([value("d1", "thumb"), replace(value("d1"), value=None, kind=FeedbackKind.RETRACTION)])
    declare(store, rule(right=Metric(type="boolean")), 2.0)
    store.append([value("d2")])
    declare(store, rule(right=Metric(type="boolean")), 3.0)
    assert [(kind, at) for _, kind, _, _, at in written(store)] == [("float", 1.0), ("boolean", 2.0)]
    with pytest.raises(MetricRedefinedError, match="was boolean"):
        declare(store, rule(right=Metric()), 4.0)


def test_weight_aggregation_and_direction_may_change_at_any_time(store: Store) -> None:
    declare(store, rule(right=Metric()), 1.0)
    store.append([value("d1")])
    declare(store, rule(right=Metric(weight=3.0, aggregation=Aggregation.SUM, optimize="min")), 2.0)
    assert len(written(store)) == 1


@pytest.mark.parametrize(
    ("metric", "outside"),
    [
        (Metric(), 0),
        (Metric(range=(0.5, 2)), 1),
        (Metric(range=(-1, 0.9)), 1),
        (Metric(type="boolean"), 1),
        (Metric(type="categorical", values=GOOD_BAD), 1),
    ],
)
def test_older_values_must_fit_what_is_declared(store: Store, metric: Metric, outside: int) -> None:
    store.append([value("d1", number=0.0), value("d2", number=1.0)])
    if metric.type != "float":
        store.append([value("d3", number=0.5)])
    if outside:
        with pytest.raises(MetricRedefinedError, match="but 1 of its values in the log do not fit"):
            declare(store, rule(right=metric), 1.0)
    else:
        declare(store, rule(right=metric), 1.0)
    assert len(written(store)) == 1 - outside


@pytest.mark.parametrize(
    ("labels", "accepted"),
    [
        ({**GOOD_BAD, "fair": 0.5}, True),
        ({"good": 1.0, "fair": 0.0}, False),
        ({"good": 1.0, "bad": 0.25}, False),
    ],
    ids=["one more", "one less", "another number"],
)
def test_a_categorical_metric_may_get_more_labels_and_loses_none(
    store: Store, labels: dict[str, float], *, accepted: bool
) -> None:
    declare(store, rule(right=Metric(type="categorical", values=GOOD_BAD)), 1.0)
    store.append([value("d1")])
    changed = rule(right=Metric(type="categorical", values=labels))
    if not accepted:
        with pytest.raises(MetricRedefinedError, match=r"was categorical \{bad: 0, good: 1\}"):
            declare(store, changed, 2.0)
        return
    declare(store, changed, 2.0)
    declare(store, changed, 3.0)
    assert [at for *_, at in written(store)] == [1.0, 2.0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, LogUnavailableError])
def test_a_log_that_cannot_be_opened_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    closed: list[Store] = []
    close = Store.close

    def noted(store: Store) -> None:
        closed.append(store)
        close(store)

    def fail(*_: object, **__: object) -> None:
        raise error("away")

    monkeypatch.setattr(Store, "close", noted)
    monkeypatch.setattr("armwise.feedback.log.open.declare", fail)
    with pytest.raises(error):
        open_log(f"sqlite:///{tmp_path / 'log.db'}", rule(right=Metric()))
    assert len(closed) == 1
    monkeypatch.setattr("armwise.feedback.log.store.prepare", fail)
    with pytest.raises(error):
        Store(f"sqlite:///{tmp_path / 'log.db'}")
    assert len(closed) == 2
