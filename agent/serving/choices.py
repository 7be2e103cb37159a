"""What a language model has written in a turn, put together from its chunks, and as the log keeps it.

The log keeps one text for each answer: what was written, or, where that is more than a text, a record
separator (which begins a JSON text sequence, RFC 7464) and JSON.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from arms.llm import Chunk

SEPARATOR = "\x1e"

_CALL_ID = re.compile(r"call_[0-9]+_([A-Za-z0-9._:~-]+)")


@dataclass(slots=True)
class Choice:
    """One of the answers to a request.

    Attributes:
        text: Text of the choice.
        tool_calls: The functions that it calls, in OpenAI's shape.
        logprobs: Log-probabilities of the tokens of the text, in OpenAI's shape.
        finish_reason: Why it ended; None before that.
    """

    text: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[Mapping[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None

    def add_call(self, piece: Mapping[str, Any]) -> None:
        """Add a piece of a call: the first one of a call has its id and name, all have arguments."""
        while len(self.tool_calls) <= piece["index"]:
            self.tool_calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call = self.tool_calls[piece["index"]]
        call["id"] = piece.get("id") or call["id"]
        for part, text in piece.get("function", {}).items():
            call["function"][part] += text


@dataclass(slots=True)
class Choices:
    """The answers to a request, of which there is at least one.

    >>> choices = Choices()
    >>> for text in ("The ", "Danube."):
    ...     choices.add(Chunk(text))
    >>> choices.recorded
    'The Danube.'
    """

    all: list[Choice] = field(default_factory=lambda: [Choice()])

    @property
    def text(self) -> str:
        """The text of the first one."""
        return self.all[0].text

    def add(self, chunk: Chunk) -> None:
        """Add a piece of one of them; the last piece ends them all."""
        while len(self.all) <= max(chunk.index, len(chunk.finish_reasons)):
            self.all.append(Choice())
        choice = self.all[chunk.index]
        choice.text += chunk.text
        choice.logprobs += chunk.logprobs
        for piece in chunk.tool_calls:
            choice.add_call(piece)
        if chunk.finish_reason is not None:
            reasons = (chunk.finish_reason, *chunk.finish_reasons)
            for ended, reason in zip(self.all, reasons, strict=False):
                ended.finish_reason = reason

    @property
    def recorded(self) -> str:
        """The text for the log."""
        first = self.all[0]
        is_text = len(self.all) == 1 and not first.tool_calls and not first.logprobs
        if is_text and not first.text.startswith(SEPARATOR):
            return first.text
        return SEPARATOR + json.dumps([asdict(choice) for choice in self.all], ensure_ascii=False)

    @classmethod
    def of(cls, recorded: str, finish_reason: str | None = None) -> "Choices":
        """Return what a text of the log stands for; the reason is that of a plain text, which has none."""
        if not recorded.startswith(SEPARATOR):
            return cls([Choice(recorded, finish_reason=finish_reason)])
        return cls([Choice(**choice) for choice in json.loads(recorded[1:])])

    def chunks(self) -> Iterator[Chunk]:
        """Yield them again, each in one piece."""
        for index, choice in enumerate(self.all):
            calls = tuple({"index": i, **call} for i, call in enumerate(choice.tool_calls))
            yield Chunk(choice.text, index=index, tool_calls=calls, logprobs=tuple(choice.logprobs))


def is_text(recorded: str) -> bool:
    """Return whether an answer of the log is a text and nothing more."""
    return not recorded.startswith(SEPARATOR)


@dataclass(slots=True)
class CallNames:
    """Names the calls of a turn after its decision, which the results of the calls lead back to.

    Attributes:
        decision_id: The decision.
        before: Calls of earlier turns that have names already.
        named: Calls so far, by choice and position.
    """

    decision_id: str
    before: int = 0
    named: list[tuple[int, int]] = field(default_factory=list)

    def renamed(self, index: int, pieces: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """Return pieces of calls of a choice; those that begin a call have its id.

        >>> CallNames("d-1").renamed(0, [{"index": 0, "id": "x"}])
        ({'index': 0, 'id': 'call_0_d-1'},)
        """
        found = []
        for piece in pieces:
            key = index, piece["index"]
            begins = key not in self.named
            if begins:
                self.named.append(key)
            number = self.before + len(self.named) - 1
            own = {"id": f"call_{number}_{self.decision_id}"} if begins else {}
            found.append({**piece, **own})
        return tuple(found)


def decision_of_call(call_id: str) -> str | None:
    """Return the decision that a call is named after; None for a call of somebody else.

    >>> decision_of_call("call_0_d-1"), decision_of_call("call_abc")
    ('d-1', None)
    """
    found = _CALL_ID.fullmatch(call_id)
    return found and found[1]
