"""A search finds exactly the decisions that match, newest first, whatever the size of a page."""

from typing import Any

import numpy as np
import pytest

from feedback.events import LABELS
from feedback.log import Store
from feedback.training_log import decision_search
from feedback.training_log.decision_search import Filters, Found
from tests.feedback.training_log.test_rollups import RULE, filled, turns

__all__ = ["filled"]  # a fixture


def every(store: Store, filters: Filters, limit: int = 7) -> list[Found]:
    """All that match, page by page."""
    found: list[Found] = []
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
