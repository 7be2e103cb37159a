"""`/v1/models`: what a client can name as `model`."""

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse

from agent.api import asking
from agent.api.documented import documented
from agent.api.errors import ApiError
from agent.api.middleware import ServiceReplica
from agent.api.replies import service
from agent.api.schemas import Name
from agent.serving import Replica

router = APIRouter(tags=["service"])


@router.get("/v1/models", **documented("listModels", service.Models, scopes=("decide", "read")))
async def models(replica: ServiceReplica) -> JSONResponse:
    """What a client can name: `auto`, an arm, the same at other points, and for embeddings a backbone."""
    return JSONResponse({"object": "list", "data": [_model(name) for name in _names(replica)]})


@router.get(
    "/v1/models/{model:path}",
    **documented("getModel", service.Model, "model_not_found", scopes=("decide", "read")),
)
async def model(
    replica: ServiceReplica, model: Annotated[Name, Path(description="Model id, which may contain a slash.")]
) -> JSONResponse:
    """One of them; an arm is `arm/<name>`, a backbone `backbone/<name>`."""
    names = _names(replica)
    if model not in names:
        raise ApiError(
            "model_not_found", f"there is no model {model!r}; there are: {', '.join(names)}", "model"
        )
    return JSONResponse(_model(model))


def _names(replica: Replica) -> list[str]:
    names = ["auto", *(f"arm/{name}" for name in replica.turns.arms)]
    for other in replica.others:
        if not other.ranks:
            point = f"{asking.POINT}{other.point}"
            names += [point, *(f"{point}/arm/{name}" for name in other.turns.arms)]
    return [*names, *(f"backbone/{name}" for name in replica.config.backbones)]


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "armwise"}
