"""Pages of decisions: what each condition lets through, and where the next page begins."""

from dataclasses import replace
from typing import Any

import pytest

from feedback.events import LABELS, Status
from feedback.log import Store, listing
from feedback.log.listing import DecisionFilter
from tests.feedback.conftest import decision, execution, value


def every(store: Store, limit: int, wanted: DecisionFilter = DecisionFilter()) -> list[list[str]]:  # noqa: B008 - it is frozen
    """The ids of all pages; an empty one is part of them."""
    found, before = [], None
    while before != 0:
        page, before = listing.decisions(store, wanted, limit, before)
        found.append([one.decision.id for one in page])
    return found


def test_pages_follow_each_other_down_to_the_first_decision(store: Store) -> None:
    for i in range(5):
        store.append([decision(f"d{i}"), execution(f"d{i}")])
    store.append([replace(decision("label"), policy=LABELS)])
    assert every(store, 2) == [["d4", "d3"], ["d2", "d1"], ["d0"]]
    assert every(store, 5) == [["d4", "d3", "d2", "d1", "d0"]], "the first position is on it"
    assert listing.decisions(store, DecisionFilter(), 2, before=5)[1] == 0, (
        "a full page that ends with it is the last"
    )
    assert listing.decisions(store, DecisionFilter(), 2, before=999) == listing.decisions(
        store, DecisionFilter(), 2
    )
    assert listing.decisions(store, DecisionFilter(), 2, before=1) == ([], 0)


def test_a_page_looks_at_a_window_and_the_next_goes_on_where_it_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "WINDOW", 3)
    store.append([decision("rare"), *(decision(f"d{i}") for i in range(6))])
    assert every(store, 9) == [["d5", "d4", "d3"], ["d2", "d1", "d0"], ["rare"]]
    drawn = replace(decision("other"), drawn="a", probabilities=(0.5, 0.5))
    store.append([drawn])
    assert every(store, 9, DecisionFilter(arm="a")) == [["other"], [], []]


def test_an_empty_log_has_no_page_and_no_span(store: Store) -> None:
    assert listing.decisions(store, DecisionFilter(), 5) == ([], 0)
    assert listing.span(store) is None


def test_the_span_is_that_of_the_first_and_the_last_decision(store: Store) -> None:
    store.append([decision("d1", at=100.0), decision("d2", at=300.0), decision("d3", at=200.0)])
    assert listing.span(store) == (100.0, 200.0)


def test_a_listed_decision_has_no_features_and_says_how_it_ended(store: Store) -> None:
    store.append([decision("d1"), execution("d1", Status.FELL_BACK), decision("d2")])
    (second, first), _ = listing.decisions(store, DecisionFilter(), 5)
    bare = replace(decision("d1").context, features={}, embedding=(), arms={})
    assert first == listing.ListedDecision(replace(decision("d1"), context=bare), 1, "b", Status.FELL_BACK)
    assert (second.seq, second.served, second.status) == (3, None, None)


@pytest.fixture
def varied(store: Store) -> Store:
    """Decisions d0 to d3 that differ in each thing that is asked for."""
    store.append([replace(decision("d0", at=100.0), version=7), execution("d0")])
    store.append([replace(decision("d1", at=110.0), candidate=7, share=0.5, drawn="a"), execution("d1")])
    store.append(
        [replace(decision("acme~d2", at=120.0), episode_id="e"), execution("acme~d2", Status.CANCELLED)]
    )
    store.append([decision("d3", at=130.0)])
    store.append(
        [replace(value("d0", at=140.0), key="k1"), replace(value("d3", "thumb", at=140.0), key="k2")]
    )
    store.append([replace(value("acme~d2", at=140.0), decision_id=None, episode_id="e", key="k1")])
    store.append([replace(execution("d3"), passages=("p 7",))])
    return store


CONDITIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["d3", "acme~d2", "d1", "d0"]),
    ({"since": 110.0}, ["d3", "acme~d2", "d1"]),
    ({"until": 120.0}, ["d1", "d0"]),
    ({"arm": "a"}, ["d1"]),
    ({"action": "p 7"}, ["d3"]),
    ({"action": "p1"}, []),
    ({"version": 7}, ["d1", "d0"]),
    ({"status": "ok"}, ["d3", "d1", "d0"]),
    ({"status": "cancelled"}, ["acme~d2"]),
    ({"metric": "right"}, ["d0"]),
    ({"metric": "thumb", "key": "k1"}, []),
    ({"key": "k2"}, ["d3"]),
    ({"episode": "e"}, ["acme~d2"]),
    ({"prefix": "acme~"}, ["acme~d2"]),
    ({"prefix": "d%"}, []),
    ({"apart": "~"}, ["d3", "d1", "d0"]),
    ({"apart": "%"}, ["d3", "acme~d2", "d1", "d0"]),
    ({"apart": "_"}, ["d3", "acme~d2", "d1", "d0"]),
    ({"since": 110.0, "status": "ok"}, ["d3", "d1"]),
]


def test_each_condition_lets_through_what_it_names_and_nothing_else(varied: Store) -> None:
    found = [every(varied, 9, DecisionFilter(**wanted)) for wanted, _ in CONDITIONS]
    assert found == [[names] for _, names in CONDITIONS]


def test_what_is_under_way_is_running(store: Store) -> None:
    store.append([decision("d1"), execution("d1"), decision("d2")])
    assert every(store, 9, DecisionFilter(status="running")) == [["d2"]]


def test_a_page_looks_at_a_hundred_thousand_positions() -> None:
    assert listing.WINDOW == 100_000
