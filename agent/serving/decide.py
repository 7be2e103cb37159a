"""What decides a turn: which arms may be drawn, the context that the policy sees, and the draw."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from agent.policies import FeatureSpec, choose, describe, sampling, served_distribution
from agent.serving.arm_health import NO_MODELS, ArmHealth
from agent.serving.messages import ArmInfo, Ask, Canary, NoEligibleArmError, OverloadedError, Serving
from agent.serving.probe import UNPROBED, Embeddings, Probes, Scorer
from arms import tracing
from arms.base import ArmError, Query
from arms.llm import base
from feedback.budget import Price
from feedback.events import Context, Decision, Mask, Mode

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
        embeddings: Embeddings of the question, by the backbone that `spec` names, if it names one.
        arms: The live arms.
        extra: The caller's own features.
        cost_weight: Cost weight of the request.

    Raises:
        FeatureError: An extra number is not finite.
        ValueError: An embedding is too short.
    """
    return describe(
        question,
        spec,
        embedding=embeddings[spec.embedding.backbone] if spec.embedding else None,
        extra=extra,
        arms={name: info.features for name, info in arms.items()},
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
    masked, wanted = {}, ask.options.keys() - base.HINTS
    for name, info in arms.items() if ask.forced is None else ():
        if not info.enabled:
            masked[name] = Mask.DISABLED
        elif name in ask.excluded:
            masked[name] = Mask.EXCLUDED
        elif ask.allowed is not None and name not in ask.allowed:
            masked[name] = Mask.NOT_ALLOWED
        elif must_filter(ask, restricted) and not info.filters:
            masked[name] = Mask.CANNOT_FILTER
        elif info.options is not None and wanted - info.options:
            masked[name] = Mask.UNSUPPORTED
    return masked


def must_filter(ask: Ask | Query, restricted: bool) -> bool:
    """Return whether a request is only for arms that find nothing but what it permits."""
    return restricted or ask.where is not None


def scorers_of(serving: Serving) -> list[Scorer]:
    """Return the routers that take part in decisions: that of the served version, and that of a canary."""
    canary = serving.canary
    both = serving.scorer, None if canary is None else canary.scorer
    return [one for one in dict.fromkeys(both) if one is not None]


@dataclass(frozen=True, slots=True)
class Scored:
    """What routers add to a context.

    Attributes:
        context: The input of the served policy.
        probes: What arms found before one is drawn.
        candidate_scores: Those that the canary sees in the place of the context's; None for the same.
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
        dropped: The last candidate whose policy failed; it takes part no more.
        price: Price of a unit of cost under the budget; None without one, and before its first request.
    """

    serving: Serving
    floor: float
    salt: str = field(repr=False)
    wait_s: float
    clock: Callable[[], float] = time.time
    health: ArmHealth = field(default_factory=ArmHealth)
    dropped: Canary | None = None
    price: Price | None = None

    @property
    def canary(self) -> Canary | None:
        """The candidate that takes part in decisions; None for none."""
        return self._canary_of(self.serving)

    def _canary_of(self, serving: Serving) -> Canary | None:
        return None if serving.canary is self.dropped else serving.canary

    def masked(
        self, names: Sequence[str], probes: Probes = UNPROBED, models: Mapping[str, str] = NO_MODELS
    ) -> dict[str, Mask]:
        """Return the arms that may not be drawn now, each with why; at least one is left.

        Those whose probe failed are among them, unless all of them did.

        Args:
            names: To choose among.
            probes: What they found already.
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
            context: What the policy sees of it so far.
            search_first: Has arms search before one is drawn.
            serving: What decides the turn; None for what serves now.

        Raises:
            ArmError: The router of the served version failed; that of a canary is dropped with it.
        """
        serving = serving or self.serving
        canary = self._canary_of(serving)
        scorer, other = serving.scorer, serving.scorer if canary is None else canary.scorer
        scorers = scorers_of(serving if canary is not None else replace(serving, canary=None))
        if not scorers or ask.forced is not None:
            return Scored(context)
        probes = UNPROBED
        known = [name for name in names if any(one.k and name in one.arms for one in scorers)]
        if known:
            with self.health.track(*known) as report:
                probes = await search_first(known)
                report(worked=probes.found, failed=probes.failed)

        async def scores(one: Scorer | None) -> Mapping[str, float]:
            if one is None:
                return {}
            known = [name for name in names if name in one.arms and (not one.k or name in probes.found)]
            return await one.scores(query, known, probes.found if one.k else {}) if known else {}

        context = context.with_scores(await scores(scorer))
        if canary is None or other is scorer:
            return Scored(context, probes)
        try:
            return Scored(context, probes, await scores(other))
        except ArmError:
            self._drop(canary, "its router failed")
            return Scored(context, probes)

    def choose(
        self,
        ask: Ask,
        names: Sequence[str],
        context: Context,
        probes: Probes = UNPROBED,
        serving: Serving | None = None,
        candidate_scores: Mapping[str, float] | None = None,
        masked: Mapping[str, Mask] = MappingProxyType({}),
        models: Mapping[str, str] = NO_MODELS,
    ) -> Decision:
        """Draw an arm from the policy's distribution, mixed with the canary's and with the floor.

        Args:
            ask: The request.
            names: The arms that may be drawn.
            context: What the policy sees, the scores of its router included.
            probes: What the arms found already.
            serving: What decides the turn; None for what serves now.
            candidate_scores: Those of the canary's router, where that is another one.
            masked: The live arms that are not among `names`, each with why.
            models: The language model of each, where they are to answer.

        Raises:
            OverloadedError: The arms have no room any more.
        """
        serving, unavailable = serving or self.serving, self.masked(names, probes, models)
        names = [name for name in names if name not in unavailable]
        candidate, share = 0, 0.0
        price, costs = 0.0, tuple[float, ...]()
        if self.price is not None and ask.forced is None:
            price, costs = self.price.price, self.price.costs(names)
        penalty = tuple(price * cost for cost in costs)
        if ask.forced is not None:
            mode, floor, p, shadow = Mode.FORCED, 0.0, np.ones(1), np.zeros(0)
        else:
            mode = Mode.EXPLORE if ask.explore else Mode.GREEDY
            floor = sampling.lowered(self.floor, len(names))
            p = served_distribution(serving.policy, context, names, floor, penalty)
            if canary := self._canary_of(serving):
                theirs = context if candidate_scores is None else context.with_scores(candidate_scores)
                of_candidate = self._candidate_distribution(canary, theirs, names, floor, penalty)
                if of_candidate.size:
                    candidate, share = canary.version, canary.share
                    p = sampling.mixed(p, of_candidate, share)
            shadow = sampling.shadow_distribution(serving.policy, context, names, floor)
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
            policy=serving.policy.kind,
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
        )

    def _drop(self, canary: Canary, why: str) -> None:
        """Have a candidate take no part any more; to be called where an error is handled."""
        logger.exception("version %d takes no part any more: %s", canary.version, why)
        self.dropped = canary

    def _candidate_distribution(
        self, canary: Canary, context: Context, names: Sequence[str], floor: float, penalty: Sequence[float]
    ) -> NDArray[np.float64]:
        """Return the distribution of a candidate, shape (n_arms,); (0,) where it fails and is dropped."""
        try:
            return served_distribution(canary.policy, context, names, floor, penalty)
        except Exception:  # noqa: BLE001 - logged there; a policy may raise anything
            self._drop(canary, "it gave no distribution")
            return np.zeros(0)
