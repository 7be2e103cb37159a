"""Retrievers of LangChain, LlamaIndex and Haystack as arms, made by a function of the user's.

The frameworks stay unimported: a retriever is any object with the search method of its framework.
"""

import hashlib
import importlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from typing_extensions import override

from armwise.arms.base import ArmBuildError, ArmError, Passage, Query, Retrieval
from armwise.arms.retrievers.kind import Kind, Members, Resources
from armwise.arms.retrievers.remote import best


class RetrieverParams(BaseModel):
    """Parameters of an arm that wraps a retriever."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    retriever: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="Import path `package.module:function` of a function or class that returns the "
        "retriever. Several threads use it at once.",
    )
    arguments: dict[str, JsonValue] = Field(
        default_factory=dict, description="Keyword arguments of that function."
    )
    id_field: str | None = Field(
        None,
        description="Metadata field with the document's id. Null means the document's own id, or a hash of "
        "its text if it has none.",
    )


@dataclass(frozen=True, slots=True)
class ForeignDocument:
    """A document of any framework.

    Attributes:
        id: Id, if the document has one.
        text: Text.
        metadata: Metadata.
        score: Score, if the document has one; higher is better.
    """

    id: str | None
    text: str
    metadata: Mapping[str, Any]
    score: float | None


class RetrieverArm(Kind[RetrieverParams]):
    """The base of arms that search with a retriever of a framework; highest score first.

    Attributes:
        method: Name of the search method of the framework's retrievers.

    Raises:
        ArmBuildError: The retriever cannot be imported or made.
    """

    params = RetrieverParams
    example: ClassVar = {"retriever": "my_package.search:make_retriever"}
    method: str

    def __init__(self, name: str, params: RetrieverParams) -> None:
        self.name = name
        self._params = params
        self._retriever = _make_retriever(name, params, self.method)

    @staticmethod
    @abstractmethod
    def find(retriever: Any, question: str, k: int) -> Iterable[Any]:
        """Call the search method of a retriever."""

    @staticmethod
    @abstractmethod
    def read(result: Any) -> ForeignDocument:
        """Read one result."""

    @classmethod
    @override
    def build(cls, name: str, params: RetrieverParams, have: Resources, member: Members) -> Self:
        return cls(name, params)

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Call the retriever, and read its documents. Raises ArmError."""
        try:
            documents = [self.read(result) for result in self.find(self._retriever, query.text, k)]
            scored = all(document.score is not None for document in documents)
            passages = dict[str, Passage]()
            for place, document in enumerate(documents, start=1):
                score = float(document.score) if scored and document.score is not None else 1 / place
                passage = self._passage(document, score)
                passages.setdefault(passage.id, passage)
        except Exception as error:  # of code that is not ours
            raise ArmError(f"arm {self.name!r}: {type(error).__name__}: {error}") from error
        return Retrieval(best(passages.values(), k))

    def _passage(self, document: ForeignDocument, score: float) -> Passage:
        field = self._params.id_field
        name = document.id if field is None else document.metadata[field]
        if not isinstance(document.text, str):
            raise ArmError(f"document {name!r} has no text")
        if name is None:
            name = hashlib.sha256(document.text.encode()).hexdigest()[:32]
        title = document.metadata.get("title")
        return Passage(str(name), "" if title is None else str(title), document.text, score)


class LangChainArm(RetrieverArm):
    """Wraps a retriever of LangChain."""

    kind, method = "langchain", "invoke"

    @staticmethod
    @override
    def find(retriever: Any, question: str, k: int) -> Iterable[Any]:
        found: Iterable[Any] = retriever.invoke(question)
        return found

    @staticmethod
    @override
    def read(result: Any) -> ForeignDocument:
        return ForeignDocument(getattr(result, "id", None), result.page_content, result.metadata, None)


class LlamaIndexArm(RetrieverArm):
    """Wraps a retriever of LlamaIndex."""

    kind, method = "llamaindex", "retrieve"

    @staticmethod
    @override
    def find(retriever: Any, question: str, k: int) -> Iterable[Any]:
        found: Iterable[Any] = retriever.retrieve(question)
        return found

    @staticmethod
    @override
    def read(result: Any) -> ForeignDocument:
        node = result.node
        return ForeignDocument(node.node_id, node.get_content(), node.metadata, result.score)


class HaystackArm(RetrieverArm):
    """Wraps a retriever of Haystack."""

    kind, method = "haystack", "run"

    @staticmethod
    @override
    def find(retriever: Any, question: str, k: int) -> Iterable[Any]:
        found: Iterable[Any] = retriever.run(query=question, top_k=k)["documents"]
        return found

    @staticmethod
    @override
    def read(result: Any) -> ForeignDocument:
        return ForeignDocument(result.id, result.content, result.meta, result.score)


def _make_retriever(name: str, params: RetrieverParams, method: str) -> Any:
    module, _, attribute = params.retriever.partition(":")
    try:
        retriever = getattr(importlib.import_module(module), attribute)(**params.arguments)
    except Exception as error:  # an import and a call of user code may raise anything
        raise ArmBuildError(f"arm {name!r}: {params.retriever!r} cannot be created: {error!r}") from error
    if not callable(getattr(retriever, method, None)):
        kind = type(retriever).__name__
        raise ArmBuildError(
            f"arm {name!r}: {params.retriever!r} returns an object of class {kind}, which lacks {method!r}"
        )
    return retriever
