"""What a change of a JSON Schema breaks, for those who send values of it and for those who read them.

The schemas are of the shapes that pydantic writes: bounds, enumerations, alternatives, references, and
parameters by kind (`allOf` of `if` a property is a constant, `then`). A keyword that is not compared here
must stay equal.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, reduce
from typing import Any

import jsonschema_rs

Schema = dict[str, Any]

ANNOTATIONS = frozenset(
    {"title", "description", "example", "examples", "default", "discriminator", "deprecated", "$schema"}
)
"""Keywords that restrict no value."""

NAMED = frozenset(
    {"properties", "patternProperties", "$defs", "schemas", "paths", "responses", "content", "headers"}
)
"""Keywords whose value is a mapping by names, not a schema."""

LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")

EXACT = ("pattern", "format", "multipleOf", "uniqueItems", "contains", "not", "dependentRequired")
"""Restrictions that are not ordered here: one that is added or changed may refuse what was accepted."""

_ORIGIN = "$origin"
"""Reference that a branch was resolved from; by two of them a comparison is found again."""

_ABSENT = object()


class Use(Enum):
    """Who must go on working: those who send values, or those who read them."""

    ACCEPTED = "accepted"
    SENT = "sent"


@dataclass(frozen=True)
class Break:
    """A change that breaks.

    Attributes:
        place: Path of the value, such as `limits.in_flight` or `data[].id`; empty for the whole.
        text: What changed, as the rest of a sentence.
        origin: Where in the definitions the change is, so that it is counted once however often it is used.
    """

    place: str
    text: str
    origin: tuple[str, ...] = ()

    def below(self, prefix: str) -> "Break":
        """Return it as seen from outside of a value."""
        separator = "." if prefix and self.place and self.place[0] not in "[(" else ""
        return replace(self, place=f"{prefix}{separator}{self.place}")


def compare(old: Schema, new: Schema, use: Use, roots: tuple[Schema, Schema] | None = None) -> list[Break]:
    """Return what breaks between two schemas, in the order of the old one.

    Args:
        old: Schema of the release.
        new: Schema of the present.
        use: Whether values are accepted or sent.
        roots: Documents in which their references lead somewhere; None for the schemas themselves.
    """
    return list(_Comparison(*(roots or (old, new)), use=use).of(old, new))


def bare(node: Any, *, names: bool = False) -> Any:
    """Return a schema, or a document of schemas, without what only people read.

    >>> bare({"title": "T", "properties": {"title": {"type": "string", "description": "A title."}}})
    {'properties': {'title': {'type': 'string'}}}
    """
    if isinstance(node, list):
        return [bare(one) for one in node]
    if not isinstance(node, dict):
        return node
    read = {"title", "description", "summary", "example", "examples", "tags", "links"}
    return {
        key: value if key in ("default", "enum", "const") and not names else bare(value, names=key in NAMED)
        for key, value in node.items()
        if names or key not in read
    }


def same(old: Any, new: Any) -> bool:
    """Return whether two defaults are equal; a mapping may have more keys than before.

    >>> same({"n": 1}, {"n": 1.0, "m": None}), same(True, 1), same([1], [1, 2])
    (True, False, False)
    """
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and same(value, new[key]) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(same, old, new))
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)


class _Comparison:
    """A comparison of two documents; each pair of their definitions is compared once."""

    def __init__(self, old_root: Schema, new_root: Schema, *, use: Use) -> None:
        self._roots = old_root, new_root
        self._use = use
        self._known: dict[tuple[str, str], tuple[Break, ...]] = {}

    @cached_property
    def _accepted(self) -> bool:
        return self._use is Use.ACCEPTED

    def of(self, old: Schema, new: Schema) -> tuple[Break, ...]:
        """Return what breaks: each alternative that is sent must be one that is accepted."""
        branches = [_branches(one, root) for one, root in zip((old, new), self._roots, strict=True)]
        inner, outer = branches if self._accepted else branches[::-1]
        found: list[Break] = []
        for branch in inner:
            if "const" in branch and any(self._holds(other, branch["const"]) for other in outer):
                continue
            candidates = [other for other in outer if _may_meet(branch, other)]
            pairs = [(branch, other) if self._accepted else (other, branch) for other in candidates]
            results = [self._flat(*pair) for pair in pairs]
            found += min(results, key=len) if results else [self._lost(branch)]
        return tuple(dict.fromkeys(found))

    def _holds(self, outer: Schema, value: Any) -> bool:
        if "const" in outer:
            return same(outer["const"], value) and same(value, outer["const"])
        root = self._roots[1 if self._accepted else 0]
        within = {key: root[key] for key in ("$defs", "components") if key in root}
        schema = {key: one for key, one in outer.items() if key != _ORIGIN}
        return jsonschema_rs.Draft202012Validator({**within, **schema}).is_valid(value)

    def _lost(self, branch: Schema) -> Break:
        verb = "no longer accepts" if self._accepted else "may now be"
        return Break("", f"{verb} {_described(branch)}")

    def _flat(self, old: Schema, new: Schema) -> tuple[Break, ...]:
        """Compare two schemas without alternatives, by their references once."""
        key = (old.get(_ORIGIN, ""), new.get(_ORIGIN, ""))
        if not all(key):
            return tuple(self._keywords(old, new))
        if key not in self._known:
            self._known[key] = ()  # a definition may hold itself
            found = self._keywords(old, new)
            self._known[key] = tuple(
                one if one.origin else replace(one, origin=(*key, one.place)) for one in found
            )
        return self._known[key]

    def _keywords(self, old: Schema, new: Schema) -> Iterator[Break]:
        yield from self._restrictions(old, new)
        kind = _type(old) or _type(new)
        if kind == "array":
            yield from self._array(old, new)
        elif kind == "object":
            yield from self._object(old, new)

    def _restrictions(self, old: Schema, new: Schema) -> Iterator[Break]:
        inner, outer = (old, new) if self._accepted else (new, old)
        for name in (*LOWER, *UPPER, *EXACT):
            if name in outer and not _within(inner, outer, name):
                shown = [json.dumps(one.get(name, "none")) for one in (old, new)]
                yield Break("", f"has the `{name}` {shown[1]}, and had {shown[0]}")
        known = {*LOWER, *UPPER, *EXACT, *ANNOTATIONS, *_COMPARED, _ORIGIN}
        for name in sorted((old.keys() | new.keys()) - known):
            if old.get(name, _ABSENT) != new.get(name, _ABSENT):
                yield Break("", f"has another `{name}`, which is not compared")

    def _array(self, old: Schema, new: Schema) -> Iterator[Break]:
        first, second = old.get("prefixItems", []), new.get("prefixItems", [])
        rest = old.get("items", {}), new.get("items", {})
        for index in range(max(len(first), len(second))):
            pair = [
                one[index] if index < len(one) else other
                for one, other in zip((first, second), rest, strict=True)
            ]
            if all(isinstance(one, dict) for one in pair):
                yield from _below(f"[{index}]", self.of(*pair))
        if all(isinstance(one, dict) for one in rest):
            yield from _below("[]", self.of(*rest))

    def _object(self, old: Schema, new: Schema) -> Iterator[Break]:
        yield from self._properties(old, new)
        if self._accepted:
            yield from self._added(old, new)
        yield from self._patterns(old, new)
        extra, extras = _extra(old), _extra(new)
        if extra is not None and extras is not None:
            yield from _below("*", self.of(extra, extras))
        elif extra is not None and self._accepted:
            yield Break("", "no longer accepts other names")
        elif extra:
            yield Break("", "no longer has other names")
        names = (one.get("propertyNames", {}) for one in (old, new))
        yield from _below("(name)", self.of(*names))
        yield from self._by_kind(old, new)

    def _properties(self, old: Schema, new: Schema) -> Iterator[Break]:
        """Compare the properties that there were."""
        after = new.get("properties", {})
        needed, need = set(old.get("required", ())), set(new.get("required", ()))
        for name, schema in old.get("properties", {}).items():
            if name not in after:
                yield Break(name, "is gone")
                continue
            if self._accepted and name in need - needed:
                yield Break(name, "is required, and was optional")
            elif self._accepted:
                yield from _below(name, _default(schema, after[name]))
            elif name in needed - need:
                yield Break(name, "may be missing, and was always there")
            yield from _below(name, self.of(schema, after[name]))

    def _added(self, old: Schema, new: Schema) -> Iterator[Break]:
        """Compare the properties that are new with what their names could hold."""
        before, after, extra = old.get("properties", {}), new.get("properties", {}), _extra(old)
        need = set(new.get("required", ())) - set(old.get("required", ()))
        for name in sorted((after.keys() | need) - before.keys()):
            if name in need:
                yield Break(name, "is required, and was not")
            elif extra:
                yield from _below(name, self.of(extra, after[name]))

    def _patterns(self, old: Schema, new: Schema) -> Iterator[Break]:
        after = new.get("patternProperties", {})
        for pattern, schema in old.get("patternProperties", {}).items():
            other = after.get(pattern, _extra(new))
            if other is None:
                yield Break("", f"no longer has names that match {pattern}")
            else:
                yield from _below("*", self.of(schema, other))

    def _by_kind(self, old: Schema, new: Schema) -> Iterator[Break]:
        """Compare what holds where a property is a constant, such as the parameters of a kind."""
        before, after = _conditions(old), _conditions(new)
        for (name, value), schema in after.items():
            under = f"({name}={value})"
            if (name, value) in before:
                yield from _below(under, self._flat(before[name, value], schema))
            elif self._holds_before(old, name, value):
                yield Break(under, "has new restrictions")

    def _holds_before(self, old: Schema, name: str, value: Any) -> bool:
        schema = old.get("properties", {}).get(name, {})
        return any(one.get("const") == value for one in _branches(schema, self._roots[0]))


_COMPARED = (
    *("type", "const", "properties", "required", "additionalProperties", "patternProperties"),
    *("propertyNames", "items", "prefixItems", "allOf", "$defs", "components"),
)


def _branches(schema: Schema, root: Schema) -> list[Schema]:
    """Return the alternatives of a schema, each without alternatives, and an enumeration as its constants."""
    origin = None
    while "$ref" in schema:
        reference = schema["$ref"]
        beside = {key: value for key, value in schema.items() if key not in ANNOTATIONS and key != "$ref"}
        origin = None if beside else reference
        schema = _merged(_resolved(reference, root), beside)
    found = [{key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", *ANNOTATIONS)}]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            options = [branch for one in schema[key] for branch in _branches(one, root)]
            found = [_merged(base, option) for base in found for option in options]
            origin = None
    split = [branch for one in found for branch in _split(one)]
    if origin and len(split) == 1:
        split = [{**split[0], _ORIGIN: origin}]
    return split


def _resolved(reference: str, root: Schema) -> Schema:
    steps = reference.removeprefix("#/").split("/")
    return dict(reduce(lambda node, step: node[step], steps, root))


def _merged(base: Schema, option: Schema) -> Schema:
    """Return what fits both of two schemas; raises ValueError where that is not one schema."""
    made = {**base}
    for key, value in option.items():
        if key not in made or made[key] == value:
            made[key] = value
        elif key == "required":
            made[key] = [*dict.fromkeys([*made[key], *value])]
        elif key == "properties":
            made[key] = {**made[key], **value}
        else:
            raise ValueError(f"{key} is both {made[key]!r} and {value!r}")
    if base.keys() - {_ORIGIN} and option.keys() - {_ORIGIN}:
        made.pop(_ORIGIN, None)
    return made


def _split(schema: Schema) -> Iterator[Schema]:
    if "enum" in schema:
        yield from ({"const": value} for value in schema["enum"])
    elif isinstance(schema.get("type"), list):
        yield from ({**schema, "type": one} for one in schema["type"])
    else:
        yield schema


def _type(schema: Schema) -> str | None:
    if "type" in schema:
        return str(schema["type"])
    return "object" if schema.keys() & {"properties", "required", "additionalProperties", "allOf"} else None


def _may_meet(inner: Schema, outer: Schema) -> bool:
    """Return whether values of a branch may be ones of another, by their types and constants."""
    if "const" in inner or "const" in outer:
        return False
    kinds = _type(inner), _type(outer)
    if kinds[1] is not None and kinds[0] != kinds[1] and kinds != ("integer", "number"):
        return False
    tags = _tags(inner), _tags(outer)
    return all(tags[1][name] == value for name, value in tags[0].items() if name in tags[1])


def _tags(schema: Schema) -> dict[str, Any]:
    """Return the properties that have one value, by which alternatives differ."""
    properties = schema.get("properties", {})
    return {
        name: one["const"] for name, one in properties.items() if isinstance(one, dict) and "const" in one
    }


def _described(branch: Schema) -> str:
    if "const" in branch:
        return json.dumps(branch["const"])
    if tags := _tags(branch):
        return " and ".join(f"an object of {name} {json.dumps(value)}" for name, value in tags.items())
    kind = _type(branch)
    if kind in (None, "null"):
        return "null" if kind else "any value"
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _within(inner: Schema, outer: Schema, name: str) -> bool:
    """Return whether one schema restricts at least as much as a keyword of another.

    >>> _within({"minimum": 2}, {"minimum": 1}, "minimum"), _within({}, {"maximum": 1}, "maximum")
    (True, False)
    >>> _within({"type": "integer", "minimum": 1}, {"exclusiveMinimum": 0}, "exclusiveMinimum")
    True
    """
    if name in EXACT:
        return inner.get(name) == outer[name]
    bounds = (_bound(one, name, whole=_type(inner) == "integer") for one in (inner, outer))
    given, limit = bounds
    return given is not None and given >= limit


def _bound(schema: Schema, name: str, *, whole: bool) -> tuple[float, bool] | None:
    """Return how much a bound restricts, as a pair that grows with it.

    The pair is a value, negative for an upper bound, and whether the value itself is excluded.
    """
    inclusive = name.replace("exclusiveM", "m")
    exclusive = f"exclusiveM{inclusive[1:]}"
    sign = 1 if name in LOWER else -1
    found = []
    if inclusive in schema:
        found.append((sign * schema[inclusive], False))
    if exclusive in schema:
        value = sign * schema[exclusive]
        found.append((math.floor(value) + 1, False) if whole else (value, True))
    return max(found, default=None)


def _extra(schema: Schema) -> Schema | None:
    """Return the schema of values under other names; None where there are none, empty for any."""
    extra = schema.get("additionalProperties", True)
    return ({} if extra else None) if isinstance(extra, bool) else extra


def _default(old: Schema, new: Schema) -> Iterator[Break]:
    if "default" not in old:
        return
    if "default" not in new:
        yield Break("", f"has no default, and had {json.dumps(old['default'])}")
    else:
        yield from _changed(old["default"], new["default"])


def _changed(old: Any, new: Any) -> Iterator[Break]:
    """Yield the values of a default that are others, by their keys; a mapping may have more of them."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            if key in new:
                yield from _below(key, _changed(value, new[key]))
            else:
                yield Break(key, f"has no default, and had {json.dumps(value)}")
    elif not same(old, new):
        yield Break("", f"has the default {json.dumps(new)}, and had {json.dumps(old)}")


def _conditions(schema: Schema) -> Mapping[tuple[str, Any], Schema]:
    """Return the schemas of `allOf` by property and constant; raises ValueError for other forms."""
    found = {}
    for one in schema.get("allOf", ()):
        try:
            ((name, constant),) = one["if"]["properties"].items()
            found[name, constant["const"]] = one["then"]
        except (KeyError, ValueError):
            raise ValueError(f"`allOf` is not compared in this form: {json.dumps(one)[:200]}") from None
    return found


def _below(prefix: str, found: Iterable[Break]) -> Iterator[Break]:
    return (one.below(prefix) for one in found)
