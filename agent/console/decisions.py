"""Pages of decisions: search them; show a decision, verify it, and rate it."""

import asyncio
from dataclasses import replace
from typing import Annotated

import orjson
from fastapi import Request, Response
from pydantic import BaseModel, Field, StringConstraints

from armwise.agent.api import decisions as api
from armwise.agent.api.errors import ApiError
from armwise.agent.api.feedback import FeedbackSender
from armwise.agent.api.middleware import AppReplica, RequestCaller, require
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import DecisionId, DecisionQuery, FeedbackItem, PageBefore
from armwise.agent.console.changes import number_colours
from armwise.agent.console.page import ACTION, name_model, page, pages, read_form, valid
from armwise.agent.evaluation import Moment
from armwise.agent.serving import Replica
from armwise.arms.base import ArmError
from armwise.feedback.events import OBSERVED, Mask, Status
from armwise.feedback.log import listing
from armwise.feedback.registry import Version, versions
from armwise.number import Number

router = pages()

USE = require("decide", "read")

PAGE = 50

STATUSES = (*Status, listing.RUNNING)

REASONS = {
    Mask.DISABLED: "it was switched off",
    Mask.EXCLUDED: "the request excluded it",
    Mask.NOT_ALLOWED: "the request allowed only other arms",
    Mask.LOADING: "its encoder was still loading",
    Mask.SOURCE_AWAY: "its source could not be read, or asked",
    Mask.BREAKER_OPEN: "its circuit breaker was open, after failures in a row",
    Mask.AT_CAP: "it was already running as many searches as its cap allows",
    Mask.CANNOT_FILTER: "it cannot apply the request's filter, or the permissions of passages",
    Mask.LLM_UNAVAILABLE: "its language model had failed, or had reached a limit",
    Mask.UNSUPPORTED: "its language model does not support what the request asked for",
    Mask.SEARCH_FAILED: "its search for this question had failed before the draw",
}
"""Reasons why an arm could not be drawn, as text."""


class Filters(BaseModel):
    """Fields of the filter form that the API lacks, or parses differently."""

    since: Moment | None = Field(default=None, description="Committed then or later.")
    until: Moment | None = Field(default=None, description="Committed by then.")
    text: Annotated[str, StringConstraints(max_length=256)] | None = None
    least: Number | None = None
    most: Number | None = None


@router.get("/decisions", dependencies=[USE])
async def show_decisions(
    request: Request, replica: AppReplica, caller: RequestCaller, before: PageBefore = None
) -> Response:
    """A page of decisions, newest first."""
    fields = {name: value for name, value in request.query_params.items() if value.strip()}
    if name := fields.pop("id", None):
        return await decision(request, replica, caller, valid(DecisionId, name.strip()))
    fields.pop("before", None)
    also = valid(Filters, fields)
    query = {name: value for name, value in fields.items() if name not in Filters.model_fields}
    criteria = replace(
        await api.find_criteria(replica, caller, valid(DecisionQuery, query)),
        logged_since=also.since and also.since.timestamp(),
        logged_until=also.until and also.until.timestamp(),
        text=also.text,
        least=also.least,
        most=also.most,
    )
    rule = replica.config.reward
    listed = await asyncio.to_thread(listing.decisions, replica.store, rule, criteria, PAGE, before)
    return page(
        request,
        "decisions.html",
        rows=[
            {
                "shown": api.show_row(row, caller),
                "cost": row.raw_cost,
                "reward": row.reward,
                "models": [name_model(replica.config, name) for name in row.models],
                # where groups restrict passages, an answer may quote what a key must not see
                "answer": "" if replica.turns.searcher.restricted else row.answer,
            }
            for row in listed.decisions
        ],
        fields=fields,
        following=listed.following and {**fields, "before": listed.following},
        looked_through=listed.looked_through,
        statuses=STATUSES,
        metrics=list(rule.metrics),
        versions=await asyncio.to_thread(_versions, replica, criteria.version),
        colours=await asyncio.to_thread(number_colours, replica.store),
    )


def _versions(replica: Replica, chosen: int | None) -> list[Version]:
    """Return the versions that the form offers: the newest, and the chosen version."""
    listed = [version for version, _ in versions.page(replica.store, PAGE)]
    if chosen is not None and all(version.version != chosen for version in listed):
        chosen_version = versions.find(replica.store, chosen)
        listed += [] if chosen_version is None else [chosen_version]
    return listed


@router.get("/decisions/{decision_id}", dependencies=[USE])
async def decision(
    request: Request, replica: AppReplica, caller: RequestCaller, decision_id: DecisionId
) -> Response:
    """Everything known about a decision."""
    answer = await api.decision(replica, caller, decision_id)
    return await asyncio.to_thread(_decision, request, replica, answer)


def _decision(request: Request, replica: Replica, answer: StdlibJson[api.DecisionRecord]) -> Response:
    rule, record = replica.config.reward, answer.reply
    logged_arms = {*record.pmf, *record.masked, *(record.shadow or ())}
    version = versions.find(replica.store, record.policy_version)
    unknown = (
        [] if record.policy == OBSERVED else [name for name in replica.turns.arms if name not in logged_arms]
    )
    return page(
        request,
        "decision.html",
        one=record,
        raw=orjson.dumps(orjson.loads(answer.body), option=orjson.OPT_INDENT_2).decode(),
        unknown=unknown,
        reasons=REASONS,
        recipe=None if version is None else version.recipe,
        quality=rule.quality(record.metrics) if record.metrics else None,
        rule=rule,
        colours=number_colours(replica.store),
        asked=", ".join(name_model(replica.config, name) for name in record.tokens_by_model or ()),
    )


@router.get("/decisions/{decision_id}/passages", dependencies=[USE])
async def passages(
    request: Request, replica: AppReplica, caller: RequestCaller, decision_id: DecisionId
) -> Response:
    """The texts of a decision's passages that the corpus still has."""
    execution = (await api.record(replica, caller, decision_id)).execution
    ids = () if execution is None else execution.passages
    try:
        permitted_passages = await api.read_permitted(replica, caller, ids)
        without = [name for name in ids if name not in permitted_passages]
        missing = f"{len(without)} of {len(ids)} are no longer in the corpus." if without else ""
        if without and replica.turns.searcher.restricted:
            ids = tuple(permitted_passages)
            missing = "Some are not shown: the groups of your key do not permit them, or they are gone."
    except ArmError as error:
        permitted_passages, missing = {}, f"The corpus cannot be read: {error}."
    return page(request, "passages.html", ids=ids, found=permitted_passages, missing=missing)


@router.get("/decisions/{decision_id}/verify", dependencies=[require("operate")])
async def verify(
    request: Request, replica: AppReplica, caller: RequestCaller, decision_id: DecisionId
) -> Response:
    """Whether the distribution and the draw can be recomputed from the log."""
    verification = (await api.verify(replica, caller, decision_id)).reply
    return page(request, "verification.html", one=verification)


@router.post("/decisions/{decision_id}/feedback", dependencies=[require("feedback"), ACTION])
async def label(
    request: Request, replica: AppReplica, caller: RequestCaller, decision_id: DecisionId
) -> Response:
    """Store the rating of the signed-in person as feedback, with the source of the key."""
    fields = await read_form(request)
    given = fields.get("value", "")
    try:
        value = float(given)
    except ValueError:
        raise ApiError("invalid_value", f"value {given!r} is not a number", "value") from None
    comment = {"comment": fields["comment"]} if "comment" in fields else {}
    item = valid(
        FeedbackItem,
        {
            "decision_id": decision_id,
            "metric_name": fields.get("metric", ""),
            "value": value,
            "tags": {"from": "console"},
            **comment,
        },
    )
    (kept,) = await FeedbackSender(replica, caller).keep_all(item)
    return page(request, "labelled.html", kept=kept, item=item)
