"""The live arms: how they are run, what a turn knows of them, and how the log keeps them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.serving.probe import Embeddings
from arms.base import Query, Retrieval
from arms.retrievers.catalog import embeddings_of, features, same
from arms.retrievers.kind import ArmSpec


@dataclass(frozen=True, slots=True)
class ArmInfo:
    """What the turn knows of an arm before it runs."""

    backbones: frozenset[str] = frozenset()
    features: Mapping[str, float] = field(default_factory=dict)
    enabled: bool = True


class Arms(Protocol):
    """Every arm, wherever it runs."""

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        """Run one arm by name. Raises ArmError."""
        ...

    async def vectors(self, backbone: str, ids: Sequence[str]) -> Embeddings:
        """Return unit vectors, of shape (dim,), of those of these passages that are of the corpus.

        Raises:
            ArmError: They cannot be had.
        """
        ...

    async def load(self, specs: Mapping[str, ArmSpec]) -> None:
        """Build these arms. Raises ArmError."""
        ...

    def know(self, specs: Mapping[str, ArmSpec]) -> None:
        """Run these arms by their names from now on, besides those before. Raises ArmError."""
        ...


def known(specs: Mapping[str, ArmSpec]) -> dict[str, ArmInfo]:
    """Return what a turn knows of each arm before it runs."""
    return {
        name: ArmInfo(embeddings_of(name, specs), features(name, spec))
        for name, spec in specs.items()
        if spec.action
    }


def documents(specs: Mapping[str, ArmSpec]) -> dict[str, dict[str, Any]]:
    """Return arms as the log keeps them."""
    return {name: spec.model_dump(mode="json", exclude_defaults=True) for name, spec in specs.items()}


def same_document(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two descriptions that the log keeps mean the same arm."""
    return same(ArmSpec.model_validate(one), ArmSpec.model_validate(other))
