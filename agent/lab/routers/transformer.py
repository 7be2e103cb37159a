"""LTRR's transformer: a text model encodes the question, and a network scores the arms."""

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from armwise.agent.lab.routers.ltrr import Neural
from armwise.agent.lab.routers.optimizer import Descent, on_threads
from armwise.agent.lab.routers.ranking_targets import NetworkTarget, Pairs, Points, Ranking
from armwise.agent.routers.base import IdentityParameters, Schema, State
from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset
from armwise.arms import extras
from armwise.arms.models import Backbone, LocalModel, compute_cores, digest_backbone

if TYPE_CHECKING:
    from armwise.agent.lab.routers.neural.ltrr_training import FeedForward, FitExamples
    from armwise.agent.lab.routers.neural.text_encoder import TextReader


TUNED = "reader."
"""Prefix of the names of the text model's fitted parameters."""


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
    train_layers: int = Field(
        0,
        ge=0,
        description=(
            "Number of the text model's last layers to fine-tune, together with its word embeddings, after "
            "the network is trained. 0 leaves the text model as it is."
        ),
    )
    dims: int = Field(
        0, ge=0, description="Number of the embedding's principal components that the network also reads."
    )


class Transformer(Neural[TransformerParameters]):
    """Scores arms by a text model that reads the question, and by the features of the arms.

    The inputs of the network are the text model's pooled output, scaled to mean 0 and variance 1, the named
    features of the question, the features of an arm (a learned vector in place of missing ones), and the code
    of the arm. First the network is fitted over the frozen text model. With `train_layers`, the network, the
    last layers and the word embeddings are then fitted together, in small steps: a network that knows nothing
    yet would spoil what the text model knows. It runs on CUDA if available.

    Raises:
        ModelNotFoundError: When it is fitted or loaded, the model is not found.

    Source: Kim and Diaz 2025, LTRR: Learning to rank retrievers for LLMs, arXiv:2506.13743, the DeBERTa
    models; Kumar et al. 2022, Fine-tuning can distort pretrained features and underperform
    out-of-distribution, arXiv:2202.10054, for the two steps.
    """

    kind = "transformer"
    example: ClassVar = {"model": "microsoft/deberta-v3-base"}
    Params = TransformerParameters
    hidden = (256,)
    tuning: ClassVar[Descent] = Descent(learning_rate=2e-5, epochs=3, at_once=16)
    """How the last layers are fitted together with the network."""
    _reader: "TextReader"

    def _fit(self, labels: RoutingDataset) -> None:
        self._reader = self._load()
        super()._fit(labels)

    def _load(self) -> "TextReader":
        with extras.explain_missing():
            from armwise.agent.lab.routers.neural.text_encoder import ScaledReader

        reader = ScaledReader(self.chosen.model)
        if self.chosen.train_layers:
            reader.free_last(self.chosen.train_layers)
        return reader

    def _tune(self, network: "FeedForward", examples: "FitExamples", labels: RoutingDataset) -> None:
        if not self.chosen.train_layers:
            return
        from torch import nn

        from armwise.agent.lab.routers.neural.ltrr_training import ReadExamples

        read = ReadExamples(
            examples.question, examples.own, examples.utility, self._reader, labels.features.texts
        )
        both = nn.ModuleList([self._reader, network])
        with on_threads(len(compute_cores())):
            self.tuning.run(both, self._target.losses(network, read), self._target.questions(labels))

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
        tuned = {f"{TUNED}{name}": value for name, value in self._reader.state().items()}
        digest = np.frombuffer(self._digest().encode(), dtype=np.uint8)
        return {**super()._state(), **tuned, "model": digest}

    def _restore(self, schema: Schema, state: State) -> None:
        if state["model"].tobytes().decode() != self._digest():
            raise RouterError(f"model {self.chosen.model!r} is not the one that the router was fitted with")
        super()._restore(schema, state)
        self._reader = self._load()
        self._reader.restore({name.removeprefix(TUNED): value for name, value in state.items()})
