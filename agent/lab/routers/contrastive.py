"""The router of Retriever Portfolios: the cosine of a vector of the question and a vector of the arm."""

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from armwise.agent.lab.routers.optimizer import Descent, Rows, choice_losses, on_threads, seed_torch
from armwise.agent.routers.base import Parameters, Parametrised, Schema, State
from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset, positions
from armwise.arms.models import Backbone, Embedder, LocalModel, build_embedder

if TYPE_CHECKING:
    from torch import Tensor, nn

Inputs = list[NDArray[np.float32]]

WIDTH = 256
"""Units of a hidden layer."""

DROPOUT = 0.1
"""Share of the units that are dropped in a step."""

MOST_WINNERS = 3
"""Largest number of tied best arms of a training question by the loss `mean`, as in the paper."""

EPSILON = 1e-5
"""Constant that layer normalisation adds to the variance."""


class ContrastiveParameters(Parameters):
    """What the network reads, and its loss."""

    encoder: LocalModel | None = Field(
        None,
        description=(
            "Frozen text encoder: a hub name (the paper uses google/flan-t5-large), a folder, "
            "`package:NAME/PATH` or `hashing:DIM`. Null uses only the question's embedding."
        ),
    )
    backbones: tuple[Backbone, ...] = Field(
        (),
        strict=False,
        description="Further sentence encoders, each with its `query_prefix`.",
    )
    loss: Literal["any", "mean"] = Field(
        "any",
        description=(
            "What the network learns to choose if several arms are tied for best. `any`: any one of them. "
            "`mean`: all of them equally, as in the paper. `mean` learns only from questions with a "
            "score above 0 and at most three tied best arms."
        ),
    )


class Contrastive(Parametrised[ContrastiveParameters]):
    """Scores an arm by the cosine between a vector of the question and a vector of the arm.

    Each input (the vectors of the frozen text encoder and of further sentence encoders, the embedding) goes
    through Linear, ReLU, dropout and layer norm to 256 numbers; these, side by side, through two more
    such blocks. A fitted router needs numpy alone, besides the encoders.

    There are two losses. The paper's, `loss: mean`, is minus the mean of the
    log-probabilities of the arms that tie for the best. It asks for every one of them, and leaves out
    questions without a score above 0 or with many winners. The default, `loss: any`, asks for any of them,
    and leaves out questions on which no arms differ. With one winner the losses are equal.

    Unlike in the paper, there is one embedding and no encoder unless others are named; the text encoder's
    vector is mean-pooled unless its folder sets another pooling, and normalised; and the epoch is chosen by
    the held-out loss, not by the recall.

    Raises:
        ModelNotFoundError: When it is fitted or loaded, an encoder is not found.

    Source: Retriever Portfolios: A Principled Approach to Adaptive RAG (2026), arXiv:2605.31176, appendix
    B.9; the loss after Chen et al. 2024, RouterDC, arXiv:2409.19886.
    """

    kind = "contrastive"
    Params = ContrastiveParameters
    descent: ClassVar[Descent] = Descent(learning_rate=3e-4, weight_decay=0.0)
    """How it is fitted; the cosines are not scaled in the loss, as in the published code."""
    _encoders: list[Embedder]
    _weights: dict[str, NDArray[np.float32]]

    def _fit(self, labels: RoutingDataset) -> None:
        import torch
        from torch import Tensor

        chosen, right = self.chosen, winners(labels.utility)
        # the paper's loss learns from ties of all arms, too
        used = labels.telling
        if chosen.loss == "mean":
            used = (labels.utility > 0.0).any(axis=1) & (right.sum(axis=1) <= MOST_WINNERS)
        if not used.any():
            raise RouterError(f"every question with a score above 0 has more than {MOST_WINNERS} best arms")
        right, known = right[used], ~np.isnan(labels.utility[used])
        self._encoders = self._load()
        inputs = [torch.from_numpy(values) for values in self._inputs(labels.features.rows(used))]
        with seed_torch(self.descent.seed), on_threads(1):
            network = _network([rows.shape[1] for rows in inputs], n_arms=right.shape[1])

            def losses(at: Rows) -> Tensor:
                near = cosines(network, [rows[at] for rows in inputs])
                return choice_losses(near, right[at], known[at], chosen.loss)

            self.descent.run(network, losses, np.arange(len(right)))
        self._weights = {name: value.numpy() for name, value in network.state_dict().items()}
        self._weights["arms.weight"] = _unit(self._weights["arms.weight"])

    def _scores(self, features: Features) -> Floats:
        blocks = [self._block(f"input{at}", values) for at, values in enumerate(self._inputs(features))]
        question = _unit(self._block("fusion1", self._block("fusion0", np.hstack(blocks))))
        at = positions(self._fitted.arms, features.arms)
        return np.asarray(question @ self._weights["arms.weight"][at].T, dtype=np.float64)

    def _block(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Apply Linear, ReLU and layer norm."""
        weights = self._weights
        hidden = np.maximum(values @ weights[f"{name}.0.weight"].T + weights[f"{name}.0.bias"], 0.0)
        hidden -= hidden.mean(axis=1, keepdims=True)
        hidden /= np.sqrt((hidden * hidden).mean(axis=1, keepdims=True) + np.float32(EPSILON))
        normed: NDArray[np.float32] = hidden * weights[f"{name}.3.weight"] + weights[f"{name}.3.bias"]
        return normed

    def _inputs(self, features: Features) -> Inputs:
        inputs = []
        for encoder in self._encoders:
            # `encode_passages` uses all threads, `encode_queries` one, as others are served meanwhile
            encode = encoder.encode_queries if len(features) == 1 else encoder.encode_passages
            inputs.append(encode(features.texts))
        if features.embedding.shape[1]:
            inputs.append(features.embedding)
        if not inputs:
            raise RouterError("router 'contrastive' needs the questions' embeddings, or an encoder")
        return inputs

    def _load(self) -> list[Embedder]:
        """Load the encoders, for which a question is a query whichever way it is encoded."""
        models = [*self.chosen.backbones]
        if self.chosen.encoder is not None:
            models.insert(0, Backbone.model_validate({"model": self.chosen.encoder}))
        return [
            build_embedder(model.model_copy(update={"passage_prefix": model.query_prefix}))
            for model in models
        ]

    def _state(self) -> State:
        if not self._encoders:
            return self._weights
        digests = " ".join(encoder.digest for encoder in self._encoders)
        return {**self._weights, "encoder": np.frombuffer(digests.encode(), dtype=np.uint8)}

    def _restore(self, schema: Schema, state: State) -> None:
        del schema
        self._encoders = self._load()
        fitted_with = state["encoder"].tobytes().decode().split() if self._encoders else []
        models = [*filter(None, [self.chosen.encoder]), *(each.model for each in self.chosen.backbones)]
        for model, encoder, digest in zip(models, self._encoders, fitted_with, strict=True):
            if encoder.digest != digest:
                raise RouterError(f"encoder {model!r} is not the one that the router was fitted with")
        self._weights = {name: value for name, value in state.items() if name != "encoder"}


def winners(utility: Floats) -> NDArray[np.bool_]:
    """Return whether each known arm is tied for the best on each question, shape (n_questions, n_arms).

    >>> winners(np.array([[1.0, 0.5, 1.0], [np.nan, 0.0, -1.0]])).tolist()
    [[True, False, True], [False, True, False]]
    """
    worth = np.nan_to_num(utility, nan=-np.inf)
    return np.asarray((worth == worth.max(axis=1, keepdims=True)) & ~np.isnan(utility))


def cosines(network: "nn.ModuleDict", inputs: "list[Tensor]") -> "Tensor":
    """Return the cosine between each question and each arm, shape (n, n_arms)."""
    import torch
    from torch.nn.functional import normalize

    blocks = [network[f"input{at}"](values) for at, values in enumerate(inputs)]
    question = normalize(network["fusion1"](network["fusion0"](torch.cat(blocks, dim=1))), dim=1)
    return question @ normalize(network.get_parameter("arms.weight"), dim=1).T


def _network(dims: list[int], n_arms: int) -> "nn.ModuleDict":
    from torch import nn

    def block(dim: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(dim, WIDTH), nn.ReLU(), nn.Dropout(DROPOUT), nn.LayerNorm(WIDTH, EPSILON)
        )

    arms = nn.Linear(WIDTH, n_arms, bias=False)
    nn.init.normal_(arms.weight, std=0.02)
    return nn.ModuleDict(
        {
            **{f"input{at}": block(dim) for at, dim in enumerate(dims)},
            "fusion0": block(len(dims) * WIDTH),
            "fusion1": block(WIDTH),
            "arms": arms,
        }
    )


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), dtype=np.float32)
