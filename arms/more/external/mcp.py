"""A search by a tool of a server of the Model Context Protocol, over streamable HTTP."""

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, JsonValue, model_validator
from typing_extensions import override

from armwise.arms.base import ArmError, Passage, Query, Retrieval
from armwise.arms.retrievers.kind import Kind, Members, Resources
from armwise.arms.retrievers.remote import (
    HttpArm,
    HttpParams,
    UnreadableResponseError,
    best,
    fill,
    read_passages,
    results_at,
    string_at,
)

if TYPE_CHECKING:
    from armwise.arms.more.external._mcp_session import Session


class McpParams(HttpParams):
    """Parameters of an arm of kind `mcp`."""

    url: str = Field(description="Address of the server.")
    tool: str = Field("search", min_length=1, description="Tool that searches.")
    query_argument: str = Field(
        "query", min_length=1, description="Argument of the tool that takes the question."
    )
    arguments: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Other arguments of the tool. The text `{k}` becomes the number of passages.",
    )
    results: str | None = Field(
        "results",
        description="Path to the list of results in the JSON that the tool returns. If null, each returned "
        "text is a passage.",
    )
    fetch: str | None = Field(
        None,
        description=(
            "Tool that returns the rest of a result, such as its text. It gets the result's `id`. Null if "
            "the search results are complete."
        ),
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.query_argument in self.arguments:
            raise ValueError(f"remove {self.query_argument!r} from arguments: it is set to the question")
        if self.fetch is not None and self.results is None:
            raise ValueError("fetch needs results with ids, but `results` is null")
        return self


class McpArm(HttpArm, Kind[McpParams]):
    """Calls a tool on a Model Context Protocol server."""

    kind = "mcp"
    params = McpParams
    example: ClassVar = {"url": "https://search.example/mcp"}
    libraries = ("mcp", "httpx2")

    def __init__(self, name: str, params: McpParams, wait_s: float) -> None:
        super().__init__(name, params, wait_s)
        self._params = params
        self._version: str | None = None

    @classmethod
    @override
    def build(cls, name: str, params: McpParams, have: Resources, member: Members) -> Self:
        return cls(name, params, have.wait_s)

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Call the tool, and read its result, within `wait_s`. Raises ArmError."""
        try:
            return Retrieval(best(self.connections.waiting.run(self._find_passages(query.text, k)), k))
        except UnreadableResponseError as error:
            raise ArmError(f"{self.label} returned a result that cannot be read: {error}") from error

    async def _find_passages(self, question: str, k: int) -> list[Passage]:
        """Return the passages of a search. Raises ArmError, UnreadableResponseError."""
        from armwise.arms.more.external._mcp_session import connect

        params, fetch = self._params, self._params.fetch
        arguments: Any = fill(params.arguments, "{question}", k)
        version, self._version = self._version, None  # asked for again after a failure
        async with connect(self, version) as session:
            reply = await session.call(params.tool, {params.query_argument: question, **arguments})
            if params.results is None:
                texts = dict.fromkeys(reply.texts)
                passages = [_passage(text, place) for place, text in enumerate(texts, start=1)]
            else:
                results = results_at(reply.document, params.results)
                if fetch is not None:
                    results = await asyncio.gather(
                        *(self._whole(session, fetch, result) for result in results[:k])
                    )
                passages = read_passages(results, params.fields)
            self._version = session.version
            return passages

    async def _whole(self, session: "Session", tool: str, result: JsonValue) -> JsonValue:
        """Return a result completed by the tool `fetch`."""
        name = string_at(result, self._params.fields.id)
        rest = (await session.call(tool, {"id": name})).document
        return {**result, **rest} if isinstance(result, dict) and isinstance(rest, dict) else rest


def _passage(text: str, place: int) -> Passage:
    """Return a text as a passage, whose id is a hash of the text."""
    return Passage(hashlib.sha256(text.encode()).hexdigest()[:32], "", text, 1 / place)
