"""The guard over a training log: each rated answer counts once, in the order of deadlines.

An answer counts when an answer that was decided after its deadline is read. So it does not matter how soon
its rating came: users may report bad answers at once, and others never or late.
"""

import logging
import time
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from armwise.feedback.events import NOT_SERVED, Example, Mode
from armwise.feedback.guard import Fall, Guard, GuardSpec
from armwise.feedback.log import Store
from armwise.feedback.registry import guards
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import read_learned_examples

logger = logging.getLogger(__name__)

EVERY = 1000
"""Examples after which the state is written; after a restart, those since are read again."""

MOST_WAITING = 200_000
"""Most answers that wait for their deadline; with more, the first ones count early."""


class GuardKeeper:
    """Folds examples into the state of a guard, continuing from its newest one.

    A new guard counts the decisions since its start: a training log that is joined anew has all the earlier
    ones again.

    Args:
        store: The log.
        rule: Gives the quality of an answer.
        spec: The guard.
        epoch: The right to write, from `take_epoch`.
        learned: Position of the training log after which it will see examples.
        clock: Seconds since the epoch.

    Raises:
        LogUnavailableError: The log cannot be read.
    """

    def __init__(
        self,
        store: Store,
        rule: RewardRule,
        spec: GuardSpec,
        epoch: int,
        learned: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._rule, self._epoch, self._clock = store, rule, epoch, clock
        self._name = spec.name(rule.join)
        self._waiting, self._falls, self._now = list[_Rated](), list[Fall](), -inf
        state = guards.read_state(store, self._name)
        if state is None:
            self._since, self._seq = clock(), learned
            self._guard, self._until, self._written, self._counted = Guard(spec), -inf, -EVERY, (0, -inf)
            return
        self._guard = Guard.from_document(spec, state)
        self._since, self._seq, self._written = state["since"], state["seq"], state["written"]
        self._until = -inf if state["until"] is None else state["until"]
        self._counted = self._written, self._until
        for example in read_learned_examples(store, rule, None, self._seq, learned):
            self.see(example)

    def see(self, example: Example) -> None:
        """Add an example, unless it was seen before; it counts once its deadline has passed."""
        if example.seq <= self._seq:
            return
        self._seq = example.seq
        decision, spec = example.decision, self._guard.spec
        self._now = max(self._now, decision.decided_at)
        rated = _read(example, spec, self._rule)
        is_new = decision.decided_at >= self._since
        if (
            rated is not None
            and is_new
            and (rated.seq > self._counted[0] or rated.deadline > self._counted[1])
        ):
            heappush(self._waiting, rated)
        while self._waiting and (self._waiting[0].deadline <= self._now or len(self._waiting) > MOST_WAITING):
            self._count(heappop(self._waiting))

    def _count(self, rated: "_Rated") -> None:
        self._until = max(self._until, rated.deadline)
        fall = self._guard.see(
            rated.name,
            rated.share,
            drawn=rated.drawn,
            quality=rated.quality,
            example_seq=rated.seq,
        )
        if fall is not None:
            logger.warning("%s", fall)
            self._falls.append(fall)

    def report(self) -> None:
        """Write falls since the last call, and now and then the state.

        Raises:
            SupersededError: Another learner has taken over.
            LogUnavailableError: Try again later.
        """
        if not self._falls and self._seq < self._written + EVERY:
            return
        state = {
            **self._guard.document(),
            "since": self._since,
            "seq": min([self._seq, *(rated.seq - 1 for rated in self._waiting)]),
            "written": self._seq,
            "until": None if self._until == -inf else self._until,
        }
        guards.publish(self._store, self._epoch, self._name, state, self._falls, self._clock())
        self._falls, self._written = [], self._seq


class _Rated(NamedTuple):
    """A rated answer that waits for its deadline, in order."""

    deadline: float
    seq: int
    name: str
    share: float
    drawn: bool
    quality: float


def _read(example: Example, spec: GuardSpec, rule: RewardRule) -> _Rated | None:
    """Return what a guard sees of an example; None: it says nothing of the reference beside other arms.

    Failures are left out: each of them has an example, and an answer only if it is rated.
    """
    decision = example.decision
    quality = None if example.failed else rule.quality(example.metrics)
    if quality is None or decision.erased or decision.mode is not Mode.EXPLORE:
        return None
    if decision.policy in NOT_SERVED or len(decision.probabilities) != len(decision.arms):
        return None
    if spec.reference not in decision.arms:
        return None
    return _Rated(
        decision.deadline,
        example.seq,
        spec.find_class(decision.context.features),
        decision.probabilities[decision.arms.index(spec.reference)],
        decision.drawn == spec.reference,
        min(1.0, max(0.0, quality)),
    )
