"""`/v1/policy` and `/v1/policies`: the active policy, its versions, and promote, rollback and canary."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from agent.api.decisions import with_policies
from agent.api.errors import RESPONSES, ApiError
from agent.api.middleware import AppReplica, require
from agent.api.schemas import (
    CanaryChoice,
    PageBefore,
    PageLimit,
    PathNumber,
    PromotionChoice,
    VersionChoice,
)
from agent.jobs import UndecidedError
from agent.learning import DIGEST_CHARS, Recipe
from agent.policies import PolicyError, ShadowPolicy, shadow
from agent.serving import Replica
from feedback.drift import Alarms, DriftSpec
from feedback.errors import ChangedMeanwhileError, QueueFullError
from feedback.registry import Version, active_policy, promotions
from feedback.registry import versions as registry_versions
from feedback.training_log import lag as training_log_lag

router = APIRouter(responses=RESPONSES)

COMPARED = 1000
"""Newest decisions, among which those with a shadow distribution are compared with the active policy."""

COMPARED_FOR_S = 1.0
"""How long the result of that comparison is reused."""


class ShadowAgreement:
    """How far a shadow policy agrees with the active policy, computed at most once per `COMPARED_FOR_S`."""

    def __init__(self) -> None:
        self._agreement = shadow.Agreement(0, 0.0, 0.0)
        self._valid_until = -float("inf")

    async def policy(self) -> JSONResponse:
        """The policy that decides now, how much of the log it has learned, and what it hears.

        `serving` says whether it is held at its version, since when and why; `promotion` which version
        was promoted, and whether it was forced; `canary` which candidate takes a share, and whether it
        can; `newest` is the newest version that there is. Of an `apprentice` the newest decisions say
        how far it agrees with the baseline that decides: `agreement` is the mean mass that both
        distributions share, `same_best` how often both would most probably take the same arm.
        """
        # all of one look: the next one may come while the log is read
        replica, version, said = self._replica, self._replica.version, self._replica.active
        canary = replica.decider.canary is not None
        learned = None if version is None else version.examples_seq
        lag = await asyncio.to_thread(
            training_log_lag.lag_of, replica.store, replica.config.reward.join, learned
        )
        last = await asyncio.to_thread(versions.latest, replica.store, said.recipe)
        router = None if replica.scorer is None else replica.scorer.about
        compared = await self._agreement()
        return JSONResponse(
            policy_replies.policy(
                self._replica.config,
                version,
                said,
                canary,
                last,
                lag,
                router,
                compared,
                replica.alarms,
                replica.decider.floor,
            )
        )

    async def _agreement(self) -> shadow.Agreement | None:
        """Return how an apprentice agrees with its baseline; None where none is followed."""
        recipe = self._replica.watcher.recipe
        if recipe.policy.kind != ShadowPolicy.kind:
            return None
        if time.monotonic() >= self._valid_until:
            decisions = await asyncio.to_thread(replica.store.newest, COMPARED)
            numbers = {one.version for one in decisions}
            of_recipe = await asyncio.to_thread(
                registry_versions.among, replica.store, recipe.digest, numbers
            )
            with_shadow = [one for one in decisions if one.shadow and one.version in of_recipe]
            compared = shadow.agreement(with_shadow) if with_shadow else shadow.Agreement(0, 0.0, 0.0)
            self._agreement, self._valid_until = compared, time.monotonic() + COMPARED_FOR_S
        return self._agreement


async def _shadow_agreement(request: Request) -> ShadowAgreement:
    """Return the comparison of this application."""
    state = request.app.state
    if not hasattr(state, "shadow_agreement"):
        state.shadow_agreement = ShadowAgreement()
    agreement: ShadowAgreement = state.shadow_agreement
    return agreement


        Where another recipe is followed, the gate is asked: 409 tells its `reasons` to hold the
        version, unless it is forced. It must be of the configured reward. Where somebody else has said
        something while it was judged, it is refused as `changed_meanwhile`. Every replica follows within
        a second. A canary and a rollback end. The reply is that of `GET /v1/policy`: it tells what is in
        force, which may be what somebody else just said.
        """
        replica = self._replica
        found, recipe = await self._named(version)
        said = await asyncio.to_thread(active_policy, replica.store, replica.watcher.configured.digest)
        forced, evaluation, state = False, None, None
        if recipe.digest != said.recipe:
            self._require_built(recipe, version)
            since = 0.0 if said.newest is None else said.newest.at
            forced, evaluation = await self._judged(version, since, force=body.force)
            state = await self._bytes(found)
        word = promotions.Promotion(
            0, version, promotions.Action.PROMOTE, body.reason, replica.clock(), forced, 0.0, evaluation
        )
        await self._say(word, state, after=said.seq)
        served, said = replica.version, replica.active
        if said.pin is None and (served is None or served.recipe != said.recipe):
            chosen = said.promotion.version if said.promotion else version
            raise self._unread(chosen, "promoted")
        return await self.policy()


        Learning goes on and publishes newer versions, which wait for a promotion. It must be a
        version of the configured recipe or of one that was promoted: another one has to pass the gate.
        A canary ends. The reply is that of `GET /v1/policy`: it tells what is in force, which may be
        what somebody else just said.
        """
        replica, (found, recipe) = self._replica, await self._named(version)
        configured = replica.watcher.configured.digest
        if not await asyncio.to_thread(promotions.was_followed, replica.store, configured, recipe.digest):
            message = (
                f"version {version} is of recipe {recipe.digest[:DIGEST_CHARS]}, which has never decided "
                "here: promote it, or give it a share as a canary"
            )
            raise ApiError(409, "promotion_refused", message, "version")
        self._require_built(recipe, version)
        state = await self._bytes(found)
        await self._say(
            promotions.Promotion(0, version, promotions.Action.ROLLBACK, body.reason, replica.clock()), state
        )
        pin, served = replica.active.pin, replica.version
        if pin is not None and (served is None or served.version != pin.version):
            raise self._unread(pin.version, "chosen")
        return await self.policy()

    Every distribution is a mixture of both, and decisions record the share. The version must have the
    configured reward. If it gives no distribution it takes no part any more, and `deciding` is false.
    A promotion and a rollback end it. The response is that of `GET /v1/policy`: it shows what is
    active, which may be what another operator has just set.
    """
    found, recipe = await _servable(replica, version)
    state = None
    if body.share:
        _require_buildable(replica, recipe, version)
        state = await _state(replica, found)
    promotion = promotions.Promotion(
        0, version, promotions.Action.CANARY, body.reason, replica.clock(), share=body.share
    )
    await _record(replica, promotion, state)
    return await policy(replica, agreement)


async def _servable(replica: Replica, number: int) -> tuple[Version, Recipe]:
    """Return a version that may be served, and its recipe. Raises ApiError."""
    version = await asyncio.to_thread(registry_versions.find, replica.store, number)
    if version is None:
        raise ApiError("version_not_found", f"there is no version {number}", "version")
    try:
        return version, Recipe.of(version, replica.config.reward)
    except PolicyError as error:
        raise ApiError("promotion_refused", str(error), "version") from None

    def _require_built(self, recipe: Recipe, number: int) -> None:
        """See to it that a policy of a recipe can be built here. Raises ApiError."""
        try:
            recipe.build(self._replica.watcher.arms)
        except PolicyError as error:
            message = f"version {number} cannot serve here: {error}"
            raise ApiError(409, "promotion_refused", message, "version") from None

def _require_buildable(replica: Replica, recipe: Recipe, number: int) -> None:
    """Refuse a version whose policy cannot be built here. Raises ApiError."""
    try:
        recipe.build(replica.lookout.arms)
    except PolicyError as error:
        raise ApiError(
            "promotion_refused", f"version {number} cannot serve here: {error}", "version"
        ) from None


async def _state(replica: Replica, version: Version) -> bytes:
    """Return the state of a version, which is learned again where it was pruned. Raises ApiError."""
    return await with_policies(replica, [version], lambda restored: restored.save(), "version")

    async def _say(self, word: promotions.Promotion, state: bytes | None, after: int | None = None) -> None:
        """Record what an operator wants, and follow it here at once. Raises ApiError."""
        replica, configured = self._replica, self._replica.watcher.configured.digest
        try:
            await asyncio.to_thread(promotions.record, replica.store, configured, word, state, after=after)
        except ChangedMeanwhileError as error:
            raise ApiError(409, "changed_meanwhile", str(error), "version") from None
        await replica.refresh()

async def _judged(replica: Replica, number: int, since: float, *, force: bool) -> tuple[bool, int | None]:
    """Consult the gate; return whether the promotion is forced, and the evaluation behind the verdict.

    Raises:
        ApiError: The gate holds the version.
        UndecidedError: It has no verdict yet.
        QueueFullError: The queue of evaluations is full.
    """
    try:
        verdict = await replica.gate(number, since, force=force)
    except (UndecidedError, QueueFullError):
        if not force:
            raise
        return True, None
    if not verdict["promote"] and not force:
        reasons = verdict["reasons"]
        message = f"version {number} is held by the gate: {'; '.join(reasons)}"
        raise ApiError("promotion_gate_failed", message, "version", reasons=reasons)
    return not verdict["promote"], verdict["evaluation"]


async def _record(
    replica: Replica, promotion: promotions.Promotion, state: bytes | None, after: int | None = None
) -> None:
    """Record a promotion, rollback or canary, and follow it here at once. Raises ApiError."""
    configured = replica.lookout.configured.digest
    try:
        await asyncio.to_thread(promotions.record, replica.store, configured, promotion, state, after=after)
    except ChangedMeanwhileError as error:
        raise ApiError("changed_meanwhile", str(error), "version") from None
    await replica.refresh()


def _unreadable(replica: Replica, number: int, action: str) -> ApiError:
    """Return the error for an active version that this replica cannot load."""
    served = replica.version
    message = f"version {number} was {action} and cannot be read here: " + (
        "none decides" if served is None else f"version {served.version} still decides"
    )
    return ApiError("not_ready", message, "version")
