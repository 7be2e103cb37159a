"""The training log as a fold: facts in the order of the log become decisions that are ready to be learned.

What is learned, when, and with which values depends on the facts and the rule alone: not on the
moment at which somebody looked, nor on how often the reader was stopped. Time is the log's own, the
latest stamp of any fact so far; it closes a decision that waited for feedback long enough.
"""

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from feedback.errors import LogGapError
from feedback.events import Feedback, Kind, Mode, Status
from feedback.reward import RewardRule

GRACE_S = 2.0
"""How long after a deadline a decision is closed, in the log's time: for commits that were under way."""

SPARE = 1000
"""How many that are not open any more may stand among those to be closed, beside one for each that is."""


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
        past: Whether it was over before the log heard of it, as a label is: what is said of it
            at once is all that will be said.
        earlier: Feedback that is before it in the log, on it or on its episode, in order.
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
    """How a decision went, at a position of the log."""

    seq: int
    decision_id: str
    at: float
    status: Status


@dataclass(frozen=True, slots=True)
class FeedbackFact:
    """Feedback at a position of the log.

    Attributes:
        seq: The position.
        feedback: What was said.
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
    values: list[Feedback] = field(default_factory=list)
    retracted: frozenset[str] = frozenset()

    def hear(self, said: Feedback) -> None:
        """Take note of feedback on it, or on its episode, where that is in time.

        What was said of an episode before the decision was made is about others; but that a value
        is taken back holds of the value, whenever that comes.
        """
        if said.received_at > self.deadline:
            return
        match said.kind:
            case Kind.ACTIVATION:
                self.active = True
            case Kind.RETRACTION:
                self.retracted |= {said.id}
                self.values = [value for value in self.values if value.id != said.id]
            case Kind.VALUE if said.id not in self.retracted:
                if said.decision_id is not None or said.received_at >= self.at:
                    self.values.append(said)


class Fold:
    """Everything that the fold knows at one position of the log.

    Args:
        rule: Says when feedback is complete, and how several values become one.
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
        """When the first of the open decisions will be closed; None where none is open."""
        while self._closings and self._closings[0][2] not in self._open:
            heapq.heappop(self._closings)
        return self._closings[0][0] if self._closings else None

    def apply(self, fact: Fact) -> list[Joined]:
        """Go on by one fact, and return what it makes ready, in order.

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
                about = self._about(fact.feedback)
                for found in about:
                    found.hear(fact.feedback)
                if not fact.more:
                    joined += self._settle(about)
        return joined

    def reopen(self, fact: DecisionFact, status: Status | None) -> None:
        """Take up a decision that was open at this position.

        Args:
            fact: The decision, with all feedback on it up to here.
            status: How it went, if that is known.
        """
        if fact.mode is not Mode.EXPLORE or (status is not None and not self._teaches(status)):
            return
        self._open[fact.id] = self._opened(fact, status)
        heapq.heappush(self._closings, (self.closing(fact), fact.seq, fact.id))
        if fact.episode_id is not None:
            insort(self._episodes.setdefault(fact.episode_id, []), (fact.seq, fact.id))

    def metrics(self, fact: DecisionFact, status: Status) -> dict[str, float]:
        """Return what a decision is worth that went so, by the feedback that it comes with."""
        return self._metrics(self._opened(fact, status))

    def closing(self, fact: DecisionFact) -> float:
        """Return the time of the log after which a decision is closed."""
        return max(self._deadline(fact), fact.logged_at) + GRACE_S

    def _opened(self, fact: DecisionFact, status: Status | None) -> PendingDecision:
        deadline = self._deadline(fact)
        found = PendingDecision(
            fact.seq, fact.id, fact.at, deadline, fact.episode_id, not fact.deferred, fact.past, status
        )
        for said in fact.earlier:
            found.hear(said)
        return found

    def _deadline(self, fact: DecisionFact) -> float:
        """Return until when what is received counts; a past turn is over when it is entered."""
        return fact.at if fact.past else fact.at + self._wait_s

    def _about(self, said: Feedback) -> list[PendingDecision]:
        """Return the open decisions that feedback is about, in order."""
        if said.decision_id is not None:
            found = self._open.get(said.decision_id)
            return [] if found is None else [found]
        return [self._open[name] for _, name in self._episodes.get(said.episode_id or "", ())]

    def _close(self, fact: Fact) -> list[Joined]:
        """Close what waited until before the time of a fact."""
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
        """Return those of the decisions that are ready, and forget those that never will be."""
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
        """Whether how a decision went can be learned from."""
        if status in (Status.ARM_FAILED, Status.FELL_BACK):
            return self._rule.failed is not None
        return status is Status.OK

    def _metrics(self, found: PendingDecision) -> dict[str, float]:
        """Return the aggregated values of a decision; what another arm earned is none of them."""
        return self._rule.aggregate(found.values) if found.values and found.status is Status.OK else {}

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
