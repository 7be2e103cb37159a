"""The answer of a turn: a prompt of the passages and the conversation, and what the language model writes.

A step may write in its place, such as one that checks an answer before it is sent.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from armwise.agent.turn.ask import Ask
from armwise.agent.turn.eligibility import ArmInfo
from armwise.agent.turn.health import ArmHealth, ReportOutcome, llm_key
from armwise.agent.turn.price import LanguageModel, limit_tokens
from armwise.agent.turn.record import CallNames, Choices, TurnRecorder, read_usage, tokens_in
from armwise.agent.turn.steps import TurnStep
from armwise.arms.base import ArmError, Passage
from armwise.arms.large import call_beside
from armwise.arms.llm import (
    PROTOCOLS,
    QUOTED_TOKENS,
    Chunk,
    GeneratorError,
    Prompt,
    Request,
    base,
    prompts,
    quote,
    writing,
)

logger = logging.getLogger(__name__)


def write_prompt(
    ask: Ask,
    passages: Sequence[Passage],
    how: writing.Answering,
    template: prompts.Template,
    model: LanguageModel,
) -> Prompt:
    """Return the prompt for the language model; parameters of the request override those of the arm.

    Args:
        ask: The request.
        passages: Passages of the arm, best first.
        how: How answers of the arm are written.
        template: The instructions of the arm. A request with tools and instructions of its own, as agents
            send, is not instructed to answer in a short sentence.
        model: The language model.
    """
    document = ask.document
    is_instructed = any(one["role"] == "system" and one["content"] for one in ask.messages)
    options = {} if how.reasoning is None else {"reasoning_effort": how.reasoning}
    options |= document.options
    if how.prompt == prompts.Form.DIRECT and document.options.get("tools") and is_instructed:
        template = prompts.AGENT
    text = prompts.write_instructions(passages, word_budget=how.word_budget, template=template, cite=how.cite)
    unnamed = limit_tokens(ask, how) if model.protocol else how.max_tokens
    given = model.options | base.HINTS if model.protocol else model.options
    return Prompt(
        prompts.add_instructions(ask.messages, text),
        max_tokens=unnamed if document.max_tokens is None else document.max_tokens,
        temperature=how.asked_temperature if document.temperature is None else document.temperature,
        top_p=1.0 if document.top_p is None else document.top_p,
        seed=document.seed,
        stop=document.stop,
        options={name: value for name, value in options.items() if name in given},
        request=_without_foreign_state(ask, how.llm) if model.protocol else None,
        instructions=text,
        sets_limit=how.limit is not None or document.limited,
        streams=document.streams,
        headers=document.headers if document.needs.protocol == model.protocol else {},
    )


def _without_foreign_state(ask: Ask, llm: str) -> Request | None:
    """Return the request without the reasoning and the other state of models that are not this one."""
    if ask.document.request is None or not ask.document.writers:
        return ask.document.request

    def is_foreign(mark: str) -> bool:
        return ask.document.writers.get(mark, llm) != llm

    request = ask.document.request
    return replace(request, body=PROTOCOLS[request.protocol].without_state(request.body, is_foreign))


def reasons_first(ask: Ask, how: writing.Answering) -> bool:
    """Return whether the model gives reasons before its answer, which alone is sent.

    Tools, a form, several choices, log-probabilities and stop texts of a request would apply to the reasons.
    """
    plain = not ask.document.stop and ask.document.options.keys() <= base.HINTS | base.SAMPLING
    return plain and how.prompt == prompts.Form.REASONING


@contextmanager
def failing_as(kind: type[ArmError] | type[GeneratorError]) -> Iterator[None]:
    """Turn unexpected exceptions of an arm or a language model into `kind`, and log them."""
    try:
        yield
    except (ArmError, GeneratorError, TimeoutError):
        raise
    except Exception as error:
        logger.exception("a turn failed: %s", kind.__name__)
        raise kind(f"{type(error).__name__}: see the service's log") from error


@contextmanager
def report_model(
    report: ReportOutcome, model: str, on_refusal: Callable[[str, str], object] = lambda *_: None
) -> Iterator[None]:
    """Report how a call of a language model ended; cancelled calls and refused prompts are left out."""
    key = (llm_key(model),)
    try:
        yield
    except base.PromptRefusedError:
        raise
    except base.GeneratorBusyError as error:
        report(resting=key, rest_s=error.retry_after_s)
        raise
    except (GeneratorError, TimeoutError) as error:
        asked = isinstance(error, base.GeneratorRefusedError) and error.may_be_asked_for
        report(**{"refused" if asked else "failed": key})
        if isinstance(error, base.GeneratorRefusedError):
            on_refusal(model, str(error))
        raise
    report(worked=key)
    on_refusal(model, "")


@dataclass(slots=True)
class AnswerWriter:
    """What writes the answers of a replica.

    Attributes:
        models: Language models by the names that arms use; empty to retrieve only.
        health: Circuit breakers and places of the models.
        templates: Prompts by the names that arms use; other names mean the first form of
            `armwise.arms.llm.prompts`.
        steps: The steps of a turn, which may write in the place of a model.
        timeout_s: Seconds that the models may take in a turn.
        on_refusal: Called after each call of a language model, with its name, and why its endpoint refuses
            the service; empty if it does not.
    """

    models: Mapping[str, LanguageModel]
    health: ArmHealth
    templates: Mapping[str, prompts.Template] = field(default_factory=dict)
    steps: Sequence[TurnStep] = ()
    timeout_s: float = 120.0
    on_refusal: Callable[[str, str], object] = lambda *_: None

    def write(
        self, ask: Ask, passages: Sequence[Passage], recorder: TurnRecorder
    ) -> AsyncGenerator[Chunk, None]:
        """Write the answer from the passages, chunk by chunk; empty if the arm has no language model."""
        answer = AnswerInProgress(self, ask, passages, recorder)
        for step in self.steps:
            if (chunks := step.write(answer)) is not None:
                return chunks
        return answer.write_once()


@dataclass(frozen=True, slots=True)
class AnswerInProgress:
    """An answer being written.

    Attributes:
        writer: What writes it.
        ask: The request.
        passages: Passages that it is written from.
        recorder: Records the turn.
    """

    writer: AnswerWriter
    ask: Ask
    passages: Sequence[Passage]
    recorder: TurnRecorder

    @property
    def info(self) -> ArmInfo:
        """The arm that serves."""
        return self.recorder.arms[self.recorder.served or self.recorder.decision.drawn]

    def write_once(self) -> AsyncGenerator[Chunk, None]:
        """Write the answer in the way of the arm, or take the one that the arm has written itself."""
        info, written = self.info, self.recorder.retrieval.answer
        if info.checked is None and _takes_as_written(self.ask, info.answering, written):
            return self._say(written)
        return self.write_with(info.answering)

    async def _say(self, text: str) -> AsyncGenerator[Chunk, None]:
        chunk = Chunk(text, "stop")
        self.recorder.note(chunk)
        yield chunk

    async def write_with(self, how: writing.Answering) -> AsyncGenerator[Chunk, None]:
        """Generate an answer in one way, chunk by chunk; empty if there is no such language model."""
        ask, passages, writer = self.ask, self.passages, self.writer
        free = (
            not ask.document.options
            and not ask.document.stop
            and (ask.document.max_tokens or QUOTED_TOKENS) >= QUOTED_TOKENS
        )
        if how.quote and self.info.searches and free:
            async for quoted in self._say(quote(ask.question, passages, self.info.sources)):
                yield quoted
            return
        model = writer.models.get(how.llm)
        if model is None:
            return
        reasons = reasons_first(ask, how)
        if how.prompt == prompts.Form.REASONING and not reasons:
            how = how.model_copy(update={"prompt": prompts.Form.DIRECT})
        template = writer.templates.get(how.prompt) or prompts.find_template(prompts.Form.DIRECT)
        write_it = partial(write_prompt, ask, passages, how, template, model)
        prompt = await call_beside(ask.document.size, write_it)
        write = self._write_after_reasons if reasons else self._prompt_model
        async with aclosing(write(prompt, how.llm, model)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _write_after_reasons(
        self, prompt: Prompt, name: str, model: LanguageModel
    ) -> AsyncGenerator[Chunk, None]:
        """Generate reasons and an answer, and send the answer; prompt again for it alone if it has no tag.

        Source: Kim and Diaz 2025, LTRR, arXiv:2506.13743, section 3 and appendix B.
        """
        recorder = self.recorder
        for again in (False, True):
            text, last = "", Chunk()
            async with aclosing(self._prompt_model(prompt, name, model)) as chunks:
                async for last in chunks:
                    text += last.text
            last = replace(last, native=None)
            answer = prompts.parse_answer(text, prompts.Form.REASONING)
            if answer.tagged or again:
                break
            recorder.abandon()
            prompt = replace(prompt, messages=prompts.fallback_prompt(prompt.messages, text), request=None)
        recorder.written = Choices()
        last = replace(last, text=answer.text)
        recorder.note(last)
        yield last

    async def prompt(self, name: str, prompt: Prompt) -> tuple[str, Chunk]:
        """Prompt a language model beside the answer, as a check does, and charge it to the turn."""
        writer = self.writer
        track = writer.health.track(llm_key(name), caller=self.ask.asked_by)
        with track as report, report_model(report, name, writer.on_refusal):
            text, last = await base.complete(writer.models[name].generator, prompt)
        self.recorder.spending.add(name, read_usage(last))
        return text, last

    async def _prompt_model(
        self, prompt: Prompt, name: str, model: LanguageModel
    ) -> AsyncGenerator[Chunk, None]:
        """Prompt a language model, and record what it writes, chunk by chunk."""
        recorder, writer = self.recorder, self.writer
        calls = CallNames(self.ask.decision_id)
        read = await call_beside(self.ask.document.size, partial(_count_tokens, prompt))
        recorder.begin(name, read, model.prices.compute_usd)
        started, now = time.perf_counter(), asyncio.get_running_loop().time()
        recorder.llm_until = recorder.llm_until or now + writer.timeout_s
        prompt = replace(prompt, patience_s=recorder.llm_until - now)
        try:
            with (
                writer.health.track(llm_key(name), caller=self.ask.asked_by) as report,
                report_model(report, name, writer.on_refusal),
                failing_as(GeneratorError),
            ):
                async with aclosing(model.generator.stream(prompt)) as chunks:
                    async for chunk in read_until(chunks, recorder.llm_until):
                        if chunk.tool_calls and not model.protocol:
                            chunk = replace(chunk, tool_calls=calls.rename(chunk.index, chunk.tool_calls))
                        recorder.note(chunk)
                        yield chunk
        finally:
            recorder.llm_s += time.perf_counter() - started


def _count_tokens(prompt: Prompt) -> int:
    return sum(tokens_in(message["content"]) for message in prompt.messages)


def _takes_as_written(ask: Ask, how: writing.Answering, answer: str) -> bool:
    """Return whether an answer that an arm wrote to the question alone is what a request asks for.

    It is not if the request has a conversation, instructions, an image, tools, a form or a shorter limit, or
    if answers of the arm cite passages or come from a language model of their own: then that model writes.
    """
    plain = len(ask.messages) == 1 and not (
        ask.document.options or ask.document.stop or base.list_inputs(ask.messages)
    )
    fits = ask.document.max_tokens is None or tokens_in(answer) <= ask.document.max_tokens
    return bool(answer) and plain and fits and not how.cite and how.llm == writing.DEFAULT


T = TypeVar("T")


async def read_until(items: AsyncIterator[T], deadline: float) -> AsyncGenerator[T, None]:
    """Yield the items until the event loop's clock reaches `deadline`. Raises TimeoutError.

    The time-out surrounds each wait; around a `yield` it would cancel the consumer.
    """
    while True:
        async with asyncio.timeout_at(deadline):
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
        yield item
