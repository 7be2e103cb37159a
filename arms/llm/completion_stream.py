"""The stream of a chat completion of OpenAI's protocol, as it is read from an endpoint that is not trusted.

An endpoint that does not stream sends one object, which is read as the only event. Each event is read by a
model with types and limits. What is complete is an answer, whatever stands beside it; anything else is an
`UpstreamError`, which names the field and has no text of the endpoint.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator
from typing_extensions import override

from armwise.arms.llm.base import Chunk
from armwise.arms.upstream import UpstreamError

CHARACTERS_PER_TOKEN = 4
"""Estimate for English text, for endpoints that report no usage."""

CHARACTERS_OF_A_TOKEN, CHARACTERS_BESIDE = 32, 10_000
"""Characters of a choice that are read for each token that it may have, and beside these."""

UNLIMITED_TOKENS = 100_000
"""Tokens that a choice may have where the request has no limit of them."""

HIDDEN_TOKENS = 100_000
"""Tokens that an endpoint may read and write beside what is seen: instructions of its own, and reasoning."""

MOST_CALLS = 128
"""Functions that a choice may call."""

LENGTHS = frozenset(("length", "max_tokens", "MAX_TOKENS", "max_output_tokens"))
"""Finish reasons of an answer that has reached its limit of tokens."""

DONE = b"[DONE]"
"""Data of the last event."""


class _Part(BaseModel):
    """A part of an event; fields that are not named here are left out."""

    model_config = ConfigDict(strict=True, frozen=True)


class _TopLogprob(_Part):
    token: str
    bytes: Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(max_length=1024)] | None = None
    logprob: FiniteFloat


class _Logprob(_TopLogprob):
    top_logprobs: Annotated[list[_TopLogprob], Field(max_length=20)] = []


class _Logprobs(_Part):
    content: list[_Logprob] | None = None


class _Function(_Part):
    name: Annotated[str, Field(max_length=256)] | None = None
    arguments: str | None = None


class _Call(_Part):
    index: int | None = None
    id: Annotated[str, Field(max_length=256)] | None = None
    function: _Function | None = None


class _Delta(_Part):
    content: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[_Call], Field(max_length=MOST_CALLS)] | None = None


class _Choice(_Part):
    index: Annotated[int, Field(ge=0)] | None = None
    delta: _Delta | None = None
    message: _Delta | None = None  # in the place of `delta` where the answer is sent whole
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Event(_Part):
    choices: Annotated[list[_Choice], Field(max_length=MOST_CALLS)] | None = None
    usage: Any = None
    error: Any = None


class _CachedTokens(_Part):
    cached_tokens: Annotated[int, Field(ge=0)] | None = None


class ReportedUsage(_Part):
    """What an endpoint says that it has read and written.

    Attributes:
        prompt_tokens: Tokens read.
        completion_tokens: Tokens written, in all choices.
        prompt_tokens_details: Those of them that it had read before.
        prompt_cache_hit_tokens: The same in the field of DeepSeek's API, which has no details.
    """

    prompt_tokens: Annotated[int, Field(ge=0)]
    completion_tokens: Annotated[int, Field(ge=0)]
    prompt_tokens_details: _CachedTokens | None = None
    prompt_cache_hit_tokens: Annotated[int, Field(ge=0)] | None = None

    @property
    def cached_tokens(self) -> int:
        """Tokens that were read from the cache of the endpoint."""
        details = self.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            return details.cached_tokens
        return self.prompt_cache_hit_tokens or 0

    @model_validator(mode="after")
    def _check_cached(self) -> "ReportedUsage":
        if self.cached_tokens > self.prompt_tokens:
            raise ValueError("more tokens were cached than read")
        return self


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """What a request lets an endpoint write.

    Attributes:
        choices: Choices, at least 1.
        tokens: Tokens of a choice.
        request_bytes: Bytes of the request, which has no more tokens than these.
    """

    choices: int
    tokens: int
    request_bytes: int

    @property
    def characters(self) -> int:
        """Characters of a choice, its calls of functions included."""
        return CHARACTERS_BESIDE + CHARACTERS_OF_A_TOKEN * self.tokens

    def allow(self, usage: ReportedUsage) -> bool:
        """Return whether an endpoint may have read and written as many tokens as it says."""
        written = self.choices * self.tokens + HIDDEN_TOKENS
        read = self.request_bytes + HIDDEN_TOKENS
        return usage.prompt_tokens <= read and usage.completion_tokens <= written


@dataclass(slots=True)
class _Written:
    """What a choice has so far: characters, its calls by the index and id that they came with, its end."""

    characters: int = 0
    calls: list[tuple[int | None, str]] = field(default_factory=list)
    ended: str | None = None

    @property
    def reason(self) -> str:
        """Why it has ended, in the words of `Chunk`, whatever the endpoint calls it."""
        if self.ended in LENGTHS:
            return "length"
        return "tool_calls" if self.calls else "stop"


class AnswerStream(Protocol):
    """Reads the events of one answer.

    Attributes:
        doubted: Whether usage was left out because it cannot be true.
    """

    doubted: bool

    def pieces(self, data: bytes) -> Iterator[Chunk]:
        """Yield what an event says of each choice. Raises UpstreamError."""
        ...

    @property
    def closed(self) -> bool:
        """Whether no event follows."""
        ...

    @property
    def unfinished(self) -> int | None:
        """The first choice that has not ended; None for none."""
        ...

    def last(self) -> Chunk:
        """Return the last chunk of an answer that is complete. Raises UpstreamError."""
        ...


class CompletionStream(AnswerStream):
    """Reads the events of one answer.

    Args:
        limits: What the request lets the endpoint write.
        read: Texts of the request, of which tokens are estimated without usage.

    Attributes:
        doubted: Whether usage was left out because it cannot be true.
    """

    def __init__(self, limits: AnswerLimits, read: Sequence[str]) -> None:
        self.doubted = False
        self._limits, self._read = limits, read
        self._choices: dict[int, _Written] = {}
        self._usage: ReportedUsage | None = None

    @override
    def pieces(self, data: bytes) -> Iterator[Chunk]:
        try:
            event = _Event.model_validate_json(data)
        except ValidationError as error:
            raise UpstreamError(f"an event that cannot be read: {place_in(error)}") from None
        if event.error is not None:
            raise UpstreamError("an error in the place of the answer")
        self._count(event.usage)
        for choice in event.choices or ():
            piece = self._piece(choice)
            if piece.text or piece.tool_calls or piece.logprobs:
                yield piece

    @property
    @override
    def closed(self) -> bool:
        return False  # `DONE` is no event of an answer

    @property
    @override
    def unfinished(self) -> int | None:
        """The first choice that has not ended, of those up to the last one that has begun; None for none."""
        missing = _Written()
        indices = range(max(self._choices, default=0) + 1)
        return next((index for index in indices if not self._choices.get(index, missing).ended), None)

    @override
    def last(self) -> Chunk:
        if (index := self.unfinished) is not None:
            raise UpstreamError(f"no finish reason of choice {index}")
        reasons = [choice.reason for _, choice in sorted(self._choices.items())]
        usage = self._usage or ReportedUsage(
            prompt_tokens=estimate_tokens(sum(map(len, self._read))),
            completion_tokens=estimate_tokens(sum(choice.characters for choice in self._choices.values())),
        )
        return Chunk(
            finish_reason=reasons[0],
            finish_reasons=tuple(reasons[1:]),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        )

    def _count(self, reported: Any) -> None:
        """Keep usage that may be true; that of a later event is of the whole answer, too."""
        if reported is None:
            return
        try:
            usage = ReportedUsage.model_validate(reported)
        except ValidationError:
            self.doubted = True
            return
        if self._limits.allow(usage):
            self._usage = usage
        else:
            self.doubted = True

    def _piece(self, choice: _Choice) -> Chunk:
        """Return what an event says of a choice. Raises UpstreamError."""
        index, delta = choice.index or 0, choice.delta or choice.message or _Delta()
        if index >= self._limits.choices:
            raise UpstreamError(f"choice {index} of {self._limits.choices}")
        written = self._choices.setdefault(index, _Written())
        written.ended = choice.finish_reason or written.ended
        text = (delta.content or "") + (delta.refusal or "")
        calls = tuple(_renumbered(written, call) for call in delta.tool_calls or ())
        parts = [text, *(part for call in calls for part in call["function"].values())]
        written.characters += sum(map(len, parts))
        if written.characters > self._limits.characters:
            limit = f"{self._limits.characters:,} characters, for {self._limits.tokens:,} tokens"
            raise UpstreamError(f"choice {index} has more than {limit}")
        logprobs = (choice.logprobs and choice.logprobs.content) or ()
        return Chunk(
            text,
            index=index,
            tool_calls=calls,
            logprobs=tuple(token.model_dump() for token in logprobs),
        )


def _renumbered(written: _Written, call: _Call) -> Mapping[str, Any]:
    """Return a piece of a call under the number of the call in its choice. Raises UpstreamError.

    A piece with another id, or without one but with a name, begins a call: some endpoints give parallel calls
    the same index, or none.
    """
    function = call.function or _Function()
    same = [at for at, (index, _) in enumerate(written.calls) if call.index in (None, index)]
    at = same[-1] if same else None
    begins = call.id != written.calls[at][1] if at is not None and call.id else bool(function.name)
    if at is not None and not begins:
        return {"index": at, "function": {"arguments": function.arguments or ""}}
    if not function.name:
        raise UpstreamError("a call of a function without its name")
    if len(written.calls) == MOST_CALLS:
        raise UpstreamError(f"more than {MOST_CALLS} calls of functions")
    written.calls.append((call.index, call.id or ""))
    return {
        "index": len(written.calls) - 1,
        "id": call.id or f"call-{len(written.calls) - 1}",
        "type": "function",
        "function": {"name": function.name, "arguments": function.arguments or ""},
    }


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the body of an error says; all empty where it says nothing that can be read.

    Attributes:
        message: For operators; callers are not shown it.
        code: Name of the error.
        param: Name of the field at fault.
    """

    message: str = ""
    code: str = ""
    param: str = ""

    @property
    def is_too_long(self) -> bool:
        """Whether the conversation is longer than the model reads, as known servers put it."""
        return bool(_TOO_LONG.search(f"{self.code} {self.message}"))

    @property
    def unsupported(self) -> str:
        """Name of the field that the model does not take; empty for none, or a wrong value."""
        return self.param if _UNSUPPORTED.search(f"{self.code} {self.message}") else ""


_TOO_LONG = re.compile(
    r"context[ _](length|window|size|limit)|prompt is too long|input token count", re.IGNORECASE
)

_UNSUPPORTED = re.compile(r"unsupported|not support|unknown[ _]parameter|unrecognized", re.IGNORECASE)


class _ErrorFields(BaseModel):
    """The fields of an error; those of another type are left out."""

    message: Any = None
    code: Any = None
    param: Any = None


class _ErrorBody(_ErrorFields):
    error: Any = None


def refusal_in(body: bytes) -> Refusal:
    """Return what the body of an error says: an object `error`, a text there, or the fields themselves.

    >>> refusal_in(b'{"error": {"message": "no such model", "code": "model_not_found"}}').code
    'model_not_found'
    >>> refusal_in(b"<html>")
    Refusal(message='', code='', param='')
    """
    try:
        document = _ErrorBody.model_validate_json(body)
        inner = document if document.error is None else document.error
        if isinstance(inner, str):
            return Refusal(inner)
        fields = _ErrorFields.model_validate(inner, from_attributes=True)
    except ValidationError:
        return Refusal()
    texts = (fields.message, fields.code, fields.param)
    return Refusal(*(text if isinstance(text, str) else "" for text in texts))


def place_in(error: ValidationError) -> str:
    """Return where a document is wrong, and how, without any of its text."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    return ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)


def estimate_tokens(characters: int) -> int:
    """Estimate the number of tokens of a text of so many characters, at least 1.

    >>> estimate_tokens(len("four words of text."))
    5
    """
    return max(1, round(characters / CHARACTERS_PER_TOKEN))
