"""The arm of kind `mcp` against a server of the package `mcp` on a socket, which misbehaves on demand."""

import asyncio
import hashlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent
from pydantic import ValidationError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from tenacity import wait_none

from armwise.arms.base import Arm, ArmError, Passage, Query
from armwise.arms.corpus import Corpus
from armwise.arms.more.external.mcp import McpArm, McpParams
from armwise.arms.retrievers import remote
from armwise.arms.tokenizer import words
from tests.arms.contract import check_arm

MODERN = b"2026-07-28"

Answer = Callable[[Scope, Receive, Send], Awaitable[None]]


class Server:
    """A server with tools.

    Attributes:
        url: Where it listens.
        legacy: Whether it only speaks the revisions with a handshake.
        session: What it names the session of a handshake; empty for none.
        instead: What answers the next requests instead of the protocol, one each.
        seen: The headers of each request.
        asked: The arguments of each search.
        fetched: The ids of the results that were fetched.
        corpus: What `find` searches.
        stuck: Has every request wait until it is set.
    """

    def __init__(self) -> None:
        self.url, self.legacy, self.session = "", False, b""
        self.instead: list[Answer] = []
        self.seen: list[dict[bytes, bytes]] = []
        self.asked: list[dict[str, Any]] = []
        self.fetched: list[str] = []
        self.corpus: list[Passage] = []
        self.stuck: asyncio.Event | None = None
        handlers = [*logging.root.handlers]
        self._tools = MCPServer("test")
        logging.root.handlers = handlers  # which `MCPServer` has added to
        for tool in (self.search, self.fetch, self.find, self.write, self.fail, self.say):
            self._tools.add_tool(tool)
        self._app = self._tools.streamable_http_app(stateless_http=True)

    async def search(self, query: str, size: int = 3) -> dict[str, Any]:
        self.asked.append({"query": query, "size": size})
        return {"results": [{"id": f"p{n}", "title": f"title {n}", "url": ""} for n in range(size)]}

    async def fetch(self, id: str) -> dict[str, Any]:  # noqa: A002
        self.fetched.append(id)
        return {"id": id, "title": f"title of {id}", "text": f"text of {id}"}

    async def find(self, query: str) -> dict[str, Any]:
        question = set(words(query))
        shared = [(len(question & set(words(p.text))), p) for p in self.corpus]
        return {"hits": [{"id": p.id, "title": p.title, "text": p.text, "score": n} for n, p in shared if n]}

    async def write(self, query: str) -> CallToolResult:
        texts = [f"First on {query}", "Second", "Second"]
        return CallToolResult(content=[TextContent(type="text", text=text) for text in texts])

    async def say(self, query: str) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=query)])

    async def fail(self, query: str) -> str:
        raise ToolError(f"no index for {query}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        self.seen.append(headers)
        if self.stuck is not None:
            await self.stuck.wait()
        if self.instead:
            await self.instead.pop(0)(scope, receive, send)
        elif self.legacy and headers.get(b"mcp-protocol-version") == MODERN:
            await Response("Unsupported protocol version", 400)(scope, receive, send)
        else:

            async def named(message: Any) -> None:
                if self.session and message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"mcp-session-id", self.session)]
                await send(message)

            await self._app(scope, receive, named)

    async def serve(self, ready: "Future[Callable[[], None]]") -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as place:
            self.url = f"http://127.0.0.1:{place.getsockname()[1]}/mcp"
            async with self._app.router.lifespan_context(self._app):
                config = uvicorn.Config(
                    self, log_level="critical", lifespan="off", timeout_graceful_shutdown=1
                )
                server = uvicorn.Server(config)
                serving = asyncio.create_task(server.serve(sockets=[place]))
                ready.set_result(lambda: loop.call_soon_threadsafe(stop.set) and None)
                await stop.wait()
                server.should_exit = True
                await serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(remote, "random_pause_s", wait_none())
    server, ready = Server(), Future[Callable[[], None]]()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(ready)))
    thread.start()
    stop = ready.result(30)
    yield server
    stop()
    thread.join()


def build(server: Server, wait_s: float = 8.0, **params: object) -> Arm:
    told = {"url": server.url, "fetch": "fetch", **params}
    no_member: Any = None
    have: Any = SimpleNamespace(wait_s=wait_s)
    return McpArm.build("far", McpParams.model_validate(told), have, no_member)


def found(arm: Arm, k: int = 2, question: str = "Why?") -> list[Passage]:
    return list(arm.search(Query(question), k).passages)


@pytest.mark.slow
def test_an_arm_of_a_tool_keeps_the_contract(server: Server, corpus: Corpus) -> None:
    server.corpus = list(corpus)
    arm = build(server, tool="find", results="hits", fields={"score": "score"}, fetch=None)
    check_arm(arm, corpus)


@pytest.mark.slow
def test_a_server_of_an_earlier_revision_has_a_handshake(server: Server) -> None:
    server.legacy = True
    arm = build(server)
    assert [p.text for p in found(arm)] == [p.text for p in found(arm)] == ["text of p0", "text of p1"]


def test_the_session_of_a_handshake_is_named_after_it(server: Server) -> None:
    server.legacy, server.session = True, b"the session"
    assert len(found(build(server))) == 2
    named = [headers.get(b"mcp-session-id") for headers in server.seen]
    first = named.index(b"the session")
    assert first > 0
    assert set(named[first:]) == {b"the session"}


def test_the_rest_of_a_result_is_fetched_by_its_id(server: Server) -> None:
    arm = build(server, arguments={"size": "{k}"})
    passages = found(arm)
    assert [(p.id, p.title, p.text) for p in passages] == [
        ("p0", "title of p0", "text of p0"),
        ("p1", "title of p1", "text of p1"),
    ]
    assert server.asked == [{"query": "Why?", "size": 2}]


def test_a_question_is_an_argument_whatever_it_says(server: Server) -> None:
    found(build(server, arguments={"size": "{k}"}), question='{k} {question} "}')
    assert server.asked == [{"query": '{k} {question} "}', "size": 2}]


def test_texts_are_passages_by_their_hash(server: Server) -> None:
    passages = found(build(server, tool="write", results=None, fetch=None), k=5)
    assert [(p.text, p.score) for p in passages] == [("First on Why?", 1.0), ("Second", 0.5)]
    assert passages[1].id == hashlib.sha256(b"Second").hexdigest()[:32]


def test_json_in_a_text_is_read(server: Server) -> None:
    arm = build(server, tool="say", results="a", fetch=None)
    passages = found(arm, question='{"a": [{"id": "x", "text": "y"}]}')
    assert [(p.id, p.text) for p in passages] == [("x", "y")]


def test_a_server_is_asked_for_its_handshake_once(server: Server) -> None:
    arm = build(server, tool="write", results=None, fetch=None)
    found(arm)
    asked = len(server.seen)
    found(arm)
    assert (asked, len(server.seen)) == (2, 3)


def test_no_more_results_are_fetched_than_are_asked_for(server: Server) -> None:
    assert [p.id for p in found(build(server, arguments={"size": 5}), k=2)] == ["p0", "p1"]
    assert sorted(server.fetched) == ["p0", "p1"]


def test_a_revision_is_asked_for_again_after_a_failure(server: Server) -> None:
    arm = build(server, tool="write", results=None, fetch=None)
    found(arm)
    server.instead = [Response("", 404)]
    with pytest.raises(ArmError):
        found(arm)
    server.legacy = True  # as after a change to an older server
    assert len(found(arm)) == 2


def test_headers_come_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "Bearer secret")
    found(build(server, header_env={"Authorization": "SEARCH_KEY"}))
    assert {headers[b"authorization"] for headers in server.seen} == {b"Bearer secret"}


def test_a_trouble_that_passes_is_tried_again(server: Server) -> None:
    server.instead = [Response("busy", 503), Response("busy", 429)]
    assert len(found(build(server))) == 2


@pytest.mark.parametrize(
    ("params", "question", "message"),
    [
        ({"tool": "fail"}, "x", "tool 'fail' failed: 'Error executing tool fail: no index for x'"),
        ({"tool": "nowhere"}, "x", "nowhere"),
        ({"tool": "say"}, "no json", "cannot be read: it is not JSON"),
        ({"results": "hits"}, "x", "cannot be read: there is no 'hits'"),
        ({"fetch": None}, "x", "cannot be read: result 1: there is no 'text'"),
        ({"query_argument": "q"}, "x", "query"),
    ],
)
def test_a_failure_says_what_came(
    server: Server, params: dict[str, object], question: str, message: str
) -> None:
    with pytest.raises(ArmError, match=message) as failure:
        found(build(server, **params), question=question)
    assert str(failure.value).startswith(f"arm 'far': {server.url}")


@pytest.mark.slow
def test_a_server_that_is_silent_is_given_up(server: Server) -> None:
    server.stuck = asyncio.Event()
    with pytest.raises(ArmError, match=r"within 0.2 s|in 0.2 s failed"):
        found(build(server, wait_s=0.2))


def test_an_answer_that_is_too_long_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_BYTES", 1000)
    with pytest.raises(ArmError, match="more than 1,000 bytes"):
        found(build(server, tool="write", results=None, fetch=None), question="x" * 2000)


@pytest.mark.parametrize("status", [302, 307])
def test_a_redirect_is_not_followed(server: Server, status: int) -> None:
    server.instead = [Response("", status, {"location": "/elsewhere"})] * 9
    with pytest.raises(ArmError):
        found(build(server))
    assert len(server.instead) >= 7, "each request is sent once"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"url": "ftp://a/"}, "not an http or https address"),
        ({"arguments": {"query": "x"}}, "remove 'query' from arguments: it is set to the question"),
        ({"results": None, "fetch": "f"}, "`results` is null"),
    ],
)
def test_parameters_that_cannot_work_are_refused(params: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        McpParams.model_validate({"url": "http://x/mcp", **params})
