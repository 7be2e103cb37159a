"""Watch the reward of each arm for drift, with river's ADWIN.

All detectors restart every `BLOCK` examples. So the detected changes are a function of the training log,
wherever a reader stopped, and a reader that resumes reads at most one block again. Labels, which are not
traffic, are skipped.

An arm also earns more or less because the policy sends it other questions: an alarm says that something has
changed, and not what.
"""

from collections import deque
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from armwise.feedback.events import LABELS, Example
from armwise.feedback.reward import RewardRule
from armwise.number import Number

if TYPE_CHECKING:
    from river.drift import ADWIN

DELTA = 0.002
"""Bound on the probability of a false alarm in one check; river's default."""

CLOCK = 8
"""Rewards of an arm between two checks."""

GRACE = 32
"""Rewards of an arm before the first check."""

RECENT = 32
"""Rewards of an arm whose mean is reported as the value after a change."""

BLOCK = 100_000
"""Examples after which all detectors restart."""


def build_detector() -> "ADWIN":
    """Return a detector that has seen nothing; river takes a second and 80 MiB to load.

    ADWIN has a window that grows while its values agree, and is cut where the means of two parts differ.
    """
    from river.drift import ADWIN

    return ADWIN(delta=DELTA, clock=CLOCK, grace_period=GRACE)  # type: ignore[no-untyped-call]  # it has no types


RAISED_S = 3600.0
"""Seconds for which an alarm raises exploration."""


class DriftSpec(BaseModel):
    """How a drift alarm raises exploration, for one hour."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exploration: Number = Field(
        default=0.15,
        gt=0,
        lt=1,
        description="Share of the traffic that is spread evenly over all eligible arms after an alarm.",
    )


@dataclass(frozen=True, slots=True)
class Change:
    """A detected change.

    Attributes:
        subject: What has changed, such as `reward of bm25`.
        before: Mean of the rewards before the last `RECENT`.
        after: Mean of the last `RECENT` rewards.
        example_seq: Position of the training log at which it was detected.
    """

    subject: str
    before: float
    after: float
    example_seq: int


class Monitor:
    """A detector for each arm, over a training log that is read from the start of a block, in order.

    Args:
        rule: Computes rewards; their range scales the values of the detectors.
    """

    def __init__(self, rule: RewardRule) -> None:
        self._span, self._block = span(rule), -1
        self._arms: dict[str, tuple[ADWIN, deque[float]]] = {}

    def see(self, example: Example, reward: float) -> Change | None:
        """Add the next example and return the change that it shows, if any."""
        arm = example.decision.drawn
        if example.decision.policy == LABELS:
            return None
        if (block := find_start(example.seq) // BLOCK) != self._block:
            self._block, self._arms = block, {}
        if arm not in self._arms:
            self._arms[arm] = build_detector(), deque(maxlen=RECENT)
        detector, recent = self._arms[arm]
        recent.append(reward / self._span)
        n, total = detector.width + 1, detector.estimation * detector.width + recent[-1]
        detector.update(recent[-1])  # type: ignore[no-untyped-call]  # as above
        if not detector.drift_detected:
            return None
        before = (total - sum(recent)) / max(1, n - len(recent))
        return Change(f"reward of {arm}", before * self._span, fmean(recent) * self._span, example.seq)


def find_start(seq: int) -> int:
    """Return the position of the training log after which the block of a position begins.

    >>> find_start(0), find_start(1), find_start(100_000), find_start(100_001)
    (0, 0, 0, 100000)
    """
    return max(0, seq - 1) // BLOCK * BLOCK


def span(rule: RewardRule) -> float:
    """Return the largest difference between two rewards, costs aside.

    >>> from armwise.feedback.reward import Metric
    >>> span(RewardRule(metrics={"right": Metric(), "thumb": Metric(range=(-1, 1))}))
    1.0
    """
    low, high = rule.reward_range
    return min(high - low, 1.0) if rule.metrics else high - low
