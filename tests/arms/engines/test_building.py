"""How an arm over an engine is built: its parameters, its client."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa

from armwise.arms.base import ArmBuildError, ArmError, Passage, Query, QuestionRefusedError
from armwise.arms.engines.collection import EngineArm, EngineParams, Row
from armwise.arms.engines.ingest import IngestReport, fill_collection, ingest
from armwise.arms.engines.postgres import PostgresArm, PostgresTable
from armwise.arms.engines.qdrant import QdrantCollection, QdrantFilters, QdrantParams, in_folder, sparse
from armwise.arms.filters import Comparison
from armwise.arms.retrievers import build_arm
from armwise.arms.retrievers.catalog import KINDS, ArmSpecError, resolve_kind
from armwise.arms.retrievers.kind import ArmSpec, Resources
from tests.arms.contract import DIM, ask
from tests.arms.engines.conftest import OPEN, Engine
from tests.arms.engines.passages import InMemory
from tests.arms.retrievers.test_catalog import BACKBONES
from tests.postgres import Server

DATABASE = "postgresql://search@db.example/search"


def postgres(**params: Any) -> ArmSpec:
    return ArmSpec(kind="postgres", params={"url": DATABASE, "collection": "passages", **params})


@pytest.mark.parametrize(
    ("kind", "params", "named"),
    [
        ("postgres", {"url": "postgresql://me:secret@db/search"}, "url .* password .* key_env"),
        ("postgres", {"url": "mysql://db/search"}, "postgresql://"),
        ("postgres", {"url": DATABASE, "collection": 'a"; DROP TABLE b'}, "collection"),
        ("postgres", {"url": DATABASE, "language": "english'"}, "language"),
        ("postgres", {"url": DATABASE, "mode": "dense"}, "needs a backbone"),
        ("qdrant", {}, "url"),
        ("qdrant", {"url": "http://q", "path": "q"}, "url"),
        ("qdrant", {"url": "http://me:x@q"}, "url"),
        ("qdrant", {"url": "q"}, "url"),
        ("opensearch", {"url": "http://x/?a=b"}, r"url .http://x/\?a=b. is not"),
    ],
)
def test_wrong_parameters_are_refused(kind: str, params: dict[str, Any], named: str) -> None:
    with pytest.raises(ArmSpecError, match=named) as refused:
        resolve_kind("arm", ArmSpec(kind=kind, params={"collection": "c", **params}))
    assert "secret" not in str(refused.value)


def test_a_missing_password_is_said(monkeypatch: pytest.MonkeyPatch, corpus: Any, tmp_path: Path) -> None:
    monkeypatch.delenv("SEARCH_KEY", raising=False)
    resources = Resources(corpus, tmp_path, {}, {"arm": postgres(key_env="SEARCH_KEY")})
    with pytest.raises(ArmBuildError, match="SEARCH_KEY"):
        build_arm("arm", resources)


def test_a_request_that_fills_has_ten_minutes(
    monkeypatch: pytest.MonkeyPatch, corpus: Any, tmp_path: Path
) -> None:
    filled: list[tuple[Any, ...]] = []

    def fill_arm(*told: Any) -> IngestReport:
        filled.append(told)
        return IngestReport("a version", 3)

    monkeypatch.setattr("armwise.arms.engines.ingest.fill_arm", fill_arm)
    far = ArmSpec(kind="opensearch", params={"url": "http://x", "collection": "c"})
    lacking = far.model_copy(update={"params": {**far.params, "backbone": "other"}})
    specs = {"far": far, "words": ArmSpec(kind="bm25"), "lacking": lacking}
    have = Resources(corpus, tmp_path, BACKBONES, specs)
    build_arm("far", have)  # with the time of a search
    assert fill_collection("far", have, print) == IngestReport("a version", 3)
    arm, resources, progress = filled.pop()
    assert (arm.name, resources, progress) == ("far", have, print)
    assert arm.collection._rest._http.wait_s == 600.0  # noqa: SLF001 - a batch takes longer than a search
    with pytest.raises(
        ArmSpecError, match=r"'words' of kind 'bm25' has no collection: .* opensearch, .*postgres"
    ):
        fill_collection("words", have)
    with pytest.raises(ArmSpecError, match="unknown backbone 'other'"):
        fill_collection("lacking", have)
    with pytest.raises(ArmSpecError, match="unknown arm 'nobody'"):
        fill_collection("nobody", have)


def test_arms_over_one_collection_share_it(engine: Engine, corpus: Any, tmp_path: Path) -> None:
    specs = {mode: engine.spec("encyclopedia", mode) for mode in engine.modes}
    resources = Resources(corpus, tmp_path, BACKBONES, specs)
    arms = [build_arm(mode, resources) for mode in specs]
    assert all(isinstance(arm, EngineArm) and arm.collection is arms[0].collection for arm in arms)  # type: ignore[attr-defined]
    for name, arm in zip(specs, arms, strict=True):
        assert arm.backbones == frozenset(() if name == "lexical" else ("hashed",))


def test_every_engine_filters() -> None:
    kinds = {name for name, kind in KINDS.own.items() if issubclass(kind.params, EngineParams)}
    assert kinds == set(OPEN)
    assert all(KINDS[name].filters for name in kinds)
    assert not KINDS["remote"].filters


def test_a_name_that_qdrant_cannot_quote_is_refused() -> None:
    with pytest.raises(QuestionRefusedError, match="quotation mark"):
        QdrantFilters(pytest.importorskip("qdrant_client").models, "metadata").lacks('x" OR "y')


def test_a_table_of_others_is_searched_by_its_own_columns(postgres: Server) -> None:
    url = postgres.fresh()
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute(
            'CREATE TABLE pages (page_id int, "Body %" text, words tsvector '
            "GENERATED ALWAYS AS (to_tsvector('simple', \"Body %\")) STORED)"
        )
        connection.execute("INSERT INTO pages VALUES (7, 'the Danube'), (8, 'the Rhine')")
    fields = {"id": "page_id", "title": None, "text": "Body %", "search": "words", "metadata": None}
    params = {"url": url, "collection": "pages", "language": "simple", "fields": fields}
    own = resolve_kind("arm", ArmSpec(kind="postgres", params=params))[1]
    arm = PostgresArm("arm", own, PostgresTable(own, 5.0))
    assert arm.search(Query("which Danube?"), 5).passages[0].replace_score(0.0) == Passage(
        "7", "", "the Danube"
    )
    for groups in (frozenset[str](), frozenset({"staff"})):
        assert len(arm.search(Query("the", groups=groups), 5).passages) == 2
    nothing = Comparison(type="eq", key="x", value=1)
    assert arm.search(Query("the", where=nothing), 5).passages == ()
    assert arm.version == ""
    postgres.drop(url)


@pytest.fixture
def table(postgres: Server) -> Iterator[PostgresTable]:
    """A collection that is not there yet."""
    with postgres.connect() as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA pg_catalog")
    url = postgres.fresh()
    params = {"url": url, "collection": "passages", "backbone": "b"}
    yield PostgresTable(resolve_kind("arm", ArmSpec(kind="postgres", params=params))[1], 5.0)
    postgres.drop(url)


def watched(table: PostgresTable) -> list[str]:
    """Return the statements that will have run."""
    ran = list[str]()
    sa.event.listen(table._engine, "before_cursor_execute", lambda *run: ran.append(run[2]))  # noqa: SLF001
    return ran


def test_vectors_are_indexed_without_a_limit_of_time(table: PostgresTable) -> None:
    table.create(3)
    ran = watched(table)
    table.finish()
    where = next(n for n, statement in enumerate(ran) if "USING hnsw" in statement)
    assert "SET LOCAL statement_timeout = 0" in ran[:where], "an index of millions takes minutes"
    counted = next(n for n, statement in enumerate(ran) if "search SET STATISTICS 1000" in statement)
    assert any(statement.startswith("ANALYZE") for statement in ran[counted:])


@pytest.mark.parametrize(("dim", "indexed"), [(2000, True), (2001, False)])
def test_vectors_of_up_to_2000_numbers_are_indexed(table: PostgresTable, dim: int, indexed: bool) -> None:
    table.create(dim)
    table.finish()
    with table._engine.connect() as connection:  # noqa: SLF001
        found = connection.execute(sa.text("SELECT indexname FROM pg_indexes WHERE tablename = 'passages'"))
        assert ("passages_near" in found.scalars().all()) is indexed
    assert table.dense(np.ones(dim, dtype=np.float32), Query("x"), 1001) == [], "more than pgvector's width"


def test_a_search_by_vectors_considers_128_to_1000_candidates(table: PostgresTable) -> None:
    table.create(3)
    ran = watched(table)
    for k in (3, 200, 5000):
        table.dense(np.ones(3, dtype=np.float32), Query("x"), k)
    table.lexical(Query("river"), 3)
    widths = [statement.rpartition(" ")[2] for statement in ran if "hnsw.ef_search" in statement]
    assert widths == ["128", "200", "1000"]
    assert ran.count("SET LOCAL hnsw.iterative_scan = strict_order") == 3, "for a filter"


def test_words_weigh_as_in_bm25_of_eighty_words() -> None:
    pytest.importorskip("qdrant_client")
    assert list(sparse("rivers rivers bridge", "none", query=True).values()) == [2.0, 1.0]
    found = sparse(" ".join(["river", "river", *(f"word{n}" for n in range(78))]), "none", query=False)
    assert sorted(found.values())[-1] == pytest.approx(2 * 2.2 / 3.2)
    assert sorted(found.values())[0] == pytest.approx(1.0)
    (alone,) = sparse("river", "none", query=False).values()
    assert alone == pytest.approx(2.2 / (1 + 1.2 * (0.25 + 0.75 / 80)))


@pytest.mark.parametrize(("wait_s", "seconds"), [(0.2, 1), (7.6, 8)])
def test_a_server_of_qdrant_gets_the_key_and_whole_seconds(
    wait_s: float, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[dict[str, Any]] = []
    monkeypatch.setenv("SEARCH_KEY", "secret")
    monkeypatch.setattr(
        pytest.importorskip("qdrant_client"), "QdrantClient", lambda **found: clients.append(found)
    )
    QdrantCollection(QdrantParams(url="http://qdrant:6333", collection="c", key_env="SEARCH_KEY"), wait_s)
    sent = {"url": "http://qdrant:6333", "api_key": "secret", "timeout": seconds}
    assert [{name: one[name] for name in sent} for one in clients] == [sent]


def test_a_server_of_qdrant_indexes_groups_and_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    class Recorder:
        def __init__(self, **_: object) -> None: ...

        def __getattr__(self, method: str) -> Any:
            return lambda name, *args, **options: calls.append((method, (name, *args), options))

    client = pytest.importorskip("qdrant_client")
    monkeypatch.setattr(client, "QdrantClient", Recorder)
    models = client.models
    collection = QdrantCollection(QdrantParams(url="http://qdrant:6333", collection="c"), 5.0)
    collection.create(3)
    assert [method for method, *_ in calls] == [
        "collection_exists",
        "create_collection",
        "create_payload_index",
        "create_payload_index",
    ]
    assert calls[1][2] == {
        "vectors_config": {"dense": models.VectorParams(size=3, distance=models.Distance.COSINE)},
        "sparse_vectors_config": {"words": models.SparseVectorParams(modifier=models.Modifier.IDF)},
    }
    keyword = models.PayloadSchemaType.KEYWORD
    assert [args for _, args, _ in calls[2:]] == [
        ("c", 'metadata."allowed_groups"', keyword),
        ("c", "empty_lists", keyword),
    ]
    calls.clear()
    collection.write([Row(Passage("p", "", "word"), "", np.ones(3, dtype=np.float32))])
    collection.delete(["p"])
    assert [(method, options) for method, _, options in calls] == [
        ("upsert", {"wait": True}),
        ("delete", {"wait": True}),
    ]


def test_qdrant_is_not_asked_for_words_that_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("qdrant_client")
    collection = QdrantCollection(QdrantParams(path=str(tmp_path), collection="c"), 5.0)
    monkeypatch.setattr(collection, "_connection", None)
    assert collection.lexical(Query("the of"), 3) == []


def test_words_of_scripts_without_blanks_are_found_in_qdrant(tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client")
    texts = {
        "zh": "\u957f\u6c5f\u662f\u4e9a\u6d32\u6700\u957f\u7684\u6cb3\u6d41",
        "hi": "\u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f",
    }
    collection = QdrantCollection(QdrantParams(path=str(tmp_path), collection="c"), 5.0)
    ingest(InMemory([Passage(name, "", text) for name, text in texts.items()]), collection, None)
    queries = ("\u4e9a\u6d32", "\u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f")
    found = [[passage.id for passage in collection.lexical(Query(query), 3)] for query in queries]
    assert found == [["zh"], ["hi"]]
    assert collection.lexical(Query("\u0915"), 3) == []


def test_a_collection_with_words_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("qdrant_client")
    params = QdrantParams(path=str(tmp_path), collection="c")
    collection, rivers = QdrantCollection(params, 5.0), InMemory([Passage("p", "", "The rivers.")])
    monkeypatch.setattr(QdrantCollection, "row_format", 1)
    ingest(rivers, collection, None)
    monkeypatch.undo()
    said = r"arm 'words': .* version, \S+-words-1: .*`armwise ingest --into`"
    with pytest.raises(ArmError, match=said):
        PostgresArm("words", params, collection).search(Query("rivers"), 3)
    assert ingest(rivers, collection, None).written == 1
    found = PostgresArm("words", params, collection).search(Query("rivers"), 3).passages
    assert [passage.id for passage in found] == ["p"]


def test_points_of_others_are_searched_by_their_own_fields(tmp_path: Path, corpus: Any) -> None:
    """As LangChain writes them: one vector without a name, the text beside its metadata."""
    client = pytest.importorskip("qdrant_client")
    params: dict[str, Any] = {
        "path": str(tmp_path),
        "collection": "notes",
        "mode": "dense",
        "backbone": "hashed",
    }
    params["fields"] = {"id": None, "title": None, "text": "page_content", "vector": ""}
    resources = Resources(corpus, tmp_path, BACKBONES, {"arm": ArmSpec(kind="qdrant", params=params)})
    arm = build_arm("arm", resources)
    qdrant = in_folder(str(tmp_path))
    models = client.models
    qdrant.create_collection("notes", models.VectorParams(size=DIM, distance=models.Distance.COSINE))
    query = ask("the Danube", arm.backbones)
    vector = query.embeddings["hashed"].tolist()
    payloads = [
        {"page_content": "the Danube", "metadata": m} for m in ({"year": 1}, {"allowed_groups": ["a"]})
    ]
    qdrant.upsert(
        "notes", [models.PointStruct(id=n, payload=p, vector=vector) for n, p in enumerate(payloads)]
    )
    (found,) = arm.search(query, 5).passages
    assert (found.id, found.text, found.metadata) == ("0", "the Danube", {"year": 1})
    assert len(arm.search(replace(query, groups=frozenset({"a"})), 5).passages) == 2


def test_a_folder_of_qdrant_that_another_process_has_is_said(
    tmp_path: Path, corpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise RuntimeError(f"Storage folder {path} is already accessed by another instance of Qdrant client.")

    monkeypatch.setattr(pytest.importorskip("qdrant_client"), "QdrantClient", refuse)
    spec = ArmSpec(kind="qdrant", params={"path": str(tmp_path), "collection": "x"})
    with pytest.raises(ArmBuildError, match="already accessed by another instance"):
        build_arm("arm", Resources(corpus, tmp_path, {}, {"arm": spec}))
