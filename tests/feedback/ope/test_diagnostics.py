"""What the diagnostics say of logs that are known."""

from typing import Any

import numpy as np
import pytest

from armwise.feedback.ope.diagnostics import diagnose
from armwise.feedback.ope.intervals import normal
from armwise.feedback.ope.sample import Sample, Terms

ARMS = ("bm25", "dense", "both")


def sampled(p_log: Any, p_target: Any, n: int, seed: int) -> Sample:
    """A log of n rows of one context, logged by `p_log`."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice(len(p_log), n, p=p_log)
    return Sample(np.array(p_log)[drawn], drawn, rng.random(n), np.tile(p_target, (n, 1)))


def test_the_policy_that_logged_has_nothing_against_it() -> None:
    p = [0.5, 0.3, 0.2]
    figures = diagnose(sampled(p, p, 500, seed=1), ARMS)
    assert figures.effective_n == pytest.approx(500)
    assert (figures.largest_weight, figures.mean_weight) == (1.0, 1.0)
    assert (figures.mean_weight_error, figures.mean_weight_z) == (0.0, 0.0)
    assert figures.covered == pytest.approx(1.0, abs=0.1)


def test_the_overlap_of_an_arm_tends_to_what_log_and_target_share() -> None:
    p_log, p_target = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.3, 0.6])
    figures = diagnose(sampled(p_log, p_target, 200_000, seed=2), ARMS)
    assert [arm.arm for arm in figures.overlap] == list(ARMS)
    for arm, logged, wanted in zip(figures.overlap, p_log, p_target, strict=True):
        assert arm.rows == pytest.approx(200_000 * logged, rel=0.02)
        assert arm.logged == arm.rows / 200_000
        assert arm.target == pytest.approx(wanted)
        assert arm.covered == pytest.approx(min(logged, wanted) / wanted, abs=0.02)
        assert arm.largest_weight == pytest.approx(wanted / logged)
        assert arm.effective_n == pytest.approx(arm.rows)
    assert figures.covered == pytest.approx(np.minimum(p_log, p_target).sum(), abs=0.01)
    assert abs(figures.mean_weight_z) < 4.0


def test_an_arm_that_the_log_never_drew_covers_nothing_and_pulls_the_mean_weight_down() -> None:
    figures = diagnose(sampled([0.5, 0.5, 0.0], [0.3, 0.3, 0.4], 2_000, seed=3), ARMS)
    missing = figures.overlap[2]
    assert (missing.rows, missing.covered, missing.effective_n, missing.largest_weight) == (0, 0.0, 0.0, 0.0)
    assert missing.target == pytest.approx(0.4)
    assert figures.mean_weight == pytest.approx(0.6)
    assert figures.mean_weight_z < -100.0
    assert figures.covered == pytest.approx(0.6, abs=0.02)


def test_propensities_that_are_wrong_show_in_the_mean_weight() -> None:
    right = sampled([0.5, 0.3, 0.2], [0.2, 0.2, 0.6], 5_000, seed=4)
    wrong = Sample(right.propensity * 0.8, right.drawn, right.reward, right.p_target)
    assert abs(diagnose(right, ARMS).mean_weight_z) < 3.0
    assert diagnose(wrong, ARMS).mean_weight_z > 5.0


def test_a_target_that_was_never_drawn_is_diagnosed_and_not_refused() -> None:
    n = 4
    sample = Sample(np.full(n, 0.5), np.zeros(n, dtype=np.int64), np.ones(n), np.tile([0.0, 1.0], (n, 1)))
    figures = diagnose(sample, ARMS[:2])
    assert (figures.effective_n, figures.largest_weight, figures.mean_weight) == (0.0, 0.0, 0.0)
    assert figures.mean_weight_z == -np.inf


def test_the_error_of_the_mean_weight_is_that_of_the_normal_interval() -> None:
    sample = sampled([0.5, 0.3, 0.2], [0.2, 0.2, 0.6], 300, seed=5)
    low, high = normal(Terms("ips", sample.weight, np.ones(300), sample.weight))
    figures = diagnose(sample, ARMS)
    assert figures.mean_weight_error == pytest.approx((high - low) / 2.0 / 1.959964, rel=1e-6)


def test_the_error_of_the_mean_weight_is_at_least_that_of_draws_from_the_whole_distribution() -> None:
    """The variance of a weight is the sum of p_target^2 / p_log over the arms that can be drawn, less m^2."""
    p_log, p_target = [0.9, 0.1, 0.0], [0.5, 0.1, 0.4]
    rare = Sample(np.full(25, 0.9), np.zeros(25, dtype=np.int64), np.ones(25), np.tile(p_target, (25, 1)))
    assert diagnose(rare, ARMS).mean_weight_error == 0.0, "every weight that was seen is 5/9"
    figures = diagnose(rare, ARMS, p_log=np.tile(p_log, (25, 1)))
    variance = 0.5**2 / 0.9 + 0.1**2 / 0.1 - (0.5 + 0.1) ** 2
    assert figures.mean_weight_error == pytest.approx(np.sqrt(variance / 25))


def test_rows_of_one_question_count_as_one_observation() -> None:
    sample = sampled([0.5, 0.3, 0.2], [0.2, 0.2, 0.6], 300, seed=6)
    five_times = Sample(
        *(
            np.repeat(column, 5, axis=0)
            for column in (sample.propensity, sample.drawn, sample.reward, sample.p_target)
        )
    )
    alone = diagnose(sample, ARMS).mean_weight_error
    grouped = diagnose(five_times, ARMS, groups=np.repeat(np.arange(300), 5)).mean_weight_error
    assert grouped == pytest.approx(alone)
    assert diagnose(five_times, ARMS).mean_weight_error < alone / 2.0
    assert diagnose(sample, ARMS, groups=np.zeros(300, dtype=np.int64)).mean_weight_error is None


def test_nobody_knows_how_far_the_mean_weight_of_one_question_may_be_from_1() -> None:
    sample = sampled([0.5, 0.5], [0.9, 0.1], 30, seed=8)
    figures = diagnose(sample, ARMS[:2], groups=np.zeros(30, dtype=np.int64))
    assert figures.mean_weight != 1.0
    assert (figures.mean_weight_error, figures.mean_weight_z) == (None, 0.0)


def test_each_column_needs_a_name() -> None:
    with pytest.raises(
        ValueError, match=r"arms must name the 3 columns of p_target, got 2: \['bm25', 'dense'\]"
    ):
        diagnose(sampled([0.5, 0.3, 0.2], [0.2, 0.2, 0.6], 5, seed=9), ARMS[:2])
