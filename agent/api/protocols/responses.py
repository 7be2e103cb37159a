"""`/v1/responses`: OpenAI's newer protocol, whole and as server-sent events."""

import asyncio
import itertools
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from armwise.agent.access import Caller, ForeignIdError, UnloggedIdError
from armwise.agent.api.documented import ANSWER, document_route
from armwise.agent.api.doors import DocumentDoor
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.protocols import read, write
from armwise.agent.api.protocols.chat import SUCCESS, cite_passages, read_decision_time
from armwise.agent.api.protocols.schemas import ResponsesRequest
from armwise.agent.api.schemas import IdempotencyKey, Timeout
from armwise.agent.config import AppConfig
from armwise.agent.replies import Agent, Passed, among
from armwise.agent.serving import Replica
from armwise.agent.turn import Choices, Decided, Finished
from armwise.arms.llm import Chunk, Document, objects, translate
from armwise.feedback.errors import LOG_UNUSABLE

router = APIRouter(tags=["answers"], route_class=DocumentDoor)

RESPONSE = "resp_"
"""Beginning of the ids of responses."""


class OutputItem(Passed):
    """A message, or the call of a function."""

    id: str | None = None
    type: str = Field(description="`message`, `function_call`, or another item of the protocol.")
    status: str | None = None


class ResponseObject(Passed):
    """A response, as OpenAI's Responses API has it; it repeats what the request set."""

    id: str
    object: Literal["response"]
    created_at: float
    status: Annotated[str, among("completed", "incomplete", "failed", "in_progress", "queued", "cancelled")]
    model: str = Field(description="`arm/<name>`: the arm that answered.")
    output: list[OutputItem]
    usage: dict[str, Any] | None = None
    agent: Agent


_REPEATED = (
    *(
        "instructions",
        "max_output_tokens",
        "temperature",
        "top_p",
        "tools",
        "tool_choice",
        "text",
        "reasoning",
    ),
    *("metadata", "parallel_tool_calls", "truncation", "user", "service_tier", "prompt_cache_key"),
)
"""Fields of a request that its response repeats."""

_DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(("instructions", "max_output_tokens", "temperature", "top_p"), None),
    "metadata": {},
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
}

_INCOMPLETE = {
    "length": "max_output_tokens",
    "context_window": "max_output_tokens",
    "content_filter": "content_filter",
    "refusal": "content_filter",
}
"""Reasons of a response that is not complete, by the finish reasons of a turn."""


class ResponseWriter(write.Writer):
    """Writes a response, and its events in the order of OpenAI.

    Args:
        decided, config, returns: As of `Writer`.
        request: The request, parts of which the response repeats.
    """

    protocol = "responses"
    ping = b": the model has written nothing yet\n\n"

    def __init__(
        self, decided: Decided, config: AppConfig, returns: Collection[str], *, request: Document
    ) -> None:
        super().__init__(decided, config, returns)
        self._name = decided.decision.id
        self._tools = translate.responses.find_tools(request)
        self._open: dict[str, Any] | None = None  # the item that is being written
        self._call: int | None = None  # the call that it is; None for text
        self._tool = translate.responses.ToolName("function", "", "")  # that it calls
        self._arguments = ""  # of it, so far
        self._numbers = itertools.count()
        given = {name: request[name] for name in _REPEATED if request.get(name) is not None}
        self.document: dict[str, Any] = self._named | {
            "object": "response",
            "created_at": read_decision_time(decided.decision),
            "status": "in_progress",
            "output": [],
            "error": None,
            "incomplete_details": None,
            "previous_response_id": request.get("previous_response_id"),
            "store": False,
            **_DEFAULTS,
            **given,
            "usage": None,
            "agent": self._agent(None),
        }

    def begin(self) -> Iterator[Document]:
        """Yield the events of a response that has no item yet."""
        yield self._event("created", response=self.document)
        yield self._event("in_progress", response=self.document)

    def add(self, chunk: Chunk) -> Iterator[Document]:
        """Yield the events of a piece of the answer."""
        if chunk.text:
            if self._open is None or self._call is not None:
                yield from self._close()
                yield from self._begin_text()
            part = self._part
            part["text"] += chunk.text
            part["logprobs"] += chunk.logprobs
            logprobs = list(chunk.logprobs)
            yield self._write_part_event("output_text.delta", delta=chunk.text, logprobs=logprobs)
        for piece in chunk.tool_calls:
            if self._open is None or self._call != piece["index"]:
                yield from self._close()
                yield from self._begin_call(piece)
            if arguments := piece.get("function", {}).get("arguments"):
                self._arguments += arguments
                if self._item["type"] == "function_call":
                    yield self._write_item_event("function_call_arguments.delta", delta=arguments)

    def end(self, finished: Finished) -> Iterator[Document]:
        """Yield the events of the end of the answer."""
        if self._open is None and not self.document["output"]:
            yield from self._begin_text()
        reason = _INCOMPLETE.get(finished.finish_reasons[0])
        ending = "completed" if reason is None else "incomplete"
        yield from self._close(ending)
        cost = finished.execution.cost
        self.document["status"] = ending
        self.document["incomplete_details"] = None if reason is None else {"reason": reason}
        self.document["usage"] = {
            "input_tokens": cost.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": finished.cached_tokens,
                "cache_write_tokens": finished.cache_written_tokens,
            },
            "output_tokens": cost.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": cost.prompt_tokens + cost.completion_tokens,
        }
        self.document["agent"] = self._agent(finished)
        yield self._event(ending, response=self.document)

    def fail(self, failure: ApiError) -> Iterator[Document]:
        """Yield the event of a failure."""
        self.document["status"] = "failed"
        self.document["error"] = {"code": failure.shown_code, "message": failure.message}
        yield self._event("failed", response=self.document)

    def patch(self, event: Document) -> Document | None:
        """Return an event of a model as the client gets it."""
        if type(number := event.get("sequence_number")) is int:
            self._numbers = itertools.count(number + 1)
        if not isinstance(response := event.get("response"), dict):
            return event
        more = {"agent": self._agent(None)} if event.get("type") == "response.created" else {}
        return event | {"response": response | self._named | more}

    def close(self, held: list[Document], finished: Finished) -> Iterator[Document]:
        """Yield the event that ends a response, with the cost."""
        for event in held:
            response = event.get("response")
            if isinstance(response, dict):
                yield event | {
                    "response": self._annotate_response(response) | {"agent": self._agent(finished)}
                }
            else:
                yield event

    def whole(self, written: Choices, finished: Finished) -> Document:
        """Return a response."""
        for chunk in written.chunks():
            for _ in self.add(chunk):
                pass
        for _ in self.end(finished):
            pass
        return self.document

    def patch_whole(self, answer: Document, finished: Finished) -> Document:
        """Return the response of a model as the client gets it."""
        return self._annotate_response(dict(answer)) | self._named | {"agent": self._agent(finished)}

    def frame(self, event: Document) -> bytes:
        """Return an event as it is sent."""
        return write.write_named_event(event)

    @property
    def _named(self) -> dict[str, Any]:
        return {"id": f"{RESPONSE}{self._name}", "model": f"arm/{self._decided.served}"}

    def _annotate_response(self, response: Document) -> Document:
        """Return a response of a model with citations of the passages that it was shown."""
        if not self._decided.retrieval.passages:
            return response
        output = [*objects(response.get("output"))]
        for i, item in enumerate(output):
            if isinstance(parts := item.get("content"), list):
                output[i] = item | {"content": [self._annotate_part(part) for part in parts]}
        return response | {"output": output}

    def _annotate_part(self, part: Any) -> Any:
        text = part.get("text") if isinstance(part, dict) else None
        notes = self._cite(text) if isinstance(text, str) else []
        return part | {"annotations": [*objects(part.get("annotations")), *notes]} if notes else part

    def _cite(self, text: str) -> list[dict[str, Any]]:
        notes = cite_passages(text, self._decided, self._config)
        return [{"type": note.type, **vars(note.url_citation)} for note in notes]

    @property
    def _item(self) -> dict[str, Any]:
        assert self._open is not None
        return self._open

    @property
    def _part(self) -> dict[str, Any]:
        part: dict[str, Any] = self._item["content"][0]
        return part

    def _begin_text(self) -> Iterator[Document]:
        name = f"msg_{len(self.document['output'])}_{self._name}"
        item = {"id": name, "type": "message", "role": "assistant", "status": "in_progress"}
        yield from self._begin(item, None, {**item, "content": []})
        self._item["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
        yield self._write_part_event("content_part.added", part=self._part)

    def _begin_call(self, piece: Any) -> Iterator[Document]:
        name = piece.get("function", {}).get("name", "")
        self._tool = self._tools.get(name, translate.responses.ToolName("function", name, ""))
        item = translate.responses.call_item(self._tool, piece.get("id", ""), "")
        item = {"id": f"fc_{len(self.document['output'])}_{self._name}", **item, "status": "in_progress"}
        self._arguments = ""
        yield from self._begin(item, piece["index"], dict(item))

    def _begin(self, item: dict[str, Any], call: int | None, shown: dict[str, Any]) -> Iterator[Document]:
        """Yield the event of an item that begins, as it is shown there."""
        self._open, self._call = item, call
        self.document["output"].append(item)
        yield self._write_output_event("output_item.added", item=shown)

    def _close(self, status: str = "completed") -> Iterator[Document]:
        """Yield the events of the end of the item that is being written."""
        item = self._open
        if item is None:
            return
        item["status"] = status
        if self._call is None:
            part = self._part
            for i, flat in enumerate(self._cite(part["text"])):
                part["annotations"].append(flat)
                yield self._write_part_event(
                    "output_text.annotation.added", annotation_index=i, annotation=flat
                )
            yield self._write_part_event("output_text.done", text=part["text"], logprobs=part["logprobs"])
            yield self._write_part_event("content_part.done", part=part)
        else:
            item |= translate.responses.call_item(self._tool, item["call_id"], self._arguments)
            if item["type"] == "function_call":
                named = {"arguments": item["arguments"], "name": item["name"]}
                yield self._write_item_event("function_call_arguments.done", **named)
            elif item["type"] == "custom_tool_call":
                yield self._write_item_event("custom_tool_call_input.delta", delta=item["input"])
                yield self._write_item_event("custom_tool_call_input.done", input=item["input"])
        yield self._write_output_event("output_item.done", item=item)
        self._open = None

    def _write_part_event(self, kind: str, **fields: Any) -> Document:
        return self._write_item_event(kind, content_index=0, **fields)

    def _write_item_event(self, kind: str, **fields: Any) -> Document:
        return self._write_output_event(kind, item_id=self._item["id"], **fields)

    def _write_output_event(self, kind: str, **fields: Any) -> Document:
        return self._event(kind, output_index=len(self.document["output"]) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> Document:
        return {"type": f"response.{kind}", "sequence_number": next(self._numbers), **fields}


@router.post(
    "/v1/responses",
    **document_route(
        "createResponse",
        ResponseObject,
        *ANSWER,
        scopes=("decide",),
        success=SUCCESS,
        example={"model": "auto", "input": "What is a heap?"},
    ),
)
async def respond(
    request: Request,
    replica: AppReplica,
    caller: RequestCaller,
    body: ResponsesRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Answer as chat does, in the format of OpenAI's Responses API."""
    if body.background and caller.limits.counts_tokens:  # nobody would count them
        message = "this key has a limit, and what is written in the background is not counted: stream it"
        raise ApiError("unsupported_parameter", message, "background")
    limit = replica.config.limits.completion_tokens
    if body.max_output_tokens is not None and body.max_output_tokens > limit:
        message = f"{body.max_output_tokens} tokens were requested; the limit is {limit}"
        raise ApiError("invalid_value", message, "max_output_tokens")
    document, previous = await _find_previous(replica, caller, request.state.document)
    asked = read.describe("responses", document, body, len(await request.body()), request.headers)
    asked = replace(asked, previous=previous)
    ask = await read.read_ask(replica, caller, asked, key, param="input")
    returns = body.agent.returns
    make = partial(ResponseWriter, config=replica.config, returns=returns, request=asked.request.body)
    return await write.answer(request, replica, caller, ask, key, timeout_s, make)


async def _find_previous(
    replica: Replica, caller: Caller, document: Document
) -> tuple[Document, read.Previous | None]:
    """Return a request with the provider's id of the response that it continues, and what is known of that.

    The id that a client knows names the decision; only a decision of the same caller counts.
    """
    name = document.get("previous_response_id")
    if not isinstance(name, str) or not name.startswith(RESPONSE):
        return document, None
    record = None
    tolerated = LOG_UNUSABLE if replica.outage.answers else ()
    with suppress(ForeignIdError, UnloggedIdError, *tolerated):
        decision_id = caller.to_stored_id(name.removeprefix(RESPONSE))
        record = await replica.outage.ask(partial(asyncio.to_thread, replica.store.record, decision_id))
    if record is None or record.execution is None or not record.execution.marks:
        return document, None
    if record.decision.asked_by != caller.identify(replica.store.draw_secret):
        return document, None
    arm = replica.turns.known.get(record.execution.served or "")
    if arm is None:
        return document, None
    upstream = document | {"previous_response_id": record.execution.marks[0]}
    cost = record.execution.cost
    tokens = cost.prompt_tokens + cost.completion_tokens
    return upstream, read.Previous(record.decision.context.question, arm.answering.llm, tokens)
