"""Canaries: a candidate version takes a share of the draws before it is promoted."""

import logging
from collections.abc import Callable
from typing import ClassVar, Self

from armwise.agent.policies import compute_served_distribution, sampling
from armwise.agent.turn.serving import Canary, Serving
from armwise.agent.turn.steps.base import Array, Draft, DrawInputs, StepError, StepRecord, TurnStep
from armwise.agent.turn.steps.guard import GuardStep
from armwise.feedback.events import INCUMBENT
from armwise.feedback.guard import GuardSpec, Returned

logger = logging.getLogger(__name__)

MOST_DROPPED = 8
"""Failed candidates to remember, the newest first: more than take part at once."""


class CanaryStep(TurnStep):
    """Mixes the distribution of the served policy with that of a candidate.

    One candidate takes part in each draw, so that several together explore as much as a single one. One that
    fails is dropped: it gets no more traffic.

    Args:
        salt: Secret that enters the hash of the draw.
        guard: The guard: in a class that went back no candidate takes part, and the floor stays whole.
    """

    name: ClassVar[str] = "canary"

    def __init__(self, salt: str, guard: GuardStep | None = None) -> None:
        self._salt, self._guard = salt, guard
        self._dropped: tuple[Canary, ...] = ()

    @classmethod
    def build(cls, *, salt: str, guard: GuardSpec | None, get_returned: Callable[[], Returned]) -> Self:
        """Return the step of a service."""
        return cls(salt, GuardStep.build(guard=guard, get_returned=get_returned))

    def list_active(self, serving: Serving) -> list[Canary]:
        """Return the candidates that take part in draws."""
        return [canary for canary in serving.canaries if not self._is_dropped(canary)]

    def _is_dropped(self, canary: Canary) -> bool:
        return any(canary.policy is dropped.policy for dropped in self._dropped)

    def _find(self, draft: Draft) -> Canary | None:
        """Return the candidate of a draw, selected by a hash of its id, unless that one was dropped."""
        canaries = draft.serving.canaries
        if not canaries or not draft.is_open:
            return None
        u = 0.0
        if len(canaries) > 1:
            u = sampling.uniform_from(draft.ask.decision_id, self._salt + "/canary")
        canary = canaries[int(u * len(canaries))]
        return None if self._is_dropped(canary) else canary

    async def read(self, draft: Draft) -> None:
        """Have the router of the candidate score the arms, if it differs from the served one."""
        canary = self._find(draft)
        scorer = None if canary is None else canary.scorer
        if scorer is not None and scorer is not draft.serving.scorer:
            draft.scorers.append(scorer)

    def plan(self, draft: Draft) -> StepRecord | None:
        """Return the version and the share of the candidate, and the scores of its router if it has its own.

        Beside the caller's own decider candidates pause.
        """
        canary = self._find(draft)
        if canary is None or INCUMBENT in draft.records:
            return None
        if (error := draft.failures.get(self.name)) is not None:
            self._drop(canary, str(error), error)
            return None
        if self._guard is not None and self._guard.is_back(draft):
            return None
        record: StepRecord = {"version": canary.version, "share": canary.share}
        if canary.scorer is not draft.serving.scorer:
            # without scores if a kept arm, for which none are computed, has become unavailable
            scores = {} if canary.scorer is None else draft.scores.get(canary.scorer, {})
            if scores is None:
                self._drop(canary, "its router failed")
                return None
            record["scores"] = dict(scores)
        return record

    @classmethod
    def distribute(cls, record: StepRecord, draw: DrawInputs, p: Array) -> Array:
        """Return the mixture of both distributions."""
        candidate = draw.find_policy(record["version"])
        context = draw.context
        if "scores" in record:
            context = context.with_scores(record["scores"])
        try:
            theirs = compute_served_distribution(candidate, context, draw.arms, draw.floor, draw.penalty)
        except Exception as error:
            raise StepError(cls.name, f"version {record['version']} has no distribution: {error}") from error
        return sampling.mix_canary(p, theirs, record["share"])

    def _drop(self, canary: Canary, why: str, error: Exception | None = None) -> None:
        message = "candidate version %d fails and gets no more traffic: %s"
        logger.error(message, canary.version, why, exc_info=error)
        self._dropped = *self._dropped[1 - MOST_DROPPED :], canary
