"""A service of several corpora, as its clients see it: tools search one of them, and ids name the corpus."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from armwise.arms.base import Passage, Query, Retrieval
from armwise.arms.llm import base
from tests.agent.asking import CHAT, rows
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


async def test_a_tool_searches_one_corpus_or_where_the_policy_finds_it_best(several: Service) -> None:
    async with connected(several) as client:
        for _ in range(6):
            found = await call(client, "search", query="what?", corpus="tickets")
            assert [one["id"] for one in found["results"]] == ["tickets/a 0", "tickets/a 1"]
        await call(client, "search", query="what?")
        document = await call(client, "fetch", id="docs/a 1")
        assert (document["url"], document["metadata"]["corpus"]) == ("urn:armwise:docs:a%201", "docs")
    assert set(several.arms.asked[:6]) == {"tickets"}


async def test_a_tool_draws_among_the_arms_that_search_the_corpus_alone(several: Service) -> None:
    async with connected(several) as client:
        found = await call(client, "search", query="what?", corpus="docs")
    record = (await several.client.get(f"/v1/decisions/{found['decision_id']}")).json()
    assert record["pmf"].keys() == {"docs", "near"}


@pytest.mark.parametrize(
    ("corpus", "said"),
    [
        ("web", "invalid_value: there is no corpus 'web'; available: docs, tickets, wiki"),
        ("wiki", "no_eligible_arm: no arm searches only corpus 'wiki'"),
    ],
)
async def test_a_corpus_that_cannot_be_searched_is_refused(several: Service, corpus: str, said: str) -> None:
    before = await rows(several)
    async with connected(several) as client:
        assert said in failure(await client.call_tool("search", {"query": "what?", "corpus": corpus}))
    assert await rows(several) == before


async def test_a_citation_names_the_corpus(several: Service) -> None:
    body = {**CHAT, "model": "arm/tickets"}
    answer = (await several.client.post("/v1/chat/completions", json=body)).json()
    (citation,) = answer["choices"][0]["message"]["annotations"]
    assert citation["url_citation"]["url"] == "urn:armwise:tickets:a%200"


async def test_arms_are_shown_with_their_corpus(several: Service) -> None:
    listed = (await several.client.get("/v1/arms")).json()["arms"]
    assert {one["name"]: one["corpus"] for one in listed} == {
        name: spec.get("corpus") for name, spec in ARMS.items()
    }
    page = (await several.client.get("/console/arms")).text
    assert "in tickets" in page
