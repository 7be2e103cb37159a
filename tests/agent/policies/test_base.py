"""What is drawn is what was stated, and what is not a distribution is refused."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from armwise.agent.policies import sampling
from armwise.agent.policies.base import Fixed, Uniform
from armwise.agent.policies.sampling import (
    choose,
    compute_served_distribution,
    greedy,
    mix_canary,
    mix_floor,
    uniform_from,
    validate,
)
from armwise.feedback.events import Context

ARMS = ("a", "b", "c")
weights = st.lists(st.integers(0, 1000), min_size=1, max_size=12).filter(any)


def distribution(counts: list[int]) -> np.ndarray:
    return np.array(counts, dtype=np.float64) / sum(counts)


@pytest.mark.parametrize("stated", [[0.5, 0.3, 0.15, 0.05], [0.97, 0.01, 0.01, 0.01], [0.1] * 10])
def test_20000_hashed_draws_match_the_stated_propensity(stated: list[float]) -> None:
    p = np.array(stated)
    drawn = [choose(p, uniform_from(f"decision-{i}", "salt")) for i in range(20_000)]
    counts = np.bincount(drawn, minlength=len(p))
    assert chisquare(counts, 20_000 * p).pvalue > 0.001


def test_the_same_id_draws_the_same_number_and_another_salt_another() -> None:
    assert uniform_from("d-1", "a") == uniform_from("d-1", "a")
    assert uniform_from("d-1", "a") != uniform_from("d-1", "b")
    assert uniform_from("d-1", "a") != uniform_from("d-2", "a")


def test_the_seed_of_a_search_is_not_the_number_of_the_draw() -> None:
    ids = [f"d-{i}" for i in range(99)]
    seeds = [sampling.seed_of_arm(name, "salt") for name in ids]
    assert len(set(seeds)) == 99
    assert all(0 <= seed < 2**53 for seed in seeds)
    assert not set(seeds) & {round(uniform_from(name, "salt") * 2**53) for name in ids}


def test_a_draw_again_without_the_arm_that_was_drawn_is_independent_of_that_draw() -> None:
    arms, drawn = ["a", "b", "c"], np.zeros((3, 3))
    for i in range(9000):
        name = f"decision-{i}"
        first = choose(np.full(3, 1 / 3), uniform_from(name, "salt", arms))
        left = [arm for arm in arms if arm != arms[first]]
        again = left[choose(np.full(2, 1 / 2), uniform_from(name, "salt", left))]
        drawn[first, arms.index(again)] += 1
    for first in range(3):
        assert chisquare(np.delete(drawn[first], first)).pvalue > 0.001, "one number for both is one arm"


def test_the_order_and_the_bounds_of_names_enter_the_draw() -> None:
    lists = (["a", "b"], ["b", "a"], ["ab"], ["a"], ["b"], [])
    assert len({uniform_from("d-1", "salt", arms) for arms in lists}) == len(lists)


@given(weights, st.floats(0, 1, exclude_max=True))
def test_an_arm_without_probability_is_never_drawn(counts: list[int], u: float) -> None:
    assert counts[choose(distribution(counts), u)] > 0


def test_rounding_at_the_end_draws_the_last_possible_arm() -> None:
    assert choose(np.array([0.5, 0.5 - 1e-12, 0.0]), 1.0 - 1e-16) == 1


@given(weights, st.floats(0, 1))
def test_the_floor_holds_and_order_is_kept(counts: list[int], share: float) -> None:
    p = distribution(counts)
    floor = share / len(p)
    floored = mix_floor(p, floor)
    assert floored.min() >= floor - 1e-12
    assert validate(floored, len(p)).sum() == pytest.approx(1.0)
    assert (np.diff(floored[np.argsort(p)]) >= -1e-12).all()


@given(weights, st.floats(0, 1))
def test_what_is_served_is_the_policy_with_a_floor_that_fits(counts: list[int], floor: float) -> None:
    class Stated(Uniform):
        def probabilities(self, context: Context, arms: Sequence[str]) -> np.ndarray:
            del context
            return distribution(counts)[: len(arms)].astype(np.float32)

    arms = [f"arm {i}" for i in range(len(counts))]
    p = compute_served_distribution(Stated(), Context("?"), arms, floor)
    assert p.sum() == pytest.approx(1.0)
    assert p.min() >= min(floor, 1 / len(arms)) - 1e-12
    if floor * len(arms) <= 1:
        np.testing.assert_allclose(p, mix_floor(distribution(counts), floor), atol=1e-6)
    else:
        np.testing.assert_allclose(p, 1 / len(arms))


def test_a_candidate_gets_its_share_of_the_draws_and_both_floors_hold() -> None:
    live = compute_served_distribution(Fixed("a"), Context("?"), ARMS, 0.05)
    candidate = compute_served_distribution(Fixed("c"), Context("?"), ARMS, 0.05)
    p = mix_canary(live, candidate, 0.2)
    np.testing.assert_allclose(p, [0.8 * 0.9 + 0.2 * 0.05, 0.05, 0.8 * 0.05 + 0.2 * 0.9])
    assert (mix_canary(live, candidate, 0.0) == live).all()
    assert (mix_canary(live, candidate, 1.0) == candidate).all()


def test_arms_that_are_masked_leave_the_floor_of_the_others_as_it_is() -> None:
    for left in (("a", "b", "c"), ("c", "a"), ("a",)):
        p = compute_served_distribution(Fixed("a"), Context("?"), left, 0.1)
        expected = [1.0 - 0.1 * (len(left) - 1) if arm == "a" else 0.1 for arm in left]
        np.testing.assert_allclose(p, expected)
    np.testing.assert_allclose(
        compute_served_distribution(Fixed("a"), Context("?"), ("b", "c"), 0.1), [0.5, 0.5]
    )


def test_single_precision_is_normalised() -> None:
    p = validate(np.full(3, 1 / 3, dtype=np.float32), 3)
    assert p.dtype == np.float64
    assert p.sum() == 1.0


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
def test_the_best_share_everything(scores: list[int]) -> None:
    p = greedy(np.array(scores, dtype=np.float64))
    assert p.sum() == pytest.approx(1.0)
    assert [share > 0 for share in p] == [score == max(scores) for score in scores]


def test_fixed_is_uniform_when_its_arm_is_away() -> None:
    assert Fixed("bm25").probabilities(Context("?"), ("none", "bm25")).tolist() == [0.0, 1.0]
    assert Fixed("bm25").probabilities(Context("?"), ("none", "dense")).tolist() == [0.5, 0.5]


def test_uniform_state_is_empty() -> None:
    assert Uniform().save() == b""
