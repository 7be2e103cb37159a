"""A response as it grows: its items, and the events that a stream has of them, in the order of OpenAI."""

import itertools
from collections.abc import Iterator
from typing import Any

from agent.api import responses
from agent.api.openai import replies
from agent.api.openai.schemas import ResponsesRequest
from agent.config import AppConfig
from agent.serving import Decided, Finished
from arms.llm import Chunk

Event = dict[str, Any]


class GrowingResponse:
    """Turns the events of a turn into those of a response.

    Args:
        decided: The decision.
        body: The request, parts of which the response repeats.
        config: Has the prices, and says how much of the passages the model was shown.

    Attributes:
        document: The response so far.
    """

    def __init__(self, decided: Decided, body: ResponsesRequest, config: AppConfig) -> None:
        self._decided, self._body, self._config = decided, body, config
        self._name = decided.decision.id
        self._open: dict[str, Any] | None = None  # the item that is being written
        self._call: int | None = None  # the call that it is; None for text
        self._numbers = itertools.count()
        given = body.model_dump(exclude={"agent", "input"}, by_alias=True, exclude_none=True)
        self.document: dict[str, Any] = {
            "id": f"resp_{self._name}",
            "object": "response",
            "created_at": replies.created(decided.decision),
            "status": "in_progress",
            "model": f"arm/{decided.served}",
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": given.get("text", {"format": {"type": "text"}}),
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": given.get("tools", []),
            "top_p": body.top_p,
            "usage": None,
            "agent": responses.extended(decided, None, config, body.agent.returns),
        }

    def begin(self) -> Iterator[Event]:
        """Yield the events of a response that has no item yet."""
        yield self._event("created", response=self.document)
        yield self._event("in_progress", response=self.document)

    def add(self, chunk: Chunk) -> Iterator[Event]:
        """Yield the events of a piece of the answer."""
        if chunk.text:
            if self._open is None or self._call is not None:
                yield from self._close()
                yield from self._begin_text()
            part = self._part
            part["text"] += chunk.text
            part["logprobs"] += chunk.logprobs
            logprobs = list(chunk.logprobs)
            yield self._of_part("output_text.delta", delta=chunk.text, logprobs=logprobs)
        for piece in chunk.tool_calls:
            if self._open is None or self._call != piece["index"]:
                yield from self._close()
                yield from self._begin_call(piece)
            function = piece.get("function", {})
            item = self._item
            item["name"] += function.get("name", "")
            if arguments := function.get("arguments"):
                item["arguments"] += arguments
                yield self._of_item("function_call_arguments.delta", delta=arguments)

    def end(self, finished: Finished) -> Iterator[Event]:
        """Yield the events of the end of the answer."""
        if self._open is None and not self.document["output"]:
            yield from self._begin_text()
        cut = finished.finish_reasons[0] == "length"
        yield from self._close("incomplete" if cut else "completed")
        cost = finished.execution.cost
        agent = responses.extended(self._decided, cost, self._config, self._body.agent.returns)
        self.document["status"] = "incomplete" if cut else "completed"
        self.document["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        self.document["usage"] = {
            "input_tokens": cost.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": cost.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": cost.prompt_tokens + cost.completion_tokens,
        }
        self.document["agent"] = agent
        yield self._event(self.document["status"], response=self.document)

    def fail(self, code: str, message: str) -> Iterator[Event]:
        """Yield the event of a failure."""
        self.document["status"] = "failed"
        self.document["error"] = {"code": code, "message": message}
        yield self._event("failed", response=self.document)

    @property
    def _item(self) -> dict[str, Any]:
        assert self._open is not None
        return self._open

    @property
    def _part(self) -> dict[str, Any]:
        part: dict[str, Any] = self._item["content"][0]
        return part

    def _begin_text(self) -> Iterator[Event]:
        name = f"msg_{len(self.document['output'])}_{self._name}"
        item = {"id": name, "type": "message", "role": "assistant", "status": "in_progress"}
        yield from self._begin(item, None, {**item, "content": []})
        self._item["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
        yield self._of_part("content_part.added", part=self._part)

    def _begin_call(self, piece: Any) -> Iterator[Event]:
        name = f"fc_{len(self.document['output'])}_{self._name}"
        item = {"id": name, "type": "function_call", "status": "in_progress", "call_id": piece.get("id", "")}
        item |= {"name": "", "arguments": ""}
        shown = {**item, "name": piece.get("function", {}).get("name", "")}
        yield from self._begin(item, piece["index"], shown)

    def _begin(self, item: dict[str, Any], call: int | None, shown: dict[str, Any]) -> Iterator[Event]:
        """Yield the event of an item that begins, as it is shown there."""
        self._open, self._call = item, call
        self.document["output"].append(item)
        yield self._of_output("output_item.added", item=shown)

    def _close(self, status: str = "completed") -> Iterator[Event]:
        """Yield the events of the end of the item that is being written."""
        item = self._open
        if item is None:
            return
        item["status"] = status
        if self._call is None:
            part = self._part
            for i, note in enumerate(replies.cited(part["text"], self._decided, self._config)):
                flat = {"type": note["type"], **note["url_citation"]}
                part["annotations"].append(flat)
                yield self._of_part("output_text.annotation.added", annotation_index=i, annotation=flat)
            yield self._of_part("output_text.done", text=part["text"], logprobs=part["logprobs"])
            yield self._of_part("content_part.done", part=part)
        else:
            arguments, name = item["arguments"], item["name"]
            yield self._of_item("function_call_arguments.done", arguments=arguments, name=name)
        yield self._of_output("output_item.done", item=item)
        self._open = None

    def _of_part(self, kind: str, **fields: Any) -> Event:
        return self._of_item(kind, content_index=0, **fields)

    def _of_item(self, kind: str, **fields: Any) -> Event:
        return self._of_output(kind, item_id=self._item["id"], **fields)

    def _of_output(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, output_index=len(self.document["output"]) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": f"response.{kind}", "sequence_number": next(self._numbers), **fields}
