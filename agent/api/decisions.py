"""`/v1/decisions`: what is known of a decision, and whether it can be computed again from the log."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from agent.api import responses
from agent.api.errors import RESPONSES, ApiError
from agent.api.middleware import AppReplica, require
from agent.api.schemas import DecisionId
from agent.config import AppConfig
from agent.learning import restore
from agent.learning import verify as learning_verify
from agent.policies import Policy, PolicyError
from agent.serving import Replica
from feedback.events import LABELS, Example, Kind, Mode, Status
from feedback.fold import DecisionFact, Fold
from feedback.log import Record
from feedback.registry import Version
from feedback.registry import versions as registry_versions

router = APIRouter(responses=RESPONSES)

Result = TypeVar("Result")


@router.get("/v1/decisions/{decision_id}", dependencies=[require("decide")])
async def decision(replica: AppReplica, decision_id: DecisionId) -> JSONResponse:
    """Everything known about a decision."""
    found = await _record(replica, decision_id)
    return JSONResponse(document(found, replica.config, replica.clock()))


@router.get("/v1/decisions/{decision_id}/verify", dependencies=[require("admin")])
async def verify(replica: AppReplica, decision_id: DecisionId) -> JSONResponse:
    """Compute a decision again from the log, and compare its distribution and its draw.

    Probabilities count as equal up to `tolerance`; on the same machine they are equal to the bit.
    `why` says what differs. The draw uses the salt of today: if the salt has changed since, the draw
    does not agree although the log was not changed. A policy whose bytes were pruned is learned again
    from the log, which may take a while: such calls run one at a time, and get 503 if too many wait.
    """
    found = await _record(replica, decision_id)
    logged, salt = found.decision, replica.config.salt

    def recompute(policy: Policy | None, candidate: Policy | None = None) -> learning_verify.Verification:
        return learning_verify.verify(logged, policy, salt, found.propensity, candidate)

    if logged.policy == LABELS:
        raise ApiError("not_drawn", f"{decision_id!r} is a label: no policy drew it", "decision_id")
    if logged.mode is Mode.FORCED:  # no policy took part
        return JSONResponse(recompute(None).document())
    if logged.floor is None:
        message = f"decision {decision_id!r} is of a log that did not keep which floor was mixed in"
        raise ApiError("not_recorded", message, "decision_id")
    versions = []
    for number in (logged.version, logged.candidate) if logged.share else (logged.version,):
        version = await asyncio.to_thread(registry_versions.find, replica.store, number)
        if version is None:
            message = f"there is no version {number}, which decision {decision_id!r} names"
            raise ApiError("version_unavailable", message, "decision_id")
        versions.append(version)
    verification = await with_policies(replica, versions, recompute, "decision_id")
    return JSONResponse(verification.document())


async def with_policies(
    replica: Replica, versions: Sequence[Version], compute: Callable[..., Result], param: str
) -> Result:
    """Restore the policies of versions and return what a function computes from them.

    Raises:
        ApiError: Too many calls wait, or a policy cannot be restored; the latter names `param`.
    """
    try:
        return await asyncio.wrap_future(replica.history.submit(versions, question))
    except restore.BusyError as error:
        raise ApiError("overloaded", str(error)) from None
    except PolicyError as error:
        raise ApiError("version_unavailable", str(error), param) from None


async def _record(replica: Replica, decision_id: str) -> Record:
    found = await asyncio.to_thread(replica.store.record, decision_id)
    if found is None:
        raise ApiError("decision_not_found", f"there is no decision {decision_id!r}", "decision_id")
    return found


def document(found: Record, config: AppConfig, now: float) -> dict[str, Any]:
    """Return everything known about a decision at a time, in seconds since the epoch."""
    logged, execution = found.decision, found.execution
    served = execution.served if execution else None
    fold, fact = Fold(config.reward), _fact(found)
    metrics = found.metrics
    if metrics is None:
        metrics = fold.metrics(fact, execution.status if execution else Status.OK)
    reward = None
    if execution:
        failed = execution.status in (Status.ARM_FAILED, Status.FELL_BACK)
        reward = config.reward.reward_of(Example(0, logged, execution.cost, metrics, failed))
    return responses.agent(logged, served, execution.cost if execution else None, config) | {
        "question": logged.context.question,
        "features": dict(logged.context.features),
        "embedding": list(logged.context.embedding),
        "arm_features": {name: dict(features) for name, features in logged.context.arms.items()},
        "policy": logged.policy,
        "decided_at": logged.decided_at,
        "floor": logged.floor,
        "deferred": logged.deferred,
        "activated": any(item.kind is Kind.ACTIVATION for item in found.feedback),
        "shadow": dict(zip(logged.arms, logged.shadow, strict=False)) or None,
        "canary": {"version": logged.candidate, "share": logged.share} if logged.share else None,
        "status": execution.status.value if execution else None,
        "error": execution.error if execution else None,
        "answer": execution.answer if execution else None,
        "passage_ids": list(execution.passages) if execution else [],
        "feedback": [
            {
                "feedback_id": item.id,
                "kind": item.kind.value,
                "episode_id": item.episode_id,
                "metric_name": item.metric,
                "value": item.value,
                "received_at": item.received_at,
                "event_time": item.event_time,
                "tags": dict(item.tags),
            }
            for item in found.feedback
        ],
        "metrics": dict(metrics),
        "reward": reward,
        "example_seq": found.example_seq,
        "state": _state(found, now <= fold.closing(fact)),
    }


def _fact(found: Record) -> DecisionFact:
    """Return a decision with its feedback, as the fold reads it."""
    one = found.decision
    labelled = one.policy == LABELS
    columns = one.id, one.decided_at, found.logged_at, one.mode, one.episode_id, one.deferred, labelled
    return DecisionFact(found.seq, *columns, found.feedback)


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
        live, specs = self._replica.turns.arms, self._config.arms
        arms = [replies.arm(name, specs[name], info) for name, info in live.items()]
        parts = {name: spec.model_dump(mode="json") for name, spec in specs.items() if not spec.action}
        return JSONResponse({"arms": arms, "parts": parts, "arm_set": self._replica.arms.seq})

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
        return JSONResponse(replies.arm(name, self._config.arms[name], self._replica.turns.arms[name]))

    async def models(self) -> JSONResponse:
        """The models that a client can name: `auto`, or an arm."""
        names = ["auto", *(f"arm/{name}" for name in self._replica.turns.arms)]
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
        return JSONResponse({"status": "ready", "version": self._replica.decider.serving.version})

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
