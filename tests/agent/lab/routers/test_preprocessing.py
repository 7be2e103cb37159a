"""What a model is shown comes from the training data alone, and equals what scikit-learn makes of it."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from armwise.agent.lab.routers.preprocessing import Preparation, stack_tables
from armwise.agent.routers import RouterSpec, build_router
from armwise.agent.routers.dataset import Features, RouterError
from tests.router_contracts import world

TRAINING, OTHERS = world(120, seed=1).features, world(30, seed=2).features


@pytest.mark.parametrize("dims", [0, 3, 8, 50])
def test_principal_components_equal_those_of_scikit_learn_up_to_sign(dims: int) -> None:
    ours = Preparation.fit(TRAINING, dims).question(OTHERS)[:, 2:]
    kept = min(dims, 8)
    assert ours.shape == (30, kept)
    if kept:
        theirs = PCA(kept).fit(TRAINING.embedding.astype(float)).transform(OTHERS.embedding.astype(float))
        np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-9)


def test_there_are_no_more_directions_than_questions() -> None:
    few = world(3, seed=1).features
    assert Preparation.fit(few, 8).directions.shape == (8, 3)


def test_directions_do_not_hang_on_a_sign_that_a_library_chooses() -> None:
    directions = Preparation.fit(TRAINING, 8).directions
    assert (directions[np.abs(directions).argmax(axis=0), np.arange(8)] > 0.0).all()


def test_numbers_of_a_question_equal_the_z_scores_of_scikit_learn() -> None:
    ours = Preparation.fit(TRAINING, 0).question(OTHERS)
    theirs = StandardScaler().fit(TRAINING.question).transform(OTHERS.question)
    np.testing.assert_allclose(ours, theirs)


def test_a_constant_number_becomes_zero() -> None:
    constant = replace(TRAINING, question=np.full((120, 2), 5.0))
    assert (Preparation.fit(constant, 0).question(constant) == 0.0).all()


def test_questions_without_an_embedding_keep_their_numbers() -> None:
    bare = replace(TRAINING, embedding=np.empty((120, 0), dtype=np.float32))
    assert Preparation.fit(bare, 32).question(bare).shape == (120, 2)


def test_numbers_of_arms_are_scaled_by_training_medians_and_gaps_are_kept() -> None:
    prepared = Preparation.fit(TRAINING, 0)
    train, other = stack_tables(TRAINING), stack_tables(OTHERS)
    expected = (other - np.nanmedian(train, axis=(0, 1))) / np.nanstd(train, axis=(0, 1))
    np.testing.assert_allclose(prepared.arms(OTHERS), expected)
    assert np.isnan(prepared.arms(OTHERS)[:, 0, :6]).all()


def test_gaps_are_filled_with_what_is_the_median_after_scaling() -> None:
    prepared = Preparation.fit(TRAINING, 0)
    filled = prepared.impute(OTHERS)
    assert (filled[:, 0, :6] == 0.0).all()
    known = ~np.isnan(prepared.arms(OTHERS))
    np.testing.assert_array_equal(filled[known], prepared.arms(OTHERS)[known])


@pytest.mark.parametrize("features", [replace(TRAINING, retrieved=None, answered=None), TRAINING])
def test_a_number_that_no_arm_has_is_a_gap_everywhere(features: Features) -> None:
    if features.retrieved is not None:
        values = features.retrieved.values.copy()
        values[:, :, 2] = np.nan
        features = replace(features, retrieved=replace(features.retrieved, values=values))
        assert np.isnan(Preparation.fit(features, 0).arms(features)[:, :, 2]).all()
    filled = Preparation.fit(features, 0).impute(features)
    assert np.isfinite(filled).all()
    assert filled.shape == stack_tables(features).shape


def test_a_preparation_comes_back_from_its_arrays() -> None:
    prepared = Preparation.fit(TRAINING, 4)
    back = Preparation.restore(prepared.state())
    np.testing.assert_array_equal(back.question(OTHERS), prepared.question(OTHERS))
    np.testing.assert_array_equal(back.arms(OTHERS), prepared.arms(OTHERS))
    state = dict(prepared.state())
    del state["preparation.median"]
    with pytest.raises(KeyError, match=r"preparation\.median"):
        Preparation.restore(state)


@pytest.mark.parametrize("kind", ["pointwise_svm", "listnet", "pointwise_xgboost", "pairwise_xgboost"])
def test_arms_that_would_all_look_alike_are_refused(kind: str) -> None:
    spec = RouterSpec(kind=kind, params={"identity": False, "stage": "question"})
    with pytest.raises(RouterError, match=f"{kind}: identity is false.*'question'"):
        build_router(spec).fit(world(20, seed=1))
