"""Counters and latencies for Prometheus, summed over the replicas of one machine.

Each replica writes its numbers into a file of a shared folder, so that any
replica can answer a scrape for all of them.
"""

import copy
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
    multiprocess,
    values,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from armwise.agent.background import Work
from armwise.agent.turn import NONE_SERVED, Recall
from armwise.arms.base import Query, Retrieval
from armwise.feedback.events import Decision, Execution, Feedback, Mode
from armwise.feedback.log import Receipt
from armwise.feedback.registry import Version
from armwise.feedback.training_log import lag as training_log_lag

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram buckets."""


PROPENSITIES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0)
"""Upper bounds of the buckets of propensities."""

MOST_KEYS = 200
"""Keys with a series each; the cost of further keys is summed under `OTHERS`."""

OTHERS = "others"

KEY = "key"
"""Label that names a key in the series of costs."""

VERSION = metadata.version("armwise")


@dataclass(frozen=True, slots=True)
class ScrapedState:
    """The state of the log and the learner at a scrape.

    Attributes:
        lag: How far the served version is behind the log; None: the log is unavailable.
        version: The served version.
        alarms: Number of drift alarms so far.
        dangling: Feedback whose decision is unknown.
        rewards: Number and sum of the rewards of the last hour's decisions, by arm.
        canaries: Share of each canary in the decisions that it takes part in, by version.
        failed: Failures in a row of each background task.
        classes_back: Classes of requests that went back to the guard's reference.
    """

    lag: training_log_lag.Lag | None = None
    version: Version | None = None
    alarms: int = 0
    dangling: int = 0
    rewards: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    canaries: Mapping[int, float] = field(default_factory=dict)
    failed: Mapping[Work, int] = field(default_factory=dict)
    classes_back: int = 0


class Telemetry:
    """The metrics of one replica.

    Args:
        folder: The shared folder of all replicas, fixed for a process; None keeps the numbers in memory.
    """

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, folder: str | None = None) -> None:
        if folder is not None:
            # the library reads it at import, which Ray may have done already
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
            values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]
        self._folder = folder
        self._own = CollectorRegistry()
        counter = partial(Counter, registry=self._own)
        seconds = partial(Histogram, buckets=SECONDS, registry=self._own)
        arm = ("arm",)
        self._decisions = counter("armwise_decisions", "Decisions committed.", (*arm, "mode"))
        self._propensity = Histogram(
            "armwise_propensity",
            "Probability of the arm that was drawn; not of forced and greedy choices.",
            arm,
            buckets=PROPENSITIES,
            registry=self._own,
        )
        self._executions = counter("armwise_executions", "Turns that ended.", (*arm, "status"))
        self._turns = seconds("armwise_turn_seconds", "Seconds from admission to the last byte.", arm)
        self._first_token = seconds(
            "armwise_first_token_seconds", "Seconds from admission to the first text of an answer.", arm
        )
        self._overhead = seconds(
            "armwise_overhead_seconds",
            "Seconds of a turn outside of the arm and the language model.",
        )
        self._retrieval = seconds("armwise_retrieval_seconds", "Seconds in an arm.", arm)
        self._llm = seconds("armwise_llm_seconds", "Seconds in the language model.")
        self._tokens = counter("armwise_tokens", "Tokens read and written.", ("direction",))
        self._cost = counter("armwise_cost_usd", "US dollars that turns have cost, by drawn arm.", arm)
        self._key_cost = counter("armwise_key_cost_usd", "US dollars that turns have cost.", (KEY,))
        self._feedback = counter("armwise_feedback", "Feedback committed.", ("metric", "status"))
        self._failures = counter("armwise_failures", "Turns that failed.", ("code",))
        self._observed = counter(
            "armwise_observations",
            "Observations committed, by source; those that failed or were shed.",
            ("outcome",),
        )
        self._tapped = counter(
            "armwise_tapped", "Decisions of other systems that were committed.", (*arm, "status")
        )
        self._shed = counter("armwise_shed", "Requests refused for load before the draw.")
        self._refused = counter(
            "armwise_refusals", "Requests refused for their key, rate, budget, host or size.", ("code",)
        )
        self._recalled = counter(
            "armwise_retrieval_cache", "Searches that were looked up in the cache.", (*arm, "outcome")
        )
        self._unlogged = counter(
            "armwise_answers_without_log",
            "Turns that are not in the log, or whose end is not, because it was away.",
        )
        self._keys = set[str]()

    def count_decision(self, decision: Decision) -> None:
        """Count a decision."""
        self._decisions.labels(decision.drawn, decision.mode.value).inc()
        if decision.mode is Mode.EXPLORE:
            self._propensity.labels(decision.drawn).observe(decision.propensity)

    def time_turn(self, execution: Execution, seconds: float, *, logged: bool = True) -> None:
        """Record the duration of a turn, from admission to the last byte, and whether its end is logged."""
        if not logged:
            self.count_unlogged()
        self._turns.labels(execution.served or NONE_SERVED).observe(seconds)
        rest = seconds - execution.cost.retrieval_s - execution.cost.llm_s
        self._overhead.observe(max(0.0, rest))  # arms that search at once add up to more

    def time_first_text(self, served: str, seconds: float) -> None:
        """Record the time from admission to the first text of an answer."""
        self._first_token.labels(served).observe(seconds)

    def count_execution(self, execution: Execution, drawn: str) -> None:
        """Count the end of a turn by its status and the arm that was drawn."""
        cost = execution.cost
        self._executions.labels(drawn, execution.status.value).inc()
        self._retrieval.labels(execution.served or NONE_SERVED).observe(cost.retrieval_s)
        self._cost.labels(drawn).inc(cost.usd)
        if execution.answer is not None:
            self._llm.observe(cost.llm_s)
            self._tokens.labels("read").inc(cost.prompt_tokens)
            self._tokens.labels("written").inc(cost.completion_tokens)

    def add_key_cost(self, key: str | None, usd: float) -> None:
        """Add the cost of a turn to that of its key, by public id; a turn without a key is left out."""
        if key is None:
            return
        if len(self._keys) < MOST_KEYS:
            self._keys.add(key)
        self._key_cost.labels(key if key in self._keys else OTHERS).inc(usd)

    def count_feedback(self, fact: Feedback, receipt: Receipt) -> None:
        """Count an item of feedback by its metric, or else by its kind."""
        assert receipt.status is not None
        self._feedback.labels(fact.metric or fact.kind.value, receipt.status.value).inc()

    def count_failure(self, code: str) -> None:
        """Count a turn that failed."""
        self._failures.labels(code).inc()

    def count_observation(self, outcome: str) -> None:
        """Count an observation by its source, or as failed or shed."""
        self._observed.labels(outcome).inc()

    def count_tapped(self, arm: str, status: str) -> None:
        """Count a decision of another system by its arm and its status here."""
        self._tapped.labels(arm, status).inc()

    def count_recall(self, arm: str, *, hit: bool) -> None:
        """Count a lookup in the cache of retrievals."""
        self._recalled.labels(arm, "hit" if hit else "miss").inc()

    def count_unlogged(self) -> None:
        """Count a turn that is not in the log, or whose end is not."""
        self._unlogged.inc()

    def count_shed(self) -> None:
        """Count a request that was refused for load."""
        self._shed.inc()

    def count_refusal(self, code: str) -> None:
        """Count a request that was refused for its key, its rate, its budget, its host or its size."""
        self._refused.labels(code).inc()

    def counts(self, counter: str) -> dict[str, float]:
        """Return the values of a counter by label, summed over the replicas of this machine."""
        families = [family for family in self._merge_replicas().collect() if family.name == counter]
        samples = [
            sample for family in families for sample in family.samples if sample.name.endswith("_total")
        ]
        return {", ".join(sample.labels.values()): sample.value for sample in samples}

    def _merge_replicas(self) -> CollectorRegistry:
        if self._folder is None:
            return self._own
        merged = CollectorRegistry()
        multiprocess.MultiProcessCollector(merged, self._folder)  # type: ignore[no-untyped-call]
        return merged

    def exposition(
        self,
        state: ScrapedState,
        now: float,
        jump_s: float = 0.0,
        shows: Callable[[str], bool] = lambda _: False,
    ) -> bytes:
        """Return the text for a scrape, with the state of the log and of the learner.

        Args:
            state: State of the log and the learner.
            now: Seconds since the epoch.
            jump_s: Seconds that the wall clock is ahead of the monotonic one.
            shows: Returns whether the caller may see the series of a key, by its public id.
        """
        shown = CollectorRegistry()
        shown.register(_Shown(self._merge_replicas(), shows))
        text = generate_latest(shown)
        gauges = CollectorRegistry()
        gauges.register(_LogGauges(state, now, jump_s))
        return text + generate_latest(gauges)


class _Shown(Collector):
    """The metrics of a registry, limited to the series of keys that the caller may see."""

    def __init__(self, registry: CollectorRegistry, shows: Callable[[str], bool]) -> None:
        self._registry, self._shows = registry, shows

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics without a key, and those that have a series left."""
        for family in self._registry.collect():
            samples = [
                sample
                for sample in family.samples
                if KEY not in sample.labels or self._shows(sample.labels[KEY])
            ]
            if samples or not family.samples:
                shown = copy.copy(family)
                shown.samples = samples
                yield shown


class CountedRecall:
    """Looks up searches in the cache, and counts hits and misses.

    Args:
        recall: Looks up a search.
        telemetry: Counts the lookups.
        is_cached: Returns whether the retrievals of an arm are cached.
    """

    def __init__(self, recall: Recall, telemetry: Telemetry, is_cached: Callable[[str], bool]) -> None:
        self._recall, self._telemetry, self._is_cached = recall, telemetry, is_cached

    async def __call__(self, arm: str, query: Query, k: int) -> Retrieval | None:
        """Return the cached retrieval of the same search, if there is one."""
        if not self._is_cached(arm):
            return None
        retrieval = await self._recall(arm, query, k)
        self._telemetry.count_recall(arm, hit=retrieval is not None)
        return retrieval


GAUGES = {
    "armwise_log_seq": "Position of the newest fact.",
    "armwise_applied_seq": "The served version has learned all that the log up to this position teaches.",
    "armwise_lag_facts": "Facts after that position.",
    "armwise_lag_seconds": "Age of the first of these; 0 for none.",
    "armwise_dangling_feedback": "Items whose decision has not come within the time in which they count.",
    "armwise_examples_seq": "Examples that the served version has learned.",
    "armwise_policy_version": "The version that is served.",
    "armwise_drift_alarms": "Changes of the world that were noticed.",
    "armwise_guard_classes_back": "Classes of requests that went back to the guard's reference.",
}
"""Gauges of the log and the learner."""


class _LogGauges(Collector):
    """Gauges of the log and the learner, read at the scrape."""

    def __init__(self, state: ScrapedState, now: float, jump_s: float) -> None:
        self._state, self._now, self._jump_s = state, now, jump_s

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield each value."""
        state, values = self._state, self._values()
        for name, what in GAUGES.items():
            yield GaugeMetricFamily(name, what, values.get(name))
        what = "Mean reward of the decisions of the last hour that have one, by drawn arm."
        mean = GaugeMetricFamily("armwise_reward", what, labels=("arm",))
        what = "How many these are."
        number = GaugeMetricFamily("armwise_rewarded_decisions", what, labels=("arm",))
        for arm, (n, total) in state.rewards.items():
            mean.add_metric((arm,), total / n)
            number.add_metric((arm,), n)
        what = "Share of a canary in the decisions in which it takes part."
        share = GaugeMetricFamily("armwise_canary_share", what, labels=("version",))
        for canary, part in state.canaries.items():
            share.add_metric((str(canary),), part)
        what = "Failed attempts in a row of work in the background; 0 where it does not fail."
        failed = GaugeMetricFamily("armwise_background_failures", what, labels=("work",))
        for work in Work:
            failed.add_metric((work,), state.failed.get(work, 0))
        yield mean
        yield number
        yield share
        yield failed
        what = "How far the wall clock of the process that answers is ahead; 0 while it is followed."
        yield GaugeMetricFamily("armwise_clock_jump_seconds", what, self._jump_s)
        labels = {"version": VERSION, "python": platform.python_version()}
        build = GaugeMetricFamily("armwise_build_info", "Always 1.", labels=tuple(labels))
        build.add_metric(tuple(labels.values()), 1)
        yield build

    def _values(self) -> dict[str, float]:
        state = self._state
        version, lag = state.version, state.lag
        gauges: dict[str, float] = {
            "armwise_examples_seq": version.examples_seq if version else 0,
            "armwise_policy_version": version.version if version else 0,
            "armwise_drift_alarms": state.alarms,
            "armwise_guard_classes_back": state.classes_back,
        }
        if lag is not None:
            gauges |= {
                "armwise_log_seq": lag.log_seq,
                "armwise_applied_seq": lag.applied_seq,
                "armwise_lag_facts": lag.facts,
                "armwise_lag_seconds": lag.seconds(self._now),
                "armwise_dangling_feedback": state.dangling,
            }
        return gauges
