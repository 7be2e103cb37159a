"""`/v1/chat/completions`: check a question, run its turn and answer."""

from typing import Any

from fastapi import APIRouter, Response

from agent.access import Caller
from agent.api import asking, responses
from agent.api.documented import ANSWER, documented, link
from agent.api.errors import ApiError
from agent.api.middleware import AppReplica, RequestCaller
from agent.api.openai import conversation, options, replies
from agent.api.openai.schemas import ChatRequest, Sampling
from agent.api.replies import answers
from agent.api.schemas import IdempotencyKey, Timeout
from agent.serving import Ask, Replica

router = APIRouter(tags=["answers"])

SUCCESS = {
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
    "headers": answers.HEADERS,
    **link("getDecision", decision_id="$response.header.x-decision-id"),
}
"""What the document says of an answer besides its model."""


@router.post(
    "/v1/chat/completions",
    **documented(
        "createChatCompletion",
        answers.Completion,
        *ANSWER,
        scopes=("decide",),
        success=SUCCESS,
        example={"model": "auto", "messages": [{"role": "user", "content": "What is a heap?"}]},
    ),
)
async def chat(
    replica: AppReplica,
    caller: RequestCaller,
    body: ChatRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Answer a question: decide, retrieve, generate; server-sent events with `stream`."""
    replica, caller = asking.at_model(replica, caller, body.model)
    ask = await ask_of(replica, caller, body, key)
    events = asking.events_of(replica, caller, ask, key, timeout_s)
    if body.stream:
        first = await asking.begun(events)
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        stream = replies.sse(first, events, replica.config, returns=body.agent.returns, include_usage=usage)
        return responses.EventStream(stream, headers=responses.headers(first.decision, first.served))
    decided, written, finished = await asking.whole(events)
    return replies.completion(decided, written, finished, replica.config, body.agent.returns)


async def ask_of(replica: Replica, caller: Caller, body: ChatRequest, key: str | None) -> Ask:
    """Return the turn that a chat asks for. Raises ApiError."""
    question, since = conversation.question_of(body.messages)
    ask = asking.ask_of(
        replica,
        caller,
        question,
        body,
        key,
        messages=conversation.read_by_model(body.messages),
        options=options.asked_of(
            replica.config, options.of_chat(body), asking.forced_arm(replica, body.model)
        ),
        **sampling_of(replica, body, "max_completion_tokens", body.max_completion_tokens),
    )
    return await conversation.in_its_round(replica, caller, ask, since, same_arm=body.agent.same_arm)


def sampling_of(
    replica: Replica, body: Sampling, param: str = "max_tokens", tokens: int | None = None
) -> dict[str, Any]:
    """Return how the model samples an answer, as `Ask` has it. Raises ApiError.

    Args:
        replica: Has the limits.
        body: The request.
        param: The field that `tokens` came from.
        tokens: The longest answer; None for `max_tokens` of the request, or that of the arm.
    """
    limit = replica.config.limits.completion_tokens
    max_tokens = tokens or body.max_tokens or None
    if max_tokens is not None and max_tokens > limit:
        message = f"{max_tokens} tokens were requested; the limit is {limit}"
        raise ApiError("invalid_value", message, param if tokens else "max_tokens")
    return {
        "max_tokens": max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "seed": body.seed,
        "stop": (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
    }
