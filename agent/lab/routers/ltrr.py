"""LTRR's feed-forward networks: fitted with torch, scored with numpy alone.

    features of the question --.
    features of the arm -------+--> 256 --> 128 --> 64 --> score of the arm
    one-hot code of the arm ---'

The fit is in `neural.ltrr_training`, the fitted network in `networks`.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, TypeVar

from pydantic import Field

from armwise.agent.lab.routers.networks import Array, Network
from armwise.agent.lab.routers.optimizer import Descent, on_threads, seed_torch
from armwise.agent.lab.routers.preprocessing import Preparation, check_rows_differ
from armwise.agent.lab.routers.ranking_targets import CentreParameters, NetworkTarget, Pairs, Points, Ranking
from armwise.agent.routers.base import IdentityParameters, Parametrised, Schema, State
from armwise.agent.routers.dataset import Features, Floats, RoutingDataset, positions, score_in_parts
from armwise.number import Number

if TYPE_CHECKING:  # it takes seconds to load, and a fitted router does not need it
    from armwise.agent.lab.routers.neural.ltrr_training import FeedForward, FitExamples

N = TypeVar("N", bound=IdentityParameters)


class Neural(Parametrised[N]):
    """A network over the features of the question and of an arm.

    Missing features of an arm, such as all of an arm that retrieves nothing, are replaced by a learned
    vector; features that no arm lacked in training, by their median.

    Attributes:
        hidden: Units of each hidden layer.
        descent: How it is fitted.
    """

    hidden: ClassVar[tuple[int, ...]] = (256, 128, 64)
    descent: ClassVar[Descent] = Descent(learning_rate=1e-3)

    _network: Network

    def _fit(self, labels: RoutingDataset) -> None:
        from armwise.agent.lab.routers.neural import ltrr_training

        chosen = self.chosen
        check_rows_differ(self.kind, chosen, labels.features)
        self._preparation = Preparation.fit(labels.features, chosen.dims)
        examples = ltrr_training.FitExamples.from_arrays(
            self._prepare_question(labels.features),
            self._preparation.arms(labels.features),
            self._target.utility(labels),
        )
        with seed_torch(), on_threads(1):
            network = ltrr_training.FeedForward(examples.shape, self.hidden, identity=chosen.identity)
            losses = self._target.losses(network, examples)
            self.descent.run(network, losses, self._target.questions(labels))
            self._tune(network, examples, labels)
        self._network = network.as_arrays()

    def _tune(self, network: "FeedForward", examples: "FitExamples", labels: RoutingDataset) -> None:
        """Go on with the fit, if there is more to fit than the network."""

    def _prepare_question(self, features: Features) -> Floats:
        """Return the inputs of each question, shape (n, d)."""
        return self._preparation.question(features)

    @property
    @abstractmethod
    def _target(self) -> NetworkTarget:
        """The target of the fit."""

    def _scores(self, features: Features) -> Floats:
        at = positions(self._fitted.arms, features.arms)
        return score_in_parts(features, len(at) ** 2, lambda part: self._score_part(part, at))

    def _score_part(self, features: Features, at: list[int]) -> Array:
        question = self._network.project_question(self._prepare_question(features))
        arms = self._network.project_arms(self._preparation.arms(features), at)
        return self._target.scores(self._network, question, arms)

    def _state(self) -> State:
        return {**self._network.state(), **self._preparation.state()}

    def _restore(self, schema: Schema, state: State) -> None:
        del schema
        self._preparation = Preparation.restore(state)
        self._network = Network.restore(state)


class PointParameters(CentreParameters, IdentityParameters):
    """The parameters of a network on centred or plain utilities."""


class PointwiseFFN(Neural[PointParameters]):
    """Predicts the utility of each arm with a small network trained on squared error.

    Unlike in the paper, a row may have the one-hot code of its arm, and utilities are centred by question;
    without `centre`, a score is the expected utility itself.

    Source: Kim and Diaz 2025, LTRR: Learning to rank retrievers for LLMs, arXiv:2506.13743.
    """

    kind = "pointwise_ffn"
    Params = PointParameters

    @property
    def _target(self) -> NetworkTarget:
        return Points(self.chosen.centre)


class ListParameters(IdentityParameters):
    """The parameters of a network with a listwise loss."""

    temperature: Number = Field(
        1.0, gt=0.0, description="Divisor of the utilities. A smaller value gives the best arm more weight."
    )


class ListNet(Neural[ListParameters]):
    """Ranks arms as a list, with a small network trained on the cross-entropy of their softmax.

    The loss is the cross-entropy of the two: the probabilities of each arm to be first in the list.

    Source: Cao et al. 2007, Learning to rank: from pairwise approach to listwise approach (ICML), as in
    Kim and Diaz 2025, LTRR: Learning to rank retrievers for LLMs, arXiv:2506.13743; the temperature is added.
    """

    kind = "listnet"
    Params = ListParameters

    @property
    def _target(self) -> NetworkTarget:
        return Ranking(self.chosen.temperature)


class PairwiseFFN(Neural[IdentityParameters]):
    """Predicts with a small network which of two arms is better.

    A row of the network is a pair: the features of the question, and the difference of the features of the
    two arms. The loss is the cross-entropy of which one is better, in both directions; ties are left out. An
    arm counts as one half against itself, so that a single arm has a score.

    Unlike in the paper, an epoch draws at most 16 pairs of each question, and does not use all.

    Source: Kim and Diaz 2025, LTRR: Learning to rank retrievers for LLMs, arXiv:2506.13743.
    """

    kind = "pairwise_ffn"
    Params = IdentityParameters

    @property
    def _target(self) -> NetworkTarget:
        return Pairs()
