"""Vendi: the pruned batch picks what the plain greedy with the vendi-score package does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from vendi_score import vendi as package

from armwise.arms.more import vendi
from armwise.arms.more.vendi import vendi_bound, vendi_picks, vendi_score
from tests.arms.more.test_discounted import candidates

Floats = NDArray[np.float64]

# the package asks SciPy for a name that is to go
pytestmark = pytest.mark.filterwarnings("ignore:Please import `csr_matrix`:DeprecationWarning")


def objectives(
    relevance: Floats, vectors: Floats, s: float, picked: list[int], score: object = package.score_K
) -> Floats:
    """Return what each candidate would make of the objective; -inf for those that are picked."""
    values = np.full(len(relevance), -np.inf)
    for d in set(range(len(relevance))) - set(picked):
        chosen = [*picked, d]
        kernel = vectors[chosen] @ vectors[chosen].T
        values[d] = s * score(kernel) + (1 - s) * relevance[chosen].sum()  # type: ignore[operator]
    return values


@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.integers(1, 14),
    st.integers(2, 12),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.data(),
)
@pytest.mark.slow
def test_each_pick_is_a_best_one_and_adds_what_is_told(
    seed: int, m: int, dim: int, diversities: list[float], data: st.DataObject
) -> None:
    relevance, vectors = candidates(seed, m, dim)
    n = data.draw(st.integers(1, min(m, 6)))
    picks, gains = vendi_picks(relevance, vectors, np.array(diversities), n)
    for row, s in enumerate(diversities):
        picked: list[int] = []
        before = 0.0
        for pick, gain in zip(picks[row].tolist(), gains[row], strict=True):
            values = objectives(relevance, vectors, s, picked)
            assert values[pick] >= values.max() - 1e-6
            assert gain == pytest.approx(values[pick] - before, abs=1e-6)
            copies = [d for d in range(pick) if (vectors[d] == vectors[pick]).all()]
            assert set(copies) <= set(picked), "of equal passages, the one before is picked first"
            before = values[pick]
            picked.append(pick)


@pytest.mark.parametrize("seed", range(4))
def test_picks_are_those_of_a_greedy_with_the_package(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topics = rng.normal(size=(5, 24))
    vectors = topics[rng.integers(5, size=40)] + 0.7 * rng.normal(size=(40, 24))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    relevance = vectors @ vectors.mean(axis=0)
    relevance, vectors = relevance[order := np.argsort(-relevance)], vectors[order]
    diversities = np.linspace(0, 1, 6)
    picks, _ = vendi_picks(relevance, vectors, diversities, 4)
    for row, s in enumerate(diversities):
        picked = [0]  # alone, each is as diverse as the next
        for _ in range(3):
            picked.append(int(objectives(relevance, vectors, s, picked).argmax()))
        assert picks[row].tolist() == picked


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(2, 12), st.integers(1, 6))
def test_leaving_out_the_hopeless_changes_no_pick(seed: int, m: int, dim: int, n: int) -> None:
    relevance, vectors = candidates(seed, m, dim)
    diversities = np.linspace(0, 1, 5)
    pruned = vendi_picks(relevance, vectors, diversities, min(n, m))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(vendi, "vendi_bound", lambda purity, n: np.full_like(purity, n))
        full = vendi_picks(relevance, vectors, diversities, min(n, m))
    np.testing.assert_array_equal(pruned[0], full[0])
    np.testing.assert_array_equal(pruned[1], full[1])


def test_few_eigenvalues_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    relevance, vectors = candidates(5, 400, 32)
    computed: list[int] = []

    def counted(kernels: Floats) -> Floats:
        computed.append(len(kernels))
        return vendi_score(kernels)

    monkeypatch.setattr(vendi, "vendi_score", counted)
    vendi_picks(relevance, vectors, np.linspace(0, 1, 21), 4)
    assert sum(computed) < 21 * 400


def test_ties_go_to_the_first() -> None:
    picks, gains = vendi_picks(np.full(8, 0.3), np.eye(8), np.array([0.0, 0.4, 1.0]), 4)
    assert picks.tolist() == [[0, 1, 2, 3]] * 3
    np.testing.assert_allclose(gains, np.tile([[0.3], [0.4 + 0.6 * 0.3], [1.0]], 4))


def test_with_nothing_else_a_copy_comes_last() -> None:
    vectors = np.eye(4)[[0, 0, 1, 2, 2, 3]]
    assert vendi_picks(np.linspace(0.9, 0.4, 6), vectors, np.ones(1), 6)[0].tolist() == [[0, 2, 3, 5, 1, 4]]


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 8))
def test_the_score_is_that_of_the_package(seed: int, n: int, dim: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(3, n, dim))
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    kernels = vectors @ vectors.transpose(0, 2, 1)
    expected = [package.score_K(kernel) for kernel in kernels]
    assert vendi_score(kernels) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8).filter(any))
def test_no_spectrum_has_a_higher_entropy_than_the_bound(spectrum: list[float]) -> None:
    shares = np.array(spectrum) / sum(spectrum)
    score = np.exp(-sum(share * np.log(share) for share in shares if share > 0))
    bound = vendi_bound((shares**2).sum(), len(shares))
    assert score <= bound + 1e-9
    if len(shares) == 2 or shares.max() == pytest.approx(1.0):
        assert score == pytest.approx(float(bound), abs=1e-6)
