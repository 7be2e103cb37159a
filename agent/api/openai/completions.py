"""`/v1/completions`: the older form of chat, a text in and a text out."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from armwise.agent.api import responses
from armwise.agent.api.documented import ANSWER, documented
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import RequestCaller, RequestPoint, at_model
from armwise.agent.api.openai import chat
from armwise.agent.api.openai.schemas import CompletionRequest
from armwise.agent.api.schemas import IdempotencyKey, Timeout
from armwise.agent.replies import Agent, Reply, Usage, construct
from armwise.agent.serving import ask as asking
from armwise.agent.turn import Decided, Event, Finished
from armwise.arms.llm import Chunk, Message
from armwise.feedback.events import Decision
from armwise.feedback.reward import Prices

router = APIRouter(tags=["answers"])


class TextChoice(Reply):
    """An answer."""

    index: int
    text: str
    finish_reason: str | None = Field(description="`stop` or `length`.")
    logprobs: None


class TextCompletion(Reply):
    """A completion of a text."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str = Field(description="`arm/<name>`: the arm that answered.")
    choices: list[TextChoice]
    usage: Usage
    agent: Agent


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
        TextCompletion,
        *ANSWER,
        scopes=("decide",),
        success=chat.SUCCESS,
        example={"model": "auto", "prompt": "What is a heap?"},
    ),
)
async def completions(
    request: Request,
    point: RequestPoint,
    caller: RequestCaller,
    body: CompletionRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Answer a prompt as chat answers the message of a user."""
    point, caller = at_model(point, caller, body.model)
    prompt = _prompt(body)
    ask = asking.check_ask(
        point,
        caller,
        prompt,
        body,
        key,
        "prompt",
        messages=(Message(role="user", content=prompt),),
        options=chat.options_asked(point, body.model, chat.options_of_sampling(body)),
        **chat.read_sampling(point, body),
    )
    events = asking.stream_turn(point, caller, ask, key, timeout_s)
    if body.stream:
        first = await asking.begun(events)
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        stream = _sse(first, events, point.config.reward.cost, include_usage=usage)
        return responses.EventStream(stream, events, responses.headers(first.decision, first.served))
    answering = asking.whole(events)  # under a key, it can be asked for again
    decided, written, finished = await (answering if key else responses.unless_left(request, answering))
    reply = construct(
        TextCompletion,
        **_frame(decided.decision, decided.served),
        choices=[_choice(i, choice.text, choice.finish_reason) for i, choice in enumerate(written.all)],
        usage=chat.usage(finished),
        agent=responses.agent(decided, finished, point.config.reward.cost, body.agent.returns),
    )
    return responses.Json(reply, headers=responses.headers(decided.decision, decided.served, finished))


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
    first: Decided, events: AsyncGenerator[Event, None], prices: Prices, *, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events: the answer, then its cost."""
    frame = _frame(first.decision, first.served)
    async with aclosing(events):
        try:
            async for turn_event in events:
                if isinstance(turn_event, Chunk) and turn_event.text:
                    yield chat.event(frame | {"choices": [_choice(turn_event.index, turn_event.text, None)]})
                elif isinstance(turn_event, Finished):
                    extension = responses.chosen(first.decision, first.served, turn_event, prices)
                    ends = [_choice(i, "", reason) for i, reason in enumerate(turn_event.finish_reasons)]
                    yield chat.event(frame | {"choices": ends, "agent": extension})
                    if include_usage:
                        yield chat.event(frame | {"choices": [], "usage": chat.usage(turn_event)})
        except Exception as error:  # noqa: BLE001 - the status was sent already: it is sent as an event
            yield chat.event(chat.failed(error).envelope(None))
    yield chat.DONE


def _frame(decision: Decision, served: str) -> dict[str, Any]:
    return {
        "id": f"cmpl-{decision.id}",
        "object": "text_completion",
        "created": chat.created(decision),
        "model": f"arm/{served}",
    }


def _choice(index: int, text: str, finish_reason: str | None) -> TextChoice:
    return construct(TextChoice, index=index, text=text, finish_reason=finish_reason, logprobs=None)
