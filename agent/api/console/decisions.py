"""Find decisions; show everything about one, verify it, ask why its arm, and label it."""

import asyncio
from dataclasses import asdict, replace
from typing import Annotated, Any

import orjson
from fastapi import Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from agent.access import Caller
from agent.api import decisions as api
from agent.api import feedback as api_feedback
from agent.api import ranking
from agent.api.console import explanation
from agent.api.console.page import ACTION, colours, form_of, page, pages, valid
from agent.api.errors import ApiError
from agent.api.middleware import AppReplica, RequestCaller, require
from agent.api.schemas import LARGEST, DecisionId, FeedbackItem, PageBefore
from agent.evaluation import moment_of
from agent.serving import Replica
from arms.base import ArmError
from feedback.events import Mask, Status
from feedback.log import listing
from feedback.training_log import decision_search

router = pages()

USE = require("decide", "read")

PAGE = 50

STATUSES = (*Status, listing.RUNNING)

REASONS = {
    Mask.DISABLED: "it was switched off",
    Mask.EXCLUDED: "the request excluded it",
    Mask.NOT_ALLOWED: "the request allowed others only",
    Mask.LOADING: "its encoder was still being loaded",
    Mask.BREAKER_OPEN: "its circuit breaker was open, after failures in a row",
    Mask.AT_CAP: "as many of its searches were under way as its cap allows",
    Mask.CANNOT_FILTER: "it cannot keep to the request's filter, or to who may see a passage",
    Mask.LLM_UNAVAILABLE: "its language model had failed, or had no room or rate left",
    Mask.UNSUPPORTED: "its language model does not support what the request asked for",
    Mask.SEARCH_FAILED: "its search for this question had failed before the draw",
}
"""Why an arm could not be drawn, in words."""

Moment = Annotated[float, BeforeValidator(lambda value: moment_of(value).timestamp())]

Part = Annotated[str, StringConstraints(max_length=256)]

Count = Annotated[int, Field(ge=0, le=LARGEST)]

Number = Annotated[float, Field(allow_inf_nan=False)]


class Filters(BaseModel):
    """The fields of the form of filters, as a person fills them in."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    arm: Part | None = None
    version: Count | None = None
    status: Annotated[str, StringConstraints(pattern=f"^({'|'.join(STATUSES)})$")] | None = None
    metric: Part | None = None
    key: Part | None = None
    episode_id: Part | None = None
    text: Part | None = None
    since: Moment | None = None
    until: Moment | None = None
    least: Number | None = None
    most: Number | None = None


@router.get("/decisions", dependencies=[USE])
async def found(
    request: Request, replica: AppReplica, caller: RequestCaller, before: PageBefore = None
) -> Response:
    """A page of decisions, newest first."""
    fields = {name: value for name, value in request.query_params.items() if value.strip()}
    if name := fields.pop("id", None):
        return await decision(request, replica, caller, valid(DecisionId, name.strip()))
    for name in ("before", "point"):
        fields.pop(name, None)
    wanted = valid(Filters, fields).model_dump()
    if replica.ranks:
        wanted["action"] = wanted.pop("arm")
    filters = decision_search.Filters(**wanted, project=project_of(caller))
    rule = replica.config.reward
    listed = await asyncio.to_thread(decision_search.search, replica.store, rule, filters, before, PAGE)
    rows = [
        {
            **asdict(one),
            "id": caller.shown_id(one.id),
            # of an action that came with the request, what was returned is its id
            "drawn": one.passages[0] if replica.ranks and one.passages else one.drawn,
            "served": None if replica.ranks else one.served,
            "cost": None if one.cost is None else rule.cost.total(one.cost),
        }
        for one in listed.decisions
    ]
    return page(
        request,
        "decisions.html",
        rows=rows,
        fields=fields,
        following=listed.following and {**fields, "before": listed.following},
        looked_through=listed.looked_through,
        statuses=STATUSES,
        ranks=replica.ranks,
        metrics=list(rule.metrics),
        colours=await asyncio.to_thread(colours, replica),
    )


def project_of(caller: Caller) -> str | None:
    """Return what the ids begin with that a caller may see; None for every id."""
    if caller.prefix:
        return caller.prefix
    return None if caller.sees_all else ""


@router.get("/decisions/{decision_id}", dependencies=[USE])
async def decision(
    request: Request, replica: AppReplica, caller: RequestCaller, decision_id: DecisionId
) -> Response:
    """Everything known about a decision."""
    document = orjson.loads((await api.decision(replica, caller, decision_id)).body)
    return await asyncio.to_thread(_decision, request, replica, document)


def _decision(request: Request, replica: Replica, document: dict[str, Any]) -> Response:
    rule, metrics = replica.config.reward, document["metrics"]
    known = {*document["pmf"], *document["masked"]}
    unknown = [] if replica.ranks else [name for name in replica.turns.arms if name not in known]
    return page(
        request,
        "decision.html",
        one=document,
        raw=orjson.dumps(document, option=orjson.OPT_INDENT_2).decode(),
        unknown=unknown,
        ranks=replica.ranks,
        reasons=REASONS,
        quality=rule.quality(metrics) if metrics else None,
        rule=rule,
        colours=colours(replica),
    )


@router.get("/decisions/{decision_id}/passages", dependencies=[USE])
async def passages(
    request: Request, replica: AppReplica, caller: RequestCaller, decision_id: DecisionId
) -> Response:
    """The texts of the passages of a decision, where the corpus has them."""
    execution = (await api.record(replica, caller, decision_id)).execution
    ids = () if execution is None else execution.passages
    try:
        found = await api.permitted(replica, caller, ids)
        without = [name for name in ids if name not in found]
        missing = f"{len(without)} of {len(ids)} are not in the corpus any more." if without else ""
        if without and replica.turns.restricted:
            ids = tuple(found)
            missing = "Some are not shown: the groups of your key do not permit them, or they are gone."
    except ArmError as error:
        found, missing = {}, f"The corpus is not at hand: {error}."
    return page(request, "passages.html", ids=ids, found=found, missing=missing)


@router.get("/decisions/{decision_id}/verify", dependencies=[require("operate")])
async def verify(
    request: Request, replica: AppReplica, caller: RequestCaller, decision_id: DecisionId
) -> Response:
    """Whether the distribution and the draw can be computed again from the log."""
    answer = await api.verify(replica, caller, decision_id)
    return page(request, "verification.html", one=orjson.loads(answer.body))


@router.get("/decisions/{decision_id}/why", dependencies=[require("read")])
async def why(
    request: Request, replica: AppReplica, caller: RequestCaller, decision_id: DecisionId
) -> Response:
    """The largest contributions to the score of the drawn arm against the runner-up."""
    record = await api.record(replica, caller, decision_id)
    explained = await explanation.explain(replica, record.decision)
    if replica.ranks:
        names = dict(zip(record.decision.arms, ranking.by_ids(record.decision).arms, strict=True))
        explained = replace(explained, arm=names[explained.arm], runner_up=names[explained.runner_up])
    arms = await asyncio.to_thread(colours, replica)
    return page(request, "why.html", why=explained, colours=arms)


@router.post("/decisions/{decision_id}/feedback", dependencies=[require("feedback"), ACTION])
async def label(
    request: Request, replica: AppReplica, caller: RequestCaller, decision_id: DecisionId
) -> Response:
    """Keep the judgement of the person who signed in as feedback, with the source of the key."""
    fields = await form_of(request)
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
    kept = orjson.loads((await api_feedback.feedback(replica, caller, item)).body)
    return page(request, "labelled.html", kept=kept, item=item)
