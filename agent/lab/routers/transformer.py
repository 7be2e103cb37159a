"""LTRR's transformer: a text model encodes the question, and a network scores the arms."""

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from armwise.agent.lab.routers.ltrr import Neural
from armwise.agent.lab.routers.ranking_targets import NetworkTarget, Pairs, Points, Ranking
from armwise.agent.routers.base import IdentityParameters, Schema, State
from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset
from armwise.arms import extras
from armwise.arms.models import Backbone, LocalModel, digest_backbone

if TYPE_CHECKING:
    from armwise.agent.lab.routers.neural.text_encoder import TextReader


class TransformerParameters(IdentityParameters):
    """The text model, and the loss of the network over its output."""

    model: LocalModel = Field(
        description=(
            "Text model: a hub name (LTRR uses microsoft/deberta-v3-base), a folder, or `package:NAME/PATH`."
        )
    )
    loss: Literal["listwise", "pointwise", "pairwise"] = Field(
        "listwise",
        description=(
            "Loss to train with. `listwise`: as in `listnet`. `pointwise`: as in `pointwise_ffn`. "
            "`pairwise`: as in `pairwise_ffn`."
        ),
    )
    dims: int = Field(
        0, ge=0, description="Number of the embedding's principal components that the network also reads."
    )


class Transformer(Neural[TransformerParameters]):
    """Scores arms by a text model that reads the question, and by the features of the arms.

    The inputs of the network are the text model's pooled output, scaled to mean 0 and variance 1, the named
    features of the question, the features of an arm (a learned vector in place of missing ones), and the code
    of the arm. The text model is frozen, and runs on CUDA if available.

    Raises:
        ModelNotFoundError: When it is fitted or loaded, the model is not found.

    Source: Kim and Diaz 2025, LTRR: Learning to rank retrievers for LLMs, arXiv:2506.13743, the DeBERTa
    models.
    """

    kind = "transformer"
    example: ClassVar = {"model": "microsoft/deberta-v3-base"}
    Params = TransformerParameters
    hidden = (256,)
    _reader: "TextReader"

    def _fit(self, labels: RoutingDataset) -> None:
        self._reader = self._load()
        super()._fit(labels)

    def _load(self) -> "TextReader":
        with extras.explain_missing():
            from armwise.agent.lab.routers.neural.text_encoder import ScaledReader

        return ScaledReader(self.chosen.model)

    @property
    def _target(self) -> NetworkTarget:
        match self.chosen.loss:
            case "listwise":
                return Ranking()
            case "pointwise":
                return Points()
            case "pairwise":
                return Pairs()

    def _prepare_question(self, features: Features) -> Floats:
        return np.hstack([self._reader.read(features.texts), super()._prepare_question(features)])

    def _digest(self) -> str:
        return digest_backbone(Backbone.model_validate({"model": self.chosen.model, "runtime": "torch"}))

    def _state(self) -> State:
        return {**super()._state(), "model": np.frombuffer(self._digest().encode(), dtype=np.uint8)}

    def _restore(self, schema: Schema, state: State) -> None:
        if state["model"].tobytes().decode() != self._digest():
            raise RouterError(f"model {self.chosen.model!r} is not the one that the router was fitted with")
        super()._restore(schema, state)
        self._reader = self._load()
