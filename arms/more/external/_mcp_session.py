"""Tool calls by the package `mcp`, over the connections of remote arms.

So its requests obey the same limits of time, size and reachable addresses. Redirects and streams that a
server opens on its own are ignored.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult, TextContent
from pydantic import JsonValue
from typing_extensions import override

from armwise.arms.base import ArmError
from armwise.arms.retrievers.remote import MAX_BYTES, HttpArm, UnreadableResponseError, load_json
from armwise.arms.upstream import quote_start

PASSED = ("content-type", "mcp-session-id")
"""Headers of a response that the protocol needs."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call.

    Attributes:
        structured: Result as JSON; None: it consists of texts alone.
        texts: Texts of the result.
    """

    structured: JsonValue
    texts: tuple[str, ...]

    @property
    def document(self) -> JsonValue:
        """The result, or the JSON in its first text. Raises UnreadableResponseError."""
        return load_json(next(iter(self.texts), "")) if self.structured is None else self.structured


class _Transport(httpx2.AsyncBaseTransport):
    """Sends the requests of the protocol over an arm's connections.

    Attributes:
        failure: Why a request had no response.
    """

    def __init__(self, arm: HttpArm) -> None:
        self.failure: ArmError | None = None
        self._arm = arm

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(405)
        headers = {name: request.headers[name] for name in request.headers if name != "host"}
        sent = self._arm.connections.client.build_request(
            request.method, self._arm.url, headers=headers | self._arm.headers, content=await request.aread()
        )
        try:
            reply = await self._arm.send(sent)
        except ArmError as error:
            self.failure = error
            raise httpx2.ConnectError(str(error)) from error
        passed = {name: reply.headers[name] for name in PASSED if name in reply.headers}
        return httpx2.Response(reply.status, headers=passed, content=reply.content)


class Session:
    """A connection with a server, open during one search.

    Attributes:
        version: Revision of the protocol, by which the next connection skips its discovery; None: the server
            needs a handshake.
    """

    def __init__(self, arm: HttpArm, client: Client) -> None:
        discovered = client.session.discover_result is not None
        self.version = client.protocol_version if discovered else None
        self._arm, self._client = arm, client

    async def call(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool, and return its result. Raises ArmError."""
        # not by `call_tool`, which lists the tools first to check their schemas
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        result = await self._client.session.send_request(request, CallToolResult)
        texts = tuple(block.text for block in result.content if isinstance(block, TextContent))
        if result.is_error:
            raise ArmError(
                f"{self._arm.label}: tool {tool!r} failed: {quote_start(' '.join(texts).encode())}"
            )
        return ToolResult(result.structured_content, texts)


@asynccontextmanager
async def connect(arm: HttpArm, version: str | None) -> AsyncIterator[Session]:
    """Connect with a server.

    Args:
        arm: Sends the requests.
        version: `Session.version` of an earlier connection; None: the server is asked.

    Raises:
        ArmError: A request failed, the time was up, or the body of the `async with` raised it.
        UnreadableResponseError: The body of the `async with` raised it.
    """
    transport = _Transport(arm)
    try:
        async with (
            asyncio.timeout(arm.wait_s),
            httpx2.AsyncClient(transport=transport, trust_env=False) as http,
            Client(
                streamable_http_client(str(arm.url), http_client=http, max_sse_event_size=MAX_BYTES),
                mode=version or "auto",
                cache=None,
            ) as client,
        ):
            yield Session(arm, client)
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if isinstance(cause, ArmError | UnreadableResponseError):
            raise cause from error
        if transport.failure is not None:
            raise transport.failure from error
        if isinstance(cause, TimeoutError):
            raise ArmError(f"{arm.label}: no result within {arm.wait_s:g} s") from error
        raise ArmError(f"{arm.label}: {type(cause).__name__} {quote_start(str(cause).encode())}") from error
