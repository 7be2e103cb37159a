"""A candidate takes a share, then the place, and gives it back, while requests come all the time."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from armwise.agent.config import load
from armwise.agent.learning import Recipe, publish_candidate
from armwise.agent.policies import PolicySpec
from armwise.feedback.log import Store
from tests.live.conftest import Live, until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

FOLLOWING_S = 10.0
"""How long replicas, and a machine that does other things beside them, may take to follow a word."""


@contextmanager
def traffic(live: Live) -> Iterator[Counter[int]]:
    """Ask three questions at a time all the while; the statuses of the answers are counted."""
    statuses: Counter[int] = Counter()
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=live.url, timeout=30) as client:
            while not over.is_set():
                response = client.post("/v1/retrieve", json={"query": "Where is the bridge?"})
                statuses[response.status_code] += 1

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    try:
        yield statuses
    finally:
        over.set()
        for asker in askers:
            asker.join()


def decided(live: Live) -> dict[str, object]:
    """Make a decision, and return its record once it verifies."""
    decision_id = live.look_up("where is the river?")["decision_id"]
    verified = live.client.get(f"/v1/decisions/{decision_id}/verify").json()
    assert verified["verified"], verified["why"]
    record: dict[str, object] = live.client.get(f"/v1/decisions/{decision_id}").json()
    return record


def say(live: Live, path: str, **body: object) -> None:
    response = live.client.post(f"/v1/policies/{path}", json={"reason": "a test", **body})
    assert response.status_code == 200, response.text


def everywhere(live: Live, field: str, value: object) -> None:
    """Wait until every replica decides so."""
    until(lambda: all(decided(live)[field] == value for _ in range(8)), FOLLOWING_S)


@pytest.mark.timeout(400)
def test_a_candidate_takes_a_share_and_the_place_and_gives_it_back_without_a_failed_request(
    live: Live,
) -> None:
    config = load(live.config)
    store = Store(config.database_url, config.reward.join)
    ours = live.learned(live.tell((live.look_up("where is the sea?")["decision_id"], 1.0)))
    recipe = Recipe(PolicySpec(kind="linucb"), config.reward)
    candidate = publish_candidate(store, recipe, list(config.actions)).version
    store.close()
    with traffic(live) as statuses:
        say(live, f"{candidate}/canary", share=0.25)
        everywhere(live, "canary", {"version": candidate, "share": 0.25})
        say(live, f"{candidate}/promote", force=True)
        everywhere(live, "policy", "linucb")
        log_seq = live.tell((live.look_up("where is the sea?")["decision_id"], 1.0))
        assert live.learned(log_seq, timeout_s=60.0) > candidate
        everywhere(live, "policy", "linucb")
        assert live.policy()["promotion"]["version"] == candidate
        say(live, f"{ours}/promote", force=True)
        everywhere(live, "policy", "vowpal")
        log_seq = live.tell((live.look_up("where is the sea?")["decision_id"], 1.0))
        live.learned(log_seq, timeout_s=60.0)
        assert live.policy()["kind"] == "vowpal"
    assert set(statuses) == {200}
    assert statuses.total() > 50
