"""No text of a question, a filter or a passage becomes part of a query of Vespa or Weaviate."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arms.base import ArmError, Passage, Query, QuestionRefusedError
from arms.filters import Comparison
from arms.retrievers.catalog import ArmSpecError, described
from arms.retrievers.engines import vespa, weaviate
from arms.retrievers.engines.collection import EngineArm, Row
from arms.retrievers.engines.ingest import ingest
from arms.retrievers.kind import ArmSpec
from tests.arms.retrievers.engines.double import Double, RefusedError, running
from tests.arms.retrievers.engines.passages import InMemory
from tests.arms.retrievers.engines.vespa_server import DeployedDocuments, VespaServer
from tests.arms.retrievers.engines.weaviate_server import GraphQL, WeaviateServer

HOSTILE = [
    '"); select * from sources * where true',
    "' or true or facts in ('",
    "@question",
    "{targetHits: 1}",
    '"}) {passage}} {__schema {types {name}}}',
    '\\"}, where: {operator: Or',
    '"""block""" #',
    "facts:secret -word +x",
    "\n\r\t\b\f",
    "\u2028\U0001f600\ud7ff",
]
TEXTS = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
CORPUS = InMemory([Passage(text, text, f"word {text}", 0.0, {text[:60]: text}) for text in HOSTILE])
DOUBLES: dict[str, Any] = {"vespa": VespaServer, "weaviate": WeaviateServer}
ENGINES: dict[str, Any] = {"vespa": DeployedDocuments, "weaviate": weaviate.Objects}


@pytest.fixture(params=DOUBLES)
def double(request: pytest.FixtureRequest) -> Iterator[Double]:
    with running(DOUBLES[request.param]("Bearer secret")) as server:
        yield server


def arm_over(double: Double, **params: Any) -> EngineArm:
    kind = next(kind for kind, server in DOUBLES.items() if isinstance(double, server))
    found = {"url": double.url, "collection": "passages", "key_env": "SEARCH_KEY", **params}
    own = described("arm", ArmSpec(kind=kind, params=found))[1]
    return EngineArm("arm", own, ENGINES[kind](own))


@given(TEXTS)
def test_a_literal_of_graphql_is_the_text_and_nothing_else(text: str) -> None:
    ((_, arguments, _),) = GraphQL(f"{{Get(bm25: {weaviate.literal(text)}) {{text}}}}").selected
    assert arguments == {"bm25": text}


@given(TEXTS, TEXTS, st.frozensets(TEXTS, max_size=2))
def test_requests_to_vespa_differ_in_their_parameters_alone(
    text: str, value: str, groups: frozenset[str]
) -> None:
    sent: list[dict[str, Any]] = []

    def call(_method: str, _path: str, body: dict[str, Any], *, asked: bool) -> dict[str, Any]:
        assert asked
        sent.append(body)
        return {"root": {}}

    params = described("arm", ArmSpec(kind="vespa", params={"url": "http://x", "collection": "c"}))[1]
    documents = vespa.Documents(params)
    documents._search.call = call  # type: ignore[method-assign]  # noqa: SLF001 (what it would send)
    where = Comparison(type="eq", key=value[:64] or "x", value=value)
    documents.lexical(Query(f"a {text}", where=where, groups=groups), 3)
    documents.lexical(Query("a"), 101)
    body, deeper = sent
    assert (body["hits"], deeper["hits"]) == (3, 101)
    assert "{targetHits: 101}" in deeper["yql"], "no fewer are ranked than are returned"
    assert body["question"] == f"a {text}"
    assert re.sub(r"'[0-9a-f]{24}'", "F", body["yql"]).replace(", F", "") == (
        "select passage, title, text, metadata from c where default contains "
        "({targetHits: 100}text(@question)) and "
        + (
            "(((true and !(facts in (F))) or facts in (F)) and facts in (F))"
            if groups
            else "((true and !(facts in (F))) and facts in (F))"
        )
    )


def test_passages_of_any_text_are_written_found_and_deleted(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "Bearer secret")
    arm = arm_over(double)
    assert ingest(CORPUS, arm.collection, None).written == len(HOSTILE)
    assert {p.id for p in arm.search(Query("word"), 50).passages} == set(HOSTILE)
    for text in HOSTILE:
        found = arm.search(
            Query(f"word {text}", where=Comparison(type="eq", key=text[:60], value=text)), 50
        ).passages
        assert [replace(p, score=0.0) for p in found] == [p for p in CORPUS.found if p.id == text]
    rest = InMemory(CORPUS.found[1:])
    assert ingest(rest, arm.collection, None).deleted == 1
    assert sorted(arm.collection.ids()) == sorted(HOSTILE[1:])
    assert ingest(rest, arm.collection, None).written == 0
    assert arm.version == arm_over(double).version != ""


def test_the_key_is_sent_as_the_whole_header(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "Bearer other")
    with pytest.raises(ArmError, match=r"arm 'arm': http.* returned 401") as refusal:
        arm_over(double).search(Query("word"), 3)
    assert "other" not in str(refusal.value)


def test_a_refused_question_says_nothing_of_the_engine(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "Bearer secret")

    def refuse(*_: object) -> None:
        raise RefusedError(400, "too long")

    monkeypatch.setattr(double, "reply", refuse)
    with pytest.raises(QuestionRefusedError, match="too long"):
        arm_over(double).search(Query("word"), 3)


@pytest.mark.parametrize("text", ["", "  ", "?!", '"{}('])
def test_a_question_without_a_word_asks_nothing(
    double: Double, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.delattr(type(double), "reply")
    assert arm_over(double, key_env=None).search(Query(text), 3).passages == ()


def test_a_refused_passage_is_named(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "Bearer secret")
    arm = arm_over(double)
    arm.collection.create(None)
    if isinstance(double, VespaServer):
        double.schemas.clear()
    else:
        assert isinstance(double, WeaviateServer)
        double.schema["Passages"]["properties"].pop()
    with pytest.raises(ArmError, match="1 passages are refused, such as 'p'"):
        arm.collection.write([Row(Passage("p", "", "word"), "", np.ones(3, dtype=np.float32))])


def test_a_schema_that_is_not_deployed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "Bearer secret")
    with running(VespaServer("Bearer secret")) as server:
        params = arm_over(server).params
        with pytest.raises(ArmError, match=r"no schema 'passages' is deployed: docs/guide/engines\.md"):
            ingest(CORPUS, vespa.Documents(params), None)  # type: ignore[arg-type]  # of this kind


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ({"errors": [{"code": 8, "message": "Timed out"}]}, "Vespa has failed: Timed out"),
        ({"coverage": {"full": False}, "fields": {"totalCount": 3}}, "only a part of its documents"),
    ],
)
def test_a_part_of_vespa_is_not_taken_for_the_whole(
    root: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(VespaServer()) as server:
        collection = arm_over(server, key_env=None).collection
        collection.create(None)
        whole = server.reply

        def part(method: str, path: str, query: Any, content: bytes) -> Any:
            return {"root": root} if path == "search/" else whole(method, path, query, content)

        monkeypatch.setattr(server, "reply", part)
        with pytest.raises(ArmError, match=message):
            collection.count()


@pytest.mark.parametrize("kind", DOUBLES)
def test_a_name_that_the_engine_cannot_have_is_refused(kind: str) -> None:
    with pytest.raises(ArmSpecError, match="'a-b' is not a name of a"):
        described("arm", ArmSpec(kind=kind, params={"url": "http://x", "collection": "a-b"}))


def test_the_double_of_graphql_refuses_what_is_none() -> None:
    for text in ('{Get(a: "\n") {b}}', '{Get(a: "x" "y") {b}', orjson.dumps("x").decode()):
        with pytest.raises((RefusedError, IndexError)):
            GraphQL(text)
