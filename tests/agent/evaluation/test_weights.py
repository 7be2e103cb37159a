"""What a report says of the weights of a candidate: their histogram, their warnings, its value over time."""

import numpy as np
import pytest

from armwise.agent.evaluation.evaluate import (
    choose_edges,
    count_weights,
)
from armwise.feedback.dataset import Log
from armwise.feedback.ope import evaluate
from armwise.feedback.ope.evaluation import Evaluation


def judged(weights: list[float]) -> Evaluation:
    """Return a candidate of these weights, at most 2, on rows that all drew the first of two arms."""
    n = len(weights)
    log = Log.from_arrays(("a", "b"), np.zeros(n, dtype=np.int64), np.zeros(n), p_log=np.full((n, 2), 0.5))
    first = np.array(weights) / 2.0
    return evaluate(
        log, {"one": np.column_stack([first, 1.0 - first])}, np.random.default_rng(0), estimators=("ips",)
    )["one"]


def warned(weights: list[float]) -> tuple[str, ...]:
    one = judged(weights)
    return count_weights(one, choose_edges([one.weight]), served=False).warnings


def test_a_weight_is_counted_in_the_bin_that_it_is_the_upper_edge_of() -> None:
    one = judged([0.0, 0.0, 0.0, 0.125, 0.2, 0.25, 1.0, 1.5, 2.0, 2.0])
    found = count_weights(one, choose_edges([one.weight]), served=True)
    assert found.edges == (0.0, 0.125, 0.25, 0.5, 1.0, 2.0)
    assert found.counts == (3, 1, 2, 0, 1, 3)
    assert (found.largest, found.mean) == (2.0, pytest.approx(0.7075))
    assert [(arm.arm, arm.drawn, arm.largest) for arm in found.arms] == [("a", 1.0, 2.0), ("b", 0.0, 0.0)]
    assert found.warnings == ()


def test_edges_reach_the_largest_weight_of_any_candidate() -> None:
    assert choose_edges([np.array([0.1]), np.array([0.3, 0.6])]) == (0.0, 0.125, 0.25, 0.5, 1.0)
    assert choose_edges([np.array([0.5])]) == (0.0, 0.125, 0.25, 0.5)
    assert choose_edges([np.zeros(2)]) == choose_edges([]) == (0.0, 0.125)


def test_too_few_decisions_of_its_own_are_a_warning() -> None:
    assert warned([1.0] * 50) == ()
    (few,) = warned([1.0] * 49)
    assert "49 decisions of the candidate: too few" in few


def test_a_decision_with_much_of_all_weight_is_a_warning() -> None:
    assert warned([1.0] * 150 + [2.0]) == ()
    assert warned([0.2] * 150 + [2.0])[:1] == ("A single decision has 6% of all weight.",)


def test_a_mean_weight_far_from_1_is_a_warning_on_either_side() -> None:
    assert warned([1.0] * 60) == ()
    (high,) = warned([2.0] * 60)
    assert high == (
        "The mean weight is 2.000, which is 7.7 standard errors from 1: logged propensities may be wrong."
    )
    (low,) = warned([0.4] * 60)
    assert low.startswith("The mean weight is 0.400, which is")


def test_what_was_served_has_no_warning() -> None:
    one = judged([2.0] * 20)
    assert count_weights(one, choose_edges([one.weight]), served=False).warnings
    assert count_weights(one, choose_edges([one.weight]), served=True).warnings == ()
