"""Prediction-powered means: they cover a known truth, and are not wider than feedback alone on long logs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.feedback.arrays import Floats
from armwise.feedback.ope.prediction_powered import by_arm, calibration_curve, estimate_mean

REPEATS = 400


def world(rng: np.random.Generator, n: int, audited: int, noise: float) -> tuple[Floats, Floats, float]:
    """Return grades of a judge who is too kind, and values of the audited rows; the true mean is last."""
    hidden = rng.beta(2.0, 3.0, n)
    values = (rng.random(n) < hidden).astype(float)
    grades = np.clip(0.3 + 0.7 * values + noise * rng.standard_normal(n), 0.0, 1.0)
    known = rng.permutation(n) < audited
    return grades, np.where(known, values, np.nan), 0.4


@pytest.mark.parametrize("noise", [0.1, 0.5, 50.0])
def test_intervals_cover_the_truth_and_are_narrower_the_better_the_judge(noise: float) -> None:
    rng = np.random.default_rng(1)
    covered, width, classical = 0, 0.0, 0.0
    for _ in range(REPEATS):
        grades, values, truth = world(rng, 1500, 150, noise)
        found = estimate_mean(grades, values)
        covered += found.interval[0] <= truth <= found.interval[1]
        width += found.interval[1] - found.interval[0]
        classical += found.classical_interval[1] - found.classical_interval[0]
    assert covered / REPEATS == pytest.approx(0.95, abs=0.03), "0.95 is 380 of 400, give or take 4.4"
    ratio = width / classical
    assert ratio < {0.1: 0.45, 0.5: 0.95, 50.0: 1.005}[noise]


def test_the_bias_of_the_judge_is_removed_where_its_mean_alone_is_far_off() -> None:
    rng = np.random.default_rng(2)
    found = []
    for _ in range(REPEATS):
        grades, values, truth = world(rng, 1000, 100, 0.1)
        found.append(estimate_mean(grades, values).value)
    assert grades.mean() - truth > 0.15
    assert np.mean(found) == pytest.approx(truth, abs=0.005)


def test_the_value_of_a_policy_is_covered_too() -> None:
    rng = np.random.default_rng(3)
    means, logged, target = np.array([0.3, 0.6, 0.4]), np.array([0.5, 0.25, 0.25]), np.array([0.1, 0.7, 0.2])
    truth, covered, width, classical = float(means @ target), 0, 0.0, 0.0
    for _ in range(REPEATS):
        arm = rng.choice(3, 1200, p=logged)
        values = (rng.random(1200) < means[arm]).astype(float)
        grades = np.clip(0.2 + 0.6 * values + 0.1 * rng.standard_normal(1200), 0.0, 1.0)
        values[200:] = np.nan
        found = estimate_mean(grades, values, (target / logged)[arm])
        covered += found.interval[0] <= truth <= found.interval[1]
        width += found.interval[1] - found.interval[0]
        classical += found.classical_interval[1] - found.classical_interval[0]
    assert covered / REPEATS == pytest.approx(0.95, abs=0.03)
    assert width < 0.75 * classical


@given(st.integers(0, 1000), st.floats(-2.0, 2.0))
def test_no_other_weight_has_less_variance(seed: int, other: float) -> None:
    rng = np.random.default_rng(seed)
    grades, values, _ = world(rng, 4000, 400, 0.3)
    found = estimate_mean(grades, values)
    known = ~np.isnan(values)

    def half_width(weight: float) -> float:
        residual = values[known] - weight * grades[known]
        return float(residual.var(ddof=1) / 400 + weight**2 * grades[~known].var(ddof=1) / 3600)

    assert half_width(found.weight) <= half_width(other) * 1.01


def test_with_all_rows_audited_or_one_grade_for_all_it_is_the_classical_mean() -> None:
    values = np.array([0.0, 1.0, 1.0, 0.0, 1.0, np.nan])
    for grades, seen in ((np.linspace(0, 1, 5), values[:5]), (np.full(6, 0.7), values)):
        found = estimate_mean(grades, seen)
        assert found.value == pytest.approx(0.6)
        assert found.interval == pytest.approx(found.classical_interval)
        assert found.weight == 0.0


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0, np.nan, np.nan], "1 of 3 graded rows have feedback: 2 or more"),
        ([1.0, 0.0], "3 grades, 2 values and 3 ratios"),
    ],
)
def test_what_cannot_be_estimated_is_refused(values: list[float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        estimate_mean(np.array([0.1, 0.2, 0.3]), np.array(values))


def test_means_of_arms_need_two_audits_each_and_the_curve_counts_all() -> None:
    grades, values = np.array([0.2, 0.4, 0.9, 1.0]), np.array([0.0, 1.0, 1.0, np.nan])
    assert set(by_arm(["a", "a", "b", "b"], grades, values)) == {"a"}
    assert sum(one.audits for one in calibration_curve(grades, values)) == 3


def test_an_interval_has_the_variance_of_both_parts_from_two_rows_without_feedback_on() -> None:
    audited, values = np.tile([0.2, 0.4, 0.7, 0.8], 8), np.tile([0.0, 0.0, 1.0, 1.0], 8)
    for more in ([0.3, 0.7], [0.3]):
        grades = np.array([*audited, *more])
        weight = np.cov(values, audited)[0, 1] / ((1 + 32 / len(more)) * grades.var(ddof=1))
        left = values - weight * audited
        rest = weight**2 * np.var(more, ddof=1) / 2 if len(more) > 1 else 0.0
        half = 1.959964 * np.sqrt(left.var(ddof=1) / 32 + rest)
        found = estimate_mean(grades, np.array([*values, *[np.nan] * len(more)]))
        assert found.value == pytest.approx(left.mean() + weight * np.mean(more))
        assert found.interval == pytest.approx((found.value - half, found.value + half), rel=1e-5)


def test_the_largest_grade_is_in_the_last_bin() -> None:
    (last,) = calibration_curve(np.array([0.9, 1.0]), np.array([0.0, 1.0]))
    assert (last.audits, last.value) == (2, 0.5)


def test_a_calibration_curve_has_five_bins() -> None:
    grades = np.linspace(0.0, 0.99, 100)
    assert [one.audits for one in calibration_curve(grades, grades)] == [20] * 5
    assert [one.grade for one in calibration_curve(np.array([0.2, 1.0]), np.ones(2))] == [0.2, 1.0]
