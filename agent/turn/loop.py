"""One turn: describe, draw, commit, search, generate, record. Read this first.

A turn is plain Python over its seams: embed a question, search with an arm, generate with a language model,
append to the log, and a `Decider` with the policy that is served now. It runs in a unit test without a
cluster. `TurnLoop.turn` is the whole of it:

    describe       ask -> query, context     embed the question where a policy or a router reads that
    eligibility    ask, arms -> names        what is switched on, allowed and able to filter
    score          names -> probes, scores   arms search first if the router reads passages
    decide         context -> decision       mask, distribute, draw one arm
    retrieve       decision -> passages      search with it, or with the fallback; the commit is under way
    generate       passages -> answer        nothing leaves before the decision is durable
    record         answer -> execution       committed however the turn ends

A decision that the caller carries out is committed and returned: nothing is retrieved.
"""

import asyncio
import logging
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from armwise.agent.policies import FeatureSpec, sampling
from armwise.agent.telemetry import turns
from armwise.agent.turn.ask import Ask, ObservedDecision
from armwise.agent.turn.cached_prompt import NO_MISSES, CacheMisses, expect_misses
from armwise.agent.turn.checked import SAID, AnswerStage, CheckedAnswering, check_texts, draw_overrule
from armwise.agent.turn.draw import Decider, Scored, Serving, build_context, list_scorers
from armwise.agent.turn.eligibility import UNFILTERED, ArmInfo, check_eligibility, must_filter
from armwise.agent.turn.health import ReportOutcome, llm_key
from armwise.agent.turn.price import FREE, CostBound, LanguageModel, PriceList, limit_tokens
from armwise.agent.turn.probes import Embed, Embeddings, Probes, Recall, Search, probe, recall_nothing
from armwise.agent.turn.record import (
    AnsweredElsewhereError,
    CallNames,
    Choices,
    Commit,
    Decided,
    Event,
    FactLog,
    Finished,
    Spending,
    TurnCommit,
    TurnError,
    TurnRecorder,
    read_usage,
    tokens_in,
)
from armwise.arms.base import ArmError, Passage, Query, QuestionRefusedError, Retrieval
from armwise.arms.filters import permits
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
from armwise.feedback.errors import described
from armwise.feedback.events import AnsweredTurn, Context, Cost, Decision, Execution, KeptDraw

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
    options = {} if how.reasoning is None else {"reasoning_effort": how.reasoning}
    options |= ask.options
    if how.prompt == prompts.Form.DIRECT and ask.options.get("tools") and _is_instructed(ask):
        template = prompts.AGENT
    text = prompts.write_instructions(passages, word_budget=how.word_budget, template=template, cite=how.cite)
    unnamed = limit_tokens(ask, how) if model.protocol else how.max_tokens
    given = model.options | base.HINTS if model.protocol else model.options
    return Prompt(
        prompts.instructed(ask.messages, text),
        max_tokens=unnamed if ask.max_tokens is None else ask.max_tokens,
        temperature=how.asked_temperature if ask.temperature is None else ask.temperature,
        top_p=1.0 if ask.top_p is None else ask.top_p,
        seed=ask.seed,
        stop=ask.stop,
        options={name: value for name, value in options.items() if name in given},
        request=_without_foreign_state(ask, how.llm) if model.protocol else None,
        instructions=text,
        sets_limit=how.limit is not None or ask.limited,
        streams=ask.streams,
        headers=ask.headers if ask.needs.protocol == model.protocol else {},
    )


def _without_foreign_state(ask: Ask, llm: str) -> Request | None:
    """Return the request without the reasoning and the other state of models that are not this one."""
    if ask.request is None or not ask.writers:
        return ask.request

    def is_foreign(mark: str) -> bool:
        return ask.writers.get(mark, llm) != llm

    request = ask.request
    return Request(request.protocol, PROTOCOLS[request.protocol].without_state(request.body, is_foreign))


def reasons_first(ask: Ask, how: writing.Answering) -> bool:
    """Return whether the model gives reasons before its answer, which alone is sent.

    Tools, a form, several choices, log-probabilities and stop texts of a request would apply to the reasons.
    """
    plain = not ask.stop and ask.options.keys() <= base.HINTS | base.SAMPLING
    return plain and how.prompt == prompts.Form.REASONING


def _is_instructed(ask: Ask) -> bool:
    return any(message["role"] == "system" and message["content"] for message in ask.messages)


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


def choose_llms(ask: Ask, arms: Mapping[str, ArmInfo]) -> dict[str, str]:
    """Return the language model of each arm; empty if the request is to retrieve only."""
    return {name: info.answering.llm for name, info in arms.items()} if ask.messages else {}


def choose_k(ask: Ask, info: ArmInfo) -> int:
    """Return the number of passages that a request gets from an arm."""
    return info.answering.passages if ask.k is None else ask.k


FindDraw = Callable[[str], Awaitable[KeptDraw | None]]
"""Episode -> its newest draw whose arm may be kept. Raises LogUnavailableError."""


async def no_draw(_: str) -> None:
    """Return None: every turn draws."""


FindTurns = Callable[[str], Awaitable[Sequence[AnsweredTurn]]]
"""Episode -> its first turn and its newest ones, oldest first. Raises LogUnavailableError."""


async def no_turns(_: str) -> Sequence[AnsweredTurn]:
    """Return no turn: every conversation begins."""
    return ()


FindPassages = Callable[[Sequence[str]], Awaitable[Sequence[Passage]]]
"""Ids -> the passages with these ids that are in the corpus. Raises ArmError."""


async def no_passages(_: Sequence[str]) -> Sequence[Passage]:
    """Return no passage: a service without a corpus."""
    return ()


CACHE_TURNS = 5.0
"""Turns over which a draw spreads what a cache lacks: the turns that follow read it from there."""

TOGETHER_S = 0.002
"""Seconds that a decision waits for a quick search, so that decision and execution share a commit."""


@dataclass(slots=True)
class TurnLoop:
    """The seams of a turn, wired once per replica.

    Attributes:
        arms: The live arms by name; replaced when an arm is switched.
        decider: Draws an arm.
        embed: Embeds a question with each of the named backbones.
        search: Runs an arm by name.
        recall: Returns the cached retrieval of an arm for the same search.
        models: Language models by the names that arms use; empty to retrieve only.
        templates: Prompts by the names that arms use; other names mean the first form of
            `armwise.arms.llm.prompts`.
        log: Where facts are committed.
        features: Which features a context has.
        cost_weight: Cost weight of requests that set none.
        fallback: Arm that answers when the drawn one fails.
        arm_timeout_s: Seconds that a search, or the embedding of a question, may take.
        llm_timeout_s: Seconds that the model may take.
        former: Arms that were live before, for repeats of requests that they answered.
        restricted: Whether any passage of the corpus is restricted to groups: only arms that filter are
            eligible then.
        passages: Returns the passages of the corpus with given ids. Raises ArmError.
        find_draw: Returns the newest draw of a conversation whose arm may be kept.
        find_turns: Returns turns of a conversation, for what language models have cached of it.
        weigh_usd: Reward that a dollar costs a request with a weight of cost, None for one that names none.
        keeps_answers: Whether an answer whose decision is durable stands although its end cannot be logged.
        on_answer: Called with each turn whose answer is complete and durable, and its passages.
        charge: Called once for each turn and each repeated search, with the decision's id and the cost,
            however it ended.
        on_refusal: Called after each call of a language model, with its name, and why its endpoint refuses
            the service; empty if it does not.
    """

    arms: Mapping[str, ArmInfo]
    decider: Decider
    embed: Embed
    search: Search
    models: Mapping[str, LanguageModel]
    log: FactLog
    features: FeatureSpec
    cost_weight: float = 0.0
    fallback: str | None = None
    templates: Mapping[str, prompts.Template] = field(default_factory=dict)
    arm_timeout_s: float = 10.0
    llm_timeout_s: float = 120.0
    recall: Recall = recall_nothing
    former: Mapping[str, ArmInfo] = field(default_factory=dict)
    restricted: bool = False
    passages: FindPassages = no_passages
    find_draw: FindDraw = no_draw
    find_turns: FindTurns = no_turns
    weigh_usd: Callable[[float | None], float] = lambda _: 0.0
    keeps_answers: bool = False
    on_answer: Callable[[Ask, Decision, Execution, Sequence[Passage]], object] = lambda *_: None
    charge: Callable[[str, Cost], object] = lambda *_: None
    on_refusal: Callable[[str, str], object] = lambda *_: None

    @property
    def known(self) -> Mapping[str, ArmInfo]:
        """The live arms and the former ones."""
        return {**self.former, **self.arms}

    def most(self, ask: Ask) -> CostBound:
        """Return the most that a new turn may cost. Raises NoEligibleArmError."""
        if ask.external:
            return FREE
        names, _ = check_eligibility(ask, self.arms, restricted=self.restricted)
        scorers = list_scorers(self.decider.serving) if ask.forced is None else ()
        probed = frozenset(name for scorer in scorers if scorer.k for name in scorer.arms)
        fallback = self.fallback if self.fallback in names else None
        return self._price_list(self.arms).turn(ask, names, probed, fallback)

    def most_to_resume(self, ask: Ask, decision: Decision) -> CostBound:
        """Return the most that it may cost to carry out a decision for a live or former arm."""
        arms = self.known
        fallback = self.fallback if self.fallback in decision.arms and self.fallback in arms else None
        return self._price_list(arms).turn(ask, [decision.drawn], (), fallback)

    def most_again(self, ask: Ask, arm: str) -> CostBound:
        """Return the most that another search of a live or former arm may cost."""
        return self._price_list(self.known).search(arm, ask.question)

    def _price_list(self, arms: Mapping[str, ArmInfo]) -> PriceList:
        return PriceList(arms, self.models, self.templates)

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
            decision, query, probes = await self._decide(ask, arms, serving, spending)
        except BaseException:  # without a decision there is no execution to carry the cost of probes
            self.charge(ask.decision_id, spending.cost)
            raise
        if ask.external:
            events = self._hand_over(decision, on_commit)
        else:
            # No await between the draw and the start of the search, so that the arm's cap counts it.
            # The decision is committed while the arm searches; the answer waits until it is durable.
            commit = TurnCommit(self.log, decision, on_commit, wait_s=0.0 if ask.messages else TOGETHER_S)
            recorder = TurnRecorder(decision, arms, _depth(serving), probes, spending)
            events = self._carry_out(ask, query, recorder, commit)
        async with aclosing(events):
            async for event in events:
                yield event

    async def _decide(
        self, ask: Ask, arms: Mapping[str, ArmInfo], serving: Serving, spending: Spending
    ) -> tuple[Decision, Query, Probes]:
        """Return the decision on a request, and the query and the probes of its search; raises as `turn`."""
        decider, models = self.decider, choose_llms(ask, arms)
        restricted = self.restricted and not ask.external
        with turns.deciding() as span:
            may_keep = decider.keeps(ask) and not ask.external
            draw = await self.find_draw(ask.episode_id or "") if may_keep else None
            query, context = await self.describe(ask, arms, serving)
            eligible, masked = check_eligibility(ask, arms, restricted=restricted)
            masked |= decider.masked(eligible, models=models)
            names = [name for name in eligible if name not in masked]
            kept = draw if draw is not None and decider.is_kept(draw, names) else None
            scored, misses = Scored(context), NO_MISSES  # a kept arm is neither scored nor probed
            if kept is None:
                misses = await self._expect_misses(ask, {name: arms[name] for name in names})
                search_first = partial(self._search_first, ask, query, arms, _depth(serving), spending)
                scored = await decider.score(ask, names, query, context, search_first, serving)
            inputs = scored.context, scored.probes, serving, scored.candidate_scores
            decision = decider.decide(ask, names, *inputs, masked, models, kept, misses)
            turns.decided(span, decision)
        return decision, replace(query, expected=decision.context.expected), scored.probes

    async def _expect_misses(self, ask: Ask, arms: Mapping[str, ArmInfo]) -> CacheMisses:
        """Return what arms cost more in a turn of a conversation, where tokens of a cache have a price."""
        goes_on = ask.episode_id is not None and bool(ask.messages) and ask.forced is None
        if not goes_on or ask.external:
            return NO_MISSES
        usd_weight = self.weigh_usd(ask.cost_weight)
        models = self.models
        asked = (models.get(info.answering.llm) for info in arms.values())
        if not usd_weight or not any(model is not None and model.caches for model in asked):
            return NO_MISSES
        turns = await self.find_turns(ask.episode_id or "")
        usd = expect_misses(ask, turns, arms, models, self.decider.clock())
        return CacheMisses(usd_weight, {arm: more / CACHE_TURNS for arm, more in usd.items()})

    async def _hand_over(
        self, decision: Decision, on_commit: Callable[[Commit], object]
    ) -> AsyncGenerator[Event, None]:
        """Commit a decision that the caller carries out, and whose execution is reported afterwards."""
        commit = self.log.append(decision)
        on_commit(commit)
        await asyncio.shield(commit)
        yield Decided(decision, Retrieval(steps=0), decision.drawn)

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
        arms, serving = self.arms, self.decider.serving
        query, context = await self.describe(ask, arms, serving)
        search_first = partial(self._search_first, ask, query, arms, _depth(serving), Spending())
        scored = await self.decider.score(ask, observed.arms, query, context, search_first, serving)
        return self.decider.build_observed(ask, observed, scored.context, serving)

    async def resume(
        self, ask: Ask, decision: Decision, on_commit: Callable[[Commit], object] = lambda _: None
    ) -> AsyncGenerator[Event, None]:
        """Carry out the decision of an interrupted turn, with the same arm.

        Args:
            ask: The repeated request.
            decision: Decision of the turn, for a live or former arm.
            on_commit: Called with the commit of the decision, which is done.

        Raises:
            OverloadedError: The arm has no room now.
            TurnError: The arm or the model failed; the failure is committed.
            AnsweredElsewhereError: Another process has carried it out meanwhile.
        """
        arms = self.known
        self.decider.masked([decision.drawn], models=choose_llms(ask, arms))
        commit = TurnCommit(self.log, decision, on_commit, is_durable=True)
        recorder = TurnRecorder(decision, arms, _depth(self.decider.serving))
        async with aclosing(
            self._carry_out(ask, self._query(ask, decision.context), recorder, commit)
        ) as events:
            async for event in events:
                yield event

    async def again(self, ask: Ask, decision: Decision, execution: Execution) -> Decided:
        """Return the decision of an earlier turn, with its passages searched again with the same seed.

        The search is charged to the key, but not logged.

        Raises:
            OverloadedError: The arm has no room now.
            ArmError: The search failed.
        """
        arms = self.known
        query = self._query(ask, decision.context)  # only the arm may need an embedding
        served = execution.served or decision.drawn
        self.decider.masked([served])
        recorder = TurnRecorder(decision, arms, _depth(self.decider.serving))
        try:
            retrieval = await self._search(served, query, ask, recorder)
        except TimeoutError:
            raise ArmError(f"arm {served!r} took longer than {self.arm_timeout_s:g} s") from None
        finally:
            self.charge(decision.id, recorder.spending.cost)
        return Decided(decision, retrieval, served)

    async def answer_with(
        self, ask: Ask, decision: Decision, arm: str
    ) -> tuple[Execution, tuple[Passage, ...]]:
        """Answer a question again, with another arm and the same seed, outside the log.

        Returns:
            The execution, and the passages.
        """
        other = replace(decision, arms=(arm,), probabilities=(1.0,), drawn=arm)
        recorder, failure = TurnRecorder(other, self.known, _depth(self.decider.serving)), None
        try:
            retrieval = await self.retrieve(self._query(ask, decision.context), ask, recorder)
            async with aclosing(self.generate(ask, retrieval.passages, recorder)) as chunks:
                async for _ in chunks:
                    pass
        except (ArmError, GeneratorError, TimeoutError) as error:
            failure = error
        done = recorder.execution(self.decider.clock(), failure)
        return done, tuple(recorder.retrieval.passages)

    async def _carry_out(
        self, ask: Ask, query: Query, recorder: TurnRecorder, commit: TurnCommit
    ) -> AsyncGenerator[Event, None]:
        """Search and generate, and record the execution, however the turn ends."""
        decision, decided = recorder.decision, None
        failure: Exception | None = None
        try:
            try:
                retrieval = await self.retrieve(query, ask, recorder)
                decided = Decided(decision, retrieval, recorder.served or decision.drawn)
                if ask.messages:
                    await commit.decision_durable()
                    async with aclosing(self._answer(ask, query, recorder)) as events:
                        async for event in events:
                            yield event
            except (ArmError, GeneratorError, TimeoutError) as error:
                failure = error
        except (asyncio.CancelledError, GeneratorExit):
            commit.abandon(self._ended(recorder, failure, cancelled=failure is None))
            raise
        except BaseException:  # such as an error of the log: the cost is charged, the execution is lost
            self._ended(recorder, cancelled=True)
            raise
        execution = self._ended(recorder, failure)
        if not await commit.finish(execution, keeps_answer=self.keeps_answers and failure is None):
            raise AnsweredElsewhereError(f"{decision.id!r} was meanwhile answered by another process")
        if failure is not None:
            raise TurnError(decision.id, execution.status, execution.error) from failure
        if decided is not None and not ask.messages:
            yield decided
        if ask.messages and commit.is_logged:
            self.on_answer(ask, decision, execution, recorder.retrieval.passages)
        yield Finished(execution, recorder.finish_reasons, commit.is_logged)

    def _ended(
        self, recorder: TurnRecorder, failure: Exception | None = None, *, cancelled: bool = False
    ) -> Execution:
        """Return the execution of a turn that has ended, and charge its cost."""
        execution = recorder.execution(self.decider.clock(), failure, cancelled=cancelled)
        self.charge(execution.decision_id, execution.cost)
        return execution

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
            async with aclosing(self.generate(ask, recorder.retrieval.passages, recorder)) as chunks:
                async for chunk in chunks:
                    if unsent:
                        yield decided
                        unsent = False
                    yield chunk
        except GeneratorError as error:
            if fallback is None or not unsent:
                raise
            recorder.error = described(error)
            recorder.abandon(error)
            retrieval = await self._search(fallback, query, ask, recorder)
            yield Decided(recorder.decision, retrieval, fallback)
            unsent = False
            async with aclosing(self.generate(ask, retrieval.passages, recorder)) as chunks:
                async for chunk in chunks:
                    yield chunk
        if unsent:
            yield decided

    def _other_model(self, recorder: TurnRecorder) -> str | None:
        """Return the fallback, if it is available and answers with a different model than the served arm."""
        arm, served = self._fallback(recorder), recorder.served or recorder.decision.drawn
        if arm is None or arm == served:
            return None
        return arm if recorder.arms[arm].answering.llm != recorder.arms[served].answering.llm else None

    def _fallback(self, recorder: TurnRecorder) -> str | None:
        """Return the fallback, if it could have been drawn, is switched on, and is available."""
        arm = self.fallback
        # It must have been eligible when the arm was drawn: that excludes forced arms, too.
        if arm is None or arm == recorder.decision.drawn or arm not in recorder.decision.arms:
            return None
        if not recorder.arms[arm].enabled:  # switched off since, for a turn that is resumed
            return None
        return arm if self.decider.health.available([arm], recorder.probes.found) else None

    async def describe(
        self, ask: Ask, arms: Mapping[str, ArmInfo], serving: Serving | None = None
    ) -> tuple[Query, Context]:
        """Return the query and the context, with the embeddings that the policy and the routers read."""
        scorers = () if ask.forced is not None else list_scorers(serving or self.decider.serving)
        readers = (self.features.embedding, self.features.similarity, *scorers)
        backbones = {reader.backbone for reader in readers if reader is not None}
        embeddings = await self._embedded(ask.question, frozenset(backbones)) if backbones else {}
        weight = self.cost_weight if ask.cost_weight is None else ask.cost_weight
        context = build_context(
            ask.question, self.features, embeddings, arms, ask.context, cost_weight=weight
        )
        return self._query(ask, context, embeddings), context

    def _query(self, ask: Ask, context: Context, embeddings: Embeddings | None = None) -> Query:
        """Return the query for arms, with the score that the context expects of each."""
        seed = sampling.seed_of_arm(ask.continues or ask.decision_id, self.decider.salt)
        return Query(ask.question, embeddings or {}, seed, ask.where, ask.groups, context.expected)

    async def _embedded(self, question: str, backbones: frozenset[str]) -> Embeddings:
        try:
            async with asyncio.timeout(self.arm_timeout_s):
                return await self.embed(question, backbones)
        except TimeoutError:
            names = " and ".join(map(repr, sorted(backbones)))
            message = f"no embedding of the question by {names} within {self.arm_timeout_s:g} s"
            raise ArmError(message) from None

    async def _search_first(
        self,
        ask: Ask,
        query: Query,
        arms: Mapping[str, ArmInfo],
        depth: int,
        spending: Spending,
        names: Sequence[str],
    ) -> Probes:
        needs = {name: arms[name].backbones for name in names}
        k = max(depth, *(choose_k(ask, arms[name]) for name in names))
        same = {name: arms[name].searched for name in names}
        search = partial(self._metered, arms, spending)
        return await probe(query, k, needs, self.embed, search, self.arm_timeout_s, self.recall, same)

    async def _metered(
        self, arms: Mapping[str, ArmInfo], spending: Spending, arm: str, query: Query, k: int
    ) -> Retrieval:
        """Run an arm and add its usage to `spending`; a cancelled search counts as the most it may spend."""
        try:
            with failing_as(ArmError):
                retrieval = await self.search(arm, query, k)
        except ArmError as error:
            spending.add(writing.DEFAULT, error.usage)
            raise
        except asyncio.CancelledError:  # the caller has left, or the arm has timed out
            spending.add(writing.DEFAULT, self._price_list(arms).search_usage(arm, query.text))
            raise
        spending.search(retrieval)
        return retrieval

    async def retrieve(self, query: Query, ask: Ask, recorder: TurnRecorder) -> Retrieval:
        """Run the drawn arm, or the fallback if that fails."""
        try:
            return await self._search(recorder.decision.drawn, query, ask, recorder)
        except (ArmError, TimeoutError) as error:
            fallback = self._fallback(recorder)
            if fallback is None:
                raise
            recorder.error = described(error)
            return await self._search(fallback, query, ask, recorder)

    async def _search(self, arm: str, query: Query, ask: Ask, recorder: TurnRecorder) -> Retrieval:
        filtered = must_filter(query, self.restricted)
        if filtered and not recorder.arms[arm].filters:  # configured otherwise since, for a repeated turn
            raise ArmError(f"arm {arm!r} {UNFILTERED}")
        k, retrieval = choose_k(ask, recorder.arms[arm]), recorder.probes.of(arm)
        with failing_as(ArmError):
            if retrieval is None:
                retrieval = await self._run_arm(arm, query, k, recorder)
            if filtered:
                await self._require_permitted(arm, query, retrieval.passages)
        recorder.served, recorder.retrieval = arm, replace(retrieval, passages=retrieval.passages[:k])
        return recorder.retrieval

    async def _require_permitted(self, arm: str, query: Query, passages: Sequence[Passage]) -> None:
        """Check the metadata of an arm's passages against the query, as the arm returned and as stored.

        Both are checked because an arm may lose or change metadata, while a passage outside the corpus, such
        as one from a search engine, has only what the arm returned.

        Raises:
            ArmError: A passage is not permitted, or the corpus is unavailable.
        """
        stored = await self.passages([passage.id for passage in passages])
        for passage in (*stored, *passages):
            if not permits(query.where, query.groups, passage.metadata):
                raise ArmError(f"arm {arm!r} found a passage that the request does not permit")

    async def _run_arm(self, arm: str, query: Query, k: int, recorder: TurnRecorder) -> Retrieval:
        missing = recorder.arms[arm].backbones - query.embeddings.keys()
        started = time.perf_counter()
        if (recalled := await self.recall(arm, query, max(k, recorder.depth))) is not None:
            recorder.retrieval_s += time.perf_counter() - started
            return recalled
        with self.decider.health.track(arm) as report:
            try:
                async with asyncio.timeout(self.arm_timeout_s):
                    if missing:
                        embeddings = await self.embed(query.text, frozenset(missing))
                        query = replace(query, embeddings={**query.embeddings, **embeddings})
                    k = max(k, recorder.depth)
                    retrieval = await self._metered(recorder.arms, recorder.spending, arm, query, k)
            except QuestionRefusedError:
                report(refused=(arm,))
                raise
            except (ArmError, TimeoutError):
                report(failed=(arm,))
                raise
            finally:
                recorder.retrieval_s += time.perf_counter() - started
            report(worked=(arm,))
        recorder.steps += retrieval.steps
        return retrieval

    async def generate(
        self, ask: Ask, passages: Sequence[Passage], recorder: TurnRecorder
    ) -> AsyncGenerator[Chunk, None]:
        """Generate the answer from the passages, chunk by chunk; empty if the arm has no language model."""
        info = recorder.arms[recorder.served or recorder.decision.drawn]
        if info.checked is None and _takes_as_written(ask, info.answering, recorder.retrieval.answer):
            chunk = Chunk(recorder.retrieval.answer, "stop")
            recorder.note(chunk)
            yield chunk
            return
        if info.checked is None or info.answering.llm not in self.models:
            chunks = self._write(ask, passages, recorder, info.answering)
        else:
            chunks = self._write_checked(ask, passages, recorder, info.answering, info.checked)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def _write_checked(
        self,
        ask: Ask,
        passages: Sequence[Passage],
        recorder: TurnRecorder,
        how: writing.Answering,
        checked: CheckedAnswering,
    ) -> AsyncGenerator[Chunk, None]:
        """Generate an answer, and send it once it passes its check; otherwise generate another one.

        An answer that calls functions is not checked. If the first model fails, the second one answers.
        """
        draft, failure = list[Chunk](), None
        try:
            async with aclosing(self._write(ask, passages, recorder, how)) as chunks:
                draft += [chunk async for chunk in chunks]
        except GeneratorError as error:
            failure = error
        stage = AnswerStage((checked.first,), how.llm)
        if failure is not None:
            stage = replace(stage, failed=stage.arms, said=described(failure)[:SAID], goes_on=True)
        elif not any(chunk.tool_calls for chunk in draft):
            stage = await self._check(ask, passages, recorder, checked, stage)
        recorder.answers.append(stage)
        if not stage.goes_on:
            for chunk in draft:
                yield chunk
            return
        recorder.abandon(failure)
        recorder.answers.append(AnswerStage((checked.then,), checked.answering.llm))
        async with aclosing(self._write(ask, passages, recorder, checked.answering)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _check(
        self,
        ask: Ask,
        passages: Sequence[Passage],
        recorder: TurnRecorder,
        checked: CheckedAnswering,
        stage: AnswerStage,
    ) -> AnswerStage:
        """Return the stage of an answer with what its check says; one that cannot be checked has failed."""
        texts = [choice.text for choice in (recorder.written or Choices()).all]
        prompt_model = partial(self._prompt_for_check, recorder)
        started = time.perf_counter()
        try:
            async with asyncio.timeout_at(recorder.llm_until or None):
                with failing_as(ArmError):
                    result = await check_texts(checked, ask.question, passages, texts, prompt_model)
        except (ArmError, GeneratorError) as error:
            return replace(stage, said=f"not checked: {described(error)}"[:SAID], goes_on=True)
        finally:
            recorder.llm_s += time.perf_counter() - started
        u = draw_overrule(ask.continues or ask.decision_id, self.decider.salt)
        goes_on, p = checked.decide(result.score, u)
        return replace(
            stage,
            score=result.score,
            said=result.said,
            threshold=checked.threshold,
            goes_on=goes_on,
            probability=p,
        )

    async def _prompt_for_check(self, recorder: TurnRecorder, name: str, prompt: Prompt) -> tuple[str, Chunk]:
        """Prompt the language model of a check, and charge it to the turn."""
        with self.decider.health.track(llm_key(name)) as report, report_model(report, name, self.on_refusal):
            text, last = await base.complete(self.models[name].generator, prompt)
        recorder.spending.add(name, read_usage(last))
        return text, last

    async def _write(
        self, ask: Ask, passages: Sequence[Passage], recorder: TurnRecorder, how: writing.Answering
    ) -> AsyncGenerator[Chunk, None]:
        """Generate an answer in one way, chunk by chunk; empty if there is no such language model."""
        free = not ask.options and not ask.stop and (ask.max_tokens or QUOTED_TOKENS) >= QUOTED_TOKENS
        info = recorder.arms[recorder.served or recorder.decision.drawn]
        if how.quote and info.searches and free:
            quoted = Chunk(quote(ask.question, passages, info.sources), "stop")
            recorder.note(quoted)
            yield quoted
            return
        model = self.models.get(how.llm)
        if model is None:
            return
        reasons = reasons_first(ask, how)
        if how.prompt == prompts.Form.REASONING and not reasons:
            how = how.model_copy(update={"prompt": prompts.Form.DIRECT})
        template = self.templates.get(how.prompt) or prompts.find_template(prompts.Form.DIRECT)
        prompt = write_prompt(ask, passages, how, template, model)
        write = self._write_after_reasons if reasons else self._prompt_model
        async with aclosing(write(ask, prompt, recorder, how.llm, model)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _write_after_reasons(
        self, ask: Ask, prompt: Prompt, recorder: TurnRecorder, name: str, model: LanguageModel
    ) -> AsyncGenerator[Chunk, None]:
        """Generate reasons and an answer, and send the answer; prompt again for it alone if it has no tag.

        Source: Kim and Diaz 2025, LTRR, arXiv:2506.13743, section 3 and appendix B.
        """
        for again in (False, True):
            text, last = "", Chunk()
            async with aclosing(self._prompt_model(ask, prompt, recorder, name, model)) as chunks:
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

    async def _prompt_model(
        self, ask: Ask, prompt: Prompt, recorder: TurnRecorder, name: str, model: LanguageModel
    ) -> AsyncGenerator[Chunk, None]:
        """Prompt a language model, and record what it writes, chunk by chunk."""
        calls = CallNames(ask.decision_id)
        read = sum(tokens_in(message["content"]) for message in prompt.messages)
        recorder.begin(name, read, model.compute_usd)
        started, now = time.perf_counter(), asyncio.get_running_loop().time()
        recorder.llm_until = recorder.llm_until or now + self.llm_timeout_s
        prompt = replace(prompt, patience_s=recorder.llm_until - now)
        try:
            with (
                self.decider.health.track(llm_key(name)) as report,
                report_model(report, name, self.on_refusal),
                failing_as(GeneratorError),
            ):
                async with aclosing(model.generator.stream(prompt)) as chunks:
                    async for chunk in paced(chunks, recorder.llm_until):
                        if chunk.tool_calls and not model.protocol:
                            chunk = replace(chunk, tool_calls=calls.renamed(chunk.index, chunk.tool_calls))
                        recorder.note(chunk)
                        yield chunk
        finally:
            recorder.llm_s += time.perf_counter() - started


def _takes_as_written(ask: Ask, how: writing.Answering, answer: str) -> bool:
    """Return whether an answer that an arm wrote to the question alone is what a request asks for.

    It is not if the request has a conversation, instructions, an image, tools, a form or a shorter limit, or
    if answers of the arm cite passages or come from a language model of their own: then that model writes.
    """
    plain = len(ask.messages) == 1 and not (ask.options or ask.stop or base.list_inputs(ask.messages))
    fits = ask.max_tokens is None or tokens_in(answer) <= ask.max_tokens
    return bool(answer) and plain and fits and not how.cite and how.llm == writing.DEFAULT


def _depth(serving: Serving) -> int:
    """Return the most passages that a router reads; every search has this depth, probed or not.

    So the first passages of a search are the same in both cases.
    """
    return max((scorer.k for scorer in list_scorers(serving)), default=0)


T = TypeVar("T")


async def paced(items: AsyncIterator[T], deadline: float) -> AsyncGenerator[T, None]:
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
