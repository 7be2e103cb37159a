"""Routers of boosted trees: their rows, targets and scores, and what they refuse."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from armwise.agent.lab.routers import trees
from armwise.agent.lab.routers.trees import BoostedTrees, LambdaMART, PairwiseXGBoost, PointwiseXGBoost
from armwise.agent.routers import dataset as parts
from armwise.agent.routers.dataset import ArmTable, Features, RoutingDataset
from tests.router_contracts import ARMS, world

KINDS: tuple[type[BoostedTrees[Any]], ...] = (PointwiseXGBoost, PairwiseXGBoost, LambdaMART)
QUICK: dict[str, Any] = {"rounds": 12, "dims": 4}


@pytest.fixture(scope="module", autouse=True)
def fast() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for kind in (BoostedTrees, PointwiseXGBoost):
            patch.setattr(kind, "growth", {**kind.growth, "eta": 0.3})
        yield


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], NDArray[Any], NDArray[Any], Any]]:
    """Collect what xgboost is given: its parameters, rows, targets and question numbers."""
    seen: list[tuple[dict[str, Any], NDArray[Any], NDArray[Any], Any]] = []
    train, matrix = xgboost.train, xgboost.QuantileDMatrix
    given_rows: list[tuple[NDArray[Any], NDArray[Any], Any]] = []

    def keep_rows(rows: NDArray[Any], target: NDArray[Any], **more: Any) -> xgboost.QuantileDMatrix:
        given_rows.append((rows, target, more.get("qid")))
        return matrix(rows, target, **more)

    def keep(params: dict[str, Any], data: xgboost.DMatrix, rounds: int) -> xgboost.Booster:
        seen.append((params, *given_rows[-1]))
        return train(params, data, rounds)

    monkeypatch.setattr(xgboost, "QuantileDMatrix", keep_rows)
    monkeypatch.setattr(xgboost, "train", keep)
    return seen


def small(utility: list[list[float]]) -> RoutingDataset:
    """Return labels of questions with one number each, 10 times the row, and arms with one, 1 to 3."""
    n = len(utility)
    features = Features(
        ("a", "b", "c"),
        ("?",) * n,
        ("tens",),
        np.arange(n)[:, None] * 10.0,
        np.empty((n, 0), dtype=np.float32),
        ArmTable(("max_sim",), np.tile(np.array([1.0, 2.0, 3.0])[:, None], (n, 1, 1))),
    )
    return RoutingDataset(features, np.array(utility))


def unscaled(router: BoostedTrees[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """Return rows with the first number of the question as it was before it was prepared."""
    prepared = router._preparation  # noqa: SLF001 - what rows are made with is nothing to the outside
    return np.column_stack([rows[:, 0] * prepared.spread[0] + prepared.mean[0], rows[:, 1:]]).round(5)


SPREAD = np.std([1.0, 2.0, 3.0])


def test_pointwise_rows_are_known_arms_and_targets_differ_from_the_mean_of_the_question(grown: Any) -> None:
    labels = small([[0.0, 0.5, 1.0], [np.nan, 1.0, 0.0], [np.nan, np.nan, 1.0]])
    router = PointwiseXGBoost(rounds=1).fit(labels)
    _, rows, target, qid = grown[0]
    one = round(1 / SPREAD, 5)
    assert unscaled(router, rows).tolist() == pytest.approx(
        np.array(
            [
                [0, -one, 1, 0, 0],
                [0, 0, 0, 1, 0],
                [0, one, 0, 0, 1],
                [10, 0, 0, 1, 0],
                [10, one, 0, 0, 1],
            ]
        )
    )
    assert target.tolist() == [-0.5, 0.0, 0.5, 0.5, -0.5]
    assert qid is None


def test_without_centring_a_question_with_one_known_arm_teaches_its_utility(grown: Any) -> None:
    labels = small([[0.0, 0.5, 1.0], [np.nan, 1.0, 0.0], [np.nan, np.nan, 1.0]])
    PointwiseXGBoost(rounds=1, centre=False).fit(labels)
    assert grown[0][2].tolist() == [0.0, 0.5, 1.0, 1.0, 0.0, 1.0]


def test_pairwise_rows_are_differences_in_both_directions_without_ties(grown: Any) -> None:
    labels = small([[0.0, 0.0, 1.0], [np.nan, 1.0, 0.0]])
    router = PairwiseXGBoost(rounds=1).fit(labels)
    _, rows, target, qid = grown[0]
    one, two = round(1 / SPREAD, 5), round(2 / SPREAD, 5)
    assert unscaled(router, rows) == pytest.approx(
        np.array(
            [
                [0, -two, 1, 0, -1],
                [0, -one, 0, 1, -1],
                [0, two, -1, 0, 1],
                [0, one, 0, -1, 1],
                [10, -one, 0, 1, -1],
                [10, one, 0, -1, 1],
            ]
        )
    )
    assert target.tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    assert qid is None


def test_lambdamart_ranks_known_arms_by_utility_between_the_worst_and_the_best(grown: Any) -> None:
    LambdaMART(rounds=1).fit(small([[2.0, 4.0, 3.0], [1.0, 1.0, 1.0], [np.nan, -1.0, 0.0]]))
    _, _, target, qid = grown[0]
    assert target.tolist() == [0.0, 1.0, 0.5, 0.0, 1.0]
    assert qid.tolist() == [0, 0, 0, 2, 2]


def test_rows_leave_out_which_arm_it_is_if_told_to(grown: Any) -> None:
    labels = small([[0.0, 0.5, 1.0], [0.5, 1.0, 0.0]])
    for kind in KINDS:
        router = kind(rounds=1, identity=False).fit(labels)
        assert grown[-1][1].shape[1] == 2
        assert router.scores(labels.features).shape == (2, 3)


def test_gaps_are_missing_or_medians_as_told(grown: Any) -> None:
    labels = world(40, seed=1)
    LambdaMART(rounds=1, dims=0).fit(labels)
    LambdaMART(rounds=1, dims=0, impute=True).fit(labels)
    native, imputed = grown[0][1], grown[1][1]
    gaps = np.isnan(native)
    assert gaps.any()
    assert (imputed[gaps] == 0.0).all()
    np.testing.assert_array_equal(imputed[~gaps], native[~gaps])


def test_the_trees_are_grown_as_the_paper_grows_them(grown: Any) -> None:
    PairwiseXGBoost(rounds=1).fit(world(40, seed=1))
    params = grown[0][0]
    assert params["objective"] == "binary:logistic"
    expected = {"max_depth": 5, "min_child_weight": 2.0, "gamma": 0.1, "subsample": 0.8}
    assert {name: params[name] for name in expected} == expected
    assert (params["colsample_bytree"], params["nthread"]) == (0.8, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [2, 3])
def test_the_same_bytes_come_of_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, kind: type[BoostedTrees[Any]], threads: int
) -> None:
    labels = world(100, seed=1)
    alone = kind(**QUICK | {"rounds": 4}).fit(labels).save()
    monkeypatch.setattr(trees, "THREADS", threads)
    assert kind(**QUICK | {"rounds": 4}).fit(labels).save() == alone


def test_a_pair_is_asked_in_both_directions_and_an_arm_against_itself_is_a_half() -> None:
    sums = np.log(np.array([[[1.0, 3.0], [1.0, 1.0]]]))  # the first wins 3 of 4, the second 1 of 2
    ranked = PairwiseXGBoost()._to_scores(sums)  # noqa: SLF001 - the rule by itself
    np.testing.assert_allclose(ranked, [[(0.5 + 0.625) / 2.0, (0.5 + 0.375) / 2.0]])


PAIRWISE = PairwiseXGBoost(**QUICK).fit(world(150, seed=1))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_scores_of_pairs_are_probabilities_around_one_half(seed: int) -> None:
    scores = PAIRWISE.scores(world(5, seed=seed).features)
    assert ((scores > 0.0) & (scores < 1.0)).all()
    np.testing.assert_allclose(scores.mean(axis=1), 0.5)


def test_one_arm_alone_is_as_good_as_itself() -> None:
    assert PAIRWISE.scores(world(3, seed=2).features.select_arms(("dense",))).tolist() == [[0.5]] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_many_questions_are_scored_as_few_are(
    monkeypatch: pytest.MonkeyPatch, kind: type[BoostedTrees[Any]]
) -> None:
    router, seen = kind(**QUICK).fit(world(100, seed=1)), world(50, seed=2).features
    at_once = router.scores(seen)
    monkeypatch.setattr(parts, "ROWS_PER_BATCH", 40)
    np.testing.assert_allclose(router.scores(seen), at_once, rtol=0, atol=1e-12)
    assert router.scores(seen.rows(np.zeros(50, dtype=bool))).shape == (0, len(ARMS))


def test_a_saved_router_decides_without_xgboost(tmp_path: Path) -> None:
    saved = tmp_path / "router"
    saved.write_bytes(PointwiseXGBoost(**QUICK).fit(world(100, seed=1)).save())
    code = "import sys\nfrom pathlib import Path\n"
    code += "from armwise.agent.lab.routers.trees import PointwiseXGBoost\n"
    code += "from tests.router_contracts import world\n"
    code += f"router = PointwiseXGBoost(**{QUICK!r}).load(Path({str(saved)!r}).read_bytes())\n"
    code += "print(router.scores(world(5, seed=2).features).shape, 'xgboost' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout == f"(5, {len(ARMS)}) False\n"


@pytest.mark.slow
def test_the_catalogue_loads_no_library_of_a_router() -> None:
    libraries = ("xgboost", "sklearn", "torch", "sentence_transformers")
    code = "import sys, armwise.agent.routers.catalog\n"
    code += f"print([name for name in {libraries} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize("kind", KINDS)
def test_an_arm_that_is_good_without_any_feature_is_found(kind: type[BoostedTrees[Any]]) -> None:
    labels = world(200, seed=1)
    rng = np.random.default_rng(0)
    utility = rng.uniform(size=(200, 4)) + np.array([0.0, 0.0, 1.0, 0.0])
    router = kind(**QUICK).fit(replace(labels, utility=utility))
    best = router.scores(world(50, seed=2).features).argmax(axis=1)
    assert (best == ARMS.index("dense")).all()
