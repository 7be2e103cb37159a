"""`/v1/models`: what a client can name as `model`."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Response

from armwise.agent.api.documented import document_route
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import Name
from armwise.agent.config import DIALS
from armwise.agent.replies import Reply, construct
from armwise.agent.serving import Replica

router = APIRouter()


class Model(Reply):
    """A name that a client can send as `model`."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(Reply):
    """The names that a client can send as `model`."""

    object: Literal["list"]
    data: list[Model]


@router.get("/v1/models", tags=["service"], **document_route("listModels", Models, scopes=("decide", "read")))
async def models(replica: AppReplica) -> Response:
    """List what a client can send as `model`: `auto`, an arm, or an alias that does not end with `*`.

    An arm whose source is out of reach is left out. `auto:cheap` and `auto:best` are listed if cost counts in
    the reward.
    """
    return StdlibJson(construct(Models, object="list", data=[_model(name) for name in _names(replica)]))


@router.get(
    "/v1/models/{model:path}",
    tags=["service"],
    **document_route("getModel", Model, "model_not_found", scopes=("decide", "read")),
)
async def model(
    replica: AppReplica, model: Annotated[Name, Path(description="Model id, which may contain a slash.")]
) -> Response:
    """Return one model, or a name that an alias with `*` accepts; an arm is `arm/<name>`."""
    names = _names(replica)
    if why := _away(replica).get(replica.config.find_alias(model) or model):
        raise ApiError("model_not_found", f"{model!r} is out for now: {why}", "model")
    if model not in names and replica.config.find_alias(model) is None:
        raise ApiError(
            "model_not_found",
            f"there is no model {model!r}; available: {', '.join(names)}. To accept this name, add it to "
            "`aliases` in the configuration",
            "model",
        )
    return StdlibJson(_model(model))


def _away(replica: Replica) -> dict[str, str]:
    """Return why arms are not offered, by the names of their models."""
    return {f"arm/{name}": why for name, why in replica.health.away.items()}


def _names(replica: Replica) -> list[str]:
    away = _away(replica)
    arms = (f"arm/{name}" for name in (*replica.turns.arms, *replica.arms.stand_ins()))
    dials = DIALS if replica.config.counts_cost else ()
    aliases = (name for name, target in replica.config.aliases.items() if target not in away)
    names = (*arms, *(name for name in aliases if not name.endswith("*")))
    return ["auto", *dials, *(name for name in names if name not in away)]


def _model(name: str) -> Model:
    return construct(Model, id=name, object="model", created=0, owned_by="armwise")
