"""An answer that is read while it is written."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any

import orjson

from agent.client.errors import AnswerFailedError, ClientError
from agent.client.replies import AgentFields, Answer


class _Events:
    """The answer of a stream, put together from its events.

    Attributes:
        fields: The `agent` object, as far as it was sent.
        text: The text, as far as it was written.
    """

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.text = ""
        self._started, self._ended = time.perf_counter(), False

    @property
    def decision_id(self) -> str:
        """Names the answer in feedback; known with the first event. Raises ClientError before."""
        if "decision_id" not in self.fields:
            raise ClientError("the stream has not begun: read it first")
        return str(self.fields["decision_id"])

    @property
    def answer(self) -> Answer:
        """The whole answer. Raises ClientError before the end of the stream."""
        if not self._ended:
            raise ClientError("the stream has not ended: read it to its end first")
        choices: Any = [{"message": {"content": self.text}}]
        latency_s = time.perf_counter() - self._started
        fields = AgentFields.model_validate(self.fields)
        return Answer.model_validate({"agent": fields, "choices": choices, "latency_s": latency_s})

    def _read(self, line: str) -> str:
        """Return the text of a line of the stream; empty for none. Raises AnswerFailedError."""
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:"):
            return ""
        if data == "[DONE]":
            self._ended = True
            return ""
        event = orjson.loads(data)
        if "error" in event:
            error = event["error"]
            raise AnswerFailedError(
                f"the answer broke off, {error['code']}: {error['message']}",
                code=error["code"],
                decision_id=self.fields.get("decision_id"),
            )
        self.fields |= event.get("agent") or {}
        text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        self.text += text
        return text


class Stream(_Events):
    """Iterates over the parts of an answer as they arrive; `answer` has the whole of it afterwards."""

    def __init__(self, lines: Generator[str, None, None]) -> None:
        super().__init__()
        self._lines = lines

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            if text := self._read(line):
                yield text


class AsyncStream(_Events):
    """Iterates over the parts of an answer as they arrive; `answer` has the whole of it afterwards."""

    def __init__(self, lines: AsyncGenerator[str, None]) -> None:
        super().__init__()
        self._lines = lines

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in self._lines:
            if text := self._read(line):
                yield text
