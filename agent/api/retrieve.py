"""`/v1/retrieve`: passages without an answer."""

from fastapi import APIRouter, Response

from agent.api import asking, responses
from agent.api.errors import RESPONSES, ApiError
from agent.api.middleware import AppReplica, RequestCaller, require
from agent.api.schemas import IdempotencyKey, RetrieveRequest, Timeout

router = APIRouter(responses=RESPONSES)


@router.post("/v1/retrieve", dependencies=[require("decide")])
async def retrieve(
    replica: AppReplica,
    caller: RequestCaller,
    body: RetrieveRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Decide and retrieve, without the language model."""
    replica, caller = asking.at_model(replica, caller, body.model)
    k = body.k or replica.config.answering.passages
    if k > replica.config.limits.passages:
        message = f"k is {k}; at most {replica.config.limits.passages} passages can be requested"
        raise ApiError("invalid_value", message, "k")
    ask = asking.ask_of(replica, caller, body.query, body, key, k=k, param="query")
    decided, _, finished = await asking.whole(asking.events_of(replica, caller, ask, key, timeout_s))
    return responses.retrieval(decided, finished, replica.config, body.agent.returns)
