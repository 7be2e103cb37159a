"""One turn: look, choose, remember, act. Read this first.

A turn is plain Python over six seams: embed a question, ask a router, search with
an arm, write with a language model, append to the log, and the policy now serving.
It runs in a unit test without a cluster.

More than 300 lines: the words that a turn is told in stand above it, and what
it leaves on record below, so that it can be read in one place.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from agent.features import FeatureSpec, describe
from agent.policy import Policy, choose, served_distribution, uniform_from
from agent.probe import Advisor, Embed, Embeddings, Probes, Search, probe, with_scores
from arms.base import ArmError, Passage, Query, Retrieval
from arms.generator import Chunk, Generator, GeneratorError, GeneratorTimeoutError, Message, Prompt
from arms.prompts import answer_prompt
from feedback.events import Context, Cost, Decision, Execution, Mode, Status


class NoEligibleArmError(ValueError):
    """Every arm is disabled or excluded; nothing was decided."""


class TurnError(Exception):
    """A turn failed after its decision: the row stays, marked.

    Attributes:
        decision_id: The decision that was committed.
        status: What failed.
    """

    def __init__(self, decision_id: str, status: Status, message: str) -> None:
        super().__init__(message)
        self.decision_id = decision_id
        self.status = status


class Log(Protocol):
    """Where facts go. A write goes on when its caller is cancelled."""

    def append(self, *facts: Decision | Execution) -> "asyncio.Future[Any]":
        """Queue facts to be committed, in order; the future is done once they are durable."""
        ...


@dataclass(frozen=True, slots=True)
class Serving:
    """The policy that decides now, frozen until the next version replaces it."""

    policy: Policy
    version: int


@dataclass(frozen=True, slots=True)
class ArmInfo:
    """What the turn knows of an arm before it runs."""

    backbones: frozenset[str] = frozenset()
    features: Mapping[str, float] = field(default_factory=dict)
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """One question with what its caller wishes.

    Attributes:
        decision_id: Names the turn; the draw is hashed from it.
        question: What is looked up and what the policy sees.
        messages: The conversation that the model answers; empty to retrieve only.
        k: Passages to retrieve.
        forced: An arm that the caller named; it is recorded as forced.
        allowed: Arms to choose among; None for all.
        excluded: Arms not to choose.
        explore: False takes the most probable arm; it is recorded as greedy.
        context: The caller's own features.
        episode_id: Groups the turns of one conversation; kept and told again.
        request_digest: Tells a retry from another request under the same id.
        max_tokens: Longest answer.
        temperature: Of the model.
        top_p: The model draws from the likeliest tokens that hold this mass.
        seed: Of the model's draws.
        stop: Strings that end the answer.
    """

    decision_id: str
    question: str
    messages: tuple[Message, ...] = ()
    k: int = 4
    forced: str | None = None
    allowed: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    explore: bool = True
    context: Mapping[str, float | str | bool] = field(default_factory=dict)
    episode_id: str | None = None
    request_digest: str = ""
    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision is durable and its passages are here."""

    decision: Decision
    retrieval: Retrieval
    served: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The execution is durable: the turn is over."""

    execution: Execution
    finish_reason: str


Event = Decided | Chunk | Finished


@dataclass(slots=True)
class Loop:
    """The seams of a turn, wired once a replica.

    Attributes:
        arms: What is known of every arm, by name; replaced when an arm is switched.
        serving: The policy that decides now; replaced when a version is published.
        embed: Embed a question with each of the named backbones.
        search: Run an arm by name.
        generator: The language model; None when only retrieval is wanted.
        log: Where facts go.
        features: What goes into a context.
        floor: Least probability of every eligible arm.
        salt: Enters the hash of the draw.
        wait_s: Seconds in which feedback counts.
        fallback: Arm that answers when the drawn one fails.
        word_budget: Words of passages that the model reads.
        arm_timeout_s: Seconds that an arm may take, and the embedding of a question.
        llm_timeout_s: Seconds that the model may take.
        clock: Seconds since the epoch.
        former: Arms that were live before, for those who ask again what these answered.
        advisor: A trained router, whose scores the policy sees; None for none.
    """

    arms: Mapping[str, ArmInfo]
    serving: Serving
    embed: Embed
    search: Search
    generator: Generator | None
    log: Log
    features: FeatureSpec
    floor: float
    salt: str
    wait_s: float
    fallback: str | None = None
    word_budget: int = 400
    arm_timeout_s: float = 10.0
    llm_timeout_s: float = 120.0
    clock: Callable[[], float] = time.time
    former: Mapping[str, ArmInfo] = field(default_factory=dict)
    advisor: Advisor | None = None

    async def turn(self, ask: Ask) -> AsyncGenerator[Event, None]:
        """Answer one question: yield the decision, the answer as it is written, and the end.

        Raises:
            NoEligibleArmError: Nothing was decided.
            ArmError: An encoder, or what the router looks at, cannot be had; nothing was decided.
            TurnError: The arm or the model failed; the decision and the failure are committed.
        """
        arms = self.arms  # the same for the whole turn, whatever is switched or replaced meanwhile
        query, context = await self.look(ask, arms)
        context, probes = await self.advise(ask, query, context, arms)
        decision = self.choose(ask, context, arms, probes.failed)
        committed = self.log.append(decision)  # while the arm works; nothing leaves before it is durable
        committed.add_done_callback(_seen)
        work = _Work(decision, arms, probes)
        try:
            retrieval = await self.retrieve(query, ask.k, work)
            await asyncio.shield(committed)
            yield Decided(decision, retrieval, work.served or decision.drawn)
            if ask.messages and self.generator is not None:
                async with aclosing(self.generate(ask, retrieval.passages, work)) as chunks:
                    async for chunk in chunks:
                        yield chunk
        except (ArmError, GeneratorError, TimeoutError) as error:
            await asyncio.shield(committed)
            execution = work.execution(self.clock(), error)
            await self.log.append(execution)
            raise TurnError(decision.id, execution.status, execution.error) from error
        except (asyncio.CancelledError, GeneratorExit):
            committed.add_done_callback(partial(self._abandon, work.execution(self.clock(), cancelled=True)))
            raise
        execution = work.execution(self.clock())
        await self.log.append(execution)
        yield Finished(execution, work.finish_reason)

    def _abandon(self, execution: Execution, committed: "asyncio.Future[Any]") -> None:
        """Record a turn that nobody waits for; a decision that was refused may be another turn's."""
        if not committed.cancelled() and committed.exception() is None:
            self.log.append(execution).add_done_callback(_seen)

    async def look(self, ask: Ask, arms: Mapping[str, ArmInfo]) -> tuple[Query, Context]:
        """Describe the question as the policy will see it, embedded where the policy or a router needs it."""
        looking = (self.features.embedding, self.advisor if ask.forced is None else None)
        backbones = {each.backbone for each in looking if each is not None}
        embeddings = await self._embedded(ask.question, frozenset(backbones)) if backbones else {}
        context = context_of(ask.question, self.features, embeddings, arms, ask.context)
        return Query(ask.question, embeddings, self._seed(ask)), context

    def _seed(self, ask: Ask) -> int:
        return int(uniform_from(ask.decision_id, self.salt + "/arm") * (1 << 53))

    async def _embedded(self, question: str, backbones: frozenset[str]) -> Embeddings:
        try:
            async with asyncio.timeout(self.arm_timeout_s):
                return await self.embed(question, backbones)
        except TimeoutError:
            names = " and ".join(map(repr, sorted(backbones)))
            message = f"no embedding of the question by {names} within {self.arm_timeout_s:g} s"
            raise ArmError(message) from None

    async def advise(
        self, ask: Ask, query: Query, context: Context, arms: Mapping[str, ArmInfo]
    ) -> tuple[Context, Probes]:
        """Let the router score the eligible arms that it knows; they search first if it looks at that."""
        advisor, probes = self.advisor, Probes()
        if advisor is None or ask.forced is not None:
            return context, probes
        known = [name for name in eligible(ask, arms) if name in advisor.arms]
        if advisor.k:
            needs = {name: arms[name].backbones for name in known}
            depth, limit_s = self._depth(ask.k), self.arm_timeout_s
            probes = await probe(query, depth, needs, self.embed, self.search, limit_s)
            known = list(probes.found)
        scores = await advisor.scores(query, known, probes.found) if known else {}
        return with_scores(context, scores), probes

    def choose(
        self, ask: Ask, context: Context, arms: Mapping[str, ArmInfo], failed: Collection[str] = ()
    ) -> Decision:
        """Draw an eligible arm from the policy's distribution, the floor mixed in."""
        serving = self.serving
        if ask.forced is not None and ask.forced not in arms:
            raise NoEligibleArmError(f"arm {ask.forced!r} is not live any more; there are: {', '.join(arms)}")
        if ask.forced is not None:
            names, mode, p = [ask.forced], Mode.FORCED, np.ones(1)
        else:
            names = eligible(ask, arms, failed)
            mode = Mode.EXPLORE if ask.explore else Mode.GREEDY
            p = served_distribution(serving.policy, context, names, self.floor)
        now = self.clock()
        drawn = (
            choose(p, uniform_from(ask.decision_id, self.salt)) if mode is Mode.EXPLORE else int(p.argmax())
        )
        return Decision(
            id=ask.decision_id,
            context=context,
            arms=tuple(names),
            probabilities=tuple(p.tolist()),
            drawn=names[drawn],
            policy=serving.policy.kind,
            version=serving.version,
            mode=mode,
            decided_at=now,
            deadline=now + self.wait_s,
            episode_id=ask.episode_id,
            request_digest=ask.request_digest,
        )

    async def retrieve(self, query: Query, k: int, work: "_Work") -> Retrieval:
        """Run the drawn arm, or the fallback where it fails and one is declared."""
        try:
            return await self._search(work.decision.drawn, query, k, work)
        except (ArmError, TimeoutError) as error:
            # It must have been eligible: not switched off, not excluded, and no other arm forced.
            if self.fallback == work.decision.drawn or self.fallback not in work.decision.arms:
                raise
            work.error = described(error)
            return await self._search(self.fallback, query, k, work)

    async def again(self, ask: Ask, decision: Decision, execution: Execution) -> Decided:
        """Return what an earlier turn decided; its passages are found anew, with the same seed.

        Raises:
            ArmError: They cannot be found now.
        """
        arms = {**self.former, **self.arms}
        query = Query(ask.question, {}, self._seed(ask))  # embedded for nobody but the arm
        served = execution.served or decision.drawn
        try:
            retrieval = await self._search(served, query, ask.k, _Work(decision, arms))
        except TimeoutError:
            raise ArmError(f"arm {served!r} took longer than {self.arm_timeout_s:g} s") from None
        return Decided(decision, retrieval, served)

    async def _search(self, arm: str, query: Query, k: int, work: "_Work") -> Retrieval:
        found = work.probes.of(arm)
        if found is None:
            found = await self._find(arm, query, k, work)
        work.served, work.retrieval = arm, replace(found, passages=found.passages[:k])
        return work.retrieval

    async def _find(self, arm: str, query: Query, k: int, work: "_Work") -> Retrieval:
        missing = work.arms[arm].backbones - query.embeddings.keys()
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self.arm_timeout_s):
                if missing:
                    embeddings = await self.embed(query.text, frozenset(missing))
                    query = replace(query, embeddings={**query.embeddings, **embeddings})
                found = await self.search(arm, query, self._depth(k))
        finally:
            work.retrieval_s += time.perf_counter() - started
        work.steps, work.tokens = work.steps + found.steps, work.tokens + found.tokens
        return found

    def _depth(self, k: int) -> int:
        """Passages to search for: the same with and without a probe, so that the first `k` are, too."""
        return max(k, self.advisor.k) if self.advisor else k

    async def generate(
        self, ask: Ask, passages: Sequence[Passage], work: "_Work"
    ) -> AsyncGenerator[Chunk, None]:
        """Write the answer from the passages, chunk by chunk."""
        assert self.generator is not None
        prompt = Prompt(
            answer_prompt(ask.messages, passages, word_budget=self.word_budget),
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            top_p=ask.top_p,
            seed=ask.seed,
            stop=ask.stop,
        )
        work.answer = ""
        started = time.perf_counter()
        deadline = asyncio.get_running_loop().time() + self.llm_timeout_s
        try:
            async with aclosing(self.generator.stream(prompt)) as chunks:
                async for chunk in paced(chunks, deadline):
                    work.note(chunk)
                    yield chunk
        finally:
            work.llm_s = time.perf_counter() - started


@dataclass(slots=True)
class _Work:
    """What a turn has done so far; becomes its execution, however it ends."""

    decision: Decision
    arms: Mapping[str, ArmInfo]
    probes: Probes = field(default_factory=Probes)
    served: str | None = None
    retrieval: Retrieval = field(default_factory=lambda: Retrieval(steps=0))
    answer: str | None = None
    usage: Chunk = field(default_factory=Chunk)
    finish_reason: str = "stop"
    steps: int = 0
    tokens: int = 0
    retrieval_s: float = 0.0
    llm_s: float = 0.0
    error: str = ""

    def note(self, chunk: Chunk) -> None:
        self.answer = (self.answer or "") + chunk.text
        if chunk.finish_reason is not None:
            self.usage, self.finish_reason = chunk, chunk.finish_reason

    def status(self, error: Exception | None, cancelled: bool) -> Status:
        if cancelled:
            return Status.CANCELLED
        if error is None:
            return Status.OK if self.served == self.decision.drawn else Status.FELL_BACK
        if self.served is None:
            return Status.ARM_FAILED
        timed_out = isinstance(error, TimeoutError | GeneratorTimeoutError)
        return Status.LLM_TIMEOUT if timed_out else Status.LLM_FAILED

    def execution(self, now: float, error: Exception | None = None, *, cancelled: bool = False) -> Execution:
        return Execution(
            decision_id=self.decision.id,
            served=self.served,
            status=self.status(error, cancelled),
            cost=Cost(
                steps=self.probes.steps + self.steps,
                prompt_tokens=self.usage.prompt_tokens + self.probes.tokens + self.tokens,
                completion_tokens=self.usage.completion_tokens,
                retrieval_s=self.probes.seconds + self.retrieval_s,
                llm_s=self.llm_s,
                usd=self.usage.usd,
            ),
            passages=tuple(passage.id for passage in self.retrieval.passages),
            answer=self.answer,
            error=described(error) if error else self.error,
            finished_at=now,
        )


def context_of(
    question: str,
    spec: FeatureSpec,
    embeddings: Embeddings,
    arms: Mapping[str, ArmInfo],
    extra: Mapping[str, float | str | bool] | None = None,
) -> Context:
    """Return what a policy sees of a question: the same in a turn and in a label of a warm start.

    Args:
        question: The text as it was asked.
        spec: What to look at.
        embeddings: Of the question, by the backbone that `spec` names, if it names one.
        arms: The live arms.
        extra: What the caller knows.

    Raises:
        FeatureError: An extra number that is not finite.
        ValueError: An embedding that is too short.
    """
    return describe(
        question,
        spec,
        embedding=embeddings[spec.embedding.backbone] if spec.embedding else None,
        extra=extra,
        arms={name: info.features for name, info in arms.items()},
    )


def eligible(ask: Ask, arms: Mapping[str, ArmInfo], failed: Collection[str] = ()) -> list[str]:
    """Return the arms that may be drawn; one that failed before the draw, only where all of them did.

    Raises:
        NoEligibleArmError: There is none.
    """
    names = [
        name
        for name, info in arms.items()
        if info.enabled and name not in ask.excluded and (ask.allowed is None or name in ask.allowed)
    ]
    if not names:
        raise NoEligibleArmError(f"no arm is left of {', '.join(arms)}: all are disabled or excluded")
    return [name for name in names if name not in failed] or names


T = TypeVar("T")


async def paced(items: AsyncIterator[T], deadline: float) -> AsyncGenerator[T, None]:
    """Yield the items, until the event loop's clock reaches `deadline`. Raises TimeoutError.

    The time-out surrounds each wait and never a yield, where it would cancel the reader.
    """
    while True:
        async with asyncio.timeout_at(deadline):
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
        yield item


def described(error: Exception) -> str:
    """Return one line that names an error; time-outs carry no message of their own."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _seen(future: "asyncio.Future[Any]") -> None:
    """Mark the outcome of a commit as seen, also when its turn ends before looking at it."""
    if not future.cancelled():
        future.exception()
