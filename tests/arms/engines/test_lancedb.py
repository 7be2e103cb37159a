"""LanceDB's index of vectors: made where there are many, and never the reason why a passage is not found."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from armwise.arms.base import Passage, Query
from armwise.arms.engines import lancedb
from armwise.arms.filters import Comparison
from armwise.arms.retrievers.ingest import ingest
from tests.arms.engines.passages import InMemory, embedded

CLIENT = pytest.importorskip("lancedb", reason="make test-clients installs it")

N, K = 20_000, 10
"""Passages, and how many a search returns."""


@pytest.fixture(scope="module")
def corpus() -> InMemory:
    """Passages of three words of many, numbered."""
    rng = np.random.default_rng(0)
    words = [f"word{n}" for n in range(200)]
    texts = [" ".join(rng.choice(words, 3)) for _ in range(N)]
    return InMemory([Passage(f"p{n}", "", text, 0.0, {"number": n}) for n, text in enumerate(texts)])


@pytest.fixture
def indexed(tmp_path: Path, corpus: InMemory) -> lancedb.LanceTable:
    """A table of the corpus with an index of vectors, of which a search looks through one partition."""
    table = opened(tmp_path, probes=1)
    ingest(corpus, table, embedded(corpus))
    return table


def opened(folder: Path, probes: int) -> lancedb.LanceTable:
    found = {"path": str(folder), "collection": "passages", "backbone": "hashed", "probes": probes}
    return lancedb.LanceTable(lancedb.LanceParams.model_validate(found))


def kinds(folder: Path) -> dict[str, str]:
    """The index of each column that has one."""
    table = CLIENT.connect(folder).open_table("passages")
    return {one.columns[0]: one.index_type for one in table.list_indices()}


def test_few_vectors_have_no_index(tmp_path: Path, corpus: InMemory) -> None:
    few = InMemory(corpus.found[:100])
    ingest(few, opened(tmp_path, probes=1), embedded(few))
    assert set(kinds(tmp_path)) == {"id", "facts", "search"}


@pytest.mark.usefixtures("indexed")
def test_with_every_partition_the_nearest_are_those_of_an_exact_search(
    tmp_path: Path, corpus: InMemory
) -> None:
    assert kinds(tmp_path)["vector"] == "IvfSq"
    vectors, every = embedded(corpus).vectors, opened(tmp_path, probes=10_000)
    for vector in vectors[:20]:
        found = every.dense(vector, Query(""), K)
        exact = np.sort(vectors @ vector)[::-1][:K]
        assert [passage.score for passage in found] == pytest.approx(exact, abs=1e-5)


def test_a_narrow_filter_is_followed_beyond_the_partitions_that_are_looked_through_first(
    indexed: lancedb.LanceTable, corpus: InMemory
) -> None:
    vectors = embedded(corpus).vectors
    farthest = int(np.argmin(vectors @ vectors[0]))
    where = Comparison(type="eq", key="number", value=farthest)
    found = indexed.dense(vectors[0], Query("", where=where), K)
    assert [passage.id for passage in found] == [f"p{farthest}"]


def test_what_changes_after_the_index_is_found_and_what_goes_is_not(
    indexed: lancedb.LanceTable, corpus: InMemory
) -> None:
    changed = InMemory([replace(corpus.found[0], text="nothing like the others"), *corpus.found[1:-1]])
    report = ingest(changed, indexed, embedded(changed))
    assert (report.written, report.deleted) == (1, 1)
    vectors = embedded(changed).vectors
    assert indexed.dense(vectors[0], Query(""), 1)[0].text == "nothing like the others"
    gone = indexed.dense(embedded(corpus).vectors[-1], Query(""), N)
    assert f"p{N - 1}" not in {passage.id for passage in gone}
