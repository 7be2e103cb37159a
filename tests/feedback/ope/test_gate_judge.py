"""The evidence with grades of a judge: that of the gate where all is audited, and right whatever it says."""

import numpy as np
import pytest

from armwise.feedback.arrays import Flags, Floats
from benchmarks import gate_judge
from benchmarks.gate import Course, better, twins
from benchmarks.gate_judge import (
    ENOUGH,
    GATE_LIMIT,
    Judge,
    agreeing,
    alike,
    biased,
    capital,
    turning,
)


def drawn(n: int, share: float, seed: int = 0, gain: float = 0.05) -> tuple[Course, Flags, Floats]:
    """Return a course with a gain, what is audited, and grades that agree in 80 %."""
    rng = np.random.default_rng(seed)
    course = better(gain, 0.1, n, rng)
    return course, rng.random(n) < share, agreeing(0.8, course, rng)


def first(course: Course, n: int) -> Course:
    return Course(*(column[:n] for column in (course.p_log, course.p_target, course.drawn, course.reward)))


def test_where_all_is_audited_the_gain_is_shown_where_the_bound_of_the_gate_is_above_zero() -> None:
    for seed in range(3):
        course, _, grade = drawn(6_000, 1.0, seed)
        audited = np.ones(6_000, dtype=np.bool_)
        low = course.bounds().low
        clear = np.abs(low) > 1e-4
        shown = capital(course, audited, 1.0, None, GATE_LIMIT) > ENOUGH
        assert (shown == (low > 0.0))[clear].all()
        assert 0 < shown.sum() < len(shown)
        np.testing.assert_allclose(capital(course, audited, 1.0, grade), capital(course, audited, 1.0, None))


def test_rewards_that_nobody_gave_are_not_read_and_no_decision_is_read_ahead() -> None:
    course, audited, grade = drawn(6_000, 0.3)
    hidden = Course(course.p_log, course.p_target, course.drawn, np.where(audited, course.reward, np.nan))
    found = capital(course, audited, 0.3, grade)
    np.testing.assert_array_equal(found, capital(hidden, audited, 0.3, grade))
    for n in (100, 4_096, 5_000):  # a block ends at 4,096
        np.testing.assert_allclose(
            found[:n], capital(first(course, n), audited[:n], 0.3, grade[:n]), atol=1e-9
        )


@pytest.mark.parametrize("judge", [biased, turning])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_judge_that_favours_the_candidate_shows_no_gain_that_is_none(judge: Judge, share: float) -> None:
    """Of 200 candidates without a gain, 10 may be promoted; 18 are three standard errors more."""
    promoted = 0
    for rng in np.random.default_rng(5).spawn(200):
        course = twins(3_000, rng)
        grade, audited = judge(course, rng), rng.random(3_000) < share
        promoted += bool((capital(course, audited, share, grade) > ENOUGH).any())
    assert promoted <= 18


@pytest.mark.parametrize("judge", [agreeing, biased])
@pytest.mark.slow
def test_the_capital_of_a_fair_game_stays_at_1(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a gain it is 1 in expectation, to five standard errors of 4,000 runs of 50 decisions."""
    monkeypatch.setattr(gate_judge.sequences, "BETS", np.array([0.25, 0.02]))
    runs, n = 4_000, 50
    capitals = np.empty(runs)
    for number, rng in enumerate(np.random.default_rng(8).spawn(runs)):
        course = alike(n, rng)
        grade = agreeing(0.9, course, rng) if judge is agreeing else judge(course, rng)
        capitals[number] = np.exp(capital(course, rng.random(n) < 0.3, 0.3, grade)[-1])
    assert abs(capitals.mean() - 1.0) < 5.0 * capitals.std() / runs**0.5
    assert capitals.std() / runs**0.5 < 0.01
