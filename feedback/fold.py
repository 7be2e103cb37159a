"""The training log as a fold: facts in the order of the log become decisions that are ready to be learned.

What is learned, when, and with which values depends on the facts and the rule alone: not on when the
log is read, nor on how often the reader is restarted. Time is the log's own, the latest timestamp of
any fact so far; it closes a decision whose wait time has passed.
"""

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from feedback.errors import LogGapError
from feedback.events import Feedback, Kind, Mode, Status
from feedback.reward import RewardRule
from feedback.texts import pseudonym

GRACE_S = 2.0
"""How long after its deadline a decision is closed, in the log's time, so that pending commits count."""

SPARE = 1000
"""Closed decisions that the heap of deadlines may hold beyond the number of open ones."""


@dataclass(frozen=True, slots=True)
class DecisionFact:
    """A decision at a position of the log.

    Attributes:
        seq: The position.
        id: The decision.
        at: When it was made.
        logged_at: The log's time when it was committed.
        mode: How the arm came to be chosen.
        episode_id: The episode that it is a part of.
        deferred: Whether it counts only once it is activated.
        past: Whether it was over before it was logged, as a label is: it gets no feedback beyond what
            comes with it.
        earlier: Feedback that is before it in the log and may count, on it or on its episode, in order.
    """

    seq: int
    id: str
    at: float
    logged_at: float
    mode: Mode = Mode.EXPLORE
    episode_id: str | None = None
    deferred: bool = False
    past: bool = False
    earlier: Sequence[Feedback] = ()


@dataclass(frozen=True, slots=True)
class Executed:
    """The execution status of a decision, at a position of the log."""

    seq: int
    decision_id: str
    at: float
    status: Status


@dataclass(frozen=True, slots=True)
class FeedbackFact:
    """Feedback at a position of the log.

    Attributes:
        seq: The position.
        feedback: The feedback.
        more: Whether the next fact is feedback on the same, sent together with this: none of
            these is learned without the others.
    """

    seq: int
    feedback: Feedback
    more: bool = False

    @property
    def at(self) -> float:
        """When it was received."""
        return self.feedback.received_at


@dataclass(frozen=True, slots=True)
class TickFact:
    """Time that passed, at a position of the log."""

    seq: int
    at: float


Fact = DecisionFact | Executed | FeedbackFact | TickFact


@dataclass(frozen=True, slots=True)
class Joined:
    """A decision that is ready to be learned.

    Attributes:
        decision_id: The decision.
        metrics: Aggregated value of each metric; empty where there was none, or the arm failed.
        by: Position of the fact that made it ready, or whose time closed it.
    """

    decision_id: str
    metrics: Mapping[str, float]
    by: int


@dataclass(slots=True)
class PendingDecision:
    """A decision that may still be learned."""

    seq: int
    id: str
    at: float
    deadline: float
    episode_id: str | None
    active: bool
    past: bool
    status: Status | None = None
    values: dict[str, Feedback] = field(default_factory=dict)
    retracted: set[str] = field(default_factory=set)

    def apply_feedback(self, feedback: Feedback) -> None:
        """Apply feedback on the decision or on its episode, unless it came after the deadline.

        A value on an episode from before the decision belongs to earlier decisions; a retraction holds
        for its value whenever it comes.
        """
        if feedback.received_at > self.deadline:
            return
        name = pseudonym(feedback.id)  # which an erasure may have left of one of the two
        match feedback.kind:
            case Kind.ACTIVATION:
                self.active = True
            case Kind.RETRACTION:
                self.retracted.add(name)
                self.values.pop(name, None)
            case Kind.VALUE if name not in self.retracted:
                if feedback.decision_id is not None or feedback.received_at >= self.at:
                    self.values[name] = feedback


class Fold:
    """The state of the fold at one position of the log.

    Args:
        rule: Declares when feedback is complete, and how values are aggregated.
        seq: The position; 0 before the first fact.
        at: The log's time there, seconds since the epoch.
    """

    def __init__(self, rule: RewardRule, seq: int = 0, at: float = 0.0) -> None:
        self.seq = seq
        self.at = at
        self._rule = rule
        self._wait_s = rule.wait_s
        self._open: dict[str, PendingDecision] = {}
        self._episodes: dict[str, list[tuple[int, str]]] = {}
        self._closings: list[tuple[float, int, str]] = []

    def __len__(self) -> int:
        """Return how many decisions are open."""
        return len(self._open)

    @property
    def next_closing(self) -> float | None:
        """The earliest time at which an open decision will be closed; None where none is open."""
        while self._closings and self._closings[0][2] not in self._open:
            heapq.heappop(self._closings)
        return self._closings[0][0] if self._closings else None

    def apply(self, fact: Fact) -> list[Joined]:
        """Apply the next fact and return the decisions that become ready, in order.

        Raises:
            LogGapError: The fact is not the next one.
        """
        if fact.seq != self.seq + 1:
            raise LogGapError(f"the log goes on at {fact.seq} after {self.seq}: rows between are missing")
        joined = self._close(fact)
        self.seq, self.at = fact.seq, max(self.at, fact.at)
        match fact:
            case DecisionFact():
                self.reopen(fact, None)
            case Executed():
                if found := self._open.get(fact.decision_id):
                    found.status = fact.status
                    joined += self._settle([found])
            case FeedbackFact():
                affected = self._matching(fact.feedback)
                for found in affected:
                    found.apply_feedback(fact.feedback)
                if not fact.more:
                    joined += self._settle(affected)
        return joined

    def reopen(self, fact: DecisionFact, status: Status | None) -> None:
        """Restore a decision that was open at this position.

        Args:
            fact: The decision, with all feedback on it up to here.
            status: Status of the execution, if that is known.
        """
        if fact.mode is not Mode.EXPLORE or (status is not None and not self._teaches(status)):
            return
        self._open[fact.id] = self._opened(fact, status)
        heapq.heappush(self._closings, (self.closing(fact), fact.seq, fact.id))
        if fact.episode_id is not None:
            insort(self._episodes.setdefault(fact.episode_id, []), (fact.seq, fact.id))

    def metrics(self, fact: DecisionFact, status: Status) -> dict[str, float]:
        """Return the aggregated metrics of a decision with this status, from its earlier feedback."""
        return self._metrics(self._opened(fact, status))

    def closing(self, fact: DecisionFact) -> float:
        """Return the time of the log after which a decision is closed."""
        return max(self._deadline(fact), fact.logged_at) + GRACE_S

    def _opened(self, fact: DecisionFact, status: Status | None) -> PendingDecision:
        deadline = self._deadline(fact)
        found = PendingDecision(
            fact.seq, fact.id, fact.at, deadline, fact.episode_id, not fact.deferred, fact.past, status
        )
        for feedback in fact.earlier:
            found.apply_feedback(feedback)
        return found

    def _deadline(self, fact: DecisionFact) -> float:
        """Return the time until which feedback counts; a past turn is complete when it is inserted."""
        return fact.at if fact.past else fact.at + self._wait_s

    def _matching(self, feedback: Feedback) -> list[PendingDecision]:
        """Return the open decisions that feedback applies to, in order."""
        if feedback.decision_id is not None:
            found = self._open.get(feedback.decision_id)
            return [] if found is None else [found]
        return [self._open[name] for _, name in self._episodes.get(feedback.episode_id or "", ())]

    def _close(self, fact: Fact) -> list[Joined]:
        """Close the decisions whose closing time is before a fact."""
        closed: list[Joined] = []
        while self._closings and self._closings[0][0] < fact.at:
            _, _, name = heapq.heappop(self._closings)
            found = self._open.get(name)
            if found is None:
                continue
            self._forget(found)
            if found.active and self._teaches(found.status):
                metrics = self._metrics(found)
                if metrics or found.status is not Status.OK or self._rule.default is not None:
                    closed.append(Joined(name, metrics, fact.seq))
        return closed

    def _settle(self, changed: Iterable[PendingDecision]) -> Iterator[Joined]:
        """Yield the decisions that are ready, and drop those that never will be."""
        for found in changed:
            if found.status is None:
                continue
            if not self._teaches(found.status):
                self._forget(found)
            elif found.active:
                metrics = self._metrics(found)
                complete = bool(metrics) if found.past else self._rule.is_complete(metrics)
                if complete or found.status is not Status.OK:
                    self._forget(found)
                    yield Joined(found.id, metrics, self.seq)

    def _teaches(self, status: Status | None) -> bool:
        """Whether a decision with this status can be learned from."""
        if status in (Status.ARM_FAILED, Status.FELL_BACK):
            return self._rule.failed is not None
        return status is Status.OK

    def _metrics(self, found: PendingDecision) -> dict[str, float]:
        """Return the aggregated values of a decision; empty where another arm answered."""
        counts = found.values and found.status is Status.OK
        return self._rule.aggregate(found.values.values()) if counts else {}

    def _forget(self, found: PendingDecision) -> None:
        del self._open[found.id]
        if len(self._closings) > 2 * len(self._open) + SPARE:
            self._closings = [one for one in self._closings if one[2] in self._open]
            heapq.heapify(self._closings)
        if found.episode_id is not None:
            others = self._episodes[found.episode_id]
            others.remove((found.seq, found.id))
            if not others:
                del self._episodes[found.episode_id]
