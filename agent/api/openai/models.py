"""`/v1/models`: what a client can name as `model`."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from agent.api.errors import RESPONSES, ApiError
from agent.api.middleware import AppReplica, require
from agent.api.schemas import Name
from agent.serving import Replica

router = APIRouter(responses=RESPONSES)


@router.get("/v1/models", dependencies=[require("decide", "read")])
async def models(replica: AppReplica) -> JSONResponse:
    """The models that a client can name: `auto`, an arm, and for embeddings a backbone."""
    return JSONResponse({"object": "list", "data": [_model(name) for name in _names(replica)]})


@router.get("/v1/models/{model:path}", dependencies=[require("decide", "read")])
async def model(replica: AppReplica, model: Name) -> JSONResponse:
    """One of them; an arm is `arm/<name>`, a backbone `backbone/<name>`."""
    names = _names(replica)
    if model not in names:
        raise ApiError(
            "model_not_found", f"there is no model {model!r}; there are: {', '.join(names)}", "model"
        )
    return JSONResponse(_model(model))


def _names(replica: Replica) -> list[str]:
    arms = (f"arm/{name}" for name in replica.turns.arms)
    return ["auto", *arms, *(f"backbone/{name}" for name in replica.config.backbones)]


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "armwise"}
