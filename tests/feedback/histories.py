"""Random histories on a real log, compared at every step with what docs/reference/feedback-semantics.md says.

A history is a list of steps: decisions, executions, feedback, retractions, activations; time that passes; a
joiner that advances, is restarted, fails half-way, is superseded.
"""

from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from itertools import zip_longest
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from armwise.feedback.errors import ConflictError, LogUnavailableError, SupersededError
from armwise.feedback.events import (
    LABELS,
    Cost,
    Decision,
    Execution,
    Feedback,
    FeedbackKind,
    Mode,
    Status,
    Tick,
)
from armwise.feedback.log import Receipt, Store
from armwise.feedback.log import tables as t
from armwise.feedback.log.append import FeedbackStatus
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import Joiner, Position, take_epoch
from tests.feedback.conftest import decision, execution
from tests.feedback.reference import Fact, Learned, Placed, stamp, subject_of, training_log

METRICS = ("right", "thumb", "undeclared")
BAD = (Status.ARM_FAILED, Status.FELL_BACK) * 2 + (Status.LLM_FAILED, Status.LLM_TIMEOUT, Status.CANCELLED)
WHATS = 24
MISTAKE = 0
"""Which of them is a key or an id that is used again for something else."""
STATUSES = (*[Status.OK] * (WHATS - len(BAD)), *BAD)

WEIGHTS = {
    "decide": 9,
    "continue": 5,
    "execute": 15,
    "say": 8,
    "say of episode": 5,
    "retract": 3,
    "retract of episode": 3,
    "activate": 3,
    "label": 1,
    "look": 4,
    "look by another rule": 2,
    "fail": 2,
    "be superseded": 1,
}
"""What may happen, and how often that is tried."""


class Step(NamedTuple):
    """One thing that happens.

    Attributes:
        op: What happens, out of `WEIGHTS`.
        ago: How many decisions ago that one was made to which it happens; 0 for the next one.
        what: Which of several, below `WHATS`.
        lag_s: Seconds since the step before.
        skew_s: Seconds by which the clock that stamps it is ahead.
        joined: Whether it is committed together with the next one.
    """

    op: str
    ago: int
    what: int
    lag_s: float = 0.0
    skew_s: float = 0.0
    joined: bool = False


class Failing(Enum):
    """When a log takes nothing any more."""

    NEVER = 0
    BEFORE_COMMIT = 1
    """What was written is rolled back."""
    AFTER_COMMIT = 2
    """It is durable, but the writer gets an error."""


class FlakyStore(Store):
    """A log that fails on demand."""

    failing = Failing.NEVER

    def append(self, facts: Sequence[Fact]) -> list[Receipt]:
        self._fail(Failing.BEFORE_COMMIT)
        receipts = super().append(facts)
        self._fail(Failing.AFTER_COMMIT)
        return receipts

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        with super().writing() as connection:
            yield connection
            self._fail(Failing.BEFORE_COMMIT)
        self._fail(Failing.AFTER_COMMIT)

    def _fail(self, when: Failing) -> None:
        if self.failing is when:
            raise LogUnavailableError("the connection is lost")


class History:
    """A log, what is known of it without reading it, and what joins it.

    Args:
        url: Of an empty database.
        rules: That of the service, and another one.
        batch: Facts that a joiner folds at once.
        thorough: Whether each look is compared with the reference, and not only the last ones.
    """

    def __init__(
        self, url: str, rules: tuple[RewardRule, RewardRule], batch: int, *, thorough: bool = True
    ) -> None:
        self.log: list[Placed] = []
        self._store = FlakyStore(url, rules[0].join)
        self._rules = rules
        self._batch = batch
        self._thorough = thorough
        self._clock = 1000.0
        self._times: list[float] = []
        self._waiting: list[Fact] = []
        self._places: dict[tuple[str, str], Placed] = {}
        self._made: defaultdict[str, list[Placed]] = defaultdict(list)
        self._joiner: tuple[int, Joiner] | None = None

    def run(self, steps: Sequence[Step]) -> None:
        """Let it all happen; compare what both rules learned as it stands, and after all windows."""
        for step in steps:
            self._clock += step.lag_s
            self._do(step)
        self._commit()
        for passed_s in (0.0, 1000.0):
            self._clock += passed_s
            for which in (0, 1, 0):
                self._joiner = None
                while self._look(which).log_seq < len(self.log):
                    pass
                assert self.examples(which) == expected(self.log, self._rules[which])

    def close(self) -> None:
        """Close the log."""
        self._store.close()

    def examples(self, which: int) -> list[Learned]:
        """Return what is in the training log of a rule."""
        x = t.examples.c
        query = sa.select(x.seq, x.decision_id, x.metrics, x.joined_by, x.turns).order_by(x.seq)
        with self._store.reading() as connection:
            rows = connection.execute(query.where(x.join == self._rules[which].join)).all()
        return [Learned(*row, () if turns is None else _summed(turns)) for *row, turns in rows]

    def _do(self, step: Step) -> None:
        match step.op:
            case "label":
                self._commit()
                self._waiting = _label(f"label-{len(self.log)}", step, self._clock)
                self._commit()
            case "look" | "look by another rule":
                if step.what % 3 == 0:
                    self._joiner = None
                self._look(int(step.op != "look"))
            case "fail":
                self._fail(Failing.AFTER_COMMIT if step.what % 2 else Failing.BEFORE_COMMIT)
            case "be superseded":
                _, old = self._joiner or (0, self._new_joiner(0))
                self._joiner = 0, self._new_joiner(0)
                with pytest.raises(SupersededError):
                    old.advance(self._clock)
            case _:
                self._waiting += self._facts_of(step)
                if not step.joined:
                    self._commit()

    # -- writing ---------------------------------------------------------------------------------

    def _facts_of(self, step: Step) -> list[Fact]:
        """Return the fact of a step; none where there is nothing yet that could be executed."""
        made = len(self._made["turn"]) + sum(isinstance(fact, Decision) for fact in self._waiting)
        number, at = max(0, made - step.ago), self._clock + step.skew_s
        name, episode = f"d{number}", f"e{number // 3}"
        match step.op:
            case "decide":
                if step.what != MISTAKE:  # else the same id again
                    name, episode = f"d{made}", f"e{made // 3}"
                mode = {9: Mode.FORCED, 10: Mode.GREEDY}.get(step.what, Mode.EXPLORE)
                one = decision(name, at=at, wait_s=self._rules[0].wait_s, mode=mode)
                part = episode if step.what % 4 else None
                kept = name if mode is Mode.EXPLORE and step.what % 3 == 0 else None
                return [replace(one, episode_id=part, deferred=step.what % 8 == 1, draw_id=kept)]
            case "continue":  # a draw that is kept, or one that is not, or what is not there
                one = decision(f"d{made}", at=at, wait_s=self._rules[0].wait_s, mode=Mode.CONTINUED)
                part = f"e{made // 3}" if step.what % 4 else None
                there = [placed.fact for placed in self._made["turn"]]
                drawn = [d for d in (*there, *self._waiting) if isinstance(d, Decision) and d.draw_id == d.id]
                if drawn and step.what % 5:
                    name = drawn[-min(step.ago or 1, len(drawn))].id
                return [replace(one, episode_id=part, deferred=step.what % 8 == 1, draw_id=name)]
            case "execute":
                status = STATUSES[step.what]
                cost = Cost(steps=number, prompt_tokens=number**2)  # by which a sum says of what it is
                return [replace(execution(name, status), finished_at=at, cost=cost)] if number < made else []
            case "activate":
                return [Feedback(name, name, received_at=at, kind=FeedbackKind.ACTIVATION)]
        if step.op.endswith("episode"):
            return [_said(step, at, None, episode)]
        return [_said(step, at, name, None)]

    def _commit(self) -> None:
        """Commit what waits, and compare what the log answers with what it should."""
        facts, self._waiting = self._waiting, []
        known = ChainMap({}, self._places)
        new: list[Placed] = []
        places: list[tuple[int, bool]] = []
        for fact in facts:
            stored = known.get(_key(fact))
            if stored is not None and _differ(stored.fact, fact):
                with pytest.raises(ConflictError):
                    self._store.append(facts)
                assert self._store.log_seq() == len(self.log), "nothing of it is written"
                return
            if stored is None:
                known[_key(fact)] = stored = Placed(len(self.log) + len(new) + 1, fact)
                new.append(stored)
                places.append((stored.seq, True))
            else:
                places.append((stored.seq, False))
        self._places |= known.maps[0]
        self._append(new)
        for fact, (seq, is_new), receipt in zip(facts, places, self._store.append(facts), strict=True):
            if isinstance(fact, Feedback):
                assert receipt == Receipt(seq, FeedbackStatus.STORED if is_new else FeedbackStatus.DUPLICATE)
            else:
                assert receipt == (Receipt(seq) if is_new else Receipt())

    def _append(self, new: Sequence[Placed]) -> None:
        """Know facts that were committed together."""
        for one, following in zip_longest(new, new[1:]):
            said = following is not None and isinstance(one.fact, Feedback)
            more = said and isinstance(following.fact, Feedback)
            self.log.append(replace(one, more=more and subject_of(one.fact) == subject_of(following.fact)))
            self._times.append(max(stamp(one.fact), self._times[-1] if self._times else 0.0))
            if isinstance(one.fact, Decision):
                self._made["label" if one.fact.policy == LABELS else "turn"].append(one)

    # -- joining ---------------------------------------------------------------------------------

    def _new_joiner(self, which: int) -> Joiner:
        return Joiner(
            self._store, self._rules[which], take_epoch(self._store, "model", self._clock), self._batch
        )

    def _look(self, which: int) -> Position:
        """Let the joiner of a rule look once, and compare what it has made with the log up to there."""
        if self._joiner is None or self._joiner[0] != which:
            self._joiner = which, self._new_joiner(which)
        position = self._joiner[1].advance(self._clock)
        self._note()
        if self._thorough:
            read, rule = self.log[: position.log_seq], self._rules[which]
            due = expected(read, rule)
            assert self.examples(which) == due
            at = self._times[position.log_seq - 1] if read else 0.0
            assert position == Position(len(read), at, len(due))
            if len(read) == len(self.log):
                later = [*read, Placed(len(read) + 1, Tick(self._clock))]
                assert expected(later, rule) == due, "what is due by now is learned"
        return position

    def _fail(self, when: Failing) -> None:
        """Let the joiner find that the log fails, if it has something to write; it goes on afterwards."""
        which, joiner = self._joiner = self._joiner or (0, self._new_joiner(0))
        before = self._store.log_seq(), self.examples(which)
        self._store.failing = when
        with suppress(LogUnavailableError):
            joiner.advance(self._clock)
        self._store.failing = Failing.NEVER
        if when is Failing.BEFORE_COMMIT:
            assert (self._store.log_seq(), self.examples(which)) == before
        self._note()

    def _note(self) -> None:
        """Know what the joiner has written."""
        query = sa.select(t.ticks).where(t.ticks.c.seq > len(self.log)).order_by(t.ticks.c.seq)
        with self._store.reading() as connection:
            self._append([Placed(seq, Tick(at)) for seq, at in connection.execute(query)])


def expected(log: Sequence[Placed], rule: RewardRule) -> list[Learned]:
    """Return what a log teaches, and of the turns of a conversation how many and which they are."""
    return [
        replace(one, turns=one.turns and (len(one.turns), sum(numbers), sum(n**2 for n in numbers)))
        for one in training_log(log, rule)
        for numbers in [[int(name.removeprefix("d")) for name in one.turns]]
    ]


def _summed(turns: Mapping[str, Any]) -> tuple[int, int, int]:
    return turns["n"], turns["cost"]["steps"], turns["cost"]["prompt_tokens"]


def _key(fact: Fact) -> tuple[str, str]:
    """Return what may be in the log once."""
    match fact:
        case Decision():
            return "decision", fact.id
        case Execution():
            return "execution", fact.decision_id
        case Feedback():
            return fact.kind, fact.id
    raise AssertionError(f"only the joiner writes {fact}")


def _differ(stored: Fact, fact: Fact) -> bool:
    """Whether the same key stands for something else."""
    return isinstance(fact, Decision) or (
        isinstance(fact, Feedback) and isinstance(stored, Feedback) and stored.value != fact.value
    )


def _said(step: Step, at: float, name: str | None, episode: str | None) -> Feedback:
    """Feedback whose key stands for one metric and, but for a mistake, for one value."""
    key, taken_back = step.what % 6, step.op.startswith("retract")
    return Feedback(
        id=f"{name or episode}:{key}",
        decision_id=name,
        episode_id=episode,
        metric=METRICS[key % 3],
        value=None if taken_back else 0.1 * key + 0.3 * (step.what == MISTAKE),
        received_at=at,
        kind=FeedbackKind.RETRACTION if taken_back else FeedbackKind.VALUE,
    )


def _label(name: str, step: Step, at: float) -> list[Fact]:
    """A label with values of two metrics."""
    return [
        replace(decision(name, at=at, wait_s=0.0), policy=LABELS),
        replace(execution(name), finished_at=at),
        *(Feedback(f"{name}:{metric}", name, metric, 0.5, at) for metric in METRICS[step.what % 2 :][:2]),
    ]
