"""Several routers as one: different models make different mistakes, and the mean of their scores fewer."""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from agent.labels import Features, Floats, Labels, RouterError
from agent.router import Router, Schema, State
from agent.routers.parameters import Parameters, Parametrised
from agent.specs import Spec

ROUNDING = 1e-9
"""Differences this small beside the scores themselves say nothing."""


class BlendParameters(Parameters):
    """What is blended, and how."""

    members: list[Spec] = Field(
        min_length=1, description="Routers, each with a `kind` of the catalogue and its `params`."
    )
    weights: list[Annotated[float, Field(gt=0.0)]] | None = Field(
        None, description="How much each member counts; null is all the same."
    )
    scale: Literal["spread", "rank"] = Field(
        "spread",
        description="What makes scores of members comparable: division by their spread on the questions that "
        "they were fitted to, or the share of arms that an arm is above.",
    )


class Blend(Parametrised[BlendParameters]):
    """Scores an arm with the weighted mean of what its members say, each fitted to the same labels.

    The spread of a member's scores is how far they differ between the arms of a question, as a standard
    deviation over the training questions: what all arms have in common moves none before another. A
    train-free router, which puts an arm that retrieves nothing beyond all others, blends by rank only.

    The blend looks as far as the member that looks farthest.
    """

    kind = "blend"
    Params = BlendParameters

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self._members = [built(spec) for spec in self.chosen.members]
        self.stage = max(member.stage for member in self._members)
        weights = np.array(self.chosen.weights or [1.0] * len(self._members))
        if len(weights) != len(self._members):
            raise RouterError(f"blend: {len(weights)} weights do not fit {len(self._members)} members")
        self._weights = weights / weights.sum()

    def _fit(self, labels: Labels) -> None:
        for member in self._members:
            member.fit(labels)
        self._spreads = np.ones(len(self._members))
        if self.chosen.scale == "spread":
            self._spreads = np.array([_spread(member.scores(labels.features)) for member in self._members])

    def _scores(self, features: Features) -> Floats:
        blended = np.zeros((len(features), len(features.arms)))
        for member, spread, weight in zip(self._members, self._spreads, self._weights, strict=True):
            scores = member.scores(features)
            blended += weight * (beaten(scores) if self.chosen.scale == "rank" else scores / spread)
        return blended

    def _state(self) -> State:
        saved = (np.frombuffer(member.save(), dtype=np.uint8) for member in self._members)
        return {"spreads": self._spreads, **{f"member.{n}": one for n, one in enumerate(saved)}}

    def _restore(self, schema: Schema, state: State) -> None:
        del schema
        self._spreads = state["spreads"]
        for number, member in enumerate(self._members):
            member.load(state[f"member.{number}"].tobytes())


def built(spec: Spec) -> Router:
    """Return the router of a spec, not fitted. Raises RouterError."""
    from agent.routers.catalog import RouterSpec, build_router  # here: the catalogue names this router, too

    return build_router(RouterSpec(kind=spec.kind, params=spec.params))


def beaten(scores: Floats) -> Floats:
    """Return the share of the arms of a question that each scores above, itself and ties being one half.

    >>> beaten(np.array([[0.1, 7.0, 0.1]])).round(3).tolist()
    [[0.333, 0.833, 0.333]]
    """
    one, other = scores[:, :, None], scores[:, None, :]
    return np.asarray(0.5 * (one > other).mean(axis=2) + 0.5 * (one >= other).mean(axis=2))


def _spread(scores: Floats) -> float:
    """Return the spread between arms, or 1 where it is a matter of rounding."""
    spread = float((scores - scores.mean(axis=1, keepdims=True)).std())
    return spread if spread > ROUNDING * np.abs(scores).max() else 1.0


__all__ = ["Blend", "BlendParameters", "beaten", "built"]
