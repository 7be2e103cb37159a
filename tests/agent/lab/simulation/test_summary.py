"""The figures and the tables of a run whose numbers are known."""

import math

import orjson
import pytest

from armwise.agent.lab.simulation.summary import RunSummary, SimulatedTurn, Traffic, summarise

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


def a_run() -> list[SimulatedTurn]:
    return [
        a_turn(0, "bm25", 0.0),
        a_turn(1, "dense", 1.0, group="squad"),
        a_turn(2, "dense", 0.5, latency_s=0.3),
    ]


def summary_of(turns: list[SimulatedTurn]) -> RunSummary:
    return summarise(turns, ARMS, Traffic(duration_s=2.0))


def test_turns_are_put_in_the_order_of_asking() -> None:
    assert summary_of(a_run()[::-1]) == summary_of(a_run())


def test_levels_and_shares_are_of_thirds() -> None:
    served = ["bm25"] * 2 + ["dense"] * 2 + ["bm25", "dense"]
    summary = summary_of([a_turn(n, arm, float(n)) for n, arm in enumerate(served)])
    assert summary.shares == {"bm25": (1.0, 0.5), "dense": (0.0, 0.5)}
    assert (summary.reward.overall, summary.reward.last_third) == (2.5, 4.5)


def test_a_third_of_two_turns_is_one_of_them() -> None:
    summary = summary_of([a_turn(0, "bm25", 0.0), a_turn(1, "dense", 1.0)])
    assert summary.shares == {"bm25": (1.0, 0.0), "dense": (0.0, 1.0)}
    assert summary.reward.last_third == 1.0


def test_the_latencies_are_those_of_half_of_the_answers_and_of_99_in_100() -> None:
    summary = summary_of([a_turn(n, "bm25", 1.0, latency_s=float(n)) for n in range(101)])
    assert (summary.latency_p50_s, summary.latency_p99_s) == pytest.approx((50.0, 99.0))


def test_shares_groups_speed_and_versions_are_counted() -> None:
    summary = summary_of(a_run())
    assert summary.shares == {"bm25": (1.0, 0.0), "dense": (0.0, 1.0)}
    assert summary.groups["squad"] == {
        "questions": 1.0,
        "recall": 1.0,
        "reward": 1.0,
    }
    assert summary.groups["nq"]["questions"] == 2.0
    assert summary.groups["nq"]["recall"] == 0.25
    assert summary.requests_per_s == 1.5
    assert summary.latency_p50_s == pytest.approx(0.1)
    assert 0.1 < summary.latency_p99_s <= 0.3
    assert summary.versions == (0, 2)


def test_a_turn_without_a_reward_is_not_in_the_mean() -> None:
    summary = summary_of([*a_run(), a_turn(3, "bm25", None)])
    assert (summary.turns, summary.scored) == (4, 3)
    assert (summary.reward.overall, summary.reward.last_third) == (0.5, 0.5)


def test_a_run_without_any_reward_has_no_mean() -> None:
    summary = summary_of([a_turn(0, "bm25", None)])
    assert math.isnan(summary.reward.overall)
    assert orjson.loads(orjson.dumps(summary))["reward"]["overall"] is None
