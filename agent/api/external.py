"""`POST /v1/decisions`: choose among arms of another system, which the caller carries out."""

from contextlib import aclosing

from fastapi import APIRouter, Response

from armwise.agent.access import Caller
from armwise.agent.api import request_fields, responses
from armwise.agent.api.documented import TURN, document_route, link
from armwise.agent.api.doors import Door
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.schemas import DecisionRequest, IdempotencyKey, Timeout
from armwise.agent.replies import ArmChoice, construct
from armwise.agent.serving import Replica, admission
from armwise.agent.turn import Ask
from armwise.feedback.events import Decision

router = APIRouter(tags=["decisions"], route_class=Door)


@router.post(
    "/v1/decisions",
    **document_route(
        "decide",
        ArmChoice,
        *TURN,
        scopes=("decide",),
        success={
            "headers": responses.HEADERS,
            **link("getDecision", decision_id="$response.body#/decision_id"),
        },
        example={"question": "Multiply 12 by 7.", "incumbent": {"arm": "large"}},
    ),
)
async def decide(
    replica: AppReplica,
    caller: RequestCaller,
    body: DecisionRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Choose among arms that your own system runs, given the arm that it would take.

    Report the outcome with `POST /v1/observations` and the decision's id.
    """
    decision = await choose(replica, caller, body, key, timeout_s)
    reply = construct(
        ArmChoice,
        object="decision",
        decision_id=decision.id,
        episode_id=decision.episode_id,
        policy_version=decision.version,
        mode=decision.mode.value,
        chosen=decision.drawn,
        propensity=decision.propensity,
        pmf=dict(zip(decision.arms, decision.probabilities, strict=True)),
        reward_deadline=decision.deadline,
    )
    return responses.Json(reply, headers=responses.headers(decision, decision.drawn))


async def choose(
    replica: Replica, caller: Caller, body: DecisionRequest, key: str | None, timeout_s: float | None
) -> Decision:
    """Return the decision among arms that the caller carries out. Raises ApiError."""
    if not replica.config.external:
        raise ApiError(
            "invalid_value",
            "this service runs its arms itself: send the question to /v1/retrieve or /v1/chat/completions",
        )
    question = request_fields.check_question(body.question, replica, "question")
    incumbent, tap = request_fields.read_incumbent(replica, body.incumbent, "incumbent"), replica.config.tap
    if not incumbent and tap is not None and tap.incumbent is None and tap.asks_caller:
        message = (
            f'the caller\'s own choice was expected, as `tap.share` is {tap.share:g}: {{"arm": "<name>"}}'
        )
        raise ApiError("invalid_value", message, "incumbent")
    ask = Ask(
        decision_id=caller.to_stored_id(key) if key else caller.new_id(),
        question=question,
        allowed=None if body.allowed_arms is None else frozenset(body.allowed_arms),
        excluded=frozenset(body.excluded_arms),
        explore=body.explore,
        context=request_fields.check_context(body.context, replica, "context"),
        episode_id=body.episode_id and caller.to_stored_id(body.episode_id, "episode"),
        deferred=body.defer_activation,
        request_digest=request_fields.digest_request(body) if key else "",
        user_digest=request_fields.user_digest(replica, caller, body.user),
        steps=incumbent,
        external=True,
    )
    events = admission.stream_turn(replica, caller, ask, key, timeout_s)
    async with aclosing(events):
        return (await admission.read_decided(events)).decision
