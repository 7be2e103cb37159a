"""A vector index under a filter: the nearest of the permitted passages, and as many as there are."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from arms.corpus import Permitted
from arms.indexes import IndexParams, VectorIndex, vector_search
from tests.arms.retrievers.test_first_stage import unit

VECTORS = unit(800, 16, seed=3)

K = 10


@cache
def index_of(kind: str) -> VectorIndex:
    params = IndexParams.model_validate({"backbone": "b", "index": kind, "neighbors": 8, "search_width": 64})
    return VectorIndex(vector_search._build(VECTORS, params, None), params)  # noqa: SLF001


def plain(vector: NDArray[np.float32], mask: NDArray[np.bool_]) -> list[int]:
    scores = np.where(mask, VECTORS @ vector, -np.inf)
    return [int(place) for place in np.argsort(-scores, kind="stable")[:K] if mask[place]]


def masks() -> dict[str, NDArray[np.bool_]]:
    rng = np.random.default_rng(5)
    drawn = {f"{share:.0%}": rng.random(len(VECTORS)) < share for share in (0.9, 0.3, 0.02)}
    # the worst for a walk: only what is opposite to the first axis
    return {
        **drawn,
        "far": VECTORS[:, 0] < -0.5,
        "one": np.arange(len(VECTORS)) == 7,
        "none": VECTORS[:, 0] > 2,
    }


@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("kind", ["flat", "hnsw", "walked"])
def test_the_nearest_permitted_passages_are_found(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "walked":  # whatever the share
        monkeypatch.setattr(vector_search, "LEAST_COUNT", 1)
        monkeypatch.setattr(vector_search, "LEAST_SHARE", 0.0)
    index, mask = index_of("flat" if kind == "flat" else "hnsw"), masks()[name]
    questions: list[Any] = [*unit(20, 16, seed=9), np.eye(16, dtype=np.float32)[0]]
    met, wanted = 0, 0
    for vector in questions:
        scores, places = index.nearest(vector, K, Permitted.of(mask.copy()))
        expected = plain(vector, mask)
        assert mask[places].all()
        assert len(places) >= min(K, mask.sum())
        np.testing.assert_allclose(scores, VECTORS[places] @ vector, atol=1e-6)
        met, wanted = met + len({*expected} & {*places[:K].tolist()}), wanted + len(expected)
        if kind != "walked":
            assert places[:K].tolist() == expected
    assert met >= 0.95 * wanted
