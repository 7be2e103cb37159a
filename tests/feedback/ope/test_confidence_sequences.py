"""Confidence sequences: their laws, a gambler who bets row by row, and how often they fail at any time."""

from dataclasses import replace
from functools import partial
from math import inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.ope import confidence_sequences as sequences
from armwise.feedback.ope.confidence_sequences import BETS, Evidence, difference, value


def drawn_evidence(seed: int, n: int = 300, *, reach: bool = True) -> Evidence:
    """Rewards in [-0.2, 1] of a log whose weights are 0.2, 2.5 and 10."""
    rng = np.random.default_rng(seed)
    weight = rng.choice([0.2, 2.5, 10.0], n, p=[0.8, 0.16, 0.04])
    return Evidence(weight, rng.uniform(-0.2, 1.0, n), (-0.2, 1.0), 10.0 if reach else None)


EVIDENCE = st.builds(drawn_evidence, st.integers(0, 10_000), st.integers(1, 60), reach=st.booleans())
ASYMPTOTIC = partial(difference, asymptotic=True)
BOUNDS_OF = pytest.mark.parametrize("bounds_of", [value, difference, ASYMPTOTIC])


def gamble(evidence: Evidence, served: float, error: float) -> float:
    """Return the lower bound after the last row from twelve gamblers, row by row, on rewards in [0, 1].

    Each keeps what is left of the stake; the bound is where their wealth together would be 1 / error.
    """
    low, high = evidence.reward_range
    rewards = [(r - low) / (high - low) for r in evidence.reward.tolist()]

    def wealth(mean: float) -> float:
        total = 0.0
        for bet in BETS.tolist():
            capital, earned, pulled = 1.0 / len(BETS), 0.5, 1.0
            for w, r in zip(evidence.weight.tolist(), rewards, strict=True):
                control = 0.0
                if evidence.reach is not None:
                    control = min(earned / pulled, 0.5 / (bet * float(evidence.reach)))
                capital *= (1.0 + bet * (w * r - served * r - (w - 1.0) * control)) / (1.0 + bet * mean)
                earned += abs(w - served) * r
                pulled += abs(w - served)
            total += capital
        return total

    if wealth(-served) <= 1.0 / error:
        return -served
    return float(optimize.brentq(lambda mean: wealth(mean) - 1.0 / error, -served, 10.0, xtol=1e-12))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("reach", [True, False])
def test_the_bounds_are_those_of_gamblers_who_bet_row_by_row(seed: int, reach: bool) -> None:
    evidence = drawn_evidence(seed, 200, reach=reach)
    low = value(evidence).low[-1]
    assert low == pytest.approx(-0.2 + 1.2 * gamble(evidence, 0.0, 0.025), abs=1e-6)
    lead = difference(evidence).low[-1]
    assert lead == pytest.approx(1.2 * gamble(evidence, 1.0, 0.025), abs=1e-6)


def mix_walks(evidence: Evidence, error: float) -> list[float]:
    """Return the asymptotic lower bound after each row, on rewards in [0, 1]; -inf: none."""
    low, high = evidence.reward_range
    rewards = [(r - low) / (high - low) for r in evidence.reward.tolist()]
    earned, pulled, scale, bounds = 0.5, 1.0, 0.0, list[float]()
    beyond = departs = 0.0
    total = squares = fourths = 0.0
    for n, (w, r) in enumerate(zip(evidence.weight.tolist(), rewards, strict=True), start=1):
        control, reach = earned / pulled, max(w if evidence.reach is None else evidence.reach, 1.0)
        beyond, departs = beyond + reach - 1.0, departs + 1.0 - 1.0 / reach
        z, never_drawn = (w - 1.0) * (r - control), -control * (beyond / departs if departs else 1.0)
        earned, pulled = earned + abs(w - 1.0) * r, pulled + abs(w - 1.0)
        total, squares, fourths = total + z, squares + z**2, fourths + z**4
        mean = (total + never_drawn) / (n + 1)
        variance = squares + never_drawn**2 - (n + 1) * mean**2
        if not scale and (squares + never_drawn**2) ** 2 >= 5.0 * (fourths + never_drawn**4):
            scale = variance
        radius = inf
        if scale:
            x = variance / scale
            radius = sqrt(2.0 * variance * (1.0 + 1.0 / x) * log(1.0 + sqrt(1.0 + x) / (2.0 * error)))
        bounds.append((total + never_drawn - radius) / n)
    return bounds


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("reach", [True, False])
def test_the_asymptotic_bound_is_the_closed_form_of_its_mixture(seed: int, reach: bool) -> None:
    evidence = drawn_evidence(seed, 3_000, reach=reach)
    closer, strict = mix_walks(evidence, 0.04), difference(evidence, 0.99, one_sided=True).low
    assert 1.2 * closer[-1] > strict[-1]
    found = ASYMPTOTIC(evidence, one_sided=True).low
    np.testing.assert_allclose(found, np.maximum(1.2 * np.array(closer), strict), atol=1e-9)


@pytest.mark.parametrize(("weights", "reach"), [([2.0, 0.0], 2.0), ([0.9, 0.9], None)])
def test_the_strict_bound_has_a_fifth_of_the_error_where_the_asymptotic_one_has_not_begun(
    weights: list[float], reach: float | None
) -> None:
    evidence = Evidence(np.tile(weights, 500), np.tile([0.9, 0.8], 500), (0.0, 1.0), reach)
    assert mix_walks(evidence, 0.04)[-1] == -inf
    strict = difference(evidence, 0.99, one_sided=True).low
    assert strict[-1] > -0.1
    np.testing.assert_array_equal(ASYMPTOTIC(evidence, one_sided=True).low, strict)


def test_the_control_variate_of_a_row_is_of_the_rewards_known_when_it_was_decided() -> None:
    n, rng = 400, np.random.default_rng(3)
    weight, reward = rng.choice([0.5, 3.0], n, p=[0.8, 0.2]), rng.uniform(size=n)
    learned, known = np.arange(1, n + 1), np.maximum(np.arange(n) - 50, 0)
    lagged = Evidence(weight, reward, (0.0, 1.0), 3.0, learned=learned, known=known)
    changed = replace(lagged, reward=np.where(np.arange(n) >= n - 50, 1.0 - reward, reward))
    rows = np.array([n - 50])
    assert difference(lagged, rows=rows).low == difference(changed, rows=rows).low
    assert ASYMPTOTIC(lagged, rows=rows).low == ASYMPTOTIC(changed, rows=rows).low
    prompt = replace(lagged, known=np.arange(n))
    assert difference(prompt).low[-1] == difference(replace(prompt, learned=None, known=None)).low[-1]


@given(EVIDENCE)
def test_mirrored_rewards_mirror_the_bounds(evidence: Evidence) -> None:
    mirrored = evidence.mirrored
    np.testing.assert_allclose(difference(mirrored).low, -difference(evidence).high, atol=1e-9)
    np.testing.assert_allclose(value(mirrored).low, 0.8 - value(evidence).high, atol=1e-9)


@BOUNDS_OF
def test_what_comes_later_does_not_change_a_bound(bounds_of) -> None:
    whole = drawn_evidence(7, 500)
    part = Evidence(whole.weight[:200], whole.reward[:200], whole.reward_range, whole.reach)
    np.testing.assert_allclose(bounds_of(whole).low[:200], bounds_of(part).low, rtol=1e-12)


@BOUNDS_OF
def test_bounds_at_some_rows_are_those_at_all_rows(bounds_of) -> None:
    evidence, rows = drawn_evidence(3, 10_000), np.array([1, 2, 4_096, 4_097, 8_192, 10_000])
    some, every = bounds_of(evidence, rows=rows), bounds_of(evidence)
    for name in ("estimate", "low", "high"):
        np.testing.assert_allclose(getattr(some, name), getattr(every, name)[rows - 1], rtol=1e-9)


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = drawn_evidence(5, 100)
    at_once = difference(evidence)
    monkeypatch.setattr(sequences, "_BLOCK", 7)
    in_blocks = difference(evidence)
    np.testing.assert_allclose(in_blocks.low, at_once.low, rtol=1e-9)
    np.testing.assert_allclose(in_blocks.estimate, at_once.estimate, rtol=1e-9)


def test_a_one_sided_bound_is_the_lower_one_of_twice_the_error() -> None:
    evidence = drawn_evidence(1)
    one, two = difference(evidence, 0.95, one_sided=True), difference(evidence, 0.9)
    np.testing.assert_allclose(one.low, two.low, rtol=1e-9)
    assert (one.high == 1.2).all()


def test_a_reward_beyond_the_range_by_a_rounding_error_does_no_harm() -> None:
    assert 0.1 + 0.2 > 0.3
    bounds = value(Evidence(np.ones(10), np.full(10, 0.1 + 0.2), (0.0, 0.3)))
    assert bounds.high[-1] == pytest.approx(0.3)


def misses_allowed(runs: int, error: float) -> int:
    """Return so many misses that a valid bound has more of them in one of a thousand seeds."""
    return int(stats.binom.isf(0.001, runs, error))


def changing(rng: np.random.Generator, n: int) -> tuple[Evidence, Floats, Floats]:
    """Return a log in which everything changes, and after each row the mean value and difference so far.

    What the logging policy draws leans on what was earned before, the target on what was drawn, and the
    arms trade places halfway.
    """
    weight, reward, reach = np.empty(n), np.empty(n), np.empty(n)
    values, leads = np.empty(n), np.empty(n)
    last_reward, last_drawn = 0.0, 0
    for i in range(n):
        quality = np.array([0.2, 0.7]) if i < n // 2 else np.array([0.6, 0.3])
        p_log = np.array([0.9, 0.1]) if last_reward else np.array([0.3, 0.7])
        p_target = np.array([0.2, 0.8]) if last_drawn else np.array([0.7, 0.3])
        drawn = int(rng.random() < p_log[1])
        weight[i], reward[i] = p_target[drawn] / p_log[drawn], rng.random() < quality[drawn]
        reach[i] = (p_target / p_log).max()
        values[i], leads[i] = p_target @ quality, (p_target - p_log) @ quality
        last_reward, last_drawn = reward[i], drawn
    rows = np.arange(1, n + 1)
    evidence = Evidence(weight, reward, (0.0, 1.0), reach)
    return evidence, np.cumsum(values) / rows, np.cumsum(leads) / rows


@pytest.mark.slow
def test_bounds_hold_at_all_rows_at_once_while_everything_changes() -> None:
    runs, missed_value, missed_lead = 150, 0, 0
    for rng in np.random.default_rng(0).spawn(runs):
        evidence, values, leads = changing(rng, 200)
        of_value, of_lead = value(evidence, 0.9), difference(evidence, 0.9)
        missed_value += bool(((of_value.low > values) | (of_value.high < values)).any())
        missed_lead += bool(((of_lead.low > leads) | (of_lead.high < leads)).any())
    assert missed_value <= misses_allowed(runs, 0.1)
    assert missed_lead <= misses_allowed(runs, 0.1)


@pytest.mark.parametrize(("chance", "quality"), [(0.5, 0.5), (0.02, 0.5), (0.02, 0.05), (0.02, 0.95)])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.slow
def test_bounds_of_no_difference_seldom_exceed_zero(chance: float, quality: float, known: bool) -> None:
    runs, crossed = 200, 0
    for rng in np.random.default_rng(1).spawn(runs):
        weight = (rng.random(1_000) < chance) / chance
        reward = (rng.random(1_000) < quality).astype(np.float64)
        evidence = Evidence(weight, reward, (0.0, 1.0), 1.0 / chance if known else None)
        crossed += bool((difference(evidence, 0.9, one_sided=True).low > 0.0).any())
    assert crossed <= misses_allowed(runs, 0.1)


def find_crossings(chance: float, quality: float, **options: bool) -> int:
    """Return in how many of 100 logs of 2,000 rows a lower bound of no difference is ever above 0."""
    crossed = 0
    for rng in np.random.default_rng(2).spawn(100):
        weight = (rng.random(2_000) < chance) / chance
        reward = (rng.random(2_000) < quality).astype(np.float64)
        evidence = Evidence(weight, reward, (0.0, 1.0), 1.0 / chance)
        crossed += bool((difference(evidence, one_sided=True, **options).low > 0.0).any())
    return crossed


@pytest.mark.parametrize("chance", [0.5, 0.1, 0.02, 0.005])
@pytest.mark.parametrize("quality", [0.01, 0.5, 0.99])
@pytest.mark.slow
def test_the_asymptotic_bound_of_no_difference_seldom_exceeds_zero(chance: float, quality: float) -> None:
    assert find_crossings(chance, quality, asymptotic=True) <= misses_allowed(100, 0.05)


ONE: Floats = np.ones(3)
SECOND: Integers = np.array([2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Evidence(ONE[:0], ONE[:0], (0.0, 1.0)), r"n above 0, got \(0,\)"),
        (lambda: Evidence(ONE, ONE[:2], (0.0, 1.0)), r"one shape.*\(3,\) and \(2,\)"),
        (lambda: Evidence(ONE, ONE, (1.0, 1.0)), "must rise, got 1 to 1"),
        (lambda: Evidence(ONE, ONE, (0.0, 1.0), known=SECOND), "both learned and known, or neither"),
        (lambda: Evidence(ONE, ONE, (0.0, 1.0), learned=SECOND, known=SECOND), r"learned .* \(3,\)"),
        (lambda: Evidence(ONE, 2.0 * ONE, (0.0, 1.0)), r"range \[0, 1\], got 2 at row 0"),
        (lambda: Evidence(-ONE, ONE, (0.0, 1.0)), "at least 0, got -1 at row 0"),
        (lambda: Evidence(np.nan * ONE, ONE, (0.0, 1.0)), "finite and at least 0, got nan"),
        (lambda: Evidence(ONE, ONE, (0.0, 1.0), reach=0.5), "at most the reach of its row, got 1 at row 0"),
        (lambda: value(Evidence(ONE, ONE, (0.0, 1.0)), 1.0), r"level must be in \(0, 1\), got 1"),
        (lambda: value(Evidence(ONE, ONE, (0.0, 1.0)), rows=SECOND + 2), "from 1 to 3, got 4"),
        (lambda: value(Evidence(ONE, ONE, (0.0, 1.0)), rows=SECOND - 2), "from 1 to 3, got 0"),
        (lambda: value(Evidence(ONE, ONE, (0.0, 1.0)), rows=np.array([2, 2])), "above the one before"),
    ],
)
def test_what_cannot_be_bounded_is_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
