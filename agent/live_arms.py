"""The live arms: what a turn knows of them, and how the log keeps them."""

from collections.abc import Mapping
from typing import Any

from agent.loop import ArmInfo
from arms.catalog import embeddings_of, features, same
from arms.kinds import ArmSpec


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
