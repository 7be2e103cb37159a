"""`/v1/retrieve`: passages without an answer."""

from fastapi import APIRouter, Request, Response
from pydantic import TypeAdapter

from armwise.agent.api import plain, responses
from armwise.agent.api.ask_checks import check_ask
from armwise.agent.api.documented import TURN, document_route, link
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.schemas import IdempotencyKey, RetrieveRequest, Timeout
from armwise.agent.replies import Retrieval, construct
from armwise.agent.serving import ask as asking
from armwise.arms.llm import writing

router = APIRouter(tags=["answers"])

SUCCESS = {
    "headers": responses.HEADERS,
    **link("activateDecision", decision_id="$response.header.x-decision-id"),
}
"""What the document says of a retrieval besides its model."""

_BODY = TypeAdapter(RetrieveRequest)


async def _serve(request: Request) -> Response:
    replica, caller = plain.read_caller(request, "decide")
    key, timeout_s = plain.read_key(request), plain.read_timeout(request)
    return await retrieve(replica, caller, await plain.read_body(request, _BODY), key, timeout_s)


plain.add_route(router, "/v1/retrieve", _serve)


@router.post(
    "/v1/retrieve",
    **document_route(
        "retrieve",
        Retrieval,
        *TURN,
        scopes=("decide",),
        success=SUCCESS,
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
    decided, _, finished = await asking.read_to_end(asking.stream_turn(replica, caller, ask, key, timeout_s))
    returns = {*body.agent.returns} - {"passages"}
    reply = construct(
        Retrieval,
        object="retrieval",
        model=f"arm/{decided.served}",
        passages=responses.passages(decided.retrieval.passages),
        agent=responses.agent(decided, finished, replica.config.reward.cost, returns),
    )
    return responses.Json(reply, headers=responses.headers(decided.decision, decided.served, finished))
