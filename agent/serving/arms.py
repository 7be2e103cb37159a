"""The live arms: how they are run, what a turn knows of them, and how the log keeps them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agent.serving.messages import ArmInfo
from agent.serving.probe import Embeddings
from arms.base import Query, Retrieval
from arms.retrievers import ArmSpec, catalog


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


def arm_infos(specs: Mapping[str, ArmSpec]) -> dict[str, ArmInfo]:
    """Return what a turn knows of each arm before it runs."""
    return {
        name: ArmInfo(catalog.embeddings_of(name, specs), catalog.arm_features(name, spec))
        for name, spec in specs.items()
        if spec.action
    }


def documents(specs: Mapping[str, ArmSpec]) -> dict[str, dict[str, Any]]:
    """Return arms as the log keeps them."""
    return {name: spec.model_dump(mode="json", exclude_defaults=True) for name, spec in specs.items()}


def same_document(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two descriptions that the log keeps mean the same arm."""
    return catalog.same(ArmSpec.model_validate(one), ArmSpec.model_validate(other))
