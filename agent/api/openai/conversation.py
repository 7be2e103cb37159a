"""A conversation as the language model reads it, its question, and the round of tools that it continues."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from agent.access import Caller, ForeignIdError
from agent.api.errors import ApiError
from agent.api.openai.schemas import ChatMessage
from agent.serving import Ask, Replica, choices
from arms.llm import Message


def question_of(messages: Sequence[ChatMessage]) -> tuple[str, list[ChatMessage]]:
    """Return the text of the last message of a user, and the messages after it. Raises ApiError."""
    for i in reversed(range(len(messages))):
        if messages[i].role == "user":
            return _text(messages[i], i), list(messages[i + 1 :])
    raise ApiError("invalid_value", "messages: none has the role 'user'", "messages")


def read_by_model(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Return the messages for the model, calls of functions under short names. Raises ApiError.

    Some endpoints refuse a long id, and some one that is not of nine letters and digits.
    """
    names: dict[str, str] = {}
    found = []
    for i, message in enumerate(messages):
        role = "system" if message.role == "developer" else message.role
        one = Message(role=role, content=_text(message, i))
        if message.role == "assistant" and message.tool_calls:
            calls = [call.model_dump() for call in message.tool_calls]
            for call in calls:
                call["id"] = names.setdefault(call["id"], f"call{len(names):05d}")
            one["tool_calls"] = calls
        if message.role == "tool":
            if message.tool_call_id not in names:
                known = f"{message.tool_call_id!r} is not a call of an earlier message"
                raise ApiError("invalid_value", known, f"messages.{i}.tool_call_id")
            one["tool_call_id"] = names[message.tool_call_id]
        found.append(one)
    return tuple(found)


def _text(message: ChatMessage, i: int) -> str:
    """Return the text of a message, its parts joined. Raises ApiError."""
    if message.content is None:
        if message.role != "assistant":
            raise ApiError(
                "invalid_value", f"a message of the role {message.role!r} has text", f"messages.{i}.content"
            )
        return ""
    if isinstance(message.content, str):
        return message.content
    texts = []
    for j, part in enumerate(message.content):
        if part.content is None:
            text = f"a part of the type {part.type!r} has no text, and the language model reads text alone"
            raise ApiError("unsupported_parameter", text, f"messages.{i}.content.{j}.type")
        texts.append(part.content)
    return "\n".join(texts)


async def in_its_round(
    replica: Replica, caller: Caller, ask: Ask, since: Sequence[ChatMessage], *, same_arm: bool
) -> Ask:
    """Return the question in the round of tools that it continues, if it does.

    A question whose answer may call functions begins an episode, named after its decision unless it has
    another name. A request with their results is of the same episode, and its arm is the one that answered
    before: it is forced, and not learned, as nothing was drawn. The ids of the calls name the decision.

    Args:
        replica: Reads the log.
        caller: Whose decision it must be.
        ask: The question.
        since: The messages after the question.
        same_arm: Whether the arm that answered before is forced.
    """
    results = [message.tool_call_id or "" for message in since if message.role == "tool"]
    named = [name for name in map(choices.decision_of_call, reversed(results)) if name]
    record = None
    if named:
        with suppress(ForeignIdError):
            record = await asyncio.to_thread(replica.store.record, caller.stored(named[0]))
    if record is None or record.decision.context.question != ask.question:
        begins = bool(ask.options.get("tools")) and ask.episode_id is None
        return replace(ask, episode_id=ask.decision_id) if begins else ask
    decision, execution = record.decision, record.execution
    ask = replace(ask, episode_id=ask.episode_id or decision.episode_id)
    arm = (execution and execution.served) or decision.drawn
    info = replica.turns.arms.get(arm)
    allowed = ask.allowed is None or arm in ask.allowed
    if ask.forced or not same_arm or info is None or not info.enabled or arm in ask.excluded or not allowed:
        return ask
    return replace(ask, forced=arm, continues=decision.id)
