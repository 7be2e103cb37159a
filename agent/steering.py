"""Looking and steering: what is known of decisions, arms and policies, and what an operator changes."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, TypeVar

from fastapi import Path, Query, Response
from fastapi.responses import JSONResponse

from agent import policy_replies, replies
from agent.asking import require_arm
from agent.config import AppConfig, ConfigError
from agent.errors import ApiError
from agent.past import BusyError
from agent.policies.apprentice import Agreement, Apprentice, agreement
from agent.policy import Policy, PolicyError
from agent.rebuild import SHORT
from agent.replica import Replica
from agent.schemas import LARGEST, ArmsReplacement, ArmSwitch, Identifier, VersionChoice
from agent.telemetry import Telemetry
from agent.verify import verify
from arms.base import ArmBuildError, ArmError
from feedback.errors import ConflictError, LogUnavailableError
from feedback.events import LABELS, Mode
from feedback.lag import Lag, dangling, lag_of
from feedback.promotions import Action, newest, record
from feedback.store import Record
from feedback.versions import Version, among, find, latest, page

DecisionId = Annotated[Identifier, Path()]
Number = Annotated[int, Path(ge=1, le=LARGEST)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Before = Annotated[int | None, Query(ge=1, le=LARGEST)]

Found = TypeVar("Found")

COMPARED = 1000
"""Newest decisions among which those are looked for that an apprentice is compared with its baseline on."""

COMPARED_FOR_S = 1.0
"""How long what came out of that is told."""


class Steering:
    """The routes that show, and that switch and replace. Each docstring is what the OpenAPI document says."""

    def __init__(self, replica: Replica, telemetry: Telemetry) -> None:
        self._replica = replica
        self._telemetry = telemetry
        self._compared: tuple[float, Agreement] | None = None  # until when it may be told

    @property
    def _config(self) -> AppConfig:
        """The configuration, with the arms that are live now."""
        return self._replica.config

    async def decision(self, decision_id: DecisionId) -> JSONResponse:
        """Everything known about a decision."""
        found = await self._record(decision_id)
        return JSONResponse(replies.record(found, self._config, self._replica.clock()))

    async def verify(self, decision_id: DecisionId) -> JSONResponse:
        """Compute a decision again from the log, and compare: its distribution, and its draw.

        Probabilities count as the same up to `tolerance`; on the same machine they are the same to
        the bit. `why` says what differs. The draw is made with the salt of today: where that was
        another one when the arm was drawn, it does not agree although nothing was changed. A policy
        whose bytes were pruned is learned again from the log, which may take a while: such calls
        wait for each other, and are sent away with 503 where too many wait.
        """
        found = await self._record(decision_id)
        decision = found.decision
        again = partial(verify, decision, salt=self._config.salt, propensity=found.propensity)
        if decision.policy == LABELS:
            raise ApiError(409, "not_drawn", f"{decision_id!r} is a label: no policy drew it", "decision_id")
        if decision.mode is Mode.FORCED:  # no policy was asked
            return JSONResponse(again(None).document())
        if decision.floor is None:
            message = f"decision {decision_id!r} is of a log that did not keep which floor was mixed in"
            raise ApiError(409, "not_recorded", message, "decision_id")
        version = await asyncio.to_thread(find, self._replica.store, decision.version)
        if version is None:
            message = f"there is no version {decision.version}, which decision {decision_id!r} names"
            raise ApiError(409, "version_unavailable", message, "decision_id")
        return JSONResponse((await self._of_the_past(version, again, "decision_id")).document())

    async def _record(self, decision_id: str) -> Record:
        found = await asyncio.to_thread(self._replica.store.record, decision_id)
        if found is None:
            raise ApiError(404, "decision_not_found", f"there is no decision {decision_id!r}", "decision_id")
        return found

    async def _of_the_past(self, version: Version, question: Callable[[Policy], Found], param: str) -> Found:
        """Return what a function says of the policy of a version. Raises ApiError, which names `param`."""
        try:
            return await asyncio.wrap_future(self._replica.past.ask(version, question))
        except BusyError as error:
            raise ApiError(503, "overloaded", str(error)) from None
        except PolicyError as error:
            raise ApiError(409, "version_unavailable", str(error), param) from None

    async def arms(self) -> JSONResponse:
        """The live arms, as described and as switched, and the arms that are only parts of these."""
        live, specs = self._replica.loop.arms, self._config.arms
        arms = [replies.arm(name, specs[name], info) for name, info in live.items()]
        parts = {name: spec.model_dump(mode="json") for name, spec in specs.items() if not spec.action}
        return JSONResponse({"arms": arms, "parts": parts, "arm_set": self._replica.arm_set})

    async def replace_arms(self, body: ArmsReplacement) -> JSONResponse:
        """Replace the live arms; returns once they are built, and every replica follows within a second."""
        arms = {name: spec.model_dump() for name, spec in body.arms.items()}
        for name, backbone in body.backbones.items():
            here = self._config.backbones.get(name)
            if backbone != here:
                what = "is not configured" if here is None else f"is {here.model_dump()} here"
                raise ApiError(400, "invalid_value", f"backbone {name!r} {what}", "backbones")
        try:
            await self._replica.replace_arms(arms)
        except ConfigError as error:
            raise ApiError(400, "invalid_value", str(error), "arms") from None
        except ArmBuildError as error:
            raise ApiError(400, "invalid_value", str(error), "arms") from None
        except ArmError as error:
            raise ApiError(502, "arm_failed", str(error)) from None
        except ConflictError as error:
            raise ApiError(409, "arm_conflict", str(error), "arms") from None
        return await self.arms()

    async def switch(self, name: str, body: ArmSwitch) -> JSONResponse:
        """Switch an arm on or off; a disabled arm is not drawn."""
        require_arm(self._replica, name, "name")
        await self._replica.switch(name, body.enabled)
        require_arm(self._replica, name, "name")  # the arms may have been replaced meanwhile
        return JSONResponse(replies.arm(name, self._config.arms[name], self._replica.loop.arms[name]))

    async def policy(self) -> JSONResponse:
        """The policy that decides now, how much of the log it has learned, and what it hears.

        `serving` says whether it is held at its version, since when and why; `newest` is the newest
        version that there is. Of an `apprentice` the newest decisions say how far it agrees with
        the baseline that decides: `agreement` is the mean mass that both distributions share,
        `same_best` how often both would most probably take the same arm.
        """
        replica, version, pin = self._replica, self._replica.version, self._replica.pin
        lag = await self._lag(version)
        last = await asyncio.to_thread(latest, replica.store, replica.lookout.recipe)
        router = None if replica.advisor is None else replica.advisor.about
        compared = await self._agreement()
        return JSONResponse(
            policy_replies.policy(
                self._config,
                version,
                pin,
                last,
                lag,
                router,
                compared,
                replica.alarms,
                replica.loop.floor,
            )
        )

    async def _lag(self, version: Version | None) -> Lag:
        """Return what of the log a version has learned."""
        learned = None if version is None else version.examples_seq
        return await asyncio.to_thread(lag_of, self._replica.store, self._config.reward.join, learned)

    async def _agreement(self) -> Agreement | None:
        """Return how an apprentice agrees with its baseline; None where none is configured."""
        if self._config.policy.kind != Apprentice.kind:
            return None
        if self._compared is None or time.monotonic() >= self._compared[0]:
            decisions = await asyncio.to_thread(self._replica.store.newest, COMPARED)
            of_recipe = await asyncio.to_thread(
                among, self._replica.store, self._replica.lookout.recipe, {one.version for one in decisions}
            )
            with_shadow = [one for one in decisions if one.shadow and one.version in of_recipe]
            compared = agreement(with_shadow) if with_shadow else Agreement(0, 0.0, 0.0)
            self._compared = time.monotonic() + COMPARED_FOR_S, compared
        return self._compared[1]

    async def policies(self, limit: Limit = 50, before: Before = None) -> JSONResponse:
        """The versions of all policies, newest first, and what operators said of any.

        A page ends with version N: the next one is asked for with `before=N`. The policy of a version
        whose bytes are not `kept` is learned again from the log when it is needed.
        """
        store, served = self._replica.store, self._replica.version
        listed = await asyncio.to_thread(page, store, limit, before)
        said = await asyncio.to_thread(newest, store, limit)
        return JSONResponse(policy_replies.versions(listed, said, served))

    async def promote(self, version: Number, body: VersionChoice) -> JSONResponse:
        """Serve the newest versions again, from this one on; every replica follows within a second.

        It must be one of the policy and the reward that are configured. The reply is that of
        `GET /v1/policy`: it tells what is in force, which may be what somebody else just said.
        """
        return await self._say(version, Action.PROMOTE, body.reason)

    async def rollback(self, version: Number, body: VersionChoice) -> JSONResponse:
        """Serve exactly this version until another word; every replica follows within a second.

        Learning goes on and publishes newer versions, which wait for a promotion. It must be a
        version of the policy and the reward that are configured. The reply is that of
        `GET /v1/policy`: it tells what is in force, which may be what somebody else just said.
        """
        return await self._say(version, Action.ROLLBACK, body.reason)

    async def _say(self, number: int, action: Action, reason: str) -> JSONResponse:
        store, ours = self._replica.store, self._replica.lookout.recipe
        version = await asyncio.to_thread(find, store, number)
        if version is None:
            raise ApiError(404, "version_not_found", f"there is no version {number}", "version")
        if version.recipe != ours:
            message = (
                f"version {number} is of recipe {version.recipe[:SHORT]}, a policy or a reward other than "
                f"that of the configuration, whose recipe is {ours[:SHORT]}"
            )
            raise ApiError(409, "promotion_refused", message, "version")
        state = None
        if action is Action.ROLLBACK:  # a promotion serves the newest, whatever became of this one's bytes
            state = await self._of_the_past(version, lambda policy: policy.save(), "version")
        await asyncio.to_thread(record, store, version, action, reason, self._replica.clock(), state)
        await self._replica.refresh()
        pin, served = self._replica.pin, self._replica.version
        if pin is not None and (served is None or served.version != pin.version):
            message = f"version {pin.version} was chosen and cannot be read here: " + (
                "none decides" if served is None else f"version {served.version} still decides"
            )
            raise ApiError(503, "not_ready", message, "version")
        return await self.policy()

    async def models(self) -> JSONResponse:
        """The models that a client can name: `auto`, or an arm."""
        names = ["auto", *(f"arm/{name}" for name in self._replica.loop.arms)]
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "armwise"} for name in names]
        return JSONResponse({"object": "list", "data": models})

    async def health(self) -> JSONResponse:
        """Whether the process answers."""
        return JSONResponse({"status": "ok"})

    async def ready(self) -> JSONResponse:
        """Whether questions can be answered and kept: a version is loaded, the log reads and writes."""
        if not self._replica.ready:
            raise ApiError(503, "not_ready", "the arms, the model or the policy are not loaded yet")
        await asyncio.to_thread(self._replica.log.check)
        await asyncio.to_thread(self._replica.store.log_seq)
        return JSONResponse({"status": "ready", "version": self._replica.loop.serving.version})

    async def metrics(self) -> Response:
        """Counters and latencies for Prometheus, of all replicas on this machine.

        While the log is away, what only it knows is left out.
        """
        replica = self._replica
        lag, lost = None, 0
        with suppress(LogUnavailableError):  # the counters are here
            lag = await self._lag(replica.version)
            lost = await asyncio.to_thread(dangling, replica.store, self._config.reward.wait_s)
        now, jump_s = replica.clock(), replica.clock.jump_s
        text = self._telemetry.exposition(lag, replica.version, now, replica.alarms.count, lost, jump_s)
        return Response(text, media_type=self._telemetry.media_type)
