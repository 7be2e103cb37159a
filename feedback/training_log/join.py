"""Join the log: fold its facts into the training log, the decisions that are ready to be learned, in order.

    read_facts    the rows between two positions of the log, as facts
    Fold          facts in the order of the log become decisions that are ready to be learned
    Joiner        writes these, with the position read, while its epoch is the newest
    read_examples reads the training log

What is learned, when, and with which values is a function of the facts and the rule: when the log is read,
and how often the reader restarts, makes no difference. Time is the log's own, the latest timestamp of the
facts so far; it closes a decision whose wait time has passed.

A draw whose arm the conversation keeps is one example for all of its turns: metrics are means over the turns
that have them, costs are sums, and the reward is that of a single turn. It is ready when its last turn can no
longer get feedback: a turn that continues an open draw keeps that draw open for its wait time.

New examples and the position read are written in one transaction, so a crash neither loses nor repeats an
example. The facts are read before it, without a lock: only a learner with a newer epoch could change the
training log in between, and the write detects that.
"""

import heapq
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from operator import attrgetter, itemgetter
from typing import Any

import sqlalchemy as sa
from orjson import loads

from armwise.feedback.clock import GRACE_S
from armwise.feedback.errors import LogGapError, RebuiltError, SupersededError
from armwise.feedback.events import (
    ARM_FAILURES,
    LABELS,
    Example,
    Execution,
    Feedback,
    FeedbackKind,
    Mode,
    Status,
    Tick,
)
from armwise.feedback.log import LARGEST, Store, insert, unindexed
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.texts import pseudonym
from armwise.feedback.training_log.raters import RaterShares, read_newest

TOGETHER, STRAGGLERS = 50, 0.01
"""Decisions within one wait time that count as settled together, and the share of them that may be open.

The minimum guards against a bias: a few decisions may all be closed because their feedback was quick, and
quick feedback may be all good or all bad. Of many, the open ones move an estimate by at most their share.
"""

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


@dataclass(frozen=True, slots=True)
class Joined:
    """A decision that is ready to be learned.

    Attributes:
        decision_id: The decision.
        metrics: Aggregated value of each metric; empty without feedback, or if the arm failed.
        by: Position of the fact that made it ready, or whose time closed it.
        turns: The turns of the conversation that count; empty if only the decision itself does.
        rater: The rater of the last value that counts, see `Feedback.rater`; None: unknown.
        learned: Whether it enters the training log: it does unless the raters of all its values have used up
            their share.
    """

    decision_id: str
    metrics: Mapping[str, float]
    by: int
    turns: tuple[str, ...] = ()
    rater: str | None = None
    learned: bool = True


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
        seq: The position; 0 before the first fact.
        at: The log's time there, seconds since the epoch.
        idle_seq: The last position at which nearly all decisions within their wait time were closed: there
            were at least `TOGETHER`, and the share of open ones was at most `STRAGGLERS`.
        rated: Raters of the newest ready decisions, oldest first, each with whether it was learned.

    Attributes:
        in_time: Closing times of the decisions that are within their wait time, open or not.
    """

    def __init__(
        self,
        rule: RewardRule,
        seq: int = 0,
        at: float = 0.0,
        idle_seq: int = 0,
        rated: Iterable[tuple[str, bool]] = (),
    ) -> None:
        self.seq = seq
        self.at = at
        self.idle_seq = idle_seq
        self.in_time = deque[float]()
        self._rule = rule
        self._raters = RaterShares(rule.rater_share, rated)
        self._wait_s = rule.wait_s
        self._learned_statuses = rule.learned_statuses
        self._open: dict[str, PendingDecision] = {}
        self._episodes: dict[str, list[tuple[int, str]]] = {}
        self._closings: list[tuple[float, int, str]] = []

    def __len__(self) -> int:
        """Return the number of open decisions, including turns that continue one."""
        return len(self._open)

    @property
    def next_closing(self) -> float | None:
        """The earliest time at which an open decision will be closed, if any is open."""
        while self._closings:
            at, seq, name = self._closings[0]
            pending = self._open.get(name)
            if pending is not None and pending.closing <= at:
                return at
            heapq.heappop(self._closings)
            if pending is not None:  # a turn has kept it open
                heapq.heappush(self._closings, (pending.closing, seq, name))
        return None

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
        self.seq, self.at = fact.seq, max(self.at, fact.at)
        match fact:
            case DecisionFact():
                self.open_decision(fact, None)
                if fact.mode in (Mode.EXPLORE, Mode.CONTINUED) and not fact.past:
                    self.in_time.append(self.closing(fact))
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
        self._note_nearly_all_closed()
        return joined

    def _note_nearly_all_closed(self) -> None:
        """Record this position as idle if at most `STRAGGLERS` of the decisions in time are open."""
        while self.in_time and self.in_time[0] < self.at:
            self.in_time.popleft()
        if len(self.in_time) >= TOGETHER and len(self._open) <= STRAGGLERS * len(self.in_time):
            self.idle_seq = self.seq

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

    def open_conversation(self, facts: Sequence[tuple[DecisionFact, Status | None]]) -> None:
        """Keep a draw that is open here, with the turns that continue it, in the order of the log."""
        for fact, status in facts:
            self.open_decision(fact, status)
        pending = self._open.get(facts[0][0].draw_id or "")
        # the draw id may name a turn, which stays open as long as the draw that it continues
        if pending is not None and not pending.continues and pending.closing < self.at:
            self._forget(pending)

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

    def metrics(self, fact: DecisionFact, status: Status) -> dict[str, float]:
        """Return the aggregated metrics of a decision with this status, from its earlier feedback."""
        return self._rule.aggregate(self._counted(self._pending(fact, status)))

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


# -- facts of the log ------------------------------------------------------------------------------


Row = sa.Row[*tuple[Any, ...]]

_Numbered = list[tuple[int, Feedback]]
"""Feedback with its positions."""

LOOKED_UP = 10_000
"""Ids in one statement: databases limit the number of parameters."""

_DECIDED = (
    t.decisions.c.seq,
    t.decisions.c.id,
    t.decisions.c.decided_at,
    t.decisions.c.logged_at,
    t.decisions.c.mode,
    t.decisions.c.episode_id,
    t.decisions.c.deferred,
    t.decisions.c.policy,
    t.decisions.c.draw_id,
)

_FEEDBACK = (
    t.feedback.c.seq,
    t.feedback.c.more,
    t.feedback.c.id,
    t.feedback.c.decision_id,
    t.feedback.c.metric,
    t.feedback.c.value,
    t.feedback.c.received_at,
    t.feedback.c.episode_id,
    t.feedback.c.kind,
    t.feedback.c.rater,
)


def _between(seq: sa.Column[int], *columns: sa.Column[Any]) -> sa.Select[Any]:
    """Return the query of columns from position `after` + 1 to `upto`, in order."""
    here = seq > sa.bindparam("after"), seq <= sa.bindparam("upto")
    return sa.select(seq, *columns).where(*here).order_by(seq)


_FACTS = (
    _between(*_DECIDED),
    _between(*(t.executions.c[name] for name in ("seq", "decision_id", "finished_at", "status"))),
    _between(*_FEEDBACK),
    _between(t.observations.c.seq, t.observations.c.observed_at),
    _between(t.ticks.c.seq, t.ticks.c.at),
)


def _find_earlier(about: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return the query of feedback that precedes its decision, one from position `after` + 1 to `upto`."""
    seq = t.decisions.c.seq
    return (
        sa.select(*_FEEDBACK, t.decisions.c.id.label("about"))
        .join_from(t.decisions, t.feedback, about)
        .where(seq > sa.bindparam("after"), seq <= sa.bindparam("upto"), t.feedback.c.seq < seq)
    )


_EARLIER_ON_DECISIONS = _find_earlier(t.feedback.c.early & (t.feedback.c.decision_id == t.decisions.c.id))

_EARLIER_ON_EPISODES = _find_earlier(
    (t.feedback.c.episode_id == t.decisions.c.episode_id)
    & ((t.feedback.c.kind != FeedbackKind.VALUE) | (t.feedback.c.received_at >= t.decisions.c.decided_at))
)


def read_facts(connection: sa.Connection, after: int, upto: int) -> Iterator[JoinedFact]:
    """Read the rows from position `after` + 1 to `upto`, and yield their facts in order."""
    if upto <= after:  # as at most steps of a learner without traffic
        return iter(())
    here = {"after": after, "upto": upto}
    decided, executed, feedback, observed, ticked = (connection.execute(rows, here).all() for rows in _FACTS)
    earlier = _earlier(connection, decided, after, upto)
    # Facts are created lazily: thousands at once would take twice as long.
    return heapq.merge(
        (_decided(row, earlier.get(row[1], ())) for row in decided),
        (Executed(seq, name, at, Status(status)) for seq, name, at, status in executed),
        (FeedbackFact(row[0], _feedback(row), row[1]) for row in feedback),
        (TickFact(seq, at) for seq, at in observed),  # the join learns only the time from it
        (TickFact(seq, at) for seq, at in ticked),
        key=attrgetter("seq"),
    )


def read_unlearned(
    connection: sa.Connection, join: str, since: float, upto: int
) -> Iterator[tuple[DecisionFact, Status | None]]:
    """Read the draws up to a position that a training log lacks, in any order.

    Turns that continue a draw are included. A draw that is continued by a turn since `since` is read with all
    of its turns, however old.

    Args:
        connection: A snapshot.
        join: Digest of the training log.
        since: Earliest time of the log at which they were committed.
        upto: The position.

    Yields:
        Each decision with its feedback up to the position, and its status if it was executed by then; an
        execution that precedes its decision is ignored, as in the fold.
    """
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    learned = sa.exists().where(x.decision_id == d.id, x.join == join)
    query = (
        sa.select(*_DECIDED, e.status)
        .outerjoin(t.executions, (e.decision_id == d.id) & (e.seq > d.seq) & (e.seq <= upto))
        .where(unindexed(d.seq) <= upto, d.mode.in_((Mode.EXPLORE, Mode.CONTINUED)), ~learned)
    )
    rows = {row.seq: row for row in connection.execute(query.where(d.logged_at >= since))}
    continued = sorted({row.draw_id for row in rows.values() if row.mode == Mode.CONTINUED})
    for some in _chunks(continued):
        rows |= {row.seq: row for row in connection.execute(query.where(d.draw_id.in_(some)))}
    yield from _unlearned(connection, [*rows.values()], upto)


def _unlearned(
    connection: sa.Connection, rows: Sequence[Row], upto: int
) -> Iterator[tuple[DecisionFact, Status | None]]:
    feedback = _feedback_on(connection, rows, upto)
    for row in rows:
        status = None if row.status is None else Status(row.status)
        yield _decided(row, feedback.get(row.id, [])), status


def _decided(row: Row, earlier: Sequence[Feedback] = ()) -> DecisionFact:
    seq, name, at, logged_at, mode, episode_id, deferred, policy, draw_id, *_ = row
    past = policy == LABELS
    return DecisionFact(seq, name, at, logged_at, Mode(mode), episode_id, deferred, past, earlier, draw_id)


def _feedback(row: Row) -> Feedback:
    """Return feedback with the fields that the fold reads."""
    _, _, name, decision_id, metric, value, received_at, episode_id, kind, rater, *_ = row
    kind = FeedbackKind(kind)
    return Feedback(
        name, decision_id, metric, value, received_at, episode_id=episode_id, kind=kind, rater=rater
    )


def _feedback_on(connection: sa.Connection, decisions: Sequence[Row], upto: int) -> dict[str, list[Feedback]]:
    """Return the feedback up to a position that may count for each decision, in order."""
    f = t.feedback.c
    by_decision: defaultdict[str, _Numbered] = defaultdict(list)
    for some in _chunks([row.id for row in decisions]):
        query = sa.select(*_FEEDBACK).where(f.decision_id.in_(some), f.seq <= upto)
        for row in connection.execute(query):
            by_decision[row.decision_id].append((row.seq, _feedback(row)))
    episodes: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for row in decisions:
        if row.episode_id is not None:
            episodes[row.episode_id].append((row.id, row.decided_at))
    for some in _chunks(list(episodes)):
        query = sa.select(*_FEEDBACK).where(f.episode_id.in_(some), f.seq <= upto)
        for row in connection.execute(query):
            item = row.seq, _feedback(row)  # one for all: a long episode has many decisions
            always, received_at = row.kind != FeedbackKind.VALUE, row.received_at
            for decision_id, decided_at in episodes[row.episode_id]:
                if always or received_at >= decided_at:
                    by_decision[decision_id].append(item)
    return _in_order(by_decision)


def _in_order(by_decision: Mapping[str, _Numbered]) -> dict[str, list[Feedback]]:
    return {
        name: [item for _, item in sorted(items, key=itemgetter(0))] for name, items in by_decision.items()
    }


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[first : first + LOOKED_UP] for first in range(0, len(ids), LOOKED_UP))


def _earlier(
    connection: sa.Connection, decided: Sequence[Row], after: int, upto: int
) -> dict[str, list[Feedback]]:
    """Return the feedback that precedes its decision in the log and may count for it, by decision.

    The decisions are those between two positions. A value on an episode from before a decision belongs to
    earlier decisions, so a conversation of many turns with many values is read in linear time.
    """
    if not decided:
        return {}
    by_decision: defaultdict[str, _Numbered] = defaultdict(list)
    queries = [_EARLIER_ON_DECISIONS]
    if any(row.episode_id is not None for row in decided):
        queries.append(_EARLIER_ON_EPISODES)
    for query in queries:
        for row in connection.execute(query, {"after": after, "upto": upto}):
            by_decision[row.about].append((row.seq, _feedback(row)))
    return _in_order(by_decision)


# -- epoch fencing: the one learner that may write -------------------------------------------------


REBUILD = "armwise rebuild"
"""Holder of an epoch that a rebuild took."""


def take_epoch(store: Store, holder: str, now: float) -> int:
    """Supersede every other learner and return the new epoch, the only one that may write."""
    with store.writing() as connection:
        return insert(connection, t.epochs, {"holder": holder, "taken_at": now})


def confirm_epoch(connection: sa.Connection, epoch: int) -> None:
    """Check within a write transaction that `epoch` is the newest.

    Raises:
        SupersededError: Another learner has taken over.
        RebuiltError: The training log was rebuilt.
    """
    newest, holder = newest_epoch(connection)
    if newest == epoch:
        return
    if holder == REBUILD:
        raise RebuiltError(f"epoch {epoch} ended with a rebuild: restart from the rebuilt training log")
    raise SupersededError(f"epoch {epoch} was superseded by epoch {newest} of {holder}")


def newest_epoch(connection: sa.Connection) -> tuple[int, str]:
    """Return the epoch that may write and its holder; 0 and `nobody` before the first."""
    row = connection.execute(_NEWEST_EPOCH).first()
    return (row.epoch, row.holder) if row else (0, "nobody")


_NEWEST_EPOCH = sa.select(t.epochs.c.epoch, t.epochs.c.holder).order_by(t.epochs.c.epoch.desc()).limit(1)


# -- the join, and its training log ----------------------------------------------------------------


_GONE = "rows or their facts are missing; run `armwise rebuild`"


@dataclass(frozen=True, slots=True)
class Position:
    """How far a join has read.

    Attributes:
        log_seq: Facts up to this position are folded.
        log_at: The log's time there, seconds since the epoch.
        examples_seq: Length of the training log.
        idle_seq: `idle_seq` of the fold there; left out of comparisons.
    """

    log_seq: int
    log_at: float
    examples_seq: int
    idle_seq: int = field(default=0, compare=False, repr=False)


class Joiner:
    """The only writer of the training log of a rule.

    Args:
        store: The log.
        rule: Defines when feedback is complete and how values are aggregated.
        epoch: The right to write, from `take_epoch`.
        batch: Facts that are folded in one pass.

    Attributes:
        left: Facts that the last `advance` left unread.
    """

    def __init__(self, store: Store, rule: RewardRule, epoch: int, batch: int = 5000) -> None:
        self._store = store
        self._rule = rule
        self._join = rule.join
        self._epoch = epoch
        self._batch = batch
        self._fold: Fold | None = None  # None: to be restored from the log
        self._length = self._n_rated = 0
        self.left = 0

    def advance(self, now: float) -> Position:
        """Fold the next facts, write the examples they complete, and return the position reached.

        At the end of the log, a tick is written if the time closes a decision or ends the last wait time.

        Args:
            now: Seconds since the epoch.

        Raises:
            SupersededError: Another learner holds a newer epoch.
            LogGapError: Rows of the log, or of the training log, are missing.
            LogUnavailableError: Try again later; the log is unchanged.
        """
        fold, self._fold = self._fold, None  # discarded if anything below fails
        with self._store.reading() as connection:
            confirm_epoch(connection, self._epoch)
            if fold is None:
                fold, self._length, self._n_rated = resume(connection, self._rule)
            start, head = fold.seq, read_head(connection)
            if head < start:
                raise LogGapError(f"the log ends at {head}, but was read up to {start} before")
            end = min(head, start + self._batch)
            facts = read_facts(connection, start, end)
        ready = [each for fact in facts for each in fold.apply(fact)]
        joined = [each for each in ready if each.learned]
        rated = rated_rows(ready, self._n_rated)
        if fold.seq != end:
            raise LogGapError(f"the log ends at {end}, but rows after {fold.seq} are missing")
        position = Position(end, fold.at, self._length + len(joined), fold.idle_seq)
        if end != start:
            with self._store.reading() as connection:
                turns = read_conversation_costs(connection, joined)
            self._write(joined, rated, position, turns)
        self._fold, self._length, self.left = fold, position.examples_seq, head - end
        self._n_rated += len(rated)
        closing = fold.next_closing
        last = fold.in_time[-1] if fold.in_time else -inf
        waits = (closing is not None and closing < now) or fold.at <= last < now
        if end == head and waits:
            self._store.append([Tick(now)])
            return self.advance(now)
        return position

    def _write(
        self,
        joined: Sequence[Joined],
        rated: Sequence[Mapping[str, Any]],
        position: Position,
        turns: Mapping[str, Mapping[str, Any]],
    ) -> None:
        rows = [{"join": self._join, **row} for row in joined_rows(joined, self._length, turns)]
        with self._store.writing() as connection:
            confirm_epoch(connection, self._epoch)
            if rows:
                connection.execute(_ADD_EXAMPLES, rows)
            if rated:
                named = [{"join": self._join, **row} for row in rated]
                connection.execute(_ADD_RATERS, named)
            write_position(connection, self._join, position)


_ADD_EXAMPLES, _ADD_RATERS = sa.insert(t.examples), sa.insert(t.raters)


def joined_rows(
    joined: Sequence[Joined], after: int, turns: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows of the examples that became complete, numbered from `after` + 1."""
    return [
        {
            "seq": seq,
            "decision_id": ready.decision_id,
            "metrics": ready.metrics,
            "joined_by": ready.by,
            "turns": turns.get(ready.decision_id),
        }
        for seq, ready in enumerate(joined, start=after + 1)
    ]


def rated_rows(ready: Sequence[Joined], after: int) -> list[dict[str, Any]]:
    """Return the rows of the raters of ready decisions, numbered from `after` + 1."""
    rated = [each for each in ready if each.rater is not None]
    return [
        {
            "seq": seq,
            "decision_id": each.decision_id,
            "rater": each.rater,
            "learned": each.learned,
            "joined_by": each.by,
        }
        for seq, each in enumerate(rated, start=after + 1)
    ]


def read_conversation_costs(connection: sa.Connection, joined: Sequence[Joined]) -> dict[str, dict[str, Any]]:
    """Return the summed costs of the turns of conversations, by the id of their draw.

    Raises:
        LogGapError: The execution of a turn is missing.
    """
    of_draws = {ready.decision_id: ready.turns for ready in joined if ready.turns}
    names = [name for turns in of_draws.values() for name in turns]
    executions: dict[str, Execution] = {}
    for some in _chunks(names):
        executions |= log_rows.load_executions(connection, some)
    if lost := [name for name in names if name not in executions]:
        raise LogGapError(f"the execution of {lost[0]!r}, which continues a draw, is missing")
    return {
        draw: log_rows.sum_turns([executions[name] for name in turns]) for draw, turns in of_draws.items()
    }


def read_position(connection: sa.Connection, join: str) -> Position:
    """Return how far a join has read."""
    row = connection.execute(_PROGRESS, {"join": join}).first()
    return Position(row.log_seq, row.log_at, row.examples_seq, row.idle_seq) if row else Position(0, 0.0, 0)


def write_position(connection: sa.Connection, join: str, position: Position) -> None:
    """Write how far a join has read."""
    moved = asdict(position)
    if not connection.execute(_MOVE, {"of": join, **moved}).rowcount:
        connection.execute(_BEGIN, {"join": join, **moved})


def delete_training_log(connection: sa.Connection, join: str) -> None:
    """Delete the training log of a join, within a write transaction; a `Joiner` makes it again."""
    for table in (t.examples, t.raters, t.progress):
        connection.execute(sa.delete(table).where(table.c.join == join))


def read_head(connection: sa.Connection) -> int:
    """Return the last position of the log; 0: it is empty."""
    return int(connection.scalar(_HEAD) or 0)


_PROGRESS = sa.select(t.progress).where(t.progress.c.join == sa.bindparam("join"))

_MOVE = sa.update(t.progress).where(t.progress.c.join == sa.bindparam("of"))

_BEGIN = sa.insert(t.progress)

_HEAD = sa.select(t.log_head.c.seq)


def resume(connection: sa.Connection, rule: RewardRule) -> tuple[Fold, int, int]:
    """Return the fold at the position of a rule's join, the length of its training log, and of its raters.

    Raises:
        LogGapError: The training log is shorter or longer than the join recorded.
    """
    position = read_position(connection, rule.join)
    length = sa.select(sa.func.coalesce(sa.func.max(t.examples.c.seq), 0))
    recorded = connection.scalar(length.where(t.examples.c.join == rule.join))
    if recorded != position.examples_seq:
        raise LogGapError(
            f"the training log ends at {recorded}, not at {position.examples_seq}: run `armwise rebuild`"
        )
    rated, n_rated = read_newest(connection, rule.join)
    fold = Fold(rule, position.log_seq, position.log_at, position.idle_seq, rated)
    # No open decision was committed earlier: `logged_at` or the deadline closes it, and the deadline is at
    # most `logged_at` plus the wait time. Twice the grace, since sums are rounded.
    since = position.log_at - rule.wait_s - 2 * GRACE_S
    d = t.decisions.c
    newest = (
        sa.select(d.decided_at, d.logged_at)
        .where(
            d.logged_at >= since,
            unindexed(d.seq) <= position.log_seq,
            d.mode.in_((Mode.EXPLORE, Mode.CONTINUED)),
            d.policy != LABELS,
        )
        .order_by(d.logged_at, d.seq)
    )
    for decided_at, logged_at in connection.execute(newest):
        fold.in_time.append(max(decided_at + rule.wait_s, logged_at) + GRACE_S)
    conversations: defaultdict[str, list[tuple[DecisionFact, Status | None]]] = defaultdict(list)
    for decided, status in read_unlearned(connection, rule.join, since, position.log_seq):
        if decided.draw_id is not None:
            conversations[decided.draw_id].append((decided, status))
        elif fold.closing(decided) >= position.log_at:
            fold.open_decision(decided, status)
    for facts in conversations.values():
        fold.open_conversation(sorted(facts, key=lambda fact: fact[0].seq))
    return fold, position.examples_seq, n_rated


def read_examples(
    store: Store, join: str, after: int = 0, upto: int | None = None, chunk: int = 1000
) -> Iterator[Example]:
    """Yield a training log in order, from position `after` + 1 to `upto`, with one chunk in memory at a time.

    Raises:
        LogGapError: Rows of it, or of its facts, are missing.
    """
    part = {"join": join, "upto": LARGEST if upto is None else upto, "chunk": chunk}
    while True:
        with store.reading() as connection:
            rows = connection.execute(_EXAMPLES, {**part, "after": after}).all()
        yield from log_rows.readable(_consecutive(rows, after), _read_example)
        after += len(rows)
        if len(rows) < chunk:
            break
    if upto is not None and after < upto:
        raise LogGapError(f"the training log ends at {after}, not at {upto}: {_GONE}")


def _consecutive(rows: Iterable[Row], after: int) -> Iterator[Row]:
    for seq, row in enumerate(rows, after + 1):
        if row.seq != seq:
            raise LogGapError(f"the training log continues at {row.seq} after {seq - 1}: {_GONE}")
        yield row


def _read_example(row: Sequence[Any]) -> Example:
    seq, metrics, by, turns, status, index, cached, tokens, finish_reason, *values = row
    own_cost = log_rows.finite_cost(*values[: len(log_rows.COST)])
    cost, by_model, n_turns = log_rows.spent_by(loads(turns or "null"), own_cost, loads(tokens or "null"))
    return Example(
        seq,
        log_rows.read_decision(values[len(log_rows.COST) :]),
        cost,
        loads(metrics),
        failed=status in ARM_FAILURES,
        by=by,
        index_version=index or "",
        cached=cached,
        tokens_by_model=by_model,
        turns=n_turns,
        finish_reason=finish_reason,
    )


_x, _e = t.examples.c, t.executions.c

_EXAMPLES = (
    sa.select(
        *(_x.seq, sa.cast(_x.metrics, sa.Text), _x.joined_by, sa.cast(_x.turns, sa.Text), _e.status),
        *(_e.index_version, _e.cached, sa.cast(_e.tokens_by_model, sa.Text), _e.finish_reason),
        *(*log_rows.COST, *log_rows.DECISION),
    )
    .join(t.decisions, t.decisions.c.id == _x.decision_id)
    .join(t.executions, _e.decision_id == _x.decision_id)
    .where(_x.join == sa.bindparam("join"), _x.seq > sa.bindparam("after"), _x.seq <= sa.bindparam("upto"))
    .order_by(_x.seq)
    .limit(sa.bindparam("chunk", type_=sa.Integer))
)
