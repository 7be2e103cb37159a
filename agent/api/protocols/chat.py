"""`/v1/chat/completions`: OpenAI's protocol, whole and as server-sent events."""

import re
import time
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from armwise.agent.access import Caller
from armwise.agent.api import responses
from armwise.agent.api.documented import ANSWER, document_route, link
from armwise.agent.api.doors import DocumentDoor
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.protocols import read, write
from armwise.agent.api.protocols.schemas import ChatRequest
from armwise.agent.api.schemas import IdempotencyKey, Timeout
from armwise.agent.config import AppConfig
from armwise.agent.replies import (
    Annotation,
    AnswerChoice,
    AnswerMessage,
    Completion,
    PromptTokens,
    UrlCitation,
    Usage,
    construct,
)
from armwise.agent.serving import Replica
from armwise.agent.turn import Ask, Choice, Choices, Decided, Finished
from armwise.arms.llm import Chunk, Document, object_at, objects, prompts, protocols, text_at, translate
from armwise.feedback.events import Decision

router = APIRouter(tags=["answers"], route_class=DocumentDoor)

SUCCESS = {
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
    "headers": responses.HEADERS,
    **link("getDecision", decision_id="$response.header.x-decision-id"),
}
"""What the document says of an answer besides its model."""

DONE = b"data: [DONE]\n\n"

FINISH_REASONS: Mapping[str, str] = {
    "refusal": "content_filter",
    "context_window": "length",
    "pause_turn": "stop",
}
"""Finish reasons of the protocol by those of a turn; others are the same."""


@router.post(
    "/v1/chat/completions",
    **document_route(
        "createChatCompletion",
        Completion,
        *ANSWER,
        scopes=("decide",),
        success=SUCCESS,
        example={"model": "auto", "messages": [{"role": "user", "content": "What is a heap?"}]},
    ),
)
async def chat(
    request: Request,
    replica: AppReplica,
    caller: RequestCaller,
    body: ChatRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Answer a question: decide, retrieve, generate; server-sent events with `stream`."""
    document: Document = request.state.document
    ask = await read_ask(replica, caller, document, body, key, len(await request.body()), request.headers)
    usage = object_at(document, "stream_options").get("include_usage") is True
    make = partial(ChatWriter, config=replica.config, returns=body.agent.returns, include_usage=usage)
    return await write.answer(request, replica, caller, ask, key, timeout_s, make, after=DONE)


async def read_ask(
    replica: Replica,
    caller: Caller,
    document: Document,
    sent: ChatRequest,
    key: str | None = None,
    size: int = 0,
    headers: Mapping[str, str] = read.NONE,
) -> Ask:
    """Return the turn that a chat asks for, whose body has `size` bytes. Raises ApiError, AskError."""
    limit = replica.config.limits.completion_tokens
    for param in translate.chat.LIMITS:
        if (asked := getattr(sent, param)) is not None and asked > limit:
            message = f"{asked} tokens were requested; the limit is {limit}"
            raise ApiError("invalid_value", message, param)
    described = read.describe("chat", document, sent, size, headers)
    return await read.read_ask(replica, caller, described, key)


def write_usage(finished: Finished) -> Usage:
    """Return the usage of a turn, as OpenAI has it."""
    raw, cached = finished.execution.cost, finished.cached_tokens
    details = construct(PromptTokens, cached_tokens=cached)
    return construct(
        Usage,
        prompt_tokens=raw.prompt_tokens,
        completion_tokens=raw.completion_tokens,
        total_tokens=raw.prompt_tokens + raw.completion_tokens,
        **({"prompt_tokens_details": details} if cached else {}),
    )


class ChatWriter(write.Writer):
    """Writes a chat completion.

    Args:
        decided, config, returns: As of `Writer`.
        include_usage: Whether a stream ends with the usage.
    """

    protocol = "chat"
    ping = b": the model has written nothing yet\n\n"

    def __init__(
        self, decided: Decided, config: AppConfig, returns: Collection[str], *, include_usage: bool
    ) -> None:
        super().__init__(decided, config, returns)
        self._include_usage = include_usage
        self._written, self._begun = Choices(), False
        self._frame = _frame(decided.decision, decided.served, "chat.completion.chunk")

    def begin(self) -> Iterator[Document]:
        """Yield the first event, with the decision."""
        begun = {"role": "assistant", "content": ""}
        yield self._frame | {"choices": [_choice(begun, None)], "agent": self._agent(None)}

    def add(self, chunk: Chunk) -> Iterator[Document]:
        """Yield the event of a piece of the answer."""
        if chunk.text or chunk.tool_calls or chunk.logprobs or chunk.reasoning:
            self._written.add(chunk)
            yield self._frame | {"choices": [_delta(chunk)]}

    def end(self, finished: Finished) -> Iterator[Document]:
        """Yield an event for each choice with its finish reason, the last one with the cost."""
        ends = []
        for i, reason in enumerate(finished.finish_reasons):
            notes = self._notes(i)
            delta = {"annotations": notes} if notes else {}
            ends.append(self._frame | {"choices": [_choice(delta, FINISH_REASONS.get(reason, reason), i)]})
        ends[-1]["agent"] = self._describe_choice(finished)
        yield from ends
        if self._include_usage:
            yield self._frame | {"choices": [], "usage": write_usage(finished)}

    def fail(self, failure: ApiError) -> Iterator[Document]:
        """Yield the event of a failure."""
        yield vars(failure.envelope(None))

    def patch(self, event: Document) -> Document | None:
        """Return an event of a model as the client gets it."""
        if not event.get("choices") and event.get("usage") is not None and not self._include_usage:
            return None
        if self._decided.retrieval.passages:
            for choice in objects(event.get("choices")):
                if text := text_at(object_at(choice, "delta"), "content"):
                    self._written.add(Chunk(text, index=protocols.chat.read_index(choice)))
        patched = event | {"id": self._frame["id"], "model": self._frame["model"]}
        if self._begun:
            return patched
        self._begun = True
        return patched | {"agent": self._agent(None)}

    def close(self, held: list[Document], finished: Finished) -> Iterator[Document]:
        """Yield the events that end an answer, the last one of a choice with the cost."""
        if self._decided.retrieval.passages:
            for event in held:
                event["choices"] = [*map(self._annotate_end, objects(event.get("choices")))]
        if held:
            held[-1]["agent"] = self._describe_choice(finished)
        yield from held

    def whole(self, written: Choices, finished: Finished) -> Completion:
        """Return a chat completion."""
        return construct(
            Completion,
            **_frame(self._decided.decision, self._decided.served, "chat.completion"),
            choices=[
                construct(
                    AnswerChoice,
                    index=i,
                    message=self._message(choice),
                    finish_reason=FINISH_REASONS.get(choice.finish_reason or "", choice.finish_reason),
                    logprobs=_logprobs(choice.logprobs),
                )
                for i, choice in enumerate(written.all)
            ],
            usage=write_usage(finished),
            agent=self._agent(finished),
        )

    def patch_whole(self, answer: Document, finished: Finished) -> Document:
        """Return the completion of a model as the client gets it."""
        patched = dict(answer) | {"id": self._frame["id"], "model": self._frame["model"]}
        if self._decided.retrieval.passages:
            patched["choices"] = [*map(self._annotate_choice, objects(answer.get("choices")))]
        return patched | {"agent": self._agent(finished)}

    def frame(self, event: Document) -> bytes:
        """Return an event as it is sent."""
        return write.write_event(event)

    def _annotate_end(self, choice: Document) -> Document:
        """Return a choice of an event with the citations of the answer, if it ends there."""
        notes = self._notes(protocols.chat.read_index(choice)) if choice.get("finish_reason") else []
        return choice | {"delta": object_at(choice, "delta") | {"annotations": notes}} if notes else choice

    def _annotate_choice(self, choice: Document) -> Document:
        message = object_at(choice, "message")
        notes = self._cite(translate.chat.read_text(message.get("content")))
        return choice | {"message": message | {"annotations": notes}} if notes else choice

    def _cite(self, text: str) -> list[Annotation]:
        return cite_passages(text, self._decided, self._config)

    def _notes(self, index: int) -> list[Annotation]:
        return self._cite(self._written.all[index].text) if index < len(self._written.all) else []

    def _message(self, choice: Choice) -> AnswerMessage:
        notes = self._cite(choice.text)
        more: dict[str, Any] = {
            **({"reasoning_content": choice.reasoning} if choice.reasoning else {}),
            **({"tool_calls": choice.tool_calls} if choice.tool_calls else {}),
            **({"annotations": notes} if notes else {}),
        }
        content = None if choice.tool_calls and not choice.text else choice.text
        return construct(AnswerMessage, role="assistant", content=content, **more)


def _frame(decision: Decision, served: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{decision.id}",
        "object": kind,
        "created": read_decision_time(decision),
        "model": f"arm/{served}",
    }


def read_decision_time(decision: Decision) -> int:
    """Return when a decision was made, in seconds since the epoch."""
    return int(decision.decided_at or time.time())


def _delta(chunk: Chunk) -> dict[str, Any]:
    delta: dict[str, Any] = {"content": chunk.text} if chunk.text else {}
    if chunk.reasoning:
        delta["reasoning_content"] = chunk.reasoning
    if chunk.tool_calls:
        delta["tool_calls"] = list(chunk.tool_calls)
    return _choice(delta, None, chunk.index, chunk.logprobs)


def _choice(
    delta: Mapping[str, Any],
    finish_reason: str | None,
    index: int = 0,
    logprobs: Collection[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a part of an answer of a stream."""
    return {
        "index": index,
        "delta": delta,
        "finish_reason": finish_reason,
        "logprobs": _logprobs(logprobs),
    }


def _logprobs(logprobs: Collection[Mapping[str, Any]]) -> dict[str, Any] | None:
    return {"content": list(logprobs), "refusal": None} if logprobs else None


_MARKER = re.compile(r"\[(\d{1,3})\]")


def cite_passages(text: str, decided: Decided, config: AppConfig) -> list[Annotation]:
    """Return a citation for each number of a shown passage in an answer: `[1]` is the first one.

    Args:
        text: The answer.
        decided: What was retrieved for it, best first, and the arm that answers.
        config: Says how much of the passages the model was shown.
    """
    markers, passages = list(_MARKER.finditer(text)), decided.retrieval.passages
    words = config.find_answering(decided.served).word_budget
    shown = sum(1 for _ in prompts.number_passages(passages, words)) if markers else 0
    return [
        construct(
            Annotation,
            type="url_citation",
            url_citation=construct(
                UrlCitation,
                start_index=marker.start(),
                end_index=marker.end(),
                title=passages[number - 1].cited,
                url=name_source(passages[number - 1].id, config),
            ),
        )
        for marker in markers
        if 1 <= (number := int(marker[1])) <= shown
    ]


def name_source(passage_id: str, config: AppConfig) -> str:
    """Return the id of a passage where it is a URL, else a name that is unique."""
    corpus, local_id = config.locate_passage(passage_id)
    if local_id[:8].lower().startswith(("https://", "http://")):  # a scheme has no case
        return local_id
    return ":".join(["urn:armwise", *(quote(part, safe="") for part in (corpus, local_id) if part)])
