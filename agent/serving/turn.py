"""One turn: look, choose, remember, act. Read this first.

A turn is plain Python over six seams: embed a question, ask a router, search with
an arm, write with a language model, append to the log, and the policy now serving.
It runs in a unit test without a cluster.

More than 300 lines: the words that a turn is told in stand above it, and what
it leaves on record below, so that it can be read in one place.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from agent.policies import FeatureSpec, choose, sampling, served_distribution
from agent.serving.arm_health import ArmHealth
from agent.serving.decide import context_of, eligible
from agent.serving.execution import UNPROBED, TurnRecorder
from agent.serving.messages import (
    AnsweredElsewhereError,
    ArmInfo,
    Ask,
    Canary,
    Commit,
    Decided,
    Event,
    Finished,
    Log,
    OverloadedError,
    Serving,
    TurnError,
)
from agent.serving.probe import Embed, Embeddings, Probes, Scorer, Search, probe, with_scores
from arms.base import ArmError, Passage, Query, Retrieval
from arms.llm import Chunk, Generator, GeneratorError, Prompt, prompts
from feedback.errors import described
from feedback.events import Context, Decision, Execution, Mode

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TurnLoop:
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
        standing: How each arm is doing, which may keep it from being drawn.
        dropped: The last candidate that gave no distribution; it is not asked again.
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
    advisor: Scorer | None = None
    standing: ArmHealth = field(default_factory=ArmHealth)
    dropped: Canary | None = None

    @property
    def canary(self) -> Canary | None:
        """The candidate that takes part in decisions; None for none."""
        return None if self.serving.canary is self.dropped else self.serving.canary

    @property
    def known(self) -> Mapping[str, ArmInfo]:
        """The arms that are live, and those that were."""
        return {**self.former, **self.arms}

    async def turn(
        self, ask: Ask, decided: Callable[[Commit], object] = lambda _: None
    ) -> AsyncGenerator[Event, None]:
        """Answer one question: yield the decision, the answer as it is written, and the end.

        Args:
            ask: The question.
            decided: Is told of the decision's commit, as soon as that has begun.

        Raises:
            NoEligibleArmError: Nothing was decided.
            OverloadedError: No arm has room; nothing was decided.
            ArmError: An encoder, or what the router looks at, cannot be had; nothing was decided.
            TurnError: The arm or the model failed; the decision and the failure are committed.
            AnsweredElsewhereError: It took so long that another process has answered.
        """
        arms = self.arms  # the same for the whole turn, whatever is switched or replaced meanwhile
        query, context = await self.look(ask, arms)
        names = self.able(eligible(ask, arms))
        context, probes = await self.advise(ask, names, query, context, arms)
        decision = self.choose(ask, names, context, probes)
        # Nothing is awaited from here until the search has begun, and has taken the arm's place.
        committed = self.log.append(decision)  # while the arm works; nothing leaves before it is durable
        decided(committed)
        work = TurnRecorder(decision, arms, probes)
        async with aclosing(self._carry_out(ask, query, work, committed)) as events:
            async for event in events:
                yield event

    async def resume(
        self, ask: Ask, decision: Decision, decided: Callable[[Commit], object] = lambda _: None
    ) -> AsyncGenerator[Event, None]:
        """Carry out what a turn decided that was cut off: the same arm, and no second decision.

        Args:
            ask: The question, asked again.
            decision: What was drawn for it: an arm that is known here.
            decided: Is told of the decision's commit, which is done.

        Raises:
            OverloadedError: The arm has no room now.
            TurnError: The arm or the model failed; the failure is committed.
            AnsweredElsewhereError: Somebody else has carried it out meanwhile.
        """
        arms = self.known
        self.able([decision.drawn])
        committed: Commit = asyncio.get_running_loop().create_future()
        committed.set_result(None)
        decided(committed)
        work = TurnRecorder(decision, arms)
        async with aclosing(self._carry_out(ask, self._query(ask), work, committed)) as events:
            async for event in events:
                yield event

    async def _carry_out(
        self, ask: Ask, query: Query, work: TurnRecorder, committed: Commit
    ) -> AsyncGenerator[Event, None]:
        """Search and write, and record how it went, however it ends."""
        committed.add_done_callback(_seen)
        failure: Exception | None = None
        try:
            try:
                retrieval = await self.retrieve(query, ask.k, work)
                await asyncio.shield(committed)
                yield Decided(work.decision, retrieval, work.served or work.decision.drawn)
                if ask.messages and self.generator is not None:
                    async with aclosing(self.generate(ask, retrieval.passages, work)) as chunks:
                        async for chunk in chunks:
                            yield chunk
            except (ArmError, GeneratorError, TimeoutError) as error:
                failure = error
                await asyncio.shield(committed)
        except (asyncio.CancelledError, GeneratorExit):
            left = work.execution(self.clock(), failure, cancelled=failure is None)
            committed.add_done_callback(partial(self._abandon, left))
            raise
        execution = work.execution(self.clock(), failure)
        (receipt,) = await self.log.append(execution)
        if not receipt.seq:
            raise AnsweredElsewhereError(f"{work.decision.id!r} was answered by another process meanwhile")
        if failure is not None:
            raise TurnError(work.decision.id, execution.status, execution.error) from failure
        yield Finished(execution, work.finish_reason)

    def _abandon(self, execution: Execution, committed: Commit) -> None:
        """Record a turn that nobody waits for; a decision that was refused may be another turn's."""
        if not committed.cancelled() and committed.exception() is None:
            self.log.append(execution).add_done_callback(_seen)

    async def look(self, ask: Ask, arms: Mapping[str, ArmInfo]) -> tuple[Query, Context]:
        """Describe the question as the policy will see it, embedded where the policy or a router needs it."""
        looking = (self.features.embedding, self.advisor if ask.forced is None else None)
        backbones = {each.backbone for each in looking if each is not None}
        embeddings = await self._embedded(ask.question, frozenset(backbones)) if backbones else {}
        context = context_of(ask.question, self.features, embeddings, arms, ask.context)
        return self._query(ask, embeddings), context

    def _query(self, ask: Ask, embeddings: Embeddings | None = None) -> Query:
        seed = int(sampling.uniform_from(ask.decision_id, self.salt + "/arm") * (1 << 53))
        return Query(ask.question, embeddings or {}, seed)

    async def _embedded(self, question: str, backbones: frozenset[str]) -> Embeddings:
        try:
            async with asyncio.timeout(self.arm_timeout_s):
                return await self.embed(question, backbones)
        except TimeoutError:
            names = " and ".join(map(repr, sorted(backbones)))
            message = f"no embedding of the question by {names} within {self.arm_timeout_s:g} s"
            raise ArmError(message) from None

    def able(self, names: Sequence[str], probes: Probes = UNPROBED) -> list[str]:
        """Return the arms that may be drawn now; one whose probe failed, only where all of them did.

        Raises:
            OverloadedError: They have no room.
        """
        names = [name for name in names if name not in probes.failed] or names
        able = self.standing.able(names, asked=probes.found.keys() | probes.failed.keys())
        if not able:
            raise OverloadedError(f"no arm that could be drawn has room: {', '.join(names)}")
        return able

    async def advise(
        self, ask: Ask, names: Sequence[str], query: Query, context: Context, arms: Mapping[str, ArmInfo]
    ) -> tuple[Context, Probes]:
        """Let the router score the arms that it knows; they search first if it looks at that."""
        advisor, probes = self.advisor, UNPROBED
        if advisor is None or ask.forced is not None:
            return context, probes
        known = [name for name in names if name in advisor.arms]
        if advisor.k:
            needs = {name: arms[name].backbones for name in known}
            depth, limit_s = self._depth(ask.k), self.arm_timeout_s
            with self.standing.searching(*known) as tell:
                probes = await probe(query, depth, needs, self.embed, self.search, limit_s)
                tell(worked=probes.found, failed=probes.failed)
            known = list(probes.found)
        scores = await advisor.scores(query, known, probes.found) if known else {}
        return with_scores(context, scores), probes

    def choose(self, ask: Ask, names: Sequence[str], context: Context, probes: Probes = UNPROBED) -> Decision:
        """Draw an arm from the policy's distribution, the floor mixed in.

        Raises:
            OverloadedError: The arms have no room any more.
        """
        serving, names = self.serving, self.able(names, probes)
        candidate, share = 0, 0.0
        if ask.forced is not None:
            mode, floor, p, shadow = Mode.FORCED, 0.0, np.ones(1), np.zeros(0)
        else:
            mode = Mode.EXPLORE if ask.explore else Mode.GREEDY
            floor = sampling.lowered(self.floor, len(names))
            p = served_distribution(serving.policy, context, names, floor)
            if canary := self.canary:
                beside = self._beside(canary, context, names, floor)
                if beside.size:
                    candidate, share = canary.version, canary.share
                    p = sampling.mixed(p, beside, share)
            shadow = sampling.shadow_distribution(serving.policy, context, names, floor)
        now = self.clock()
        explored = mode is Mode.EXPLORE
        drawn = (
            choose(p, sampling.uniform_from(ask.decision_id, self.salt, names))
            if explored
            else int(p.argmax())
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
            floor=floor,
            deferred=ask.deferred,
            shadow=tuple(shadow.tolist()),
            candidate=candidate,
            share=share,
        )

    def _beside(
        self, canary: Canary, context: Context, names: Sequence[str], floor: float
    ) -> NDArray[np.float64]:
        """Return the distribution of a candidate, shape (n_arms,); where it has none, drop it: shape (0,)."""
        try:
            return served_distribution(canary.policy, context, names, floor)
        except Exception:
            logger.exception("version %d takes no part any more: it gave no distribution", canary.version)
            self.dropped = canary
            return np.zeros(0)

    async def retrieve(self, query: Query, k: int, work: TurnRecorder) -> Retrieval:
        """Run the drawn arm, or the fallback where it fails and one is declared."""
        try:
            return await self._search(work.decision.drawn, query, k, work)
        except (ArmError, TimeoutError) as error:
            fallback = self.fallback
            # It must have been one that could be drawn: not switched off, not excluded, and none was forced.
            if fallback == work.decision.drawn or fallback not in work.decision.arms:
                raise
            if not work.arms[fallback].enabled:  # since then, where a turn is resumed
                raise
            if not self.standing.able([fallback], work.probes.found):
                raise
            work.error = described(error)
            return await self._search(fallback, query, k, work)

    async def again(self, ask: Ask, decision: Decision, execution: Execution) -> Decided:
        """Return what an earlier turn decided; its passages are found anew, with the same seed.

        Raises:
            OverloadedError: The arm has no room now.
            ArmError: They cannot be found now.
        """
        arms = self.known
        query = self._query(ask)  # embedded for nobody but the arm
        served = execution.served or decision.drawn
        self.able([served])
        try:
            retrieval = await self._search(served, query, ask.k, TurnRecorder(decision, arms))
        except TimeoutError:
            raise ArmError(f"arm {served!r} took longer than {self.arm_timeout_s:g} s") from None
        return Decided(decision, retrieval, served)

    async def _search(self, arm: str, query: Query, k: int, work: TurnRecorder) -> Retrieval:
        found = work.probes.of(arm)
        if found is None:
            found = await self._find(arm, query, k, work)
        work.served, work.retrieval = arm, replace(found, passages=found.passages[:k])
        return work.retrieval

    async def _find(self, arm: str, query: Query, k: int, work: TurnRecorder) -> Retrieval:
        missing = work.arms[arm].backbones - query.embeddings.keys()
        started = time.perf_counter()
        with self.standing.searching(arm) as tell:
            try:
                async with asyncio.timeout(self.arm_timeout_s):
                    if missing:
                        embeddings = await self.embed(query.text, frozenset(missing))
                        query = replace(query, embeddings={**query.embeddings, **embeddings})
                    found = await self.search(arm, query, self._depth(k))
            except (ArmError, TimeoutError):
                tell(failed=(arm,))
                raise
            finally:
                work.retrieval_s += time.perf_counter() - started
            tell(worked=(arm,))
        work.steps, work.tokens = work.steps + found.steps, work.tokens + found.tokens
        return found

    def _depth(self, k: int) -> int:
        """Passages to search for: the same with and without a probe, so that the first `k` are, too."""
        return max(k, self.advisor.k) if self.advisor else k

    async def generate(
        self, ask: Ask, passages: Sequence[Passage], work: TurnRecorder
    ) -> AsyncGenerator[Chunk, None]:
        """Write the answer from the passages, chunk by chunk."""
        assert self.generator is not None
        prompt = Prompt(
            prompts.answer_prompt(ask.messages, passages, word_budget=self.word_budget),
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


def _seen(future: Commit) -> None:
    """Mark the outcome of a commit as seen, also when its turn ends before looking at it."""
    if not future.cancelled():
        future.exception()
