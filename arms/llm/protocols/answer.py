"""How an answer is read while it passes: text, calls, ends and usage, for the log, the reward and the price.

An endpoint is not trusted. What it sends is bounded, and a field of another type than its protocol's counts
as absent. What is complete is an answer, whatever stands beside it; anything else is an `UpstreamError`,
which has no text of the endpoint.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from armwise.arms.llm.base import Chunk, Native, Refusal
from armwise.arms.llm.pricing import TokenCounts, count_usage
from armwise.arms.llm.translate import ProtocolName
from armwise.arms.llm.translate.documents import (
    Document,
    DocumentError,
    object_at,
    objects,
    read_document,
    text_at,
)
from armwise.arms.upstream import UpstreamError

CHARACTERS_PER_TOKEN = 4
"""Estimate for English text, for endpoints that report no usage."""

CHARACTERS_OF_A_TOKEN, CHARACTERS_BESIDE = 32, 10_000
"""Characters of a choice that are read for each token that it may have, and beside these."""

UNLIMITED_TOKENS = 100_000
"""Tokens that a choice may have where the request has no limit of them."""

HIDDEN_TOKENS, HIDDEN_READ_TOKENS = 100_000, 2_000_000
"""Tokens that an endpoint may write and read beside what is seen.

It writes reasoning. It reads instructions of its own, what its tools found, files at an address, and a
conversation that it keeps: as much as the largest context of a model.
"""

MOST_CALLS = 128
"""Functions that a choice may call."""

MOST_FIELDS = 100
"""Fields of the usage of an answer that are kept."""

MOST_MARKS = 300
"""Marks of an answer that are kept."""

LENGTHS = frozenset(("length", "max_tokens", "MAX_TOKENS", "max_output_tokens"))
"""Finish reasons of an answer that has reached its limit of tokens."""


class FailedAnswerError(UpstreamError):
    """An endpoint sent an error in the place of an answer.

    Attributes:
        refusal: What it says.
        native: The event that says it.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__("an error instead of the answer")
        self.refusal = refusal
        self.native: Native | None = None


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

    def allow(self, counted: TokenCounts) -> bool:
        """Return whether an endpoint may have read and written as many tokens as it says."""
        written = self.choices * self.tokens + HIDDEN_TOKENS
        return counted.prompt <= self.request_bytes + HIDDEN_READ_TOKENS and counted.completion <= written


class AnswerReader(ABC):
    """Reads one answer: its events, or its whole document as the only one.

    Args:
        limits: What the request lets the endpoint write.
        read: Texts of the request, of which tokens are estimated without usage.

    Attributes:
        answer_id: The endpoint's id of the answer, if later requests may name it; else empty.
        marks: Other names under which a later request shows that it continues this answer.
    """

    protocol: ClassVar[ProtocolName]

    def __init__(self, limits: AnswerLimits, read: Sequence[str]) -> None:
        self.answer_id = ""
        self.marks: list[str] = []
        self._limits, self._read = limits, read
        self._ended = ""  # why, in the words of the protocol
        self._usage: Document | None = None
        self._counted: TokenCounts | None = None
        self._characters: dict[int, int] = {}

    def pieces(self, data: bytes, name: bytes = b"") -> Iterator[Chunk]:
        """Yield what an event, or a whole answer, says of each choice. Raises UpstreamError.

        The first piece has the event itself, also where it says nothing that is read here.
        """
        try:
            event = read_document(data)
        except DocumentError:
            raise UpstreamError("an event that is not a JSON object") from None
        yield from self.read(event, name)

    def read(self, event: Document, name: bytes = b"") -> Iterator[Chunk]:
        """Yield what an event says, as `pieces` does. Raises UpstreamError."""
        native = Native(self.protocol, event, _is_whole(event), name)
        try:
            pieces = [*self._pieces(event)] or [Chunk()]
        except FailedAnswerError as error:
            error.native = native
            raise
        for piece in pieces:
            self._check_length(piece)
        if native.whole and self._counted is not None:  # also without a reason why it ended
            for index in [index for index, length in self._characters.items() if length]:
                self._end_choice(index)
        ended = self.unfinished is None
        yield replace(pieces[0], native=native, ended=ended)
        yield from pieces[1:]

    def last(self) -> Chunk:
        """Return the last chunk of an answer that is complete. Raises UpstreamError."""
        if (index := self.unfinished) is not None:
            raise UpstreamError(f"no finish reason of choice {index}")
        reasons = self._reasons()
        counted = self._counted or TokenCounts(
            estimate_tokens(sum(map(len, self._read))), estimate_tokens(sum(self._characters.values()))
        )
        marks = (self.answer_id, *dict.fromkeys(self.marks))
        return Chunk(
            finish_reason=reasons[0],
            finish_reasons=tuple(reasons[1:]),
            prompt_tokens=counted.prompt,
            completion_tokens=counted.completion,
            cached_tokens=counted.cached,
            cache_written_tokens=counted.cache_written,
            usage=None if self.doubted else self._usage,
            marks=marks[:MOST_MARKS] if any(marks) else (),
        )

    @property
    def doubted(self) -> bool:
        """Whether usage is left out because it cannot be true."""
        return self._usage is not None and self._counted is None

    @property
    def closed(self) -> bool:
        """Whether no event follows."""
        return False

    @property
    def unfinished(self) -> int | None:
        """The first choice that has not ended; None for none."""
        return None if self._ended else 0

    @abstractmethod
    def _pieces(self, event: Document) -> Iterator[Chunk]:
        """Yield what an event says of each choice. Raises UpstreamError."""

    def _end_choice(self, index: int) -> None:  # noqa: ARG002 - a chat alone has several
        self._ended = self._ended or "stop"

    @abstractmethod
    def _reasons(self) -> list[str]:
        """Return why each choice has ended."""

    def _mark(self, name: str) -> None:
        if name and len(self.marks) < MOST_MARKS:
            self.marks.append(name[:256])

    def _count(self, usage: Any, tier: Any = None) -> None:
        """Keep usage that may be true; that of a later event is of the whole answer, too.

        Args:
            usage: What the endpoint reports.
            tier: The tier of its service, which has a price of its own.
        """
        if usage is None:
            return
        reported = usage if isinstance(usage, dict) else {}
        merged = {
            **(self._usage or {}),
            **({"service_tier": tier} if isinstance(tier, str) else {}),
            **{name: value for name, value in reported.items() if value is not None},
        }
        if len(merged) > MOST_FIELDS:
            return
        counted = count_usage(merged, self.protocol)
        if counted is not None and self._limits.allow(counted):
            self._usage, self._counted = merged, counted
        elif self._counted is None:  # some report what was read at first, and what was written at the end
            self._usage = merged

    def _check_length(self, piece: Chunk) -> None:
        """Raise UpstreamError for a choice that is longer than it may be."""
        parts = (part for call in piece.tool_calls for part in call.get("function", {}).values())
        written = self._characters.get(piece.index, 0) + len(piece.text) + len(piece.reasoning)
        written += sum(map(len, parts))
        self._characters[piece.index] = written
        if written > self._limits.characters:
            limit = f"{self._limits.characters:,} characters, for {self._limits.tokens:,} tokens"
            raise UpstreamError(f"choice {piece.index} has more than {limit}")


def _is_whole(event: Document) -> bool:
    """Return whether an event is a whole answer: endpoints may send one where a stream was asked for."""
    if event.get("type") == "message" or event.get("object") == "response":
        return True
    return any("message" in choice for choice in objects(event.get("choices")))


def digest_state(text: str) -> str:
    """Return the mark of a model's state, such as the signature of its reasoning."""
    return f"state-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:32]}"


def call_piece(index: int, call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return the piece of a `Chunk` that begins the call of a function. Raises UpstreamError."""
    if not name:
        raise UpstreamError("a function call without a name")
    if index == MOST_CALLS:
        raise UpstreamError(f"more than {MOST_CALLS} function calls")
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": call_id or f"call-{index}", "type": "function", "function": function}


_TOO_LONG = re.compile(
    r"context[ _](length|window|size|limit)|prompt is too long|input token count", re.IGNORECASE
)

_UNSUPPORTED = re.compile(r"unsupported|not_support|unknown_parameter|unrecognized", re.IGNORECASE)


_OF_SERVICE = frozenset((401, 402, 408, 429))

_OF_REQUEST = frozenset(
    (
        *("invalid_request_error", "invalid_request", "invalid_prompt", "invalid_value", "not_found_error"),
        *("request_too_large", "context_length_exceeded", "string_above_max_length", "content_filter"),
        *("content_policy_violation", "unsupported_parameter", "unsupported_value", "unsupported_file"),
        *("external_connector_error", "failed_dependency", "vector_store_timeout", "tool_use_failed"),
        *("json_validate_failed", "invalid_image", "invalid_image_format", "invalid_base64_image"),
        *("invalid_image_url", "invalid_image_mode", "image_too_large", "image_too_small"),
        *("image_parse_error", "image_content_policy_violation", "image_file_too_large"),
        *("image_file_not_found", "unsupported_image_media_type", "empty_image_file"),
        "failed_to_download_image",
    )
)
"""Codes and types of errors in answers that are due to the request, or to what it names, such as a tool."""

_NOT_OF_REQUEST = frozenset(
    ("invalid_api_key", "insufficient_quota", "rate_limit_exceeded", "model_not_found")
)
"""Codes that come with the type `invalid_request_error` too."""


def is_status_of_request(status: int) -> bool:
    """Return whether an HTTP status is due to the request, rather than to the model or to its account.

    >>> [is_status_of_request(status) for status in (400, 424, 401, 429, 500)]
    [True, True, False, False, False]
    """
    return 400 <= status < 500 and status not in _OF_SERVICE


def find_request_status(refusal: Refusal) -> int | None:
    """Return the HTTP status of an error in an answer that is due to the request; None for any other.

    Only its code and its type count: the message may quote the request.

    >>> find_request_status(Refusal(code="424")), find_request_status(Refusal(code="server_error"))
    (424, None)
    """
    if refusal.code.isdecimal() and len(refusal.code) == 3:
        status = int(refusal.code)
        return status if is_status_of_request(status) else None
    of_request = not _OF_REQUEST.isdisjoint((refusal.code, refusal.type))
    return 400 if of_request and refusal.code not in _NOT_OF_REQUEST else None


def is_too_long(refusal: Refusal) -> bool:
    """Return whether a conversation is longer than the model reads, as known servers put it."""
    return bool(_TOO_LONG.search(f"{refusal.code} {refusal.message}"))


def find_unsupported(refusal: Refusal) -> str:
    """Return the field that the model does not take; empty for none, or a wrong value.

    The message says nothing here, as it may quote the request.
    """
    return refusal.param if _UNSUPPORTED.search(refusal.code) else ""


def read_refusal(document: Mapping[str, Any]) -> Refusal:
    """Return what an error says: an object `error`, a text there, or the fields themselves.

    >>> read_refusal({"error": {"message": "no such model", "code": 404}})
    Refusal(message='no such model', code='404', param='', type='')
    """
    error = document.get("error")
    if isinstance(error, str):
        return Refusal(error)
    fields = object_at(document, "error") or document
    code = fields.get("code")
    named = code if isinstance(code, str) else str(code) if type(code) is int else ""
    texts = (text_at(fields, name) for name in ("message", "param", "type"))
    message, param, kind = texts
    return Refusal(message, named, param, kind)


def refusal_in(body: bytes) -> Refusal:
    """Return what the body of an error says; all empty where it says nothing that can be read.

    >>> refusal_in(b'{"error": {"message": "no such model", "code": "model_not_found"}}').code
    'model_not_found'
    >>> refusal_in(b"<html>")
    Refusal(message='', code='', param='', type='')
    """
    try:
        return read_refusal(read_document(body))
    except DocumentError:
        return Refusal()


def estimate_tokens(characters: int) -> int:
    """Estimate the number of tokens of a text of so many characters, at least 1.

    >>> estimate_tokens(len("four words of text."))
    5
    """
    return max(1, round(characters / CHARACTERS_PER_TOKEN))
