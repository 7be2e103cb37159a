"""Embeddings, vector stores and citations, as the official client reads them."""

import base64
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from armwise.arms.base import ArmError, Passage, Query, Retrieval
from armwise.arms.llm import base
from armwise.arms.models.embedding import HashingEmbedder
from tests.agent.asking import ask, events, refused, rows
from tests.agent.fakes import DIM, Service


@pytest.fixture
def client(service: Service) -> AsyncOpenAI:
    return client_of(service)


def client_of(service: Service) -> AsyncOpenAI:
    url = "http://service/v1"
    return AsyncOpenAI(api_key="none", http_client=service.client, base_url=url, max_retries=0)


TEXTS = ["which river?", "a tower"]


@pytest.mark.parametrize("encoding", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
async def test_texts_are_embedded_as_the_encoder_embeds_questions(
    client: AsyncOpenAI, encoding: dict[str, Any]
) -> None:
    found = await client.embeddings.create(model="backbone/tiny", input=TEXTS, **encoding)
    assert [one.index for one in found.data] == [0, 1]
    assert found.usage.prompt_tokens == 3 + 2  # of 12 letters, and of two words
    for one, vector in zip(found.data, HashingEmbedder(DIM).encode_queries(TEXTS), strict=True):
        raw: Any = one.embedding
        if isinstance(raw, str):
            raw = np.frombuffer(base64.b64decode(raw), "<f4").tolist()
        assert raw == pytest.approx(vector.tolist())
        assert math.isclose(sum(x * x for x in raw), 1.0, rel_tol=1e-5)


async def test_a_backbone_is_a_model_by_its_name_alone(client: AsyncOpenAI) -> None:
    short = await client.embeddings.create(model="tiny", input=TEXTS)
    whole = await client.embeddings.create(model="backbone/tiny", input=TEXTS)
    assert short.data == whole.data
    assert (short.model, whole.model) == ("tiny", "backbone/tiny")


async def test_nothing_is_decided_for_an_embedding(service: Service, client: AsyncOpenAI) -> None:
    before = await rows(service)
    await client.embeddings.create(model="backbone/tiny", input="which river?", dimensions=DIM)
    assert await rows(service) == before
    assert service.replica.service.under_way == {}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": [1, 2, 3]}, "unsupported_parameter", "input"),
        ({"input": [[1], [2]]}, "unsupported_parameter", "input"),
        ({"input": ""}, "invalid_value", "input"),
        ({"input": ["x", " "]}, "invalid_value", "input.1"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": "x" * 1001}, "invalid_value", "input"),
        ({"input": ["a\0b"]}, "invalid_value", "input.0"),
        ({"input": "x", "dimensions": 3}, "unsupported_parameter", "dimensions"),
    ],
)
async def test_an_input_that_cannot_be_embedded_is_refused(
    client: AsyncOpenAI, fields: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(BadRequestError) as refusal:
        await client.embeddings.create(model="backbone/tiny", **fields)
    assert (refusal.value.code, refusal.value.param) == (code, param)


@pytest.mark.parametrize("model", ["auto", "arm/dense", "arm/tiny", "huge", "backbone/huge", "backbone/"])
async def test_only_a_backbone_is_a_model_of_embeddings(client: AsyncOpenAI, model: str) -> None:
    with pytest.raises(NotFoundError) as refusal:
        await client.embeddings.create(model=model, input="x")
    assert refusal.value.code == "model_not_found"


async def test_embeddings_count_against_the_tokens_of_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN", "admin")
    async with Service(tmp_path, keys=[{"env": "ADMIN", "scopes": ["admin"]}]).running() as service:
        made = await service.client.post(
            "/v1/keys", json={"name": "k", "tpm_limit": 6}, headers={"authorization": "Bearer admin"}
        )
        key = {"authorization": f"Bearer {made.json()['key']}"}
        await service.refresh()
        body = {"model": "backbone/tiny", "input": "one two three four"}
        statuses = [
            (await service.client.post("/v1/embeddings", json=body, headers=key)).status_code
            for _ in range(4)
        ]
        assert statuses[0] == 200
        assert statuses[-1] == 429
        last = await service.client.post("/v1/embeddings", json=body, headers=key)
        refused(last, 429, "rate_limit_exceeded")
        assert last.json()["error"]["type"] == "tokens"
        assert float(last.headers["retry-after-ms"]) == 1000 * float(last.headers["retry-after"])


async def test_embeddings_that_fail_hold_no_place_and_no_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN", "admin")
    async with Service(tmp_path, keys=[{"env": "ADMIN", "scopes": ["admin"]}]).running() as service:
        admin, limits = {"authorization": "Bearer admin"}, {"name": "k", "tpm_limit": 1_000_000}
        made = await service.client.post("/v1/keys", json=limits, headers=admin)
        key = {"authorization": f"Bearer {made.json()['key']}"}
        service.embedders.error = ArmError("it is away")
        body = {"model": "backbone/tiny", "input": ["a b", "c d e"]}
        for _ in range(6):  # of four places
            answer = await service.client.post("/v1/embeddings", json=body, headers=key)
            assert "it is away" in refused(answer, 503, "not_ready")
        service.embedders.error = None
        answer = await service.client.post("/v1/embeddings", json=body, headers=key)
        assert answer.json()["usage"]["total_tokens"] == 5
        assert answer.headers["x-ratelimit-remaining-tokens"] == "999995"
        assert service.replica.service.under_way == {}


async def test_a_result_has_sixteen_attributes_at_most_and_those_of_the_decision_first(
    service: Service,
) -> None:
    long = "t" * 600
    about = {"decision_id": "of another", "tags": ["a"], **{f"m{i:02}": i for i in range(20)}}

    async def described(_query: Query, _k: int) -> Retrieval:
        return Retrieval((Passage("d-1", long, "x", metadata=about),))

    service.arms.behaviour = {"bm25": described}
    body = {"query": "x", "model": "arm/bm25"}
    answer = (await service.client.post("/v1/vector_stores/stdlib/search", json=body)).json()
    attributes = answer["data"][0]["attributes"]
    assert [*attributes] == ["decision_id", "arm", "title", "url", *(f"m{i:02}" for i in range(12))]
    assert attributes["decision_id"] == answer["agent"]["decision_id"]
    assert attributes["title"] == long[:512], "the most that an attribute may have"


async def test_the_corpus_is_a_vector_store_and_a_search_of_it_a_decision(
    service: Service, client: AsyncOpenAI
) -> None:
    stores = [store async for store in client.vector_stores.list()]
    assert [store.id for store in stores] == ["stdlib"]
    assert await client.vector_stores.retrieve("stdlib") == stores[0]
    found = await client.vector_stores.search(
        "stdlib", query=["which river", "is longest?"], max_num_results=3, extra_body={"model": "arm/bm25"}
    )
    assert [one.file_id for one in found.data] == ["bm25-1", "bm25-2", "bm25-3"]
    assert (found.data[0].filename, found.data[0].score) == ("title 1", 1.0)
    assert found.data[0].content[0].text == "text 1"
    attributes = found.data[0].attributes
    assert attributes is not None
    logged = (await service.client.get(f"/v1/decisions/{attributes['decision_id']}")).json()
    assert (logged["question"], logged["arm_served"]) == ("which river\nis longest?", "bm25")
    assert attributes["url"] == "urn:armwise:stdlib:bm25-1"


async def test_a_search_keeps_what_is_above_the_threshold(service: Service) -> None:
    body = {"query": "x", "model": "arm/bm25", "ranking_options": {"score_threshold": 0.5, "ranker": "auto"}}
    response = await service.client.post("/v1/vector_stores/stdlib/search", json=body)
    assert [one["file_id"] for one in response.json()["data"]] == ["bm25-1", "bm25-2"]
    assert response.headers["x-decision-id"] == response.json()["agent"]["decision_id"]


@pytest.mark.parametrize(
    ("store", "fields", "status", "code", "param"),
    [
        ("stdlib", {"filters": {"type": "eq"}}, 400, "invalid_request", "filters.eq.key"),
        ("stdlib", {"rewrite_query": True}, 400, "unsupported_parameter", "rewrite_query"),
        ("stdlib", {"max_num_results": 51}, 400, "invalid_value", "max_num_results"),
        ("stdlib", {"query": []}, 400, "invalid_value", "query"),
        ("other", {}, 404, "vector_store_not_found", "store"),
    ],
)
async def test_a_search_that_cannot_be_served_leaves_no_row(
    service: Service, store: str, fields: dict[str, Any], status: int, code: str, param: str
) -> None:
    before = await rows(service)
    response = await service.client.post(f"/v1/vector_stores/{store}/search", json={"query": "x", **fields})
    refused(response, status, code, param)
    assert await rows(service) == before


CITING = "The Danube [2], \u00fcber 2800 km long [1][7]."


async def three(_query: Query, _k: int) -> Retrieval:
    """Find three passages, of which a budget of fourteen words shows two."""
    found = (
        Passage("https://example.com/long?a=1", "Length", "It is 2850 km long."),
        Passage("d 2", "Danube", "It runs through Vienna.", metadata={"page": 3}),
        Passage("d-3", "Inn", "It does not."),
    )
    return Retrieval(found)


@pytest.fixture
async def citing(tmp_path: Path) -> AsyncIterator[Service]:
    generator = base.ScriptedGenerator({}, default=CITING)
    answering = {"word_budget": 14, "cite": True}
    async with Service(tmp_path, generator, answering=answering).running() as service:
        service.arms.behaviour = {"bm25": three}
        yield service


async def test_a_citation_points_at_the_number_in_the_answer_and_at_the_passage_that_was_shown(
    citing: Service,
) -> None:
    found = await client_of(citing).chat.completions.create(
        model="arm/bm25", messages=[{"role": "user", "content": "which river?"}]
    )
    message = found.choices[0].message
    assert message.annotations is not None
    assert message.content is not None
    cited = [one.url_citation for one in message.annotations]
    assert [message.content[one.start_index : one.end_index] for one in cited] == ["[2]", "[1]"]
    assert [(one.title, one.url) for one in cited] == [
        ("Danube, p. 3", "urn:armwise:stdlib:d%202"),
        ("Length", "https://example.com/long?a=1"),
    ]
    assert isinstance(citing.generator, base.ScriptedGenerator)
    assert citing.generator.last_prompt is not None
    shown = citing.generator.last_prompt.messages[0]["content"]
    assert ("[1] Length" in shown, "[2] Danube, p. 3\n" in shown, "[3]" in shown) == (True, True, False)
    assert shown.endswith("such as [1].")


async def test_a_stream_ends_with_the_citations_of_its_text(citing: Service) -> None:
    whole = (await ask(citing, model="arm/bm25")).json()["choices"][0]["message"]["annotations"]
    *_, last = events(await ask(citing, model="arm/bm25", stream=True))
    assert last["choices"][0]["delta"] == {"annotations": whole}
    assert last["choices"][0]["finish_reason"] == "stop"


async def test_an_answer_without_passages_cites_nothing_and_is_not_told_to(citing: Service) -> None:
    citing.arms.behaviour = {"none": lambda *_: nothing()}
    message = (await ask(citing, model="arm/none")).json()["choices"][0]["message"]
    assert "annotations" not in message
    assert isinstance(citing.generator, base.ScriptedGenerator)
    assert citing.generator.last_prompt is not None
    assert "[1]" not in citing.generator.last_prompt.messages[0]["content"]


async def nothing() -> Retrieval:
    return Retrieval(steps=0)
