"""Names that packages export to users, with their arguments, and what a change of them breaks."""

import inspect
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Any

from pydantic import BaseModel

Arguments = dict[str, str]
"""By the name of an argument, `required` or `optional`, and its place unless it is named."""

Face = dict[str, Arguments | None]
"""By the name of a class, a function or a method, its arguments; None for another value."""

OURS = "armwise"


def face_of(package: str) -> Face:
    """Return what a package lists in `__all__`, and the public methods of the classes among it."""
    module = import_module(package)
    found: Face = {}
    for name in sorted(module.__all__):
        value = getattr(module, name)
        found[name] = _arguments(value)
        if inspect.isclass(value):
            found |= {f"{name}.{method}": _arguments(one) for method, one in _methods(value)}
    return found


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods of a class that our packages define."""
    for name, value in sorted(inspect.getmembers(kind, callable)):
        module = getattr(value, "__module__", None) or ""
        if not name.startswith("_") and module.partition(".")[0] == OURS:
            yield name, value


def _arguments(value: Any) -> Arguments | None:
    if isinstance(value, ModuleType) or not callable(value):
        return None
    if inspect.isclass(value) and issubclass(value, BaseModel):  # read, not made: the schemas have its fields
        return None
    if inspect.isclass(value) and issubclass(value, Enum):  # its members are there, and no more are made
        return None
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:  # it is built in
        return None
    found = {}
    for place, one in enumerate(parameters):
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            found[one.name] = "any"
            continue
        needed = "required" if one.default is one.empty else "optional"
        found[one.name] = needed if one.kind is one.KEYWORD_ONLY else f"{needed}, number {place + 1}"
    return found


def broken_faces(old: Mapping[str, Face], new: Mapping[str, Face]) -> list[str]:
    """Return what programs that import the names of a release can no longer do, a sentence each.

    Args:
        old: Names by package, of the release.
        new: Names by package, of the present.
    """
    return [
        f"{package}.{name}: {text}"
        for package, face in old.items()
        for name, arguments in face.items()
        for text in _broken(arguments, new.get(package, {}), name)
    ]


def _broken(old: Arguments | None, face: Face, name: str) -> Iterator[str]:
    if name not in face:
        yield "is gone"
        return
    if old is None or (new := face[name]) is None:
        return
    for argument, was in old.items():
        now = new.get(argument)
        if now is None:
            yield f"no longer takes {argument}"
        elif now != was and not _serves(now, was):
            yield f"has the argument {argument} {now}, and had it {was}"
    for argument in sorted(new.keys() - old.keys()):
        if new[argument].startswith("required"):
            yield f"requires {argument}, and did not know it"


def _serves(now: str, was: str) -> bool:
    """Return whether an argument can be given as it was: optional for required, with a place for by name."""
    needed, _, place = now.partition(", ")
    before, _, earlier = was.partition(", ")
    return needed in ("optional", before) and earlier in ("", place)
