"""Measures of routing between two models: laws, and cases that are counted by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.model_metrics import average_gap_recovered, calibrated, calls_at, gap_recovered
from benchmarks.model_peers import nearest, similarity

WEAK = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 1.0])
STRONG = np.array([1.0, 1.0, 0.0, 0.0, 1.0, 1.0])
GAINS = arrays(np.float64, 6, elements=st.sampled_from([0.0, 0.25, 0.5, 1.0]))


def test_one_gain_for_all_is_random_mixing_with_half_the_gap() -> None:
    recovered = gap_recovered(np.zeros(6), WEAK, STRONG)
    np.testing.assert_allclose(recovered, np.linspace(0.0, 1.0, 7))
    assert average_gap_recovered(recovered) == pytest.approx(0.5)
    assert calls_at(recovered, 0.8) == pytest.approx(0.8)


@pytest.mark.slow
def test_random_gains_recover_half_the_gap_in_expectation() -> None:
    rng = np.random.default_rng(0)
    found = [average_gap_recovered(gap_recovered(rng.random(6), WEAK, STRONG)) for _ in range(4000)]
    assert abs(np.mean(found) - 0.5) < 4.0 * np.std(found) / np.sqrt(len(found))


@given(GAINS)
def test_the_true_gain_recovers_most_and_its_opposite_least(gain: Any) -> None:
    true, other, least = (
        average_gap_recovered(gap_recovered(one, WEAK, STRONG))
        for one in (STRONG - WEAK, gain, WEAK - STRONG)
    )
    assert least - 1e-9 <= other <= true + 1e-9
    opposite = average_gap_recovered(gap_recovered(-gain, WEAK, STRONG))
    assert other + opposite == pytest.approx(1.0)


def test_the_calls_of_an_oracle_are_counted_by_hand() -> None:
    recovered = gap_recovered(STRONG - WEAK, WEAK, STRONG)
    np.testing.assert_allclose(recovered, [0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 1.0])
    assert calls_at(recovered, 0.5) == pytest.approx(0.5 / 6)


def test_a_strong_model_that_is_not_better_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the strong model is not better: 0\.5000 against 0\.6667"):
        gap_recovered(np.zeros(6), STRONG, WEAK)


def test_a_threshold_is_chosen_on_the_other_parts() -> None:
    gain = np.array([0.9, 0.8, 0.1, 0.9, 0.8, 0.1])
    weak, strong = np.array([0.0, 0.0, 1.0] * 2), np.ones(6)
    assert calibrated(gain, weak, strong, np.array([0, 0, 0, 1, 1, 1]), 1.0) == pytest.approx((4 / 6, 1.0))


def test_peers_predict_what_was_seen_nearby() -> None:
    known = np.eye(2, dtype=np.float32).repeat(3, axis=0)
    quality = np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 3)
    asked = np.eye(2, dtype=np.float32)
    np.testing.assert_allclose(nearest(3)(known, quality, asked), [[1.0, 0.0], [0.0, 1.0]])
    weak, strong = similarity(known, quality, asked)[:, 1]
    assert weak == pytest.approx(1.0 / 11.0)
    assert strong == pytest.approx(10.0 / 11.0)
