"""Counters and latencies for Prometheus, summed over the replicas of one machine.

Each replica writes its numbers into a file of a shared folder
(`PROMETHEUS_MULTIPROC_DIR`, set before the process starts), so that any
replica can answer a scrape for all of them.
"""

import asyncio
import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
    multiprocess,
)
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agent.serving.messages import Log
from agent.telemetry import turns
from feedback.events import Cost, Decision, Execution, Feedback
from feedback.log import Receipt
from feedback.registry import Version
from feedback.training_log import lag as training_log_lag

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram buckets."""

NONE_SERVED = "none served"
"""Label of the arm where every arm failed."""


class Telemetry:
    """The metrics of one replica.

    Args:
        folder: The shared folder of all replicas; None keeps the numbers in this process.
    """

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._own = CollectorRegistry()
        registry = self._own
        self._decisions = Counter(
            "armwise_decisions", "Decisions committed.", ("arm", "mode"), registry=registry
        )
        self._executions = Counter(
            "armwise_executions", "Turns that ended.", ("arm", "status"), registry=registry
        )
        self._turns = Histogram(
            "armwise_turn_seconds",
            "Seconds from admission to the last byte.",
            ("arm",),
            buckets=SECONDS,
            registry=registry,
        )
        self._retrieval = Histogram(
            "armwise_retrieval_seconds", "Seconds in an arm.", ("arm",), buckets=SECONDS, registry=registry
        )
        self._llm = Histogram(
            "armwise_llm_seconds", "Seconds in the language model.", buckets=SECONDS, registry=registry
        )
        self._tokens = Counter(
            "armwise_tokens", "Tokens read and written.", ("direction",), registry=registry
        )
        self._feedback = Counter(
            "armwise_feedback", "Feedback committed.", ("metric", "status"), registry=registry
        )
        self._failures = Counter("armwise_failures", "Turns that failed.", ("code",), registry=registry)
        self._observed = Counter(
            "armwise_observations",
            "Observations committed, by source; those that failed or were shed.",
            ("outcome",),
            registry=registry,
        )
        self._shed = Counter("armwise_shed", "Requests refused before the draw.", registry=registry)
        self._point = ""

    def at(self, point: str) -> "Telemetry":
        """Return the same counters for another decision point: its arms and metrics begin with its name."""
        other = copy.copy(self)
        other._point = f"{point}/"  # noqa: SLF001 - of the same class
        return other

    def decided(self, decision: Decision) -> None:
        """Count a decision."""
        self._decisions.labels(self._point + decision.drawn, decision.mode.value).inc()

    def took(self, served: str | None, seconds: float) -> None:
        """Observe the duration of a turn, from admission to the last byte."""
        self._turns.labels(self._point + (served or NONE_SERVED)).observe(seconds)

    def finished(self, execution: Execution, drawn: str) -> None:
        """Count how a turn ended, by the arm that was drawn for it."""
        self._executions.labels(self._point + drawn, execution.status.value).inc()
        self._retrieval.labels(self._point + (execution.served or NONE_SERVED)).observe(
            execution.cost.retrieval_s
        )
        if execution.answer is not None:
            self._llm.observe(execution.cost.llm_s)
            self._tokens.labels("read").inc(execution.cost.prompt_tokens)
            self._tokens.labels("written").inc(execution.cost.completion_tokens)

    def fed_back(self, fact: Feedback, receipt: Receipt) -> None:
        """Count an item of feedback, by its metric, or by its kind where it has none."""
        assert receipt.status is not None
        metric = self._point + (fact.metric or fact.kind.value)
        self._feedback.labels(metric, receipt.status.value).inc()

    def failed(self, code: str) -> None:
        """Count a turn that failed."""
        self._failures.labels(code).inc()

    def observed(self, outcome: str) -> None:
        """Count an observation by its source, or as failed or shed."""
        self._observed.labels(outcome).inc()

    def shed(self) -> None:
        """Count a request that was refused for load."""
        self._shed.inc()

    def counts(self, counter: str) -> dict[str, float]:
        """Return the values of a counter of all replicas of this machine, by label."""
        families = [family for family in self._merged().collect() if family.name == counter]
        samples = [one for family in families for one in family.samples if one.name.endswith("_total")]
        return {", ".join(one.labels.values()): one.value for one in samples}

    def _merged(self) -> CollectorRegistry:
        if self._folder is None:
            return self._own
        merged = CollectorRegistry()
        multiprocess.MultiProcessCollector(merged, self._folder)  # type: ignore[no-untyped-call]
        return merged

    def exposition(
        self,
        lag: training_log_lag.Lag | None,
        version: Version | None,
        now: float,
        alarms: int = 0,
        dangling: int = 0,
        jump_s: float = 0.0,
    ) -> bytes:
        """Return the text for a scrape, with the state of the log and of the learner.

        Args:
            lag: How far the served version is behind the log; None where the log is unavailable.
            version: The served version; None before there is one.
            now: Seconds since the epoch.
            alarms: Drift alarms raised.
            dangling: Feedback that refers to no decision.
            jump_s: Seconds that the wall clock is ahead of the monotonic one.
        """
        text = generate_latest(self._merged())
        state = CollectorRegistry()
        state.register(_State(lag, version, now, alarms, dangling, jump_s))
        return text + generate_latest(state)


class CountedLog:
    """A log that counts the decisions and executions that it commits.

    Args:
        log: Where they are committed.
        telemetry: Counts them.
        charge: Called with the decision and the cost of each execution, which was incurred in any case.
    """

    def __init__(
        self, log: Log, telemetry: Telemetry, charge: Callable[[str, Cost], None] = lambda *_: None
    ) -> None:
        self._log = log
        self._telemetry = telemetry
        self._charge = charge
        self._drawn: dict[str, str] = {}  # arm by decision, until its execution

    def append(self, *facts: Decision | Execution) -> "asyncio.Future[Any]":
        """Queue facts, and count them unless their commit fails."""
        for fact in facts:
            if isinstance(fact, Execution):
                self._charge(fact.decision_id, fact.cost)
        future = self._log.append(*facts)
        turns.committing(facts, future)
        future.add_done_callback(partial(self._count, facts))
        return future

    def _count(self, facts: tuple[Decision | Execution, ...], future: "asyncio.Future[Any]") -> None:
        failed = not future.cancelled() and future.exception() is not None  # cancelled, the write goes on
        for fact in facts:
            if isinstance(fact, Execution):
                drawn = self._drawn.pop(fact.decision_id, NONE_SERVED)
                if not failed:
                    self._telemetry.finished(fact, drawn)
            elif not failed:
                self._drawn[fact.id] = fact.drawn
                self._telemetry.decided(fact)


class _State(Collector):
    """Gauges of the log and the learner, read at the scrape."""

    def __init__(
        self,
        lag: training_log_lag.Lag | None,
        version: Version | None,
        now: float,
        alarms: int,
        dangling: int,
        jump_s: float,
    ) -> None:
        known: dict[str, tuple[str, float]] = {}
        if lag is not None:
            known = {
                "armwise_log_seq": ("Position of the newest fact.", lag.log_seq),
                "armwise_applied_seq": (
                    "The served version has learned all that the log up to this position teaches.",
                    lag.applied_seq,
                ),
                "armwise_lag_facts": ("Facts after that position.", lag.facts),
                "armwise_lag_seconds": ("Age of the first of these; 0 for none.", lag.seconds(now)),
                "armwise_dangling_feedback": (
                    "Items whose decision has not come within the time in which they would have counted.",
                    dangling,
                ),
            }
        self._values = known | {
            "armwise_examples_seq": ("Examples that it has learned.", version.examples_seq if version else 0),
            "armwise_policy_version": ("The version that is served.", version.version if version else 0),
            "armwise_drift_alarms": ("Changes of the world that were noticed.", alarms),
            "armwise_clock_jump_seconds": (
                "How far the wall clock of the process that answers is ahead; 0 while it is followed.",
                jump_s,
            ),
        }

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield each value."""
        for name, (what, value) in self._values.items():
            yield GaugeMetricFamily(name, what, value)
