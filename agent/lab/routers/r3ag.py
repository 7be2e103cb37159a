"""R3AG's router: retrieval quality and generation utility of each arm, weighted by the question.

    texts or embeddings --Encoder of quality--> r_q --.
                        --Encoder of utility-> g_q --Fusion--> cos(g_q, h_arm) = scores

The fit is in `neural.r3ag_training`; scoring needs only numpy, unless a text encoder is configured.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from armwise.agent.lab.routers.networks import Encoder, Fusion, Head
from armwise.agent.lab.routers.optimizer import Descent, Mask, on_threads, seed_torch
from armwise.agent.routers.base import Parameters, Parametrised, Schema, State
from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset, positions
from armwise.arms.models import Backbone, LocalModel, compute_cores, digest_backbone
from armwise.number import Number

if TYPE_CHECKING:
    from armwise.agent.lab.routers.neural.r3ag_training import Tower


class CapabilityParameters(Parameters):
    """The text model, the labels, the constants of the paper, and what an ablation leaves out."""

    encoder: LocalModel | None = Field(
        None,
        description=(
            "Text model to start from: a hub name (the paper uses Qwen/Qwen3-Embedding-0.6B), a folder or "
            "`package:NAME/PATH`. If null, it projects the question's embedding."
        ),
    )
    without: Literal["attention", "quality", "utility"] | None = Field(
        None,
        description="Part to leave out, as in the paper's ablations. Null keeps all.",
    )
    positives: Literal["earned", "published"] = Field(
        "earned",
        description=(
            "Which arms are right for a question. `published`: the `best` arms by utility, even if only "
            "their prior sets them apart, as in the paper. `earned`: the same arms, if their answers score "
            "higher than the worst one. Questions on which all answers are equally good are then left out."
        ),
    )
    best: int = Field(
        2,
        ge=1,
        description="Number of best arms that are right for a question (k in the paper). Ties add more.",
    )
    temperature: Number = Field(
        0.2, gt=0.0, description="Divisor of the cosines in the contrastive loss. The paper gives no value."
    )
    regularization: Number = Field(
        0.1,
        ge=0.0,
        description=(
            "Weight of the squared distance between an arm's fused vector and its utility vector. The paper "
            "gives no value."
        ),
    )
    heads: int = Field(
        8, ge=1, description="Number of attention heads, which divides the width. The paper gives no value."
    )
    width: int = Field(
        128,
        ge=1,
        description="Dimensions of a vector without `encoder`. The paper's text model has 1,024.",
    )
    learning_rate: Number | None = Field(
        None,
        gt=0.0,
        description=(
            "Learning rate of the two encoders. Null means 0.000002 with `encoder`, as in the paper, and "
            "0.001 without. A smaller text model, or one that learns from fewer questions, needs more."
        ),
    )


class Capability(Parametrised[CapabilityParameters]):
    """Compares the capabilities of each arm with the needs of the question (R3AG).

    Two encoders turn the question and each arm (one learned token) into a retrieval quality, `r_q` and `r_i`,
    and a generation utility, `g_q` and `g_i`. Attention by `r_q` over `r_i` and `g_i` gives `h_i`; the
    score is cos(g_q, h_i). First each encoder is fitted by InfoNCE to the best arms by its label, then
    the attention, with both encoders as they are, by binary cross-entropy of sigmoid(cos(h_i, g_q))
    against the best arms by utility, plus a multiple of |h_i - g_i|^2. An arm that retrieves nothing is
    treated like any other. Without labels of quality, the utility is the label of both encoders.

    With `encoder`, this is the full form: both encoders start as the text model named, whose last two
    layers and word embeddings are fitted, and whose vocabulary is extended by the arms; on CUDA where
    there is one. Without, it is a reduction for small machines: the embedding stays as it is, and each
    encoder is a hidden layer and a projection to `width` numbers, which an arm's token, as long as an
    embedding, goes through as a question does.

    The paper's utility has a prior: the arm's mean correctness on all questions (equation 5). It breaks every
    tie, so by the paper (`positives: published`) the positives are the two arms with the highest prior
    wherever all answers are equally good. By default such questions are left out, and no arm is a positive
    by its prior alone.

    Raises:
        ModelNotFoundError: When it is fitted or loaded, the encoder is not found.

    Source: Zhao et al. 2026, R3AG: Retriever Routing for Retrieval-Augmented Generation, arXiv:2604.22849,
    section 4 and appendices A.5 and B; the ablations of table 3.
    """

    kind = "capability"
    Params = CapabilityParameters
    of_heads: ClassVar[Descent] = Descent(learning_rate=1e-3, held_out=0.05)
    """How the encoders are fitted without a text model."""
    of_models: ClassVar[Descent] = Descent(learning_rate=2e-6, batch_size=512, held_out=0.05)
    """How the encoders are fitted with a text model, as in the paper."""
    _encoders: tuple[Encoder, ...]
    _fusion: Fusion

    def _fit(self, labels: RoutingDataset) -> None:
        from armwise.agent.lab.routers.neural.r3ag_training import fit_encoder, fit_fusion

        chosen, features, fitted = self.chosen, labels.features, []
        full = chosen.encoder is not None
        descent = self.of_models if full else self.of_heads
        if chosen.learning_rate is not None:
            descent = replace(descent, learning_rate=chosen.learning_rate)
        if chosen.without == "utility" and (
            labels.quality is None or np.isnan(labels.quality).all(axis=0).any()
        ):
            raise RouterError("router 'capability' without utility needs the quality of every arm")
        utility = labels.utility, None if chosen.positives == "published" else labels.outcome
        quality = utility if labels.quality is None else (labels.quality, labels.quality)
        with seed_torch(descent.seed), on_threads(len(compute_cores()) if full else 1):
            for what in self._parts:
                values, outcome = quality if what == "quality" else utility
                right, known = positives(values, chosen.best, outcome), ~np.isnan(values)
                if not right.any():
                    raise RouterError(f"there is no question on which two arms differ in {what}")
                tower = self._tower(features)
                fitted.append(fit_encoder(tower, features, right, known, descent, chosen.temperature))
            self._encoders = tuple(encoder for encoder, _ in fitted)
            arms = np.stack([vectors for _, vectors in fitted], axis=1)
            if chosen.without is not None:
                self._fusion = Fusion.mean(arms)
                return
            asks, needs = (encoder.encode(features) for encoder in self._encoders)
            self._fusion = fit_fusion(
                arms, asks, needs, right, known, self.of_heads, chosen.heads, chosen.regularization
            )

    @property
    def _parts(self) -> tuple[str, ...]:
        """Names of the encoders: of the question's part in the attention first, of its needs last."""
        return tuple(part for part in ("quality", "utility") if part != self.chosen.without)

    def _tower(self, features: Features) -> "Tower":
        if self.chosen.encoder is not None:
            from armwise.agent.lab.routers.neural.text_encoder import TextTower

            tower: Tower = TextTower(self.chosen.encoder, len(features.arms))
        elif features.embedding.shape[1]:
            from armwise.agent.lab.routers.neural.r3ag_training import HeadTower

            tower = HeadTower(features.embedding.shape[1], len(features.arms), self.chosen.width)
        else:
            raise RouterError("router 'capability' needs the questions' embeddings, or an encoder")
        if tower.width % self.chosen.heads:
            raise RouterError(f"{self.chosen.heads} heads do not divide a width of {tower.width}")
        return tower

    def _scores(self, features: Features) -> Floats:
        vectors = [encoder.encode(features) for encoder in self._encoders]
        scores = self._fusion.scores(vectors[0], vectors[-1])
        return scores[:, positions(self._fitted.arms, features.arms)]

    def _state(self) -> State:
        state = dict(self._fusion.state())
        for what, encoder in zip(self._parts, self._encoders, strict=True):
            state |= {f"{what}.{name}": value for name, value in encoder.state().items()}
        if self.chosen.encoder is not None:
            state["encoder"] = np.frombuffer(self._digest().encode(), dtype=np.uint8)
        return state

    def _restore(self, schema: Schema, state: State) -> None:
        if self.chosen.encoder is not None and state["encoder"].tobytes().decode() != self._digest():
            raise RouterError(
                f"encoder {self.chosen.encoder!r} is not the one that the router was fitted with"
            )
        self._fusion = Fusion(state["ask"], state["offset"], state["give"])
        self._encoders = tuple(self._encoder(schema, _part(state, f"{what}.")) for what in self._parts)

    def _encoder(self, schema: Schema, state: State) -> Encoder:
        if self.chosen.encoder is None:
            return Head(state)
        from armwise.agent.lab.routers.neural.text_encoder import TextTower

        return TextTower.from_state(self.chosen.encoder, len(schema.arms), state)

    def _digest(self) -> str:
        return digest_backbone(Backbone.model_validate({"model": self.chosen.encoder, "runtime": "torch"}))


def positives(label: Floats, best: int, outcome: Floats | None = None) -> Mask:
    """Return whether each arm is among the best of each question, shape (n_questions, n_arms).

    A positive has fewer than `best` better arms by its label, and is above the worst arm by its outcome. So
    the prior breaks ties, but makes no positive by itself. Arms with equal labels are treated alike, and a
    question with equal outcomes has no positives.

    Args:
        label: Labels, NaN where unknown, shape (n_questions, n_arms).
        best: Number of positives if there are no ties.
        outcome: The labels without their prior, of the same shape; None: they have none.

    >>> positives(np.array([[0.9, 0.2, 0.5], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]), 2).tolist()
    [[True, False, True], [True, False, False], [False, False, False]]
    """
    is_known = ~np.isnan(label)
    worth = np.where(is_known, label, -np.inf)
    better = (worth[:, None, :] > worth[:, :, None]).sum(axis=2)
    outcome = label if outcome is None else outcome
    worst = np.where(is_known, outcome, np.inf).min(axis=1, keepdims=True)
    return np.asarray((better < best) & is_known & (outcome > worst))


def _part(state: State, what: str) -> State:
    return {name.removeprefix(what): value for name, value in state.items() if name.startswith(what)}
