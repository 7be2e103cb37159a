"""The engines that can be started here: real ones, in folders, a PostgreSQL, and doubles of others."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from armwise.arms.base import Passage
from armwise.arms.engines import opensearch, qdrant
from armwise.arms.engines.collection import Collection, EngineArm
from armwise.arms.engines.ingest import ingest
from armwise.arms.engines.postgres import PostgresTable
from armwise.arms.retrievers.catalog import resolve_kind
from armwise.arms.retrievers.kind import ArmSpec
from tests.arms.conftest import ENCYCLOPEDIA
from tests.arms.engines.double import Double, running
from tests.arms.engines.passages import InMemory, embedded
from tests.arms.engines.search_server import SearchServer
from tests.postgres import Server

OPEN: dict[str, Callable[[Any], Collection]] = {
    "postgres": PostgresTable,
    "qdrant": qdrant.QdrantCollection,
    "opensearch": opensearch.Index,
    "elasticsearch": opensearch.ElasticIndex,
}
DOUBLES: dict[str, Callable[[], Double]] = {
    "opensearch": lambda: SearchServer(elastic=False),
    "elasticsearch": lambda: SearchServer(elastic=True),
}
NUMBERS = count()


class Engine:
    """An engine that runs, with room for collections."""

    def __init__(self, kind: str, place: dict[str, Any]) -> None:
        self.kind, self.place = kind, place
        self.backbone, self.modes = "hashed", ["lexical", "dense", "hybrid"]

    def spec(self, collection: str, mode: str = "lexical", **params: Any) -> ArmSpec:
        place = {"collection": collection, "mode": mode, "backbone": self.backbone, **self.place}
        return ArmSpec(kind=self.kind, params={**place, **params})

    def open(self, collection: str) -> Collection:
        return OPEN[self.kind](resolve_kind("arm", self.spec(collection))[1], 5.0)

    def fresh(self) -> Collection:
        """Return a collection that is not there yet."""
        return self.open(f"passages{next(NUMBERS)}")

    def fill(self, collection: Collection, corpus: InMemory) -> int:
        """Return how many passages were written."""
        return ingest(corpus, collection, embedded(corpus)).written

    def arm(self, collection: Collection, mode: str) -> EngineArm[Any]:
        kind, params = resolve_kind("arm", self.spec("any", mode))
        assert issubclass(kind, EngineArm)
        return kind("arm", params, collection)


@pytest.fixture(scope="session", params=OPEN)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    kind: str = request.param
    if kind in DOUBLES:
        with running(DOUBLES[kind]()) as double:
            yield Engine(kind, {"url": double.url})
        return
    if kind != "postgres":
        pytest.importorskip("qdrant_client")
        yield Engine(kind, {"path": str(tmp_path_factory.mktemp(kind))})
        return
    server: Server = request.getfixturevalue("postgres")
    with server.connect() as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA pg_catalog")
    url = server.fresh()
    yield Engine(kind, {"url": url})
    server.drop(url)


@pytest.fixture(scope="session")
def encyclopedia() -> InMemory:
    """The passages of the other tests of arms, numbered, the first for a group alone."""
    found = [replace(p, metadata={"number": n}) for n, p in enumerate(ENCYCLOPEDIA)]
    secret = Passage(
        "secret", "Vienna", "The river of Vienna is a secret.", 0.0, {"allowed_groups": ["staff"]}
    )
    return InMemory([*found, secret])


@pytest.fixture(scope="session")
def filled(engine: Engine, encyclopedia: InMemory) -> Collection:
    collection = engine.open("encyclopedia")
    engine.fill(collection, encyclopedia)
    return collection
