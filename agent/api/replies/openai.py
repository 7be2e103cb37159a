"""Replies of OpenAI's API besides chat; of its large objects, the fields that are promised."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from agent.api.replies.answers import Agent, Chosen, Usage
from agent.api.replies.base import Reply


class Larger(Reply):
    """Base of what has more fields of OpenAI's than are named."""

    model_config = ConfigDict(frozen=True, extra="allow")


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


class OutputItem(Larger):
    """A message, or the call of a function."""

    id: str
    type: Literal["message", "function_call"]
    status: str


class ResponseObject(Larger):
    """A response, as OpenAI's Responses API has it; it repeats what the request set."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str = Field(description="`arm/<name>`: the arm that answered.")
    output: list[OutputItem]
    usage: dict[str, Any]
    agent: Agent


class Embedding(Reply):
    """The vector of a text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="A text is base64 of little-endian floats of 32 bits.")


class EmbeddingUsage(Reply):
    """Estimated tokens."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Reply):
    """Vectors, in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class VectorStore(Larger):
    """The corpus as a store."""

    id: str = Field(description="Name of the corpus.")
    object: Literal["vector_store"]
    created_at: int
    name: str
    status: Literal["completed"]


class VectorStores(Reply):
    """The stores: there is one."""

    object: Literal["list"]
    data: list[VectorStore]
    first_id: str
    last_id: str
    has_more: bool


class PassageText(Reply):
    """The text of a passage."""

    type: Literal["text"]
    text: str


class StoreHit(Reply):
    """A passage that was found."""

    file_id: str = Field(description="Id of the passage.")
    filename: str
    score: float
    attributes: dict[str, str | int | float | bool] = Field(
        description="`decision_id`, `arm`, `title` and `url`, and of its metadata."
    )
    content: list[PassageText]


class StoreSearch(Reply):
    """What a search of a store found, best first."""

    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[StoreHit]
    has_more: bool
    next_page: None
    agent: Chosen
