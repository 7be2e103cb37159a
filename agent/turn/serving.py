"""What a replica serves now: a policy with its router, and candidates that take a share of the traffic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from armwise.agent.policies import Policy
from armwise.arms.base import Query, Retrieval


class ArmScorer(Protocol):
    """Scores arms with a trained router.

    Attributes:
        backbone: Encoder whose embedding of the question it reads.
        arms: Arms that it was trained on.
        k: Passages of each arm that it reads; 0: it reads the question alone.
    """

    backbone: str
    arms: frozenset[str]
    k: int

    async def scores(
        self, query: Query, arms: Sequence[str], found: Mapping[str, Retrieval]
    ) -> Mapping[str, float]:
        """Return a finite score of each of these arms, higher is better.

        Args:
            query: The question, embedded with the backbone.
            arms: Arms to score, a subset of the attribute `arms`.
            found: Retrieval of each arm; empty if `k` is 0.

        Raises:
            ArmError: The router, or the vectors of passages, failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Canary:
    """A candidate that takes a share of the traffic.

    Attributes:
        policy: The candidate's policy.
        version: Number of its version.
        share: Weight in the mixture with the served policy, in (0, 1).
        scorer: Router of the candidate, whose scores replace those of the served router.
    """

    policy: Policy
    version: int
    share: float
    scorer: ArmScorer | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """The policy that decides, its router, and the canaries: frozen until the next version replaces it.

    One canary takes part in each decision, so that several together explore as much as a single one.
    """

    policy: Policy
    version: int
    canaries: tuple[Canary, ...] = ()
    scorer: ArmScorer | None = None


def list_scorers(serving: Serving) -> list[ArmScorer]:
    """Return the routers of the served version and of the canaries, each once."""
    scorers = serving.scorer, *(canary.scorer for canary in serving.canaries)
    return [scorer for scorer in dict.fromkeys(scorers) if scorer is not None]
