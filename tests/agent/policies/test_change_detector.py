"""Changes of the reward of an arm: none in calm, true ones soon, and the evidence by its definition."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from armwise.agent.policies.change_detector import ArmChange, ChangeDetector, restart_after

Array = NDArray[np.float64]


def rated(rate: float, n: int, seed: int) -> list[float]:
    """Return rewards that are 1 with this chance."""
    return (np.random.default_rng(seed).random(n) < rate).astype(float).tolist()


def found(detector: ChangeDetector, rewards: list[float], arm: str = "a") -> list[tuple[int, ArmChange]]:
    """Return the changes of an arm, each with the number of the reward that shows it, from 1."""
    changes = [(i, detector.see(arm, reward)) for i, reward in enumerate(rewards, start=1)]
    return [(i, change) for i, change in changes if change is not None]


@pytest.mark.parametrize("rate", [0.01, 0.02, 0.1, 0.5, 0.9, 0.98, 0.99])
def test_rare_and_nearly_certain_rewards_change_nothing_in_calm(rate: float) -> None:
    assert found(ChangeDetector(), rated(rate, 30_000, seed=int(1000 * rate))) == []


def test_heavy_tails_change_nothing_in_calm() -> None:
    rng = np.random.default_rng(2)
    assert found(ChangeDetector(), (0.3 + 0.1 * rng.standard_t(1.5, 30_000)).tolist()) == []


def test_where_rewards_were_equal_one_that_differs_and_a_small_difference_are_no_change() -> None:
    for same in (0.0, 0.7, 1.0):
        assert found(ChangeDetector(), [same] * 2000 + [1.0 - same] + [same] * 60) == []
        assert len(found(ChangeDetector(), [same] * 2000 + [abs(same - 0.7)] * 20)) == 1
    assert found(ChangeDetector(), [0.7] * 2000 + [0.703] * 2000) == []


def test_fifty_arms_together_have_the_run_length_of_one() -> None:
    rng, detector = np.random.default_rng(3), ChangeDetector()
    rates, arms = rng.uniform(0.02, 0.98, 50), rng.integers(50, size=30_000)
    rewards = (rng.random(30_000) < rates[arms]).astype(float).tolist()
    assert [*filter(None, map(detector.see, map(str, arms.tolist()), rewards))] == []


def test_a_short_run_length_is_kept_to() -> None:
    for rate in (0.05, 0.5):
        n = len(found(ChangeDetector(200.0), rated(rate, 15_000, seed=5)))
        assert n <= 15_000 / 200
    assert n > 0, "where rewards are even, it is used"


@pytest.mark.parametrize(
    ("before", "after", "within"),
    [(0.5, 0.1, 80), (0.1, 0.5, 80), (0.9, 0.5, 80), (0.5, 0.9, 80), (0.02, 0.3, 80)],
)
def test_a_large_change_is_found_soon_and_dated(before: float, after: float, within: int) -> None:
    for seed in range(5):
        rewards = rated(before, 600, seed) + rated(after, 300, 100 + seed)
        at, change = found(ChangeDetector(), rewards)[0]
        assert 600 < at <= 600 + within
        assert change.arm == "a"
        assert change.rise == (after > before)
        assert abs(at - change.since - 600) <= 40


def test_the_change_of_a_second_arm_is_found_and_named() -> None:
    detector, rng = ChangeDetector(), np.random.default_rng(4)
    for t in range(1200):
        arm = "ab"[t % 2]
        rate = 0.5 if arm == "a" or t < 1000 else 0.05
        change = detector.see(arm, float(rng.random() < rate))
        if change is not None:
            break
    assert change is not None
    assert (change.arm, change.rise) == ("b", False)
    assert 1000 < t < 1120
    assert 0.5 * (t - 999) <= change.since <= 1.5 * (t - 999), "rewards of both arms count"


def test_the_first_hundred_rewards_of_an_arm_show_nothing_and_after_a_change_all_arms_begin_anew() -> None:
    detector = ChangeDetector()
    assert found(detector, [1.0] * 60 + [0.0] * 40) == []
    detector = ChangeDetector()
    for reward in rated(0.9, 200, seed=1):
        detector.see("b", reward)
    assert len(found(detector, [1.0] * 300 + [0.0] * 40)) == 1
    assert detector.arms == ["b", "a"], "the swings of both"
    assert found(detector, [0.0] * 99, "b") == []
    assert found(detector, [1.0, 0.0], "b") == []


@pytest.mark.slow
@pytest.mark.parametrize("day", [2000, 10_000])
@pytest.mark.parametrize(
    ("rate", "swing", "shares"),
    [(0.1, 0.09, (0.5, 0.5)), (0.9, 0.09, (0.5, 0.5)), (0.5, 0.15, (1.0,)), (0.5, 0.15, (0.98, 0.01, 0.01))],
)
def test_a_daily_rhythm_is_no_change(rate: float, swing: float, shares: tuple[float, ...], day: int) -> None:
    """Of two arms alike, of one, and of one that gets nearly all rewards."""
    rng, detector, n = np.random.default_rng(9), ChangeDetector(), 40_000
    arms = rng.choice(len(shares), size=n, p=shares)
    rewards = rng.random(n) < rate + swing * np.sin(2.0 * np.pi * np.arange(n) / day)
    changes = map(detector.see, map(str, arms.tolist()), rewards.astype(float).tolist())
    assert sum(change is not None for change in changes) <= 2, "5 in 100,000"


def test_what_moves_all_arms_alike_is_no_change_and_a_swap_in_it_is_one() -> None:
    rng, detector = np.random.default_rng(15), ChangeDetector()
    for t in range(4000):
        rates = (0.7, 0.3) if t < 3000 else (0.3, 0.7)
        arm = int(rng.integers(2))
        rate = rates[arm] + 0.13 * math.sin(2.0 * math.pi * t / 2000)
        if detector.see("ab"[arm], float(rng.random() < rate)) is not None:
            break
        if t == 2999:
            assert detector.arrays()["seen"][1] == pytest.approx(50.0), "rewards that count for the level"
    assert 3000 < t < 3100


def test_swings_of_an_arm_are_remembered_after_a_change() -> None:
    days = np.sin(2.0 * np.pi * np.arange(12_000) / 2000)
    rewards = (np.random.default_rng(1).random(12_000) < 0.5 + 0.25 * days).astype(float).tolist()
    detector = ChangeDetector()
    assert found(detector, rewards), "the first days of so large a rhythm look like a change"
    assert len(found(detector, [0.0] * 100)) == 1
    assert found(detector, rewards) == []


def test_swings_are_mean_squares_of_the_recent_mean_beyond_chance_in_blocks_of_a_thousand_rewards() -> None:
    rewards, detector = rated(0.5, 2200, seed=7), ChangeDetector()
    recent, squares = 0.0, list[float]()
    for t, reward in enumerate(rewards):
        if t >= 50:
            mean, variance = detector.arrays()["watched"][0, [1, 3]].tolist()
            recent += 0.02 * (reward - mean - recent)
            squares.append(recent**2 - variance * 0.02 / 1.98)
        assert detector.see("a", reward) is None
    first, second = np.mean(squares[:1000]), np.mean(squares[1000:2000])
    block, block_n, swing, blocks = detector.arrays()["watched"][0, 13:17].tolist()
    assert swing == pytest.approx(first / 2 + (second - first / 2) / 3)
    assert (block, block_n, blocks) == (pytest.approx(sum(squares[2000:])), 150, 2)
    assert len(found(detector, [0.0] * 60)) == 1
    assert detector.arrays()["watched"][0, 14] > 150, "a change begins no block anew"


def test_an_arm_that_gets_other_questions_is_no_change_where_columns_tell_them() -> None:
    rng, detector = np.random.default_rng(8), ChangeDetector()
    unaware, missed = ChangeDetector(), 0
    for t in range(3000):
        easy = rng.random() < (0.1 if t < 1500 else 0.9)
        reward = float(rng.random() < (0.9 if easy else 0.2))
        assert detector.see("a", reward, np.array([float(easy), float(not easy)])) is None
        missed += unaware.see("a", reward) is not None
    assert missed == 1


def test_other_questions_that_earn_the_same_are_no_change_even_if_they_earned_more_before() -> None:
    rng, detector = np.random.default_rng(12), ChangeDetector()
    for t in range(1500):
        easy = rng.random() < (0.1 if t < 1000 else 0.9)
        rate = 0.5 if t >= 1000 else 0.9 if easy else 0.45
        assert detector.see("a", float(rng.random() < rate), np.array([float(easy)])) is None


def test_a_change_is_found_beside_columns_that_tell_questions_apart() -> None:
    rng, detector = np.random.default_rng(9), ChangeDetector()
    changes = []
    for t in range(1300):
        easy = rng.random() < 0.5
        rate = (0.9 if easy else 0.5) - (0.4 if t >= 1000 else 0.0)
        changes.append(detector.see("a", float(rng.random() < rate), np.array([float(easy)])))
    assert not any(changes[:1000])
    assert any(changes[1000:1200])


class Reference:
    """The definition of the evidence, by all bets and all times at which one began."""

    def __init__(self, rewards: list[float], columns: Array) -> None:
        self.growths: list[list[float]] = []
        n = mean = error = variance = level = 0.0
        weights, squares = np.zeros(columns.shape[1]), np.ones(columns.shape[1])
        for t, (reward, x) in enumerate(zip(rewards, columns, strict=True), start=1):
            low, high = min(rewards[:t]), max(rewards[:t])
            guess = float(weights @ x)
            corrected = min(max(guess + error, low), high)
            if n >= 100:
                span = high - low
                sd = math.sqrt(variance + span**2 / (2 * n))
                row = []
                for sign in (1, -1):
                    null = max(sign * mean, sign * corrected)
                    end, other = max(sign * low, sign * high), min(sign * low, sign * high)
                    moved = 0.05 * sd + sd / math.sqrt(n) + 2 * (end - null) / n
                    null += max(min(moved, (end - null) / 2), 0.005)
                    for stake in (0.5, 1.0):
                        bet = min(stake / sd, 0.9 / (null - other))
                        row.append(1 + bet * (sign * reward - null))
                self.growths.append(row)
            n += 1
            variance = (n - 1) / n * (variance + (reward - mean) ** 2 / n)
            mean += (reward - mean) / n
            error += (reward - guess - error) / n
            apart = reward - level - guess
            level += apart * max(1 / n, 0.02)
            squares += x * x
            weights += apart * x / (x @ x) / squares

    def evidence(self) -> Array:
        """Return the worth of each bet now: the sum over its starts of the product since."""
        growths = np.array(self.growths)
        return np.asarray(np.cumprod(growths[::-1], axis=0).sum(axis=0))


def test_evidence_is_the_worth_of_a_bet_from_each_reward_on() -> None:
    rng = np.random.default_rng(10)
    rewards = (rng.random(160) < 0.4) * rng.random(160)
    columns = rng.normal(size=(160, 3))
    detector = ChangeDetector()
    for reward, x in zip(rewards.tolist(), columns, strict=True):
        assert detector.see("a", reward, x) is None
    reference = Reference(rewards.tolist(), columns)
    assert detector.arrays()["watched"][0, 17:21] == pytest.approx(reference.evidence(), rel=1e-9)


def test_a_loaded_detector_goes_on_as_the_saved_one() -> None:
    rewards = rated(0.6, 700, seed=11) + rated(0.2, 200, seed=12)
    whole, resumed = ChangeDetector(5000.0), ChangeDetector(5000.0)
    changes: list[tuple[Any, Any]] = []
    for t, reward in enumerate(rewards):
        arm, x = "ab"[t % 2], np.array([0.5, t % 3])
        changes.append((whole.see(arm, reward, x), resumed.see(arm, reward, x)))
        if t % 97 == 0:
            resumed = ChangeDetector(5000.0).load(resumed.arms, **resumed.arrays())
    assert all(one == other for one, other in changes)
    assert any(one is not None for one, _ in changes)
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(array, resumed.arrays()[name])


def test_a_restart_keeps_100_to_500_rewards() -> None:
    rewards = [("a", 1.0), ("b", 0.25)] * 250 + [("a", 0.0), ("b", 0.25)] * 150
    for since, kept in ((7, 100), (300, 300), (4000, 500)):
        restart = restart_after(ArmChange("a", rise=False, since=since), 900, rewards[-500:])
        assert (restart.reward, restart.arm, restart.rise, restart.kept) == (900, "a", False, kept)
    restart = restart_after(ArmChange("a", rise=False, since=300), 900, rewards)
    assert (restart.before, restart.after) == (1.0, 0.0)
    nothing_before = restart_after(ArmChange("a", rise=False, since=300), 300, rewards[-300:])
    assert (nothing_before.kept, nothing_before.before) == (300, 0.125), "the mean of all, where it had none"
