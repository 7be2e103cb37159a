"""A first start: words answer while vectors are built, and each arm enters under traffic."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.live.conftest import Live, started, until
from tests.live.test_sources import OF_NO_ONE_SOURCE

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(300)]

ARMS: dict[str, dict[str, Any]] = {"none": {"kind": "none"}} | {
    name: spec
    for corpus in ("rivers", "towns")
    for name, spec in {
        f"{corpus}_words": {"kind": "bm25", "corpus": corpus, "action": False},
        f"{corpus}_near": {
            "kind": "dense",
            "corpus": corpus,
            "params": {"backbone": "hashed"},
            "action": False,
        },
        corpus: {"kind": "rrf", "params": {"arms": [f"{corpus}_words", f"{corpus}_near"]}},
    }.items()
}

FIRST, LAST = {"none", "rivers_words", "towns_words"}, {"none", "rivers", "towns"}


def asked(live: Live, number: int) -> dict[str, Any]:
    """Ask a question; return what the agent says of its decision."""
    reply = live.client.post("/v1/retrieve", json={"query": f"Where does the river {number} flow?", "k": 2})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()["agent"]
    return found


def test_words_answer_first_and_every_arm_enters_under_traffic(tmp_path: Path) -> None:
    sources = {}
    for name, n in (("rivers", 400), ("towns", 200)):
        lines = [
            {"id": f"p{i}", "text": f"the {name} number {i} are near the river {i % 40}"} for i in range(n)
        ]
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
        sources[name] = {"source": str(tmp_path / f"{name}.jsonl")}
    settings: dict[str, Any] = {
        "corpus": {"name": "stdlib", "source": "stdlib"},  # the default
        "corpora": sources,
        "arms": ARMS,
        "backbones": {"hashed": {"model": "hashing:16"}},
        "features": {"similarity": {"backbone": "hashed"}},
        "policy": {"kind": "adaptive"},
        **OF_NO_ONE_SOURCE,
    }
    with started(tmp_path, {}, early=True, **settings) as live:
        decisions = [asked(live, 0)]
        assert decisions[0]["pmf"].keys() == FIRST

        def entered() -> bool:
            decisions.append(asked(live, len(decisions)))
            built = live.client.get("/ready").json()["building"] is None
            return built and decisions[-1]["pmf"].keys() == LAST

        until(entered, 120.0)
        assert all("none" in one["pmf"] and one["pmf"].keys() <= FIRST | LAST for one in decisions)
        for one in (*decisions[:20], *decisions[-20:]):
            verified = live.client.get(f"/v1/decisions/{one['decision_id']}/verify").json()
            assert verified["verified"], verified
