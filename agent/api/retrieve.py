"""`/v1/retrieve`: passages without an answer."""

from fastapi import APIRouter, Response

from armwise.agent.api import responses
from armwise.agent.api.documented import TURN, document_route, link
from armwise.agent.api.doors import Door
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.request_fields import check_ask
from armwise.agent.api.schemas import IdempotencyKey, RetrieveRequest, Timeout
from armwise.agent.replies import Retrieval, construct
from armwise.agent.serving import admission
from armwise.arms.llm import writing

router = APIRouter(tags=["answers"], route_class=Door)


@router.post(
    "/v1/retrieve",
    **document_route(
        "retrieve",
        Retrieval,
        *TURN,
        scopes=("decide",),
        success={
            "headers": responses.HEADERS,
            **link("activateDecision", decision_id="$response.header.x-decision-id"),
        },
        example={"query": "Which function merges sorted inputs lazily?", "k": 4},
    ),
)
async def retrieve(
    replica: AppReplica,
    caller: RequestCaller,
    body: RetrieveRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Decide and retrieve, without the language model."""
    k = body.k
    if k is not None and k > writing.MOST_PASSAGES:
        message = f"k is {k}; at most {writing.MOST_PASSAGES} passages can be requested"
        raise ApiError("invalid_value", message, "k")
    ask = check_ask(replica, caller, body.query, body.model, body.agent, key, "query", sent=body, k=k)
    decided, _, finished = await admission.read_to_end(
        admission.stream_turn(replica, caller, ask, key, timeout_s)
    )
    returns = {*body.agent.returns} - {"passages"}
    reply = construct(
        Retrieval,
        object="retrieval",
        model=f"arm/{decided.served}",
        passages=responses.passages(decided.retrieval.passages),
        agent=responses.agent(decided, finished, replica.config.reward.cost, returns),
    )
    return responses.Json(reply, headers=responses.headers(decided.decision, decided.served, finished))
