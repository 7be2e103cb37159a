"""Join the log: find the decisions that are ready to be learned, with their values, in order.

    read_window   the decisions that facts between two positions may make ready, with all feedback on them
    find_ready    the first position at which each of them is complete, or at which its time is over

A decision whose feedback is complete is learned once the correction time after that has passed, with the
values that it has then. If they were taken back, it waits for the next ones.

What is learned, when, and with which values is a function of the facts and the rule. Nothing is kept between
two calls but the examples, the raters of ready decisions and the position that was read: when the log is
read, and how often the reader restarts, makes no difference. Time is the log's own, the latest timestamp of
the facts so far; it closes a decision whose wait time has passed.

A draw whose arm the conversation keeps is one example for all of its turns: metrics are means over the turns
that have them, costs are sums, and the reward is that of a single turn. It is ready when its last turn can no
longer get feedback: a turn that continues an open draw keeps that draw open for its wait time.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import accumulate, islice
from math import inf
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from armwise.feedback.clock import GRACE_S
from armwise.feedback.errors import LogGapError
from armwise.feedback.events import LABELS, Cost, Feedback, FeedbackKind, Mode, Status
from armwise.feedback.log import Store, avoid_index, counting, listing
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Complete, RewardRule
from armwise.feedback.texts import pseudonym
from armwise.feedback.training_log.position import read_head
from armwise.feedback.training_log.raters import RaterShares

Row = sa.Row[*tuple[Any, ...]]


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


# -- a decision, as the log has it -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoggedFeedback:
    """Feedback at a position of the log.

    Attributes:
        seq: The position.
        feedback: The feedback.
        more: Whether the next fact is feedback that was sent with this, on the same decision or episode: they
            are learned together.
        logged_at: The log's time at the position.
    """

    seq: int
    feedback: Feedback
    more: bool = False
    logged_at: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """A decision with what the log has about it, up to some position.

    Attributes:
        seq: Position in the log.
        id: The decision.
        decided_at: When it was made.
        logged_at: The log's time when it was committed.
        deadline: Until when its feedback counts.
        mode: How the arm came to be chosen.
        draw_id: The draw whose arm its conversation keeps: itself, or the earlier decision it continues.
        is_deferred: Whether it counts only once it is activated.
        is_past: Whether it was over before it was logged, like a label: all of its feedback comes with it.
        executed: Position of its execution; infinite: it has none.
        status: Status of the execution.
        feedback: All feedback on it or on its episode, in order, in time or not.
    """

    seq: int
    id: str
    decided_at: float
    logged_at: float
    deadline: float
    mode: Mode = Mode.EXPLORE
    draw_id: str | None = None
    is_deferred: bool = False
    is_past: bool = False
    executed: float = inf
    status: Status | None = None
    feedback: Sequence[LoggedFeedback] = ()

    @property
    def closing(self) -> float:
        """Time of the log after which it is closed, unless a turn continues it."""
        return counting.find_closing(self.deadline, self.logged_at)

    @property
    def is_kept(self) -> bool:
        """Whether it is a draw whose arm later turns may keep."""
        return self.mode is Mode.EXPLORE and self.draw_id == self.id

    def counts_at(self, seq: int) -> bool:
        """Return whether the answer was shown by a position; it was, unless the decision is deferred."""
        return not self.is_deferred or any(
            each.feedback.kind is FeedbackKind.ACTIVATION
            and each.feedback.received_at <= self.deadline
            and each.seq <= seq
            for each in self.feedback
        )

    def list_values(self, seq: int) -> list[Feedback]:
        """Return the values that count at a position, in order: in time, on the drawn arm, not taken back."""
        if self.status is not Status.OK or self.executed > seq:
            return []
        counting_items = [
            each.feedback
            for each in self.feedback
            if each.seq <= seq and counting.counts(each.feedback, self.decided_at, self.deadline)
        ]
        # by pseudonym, which an erasure may have left of one of the two
        taken_back = {pseudonym(item.id) for item in counting_items if item.kind is FeedbackKind.RETRACTION}
        return [
            item
            for item in counting_items
            if item.kind is FeedbackKind.VALUE and not (taken_back and pseudonym(item.id) in taken_back)
        ]


def find_deadline(decided_at: float, wait_s: float, policy: str) -> float:
    """Return until when feedback counts, for a wait time; a label is complete when it is inserted."""
    return decided_at if policy == LABELS else decided_at + wait_s


def find_last_counted(turn: TurnFacts, rule: RewardRule, joined_by: int) -> int:
    """Return the position up to which feedback was learned, for a decision that a fact made ready."""
    return joined_by - 1 if rule.correction_s and not turn.is_past else joined_by


def find_rating_end(turn: TurnFacts, rule: RewardRule, now: float) -> float:
    """Return until when feedback counts for a decision that is not learned, in seconds since the epoch.

    Once its feedback is complete, that is the end of the correction time; before, that of the wait time.
    """
    last = max((each.seq for each in turn.feedback), default=0)
    until = -inf
    if rule.correction_s and not turn.is_kept and rule.is_complete(rule.aggregate(turn.list_values(last))):
        for at, _ in _FollowedValues(turn, rule).completions:
            until = until if at <= until else at + rule.correction_s
    return min(until, turn.closing) if until >= now else turn.closing


@dataclass(frozen=True, slots=True)
class DrawFacts:
    """A draw with the turns that continue it.

    Attributes:
        turns: The draw itself, then the turns, in the order of the log.
    """

    turns: tuple[TurnFacts, ...]

    @property
    def closing(self) -> float:
        """Time of the log after which it is closed: with its last turn."""
        return max(turn.closing for turn in self.turns)

    @classmethod
    def from_turns(cls, draw: TurnFacts, following: Iterable[TurnFacts]) -> "DrawFacts":
        """Return a draw with those of the following turns that came before it was closed.

        Args:
            draw: The draw.
            following: Turns that name it as their draw, in the order of the log.
        """
        turns, closing = [draw], draw.closing
        for turn in following if draw.is_kept else ():
            if turn.seq > draw.seq and closing >= turn.logged_at:
                turns.append(turn)
                closing = max(closing, turn.closing)
        return cls(tuple(turns))


def find_ready(
    draws: Iterable[DrawFacts], rule: RewardRule, shares: RaterShares, times: "Times"
) -> Iterator[Joined]:
    """Yield the draws that become ready between two positions of the log, in order.

    A draw is ready at the first position at which the correction time of complete feedback is over, or at
    which it is closed. Those whose time one fact ends come first, by their end, then those that it completes,
    by their position.

    Args:
        draws: Draws that are open at the first position, and that a policy learns from by their status. They
            have the turns and the feedback up to the last position.
        rule: Declares when feedback is complete, and how values are aggregated.
        shares: Raters of the decisions that were ready before; extended by the raters of these.
        times: Times of the facts between the positions.
    """
    followed = _FollowedDraws(rule)
    events, later = _list_events(draws, rule, times, followed)
    heapify(events)
    done = set[str]()
    while events:
        seq, ends, _, closes, draw = heappop(events)
        first = draw.turns[0]
        if first.id in done:
            continue
        values = followed.find(first)
        if closes:
            ready = _close(draw, rule, shares, seq, values)
        else:  # only the next event of each draw waits: most are ready at their first one
            ready = _complete(draw, rule, shares, seq, seq if ends == inf else seq - 1, values)
            for event in islice(later[first.id], 1):
                heappush(events, event)
        if ready is not None:
            if ready.rater is not None:
                shares.add(ready.rater, learned=ready.learned)
            done.add(ready.decision_id)
            yield ready


_Event = tuple[int, float, int, bool, DrawFacts]
"""When a draw may become ready: the position, the time that ends there or infinity, its own position, whether
it is closed there, and the draw."""


def _list_events(
    draws: Iterable[DrawFacts], rule: RewardRule, times: "Times", followed: "_FollowedDraws"
) -> tuple[list[_Event], dict[str, Iterator[_Event]]]:
    """Return when draws are closed, when each may be complete first, and its further such events, by id."""
    events, later = list[_Event](), dict[str, Iterator[_Event]]()
    for draw in draws:
        first, ends = draw.turns[0], times.find_end(draw.closing)
        if first.executed >= ends:
            continue
        if ends < inf:
            events.append((int(ends), draw.closing, first.seq, True, draw))
        # the last turn of a conversation is still to come
        if first.is_kept or (rule.learned_at is Complete.DEADLINE and not first.is_past):
            continue
        if rule.correction_s and not first.is_past:
            values = followed.find(first)
            assert values is not None, "a failure is learned at the deadline"
            later[first.id] = _list_corrected(draw, values.completions, rule.correction_s, times)
        elif followed.may_complete(first):
            later[first.id] = _list_changes(draw, times.after, min(times.last, ends - 1))
        else:
            continue
        events += islice(later[first.id], 1)
    return events, later


@dataclass(frozen=True, slots=True)
class ReadValues:
    """The values that count at a position.

    Attributes:
        metrics: Aggregated value of each metric, of raters within their share.
        rater: The rater of the last value of these; None: unknown.
        sender: The rater of the last value of all, within its share or not; None: unknown.
    """

    metrics: Mapping[str, float]
    rater: str | None
    sender: str | None


class _FollowedValues:
    """The values of decisions that count, followed along the log: each item is looked at once.

    Args:
        turn: A decision with an answer. It stands for all with the same feedback, if all of that is in time.
        rule: Declares the metrics.
    """

    def __init__(self, turn: TurnFacts, rule: RewardRule) -> None:
        self._turn, self._rule = turn, rule
        self._seen = 0
        self.is_shown = not turn.is_deferred
        self._values: dict[str, Feedback] = {}
        self._metrics = Counter[str]()
        self._taken_back = set[str]()
        self._raters = Counter[str]()
        self._read: tuple[object, ReadValues] | None = None

    @cached_property
    def completions(self) -> list[tuple[float, int]]:
        """The log's times and the positions at which feedback is complete if every rater counts."""
        walk, found = _FollowedValues(self._turn, self._rule), []
        for each in self._turn.feedback:
            walk._follow(each.feedback)
            if not each.more and walk.is_shown and self._rule.is_complete(+walk._metrics):
                found.append((each.logged_at, each.seq))
        return found

    def read(self, seq: int, shares: RaterShares) -> ReadValues:
        """Return the values at a position, at or after the last one."""
        items = self._turn.feedback
        while self._seen < len(items) and items[self._seen].seq <= seq:
            self._follow(items[self._seen].feedback)
            self._seen += 1
        full = frozenset(rater for rater in +self._raters if not shares.has_room(rater))
        if self._read is None or self._read[0] != (self._seen, full):
            values = [*self._values.values()]
            within = [item for item in values if item.rater not in full]
            rule = self._rule
            found = ReadValues(rule.aggregate(within), _find_rater(within, rule), _find_rater(values, rule))
            self._read = (self._seen, full), found
        return self._read[1]

    def _follow(self, item: Feedback) -> None:
        if not counting.counts(item, self._turn.decided_at, self._turn.deadline):
            return
        name = pseudonym(item.id)
        match item.kind:
            case FeedbackKind.ACTIVATION:
                self.is_shown = True
            case FeedbackKind.RETRACTION:
                self._taken_back.add(name)
                value = self._values.pop(name, None)
                if value is not None:
                    self._metrics[value.metric] -= 1
                    if value.rater is not None:
                        self._raters[value.rater] -= 1
            case FeedbackKind.VALUE if item.metric in self._rule.metrics and name not in self._taken_back:
                self._values[name] = item
                self._metrics[item.metric] += 1
                if item.rater is not None:
                    self._raters[item.rater] += 1


class _FollowedDraws:
    """The followed values of draws; those that the same feedback is about share them."""

    def __init__(self, rule: RewardRule) -> None:
        self._rule = rule
        self._found: dict[object, _FollowedValues] = {}
        self._about: dict[int, tuple[float, float, frozenset[str]]] = {}
        self._kept: list[object] = []  # what the ids are of

    def may_complete(self, turn: TurnFacts) -> bool:
        """Return whether a draw has values of the metrics that complete it, in time or not."""
        if turn.is_past:
            return True
        needed = self._rule.metrics.keys()
        rated = self._describe(turn)[2] & needed
        return bool(rated) if self._rule.learned_at is Complete.ANY else rated == needed

    def find(self, turn: TurnFacts) -> _FollowedValues | None:
        """Return the values of a draw; None: it has none that count, or counts by itself as a label."""
        if turn.is_past or turn.status is not Status.OK:
            return None
        first_at, last_at, _ = self._describe(turn)
        is_shared = turn.decided_at <= first_at and last_at <= turn.deadline
        key = (id(turn.feedback), turn.is_deferred) if is_shared else turn.id
        if key not in self._found:
            self._found[key] = _FollowedValues(turn, self._rule)
        return self._found[key]

    def _describe(self, turn: TurnFacts) -> tuple[float, float, frozenset[str]]:
        """Return when the first and the last feedback was received, and its metrics."""
        about = self._about.get(id(turn.feedback))
        if about is None:
            items = [each.feedback for each in turn.feedback]
            received, metrics = [item.received_at for item in items], {item.metric for item in items}
            about = min(received, default=inf), max(received, default=-inf), frozenset(metrics)
            self._about[id(turn.feedback)] = about
            self._kept.append(turn.feedback)
        return about


def _list_changes(draw: DrawFacts, after: int, upto: float) -> Iterator[_Event]:
    """Yield when a draw may become complete: at its execution, and at feedback after that."""
    first = draw.turns[0]
    if after < first.executed <= upto:
        yield int(first.executed), inf, first.seq, False, draw
    for each in first.feedback:
        if max(after, first.executed) < each.seq <= upto and not each.more:
            yield each.seq, inf, first.seq, False, draw


def _list_corrected(
    draw: DrawFacts, completions: Sequence[tuple[float, int]], correction_s: float, times: "Times"
) -> Iterator[_Event]:
    """Yield when the correction time of complete feedback is over, or when the execution comes after that.

    A correction time begins with the first complete feedback, and with the first after an earlier one.
    """
    first, n = draw.turns[0], 0
    while n < len(completions):
        over = completions[n][0] + correction_s
        n = bisect_right(completions, (over, inf))
        ends = times.find_end(over) if over >= times.start_at else 0
        if max(ends, first.executed) > times.last:
            return
        if first.executed > max(ends, times.after):
            yield int(first.executed), inf, first.seq, False, draw
        elif ends > times.after:
            yield int(ends), over, first.seq, False, draw


def _complete(
    draw: DrawFacts,
    rule: RewardRule,
    shares: RaterShares,
    seq: int,
    upto: int,
    values: _FollowedValues | None,
) -> Joined | None:
    """Return a draw whose feedback up to a position is complete at `seq`; None: it is not."""
    first = draw.turns[0]
    if values is None:
        metrics = rule.aggregate(first.list_values(upto))
        is_complete = first.is_past and (bool(metrics) or first.status is not Status.OK)
        return Joined(first.id, metrics, seq) if is_complete and first.counts_at(upto) else None
    read = values.read(upto, shares)
    if not (values.is_shown and rule.is_complete(read.metrics)):
        return None
    return Joined(first.id, read.metrics, seq, rater=read.rater)


def _close(
    draw: DrawFacts, rule: RewardRule, shares: RaterShares, seq: int, of_first: _FollowedValues | None
) -> Joined | None:
    """Return a draw that the fact at a position closes; None: it has nothing to learn.

    If the raters of all its values have used up their share, it is returned as not learned. A draw without
    feedback is returned only if the rule has a default reward.
    """
    first, before = draw.turns[0], seq - 1
    if of_first is not None and len(draw.turns) == 1:
        read = of_first.read(before, shares)
        if first.executed > before or not of_first.is_shown:
            return None
        return _settle(first, rule, seq, (), read)
    turns = [turn for turn in draw.turns if turn.executed <= before and turn.counts_at(before)]
    if first.is_kept and first.status is Status.OK:
        turns = [turn for turn in turns if turn.status is Status.OK]
    else:
        turns = [turn for turn in turns if turn is first]
    if not turns:
        return None
    values = [_list_limited(turn, shares, before) for turn in turns]
    aggregated = [rule.aggregate(each) for each in values]
    metrics = aggregated[0] if len(turns) == 1 else rule.mean_of_turns(aggregated)
    names = tuple(turn.id for turn in turns)
    names = () if names == (first.id,) else names
    sent = [item for turn in turns for item in turn.list_values(before)]
    rater = None if first.is_past else _find_rater([item for each in values for item in each], rule)
    return _settle(first, rule, seq, names, ReadValues(metrics, rater, _find_rater(sent, rule)))


def _settle(
    first: TurnFacts, rule: RewardRule, seq: int, names: tuple[str, ...], read: ReadValues
) -> Joined | None:
    if not read.metrics and first.status is Status.OK:
        if read.sender is not None:
            return Joined(first.id, {}, seq, names, read.sender, learned=False)
        if rule.default is None:
            return None
    return Joined(first.id, read.metrics, seq, names, read.rater)


def _list_limited(turn: TurnFacts, shares: RaterShares, seq: int) -> list[Feedback]:
    """Return the values that count at a position, of raters within their share; all values of a label."""
    return [
        item
        for item in turn.list_values(seq)
        if turn.is_past or item.rater is None or shares.has_room(item.rater)
    ]


def _find_rater(values: Sequence[Feedback], rule: RewardRule) -> str | None:
    """Return the rater of the last value that counts in a reward, if that is known."""
    raters = (item.rater for item in reversed(values) if item.metric in rule.metrics)
    return next((rater for rater in raters if rater is not None), None)


# -- facts of the log ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Times:
    """The log's time at each position between two.

    Attributes:
        after: The first position, which is left out.
        start_at: The log's time there.
        log_at: The log's time at the positions after it: the latest timestamp up to there.
    """

    after: int
    start_at: float
    log_at: Sequence[float]

    @property
    def last(self) -> int:
        """The last position."""
        return self.after + len(self.log_at)

    def find_end(self, closing: float) -> float:
        """Return the position of the first fact that closes what is closed after a time; infinite: none."""
        n = bisect_right(self.log_at, closing)
        return self.after + 1 + n if n < len(self.log_at) else inf


ROUNDING_S = 1e-3
"""Seconds by which a range of times in a query exceeds the exact one, as sums are rounded."""

_d, _e, _f, _x = t.decisions.c, t.executions.c, t.feedback.c, t.examples.c

_AFTER, _UPTO = (sa.bindparam(name, type_=sa.BigInteger) for name in ("after", "upto"))


def _in_window(seq: sa.Column[int]) -> sa.ColumnElement[bool]:
    """Return the condition that a row is between two positions of the log."""
    return (seq > _AFTER) & (seq <= _UPTO)


_TIMES = sa.union_all(
    *(
        sa.select(at.table.c.seq.label("seq"), at.label("at")).where(_in_window(at.table.c.seq))
        for at in (
            *(_d.decided_at, _e.finished_at, _f.received_at),
            *(t.observations.c.observed_at, t.ticks.c.at),
        )
    )
).order_by("seq")

_IS_DRAWN = _d.mode.in_((Mode.EXPLORE, Mode.CONTINUED))

_MAY_CLOSE = (
    # by the deadline
    _IS_DRAWN & (_d.decided_at >= sa.bindparam("made_since")) & (_d.decided_at <= sa.bindparam("made_until")),
    # by a late commit, as that of a label
    _IS_DRAWN
    & (_d.logged_at >= sa.bindparam("late_since"))
    & (_d.logged_at <= sa.bindparam("late_until"))
    & ((_d.policy == LABELS) | (_d.logged_at > _d.decided_at + sa.bindparam("nearly_wait_s"))),
)
"""Conditions that a decision may be closed between two times of the log."""

_MAY_BE_CORRECTED = (
    ~_f.more & (_f.logged_at >= sa.bindparam("rated_since")) & (_f.logged_at <= sa.bindparam("rated_until"))
)
"""Condition that the correction time of feedback may be over between two times of the log."""

_TOUCHED = sa.union(
    sa.select(_e.decision_id.label("id")).where(_in_window(_e.seq)),
    *(
        query
        for found in (_in_window(_f.seq), _MAY_BE_CORRECTED)
        for query in (
            sa.select(_f.decision_id).where(found, _f.decision_id.is_not(None)),
            sa.select(_d.id).where(
                _d.seq > sa.bindparam("closed"),
                _d.episode_id.in_(sa.select(_f.episode_id).where(found, _f.episode_id.is_not(None))),
            ),
        )
    ),
    *(sa.select(_d.id).where(condition) for condition in _MAY_CLOSE),
)
"""Decisions that facts between two positions are about, or whose time may be over there."""

_TURNS = (
    sa.select(
        *(_d.seq, _d.id, _d.decided_at, _d.logged_at, _d.mode, _d.draw_id, _d.deferred, _d.policy),
        *(_d.episode_id, _e.seq.label("executed"), _e.status, _x.seq.label("example")),
    )
    # an execution that precedes its decision is ignored
    .outerjoin(t.executions, (_e.decision_id == _d.id) & (_e.seq > _d.seq) & (_e.seq <= _UPTO))
    .outerjoin(
        t.examples, (_x.decision_id == _d.id) & (_x.join == sa.bindparam("join")) & (_x.joined_by <= _AFTER)
    )
    .where(_IS_DRAWN, avoid_index(_d.seq) <= _UPTO)
)

_TURNS_BY_ID, _TURNS_BY_DRAW = (_TURNS.where(column.in_(log_rows.IDS)) for column in (_d.id, _d.draw_id))

_FEEDBACK = sa.select(
    *(_f.seq, _f.more, _f.id, _f.decision_id, _f.metric, _f.value, _f.received_at),
    *(_f.episode_id, _f.kind, _f.rater, _f.logged_at),
).where(avoid_index(_f.seq) <= _UPTO)

_ON_DECISIONS = _FEEDBACK.where(_f.decision_id.in_(log_rows.IDS))

_ON_EPISODES = _FEEDBACK.where(
    _f.episode_id.in_(log_rows.IDS),
    _f.decision_id.is_(None),
    (_f.kind != FeedbackKind.VALUE)
    | (_f.received_at >= sa.bindparam("made_first"))
    # a value from before that was sent with one that counts ends what is learned together
    | (_f.seq > sa.bindparam("logged_first")),
)


def read_window(
    connection: sa.Connection,
    rule: RewardRule,
    after: int,
    log_at: float,
    upto: int,
    shares: Callable[[], RaterShares],
) -> tuple[list[Joined], float]:
    """Return the decisions that become ready between two positions of the log, and its time at the last.

    Only decisions that the facts there are about, and those that are closed there, are read: a step takes as
    long as its facts, however many decisions wait.

    Args:
        connection: A snapshot.
        rule: How the log is joined.
        after: The first position. The examples up to there are stored.
        log_at: The log's time there.
        upto: The last position, behind the first.
        shares: Returns the raters of the decisions that were ready before.

    Raises:
        LogGapError: Facts between the positions are missing.
    """
    window = {"after": after, "upto": upto, "join": rule.join}
    rows = connection.execute(_TIMES, window).all()
    for seq, row in enumerate(rows, after + 1):
        if row.seq != seq:
            raise LogGapError(f"the log continues at {row.seq} after {seq - 1}: the rows between are missing")
    if len(rows) < upto - after:
        raise LogGapError(f"the log ends at {upto}, but rows after {after + len(rows)} are missing")
    times = Times(after, log_at, [*accumulate((row.at for row in rows), max, initial=log_at)][1:])
    closed = listing.position_at(connection, counting.find_open_since(log_at, rule.wait_s), before=True)
    closing = _may_close(rule, log_at, times.log_at[-1])
    ids = connection.scalars(_TOUCHED, {**window, **closing, "closed": closed})
    draws = [draw for draw in _read_draws(connection, ids.all(), rule, window) if draw.closing >= log_at]
    ready = [*find_ready(draws, rule, shares(), times)] if draws else []
    return ready, times.log_at[-1]


def _may_close(rule: RewardRule, since: float, until: float) -> dict[str, float]:
    """Return the parameters of `_MAY_CLOSE` and `_MAY_BE_CORRECTED` between two times of the log."""
    rated_since, rated_until = (at - rule.correction_s for at in (since - ROUNDING_S, until + ROUNDING_S))
    since, until = since - GRACE_S - ROUNDING_S, until - GRACE_S + ROUNDING_S
    return {
        "made_since": since - rule.wait_s,
        "made_until": until - rule.wait_s,
        "late_since": since,
        "late_until": until,
        "nearly_wait_s": rule.wait_s - ROUNDING_S,
        "rated_since": rated_since,
        "rated_until": rated_until if rule.correction_s else -inf,
    }


def _read_draws(
    connection: sa.Connection, ids: Sequence[str], rule: RewardRule, window: Mapping[str, Any]
) -> Iterator[DrawFacts]:
    """Yield the draws that some decisions are or continue, which are neither learned nor failed."""
    rows = {row.seq: row for row in log_rows.look_up(connection, _TURNS_BY_ID, ids, **window)}
    kept = {row.draw_id for row in rows.values() if row.draw_id is not None}
    rows |= {row.seq: row for row in log_rows.look_up(connection, _TURNS_BY_DRAW, sorted(kept), **window)}
    statuses = rule.learned_statuses
    draws = [
        row
        for row in rows.values()
        if row.mode == Mode.EXPLORE and row.example is None and row.status in statuses
    ]
    wanted = {row.id for row in draws}
    rows = {seq: row for seq, row in rows.items() if row.id in wanted or row.draw_id in wanted}
    turns = {turn.id: turn for turn in _read_turns(connection, [*rows.values()], rule, window)}
    following: defaultdict[str, list[TurnFacts]] = defaultdict(list)
    for _, row in sorted(rows.items()):
        if row.mode == Mode.CONTINUED:
            following[row.draw_id].append(turns[row.id])
    for row in draws:
        yield DrawFacts.from_turns(turns[row.id], following[row.id])


def _read_turns(
    connection: sa.Connection, rows: Sequence[Row], rule: RewardRule, window: Mapping[str, Any]
) -> Iterator[TurnFacts]:
    """Yield decisions with the feedback on them and on their episodes."""
    if not rows:
        return
    items: defaultdict[str, list[LoggedFeedback]] = defaultdict(list)
    for row in log_rows.look_up(connection, _ON_DECISIONS, [row.id for row in rows], **window):
        items[row.decision_id].append(_read_feedback(row))
    for some in items.values():
        some.sort(key=_BY_SEQ)
    of_episodes: defaultdict[str, list[LoggedFeedback]] = defaultdict(list)
    made_first, wait_s = min(row.decided_at for row in rows), rule.wait_s
    episodes = sorted({row.episode_id for row in rows if row.episode_id is not None})
    bounds = {"made_first": made_first, "logged_first": min(row.seq for row in rows)}
    for row in log_rows.look_up(connection, _ON_EPISODES, episodes, **window, **bounds):
        of_episodes[row.episode_id].append(_read_feedback(row))
    shared = {name: _OnEpisode(some) for name, some in of_episodes.items()}
    for row in rows:
        feedback = items[row.id]
        if row.episode_id in shared:
            of_episode = shared[row.episode_id].list_for(row.seq, row.decided_at)
            feedback = sorted(feedback + of_episode, key=_BY_SEQ) if feedback else of_episode
        yield TurnFacts(
            seq=row.seq,
            id=row.id,
            decided_at=row.decided_at,
            logged_at=row.logged_at,
            deadline=find_deadline(row.decided_at, wait_s, row.policy),
            mode=Mode(row.mode),
            draw_id=row.draw_id,
            is_deferred=row.deferred,
            is_past=row.policy == LABELS,
            executed=inf if row.executed is None else row.executed,
            status=None if row.status is None else Status(row.status),
            feedback=feedback,
        )


_BY_SEQ = attrgetter("seq")


class _OnEpisode:
    """Feedback on an episode, which all of its decisions share.

    Args:
        items: The feedback.
    """

    def __init__(self, items: list[LoggedFeedback]) -> None:
        self._items = sorted(items, key=_BY_SEQ)
        self._seqs = [each.seq for each in self._items]
        received = (
            each.feedback.received_at if each.feedback.kind is FeedbackKind.VALUE else inf
            for each in self._items
        )
        self._latest = [*accumulate(received, max)]
        self._after: dict[int, list[LoggedFeedback]] = {}

    def list_for(self, seq: int, decided_at: float) -> list[LoggedFeedback]:
        """Return the feedback that may count for a decision, in order.

        One from before it was made counts for no decision from then on.
        """
        n = bisect_right(self._seqs, seq)
        if n not in self._after:
            self._after[n] = self._items[n:]
        if not n or self._latest[n - 1] < decided_at:
            return self._after[n]
        early = [each for each in self._items[:n] if counting.counts(each.feedback, decided_at, inf)]
        return early + self._after[n] if early else self._after[n]


def _read_feedback(row: Row) -> LoggedFeedback:
    """Return feedback with the fields that the join reads."""
    seq, more, name, decision_id, metric, value, received_at, episode_id, kind, rater, logged_at = row
    kind = FeedbackKind(kind)
    item = Feedback(
        name, decision_id, metric, value, received_at, episode_id=episode_id, kind=kind, rater=rater
    )
    return LoggedFeedback(seq, item, more, logged_at)


def read_ratings(store: Store, rule: RewardRule, ids: Sequence[str]) -> dict[str, float]:
    """Return the quality of those of some decisions that are rated, by all feedback so far.

    For a page that shows ratings as they come in. An estimate waits until decisions are settled, since quick
    feedback may be better or worse than slow feedback.
    """
    with store.reading() as connection:
        head = read_head(connection)
        window = {"after": head, "upto": head, "join": rule.join}
        turns = [
            *_read_turns(
                connection, [*log_rows.look_up(connection, _TURNS_BY_ID, ids, **window)], rule, window
            )
        ]
    values = {turn.id: rule.aggregate(turn.list_values(head)) for turn in turns}
    found = {name: rule.reward(metrics, Cost()) for name, metrics in values.items() if metrics}
    return {name: quality for name, quality in found.items() if quality is not None}


def find_correctable(
    connection: sa.Connection, rule: RewardRule, log_at: float, examples_seq: int
) -> int | None:
    """Return the position of the first rating that can be corrected at a time of the log; None: none can.

    Args:
        connection: A snapshot.
        rule: How the log is joined.
        log_at: The log's time.
        examples_seq: Decisions of later examples may be corrected as those without one.
    """
    if not rule.correction_s:
        return None
    closed = listing.position_at(connection, counting.find_open_since(log_at, rule.wait_s), before=True)
    times = {"rated_since": log_at - rule.correction_s, "rated_until": log_at + ROUNDING_S}
    values = {**times, "join": rule.join, "closed": closed, "examples_seq": examples_seq}
    found = [connection.scalar(query, values) for query in _FOLLOWING_DECISIONS]
    return min((seq for seq in found if seq is not None), default=None)


def is_tick_due(connection: sa.Connection, rule: RewardRule, log_at: float, now: float) -> bool:
    """Return whether the time makes a decision ready, or ends the wait time of the last one."""
    if now <= log_at:
        return False
    closed = listing.position_at(connection, counting.find_open_since(log_at, rule.wait_s), before=True)
    values = {**_may_close(rule, log_at, now - 2 * ROUNDING_S), "join": rule.join, "closed": closed}
    if any(connection.scalar(query, values) is not None for query in _UNLEARNED):
        return True
    closes = any(connection.scalar(query, values) is not None for query in _CLOSED)
    return closes and connection.scalar(_MADE_SINCE, {"made_since": values["made_until"]}) is None


_IS_LEARNED = sa.exists().where(_x.decision_id == _d.id, _x.join == sa.bindparam("join"))

_CORRECTABLE = tuple(
    sa.select(_f.seq)
    .join(t.decisions, about)
    # a conversation waits for the deadline of its last turn
    .where(_MAY_BE_CORRECTED, _d.mode == Mode.EXPLORE, _d.draw_id.is_(None))
    .order_by(_f.seq)
    .limit(1)
    for about in (
        _d.id == _f.decision_id,
        _f.decision_id.is_(None) & (_d.episode_id == _f.episode_id) & (_d.seq > sa.bindparam("closed")),
    )
)

_UNLEARNED = (
    *(sa.select(_d.seq).where(condition, ~_IS_LEARNED).limit(1) for condition in _MAY_CLOSE),
    *(query.where(~_IS_LEARNED) for query in _CORRECTABLE),
)

_IS_ASKED = _IS_DRAWN & (_d.policy != LABELS)

_FOLLOWING_DECISIONS = tuple(
    query.where(_f.seq > _d.seq, ~_IS_LEARNED.where(_x.seq <= sa.bindparam("examples_seq")))
    for query in _CORRECTABLE
)

_CLOSED = tuple(sa.select(_d.seq).where(condition, _IS_ASKED).limit(1) for condition in _MAY_CLOSE)

_MADE_SINCE = sa.select(_d.seq).where(_IS_ASKED, _d.decided_at > sa.bindparam("made_since")).limit(1)
