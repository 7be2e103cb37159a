"""Calibrated routers: the scores of a router, mapped as they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from armwise.agent.lab.routers import ridge
from armwise.agent.lab.routers.calibrated import Calibrated, slope
from armwise.agent.lab.routers.cross_validation import kinds
from armwise.agent.routers.base import Router
from armwise.agent.routers.catalog import RouterSpec, build_router, load_router
from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset, Stage, positions
from tests.router_contracts import ARMS, world

RIDGE = {"kind": "ridge"}
EMBEDDED = {"kind": "ridge", "params": {"sees": "embedding"}}
SVM = {"kind": "pairwise_svm"}


build_calibrated = Calibrated


def fitted(spec: dict[str, object], labels: RoutingDataset) -> Router:
    return build_router(RouterSpec.model_validate(spec)).fit(labels)


def test_a_calibrated_router_looks_as_far_as_its_router() -> None:
    late = {"kind": "pairwise_svm", "params": {"stage": "answered"}}
    assert build_calibrated(router=late).stage is Stage.ANSWERED
    assert build_calibrated(router=RIDGE).stage is Stage.QUESTION


def test_calibrations_nest() -> None:
    labels, asked = world(60, seed=1), world(5, seed=2).features
    router = build_calibrated(router={"kind": "calibrated", "params": {"router": RIDGE}})
    loaded = load_router(router.fit(labels).save())
    np.testing.assert_array_equal(loaded.scores(asked), router.scores(asked))
    assert loaded.save() == router.save()


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"kind": "rigde"}, "no router of kind 'rigde'; did you mean 'ridge'"),
        ({"kind": "ridge", "params": {"sees": "stars"}}, "ridge: sees: .* got 'stars'"),
    ],
)
def test_a_router_that_cannot_be_built_is_refused(spec: dict[str, object], told: str) -> None:
    with pytest.raises(RouterError, match=told):
        build_calibrated(router=spec)


@pytest.mark.parametrize("spec", [RIDGE, SVM, {"kind": "max_sim"}])
def test_calibrated_scores_of_an_arm_are_right_on_average(spec: dict[str, object]) -> None:
    labels = world(100, seed=1)
    rng = np.random.default_rng(0)
    labels.utility[rng.random(labels.utility.shape) < 0.2] = np.nan
    scores = build_calibrated(router=spec).fit(labels).scores(labels.features)
    scores[np.isnan(labels.utility)] = np.nan
    if spec["kind"] == "max_sim":  # it has no number of the arm that retrieves nothing
        scores, utility = scores[:, 1:], labels.utility[:, 1:]
    else:
        utility = labels.utility
    np.testing.assert_allclose(np.nanmean(scores, axis=0), np.nanmean(utility, axis=0), atol=1e-6)


def test_calibrated_scores_rank_the_arms_of_a_question_by_score_and_offset() -> None:
    labels, asked = world(100, seed=1), world(20, seed=2).features
    router, inner = build_calibrated(router=SVM).fit(labels), fitted(SVM, labels)
    expected = router.offsets + router.slope * inner.scores(asked)
    np.testing.assert_allclose(router.scores(asked), expected)
    order = ("graph", "none", "dense", "bm25")
    at = positions(ARMS, order)
    np.testing.assert_allclose(router.scores(asked.select_arms(order)), expected[:, at])


def test_scores_count_as_far_as_they_hold_on_unseen_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A router that knows questions by heart predicts them perfectly, and tells nothing of others."""
    monkeypatch.setattr(ridge, "STRENGTHS", (3.0,))
    assert build_calibrated(router=EMBEDDED).fit(world(200, seed=1)).slope == pytest.approx(1.0, abs=0.15)
    monkeypatch.setattr(ridge, "STRENGTHS", (1e-6,))
    monkeypatch.setattr(ridge, "LEAST", 1)
    labels = world(200, seed=1)
    texts = tuple(f"secret{n} puzzle{n}" for n in range(200))
    features = labels.features
    strange = RoutingDataset(
        type(features)(features.arms, texts, features.names, features.question, features.embedding),
        labels.utility,
    )
    by_heart = fitted(RIDGE, strange).scores(strange.features)
    np.testing.assert_allclose(by_heart, labels.utility, atol=1e-3)
    assert build_calibrated(router=RIDGE).fit(strange).slope == pytest.approx(0.0, abs=0.05)


def test_a_score_of_another_scale_is_mapped_to_the_scale_of_rewards() -> None:
    labels, held_out = world(300, seed=1), world(200, seed=3)
    raw = fitted(SVM, labels).scores(held_out.features)
    calibrated = build_calibrated(router=SVM).fit(labels).scores(held_out.features)
    assert np.abs(raw - held_out.utility).mean() > 1.5 * np.abs(calibrated - held_out.utility).mean()
    assert calibrated.mean() == pytest.approx(held_out.utility.mean(), abs=0.05)


def test_the_slope_is_that_of_least_squares_with_an_offset_an_arm() -> None:
    rng = np.random.default_rng(0)
    scores, utility = rng.normal(size=(50, 3)), rng.normal(size=(50, 3))
    utility += 0.7 * scores + [0.0, 5.0, -2.0]
    utility[rng.random(utility.shape) < 0.3] = np.nan
    known = ~np.isnan(utility)
    names = np.broadcast_to(np.eye(3), (50, 3, 3))[known]
    solution, *_ = np.linalg.lstsq(np.column_stack([scores[known], names]), utility[known], rcond=None)
    assert slope(scores, utility) == pytest.approx(solution[0])
    assert slope(scores, -utility) == 0.0
    assert slope(np.zeros((50, 3)), utility) == 0.0


def test_questions_that_are_all_the_same_leave_the_means_of_the_arms() -> None:
    labels = world(20, seed=1)
    features = labels.features
    same = type(features)(
        features.arms, ("why?",) * 20, features.names, features.question, features.embedding
    )
    router = build_calibrated(router=EMBEDDED).fit(RoutingDataset(same, labels.utility))
    expected = np.broadcast_to(labels.utility.mean(axis=0), (20, 4))
    np.testing.assert_allclose(router.scores(same), expected)


def test_too_few_questions_for_so_many_folds_are_told() -> None:
    labels = world(20, seed=1)
    labels.utility[1:, 0] = np.nan
    with pytest.raises(RouterError, match="20 questions are too few for 5 folds: arm 'none' has no label"):
        build_calibrated(router=RIDGE).fit(labels)


def two_kinds(flipped: float, apart: float = 0.02, noise: float = 0.0) -> RoutingDataset:
    """Two kinds of questions and two arms: a feature says which is better, times `flipped` in one."""
    n, seed = 200, 0
    rng = np.random.default_rng(seed)
    kind, signal = np.repeat([0.0, 1.0], n // 2), rng.normal(size=n)
    better = signal * np.where(kind == 1.0, flipped, 1.0)
    names = ("kind", "form", "length", "signal")
    question = np.stack([kind, kind, kind, signal], axis=1)
    texts, vectors = tuple(f"question {row}" for row in range(n)), np.zeros((n, 0), dtype=np.float32)
    features = Features(("even", "odd"), texts, names, question, vectors)
    utility = np.stack([0.5 + 0.1 * better, 0.5 + apart - 0.1 * better], axis=1)
    return RoutingDataset(features, utility + noise * rng.normal(size=utility.shape))


def test_held_out_kinds_keep_only_differences_that_hold_for_other_kinds() -> None:
    by_features = {"kind": "ridge", "params": {"sees": "features"}}
    by_kind = build_calibrated(held_out="kinds", router=by_features)
    assert by_kind.fit(two_kinds(1.0)).slope == pytest.approx(1.1, abs=0.1)
    misled = by_kind.fit(two_kinds(-1.0))
    assert misled.slope == 0.0
    np.testing.assert_allclose(
        misled.scores(two_kinds(-1.0).features), np.tile(two_kinds(-1.0).utility.mean(axis=0), (200, 1))
    )


@pytest.mark.parametrize(("apart", "noise"), [(0.0, 0.0), (0.0, 0.1), (0.02, 0.1)])
def test_differences_that_hold_for_other_kinds_are_kept_in_full(apart: float, noise: float) -> None:
    """Of equally good arms, any part of the differences chooses the same; under noise, about the same."""
    by_features = {"kind": "ridge", "params": {"sees": "features"}}
    by_kind, by_question = (
        build_calibrated(held_out=held_out, router=by_features).fit(two_kinds(1.0, apart, noise))
        for held_out in ("kinds", "questions")
    )
    assert by_kind.slope == pytest.approx(by_question.slope, rel=0.3)


def test_where_no_question_compares_arms_no_difference_is_kept() -> None:
    labels = two_kinds(1.0)
    labels.utility[::2, 0], labels.utility[1::2, 1] = np.nan, np.nan
    alone = RoutingDataset(labels.features, labels.utility, is_choice=False)
    by_features = {"kind": "ridge", "params": {"sees": "features"}}
    assert build_calibrated(held_out="kinds", router=by_features).fit(alone).slope == 0.0


@given(
    arrays(np.float64, (12, 3), elements=st.integers(-2, 2).map(float)), st.integers(2, 6), st.integers(0, 9)
)
def test_kinds_hold_out_each_question_once(table: Floats, n: int, seed: int) -> None:
    table[0, 0] = table[1, 0] + 1.0  # two forms at least
    parts = kinds(table, n, seed)
    assert 2 <= len(parts) <= n
    assert sorted(np.concatenate([held_out for _, held_out in parts]).tolist()) == list(range(12))
    for training, held_out in parts:
        assert sorted([*training.tolist(), *held_out.tolist()]) == list(range(12))
        alike = (table[training][:, None] == table[held_out][None]).all(axis=2)
        assert not alike.any(), "questions of one form are of one kind"


def test_questions_of_one_form_are_not_split_into_kinds() -> None:
    assert kinds(np.ones((12, 3)), 3, 0) == []
