"""Signals about an answer that the service observes by itself, written to the log as feedback.

    a turn --> queue --> the turn before it, from the log --> feedback on that turn

A signal is written only if the reward names it, by one metric. It is a fact of its own, with an id that
depends on the signal and the decision alone: whatever replica observes it, and however often, it is written
once. Either value of a signal is written at the same moment, so that when a decision is learned does not
depend on its value. Queues and waiting turns are bounded; what exceeds them is not observed.

A caller can cause a signal at will, so it says something only of answers to the same caller, and counts
in the share of this rater. What a check of the operator says is not limited.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, ClassVar, Self, TypeVar

from typing_extensions import override

from armwise.agent import wings
from armwise.agent.turn.ask import Ask
from armwise.agent.turn.record import is_text
from armwise.agent.turn.steps.base import Commit, TurnStep
from armwise.agent.turn.steps.workers import Workers
from armwise.arms.base import Passage
from armwise.arms.llm import Message
from armwise.feedback.answer_metrics import words
from armwise.feedback.errors import ConflictError, StoreError
from armwise.feedback.events import REFUSALS, SIGNAL, Decision, Execution, Feedback
from armwise.feedback.reward import SCORES, RewardRule, Signal

logger = logging.getLogger(__name__)

T = TypeVar("T")

QUEUE = 1000
"""Most turns that wait to be looked at; more are not observed."""

ANSWERS = 20
"""Most answers to one caller that wait to be validated; more are not observed."""

WAITING = 10_000
"""Most turns that wait for the next one of their conversation; more are not observed."""

SAME = 0.8
"""Share of words that two questions have in common, of all words of both, from which on they are the same."""

BRIEF_WORDS, BRIEF_CHARACTERS = 3, 6
"""Most words of a last line that must be the same: it may answer what the lines above say.

The second number is for scripts in which every character counts as a word.
"""

READ_TOKENS, WRITTEN_TOKENS = 1000, 250
"""Tokens of the answer by whose price arms are compared."""

TOOL_TEXT = 4000
"""Characters of a result of a function that are read."""

TOOL_WORDS = 50
"""Characters of a result in which it says that it is an error, if it is a text."""

_ERRORS = ("error", "exception", "traceback (most recent call last)")

_ERROR_KEYS = ("error", "is_error", "isError")


def is_same_question(first: str, second: str) -> bool:
    """Return whether two questions are the same, or nearly: they share four fifths of their words.

    If the second one ends with a line of a few words, such as "yes" after what it answers, the first one has
    to be these words, or to end with the same line.

    >>> is_same_question("Which river runs through Vienna?", "which river runs through vienna")
    True
    >>> is_same_question("Which river runs through Vienna?", "Which river runs through Graz?")
    False
    """
    above, _, last = second.rstrip().rpartition("\n")
    above_before, _, last_before = first.rstrip().rpartition("\n")
    line, line_before = words(last), words(last_before)
    is_brief = len(last.split()) <= BRIEF_WORDS and len(line) <= BRIEF_CHARACTERS
    if above and is_brief and (line != line_before or not above_before):
        return line == line_before
    one, other = {*words(first)}, {*words(second)}
    if not one or not other:
        return first.strip() == second.strip()
    return len(one & other) / len(one | other) >= SAME


def reports_error(result: str) -> bool:
    """Return whether a result of a function reports an error.

    It does where it is a JSON object in which `error`, `is_error` or `isError` is neither null, false, zero
    nor empty, or a text that begins with the word error or exception, or with a traceback of Python.

    >>> [reports_error(text) for text in ('{"error": "no such file"}', "Error: 404", "no errors", "{}")]
    [True, True, False, False]
    """
    result = result[:TOOL_TEXT].strip()
    begin = result[:TOOL_WORDS].lower()
    if any(begin.startswith(word) and not begin[len(word) :][:1].isalnum() for word in _ERRORS):
        return True
    try:
        document = json.loads(result)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and any(document.get(key) for key in _ERROR_KEYS)


def last_results(messages: Sequence[Message]) -> list[Message]:
    """Return the results of functions with which a conversation ends, the last one first."""
    return [*takewhile(lambda message: message["role"] == "tool", reversed(messages))]


@dataclass(frozen=True, slots=True)
class _NextTurn:
    """A turn to look at: its request, its decision, and when the turn after it counts as missing."""

    ask: Ask
    decision: Decision
    due: float


@dataclass(frozen=True, slots=True)
class _Known:
    """A signal to write whose value is known: a score of the answer, or how it ended.

    Attributes:
        signal: The signal.
        decision: Decision of the answer.
        value: A number in [0, 1].
    """

    signal: Signal
    decision: Decision
    value: float


@dataclass(frozen=True, slots=True)
class _Formed:
    """An answer to validate, and the schema of its request."""

    decision: Decision
    schema: Mapping[str, Any]
    answer: str


@dataclass
class Signals(TurnStep):
    """Observes turns in the background.

    Attributes:
        metrics: Metric of each signal that the reward names.
        turns: Has the arms and their prices.
        find_previous: Returns the turn before a decision in its conversation.
        is_newest: Returns whether a decision is the newest of its conversation.
        commit: Commits a signal, and returns its receipts.
        telemetry: Counts signals.
        clock: Seconds since the epoch.
        wait_s: Seconds in which feedback counts; after half of them a conversation counts as abandoned.
        workers: Looks at turns in the background.
    """

    name: ClassVar[str] = "signals"

    metrics: Mapping[Signal, str]
    turns: Any
    find_previous: Callable[[Decision], Awaitable[Any]]
    is_newest: Callable[[Decision], Awaitable[bool]]
    commit: Commit
    telemetry: Any
    clock: Callable[[], float]
    wait_s: float
    workers: Workers
    _queue: deque[_NextTurn | _Known] = field(default_factory=deque)
    _answers: dict[str | None, deque[_Formed]] = field(default_factory=dict)
    _waiting: deque[_NextTurn] = field(default_factory=deque)

    @override
    def follow(self, ask: Ask, decision: Decision) -> None:
        """Queue a turn whose decision is durable, if a signal may follow from it; returns at once."""
        if self.workers.stopped or not self.metrics or decision.episode_id is None:
            return
        turn = _NextTurn(ask, decision, asyncio.get_running_loop().time() + self.wait_s / 2)
        if self.metrics.keys() & {Signal.RETRY, Signal.ESCALATION, Signal.TOOL_ERROR}:
            self._add(self._queue, turn, QUEUE)
            self.workers.start("signals", self._observe_queue)
        if Signal.ABANDONED in self.metrics:
            self._add(self._waiting, turn, WAITING)
            self.workers.start("abandoned", self._observe_waiting)

    def offer_score(self, signal: Signal, decision: Decision, score: float) -> None:
        """Queue a check's or a model's score of the answer to a decision, in [0, 1]; returns at once."""
        self._offer_known(_Known(signal, decision, score))

    def _offer_known(self, known: _Known) -> None:
        if not self.workers.stopped and known.signal in self.metrics:
            self._add(self._queue, known, QUEUE)
            self.workers.start("signals", self._observe_queue)

    @classmethod
    def build(
        cls,
        *,
        reward: RewardRule,
        turns: Any,
        find_previous: Callable[[Decision], Awaitable[Any]],
        is_newest: Callable[[Decision], Awaitable[bool]],
        commit: Commit,
        telemetry: Any,
        clock: Callable[[], float],
        workers: Workers,
    ) -> Self:
        """Return the step of a service."""
        find = turns, find_previous, is_newest, commit
        return cls(reward.signals, *find, telemetry, clock, reward.wait_s, workers)

    @override
    def finish(self, ask: Ask, decision: Decision, execution: Execution, passages: Sequence[Passage]) -> None:
        """Queue what an answer that is complete says: how it ended, and whether it satisfies a schema.

        Returns at once.
        """
        score = execution.stages[-1].get("score") if execution.stages else None
        if isinstance(score, int | float):
            self.offer_score(Signal.CHECK, decision, float(score))
        if execution.finish_reason:
            refused = execution.finish_reason in REFUSALS
            self._offer_known(_Known(Signal.REFUSED, decision, float(refused)))
        if self.workers.stopped or Signal.SCHEMA_ERROR not in self.metrics or not execution.answer:
            return
        form = ask.document.options.get("response_format") or {}
        schema = (form.get("json_schema") or {}).get("schema")
        if isinstance(schema, Mapping) and is_text(execution.answer):
            waiting = self._answers.get(decision.asked_by, deque())
            is_full = sum(map(len, self._answers.values())) >= QUEUE
            self._add(waiting, _Formed(decision, schema, execution.answer), 0 if is_full else ANSWERS)
            if waiting:
                self._answers[decision.asked_by] = waiting
                self.workers.start("answers", self._validate_answers)

    def _add(self, queue: deque[T], item: T, most: int) -> None:
        if len(queue) < most:
            queue.append(item)
        else:
            self.telemetry.count_observation("shed")

    async def _observe_queue(self) -> None:
        while self._queue:
            item = self._queue.popleft()
            with _warning():
                if isinstance(item, _Known):
                    cause = None if item.signal in SCORES else item.decision
                    await self.report(item.signal, item.decision.id, item.value, cause)
                else:
                    await self._observe(item.ask, item.decision)

    async def _validate_answers(self) -> None:
        """Write of each waiting answer whether it fails its schema, if that can be known.

        A schema can take seconds: nothing else waits for it, and callers have their turns one by one.
        """
        satisfies = wings.load(wings.SATISFIES_SCHEMA)
        while self._answers:
            asker, waiting = next(iter(self._answers.items()))
            item = waiting.popleft()
            del self._answers[asker]
            if waiting:
                self._answers[asker] = waiting  # after all others
            valid: bool | None = await asyncio.to_thread(satisfies, item.schema, item.answer)
            if valid is not None:
                with _warning():
                    await self.report(Signal.SCHEMA_ERROR, item.decision.id, float(not valid), item.decision)

    async def _observe_waiting(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._waiting[0].due - asyncio.get_running_loop().time())
            decision = self._waiting.popleft().decision
            with _warning():
                last = await self.is_newest(decision)
                await self.report(Signal.ABANDONED, decision.id, float(last), decision)

    async def _observe(self, ask: Ask, decision: Decision) -> None:
        """Write what a turn says of an earlier one."""
        if results := last_results(ask.messages):
            if ask.called is not None:
                failed = any(one.get("is_error") or reports_error(one["content"]) for one in results)
                await self.report(Signal.TOOL_ERROR, ask.called, float(failed), decision)
            return  # the answer to the same question goes on
        if not self.metrics.keys() & {Signal.RETRY, Signal.ESCALATION}:
            return
        before = await self.find_previous(decision)
        if before is None:
            return
        asked_again = is_same_question(before.question, ask.question)
        await self.report(Signal.RETRY, before.decision_id, float(asked_again), decision)
        escalated = self._escalates(ask, before)
        await self.report(Signal.ESCALATION, before.decision_id, float(escalated), decision)

    def _escalates(self, ask: Ask, before: Any) -> bool:
        """Return whether a request allows only arms that are dearer than the one that answered before."""
        arms = self.turns.known
        if ask.forced is None and ask.allowed is None and not ask.excluded:
            return False  # the policy chose
        allowed = (
            {ask.forced} if ask.forced is not None else (ask.allowed or {*self.turns.arms}) - ask.excluded
        )
        prices = [self._price(arm) for arm in allowed if arm in arms]
        return bool(prices) and before.served in arms and min(prices) > self._price(before.served)

    def _price(self, arm: str) -> float:
        """Return the dollars of an answer of a usual length by an arm."""
        info = self.turns.known[arm]
        model = self.turns.writer.models.get(info.answering.llm)
        answer = 0.0 if model is None else model.prices.compute_usd(READ_TOKENS, WRITTEN_TOKENS)
        return float(answer + info.bound.search_usd)

    async def report(
        self, signal: Signal, decision_id: str, value: float, cause: Decision | None = None
    ) -> None:
        """Commit a signal on a decision, if the reward names it and none is there.

        Args:
            signal: The signal.
            decision_id: The decision.
            value: A number in [0, 1].
            cause: Decision of the request that caused it; None: a check of the operator did.

        Raises:
            StoreError: It could not be committed, or the decision has as much feedback as it may.
        """
        if (metric := self.metrics.get(signal)) is None:
            return
        tags = {} if cause is None or cause.id == decision_id else {"next": cause.id}
        fact = Feedback(
            id=f"{SIGNAL}{signal.value}:{decision_id}",
            decision_id=decision_id,
            metric=metric,
            value=value,
            received_at=self.clock(),
            tags={"signal": signal.value, **tags},
            source="operator" if cause is None else "user",
            rater="" if cause is None else cause.asked_by,
        )
        with suppress(ConflictError):  # an earlier turn has said otherwise: a signal is written once
            (receipt,) = await self.commit(fact)
            self.telemetry.count_feedback(fact, receipt)


@contextmanager
def _warning() -> Iterator[None]:
    """Log an error of the log instead of raising it, so that the work on a queue goes on."""
    try:
        yield
    except StoreError as error:
        logger.warning("a signal was not written: %s", error)
