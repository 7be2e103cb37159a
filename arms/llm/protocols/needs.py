"""What a request needs of a model that not every model has: inputs, options, and tools of a provider.

A model of the request's own protocol is sent all of it but inputs that it cannot read. For a model of another
protocol an option or a tool must have a counterpart. A tool without which an answer can be given, such as a
search of the web, is soft: arms whose models lack it are left out as long as another arm has it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from armwise.arms.llm import base
from armwise.arms.llm.protocols.request import Request
from armwise.arms.llm.translate.documents import Document, objects, text_at

HARD_TOOLS = frozenset({"file_search", "image_generation", "mcp"})
"""Tools of a provider whose data or output a request is about."""

_STORED = ("previous_response_id", "conversation", "prompt")
"""Fields of responses that name what its provider keeps."""

_KINDS = {
    "openrouter:web_search": "web_search",
    "code_interpreter": "code_execution",
    "mcp_toolset": "mcp",
}

_FAMILIES = (
    *("web_search", "web_fetch", "code_execution", "file_search", "image_generation", "tool_search"),
    *("advisor", "computer"),
)

COUNTERPARTS: Mapping[str, frozenset[str]] = {
    "chat": base.OPTIONS | {"audio_output"},
    "messages": base.FORM | {"parallel_tool_calls", "web_search", "code_execution", "mcp"},
    "responses": base.FORM
    | base.LOGPROBS
    | {"parallel_tool_calls", "web_search", "code_execution", "mcp", *_STORED},
}
"""Options and tools that a protocol has a counterpart for, by its name."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a request needs.

    Attributes:
        protocol: Protocol of the request; its own models have every option and tool.
        inputs: What must be read besides text: `image`, `file`, `audio`.
        hard: Options and tools without which there is no answer.
        soft: Tools without which an answer can be given.
    """

    protocol: str = ""
    inputs: frozenset[str] = frozenset()
    hard: frozenset[str] = frozenset()
    soft: frozenset[str] = frozenset()

    def missing(self, protocol: str, options: frozenset[str], inputs: frozenset[str]) -> frozenset[str]:
        """Return what a model lacks without which it cannot answer.

        Args:
            protocol: The protocol that the model is asked in; empty for an engine of this process.
            options: Options and tools that it has.
            inputs: What it reads besides text.
        """
        lacking = self.inputs - inputs
        return lacking if protocol == self.protocol else lacking | (self.hard - options)

    def does_without(self, protocol: str, options: frozenset[str]) -> bool:
        """Return whether a model lacks a tool without which it answers nevertheless."""
        return protocol != self.protocol and bool(self.soft - options)


def read_needs(request: Request, options: Mapping[str, Any]) -> Needs:
    """Return what a request needs.

    Args:
        request: The request.
        options: Options that ask for something, with OpenAI's names.
    """
    chat = request.chat
    inputs = {
        base.INPUTS[kind]
        for message in objects(chat.get("messages"))
        for part in objects(message.get("content"))
        if (kind := text_at(part, "type")) in base.INPUTS
    }
    tools = {*_tools(chat)}
    hard = {*options} - base.HINTS | (tools & HARD_TOOLS)
    if request.protocol == "responses":
        hard |= {name for name in _STORED if request.body.get(name)}
        items = objects(request.body.get("input"))
        hard |= {"item_reference"} & {text_at(item, "type") for item in items}
    if chat.get("functions"):  # tools as they were before tools
        hard.add("functions")
    modalities = chat.get("modalities")
    if isinstance(modalities, list) and "audio" in modalities:
        hard.add("audio_output")
    return Needs(request.protocol, frozenset(inputs), frozenset(hard), frozenset(tools - HARD_TOOLS))


def _tools(chat: Document) -> Iterator[str]:
    """Yield the kinds of the tools that only a provider runs; a search among tools is no loss."""
    for tool in objects(chat.get("tools")):
        kind = text_at(tool, "type")
        if kind in ("function", "custom", ""):
            continue
        kind = _KINDS.get(kind, kind)
        kind = next((family for family in _FAMILIES if kind.startswith(family)), kind[:64])
        if kind != "tool_search":
            yield kind
    if chat.get("web_search_options"):
        yield "web_search"
