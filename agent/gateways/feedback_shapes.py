"""Feedback in the formats of TensorZero, Langfuse and vLLM's Semantic Router, stored like native feedback."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from fastapi import APIRouter, Response
from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    StrictInt,
    Tag,
    ValidationError,
    model_validator,
)

from armwise.agent.access import Caller, bearer
from armwise.agent.api.documented import documented
from armwise.agent.api.errors import ApiError
from armwise.agent.api.feedback import REFUSALS, FeedbackSender
from armwise.agent.api.middleware import ApiDialect, RequestCaller, RequestPoint
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import (
    Comment,
    ContextValue,
    FeedbackId,
    FeedbackItem,
    Finite,
    IdempotencyKey,
    LoggedId,
    Name,
    OneOrMany,
    Request,
    TagText,
)
from armwise.agent.replies import Reply, construct
from armwise.agent.serving import DecisionPoint
from armwise.feedback.events import COMMENT, DEMONSTRATION

router = APIRouter(tags=["feedback"])

Tags = Annotated[dict[Name, TagText], Field(max_length=31)]

LANGFUSE = ApiDialect(
    "/api/public", lambda headers: bearer(headers.get(b"authorization", b"").decode("latin-1"))
)
"""Authentication of Langfuse's clients, which send the key as a password."""

VERDICT, SCORE = "verdict", "score"
"""Metrics of an outcome of the Semantic Router."""


class TensorZeroFeedback(Request):
    """`POST /feedback`."""

    metric_name: Name
    value: JsonValue
    inference_id: LoggedId | None = None
    episode_id: LoggedId | None = None
    tags: Tags = Field(default_factory=dict)
    dryrun: StrictBool | None = None
    internal: StrictBool | None = Field(default=None, description="Ignored.")


class LangfuseScore(BaseModel):
    """`POST /api/public/scores`; other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: Name
    value: ContextValue
    trace_id: LoggedId | None = Field(default=None, alias="traceId")
    session_id: LoggedId | None = Field(default=None, alias="sessionId")
    data_type: Literal["NUMERIC", "BOOLEAN", "CATEGORICAL", "TEXT", "CORRECTION"] | None = Field(
        default=None, alias="dataType"
    )
    comment: Comment | None = None
    id: FeedbackId | None = None

    @model_validator(mode="after")
    def _has_its_type(self) -> Self:
        expected = "a number" if self.data_type in ("NUMERIC", "BOOLEAN") else "a text"
        if self.data_type is not None and isinstance(self.value, str) != (expected == "a text"):
            raise ValueError(f"value of dataType {self.data_type}: {expected} was expected")
        if self.data_type == "BOOLEAN" and self.value not in (0, 1):
            raise ValueError("value of dataType BOOLEAN: 0 or 1 was expected")
        return self


LangfuseScores = Annotated[
    Annotated[LangfuseScore, Tag("<one>")]
    | Annotated[list[Any], Field(min_length=1, max_length=1000), Tag("<many>")],
    OneOrMany,
]


class RouterOutcome(Request):
    """`POST /v1/router/outcomes`."""

    replay_id: LoggedId
    target: Literal["model", "route", "policy", "stability", "provider", "router"]
    target_ref: TagText | None = None
    target_revision: StrictInt | None = Field(default=None, description="Ignored.")
    verdict: Literal["good_fit", "underpowered", "overprovisioned", "failed"]
    reason: Comment | None = None
    score: Annotated[Finite, Field(ge=0, le=1)] | None = None
    metadata: Tags = Field(default_factory=dict)
    source: Name | None = Field(default=None, description="Ignored: the key says who judges.")


class TensorZeroReceipt(Reply):
    """Feedback is durable."""

    feedback_id: str


class LangfuseReceipt(Reply):
    """A score is durable."""

    id: str


class LangfuseAccepted(Reply):
    """All scores of a list are durable."""

    message: str


class LangfuseError(Reply):
    """Why a score was refused."""

    message: str


class LangfuseResults(Reply):
    """Some scores of a list are durable."""

    accepted: int
    rejected: int
    errors: list[LangfuseError]


class OutcomeReceipt(Reply):
    """An outcome is durable."""

    id: str
    replay_id: str
    projection_revision: int
    duplicate: bool
    created_at: str


@router.post(
    "/feedback",
    **documented(
        "sendTensorZeroFeedback",
        TensorZeroReceipt,
        *REFUSALS,
        scopes=("feedback",),
        example={"inference_id": "q-1", "metric_name": "thumb", "value": 1},
    ),
)
async def of_tensorzero(
    point: RequestPoint, caller: RequestCaller, body: TensorZeroFeedback, key: IdempotencyKey = None
) -> Response:
    """Keep feedback in TensorZero's shape: a metric, a `comment` or a `demonstration`."""
    value = body.value
    if body.metric_name == DEMONSTRATION and isinstance(value, list | dict):  # blocks of content
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    item = _item(
        decision_id=body.inference_id and await _decision(point, caller, body.inference_id),
        episode_id=body.episode_id,
        metric_name=body.metric_name,
        value=value,
        tags=body.tags,
    )
    sender = FeedbackSender(point, caller)
    if body.dryrun:
        (checked,) = sender.check_all(item, key=key)
        name = caller.shown(checked.fact.id)
    else:
        (kept,) = await sender.keep_all(item, key=key)
        name = kept.feedback_id
    return StdlibJson(construct(TensorZeroReceipt, feedback_id=name))


@router.post(
    "/api/public/scores",
    **documented(
        "sendLangfuseScore",
        LangfuseReceipt,
        *REFUSALS,
        scopes=("feedback",),
        others={202: LangfuseAccepted, 207: LangfuseResults},
        example={"traceId": "q-1", "name": "thumb", "value": 1},
    ),
)
async def of_langfuse(point: RequestPoint, caller: RequestCaller, body: LangfuseScores) -> Response:
    """Keep a score in Langfuse's shape, or a list of scores: a trace is a decision, a session an episode.

    A list is 202 where all of it was kept, 207 with the errors where some was, and refused where none was.
    """
    sender = FeedbackSender(point, caller)
    if isinstance(body, LangfuseScore):
        (kept,) = await sender.keep_all(_item(**await _score(point, caller, body)))
        return StdlibJson(construct(LangfuseReceipt, id=kept.feedback_id))
    items: list[object] = []
    for score in body:
        try:
            items.append(await _score(point, caller, LangfuseScore.model_validate(score)))
        except ValidationError as error:
            items.append(RequestValidationError(error.errors()))
    rows = await sender.keep_each(items, [None] * len(items))
    failed = [
        construct(LangfuseError, message=f"{row.code}: {row.message}")
        for row in rows
        if isinstance(row, ApiError)
    ]
    if not failed:
        return StdlibJson(construct(LangfuseAccepted, message="Accepted"), 202)
    results = construct(
        LangfuseResults, accepted=len(rows) - len(failed), rejected=len(failed), errors=failed
    )
    return StdlibJson(results, 207)


async def _score(point: DecisionPoint, caller: Caller, score: LangfuseScore) -> dict[str, Any]:
    """Return the fields of a feedback item for a score."""
    note = {"TEXT": COMMENT, "CORRECTION": DEMONSTRATION}.get(score.data_type or "")
    return {
        "decision_id": score.trace_id and await _decision(point, caller, score.trace_id),
        "episode_id": score.session_id,
        "metric_name": note or score.name,
        "value": score.value,
        "comment": score.comment,
        "feedback_id": score.id,
        "tags": {} if note is None else {"name": score.name},
    }


@router.post(
    "/v1/router/outcomes",
    **documented(
        "sendRouterOutcome",
        OutcomeReceipt,
        *REFUSALS,
        scopes=("feedback",),
        status=202,
        example={"replay_id": "q-1", "target": "model", "verdict": "good_fit"},
    ),
)
async def of_router(
    point: RequestPoint, caller: RequestCaller, body: RouterOutcome, key: IdempotencyKey = None
) -> Response:
    """Keep an outcome in the shape of vLLM's Semantic Router.

    Of the target `model` it is a value of the metrics `verdict` and `score`, as far as they are declared; of
    another target a comment, as it says nothing of the arm.
    """
    decision_id = await _decision(point, caller, body.replay_id)
    tags = body.metadata if body.target_ref is None else {**body.metadata, "target_ref": body.target_ref}
    values: dict[str, Any] = {VERDICT: body.verdict}
    if body.score is not None and SCORE in point.config.reward.metrics:
        values[SCORE] = body.score
        if VERDICT not in point.config.reward.metrics:
            del values[VERDICT]
    if body.target != "model":
        values = {COMMENT: f"{body.target}: {body.verdict}"}
    items = [
        _item(decision_id=decision_id, metric_name=name, value=value, comment=reason, tags=tags)
        for (name, value), reason in zip(values.items(), (body.reason, None), strict=False)
    ]
    kept = await FeedbackSender(point, caller).keep_all(*items, key=key)
    reply = construct(
        OutcomeReceipt,
        id=kept[0].feedback_id,
        replay_id=body.replay_id,
        projection_revision=kept[-1].log_seq,
        duplicate=kept[0].status == "duplicate",
        created_at=datetime.fromtimestamp(point.service.clock(), UTC).isoformat(),
    )
    return StdlibJson(reply, 202)


def _item(**fields: Any) -> FeedbackItem:
    """Return a feedback item. Raises RequestValidationError."""
    try:
        return FeedbackItem(**fields)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


async def _decision(point: DecisionPoint, caller: Caller, name: str) -> str:
    """Return the id of a decision; a client may have written it as a UUID with dashes."""
    try:
        plain = UUID(name).hex
    except ValueError:
        return name
    if plain == name:
        return name
    stored_record = await asyncio.to_thread(point.store.record, caller.stored(plain))
    return name if stored_record is None else plain
