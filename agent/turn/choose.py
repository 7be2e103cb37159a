"""The draw: the context of a question, the distribution over the eligible arms, and the arm drawn from it.

    narrow     arms that may not be drawn now are left out, each with a reason
    read       steps look up what they need in the log
    score      routers score the arms, which search first if a router reads passages
    decide     steps plan; the policy and they give a distribution; `choose` draws one arm from it

Arms are left out before the draw, so the logged distribution is exactly the one drawn from.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from armwise.agent.policies import FeatureSpec, PolicyError, choose, describe, sampling
from armwise.agent.turn.ask import Ask, ObservedDecision
from armwise.agent.turn.eligibility import ArmInfo, NoEligibleArmError, describe_masked, list_allowed
from armwise.agent.turn.health import ArmHealth
from armwise.agent.turn.probes import Embeddings, Probes
from armwise.agent.turn.serving import ArmScorer, Serving
from armwise.agent.turn.steps import Array, Draft, DrawTerms, StepError, TurnStep, compute_distribution
from armwise.arms import tracing
from armwise.arms.base import ArmError, Query
from armwise.arms.profile import similarities
from armwise.feedback.events import INCUMBENT, OBSERVED, SIMILARITY, Context, Decision, Mask, Mode

logger = logging.getLogger(__name__)


def build_context(
    question: str,
    spec: FeatureSpec,
    embeddings: Embeddings,
    arms: Mapping[str, ArmInfo],
    extra: Mapping[str, float | str | bool] | None = None,
) -> Context:
    """Return the context of a question, the same in a turn and for a label of a warm start.

    Args:
        question: The text of the request.
        spec: Which features the context has.
        embeddings: Embeddings of the question, by the backbones that `spec` names.
        arms: The live arms.
        extra: The caller's features.

    Raises:
        FeatureError: An extra number is not finite.
        ValueError: An embedding is too short.
    """
    of_arms = {name: info.features for name, info in arms.items()}
    if spec.similarity is not None:
        profiles = {name: info.profiles for name, info in arms.items() if info.profiles is not None}
        backbone = spec.similarity.backbone
        near = similarities(profiles, question, None if backbone is None else embeddings[backbone])
        of_arms |= {name: {**of_arms[name], SIMILARITY: value} for name, value in near.items()}
    return describe(
        question,
        spec,
        embedding=embeddings[spec.embedding.backbone] if spec.embedding else None,
        extra=extra,
        arms=of_arms,
    )


@dataclass(slots=True)
class Decider:
    """Draws an arm.

    Attributes:
        serving: The policy that decides now, with its router; replaced when a version is published. A turn
            uses the value that it began with.
        steps: The steps of a draw, in order.
        salt: Secret that enters the hash of the draw.
        wait_s: Seconds after a decision in which feedback counts.
        clock: Seconds since the epoch.
        health: Circuit breakers and concurrency caps of the arms.
    """

    serving: Serving
    steps: Sequence[TurnStep]
    salt: str = field(repr=False)
    wait_s: float
    clock: Callable[[], float] = time.time
    health: ArmHealth = field(default_factory=ArmHealth)

    def draft(
        self, ask: Ask, arms: Mapping[str, ArmInfo], context: Context, serving: Serving, *, restricted: bool
    ) -> Draft:
        """Begin a decision among the arms that are switched on and that the request allows.

        Raises:
            NoEligibleArmError: There is none.
        """
        names, masked = list_allowed(ask, arms)
        mode = Mode.EXPLORE if ask.explore else Mode.GREEDY
        if ask.forced is not None:
            mode = Mode.FORCED
        terms = DrawTerms(mode, serving.policy.kind, serving.version, certain=ask.forced)
        return Draft(ask, arms, serving, context, terms, restricted and not ask.external, names, masked)

    def narrow(self, draft: Draft) -> None:
        """Leave out the arms that may not be drawn now.

        Arms whose search for this question failed are left out, unless every search failed.

        Raises:
            NoEligibleArmError: No arm is left.
            OverloadedError: No arm has room.
            ArmError: The encoders of all arms are still being loaded.
        """
        failed = [name for name in draft.names if name in draft.probes.failed]
        if len(failed) < len(draft.names):
            draft.leave_out(dict.fromkeys(failed, Mask.SEARCH_FAILED))
        for step in self.steps:
            draft.leave_out(step.mask(draft))
            if not draft.names:
                raise NoEligibleArmError(describe_masked(draft.masked))

    async def read(self, draft: Draft) -> None:
        """Have each step read what it needs from the log. Raises LogUnavailableError."""
        for step in self.steps:
            draft.found[step.name] = await step.read(draft)

    async def score(
        self, draft: Draft, query: Query, search_first: Callable[[Sequence[str]], Awaitable[Probes]]
    ) -> None:
        """Add the scores of routers to a draft; the arms search first if a router reads passages.

        Args:
            draft: The decision in the making; a router scores those of its arms that it was trained on.
            query: The question, with the embeddings that the routers read.
            search_first: Searches with the arms of these names, before the draw.

        Raises:
            ArmError: The router of the served version failed.
        """
        served = draft.serving.scorer
        scorers = [*draft.scorers] if served is None else [served, *draft.scorers]
        if not draft.is_open or not scorers:
            return
        probed = [name for name in draft.names if any(s.k and name in s.arms for s in scorers)]
        if probed:
            with self.health.track(*probed, caller=draft.ask.asked_by) as report:
                draft.probes = await search_first(probed)
                report(worked=draft.probes.found, failed=draft.probes.failed)
        found = draft.probes.found

        async def score_with(scorer: ArmScorer) -> Mapping[str, float]:
            arms = [name for name in draft.names if name in scorer.arms and (not scorer.k or name in found)]
            return await scorer.scores(query, arms, found if scorer.k else {}) if arms else {}

        draft.context = draft.context.with_scores({} if served is None else await score_with(served))
        for scorer in draft.scorers:
            try:
                draft.scores[scorer] = await score_with(scorer)
            except ArmError:
                logger.exception("the router of a candidate failed")
                draft.scores[scorer] = None

    def decide(self, draft: Draft) -> Decision:
        """Draw an arm. Raises as `narrow`."""
        self.narrow(draft)
        p = self._distribute(draft)
        ask, names = draft.ask, draft.names
        if draft.terms.mode is Mode.EXPLORE:
            drawn = choose(p, sampling.uniform_from(ask.decision_id, self.salt, names))
        else:
            drawn = int(p.argmax())
        now = self.clock()
        return self._record(
            draft,
            probabilities=tuple(p.tolist()),
            drawn=names[drawn],
            policy=draft.terms.policy,
            mode=draft.terms.mode,
            decided_at=now,
            draw_id=draft.terms.draw_id,
            deferred=ask.deferred,
            masked=draft.masked,
        )

    def _distribute(self, draft: Draft) -> Array:
        """Have steps plan, and return the distribution to draw from, shape (n_arms,)."""
        terms, given, serving = draft.terms, draft.records, draft.serving
        policies = {serving.version: serving.policy, **{c.version: c.policy for c in serving.canaries}}
        while True:
            draft.terms, draft.records = terms, {**given}
            for step in self.steps:
                if step.name not in given and (draft.is_open or step.is_for_any_turn):
                    before, record = draft.terms, step.plan(draft)
                    if step.name in draft.failures:
                        draft.terms = before
                    elif record is not None:
                        draft.records[step.name] = record
            try:
                return compute_distribution(
                    draft.records,
                    self.steps,
                    draft.context,
                    draft.names,
                    serving.version,
                    policies.__getitem__,
                    draft.terms.certain,
                )
            except StepError as error:
                planned = draft.records.keys() - given.keys() - draft.failures.keys()
                if error.step not in planned:
                    raise PolicyError(f"step {error.step!r} cannot be left out: {error}") from error
                draft.failures[error.step] = error

    def build_observed(self, draft: Draft, observed: ObservedDecision) -> Decision:
        """Return a decision of another system, with the distribution of the policy in its shadow.

        Args:
            draft: The question, scored, with the arms of that system.
            observed: The decision of that system.

        Raises:
            PolicyError: The policy returned no distribution.
        """
        draft.records[INCUMBENT] = {}
        self._distribute(draft)
        return self._record(
            draft,
            probabilities=observed.probabilities,
            drawn=observed.drawn,
            policy=OBSERVED,
            decided_at=observed.at,
        )

    def _record(self, draft: Draft, *, decided_at: float, **drawn: Any) -> Decision:
        """Return a decision as a fact."""
        ask = draft.ask
        return Decision(
            id=ask.decision_id,
            context=draft.context,
            arms=tuple(draft.names),
            version=draft.terms.version,
            decided_at=decided_at,
            deadline=decided_at + self.wait_s,
            episode_id=ask.episode_id,
            request_digest=ask.request_digest,
            user_digest=ask.user_digest,
            asked_by=ask.asked_by,
            trace=tracing.traceparent(),
            steps=draft.records,
            **drawn,
        )
