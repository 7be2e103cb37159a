"""Searches that were made before: a turn takes what is kept of them, and its log says so."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.config import ConfigError, parse
from armwise.arms.base import Passage, Retrieval
from tests.agent.asking import look_up
from tests.agent.fakes import CONFIG, Service

KEPT = Retrieval((Passage("kept-1", "", "It is kept."),), steps=0, index_version="a1-b2", cached=True)


def with_cache(**specs: Any) -> dict[str, Any]:
    dense = {"kind": "dense", "params": {"backbone": "tiny"}, "cache": True}
    return {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}, "dense": dense, **specs}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path, arms=with_cache()).running() as running:
        yield running


async def test_what_is_kept_is_neither_searched_nor_embedded_and_the_log_says_so(service: Service) -> None:
    service.arms.kept["dense"] = KEPT
    answer = (await look_up(service, model="arm/dense")).json()
    assert [one["id"] for one in answer["passages"]] == ["kept-1"]
    assert (service.arms.calls, service.embedders.calls) == ([], [])
    assert (answer["agent"]["cost"]["steps"], answer["agent"]["cost"]["tokens"]) == (0, 0)
    assert answer["agent"]["cost"]["retrieval_ms"] > 0.0
    told = (await service.client.get(f"/v1/decisions/{answer['agent']['decision_id']}")).json()
    assert (told["cached"], told["index_version"]) == (True, "a1-b2")
    assert told["passage_ids"] == ["kept-1"]


async def test_hits_and_misses_are_counted_of_arms_with_a_cache_alone(service: Service) -> None:
    await look_up(service, model="arm/dense")
    service.arms.kept |= {"dense": KEPT, "bm25": KEPT}
    await look_up(service, model="arm/dense")
    searched = (await look_up(service, model="arm/bm25")).json()
    assert searched["passages"][0]["id"] == "bm25-1"
    counted = service.replica.telemetry.counts("armwise_retrieval_cache")
    assert counted == {"dense, miss": 1.0, "dense, hit": 1.0}


async def test_a_kept_passage_that_the_caller_may_not_see_is_refused(service: Service) -> None:
    secret = Passage("s", "", "", metadata={"allowed_groups": ["crew"]})
    service.arms.kept["dense"] = Retrieval((secret,), steps=0, cached=True)
    service.replica.turns.searcher.restricted = True
    assert (await look_up(service, model="arm/dense")).status_code == 502


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (
            {"drawn": {"kind": "plackett_luce", "params": {"arm": "bm25"}, "cache": True}},
            "arm 'drawn' cannot have a cache, as it may find others each time$",
        ),
        (
            {
                "drawn": {"kind": "plackett_luce", "params": {"arm": "bm25"}},
                "fused": {"kind": "rrf", "params": {"arms": ["bm25", "drawn"]}, "cache": True},
            },
            "arm 'fused' cannot have a cache, as it may find others each time: its member 'drawn' does",
        ),
        (
            {"both": {"kind": "ensemble", "params": {"arms": ["bm25", "dense"]}, "cache": True}},
            "arm 'both' cannot have a cache",
        ),
        (
            {"far": {"kind": "mcp", "params": {"url": "https://a.example", "tool": "find"}, "cache": True}},
            "arm 'far' can have a cache only with `retrieval_cache.ttl_s`",
        ),
    ],
)
def test_a_cache_is_refused_where_a_search_does_not_repeat(specs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse({**CONFIG, "arms": with_cache(**specs)})


def test_an_arm_elsewhere_may_have_a_cache_for_some_time() -> None:
    far = {"kind": "mcp", "params": {"url": "https://a.example", "tool": "find"}, "cache": True}
    settings = {"ttl_s": 60.0}
    config = parse({**CONFIG, "arms": with_cache(far=far), "retrieval_cache": settings})
    assert config.arms["far"].cache
    assert config.arm_documents["bm25"] == {"kind": "bm25"}
    assert config.retrieval_cache.ttl_s == 60.0
