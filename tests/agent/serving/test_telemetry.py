"""Metrics: what Prometheus reads is what happened, in all replicas of a machine together."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.serving.telemetry import CountedLog, Telemetry
from feedback.events import Context, Cost, Decision, Execution, Feedback, Mode, Status
from feedback.log import Receipt
from feedback.log.batch import FeedbackStatus
from feedback.registry import Version
from feedback.training_log import lag
from tests.agent.fakes import MemoryLog

DECISION = Decision("d", Context("?"), ("a", "b"), (0.5, 0.5), "a", "uniform", 1)
EXECUTION = Execution("d", "a", Status.OK, Cost(1, 100, 20, 0.02, 0.3), ("p",), "words")
VERSION = Version(7, 6, "r", "j", {}, 30, 40, "digest", 1, 0.0)
LAG = lag.Lag(log_seq=43, applied_seq=41, since=100.0)
EMPTY = lag.Lag(0, 0, None)


def samples(text: bytes) -> dict[str, float]:
    """Return every sample, named as Prometheus writes it."""
    return {
        name + "".join(f" {label}={value}" for label, value in sorted(labels.items())): value
        for family in text_string_to_metric_families(text.decode())
        for name, labels, value, *_ in family.samples
        if not name.endswith("_created")
    }


def test_what_happened_is_counted() -> None:
    telemetry = Telemetry()
    telemetry.decided(DECISION)
    telemetry.finished(EXECUTION, "a")
    telemetry.took("a", 0.4)
    telemetry.fed_back(Feedback("f", "d", "thumb", 1.0), Receipt(1, FeedbackStatus.DUPLICATE))
    telemetry.failed("arm_failed")
    telemetry.shed()
    telemetry.shed()
    found = samples(telemetry.exposition(LAG, VERSION, now=102.5, jump_s=-3.5))
    assert (
        found.items()
        >= {
            "armwise_decisions_total arm=a mode=explore": 1.0,
            "armwise_executions_total arm=a status=ok": 1.0,
            "armwise_turn_seconds_count arm=a": 1.0,
            "armwise_turn_seconds_sum arm=a": 0.4,
            "armwise_turn_seconds_bucket arm=a le=0.25": 0.0,
            "armwise_turn_seconds_bucket arm=a le=0.5": 1.0,
            "armwise_retrieval_seconds_sum arm=a": 0.02,
            "armwise_llm_seconds_sum": 0.3,
            "armwise_tokens_total direction=read": 100.0,
            "armwise_tokens_total direction=written": 20.0,
            "armwise_feedback_total metric=thumb status=duplicate": 1.0,
            "armwise_failures_total code=arm_failed": 1.0,
            "armwise_shed_total": 2.0,
            "armwise_log_seq": 43.0,
            "armwise_applied_seq": 41.0,
            "armwise_lag_facts": 2.0,
            "armwise_lag_seconds": 2.5,
            "armwise_examples_seq": 30.0,
            "armwise_policy_version": 7.0,
            "armwise_clock_jump_seconds": -3.5,
        }.items()
    )


def test_without_a_version_the_state_is_zero() -> None:
    found = samples(Telemetry().exposition(lag.Lag(3, 0, 50.0), None, now=51.0))
    assert (found["armwise_log_seq"], found["armwise_policy_version"]) == (3.0, 0.0)


def test_a_turn_without_a_language_model_counts_no_tokens() -> None:
    telemetry = Telemetry()
    telemetry.finished(Execution("d", None, Status.CANCELLED, Cost()), "a")
    found = samples(telemetry.exposition(EMPTY, None, now=0.0))
    assert found["armwise_executions_total arm=a status=cancelled"] == 1.0
    assert found["armwise_llm_seconds_count"] == 0.0
    assert not any(name.startswith("armwise_tokens_total") for name in found)


def test_a_forced_arm_is_counted_apart() -> None:
    telemetry = Telemetry()
    telemetry.decided(DECISION)
    telemetry.decided(Decision("e", Context("?"), ("b",), (1.0,), "b", "uniform", 1, Mode.FORCED))
    found = samples(telemetry.exposition(EMPTY, None, now=0.0))
    assert found["armwise_decisions_total arm=b mode=forced"] == 1.0


@pytest.mark.parametrize("refused", [None, Execution])
async def test_a_decision_is_forgotten_with_its_execution_also_where_that_is_refused(
    refused: type[Execution] | None,
) -> None:
    log, telemetry = MemoryLog(), Telemetry()
    log.refuse = refused
    counted = CountedLog(log, telemetry)
    futures = [counted.append(DECISION), counted.append(EXECUTION)]
    await asyncio.wait(futures)
    found = samples(telemetry.exposition(EMPTY, None, now=0.0))
    assert found["armwise_decisions_total arm=a mode=explore"] == 1.0
    assert found.get("armwise_executions_total arm=a status=ok") == (None if refused else 1.0)
    assert counted._drawn == {}, "a replica answers millions of turns"  # noqa: SLF001 - nothing else shows it
    assert [future.exception() is None for future in futures] == [True, refused is None]


def test_replicas_are_summed_through_their_folder(tmp_path: Path) -> None:
    script = (
        "import sys; from agent.serving import Telemetry; from feedback.training_log.lag import Lag; "
        "t = Telemetry(sys.argv[1]); t.shed(); t.failed('arm_failed'); "
        "sys.stdout.buffer.write(t.exposition(Lag(3, 3, None), None, now=0.0))"
    )
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    first = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    second = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    for text, times in ((first, 1.0), (second, 2.0)):
        found = samples(text)
        assert found["armwise_shed_total"] == times
        assert found["armwise_failures_total code=arm_failed"] == times
        assert found["armwise_log_seq"] == 3.0, "the state is of the log, and not summed"
