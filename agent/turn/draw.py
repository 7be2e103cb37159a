"""The draw: the context of a question, the distribution over the eligible arms, and the arm drawn from it.

Unavailable arms are masked before the draw, so the logged distribution is exactly the one drawn from.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies import (
    Exploration,
    FeatureSpec,
    Policy,
    choose,
    describe,
    sampling,
    served_distribution,
)
from armwise.agent.turn.ask import Ask, ObservedDecision
from armwise.agent.turn.cached_prompt import NO_MISSES, CacheMisses
from armwise.agent.turn.eligibility import ArmInfo, NoEligibleArmError, OverloadedError
from armwise.agent.turn.health import NO_MODELS, ArmHealth
from armwise.agent.turn.probes import UNPROBED, Embeddings, Probes
from armwise.arms import tracing
from armwise.arms.base import ArmError, Query, Retrieval
from armwise.arms.profile import similarities
from armwise.feedback.budget import Price
from armwise.feedback.events import (
    INCUMBENT,
    OBSERVED,
    SIMILARITY,
    Context,
    Decision,
    KeptDraw,
    Mask,
    Mode,
    penalise,
)

logger = logging.getLogger(__name__)

MOST_DROPPED = 8
"""Failed candidates to remember, the newest first: more than take part at once."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long a conversation keeps the arm that was drawn for it.

    Attributes:
        turns: Most turns that keep a drawn arm, including the turn that drew it.
        idle_s: Seconds after the newest turn at which the next turn draws again.
    """

    turns: int
    idle_s: float


class ArmScorer(Protocol):
    """Scores arms with a trained router.

    Attributes:
        backbone: Encoder whose embedding of the question it reads.
        arms: Arms that it was trained on.
        k: Passages of each arm that it reads; 0: it reads the question alone.
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
            arms: Arms to score, a subset of the attribute `arms`.
            found: Retrieval of each arm; empty if `k` is 0.

        Raises:
            ArmError: The router, or the vectors of passages, failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Canary:
    """A candidate that takes a share of the traffic.

    Attributes:
        policy: The candidate's policy.
        version: Number of its version.
        share: Weight in the mixture with the served policy, in (0, 1).
        scorer: Router of the candidate, whose scores replace those of the served router.
        kept_floor: Factor of the floor in decisions that it takes part in, in [0, 1].
    """

    policy: Policy
    version: int
    share: float
    scorer: ArmScorer | None = None
    kept_floor: float = 1.0


@dataclass(frozen=True, slots=True)
class Serving:
    """The policy that decides, its router, and the canaries: frozen until the next version replaces it.

    One canary takes part in each decision, so that several together explore as much as a single one.
    """

    policy: Policy
    version: int
    canaries: tuple[Canary, ...] = ()
    scorer: ArmScorer | None = None


def list_scorers(serving: Serving) -> list[ArmScorer]:
    """Return the routers of the served version and of the canaries, each once."""
    scorers = serving.scorer, *(canary.scorer for canary in serving.canaries)
    return [scorer for scorer in dict.fromkeys(scorers) if scorer is not None]


def build_context(
    question: str,
    spec: FeatureSpec,
    embeddings: Embeddings,
    arms: Mapping[str, ArmInfo],
    extra: Mapping[str, float | str | bool] | None = None,
    *,
    cost_weight: float,
) -> Context:
    """Return the context of a question, the same in a turn and for a label of a warm start.

    Args:
        question: The text of the request.
        spec: Which features the context has.
        embeddings: Embeddings of the question, by the backbones that `spec` names.
        arms: The live arms.
        extra: The caller's features.
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


@dataclass(frozen=True, slots=True)
class Scored:
    """A context with the scores of routers.

    Attributes:
        context: The input of the served policy.
        probes: Searches of arms before the draw.
        candidate_scores: Scores of the canary's router, by arm; None: the canary reads those in `context`.
    """

    context: Context
    probes: Probes = UNPROBED
    candidate_scores: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Lottery:
    """The distribution to draw from, and its parts.

    Attributes:
        p: Probability of each eligible arm, shape (n_arms,).
        mode: How the arm is selected from `p`.
        policy: Kind of the policy.
        floor: Least probability of an arm.
        shadow: What the policy alone would have drawn from beside an incumbent, shape (n_arms,) or (0,).
        candidate: Version of the canary that takes part; 0: none.
        share: Weight of the canary.
        incumbent: Distribution of the caller's own decider, shape (n_arms,) or (0,).
        incumbent_share: Weight of that decider.
    """

    p: NDArray[np.float64]
    mode: Mode
    policy: str
    floor: float
    shadow: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    candidate: int = 0
    share: float = 0.0
    incumbent: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    incumbent_share: float = 0.0


@dataclass(slots=True)
class Decider:
    """Scores the eligible arms and draws one of them.

    Attributes:
        serving: The policy that decides now, with its router; replaced when a version is published. A turn
            uses the value that it began with.
        explores: What every eligible arm gets of the draws.
        salt: Secret that enters the hash of the draw.
        wait_s: Seconds after a decision in which feedback counts.
        clock: Seconds since the epoch.
        health: Circuit breakers and concurrency caps of the arms.
        dropped: Candidates that are left out because their policy or router failed.
        price: Price of a unit of cost under the budget; None: no budget, or no request under it yet.
        share: Weight of the policy beside the caller's own decider, in [0, 1].
        incumbent: Probability of each arm by that decider in requests that name none; None: it takes no part.
        keeping: How long a conversation keeps its arm; None: every turn draws.
        alarm_at: When drift was last detected, seconds since the epoch; arms drawn before it are not kept.
        raised: What every eligible arm gets for a while after an alarm; None: no more than otherwise.
    """

    serving: Serving
    explores: Exploration
    salt: str = field(repr=False)
    wait_s: float
    clock: Callable[[], float] = time.time
    health: ArmHealth = field(default_factory=ArmHealth)
    dropped: tuple[Canary, ...] = ()
    price: Price | None = None
    share: float = 1.0
    incumbent: Mapping[str, float] | None = None
    keeping: Keeping | None = None
    alarm_at: float | None = None
    raised: Exploration | None = None

    def floor(self, n_arms: int) -> float:
        """Return the least probability of each of so many eligible arms; an alarm raises it for a while."""
        least = self.explores.among(n_arms)
        return least if self.raised is None else max(least, self.raised.among(n_arms))

    def keeps(self, ask: Ask) -> bool:
        """Return whether a request may use the arm of its conversation, and keep a new draw for it.

        That takes an episode id and a plain draw: no forced arm, no greedy choice, and no choice of the
        caller for this turn that takes part.
        """
        if self.keeping is None or (ask.incumbent is not None and self.share < 1.0):
            return False
        named = ask.episode_id is not None and ask.episode_id != ask.decision_id
        return named and ask.explore and ask.forced is None

    def is_kept(self, draw: KeptDraw, names: Collection[str]) -> bool:
        """Return whether a conversation keeps the arm of its newest draw for another turn.

        Args:
            draw: The newest draw, from the log.
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

    def _find_canary(self, serving: Serving, decision_id: str) -> Canary | None:
        """Return the canary of a decision, selected by a hash of its id, unless that one was dropped."""
        canaries = serving.canaries
        if not canaries:
            return None
        u = sampling.uniform_from(decision_id, self.salt + "/canary") if len(canaries) > 1 else 0.0
        canary = canaries[int(u * len(canaries))]
        return None if self._is_dropped(canary) else canary

    def masked(
        self, names: Sequence[str], probes: Probes = UNPROBED, models: Mapping[str, str] = NO_MODELS
    ) -> dict[str, Mask]:
        """Return the arms that may not be drawn now, each with the reason; at least one arm is left.

        Arms whose probe failed are masked, unless every probe failed.

        Args:
            names: Arms to choose among.
            probes: Searches of these arms before the draw.
            models: Language model of each arm; empty to retrieve only.

        Raises:
            ArmError: The encoders of all arms are still being loaded.
            OverloadedError: No arm has room.
        """
        worked = [name for name in names if name not in probes.failed] or names
        masked = {name: Mask.SEARCH_FAILED for name in names if name not in worked} if probes.failed else {}
        names = worked
        masked |= self.health.masked(names, probes.found.keys() | probes.failed.keys(), models)
        if self.health.loading.issuperset(names):
            raise ArmError(f"the encoders of all eligible arms are still loading: {', '.join(names)}")
        if masked.keys() >= set(names):
            raise OverloadedError(f"all eligible arms are busy: {', '.join(names)}")
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
            ask: The request; one with a forced arm is left unscored.
            names: The arms that may be drawn; a router scores those that it was trained on.
            query: The question, with the embeddings that the routers read.
            context: Context of the question so far.
            search_first: Searches with the arms of these names, before the draw.
            serving: Policy and router of the turn; None: `self.serving`.

        Raises:
            ArmError: The router of the served version failed. A canary whose router fails is dropped instead.
        """
        serving = serving or self.serving
        canary = self._find_canary(serving, ask.decision_id)
        served_scorer, other = serving.scorer, serving.scorer if canary is None else canary.scorer
        scorers = list_scorers(replace(serving, canaries=() if canary is None else (canary,)))
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
        misses: CacheMisses = NO_MISSES,
    ) -> Decision:
        """Decide on an arm: `choose` draws it from the distribution of the policy, the canary and the floor.

        Beside the caller's own decider the policy has the weight `share`, canaries pause, and the floor
        applies to the policy's part.

        Args:
            ask: The request.
            names: The arms that may be drawn.
            context: Context of the question, with the scores of the router.
            probes: Searches of arms before the draw.
            serving: Policy and router of the turn; None: `self.serving`.
            candidate_scores: Scores of the canary's router, if it differs from the served one.
            masked: The live arms that are missing from `names`, each with the reason.
            models: Language model of each arm; empty to retrieve only.
            draw: The draw whose arm, one of `names`, the conversation keeps, with probability 1.
            misses: What arms are known to cost more in this turn.

        Raises:
            OverloadedError: No arm has room.
        """
        serving, unavailable = serving or self.serving, self.masked(names, probes, models)
        names = [name for name in names if name not in unavailable]
        version, price, costs, missed = serving.version, 0.0, tuple[float, ...](), tuple[float, ...]()
        draw_id: str | None
        if draw is not None and draw.arm in names:
            certain = np.array([float(name == draw.arm) for name in names])
            lottery = Lottery(certain, Mode.CONTINUED, draw.policy, 0.0)
            version, draw_id = draw.version, draw.id
        else:
            price, costs = self._priced(names if ask.forced is None else ())
            missed = misses.costs(names)
            penalty = penalise(price, costs, misses.usd_weight, missed)
            lottery = self._distribute(ask, names, context, serving, candidate_scores, penalty)
            draw_id = ask.decision_id if lottery.mode is Mode.EXPLORE and self.keeps(ask) else None
        p, mode = lottery.p, lottery.mode
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
            policy=lottery.policy,
            version=version,
            mode=mode,
            decided_at=now,
            deadline=now + self.wait_s,
            episode_id=ask.episode_id,
            request_digest=ask.request_digest,
            user_digest=ask.user_digest,
            asked_by=ask.asked_by,
            floor=lottery.floor,
            deferred=ask.deferred,
            shadow=tuple(lottery.shadow.tolist()),
            candidate=lottery.candidate,
            share=lottery.share,
            price=price,
            costs=costs,
            cost_weight=ask.cost_weight,
            candidate_scores=candidate_scores if lottery.candidate else None,
            masked={**masked, **unavailable},
            trace=tracing.traceparent(),
            incumbent=tuple(lottery.incumbent.tolist()),
            incumbent_share=lottery.incumbent_share,
            quoted_groups=ask.quoted_groups,
            draw_id=draw_id,
            miss_costs=missed,
            usd_weight=misses.usd_weight if missed else 0.0,
        )

    def _distribute(
        self,
        ask: Ask,
        names: Sequence[str],
        context: Context,
        serving: Serving,
        candidate_scores: Mapping[str, float] | None,
        penalty: Sequence[float],
    ) -> Lottery:
        """Return the distribution to draw from: policy and floor, mixed with a canary or the incumbent."""
        policy = serving.policy
        if ask.forced is not None:
            return Lottery(np.ones(1), Mode.FORCED, policy.kind, 0.0)
        mode, floor = Mode.EXPLORE if ask.explore else Mode.GREEDY, self.floor(len(names))
        named = self.incumbent if ask.incumbent is None else ask.incumbent
        if named is not None and self.share < 1.0:
            incumbent, rest = self._incumbent(named, names), 1.0 - self.share
            p = served_distribution(policy, context, names, floor, penalty)
            mixed = sampling.mixed(p, incumbent, rest)
            return Lottery(mixed, mode, INCUMBENT, floor, p, incumbent=incumbent, incumbent_share=rest)
        candidate, share, of_candidate = 0, 0.0, np.zeros(0)
        if canary := self._find_canary(serving, ask.decision_id):
            theirs = context if candidate_scores is None else context.with_scores(candidate_scores)
            kept = floor * canary.kept_floor
            of_candidate = self._candidate_distribution(canary, theirs, names, kept, penalty)
            if of_candidate.size:
                candidate, share, floor = canary.version, canary.share, kept
        p = served_distribution(policy, context, names, floor, penalty)
        if of_candidate.size:
            p = sampling.mixed(p, of_candidate, share)
        return Lottery(p, mode, policy.kind, floor, candidate=candidate, share=share)

    def _priced(self, names: Sequence[str]) -> tuple[float, tuple[float, ...]]:
        """Return the price of a unit of cost, and the cost of each arm.

        These are 0 and empty without a budget, before its first request, and if `names` is empty.
        """
        if self.price is None or not names:
            return 0.0, ()
        return self.price.price, self.price.costs(names)

    @staticmethod
    def _incumbent(named: Mapping[str, float], names: Sequence[str]) -> NDArray[np.float64]:
        """Return the distribution of the caller's own decider, shape (n_arms,). Raises NoEligibleArmError."""
        if gone := [arm for arm, p in named.items() if p and arm not in names]:
            raise NoEligibleArmError(
                f"the incumbent's arm {gone[0]!r} is not eligible now; eligible: {', '.join(names)}"
            )
        return np.array([named.get(arm, 0.0) for arm in names])

    def build_observed(
        self, ask: Ask, observed: ObservedDecision, context: Context, serving: Serving
    ) -> Decision:
        """Return a decision of another system, with the policy's distribution as its shadow.

        Args:
            ask: The question, its ids and its user.
            observed: The decision of the other system.
            context: Context of the question, with the scores of the router.
            serving: Policy and router that serve now.

        Raises:
            PolicyError: The policy returned no distribution.
        """
        arms = observed.arms
        floor = self.floor(len(arms))
        price, costs = self._priced(arms)
        penalty = penalise(price, costs, 0.0, ())
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
            asked_by=ask.asked_by,
            floor=floor,
            shadow=tuple(shadow.tolist()),
            price=price,
            costs=costs,
            cost_weight=ask.cost_weight,
            trace=tracing.traceparent(),
        )

    def _drop(self, canary: Canary, why: str) -> None:
        """Leave a candidate out from now on; to be called while an exception is handled, which is logged."""
        logger.exception("candidate version %d fails and gets no more traffic: %s", canary.version, why)
        self.dropped = *self.dropped[1 - MOST_DROPPED :], canary

    def _candidate_distribution(
        self, canary: Canary, context: Context, names: Sequence[str], floor: float, penalty: Sequence[float]
    ) -> NDArray[np.float64]:
        """Return the distribution of a candidate, shape (n_arms,); drop one that fails and return (0,)."""
        try:
            return served_distribution(canary.policy, context, names, floor, penalty)
        except Exception:  # noqa: BLE001 - logged there; a policy may raise anything
            self._drop(canary, "it gave no distribution")
            return np.zeros(0)
