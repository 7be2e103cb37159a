"""An oracle: the join as a state machine, one fact after the other, as it was before it became one query.

Frozen: `test_join_agrees` compares the join with it on random histories.
"""

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from armwise.feedback.clock import GRACE_S
from armwise.feedback.errors import LogGapError
from armwise.feedback.events import Feedback, FeedbackKind, Mode, Status
from armwise.feedback.reward import RewardRule
from armwise.feedback.texts import pseudonym
from armwise.feedback.training_log.join import Joined
from armwise.feedback.training_log.raters import RaterShares

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
        past: Whether it was over before it was logged, like a label: all of its feedback comes with it.
        earlier: Feedback on it or on its episode that precedes it in the log and may count, in order.
        draw_id: The draw whose arm its conversation keeps: itself, or the earlier decision it continues.
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
    draw_id: str | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it is a draw whose arm later turns may keep."""
        return self.mode is Mode.EXPLORE and self.draw_id == self.id


@dataclass(frozen=True, slots=True)
class Executed:
    """The status of an execution at a position of the log."""

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
        more: Whether the next fact is feedback that was sent with this, on the same decision or episode: they
            are learned together.
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
    """Elapsed time at a position of the log."""

    seq: int
    at: float


JoinedFact = DecisionFact | Executed | FeedbackFact | TickFact


@dataclass(slots=True)
class PendingDecision:
    """A decision that may still be learned, or a turn that continues one.

    Attributes:
        closing: Time of the log after which it is closed; a draw closes with its last turn.
        is_kept: Whether it is a draw whose arm later turns may keep.
        turns: Turns that continue it, in the order of the log.
        continues: Whether it is itself a turn that continues a draw.
    """

    seq: int
    id: str
    at: float
    deadline: float
    closing: float
    episode_id: str | None
    active: bool
    past: bool
    status: Status | None = None
    values: dict[str, Feedback] = field(default_factory=dict)
    retracted: set[str] = field(default_factory=set)
    is_kept: bool = False
    turns: "list[PendingDecision]" = field(default_factory=list)
    continues: bool = False

    @property
    def counts(self) -> bool:
        """Whether its values and its cost count: the drawn arm answered, and the answer was shown."""
        return self.active and self.status is Status.OK

    def apply_feedback(self, feedback: Feedback) -> None:
        """Apply feedback on the decision or on its episode that came before the deadline.

        A value on an episode from before the decision belongs to earlier decisions; a retraction cancels
        its value in whichever order they come.
        """
        if feedback.received_at > self.deadline:
            return
        name = pseudonym(feedback.id)  # which an erasure may have left of one of the two
        match feedback.kind:
            case FeedbackKind.ACTIVATION:
                self.active = True
            case FeedbackKind.RETRACTION:
                self.retracted.add(name)
                self.values.pop(name, None)
            case FeedbackKind.VALUE if name not in self.retracted:
                if feedback.decision_id is not None or feedback.received_at >= self.at:
                    self.values[name] = feedback


class Fold:
    """The state of the fold at one position of the log.

    Args:
        rule: Declares when feedback is complete, and how values are aggregated.
    """

    def __init__(self, rule: RewardRule) -> None:
        self.seq = 0
        self._rule = rule
        self._raters = RaterShares(rule.rater_share)
        self._wait_s = rule.wait_s
        self._learned_statuses = rule.learned_statuses
        self._open: dict[str, PendingDecision] = {}
        self._episodes: dict[str, list[tuple[int, str]]] = {}
        self._closings: list[tuple[float, int, str]] = []

    def apply(self, fact: JoinedFact) -> list[Joined]:
        """Apply the next fact and return the decisions that become ready, in order.

        Raises:
            LogGapError: Facts between the last one and this one are missing.
        """
        if fact.seq != self.seq + 1:
            raise LogGapError(
                f"the log continues at {fact.seq} after {self.seq}: the rows between are missing"
            )
        joined = self._close(fact)
        self.seq = fact.seq
        match fact:
            case DecisionFact():
                self.open_decision(fact, None)
            case Executed():
                if pending := self._open.get(fact.decision_id):
                    pending.status = fact.status
                    joined += self._settle([pending])
            case FeedbackFact():
                affected = self._matching(fact.feedback)
                for pending in affected:
                    pending.apply_feedback(fact.feedback)
                if not fact.more:
                    joined += self._settle(affected)
        return joined

    def open_decision(self, fact: DecisionFact, status: Status | None) -> None:
        """Keep a decision until it is learned or its time is over; a turn joins the draw that it continues.

        Args:
            fact: The decision, with all feedback on it up to here.
            status: Status of the execution, if it has ended.
        """
        if fact.mode is Mode.CONTINUED:
            self._continue(fact, status)
            return
        if fact.mode is not Mode.EXPLORE or (status is not None and status not in self._learned_statuses):
            return
        pending = self._pending(fact, status)
        self._open[fact.id] = pending
        heapq.heappush(self._closings, (pending.closing, fact.seq, fact.id))
        self._index(pending)

    def _continue(self, fact: DecisionFact, status: Status | None) -> None:
        """Add a turn to the draw that it continues; ignore it once that draw is closed."""
        draw = self._open.get(fact.draw_id or "")
        if draw is None or not draw.is_kept or draw.closing < fact.logged_at:
            return
        turn = self._pending(fact, status)
        draw.turns.append(turn)
        draw.closing = max(draw.closing, turn.closing)
        self._open[fact.id] = turn
        self._index(turn)

    def _index(self, pending: PendingDecision) -> None:
        if pending.episode_id is not None:
            insort(self._episodes.setdefault(pending.episode_id, []), (pending.seq, pending.id))

    def closing(self, fact: DecisionFact) -> float:
        """Return the time of the log after which a decision is closed, unless a turn continues it."""
        return max(self._deadline(fact), fact.logged_at) + GRACE_S

    def _pending(self, fact: DecisionFact, status: Status | None) -> PendingDecision:
        pending = PendingDecision(
            seq=fact.seq,
            id=fact.id,
            at=fact.at,
            deadline=self._deadline(fact),
            closing=self.closing(fact),
            episode_id=fact.episode_id,
            active=not fact.deferred,
            past=fact.past,
            status=status,
            is_kept=fact.is_kept,
            continues=fact.mode is Mode.CONTINUED,
        )
        for feedback in fact.earlier:
            pending.apply_feedback(feedback)
        return pending

    def _deadline(self, fact: DecisionFact) -> float:
        """Return the time until which feedback counts; a past turn is complete when it is inserted."""
        return fact.at if fact.past else fact.at + self._wait_s

    def _matching(self, feedback: Feedback) -> list[PendingDecision]:
        """Return the open decisions that feedback applies to, in order."""
        if feedback.decision_id is not None:
            pending = self._open.get(feedback.decision_id)
            return [] if pending is None else [pending]
        return [self._open[name] for _, name in self._episodes.get(feedback.episode_id or "", ())]

    def _close(self, fact: JoinedFact) -> list[Joined]:
        """Close the decisions whose closing time is before a fact."""
        closed: list[Joined] = []
        while self._closings and self._closings[0][0] < fact.at:
            at, seq, name = heapq.heappop(self._closings)
            pending = self._open.get(name)
            if pending is None:
                continue
            if pending.closing > at:  # a turn has kept it open
                heapq.heappush(self._closings, (pending.closing, seq, name))
                continue
            self._forget(pending)
            if pending.is_kept and pending.status is Status.OK:
                closed += self._conversation(pending, fact.seq)
            elif pending.active and pending.status in self._learned_statuses:
                closed += self._closed(pending, [pending], fact.seq)
        return closed

    def _conversation(self, draw: PendingDecision, by: int) -> Iterator[Joined]:
        """Yield a draw with the means of the metrics of its turns, if any turn counts."""
        if turns := [turn for turn in (draw, *draw.turns) if turn.counts]:
            yield from self._closed(draw, turns, by)

    def _closed(self, draw: PendingDecision, turns: Sequence[PendingDecision], by: int) -> Iterator[Joined]:
        """Yield a draw whose wait time is over.

        If the raters of all its values have used up their share, it is yielded as not learned. A draw without
        feedback is yielded only if the rule has a default reward.
        """
        names = tuple(turn.id for turn in turns)
        shown = () if names == (draw.id,) else names
        counted = [self._counted(turn) for turn in turns]
        values = [self._rule.aggregate(feedback) for feedback in counted]
        metrics = values[0] if len(turns) == 1 else self._rule.mean_of_turns(values)
        if not metrics and draw.status is Status.OK:
            sent = [feedback for turn in turns for feedback in turn.values.values()]
            if (rater := self._rater(sent)) is not None:
                self._raters.add(rater, learned=False)
                yield Joined(draw.id, {}, by, shown, rater, learned=False)
                return
            if self._rule.default is None:
                return
        yield self._joined(draw, metrics, by, [item for feedback in counted for item in feedback], shown)

    def _joined(
        self,
        draw: PendingDecision,
        metrics: Mapping[str, float],
        by: int,
        counted: Sequence[Feedback],
        turns: tuple[str, ...] = (),
    ) -> Joined:
        rater = None if draw.past else self._rater(counted)
        if rater is not None:
            self._raters.add(rater, learned=True)
        return Joined(draw.id, metrics, by, turns, rater)

    def _rater(self, feedback: Sequence[Feedback]) -> str | None:
        """Return the rater of the last value that counts in a reward, if that is known."""
        metrics = self._rule.metrics
        raters = (item.rater for item in reversed(feedback) if item.metric in metrics)
        return next((rater for rater in raters if rater is not None), None)

    def _settle(self, changed: Iterable[PendingDecision]) -> Iterator[Joined]:
        """Yield the decisions that are ready, and drop those that can never be."""
        for pending in changed:
            if pending.status is None or pending.continues:
                continue
            if pending.status not in self._learned_statuses:
                self._forget(pending)
            elif pending.active:
                counted = self._counted(pending)
                metrics = self._rule.aggregate(counted)
                known = bool(metrics) or pending.status is not Status.OK
                complete = known if pending.past else self._rule.is_complete(metrics)
                if complete and not pending.is_kept:  # its last turn is still to come
                    self._forget(pending)
                    yield self._joined(pending, metrics, self.seq, counted)

    def _counted(self, pending: PendingDecision) -> list[Feedback]:
        """Return the values that count: those on an answer of the drawn arm, of raters within their share.

        All values of a label count.
        """
        if pending.status is not Status.OK:
            return []
        values = pending.values.values()
        if pending.past:
            return list(values)
        return [item for item in values if (rater := item.rater) is None or self._raters.has_room(rater)]

    def _forget(self, pending: PendingDecision) -> None:
        for decision in (pending, *pending.turns):
            del self._open[decision.id]
            self._unindex(decision)
        if len(self._closings) > 2 * len(self._open) + SPARE:
            self._closings = [closing for closing in self._closings if closing[2] in self._open]
            heapq.heapify(self._closings)

    def _unindex(self, pending: PendingDecision) -> None:
        if pending.episode_id is not None:
            others = self._episodes[pending.episode_id]
            others.remove((pending.seq, pending.id))
            if not others:
                del self._episodes[pending.episode_id]
