"""`/v1/policy` and `/v1/policies`: the active policy, its versions, and promote, rollback and canary."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from fastapi import APIRouter
from fastapi.responses import JSONResponse

from agent.api.decisions import with_policies
from agent.api.documented import documented
from agent.api.errors import ApiError
from agent.api.middleware import AppReplica
from agent.api.operations.agreement import COMPARED, Agreement
from agent.api.replies import operations as replies
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
from agent.policies import PolicyError
from agent.serving import Replica, arms
from feedback.drift import Alarms, DriftSpec
from feedback.errors import ChangedMeanwhileError, ConflictError, QueueFullError
from feedback.ope import prediction_powered
from feedback.registry import ActivePolicy, Version, active_policy, promotions
from feedback.registry import versions as registry_versions
from feedback.training_log import lag as training_log_lag
from feedback.training_log import observed

router = APIRouter(tags=["policies"])

_REFUSED = ("version_not_found", "promotion_refused", "version_unavailable")


@router.get("/v1/policy", **documented("getPolicy", replies.Policy, scopes=("decide", "read")))
async def policy(replica: AppReplica, agreement: Agreement) -> JSONResponse:
    """The policy that decides now, how much of the log it has learned, and its router.

    `serving` says whether it is pinned to a version, since when and why; `promotion` which version was
    promoted, and whether that was forced; `canary` which candidate has a share of the traffic, and
    whether it can decide; `newest` is the newest version of the recipe. With the policy `apprentice`,
    `agreement` is the mean probability mass that the shadow distribution and the served one have in
    common over the newest decisions, `same_best` how often both have the same most probable arm. `judge`
    compares the newest grades with feedback, and names what keeps them from being learned.
    """
    # read once: the replica may refresh while the log is read
    version, active, canary_decides = replica.version, replica.active, replica.decider.canary is not None
    learned = None if version is None else version.examples_seq
    lag = await asyncio.to_thread(training_log_lag.lag_of, replica.store, replica.config.reward.join, learned)
    newest = await asyncio.to_thread(registry_versions.latest, replica.store, active.recipe)
    compared, judged = await agreement.of(replica), await asyncio.to_thread(_judge, replica)
    config, floor = replica.config, replica.decider.floor
    router_info = None if replica.scorer is None else replica.scorer.about
    configured = config.policy.model_dump(mode="json")
    pin, promotion, candidate = active.pin, active.promotion, active.canary
    return JSONResponse(
        {
            **{name: (version.policy if version else configured)[name] for name in ("kind", "params")},
            "floor": config.floor,
            **(_NO_VERSION if version is None else _summary(version)),
            "applied_seq": lag.applied_seq,
            "log_seq": lag.log_seq,
            "serving": {
                "version": version and version.version,
                "pinned": pin is not None,
                "chosen": pin and pin.version,
                "since": pin and pin.at,
                "reason": pin and pin.reason,
            },
            "promotion": promotion
            and {
                "version": promotion.version,
                "since": promotion.at,
                "reason": promotion.reason,
                "forced": promotion.forced,
                "evaluation": promotion.evaluation,
                "deciding": version is not None and version.recipe == active.recipe,
            },
            "canary": candidate
            and {
                "version": candidate.version,
                "share": candidate.share,
                "since": candidate.at,
                "reason": candidate.reason,
                "deciding": canary_decides,
            },
            "newest": newest and _summary(newest),
            "apprentice": compared
            and {
                "decisions": compared.decisions,
                "agreement": compared.shared if compared.decisions else None,
                "same_best": compared.same_arm if compared.decisions else None,
            },
            "judge": judged,
            "drift": config.drift
            and _drift(config.drift, replica.alarms, floor, raised=floor > config.floor),
            "reward": config.reward.model_dump(mode="json"),
            "router": router_info
            and {
                "kind": router_info.kind,
                "params": router_info.params,
                "stage": router_info.stage,
                "digest": router_info.digest,
                "arms": router_info.arms,
            },
        }
    )


_NO_VERSION: Mapping[str, Any] = {
    "version": None,
    "parent": None,
    "digest": None,
    "examples_seq": 0,
    "created_at": None,
}
"""The summary of a version before there is one."""


def _summary(version: Version) -> dict[str, Any]:
    return {name: getattr(version, name) for name in _NO_VERSION}


def _drift(spec: DriftSpec, alarms: Alarms, floor: float, *, raised: bool) -> dict[str, Any]:
    """Return the alarms, how they raise the floor, and whether they request a warm start."""
    last = alarms.newest
    return {
        "alarms": alarms.count,
        "last": last
        and {
            "subject": last.subject,
            "detector": last.detector,
            "before": last.before,
            "after": last.after,
            "example_seq": last.example_seq,
            "at": last.at,
        },
        "floor": floor,
        "until": alarms.raised_until(spec) if raised else None,
        "warm_start_open": alarms.warm_start_open,
    }


def _judge(replica: Replica) -> dict[str, Any] | None:
    """Return how well the grades of the judge agree with feedback; None where neither is asked for."""
    config, also = replica.config, replica.config.learning.also
    if not config.observations.judge and not (also and also.judge):
        return None
    found = observed.graded(replica.store, config.reward, COMPARED)
    pairs = [(one.grade, one.value) for one in found if one.value is not None]
    grades = np.array([one.grade for one in found], dtype=np.float64)
    values = np.array([np.nan if one.value is None else one.value for one in found], dtype=np.float64)
    calibration = observed.Calibration.of(pairs)
    means = prediction_powered.by_arm([one.arm for one in found], grades, values)
    return {
        "graded": len(found),
        "audits": calibration.audits,
        "agreement": calibration.agreement,
        "bias": calibration.grade - calibration.value,
        "curve": [asdict(one) for one in prediction_powered.calibration_curve(grades, values)],
        "arms": {arm: asdict(one) for arm, one in means.items()},
        "objection": calibration.objection(also or observed.Also(judge=True)) or None,
    }


@router.get("/v1/policies", **documented("listPolicies", replies.PolicyVersions, scopes=("read",)))
async def policies(replica: AppReplica, limit: PageLimit = 50, before: PageBefore = None) -> JSONResponse:
    """The versions of all policies, newest first, and the promotions, rollbacks and canaries.

    A page ends with version N: get the next one with `before=N`. The policy of a version whose bytes
    are not `kept` is learned again from the log when it is needed.
    """
    listed = await asyncio.to_thread(registry_versions.page, replica.store, limit, before)
    recorded = await asyncio.to_thread(promotions.newest, replica.store, limit)
    return JSONResponse(
        {
            "versions": _versions(listed, replica.version),
            "promotions": [
                {
                    "seq": one.seq,
                    "version": one.version,
                    "action": one.action.value,
                    "reason": one.reason,
                    "at": one.at,
                    "forced": one.forced,
                    "share": one.share,
                    "evaluation": one.evaluation,
                }
                for one in recorded
            ],
        }
    )


def _versions(page: Sequence[tuple[Version, bool]], serving: Version | None) -> list[dict[str, Any]]:
    """Return versions, with whether their bytes are kept and whether they serve."""
    return [
        {
            "version": version.version,
            "parent": version.parent,
            "recipe": version.recipe[:DIGEST_CHARS],
            "kind": version.policy.get("kind"),
            "params": version.policy.get("params"),
            "start": version.start,
            "router": version.router and version.router[:DIGEST_CHARS],
            "arms": None if version.arms is None else list(version.arms),
            "examples_seq": version.examples_seq,
            "applied_seq": version.applied_seq,
            "digest": version.digest,
            "created_at": version.created_at,
            "kept": kept,
            "serving": version == serving,
        }
        for version, kept in page
    ]


@router.post(
    "/v1/policies/{version}/promote",
    **documented(
        "promotePolicy",
        replies.Policy,
        *_REFUSED,
        *("promotion_gate_failed", "changed_meanwhile", "too_many_evaluations", "evaluation_under_way"),
        scopes=("operate",),
        example={"reason": "better by 0.03"},
    ),
)
async def promote(
    replica: AppReplica, version: PathNumber, body: PromotionChoice, agreement: Agreement
) -> JSONResponse:
    """Learn and serve the recipe of this version from now on, always its newest version.

    If another recipe is active, the version has to pass the gate, which judges a canary as it decides and any
    other version as its recipe: a 409 has the `reasons` to hold it, unless `force` is set. It must have the
    configured reward. If another promotion or rollback is recorded while it is judged, it is refused as
    `changed_meanwhile`. Every replica follows within a second. A canary and a rollback end. The response is
    that of `GET /v1/policy`: it shows what is active, which may be what another operator has just set.
    """
    found, recipe = await _servable(replica, version)
    active = await asyncio.to_thread(active_policy, replica.store, replica.watcher.configured.digest)
    forced, evaluation, state = False, None, None
    if recipe.digest != active.recipe:
        await _require_servable(replica, recipe, version)
        forced, evaluation = await _judged(replica, version, active, force=body.force)
        state = await _state(replica, found)
    promotion = promotions.Promotion(
        0, version, promotions.Action.PROMOTE, body.reason, replica.clock(), forced, 0.0, evaluation
    )
    await _record(replica, promotion, state, after=active.seq)
    served, active = replica.version, replica.active
    if active.pin is None and (served is None or served.recipe != active.recipe):
        promoted = active.promotion.version if active.promotion else version
        raise _unreadable(replica, promoted, "promoted")
    return await policy(replica, agreement)


@router.post(
    "/v1/policies/{version}/rollback",
    **documented(
        "rollbackPolicy",
        replies.Policy,
        *_REFUSED,
        scopes=("operate",),
        example={"reason": "worse answers since noon"},
    ),
)
async def rollback(
    replica: AppReplica, version: PathNumber, body: VersionChoice, agreement: Agreement
) -> JSONResponse:
    """Serve exactly this version until the next promotion or rollback; every replica follows in a second.

    Learning continues and publishes newer versions, which wait for a promotion. It must be a version
    of the configured recipe or of one that was promoted: any other has to pass the gate. A canary
    ends. The response is that of `GET /v1/policy`: it shows what is active, which may be what another
    operator has just set.
    """
    found, recipe = await _servable(replica, version)
    configured = replica.watcher.configured.digest
    if not await asyncio.to_thread(promotions.was_active, replica.store, configured, recipe.digest):
        message = (
            f"version {version} is of recipe {recipe.digest[:DIGEST_CHARS]}, which has never decided "
            "here: promote it, or give it a share as a canary"
        )
        raise ApiError("promotion_refused", message, "version")
    await _require_servable(replica, recipe, version)
    state = await _state(replica, found)
    promotion = promotions.Promotion(0, version, promotions.Action.ROLLBACK, body.reason, replica.clock())
    await _record(replica, promotion, state)
    pin, served = replica.active.pin, replica.version
    if pin is not None and (served is None or served.version != pin.version):
        raise _unreadable(replica, pin.version, "chosen")
    return await policy(replica, agreement)


@router.post(
    "/v1/policies/{version}/canary",
    **documented(
        "startCanary",
        replies.Policy,
        *_REFUSED,
        scopes=("operate",),
        example={"reason": "new labels", "share": 0.05},
    ),
)
async def canary(
    replica: AppReplica, version: PathNumber, body: CanaryChoice, agreement: Agreement
) -> JSONResponse:
    """Give exactly this version a share of the traffic, beside the served one; a share of 0 ends it.

    Every distribution is a mixture of both, and decisions record the share. The version must have the
    configured reward. If it gives no distribution it takes no part any more, and `deciding` is false.
    A promotion and a rollback end it. The response is that of `GET /v1/policy`: it shows what is
    active, which may be what another operator has just set.
    """
    found, recipe = await _servable(replica, version)
    state = None
    if body.share:
        await _require_servable(replica, recipe, version)
        if recipe.arms is not None and recipe.arms != replica.config.arm_documents:
            message = (
                f"version {version} brings other arms than the live ones, among which a canary decides: make "
                "them live first (`armwise apply`), or promote it"
            )
            raise ApiError("promotion_refused", message, "version")
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


async def _require_servable(replica: Replica, recipe: Recipe, number: int) -> None:
    """Refuse a version whose policy, router or arms cannot be built here. Raises ApiError."""
    try:
        await asyncio.to_thread(replica.watcher.require_servable, recipe)
    except PolicyError as error:
        raise ApiError(
            "promotion_refused", f"version {number} cannot serve here: {error}", "version"
        ) from None


async def _state(replica: Replica, version: Version) -> bytes:
    """Return the state of a version, which is learned again where it was pruned. Raises ApiError."""
    return await with_policies(replica, [version], lambda restored: restored.save(), "version")


async def _judged(
    replica: Replica, number: int, active: ActivePolicy, *, force: bool
) -> tuple[bool, int | None]:
    """Consult the gate; return whether the promotion is forced, and the evaluation behind the verdict.

    Raises:
        ApiError: The gate holds the version.
        UndecidedError: It has no verdict yet.
        QueueFullError: The queue of evaluations is full.
    """
    try:
        verdict = await replica.gate(number, active, force=force)
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
    configured = replica.watcher.configured.digest
    try:
        await asyncio.to_thread(
            promotions.record,
            *(replica.store, configured, promotion, state),
            after=after,
            same=arms.same_document,
        )
    except ChangedMeanwhileError as error:
        raise ApiError("changed_meanwhile", str(error), "version") from None
    except ConflictError as error:
        raise ApiError("promotion_refused", str(error), "version") from None
    await replica.refresh()


def _unreadable(replica: Replica, number: int, action: str) -> ApiError:
    """Return the error for an active version that this replica cannot load."""
    served = replica.version
    message = f"version {number} was {action} and cannot be read here: " + (
        "none decides" if served is None else f"version {served.version} still decides"
    )
    return ApiError("not_ready", message, "version")
