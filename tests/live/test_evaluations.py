"""An evaluation over HTTP, from the question to the page, while the service answers others."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import Live, started, until
from tests.neighbours import SUBJECTS

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

TURNS = 60


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """A service of its own: what others ask and never rate would be open for half an hour."""
    arms = {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}}
    with started(tmp_path, {}, arms=arms, backbones={}, router=None) as live:
        yield live


def test_an_evaluation_is_answered_beside_the_service(live: Live) -> None:
    told = [
        (live.look_up(f"where is the {SUBJECTS[number % len(SUBJECTS)]}?")["decision_id"], number % 2)
        for number in range(TURNS)
    ]
    live.learned(live.tell(*told))
    (jobs,) = live.replicas("Learner")

    request = {"candidates": ["uniform", "fixed:bm25", "recipe:1"], "gate": True}
    answer = live.client.post("/v1/evaluations", json=request)
    assert answer.status_code == 202, answer.text
    place = answer.headers["location"]

    def ended() -> dict[str, Any] | None:
        live.look_up("which city stands beside the bridge?")
        found: dict[str, Any] = live.client.get(place).json()
        return found if found["status"] in ("done", "failed") else None

    began = time.monotonic()
    found = until(ended, 60.0)
    assert found["error"] is None
    assert found["result"]["rows"] >= TURNS
    names = [one["name"] for one in found["result"]["candidates"]]
    assert names == ["served", *request["candidates"]]
    assert found["finished_at"] - found["submitted_at"] <= time.monotonic() - began + 1.0
    page = live.client.get(f"{place}/report")
    assert page.headers["content-type"].startswith("text/html")
    assert "recipe:1" in page.text
    assert live.replicas("Learner") == [jobs], "nothing of it takes its host down"
    assert live.client.get("/v1/evaluations").json()["evaluations"][0]["id"] == found["id"]
