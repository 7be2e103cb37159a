"""`/v1/policy` and `/v1/policies`: the active policy, its versions, and promote, rollback and canary."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from armwise.agent.api.decisions import with_policies
from armwise.agent.api.documented import document_route
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import (
    CanaryChoice,
    PageBefore,
    PageLimit,
    PathNumber,
    PromotionChoice,
    VersionChoice,
)
from armwise.agent.learning import DIGEST_CHARS, Recipe, digest_configuration
from armwise.agent.policies import PolicyError
from armwise.agent.replies import (
    AlarmState,
    CanaryState,
    DriftState,
    FeedbackState,
    GuardState,
    Policy,
    PromotionState,
    Reply,
    RouterState,
    ServingState,
    Summary,
    Time,
    among,
    construct,
)
from armwise.agent.serving import Replica
from armwise.feedback.drift import Alarms
from armwise.feedback.errors import ChangedMeanwhileError, QueueFullError, UndecidedError
from armwise.feedback.registry import ActivePolicy, Version, active_policy, keys, promotions
from armwise.feedback.registry import versions as registry_versions
from armwise.feedback.training_log import delays, settled
from armwise.feedback.training_log import lag as training_log_lag

router = APIRouter(tags=["policies"])

_REFUSED = ("version_not_found", "promotion_refused", "version_unavailable")


class PolicyVersion(Reply):
    """A version of a policy."""

    version: int
    parent: int | None
    recipe: str
    kind: str
    params: dict[str, Any]
    start: dict[str, Any] | None
    router: str | None
    arms: list[str] | None
    examples_seq: int
    applied_seq: int
    digest: str
    created_at: Time
    kept: bool
    serving: bool


class PromotionRecord(Reply):
    """A promotion, a rollback or a canary."""

    seq: int
    version: int
    action: Annotated[str, among("promote", "rollback", "canary")]
    reason: str
    at: Time
    forced: bool
    share: float
    evaluation: int | None
    automatic: bool = Field(description="Whether the service decided it, and not an operator.")


class PolicyVersions(Reply):
    """Versions and promotions, newest first."""

    versions: list[PolicyVersion]
    promotions: list[PromotionRecord]


@router.get("/v1/policy", **document_route("getPolicy", Policy, scopes=("decide", "read")))
async def policy(replica: AppReplica) -> StdlibJson[Policy]:
    """Return the policy that decides now, how much of the log it has learned, and its router.

    `serving` says whether it is pinned to a version, since when and why; `promotion` which version was
    promoted, and whether that was forced; `canaries` which candidates have a share of the traffic, and
    whether they can decide; `newest` is the newest version of the recipe. `judge` compares the newest
    grades with feedback, and names what keeps them from being learned.
    """
    # read once: the replica may refresh while the log is read
    version, active = replica.versions.version, replica.versions.active
    deciding = {canary.version for canary in replica.canaries}
    learned = None if version is None else version.examples_seq
    lag = await asyncio.to_thread(training_log_lag.measure_lag, replica.store, replica.config.reward, learned)
    newest = await asyncio.to_thread(registry_versions.latest, replica.store, active.recipe)
    feedback = await asyncio.to_thread(_feedback, replica)
    config, n_arms = replica.config, len(replica.config.actions)
    router_info = None if replica.versions.scorer is None else replica.versions.scorer.about
    configured = config.policy.model_dump(mode="json")
    pin, promotion, falls = active.pin, active.promotion, replica.versions.state.returned.falls
    reply = construct(
        Policy,
        **{name: (version.policy if version else configured)[name] for name in ("kind", "params")},
        floor=config.explores.among(n_arms),
        **(_NO_VERSION if version is None else _summary(version)),
        applied_seq=lag.applied_seq,
        log_seq=lag.log_seq,
        serving=construct(
            ServingState,
            version=None if version is None else version.version,
            pinned=pin is not None,
            chosen=None if pin is None else pin.version,
            since=None if pin is None else pin.at,
            reason=None if pin is None else pin.reason,
        ),
        promotion=None
        if promotion is None
        else construct(
            PromotionState,
            version=promotion.version,
            since=promotion.at,
            reason=promotion.reason,
            forced=promotion.forced,
            evaluation=promotion.evaluation,
            deciding=version is not None and version.recipe == active.recipe,
        ),
        canaries=[
            construct(
                CanaryState,
                version=canary.version,
                share=canary.share,
                since=canary.at,
                reason=canary.reason,
                automatic=canary.automatic,
                deciding=canary.version in deciding,
            )
            for canary in active.canaries
        ],
        newest=None if newest is None else construct(Summary, **_summary(newest)),
        feedback=feedback,
        drift=None
        if config.drift is None
        else _drift(
            replica.versions.state.alarms, replica.compute_floor(n_arms), raised=replica.raised is not None
        ),
        guard=None
        if config.guard is None
        else construct(
            GuardState,
            reference=config.guard.reference,
            by=config.guard.by,
            least=config.guard.least,
            classes_back=len(falls),
            since=falls[-1].at if falls else None,
        ),
        reward=config.reward,
        router=None
        if router_info is None
        else construct(
            RouterState,
            kind=router_info.kind,
            params=router_info.params,
            stage=router_info.stage,
            digest=router_info.digest,
            arms=router_info.arms,
        ),
    )
    return StdlibJson(reply)


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


def _drift(alarms: Alarms, floor: float, *, raised: bool) -> DriftState:
    """Return the alarms, how they raise the floor, and whether they request a warm start."""
    last = alarms.newest
    return construct(
        DriftState,
        alarms=alarms.count,
        last=None
        if last is None
        else construct(
            AlarmState,
            subject=last.subject,
            detector=last.detector,
            before=last.before,
            after=last.after,
            example_seq=last.example_seq,
            at=last.at,
            rater=last.rater and last.rater.rpartition(keys.SEPARATOR)[2],  # without its project
        ),
        floor=floor,
        until=alarms.raised_until if raised else None,
        warm_start_open=alarms.warm_start_open,
    )


def _feedback(replica: Replica) -> FeedbackState:
    """Return how long feedback takes, and what waits for it."""
    rule = replica.config.reward
    found, taken = settled.read(replica.store, rule, counted=True), delays.read(replica.store, rule)
    return construct(
        FeedbackState,
        complete=rule.learned_at.value,
        wait_time=rule.wait_time,
        correction_time=rule.correction_time,
        waiting=found.n_open,
        settled_before=None if found.is_whole else found.before,
        values=taken.n,
        median_s=taken.median_s if taken.n else None,
        p99_s=taken.p99_s if taken.n else None,
        late=taken.late,
        suggested_wait_time=taken.suggest(beyond_s=replica.config.limits.answer_s),
    )


@router.get("/v1/policies", **document_route("listPolicies", PolicyVersions, scopes=("read",)))
async def policies(
    replica: AppReplica, limit: PageLimit = 50, before: PageBefore = None
) -> StdlibJson[PolicyVersions]:
    """List the versions of all policies, newest first, and the promotions, rollbacks and canaries.

    A page ends with version N: get the next one with `before=N`. The policy of a version whose bytes
    are not `kept` is learned again from the log when it is needed.
    """
    listed = await asyncio.to_thread(registry_versions.page, replica.store, limit, before)
    recorded = await asyncio.to_thread(promotions.newest, replica.store, limit)
    records = [
        construct(
            PromotionRecord,
            seq=promotion.seq,
            version=promotion.version,
            action=promotion.action.value,
            reason=promotion.reason,
            at=promotion.at,
            forced=promotion.forced,
            share=promotion.share,
            evaluation=promotion.evaluation,
            automatic=promotion.automatic,
        )
        for promotion in recorded
    ]
    versions = [_version(version, kept, replica.versions.version) for version, kept in listed]
    return StdlibJson(construct(PolicyVersions, versions=versions, promotions=records))


def _version(version: Version, kept: bool, serving: Version | None) -> PolicyVersion:
    """Return a version, with whether its bytes are kept and whether it serves."""
    return construct(
        PolicyVersion,
        version=version.version,
        parent=version.parent,
        recipe=version.recipe[:DIGEST_CHARS],
        kind=version.policy["kind"],
        params=version.policy["params"],
        start=version.start,
        router=version.router and version.router[:DIGEST_CHARS],
        arms=version.arms,
        examples_seq=version.examples_seq,
        applied_seq=version.applied_seq,
        digest=version.digest,
        created_at=version.created_at,
        kept=kept,
        serving=version == serving,
    )


@router.post(
    "/v1/policies/{version}/promote",
    **document_route(
        "promotePolicy",
        Policy,
        *_REFUSED,
        *("promotion_gate_failed", "changed_meanwhile", "too_many_evaluations", "evaluation_under_way"),
        scopes=("operate",),
        example={"reason": "better by 0.03"},
    ),
)
async def promote(replica: AppReplica, version: PathNumber, body: PromotionChoice) -> StdlibJson[Policy]:
    """Learn and serve the recipe of this version from now on, always its newest version.

    If another recipe is active, the version has to pass the gate, which judges a canary as it decides and any
    other version as its recipe: a 409 has the `reasons` to hold it, unless `force` is set. It must have the
    configured reward. If another promotion or rollback is recorded while it is judged, it is refused as
    `changed_meanwhile`. Every replica follows within a second. A canary and a rollback end. The response
    equals `GET /v1/policy`: it shows what is active, which may be what another operator has just set.
    """
    chosen, recipe = await _servable(replica, version)
    active = await asyncio.to_thread(active_policy, replica.store, replica.versions.configured.digest)
    forced, evaluation, state = False, None, None
    if recipe.digest != active.recipe:
        await _require_servable(replica, recipe, version)
        forced, evaluation = await _consult_gate(replica, version, active, force=body.force)
        state = await _state(replica, chosen)
    promotion = promotions.Promotion(
        0, version, promotions.Action.PROMOTE, body.reason, replica.clock(), forced, 0.0, evaluation
    )
    await _record(replica, promotion, state, after=active.seq)
    served, active = replica.versions.version, replica.versions.active
    if active.pin is None and (served is None or served.recipe != active.recipe):
        promoted = active.promotion.version if active.promotion else version
        raise _unreadable(replica, promoted, "promoted")
    return await policy(replica)


@router.post(
    "/v1/policies/{version}/rollback",
    **document_route(
        "rollbackPolicy",
        Policy,
        *_REFUSED,
        scopes=("operate",),
        example={"reason": "worse answers since noon"},
    ),
)
async def rollback(replica: AppReplica, version: PathNumber, body: VersionChoice) -> StdlibJson[Policy]:
    """Serve exactly this version until the next promotion or rollback; every replica follows in a second.

    Learning continues and publishes newer versions, which wait for a promotion. It must be a version
    of the configured recipe or of one that was promoted: any other has to pass the gate. A canary
    ends. The response equals `GET /v1/policy`: it shows what is active, which may be what another
    operator has just set.
    """
    chosen, recipe = await _servable(replica, version)
    configured = replica.versions.configured.digest
    if not await asyncio.to_thread(promotions.was_active, replica.store, configured, recipe.digest):
        message = (
            f"version {version} is of recipe {recipe.digest[:DIGEST_CHARS]}, which has never decided "
            "here: promote it, or give it a share as a canary"
        )
        raise ApiError("promotion_refused", message, "version")
    await _require_servable(replica, recipe, version)
    state = await _state(replica, chosen)
    promotion = promotions.Promotion(0, version, promotions.Action.ROLLBACK, body.reason, replica.clock())
    await _record(replica, promotion, state)
    pin, served = replica.versions.active.pin, replica.versions.version
    if pin is not None and (served is None or served.version != pin.version):
        raise _unreadable(replica, pin.version, "chosen")
    return await policy(replica)


@router.post(
    "/v1/policies/{version}/canary",
    **document_route(
        "startCanary",
        Policy,
        *_REFUSED,
        "changed_meanwhile",
        scopes=("operate",),
        example={"reason": "new labels", "share": 0.05},
    ),
)
async def canary(replica: AppReplica, version: PathNumber, body: CanaryChoice) -> StdlibJson[Policy]:
    """Give exactly this version a share of the traffic; the served version keeps the rest.

    A share of 0 ends it. A distribution is a mixture of both, and decisions record the share. If there are
    several canaries, one takes part in each decision. The version must have the configured reward. If it
    gives no distribution, it no longer takes part and `deciding` is false. A promotion and a rollback end
    it. The response equals `GET /v1/policy`: it shows what is active, which may be what another operator has
    just set.
    """
    chosen, recipe = await _servable(replica, version)
    state, after = None, None
    if body.share:
        await _require_servable(replica, recipe, version)
        if recipe.arms is not None and {*recipe.arms} != replica.config.actions.keys():
            message = (
                f"version {version} brings other arms than the live ones, among which a canary decides: make "
                "them live first (`armwise policy apply`), or promote it"
            )
            raise ApiError("promotion_refused", message, "version")
        active = await asyncio.to_thread(active_policy, replica.store, replica.versions.configured.digest)
        others = [canary.version for canary in active.canaries if canary.version != version]
        if len(others) >= promotions.MOST_CANARIES:
            message = (
                f"versions {', '.join(map(str, others))} are canaries already, and "
                f"{promotions.MOST_CANARIES} may be: end one of them with a share of 0"
            )
            raise ApiError("promotion_refused", message, "version")
        state, after = await _state(replica, chosen), active.seq
    promotion = promotions.Promotion(
        0, version, promotions.Action.CANARY, body.reason, replica.clock(), share=body.share
    )
    await _record(replica, promotion, state, after)
    return await policy(replica)


async def _servable(replica: Replica, number: int) -> tuple[Version, Recipe]:
    """Return a version that may be served, and its recipe. Raises ApiError."""
    version = await asyncio.to_thread(registry_versions.find, replica.store, number)
    if version is None:
        raise ApiError("version_not_found", f"there is no version {number}", "version")
    try:
        return version, Recipe.from_version(version, replica.config.reward)
    except PolicyError as error:
        raise ApiError("promotion_refused", str(error), "version") from None


async def _require_servable(replica: Replica, recipe: Recipe, number: int) -> None:
    """Refuse a version whose policy, router or arms cannot be built here. Raises ApiError."""
    try:
        await asyncio.to_thread(replica.versions.require_servable, recipe)
    except PolicyError as error:
        raise ApiError(
            "promotion_refused", f"version {number} cannot serve here: {error}", "version"
        ) from None


async def _state(replica: Replica, version: Version) -> bytes:
    """Return the state of a version, which is learned again where it was pruned. Raises ApiError."""
    return await with_policies(replica, [version], lambda restored: restored.save(), "version")


async def _consult_gate(
    replica: Replica, number: int, active: ActivePolicy, *, force: bool
) -> tuple[bool, int | None]:
    """Consult the gate; return whether the promotion is forced, and the evaluation behind the verdict.

    Raises:
        ApiError: The gate holds the version.
        UndecidedError: It has no verdict yet.
        QueueFullError: The queue of evaluations is full.
    """
    try:
        config_digest, clock = digest_configuration(replica.config), replica.clock
        verdict = await replica.gate(replica.store, config_digest, number, active, force=force, clock=clock)
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
    configured = replica.versions.configured.digest
    try:
        await asyncio.to_thread(
            promotions.record,
            *(replica.store, configured, promotion, state),
            after=after,
        )
    except ChangedMeanwhileError as error:
        raise ApiError("changed_meanwhile", str(error), "version") from None
    await replica.refresh()


def _unreadable(replica: Replica, number: int, action: str) -> ApiError:
    """Return the error for an active version that this replica cannot load."""
    served = replica.versions.version
    message = f"version {number} was {action} and cannot be read here: " + (
        "none decides" if served is None else f"version {served.version} still decides"
    )
    return ApiError("not_ready", message, "version")
