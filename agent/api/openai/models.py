"""`/v1/models`: what a client can name as `model`; `/v1/embeddings`: vectors by the encoders of the arms."""

import asyncio
import base64
from collections.abc import Collection
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Path, Response
from numpy.typing import NDArray
from pydantic import Field

from armwise.agent.api.documented import documented
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppService, RequestCaller, RequestPoint
from armwise.agent.api.openai.schemas import EmbeddingRequest
from armwise.agent.api.responses import Json, StdlibJson
from armwise.agent.api.schemas import Name
from armwise.agent.replies import Reply, construct
from armwise.agent.serving import DecisionPoint, Service
from armwise.agent.serving import ask as asking
from armwise.agent.turn import tokens_in
from armwise.feedback.events import Cost

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


class Embedding(Reply):
    """The vector of a text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="A text is base64 of little-endian floats of 32 bits.")


class EmbeddingUsage(Reply):
    """Estimated tokens."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Reply):
    """Vectors, in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@router.get("/v1/models", tags=["service"], **documented("listModels", Models, scopes=("decide", "read")))
async def models(service: AppService) -> Response:
    """What a client can name: `auto`, an arm, the same at other points, and for embeddings a backbone."""
    return StdlibJson(construct(Models, object="list", data=[_model(name) for name in _names(service)]))


@router.get(
    "/v1/models/{model:path}",
    tags=["service"],
    **documented("getModel", Model, "model_not_found", scopes=("decide", "read")),
)
async def model(
    service: AppService, model: Annotated[Name, Path(description="Model id, which may contain a slash.")]
) -> Response:
    """One of them; an arm is `arm/<name>`, a backbone `backbone/<name>`."""
    names = _names(service)
    if model not in names:
        raise ApiError(
            "model_not_found", f"there is no model {model!r}; there are: {', '.join(names)}", "model"
        )
    return StdlibJson(_model(model))


def _names(service: Service) -> list[str]:
    default, *others = service.points.values()
    names = ["auto", *(f"arm/{name}" for name in (*default.turns.arms, *default.arms.stand_ins()))]
    for other in others:
        if not other.ranks:
            point = f"{asking.POINT}{other.name}"
            names += [point, *(f"{point}/arm/{name}" for name in other.turns.arms)]
    return [*names, *(f"backbone/{name}" for name in service.config.backbones)]


def _model(name: str) -> Model:
    return construct(Model, id=name, object="model", created=0, owned_by="armwise")


@router.post(
    "/v1/embeddings",
    tags=["answers"],
    **documented(
        "createEmbedding",
        Embeddings,
        *("model_not_found", "unsupported_parameter"),
        scopes=("decide",),
        example={"model": "backbone/minilm", "input": "What is a heap?"},
    ),
)
async def embeddings(point: RequestPoint, caller: RequestCaller, body: EmbeddingRequest) -> Response:
    """Embed texts as questions are embedded; nothing is decided, and the log gets no row."""
    backbone = _backbone(point.config.backbones, body.model)
    texts = _texts(body, point.config.limits.question_chars)
    tokens = sum(map(tokens_in, texts))
    async with asking.place(point, caller, tokens) as done:
        vectors = await _embedded(point, backbone, texts)
        done(Cost(prompt_tokens=tokens))
    if body.dimensions is not None and body.dimensions != len(vectors[0]):
        message = f"{body.model!r} has {len(vectors[0])} dimensions, and no fewer can be had"
        raise ApiError("unsupported_parameter", message, "dimensions")
    packed = body.encoding_format == "base64"
    data = [
        construct(
            Embedding,
            object="embedding",
            index=i,
            embedding=_base64(vector) if packed else vector.tolist(),
        )
        for i, vector in enumerate(vectors)
    ]
    usage = construct(EmbeddingUsage, prompt_tokens=tokens, total_tokens=tokens)
    return Json(construct(Embeddings, object="list", data=data, model=body.model, usage=usage))


def _backbone(backbones: Collection[str], model: str) -> str:
    """Return the backbone that a model names, as `backbone/minilm` or `minilm`. Raises ApiError."""
    name = model.removeprefix("backbone/")
    if name not in backbones:
        names = ", ".join(f"backbone/{name}" for name in backbones) or "none"
        raise ApiError("model_not_found", f"{model!r} is not an embedding model; there are: {names}", "model")
    return name


def _texts(body: EmbeddingRequest, limit: int) -> list[str]:
    """Return the texts of a request, each of at most `limit` characters. Raises ApiError."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    for i, text in enumerate(texts):
        param = "input" if isinstance(body.input, str) else f"input.{i}"
        if not isinstance(text, str):
            message = f"{param}: a text was expected; tokens are of another model's vocabulary"
            raise ApiError("unsupported_parameter", message, "input")
        if not text.strip() or len(text) > limit:
            message = f"{param} has {len(text)} characters; a text of 1 to {limit} was expected"
            raise ApiError("invalid_value", message, param)
    return texts


async def _embedded(point: DecisionPoint, backbone: str, texts: list[str]) -> list[NDArray[np.float32]]:
    """Return a unit vector for each text. Raises ApiError."""
    limit_s = point.config.limits.arm_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            embedded = await asyncio.gather(
                *(point.turns.embed(text, frozenset({backbone})) for text in texts)
            )
    except TimeoutError:
        raise ApiError("not_ready", f"no embeddings by {backbone!r} within {limit_s:g} s") from None
    return [vectors[backbone] for vectors in embedded]


def _base64(vector: NDArray[np.float32]) -> str:
    """Return a vector as the bytes of little-endian floats of 32 bits, in base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
