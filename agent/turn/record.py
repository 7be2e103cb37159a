"""The record of a turn: its answer, steps and spending, and the commits of its facts.

The log keeps one text for each answer: the plain text, or, if there are calls, choices or log-probabilities,
a record separator (which begins a JSON text sequence, RFC 7464) and JSON.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Protocol

from armwise.agent.telemetry import turns
from armwise.agent.turn.checked import AnswerStage
from armwise.agent.turn.eligibility import ArmInfo
from armwise.agent.turn.probes import UNPROBED, Probes
from armwise.arms.base import UNUSED, Retrieval, Usage
from armwise.arms.llm import Chunk, Native, base, count_words, writing
from armwise.feedback.errors import LogUnavailableError, describe_error
from armwise.feedback.events import (
    Cost,
    Decision,
    Execution,
    ModelTokens,
    Status,
    count_cache_written,
)

SEPARATOR = "\x1e"


@dataclass(slots=True)
class Choice:
    """One of the answers to a request.

    Attributes:
        text: Text of the choice so far.
        tool_calls: The functions that it calls, in OpenAI's shape.
        logprobs: Log-probabilities of the tokens of the text, in OpenAI's shape.
        finish_reason: Why it ended, once it has.
        reasoning: What its model thought before, as far as it can be read; it is not logged.
    """

    text: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[Mapping[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    reasoning: str = ""

    @property
    def recorded(self) -> dict[str, Any]:
        """The fields for the log, which has no reasoning."""
        return {name: value for name, value in asdict(self).items() if name != "reasoning"}

    def add_call(self, piece: Mapping[str, Any]) -> None:
        """Add a piece of a call: the first one of a call has its id and name, all have arguments.

        Other fields are kept, as models want those that they wrote back.
        """
        while len(self.tool_calls) <= piece["index"]:
            self.tool_calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call = self.tool_calls[piece["index"]]
        call |= {name: value for name, value in piece.items() if name not in ("index", "id", "function")}
        call["id"] = piece.get("id") or call["id"]
        for part, text in piece.get("function", {}).items():
            call["function"][part] += text


@dataclass(slots=True)
class Choices:
    """The answers to a request, at least one.

    Attributes:
        all: The choices.
        native: The whole answer of an endpoint, as it came, where it was asked for one.

    >>> choices = Choices()
    >>> for text in ("The ", "Danube."):
    ...     choices.add(Chunk(text))
    >>> choices.recorded
    'The Danube.'
    """

    all: list[Choice] = field(default_factory=lambda: [Choice()])
    native: Native | None = None

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.all[0].text

    def add(self, chunk: Chunk) -> None:
        """Add a piece of one choice; the last chunk ends all choices."""
        while len(self.all) <= max(chunk.index, len(chunk.finish_reasons)):
            self.all.append(Choice())
        choice = self.all[chunk.index]
        choice.text += chunk.text
        choice.reasoning += chunk.reasoning
        if chunk.native is not None and chunk.native.whole:
            self.native = chunk.native
        choice.logprobs += chunk.logprobs
        for piece in chunk.tool_calls:
            choice.add_call(piece)
        if chunk.finish_reason is not None:
            reasons = (chunk.finish_reason, *chunk.finish_reasons)
            for ended, reason in zip(self.all, reasons, strict=False):
                ended.finish_reason = reason

    @property
    def recorded(self) -> str:
        """The text for the log."""
        first = self.all[0]
        is_text = len(self.all) == 1 and not first.tool_calls and not first.logprobs
        if is_text and not first.text.startswith(SEPARATOR):
            return first.text
        return SEPARATOR + json.dumps([choice.recorded for choice in self.all], ensure_ascii=False)

    @classmethod
    def parse(cls, recorded: str, finish_reason: str | None = None) -> "Choices":
        """Parse a text of the log; `finish_reason` is used for a plain text, which does not store it."""
        if not recorded.startswith(SEPARATOR):
            return cls([Choice(recorded, finish_reason=finish_reason)])
        return cls([Choice(**choice) for choice in json.loads(recorded[1:])])

    def chunks(self) -> Iterator[Chunk]:
        """Yield each choice as one chunk."""
        for index, choice in enumerate(self.all):
            calls = tuple({"index": i, **call} for i, call in enumerate(choice.tool_calls))
            yield Chunk(choice.text, index=index, tool_calls=calls, logprobs=tuple(choice.logprobs))


def is_text(recorded: str) -> bool:
    """Return whether an answer of the log is plain text."""
    return not recorded.startswith(SEPARATOR)


@dataclass(slots=True)
class CallNames:
    """Names the calls of an engine of this process, which gives them none that are unique.

    Attributes:
        decision_id: The decision.
        named: Choice and position of each call so far.
    """

    decision_id: str
    named: list[tuple[int, int]] = field(default_factory=list)

    def rename(self, index: int, pieces: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """Return pieces of calls of a choice; those that begin a call have its id.

        >>> CallNames("d-1").rename(0, [{"index": 0, "id": "x"}])
        ({'index': 0, 'id': 'call_0_0741a320e613'},)
        """
        found = list[Mapping[str, Any]]()
        for piece in pieces:
            if (key := (index, piece["index"])) in self.named:
                found.append(piece)
                continue
            self.named.append(key)
            digest = hashlib.sha256(self.decision_id.encode()).hexdigest()[:12]
            found.append({**piece, "id": f"call_{len(self.named) - 1}_{digest}"})
        return tuple(found)


def count_unexplained(retrieval: Retrieval) -> int:
    """Return the tokens of a search that its usage does not break down, as from models of a remote arm.

    >>> from armwise.arms.base import Usage
    >>> count_unexplained(Retrieval(tokens=30, usage=Usage(20, 4)))
    6
    """
    usage = retrieval.usage
    return max(0, retrieval.tokens - usage.prompt_tokens - usage.completion_tokens)


@dataclass(slots=True)
class Spending:
    """What a turn has spent on searches, and on models that failed.

    Attributes:
        by_model: Usage by language model. Prompts of arms, and paid searches, count under
            `writing.DEFAULT`.
        tokens: Tokens that no model of the service accounts for.
    """

    by_model: dict[str, Usage] = field(default_factory=dict)
    tokens: int = 0

    def add(self, model: str, usage: Usage) -> None:
        """Add the usage of a language model."""
        if usage != UNUSED:
            self.by_model[model] = self.by_model.get(model, UNUSED) + usage

    def search(self, retrieval: Retrieval) -> None:
        """Add the usage of a search."""
        self.tokens += count_unexplained(retrieval)
        self.add(writing.DEFAULT, retrieval.usage)

    @property
    def cost(self) -> Cost:
        """Tokens and USD in total."""
        total = sum(self.by_model.values(), UNUSED)
        return Cost(
            prompt_tokens=total.prompt_tokens + self.tokens,
            completion_tokens=total.completion_tokens,
            usd=total.usd,
        )


def read_usage(last: Chunk) -> Usage:
    """Return the usage that the last chunk of an answer reports."""
    tokens = last.prompt_tokens, last.completion_tokens, last.cached_tokens
    return Usage(*tokens, last.usd, cache_written_tokens=last.cache_written_tokens)


class TurnError(Exception):
    """A turn failed after its decision, which stays in the log with the failure.

    Attributes:
        execution: How it ended; the status says which part failed.
    """

    def __init__(self, execution: Execution) -> None:
        super().__init__(execution.error)
        self.execution = execution


class AnsweredElsewhereError(Exception):
    """Another process has carried out the same decision meanwhile, and its execution is in the log."""


Commit = asyncio.Future[Any]
"""Done once facts are durable."""


class FactLog(Protocol):
    """Commits facts. A write goes on when its caller is cancelled."""

    def append(self, *facts: Decision | Execution) -> Commit:
        """Queue facts to be committed, in order; the future holds their receipts once they are durable."""
        ...


@dataclass(frozen=True, slots=True)
class Decided:
    """Event: the decision is durable and its passages are there."""

    decision: Decision
    retrieval: Retrieval
    served: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Event: the turn has ended, and its execution is durable.

    Attributes:
        execution: The execution.
        finish_reasons: Finish reason of each choice.
        logged: Whether it is durable; False if the log was away and the answer stands nevertheless.
    """

    execution: Execution
    finish_reasons: tuple[str, ...]
    logged: bool = True

    @property
    def cached_tokens(self) -> int:
        """Tokens that language models read from their caches, searches included."""
        return sum(tokens[2] for tokens in self.execution.tokens_by_model.values())

    @property
    def cache_written_tokens(self) -> int:
        """Tokens read that language models have written to their caches, searches included."""
        return sum(count_cache_written(tokens) for tokens in self.execution.tokens_by_model.values())


Event = Decided | Chunk | Finished

BYTES_A_TOKEN = 4
"""UTF-8 bytes per token, roughly, in any script."""


def tokens_in(text: str) -> int:
    """Estimate the number of tokens of a text: its words, or a quarter of its bytes if that is more.

    >>> tokens_in("a b c"), tokens_in("x" * 400), tokens_in("\u4e2d" * 400), tokens_in("")
    (3, 100, 300, 0)
    """
    return max(count_words(text), len(text.encode(errors="replace")) // BYTES_A_TOKEN)


@dataclass(slots=True)
class TurnRecorder:
    """The progress of a turn, from which its execution is made.

    Attributes:
        decision: The decision that is carried out.
        arms: The arms by name, fixed for the turn.
        depth: Fewest passages to search for: as many as the router of the turn reads.
        probes: Searches before the draw; their steps and seconds are added to those below.
        spending: Usage of all searches, probes included, and of models that failed.
        served: The arm whose passages are used, once one has answered.
        retrieval: Retrieval of that arm.
        written: The answer so far, once a language model has begun.
        model: Name of the language model that writes; empty before it begins.
        usage: Last chunk, with the token counts and the price.
        pieces: Chunks with text or calls so far: an estimate of the tokens written until the last chunk.
        read: Estimate of the tokens in the prompt.
        compute_usd: Price of tokens read and written, for these estimates.
        steps: Rounds of retrieval after the draw.
        retrieval_s: Seconds in arms after the draw.
        llm_s: Seconds in language models, and in checks of their answers.
        llm_until: Deadline of the language models, by the event loop's clock; 0 before the first begins.
        error: Why the drawn arm failed, if the fallback served.
        answers: Stages of a checked answer, in order.
    """

    decision: Decision
    arms: Mapping[str, ArmInfo]
    depth: int = 0
    probes: Probes = UNPROBED
    spending: Spending = field(default_factory=Spending)
    served: str | None = None
    retrieval: Retrieval = field(default_factory=lambda: Retrieval(steps=0))
    written: Choices | None = None
    model: str = ""
    usage: Chunk = field(default_factory=Chunk)
    pieces: int = 0
    read: int = 0
    compute_usd: Callable[[int, int], float] = lambda *_: 0.0
    steps: int = 0
    retrieval_s: float = 0.0
    llm_s: float = 0.0
    llm_until: float = 0.0
    error: str = ""
    answers: list[AnswerStage] = field(default_factory=list)

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """Why each choice has ended; `stop` where no model wrote."""
        return (self.usage.finish_reason or "stop", *self.usage.finish_reasons)

    @property
    def marks(self) -> tuple[str, ...]:
        """Names under which later requests show that they continue the answer; the endpoint's id is first."""
        if self.usage.marks:
            return self.usage.marks
        choices = [] if self.written is None else self.written.all
        names = (call["id"] for choice in choices for call in choice.tool_calls)
        return ("", *names) if any(choice.tool_calls for choice in choices) else ()

    @property
    def answer(self) -> str | None:
        """The answer so far, as the log stores it."""
        return None if self.written is None else self.written.recorded

    def begin(self, model: str, read: int, compute_usd: Callable[[int, int], float]) -> None:
        """Begin an answer.

        Args:
            model: Name of the language model.
            read: Estimate of the tokens in the prompt.
            compute_usd: Price of tokens read and written.
        """
        self.written, self.model = Choices(), model
        self.usage, self.pieces, self.read, self.compute_usd = Chunk(), 0, read, compute_usd

    def abandon(self, error: Exception | None = None) -> None:
        """Charge an answer that failed, or that a check refused, before another model writes one."""
        self.spending.add(self.model, self._measure_answer(left=error is not None and _is_timeout(error)))
        self.model, self.usage, self.pieces, self.read = "", Chunk(), 0, 0

    def _measure_answer(self, *, left: bool) -> Usage:
        """Return the usage of the answer: as the engine reported, or an estimate before its last chunk.

        Args:
            left: Whether the turn left before the model ended: the prompt is charged even without output.
        """
        usage = self.usage
        if usage.finish_reason is None and (self.pieces or left):
            written = max(self.pieces, tokens_in(self.answer or ""))
            return Usage(self.read, written, 0, self.compute_usd(self.read, written))
        return read_usage(usage)

    def note(self, chunk: Chunk) -> None:
        """Add a chunk of the answer."""
        self.written = self.written or Choices()
        self.written.add(chunk)
        self.pieces += bool(chunk.text or chunk.tool_calls)
        if chunk.finish_reason is not None:
            self.usage = chunk

    def status(self, error: Exception | None, cancelled: bool) -> Status:
        """Return the status that the turn ends with."""
        if cancelled:
            return Status.CANCELLED
        if error is None:
            return Status.OK if self.served == self.decision.drawn else Status.FELL_BACK
        if self.served is None:
            return Status.ARM_FAILED
        return Status.LLM_TIMEOUT if _is_timeout(error) else Status.LLM_FAILED

    def execution(self, now: float, error: Exception | None = None, *, cancelled: bool = False) -> Execution:
        """Return the execution to be committed."""
        status, answer = self.status(error, cancelled), self.answer
        left = status in (Status.CANCELLED, Status.LLM_TIMEOUT) and answer is not None
        every = Spending(dict(self.spending.by_model))
        every.add(self.model, self._measure_answer(left=left))
        total = sum(every.by_model.values(), UNUSED)
        return Execution(
            decision_id=self.decision.id,
            served=self.served,
            status=status,
            cost=Cost(
                steps=self.probes.steps + self.steps,
                prompt_tokens=total.prompt_tokens + self.spending.tokens,
                completion_tokens=total.completion_tokens,
                retrieval_s=self.probes.seconds + self.retrieval_s,
                llm_s=self.llm_s,
                usd=total.usd,
            ),
            passages=tuple(passage.id for passage in self.retrieval.passages),
            answer=answer,
            error=describe_error(error) if error else self.error,
            finished_at=now,
            stages=(*map(asdict, self.retrieval.stages), *map(asdict, self.answers)),
            index_version=self.retrieval.index_version,
            cached=self.retrieval.cached,
            tokens_by_model={model: _tokens(usage) for model, usage in every.by_model.items()},
            finish_reason=self.usage.finish_reason or "",
            marks=self.marks,
        )


def _tokens(usage: Usage) -> ModelTokens:
    """Return a usage as the log stores it."""
    tokens = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    if usage.cache_written_tokens:
        return (*tokens, usage.search_usd, usage.cache_written_tokens)
    return (*tokens, usage.search_usd) if usage.search_usd else tokens


def _is_timeout(error: Exception) -> bool:
    return isinstance(error, TimeoutError | base.GeneratorTimeoutError)


class TurnCommit:
    """The commits of a turn's decision and of its execution: two, or one if the turn is quick.

    Args:
        log: Where both are committed.
        decision: The decision.
        on_commit: Called with the commit of the decision as soon as it is queued.
        wait_s: Seconds that the decision waits for its execution; 0 to commit it at once.
        is_durable: Whether the decision is in the log already.
        follow: Called once the decision is durable and the turn goes on.

    Attributes:
        is_logged: Whether what was finished is durable.
    """

    def __init__(
        self,
        log: FactLog,
        decision: Decision,
        on_commit: Callable[[Commit], object],
        *,
        wait_s: float = 0.0,
        is_durable: bool = False,
        follow: Callable[[], object] = lambda: None,
    ) -> None:
        self._log, self._decision, self._on_commit = log, decision, on_commit
        self._follow: Callable[[], object] | None = follow
        self.is_logged = True
        self._queued: Commit | None = None
        self._timer: asyncio.TimerHandle | None = None
        if is_durable:
            done: Commit = asyncio.get_running_loop().create_future()
            done.set_result(None)
            self._queue(done)
        elif wait_s:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._begin_late)
        else:
            self._begin()

    async def decision_durable(self) -> None:
        """Wait until the decision is durable."""
        await asyncio.shield(self._begin())
        self._report_durable()

    def _report_durable(self) -> None:
        """Report once that the decision is durable."""
        if self._follow is not None:
            follow, self._follow = self._follow, None
            follow()

    async def finish(self, execution: Execution, *, keeps_answer: bool = False) -> bool:
        """Commit the execution, after the decision or with it; return False if the log already has one.

        Args:
            execution: How the turn has ended.
            keeps_answer: Whether a turn whose decision is durable ends well although the log is away now.
        """
        if self._queued is None:
            _, receipt = await asyncio.shield(self._together(execution))
            self._report_durable()
        else:
            try:
                await asyncio.shield(self._queued)
            except asyncio.CancelledError:
                self.abandon(execution)
                raise
            self._report_durable()
            try:
                (receipt,) = await self._log.append(execution)
            except LogUnavailableError:
                if not keeps_answer:
                    raise
                self.is_logged = False
                return True
        return bool(receipt.seq)

    def abandon(self, execution: Execution) -> None:
        """Queue the commit of the execution of a turn whose caller has left."""
        if self._queued is None:
            with suppress(LogUnavailableError):  # nothing was acknowledged, and the caller has left
                self._together(execution)
        else:
            self._queued.add_done_callback(partial(self._record_abandoned, execution))

    def _begin_late(self) -> None:
        """Commit the decision of a slow turn; if the log is full, `finish` tries again."""
        with suppress(LogUnavailableError):
            self._begin()

    def _begin(self) -> Commit:
        return self._queued or self._queue(self._log.append(self._decision))

    def _together(self, execution: Execution) -> Commit:
        return self._queue(self._log.append(self._decision, execution))

    def _queue(self, commit: Commit) -> Commit:
        if self._timer is not None:
            self._timer.cancel()
        self._queued = commit
        commit.add_done_callback(_retrieve_exception)
        self._on_commit(commit)
        return commit

    def _record_abandoned(self, execution: Execution, committed: Commit) -> None:
        """Record the execution if the decision was committed; a refused id may belong to another turn."""
        if not committed.cancelled() and committed.exception() is None:
            self._log.append(execution).add_done_callback(_retrieve_exception)


def _retrieve_exception(future: Commit) -> None:
    """Retrieve the exception of a commit, which asyncio would log if the turn ends first."""
    if not future.cancelled():
        future.exception()


class Unlogged:
    """Takes the place of `TurnCommit` in a turn that is repeated outside the log."""

    is_logged = False

    async def decision_durable(self) -> None:
        """Return at once: the decision is in the log."""

    async def finish(self, execution: Execution, *, keeps_answer: bool = False) -> bool:
        """Drop the execution."""
        del execution, keeps_answer
        return True

    def abandon(self, execution: Execution) -> None:
        """Drop the execution."""


NONE_SERVED = "none served"
"""Label of the served arm in telemetry if every arm failed."""


class CountedLog:
    """A log that counts the decisions and executions that it commits.

    Args:
        log: Where they are committed.
        on_decision: Called with each durable decision.
        on_execution: Called with each durable execution, and the arm that was drawn for it.
    """

    def __init__(
        self,
        log: FactLog,
        on_decision: Callable[[Decision], object],
        on_execution: Callable[[Execution, str], object],
    ) -> None:
        self._log, self._on_decision, self._on_execution = log, on_decision, on_execution
        self._drawn: dict[str, str] = {}  # arm by decision, until its execution

    def append(self, *facts: Decision | Execution) -> "asyncio.Future[Any]":
        """Queue facts, and count them unless their commit fails."""
        future = self._log.append(*facts)
        turns.trace_commit(facts, future)
        future.add_done_callback(partial(self._count, facts))
        return future

    def _count(self, facts: tuple[Decision | Execution, ...], future: "asyncio.Future[Any]") -> None:
        failed = not future.cancelled() and future.exception() is not None  # cancelled, the write goes on
        for fact in facts:
            if isinstance(fact, Execution):
                drawn = self._drawn.pop(fact.decision_id, NONE_SERVED)
                if not failed:
                    self._on_execution(fact, drawn)
            elif not failed:
                self._drawn[fact.id] = fact.drawn
                self._on_decision(fact)
