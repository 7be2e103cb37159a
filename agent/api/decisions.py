"""Looking and steering: what is known of decisions and arms, and what an operator changes of these."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, TypeVar

from fastapi import Path, Query, Response
from fastapi.responses import JSONResponse

from agent.api import responses as replies
from agent.api.chat import require_arm
from agent.api.errors import ApiError
from agent.api.schemas import LARGEST, ArmsReplacement, ArmSwitch, Identifier
from agent.config import AppConfig, ConfigError
from agent.learning import restore
from agent.learning import verify as learning_verify
from agent.policies import Policy, PolicyError
from agent.serving import Replica
from arms.base import ArmBuildError, ArmError
from feedback.errors import ConflictError, LogUnavailableError
from feedback.events import LABELS, Mode
from feedback.log import Record
from feedback.registry import Version
from feedback.registry import versions as registry_versions
from feedback.training_log import lag as training_log_lag

DecisionId = Annotated[Identifier, Path()]

Number = Annotated[int, Path(ge=1, le=LARGEST)]

Limit = Annotated[int, Query(ge=1, le=1000)]

Before = Annotated[int | None, Query(ge=1, le=LARGEST)]

Found = TypeVar("Found")


async def of_the_past(
    replica: Replica, versions: Sequence[Version], question: Callable[..., Found], param: str
) -> Found:
    """Return what a function says of the policies of versions. Raises ApiError, which names `param`."""
    try:
        return await asyncio.wrap_future(replica.past.ask(versions, question))
    except restore.BusyError as error:
        raise ApiError(503, "overloaded", str(error)) from None
    except PolicyError as error:
        raise ApiError(409, "version_unavailable", str(error), param) from None


class DecisionRoutes:
    """The routes that show, and that switch and replace. Each docstring is what the OpenAPI document says."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._telemetry = replica.telemetry

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
        decision, salt = found.decision, self._config.salt

        def again(policy: Policy | None, candidate: Policy | None = None) -> learning_verify.Verification:
            return learning_verify.verify(decision, policy, salt, found.propensity, candidate)

        if decision.policy == LABELS:
            raise ApiError(409, "not_drawn", f"{decision_id!r} is a label: no policy drew it", "decision_id")
        if decision.mode is Mode.FORCED:  # no policy was asked
            return JSONResponse(again(None).document())
        if decision.floor is None:
            message = f"decision {decision_id!r} is of a log that did not keep which floor was mixed in"
            raise ApiError(409, "not_recorded", message, "decision_id")
        versions = []
        for number in (decision.version, decision.candidate) if decision.share else (decision.version,):
            version = await asyncio.to_thread(registry_versions.find, self._replica.store, number)
            if version is None:
                message = f"there is no version {number}, which decision {decision_id!r} names"
                raise ApiError(409, "version_unavailable", message, "decision_id")
            versions.append(version)
        found_again = await of_the_past(self._replica, versions, again, "decision_id")
        return JSONResponse(found_again.document())

    async def _record(self, decision_id: str) -> Record:
        found = await asyncio.to_thread(self._replica.store.record, decision_id)
        if found is None:
            raise ApiError(404, "decision_not_found", f"there is no decision {decision_id!r}", "decision_id")
        return found

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
            learned = None if replica.version is None else replica.version.examples_seq
            lag = await asyncio.to_thread(
                training_log_lag.lag_of, replica.store, self._config.reward.join, learned
            )
            lost = await asyncio.to_thread(
                training_log_lag.dangling, replica.store, self._config.reward.wait_s
            )
        now, jump_s = replica.clock(), replica.clock.jump_s
        text = self._telemetry.exposition(lag, replica.version, now, replica.alarms.count, lost, jump_s)
        return Response(text, media_type=self._telemetry.media_type)
