"""What a turn leaves in the log: the record of what it has done so far, and the commits of its two facts."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial

from agent.serving.choices import Choices
from agent.serving.messages import ArmInfo, Commit, Log
from agent.serving.pricing import Spending
from agent.serving.probe import UNPROBED, Probes
from arms.base import UNUSED, Retrieval, Usage
from arms.llm import Chunk, base
from feedback.errors import LogUnavailableError, described
from feedback.events import Cost, Decision, Execution, Status

CHARACTERS_A_TOKEN = 4
"""Characters per token in most texts; a text of shorter words has a token for each."""


def tokens_in(text: str) -> int:
    """Estimate the number of tokens of a text.

    >>> tokens_in("a b c"), tokens_in("x" * 400), tokens_in("")
    (3, 100, 0)
    """
    return max(len(text.split()), len(text) // CHARACTERS_A_TOKEN)


@dataclass(slots=True)
class TurnRecorder:
    """What a turn has done so far.

    Attributes:
        decision: What is carried out.
        arms: What is known of the arms, the same for the whole turn.
        depth: Fewest passages to search for: as many as the router of the turn reads.
        probes: Searches before the draw, whose steps and seconds are added to those below.
        spending: What all searches have spent, those before the draw included, and models that failed.
        served: The arm whose passages are used; None before one has answered.
        retrieval: What it found.
        written: By the language model so far; None without one.
        model: Name of the language model that writes; empty before one begins.
        usage: Last chunk, with the token counts and the price.
        pieces: Chunks with text or calls so far: about the tokens written, where the last chunk never came.
        read: About the tokens that the model was given.
        usd_of: Price of tokens read and written, where the last chunk never came.
        steps: Rounds of retrieval.
        retrieval_s: Seconds in arms.
        llm_s: Seconds in language models.
        llm_until: When they must have ended, by the event loop's clock; 0 before the first one begins.
        error: Why the drawn arm failed, where another one served.
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
    usd_of: Callable[[int, int], float] = lambda *_: 0.0
    steps: int = 0
    retrieval_s: float = 0.0
    llm_s: float = 0.0
    llm_until: float = 0.0
    error: str = ""

    @property
    def answer(self) -> str | None:
        """What the log keeps of the answer so far; None without a language model."""
        return None if self.written is None else self.written.recorded

    def begin(self, model: str, read: int, usd_of: Callable[[int, int], float]) -> None:
        """Begin an answer.

        Args:
            model: Name of the language model.
            read: About the tokens that it is given.
            usd_of: Price of tokens read and written.
        """
        self.written, self.model = Choices(), model
        self.usage, self.pieces, self.read, self.usd_of = Chunk(), 0, read, usd_of

    def abandon(self, error: Exception) -> None:
        """Charge an answer in whose place another model writes one."""
        self.spending.add(self.model, self._answered(left=_timed_out(error)))
        self.model, self.usage, self.pieces = "", Chunk(), 0

    def _answered(self, *, left: bool) -> Usage:
        """Return what the language model read and wrote, estimated before the engine has reported it.

        Args:
            left: Whether nobody waited for its end, so that it has read the prompt in any case.
        """
        usage = self.usage
        if usage.finish_reason is None and (self.pieces or left):
            written = max(self.pieces, tokens_in(self.answer or ""))
            return Usage(self.read, written, 0, self.usd_of(self.read, written))
        return Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.usd)

    def _by_model(self, *, left: bool) -> dict[str, Usage]:
        """Return what each language model read and wrote in the turn."""
        every = Spending(dict(self.spending.by_model))
        every.add(self.model, self._answered(left=left))
        return every.by_model

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
        return Status.LLM_TIMEOUT if _timed_out(error) else Status.LLM_FAILED

    def execution(self, now: float, error: Exception | None = None, *, cancelled: bool = False) -> Execution:
        """Return the execution to be committed."""
        status, answer = self.status(error, cancelled), self.answer
        left = status in (Status.CANCELLED, Status.LLM_TIMEOUT) and answer is not None
        by_model = self._by_model(left=left)
        total = sum(by_model.values(), UNUSED)
        own = self.arms[self.decision.drawn].answering.llm if self.decision.drawn in self.arms else ""
        several = by_model.keys() - {own}
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
            error=described(error) if error else self.error,
            finished_at=now,
            stages=tuple(map(asdict, self.retrieval.stages)),
            index_version=self.retrieval.index_version,
            cached=self.retrieval.cached,
            tokens_by_model={
                model: (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
                for model, usage in (by_model.items() if several else ())
            },
        )


def _timed_out(error: Exception) -> bool:
    return isinstance(error, TimeoutError | base.GeneratorTimeoutError)


class TurnCommit:
    """The commits of a turn's decision and of its execution: two, or one where the turn is quick.

    Args:
        log: Where both are committed.
        decision: The decision.
        on_commit: Called with the commit of the decision as soon as it is queued.
        wait_s: Seconds that the decision waits for its execution; 0 to commit it at once.
        is_durable: Whether the decision is in the log already.
    """

    def __init__(
        self,
        log: Log,
        decision: Decision,
        on_commit: Callable[[Commit], object],
        *,
        wait_s: float = 0.0,
        is_durable: bool = False,
    ) -> None:
        self._log, self._decision, self._on_commit = log, decision, on_commit
        self._queued: Commit | None = None
        self._timer: asyncio.TimerHandle | None = None
        if is_durable:
            done: Commit = asyncio.get_running_loop().create_future()
            done.set_result(None)
            self._queue(done)
        elif wait_s:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._begin)
        else:
            self._begin()

    async def decision_durable(self) -> None:
        """Wait until the decision is durable."""
        await asyncio.shield(self._begin())

    async def finish(self, execution: Execution) -> bool:
        """Commit the execution, after the decision or with it; return whether the log had none."""
        if self._queued is None:
            _, receipt = await asyncio.shield(self._together(execution))
        else:
            try:
                await asyncio.shield(self._queued)
            except asyncio.CancelledError:
                self.abandon(execution)
                raise
            (receipt,) = await self._log.append(execution)
        return bool(receipt.seq)

    def abandon(self, execution: Execution) -> None:
        """Commit the execution of a turn whose caller is gone, without waiting for it."""
        if self._queued is None:
            with suppress(LogUnavailableError):  # nothing was acknowledged, and the caller's leaving counts
                self._together(execution)
        else:
            self._queued.add_done_callback(partial(self._record_abandoned, execution))

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
        """Record the execution, unless the decision was refused: the id may be another's."""
        if not committed.cancelled() and committed.exception() is None:
            self._log.append(execution).add_done_callback(_retrieve_exception)


def _retrieve_exception(future: Commit) -> None:
    """Retrieve the exception of a commit, so that asyncio does not log it where the turn ends first."""
    if not future.cancelled():
        future.exception()
