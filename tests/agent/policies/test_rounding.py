"""What rounds otherwise on another processor: near ties, and the numbers of states."""

import base64
import json
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from armwise.agent.policies import difference, greedy, pack, seal
from armwise.agent.policies.router import inverse_gaps
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
    assert inverse_gaps(rounded, 10.0) == pytest.approx(inverse_gaps(scores, 10.0), abs=1e-9)


@pytest.mark.parametrize(("apart", "ties"), [(0.5, True), (0.99, True), (1.01, False), (2.0, False)])
@pytest.mark.parametrize("size", [0.0, 0.5, -0.9, 40.0, -40.0])
def test_scores_tie_up_to_a_difference_that_grows_with_their_size(
    size: float, apart: float, ties: bool
) -> None:
    lower = size - apart * TIE * max(1.0, abs(size))
    assert greedy(np.array([size, lower])).tolist() == ([0.5, 0.5] if ties else [1.0, 0.0])
    assert greedy(np.array([lower, size])).tolist() == ([0.5, 0.5] if ties else [0.0, 1.0])


def test_infinite_scores_are_the_best_and_what_is_no_number_is_refused() -> None:
    assert greedy(np.array([inf, 1.0, inf])).tolist() == [0.5, 0.0, 0.5]
    assert greedy(np.array([-inf, -inf])).tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="no best arm"):
        greedy(np.array([nan, 1.0]))


W = np.array([[4.0, -2.0], [0.0, 1e-3]])


def state(weights: Any = W, facts: Any = None, settings: Any = None) -> bytes:
    arrays = {} if weights is None else {"w": weights}
    return seal(
        settings or {"kind": "linucb"}, pack(facts or {"arms": ["a", "b"], "n": 3, "mean": 0.25}, arrays)
    )


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (state(), 0.0),
        (state(W * (1 + 1e-13)), 1e-13),
        (state(W + np.array([[0.0, 0.0], [0.0, 4e-9]])), 1e-9),  # beside the largest number, 4
        (state(facts={"arms": ["a", "b"], "n": 3, "mean": 0.25 + 1e-10}), 1e-10),
        (state(facts={"arms": ["a", "b"], "n": 4, "mean": 0.25}), inf),
        (state(facts={"arms": ["b", "a"], "n": 3, "mean": 0.25}), inf),
        (state(facts={"arms": ["a", "b"], "n": 3}), inf),
        (state(facts={"arms": ["a"], "n": 3, "mean": 0.25}), inf),
        (state(settings={"kind": "linucb", "alpha": 1}), inf),
        (state(W.T.copy()[:1]), inf),
        (state(W.astype(np.float32)), inf),
        (state(np.where(W == 4.0, nan, W)), inf),
        (state(None), inf),
        (b"", inf),
        (b"no state", inf),
    ],
)
def test_states_differ_by_their_numbers_or_beyond_rounding(other: bytes, expected: float) -> None:
    assert difference(state(), other) == pytest.approx(expected, rel=1e-2)
    assert difference(other, state()) == pytest.approx(expected, rel=1e-2)


def test_the_second_number_of_a_state_counts_as_the_first() -> None:
    one, other = (state(np.array([1.0, 2.0, last])) for last in (3.0, 3.3))
    assert difference(one, other) == pytest.approx(0.1)


def test_objects_of_a_library_are_compared_by_their_numbers() -> None:
    def rows(number: float, array: Floats) -> bytes:
        body = [["list", ["number", "float64", number], [1]], ["array", "<f8", "C", [2], encoded(array)]]
        return seal({"river": "1"}, json.dumps(body).encode())

    def encoded(array: Floats) -> str:
        return base64.b64encode(array.tobytes()).decode()

    one = rows(0.5, np.array([1.0, 2.0]))
    assert difference(one, rows(0.5 + 1e-11, np.array([1.0, 2.0]))) == pytest.approx(1e-11)
    assert difference(one, rows(0.5, np.array([1.0, 2.0 + 2e-9]))) == pytest.approx(1e-9)
    assert difference(one, seal({"river": "1"}, b"[]")) == inf
