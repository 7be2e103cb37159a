"""Weights of features of arms: unbiased where rewards depend on these, and `ips` where they name the arm."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.dataset import Log
from armwise.feedback.ope import Sample, evaluate, ips, mips
from armwise.feedback.ope.embeddings import category_weight, select_features
from armwise.feedback.ope.sample import NeverDrawnError

law = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 2**32)


def sample_of(
    seed: int, n: int = 60, n_arms: int = 6, features: Integers | None = None, reward: Floats | None = None
) -> Sample:
    """A log in which each arm can be drawn; features have the shape (n_arms, n_features)."""
    rng = np.random.default_rng(seed)
    p_log, p_target = rng.dirichlet(np.full(n_arms, 2.0), (2, n))
    drawn = (p_log.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=n_arms - 1)
    worth = rng.random(n) if reward is None else reward[drawn]
    categories = None if features is None else np.tile(features, (n, 1, 1))
    return Sample(p_log[np.arange(n), drawn], drawn, worth, p_target, p_log=p_log, categories=categories)


@law
@given(SEEDS)
def test_features_that_name_the_arm_have_the_weights_of_ips(seed: int) -> None:
    names = np.array([[0, 1], [0, 2], [1, 1], [1, 2], [2, 1], [2, 2]])
    sample = sample_of(seed, features=names)
    np.testing.assert_allclose(mips(sample, features=(0, 1)).numerator, ips(sample).numerator)
    blind = replace(sample, categories=None)
    np.testing.assert_array_equal(mips(blind).numerator, ips(blind).numerator)


@law
@given(SEEDS)
def test_it_is_unbiased_where_rewards_depend_on_the_features_alone_and_varies_less(seed: int) -> None:
    """The expectation over the arms that each row could have drawn."""
    rng = np.random.default_rng(seed)
    kinds = np.array([0, 0, 1, 1, 2, 2])
    worth = rng.random(3)[kinds]
    one = sample_of(seed, n=4)
    assert one.p_log is not None
    value, second = np.zeros(2), np.zeros(2)
    for row in range(4):
        for arm in range(6):
            p = one.p_log[row]
            drawn = Sample(
                *(p[[arm]], np.array([arm]), worth[[arm]], one.p_target[[row]]),
                p_log=p[np.newaxis],
                categories=kinds[np.newaxis, :, np.newaxis],
            )
            rows = np.array([mips(drawn).value, ips(drawn).value])
            value += p[arm] * rows
            second += p[arm] * rows**2
    assert value == pytest.approx(np.full(2, (one.p_target @ worth).sum()))
    assert second[0] <= second[1] + 1e-12


def test_features_that_hide_a_difference_are_biased() -> None:
    worth = np.array([0.0, 1.0])
    p_log, p_target = np.array([[0.9, 0.1]] * 2), np.array([[0.0, 1.0]] * 2)
    drawn = np.array([0, 1])
    alike = np.zeros((2, 2, 1), dtype=np.int64)
    sample = Sample(
        *(p_log[np.arange(2), drawn], drawn, worth[drawn], p_target), p_log=p_log, categories=alike
    )
    assert mips(sample).numerator.tolist() == [0.0, 1.0]  # whose expectation is 0.1, not 1


def test_a_drawn_arm_tells_of_one_that_has_its_features_and_was_never_drawn() -> None:
    p_log, p_target = np.array([[0.5, 0.5, 0.0]]), np.array([[0.0, 0.0, 1.0]])
    kinds = np.array([[[0], [1], [1]]])
    sample = Sample(np.array([0.5]), np.array([1]), np.ones(1), p_target, p_log=p_log, categories=kinds)
    assert mips(sample).value == 2.0
    with pytest.raises(NeverDrawnError, match="none of the 1 logged arms, nor any with the features of one"):
        mips(replace(sample, drawn=np.array([0])))


def test_a_feature_without_use_is_left_out_and_one_of_use_is_kept() -> None:
    """40 arms with a number each and one of two kinds; rewards depend on the kind."""
    kinds = np.arange(40) % 2
    features = np.stack([np.arange(40), kinds], axis=1)
    sample = sample_of(1, 400, 40, features, 0.2 + 0.6 * kinds)
    assert select_features(sample) == (1,)
    truth = float((sample.p_target @ (0.2 + 0.6 * kinds)).mean())
    assert mips(sample).value == pytest.approx(truth, abs=0.05)
    np.testing.assert_array_equal(mips(sample).weight, category_weight(sample, (1,)))
    hidden = replace(sample, reward=(sample.drawn < 4).astype(np.float64) * 30.0)
    target = np.zeros((400, 40))
    target[:, :4] = 0.25
    assert 0 in select_features(replace(hidden, p_target=target))


def test_features_are_columns_that_there_are() -> None:
    sample = sample_of(1, features=np.zeros((6, 2), dtype=np.int64))
    for one in (2, -1):
        with pytest.raises(ValueError, match=f"features must be columns below 2, got {one}"):
            category_weight(sample, (one,))
    with pytest.raises(ValueError, match="categories need p_log"):
        replace(sample, p_log=None)
    with pytest.raises(ValueError, match=r"categories must have the shape \(60, 6\) of p_target and a third"):
        replace(sample, categories=np.zeros((60, 5, 1), dtype=np.int64))
    with pytest.raises(ValueError, match=r"p_log must have the shape \(60, 6\) of p_target, got \(60, 5\)"):
        replace(sample, p_log=np.full((60, 5), 0.2))


def test_replay_has_it_where_arms_have_features() -> None:
    sample = sample_of(7, 200, features=np.array([[0], [0], [1], [1], [2], [2]]))
    arms = tuple("abcdef")
    log = Log.from_arrays(
        *(arms, sample.drawn, sample.reward), p_log=sample.p_log, categories=sample.categories
    )
    rng = np.random.default_rng(0)
    one = evaluate(log, {"t": sample.p_target}, rng, estimators=("mips",))["t"].estimates[0]
    assert one.value is not None
    assert one.value.value == pytest.approx(mips(sample).value)
    kept = np.arange(200) >= 50
    part = evaluate(log, {"t": sample.p_target}, rng, kept={"t": kept}, estimators=("mips",))["t"].estimates[
        0
    ]
    assert part.value is not None
    rows = {name: getattr(sample, name)[kept] for name in ("propensity", "drawn", "reward", "p_target")}
    assert sample.p_log is not None
    assert sample.categories is not None
    cut = Sample(**rows, p_log=sample.p_log[kept], categories=sample.categories[kept])
    assert part.value.value == pytest.approx(mips(cut).value)
    for other, note in (
        (Log.from_arrays(arms, sample.drawn, sample.reward, p_log=sample.p_log), "the log has no features"),
        (
            Log.from_arrays(arms, sample.drawn, sample.reward, propensity=sample.propensity),
            "needs the probabilities of all arms",
        ),
    ):
        (found,) = evaluate(other, {"t": sample.p_target}, rng, estimators=("mips",))["t"].estimates
        assert found.value is None
        assert note in found.note
