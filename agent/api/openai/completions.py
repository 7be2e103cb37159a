"""`/v1/completions`: the older form of chat, a text in and a text out."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Response

from agent.api import asking, responses
from agent.api.documented import ANSWER, documented
from agent.api.errors import ApiError
from agent.api.middleware import AppReplica, RequestCaller
from agent.api.openai import chat, options, replies
from agent.api.openai.schemas import CompletionRequest
from agent.api.replies import openai
from agent.api.schemas import IdempotencyKey, Timeout
from agent.config import AppConfig
from agent.serving import Decided, Finished, messages
from arms.llm import Chunk, Message
from feedback.events import Decision

router = APIRouter(tags=["answers"])

_ONLY_TEXT = {
    "echo": "the prompt is not returned",
    "suffix": "nothing is inserted into a text",
    "best_of": "name `n`",
    "logprobs": "`/v1/chat/completions` has them",
}


@router.post(
    "/v1/completions",
    **documented(
        "createCompletion",
        openai.TextCompletion,
        *ANSWER,
        scopes=("decide",),
        success=chat.SUCCESS,
        example={"model": "auto", "prompt": "What is a heap?"},
    ),
)
async def completions(
    replica: AppReplica,
    caller: RequestCaller,
    body: CompletionRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Answer a prompt as chat answers the message of a user."""
    replica, caller = asking.at_model(replica, caller, body.model)
    prompt = _prompt(body)
    ask = asking.ask_of(
        replica,
        caller,
        prompt,
        body,
        key,
        "prompt",
        messages=(Message(role="user", content=prompt),),
        options=options.asked_of(
            replica.config, options.of_sampling(body), asking.forced_arm(replica, body.model)
        ),
        **chat.sampling_of(replica, body),
    )
    events = asking.events_of(replica, caller, ask, key, timeout_s)
    if body.stream:
        first = await asking.begun(events)
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        stream = _sse(first, events, replica.config, include_usage=usage)
        return responses.EventStream(stream, headers=responses.headers(first.decision, first.served))
    decided, written, finished = await asking.whole(events)
    reply = _completion(decided.decision, decided.served) | {
        "choices": [_choice(i, one.text, one.finish_reason) for i, one in enumerate(written.all)],
        "usage": replies.usage(finished.execution.cost),
        "agent": responses.extended(decided, finished.execution.cost, replica.config, body.agent.returns),
    }
    return responses.Json(reply, headers=responses.headers(decided.decision, decided.served))


def _prompt(body: CompletionRequest) -> str:
    """Return the one text of a prompt. Raises ApiError."""
    for name, why in _ONLY_TEXT.items():
        value = getattr(body, name)
        if value and (name, value) != ("best_of", 1):
            raise ApiError("unsupported_parameter", f"{name!r} is not supported: {why}", name)
    if isinstance(body.prompt, str):
        return body.prompt
    if len(body.prompt) != 1 or not isinstance(body.prompt[0], str):
        message = "prompt: one text was expected; send a request for each, and no tokens"
        raise ApiError("unsupported_parameter", message, "prompt")
    return body.prompt[0]


async def _sse(
    first: Decided, events: AsyncGenerator[messages.Event, None], config: AppConfig, *, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events: the answer, then its cost."""
    frame = _completion(first.decision, first.served)
    async with aclosing(events):
        try:
            async for found in events:
                if isinstance(found, Chunk) and found.text:
                    yield replies.event(frame | {"choices": [_choice(found.index, found.text, None)]})
                elif isinstance(found, Finished):
                    raw = found.execution.cost
                    extension = responses.agent(first.decision, first.served, raw, config)
                    ends = [_choice(i, "", reason) for i, reason in enumerate(found.finish_reasons)]
                    yield replies.event(frame | {"choices": ends, "agent": extension})
                    if include_usage:
                        yield replies.event(frame | {"choices": [], "usage": replies.usage(raw)})
        except Exception as error:  # noqa: BLE001 - the status was sent already: it is sent as an event
            yield replies.event(replies.failed(error).body(None))
    yield replies.DONE


def _completion(decision: Decision, served: str) -> dict[str, Any]:
    return {
        "id": f"cmpl-{decision.id}",
        "object": "text_completion",
        "created": replies.created(decision),
        "model": f"arm/{served}",
    }


def _choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": finish_reason, "logprobs": None}
