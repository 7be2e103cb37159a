"""What a report says of the weights of a candidate: their warnings, its value over time."""

import numpy as np
import pytest

from armwise.agent.evaluation.replay_document import describe_weights
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import evaluate
from armwise.feedback.ope.evaluation import Evaluation


def judged(weights: list[float]) -> Evaluation:
    """Return a candidate of these weights, at most 2, on rows that all drew the first of two arms."""
    n = len(weights)
    log = LoggedDraws.from_arrays(
        ("a", "b"), np.zeros(n, dtype=np.int64), np.zeros(n), p_log=np.full((n, 2), 0.5)
    )
    first = np.array(weights) / 2.0
    return evaluate(
        log, {"one": np.column_stack([first, 1.0 - first])}, np.random.default_rng(0), estimators=("ips",)
    )["one"]


def warned(weights: list[float]) -> list[str]:
    one = judged(weights)
    return describe_weights(one, served=False)["warnings"]


def test_the_largest_and_the_mean_weight_and_those_of_each_arm_are_named() -> None:
    one = judged([0.0, 0.0, 0.0, 0.125, 0.2, 0.25, 1.0, 1.5, 2.0, 2.0])
    found = describe_weights(one, served=True)
    assert (found["largest"], found["mean"]) == (2.0, pytest.approx(0.7075))
    assert [(arm["arm"], arm["drawn"], arm["largest"]) for arm in found["arms"]] == [
        ("a", 1.0, 2.0),
        ("b", 0.0, 0.0),
    ]
    assert found["warnings"] == []


def test_too_few_decisions_of_its_own_are_a_warning() -> None:
    assert warned([1.0] * 50) == []
    (few,) = warned([1.0] * 49)
    assert "49 decisions of the candidate: too few" in few


def test_a_decision_with_much_of_all_weight_is_a_warning() -> None:
    assert warned([1.0] * 150 + [2.0]) == []
    assert warned([0.2] * 150 + [2.0])[:1] == ["A single decision has 6% of all weight."]


def test_a_mean_weight_far_from_1_is_a_warning_on_either_side() -> None:
    assert warned([1.0] * 60) == []
    (high,) = warned([2.0] * 60)
    assert high == (
        "The mean weight is 2.000, which is 7.7 standard errors from 1: logged propensities may be wrong."
    )
    (low,) = warned([0.4] * 60)
    assert low.startswith("The mean weight is 0.400, which is")


def test_what_was_served_has_no_warning() -> None:
    one = judged([2.0] * 20)
    assert describe_weights(one, served=False)["warnings"]
    assert describe_weights(one, served=True)["warnings"] == []
