"""The figures, the tables and the picture of a run whose numbers are known."""

import math
from io import StringIO
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from numpy.typing import NDArray
from rich.console import Console

from armwise.agent.lab.simulation.learning_curves import (
    RunSummary,
    SimulatedTurn,
    Traffic,
    draw,
    rewards_by_choice,
    summarise,
    tables,
)
from armwise.agent.reporting import moving_average

ARMS = ("bm25", "dense")


def a_turn(position: int, arm: str, reward: float | None, **fields: object) -> SimulatedTurn:
    given: dict[str, object] = {
        "group": "nq",
        "pmf": {"bm25": 0.25, "dense": 0.75},
        "latency_s": 0.1,
        "metrics": {} if reward is None else {"recall": reward},
        "version": position,
        **fields,
    }
    return SimulatedTurn(
        position=position,
        id=f"q{position}",
        decision_id=f"d{position}",
        drawn=arm,
        arm=arm,
        propensity=0.5,
        cost={"total": 0.0},
        reward=reward,
        **given,  # type: ignore[arg-type]
    )


def a_run() -> tuple[list[SimulatedTurn], dict[str, dict[str, float]]]:
    turns = [
        a_turn(0, "bm25", 0.0),
        a_turn(1, "dense", 1.0, group="squad"),
        a_turn(2, "dense", 0.5, latency_s=0.3),
    ]
    truth = {
        "q0": {"bm25": 0.0, "dense": 1.0},
        "q1": {"bm25": 0.0, "dense": 1.0},
        "q2": {"bm25": 1.0, "dense": 0.5},
    }
    return turns, truth


def summary_of(turns: list[SimulatedTurn], truth: dict[str, dict[str, float]]) -> RunSummary:
    return summarise(turns, ARMS, truth, Traffic(duration_s=2.0))


def test_every_way_of_choosing_is_averaged_over_the_same_questions() -> None:
    summary = summary_of(*a_run())
    overall = {name: level.overall for name, level in summary.reward.items()}
    assert overall == pytest.approx(
        {
            "policy": 0.5,
            "policy (expected)": (0.75 + 0.75 + 0.25 + 0.375) / 3,
            "uniform": 0.5 * (1 + 1 + 1.5) / 3,
            "arm/bm25": 1 / 3,
            "arm/dense": 2.5 / 3,
            "oracle": 1.0,
        }
    )
    assert summary.reward["policy"].last_third == 0.5
    assert summary.reward["arm/bm25"].last_third == 1.0


def test_turns_are_put_in_the_order_of_asking() -> None:
    turns, truth = a_run()
    assert summary_of(turns[::-1], truth) == summary_of(turns, truth)


def test_levels_and_shares_are_of_thirds() -> None:
    served = ["bm25"] * 2 + ["dense"] * 2 + ["bm25", "dense"]
    summary = summary_of([a_turn(n, arm, float(n)) for n, arm in enumerate(served)], {})
    assert summary.shares == {"bm25": (1.0, 0.5), "dense": (0.0, 0.5)}
    assert (summary.reward["policy"].overall, summary.reward["policy"].last_third) == (2.5, 4.5)


def test_a_third_of_two_turns_is_one_of_them() -> None:
    summary = summary_of([a_turn(0, "bm25", 0.0), a_turn(1, "dense", 1.0)], {})
    assert summary.shares == {"bm25": (1.0, 0.0), "dense": (0.0, 1.0)}
    assert summary.reward["policy"].last_third == 1.0


def test_the_latencies_are_those_of_half_of_the_answers_and_of_99_in_100() -> None:
    summary = summary_of([a_turn(n, "bm25", 1.0, latency_s=float(n)) for n in range(101)], {})
    assert (summary.latency_p50_s, summary.latency_p99_s) == pytest.approx((50.0, 99.0))


def test_shares_groups_speed_and_versions_are_counted() -> None:
    summary = summary_of(*a_run())
    assert summary.shares == {"bm25": (1.0, 0.0), "dense": (0.0, 1.0)}
    assert summary.groups["squad"] == {
        "questions": 1.0,
        "recall": 1.0,
        "reward": 1.0,
        "arm/bm25": 0.0,
        "arm/dense": 1.0,
    }
    assert summary.groups["nq"]["questions"] == 2.0
    assert summary.groups["nq"]["recall"] == 0.25
    assert summary.requests_per_s == 1.5
    assert summary.latency_p50_s == pytest.approx(0.1)
    assert 0.1 < summary.latency_p99_s <= 0.3
    assert summary.versions == (0, 2)


def test_a_turn_without_a_reward_or_without_the_whole_truth_is_compared_with_nothing() -> None:
    turns, truth = a_run()
    turns.append(a_turn(3, "bm25", None))
    del truth["q1"]["bm25"]
    summary = summary_of(turns, truth)
    assert (summary.turns, summary.compared) == (4, 2)
    assert summary.reward["policy"].overall == 0.25
    assert summary.reward["oracle"].overall == 1.0


def test_without_the_truth_only_the_policy_has_a_reward() -> None:
    turns, _ = a_run()
    summary = summary_of(turns, {})
    assert list(summary.reward) == ["policy"]
    assert summary.compared == 3


def test_a_run_without_any_reward_has_no_mean() -> None:
    summary = summary_of([a_turn(0, "bm25", None)], {})
    assert math.isnan(summary.reward["policy"].overall)
    assert orjson.loads(orjson.dumps(summary))["reward"]["policy"]["overall"] is None


@given(
    rewards=st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=20),
    p=st.floats(0, 1),
)
def test_no_choice_beats_the_oracle_or_falls_below_the_worst_arm(
    rewards: list[tuple[float, float]], p: float
) -> None:
    turns = [a_turn(i, "bm25", r[0], pmf={"bm25": p, "dense": 1 - p}) for i, r in enumerate(rewards)]
    truth = {f"q{i}": dict(zip(ARMS, r, strict=True)) for i, r in enumerate(rewards)}
    earned = rewards_by_choice(turns, ARMS, truth)
    worst = np.minimum(earned["arm/bm25"], earned["arm/dense"])
    for name in ("policy", "policy (expected)", "uniform"):
        assert np.all(earned[name] <= earned["oracle"] + 1e-12)
        assert np.all(earned[name] >= worst - 1e-12)


@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30),
    window=st.integers(1, 40),
    d=st.integers(1, 3),
)
def test_the_moving_average_is_the_mean_of_the_window(values: list[float], window: int, d: int) -> None:
    array = np.array(values)
    slow = [array[max(0, i + 1 - window) : i + 1].mean() for i in range(len(array))]
    np.testing.assert_allclose(moving_average(array, window), slow, atol=1e-9)
    stacked = np.stack([array] * d, axis=1)
    np.testing.assert_allclose(moving_average(stacked, window), np.stack([slow] * d, axis=1), atol=1e-9)


def test_the_tables_show_every_choice_arm_and_group() -> None:
    shown = StringIO()
    for table in tables(summary_of(*a_run())):
        Console(width=200, file=shown).print(table)
    for cell in ("policy (expected)", "oracle", "arm/dense", "0.8333", "100.0%", "squad", "0.250"):
        assert cell in shown.getvalue()


@pytest.mark.parametrize("n", [2, 60])
@pytest.mark.parametrize("known", [True, False], ids=["with truth", "without"])
@pytest.mark.slow
def test_the_picture_has_both_panels_for_a_run_of_any_length(tmp_path: Path, n: int, known: bool) -> None:
    turns = [a_turn(i, ARMS[i % 2], float(i % 2)) for i in range(n)]
    truth = {turn.id: {"bm25": 0.0, "dense": 1.0} for turn in turns} if known else {}
    draw(turns, ARMS, truth, tmp_path / "curve.png")
    pixels = imread(tmp_path / "curve.png")
    height, _, _ = pixels.shape
    above, below = pixels[: height // 2], pixels[height // 2 :]
    assert area(above, "#1f2430") > 500  # the policy
    assert (area(above, "#8a8f98") > 50) == known  # uniform
    assert area(below, "#4477aa") > 10_000  # the arms
    assert area(below, "#ee6677") > 10_000


def area(pixels: NDArray[np.float32], colour: str) -> int:
    """Return how many pixels have the colour; smoothed edges hold a few of any."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return int(np.all(np.abs(pixels[..., :3] - wanted) < 0.01, axis=-1).sum())
