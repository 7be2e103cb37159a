"""What decides a turn: the request, the arms that may be drawn, what policy and router see, the draw.

Arms are masked before the draw, and none is drawn and then skipped: the distribution that is logged is the
one that was drawn from. An arm is available unless its circuit breaker is open, its concurrency cap is
reached, or its encoder is being loaded:

    open    the arm failed several times in a row and is not drawn until a pause has passed. If the next
            search fails as well, the pause doubles; a success closes the breaker
    full    the arm has as many searches under way as its cap allows
    loading the encoder of its questions is not loaded yet

A router that reads the question alone needs no search. For one that reads passages every eligible arm
searches before the draw: all of it is charged, whichever arm answers, and the drawn arm does not search
again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies import FeatureSpec, Policy, choose, describe, sampling, served_distribution
from armwise.arms import tracing
from armwise.arms.base import UNUSED, ArmError, Query, Retrieval
from armwise.arms.filters import Comparison, Compound
from armwise.arms.llm import UNPROMPTED, Bound, Message, base, writing
from armwise.arms.profile import Profile, similarities
from armwise.feedback.budget import Price
from armwise.feedback.events import INCUMBENT, OBSERVED, SIMILARITY, Context, Decision, KeptDraw, Mask, Mode

MOST_DROPPED = 8
"""Number of the newest candidates that failed and are remembered: more than take part at once."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long a conversation keeps the arm that was drawn for it.

    Attributes:
        turns: Most turns of a draw, that of the draw included.
        idle_s: Seconds since its newest turn after which another arm is drawn.
    """

    turns: int
    idle_s: float


class NoEligibleArmError(ValueError):
    """Every arm is disabled or excluded; nothing was decided."""


class OverloadedError(Exception):
    """Every arm that could be drawn is at its cap of searches; nothing was decided."""


Embeddings = Mapping[str, NDArray[np.float32]]

Embed = Callable[[str, frozenset[str]], Awaitable[Embeddings]]

Recall = Callable[[str, Query, int], Awaitable[Retrieval | None]]
"""Arm, query and k -> what the same search has found before, without embeddings; None for nothing."""

Search = Callable[[str, Query, int], Awaitable[Retrieval]]

T = TypeVar("T")


class ArmScorer(Protocol):
    """Scores arms with a trained router.

    Attributes:
        backbone: Backbone whose embedding of the question it reads.
        arms: Arms that it was trained on.
        k: Passages of each arm that it reads; 0 where it reads the question alone.
    """

    backbone: str
    arms: frozenset[str]
    k: int

    async def scores(
        self, query: Query, arms: Sequence[str], found: Mapping[str, Retrieval]
    ) -> Mapping[str, float]:
        """Return a finite score of each of these arms, higher is better.

        Args:
            query: The question, embedded with the backbone.
            arms: Which to score, all of them among `arms`.
            found: Retrieval of each arm; empty where it reads the question alone.

        Raises:
            ArmError: The router, or the vectors of passages, failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Probes:
    """What the arms found before one was drawn.

    Attributes:
        found: Retrievals of the arms that answered.
        failed: Errors of the others.
        seconds: Sum over all of them, the embedding of the question included.
    """

    found: Mapping[str, Retrieval] = field(default_factory=dict)
    failed: Mapping[str, ArmError | TimeoutError] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def steps(self) -> int:
        """Rounds of retrieval of all of them."""
        return sum(retrieval.steps for retrieval in self.found.values())

    def of(self, arm: str) -> Retrieval | None:
        """Return what an arm found, None when it did not search. Raises what it failed with."""
        if arm in self.failed:
            raise self.failed[arm]
        return self.found.get(arm)


UNPROBED = Probes()
"""Searches of a turn in which no arm searched before the draw."""


async def nothing(arm: str, query: Query, k: int) -> None:
    """Recall nothing."""


async def probe(
    query: Query,
    k: int,
    needs: Mapping[str, frozenset[str]],
    embed: Embed,
    search: Search,
    limit_s: float,
    recall: Recall = nothing,
    searched: Mapping[str, str] = MappingProxyType({}),
) -> Probes:
    """Search with all arms concurrently; the question is embedded once per backbone.

    Of arms that search the same, one searches, and is charged; what was found before is not searched.

    Args:
        query: The question, with the embeddings that are there already.
        k: Passages to find.
        needs: Backbones that an arm needs, by arm.
        embed: Embeds the question.
        search: Runs an arm.
        limit_s: Seconds that each embedding, and each search, may take.
        recall: Returns what was found before.
        searched: Hash of what an arm searches and how, by arm; an arm without is like no other.
    """

    async def embedded(backbone: str) -> tuple[float, Embeddings | ArmError | TimeoutError]:
        return await _attempt(embed(query.text, frozenset({backbone})), limit_s)

    async def find(arm: str) -> tuple[float, Retrieval | ArmError | TimeoutError]:
        for backbone in sorted(needs[arm] & failures.keys()):
            return 0.0, failures[backbone]
        return await _attempt(search(arm, query, k), limit_s)

    first: dict[str, str] = {}  # of the arms that search the same
    for arm in needs:
        first.setdefault(searched.get(arm) or arm, arm)
    leaders = [*first.values()]
    started = time.perf_counter()
    recalled = dict(
        zip(leaders, await asyncio.gather(*(recall(arm, query, k) for arm in leaders)), strict=True)
    )
    looked_s = time.perf_counter() - started
    unknown = [arm for arm, kept in recalled.items() if kept is None]
    missing = sorted(frozenset[str]().union(*(needs[arm] for arm in unknown)) - query.embeddings.keys())
    vectors = dict(zip(missing, await asyncio.gather(*map(embedded, missing)), strict=True))
    failures = {name: got for name, (_, got) in vectors.items() if isinstance(got, Exception)}
    embeddings = {name: got[name] for name, (_, got) in vectors.items() if not isinstance(got, Exception)}
    query = replace(query, embeddings={**query.embeddings, **embeddings})
    tried = dict(zip(unknown, await asyncio.gather(*map(find, unknown)), strict=True))
    retrievals = {arm: kept for arm, kept in recalled.items() if kept is not None}
    retrievals |= {arm: got for arm, (_, got) in tried.items() if isinstance(got, Retrieval)}
    failed = {arm: got for arm, (_, got) in tried.items() if not isinstance(got, Retrieval)}
    for arm in needs:
        leader = first[searched.get(arm) or arm]
        if leader in failed:
            failed[arm] = failed[leader]
        elif arm != leader:
            retrievals[arm] = replace(retrievals[leader], steps=0, tokens=0, usage=UNUSED)
    return Probes(
        {arm: retrievals[arm] for arm in needs if arm in retrievals},
        {arm: failed[arm] for arm in needs if arm in failed},
        looked_s + sum(seconds for seconds, _ in (*vectors.values(), *tried.values())),
    )


async def _attempt(call: Awaitable[T], limit_s: float) -> tuple[float, T | ArmError | TimeoutError]:
    """Return the seconds that an awaitable took, and its result or error."""
    started = time.perf_counter()
    result: T | ArmError | TimeoutError
    try:
        async with asyncio.timeout(limit_s):
            result = await call
    except (ArmError, TimeoutError) as error:
        result = error
    return time.perf_counter() - started, result


@dataclass(frozen=True, slots=True)
class Canary:
    """A candidate that takes a share of the traffic.

    Attributes:
        policy: Policy.
        version: Number of the version.
        share: Weight in the mixture with the served policy, in (0, 1).
        scorer: Router whose scores replace those of the served one; None without a router.
        kept_floor: Share of the floor that is kept in decisions in which it takes part, in [0, 1].
    """

    policy: Policy
    version: int
    share: float
    scorer: ArmScorer | None = None
    kept_floor: float = 1.0


@dataclass(frozen=True, slots=True)
class Serving:
    """The policy that decides, with its router, frozen until the next version replaces it, and the canaries.

    In each decision one of the canaries takes part, so that their exploration adds up to that of one.
    """

    policy: Policy
    version: int
    canaries: tuple[Canary, ...] = ()
    scorer: ArmScorer | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        decision_id: Names the turn; the draw is hashed from it, the arms that could be drawn, and a secret.
        question: The query, and what the policy sees.
        messages: The conversation that the model answers; empty to retrieve only.
        k: Passages to retrieve; None for as many as the arm is configured with.
        forced: An arm that the caller named; recorded as forced.
        allowed: Arms to choose among; None for all.
        excluded: Arms not to choose.
        explore: False takes the most probable arm; recorded as greedy.
        context: The caller's own features.
        cost_weight: Quality given up for a unit of priced cost; None for that of the reward rule.
        episode_id: Groups the turns of one conversation; kept and returned.
        request_digest: Distinguishes a retry from another request under the same id.
        deferred: The decision counts only once its answer was shown.
        max_tokens: Longest answer; None for that of the arm, as with the next two.
        temperature: Sampling temperature of the model.
        top_p: Nucleus sampling of the model.
        seed: Seed that the model samples by.
        stop: Strings that end the answer.
        options: Further parameters of the model, as `armwise.arms.llm.Prompt` has them.
        continues: The decision whose arm, the forced one, searches again for the same question, with the
            same seed: the model has called functions, and the conversation has their results.
        actions: Features of the actions that came with the request, by their names in the log; empty to
            choose among arms.
        ids: Their ids, by the same names.
        user_digest: Digest of the end user, for the log; None without a user.
        where: Filter on the metadata of passages; None for any.
        groups: The caller's, for passages that are for some groups alone.
        by_score: Whether passages are selected by their scores, which the log does not keep.
        incumbent: What the caller's own decider would draw from, by arm, summing to 1; None where it takes no
            part. It takes none once the share of the policy is 1.
        external: Whether the caller carries the decision out.
    """

    decision_id: str
    question: str
    messages: tuple[Message, ...] = ()
    k: int | None = None
    forced: str | None = None
    allowed: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    explore: bool = True
    context: Mapping[str, float | str | bool] = field(default_factory=dict)
    cost_weight: float | None = None
    episode_id: str | None = None
    request_digest: str = ""
    deferred: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    continues: str | None = None
    actions: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    user_digest: str | None = None
    where: Comparison | Compound | None = None
    groups: frozenset[str] = frozenset()
    by_score: bool = False
    incumbent: Mapping[str, float] | None = None
    external: bool = False

    @property
    def quoted_groups(self) -> tuple[str, ...]:
        """The groups for which passages may be quoted in the conversation before its question.

        >>> ask = Ask("d", "How?", (Message(role="user", content="How?"),), groups=frozenset({"b", "a"}))
        >>> later = replace(ask, messages=(*ask.messages, Message(role="assistant", content="[1] So.")))
        >>> ask.quoted_groups, later.quoted_groups
        ((), ('a', 'b'))
        """
        said = [message for message in self.messages if message["role"] != "system"]
        return tuple(sorted(self.groups)) if len(said) > 1 else ()


@dataclass(frozen=True, slots=True)
class ObservedDecision:
    """A decision that another system has made.

    Attributes:
        arms: The arms that could have been chosen.
        probabilities: The distribution that it was drawn from, one an arm; a single one where only that of
            the drawn arm is known, which is the first of `arms` then; empty where not even that is known.
        drawn: The arm that was chosen.
        at: When it was made, seconds since the epoch.
    """

    arms: tuple[str, ...]
    probabilities: tuple[float, ...]
    drawn: str
    at: float


@dataclass(frozen=True, slots=True)
class ArmInfo:
    """What the turn knows of an arm before it runs.

    Attributes:
        backbones: The embeddings that a query must have.
        features: Features of the arm in a context.
        enabled: Whether it is switched on.
        filters: Whether it finds only what a query permits.
        answering: How its answers are written.
        options: Names of the `Prompt.options` that its language model is given; None for any.
        cached: Whether what it finds is kept.
        searched: Hash of what it searches and how: arms that have it in common find the same; empty where
            that is not known.
        bound: Most that a search spends.
        profile: What its source is about; None where that is not looked at, or not known.
    """

    backbones: frozenset[str] = frozenset()
    features: Mapping[str, float] = field(default_factory=dict)
    enabled: bool = True
    filters: bool = False
    answering: writing.Answering = field(default_factory=writing.Answering)
    options: frozenset[str] | None = None
    cached: bool = False
    searched: str = ""
    bound: Bound = UNPROMPTED
    profile: Profile | None = None


NO_MODELS: Mapping[str, str] = MappingProxyType({})

DOUBLINGS = 6
"""How often a pause is doubled at most: 5 seconds grow to about as many minutes."""


LONGEST_REST_S = 300.0
"""Longest rest that a language model can ask for: what a provider says is not to be trusted with more."""


def llm_key(model: str) -> str:
    """Return the name by which the health of a language model is known, which is that of no arm."""
    return f"llm/{model}"


class ReportOutcome(Protocol):
    """Records how searches ended. A cancelled search is not reported: it is not evidence about its arm."""

    def __call__(
        self,
        *,
        worked: Collection[str] = (),
        failed: Collection[str] = (),
        refused: Collection[str] = (),
        rest_s: float = 0.0,
    ) -> None:
        """Record the arms that answered, those that failed, and those that refused the question.

        The caller chooses what is refused: of an arm that has worked, that is not evidence. One that failed
        and asked for a rest has it at once.
        """
        ...


@dataclass(frozen=True, slots=True)
class ArmState:
    """The health of one arm.

    Attributes:
        is_open: Whether its breaker is open.
        loading: Whether its encoder is not loaded yet.
        failures: Failures in a row.
        under_way: Searches that are under way.
        cap: Most concurrent searches; None for any number.
    """

    is_open: bool
    loading: bool
    failures: int
    under_way: int
    cap: int | None


class ArmHealth:
    """Failures and searches under way of each arm.

    Args:
        failures: Failures in a row that open the breaker of an arm, at least 1.
        rest_s: Seconds that it stays open at first.
        caps: Most concurrent searches by arm, at least 1; an arm that is not named has no cap.
        clock: Seconds, never going back.

    Attributes:
        loading: Arms whose encoder is not loaded yet.
    """

    def __init__(
        self,
        failures: int = 3,
        rest_s: float = 5.0,
        caps: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loading: frozenset[str] = frozenset()
        self._limit, self._rest_s = failures, rest_s
        self._caps = dict(caps or {})
        self._clock = clock
        self._under_way: dict[str, int] = {}
        self._failures: dict[str, int] = {}  # in a row
        self._open_until: dict[str, float] = {}
        self._worked: set[str] = set()

    def available(self, arms: Sequence[str], searched: Collection[str] = ()) -> list[str]:
        """Return the arms that may be drawn now, in their order: all but the `masked` ones."""
        masked = self.masked(arms, searched)
        return [arm for arm in arms if arm not in masked]

    def masked(
        self, arms: Sequence[str], searched: Collection[str] = (), models: Mapping[str, str] = NO_MODELS
    ) -> dict[str, Mask]:
        """Return the arms that may not be drawn now, each with why.

        Where the breakers of all of them are open, none counts as open: one has to be tried. Where all
        closed ones are full, all are masked: load is not moved to an arm that fails.

        Args:
            arms: To choose among.
            searched: Arms that have searched already and need no room.
            models: The language model of each arm that is to answer; those of one that may not be asked now
                are masked, by the same rules.
        """
        masked = {arm: Mask.LOADING for arm in arms if arm in self.loading}
        loaded = [arm for arm in arms if arm not in masked]
        opened = [arm for arm in loaded if self.is_open(arm)] if self._open_until else []
        if len(opened) < len(loaded):
            masked |= dict.fromkeys(opened, Mask.BREAKER_OPEN)
        for arm in loaded:
            if arm not in masked and arm not in searched and self._full(arm):
                masked[arm] = Mask.AT_CAP
        if models and (self._open_until or self._caps):
            self._mask_by_model(masked, [arm for arm in loaded if arm not in masked], models)
        return masked

    def _mask_by_model(self, masked: dict[str, Mask], left: Sequence[str], models: Mapping[str, str]) -> None:
        keys = {arm: llm_key(models[arm]) for arm in left if arm in models}
        opened = {arm for arm, key in keys.items() if self.is_open(key)}
        if len(opened) == len(left):
            opened = set()
        full = {arm for arm, key in keys.items() if self._full(key)}
        masked |= dict.fromkeys(sorted(opened | full), Mask.LLM_UNAVAILABLE)

    def is_open(self, arm: str) -> bool:
        """Return whether the breaker of an arm is open."""
        return arm in self._open_until and self._clock() < self._open_until[arm]

    def state(self, arm: str) -> "ArmState":
        """Return what is known of an arm now."""
        under_way, failures = self._under_way.get(arm, 0), self._failures.get(arm, 0)
        return ArmState(self.is_open(arm), arm in self.loading, failures, under_way, self._caps.get(arm))

    def _full(self, arm: str) -> bool:
        return arm in self._caps and self._under_way.get(arm, 0) >= self._caps[arm]

    @contextmanager
    def track(self, *arms: str) -> Iterator[ReportOutcome]:
        """Count one search of each arm as under way; yield the function that reports how they ended."""
        started = self._clock()
        for arm in arms:
            self._under_way[arm] = self._under_way.get(arm, 0) + 1
        try:
            yield partial(self._report, started)
        finally:
            for arm in arms:
                self._under_way[arm] -= 1

    def _report(
        self,
        started: float,
        *,
        worked: Collection[str] = (),
        failed: Collection[str] = (),
        refused: Collection[str] = (),
        rest_s: float = 0.0,
    ) -> None:
        self._worked.update(worked)
        failed = [*failed, *(arm for arm in refused if arm not in self._worked)]
        for arm in worked:
            self._failures.pop(arm, None)
            self._open_until.pop(arm, None)
        for arm in failed:
            if started < self._open_until.get(arm, started):
                continue  # started before the breaker half-opened: no new evidence
            failures = self._failures[arm] = self._failures.get(arm, 0) + 1
            if (again := failures - self._limit) >= 0:
                self._open_until[arm] = self._clock() + self._rest_s * 2 ** min(again, DOUBLINGS)
            if rest_s:
                until = self._clock() + min(rest_s, LONGEST_REST_S)
                self._open_until[arm] = max(until, self._open_until.get(arm, until))


logger = logging.getLogger(__name__)

UNFILTERED = "cannot keep to a filter, or to who may see a passage"


def context_of(
    question: str,
    spec: FeatureSpec,
    embeddings: Embeddings,
    arms: Mapping[str, ArmInfo],
    extra: Mapping[str, float | str | bool] | None = None,
    *,
    cost_weight: float,
) -> Context:
    """Return what a policy sees of a question: the same in a turn and in a label of a warm start.

    Args:
        question: The text of the request.
        spec: Which features the context has.
        embeddings: Embeddings of the question, by the backbones that `spec` names.
        arms: The live arms.
        extra: The caller's own features.
        cost_weight: Cost weight of the request.

    Raises:
        FeatureError: An extra number is not finite.
        ValueError: An embedding is too short.
    """
    of_arms = {name: info.features for name, info in arms.items()}
    if spec.similarity is not None:
        profiles = {name: info.profile for name, info in arms.items() if info.profile is not None}
        near = similarities(profiles, embeddings[spec.similarity.backbone])
        of_arms |= {name: {**of_arms[name], SIMILARITY: value} for name, value in near.items()}
    return describe(
        question,
        spec,
        embedding=embeddings[spec.embedding.backbone] if spec.embedding else None,
        extra=extra,
        arms=of_arms,
        cost_weight=cost_weight,
    )


def eligible(ask: Ask, arms: Mapping[str, ArmInfo], *, restricted: bool = False) -> list[str]:
    """Return the arms that are neither switched off nor excluded by the request, and keep to its filter.

    Args:
        ask: The request.
        arms: The live arms.
        restricted: Whether any passage is for some groups alone.

    Raises:
        NoEligibleArmError: There is none.
    """
    if ask.forced is not None:
        if ask.forced not in arms:
            raise NoEligibleArmError(f"arm {ask.forced!r} is not live any more; there are: {', '.join(arms)}")
        if must_filter(ask, restricted) and not arms[ask.forced].filters:
            raise NoEligibleArmError(f"arm {ask.forced!r} {UNFILTERED}")
        return [ask.forced]
    masked = refused(ask, arms, restricted=restricted)
    if len(masked) == len(arms):
        why = ", or cannot filter passages" if Mask.CANNOT_FILTER in masked.values() else ""
        raise NoEligibleArmError(f"no arm is left of {', '.join(arms)}: all are disabled or excluded{why}")
    return [name for name in arms if name not in masked]


def refused(ask: Ask, arms: Mapping[str, ArmInfo], *, restricted: bool = False) -> dict[str, Mask]:
    """Return the arms that are switched off, or that the request leaves out; none where it names one."""
    masked, options = {}, ask.options.keys() - base.HINTS
    for name, info in arms.items() if ask.forced is None else ():
        if not info.enabled:
            masked[name] = Mask.DISABLED
        elif name in ask.excluded:
            masked[name] = Mask.EXCLUDED
        elif ask.allowed is not None and name not in ask.allowed:
            masked[name] = Mask.NOT_ALLOWED
        elif must_filter(ask, restricted) and not info.filters:
            masked[name] = Mask.CANNOT_FILTER
        elif info.options is not None and options - info.options:
            masked[name] = Mask.UNSUPPORTED
    return masked


def must_filter(ask: Ask | Query, restricted: bool) -> bool:
    """Return whether a request is only for arms that find nothing but what it permits."""
    return restricted or ask.where is not None


def scorers_of(serving: Serving) -> list[ArmScorer]:
    """Return the routers that take part in decisions: that of the served version, and those of canaries."""
    scorers = serving.scorer, *(canary.scorer for canary in serving.canaries)
    return [scorer for scorer in dict.fromkeys(scorers) if scorer is not None]


@dataclass(frozen=True, slots=True)
class Scored:
    """What routers add to a context.

    Attributes:
        context: The input of the served policy.
        probes: Retrievals of arms before one is drawn.
        candidate_scores: Router scores that replace the context's for the canary; None for the same ones.
    """

    context: Context
    probes: Probes = UNPROBED
    candidate_scores: Mapping[str, float] | None = None


@dataclass(slots=True)
class Decider:
    """Scores the eligible arms and draws one of them.

    Attributes:
        serving: The policy that decides now, with its router; replaced when a version is published. A turn
            keeps the one that it began with.
        floor: Least probability of every eligible arm.
        salt: Enters the hash of the draw; secret.
        wait_s: Seconds in which feedback counts.
        clock: Seconds since the epoch.
        health: Circuit breakers and concurrency caps of the arms.
        dropped: Candidates whose policy or router failed; they take part no more.
        price: Price of a unit of cost under the budget; None without one, and before its first request.
        share: Share of the policy in decisions in which the caller's own decider takes part, in [0, 1].
        keeping: How long a conversation keeps its arm; None where every turn draws.
        alarm_at: When drift was detected last, seconds since the epoch; draws until then are not kept.
    """

    serving: Serving
    floor: float
    salt: str = field(repr=False)
    wait_s: float
    clock: Callable[[], float] = time.time
    health: ArmHealth = field(default_factory=ArmHealth)
    dropped: tuple[Canary, ...] = ()
    price: Price | None = None
    share: float = 1.0
    keeping: Keeping | None = None
    alarm_at: float | None = None

    def keeps(self, ask: Ask) -> bool:
        """Return whether the arm of a request is kept for its conversation, or was by an earlier turn.

        An arm that the caller names, the most probable one where it asks for that, and one that the caller's
        own decider takes part in drawing, is neither.
        """
        if self.keeping is None or ask.incumbent is not None:
            return False
        named = ask.episode_id is not None and ask.episode_id != ask.decision_id
        return named and ask.explore and ask.forced is None and not ask.actions

    def is_kept(self, draw: KeptDraw, names: Collection[str]) -> bool:
        """Return whether a conversation keeps the arm of its newest draw for another turn.

        Args:
            draw: The draw, as the log has it.
            names: The arms that may be drawn now.
        """
        if self.keeping is None or draw.failed or draw.arm not in names:
            return False
        if self.alarm_at is not None and draw.decided_at <= self.alarm_at:
            return False
        idle_s = self.clock() - draw.last_at
        return draw.turns < self.keeping.turns and idle_s <= self.keeping.idle_s

    @property
    def canaries(self) -> list[Canary]:
        """The candidates that take part in decisions."""
        return [canary for canary in self.serving.canaries if not self._is_dropped(canary)]

    def _is_dropped(self, canary: Canary) -> bool:
        return any(canary.policy is dropped.policy for dropped in self.dropped)

    def _canary_of(self, serving: Serving, decision_id: str) -> Canary | None:
        """Return the candidate of a decision, by a hash of its id; None for none, or if it is dropped."""
        canaries = serving.canaries
        if not canaries:
            return None
        u = sampling.uniform_from(decision_id, self.salt + "/canary") if len(canaries) > 1 else 0.0
        canary = canaries[int(u * len(canaries))]
        return None if self._is_dropped(canary) else canary

    def masked(
        self, names: Sequence[str], probes: Probes = UNPROBED, models: Mapping[str, str] = NO_MODELS
    ) -> dict[str, Mask]:
        """Return the arms that may not be drawn now, each with why; at least one is left.

        Those whose probe failed are among them, unless all of them did.

        Args:
            names: To choose among.
            probes: Their retrievals before the draw.
            models: The language model of each, where they are to answer.

        Raises:
            ArmError: The encoders of all of them are still being loaded.
            OverloadedError: No arm has room.
        """
        worked = [name for name in names if name not in probes.failed] or names
        masked = {name: Mask.SEARCH_FAILED for name in names if name not in worked} if probes.failed else {}
        names = worked
        masked |= self.health.masked(names, probes.found.keys() | probes.failed.keys(), models)
        if self.health.loading.issuperset(names):
            raise ArmError(
                f"the encoders of the arms that could be drawn are still being loaded: {', '.join(names)}"
            )
        if masked.keys() >= set(names):
            raise OverloadedError(f"no arm that could be drawn has room: {', '.join(names)}")
        return masked

    async def score(
        self,
        ask: Ask,
        names: Sequence[str],
        query: Query,
        context: Context,
        search_first: Callable[[Sequence[str]], Awaitable[Probes]],
        serving: Serving | None = None,
    ) -> Scored:
        """Add the router's scores to the context; the arms search first if a router reads passages.

        Args:
            ask: The request; with a forced arm nothing is scored.
            names: The arms that may be drawn; a router scores those that it was trained on.
            query: The question, with the embeddings that the routers read.
            context: Context of the question so far.
            search_first: Has arms search before one is drawn.
            serving: Policy and router of the turn; None for those that serve now.

        Raises:
            ArmError: The router of the served version failed; that of a canary is dropped with it.
        """
        serving = serving or self.serving
        canary = self._canary_of(serving, ask.decision_id)
        served_scorer, other = serving.scorer, serving.scorer if canary is None else canary.scorer
        scorers = scorers_of(replace(serving, canaries=() if canary is None else (canary,)))
        if not scorers or ask.forced is not None:
            return Scored(context)
        probes = UNPROBED
        probed_arms = [name for name in names if any(scorer.k and name in scorer.arms for scorer in scorers)]
        if probed_arms:
            with self.health.track(*probed_arms) as report:
                probes = await search_first(probed_arms)
                report(worked=probes.found, failed=probes.failed)

        async def scores(scorer: ArmScorer | None) -> Mapping[str, float]:
            if scorer is None:
                return {}
            arms = [name for name in names if name in scorer.arms and (not scorer.k or name in probes.found)]
            return await scorer.scores(query, arms, probes.found if scorer.k else {}) if arms else {}

        context = context.with_scores(await scores(served_scorer))
        if canary is None or other is served_scorer:
            return Scored(context, probes)
        try:
            return Scored(context, probes, await scores(other))
        except ArmError:
            self._drop(canary, "its router failed")
            return Scored(context, probes)

    def decide(
        self,
        ask: Ask,
        names: Sequence[str],
        context: Context,
        probes: Probes = UNPROBED,
        serving: Serving | None = None,
        candidate_scores: Mapping[str, float] | None = None,
        masked: Mapping[str, Mask] = MappingProxyType({}),
        models: Mapping[str, str] = NO_MODELS,
        draw: KeptDraw | None = None,
    ) -> Decision:
        """Decide on an arm: `choose` draws it from the distribution of the policy, the canary and the floor.

        Where the caller's own decider takes part, the policy has its share, no canary takes part, and the
        floor holds within the share alone.

        Args:
            ask: The request.
            names: The arms that may be drawn.
            context: Context of the question, with the scores of the router.
            probes: Retrievals of arms before the draw.
            serving: Policy and router of the turn; None for those that serve now.
            candidate_scores: Scores of the canary's router, if it is another one.
            masked: The live arms that are not among `names`, each with why.
            models: The language model of each, where they are to answer.
            draw: The draw whose arm the conversation keeps, one of `names`; None to draw.

        Raises:
            OverloadedError: The arms have no room any more.
        """
        serving, unavailable = serving or self.serving, self.masked(names, probes, models)
        names = [name for name in names if name not in unavailable]
        if draw is not None and draw.arm in names:
            return self._continued(ask, names, context, draw, {**masked, **unavailable})
        candidate, share = 0, 0.0
        price, costs, penalty = self._priced(names if ask.forced is None else ())
        kind, incumbent, rest = serving.policy.kind, np.zeros(0), 0.0
        if ask.forced is not None:
            mode, floor, p, shadow = Mode.FORCED, 0.0, np.ones(1), np.zeros(0)
        elif ask.incumbent is not None and self.share < 1.0:
            mode = Mode.EXPLORE if ask.explore else Mode.GREEDY
            floor, rest = sampling.lowered(self.floor, len(names)), 1.0 - self.share
            incumbent = self._incumbent(ask.incumbent, names)
            shadow = served_distribution(serving.policy, context, names, floor, penalty)
            p = sampling.mixed(shadow, incumbent, rest)
            kind = INCUMBENT
        else:
            mode = Mode.EXPLORE if ask.explore else Mode.GREEDY
            floor, of_candidate = sampling.lowered(self.floor, len(names)), np.zeros(0)
            if canary := self._canary_of(serving, ask.decision_id):
                theirs = context if candidate_scores is None else context.with_scores(candidate_scores)
                kept = floor * canary.kept_floor
                of_candidate = self._candidate_distribution(canary, theirs, names, kept, penalty)
                if of_candidate.size:
                    candidate, share, floor = canary.version, canary.share, kept
            p = served_distribution(serving.policy, context, names, floor, penalty)
            if of_candidate.size:
                p = sampling.mixed(p, of_candidate, share)
            shadow = sampling.shadow_distribution(serving.policy, context, names, floor, penalty)
        if mode is Mode.EXPLORE:
            drawn = choose(p, sampling.uniform_from(ask.decision_id, self.salt, names))
        else:
            drawn = int(p.argmax())
        now = self.clock()
        return Decision(
            id=ask.decision_id,
            context=context,
            arms=tuple(names),
            probabilities=tuple(p.tolist()),
            drawn=names[drawn],
            policy=kind,
            version=serving.version,
            mode=mode,
            decided_at=now,
            deadline=now + self.wait_s,
            episode_id=ask.episode_id,
            request_digest=ask.request_digest,
            user_digest=ask.user_digest,
            floor=floor,
            deferred=ask.deferred,
            shadow=tuple(shadow.tolist()),
            candidate=candidate,
            share=share,
            price=price,
            costs=costs,
            cost_weight=ask.cost_weight,
            candidate_scores=candidate_scores if candidate else None,
            masked={**masked, **unavailable},
            trace=tracing.traceparent(),
            incumbent=tuple(incumbent.tolist()),
            incumbent_share=rest,
            quoted_groups=ask.quoted_groups,
            draw_id=ask.decision_id if mode is Mode.EXPLORE and self.keeps(ask) else None,
        )

    def _priced(self, names: Sequence[str]) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
        """Return the price under the budget, the cost of each arm, and what that takes off its score.

        There is no price without a budget, before its first request, and for no arms.
        """
        if self.price is None or not names:
            return 0.0, (), ()
        price, costs = self.price.price, self.price.costs(names)
        return price, costs, tuple(price * cost for cost in costs)

    @staticmethod
    def _incumbent(named: Mapping[str, float], names: Sequence[str]) -> NDArray[np.float64]:
        """Return the distribution of the caller's own decider, shape (n_arms,). Raises NoEligibleArmError."""
        if gone := [arm for arm, p in named.items() if p and arm not in names]:
            raise NoEligibleArmError(
                f"arm {gone[0]!r} of the incumbent cannot be drawn now; these can: {', '.join(names)}"
            )
        return np.array([named.get(arm, 0.0) for arm in names])

    def observe(self, ask: Ask, observed: ObservedDecision, context: Context, serving: Serving) -> Decision:
        """Return a decision of another system, with what the policy would have drawn from in the shadow.

        Args:
            ask: The question, and whose it is.
            observed: What was decided.
            context: Context of the question, with the scores of the router.
            serving: Policy and router that serve now.

        Raises:
            PolicyError: The policy gave no distribution.
        """
        arms = observed.arms
        floor = sampling.lowered(self.floor, len(arms))
        price, costs, penalty = self._priced(arms)
        shadow = served_distribution(serving.policy, context, arms, floor, penalty)
        return Decision(
            id=ask.decision_id,
            context=context,
            arms=arms,
            probabilities=observed.probabilities,
            drawn=observed.drawn,
            policy=OBSERVED,
            version=serving.version,
            decided_at=observed.at,
            deadline=observed.at + self.wait_s,
            episode_id=ask.episode_id,
            request_digest=ask.request_digest,
            user_digest=ask.user_digest,
            floor=floor,
            shadow=tuple(shadow.tolist()),
            price=price,
            costs=costs,
            cost_weight=ask.cost_weight,
            trace=tracing.traceparent(),
        )

    def _continued(
        self, ask: Ask, names: Sequence[str], context: Context, draw: KeptDraw, masked: Mapping[str, Mask]
    ) -> Decision:
        """Return the decision that keeps the arm of a draw: given the draw, that arm is certain."""
        now = self.clock()
        return Decision(
            id=ask.decision_id,
            context=context,
            arms=tuple(names),
            probabilities=tuple(float(name == draw.arm) for name in names),
            drawn=draw.arm,
            policy=draw.policy,
            version=draw.version,
            mode=Mode.CONTINUED,
            decided_at=now,
            deadline=now + self.wait_s,
            episode_id=ask.episode_id,
            request_digest=ask.request_digest,
            user_digest=ask.user_digest,
            deferred=ask.deferred,
            cost_weight=ask.cost_weight,
            masked=masked,
            trace=tracing.traceparent(),
            quoted_groups=ask.quoted_groups,
            draw_id=draw.id,
        )

    def _drop(self, canary: Canary, why: str) -> None:
        """Have a candidate take no part any more; to be called where an error is handled."""
        logger.exception("version %d takes no part any more: %s", canary.version, why)
        self.dropped = *self.dropped[1 - MOST_DROPPED :], canary

    def _candidate_distribution(
        self, canary: Canary, context: Context, names: Sequence[str], floor: float, penalty: Sequence[float]
    ) -> NDArray[np.float64]:
        """Return the distribution of a candidate, shape (n_arms,); (0,) where it fails and is dropped."""
        try:
            return served_distribution(canary.policy, context, names, floor, penalty)
        except Exception:  # noqa: BLE001 - logged there; a policy may raise anything
            self._drop(canary, "it gave no distribution")
            return np.zeros(0)
