"""Alarms that the world has changed, and what closes them: labels, or a recipe that begins after them.

The learner writes an alarm, and every replica reads it. What follows from one position of a training log is
one row, however often that is read.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from feedback.drift.detectors import DriftSpec
from feedback.drift.monitor import Monitor, start_of
from feedback.events import Example
from feedback.log import Store
from feedback.log import tables as t
from feedback.registry import ActivePolicy
from feedback.reward import RewardRule
from feedback.training_log import StartingPoint, epochs, learned_examples


@dataclass(frozen=True, slots=True)
class Alarm:
    """A change of the world that was seen.

    Attributes:
        recipe: Of the policy that learned from the training log.
        subject: What has changed, such as `reward of bm25`.
        detector: What saw it.
        before: What it would have been, had nothing changed.
        after: What it was.
        example_seq: Position of the training log at which it was seen.
        at: When it was seen, seconds since the epoch, UTC. In a log that is read again: the deadline of
            the decision at which it is seen, as that is the latest time at which it could have been.
    """

    recipe: str
    subject: str
    detector: str
    before: float
    after: float
    example_seq: int
    at: float


@dataclass(frozen=True, slots=True)
class Alarms:
    """What replicas know of all alarms.

    Attributes:
        count: How many there are.
        newest: The one that was seen last; None for none.
        warm_start_open: Whether it was seen after labels were last entered, and what was promoted
            since has learned from the time before it.
    """

    count: int = 0
    newest: Alarm | None = None
    warm_start_open: bool = False

    def raised_until(self, spec: DriftSpec) -> float | None:
        """Return until when the floor is raised, seconds since the epoch; None where there is no alarm."""
        return None if self.newest is None else self.newest.at + spec.raised_s


def raise_alarms(store: Store, epoch: int, alarms: Sequence[Alarm], join: str | None = None) -> int:
    """Write those of the alarms that are not there yet, and return how many these are.

    Args:
        store: The log.
        epoch: The right to write, from `take_epoch`.
        alarms: What was seen.
        join: Of the training log: what another recipe has seen at the same place of it is there already.

    Raises:
        SupersededError: Another learner has taken over; nothing was written.
        LogUnavailableError: Nothing was written.
    """
    a = t.alarms.c
    with store.writing() as connection:
        epochs.confirm_epoch(connection, epoch)
        known = {
            tuple(row)
            for row in connection.execute(
                sa.select(a.subject, a.example_seq).where(
                    a.recipe.in_({alarm.recipe for alarm in alarms}) | _of(join),
                    a.example_seq >= min((alarm.example_seq for alarm in alarms), default=0),
                )
            )
        }
        new = [asdict(alarm) for alarm in alarms if (alarm.subject, alarm.example_seq) not in known]
        if new:
            connection.execute(sa.insert(t.alarms), new)
    return len(new)


def _of(join: str | None) -> sa.ColumnElement[bool]:
    """Return whether an alarm is of a training log."""
    v = t.versions.c
    return sa.exists().where(v.recipe == t.alarms.c.recipe, v.join == join)


def read_alarms(store: Store, join: str | None = None, said: ActivePolicy | None = None) -> Alarms:
    """Return what is known of all alarms.

    Args:
        store: The log.
        join: Of the training log that they are of; None for those of any.
        said: What is in force. A recipe that was promoted, and begins to learn at an alarm or after it,
            closes the alarm.

    Raises:
        LogUnavailableError: Try again later.
    """
    a = t.alarms.c
    ours = sa.true() if join is None else _of(join)
    newest = (
        sa.select(
            *(a[name] for name in Alarm.__slots__),
            sa.func.count().over().label("alarms"),
            sa.select(sa.func.max(t.warm_starts.c.at)).scalar_subquery().label("warm_at"),
        )
        .where(ours)
        .order_by(a.at.desc(), a.seq.desc())
        .limit(1)
    )
    promoted = said.promotion.version if said is not None and said.promotion is not None else 0
    started = sa.select(t.versions.c.start).where(t.versions.c.version == promoted)
    with store.reading() as connection:
        row = connection.execute(newest).first()
        if row is None:
            return Alarms()
        start = StartingPoint.of(connection.scalar(started))
    *alarm, count, warm_at = row
    found = Alarm(*alarm)
    begins = 0 if start is None else start.after
    return Alarms(count, found, begins < found.example_seq and (warm_at is None or warm_at < found.at))


def record_warm_start(store: Store, labels: int, now: float) -> None:
    """Note that so many labels were entered, which is what an alarm asks for."""
    with store.writing() as connection:
        connection.execute(sa.insert(t.warm_starts), {"labels": labels, "at": now})


class Watch:
    """Look at each example that a learner learns, and raise the alarms that follow.

    Args:
        store: The log.
        spec: How changes are noticed.
        rule: How rewards are made.
        recipe: Of the policy that learns.
        epoch: The right to write, from `take_epoch`.
        learned: Length of the training log that the policy has learned before, or passed over: what
            of it lies in the block of the next one is looked at again.
        clock: Seconds since the epoch.

    Raises:
        LogUnavailableError: The log cannot be read.
    """

    def __init__(
        self,
        store: Store,
        spec: DriftSpec,
        rule: RewardRule,
        recipe: str,
        epoch: int,
        learned: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._rule, self._recipe, self._epoch, self._clock = store, rule, recipe, epoch, clock
        self._detector = spec.detector
        self._monitor = Monitor(spec, rule)
        self._found: list[Alarm] = []
        for example in learned_examples(store, rule, None, start_of(learned + 1), learned):
            self.see(example)

    def over(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yield the next examples, each once it was looked at."""
        for example in examples:
            self.see(example)
            yield example

    def see(self, example: Example) -> None:
        """Look at the next example; one that is worth nothing teaches nothing here either."""
        reward = self._rule.reward_of(example)
        if reward is None:
            return
        for change in self._monitor.see(example, reward):
            at = min(self._clock(), example.decision.deadline)
            self._found.append(Alarm(self._recipe, detector=self._detector, at=at, **asdict(change)))

    def report(self) -> None:
        """Write the alarms that were found since the last time.

        Raises:
            SupersededError: Another learner has taken over; nothing was written.
            LogUnavailableError: Nothing was written.
        """
        if self._found:
            raise_alarms(self._store, self._epoch, self._found, self._rule.join)
            self._found.clear()
