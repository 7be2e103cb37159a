"""Neural routers: what they minimise is the formula, and what answers is what was fitted, without torch."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.lab.routers.ltrr import ListNet, Neural, PairwiseFFN, PointwiseFFN
from armwise.agent.lab.routers.neural.ltrr_training import (
    FeedForward,
    FitExamples,
    _some,
    compute_squared_losses,
    pair_losses,
    top_one_losses,
)
from armwise.agent.lab.routers.optimizer import Descent, seed_torch
from armwise.agent.lab.routers.ranking_targets import subtract_mean
from armwise.agent.routers import dataset as parts
from armwise.agent.routers.dataset import ArmTable, RoutingDataset
from tests.router_contracts import ARMS, world

NAN = math.nan


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Neural, "hidden", (16, 8))
    monkeypatch.setattr(Neural, "descent", Descent(learning_rate=0.01, batch_size=16, epochs=3))


def network(n_columns: int = 3) -> FeedForward:
    with seed_torch(5):
        return FeedForward((4, n_columns, 3), [16, 8, 4], identity=True).eval()


def examples(n: int = 6, n_columns: int = 3) -> FitExamples:
    rng = np.random.default_rng(0)
    own = rng.normal(size=(n, 3, n_columns))
    own[:, 0] = np.nan
    return FitExamples.from_arrays(rng.normal(size=(n, 4)), own, rng.normal(size=(n, 3)))


def test_the_loss_of_a_list_of_two_is_the_formula() -> None:
    """With two arms, a softmax is a logistic function of the difference."""

    def logistic(x: float) -> float:
        return 1.0 / (1.0 + math.exp(-x))

    loss = top_one_losses(torch.tensor([[0.3, -0.4]]), torch.tensor([[2.0, 1.5]]))
    wanted, chance = logistic(2.0 - 1.5), logistic(0.3 - -0.4)
    expected = -wanted * math.log(chance) - (1.0 - wanted) * math.log(1.0 - chance)
    assert loss.tolist() == pytest.approx([expected], rel=1e-6)


def test_an_unknown_utility_is_in_no_loss() -> None:
    scores = torch.tensor([[0.3, 9.0, -0.4]], requires_grad=True)
    utility = torch.tensor([[2.0, NAN, 1.5]])
    for losses, share in ((top_one_losses, 1.0), (compute_squared_losses, 2.0 / 3.0)):
        loss = losses(scores, utility)
        (slope,) = torch.autograd.grad(loss.sum(), scores)
        assert slope[0, 1] == 0.0
        assert slope.isfinite().all()
        alone = losses(scores[:, [0, 2]], utility[:, [0, 2]])
        assert loss.item() == pytest.approx(share * alone.item())


def test_the_loss_of_pairs_is_the_cross_entropy_of_both_directions() -> None:
    made, of = network(), examples(2)
    of.utility[0] = torch.tensor([1.0, 1.0, 0.0])  # two pairs and a tie
    of.utility[1] = torch.tensor([0.0, NAN, 2.0])  # one pair
    arms, question = made.project_arms(of.own), made.project_question(of.question)

    def loss_of(row: int, better: int, worse: int) -> float:
        won = made.rest(question[row] + arms[row, better] - arms[row, worse])
        lost = made.rest(question[row] + arms[row, worse] - arms[row, better])
        return 0.5 * (math.log1p(math.exp(-won.item())) + math.log1p(math.exp(lost.item())))

    losses = pair_losses(made, of, np.array([0, 1]), np.random.default_rng(0))

    expected = [(loss_of(0, 0, 2) + loss_of(0, 1, 2)) / 2, loss_of(1, 2, 0)]
    assert losses.tolist() == pytest.approx(expected, rel=1e-5)


@given(st.integers(1, 20), st.integers(0, 10))
def test_some_pairs_are_as_many_as_there_may_be(most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = rng.random((5, 4, 4)) < rng.random((5, 1, 1))
    some = _some(pairs, most, rng)
    assert not (some & ~pairs).any()
    assert some.sum(axis=(1, 2)).tolist() == np.minimum(pairs.sum(axis=(1, 2)), most).tolist()


@pytest.mark.parametrize("n_columns", [0, 3])
def test_numpy_and_torch_go_through_the_network_alike(n_columns: int) -> None:
    made, of = network(n_columns), examples(n_columns=n_columns)
    arrays = made.as_arrays()
    question = arrays.project_question(of.question.numpy().astype(np.float64))
    arms = arrays.project_arms(of.own.numpy().astype(np.float64), [0, 1, 2])
    with torch.inference_mode():
        expected = made(of.question, of.own).numpy()
    np.testing.assert_allclose(arrays.rest(question[:, None] + arms), expected, atol=1e-6)


def test_the_score_of_pairs_is_the_mean_chance_of_being_better() -> None:
    router, seen = PairwiseFFN().fit(world(60, seed=1)), world(5, seed=2).features
    alone = router.scores(seen.select_arms(["dense"]))
    assert alone.tolist() == [[0.5]] * 5
    two = {
        arm: router.scores(seen.select_arms(["dense", arm]))[:, 0] * 2.0 - 0.5
        for arm in ARMS
        if arm != "dense"
    }
    expected = (0.5 + sum(two.values())) / 4.0
    np.testing.assert_allclose(router.scores(seen)[:, ARMS.index("dense")], expected, atol=1e-6)


@pytest.mark.parametrize("build", [PointwiseFFN, PairwiseFFN, ListNet])
def test_many_questions_are_scored_in_parts(
    build: type[PointwiseFFN | PairwiseFFN | ListNet], monkeypatch: pytest.MonkeyPatch
) -> None:
    router, seen = build().fit(world(60, seed=1)), world(23, seed=2).features
    at_once = router.scores(seen)
    monkeypatch.setattr(parts, "ROWS_PER_BATCH", 160)
    np.testing.assert_allclose(router.scores(seen), at_once, atol=1e-6)
    assert router.scores(seen.rows(np.arange(0))).shape == (0, 4)


def test_an_arm_that_retrieved_nothing_has_a_learned_vector_and_no_median() -> None:
    labels = world(100, seed=1)
    seen = labels.features.retrieved
    assert seen is not None
    router = PointwiseFFN().fit(labels)
    filled = seen.values.copy()
    filled[:, 0] = np.nanmedian(seen.values.reshape(-1, 6), axis=0)
    medians = replace(labels.features, retrieved=ArmTable(seen.names, filled))
    difference = router.scores(medians) - router.scores(labels.features)
    assert (np.abs(difference[:, 0]) > 1e-4).all()
    np.testing.assert_allclose(difference[:, 1:], 0.0, atol=1e-6)


def test_the_learned_vector_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = world(100, seed=1)
    vectors = []
    for epochs in (1, 4):
        monkeypatch.setattr(Neural, "descent", Descent(learning_rate=0.001, epochs=epochs, held_out=0.0))
        router = ListNet().fit(labels)
        vectors.append(router._network.missing)  # noqa: SLF001 - no score shows it alone
    assert vectors[0].shape == (6,)
    assert not np.allclose(vectors[0], vectors[1])


@pytest.mark.parametrize("build", [PointwiseFFN, PairwiseFFN, ListNet])
def test_a_new_gap_is_taken_for_the_median(
    build: type[PointwiseFFN | PairwiseFFN | ListNet],
) -> None:
    labels = world(60, seed=1)
    some = ("bm25", "dense", "graph")
    known = RoutingDataset(labels.features.select_arms(some), labels.utility[:, 1:])
    router, seen = build().fit(known), known.features.retrieved
    assert seen is not None
    without, filled = seen.values.copy(), seen.values.copy()
    without[:, 1] = NAN
    filled[:, 1] = np.median(seen.values.reshape(-1, 6), axis=0)
    scores, expected = (
        router.scores(replace(known.features, retrieved=ArmTable(seen.names, values)))
        for values in (without, filled)
    )
    np.testing.assert_allclose(scores, expected, atol=1e-6)


@pytest.mark.slow
def test_what_a_question_is_worth_on_average_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Neural, "descent", Descent(learning_rate=0.01, batch_size=16, epochs=20))
    labels = world(60, seed=1)
    shifted = RoutingDataset(labels.features, labels.utility + np.arange(60)[:, None])
    expected = PointwiseFFN().fit(labels).scores(labels.features)
    found = PointwiseFFN().fit(shifted).scores(labels.features)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    raw = PointwiseFFN(centre=False).fit(shifted).scores(labels.features)
    assert raw.mean() > expected.mean() + 1.0


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.5, 2.0, NAN]), min_size=3, max_size=3), min_size=1, max_size=5)
)
def test_centred_utilities_are_as_far_apart_and_their_mean_is_zero(rows: list[list[float]]) -> None:
    utility = np.array(rows)
    found = subtract_mean(utility)
    several = (~np.isnan(utility)).sum(axis=1) > 1
    assert np.isnan(found[~several]).all()
    assert (np.isnan(found) == np.isnan(utility))[several].all()
    if several.any():
        np.testing.assert_allclose(np.nanmean(found[several], axis=1), 0.0, atol=1e-12)
        np.testing.assert_allclose(np.diff(found[several]), np.diff(utility[several]), atol=1e-12)


def test_arms_may_be_told_apart_by_their_features_alone() -> None:
    router = ListNet(identity=False).fit(world(60, seed=1, topics=False))
    seen = world(2, seed=2).features
    assert len(set(router.scores(seen)[0].tolist())) == 4


def test_a_fit_leaves_the_random_state_of_torch_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    PairwiseFFN().fit(world(30, seed=1))
    assert torch.rand(3).tolist() == expected.tolist()
