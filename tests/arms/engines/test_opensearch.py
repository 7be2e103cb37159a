"""Requests to OpenSearch and Elasticsearch: keys, failures, and passages that are refused."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from typing_extensions import override

from armwise.arms.base import ArmError, Passage, Query, QuestionRefusedError
from armwise.arms.engines.collection import Row
from armwise.arms.engines.ingest import ingest
from armwise.arms.engines.opensearch import ElasticIndex, Index, OpenSearchArm, Rest
from armwise.arms.filters import Comparison
from armwise.arms.retrievers.catalog import resolve_kind
from armwise.arms.retrievers.kind import ArmSpec
from armwise.arms.retrievers.remote import RemoteResponse
from tests.arms.engines.double import Double, RefusedError, running
from tests.arms.engines.passages import InMemory
from tests.arms.engines.search_server import SearchServer

CORPUS = InMemory([Passage("p", "", "word")])

HOSTILE = [
    '"}}}, {"match_all": {}',
    "' or true",
    "* OR facts:secret",
    "\\",
    '"""block""" #',
    "facts:secret -word +x",
    "\n\r\t\b\f",
    "\u2028\U0001f600\ud7ff",
]
"""Texts that are something else in a language of queries."""


@pytest.fixture
def server() -> Iterator[SearchServer]:
    with running(SearchServer(elastic=False, key="ApiKey secret")) as double:
        yield double


def arm_over(server: SearchServer, **params: Any) -> OpenSearchArm:
    found = {"url": server.url, "collection": "passages", "key_env": "SEARCH_KEY", **params}
    own = resolve_kind("arm", ArmSpec(kind="opensearch", params=found))[1]
    return OpenSearchArm("arm", own, Index(own, 5.0))


def test_the_key_is_sent_as_the_whole_header(server: SearchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "ApiKey secret")
    arm = arm_over(server)
    ingest(CORPUS, arm.collection, None)
    assert [p.id for p in arm.search(Query("word"), 3).passages] == ["p"]
    monkeypatch.setenv("SEARCH_KEY", "ApiKey other")
    with pytest.raises(ArmError, match=r"arm 'arm': http.* returned 401") as refusal:
        arm_over(server).search(Query("word"), 3)
    assert "other" not in str(refusal.value)


def test_a_refused_question_says_nothing_of_the_engine(
    server: SearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "ApiKey secret")
    arm = arm_over(server)
    ingest(CORPUS, arm.collection, None)

    def refuse(*_: object) -> None:
        raise RefusedError(400, "too_many_clauses")

    monkeypatch.setattr(server, "do", refuse)
    with pytest.raises(QuestionRefusedError, match="returned 400 Bad Request"):
        arm.search(Query("word"), 3)
    with pytest.raises(ArmError, match="400"):
        arm.version  # noqa: B018


def test_a_refused_passage_is_named(server: SearchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "ApiKey secret")
    collection = arm_over(server).collection
    collection.create(None)
    with pytest.raises(ArmError, match="refused 1 passages, such as 'p'"):  # the index has no vectors
        collection.write([Row(CORPUS.found[0], "", np.ones(3, dtype=np.float32))])


def test_passages_of_any_text_are_kept_and_found(
    server: SearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "ApiKey secret")
    corpus = InMemory([Passage(text, text, f"word {text}", 0.0, {text[:60]: text}) for text in HOSTILE])
    arm = arm_over(server)
    assert ingest(corpus, arm.collection, None).written == len(HOSTILE)
    assert {p.id for p in arm.search(Query("word"), 50).passages} == set(HOSTILE)
    for text in HOSTILE:
        where = Comparison(type="eq", key=text[:60], value=text)
        passages = arm.search(Query(f"word {text}", where=where), 50).passages
        assert [replace(p, score=0.0) for p in passages] == [p for p in corpus.found if p.id == text]
    rest = InMemory(corpus.found[1:])
    assert ingest(rest, arm.collection, None).deleted == 1
    assert sorted(arm.collection.ids()) == sorted(HOSTILE[1:])
    assert ingest(rest, arm.collection, None).written == 0
    assert arm.version == arm_over(server).version != ""


@pytest.mark.parametrize("text", ["", "  ", "?!", '"{}('])
def test_a_question_without_a_word_asks_nothing(
    server: SearchServer, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.delattr(SearchServer, "reply")
    assert arm_over(server, key_env=None).search(Query(text), 3).passages == ()


@pytest.mark.parametrize(("k", "candidates"), [(3, 100), (100, 100), (101, 101)])
def test_elasticsearch_looks_at_a_hundred_candidates(k: int, candidates: int) -> None:
    near = ElasticIndex.nearest([1.0], k, {})["knn"]
    assert (near["k"], near["num_candidates"]) == (k, candidates)


UNREAD = {"type": "keyword", "index": False, "doc_values": False}


@pytest.mark.parametrize(
    ("index", "vector", "settings"),
    [
        (
            Index,
            {
                "type": "knn_vector",
                "dimension": 3,
                "method": {"name": "hnsw", "space_type": "cosinesimil", "engine": "lucene"},
            },
            {"index": {"knn": True}},
        ),
        (ElasticIndex, {"type": "dense_vector", "dims": 3, "index": True, "similarity": "cosine"}, {}),
    ],
)
def test_an_index_has_these_mappings(
    index: type[Index], vector: dict[str, Any], settings: dict[str, Any]
) -> None:
    with running(SearchServer(elastic=index is ElasticIndex)) as double:
        params = resolve_kind(
            "arm", ArmSpec(kind="opensearch", params={"url": double.url, "collection": "passages"})
        )[1]
        index(params, 5.0).create(3)
        index(params, 5.0).create(3)  # which changes nothing
        made = double.indexes["passages"]
    assert made.mappings == {
        "dynamic": "strict",
        "properties": {
            "id": {"type": "keyword"},
            "title": {"type": "text", "copy_to": "search"},
            "text": {"type": "text", "copy_to": "search"},
            "search": {"type": "text"},
            "facts": {"type": "keyword"},
            "metadata": UNREAD,
            "digest": UNREAD,
            "vector": vector,
        },
    }
    assert made.settings == settings


def test_a_vector_without_direction_is_not_written(
    server: SearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "ApiKey secret")
    collection = arm_over(server).collection
    collection.create(3)
    collection.write([Row(CORPUS.found[0], "", np.zeros(3, dtype=np.float32))])
    collection.finish()
    assert [p.id for p in collection.lexical(Query("word"), 3)] == ["p"]
    assert collection.dense(np.ones(3, dtype=np.float32), Query("word"), 3) == []


# -- requests ----------------------------------------------------------------------------------------------


class Echo(Double):
    """An engine that returns the path of each request, or refuses it with the next of these statuses."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[int] = []

    @override
    def reply(self, method: str, path: str, query: dict[str, list[str]], content: bytes) -> Any:
        if self.statuses:
            raise RefusedError(self.statuses.pop(0), "a reason")
        return {"path": path}


def rest_over(double: Double, **params: Any) -> Rest:
    found = {"url": double.url, "collection": "c", **params}
    return Rest(resolve_kind("arm", ArmSpec(kind="opensearch", params=found))[1], "root", 5.0)


@pytest.mark.parametrize("url", ["{}", "{}/", "{}/below", "{}/below/"])
def test_a_path_is_below_the_address_with_one_slash(url: str) -> None:
    with running(Echo()) as double:
        rest = rest_over(double, url=url.format(double.url))
        assert rest.call("GET", "/a") == {"path": f"{'below/' if 'below' in url else ''}root/a"}


@pytest.mark.parametrize(
    ("status", "asked", "kind"),
    [
        (400, True, QuestionRefusedError),
        (400, False, ArmError),
        (413, True, QuestionRefusedError),
        (401, True, ArmError),
        (404, True, ArmError),
        (499, True, ArmError),
        (300, True, ArmError),
    ],
)
def test_a_refusal_is_of_the_question_by_its_status(status: int, asked: bool, kind: type[ArmError]) -> None:
    with running(Echo()) as double:
        double.statuses = [status]
        with pytest.raises(ArmError, match=f" returned {status}( [A-Z].*)?$") as failed:
            rest_over(double).call("GET", "/a", asked=asked)
    assert type(failed.value) is kind


def test_a_reply_may_have_no_body() -> None:
    with running(Echo()) as double:
        assert rest_over(double).read(RemoteResponse(200, httpx.Headers(), b"")) == {}, (
            "a reply without a body"
        )
