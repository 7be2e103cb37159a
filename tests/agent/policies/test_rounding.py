"""Rounding does not decide between equal scores."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from armwise.agent.policies import greedy
from armwise.agent.policies.sampling import TIE
from armwise.feedback.arrays import Floats

SCORES = hnp.arrays(
    np.float64, st.integers(2, 6), elements=st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0, 1.5, 300.0])
)


@given(scores=SCORES, seed=st.integers(0, 99))
def test_rounding_does_not_decide_between_equal_scores(scores: Floats, seed: int) -> None:
    noise = np.random.default_rng(seed).uniform(-1e-13, 1e-13, len(scores))
    rounded = scores + noise * np.maximum(1.0, np.abs(scores))
    assert greedy(rounded).tolist() == greedy(scores).tolist()


@pytest.mark.parametrize(("apart", "ties"), [(0.5, True), (0.99, True), (1.01, False), (2.0, False)])
@pytest.mark.parametrize("size", [0.0, 0.5, -0.9, 40.0, -40.0])
def test_scores_tie_up_to_a_difference_by_their_size(size: float, apart: float, ties: bool) -> None:
    lower = size - apart * TIE * max(1.0, abs(size))
    assert greedy(np.array([size, lower])).tolist() == ([0.5, 0.5] if ties else [1.0, 0.0])
    assert greedy(np.array([lower, size])).tolist() == ([0.5, 0.5] if ties else [0.0, 1.0])


def test_infinite_scores_are_the_best_and_what_is_no_number_is_refused() -> None:
    assert greedy(np.array([inf, 1.0, inf])).tolist() == [0.5, 0.0, 0.5]
    assert greedy(np.array([-inf, -inf])).tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="no best arm"):
        greedy(np.array([nan, 1.0]))
