"""Retrievers of LangChain, LlamaIndex and Haystack as arms, made by a function of the user's.

The frameworks stay unimported: a retriever is any object with the search method of its framework.
"""

import hashlib
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

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


@dataclass(frozen=True, slots=True)
class Framework:
    """How to call the retrievers of a framework.

    Attributes:
        title: Name of the framework.
        method: Name of the search method.
        search: Calls that method of a retriever with a question and k.
        read: Reads one result.
    """

    title: str
    method: str
    search: Callable[[Any, str, int], Iterable[Any]]
    read: Callable[[Any], ForeignDocument]


FRAMEWORKS = {
    "langchain": Framework(
        "LangChain",
        "invoke",
        lambda retriever, question, _: retriever.invoke(question),
        lambda d: ForeignDocument(getattr(d, "id", None), d.page_content, d.metadata, None),
    ),
    "llamaindex": Framework(
        "LlamaIndex",
        "retrieve",
        lambda retriever, question, _: retriever.retrieve(question),
        lambda n: ForeignDocument(n.node.node_id, n.node.get_content(), n.node.metadata, n.score),
    ),
    "haystack": Framework(
        "Haystack",
        "run",
        lambda retriever, question, k: retriever.run(query=question, top_k=k)["documents"],
        lambda d: ForeignDocument(d.id, d.content, d.meta, d.score),
    ),
}


class RetrieverArm:
    """Searches with a retriever of a framework; highest score first.

    Raises:
        ArmBuildError: The retriever cannot be imported or made.
    """

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str, params: RetrieverParams, framework: Framework) -> None:
        self.name = name
        self._params, self._framework = params, framework
        self._retriever = _make_retriever(name, params, framework.method)

    def search(self, query: Query, k: int) -> Retrieval:
        """Call the retriever, and read its documents. Raises ArmError."""
        try:
            documents = [
                self._framework.read(raw) for raw in self._framework.search(self._retriever, query.text, k)
            ]
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


def _kind(name: str, framework: Framework) -> Kind[RetrieverParams]:
    def build(arm: str, params: RetrieverParams, have: Resources, _: Members) -> RetrieverArm:
        del have
        return RetrieverArm(arm, params, framework)

    return Kind(
        name,
        f"wraps a retriever of {framework.title}",
        RetrieverParams,
        build,
        example={"retriever": "my_package.search:make_retriever"},
    )


LANGCHAIN, LLAMAINDEX, HAYSTACK = (_kind(name, framework) for name, framework in FRAMEWORKS.items())
