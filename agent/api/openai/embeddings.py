"""`/v1/embeddings`: vectors of texts by the encoders of the arms."""

import asyncio
import base64

import numpy as np
from fastapi import APIRouter, Response
from numpy.typing import NDArray

from agent.api import admission, responses
from agent.api.documented import documented
from agent.api.errors import ApiError
from agent.api.middleware import AppReplica, RequestCaller
from agent.api.openai.schemas import EmbeddingRequest
from agent.api.replies import openai
from agent.config import AppConfig
from agent.serving import Replica, execution
from feedback.events import Cost

router = APIRouter(tags=["answers"])


@router.post(
    "/v1/embeddings",
    **documented(
        "createEmbedding",
        openai.Embeddings,
        *("model_not_found", "unsupported_parameter"),
        scopes=("decide",),
        example={"model": "backbone/minilm", "input": "What is a heap?"},
    ),
)
async def embeddings(replica: AppReplica, caller: RequestCaller, body: EmbeddingRequest) -> Response:
    """Embed texts as questions are embedded; nothing is decided, and the log gets no row."""
    backbone, texts = _backbone(replica.config, body.model), _texts(replica.config, body)
    tokens = sum(map(execution.tokens_in, texts))
    async with admission.place(replica, caller, tokens) as done:
        vectors = await _embedded(replica, backbone, texts)
        done(Cost(prompt_tokens=tokens))
    if body.dimensions is not None and body.dimensions != len(vectors[0]):
        message = f"{body.model!r} has {len(vectors[0])} dimensions, and no fewer can be had"
        raise ApiError("unsupported_parameter", message, "dimensions")
    packed = body.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": i, "embedding": _base64(vector) if packed else vector.tolist()}
        for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return responses.Json({"object": "list", "data": data, "model": body.model, "usage": usage})


def _backbone(config: AppConfig, model: str) -> str:
    """Return the backbone that a model names. Raises ApiError."""
    prefix, _, name = model.partition("/")
    if prefix != "backbone" or name not in config.backbones:
        known = ", ".join(f"backbone/{name}" for name in config.backbones) or "none"
        raise ApiError("model_not_found", f"{model!r} is not an embedding model; there are: {known}", "model")
    return name


def _texts(config: AppConfig, body: EmbeddingRequest) -> list[str]:
    """Return the texts of a request. Raises ApiError."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    limit = config.limits.question_chars
    for i, text in enumerate(texts):
        param = "input" if isinstance(body.input, str) else f"input.{i}"
        if not isinstance(text, str):
            message = f"{param}: a text was expected; tokens are of another model's vocabulary"
            raise ApiError("unsupported_parameter", message, "input")
        if not text.strip() or len(text) > limit:
            message = f"{param} has {len(text)} characters; a text of 1 to {limit} was expected"
            raise ApiError("invalid_value", message, param)
    return texts


async def _embedded(replica: Replica, backbone: str, texts: list[str]) -> list[NDArray[np.float32]]:
    """Return a unit vector for each text. Raises ApiError."""
    limit_s = replica.config.limits.arm_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            found = await asyncio.gather(
                *(replica.turns.embed(text, frozenset({backbone})) for text in texts)
            )
    except TimeoutError:
        raise ApiError("not_ready", f"no embeddings by {backbone!r} within {limit_s:g} s") from None
    return [vectors[backbone] for vectors in found]


def _base64(vector: NDArray[np.float32]) -> str:
    """Return a vector as the bytes of little-endian floats of 32 bits, in base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
