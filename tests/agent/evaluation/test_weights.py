"""What a report says of the weights of a candidate: their histogram, their warnings, its value over time."""

import math
from typing import Any

import numpy as np
import pytest

from armwise.agent.evaluation.evaluate import (
    CandidateTarget,
    GateInputs,
    candidate_results,
    choose_edges,
    count_weights,
    over_time,
)
from armwise.feedback.dataset import Log
from armwise.feedback.ope import GateSpec, evaluate
from armwise.feedback.ope.evaluation import EstimatorResult, Evaluation

QUIET = GateSpec(least_effective_n=1.0, largest_share=1.0, largest_weight_error=100.0)


def judged(weights: list[float]) -> Evaluation:
    """Return a candidate of these weights, at most 2, on rows that all drew the first of two arms."""
    n = len(weights)
    log = Log.from_arrays(("a", "b"), np.zeros(n, dtype=np.int64), np.zeros(n), p_log=np.full((n, 2), 0.5))
    first = np.array(weights) / 2.0
    return evaluate(
        log, {"one": np.column_stack([first, 1.0 - first])}, np.random.default_rng(0), estimators=("ips",)
    )["one"]


def warned(weights: list[float], **thresholds: float) -> tuple[str, ...]:
    one = judged(weights)
    gate = QUIET.model_copy(update=thresholds)
    return count_weights(one, choose_edges([one.weight]), gate, served=False).warnings


def test_a_weight_is_counted_in_the_bin_that_it_is_the_upper_edge_of() -> None:
    one = judged([0.0, 0.0, 0.0, 0.125, 0.2, 0.25, 1.0, 1.5, 2.0, 2.0])
    found = count_weights(one, choose_edges([one.weight]), QUIET, served=False)
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
    weights = [1.0] * 60
    assert warned(weights, least_effective_n=60.0) == ()
    assert warned(weights, least_effective_n=60.5) == ("The 60 decisions are worth 60 of its own: too few.",)


def test_a_decision_with_much_of_all_weight_is_a_warning() -> None:
    weights = [1.0] * 6 + [2.0]
    assert warned(weights, largest_share=0.25) == ()
    assert warned(weights, largest_share=0.249) == ("A single decision has 25% of all weight.",)


def test_a_mean_weight_far_from_1_is_a_warning_on_either_side() -> None:
    error = 60**-0.5  # of 60 draws whose weights are 0 or 2
    assert warned([2.0] * 60, largest_weight_error=1.001 / error) == ()
    (high,) = warned([2.0] * 60, largest_weight_error=0.999 / error)
    assert high == (
        "The mean weight is 2.000, which is 7.7 standard errors from 1: propensities on record may be wrong."
    )
    (low,) = warned([0.5] * 60, largest_weight_error=4.0)
    assert low.startswith("The mean weight is 0.500, which is 7.7 standard errors from 1")


def test_what_was_served_has_no_warning() -> None:
    one = judged([2.0] * 20)
    strict = GateSpec()
    assert count_weights(one, choose_edges([one.weight]), strict, served=False).warnings
    assert count_weights(one, choose_edges([one.weight]), strict, served=True).warnings == ()


@pytest.mark.parametrize(("n", "stretches"), [(10, 1), (49, 1), (50, 2), (299, 11), (300, 12), (1000, 12)])
def test_a_log_is_cut_into_twelve_stretches_of_25_rows_or_more(n: int, stretches: int) -> None:
    log = Log.from_arrays(("a",), np.zeros(n, dtype=np.int64), np.ones(n), p_log=np.ones((n, 1)))
    rows = [one.rows for one in over_time(log, np.ones(n))]
    assert (len(rows), sum(rows)) == (stretches, n)
    assert max(rows) - min(rows) <= 1


def test_a_stretch_has_its_times_and_the_weighted_mean_of_its_rewards() -> None:
    reward = np.array([0.0] * 24 + [1.0] + [0.5] * 25 + [1.0] * 25)
    weight = np.array([0.0] * 23 + [1.0, 3.0] + [2.0] * 25 + [0.0] * 25)
    log = Log.from_arrays(("a",), np.zeros(75, dtype=np.int64), reward, p_log=np.ones((75, 1)))
    object.__setattr__(log, "at", np.arange(75.0)[::-1])
    first, second, third = over_time(log, weight)
    assert (first.since, first.until, first.value) == (50.0, 74.0, 0.75)
    assert (second.since, second.until, second.value) == (25.0, 49.0, 0.5)
    assert (third.since, third.until, third.value) == (0.0, 24.0, None)


@pytest.mark.parametrize(("parameter", "shown"), [(3.5, 3.5), (math.inf, None), (None, None)])
def test_a_parameter_without_a_limit_is_left_out(parameter: float | None, shown: float | None) -> None:
    one = judged([1.0] * 30)
    estimates = (EstimatorResult("clipped_ips", None, parameter=parameter),)
    found = Evaluation(one.log, estimates, one.diagnostics, one.weight)
    target = CandidateTarget("one", "About.", lambda: np.full((30, 2), 0.5), np.ones(30, dtype=np.bool_))
    inputs: Any = GateInputs(one.log, {"one": target}, QUIET, (0.0, 1.0), None)
    (result,) = candidate_results([target], {"one": found}, inputs)
    assert [estimate.parameter for estimate in result.estimates] == [shown]
    assert result.shares == {"a": 0.5, "b": 0.5}
