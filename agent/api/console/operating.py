"""What operators do and look at: arms, policies, evaluations and warm starts."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import Request, Response

from agent.api import decisions as api_decisions
from agent.api import ranking
from agent.api.console import evidence, overview, worth
from agent.api.console.page import ACTION, colours, form_of, number, page, pages, seen, valid
from agent.api.errors import ApiError
from agent.api.middleware import RequestCaller, RequestPoint, require
from agent.api.operations import arms, evaluations, policies, warm_starts
from agent.api.operations.policies import Agreement
from agent.api.schemas import ArmSwitch, CanaryChoice, PageBefore, PathNumber, PromotionChoice, VersionChoice
from agent.evaluation import EvaluationRequest
from agent.policies import Policy
from agent.serving import DecisionPoint
from feedback.events import Decision
from feedback.ope import ESTIMATORS, INTERVALS
from feedback.registry import versions
from feedback.training_log import rollups

router = pages()

USE, READ, OPERATE = require("decide", "read"), require("read"), require("operate")

PAGE = 50

COMPARED = 1000
"""Newest decisions for which two versions are compared."""

DIFFERENT = 20
"""Questions that are shown on which they differ most."""


@router.get("/arms", dependencies=[USE])
async def live(
    request: Request, point: RequestPoint, caller: RequestCaller, by: str | None = None
) -> Response:
    """The live arms: what they are, how they do, what they are worth by kind of question, their switches."""
    reply = (await arms.arms(point)).reply
    health = {one.name: point.decider.health.state(one.name) for one in reply.arms}
    figures, known = await asyncio.to_thread(_last_day, point)
    found, chosen = None, None
    if "read" in caller.scopes and not point.ranks:
        found = await asyncio.to_thread(worth.by_kind, point, caller, by)
        chosen = await asyncio.to_thread(worth.portfolio, point)
    shown: dict[str, Any] = {"figures": figures, "colours": known, "worth": found, "portfolio": chosen}
    return page(request, "arms.html", **vars(reply), health=health, **shown)


def _last_day(point: DecisionPoint) -> tuple[dict[str, Any], dict[str, int]]:
    window = overview.window_of("24h", point.service.clock(), None)
    rows = rollups.read(point.store, window.since, window.until, window.step)
    return overview.by_arm(rows, point.config.reward, point.config.least_floor), colours(point)


@router.post("/arms/{name}", dependencies=[OPERATE, ACTION])
async def switch(request: Request, point: RequestPoint, name: str) -> Response:
    """Switch an arm on or off."""
    enabled = (await form_of(request)).get("enabled") == "true"
    await arms.switch(point, name, ArmSwitch(enabled=enabled))
    return seen(request, "/arms")


@router.get("/policies", dependencies=[READ])
async def versions_of(
    request: Request, point: RequestPoint, agreement: Agreement, before: PageBefore = None
) -> Response:
    """The versions, what was promoted and rolled back, and the forms that do so."""
    active = (await policies.policy(point, agreement)).reply
    listed = (await policies.policies(point, PAGE, before)).reply
    last = listed.versions[-1].version if len(listed.versions) == PAGE else None
    shown = await evidence.judged(point)
    served = active.serving.version
    return page(
        request, "policies.html", active=active, **vars(listed), **shown, served=served, following=last
    )


@router.post("/policies", dependencies=[OPERATE, ACTION])
async def choose(request: Request, point: RequestPoint, agreement: Agreement) -> Response:
    """Promote a version, roll back to it, or make it a canary; the reason is part of the record."""
    fields = await form_of(request)
    version = valid(PathNumber, fields.get("version", ""))
    reason = fields.get("reason", "")
    match fields.get("action"):
        case "promote":
            body = valid(PromotionChoice, {"reason": reason, "force": "force" in fields})
            await policies.promote(point, version, body, agreement)
        case "rollback":
            await policies.rollback(point, version, valid(VersionChoice, {"reason": reason}), agreement)
        case "canary":
            body = valid(CanaryChoice, {"reason": reason, "share": number(fields.get("share", ""))})
            await policies.canary(point, version, body, agreement)
        case other:
            message = f"action {other!r}: promote, rollback or canary was expected"
            raise ApiError("invalid_value", message, "action")
    return seen(request, "/policies")


@router.get("/policies/differences", dependencies=[READ])
async def differences(
    request: Request, point: RequestPoint, caller: RequestCaller, one: PageBefore, other: PageBefore
) -> Response:
    """Where two versions differ on those of the newest decisions that the caller may see."""
    pair = []
    for wanted in (one, other):
        version = await asyncio.to_thread(versions.find, point.store, wanted or 0)
        if version is None:
            raise ApiError("version_not_found", f"there is no version {wanted}", "version")
        pair.append(version)
    newest = await asyncio.to_thread(point.store.newest, COMPARED, features=True)
    logged = [one for one in newest if caller.reads(one.id)]

    def compare(first: Policy, second: Policy) -> list[tuple[float, Decision, Any, Any]]:
        return differing(first, second, logged)

    found = await api_decisions.with_policies(point, pair, compare, "version")
    same = sum(a.argmax() == b.argmax() for _, _, a, b in found)
    return page(
        request,
        "differences.html",
        pair=pair,
        n=len(found),
        same=same,
        apart=float(np.mean([distance for distance, *_ in found])) if found else 0.0,
        rows=[
            (distance, caller.shown_id(one.id), ranking.by_ids(one) if point.ranks else one, a, b)
            for distance, one, a, b in found[:DIFFERENT]
        ],
        colours=await asyncio.to_thread(colours, point),
    )


def differing(
    first: Policy, second: Policy, logged: Sequence[Decision]
) -> list[tuple[float, Decision, Any, Any]]:
    """Return the probability mass that two policies place differently for each decision, most first.

    Each comes with the decision and with both distributions, without the floor.
    """
    found = []
    for one in logged:
        a, b = (policy.probabilities(one.context, one.arms) for policy in (first, second))
        found.append((float(np.abs(a - b).sum() / 2), one, a, b))
    return sorted(found, key=lambda row: -row[0])


@router.get("/evaluations", dependencies=[READ])
async def submitted(request: Request, point: RequestPoint, before: PageBefore = None) -> Response:
    """The evaluations, and the form for a new one."""
    listed = (await evaluations.evaluations(point, PAGE, before)).reply.evaluations
    return page(
        request,
        "evaluations.html",
        listed=listed,
        arms=list(point.turns.arms),
        estimators=list(ESTIMATORS),
        intervals=INTERVALS,
        following=listed[-1].id if len(listed) == PAGE else None,
    )


@router.post("/evaluations", dependencies=[OPERATE, ACTION])
async def submit(request: Request, point: RequestPoint, caller: RequestCaller) -> Response:
    """Request an evaluation."""
    fields = await form_of(request)
    asked: dict[str, Any] = {name: fields[name] for name in ("since", "until", "interval") if name in fields}
    asked["candidates"] = [line.strip() for line in fields.get("candidates", "").splitlines() if line.strip()]
    asked["gate"] = "gate" in fields
    submitted = (await evaluations.submit(point, caller, valid(EvaluationRequest, asked))).reply
    return seen(request, f"/evaluations/{submitted.id}")


@router.get("/evaluations/{number}", dependencies=[READ])
async def evaluation(request: Request, point: RequestPoint, number: PathNumber) -> Response:
    """One evaluation: its progress, then its report."""
    one = (await evaluations.evaluation(point, number)).reply
    return page(request, "evaluation.html", one=one)


@router.get("/evaluations/{number}/report", dependencies=[READ])
async def report(point: RequestPoint, number: PathNumber) -> Response:
    """The report of an evaluation, which runs no script."""
    return await evaluations.report(point, number)


@router.get("/warm-starts", dependencies=[READ])
async def runs(request: Request, point: RequestPoint, before: PageBefore = None) -> Response:
    """The warm starts, and the button for a new one."""
    listed = (await warm_starts.runs(point, PAGE, before)).reply
    following = listed.warm_starts[-1].id if len(listed.warm_starts) == PAGE else None
    configured = point.config.warm_start is not None
    return page(
        request,
        "warm_starts.html",
        runs=listed.warm_starts,
        following=following,
        due=listed.next,
        configured=configured,
    )


@router.post("/warm-starts", dependencies=[OPERATE, ACTION])
async def start(request: Request, point: RequestPoint) -> Response:
    """Request a warm start."""
    run = (await warm_starts.ask(point)).reply
    return seen(request, f"/warm-starts/{run.id}")


@router.get("/warm-starts/{number}", dependencies=[READ])
async def run(request: Request, point: RequestPoint, number: PathNumber) -> Response:
    """One warm start, step by step."""
    one = (await warm_starts.run(point, number)).reply
    return page(request, "warm_start.html", one=one)
