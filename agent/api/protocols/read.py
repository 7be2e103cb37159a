"""Read what a request asks for: the question of its conversation, its limits, and what could answer it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from armwise.agent.access import Caller
from armwise.agent.api import question, request_fields, sessions
from armwise.agent.api.errors import ApiError
from armwise.agent.api.protocols.conversation import continue_conversation
from armwise.agent.api.protocols.schemas import ChatRequest, MessagesRequest, ResponsesRequest
from armwise.agent.api.schemas import AgentOptions
from armwise.agent.serving import Replica
from armwise.agent.turn import Ask, RequestDocument
from armwise.arms.large import call_beside
from armwise.arms.llm import (
    PROTOCOLS,
    Document,
    Message,
    Needs,
    ProtocolName,
    Request,
    object_at,
    objects,
    protocols,
    read_needs,
    storable,
    text_at,
    translate,
    write_document,
)

NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Previous:
    """An earlier answer, which its provider keeps.

    Attributes:
        question: The question that was answered.
        llm: The language model that answered.
        tokens: Tokens that it read and wrote for that.
    """

    question: str
    llm: str
    tokens: int


@dataclass(frozen=True, slots=True)
class SentRequest:
    """The fields of a request that every door has.

    Attributes:
        request: The request.
        model: The model that it names.
        agent: Fields beyond those of the protocol.
        streams: Whether the answer is read as it is written.
        headers: Headers that a model of the same protocol is sent.
        previous: The answer that it continues, which its provider keeps.
        sent_headers: Headers of the request, which may name its session and a cost weight.
    """

    request: Request
    model: str
    agent: AgentOptions
    streams: bool
    headers: Mapping[str, str] = field(default_factory=dict)
    previous: Previous | None = None
    sent_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def user(self) -> str | None:
        """The end user."""
        return text_at(self.request.chat, "user") or None


def describe(
    protocol: ProtocolName,
    document: Document,
    sent: ChatRequest | MessagesRequest | ResponsesRequest,
    size: int = 0,
    sent_headers: Mapping[str, str] = NONE,
    headers: Mapping[str, str] = NONE,
) -> SentRequest:
    """Return what every door reads of a request, whose body has `size` bytes."""
    passed = {name: value for name, value in document.items() if name != "agent"}
    return SentRequest(
        request=Request(protocol, passed, size),
        model=sent.model,
        agent=sent.agent,
        streams=sent.stream,
        headers=headers,
        sent_headers=sent_headers,
    )


async def read_ask(
    replica: Replica,
    caller: Caller,
    asked: SentRequest,
    key: str | None,
    *,
    param: str = "messages",
) -> Ask:
    """Return the turn that a request asks for. Raises ApiError, AskError.

    Args:
        replica: Answers it.
        caller: Who asks.
        asked: The request.
        key: Idempotency key of the request.
        param: The field that holds the conversation.
    """
    read = partial(_read_ask, replica, caller, asked, key, param)
    ask, since, marks = await call_beside(asked.request.size, read)
    return await continue_conversation(replica, caller, ask, since, marks, same_arm=asked.agent.same_arm)


def _read_ask(
    replica: Replica, caller: Caller, asked: SentRequest, key: str | None, param: str
) -> tuple[Ask, Sequence[Message], list[str]]:
    """Return the turn of a request, the messages after its question, and its marks of earlier answers."""
    request, form = asked.request, asked.request.chat
    protocol = PROTOCOLS[request.protocol]
    messages = protocols.chat.read_messages(form)
    turns = [(message["role"], message["content"]) for message in messages]
    most = replica.config.limits.question_chars
    found = question.read_question(turns, most, quotes=not caller.groups)
    options = protocols.chat.read_options(form)
    text = found.text
    if not text.strip():
        text = asked.previous.question if asked.previous else _unwritten(form, quotes=not caller.groups)
    most_read = 0
    if caller.limits.counts_tokens:
        most_read = len(write_document(request.body)) + (asked.previous.tokens if asked.previous else 0)
    needs = read_needs(request, options)
    arms = _arms_asked(replica, asked.model)
    check_needs(replica, needs, arms, param)
    if not any(needs.protocol in replica.turns.arms[arm].protocols for arm in arms):
        _check_options(form, options)
    ask = request_fields.check_ask(
        replica,
        caller,
        storable(text)[:most],
        asked.model,
        asked.agent,
        key,
        param,
        sent=b"" if key is None else _identify(asked),
        user=asked.user,
        session=sessions.read_session(request, asked.sent_headers),
        has_tools=bool(options.get("tools")),
        cost_weight=asked.sent_headers.get(request_fields.COST_WEIGHT),
        messages=messages or (Message(role="user", content=text),),  # its provider has what was said
        document=RequestDocument(
            max_tokens=protocol.read_limit(request.body),
            temperature=_number(form.get("temperature")),
            top_p=_number(form.get("top_p")),
            seed=form["seed"] if type(form.get("seed")) is int else None,
            stop=_stops(form.get("stop")),
            options=options,
            request=request,
            most_read=most_read,
            needs=needs,
            streams=asked.streams,
            limited=caller.limits.counts_tokens,
            headers=asked.headers,
        ),
    )
    if asked.previous is not None:  # another model does not have what it refers to
        infos = replica.turns.arms.items()
        same = {name for name, info in infos if info.answering.llm == asked.previous.llm}
        ask = replace(ask, allowed=frozenset(same if ask.allowed is None else same & ask.allowed))
    return ask, messages[found.at + 1 :], protocol.read_marks(request.body)


def _identify(asked: SentRequest) -> bytes:
    """Return what distinguishes a request from another one: a field that is null is the same as none."""
    body = {name: value for name, value in asked.request.body.items() if value is not None}
    options = asked.agent.model_dump_json(exclude_defaults=True, warnings=False)
    weight = asked.sent_headers.get(request_fields.COST_WEIGHT, "")
    return write_document(body) + options.encode() + weight.encode()


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _stops(value: Any) -> tuple[str, ...]:
    given = value if isinstance(value, list) else [value]
    return tuple(text for text in given if isinstance(text, str) and text)


def _unwritten(form: Document, *, quotes: bool) -> str:
    """Return a question for a request in which no person wrote a text: the last text, or what is attached.

    Args:
        form: The request as a chat.
        quotes: Whether texts of the assistant and of tools are read, which may quote passages.
    """
    messages = [*objects(form.get("messages"))]
    texts = [
        read if quotes or text_at(message, "role") in ("system", "developer") else "[answer]"
        for message in messages
        if (read := translate.chat.read_text(message.get("content"))).strip()
    ]
    kinds = [text_at(part, "type") for message in messages for part in objects(message.get("content"))]
    return texts[-1] if texts else f"[{kinds[-1]}]" if kinds else ""


def _check_options(form: Document, options: Mapping[str, Any]) -> None:
    """Refuse what engines of this process and models of other protocols cannot be asked. Raises ApiError."""
    names = [protocols.chat.name_of_tool(tool) for tool in options.get("tools", ())]
    choice = form.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        name = protocols.chat.name_of_tool(choice)
        if name not in names:
            text = f"{name!r} is not a function of 'tools': {', '.join(names)}"
            raise ApiError("invalid_value", text, "tool_choice")
    if choice == "required" and not names:
        raise ApiError("invalid_value", "'required' needs 'tools'", "tool_choice")
    name, times = next(iter(Counter(names).most_common(1)), ("", 0))
    if times > 1:
        raise ApiError("invalid_value", f"two functions have the name {name!r}", "tools")
    response_format = object_at(form, "response_format")
    if response_format.get("type") == "json_schema" and "response_format" not in options:
        raise ApiError("invalid_value", "a JSON schema was expected", "response_format.json_schema")
    if options.get("top_logprobs") and not options.get("logprobs"):
        raise ApiError("invalid_value", "'top_logprobs' needs 'logprobs': true", "top_logprobs")


def _arms_asked(replica: Replica, model: str) -> list[str]:
    """Return the live arms of which a request's model may be one."""
    arms = replica.turns.arms
    forced, of_model = request_fields.find_model(replica, model)
    if forced is not None:
        return [forced] if forced in arms else []
    return [arm for arm in arms if of_model is None or arm in of_model]


def check_needs(replica: Replica, needs: Needs, arms: Sequence[str], param: str) -> None:
    """Raise ApiError for a request that none of some arms can answer; it names what could."""
    infos = replica.turns.arms
    lacking = {arm: infos[arm].missing(needs) for arm in arms}
    if not lacking or not all(lacking.values()):
        return
    what = min(lacking.values(), key=len)
    name = min(what)
    models = replica.config.models
    engines = " and ".join(sorted({repr(models[infos[arm].answering.llm].engine) for arm in arms}))
    if what & needs.inputs:
        kinds = " and ".join(f"{kind}s" for kind in sorted(what & needs.inputs))
        text = f"the language model reads no {kinds}: the engine {engines} has no such `inputs`"
    else:
        text = f"the engine {engines} of the language model does not support {name!r}"
        param = _FIELDS.get(name, name)
    able = [arm for arm, info in infos.items() if not info.missing(needs)]
    also = sorted(spec.engine for spec in models.values() if spec.protocol == needs.protocol)
    if able:
        text += f"; these arms could: {', '.join(able)}"
    elif needs.protocol and not also:
        text += f"; an arm with a model of the engine {_ENGINES[needs.protocol]!r} could"
    raise ApiError("unsupported_parameter", text, param)


_FIELDS = {
    "audio_output": "modalities",
    "item_reference": "input",
    **dict.fromkeys(protocols.needs.HARD_TOOLS, "tools"),
}
"""Fields of a request by what it needs; others are called the same."""

_ENGINES = {"chat": "openai", "messages": "anthropic", "responses": "responses"}
