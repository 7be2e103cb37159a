"""Pages for operators: arms, evaluations and warm starts."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response

from armwise.agent.api.middleware import AppReplica, RequestCaller, require
from armwise.agent.api.operations import arms, evaluations
from armwise.agent.api.schemas import ArmSwitch, PageBefore, PathNumber
from armwise.agent.console.changes import number_colours
from armwise.agent.console.page import ACTION, page, pages, read_form, redirect, valid
from armwise.agent.console.summary import ServiceSummary, read_summary
from armwise.agent.evaluation import EvaluationRequest
from armwise.agent.lab import routes as warm_starts
from armwise.feedback.ope import ESTIMATORS, INTERVALS
from armwise.feedback.registry import runs as registry_runs
from armwise.feedback.reward import Prices
from armwise.feedback.training_log.summary import Sums

router = pages()

USE, READ, OPERATE = require("decide", "read"), require("read"), require("operate")

PAGE = 50

TRIGGERS = {
    registry_runs.Trigger.SCHEDULE: "the schedule",
    registry_runs.Trigger.ALARM: "a drift alarm",
    registry_runs.Trigger.REQUEST: "a request",
    registry_runs.Trigger.COMMAND: "a command",
    registry_runs.Trigger.FIRST: "the first start",
    registry_runs.Trigger.RESUMED: "a restart, because the last one failed or its process died",
}
"""Triggers of a warm start, as text."""

STATUSES = {
    registry_runs.RunState.ASKED: "requested",
    registry_runs.RunState.NOTHING_NEW: "nothing new to learn",
    registry_runs.RunState.ABANDONED: "abandoned: its process died",
}
"""States of a warm start as text, if their names need explanation."""

INPUTS = {
    "join": "rule of the join",
    "log": "facts in the log",
    "examples": "examples in the training log",
    "traffic": "decisions of the traffic",
    "live": "active recipe",
    "alarm": "drift alarm at example",
    "lots": "labels by source",
    "labels": "labels inserted",
}
"""Labels of the inputs of a warm start, if their names need explanation."""


@router.get("/arms", dependencies=[USE])
async def live(request: Request, replica: AppReplica) -> Response:
    """The live arms: their specs, health, figures and switches."""
    reply = (await arms.arms(replica)).reply
    health = {arm.name: replica.decider.health.state(arm.name) for arm in reply.arms}
    summary = await asyncio.to_thread(read_summary, replica.store) or ServiceSummary()
    prices = replica.config.reward.cost
    cost = {arm: _price(sums, prices) for arm, sums in summary.newest.arms.items()}
    colours = await asyncio.to_thread(number_colours, replica.store)
    return page(
        request, "arms.html", **vars(reply), health=health, summary=summary, cost=cost, colours=colours
    )


def _price(sums: Sums, prices: Prices) -> float:
    """Return the priced cost of a turn."""
    tokens, seconds = sums["tokens"] / 1000.0, sums["retrieval_s"] + sums["llm_s"]
    spent = prices.steps * sums["steps"] + prices.kilotokens * tokens + prices.usd * sums["usd"]
    return (spent + prices.seconds * seconds) / sums["finished"]


@router.post("/arms/{name}", dependencies=[OPERATE, ACTION])
async def switch(request: Request, replica: AppReplica, name: str) -> Response:
    """Switch an arm on or off."""
    enabled = (await read_form(request)).get("enabled") == "true"
    await arms.switch(replica, name, ArmSwitch(enabled=enabled))
    return redirect(request, "/arms")


@router.get("/evaluations", dependencies=[READ])
async def show_evaluations(
    request: Request, replica: AppReplica, caller: RequestCaller, before: PageBefore = None
) -> Response:
    """The evaluations, and the form for a new one."""
    listed = (await evaluations.evaluations(replica, caller, PAGE, before)).reply.evaluations
    return page(
        request,
        "evaluations.html",
        listed=listed,
        arms=list(replica.turns.arms),
        estimators=list(ESTIMATORS),
        intervals=INTERVALS,
        following=listed[-1].id if len(listed) == PAGE else None,
    )


@router.post("/evaluations", dependencies=[OPERATE, ACTION])
async def submit(request: Request, replica: AppReplica, caller: RequestCaller) -> Response:
    """Request an evaluation."""
    fields = await read_form(request)
    body: dict[str, Any] = {name: fields[name] for name in ("since", "until", "interval") if name in fields}
    body["candidates"] = [line.strip() for line in fields.get("candidates", "").splitlines() if line.strip()]
    body["gate"] = "gate" in fields
    submitted = (await evaluations.submit(replica, caller, valid(EvaluationRequest, body))).reply
    return redirect(request, f"/evaluations/{submitted.id}")


@router.get("/evaluations/{number}", dependencies=[READ])
async def evaluation(
    request: Request, replica: AppReplica, caller: RequestCaller, number: PathNumber
) -> Response:
    """One evaluation: its progress, then its report."""
    reply = (await evaluations.evaluation(replica, caller, number)).reply
    fields = {name: value for name, value in reply.request.items() if value not in (None, "", [], {})}
    return page(request, "evaluation.html", one=reply, asked=fields)


@router.get("/evaluations/{number}/report", dependencies=[READ])
async def report(replica: AppReplica, caller: RequestCaller, number: PathNumber) -> Response:
    """The report of an evaluation, as a page without scripts."""
    return await evaluations.report(replica, caller, number)


@router.get("/warm-starts", dependencies=[READ])
async def runs(request: Request, replica: AppReplica, before: PageBefore = None) -> Response:
    """The warm starts, and the button for a new one."""
    listed = (await warm_starts.runs(replica, PAGE, before)).reply
    following = listed.warm_starts[-1].id if len(listed.warm_starts) == PAGE else None
    configured = replica.config.warm_start is not None
    return page(
        request,
        "warm_starts.html",
        runs=listed.warm_starts,
        following=following,
        due=listed.next,
        triggers=TRIGGERS,
        statuses=STATUSES,
        configured=configured,
    )


@router.post("/warm-starts", dependencies=[OPERATE, ACTION])
async def start(request: Request, replica: AppReplica) -> Response:
    """Request a warm start."""
    run = (await warm_starts.ask(replica)).reply
    return redirect(request, f"/warm-starts/{run.id}")


@router.get("/warm-starts/{number}", dependencies=[READ])
async def run(request: Request, replica: AppReplica, number: PathNumber) -> Response:
    """One warm start, step by step."""
    reply = (await warm_starts.run(replica, number)).reply
    return page(
        request,
        "warm_start.html",
        one=reply,
        steps=[{**step, "found": without_trails(step["found"])} for step in reply.steps],
        recipe=reply.inputs.get("recipe"),
        triggers=TRIGGERS,
        statuses=STATUSES,
        inputs=INPUTS,
    )


def without_trails(found: Any) -> Any:
    """Return the result of a step without the trails of verdicts, which the gate's page shows as charts.

    >>> without_trails({"recipe:3": {"promote": True, "trail": [{"at": 0.0}]}})
    {'recipe:3': {'promote': True}}
    """
    if not isinstance(found, Mapping):
        return found
    return {name: without_trails(part) for name, part in found.items() if name != "trail"}
