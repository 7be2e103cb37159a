"""A service of several corpora, as its clients see it: a store for each, and ids that name the corpus."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from armwise.arms.base import Passage, Query, Retrieval
from armwise.arms.llm import base
from tests.agent.asking import CHAT, refused, rows
from tests.agent.fakes import FakeArms, Service
from tests.agent.gateways.test_mcp import call, connected, failure

CORPORA = {name: {"source": f"/data/{name}"} for name in ("docs", "tickets", "wiki")}

ARMS: dict[str, Any] = {
    "docs": {"kind": "bm25", "corpus": "docs"},
    "near": {"kind": "dense", "corpus": "docs", "params": {"backbone": "tiny"}},
    "tickets": {"kind": "bm25", "corpus": "tickets"},
    "both": {"kind": "rrf", "params": {"arms": ["docs", "tickets"]}},
    "none": {"kind": "none"},
}


class Sources(FakeArms):
    """Arms that find two passages of each corpus that they search."""

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        self.calls.append((arm, query, k))
        names = {"near": ["docs"], "both": ["docs", "tickets"], "none": []}.get(arm, [arm])
        return Retrieval(tuple(Passage(f"{name}/a {n}", name, "42") for name in names for n in range(2))[:k])

    async def passages(self, ids: Any) -> list[Passage]:
        return [Passage(one, "title", "text") for one in ids if one.partition("/")[0] in CORPORA]


@pytest.fixture
async def several(tmp_path: Path) -> AsyncIterator[Service]:
    changes: dict[str, Any] = {"corpora": CORPORA, "arms": ARMS, "answering": {"cite": True}}
    writer = base.ScriptedGenerator({}, default="It is 42 [1].")
    async with Service(tmp_path, writer, searched=Sources(), **changes).running() as running:
        yield running


async def test_each_corpus_is_a_store(several: Service) -> None:
    page = (await several.client.get("/v1/vector_stores")).json()
    assert [store["id"] for store in page["data"]] == ["docs", "tickets", "wiki"]
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("docs", "wiki", False)
    assert (await several.client.get("/v1/vector_stores/tickets")).json() == page["data"][1]
    refusal = await several.client.get("/v1/vector_stores/stdlib")
    refused(refusal, 404, "vector_store_not_found", "store")
    assert "there are: docs, tickets, wiki" in refusal.json()["error"]["message"]


@pytest.mark.parametrize(("store", "arms"), [("docs", {"docs", "near"}), ("tickets", {"tickets"})])
async def test_a_search_of_a_store_draws_among_the_arms_that_search_it_alone(
    several: Service, store: str, arms: set[str]
) -> None:
    for n in range(12):
        body = {"query": f"what of {n}?", "max_num_results": 4}
        found = (await several.client.post(f"/v1/vector_stores/{store}/search", json=body)).json()
        assert {hit["file_id"] for hit in found["data"]} == {f"{store}/a 0", f"{store}/a 1"}
        assert found["data"][0]["attributes"]["url"] == f"urn:armwise:{store}:a%200"
        assert found["agent"]["pmf"].keys() == arms
    assert set(several.arms.asked) == arms


async def test_allowed_arms_are_those_of_the_store_too(several: Service) -> None:
    body = {"query": "what?", "agent": {"allowed_arms": ["near", "tickets"]}}
    found = await several.client.post("/v1/vector_stores/docs/search", json=body)
    assert found.json()["agent"]["pmf"] == {"near": 1.0}


async def test_the_same_request_to_another_store_is_another_request(several: Service) -> None:
    body, key = {"query": "what?"}, {"idempotency-key": "once"}
    first, again = [
        await several.client.post("/v1/vector_stores/docs/search", json=body, headers=key) for _ in range(2)
    ]
    assert first.json()["agent"]["decision_id"] == again.json()["agent"]["decision_id"]
    other = await several.client.post("/v1/vector_stores/tickets/search", json=body, headers=key)
    assert other.status_code == 409


@pytest.mark.parametrize(
    ("store", "agent", "said"),
    [
        ("wiki", {}, "no arm searches corpus 'wiki' alone"),
        (
            "docs",
            {"allowed_arms": ["tickets", "both"]},
            "none of the allowed arms searches corpus 'docs' alone",
        ),
    ],
)
async def test_a_store_that_no_arm_searches_alone_is_refused_before_the_draw(
    several: Service, store: str, agent: dict[str, Any], said: str
) -> None:
    before = await rows(several)
    body = {"query": "what?", "agent": agent}
    refusal = await several.client.post(f"/v1/vector_stores/{store}/search", json=body)
    refused(refusal, 400, "no_eligible_arm", "store")
    assert said in refusal.json()["error"]["message"]
    assert await rows(several) == before


async def test_a_tool_searches_one_corpus_or_where_the_policy_finds_it_best(several: Service) -> None:
    async with connected(several) as client:
        for _ in range(6):
            found = await call(client, "search", query="what?", corpus="tickets")
            assert [one["id"] for one in found["results"]] == ["tickets/a 0", "tickets/a 1"]
        await call(client, "search", query="what?")
        document = await call(client, "fetch", id="docs/a 1")
        assert (document["url"], document["metadata"]["corpus"]) == ("urn:armwise:docs:a%201", "docs")
        assert "there is no store 'web'" in failure(
            await client.call_tool("search", {"query": "what?", "corpus": "web"})
        )
    assert set(several.arms.asked[:6]) == {"tickets"}


async def test_a_citation_names_the_corpus(several: Service) -> None:
    body = {**CHAT, "model": "arm/tickets"}
    answer = (await several.client.post("/v1/chat/completions", json=body)).json()
    (citation,) = answer["choices"][0]["message"]["annotations"]
    assert citation["url_citation"]["url"] == "urn:armwise:tickets:a%200"


async def test_arms_are_shown_and_put_with_their_corpus(several: Service) -> None:
    listed = (await several.client.get("/v1/arms")).json()["arms"]
    assert {one["name"]: one["corpus"] for one in listed} == {
        name: spec.get("corpus") for name, spec in ARMS.items()
    }
    arms = {one["name"]: {part: one[part] for part in ("kind", "corpus", "params")} for one in listed}
    arms["wiki"] = {"kind": "bm25", "corpus": "wiki"}
    put = await several.client.put("/v1/arms", json={"arms": arms})
    assert put.status_code == 200, put.text
    body = {"query": "what?", "max_num_results": 4}
    found = (await several.client.post("/v1/vector_stores/wiki/search", json=body)).json()
    assert found["agent"]["pmf"] == {"wiki": 1.0}
    page = (await several.client.get("/console/arms")).text
    assert "in tickets" in page


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ({"kind": "bm25", "corpus": "web"}, "arm 'new': unknown corpus 'web'"),
        ({"kind": "bm25"}, "arm 'new': corpus is missing: which one does it search?"),
        ({"kind": "none", "corpus": "docs"}, "kind 'none' searches no corpus: corpus has no place there"),
    ],
)
async def test_an_arm_that_is_put_names_a_corpus_of_the_configuration(
    several: Service, arm: dict[str, Any], said: str
) -> None:
    refusal = await several.client.put("/v1/arms", json={"arms": {**ARMS, "new": arm}})
    refused(refusal, 400, "invalid_value", "arms")
    assert said in refusal.json()["error"]["message"]
    assert (await several.client.get("/v1/arms")).json()["arm_set"] == 1
