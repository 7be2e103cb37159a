"""Arms that wrap retrievers, with stand-ins that have the methods of each framework.

`tests/clients` wraps those of the frameworks themselves.
"""

import hashlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from armwise.arms.base import Arm, ArmBuildError, ArmError, Passage, Query
from armwise.arms.more.external.frameworks import RetrieverArm, RetrieverParams
from armwise.arms.retrievers.catalog import KINDS

EACH_FRAMEWORK = pytest.mark.parametrize(
    "kind", [name for name, kind in KINDS.own.items() if issubclass(kind, RetrieverArm)]
)

HERE = "tests.arms.more.external.test_frameworks"


@dataclass
class Found:
    """A document of LangChain, LlamaIndex or Haystack."""

    id: str | None = None
    page_content: Any = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    score: float | None = None

    @property
    def content(self) -> Any:
        return self.page_content

    @property
    def meta(self) -> dict[str, Any]:
        return self.metadata

    @property
    def node(self) -> Any:
        return SimpleNamespace(node_id=self.id, get_content=lambda: self.page_content, metadata=self.metadata)


@dataclass
class Retriever:
    """Finds what it was made with, by the method of each framework."""

    found: list[Found]
    made_with: dict[str, Any] = field(default_factory=dict)
    asked: list[Any] = field(default_factory=list)

    def invoke(self, query: str) -> list[Found]:
        self.asked.append(query)
        return self.found

    retrieve = invoke

    def run(self, query: str, top_k: int) -> dict[str, list[Found]]:
        self.asked.append((query, top_k))
        return {"documents": self.found[:top_k]}


made: list[Retriever] = []


def factory(**arguments: Any) -> Retriever:
    documents = [
        Found("a", "one", {"title": "A", "key": "k-a"}, 0.2),
        Found("b", "two", {"key": 7}, 0.9),
        Found("a", "one again", {"key": "k-a"}, 0.5),
    ]
    made.append(Retriever(documents, arguments))
    return made[-1]


def anonymous() -> Retriever:
    return Retriever([Found(None, "one"), Found(None, "two"), Found(None, "one")])


def broken() -> Retriever:
    raise RuntimeError("no index")


def other() -> object:
    return object()


def odd() -> Retriever:
    return Retriever([Found("a", None)])


def failing() -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the store is away")

    return SimpleNamespace(invoke=fail, retrieve=fail, run=fail)


def build(kind: str, name: str, **params: Any) -> Arm:
    no_member: Any = None
    have: Any = None
    told = RetrieverParams(retriever=f"{HERE}:{name}", **params)
    return KINDS[kind].build("theirs", told, have, no_member)


def search(arm: Arm, k: int = 5) -> list[Passage]:
    return list(arm.search(Query("Why?"), k).passages)


SCORES = {"langchain": (1.0, 0.5), "llamaindex": (0.2, 0.9), "haystack": (0.2, 0.9)}
"""Of the first two documents: those of LangChain have no scores, so that their order counts."""


@EACH_FRAMEWORK
def test_documents_become_passages_by_their_ids(kind: str) -> None:
    arm = build(kind, "factory", arguments={"path": "x"})
    a, b = (Passage("a", "A", "one", SCORES[kind][0]), Passage("b", "", "two", SCORES[kind][1]))
    assert search(arm) == sorted((a, b), key=lambda passage: -passage.score)
    assert made[-1].made_with == {"path": "x"}
    assert made[-1].asked == [("Why?", 5) if kind == "haystack" else "Why?"]
    assert len(search(arm, k=1)) == 1


@EACH_FRAMEWORK
def test_an_id_may_be_in_the_metadata_or_the_hash_of_the_text(kind: str) -> None:
    assert {p.id for p in search(build(kind, "factory", id_field="key"))} == {"k-a", "7"}
    named = search(build(kind, "anonymous"))
    assert [p.text for p in named] == ["one", "two"]
    assert named[0].id == hashlib.sha256(b"one").hexdigest()[:32]
    assert len({p.id for p in named} | {p.id for p in search(build(kind, "anonymous"))}) == 2


@EACH_FRAMEWORK
def test_a_retriever_that_cannot_be_made_says_why(kind: str) -> None:
    for name, message in (
        ("broken", "cannot be created: RuntimeError"),
        ("nowhere", "cannot be created: AttributeError"),
        ("other", "returns an object of class object, which lacks"),
    ):
        with pytest.raises(ArmBuildError, match=f"arm 'theirs': '{HERE}:{name}' {message}"):
            build(kind, name)


@EACH_FRAMEWORK
@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("failing", {}, "arm 'theirs': ConnectionError: the store is away"),
        ("odd", {}, "has no text"),
        ("factory", {"id_field": "none"}, "KeyError"),
    ],
)
def test_a_failure_of_a_retriever_is_that_of_the_arm(
    kind: str, name: str, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArmError, match=message):
        search(build(kind, name, **params))


def half_scored() -> Retriever:
    return Retriever([Found("a", "one", {}, None), Found("b", "two", {"title": None}, 0.9)])


def tied() -> Retriever:
    return Retriever([Found(name, name, {"title": name.upper()}, 0.5) for name in "cab"])


@pytest.mark.parametrize("kind", ["llamaindex", "haystack"])
def test_the_order_counts_where_scores_are_missing(
    kind: str,
) -> None:
    found = search(build(kind, "half_scored"))
    assert [(p.id, p.title, p.score) for p in found] == [("a", "", 1.0), ("b", "", 0.5)]
    found = search(build(kind, "tied"), k=2 if kind == "llamaindex" else 3)
    assert [(p.id, p.title) for p in found] == [("a", "A"), ("b", "B"), ("c", "C")][: len(found)]
    assert len(found) == (2 if kind == "llamaindex" else 3)
