"""`/mcp`, as the client of the Model Context Protocol sees it, over HTTP without a network."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, TextContent

from armwise.agent.gateways import mcp
from armwise.agent.turn import Decider
from armwise.arms import extras
from armwise.arms.base import Passage
from tests.agent.asking import QUESTION, record, refused
from tests.agent.fakes import Service, failing

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}

JSON = {"accept": "application/json, text/event-stream"}


@asynccontextmanager
async def connected(service: Service, key: str = "", mode: str = "auto") -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    transport = httpx2.ASGITransport(service.app)  # type: ignore[arg-type]
    async with (
        httpx2.AsyncClient(transport=transport, headers=headers) as http,
        Client(streamable_http_client("http://service/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


def failure(result: CallToolResult) -> str:
    assert result.is_error
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def test_without_its_library_it_is_not_offered_and_says_what_brings_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "mcp")
    said = refused(await service.client.post("/mcp", json=LIST, headers=JSON), 404, "not_found")
    assert said == "/mcp is not offered; mcp is not installed: `pip install 'armwise[mcp]'` brings it"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_its_tools_are_those_that_connectors_expect(service: Service, mode: str) -> None:
    async with connected(service, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == {"search", "fetch", "ask", "feedback"}
        assert tools["search"].input_schema["required"] == ["query"]
        assert tools["fetch"].input_schema["required"] == ["id"]
        assert all(tool.output_schema for tool in tools.values())
        hints = {
            name: tool.annotations.model_dump(exclude_none=True)
            for name, tool in tools.items()
            if tool.annotations is not None
        }
    reads = {"read_only_hint": True, "open_world_hint": False}
    rates = {"destructive_hint": False, "open_world_hint": False}
    assert hints == {"search": reads, "fetch": reads, "ask": reads, "feedback": rates}


async def test_an_exception_in_a_tool_is_for_the_log_of_the_service_alone(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("password=hunter2")

    monkeypatch.setattr(Decider, "decide", broken)
    async with connected(service) as client:
        said = failure(await client.call_tool("search", {"query": QUESTION}))
    assert "internal_error" in said
    assert "hunter2" not in said
    assert "hunter2" in caplog.text


async def test_no_stream_of_changes_is_kept_open(service: Service) -> None:
    async with connected(service) as client:
        with pytest.raises(MCPError, match="Method not found"):
            async with asyncio.timeout(20), client.listen(tools_list_changed=True):
                pass


def test_the_protocol_leaves_the_log_as_the_service_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "root", root := logging.RootLogger(logging.WARNING))
    with mcp._handlers_of_root_kept():  # noqa: SLF001
        logging.basicConfig(level=logging.DEBUG)
    assert (root.handlers, root.level) == ([], logging.WARNING)
    assert logging.getLogger("mcp.server.streamable_http_manager").level == logging.WARNING


async def test_what_a_search_finds_can_be_fetched_and_rated(service: Service) -> None:
    await service.client.patch("/v1/arms/none", json={"enabled": False})  # it finds nothing
    async with connected(service) as client:
        found = await call(client, "search", query=QUESTION)
        assert len(found["results"]) == 4
        kept = await record(service, found["decision_id"], lambda r: r.execution)
        assert kept.decision.context.question == QUESTION
        assert kept.execution is not None
        assert kept.execution.answer is None
        assert tuple(one["id"] for one in found["results"]) == kept.execution.passages
        for one in found["results"]:
            assert one.keys() == {"id", "title", "url"}
            document = await call(client, "fetch", id=one["id"])
            assert document.keys() == {"id", "title", "text", "url", "metadata"}
            assert (document["id"], document["url"]) == (one["id"], one["url"])
            assert document["text"]
            assert document["metadata"] == {"corpus": "stdlib"}
        rated = await call(
            client, "feedback", decision_id=found["decision_id"], metric_name="thumb", value=-1
        )
        assert rated["status"] == "stored"
        feedback = (await record(service, found["decision_id"], lambda r: r.feedback)).feedback
        assert [(one.id, one.value) for one in feedback] == [(rated["feedback_id"], -1.0)]


async def test_an_answer_is_a_turn_with_the_language_model(service: Service) -> None:
    async with connected(service) as client:
        answer = await call(client, "ask", question=QUESTION)
    assert answer["answer"] == "The Danube does."
    kept = await record(service, answer["decision_id"], lambda r: r.execution)
    assert kept.execution is not None
    assert kept.execution.answer == "The Danube does."
    assert tuple(one["id"] for one in answer["passages"]) == kept.execution.passages


async def test_a_failure_is_told_to_the_model_with_its_code(service: Service) -> None:
    async with connected(service) as client:
        said = failure(await client.call_tool("search", {"query": " "}))
        assert "invalid_value" in said
        assert "no passage 'nowhere'" in failure(await client.call_tool("fetch", {"id": "nowhere"}))
        arguments = {"decision_id": "d-1", "metric_name": "joy", "value": 1}
        assert "unknown_metric: metric 'joy'" in failure(await client.call_tool("feedback", arguments))
        assert "NUL" in failure(await client.call_tool("search", {"query": "a\0b"}))
        arguments |= {"metric_name": "comment", "value": "a\0b"}
        assert "NUL" in failure(await client.call_tool("feedback", arguments))
        service.arms.behaviour = dict.fromkeys(service.config.actions, failing)
        assert "arm_failed: " in failure(await client.call_tool("search", {"query": QUESTION}))


async def test_an_unexpected_failure_is_not_shown(service: Service) -> None:
    async def broken(*_: Any) -> Any:
        raise RuntimeError("a secret")

    service.replica.passages = broken  # type: ignore[method-assign]
    async with connected(service) as client:
        assert "secret" not in failure(await client.call_tool("fetch", {"id": "x"}))


async def test_each_tool_needs_its_scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for scope in ("decide", "feedback", "read"):
        monkeypatch.setenv(f"{scope.upper()}_KEY", f"{scope}-secret")
    keys = [{"env": f"{scope.upper()}_KEY", "scopes": [scope]} for scope in ("decide", "feedback", "read")]
    calls: dict[str, dict[str, Any]] = {
        "search": {"query": QUESTION},
        "ask": {"question": QUESTION},
        "fetch": {"id": "bm25-1"},
        "feedback": {"decision_id": "d-1", "metric_name": "thumb", "value": 1},
    }
    allowed = {"decide": {"search", "ask", "fetch"}, "feedback": {"feedback"}, "read": {"fetch"}}
    async with Service(tmp_path, keys=keys).running() as service:
        for scope, tools in allowed.items():
            async with connected(service, f"{scope}-secret") as client:
                for tool, arguments in calls.items():
                    result = await client.call_tool(tool, arguments)
                    assert result.is_error == (tool not in tools), (scope, tool, result.content)
                    if result.is_error:
                        assert "forbidden: this key lacks the scope" in failure(result)


async def test_a_document_has_the_metadata_of_its_passage_as_texts(service: Service) -> None:
    async def passages(ids: Sequence[str]) -> list[Passage]:
        return [Passage(one, "t", "x", metadata={"year": 1999, "language": "en"}) for one in ids]

    service.replica.passages = passages  # type: ignore[method-assign]
    async with connected(service) as client:
        document = await call(client, "fetch", id="p1")
    assert document["metadata"] == {"year": "1999", "language": "en", "corpus": "stdlib"}


async def test_a_document_does_not_say_which_groups_may_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def passages(ids: Sequence[str]) -> list[Passage]:
        return [Passage(one, "t", "x", metadata={"allowed_groups": ["board", "staff"]}) for one in ids]

    monkeypatch.setenv("STAFF_KEY", "staff-secret")
    keys = [{"env": "STAFF_KEY", "scopes": ["decide"], "groups": ["staff"]}]
    async with (
        Service(tmp_path, keys=keys).running() as service,
        connected(service, "staff-secret") as client,
    ):
        service.replica.passages = passages  # type: ignore[method-assign]
        assert (await call(client, "fetch", id="p1"))["metadata"] == {"corpus": "stdlib"}


@pytest.mark.parametrize(
    ("metric", "value", "stored", "content"),
    [
        ("thumb", "-0.5", -0.5, {}),
        ("thumb", -0.5, -0.5, {}),
        ("grade", "2", 1.0, {"label": "2"}),
        ("comment", "5", None, {"comment": "5"}),
    ],
)
async def test_a_number_that_is_sent_as_a_text_is_read_where_the_metric_has_no_labels(
    tmp_path: Path, metric: str, value: float | str, stored: float | None, content: dict[str, str]
) -> None:
    grade = {"type": "categorical", "values": {"2": 1.0, "1": 0.0}}
    reward = {"metrics": {"thumb": {"range": [-1, 1]}, "grade": grade}}
    async with Service(tmp_path, reward=reward).running() as service, connected(service) as client:
        found = await call(client, "search", query=QUESTION)
        arguments = {"decision_id": found["decision_id"], "metric_name": metric, "value": value}
        if metric != "comment":
            content, arguments = content | {"comment": "Why not."}, arguments | {"comment": "Why not."}
        rated = await call(client, "feedback", **arguments)
        kept = (await record(service, found["decision_id"], lambda r: r.feedback)).feedback
    assert rated["status"] == "stored"
    assert [(one.metric, one.value, dict(one.content)) for one in kept] == [(metric, stored, content)]


async def test_ids_of_a_project_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_KEY", "acme-secret")
    keys = [{"env": "ACME_KEY", "scopes": ["decide", "feedback"], "project": "acme"}]
    async with Service(tmp_path, keys=keys).running() as service, connected(service, "acme-secret") as client:
        found = await call(client, "search", query=QUESTION)
        assert "~" not in found["decision_id"]
        await record(service, f"acme~{found['decision_id']}", lambda r: r.execution)
        arguments = {"decision_id": "other~d-1", "metric_name": "thumb", "value": 1}
        rated = await call(client, "feedback", **arguments)
        assert rated["status"] == "stored", "the id of another project is none of this one's"


async def test_pages_of_other_sites_and_other_names_are_refused(service: Service) -> None:
    post = service.client.post
    for origin in ("http://evil.example", "http://6.6.6.6", "null", "http://service.evil.example:80"):
        refused(await post("/mcp", json=LIST, headers=JSON | {"origin": origin}), 403, "forbidden")
    for origin in ("http://service", "http://localhost:6274", "https://service:8443"):
        answer = await post("/mcp", json=LIST, headers=JSON | {"origin": origin})
        assert answer.status_code == 200, answer.text
    rebound = await post("/mcp", json=LIST, headers=JSON | {"host": "evil.example"})
    refused(rebound, 421, "unknown_host", "Host")


async def test_what_is_no_request_of_the_protocol_is_refused(service: Service) -> None:
    refused(await service.client.get("/mcp", headers=JSON), 405, "method_not_allowed")
    refused(await service.client.delete("/mcp", headers=JSON), 405, "method_not_allowed")
    assert (await service.client.post("/mcp", content=b"{", headers=JSON)).status_code == 400
    for body in (b"[]", b'{"jsonrpc": "1.0"}'):
        headers = JSON | {"content-type": "application/json"}
        assert (await service.client.post("/mcp", content=body, headers=headers)).status_code == 400
    large = LIST | {"params": {"x": "a" * 5000}}
    refused(await service.client.post("/mcp", json=large, headers=JSON), 413, "payload_too_large")


async def test_requests_need_no_session_and_run_side_by_side(service: Service) -> None:
    def body(number: int) -> dict[str, Any]:
        arguments = {"name": "search", "arguments": {"query": f"{QUESTION} {number}"}}
        return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": arguments}

    answers = await asyncio.gather(
        *(service.client.post("/mcp", json=body(n), headers=JSON) for n in range(4))
    )
    results = [answer.json()["result"]["structuredContent"] for answer in answers]
    assert len({result["decision_id"] for result in results}) == 4
    assert [answer.json()["id"] for answer in answers] == [0, 1, 2, 3]


async def test_a_request_may_be_as_large_as_the_service_allows(tmp_path: Path) -> None:
    large = LIST | {"params": {"_meta": {"x": "a" * 5_000_000}}}
    async with Service(tmp_path, limits={"body_bytes": 6_000_000}).running() as service:
        answer = await service.client.post("/mcp", json=large, headers=JSON)
    assert answer.status_code == 200, answer.text
