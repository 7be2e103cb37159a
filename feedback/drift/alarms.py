"""Drift alarms: the learner raises them; new labels, or a recipe that begins after them, close them.

Every replica reads them. A change at a position of a training log is one row, however often the training log
is read.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import sqlalchemy as sa

from armwise.feedback.drift.monitor import RAISED_S, Change, Monitor, find_start
from armwise.feedback.events import Example
from armwise.feedback.log import Operation, Store, operations
from armwise.feedback.log import tables as t
from armwise.feedback.registry import ActivePolicy
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import (
    StartingPoint,
    confirm_epoch,
    raters,
    read_learned_examples,
)


@dataclass(frozen=True, slots=True)
class Alarm:
    """A detected change.

    Attributes:
        recipe: Digest of the recipe whose learner detected it.
        subject: What has changed, such as `reward of bm25`.
        detector: Kind of the detector.
        before: The expected value without the change.
        after: The observed value.
        example_seq: Position of the training log at which it was detected.
        at: When it was detected, seconds since the epoch, UTC; at most the deadline of the decision at which
            it was detected, which counts when an old log is read again.
        rater: A rater beyond its share of the newest ratings, who may be the cause, if any.
    """

    recipe: str
    subject: str
    detector: str
    before: float
    after: float
    example_seq: int
    at: float
    rater: str | None = None


@dataclass(frozen=True, slots=True)
class Alarms:
    """A summary of all alarms.

    Attributes:
        count: Number of alarms.
        newest: The alarm that was detected last.
        warm_start_open: Whether it still calls for a warm start: labels inserted later, or a later starting
            point of the promoted recipe, close it.
    """

    count: int = 0
    newest: Alarm | None = None
    warm_start_open: bool = False

    @property
    def raised_until(self) -> float | None:
        """The end of the raised exploration, seconds since the epoch; None: there was no alarm."""
        return None if self.newest is None else self.newest.at + RAISED_S


def raise_alarms(store: Store, epoch: int, alarms: Sequence[Alarm], join: str | None = None) -> int:
    """Write the alarms that are new, and return their number.

    Args:
        store: The log.
        epoch: The right to write, from `take_epoch`.
        alarms: The alarms.
        join: Digest of the training log, in which recipes share an alarm at the same position.

    Raises:
        SupersededError: Another learner has taken over.
    """
    with store.writing() as connection:
        confirm_epoch(connection, epoch)
        ours = _o.subject.in_({alarm.recipe for alarm in alarms}) | _OF_JOIN
        before = [_read_alarm(row) for row in connection.execute(_ALARMS.where(ours), {"of_join": join})]
        recorded = {(alarm.subject, alarm.example_seq) for alarm in before}
        new = [alarm for alarm in alarms if (alarm.subject, alarm.example_seq) not in recorded]
        for alarm in new:
            document = asdict(alarm)
            recipe, at = document.pop("recipe"), document.pop("at")
            once = f"{recipe} {alarm.example_seq} {alarm.subject}"
            operations.record(connection, Operation.ALARM, at, document, subject=recipe, once=once)
    return len(new)


_o, _v = t.operations.c, t.versions.c

_OF_JOIN = sa.exists().where(_v.recipe == _o.subject, _v.join == sa.bindparam("of_join"))

_ALARMS = sa.select(t.operations).where(_o.kind == Operation.ALARM)


def _read_alarm(row: sa.Row[Any]) -> Alarm:
    return Alarm(row.subject, at=row.at, **row.document)


def read_alarms(store: Store, join: str | None = None, active: ActivePolicy | None = None) -> Alarms:
    """Return a summary of all alarms.

    Args:
        store: The log.
        join: Digest of the training log of the alarms; None: any.
        active: The active policy; a promoted recipe that begins to learn at an alarm or after it closes it.
    """
    query = _SUMMARY if join is None else _SUMMARY_OF_JOIN
    promoted = active.promotion.version if active is not None and active.promotion is not None else 0
    with store.reading() as connection:
        row = connection.execute(query, {"of_join": join}).first()
        if row is None:
            return Alarms()
        start = StartingPoint.from_document(connection.scalar(_START, {"number": promoted}))
        warm = operations.find_newest(connection, Operation.WARM_START)
    last, begins = _read_alarm(row), 0 if start is None else start.after
    return Alarms(row.alarms, last, begins < last.example_seq and (warm is None or warm.at < last.at))


_NEWEST = _ALARMS.order_by(_o.at.desc(), _o.seq.desc())

_SUMMARY = _NEWEST.add_columns(sa.func.count().over().label("alarms")).limit(1)

_SUMMARY_OF_JOIN = _SUMMARY.where(_OF_JOIN)

_START = sa.select(_v.start).where(_v.version == sa.bindparam("number"))


def newest_alarms(store: Store, limit: int, join: str | None = None) -> list[Alarm]:
    """Return the newest alarms, the newest first.

    Args:
        store: The log.
        limit: Largest length of the list.
        join: Digest of the training log of the alarms; None: any.
    """
    query = _NEWEST if join is None else _NEWEST.where(_OF_JOIN)
    with store.reading() as connection:
        rows = connection.execute(query.limit(limit), {"of_join": join})
        return [_read_alarm(row) for row in rows]


def record_warm_start(store: Store, labels: int, now: float) -> None:
    """Record that labels were inserted, which closes earlier alarms."""
    with store.writing() as connection:
        operations.record(connection, Operation.WARM_START, now, {"labels": labels})


class Watch:
    """Monitor the examples of a learner, and raise alarms.

    Args:
        store: The log.
        rule: Computes rewards.
        recipe: Digest of the learner's recipe.
        epoch: The right to write, from `take_epoch`.
        learned: Position of the training log up to which the policy has learned or skipped examples; those
            in the block of the next example are read again.
        clock: Returns seconds since the epoch.

    Raises:
        LogUnavailableError: The log cannot be read.
    """

    def __init__(
        self,
        store: Store,
        rule: RewardRule,
        recipe: str,
        epoch: int,
        learned: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._rule, self._recipe, self._epoch, self._clock = store, rule, recipe, epoch, clock
        self._monitor = Monitor(rule)
        self._found: list[Alarm] = []
        for example in read_learned_examples(store, rule, None, find_start(learned + 1), learned):
            self.see(example)

    def over(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yield the next examples, each after it was monitored."""
        for example in examples:
            self.see(example)
            yield example

    def see(self, example: Example) -> None:
        """Monitor the next example, if it has a reward."""
        reward = self._rule.compute_reward(example)
        if reward is None:
            return
        if (change := self._monitor.see(example, reward)) is not None:
            self.add(change, example, "adwin")

    def add(self, change: Change, example: Example, detector: str) -> None:
        """Add a change that a detector has noticed at an example."""
        at = min(self._clock(), example.decision.deadline)
        self._found.append(Alarm(self._recipe, detector=detector, at=at, **asdict(change)))

    def report(self) -> None:
        """Write the alarms that were detected since the last call.

        Raises:
            SupersededError: Another learner has taken over.
        """
        if self._found:
            rater = raters.foremost(self._store, self._rule)
            found = [replace(alarm, rater=rater) for alarm in self._found]
            raise_alarms(self._store, self._epoch, found, self._rule.join)
            self._found.clear()
