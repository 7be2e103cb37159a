"""Policies: versions by recipe, the timeline, and actions with their effects.

a row of a recipe or a version --link--> the consequences, and a field for the reason --form--> done
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import Field

from armwise.agent.access import Caller
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller, require
from armwise.agent.api.operations import evaluations as api_evaluations
from armwise.agent.api.operations import policies
from armwise.agent.api.operations.evaluations import EvaluationState
from armwise.agent.api.schemas import (
    LARGEST,
    CanaryChoice,
    Digits,
    PageBefore,
    PathNumber,
    PromotionChoice,
    VersionChoice,
)
from armwise.agent.console.page import ACTION, number, page, pages, read_form, redirect, valid
from armwise.agent.evaluation import FRESH_S, EvaluationRequest, name_candidate, newest_judgement
from armwise.agent.learning import DIGEST_CHARS, Recipe, digest_configuration
from armwise.agent.policies import PolicyError
from armwise.agent.serving import Replica
from armwise.feedback.errors import UndecidedError
from armwise.feedback.registry import (
    ActivePolicy,
    EvaluationRow,
    Run,
    Version,
    active_policy,
    arm_sets,
    evaluations,
    promotions,
    runs,
    versions,
)

router = pages()

READ, OPERATE = require("read"), require("operate")

PAGE = 50
"""Recipes, rows of the timeline, or versions of a recipe per page."""

JUDGED = 3
"""Newest evaluations of the gate that are shown."""

SHARES = (0.01, 0.05, 0.1, 0.25, promotions.LARGEST_SHARE)
"""Shares of the traffic that the page offers for a canary."""

USUAL_SHARE = 0.05


Position = Annotated[int, Field(ge=0, le=LARGEST)]

VersionNumber = Annotated[Digits, Query(ge=1, le=LARGEST)]

RecipeDigest = Annotated[str | None, Query(min_length=1, max_length=64)]


class Act(StrEnum):
    """An action of an operator on a version."""

    PROMOTE = "promote"
    CANARY = "canary"
    ROLLBACK = "rollback"
    END = "end"
    """End the canary."""

    JUDGE = "judge"
    """Have the gate judge the version."""


@dataclass(frozen=True)
class RecipeRow:
    """A recipe on the page.

    Attributes:
        digest: Digest of the recipe, shortened.
        newest: Newest version of the recipe.
        count: Number of its versions.
        configured: Whether it is the configured recipe.
        run: The warm start that published it, if any.
        promotion: Newest promotion of the recipe under this configuration, if any.
        serving: Version of the recipe that decides now, if any.
        canaries: Versions of the recipe that are canaries, with their shares of the traffic.
        problem: Why it cannot be served here; empty: it can.
    """

    digest: str
    newest: Version
    count: int
    configured: bool
    run: Run | None
    promotion: promotions.Promotion | None
    serving: int | None
    canaries: Sequence[promotions.Promotion]
    problem: str

    @property
    def was_active(self) -> bool:
        """Whether it is or was the active recipe, so that its versions may be rolled back to."""
        return self.configured or self.promotion is not None


@router.get("/policies", dependencies=[READ])
async def overview(
    request: Request,
    replica: AppReplica,
    caller: RequestCaller,
    before: PageBefore = None,
    until: PageBefore = None,
    recipe: RecipeDigest = None,
    earlier: PageBefore = None,
) -> Response:
    """The recipes, the timeline of promotions and rollbacks, and the newest verdicts of the gate.

    `before` pages through the recipes, `until` through the timeline, and `earlier` through the versions of
    the expanded `recipe`.
    """
    state = (await policies.policy(replica)).reply
    judged = await read_judgements(replica, caller)
    rows = await asyncio.to_thread(recipe_rows, replica, before)
    opened = None
    if recipe is not None:
        if not any(row.digest == recipe for row in rows):
            rows = [*await asyncio.to_thread(recipe_rows, replica, None, recipe), *rows]
        opened = await asyncio.to_thread(read_versions, replica, recipe, earlier)
    timeline = await asyncio.to_thread(_timeline, replica, until)
    return page(
        request,
        "policies.html",
        active=state,
        judged=judged,
        **deciding(replica),
        rows=rows,
        recipe=recipe,
        opened=opened,
        following=rows[-1].newest.version if len(rows) >= PAGE else None,
        before=before,
        **timeline,
    )


@router.get("/policies/versions", dependencies=[READ])
async def show_versions(request: Request, replica: AppReplica, recipe: RecipeDigest) -> Response:
    """The newest versions of a recipe, for its expanded row on the page."""
    opened = await asyncio.to_thread(read_versions, replica, recipe or "", None)
    return page(request, "versions.html", opened=opened, **deciding(replica))


def deciding(replica: Replica) -> dict[str, Any]:
    """Return the number of the served version, if any, and the canaries by their versions."""
    served, active = replica.versions.version, replica.versions.active
    return {
        "served": None if served is None else served.version,
        "canaries": {canary.version: canary for canary in active.canaries},
    }


async def read_judgements(
    replica: Replica, caller: Caller
) -> list[tuple[EvaluationState, Mapping[str, Any]]]:
    """Return the newest evaluations that asked the gate, each with its verdicts by candidate."""
    newest = (await api_evaluations.evaluations(replica, caller, PAGE)).reply.evaluations
    found = list[tuple[EvaluationState, Mapping[str, Any]]]()
    for evaluation in [one for one in newest if one.request.get("gate")][:JUDGED]:
        result = (await api_evaluations.read_result(replica, caller, evaluation.id)).result or {}
        candidates = result.get("candidates", ())
        verdicts = {one["name"]: verdict for one in candidates if (verdict := one.get("verdict"))}
        found.append((evaluation, verdicts))
    return found


@router.get("/policies/gate", dependencies=[READ])
async def gate(request: Request, replica: AppReplica, caller: RequestCaller) -> Response:
    """The verdicts of the gate; the page reloads them while an evaluation runs."""
    return page(request, "gate.html", judged=await read_judgements(replica, caller))


@router.post("/policies/gate", dependencies=[OPERATE, ACTION])
async def judge(request: Request, replica: AppReplica, caller: RequestCaller) -> Response:
    """Have the gate judge a version, by the same evaluation as for a promotion."""
    chosen = await _version(replica, valid(PathNumber, (await read_form(request)).get("version", "")))
    active = await asyncio.to_thread(active_policy, replica.store, replica.versions.configured.digest)
    candidates = (name_candidate(chosen.version, active),)
    await api_evaluations.submit(replica, caller, EvaluationRequest(candidates=candidates, gate=True))
    return redirect(request, "/policies")


def recipe_rows(replica: Replica, before: int | None, recipe: str | None = None) -> list[RecipeRow]:
    """Read a page of the recipes, or a single recipe, from the log."""
    store, configured = replica.store, replica.versions.configured.digest
    listed = versions.recipes(store, PAGE, before, recipe)
    digests = [group.newest.recipe for group in listed]
    promoted = promotions.find_by_recipe(store, configured, digests)
    origins = runs.find_by_recipe(store, digests)
    served, active = replica.versions.version, replica.versions.active
    of_canary = {
        canary.version: canary_version.recipe
        for canary in active.canaries
        if (canary_version := versions.find(store, canary.version)) is not None
    }
    return [
        RecipeRow(
            digest=version.recipe,
            newest=version,
            count=group.count,
            configured=version.recipe == configured,
            run=origins.get(version.recipe),
            promotion=promoted.get(version.recipe),
            serving=served.version if served is not None and served.recipe == version.recipe else None,
            canaries=[row for row in active.canaries if of_canary.get(row.version) == version.recipe],
            problem=explain_unserved(version, replica),
        )
        for group in listed
        for version in [group.newest]
    ]


def explain_unserved(version: Version, replica: Replica) -> str:
    """Return why a version cannot be served here; empty: it can."""
    try:
        Recipe.from_version(version, replica.config.reward)
    except PolicyError as error:
        return str(error)
    return ""


def read_versions(replica: Replica, recipe: str, earlier: int | None) -> dict[str, Any]:
    """Read a page of the versions of a recipe from the log. Raises ApiError if there is none."""
    listed = versions.page(replica.store, PAGE, earlier, recipe)
    if not listed:
        raise ApiError("invalid_value", f"no version is of recipe {recipe[:DIGEST_CHARS]!r}", "recipe")
    configured, newest = replica.versions.configured.digest, listed[0][0]
    return {
        "recipe": recipe,
        "listed": listed,
        "earlier": listed[-1][0].version if len(listed) == PAGE else None,
        "was_active": promotions.was_active(replica.store, configured, recipe),
        "problem": explain_unserved(newest, replica),
    }


def _timeline(replica: Replica, until: int | None) -> dict[str, Any]:
    rows, active = promotions.newest(replica.store, PAGE, until), replica.versions.active.promotion
    forced = {row.version for row in (*rows, *([active] if active else [])) if row.forced}
    first_starts = promotions.first_starts(replica.store, forced)
    return {
        "timeline": rows,
        "first_starts": first_starts,
        "promoted_first": active is not None and active.seq in first_starts,
        "until": rows[-1].seq if len(rows) == PAGE else None,
    }


@router.get("/policies/act", dependencies=[OPERATE])
async def consider(request: Request, replica: AppReplica, action: Act, version: VersionNumber) -> Response:
    """The consequences of an action, to confirm with a reason."""
    chosen = await _version(replica, version)
    problem = explain_unserved(chosen, replica)
    if problem and action in (Act.PROMOTE, Act.CANARY, Act.ROLLBACK, Act.JUDGE):
        raise ApiError("promotion_refused", problem, "version")
    situation = await asyncio.to_thread(_situation, replica, chosen)
    if action is Act.ROLLBACK and not situation.was_active:
        message = f"the recipe of version {version} has never decided here: promote it, or make it a canary"
        raise ApiError("promotion_refused", message, "version")
    if action is Act.END and version not in situation.canaries:
        raise ApiError("changed_meanwhile", f"version {version} is no longer a canary", "version")
    return page(
        request,
        "act.html",
        action=action.value,
        version=version,
        after=situation.after,
        sentences=consequences(action, situation),
        shares=SHARES,
        usual=USUAL_SHARE,
        served=situation.served,
        opinion=await _opinion(replica, chosen) if action is Act.PROMOTE else None,
    )


@router.get("/policies/verdict", dependencies=[OPERATE])
async def verdict(request: Request, replica: AppReplica, version: VersionNumber) -> Response:
    """The verdict of the gate on a version; the page reloads it while the gate judges."""
    chosen = await _version(replica, version)
    return page(request, "verdict.html", version=version, opinion=await _opinion(replica, chosen))


async def _version(replica: Replica, number: int) -> Version:
    """Return the version with a number. Raises ApiError if there is none."""
    version = await asyncio.to_thread(versions.find, replica.store, number)
    if version is None:
        raise ApiError("version_not_found", f"there is no version {number}", "version")
    return version


@dataclass(frozen=True)
class Situation:
    """A version, and the state that an action on it would change.

    Attributes:
        version: The version.
        newest: The newest version of its recipe.
        served: Number of the version that decides, if any.
        canaries: Version numbers of the canaries.
        pinned: Number of the version that a rollback has pinned, if any.
        arms_added: Arms that its recipe would make live.
        arms_removed: Live arms that its recipe lacks.
        is_automatic: Whether it is a canary that the service began.
        is_active: Whether its recipe is active.
        was_active: Whether its recipe is or was active.
        after: Number of the newest promotion, rollback or canary; 0: there is none.
    """

    version: Version
    newest: Version
    served: int | None
    canaries: tuple[int, ...] = ()
    pinned: int | None = None
    arms_added: tuple[str, ...] = ()
    arms_removed: tuple[str, ...] = ()
    is_automatic: bool = False
    is_active: bool = False
    was_active: bool = False
    after: int = 0


def _situation(replica: Replica, version: Version) -> Situation:
    configured, served = replica.versions.configured.digest, replica.versions.version
    active = active_policy(replica.store, configured)
    newest = versions.latest(replica.store, version.recipe)
    assert newest is not None  # there is at least this one
    live = replica.config.actions
    brought = arm_sets.find_brought(replica.store, version.version)
    brought = tuple(live) if brought is None else brought
    return Situation(
        version,
        newest,
        None if served is None else served.version,
        tuple(canary.version for canary in active.canaries),
        None if active.pin is None else active.pin.version,
        tuple(name for name in brought if name not in live),
        tuple(name for name in live if name not in brought),
        (canary := active.canary(version.version)) is not None and canary.automatic,
        version.recipe == active.recipe,
        promotions.was_active(replica.store, configured, version.recipe),
        active.seq,
    )


def consequences(action: Act, now: Situation) -> list[str]:
    """Return the consequences of an action, in sentences."""
    chosen = f"Version {now.version.version} ({describe_version(now.version)})"
    others = f"version {now.served}" if now.served else "the served version"
    canaries_end = [f"The canary of version {number} ends." for number in now.canaries]
    arms = [f"Its arms become live: {', '.join(now.arms_added)}."] if now.arms_added else []
    if now.arms_removed:
        arms.append(f"Live arms that it does not have are removed: {', '.join(now.arms_removed)}.")
    match action:
        case Act.PROMOTE:
            newest = f"Version {now.newest.version} ({describe_version(now.newest)})"
            pin_ends = [f"The rollback to version {now.pinned} ends."] if now.pinned else []
            follow = "will decide all traffic within a second. Newer versions of its recipe will follow it."
            unasked = ["Its recipe is already active, so the gate does not run."] if now.is_active else []
            return [f"{newest} {follow}", *pin_ends, *canaries_end, *arms, *unasked]
        case Act.ROLLBACK:
            kept = "It stays as it is until the next promotion or rollback. What is learned meanwhile waits."
            return [f"{chosen} will decide all traffic within a second.", kept, *canaries_end, *arms]
        case Act.CANARY:
            other = [number for number in now.canaries if number != now.version.version]
            share = f"will decide a share of the traffic within a second, and {others} the rest."
            kept = "It does not change when more is learned."
            turns = [f"It takes turns with {_name_versions(other)}, decision by decision."] if other else []
            automatic_ends = ["The service no longer changes its share."] if now.is_automatic else []
            return [f"{chosen} {share}", kept, *turns, *automatic_ends]
        case Act.END:
            ends = f"The canary of version {now.version.version} ends within a second."
            return [ends, f"After that, {others} decides its share of the traffic again."]
        case Act.JUDGE:
            compares = f"{chosen} is compared with what was served, on the logged decisions."
            return [compares, "What is served does not change."]


def _name_versions(numbers: Sequence[int]) -> str:
    """Return version numbers in words.

    >>> _name_versions([3]), _name_versions([3, 7])
    ('version 3', 'versions 3 and 7')
    """
    *first, last = map(str, numbers)
    return f"versions {', '.join(first)} and {last}" if first else f"version {last}"


def describe_version(version: Version) -> str:
    """Describe a version by its kind and the number of examples that it has learned.

    >>> describe_version(Version(1, None, "r", "j", {"kind": "adaptive"}, 1465, 0, "d", 1, 0.0))
    'adaptive, learned 1,465 examples'
    """
    return f"{version.policy['kind']}, learned {version.examples_seq:,} examples"


@dataclass(frozen=True)
class Opinion:
    """The gate's judgement of a version against the served policy.

    Attributes:
        evaluation: The newest evaluation that judges the version, if there is one.
        verdict: `armwise.feedback.ope.gate.Verdict.document` of that evaluation, once it is done.
        is_fresh: Whether a promotion would use this verdict rather than request a new one.
    """

    evaluation: EvaluationRow | None = None
    verdict: Mapping[str, Any] | None = None
    is_fresh: bool = False

    @property
    def pending(self) -> bool:
        """Whether an evaluation is queued or running."""
        return self.evaluation is not None and not self.evaluation.status.ended


async def _opinion(replica: Replica, version: Version) -> Opinion | None:
    """Return the gate's judgement of a version; None: its recipe is active, and needs no judgement."""
    active = await asyncio.to_thread(active_policy, replica.store, replica.versions.configured.digest)
    if active.recipe == version.recipe:
        return None
    return await asyncio.to_thread(_read_opinion, replica, version.version, active)


def _read_opinion(replica: Replica, version: int, active: ActivePolicy) -> Opinion:
    store = replica.store
    judgement = newest_judgement(store, digest_configuration(replica.config), version, active)
    if judgement is None or judgement.status is not evaluations.EvaluationStatus.DONE:
        return Opinion(judgement)
    report = evaluations.read_result(store, judgement.seq) or {}
    verdicts = {candidate["name"]: candidate["verdict"] for candidate in report["candidates"]}
    fresh = judgement.finished_at is not None and judgement.finished_at >= replica.clock() - FRESH_S
    return Opinion(judgement, verdicts[name_candidate(version, active)], fresh)


@router.post("/policies", dependencies=[OPERATE, ACTION])
async def choose(request: Request, replica: AppReplica) -> Response:
    """Promote a version, roll back to it, or begin or end its canary; the reason is recorded."""
    fields = await read_form(request)
    version, reason = valid(PathNumber, fields.get("version", "")), fields.get("reason", "")
    if "after" in fields:
        await _require_unchanged(replica, valid(Position, fields["after"]))
    match fields.get("action"):
        case Act.PROMOTE:
            body = valid(PromotionChoice, {"reason": reason, "force": "force" in fields})
            try:
                await policies.promote(replica, version, body)
            except UndecidedError:
                return redirect(request, "/policies/act", action=Act.PROMOTE.value, version=version)
        case Act.ROLLBACK:
            await policies.rollback(replica, version, valid(VersionChoice, {"reason": reason}))
        case Act.CANARY:
            body = valid(CanaryChoice, {"reason": reason, "share": number(fields.get("share", ""))})
            await policies.canary(replica, version, body)
        case Act.END:
            await policies.canary(replica, version, valid(CanaryChoice, {"reason": reason, "share": 0}))
        case other:
            message = f"action {other!r}: promote, rollback, canary or end was expected"
            raise ApiError("invalid_value", message, "action")
    return redirect(request, "/policies")


async def _require_unchanged(replica: Replica, after: int) -> None:
    """Check that the state has not changed since the operator saw the consequences. Raises ApiError."""
    active = await asyncio.to_thread(active_policy, replica.store, replica.versions.configured.digest)
    if active.seq != after:
        message = "what is served changed while you read this page: go back to see what will happen now"
        raise ApiError("changed_meanwhile", message, "after")
