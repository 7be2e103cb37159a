"""The guard over a training log: it sees each example that has a quality, once."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator

from armwise.feedback.events import NOT_SERVED, Example, Mode
from armwise.feedback.guard import Fall, Guard, GuardSpec
from armwise.feedback.log import Store
from armwise.feedback.registry import guards
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import read_learned_examples, read_position

logger = logging.getLogger(__name__)

EVERY = 1000
"""Examples after which the state is written; after a restart, those since are read again."""


class GuardKeeper:
    """Folds examples into the state of a guard, continuing from its newest one.

    A new guard starts at the end of the training log.

    Args:
        store: The log.
        rule: Gives the quality of an answer.
        spec: The guard.
        epoch: The right to write, from `take_epoch`.
        learned: Position of the training log after which `over` will see examples.
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
        self._falls = list[Fall]()
        state = guards.read_state(store, self._name)
        if state is None:
            with store.reading() as connection:
                self._since = self._seq = read_position(connection, rule.join).examples_seq
            self._guard, self._written = Guard(spec), -EVERY
            return
        self._guard = Guard.from_document(spec, state)
        self._since, self._seq = state["since"], state["seq"]
        self._written = self._seq
        for example in read_learned_examples(store, rule, None, self._seq, learned):
            self.see(example)

    def over(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yield the next examples, each after it was seen."""
        for example in examples:
            self.see(example)
            yield example

    def see(self, example: Example) -> None:
        """Add an example, unless it was seen before."""
        if example.seq <= self._seq:
            return
        self._seq = example.seq
        decision, spec = example.decision, self._guard.spec
        quality = self._rule.failed if example.failed else self._rule.quality(example.metrics)
        share = dict(zip(decision.arms, decision.probabilities, strict=False)).get(spec.reference, 0.0)
        if quality is None or decision.erased or decision.mode is not Mode.EXPLORE:
            return
        if decision.policy in NOT_SERVED or len(decision.probabilities) != len(decision.arms):
            return
        fall = self._guard.see(
            spec.find_class(decision.context.features),
            share,
            drawn=decision.drawn == spec.reference,
            quality=min(1.0, max(0.0, quality)),
            example_seq=example.seq,
            at=min(self._clock(), decision.deadline),
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
        state = {**self._guard.document(), "since": self._since, "seq": self._seq}
        guards.publish(self._store, self._epoch, self._name, state, self._falls, self._clock())
        self._falls, self._written = [], self._seq
