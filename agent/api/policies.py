"""Promoting: which policy decides, how it came to that, and what an operator wants of a version."""

import asyncio
import time

from fastapi.responses import JSONResponse

from agent.api import responses as policy_replies
from agent.api.decisions import Before, Limit, Number, of_the_past
from agent.api.errors import ApiError
from agent.api.schemas import CanaryChoice, PromotionChoice, VersionChoice
from agent.jobs import UndecidedError
from agent.learning import DIGEST_CHARS, Recipe
from agent.policies import PolicyError, ShadowPolicy, shadow
from agent.serving import Replica
from feedback.errors import ChangedMeanwhileError, QueueFullError
from feedback.registry import Version, active_policy, promotions, versions
from feedback.training_log import lag as training_log_lag

COMPARED = 1000
"""Newest decisions among which those are looked for that an apprentice is compared with its baseline on."""

COMPARED_FOR_S = 1.0
"""How long what came out of that is told."""


class PolicyRoutes:
    """The routes of policies and their versions. Each docstring is what the OpenAPI document says."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._compared: tuple[float, shadow.Agreement] | None = None  # until when it may be told

    async def policy(self) -> JSONResponse:
        """The policy that decides now, how much of the log it has learned, and what it hears.

        `serving` says whether it is held at its version, since when and why; `promotion` which version
        was promoted, and whether it was forced; `canary` which candidate takes a share, and whether it
        can; `newest` is the newest version that there is. Of an `apprentice` the newest decisions say
        how far it agrees with the baseline that decides: `agreement` is the mean mass that both
        distributions share, `same_best` how often both would most probably take the same arm.
        """
        # all of one look: the next one may come while the log is read
        replica, version, said = self._replica, self._replica.version, self._replica.said
        canary = replica.loop.canary is not None
        learned = None if version is None else version.examples_seq
        lag = await asyncio.to_thread(
            training_log_lag.lag_of, replica.store, replica.config.reward.join, learned
        )
        last = await asyncio.to_thread(versions.latest, replica.store, said.recipe)
        router = None if replica.advisor is None else replica.advisor.about
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
                replica.loop.floor,
            )
        )

    async def _agreement(self) -> shadow.Agreement | None:
        """Return how an apprentice agrees with its baseline; None where none is followed."""
        recipe = self._replica.lookout.recipe
        if recipe.policy.kind != ShadowPolicy.kind:
            return None
        if self._compared is None or time.monotonic() >= self._compared[0]:
            decisions = await asyncio.to_thread(self._replica.store.newest, COMPARED)
            of_recipe = await asyncio.to_thread(
                versions.among, self._replica.store, recipe.digest, {one.version for one in decisions}
            )
            with_shadow = [one for one in decisions if one.shadow and one.version in of_recipe]
            compared = shadow.agreement(with_shadow) if with_shadow else shadow.Agreement(0, 0.0, 0.0)
            self._compared = time.monotonic() + COMPARED_FOR_S, compared
        return self._compared[1]

    async def policies(self, limit: Limit = 50, before: Before = None) -> JSONResponse:
        """The versions of all policies, newest first, and what operators said of any.

        A page ends with version N: the next one is asked for with `before=N`. The policy of a version
        whose bytes are not `kept` is learned again from the log when it is needed.
        """
        store, served = self._replica.store, self._replica.version
        listed = await asyncio.to_thread(versions.page, store, limit, before)
        said = await asyncio.to_thread(promotions.newest, store, limit)
        return JSONResponse(policy_replies.versions(listed, said, served))

    async def promote(self, version: Number, body: PromotionChoice) -> JSONResponse:
        """Learn and serve the recipe of this version from here on, always the newest of it.

        Where another recipe is followed, the gate is asked: 409 tells its `reasons` to hold the
        version, unless it is forced. It must be of the configured reward. Where somebody else has said
        something while it was judged, it is refused as `changed_meanwhile`. Every replica follows within
        a second. A canary and a rollback end. The reply is that of `GET /v1/policy`: it tells what is in
        force, which may be what somebody else just said.
        """
        replica = self._replica
        found, recipe = await self._named(version)
        said = await asyncio.to_thread(active_policy, replica.store, replica.lookout.configured.digest)
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
        served, said = replica.version, replica.said
        if said.pin is None and (served is None or served.recipe != said.recipe):
            chosen = said.promotion.version if said.promotion else version
            raise self._unread(chosen, "promoted")
        return await self.policy()

    async def rollback(self, version: Number, body: VersionChoice) -> JSONResponse:
        """Serve exactly this version until another word; every replica follows within a second.

        Learning goes on and publishes newer versions, which wait for a promotion. It must be a
        version of the configured recipe or of one that was promoted: another one has to pass the gate.
        A canary ends. The reply is that of `GET /v1/policy`: it tells what is in force, which may be
        what somebody else just said.
        """
        replica, (found, recipe) = self._replica, await self._named(version)
        configured = replica.lookout.configured.digest
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
        pin, served = replica.said.pin, replica.version
        if pin is not None and (served is None or served.version != pin.version):
            raise self._unread(pin.version, "chosen")
        return await self.policy()

    async def canary(self, version: Number, body: CanaryChoice) -> JSONResponse:
        """Give exactly this version a share of the traffic, beside what is served; a share of 0 ends it.

        Every distribution is mixed of both, and decisions tell how. It must be a version of the
        reward that is configured. One that gives no distribution takes no part any more, which is
        told as `deciding` false. A promotion and a rollback end it. The reply is that of
        `GET /v1/policy`: it tells what is in force, which may be what somebody else just said.
        """
        found, recipe = await self._named(version)
        state = None
        if body.share:
            self._require_built(recipe, version)
            state = await self._bytes(found)
        now = self._replica.clock()
        await self._say(
            promotions.Promotion(0, version, promotions.Action.CANARY, body.reason, now, share=body.share),
            state,
        )
        return await self.policy()

    async def _named(self, number: int) -> tuple[Version, Recipe]:
        """Return a version that may be served, and its recipe. Raises ApiError."""
        version = await asyncio.to_thread(versions.find, self._replica.store, number)
        if version is None:
            raise ApiError(404, "version_not_found", f"there is no version {number}", "version")
        try:
            return version, Recipe.of(version, self._replica.config.reward)
        except PolicyError as error:
            raise ApiError(409, "promotion_refused", str(error), "version") from None

    def _require_built(self, recipe: Recipe, number: int) -> None:
        """See to it that a policy of a recipe can be built here. Raises ApiError."""
        try:
            recipe.build(self._replica.lookout.arms)
        except PolicyError as error:
            message = f"version {number} cannot serve here: {error}"
            raise ApiError(409, "promotion_refused", message, "version") from None

    async def _bytes(self, version: Version) -> bytes:
        """Return the state of a version, which is learned again where it was pruned. Raises ApiError."""
        return await of_the_past(self._replica, [version], lambda policy: policy.save(), "version")

    async def _judged(self, number: int, since: float, *, force: bool) -> tuple[bool, int | None]:
        """Ask the gate; return whether it has to be forced, and the evaluation behind its verdict.

        Raises:
            ApiError: It holds the version.
            UndecidedError: It has none yet.
            QueueFullError: It cannot have one now.
        """
        try:
            verdict = await self._replica.gate(number, since, force=force)
        except (UndecidedError, QueueFullError):
            if not force:
                raise
            return True, None
        if not verdict["promote"] and not force:
            reasons = verdict["reasons"]
            message = f"version {number} is held by the gate: {'; '.join(reasons)}"
            raise ApiError(409, "promotion_gate_failed", message, "version", reasons=reasons)
        return not verdict["promote"], verdict["evaluation"]

    async def _say(self, word: promotions.Promotion, state: bytes | None, after: int | None = None) -> None:
        """Record what an operator wants, and follow it here at once. Raises ApiError."""
        replica, configured = self._replica, self._replica.lookout.configured.digest
        try:
            await asyncio.to_thread(promotions.record, replica.store, configured, word, state, after=after)
        except ChangedMeanwhileError as error:
            raise ApiError(409, "changed_meanwhile", str(error), "version") from None
        await replica.refresh()

    def _unread(self, number: int, was: str) -> ApiError:
        """Return the failure to serve here what is in force."""
        served = self._replica.version
        message = f"version {number} was {was} and cannot be read here: " + (
            "none decides" if served is None else f"version {served.version} still decides"
        )
        return ApiError(503, "not_ready", message, "version")
