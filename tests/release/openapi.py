"""What a change of the OpenAPI document breaks for clients of the release."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.release.schemas import Break, Schema, Use, compare

Document = dict[str, Any]


def breaks(old: Document, new: Document) -> list[str]:
    """Return what a client of the old document can no longer do, or no longer relies on, a sentence each.

    A change of a schema that several operations use is one sentence, with the number of the others.

    Args:
        old: Document of the release.
        new: Document of the present.
    """
    found: dict[tuple[Any, ...], list[str]] = {}
    for path, methods in old["paths"].items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path}"
            other = new["paths"].get(path, {}).get(method)
            if other is None:
                found[name,] = [f"{name}: is gone"]
                continue
            for part, one in _operation(operation, other, (old, new)):
                key = (*one.origin, one.text) if one.origin else (name, part, one)
                place = f" `{one.place}`" if one.place else ""
                found.setdefault(key, []).append(f"{name}: {part}{place} {one.text}")
    for name in sorted(_unreachable(old)):
        reference = {"$ref": f"#/components/schemas/{name}"}
        if name not in new["components"]["schemas"]:
            found[name,] = [f"schema {name}: is gone"]
            continue
        for one in compare(reference, reference, Use.ACCEPTED, (old, new)):
            key = (*one.origin, one.text)
            found.setdefault(key, []).append(f"schema {name}: field `{one.place}` {one.text}")
    return [
        first + (f" (and in {len(others)} other place{'s' * (len(others) > 1)})" if others else "")
        for first, *others in found.values()
    ]


def _unreachable(document: Document) -> set[str]:
    """Return the schemas that no operation refers to: of values that an operation takes as any."""
    schemas = document.get("components", {}).get("schemas", {})
    reached: set[str] = set()
    pending = [json.dumps(document["paths"])]
    while pending:
        named = set(re.findall(r'"#/components/schemas/(\w+)"', pending.pop())) - reached
        reached |= named
        pending += [json.dumps(schemas[name]) for name in named]
    return schemas.keys() - reached


def _operation(
    old: Mapping[str, Any], new: Mapping[str, Any], roots: tuple[Document, Document]
) -> Iterator[tuple[str, Break]]:
    """Yield the parts of an operation that break, each with its name."""
    if old.get("operationId") != new.get("operationId"):
        yield "operation", Break("", f"is named {new.get('operationId')}, and was {old.get('operationId')}")
    scopes, sufficing = old.get("x-scopes", []), new.get("x-scopes", [])
    if sufficing and not scopes:
        yield "key", Break("", "is required, and was not")
    for scope in [one for one in scopes if sufficing and one not in sufficing]:
        yield "key", Break("", f"of scope {scope} no longer suffices")
    yield from _parameters(old, new, roots)
    yield from _body(old.get("requestBody"), new.get("requestBody"), roots)
    for status, response in old["responses"].items():
        if (other := new["responses"].get(status)) is None:
            yield f"status {status}", Break("", "is gone")
            continue
        for header in sorted(response.get("headers", {}).keys() - other.get("headers", {}).keys()):
            yield f"status {status} header", Break(header, "is gone")
        yield from _contents(f"status {status}", response, other, Use.SENT, roots)


def _parameters(
    old: Mapping[str, Any], new: Mapping[str, Any], roots: tuple[Document, Document]
) -> Iterator[tuple[str, Break]]:
    before, after = (
        {(one["in"], one["name"]): one for one in operation.get("parameters", ())} for operation in (old, new)
    )
    for (place, name), parameter in before.items():
        part = f"{place} parameter {name}"
        if (other := after.get((place, name))) is None:
            yield part, Break("", "is gone")
            continue
        # as properties of an object, so that their defaults are compared
        pair = [_object(one["schema"], required=one.get("required", False)) for one in (parameter, other)]
        for one in compare(*pair, Use.ACCEPTED, roots):
            yield part, Break(one.place.removeprefix("value").removeprefix("."), one.text, one.origin)
    for place, name in sorted(after.keys() - before.keys()):
        if after[place, name].get("required", False):
            yield f"{place} parameter {name}", Break("", "is new and required")


def _object(schema: Schema, *, required: bool) -> Schema:
    return {"type": "object", "properties": {"value": schema}, "required": ["value"] if required else []}


def _body(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, roots: tuple[Document, Document]
) -> Iterator[tuple[str, Break]]:
    if new and new.get("required", False) and not (old and old.get("required", False)):
        yield "request", Break("", "is required, and was not")
    if old:
        yield from _contents("request", old, new or {}, Use.ACCEPTED, roots)


def _contents(
    part: str, old: Mapping[str, Any], new: Mapping[str, Any], use: Use, roots: tuple[Document, Document]
) -> Iterator[tuple[str, Break]]:
    for media, content in old.get("content", {}).items():
        if (other := new.get("content", {}).get(media)) is None:
            yield f"{part} as {media}", Break("", "is gone")
            continue
        for one in compare(content.get("schema", {}), other.get("schema", {}), use, roots):
            yield f"{part} field" if one.place else part, one


def broken_codes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what a client that reads codes of errors can no longer rely on, a sentence each.

    Args:
        old: Status and whether a retry may succeed, by code, of the release.
        new: The same of the present.
    """
    found = []
    for code, kind in old.items():
        if code not in new:
            found.append(f"error {code}: is gone")
            continue
        for key, value in kind.items():
            if new[code].get(key) != value:
                found.append(f"error {code}: has the {key} {new[code].get(key)}, and had {value}")
    return found
