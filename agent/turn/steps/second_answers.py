"""Observe a sample of finished turns in the background: answers of other arms, and grades of a model.

    a finished turn --sampled--> queue --workers--> other arms answer; the language model compares --> the log
                                             `----> the language model grades --> the signal `grade`

Where the reward names the signal `check`, every answer is checked that was not checked before it was sent.

Concurrency, queue and hourly spending are bounded, and work begins only while the language model has a place
to spare for a request. The queue is lost when the process ends. The operator pays: keys are not charged.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any, ClassVar, Self

from typing_extensions import override

from armwise.agent.policies import sampling
from armwise.agent.turn.ask import Ask
from armwise.agent.turn.checked import CheckedAnswering, check_texts
from armwise.agent.turn.eligibility import OverloadedError
from armwise.agent.turn.places import Places
from armwise.agent.turn.price import LanguageModel
from armwise.agent.turn.record import Decided, Finished, TurnError, is_text
from armwise.agent.turn.steps.base import Commit, TurnStep
from armwise.agent.turn.steps.workers import Workers
from armwise.arms.base import ArmError, Passage
from armwise.arms.llm import Chunk, GeneratorError, Prompt, Write, base, judge, structured_output, writing
from armwise.feedback.answer_metrics import words
from armwise.feedback.errors import StoreError, describe_error
from armwise.feedback.events import Cost, Decision, Execution, Mode, Observation, ObservationSource, Status
from armwise.feedback.reward import SCORES, RewardRule, Signal

logger = logging.getLogger(__name__)

HOUR_S = 3600.0

SECOND = "shadow"
"""Use of the number that samples decisions for second answers."""

QUEUE = 32
"""Most questions that wait; more are not observed."""

PATIENCE_S, PAUSE_S = 10.0, 0.05
"""Seconds that an observation waits for a spare place of the language model, and between two checks."""


@dataclass(frozen=True, slots=True)
class _Finished:
    """A finished turn to observe.

    Attributes:
        ask: The question.
        decision: Decision of the turn.
        execution: Execution that answered the user.
        passages: Passages that the answer was written from.
        arm: Another arm that is to answer as well.
        graded: Whether the answer is to be graded.
        check: Check of the answer, whose result is a metric; None: there is none, or it is known already.
    """

    ask: Ask
    decision: Decision
    execution: Execution
    passages: Sequence[Passage]
    arm: str | None
    graded: bool
    checked: CheckedAnswering | None = None

    @property
    def unprompted(self) -> "_Finished | None":
        """The part of the work that prompts no language model; None: all of it does."""
        if self.checked is None or self.checked.check.llm is not None:
            return None
        return replace(self, arm=None, graded=False) if self.arm or self.graded else self


@dataclass
class SecondAnswers(TurnStep):
    """Samples finished turns, and observes them in the background.

    Attributes:
        spec: Shares of turns to observe, and limits.
        turns: Answers a question again; its default language model is the judge.
        commit: Commits an observation.
        places: Places of the language model.
        telemetry: Counts observations.
        offer_score: Takes what a check or a grade says of an answer.
        scores: Signals of scores that the reward names.
        workers: Observes turns in the background.
        timer: Monotonic seconds.
    """

    name: ClassVar[str] = "second_answers"

    spec: Any
    turns: Any
    commit: Commit
    places: Places
    telemetry: Any
    offer_score: Callable[[Signal, Decision, float], object]
    scores: frozenset[Signal]
    workers: Workers
    timer: Callable[[], float] = time.monotonic
    _queue: deque[_Finished] = field(default_factory=deque)
    _spent: deque[tuple[float, int, float]] = field(default_factory=deque)

    @override
    def finish(self, ask: Ask, decision: Decision, execution: Execution, passages: Sequence[Passage]) -> None:
        """Queue a turn if it is sampled and there is room; returns at once, and drops the turn otherwise."""
        if decision.mode is not Mode.EXPLORE or execution.status is not Status.OK or not execution.answer:
            return
        if ask.document.options.get("tools") or not is_text(execution.answer):
            return  # function calls, or several choices: there is no single answer to compare
        arm = self.draw_other(decision) if self.is_sampled(decision, SECOND, self.spec.shadow) else None
        graded = Signal.GRADE in self.scores and self.is_sampled(decision, "judge", self.spec.judge)
        checked = self._find_check(execution)
        if self.workers.stopped or not (arm or graded or checked):
            return
        turn = _Finished(ask, decision, execution, passages, arm, graded, checked)
        if len(self._queue) >= QUEUE or (self._is_exhausted() and turn.unprompted is None):
            self.telemetry.count_observation("shed")
            return
        self._queue.append(turn)
        self.workers.start(self.name, self._work)  # a replica observes one question at a time

    def _find_check(self, execution: Execution) -> CheckedAnswering | None:
        """Return the check that is still to be made of an answer."""
        if Signal.CHECK not in self.scores:
            return None
        if execution.stages and execution.stages[-1].get("score") is not None:
            return None  # it was checked before it was sent
        return next((info.checked for info in self.turns.arms.values() if info.checked is not None), None)

    @classmethod
    def build(
        cls,
        *,
        observations: Any,
        turns: Any,
        commit: Commit,
        places: Places,
        telemetry: Any,
        reward: RewardRule,
        workers: Workers,
        earlier: Mapping[str, Any],
    ) -> Self:
        """Return the step of a service."""
        signals = earlier.get("signals")
        offer_score = (lambda *_: None) if signals is None else signals.offer_score
        scores = frozenset(() if signals is None else SCORES) & reward.signals.keys()
        return cls(observations, turns, commit, places, telemetry, offer_score, scores, workers)

    def _uniform(self, decision: Decision, use: str) -> float:
        """Return a number in [0, 1) hashed from the decision, the use and the secret of the log."""
        return sampling.uniform_from(decision.id, f"{self.turns.decider.salt}/{use}")

    def is_sampled(self, decision: Decision, use: str, share: float) -> bool:
        """Whether a decision is in the sample for a use; a function of its id and the secret."""
        return self._uniform(decision, use) < share

    def draw_other(self, decision: Decision) -> str | None:
        """Draw another eligible arm uniformly; None: there is none."""
        others = (arm for arm in decision.arms if arm != decision.drawn)
        return min(others, key=lambda arm: self._uniform(decision, f"second/{arm}"), default=None)

    def _is_exhausted(self) -> bool:
        """Whether the spending of the last hour has reached a limit."""
        while self._spent and self._spent[0][0] <= self.timer() - HOUR_S:
            self._spent.popleft()
        tokens, usd = sum(n for _, n, _ in self._spent), sum(usd for *_, usd in self._spent)
        spec = self.spec
        return (spec.tokens_per_hour is not None and tokens >= spec.tokens_per_hour) or (
            spec.usd_per_hour is not None and usd >= spec.usd_per_hour
        )

    async def _work(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            left: _Finished | None = turn
            if turn.unprompted is not turn and (self._is_exhausted() or not await self._room()):
                self.telemetry.count_observation("shed")
                left = turn.unprompted
            try:
                if left is not None:
                    await self._observe(left)
            except OverloadedError:
                self.telemetry.count_observation("shed")
            except Exception:
                logger.exception("decision %s could not be observed", turn.decision.id)
                self.telemetry.count_observation("failed")

    async def _room(self) -> bool:
        """Wait for a spare place; return whether there is one."""
        until = self.timer() + PATIENCE_S
        while not self.places.spare:
            if self.timer() >= until:
                return False
            await asyncio.sleep(PAUSE_S)
        return True

    async def _observe(self, turn: _Finished) -> None:
        if (arm := turn.arm) is not None:
            info = self.turns.arms.get(arm)
            if info is not None and info.enabled and self.turns.decider.health.available([arm]):
                await self._commit(await self._second(turn, arm))
            else:
                self.telemetry.count_observation("shed")
        if turn.graded:
            await self._grade(turn)
        if turn.checked is not None:
            await self._check(turn, turn.checked)

    async def _check(self, turn: _Finished, checked: CheckedAnswering) -> None:
        """Check the answer of the user, and report what is said of it."""
        spent = list[Chunk]()

        async def prompt_model(name: str, prompt: Prompt) -> tuple[str, Chunk]:
            async with asyncio.timeout(self.turns.writer.timeout_s):
                text, last = await base.complete(self.turns.writer.models[name].generator, prompt)
            spent.append(last)
            return text, last

        given = [turn.execution.answer or ""]
        try:
            async with self.places.hold() if checked.check.llm is not None else nullcontext():
                result = await check_texts(checked, turn.ask.question, turn.passages, given, prompt_model)
        except (ArmError, GeneratorError, TimeoutError):
            self.telemetry.count_observation("failed")
        else:
            self.offer_score(Signal.CHECK, turn.decision, result.score)
            self.telemetry.count_observation("check")
        self._note_spent(*spent)

    async def _commit(self, observation: Observation) -> None:
        self._note_spent(observation.cost, observation.judge_cost)
        with suppress(StoreError):  # if the log is unavailable, turns fail and report it
            await self.commit(observation)
            self.telemetry.count_observation("failed" if observation.error else observation.source.value)

    def _note_spent(self, *spent: Chunk | Cost) -> None:
        tokens = sum(one.prompt_tokens + one.completion_tokens for one in spent)
        self._spent.append((self.timer(), tokens, sum(one.usd for one in spent)))

    async def _second(self, turn: _Finished, arm: str) -> Observation:
        """Have another arm answer, and its answer compared with that of the user."""
        decision, given = turn.decision, turn.execution.answer or ""
        async with self.places.hold():
            done, passages = await answer_with(self.turns, turn.ask, decision, arm)
            observation = Observation(
                decision.id,
                ObservationSource.SHADOW,
                arm,
                self.spec.shadow,
                1 / (len(decision.arms) - 1),
                cost=done.cost,
                swapped=self._uniform(decision, f"order/{arm}") < 0.5,
                passages=done.passages,
                answer=done.answer,
                error=done.error,
                observed_at=done.finished_at,
            )
            if done.status is not Status.OK or done.answer is None:
                return observation
            if words(given) == words(done.answer):  # no judge is needed
                return replace(observation, value=0.0)
            pair = ((given, turn.passages), (done.answer, passages))
            (first, of_first), (second, of_second) = pair[::-1] if observation.swapped else pair
            ask = partial(
                judge.prefer,
                question=turn.ask.question,
                passages=merge_passages(of_first, of_second),
                first=first,
                second=second,
                reasoning_tokens=self._reasoning_tokens,
            )
            value, cost, error = await self._judge(ask)
        observation = replace(
            observation,
            value=value,
            judge=self._judging.model,
            judge_cost=cost,
            error=error,
            observed_at=self.turns.decider.clock(),
        )
        if observation.value is None or observation.swapped:  # 1: the judge prefers the first answer
            return observation
        return replace(observation, value=-observation.value)

    async def _grade(self, turn: _Finished) -> None:
        """Have the answer of the user graded, and report the grade."""
        ask = partial(
            judge.grade,
            rubric=judge.ANSWER,
            question=turn.ask.question,
            passages=turn.passages,
            answer=turn.execution.answer,
            reasoning_tokens=self._reasoning_tokens,
        )
        async with self.places.hold():
            grade, cost, error = await self._judge(ask)
        self._note_spent(cost)
        if grade is None:
            logger.warning("decision %s was not graded: %s", turn.decision.id, error)
        else:
            self.offer_score(Signal.GRADE, turn.decision, grade)
        self.telemetry.count_observation("failed" if grade is None else "judge")

    @property
    def _judging(self) -> base.Generator:
        generator: base.Generator = self.turns.writer.models[writing.DEFAULT].generator
        return generator

    @property
    def _reasoning_tokens(self) -> int:
        """Room for the thoughts of the judge."""
        return leave_room_to_think(self.turns.writer.models[writing.DEFAULT])

    async def _judge(self, ask: Callable[[Write], judge.Grade[float]]) -> tuple[float | None, Cost, str]:
        """Return the verdict of a judge, who runs in a thread, its cost, and why there is none."""
        generator = self._judging
        loop, spent = asyncio.get_running_loop(), list[Chunk]()
        pending: list[Future[tuple[str, Chunk]]] = []
        stopped = False

        async def answer(prompt: Prompt) -> tuple[str, Chunk]:
            async with asyncio.timeout(self.turns.writer.timeout_s):
                return await base.complete(generator, prompt)

        def write(prompt: Prompt) -> tuple[str, Chunk]:
            if stopped:
                raise GeneratorError("observation has stopped")
            pending.append(asyncio.run_coroutine_threadsafe(answer(prompt), loop))
            text, last = pending[-1].result()
            spent.append(last)
            return text, last

        started, value, error = self.timer(), None, ""
        try:
            value = (await asyncio.to_thread(ask, write)).grade
        except (ArmError, GeneratorError, TimeoutError) as failure:
            error = describe_error(failure)
        except asyncio.CancelledError:
            stopped = True
            for future in pending:  # its thread would otherwise wait for a loop that has ended
                future.cancel()
            raise
        cost = Cost(
            prompt_tokens=sum(chunk.prompt_tokens + chunk.completion_tokens for chunk in spent),
            llm_s=self.timer() - started,
            usd=sum(chunk.usd for chunk in spent),
        )
        return value, cost, error


async def answer_with(
    turns: Any, ask: Ask, decision: Decision, arm: str
) -> tuple[Execution, Sequence[Passage]]:
    """Return how an arm answers a request whose decision is made, and its passages; nothing is logged."""
    passages: Sequence[Passage] = ()
    try:
        async for event in turns.repeat(ask, decision, arm, charge=lambda *_: None):
            if isinstance(event, Decided):
                passages = event.retrieval.passages
            elif isinstance(event, Finished):
                return event.execution, passages
    except TurnError as error:
        return error.execution, passages
    raise AssertionError("a turn ends with how it ended")


def merge_passages(of_first: Sequence[Passage], of_second: Sequence[Passage]) -> list[Passage]:
    """Return the passages of two answers, one of each in turn, and each passage once."""
    both = (passage for pair in zip_longest(of_first, of_second) for passage in pair if passage is not None)
    return list({passage.id: passage for passage in both}.values())


def leave_room_to_think(model: LanguageModel) -> int:
    """Return the tokens for the thoughts of a judge behind an endpoint: only endpoints take hints."""
    return structured_output.REASONING_TOKENS if base.HINTS & model.options else 0
