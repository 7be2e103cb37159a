"""`/v1/messages`: Anthropic's protocol, whole and as server-sent events, and `/v1/messages/count_tokens`."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from armwise.agent.api import doors, request_fields, responses
from armwise.agent.api.documented import ANSWER, document_route
from armwise.agent.api.doors import DocumentDoor
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import ApiDialect, AppReplica, RequestCaller
from armwise.agent.api.protocols import read, write
from armwise.agent.api.protocols.chat import SUCCESS
from armwise.agent.api.protocols.schemas import Conversation, MessagesRequest
from armwise.agent.api.schemas import IdempotencyKey, Timeout
from armwise.agent.config import AppConfig
from armwise.agent.replies import Agent, Passed, Reply, among, construct
from armwise.agent.serving import Replica, admission
from armwise.agent.turn import Choices, Decided, Finished, estimate_attached_tokens, tokens_in
from armwise.arms.llm import Chunk, Document, Message, object_at, protocols, translate, write_document
from armwise.arms.llm import Request as Sent

router = APIRouter(tags=["answers"], route_class=DocumentDoor)

PATH = "/v1/messages"

BETA = "anthropic-beta"
"""Header with the parts of the protocol that a client has switched on."""

_BETAS = re.compile("[A-Za-z0-9._, -]{0,2000}")

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

_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
    "refusal": "refusal",
    "pause_turn": "pause_turn",
    "context_window": "model_context_window_exceeded",
}
"""Stop reasons of the protocol by the finish reasons of a turn."""


class MessageFailure(Reply):
    """What went wrong."""

    type: Annotated[
        str, among(*sorted({*_TYPES.values(), "api_error", "billing_error", "invalid_request_error"}))
    ]
    message: str = Field(description="Names the offending value and what would be right.")
    code: str | None = Field(description="Stable name, from the provider if it refused the request.")
    param: str | None = Field(description="The field at fault.")
    retryable: bool = Field(description="Whether the same request may succeed later.")
    decision_id: str | None = Field(description="The decision that the log keeps despite the error.")


class MessageError(Reply):
    """The body of a response that is not a success."""

    type: Literal["error"]
    error: MessageFailure
    request_id: str | None


class WrittenText(Passed):
    """Text of an answer."""

    type: Literal["text"]
    text: str


class OtherBlock(Passed):
    """Another block of the provider's."""

    type: str


class ToolUse(Passed):
    """A call of a tool of the request."""

    type: Literal["tool_use"]
    id: str = Field(description="The result of the call comes under it.")
    name: str
    input: dict[str, Any]


class MessageUsage(Passed):
    """Tokens of the language model."""

    input_tokens: int = Field(description="Tokens read, without tokens from the cache.")
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int


class WrittenMessage(Passed):
    """An answer, as Anthropic's clients read it."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str = Field(description="`arm/<name>`: the arm that answered.")
    content: list[WrittenText | ToolUse | OtherBlock]
    stop_reason: Annotated[str, among(*sorted({*_STOP_REASONS.values()}))] | None
    stop_sequence: str | None = None
    stop_details: dict[str, Any] | None = Field(default=None, description="Left out but for a refusal.")
    usage: MessageUsage
    agent: Agent


class CountedTokens(Reply):
    """An estimate."""

    input_tokens: int


def _fail(failure: ApiError, request_id: str | None) -> MessageError:
    """Return the body of an error."""
    kind = _TYPES.get(failure.status, "api_error" if failure.status >= 500 else "invalid_request_error")
    if failure.code == "insufficient_quota":
        kind = "billing_error"
    error = construct(
        MessageFailure,
        type=kind,
        message=failure.message,
        code=failure.shown_code,
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


class MessageWriter(write.Writer):
    """Writes a message, and its events in the order of the protocol.

    Args:
        decided, config, returns: As of `Writer`.
        prompt_tokens: Estimate of what is read, which is shown until the language model has counted.
    """

    protocol = "messages"
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'

    def __init__(
        self, decided: Decided, config: AppConfig, returns: Collection[str], *, prompt_tokens: int
    ) -> None:
        super().__init__(decided, config, returns)
        self._read = prompt_tokens
        self._index = -1  # of the block that is being written, or was
        self._open: int | None = None  # the call that it is
        self._writes = False  # whether a block is open

    def begin(self) -> Iterator[Document]:
        """Yield the events of a message without a block."""
        message: Document = {
            **self._named,
            "type": "message",
            "role": "assistant",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "agent": self._agent(None),
            "usage": _usage(self._read, 0),
        }
        yield {"type": "message_start", "message": message}
        yield {"type": "ping"}

    def add(self, chunk: Chunk) -> Iterator[Document]:
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

    def end(self, finished: Finished) -> Iterator[Document]:
        """Yield the events of the end of the answer."""
        yield from self._stop()
        delta = _ending(finished.finish_reasons[0])
        yield {"type": "message_delta", "delta": delta, "usage": _use(finished)}
        yield {"type": "message_stop", "agent": self._describe_choice(finished)}

    def fail(self, failure: ApiError) -> Iterator[Document]:
        """Yield the event of a failure."""
        yield {"type": "error", "error": _fail(failure, None).error}

    def patch(self, event: Document) -> Document | None:
        """Return an event of a model as the client gets it."""
        if event.get("type") != "message_start":
            return event
        return event | {"message": object_at(event, "message") | self._named | {"agent": self._agent(None)}}

    def close(self, held: list[Document], finished: Finished) -> Iterator[Document]:
        """Yield the events that end a message, with the cost."""
        yield from held[:-1]
        yield from (event | {"agent": self._describe_choice(finished)} for event in held[-1:])

    def whole(self, written: Choices, finished: Finished) -> "WrittenMessage":
        """Return a message."""
        choice = written.all[0]
        content: list[WrittenText | ToolUse | OtherBlock] = []
        if choice.text:
            content.append(construct(WrittenText, type="text", text=choice.text))
        for call in choice.tool_calls:
            name = call["function"]["name"]
            arguments = translate.messages.read_arguments(call["function"]["arguments"])
            content.append(construct(ToolUse, type="tool_use", id=call["id"], name=name, input=arguments))
        return construct(
            WrittenMessage,
            id=self._named["id"],
            model=self._named["model"],
            type="message",
            role="assistant",
            content=content,
            **_ending(choice.finish_reason or ""),
            usage=_use(finished),
            agent=self._agent(finished),
        )

    def patch_whole(self, answer: Document, finished: Finished) -> Document:
        """Return the message of a model as the client gets it."""
        return dict(answer) | self._named | {"agent": self._agent(finished)}

    def frame(self, event: Document) -> bytes:
        """Return an event as it is sent."""
        return write.write_named_event(event)

    @property
    def _named(self) -> dict[str, str]:
        return {"id": f"msg_{self._decided.decision.id}", "model": f"arm/{self._decided.served}"}

    def _start(self, call: int | None, block: dict[str, Any]) -> Iterator[Document]:
        yield from self._stop()
        self._index, self._open, self._writes = self._index + 1, call, True
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, **delta: str) -> Document:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> Iterator[Document]:
        if self._writes:
            self._writes = False
            yield {"type": "content_block_stop", "index": self._index}


def _ending(reason: str) -> dict[str, Any]:
    """Return the fields of a message that say why it ended."""
    stop = _STOP_REASONS.get(reason, "end_turn")
    details = {"stop_details": {"type": "refusal"}} if stop == "refusal" else {}
    return {"stop_reason": stop, "stop_sequence": None, **details}


Version = Annotated[
    str | None,
    Header(
        alias="anthropic-version",
        pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
        description="Version of the protocol; 2023-06-01 is supported.",
    ),
]


@router.post(
    PATH,
    **document_route(
        "createMessage",
        WrittenMessage,
        *ANSWER,
        scopes=("decide",),
        success=SUCCESS,
        failure=MessageError,
        example={
            "model": "auto",
            "max_tokens": 256,
            "messages": [{"role": "user", "content": "What is a heap?"}],
        },
    ),
)
async def create_message(
    request: Request,
    replica: AppReplica,
    caller: RequestCaller,
    body: MessagesRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
    version: Version = None,
) -> Response:
    """Answer as chat does, in Anthropic's protocol; server-sent events with `stream`."""
    del version  # one is answered
    document: Document = request.state.document
    limit = replica.config.limits.completion_tokens
    if body.max_tokens > limit:  # a client names the most that its model could write: more is no error
        document = document | {"max_tokens": limit}
    beta = ",".join(request.headers.getlist(BETA))
    if not _BETAS.fullmatch(beta):
        raise ApiError("invalid_value", f"{BETA} must hold names separated by commas", BETA)
    passed = {BETA: beta} if beta else {}
    asked = read.describe("messages", document, body, len(await request.body()), request.headers, passed)
    ask = await read.read_ask(replica, caller, asked, key)
    count = partial(_count, ask.messages, ask.document.options.get("tools", ()))
    n_tokens = await doors.call_beside(request, count) if ask.document.streams else 0
    make = partial(MessageWriter, config=replica.config, returns=body.agent.returns, prompt_tokens=n_tokens)
    named = {"request-id": request.headers.get("x-request-id", "")}
    return await write.answer(request, replica, caller, ask, key, timeout_s, make, headers=named)


@router.post(
    f"{PATH}/count_tokens",
    **document_route(
        "countMessageTokens",
        CountedTokens,
        *("model_not_found", "unsupported_parameter"),
        scopes=("decide",),
        failure=MessageError,
        example={"model": "auto", "messages": [{"role": "user", "content": "What is a heap?"}]},
    ),
)
async def count_tokens(
    request: Request, replica: AppReplica, body: Conversation, version: Version = None
) -> Response:
    """Estimate the tokens of a request, for any model; nothing is decided, and the log gets no row."""
    del version
    return await doors.call_beside(request, partial(_count_tokens, replica, request.state.document, body))


def _count_tokens(replica: Replica, document: Document, sent: Conversation) -> Response:
    if (arm := request_fields.find_forced_arm(replica, sent.model)) is not None:
        admission.require_model(replica, arm)
    form = Sent("messages", document).chat
    tools = protocols.chat.read_options(form).get("tools", ())
    counted = _count(protocols.chat.read_messages(form), tools)
    return responses.StdlibJson(construct(CountedTokens, input_tokens=counted))


def _count(messages: Iterable[Message], tools: Iterable[Mapping[str, Any]]) -> int:
    """Estimate the tokens of messages and of tools."""
    messages = [*messages]
    texts = [message["content"] for message in messages]
    for message in messages:
        texts += [write_document(call).decode() for call in message.get("tool_calls", ())]
    texts += [write_document(tool).decode() for tool in tools]
    return sum(map(tokens_in, texts)) + estimate_attached_tokens(messages)
