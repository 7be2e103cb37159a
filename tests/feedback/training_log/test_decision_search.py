"""A search finds exactly the decisions that match, newest first, whatever the size of a page."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from feedback.events import LABELS, Decision, Status
from feedback.log import Store
from feedback.training_log import Joiner, decision_search, take_epoch
from feedback.training_log.decision_search import Filters, FoundDecision
from tests.feedback.conftest import decision, execution, value
from tests.feedback.training_log.test_rollups import RULE, filled, turns

__all__ = ["filled"]  # a fixture


def every(store: Store, filters: Filters, limit: int = 7) -> list[FoundDecision]:
    """All that match, page by page."""
    found: list[FoundDecision] = []
    before = None
    while True:
        page = decision_search.search(store, RULE, filters, before, limit)
        found += page.decisions
        before = page.following
        if before is None:
            return found
        assert page.looked_through is not None or len(page.decisions) == limit


def anything(_: object) -> bool:
    return True


def nothing(_: object) -> bool:
    return False


MADE = [one for one in turns(np.random.default_rng(3)) if one[0].policy != LABELS]


FILTERS: list[tuple[dict[str, Any], Any]] = [
    ({}, anything),
    ({"arm": "b"}, lambda one: one[0].drawn == "b"),
    ({"status": "llm_timeout"}, lambda one: one[1].status == "llm_timeout"),
    ({"status": "running"}, nothing),
    ({"metric": "right"}, lambda one: one[2] is not None),
    ({"key": "nobody"}, nothing),
    ({"version": 2}, nothing),
    ({"text": "?"}, anything),
    ({"text": "100%_"}, nothing),
    ({"project": ""}, anything),
    ({"project": "acme~"}, nothing),
    ({"arm": "a", "metric": "right"}, lambda one: one[0].drawn == "a" and one[2] is not None),
]


def test_each_filter_finds_what_matches_and_nothing_else(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_search, "STRETCH", 23)
    monkeypatch.setattr(decision_search, "FURTHEST", 50)
    for filters, matches in FILTERS:
        expected = [one[0].id for one in MADE if matches(one)][::-1]
        assert [one.id for one in every(filled, Filters(**filters))] == expected, filters


def test_rewards_are_those_of_the_rule_and_can_be_asked_for(filled: Store) -> None:
    listed = every(filled, Filters())
    rewards = {
        one.id: RULE.reward({"right": f.value}, e.cost)
        for one in listed
        for d, e, f in MADE
        if d.id == one.id
        and f is not None
        and f.value is not None
        and e.status == "ok"
        and d.mode == "explore"
    }
    assert rewards
    assert {one.id: one.reward for one in listed if one.id in rewards} == rewards
    low, high = np.quantile([one.reward for one in listed if one.reward is not None], (0.3, 0.7))
    among = every(filled, Filters(least=float(low), most=float(high)))
    assert [one.id for one in among] == [
        one.id for one in listed if one.reward is not None and low <= one.reward <= high
    ]


def test_a_window_of_time_is_that_of_the_commits(filled: Store) -> None:
    with filled.reading() as connection:
        rows = connection.exec_driver_sql(
            "SELECT id, logged_at FROM decisions WHERE policy != 'labels' ORDER BY seq DESC"
        ).all()
    since, until = sorted({row[1] for row in rows})[10:12]
    found = every(filled, Filters(since=since, until=until))
    assert [one.id for one in found] == [row[0] for row in rows if since <= row[1] <= until] != []


@pytest.fixture
def varied(store: Store) -> Store:
    """Five decisions, of which the third was committed at a later time of the log."""
    store.append([decision("d1", at=100.0), replace(execution("d1"), passages=("p 7",)), value("d1")])
    store.append(
        [replace(decision("d2", at=110.0), candidate=7, share=0.5), execution("d2"), value("d2", number=0.5)]
    )
    store.append(
        [replace(decision("acme~d3", at=120.0), episode_id="e"), execution("acme~d3", Status.ARM_FAILED)]
    )
    store.append([replace(about("d4", "Wer heilt?"), decided_at=130.0), execution("d4", Status.LLM_FAILED)])
    store.append([replace(value("d2", "thumb", at=130.0), key="k1"), about("d5", "x" * 400)])
    Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(131.0)
    return store


def about(name: str, question: str) -> Decision:
    made = decision(name, at=130.0)
    return replace(made, context=replace(made.context, question=question))


ALONE: list[tuple[dict[str, Any], list[str]]] = [
    ({"action": "p 7"}, ["d1"]),
    ({"version": 7}, ["d2"]),
    ({"version": 1}, ["d5", "d4", "acme~d3", "d2", "d1"]),
    ({"episode_id": "e"}, ["acme~d3"]),
    ({"project": "acme~"}, ["acme~d3"]),
    ({"project": ""}, ["d5", "d4", "d2", "d1"]),
    ({"status": "running"}, ["d5"]),
    ({"key": "k1"}, ["d2"]),
    ({"text": "wER HEILT"}, ["d4"]),
    ({"since": 120.0}, ["d5", "d4", "acme~d3"]),
    ({"since": 120.5}, ["d5", "d4"]),
    ({"until": 120.0}, ["acme~d3", "d2", "d1"]),
    ({"until": 119.5}, ["d2", "d1"]),
    ({"least": 0.4}, ["d2", "d1"]),
    ({"least": 0.41}, ["d1"]),
    ({"most": 0.4}, ["acme~d3", "d2"]),
    ({"least": -0.1, "most": 0.39}, ["acme~d3"]),
]


@pytest.mark.parametrize("limit", [9, 1])
def test_a_filter_alone_finds_what_it_names_whatever_the_size_of_a_page(varied: Store, limit: int) -> None:
    found = [[one.id for one in every(varied, Filters(**filters), limit)] for filters, _ in ALONE]
    assert found == [names for _, names in ALONE]


def test_a_page_that_is_not_full_says_how_far_it_has_looked(
    varied: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_search, "STRETCH", 2)
    monkeypatch.setattr(decision_search, "FURTHEST", 6)
    monkeypatch.setattr(decision_search, "FURTHEST_BY_REWARD", 2)
    page = decision_search.search(varied, RULE, Filters(action="p 7"))
    assert (page.decisions, page.following, page.looked_through) == ([], 7, 6)
    page = decision_search.search(varied, RULE, Filters(least=0.0))
    assert (page.decisions, page.following, page.looked_through) == ([], 11, 2)
    page = decision_search.search(varied, RULE, Filters(), before=4)
    assert ([one.id for one in page.decisions], page.following, page.looked_through) == (["d1"], None, None)


def test_a_found_decision_says_what_came_of_it(varied: Store) -> None:
    last, failed, _, _, first = every(varied, Filters(), 9)
    assert (last.question, last.status, last.cost, last.served, last.passages) == (
        "x" * 300,
        None,
        None,
        None,
        (),
    )
    assert (failed.status, failed.reward) == ("llm_failed", None)
    assert first == FoundDecision(
        *(1, "d1", 100.0, "what is d1?", "b", "b", ("p 7",), 0.75, "explore", 1, "ok"),
        cost=execution("d1").cost,
        reward=pytest.approx(0.9),
    )


def test_a_page_looks_through_50_000_facts_and_fewer_where_it_computes_rewards() -> None:
    looked_at = decision_search.STRETCH, decision_search.FURTHEST, decision_search.FURTHEST_BY_REWARD
    assert looked_at == (5000, 50_000, 10_000)
