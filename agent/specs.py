"""From a spec to the object that it describes: a kind of a catalogue, and the arguments of its class."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from arms.nearest import nearest

Built = TypeVar("Built")


class Spec(BaseModel):
    """What to build, as data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(description="Name in the catalogue")
    params: dict[str, Any] = Field(default_factory=dict, description="Arguments of its class, by name")


def build(
    spec: Spec, what: str, catalogue: Mapping[str, Callable[..., Built]], error: type[ValueError]
) -> Built:
    """Build what a spec describes.

    Args:
        spec: What to build.
        what: What the catalogue holds, for messages.
        catalogue: Classes by kind; an argument whose name begins with an underscore is not for specs.
        error: What to raise.

    Raises:
        error: An unknown kind or parameter, or a value that the class refuses.

    >>> build(Spec(kind="whole", params={"real": 2}), "number", {"whole": complex}, ValueError)
    (2+0j)
    >>> build(Spec(kind="hole"), "number", {"whole": complex}, ValueError)
    Traceback (most recent call last):
    ValueError: no number of kind 'hole'; did you mean 'whole'?
    """
    if spec.kind not in catalogue:
        raise error(f"no {what} of kind {spec.kind!r}{nearest(spec.kind, catalogue)}")
    make = catalogue[spec.kind]
    known = [name for name in inspect.signature(make).parameters if not name.startswith("_")]
    for name in spec.params:
        if name not in known:
            raise error(f"{what} {spec.kind!r} has no parameter {name!r}{nearest(name, known)}")
    try:
        return make(**spec.params)
    except TypeError as wrong:
        raise error(f"{what} {spec.kind!r} cannot be built: {wrong}") from wrong


__all__ = ["Spec", "build"]
