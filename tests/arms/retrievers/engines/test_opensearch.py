"""Requests to OpenSearch and Elasticsearch: keys, failures, and passages that are refused."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from arms.base import ArmError, Passage, Query, QuestionRefusedError
from arms.retrievers.catalog import described
from arms.retrievers.engines.collection import EngineArm, Row
from arms.retrievers.engines.ingest import ingest
from arms.retrievers.engines.opensearch import Index
from arms.retrievers.kind import ArmSpec
from tests.arms.retrievers.engines.double import RefusedError, running
from tests.arms.retrievers.engines.passages import InMemory
from tests.arms.retrievers.engines.search_server import SearchServer

CORPUS = InMemory([Passage("p", "", "word")])


@pytest.fixture
def server() -> Iterator[SearchServer]:
    with running(SearchServer(elastic=False, key="ApiKey secret")) as double:
        yield double


def arm_over(server: SearchServer, **params: Any) -> EngineArm:
    found = {"url": server.url, "collection": "passages", "key_env": "SEARCH_KEY", **params}
    own = described("arm", ArmSpec(kind="opensearch", params=found))[1]
    return EngineArm("arm", own, Index(own))


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
    with pytest.raises(QuestionRefusedError, match="too_many_clauses"):
        arm.search(Query("word"), 3)
    with pytest.raises(ArmError, match="400"):
        arm.version  # noqa: B018


def test_a_refused_passage_is_named(server: SearchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "ApiKey secret")
    collection = arm_over(server).collection
    collection.create(None)
    with pytest.raises(ArmError, match="1 passages are refused, such as 'p'"):  # the index has no vectors
        collection.write([Row(CORPUS.found[0], "", np.ones(3, dtype=np.float32))])


def test_an_address_has_no_query() -> None:
    with pytest.raises(ValueError, match="is no address of an engine"):
        described("arm", ArmSpec(kind="opensearch", params={"url": "http://x/?a=b", "collection": "c"}))
