"""Messages and errors of Anthropic's protocol, whole and as server-sent events."""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal

from fastapi.responses import JSONResponse
from pydantic import Field

from armwise.agent.api import responses
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import ApiDialect
from armwise.agent.config import AppConfig
from armwise.agent.replies import Agent, Reply, among, construct
from armwise.agent.turn import Choices, Decided, Finished
from armwise.arms.llm import Chunk, tool_calls

Event = dict[str, Any]

PATH = "/v1/messages"

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Types of errors by status."""

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


class MessageFailure(Reply):
    """What went wrong."""

    type: Annotated[
        str, among(*sorted({*_TYPES.values(), "api_error", "billing_error", "invalid_request_error"}))
    ]
    message: str = Field(description="Names the offending value and what would be right.")
    code: str = Field(description="Stable name.")
    param: str | None = Field(description="The field at fault.")
    retryable: bool = Field(description="Whether the same request may succeed later.")
    decision_id: str | None = Field(description="The decision that is kept nevertheless.")


class MessageError(Reply):
    """The body of a response that is not a success."""

    type: Literal["error"]
    error: MessageFailure
    request_id: str | None


class WrittenText(Reply):
    """Text of an answer."""

    type: Literal["text"]
    text: str


class ToolUse(Reply):
    """A call of a tool of the request."""

    type: Literal["tool_use"]
    id: str = Field(description="Names the decision; the result of the call comes under it.")
    name: str
    input: dict[str, Any]


class MessageUsage(Reply):
    """Tokens of the language model."""

    input_tokens: int = Field(description="Tokens read, those of the cache apart.")
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class WrittenMessage(Reply):
    """An answer, as Anthropic's clients read it."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str = Field(description="`arm/<name>`: the arm that answered.")
    content: list[WrittenText | ToolUse]
    stop_reason: Annotated[str, among("end_turn", "max_tokens", "tool_use")] | None
    stop_sequence: str | None
    usage: MessageUsage
    agent: Agent


class CountedTokens(Reply):
    """An estimate."""

    input_tokens: int


def _fail(failure: ApiError, request_id: str | None) -> MessageError:
    """Return the body of an error."""
    kind = "api_error" if failure.status >= 500 else "invalid_request_error"
    if failure.code == "insufficient_quota":
        kind = "billing_error"
    error = construct(
        MessageFailure,
        type=kind if kind == "billing_error" else _TYPES.get(failure.status, kind),
        message=failure.message,
        code=failure.code,
        param=failure.param,
        retryable=failure.retryable,
        decision_id=failure.decision_id,
    )
    return construct(MessageError, type="error", error=error, request_id=request_id)


_KEPT = ("retry-after", "retry-after-ms", "x-decision-id", "x-content-type-options")


def _respond(failure: ApiError, request_id: str | None) -> JSONResponse:
    """Return the response of an error, with the header that says whether a client tries again."""
    headers = {name: value for name, value in failure.response(request_id).headers.items() if name in _KEPT}
    headers["x-should-retry"] = "true" if failure.retryable else "false"
    headers |= {"request-id": request_id} if request_id else {}
    return responses.StdlibJson(_fail(failure, request_id), failure.status, headers)


def _authorize(headers: Mapping[bytes, bytes]) -> str:
    """Return `Authorization`, or the equivalent of `x-api-key`."""
    given, key = headers.get(b"authorization", b""), headers.get(b"x-api-key", b"")
    return (given or (b"Bearer " + key if key else b"")).decode("latin-1")


DIALECT = ApiDialect(PATH, _authorize, respond=_respond)
"""Keys and errors of Anthropic's clients."""


def _use(finished: Finished) -> MessageUsage:
    """Return the usage of a turn."""
    cost, read = finished.execution.cost, finished.cached_tokens
    return _usage(cost.prompt_tokens, cost.completion_tokens, read, finished.cache_written_tokens)


def _usage(prompt: int, completion: int, read: int = 0, written: int = 0) -> MessageUsage:
    return construct(
        MessageUsage,
        input_tokens=max(0, prompt - read - written),
        cache_creation_input_tokens=written,
        cache_read_input_tokens=read,
        output_tokens=completion,
    )


def _begin(decided: Decided, agent: Agent) -> dict[str, Any]:
    """Return the fields of a message before its answer."""
    return {
        "id": f"msg_{decided.decision.id}",
        "type": "message",
        "role": "assistant",
        "model": f"arm/{decided.served}",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "agent": agent,
    }


def write_message(
    decided: Decided, written: Choices, finished: Finished, config: AppConfig, returns: Collection[str]
) -> WrittenMessage:
    """Return the message of a turn."""
    choice = written.all[0]
    content: list[WrittenText | ToolUse] = []
    if choice.text:
        content.append(construct(WrittenText, type="text", text=choice.text))
    for call in choice.tool_calls:
        name, arguments = call["function"]["name"], tool_calls.read_arguments(call["function"]["arguments"])
        content.append(construct(ToolUse, type="tool_use", id=call["id"], name=name, input=arguments))
    agent = responses.agent(decided, finished, config.reward.cost, returns)
    fields = _begin(decided, agent) | {
        "content": content,
        "stop_reason": _STOP_REASONS.get(choice.finish_reason or "", "end_turn"),
        "usage": _use(finished),
    }
    return construct(WrittenMessage, **fields)


class MessageEvents:
    """Turns the events of a turn into those of a message, in the order of the protocol.

    Args:
        decided: The decision.
        config: Has the prices.
        returns: What `agent` has besides.
        prompt_tokens: Estimate of what is read, which is shown until the language model has counted.
    """

    def __init__(
        self, decided: Decided, config: AppConfig, returns: Collection[str], prompt_tokens: int
    ) -> None:
        self._decided, self._config, self._returns = decided, config, returns
        self._read = prompt_tokens
        self._index = -1  # of the block that is being written, or was
        self._open: int | None = None  # the call that it is
        self._writes = False  # whether a block is open

    def begin(self) -> Iterator[Event]:
        """Yield the events of a message without a block."""
        agent = responses.agent(self._decided, None, self._config.reward.cost, self._returns)
        message = _begin(self._decided, agent) | {"usage": _usage(self._read, 0)}
        yield {"type": "message_start", "message": message}
        yield {"type": "ping"}

    def add(self, chunk: Chunk) -> Iterator[Event]:
        """Yield the events of a piece of the answer."""
        if chunk.text:
            if not self._writes or self._open is not None:
                yield from self._start(None, {"type": "text", "text": ""})
            yield self._delta(type="text_delta", text=chunk.text)
        for piece in chunk.tool_calls:
            function = piece.get("function", {})
            if not self._writes or self._open != piece["index"]:
                named = {"id": piece.get("id", ""), "name": function.get("name", "")}
                yield from self._start(piece["index"], {"type": "tool_use", **named, "input": {}})
            if arguments := function.get("arguments"):
                yield self._delta(type="input_json_delta", partial_json=arguments)

    def end(self, finished: Finished) -> Iterator[Event]:
        """Yield the events of the end of the answer."""
        yield from self._stop()
        decided = self._decided
        delta = {
            "stop_reason": _STOP_REASONS.get(finished.finish_reasons[0], "end_turn"),
            "stop_sequence": None,
        }
        chosen = responses.chosen(decided.decision, decided.served, finished, self._config.reward.cost)
        yield {"type": "message_delta", "delta": delta, "usage": _use(finished), "agent": chosen}
        yield {"type": "message_stop"}

    def fail(self, failure: ApiError) -> Iterator[Event]:
        """Yield the event of a failure."""
        yield {"type": "error", "error": _fail(failure, None).error}

    def _start(self, call: int | None, block: dict[str, Any]) -> Iterator[Event]:
        yield from self._stop()
        self._index, self._open, self._writes = self._index + 1, call, True
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, **delta: str) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> Iterator[Event]:
        if self._writes:
            self._writes = False
            yield {"type": "content_block_stop", "index": self._index}
