"""`/v1/chat/completions`: check a question, run its turn and answer."""

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from agent.api import asking, responses
from agent.api.errors import RESPONSES, ApiError
from agent.api.middleware import AppReplica, RequestCaller, require
from agent.api.schemas import ChatRequest, IdempotencyKey, Timeout
from agent.serving import Decided
from arms.llm import Message

router = APIRouter(responses=RESPONSES)


@router.post(
    "/v1/chat/completions",
    responses={200: {"content": {"text/event-stream": {}}}},
    dependencies=[require("decide")],
)
async def chat(
    replica: AppReplica,
    caller: RequestCaller,
    body: ChatRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Answer: decide, retrieve, generate; server-sent events with `stream`."""
    question = next((m.text for m in reversed(body.messages) if m.role == "user"), None)
    if question is None:
        raise ApiError("invalid_value", "messages: none has the role 'user'", "messages")
    answering, limits = replica.config.answering, replica.config.limits
    max_tokens = body.max_completion_tokens or body.max_tokens or answering.max_tokens
    if max_tokens > limits.completion_tokens:
        message = f"{max_tokens} tokens were requested; the limit is {limits.completion_tokens}"
        param = "max_completion_tokens" if body.max_completion_tokens else "max_tokens"
        raise ApiError("invalid_value", message, param)
    ask = asking.ask_of(
        replica,
        caller,
        question,
        body,
        key,
        messages=tuple(_message(m.role, m.text) for m in body.messages),
        k=answering.passages,
        max_tokens=max_tokens,
        temperature=answering.temperature if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
    )
    events = asking.events_of(replica, caller, ask, key, timeout_s)
    if body.stream:
        first = await anext(events)
        assert isinstance(first, Decided)
        usage = body.stream_options is not None and body.stream_options.include_usage
        stream = responses.sse(first, events, replica.config, returns=body.agent.returns, include_usage=usage)
        headers = responses.headers(first.decision, first.served)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)
    decided, text, finished = await asking.whole(events)
    return responses.completion(decided, text, finished, replica.config, body.agent.returns)


def _message(role: str, text: str) -> Message:
    return Message(role="system" if role == "developer" else role, content=text)  # type: ignore[typeddict-item]
