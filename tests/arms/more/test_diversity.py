"""Arms that choose among candidates: a batch finds what its arms do, and searches once."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.corpus import Corpus
from armwise.arms.indexes import VectorIndex
from armwise.arms.models import Backbone
from armwise.arms.more.diversity import Cosines, DiverseArm
from armwise.arms.retrievers.catalog import KINDS
from armwise.arms.retrievers.kind import Kind, Resources
from tests.arms.contract import DIM, QUESTIONS, ask

WORDS = frozenset({"words"})


def grid_of(kind: type[Kind[Any]]) -> list[dict[str, float]]:
    """Return parameters of the arms of a family: the bounds of each number, and the one of the example."""
    values: dict[str, list[float]] = {}
    for name in kind.features:
        limits = kind.params.model_fields[name].metadata
        ends = [getattr(limit, end) for limit in limits for end in ("ge", "le") if hasattr(limit, end)]
        values[name] = sorted({kind.example[name], *ends})
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


FAMILIES = {name: grid_of(kind) for name, kind in KINDS.own.items() if issubclass(kind, DiverseArm)}
"""Parameters of the arms of each family, by kind."""
EACH_FAMILY = pytest.mark.parametrize(
    ("kind", "grid"), [(KINDS[name], grid) for name, grid in FAMILIES.items()], ids=list(FAMILIES)
)


@pytest.fixture
def have(corpus: Corpus, tmp_path: Path) -> Resources:
    """Resources with one backbone, hashed."""
    return Resources(corpus, tmp_path, {"words": Backbone(model=f"hashing:{DIM}")}, {})


def family(
    kind: type[Kind[Any]], grid: list[dict[str, float]], have: Resources, **shared: object
) -> dict[str, Any]:
    """Return the parameters of a family's arms by name, their index built."""
    group = {
        f"arm-{n}": kind.params.model_validate({"backbone": "words", **shared, **own})
        for n, own in enumerate(grid)
    }
    for params in group.values():
        kind.prepare(params, have, None)
    return group


def build(kind: type[Kind[Any]], name: str, params: Any, have: Resources) -> Any:
    return kind.build(name, params, have, lambda _: pytest.fail("it has no members"))


def batches(kind: type[Kind[Any]], group: dict[str, Any], have: Resources) -> list[Any]:
    return list(kind.batch(group, have))


@EACH_FAMILY
@pytest.mark.parametrize("k", [1, 4, 20])
def test_a_batch_finds_what_each_of_its_arms_does(
    kind: type[Kind[Any]], grid: list[dict[str, float]], have: Resources, k: int
) -> None:
    group = family(kind, grid, have)
    (batch,) = batches(kind, group, have)
    ids = have.corpus.ids()
    for question in QUESTIONS:
        query = ask(question, batch.backbones)
        rows = batch.positions(query, k)
        assert rows.shape == (len(group), k)
        assert batch.names == tuple(group)
        for name, row in zip(batch.names, rows, strict=True):
            found = build(kind, name, group[name], have).search(query, k).passages
            assert sorted(ids[position] for position in row if position >= 0) == sorted(p.id for p in found)
            assert (row[len(found) :] == -1).all()


@EACH_FAMILY
def test_a_passage_scores_as_when_picked_at_most(
    kind: type[Kind[Any]], grid: list[dict[str, float]], have: Resources
) -> None:
    query, ids = ask("Which river flows through Vienna?", WORDS), have.corpus.ids()
    for name, params in family(kind, grid, have).items():
        (batch,) = batches(kind, {name: params}, have)
        (positions,), (scores,) = batch.picks(query, 6)
        falling = dict(zip(positions.tolist(), np.minimum.accumulate(scores).tolist(), strict=True))
        found = build(kind, name, params, have).search(query, 6).passages
        assert {ids.index(p.id): p.score for p in found} == falling


@EACH_FAMILY
def test_arms_of_another_depth_are_a_batch_of_their_own(
    kind: type[Kind[Any]], grid: list[dict[str, float]], have: Resources
) -> None:
    deep, shallow = family(kind, grid, have, depth=10), family(kind, grid, have, depth=2)
    group = {**deep, **{f"shallow {name}": params for name, params in shallow.items()}}
    found = batches(kind, group, have)
    assert [batch.names for batch in found] == [tuple(deep), tuple(f"shallow {name}" for name in shallow)]
    query = ask("Who composed the opera about the river?", WORDS)
    nearest = set(found[1].positions(query, 2)[0].tolist())
    assert all(set(row) == nearest for row in found[1].positions(query, 2).tolist()), "two of two"
    assert (found[1].positions(query, 6) >= 0).all(), "a depth below k is raised to k"


@EACH_FAMILY
def test_arms_of_another_index_are_a_batch_of_their_own(
    kind: type[Kind[Any]], grid: list[dict[str, float]], have: Resources
) -> None:
    backbones = {**have.backbones, "others": Backbone(model="hashing:16")}
    both = Resources(have.corpus, have.indexes, backbones, {})
    parts = {
        "plain": family(kind, grid, both),
        "graph": family(kind, grid, both, index="ivf_pq"),
        "other": family(kind, grid, both, backbone="others"),
    }
    group = {f"{part} {name}": own for part, arms in parts.items() for name, own in arms.items()}
    found = batches(kind, group, both)
    assert [{name.partition(" ")[0] for name in batch.names} for batch in found] == [{part} for part in parts]
    assert [batch.backbones for batch in found] == [{"words"}, {"words"}, {"others"}]


def test_the_families_search_a_corpus_once(have: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        batch
        for name, grid in FAMILIES.items()
        for batch in batches(KINDS[name], family(KINDS[name], grid, have), have)
    ]
    searched: list[int] = []
    nearest = VectorIndex.nearest

    def counted(index: VectorIndex, vector: Any, k: int, permitted: Any) -> Any:
        searched.append(k)
        return nearest(index, vector, k, permitted)

    monkeypatch.setattr(VectorIndex, "nearest", counted)
    for batch in found:
        batch.positions(ask("tide and moon", WORDS), 4)
    assert searched == [1000]


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 300))
def test_a_cosine_does_not_depend_on_what_else_is_asked(seed: int, m: int, dim: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(m, dim)).astype(np.float32)
    vectors = np.vstack([vectors, vectors[: m // 2]])
    together = Cosines(vectors).rows(np.arange(len(vectors)))
    piecemeal = Cosines(vectors)
    alone = np.vstack([piecemeal.rows(np.array([row])) for row in rng.permutation(len(vectors))])
    np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(alone, axis=0))
    np.testing.assert_array_equal(together[m:], together[: m // 2], "copies have equal rows")
    np.testing.assert_array_equal(together[:, m:], together[:, : m // 2], "and equal columns")
    np.testing.assert_array_equal(together.diagonal(), 1.0)
    wide = vectors.astype(np.float64)
    units = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    np.testing.assert_allclose(together, units @ units.T, atol=1e-9)
