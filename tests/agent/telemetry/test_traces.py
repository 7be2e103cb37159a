"""Traces: one for a turn, from its caller's span to the commit, and nothing in it that was not asked for."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from starlette.responses import Response

from armwise.agent.hosts import arms as hosted
from armwise.agent.telemetry import ServerSpans, turns
from armwise.arms import tracing
from armwise.arms.base import Query
from armwise.arms.deployments import EmbedderHost, Embedders, GeneratorHost, HostedArms, retrieval_cache
from armwise.arms.deployments import spans as searches
from armwise.arms.deployments.retrieval_cache import RetrievalCache
from armwise.arms.llm import Chunk, Generator, Prompt
from armwise.arms.llm.catalog import ScriptedSpec
from armwise.arms.models import Backbone
from armwise.arms.retrievers import ArmSpec
from armwise.feedback.events import Cost, Execution, Feedback, Status
from tests.agent.fakes import Service, failing
from tests.agent.telemetry.conftest import Spans
from tests.arms.deployments.places import BACKBONES, open_host
from tests.neighbours import write_corpus

Traced = Callable[..., Spans]

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
QUESTION = "Where is the sea of tranquillity?"
ANSWER = "On the moon."


class Local(Generator):
    """The host of a language model, called in this process as its handle calls it."""

    model = "scripted"

    def __init__(self) -> None:
        self._host = GeneratorHost(ScriptedSpec(engine="scripted", default=ANSWER))

    async def stream(self, prompt: Any) -> AsyncIterator[Any]:
        async for chunk in self._host.stream(prompt, tracing.carry()):
            yield chunk


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Service]:
    """A service with arms, encoders and a model of its own, instead of stand-ins."""
    corpus = {"name": "small", "source": str(write_corpus(folder / "corpus.jsonl"))}
    own = {"backbones": {"tiny": {"model": "hashing:64"}}, "corpus": corpus, "home": str(folder / "home")}
    async with Service(folder, Local(), **own).running() as service:
        config = service.replica.config
        encoders = Embedders(config.backbones)
        turns = service.replica.turns
        turns.searcher.run = hosted.open_here(config, {}, encoders, service.generator).search
        turns.searcher.embed = encoders.embed
        yield service


async def asked(service: Service, model: str = "arm/dense", **body: Any) -> dict[str, Any]:
    message = {"role": "user", "content": QUESTION}
    body = {"model": model, "messages": [message], "max_tokens": 8} | body
    response = await service.client.post("/v1/chat/completions", json=body, headers={"traceparent": CALLER})
    assert response.status_code == 200, response.text
    if body.get("stream"):
        return {}
    found: dict[str, Any] = response.json()["agent"]
    return found


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_is_one_trace_from_its_callers_span_to_the_commit(
    tmp_path: Path, traced: Traced, stream: bool
) -> None:
    async with running(tmp_path) as service:
        spans = traced()
        await asked(service, stream=stream, agent={"episode_id": "talk"})
    route = "POST /v1/chat/completions"
    names = [
        "INSERT decisions",
        "INSERT executions",
        "armwise.decide",
        "chat scripted",
        "embeddings hashing:64",
    ]
    assert spans.names == sorted([*names, "retrieval small", route])
    request = spans.one(route)
    assert request.kind is SpanKind.SERVER
    assert request.parent is not None
    assert f"00-{request.parent.trace_id:032x}-{request.parent.span_id:016x}-01" == CALLER
    assert {span.context.trace_id for span in spans.all} == {request.parent.trace_id}
    assert {spans.parent(name) for name in (*names, "retrieval small")} == {route}
    assert spans.attributes(route)["http.response.status_code"] == 200
    assert spans.attributes(route)["http.route"] == "/v1/chat/completions"
    assert {spans.one(name).kind for name in names if name.startswith("INSERT")} == {SpanKind.CLIENT}
    assert all(span.status.status_code is not StatusCode.ERROR for span in spans.all)


async def test_spans_say_what_was_decided_in_the_usual_names(tmp_path: Path, traced: Traced) -> None:
    async with running(tmp_path) as service:
        spans = traced()
        found = await asked(service, agent={"episode_id": "talk"})
    assert spans.attributes("armwise.decide") == {
        "armwise.decision.id": found["decision_id"],
        "armwise.decision.arm": "dense",
        "armwise.decision.propensity": 1.0,
        "armwise.decision.policy.version": found["policy_version"],
        "armwise.decision.mode": "forced",
        "armwise.decision.eligible": ("dense",),
    }
    assert spans.attributes("retrieval") == {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.data_source.id": "small",
        "gen_ai.request.model": "arm/dense",
        "gen_ai.request.top_k": 4,
    }
    assert spans.attributes("embeddings") == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.request.model": "hashing:64",
    }
    chat = spans.attributes("chat")
    assert (
        chat.items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "scripted",
            "gen_ai.request.model": "scripted",
            "gen_ai.request.max_tokens": 8,
            "gen_ai.response.id": found["decision_id"],
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.usage.output_tokens": 3,
            "gen_ai.conversation.id": "talk",
        }.items()
    )
    assert chat["gen_ai.usage.input_tokens"] > 3
    assert spans.one("chat").kind is SpanKind.CLIENT


def text_of(spans: Spans) -> str:
    return json.dumps([json.loads(span.to_json()) for span in spans.all], ensure_ascii=False)


async def test_no_text_is_in_a_trace_unless_it_is_asked_for(tmp_path: Path, traced: Traced) -> None:
    async with running(tmp_path) as service:
        spans = traced(openinference=True)
        found = await asked(service)
        await service.client.post(
            "/v1/feedback",
            json={
                "decision_id": found["decision_id"],
                "metric_name": "thumb",
                "value": 1,
                "comment": "Not so.",
            },
        )
    for text in (QUESTION, ANSWER, "stands beside", "Not so."):
        assert text not in text_of(spans)


@pytest.mark.parametrize("place", ["on_spans", "on_events"])
async def test_texts_are_where_they_were_asked_for(tmp_path: Path, traced: Traced, place: str) -> None:
    async with running(tmp_path) as service:
        spans = traced(**{place: True})
        await asked(service)
    chat, search, embedded = (spans.one(name) for name in ("chat", "retrieval", "embeddings"))
    texts = [
        (embedded, "gen_ai.input.messages", QUESTION),
        (chat, "gen_ai.output.messages", ANSWER),
        (chat, "gen_ai.input.messages", QUESTION),
        (search, "gen_ai.retrieval.query.text", QUESTION),
        (search, "gen_ai.retrieval.documents", "sea"),
    ]
    for span, name, text in texts:
        in_events = [dict(event.attributes or {}).get(name) for event in span.events]
        if place == "on_spans":
            assert text in str((span.attributes or {})[name])
            assert not in_events
        else:
            assert name not in (span.attributes or {})
            assert any(text in str(one) for one in in_events)


async def test_openinference_has_its_own_names(tmp_path: Path, traced: Traced) -> None:
    async with running(tmp_path) as service:
        spans = traced(openinference=True, on_spans=True)
        found = await asked(service, agent={"episode_id": "talk"})
        item = {"decision_id": found["decision_id"], "metric_name": "thumb", "value": 1}
        await service.client.post("/v1/feedback", json=item)
    kinds = {
        span.name.split()[0]: (span.attributes or {}).get("openinference.span.kind") for span in spans.all
    }
    assert spans.attributes("armwise.decide")["session.id"] == "talk"
    assert kinds == {
        "POST": "CHAIN",
        "armwise.decide": "CHAIN",
        "armwise.feedback": "EVALUATOR",
        "retrieval": "RETRIEVER",
        "embeddings": "EMBEDDING",
        "chat": "LLM",
        "INSERT": None,
    }
    chat, search = spans.attributes("chat"), spans.attributes("retrieval")
    assert (chat["llm.model_name"], chat["session.id"]) == ("scripted", "talk")
    assert (
        chat["llm.token_count.total"] == chat["llm.token_count.prompt"] + chat["llm.token_count.completion"]
    )
    assert ANSWER in chat["output.value"]
    assert search["input.value"] == QUESTION
    assert search["retrieval.documents.0.document.content"]
    assert search["retrieval.documents.1.document.id"] != search["retrieval.documents.0.document.id"]


def test_answers_that_are_written_at_once_are_in_their_order_in_a_span(traced: Traced) -> None:
    spans = traced(on_spans=True)
    chat = searches.Chat.begin("scripted", "m", Prompt(({"role": "user", "content": QUESTION},)))
    assert chat is not None
    with tracing.end_span(chat.span):
        for chunk in (Chunk("Se", index=1), Chunk("First.", index=0), Chunk("cond.", index=1)):
            chat.note(chunk)
        chat.note(Chunk(finish_reason="stop", finish_reasons=("stop",)))
    answers = json.loads(spans.attributes("chat")["gen_ai.output.messages"])
    assert [one["parts"][0]["content"] for one in answers] == ["First.", "Second."]


async def test_a_search_that_was_made_before_is_traced_as_cached(
    tmp_path: Path, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval_cache, "LOOKUP_S", 30.0)
    (tmp_path / "kept").mkdir(mode=0o700)
    cache, specs = RetrievalCache(tmp_path / "kept", 1 << 20), {"bm25": ArmSpec(kind="bm25", cache=True)}
    arms = HostedArms(open_host(tmp_path), {}, Embedders(BACKBONES), specs, cache)
    spans = traced()
    await arms.search("bm25", Query(QUESTION), 2)
    await cache.flush()
    await arms.recall("bm25", Query(QUESTION), 2)
    cache.close()
    assert [(span.attributes or {}).get("armwise.cached") for span in spans.all] == [None, True]


@pytest.mark.parametrize("place", [None, "on_spans", "on_events"])
async def test_feedback_is_an_evaluation_linked_to_the_span_that_decided(
    service: Service, traced: Traced, place: str | None
) -> None:
    spans = traced(**({place: True} if place else {}))
    found = await asked(service, "auto")
    body = {"decision_id": found["decision_id"], "metric_name": "thumb", "value": -0.5, "comment": "Not so."}
    assert (await service.client.post("/v1/feedback", json=body)).status_code == 202
    decide, feedback = spans.one("armwise.decide"), spans.one("armwise.feedback")
    (link,) = feedback.links
    assert (link.context.trace_id, link.context.span_id) == (decide.context.trace_id, decide.context.span_id)
    (event,) = feedback.events
    assert event.name == "gen_ai.evaluation.result"
    assert dict(event.attributes or {}) == {
        "gen_ai.evaluation.name": "thumb",
        "gen_ai.evaluation.score.value": -0.5,
        "gen_ai.response.id": found["decision_id"],
        **({"gen_ai.evaluation.explanation": "Not so."} if place else {}),
    }
    assert spans.parent("armwise.feedback") == "POST /v1/feedback"
    assert spans.parent("INSERT feedback") == "POST /v1/feedback"


async def test_an_evaluation_without_a_metric_is_named_by_its_kind(service: Service, traced: Traced) -> None:
    spans = traced()
    found = await asked(service, "auto", agent={"defer_activation": True})
    await service.client.post(f"/v1/decisions/{found['decision_id']}/activate")
    (event,) = spans.one("armwise.feedback").events
    assert (event.attributes or {})["gen_ai.evaluation.name"] == "activation"


async def test_an_evaluation_of_an_untraced_decision_has_no_link(service: Service, traced: Traced) -> None:
    found = await asked(service, "auto")
    spans = traced()
    body = {"decision_id": found["decision_id"], "metric_name": "thumb", "value": 1}
    await service.client.post("/v1/feedback", json={"items": [body, {**body, "feedback_id": "again"}]})
    feedback = [span for span in spans.all if span.name == "armwise.feedback"]
    assert [len(span.links) for span in feedback] == [0, 0]


@pytest.mark.parametrize(
    ("error", "outcome"), [(None, StatusCode.UNSET), (OSError("disk full"), StatusCode.ERROR)]
)
async def test_a_commit_that_fails_fails_its_span_and_one_that_is_cancelled_does_not(
    traced: Traced, error: Exception | None, outcome: StatusCode
) -> None:
    spans = traced()
    commit = asyncio.get_running_loop().create_future()
    turns.trace_commit((Feedback("f-1", "d-1", "thumb", 1.0, 0.0),), commit)
    if error is None:
        commit.cancel()
    else:
        commit.set_exception(error)
    await asyncio.wait([commit])
    span = spans.one("INSERT feedback")
    assert span.status.status_code is outcome
    assert spans.attributes("INSERT").get("error.type") == ("OSError" if error else None)
    assert "disk full" not in text_of(spans)


async def test_a_commit_of_several_facts_names_each_of_its_tables_once(traced: Traced) -> None:
    spans = traced()
    commit = asyncio.get_running_loop().create_future()
    given = Feedback("f-1", "d-1", "thumb", 1.0, 0.0)
    turns.trace_commit((given, Execution("d-1", "a", Status.OK, Cost()), given), commit)
    commit.set_result(None)
    await asyncio.wait([commit])
    assert spans.names == ["INSERT feedback, executions"]
    assert spans.attributes("INSERT") == {
        "db.operation.name": "INSERT",
        "db.operation.batch.size": 3,
        "db.query.summary": "feedback, executions",
    }


async def test_what_vendors_say_of_the_trace_of_a_caller_goes_on_with_it(traced: Traced) -> None:
    spans = traced()
    transport = httpx.ASGITransport(ServerSpans(Response()))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        await client.get("/v1/arms", headers={"traceparent": CALLER, "tracestate": "vendor=x"})
    assert spans.one("GET").context.trace_state.get("vendor") == "x"


async def test_a_failed_arm_fails_its_request_without_its_message(service: Service, traced: Traced) -> None:
    service.arms.behaviour = dict.fromkeys(("none", "bm25", "dense"), failing)
    spans = traced()
    response = await service.client.post("/v1/retrieve", json={"query": QUESTION})
    assert response.status_code == 502
    request = spans.one("POST /v1/retrieve")
    assert request.status.status_code is StatusCode.ERROR
    assert (request.attributes or {})["error.type"] == "502"
    assert "the index is gone" not in text_of(spans)


@pytest.mark.parametrize(
    ("status", "outcome"), [(404, StatusCode.UNSET), (499, StatusCode.UNSET), (500, StatusCode.ERROR)]
)
async def test_a_status_from_500_on_fails_its_request(
    traced: Traced, status: int, outcome: StatusCode
) -> None:
    spans = traced()
    transport = httpx.ASGITransport(ServerSpans(Response(status_code=status)))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        await client.get("/v1/arms")
    request = spans.one("GET")
    assert request.status.status_code is outcome
    assert spans.attributes("GET") == {
        "http.request.method": "GET",
        "url.path": "/v1/arms",
        "http.response.status_code": status,
        **({"error.type": str(status)} if status >= 500 else {}),
    }


@pytest.mark.parametrize(("sampler", "header"), [(None, CALLER[:-2] + "00"), (ALWAYS_OFF, CALLER)])
async def test_a_trace_that_is_not_sampled_has_no_span_and_leaves_no_id(
    service: Service, traced: Traced, sampler: Any, header: str
) -> None:
    spans = traced(sampler)
    response = await service.client.post(
        "/v1/retrieve", json={"query": QUESTION}, headers={"traceparent": header}
    )
    record = await asyncio.to_thread(service.replica.store.record, response.json()["agent"]["decision_id"])
    assert spans.names == []
    assert record is not None
    assert record.decision.trace == ""


async def test_probes_and_metrics_are_not_traced(service: Service, traced: Traced) -> None:
    spans = traced()
    for path in ("/health", "/health/decides", "/ready", "/metrics"):
        assert (await service.client.get(path)).status_code == 200
    assert spans.names == []


async def test_another_process_continues_the_trace_of_what_is_carried(traced: Traced) -> None:
    spans = traced()
    host = EmbedderHost(Backbone(model="hashing:16"))
    with tracing.span("caller", {}):
        tracing.TURN.set(tracing.TracedTurn("d-1", "talk", QUESTION))
        carried = tracing.carry()
    assert QUESTION not in carried
    await asyncio.create_task(host.embed("x", carried))  # a task of its own, as each call of a handle has
    assert spans.parent("embeddings") == "caller"


def test_a_process_that_does_not_trace_carries_the_decision_alone() -> None:
    assert tracing.carry() == ""
    with tracing.span("no", {}) as span:
        assert span is None


@pytest.mark.parametrize(
    "header", ["", "no header", "00-0-0-01", "ff-" + CALLER[3:], "00-" + "0" * 32 + CALLER[35:]]
)
async def test_a_wrong_traceparent_begins_a_new_trace(service: Service, traced: Traced, header: str) -> None:
    spans = traced()
    await service.client.get("/v1/arms", headers={"traceparent": header})
    assert spans.one("GET /v1/arms").parent is None
