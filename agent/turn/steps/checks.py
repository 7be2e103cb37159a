"""Checks: an answer is checked before it is sent, and another language model answers if it fails."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import ClassVar, Self

from armwise.agent.policies import sampling
from armwise.agent.turn.answer import AnswerInProgress, failing_as
from armwise.agent.turn.checked import SAID, AnswerStage, CheckedAnswering, check_texts
from armwise.agent.turn.record import Choices
from armwise.agent.turn.steps.base import TurnStep
from armwise.arms.base import ArmError
from armwise.arms.llm import Chunk, GeneratorError
from armwise.feedback.errors import describe_error


class CheckStep(TurnStep):
    """Writes the answers of arms that have a check.

    Args:
        salt: Secret that enters the hash of the draw, with which a coin may overrule a check.
    """

    name: ClassVar[str] = "checks"

    def __init__(self, salt: str) -> None:
        self._salt = salt

    @classmethod
    def build(cls, *, salt: str) -> Self:
        """Return the step of a service."""
        return cls(salt)

    def write(self, writing: AnswerInProgress) -> AsyncGenerator[Chunk, None] | None:
        """Return the answer of an arm that has a check; None: it has none."""
        info = writing.info
        if info.checked is None or info.answering.llm not in writing.writer.models:
            return None
        return self._write(writing, info.checked)

    async def _write(
        self, writing: AnswerInProgress, checked: CheckedAnswering
    ) -> AsyncGenerator[Chunk, None]:
        """Generate an answer, and send it once it passes its check; otherwise generate another one.

        An answer that calls functions is not checked. If the first model fails, the second one answers.
        """
        recorder, how = writing.recorder, writing.info.answering
        draft, failure = list[Chunk](), None
        try:
            async with aclosing(writing.write_with(how)) as chunks:
                draft += [chunk async for chunk in chunks]
        except GeneratorError as error:
            failure = error
        stage = AnswerStage((checked.first,), how.llm)
        if failure is not None:
            stage = replace(stage, failed=stage.arms, said=describe_error(failure)[:SAID], goes_on=True)
        elif not any(chunk.tool_calls for chunk in draft):
            stage = await self._check(writing, checked, stage)
        recorder.answers.append(stage)
        if not stage.goes_on:
            for chunk in draft:
                yield chunk
            return
        recorder.abandon(failure)
        recorder.written = None  # the next one may be a quotation, which begins no answer of a model
        recorder.answers.append(AnswerStage((checked.then,), checked.answering.llm))
        async with aclosing(writing.write_with(checked.answering)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _check(
        self, writing: AnswerInProgress, checked: CheckedAnswering, stage: AnswerStage
    ) -> AnswerStage:
        """Return the stage of an answer with what its check says; one that cannot be checked has failed."""
        ask, recorder = writing.ask, writing.recorder
        texts = [choice.text for choice in (recorder.written or Choices()).all]
        started = time.perf_counter()
        try:
            async with asyncio.timeout_at(recorder.llm_until or None):
                with failing_as(ArmError):
                    result = await check_texts(checked, ask.question, writing.passages, texts, writing.prompt)
        except (ArmError, GeneratorError) as error:
            return replace(stage, said=f"not checked: {describe_error(error)}"[:SAID], goes_on=True)
        finally:
            recorder.llm_s += time.perf_counter() - started
        u = sampling.uniform_from(ask.continues or ask.decision_id, f"{self._salt}/check")
        goes_on, p = checked.decide(result.score, u)
        return replace(
            stage,
            score=result.score,
            said=result.said,
            threshold=checked.threshold,
            goes_on=goes_on,
            probability=p,
        )
