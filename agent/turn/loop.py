"""One turn: describe, choose, commit, search, answer, record. Read this first.

A turn is plain Python over its seams: arms that search, language models that write, a log that facts are
appended to, and a `Decider` with the policy that is served now. It runs in a unit test without a cluster.
`TurnLoop.turn` is the whole of it:

    describe     ask -> query, context      embed the question if a policy or a router reads that
    choose       context -> decision        leave out arms, read, score, plan, draw one arm (`choose.py`)
    search       decision -> passages       with the arm, or with the fallback; the commit is under way
    answer       passages -> answer         nothing leaves before the decision is durable
    record       answer -> execution        committed however the turn ends

Everything optional is a step (`steps`). A decision that the caller carries out is committed and returned.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from armwise.agent.policies import FeatureSpec, sampling
from armwise.agent.telemetry import turns
from armwise.agent.turn.answer import AnswerWriter
from armwise.agent.turn.ask import Ask, ObservedDecision
from armwise.agent.turn.choose import Decider, build_context
from armwise.agent.turn.eligibility import ArmInfo, NoEligibleArmError
from armwise.agent.turn.price import FREE, CostBound, bound_turn
from armwise.agent.turn.probes import Embeddings, Probes
from armwise.agent.turn.record import (
    AnsweredElsewhereError,
    Commit,
    Decided,
    Event,
    FactLog,
    Finished,
    Spending,
    TurnCommit,
    TurnError,
    TurnRecorder,
    Unlogged,
)
from armwise.agent.turn.search import Searcher
from armwise.agent.turn.serving import Serving, list_scorers
from armwise.agent.turn.steps import Draft
from armwise.arms.base import ArmError, Query, Retrieval
from armwise.arms.llm import Chunk, GeneratorError
from armwise.feedback.errors import describe_error
from armwise.feedback.events import Context, Cost, Decision, Execution

TOGETHER_S = 0.002
"""Seconds that a decision waits for a quick search, so that decision and execution share a commit."""


@dataclass(slots=True)
class TurnLoop:
    """The seams of a turn, wired once per replica.

    Attributes:
        arms: The live arms by name; replaced when an arm is switched.
        decider: Draws an arm.
        searcher: Runs arms.
        writer: Writes answers.
        log: Where facts are committed.
        features: Which features a context has.
        fallback: Arm that answers when the drawn one fails.
        former: Arms that were live before, for repeats of requests that they answered.
        keeps_answers: Whether an answer whose decision is durable stands although its end cannot be logged.
        is_followed: Whether steps follow what was decided and answered.
        charge: Called once for each turn and each repeated search, with the decision's id and the cost,
            however it ended.
    """

    arms: Mapping[str, ArmInfo]
    decider: Decider
    searcher: Searcher
    writer: AnswerWriter
    log: FactLog
    features: FeatureSpec
    fallback: str | None = None
    former: Mapping[str, ArmInfo] = field(default_factory=dict)
    keeps_answers: bool = False
    is_followed: bool = True
    charge: Callable[[str, Cost], object] = lambda *_: None

    @property
    def known(self) -> Mapping[str, ArmInfo]:
        """The live arms and the former ones."""
        return {**self.former, **self.arms}

    def bound_cost(self, ask: Ask, decision: Decision | None = None, arm: str | None = None) -> CostBound:
        """Return the most that a turn may cost.

        Args:
            ask: The request.
            decision: A decision to carry out, for a live or former arm; None: a new turn.
            arm: The arm that carries it out; None: the drawn one, or the fallback.

        Raises:
            NoEligibleArmError, OverloadedError, ArmError: No arm may answer a new turn now.
        """
        if ask.external:
            return FREE
        if decision is None:
            arms, probed = self.arms, frozenset[str]()
            names = eligible = self.list_eligible(ask)
            if ask.forced is None:
                readers = [scorer for scorer in list_scorers(self.decider.serving) if scorer.k]
                probed = frozenset(name for scorer in readers for name in scorer.arms)
        else:
            arms, probed = self.known, frozenset()
            names, eligible = [arm or decision.drawn], [] if arm else [*decision.arms]
        fallback = self.fallback if self.fallback in eligible and self.fallback in arms else None
        writer = self.writer
        return bound_turn(ask, arms, writer.models, writer.templates, names, probed, fallback)

    def list_eligible(self, ask: Ask) -> list[str]:
        """Return the live arms that may answer a request now. Raises as `Decider.narrow`."""
        return self._narrow(ask, self.arms).names

    def _narrow(self, ask: Ask, arms: Mapping[str, ArmInfo], context: Context | None = None) -> Draft:
        decider = self.decider
        context = Context(ask.question) if context is None else context
        draft = decider.draft(ask, arms, context, decider.serving, restricted=self.searcher.restricted)
        decider.narrow(draft)
        return draft

    async def turn(
        self, ask: Ask, on_commit: Callable[[Commit], object] = lambda _: None
    ) -> AsyncGenerator[Event, None]:
        """Answer one question: yield the decision, the answer as it is generated, and the end.

        A decision that the caller carries out has no end.

        Args:
            ask: The request.
            on_commit: Called with the commit of the decision as soon as it is queued.

        Raises:
            NoEligibleArmError: No arm may answer; nothing was decided.
            OverloadedError: No arm has room; nothing was decided.
            ArmError: An embedding, or an input of the router, is unavailable; nothing was decided.
            TurnError: The arm or the model failed; the decision and the failure are committed.
            AnsweredElsewhereError: Another process has answered meanwhile.
        """
        # One set of arms, one policy and one router for the whole turn, whatever is replaced meanwhile.
        arms, serving, spending = self.arms, self.decider.serving, Spending()
        try:
            with turns.trace_decision() as span:
                query, draft = await self.describe(ask, arms, serving)
                self.decider.narrow(draft)
                await self.decider.read(draft)
                await self._score(draft, query, spending)
                decision = self.decider.decide(draft)
                turns.record_decision(span, decision)
        except BaseException:  # without a decision there is no execution to carry the cost of probes
            self.charge(ask.decision_id, spending.cost)
            raise
        if ask.external:
            events = self._hand_over(ask, decision, on_commit)
        else:
            # No await between the draw and the start of the search, so that the arm's cap counts it.
            # The decision is committed while the arm searches; the answer waits until it is durable.
            wait_s, follow = 0.0 if ask.messages else TOGETHER_S, partial(self._follow, ask, decision)
            commit = TurnCommit(self.log, decision, on_commit, wait_s=wait_s, follow=follow)
            recorder = TurnRecorder(decision, arms, _depth(serving), draft.probes, spending)
            query = replace(query, expected=decision.context.expected)
            events = self._carry_out(ask, query, recorder, commit, self.charge)
        async with aclosing(events):
            async for event in events:
                yield event

    async def repeat(
        self,
        ask: Ask,
        decision: Decision,
        arm: str | None = None,
        on_commit: Callable[[Commit], object] | None = None,
        charge: Callable[[str, Cost], object] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Carry out a decision of the log, with the same seed.

        Args:
            ask: The repeated request; one without messages is searched for only.
            decision: The decision, for a live or former arm.
            arm: The arm that carries it out; None: the drawn one, or the fallback.
            on_commit: Called with the commit of the decision, which is done, to commit how the turn ends;
                None: nothing is logged.
            charge: Called with the cost; None: as in a new turn.

        Raises:
            OverloadedError: The arm has no room now.
            TurnError: The arm or the model failed.
            AnsweredElsewhereError: Another process has carried it out meanwhile.
        """
        arms, done = self.known, decision
        if arm is not None:
            done = replace(decision, arms=(arm,), probabilities=(1.0,), drawn=arm)
        with suppress(NoEligibleArmError):  # it was eligible; a search that may not be made now fails
            self._narrow(replace(ask, forced=done.drawn), arms, decision.context)
        commit: TurnCommit | Unlogged = Unlogged()
        if on_commit is not None:
            follow = partial(self._follow, ask, decision)
            commit = TurnCommit(self.log, decision, on_commit, is_durable=True, follow=follow)
        recorder = TurnRecorder(done, arms, _depth(self.decider.serving))
        query = self._query(ask, decision.context)  # only the arm may need an embedding
        async with aclosing(self._carry_out(ask, query, recorder, commit, charge or self.charge)) as events:
            async for event in events:
                yield replace(event, decision=decision) if isinstance(event, Decided) else event

    async def build_observed(self, ask: Ask, observed: ObservedDecision) -> Decision:
        """Return a decision of another system as a fact, with the policy's distribution as its shadow.

        The caller commits it.

        Args:
            ask: The question, its ids and its user.
            observed: The decision of the other system, on live arms.

        Raises:
            ArmError: An embedding, or an input of the router, is unavailable.
            PolicyError: The policy returned no distribution.
        """
        query, draft = await self.describe(ask, self.arms, self.decider.serving)
        draft.names, draft.masked = [*observed.arms], {}
        await self._score(draft, query, Spending())
        return self.decider.build_observed(draft, observed)

    async def describe(self, ask: Ask, arms: Mapping[str, ArmInfo], serving: Serving) -> tuple[Query, Draft]:
        """Return the query for arms, and the decision in the making, with the context of the question."""
        scorers = () if ask.forced is not None else list_scorers(serving)
        readers = (self.features.embedding, self.features.similarity, *scorers)
        named = {reader.backbone for reader in readers if reader is not None}
        backbones = frozenset(name for name in named if name is not None)
        embeddings = await self.searcher.embed_within(ask.question, backbones) if backbones else {}
        context = build_context(ask.question, self.features, embeddings, arms, ask.context)
        draft = self.decider.draft(ask, arms, context, serving, restricted=self.searcher.restricted)
        return self._query(ask, context, embeddings), draft

    def _query(self, ask: Ask, context: Context, embeddings: Embeddings | None = None) -> Query:
        """Return the query for arms, with the score that the context expects of each."""
        seed = sampling.seed_of_arm(ask.continues or ask.decision_id, self.decider.salt)
        return Query(ask.question, embeddings or {}, seed, ask.where, ask.groups, context.expected)

    async def _score(self, draft: Draft, query: Query, spending: Spending) -> None:
        """Add the scores of routers to a decision in the making."""

        async def search_first(names: Sequence[str]) -> Probes:
            depth = _depth(draft.serving)
            return await self.searcher.search_first(draft.ask, query, draft.arms, depth, spending, names)

        await self.decider.score(draft, query, search_first)

    async def _hand_over(
        self, ask: Ask, decision: Decision, on_commit: Callable[[Commit], object]
    ) -> AsyncGenerator[Event, None]:
        """Commit a decision that the caller carries out, and whose execution is reported afterwards."""
        commit = self.log.append(decision)
        on_commit(commit)
        await asyncio.shield(commit)
        self._follow(ask, decision)
        yield Decided(decision, Retrieval(steps=0), decision.drawn)

    def _follow(self, ask: Ask, decision: Decision) -> None:
        for step in self.decider.steps if self.is_followed else ():
            step.follow(ask, decision)

    async def _carry_out(
        self,
        ask: Ask,
        query: Query,
        recorder: TurnRecorder,
        commit: TurnCommit | Unlogged,
        charge: Callable[[str, Cost], object],
    ) -> AsyncGenerator[Event, None]:
        """Search and answer, and record the execution, however the turn ends."""
        decision = recorder.decision
        failure: Exception | None = None

        def end(*, cancelled: bool = False) -> Execution:
            execution = recorder.execution(self.decider.clock(), failure, cancelled=cancelled)
            charge(execution.decision_id, execution.cost)
            return execution

        try:
            try:
                await self._retrieve(query, ask, recorder)
                if ask.messages:
                    await commit.decision_durable()
                    async with aclosing(self._answer(ask, query, recorder)) as events:
                        async for event in events:
                            yield event
            except (ArmError, GeneratorError, TimeoutError) as error:
                failure = error
        except (asyncio.CancelledError, GeneratorExit):
            commit.abandon(end(cancelled=failure is None))
            raise
        except BaseException:  # such as an error of the log: the cost is charged, the execution is lost
            end(cancelled=True)
            raise
        execution = end()
        await self._commit(commit, execution, failure)
        if not ask.messages:
            yield Decided(decision, recorder.retrieval, recorder.served or decision.drawn)
        if commit.is_logged:
            for step in self.decider.steps if ask.messages and self.is_followed else ():
                step.finish(ask, decision, execution, recorder.retrieval.passages)
        yield Finished(execution, recorder.finish_reasons, commit.is_logged)

    async def _commit(
        self, commit: TurnCommit | Unlogged, execution: Execution, failure: Exception | None
    ) -> None:
        """Commit the end of a turn. Raises TurnError if it failed."""
        if not await commit.finish(execution, keeps_answer=self.keeps_answers and failure is None):
            name = execution.decision_id
            raise AnsweredElsewhereError(f"{name!r} was meanwhile answered by another process")
        if failure is not None:
            raise TurnError(execution) from failure

    async def _retrieve(self, query: Query, ask: Ask, recorder: TurnRecorder) -> Retrieval:
        """Run the drawn arm, or the fallback if that fails."""
        try:
            return await self.searcher.search(recorder.decision.drawn, query, ask, recorder)
        except (ArmError, TimeoutError) as error:
            if (fallback := self._find_fallback(recorder)) is None:
                raise
            recorder.error = describe_error(error)
            return await self.searcher.search(fallback, query, ask, recorder)

    async def _answer(
        self, ask: Ask, query: Query, recorder: TurnRecorder
    ) -> AsyncGenerator[Decided | Chunk, None]:
        """Generate the answer, with the fallback's language model if the first one fails before any text.

        If a fallback is possible, `Decided`, which names the served arm, is held back until the first chunk.
        """
        fallback = self._other_model(recorder)
        decided = Decided(recorder.decision, recorder.retrieval, recorder.served or recorder.decision.drawn)
        unsent = fallback is not None
        if not unsent:
            yield decided
        try:
            async with aclosing(self.writer.write(ask, recorder.retrieval.passages, recorder)) as chunks:
                async for chunk in chunks:
                    if unsent:
                        yield decided
                        unsent = False
                    yield chunk
        except GeneratorError as error:
            if fallback is None or not unsent:
                raise
            recorder.error = describe_error(error)
            recorder.abandon(error)
            retrieval = await self.searcher.search(fallback, query, ask, recorder)
            yield Decided(recorder.decision, retrieval, fallback)
            unsent = False
            async with aclosing(self.writer.write(ask, retrieval.passages, recorder)) as chunks:
                async for chunk in chunks:
                    yield chunk
        if unsent:
            yield decided

    def _other_model(self, recorder: TurnRecorder) -> str | None:
        """Return the fallback, if it is available and answers with a different model than the served arm."""
        arm, served = self._find_fallback(recorder), recorder.served or recorder.decision.drawn
        if arm is None or arm == served:
            return None
        return arm if recorder.arms[arm].answering.llm != recorder.arms[served].answering.llm else None

    def _find_fallback(self, recorder: TurnRecorder) -> str | None:
        """Return the fallback, if it could have been drawn, is switched on, and is available."""
        arm = self.fallback
        # It must have been eligible when the arm was drawn: that excludes forced arms, too.
        if arm is None or arm == recorder.decision.drawn or arm not in recorder.decision.arms:
            return None
        if not recorder.arms[arm].enabled:  # switched off since, for a turn that is resumed
            return None
        caller = recorder.decision.asked_by
        return arm if self.searcher.health.available([arm], recorder.probes.found, caller) else None


def _depth(serving: Serving) -> int:
    """Return the most passages that a router reads; every search has this depth, probed or not.

    So the first passages of a search are the same in both cases.
    """
    return max((scorer.k for scorer in list_scorers(serving)), default=0)
