"""Requests and answers that are passed on, where a client or a provider means harm."""

import asyncio
import copy
import json
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect
from starlette.types import Message as AsgiMessage

from armwise.agent.api import bodies, doors, question
from armwise.agent.api import responses as replies
from armwise.agent.api.protocols import read
from armwise.agent.turn import Ask, CostBound, TurnLoop, answer
from armwise.arms.llm import write_document
from armwise.arms.llm.base import Chunk, Generator, GeneratorError, GeneratorRefusedError, Prompt
from armwise.arms.llm.protocols import PROTOCOLS, Document, ProtocolName, Request, chat
from armwise.arms.llm.protocols.answer import AnswerLimits
from armwise.arms.upstream import UpstreamError
from tests.agent.asking import QUESTION, refused
from tests.agent.fakes import Service

ENGINES = {"chat": "openai", "messages": "anthropic", "responses": "responses"}

DOORS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}

ASKED: Mapping[str, Document] = {
    "chat": {"messages": [{"role": "user", "content": QUESTION}]},
    "messages": {"max_tokens": 100, "messages": [{"role": "user", "content": QUESTION}]},
    "responses": {"input": QUESTION},
}

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}

TEXT = "The Danube [1]."

ANSWERS: Mapping[str, Document] = {
    "chat": {
        "id": "c",
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"},
        ],
        "usage": USAGE,
    },
    "messages": {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 2},
    },
    "responses": {
        "id": "r",
        "object": "response",
        "status": "completed",
        "output": [
            {
                "id": "i",
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": TEXT, "annotations": []}],
            }
        ],
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
    },
}

EVENTS: Mapping[str, Sequence[Document]] = {
    "chat": (
        {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": TEXT}}]},
        {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"id": "c", "choices": [], "usage": USAGE},
    ),
    "messages": (
        {"type": "message_start", "message": {**ANSWERS["messages"], "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ),
    "responses": (
        {"type": "response.created", "response": {"id": "r", "object": "response", "output": []}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": TEXT},
        {"type": "response.completed", "response": ANSWERS["responses"]},
    ),
}


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider need not keep to its protocol."""
    monkeypatch.setattr(Service, "check", None)


class Provider(Generator):
    """An endpoint in this process.

    Attributes:
        prompts: What it was sent.
        events: What it answers.
        error: What it raises in the place of an answer.
    """

    model = "provided"

    def __init__(self, protocol: ProtocolName) -> None:
        self.protocol = protocol
        self.prompts: list[Prompt] = []
        self.events: Sequence[Document] | None = None
        self.error: GeneratorError | None = None

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        self.prompts.append(prompt)
        if self.error is not None:
            raise self.error
        sent = EVENTS[self.protocol] if prompt.streams else [ANSWERS[self.protocol]]
        reader = PROTOCOLS[self.protocol].Reader(AnswerLimits(2, 1000, 10_000), [])
        try:
            for event in sent if self.events is None else self.events:
                for piece in reader.pieces(json.dumps(event).encode()):
                    yield piece
            yield reader.last()
        except UpstreamError as error:
            raise GeneratorError(f"it sent {error}") from error

    async def close(self) -> None:
        """Do nothing."""


def served(folder: Path, *protocols: ProtocolName, **changes: Any) -> tuple[Service, dict[str, Provider]]:
    """Return a service with an arm for each protocol, which finds passages, and its providers."""
    providers: dict[str, Provider] = {name: Provider(name) for name in protocols}
    named = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    llms = {name: {"engine": ENGINES[name], **named} for name in protocols}
    arms = {name: {"kind": "bm25", "answering": {"llm": name}} for name in protocols}
    limits = {"body_bytes": 16 << 20, "question_chars": 1000, "in_flight": 8}
    changes = {"llms": llms, "arms": arms, "limits": limits, **changes}
    return Service(folder, generators=dict(providers), **changes), providers


@pytest.mark.parametrize("protocol", DOORS)
@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_with_citations_is_passed_on(
    tmp_path: Path, protocol: ProtocolName, streams: bool
) -> None:
    service, _ = served(tmp_path, protocol)
    async with service.running():
        reply = await service.client.post(DOORS[protocol], json=ASKED[protocol] | {"stream": streams})
    assert reply.status_code == 200, reply.text
    assert "The Danube [1]." in reply.text
    assert "agent" in reply.text
    assert ("citation" in reply.text) == (protocol != "messages")


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 10**30, 1.5, "", "x", "1", [], [1], [[]], {}, {"a": 1}, [None]]
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every container within a value, with each of its keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    inner = [place for key in keys for place in _places(value[key])]
    return [(value, key) for key in keys] + inner


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_odd_answer_of_a_provider_is_an_internal_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    async def ask() -> None:
        service, providers = served(tmp_path_factory.mktemp("service"), *ENGINES)  # type: ignore[arg-type]
        async with service.running():
            for protocol, provider in providers.items():
                for streams in (False, True):
                    whole = [*EVENTS[protocol]] if streams else [ANSWERS[protocol]]
                    provider.events = copy.deepcopy(whole)
                    for _ in range(3):
                        container, key = data.draw(st.sampled_from(_places(provider.events)))
                        container[key] = copy.deepcopy(data.draw(ODD))
                    provider.events = [event for event in provider.events if isinstance(event, dict)]
                    asked = ASKED[protocol] | {"stream": streams, "model": f"arm/{protocol}"}
                    reply = await service.client.post(DOORS[protocol], json=asked)
                    assert "internal_error" not in reply.text, provider.events
                    assert reply.status_code in (200, 502), reply.text

    asyncio.run(ask())


@pytest.mark.parametrize("index", ["1", 0.5, [0], {}, True])
async def test_a_choice_with_an_odd_number_is_the_first(tmp_path: Path, index: Any) -> None:
    service, providers = served(tmp_path, "chat")
    events = copy.deepcopy([*EVENTS["chat"]])
    for event in events[:2]:
        event["choices"][0]["index"] = index
    providers["chat"].events = events
    async with service.running():
        reply = await service.client.post(DOORS["chat"], json=ASKED["chat"] | {"stream": True})
    assert "url_citation" in reply.text
    assert '"error"' not in reply.text


async def test_only_names_of_betas_reach_a_provider(tmp_path: Path) -> None:
    service, providers = served(tmp_path, "messages")
    async with service.running():
        for sent in ("a\x01b", "a\tb", "ä", "a;b", "a" * 3000):
            headers = {"anthropic-beta": sent.encode("latin-1")}
            reply = await service.client.post(DOORS["messages"], json=ASKED["messages"], headers=headers)  # type: ignore[arg-type]
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "anthropic-beta")
        assert providers["messages"].prompts == []
        two = [("anthropic-beta", "context-1m-2025-08-07"), ("anthropic-beta", "files-api, mcp")]
        await service.client.post(DOORS["messages"], json=ASKED["messages"], headers=two)
    [prompt] = providers["messages"].prompts
    assert prompt.headers == {"anthropic-beta": "context-1m-2025-08-07,files-api, mcp"}


@pytest.mark.parametrize("protocol", DOORS)
async def test_whole_numbers_of_any_size_are_passed_on(tmp_path: Path, protocol: ProtocolName) -> None:
    service, providers = served(tmp_path, protocol)
    schema = {"type": "object", "properties": {"n": {"maximum": 2**70}}}
    tools: dict[str, Document] = {
        "chat": {"type": "function", "function": {"name": "f", "parameters": schema}},
        "messages": {"name": "f", "input_schema": schema},
        "responses": {"type": "function", "name": "f", "parameters": schema},
    }
    async with service.running():
        for streams in (False, True):
            asked = ASKED[protocol] | {"tools": [tools[protocol]], "stream": streams}
            reply = await service.client.post(DOORS[protocol], json=asked)
            assert reply.status_code == 200, reply.text
    prompt = providers[protocol].prompts[0]
    assert prompt.request is not None
    assert prompt.request.body["tools"] == [tools[protocol]]


@pytest.mark.parametrize(("other", "limit"), [({"max_tokens": 10**9}, 400), ({"max_tokens": 500}, 200)])
async def test_no_limit_hides_behind_another_one(tmp_path: Path, other: Document, limit: int) -> None:
    service, providers = served(tmp_path, "chat")
    async with service.running():
        asked = ASKED["chat"] | {"max_completion_tokens": 10} | other
        reply = await service.client.post(DOORS["chat"], json=asked)
        assert reply.status_code == limit, reply.text
    assert [prompt.max_tokens for prompt in providers["chat"].prompts] == [500] * (limit == 200)


async def test_a_resource_that_there_is_not_masks_no_model(tmp_path: Path) -> None:
    service, providers = served(tmp_path, "messages", "chat")
    provider, asked = providers["messages"], ASKED["messages"] | {"model": "arm/messages"}
    health = service.replica.decider.health
    async with service.running():
        assert (await service.client.post(DOORS["messages"], json=asked)).status_code == 200
        provider.error = GeneratorRefusedError("m: HTTP 404")
        provider.error.may_be_asked_for = True
        for _ in range(5):
            reply = await service.client.post(DOORS["messages"], json=asked)
            assert reply.status_code == 502
        assert not health.state("llm/messages").is_open
        provider.error = GeneratorRefusedError("m: HTTP 401")
        for _ in range(5):
            await service.client.post(DOORS["messages"], json=asked)
        assert health.state("llm/messages").is_open


def _seconds(protocol: ProtocolName, body: Document) -> float:
    """Return the processor time in which a request is read and written for models of each protocol."""
    started = time.process_time()
    request = Request(protocol, body)
    form = request.chat
    options = chat.read_options(form)
    read._check_options(form, options)  # noqa: SLF001
    for name in PROTOCOLS:
        request.to(name)
    return time.process_time() - started


@pytest.mark.parametrize("kind", ["function", "x"])
def test_the_time_for_tools_grows_with_their_number(kind: str) -> None:
    """Compared pair by pair, as many would take a minute."""
    tools = [{"type": kind if kind == "function" else f"x{i}", "name": f"f{i}"} for i in range(30_000)]
    found = [{"role": "user", "content": "Why?"}, {"type": "tool_search_output", "tools": tools}]
    assert _seconds("responses", {"input": found}) < 10.0


def test_the_time_for_texts_grows_with_their_number() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    said = {"role": "assistant", "content": ["a"] * 24}
    assert _seconds("responses", {"input": [call, *[said] * 3999]}) < 10.0


@pytest.fixture
def reads_short_integers() -> Iterator[None]:
    """Have Python convert no integer of more than 640 digits, neither way."""
    most = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    yield
    sys.set_int_max_str_digits(most)


@pytest.mark.usefixtures("reads_short_integers")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        *((DOORS[name], ASKED[name]) for name in DOORS),
        ("/v1/messages/count_tokens", ASKED["messages"]),
        ("/v1/retrieve", {"query": QUESTION}),
        ("/v1/feedback", {"decision_id": "d", "metric_name": "thumb", "value": 1}),
    ],
)
async def test_an_integer_that_takes_long_to_read_is_refused_at_every_door(
    tmp_path: Path, path: str, body: Document
) -> None:
    service, _ = served(tmp_path, "chat")
    sent = json.dumps(body)[:-1] + f', "x": [{"9" * 4290}]}}'
    async with service.running():
        reply = await service.client.post(path, content=sent, headers={"content-type": "application/json"})
    assert reply.status_code == 400, reply.text
    assert "4290 digits" in reply.text


@pytest.mark.usefixtures("reads_short_integers")
@pytest.mark.parametrize(
    "arguments",
    [
        ['{"x":' + "9" * 4290 + "}"],
        ['{"x":[' + "[]," * 60_000 + "[]]}"] * 2,
    ],
)
def test_arguments_that_take_long_to_read_stay_text(arguments: list[str]) -> None:
    calls = [
        {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": text}}
        for number, text in enumerate(['{"a":1}', *arguments])
    ]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "1"} for call in calls]
    body = {"messages": [{"role": "user", "content": QUESTION}, said, *results]}
    first, *_, last = Request("chat", body).to("messages")["messages"][1]["content"]
    assert (first["input"], last["input"]) == ({"a": 1}, {"arguments": arguments[-1]})
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": QUESTION}]}
    named = Request("messages", body | {"metadata": {"user_id": arguments[0]}}).chat
    assert named["user"] == arguments[0]


@pytest.mark.parametrize("size", [20, 40_000, 300_000])
async def test_others_are_answered_while_a_large_request_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    service, _ = served(tmp_path, "chat")
    threads = set[str]()

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            threads.add(threading.current_thread().name)
            return call(*given, **named)

        return run

    for place, name in (
        (doors, "read_document"),
        (question, "read_question"),
        (bodies, "count_members"),
        (answer, "write_prompt"),
        (answer, "tokens_in"),
    ):
        monkeypatch.setattr(place, name, noted(getattr(place, name)))
    long = {"messages": [{"role": "user", "content": "x" * size}]}
    async with service.running():
        assert (await service.client.post(DOORS["chat"], json=long)).status_code == 200
    named = {20: threading.current_thread().name, 40_000: "medium-document_0", 300_000: "large-document_0"}
    assert threads == {named[size]}


async def _key(service: Service, **fields: Any) -> dict[str, str]:
    """Return the headers of a new key."""
    made = await service.client.post("/v1/keys", json={"name": "a", "scopes": ["decide", "admin"], **fields})
    assert made.status_code == 201, made.text
    await service.refresh()
    return {"authorization": f"Bearer {made.json()['key']}"}


async def test_failures_of_one_key_shut_no_model_out_for_another(tmp_path: Path) -> None:
    service, providers = served(tmp_path, "chat", "messages")
    async with service.running():
        attacker = await _key(service)
        made = await service.client.post(
            "/v1/keys", json={"name": "b", "scopes": ["decide"]}, headers=attacker
        )
        await service.refresh()
        other = {"authorization": f"Bearer {made.json()['key']}"}
        providers["chat"].error = GeneratorError("it failed")
        for _ in range(6):
            asked = ASKED["chat"] | {"model": "arm/chat"}
            assert (await service.client.post(DOORS["chat"], json=asked, headers=attacker)).status_code == 502
        providers["chat"].error = None
        eligible = [
            (await service.client.post(DOORS["chat"], json=ASKED["chat"], headers=key)).json()["agent"]["pmf"]
            for key in (attacker, other)
        ]
    assert [set(pmf) for pmf in eligible] == [{"messages"}, {"chat", "messages"}]


async def test_what_another_group_may_read_is_no_question(tmp_path: Path) -> None:
    """A request without a text of a person is logged with the last text, which may quote passages."""
    service, _ = served(tmp_path, "chat")
    said = [{"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "the secret plan"}]
    async with service.running():
        for groups, logged in (([], "the secret plan"), (["board"], "[answer]")):
            headers = await _key(service, groups=groups)
            reply = await service.client.post(DOORS["chat"], json={"messages": said}, headers=headers)
            assert reply.status_code == 200, reply.text
            record = service.replica.store.record(reply.headers["x-decision-id"])
            assert record is not None
            assert record.decision.context.question == logged
            service.client.headers.update(headers)


class _Ending:
    """A turn, and whether it has ended."""

    ended = False

    async def aclose(self) -> None:
        """End it."""
        self.ended = True


async def test_a_ping_that_finds_nobody_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "FIRST_PING_S", 0.001)
    turn = _Ending()

    async def silent() -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""

    async def send(message: AsgiMessage) -> None:
        if message["type"] == "http.response.body":
            raise OSError("the client has left")

    stream = replies.EventStream(silent(), turn, {}, b": ping\n\n")
    async with asyncio.timeout(5.0):
        with pytest.raises(ClientDisconnect):
            await stream.stream_response(send)
    assert turn.ended


async def test_nothing_is_written_unseen_for_a_limited_key(tmp_path: Path) -> None:
    service, providers = served(tmp_path, "responses")
    async with service.running():
        asked = ASKED["responses"] | {"background": True}
        assert (await service.client.post(DOORS["responses"], json=asked)).status_code == 200
        key = await _key(service, tpm_limit=9999)
        reply = await service.client.post(DOORS["responses"], json=asked, headers=key)
        refused(reply, 400, "unsupported_parameter", "background")
        for value in ("true", 1):
            reply = await service.client.post(
                DOORS["responses"], json=asked | {"background": value}, headers=key
            )
            refused(reply, 400, "invalid_value", "background")
    assert len(providers["responses"].prompts) == 1


async def test_a_response_goes_on_without_an_input(tmp_path: Path) -> None:
    service, providers = served(tmp_path, "responses")
    async with service.running():
        first = (await service.client.post(DOORS["responses"], json=ASKED["responses"])).json()
        asked = {"previous_response_id": first["id"], "instructions": "Shorter."}
        reply = await service.client.post(DOORS["responses"], json=asked)
        assert reply.status_code == 200, reply.text
        assert TEXT in reply.text
    prompt = providers["responses"].prompts[-1]
    assert prompt.request is not None
    assert prompt.request.body == asked | {"previous_response_id": "r"}


async def test_what_a_provider_has_of_the_earlier_answer_is_reserved_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, providers = served(tmp_path, "responses")
    bounds = list[int]()
    compute = TurnLoop.bound_cost

    def bound_cost(turns: TurnLoop, ask: Ask, *rest: Any) -> CostBound:
        bounds.append(ask.most_read)
        return compute(turns, ask, *rest)

    monkeypatch.setattr(TurnLoop, "bound_cost", bound_cost)
    async with service.running():
        key = await _key(service, tpm_limit=100_000)
        first = await service.client.post(DOORS["responses"], json=ASKED["responses"], headers=key)
        later = {"previous_response_id": first.json()["id"], "input": "And at noon?"}
        assert (await service.client.post(DOORS["responses"], json=later, headers=key)).is_success
    request = providers["responses"].prompts[-1].request
    assert request is not None
    used = first.json()["usage"]["total_tokens"]
    assert bounds == [len(write_document(ASKED["responses"])), len(write_document(request.body)) + used]
