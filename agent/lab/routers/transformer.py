"""LTRR's transformer: a text model encodes the question, and a network scores the arms."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from armwise.agent.lab.routers.ltrr import Neural, NeuralParameters
from armwise.agent.lab.routers.optimizer import Descent, on_threads, seeded
from armwise.agent.lab.routers.ranking_targets import NetworkTarget, Pairs, Points, Ranking
from armwise.agent.routers.base import Schema, State
from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset
from armwise.arms.models import Backbone, LocalModel, compute_cores, digest_backbone
from armwise.number import Number

if TYPE_CHECKING:
    from armwise.agent.lab.routers.neural.ltrr_training import FeedForward, FitExamples
    from armwise.agent.lab.routers.neural.text_encoder import TextReader

PREFIX = "reader."
"""Prefix of the names of the arrays of the text model."""


class TransformerParameters(NeuralParameters):
    """The text model, the layers of it that are fitted, and the network over its output."""

    model: LocalModel = Field(
        description="Hub name (LTRR has microsoft/deberta-v3-base), folder, or `package:NAME/PATH`."
    )
    loss: Literal["listwise", "pointwise", "pairwise"] = Field(
        "listwise",
        description="Loss: cross-entropy of the list as in `listnet`, the squared error as in "
        "`pointwise_ffn`, or cross-entropy of which arm of a pair is better as in `pairwise_ffn`, over all "
        "pairs.",
    )
    train_layers: int = Field(
        0,
        ge=0,
        description="Number of last layers of the text model that are fitted after the network; 0 freezes "
        "the model.",
    )
    tuning_epochs: int = Field(
        3, ge=1, description="Passes over the questions in which those layers are fitted."
    )
    tuning_rate: Number = Field(2e-5, gt=0.0, description="Learning rate of AdamW for those layers.")
    max_length: int | None = Field(
        None, ge=8, description="Tokens of a question that are read; null is the model's own limit."
    )
    at_once: int = Field(16, ge=1, description="Questions that are read together, as memory allows.")
    dims: int = Field(
        0, ge=0, description="Principal components of the embedding among the inputs of the network."
    )
    hidden: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = Field(
        [256], description="Units of each hidden layer of the network."
    )


class Transformer(Neural[TransformerParameters]):
    """Scores arms by a text model's vector of the question, and by the features of the arms.

    The inputs of the network are the text model's pooled output, scaled to mean 0 and variance 1, the named
    features of the question, the features of an arm (a learned vector in place of missing ones), and the code
    of the arm. The network is fitted first, with the text model frozen. Then, if layers are to be fitted, the
    network and these together, at a small learning rate: an unfitted network would distort the model's
    features. It runs on CUDA if available.

    Raises:
        ModelNotFoundError: When it is fitted or loaded, the model is not found.

    Source: Kim and Diaz 2025, LTRR: Learning to rank retrievers for LLMs, arXiv:2506.13743, the DeBERTa
    models; Kumar et al. 2022, Fine-tuning can distort pretrained features and underperform
    out-of-distribution, arXiv:2202.10054, for the two steps.
    """

    kind = "transformer"
    example: ClassVar = {"model": "microsoft/deberta-v3-base"}
    Params = TransformerParameters
    _reader: "TextReader"

    def _fit(self, labels: RoutingDataset) -> None:
        with seeded(self.chosen.seed):
            self._reader = self._load()
        super()._fit(labels)

    def _load(self) -> "TextReader":
        from armwise.agent.lab.routers.neural.text_encoder import ScaledReader

        reader = ScaledReader(self.chosen.model, self.chosen.at_once, self.chosen.max_length)
        reader.free_last(self.chosen.train_layers)
        return reader

    def _descend(self, network: "FeedForward", examples: "FitExamples", labels: RoutingDataset) -> None:
        super()._descend(network, examples, labels)
        chosen = self.chosen
        if not chosen.train_layers:
            return
        from torch import nn

        from armwise.agent.lab.routers.neural.ltrr_training import Reading

        reading = Reading(
            examples.question, examples.own, examples.utility, self._reader, labels.features.texts
        )
        descent = Descent(
            chosen.model_copy(update={"epochs": chosen.tuning_epochs}),
            chosen.batch_size, chosen.tuning_rate, chosen.at_once,
        )  # fmt: skip
        both = nn.ModuleList([self._reader, network])
        with on_threads(len(compute_cores())):
            descent.run(both, self._target.losses(network, reading), self._target.questions(labels))

    @property
    def _target(self) -> NetworkTarget:
        match self.chosen.loss:
            case "listwise":
                return Ranking()
            case "pointwise":
                return Points()
            case "pairwise":
                return Pairs(None, self.chosen.seed)

    def _of_question(self, features: Features) -> Floats:
        return np.hstack([self._reader.read(features.texts), super()._of_question(features)])

    def _digest(self) -> str:
        return digest_backbone(Backbone.model_validate({"model": self.chosen.model, "runtime": "torch"}))

    def _state(self) -> State:
        tuned = {f"{PREFIX}{name}": value for name, value in self._reader.state().items()}
        digest = np.frombuffer(self._digest().encode(), dtype=np.uint8)
        return {**super()._state(), **tuned, "model": digest}

    def _restore(self, schema: Schema, state: State) -> None:
        if state["model"].tobytes().decode() != self._digest():
            raise RouterError(f"model {self.chosen.model!r} is not the one that the router was fitted with")
        super()._restore(schema, state)
        with seeded(self.chosen.seed):
            self._reader = self._load()
        self._reader.restore(
            {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}
        )
