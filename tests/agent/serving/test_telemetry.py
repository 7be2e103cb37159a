"""Metrics: what Prometheus reads is what happened, in all replicas of a machine together."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from armwise.agent.serving.telemetry import ScrapedState, Telemetry
from armwise.agent.turn import CountedLog
from armwise.feedback.events import Context, Cost, Decision, Execution, Feedback, Mode, Status
from armwise.feedback.log import Receipt
from armwise.feedback.log.append import FeedbackStatus
from armwise.feedback.registry import Version
from armwise.feedback.training_log import lag
from tests.agent.fakes import MemoryLog

DOCUMENTED = (Path(__file__).parents[3] / "docs/guide/telemetry.md").read_text(encoding="utf-8")

DECISION = Decision("d", Context("?"), ("a", "b"), (0.5, 0.5), "a", "uniform", 1)
EXECUTION = Execution("d", "a", Status.OK, Cost(1, 100, 20, 0.02, 0.3, 0.25), ("p",), "words")
VERSION = Version(7, 6, "r", "j", {}, 30, 40, "digest", 1, 0.0)
LAG = lag.Lag(log_seq=43, applied_seq=41, since=100.0)


def samples(text: bytes) -> dict[str, float]:
    """Return every sample, named as Prometheus writes it."""
    return {
        name + "".join(f" {label}={value}" for label, value in sorted(labels.items())): value
        for family in text_string_to_metric_families(text.decode())
        for name, labels, value, *_ in family.samples
        if not name.endswith("_created")
    }


def exposed(telemetry: Telemetry, state: ScrapedState | None = None) -> dict[str, float]:
    return samples(
        telemetry.exposition(state or ScrapedState(), now=102.5, jump_s=-3.5, shows=lambda _: True)
    )


def test_what_happened_is_counted() -> None:
    telemetry = Telemetry()
    telemetry.count_decision(DECISION)
    telemetry.count_execution(EXECUTION, "a")
    telemetry.time_turn(EXECUTION, 0.4)
    telemetry.time_first_text("a", 0.2)
    telemetry.add_key_cost("public", 0.25)
    telemetry.count_feedback(Feedback("f", "d", "thumb", 1.0), Receipt(1, FeedbackStatus.DUPLICATE))
    telemetry.count_failure("arm_failed")
    telemetry.count_recall("a", hit=True)
    telemetry.count_recall("a", hit=False)
    telemetry.count_shed()
    telemetry.count_shed()
    telemetry.count_refusal("rate_limit_exceeded")
    found = exposed(telemetry, ScrapedState(LAG, VERSION, 2, 5, {"a": (4.0, 3.0)}, {9: 0.06}))
    assert (
        found.items()
        >= {
            "armwise_decisions_total arm=a mode=explore": 1.0,
            "armwise_propensity_sum arm=a": 0.5,
            "armwise_executions_total arm=a status=ok": 1.0,
            "armwise_turn_seconds_count arm=a": 1.0,
            "armwise_turn_seconds_sum arm=a": 0.4,
            "armwise_turn_seconds_bucket arm=a le=0.25": 0.0,
            "armwise_turn_seconds_bucket arm=a le=0.5": 1.0,
            "armwise_first_token_seconds_sum arm=a": 0.2,
            "armwise_retrieval_seconds_sum arm=a": 0.02,
            "armwise_llm_seconds_sum": 0.3,
            "armwise_tokens_total direction=read": 100.0,
            "armwise_tokens_total direction=written": 20.0,
            "armwise_cost_usd_total arm=a": 0.25,
            "armwise_key_cost_usd_total key=public": 0.25,
            "armwise_feedback_total metric=thumb status=duplicate": 1.0,
            "armwise_failures_total code=arm_failed": 1.0,
            "armwise_retrieval_cache_total arm=a outcome=hit": 1.0,
            "armwise_retrieval_cache_total arm=a outcome=miss": 1.0,
            "armwise_shed_total": 2.0,
            "armwise_refusals_total code=rate_limit_exceeded": 1.0,
            "armwise_log_seq": 43.0,
            "armwise_applied_seq": 41.0,
            "armwise_lag_facts": 2.0,
            "armwise_lag_seconds": 2.5,
            "armwise_dangling_feedback": 5.0,
            "armwise_examples_seq": 30.0,
            "armwise_policy_version": 7.0,
            "armwise_drift_alarms": 2.0,
            "armwise_canary_share version=9": 0.06,
            "armwise_reward arm=a": 0.75,
            "armwise_rewarded_decisions arm=a": 4.0,
            "armwise_clock_jump_seconds": -3.5,
        }.items()
    )
    assert found["armwise_overhead_seconds_sum"] == pytest.approx(0.08)
    assert [value for name, value in found.items() if name.startswith("armwise_build_info")] == [1.0]


def test_names_follow_the_conventions_of_prometheus() -> None:
    families = list(text_string_to_metric_families(Telemetry().exposition(ScrapedState(), 0.0).decode()))
    assert len(families) > 20
    for family in (one for one in families if not one.name.endswith("_created")):
        assert family.name.startswith("armwise_")
        assert not family.name.endswith(("_ms", "_percent", "_milliseconds", "_total")), family.name
        assert family.documentation.endswith("."), family.name
        suffix = "_total" if family.type == "counter" else ""
        assert f"`{family.name}{suffix}`" in DOCUMENTED, family.name


def test_without_the_log_its_gauges_are_left_out() -> None:
    found = exposed(Telemetry(), ScrapedState(version=VERSION))
    assert "armwise_log_seq" not in found
    assert found["armwise_policy_version"] == 7.0


def test_a_turn_without_a_language_model_counts_no_tokens() -> None:
    telemetry = Telemetry()
    telemetry.count_execution(Execution("d", None, Status.CANCELLED, Cost()), "a")
    found = exposed(telemetry)
    assert found["armwise_executions_total arm=a status=cancelled"] == 1.0
    assert found["armwise_llm_seconds_count"] == 0.0
    assert not any(name.startswith("armwise_tokens_total") for name in found)


def test_a_turn_that_no_arm_served_has_its_seconds_and_none_of_them_are_below_zero() -> None:
    telemetry = Telemetry()
    searched = Execution("d", None, Status.ARM_FAILED, Cost(2, retrieval_s=3.0))  # two arms at once
    telemetry.count_execution(searched, "a")
    telemetry.time_turn(searched, 2.0)
    found = exposed(telemetry)
    assert found["armwise_turn_seconds_sum arm=none served"] == 2.0
    assert found["armwise_retrieval_seconds_sum arm=none served"] == 3.0
    assert found["armwise_overhead_seconds_sum"] == 0.0


def test_histograms_have_the_buckets_that_boards_were_made_for() -> None:
    telemetry = Telemetry()
    telemetry.count_decision(DECISION)
    telemetry.time_turn(EXECUTION, 0.4)
    found = exposed(telemetry)

    def bounds(name: str) -> list[str]:
        return [key.split("le=")[1].split()[0] for key in found if key.startswith(f"{name}_bucket")]

    assert bounds("armwise_turn_seconds") == [
        *("0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1.0"),
        *("2.5", "5.0", "10.0", "30.0", "60.0", "+Inf"),
    ]
    assert bounds("armwise_propensity") == [
        *("0.01", "0.02", "0.05", "0.1", "0.2", "0.35", "0.5", "0.65", "0.8", "0.9", "1.0", "+Inf")
    ]


def test_a_forced_arm_is_counted_apart_and_has_no_propensity() -> None:
    telemetry = Telemetry()
    telemetry.count_decision(DECISION)
    telemetry.count_decision(Decision("e", Context("?"), ("b",), (1.0,), "b", "uniform", 1, Mode.FORCED))
    found = exposed(telemetry)
    assert found["armwise_decisions_total arm=b mode=forced"] == 1.0
    assert "armwise_propensity_count arm=b" not in found


def test_many_keys_share_a_series() -> None:
    telemetry = Telemetry()
    for n in range(203):
        telemetry.add_key_cost(f"key-{n}", 1.0)
    telemetry.add_key_cost("key-0", 1.0)
    telemetry.add_key_cost(None, 1.0)
    cost = {
        name: usd for name, usd in exposed(telemetry).items() if name.startswith("armwise_key_cost_usd_total")
    }
    assert len(cost) == 201
    assert cost["armwise_key_cost_usd_total key=others"] == 3.0
    assert cost["armwise_key_cost_usd_total key=key-0"] == 2.0


def test_series_of_keys_are_shown_to_none_who_may_not_see_them() -> None:
    telemetry = Telemetry()
    telemetry.add_key_cost("mine", 1.0)
    telemetry.add_key_cost("theirs", 2.0)
    assert b"key=" not in telemetry.exposition(ScrapedState(), 0.0)
    text = telemetry.exposition(ScrapedState(), 0.0, shows=lambda key: key == "mine").decode()
    assert 'armwise_key_cost_usd_total{key="mine"} 1.0' in text
    assert "theirs" not in text
    assert samples(telemetry.exposition(ScrapedState(), 0.0)) == samples(
        Telemetry().exposition(ScrapedState(), 0.0)
    )


@pytest.mark.parametrize("refused", [None, Execution])
async def test_a_decision_is_forgotten_with_its_execution(
    refused: type[Execution] | None,
) -> None:
    log, telemetry = MemoryLog(), Telemetry()
    log.refuse = refused
    counted = CountedLog(log, telemetry.count_decision, telemetry.count_execution)
    futures = [counted.append(DECISION), counted.append(EXECUTION)]
    await asyncio.wait(futures)
    found = exposed(telemetry)
    assert found["armwise_decisions_total arm=a mode=explore"] == 1.0
    assert found.get("armwise_executions_total arm=a status=ok") == (None if refused else 1.0)
    assert counted._drawn == {}, "a replica answers millions of turns"  # noqa: SLF001 - nothing else shows it
    assert [future.exception() is None for future in futures] == [True, refused is None]


@pytest.mark.slow
def test_replicas_are_summed_through_a_folder_that_no_variable_names(tmp_path: Path) -> None:
    script = (
        "import sys; from armwise.agent.serving import ScrapedState, Telemetry; "
        "from armwise.feedback.training_log.lag import Lag; "
        "t = Telemetry(sys.argv[1]); t.count_shed(); t.count_failure('arm_failed'); "
        "sys.stdout.buffer.write(t.exposition(ScrapedState(Lag(3, 3, None)), now=0.0))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    first = subprocess.run(command, check=True, capture_output=True).stdout
    second = subprocess.run(command, check=True, capture_output=True).stdout
    for text, times in ((first, 1.0), (second, 2.0)):
        found = samples(text)
        assert found["armwise_shed_total"] == times
        assert found["armwise_failures_total code=arm_failed"] == times
        assert found["armwise_log_seq"] == 3.0, "the state is of the log, and not summed"
