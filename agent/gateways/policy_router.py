"""`policy_router_v1`, by which Weave's router asks a policy that runs beside it.

    POST route      a decision among the candidates of the request, at the point that the strategy names
    POST outcome    the metrics `ok`, `usd` and `seconds` of that decision, as far as the point declares them
    POST feedback   its metric `thumb`, or a comment

The id of a decision is the `route_id`. What may not be trained on is a decision that never counts: it is
deferred and never activated, it has no session, and neither its outcome nor feedback is kept.

Source: POLICY_ROUTER_HARNESS.md of https://github.com/workweave/router at 6f6a3fc1.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from armwise.agent.access import bearer
from armwise.agent.api import ranking, responses
from armwise.agent.api.documented import TURN, documented
from armwise.agent.api.errors import ApiError
from armwise.agent.api.feedback import REFUSALS, FeedbackSender
from armwise.agent.api.middleware import ApiDialect, AppService, ServiceCaller, caller_at
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import (
    Action,
    Amount,
    Comment,
    FeedbackItem,
    Finite,
    Identifier,
    Name,
    RankRequest,
    Text,
    Tokens,
)
from armwise.agent.gateways.buttons import METRIC, read_thumb
from armwise.agent.replies import Reply, construct
from armwise.agent.serving import DecisionPoint
from armwise.agent.serving import ask as asking
from armwise.feedback.events import COMMENT
from armwise.feedback.registry import versions as registry_versions

router = APIRouter(tags=["decisions"])

SCHEMA: Literal["policy_router_v1"] = "policy_router_v1"

PATH = f"/{SCHEMA}"

DIALECT = ApiDialect(PATH, lambda headers: bearer(headers.get(b"authorization", b"").decode("latin-1")))
"""Authentication of the router, which sends what its address of the policy has before the host."""

OUTCOME = ("ok", "usd", "seconds")
"""Metrics of how a request ended."""


class _Shape(BaseModel):
    """A body of the contract; what is not read is ignored, as a router may send more than it did."""

    model_config = ConfigDict(extra="ignore", frozen=True, json_schema_extra={"additionalProperties": True})


class Abilities(_Shape):
    """What a candidate can do."""

    context_window: Tokens | None = None
    tier: Name | None = None


class RouteCandidate(_Shape):
    """A model that may be chosen; prices are in dollars a million tokens."""

    roster_id: Annotated[Text, Field(min_length=1, max_length=128)]
    catalog_id: Name = ""
    provider: Name = ""
    preference_rank: Tokens | None = None
    cache_read_multiplier: Finite | None = None
    effective_input_usd_per_1m: Finite | None = None
    effective_output_usd_per_1m: Finite | None = None
    effective_estimated_cost_usd: Finite | None = None
    capabilities: Abilities = Abilities()


class RouteRequest(_Shape):
    """`POST route`: a turn of an agent, and the models that can carry it out. Its texts are not read."""

    schema_version: Literal["policy_router_v1"] = SCHEMA
    strategy: Name = Field(description="The decision point.")
    execution_mode: Literal["serving", "shadow"] = "serving"
    route_id: Identifier
    client_app: Name | None = None
    requested_model: Name | None = None
    routing_intent: Name | None = None
    turn_type: Name | None = None
    cache_state: Name | None = None
    previous_served_model: Name | None = None
    visible_turn_index: Tokens | None = None
    prior_output_tokens: Tokens | None = None
    session_ever_switched: StrictBool | None = None
    estimated_input_tokens: Tokens = 0
    has_tools: StrictBool = False
    has_images: StrictBool = False
    quality_bias: Finite | None = None
    feedback_key: Annotated[Text, Field(max_length=1000)] | None = None
    training_allowed: StrictBool = False
    candidates: list[RouteCandidate] = Field(min_length=1, max_length=200)

    @property
    def counts(self) -> bool:
        """Whether the decision may be learned."""
        return self.training_allowed and self.execution_mode == "serving"


class RouteOutcome(_Shape):
    """`POST outcome`: how a request ended."""

    strategy: Name
    route_id: Identifier
    training_allowed: StrictBool = False
    selected_served_model_match: StrictBool = True
    error: Text = Field(default="", description="Empty where the request succeeded.")
    cost_usd: Amount | None = None
    route_latency_ms: Amount = 0.0
    upstream_latency_ms: Amount = 0.0


class RouteRating(_Shape):
    """`POST feedback`: what a user thinks of an answer."""

    strategy: Name
    route_id: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9._:-]{0,128}$")] = ""
    training_allowed: StrictBool = False
    rating: Literal["up", "down", ""] = ""
    feedback: Comment = ""
    served_model: Name = ""


class RouteChoice(Reply):
    """The chosen candidate."""

    schema_version: str
    route_id: str
    selected_roster_id: str
    selected_provider: str
    score: float = Field(description="Probability of the chosen candidate.")
    score_kind: str
    candidate_scores: dict[str, float] = Field(description="Roster id to probability.")
    propensity: float
    reason: str = Field(description="How it was drawn.")
    policy_route_key: str = Field(description="The decision point.")
    policy_artifact_id: str = Field(description="The decision point and the version that decided.")
    policy_artifact_sha256: str = Field(description="SHA-256 of the state of that version.")
    roster_version: str = Field(description="SHA-256 of the roster ids that were offered.")
    debug_ref: str = Field(description="Id of the decision.")


class Capabilities(Reply):
    """Which optional parts of the contract are kept."""

    schema_version: str
    reports_outcomes: bool
    reports_feedback: bool
    honors_preferred_models: bool
    honors_quality_price_bias: bool
    supports_debug_route_detail: bool
    supports_preview: bool
    supports_shadow: bool
    reports_ranked_fallback: bool
    authoritative_per_turn_selection: bool


class Probe(Reply):
    """The answer of a probe."""

    status: str


class KeptValues(Reply):
    """How many values were stored of what was reported."""

    kept: int


@router.get(f"{PATH}/livez", **documented("livePolicyRouter", Probe, scopes=("decide",)))
async def live() -> Response:
    """Whether the process answers."""
    return StdlibJson(construct(Probe, status="ok"))


@router.get(f"{PATH}/readyz", **documented("readyPolicyRouter", Probe, scopes=("decide",)))
async def ready(service: AppService) -> Response:
    """Whether a version is loaded, so that a candidate can be chosen."""
    if not service.decides:
        raise ApiError("not_ready", asking.LOADING)
    return StdlibJson(construct(Probe, status="ready"))


@router.get(f"{PATH}/capabilities", **documented("describePolicyRouter", Capabilities, scopes=("decide",)))
async def capabilities() -> Response:
    """Say which optional parts of the contract are kept.

    The choice is the router's model for that turn: another one in its place would not have the propensity
    that is logged.
    """
    reply = construct(
        Capabilities,
        schema_version=SCHEMA,
        reports_outcomes=True,
        reports_feedback=True,
        honors_preferred_models=False,
        honors_quality_price_bias=False,
        supports_debug_route_detail=False,
        supports_preview=False,
        supports_shadow=True,
        reports_ranked_fallback=False,
        authoritative_per_turn_selection=True,
    )
    return StdlibJson(reply)


@router.post(
    f"{PATH}/route",
    **documented(
        "routePolicyRouter",
        RouteChoice,
        *TURN,
        scopes=("decide",),
        success={"headers": responses.DECISION_HEADERS},
        example={
            "schema_version": SCHEMA,
            "strategy": "news",
            "route_id": "2f93b729-8ae2-4d23-889a-d7b59c729790",
            "training_allowed": True,
            "candidates": [
                {"roster_id": "small", "provider": "openai", "effective_input_usd_per_1m": 0.1},
                {"roster_id": "large", "provider": "anthropic", "effective_input_usd_per_1m": 5.0},
            ],
        },
    ),
)
async def route(service: AppService, caller: ServiceCaller, body: RouteRequest) -> Response:
    """Choose one of the candidates; the same `route_id` again gets the same choice."""
    point = ranking.ranking_at(service, body.strategy)
    request = RankRequest(
        point=point.name,
        context=cut(describe_turn(body), point.config.limits.context_text),
        actions=[
            Action(
                id=one.roster_id,
                features=cut(describe_candidate(one, body), point.config.limits.context_text),
            )
            for one in body.candidates
        ],
        episode_id=name_session(body.feedback_key) if body.counts else None,
        defer_activation=not body.counts,
    )
    decision = await ranking.decide(point, caller_at(point, caller), request, body.route_id, None)
    chosen = next(one for one in body.candidates if one.roster_id == decision.drawn)
    version = await asyncio.to_thread(registry_versions.find, point.store, decision.version)
    reply = construct(
        RouteChoice,
        schema_version=SCHEMA,
        route_id=body.route_id,
        selected_roster_id=chosen.roster_id,
        selected_provider=chosen.provider,
        score=decision.propensity,
        score_kind="probability",
        candidate_scores=dict(zip(decision.arms, decision.probabilities, strict=True)),
        propensity=decision.propensity,
        reason=decision.mode.value,
        policy_route_key=point.name,
        policy_artifact_id=f"{point.name}-{decision.version}",
        policy_artifact_sha256="" if version is None else version.digest,
        roster_version=digest_roster(one.roster_id for one in body.candidates),
        debug_ref=decision.id,
    )
    return StdlibJson(reply, headers=responses.headers(decision, None))


@router.post(
    f"{PATH}/outcome",
    **documented(
        "sendPolicyRouterOutcome",
        KeptValues,
        *REFUSALS,
        scopes=("feedback",),
        status=202,
        example={
            "strategy": "news",
            "route_id": "2f93b729-8ae2-4d23-889a-d7b59c729790",
            "training_allowed": False,
            "cost_usd": 0.01,
        },
    ),
)
async def outcome(service: AppService, caller: ServiceCaller, body: RouteOutcome) -> Response:
    """Keep how a request ended, if the model that was chosen answered and its decision may be learned."""
    point = ranking.ranking_at(service, body.strategy)
    seconds = (body.route_latency_ms + body.upstream_latency_ms) / 1000
    values = dict(zip(OUTCOME, (not body.error, body.cost_usd, seconds), strict=True))
    counts = body.training_allowed and body.selected_served_model_match
    items = [
        FeedbackItem(decision_id=body.route_id, metric_name=name, value=value)
        for name, value in values.items()
        if counts and value is not None and name in point.config.reward.metrics
    ]
    return await _keep(point, caller, items)


@router.post(
    f"{PATH}/feedback",
    **documented(
        "sendPolicyRouterFeedback",
        KeptValues,
        *REFUSALS,
        scopes=("feedback",),
        status=202,
        example={
            "strategy": "news",
            "route_id": "2f93b729-8ae2-4d23-889a-d7b59c729790",
            "training_allowed": False,
            "rating": "up",
        },
    ),
)
async def feedback(service: AppService, caller: ServiceCaller, body: RouteRating) -> Response:
    """Keep what a user thinks of an answer, if the model that was chosen wrote it and it may be learned."""
    point = ranking.ranking_at(service, body.strategy)
    if not (body.training_allowed and body.route_id and await _served(point, caller, body)):
        return await _keep(point, caller, [])
    note = body.feedback or None
    if body.rating:
        value = read_thumb(point.config.reward.metric(METRIC), body.rating)
        item = FeedbackItem(decision_id=body.route_id, metric_name=METRIC, value=value, comment=note)
    elif note is None:
        return await _keep(point, caller, [])
    else:
        item = FeedbackItem(decision_id=body.route_id, metric_name=COMMENT, value=note)
    return await _keep(point, caller, [item])


async def _served(point: DecisionPoint, caller: ServiceCaller, body: RouteRating) -> bool:
    """Return whether the model that was rated is the chosen one, as far as both are known."""
    stored = caller_at(point, caller).stored(body.route_id)
    found = await asyncio.to_thread(point.store.record, stored)
    if found is None or found.decision.erased or not body.served_model:
        return True
    return ranking.by_ids(found.decision).drawn == body.served_model


async def _keep(point: DecisionPoint, caller: ServiceCaller, items: list[FeedbackItem]) -> Response:
    sender = FeedbackSender(point, caller_at(point, caller))
    kept = await sender.keep_all(*items) if items else []
    return StdlibJson(construct(KeptValues, kept=len(kept)), 202)


def describe_turn(body: RouteRequest) -> dict[str, Any]:
    """Return the features of a turn; those that the router does not know are None."""
    return {
        "harness": body.client_app,
        "requested": body.requested_model,
        "intent": body.routing_intent,
        "turn": body.turn_type,
        "cache": body.cache_state,
        "before": body.previous_served_model,
        "turns": body.visible_turn_index,
        "switched": body.session_ever_switched,
        "kilotokens_in": body.estimated_input_tokens / 1000,
        "kilotokens_before": None if body.prior_output_tokens is None else body.prior_output_tokens / 1000,
        "tools": body.has_tools,
        "images": body.has_images,
        "quality": body.quality_bias,
    }


def describe_candidate(one: RouteCandidate, body: RouteRequest) -> dict[str, Any]:
    """Return the features of a candidate; `warm` is that it answered before and its cache is warm."""
    window = one.capabilities.context_window
    answered = bool(body.previous_served_model) and one.catalog_id == body.previous_served_model
    return {
        "provider": one.provider,
        "tier": one.capabilities.tier,
        "rank": one.preference_rank,
        "usd_in": one.effective_input_usd_per_1m,
        "usd_out": one.effective_output_usd_per_1m,
        "usd": one.effective_estimated_cost_usd,
        "cached": one.cache_read_multiplier,
        "kilotokens": None if window is None else window / 1000,
        "warm": answered and body.cache_state == "warm",
    }


def cut(features: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return features without empty ones, and with texts of at most a length.

    >>> cut({"a": None, "b": "", "c": "long text", "d": 0.0, "e": False}, 4)
    {'c': 'long', 'd': 0.0, 'e': False}
    """
    return {
        name: value[:length] if isinstance(value, str) else value
        for name, value in features.items()
        if value is not None and value != ""
    }


def digest_roster(names: Iterable[str]) -> str:
    """Return the SHA-256 of names, whatever their order.

    >>> digest_roster(["a", "b"]) == digest_roster(["b", "a"]) != digest_roster(["ab"])
    True
    """
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


def name_session(key: str | None) -> str | None:
    """Return the episode of a session, whose key may be any text; None without one.

    >>> name_session(None), name_session(""), len(name_session("a session") or "")
    (None, None, 32)
    """
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest() if key else None
