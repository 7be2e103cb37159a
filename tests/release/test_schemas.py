"""The comparison of schemas: each kind of a break is found and named, and each kind of an addition passes."""

import copy
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.release.schemas import Break, Schema, Use, bare, compare, same

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}


def record(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*required]}


def closed(*required: str, **properties: Schema) -> Schema:
    return {**record(*required, **properties), "additionalProperties": False}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas]}


def listed(item: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": item, **more}


def mapped(value: Schema | bool) -> Schema:
    return {"type": "object", "additionalProperties": value}


def by_kind(*kinds: str, **params: Schema) -> Schema:
    return {
        **closed("kind", kind={"enum": [*kinds]}, params={"type": "object"}),
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}}, "then": record(params=schema)}
            for kind, schema in params.items()
        ],
    }


NULL: Schema = {"type": "null"}
EMBEDDED = closed("engine", engine={"const": "embedded"}, n=WHOLE)
HOSTED = closed("engine", engine={"const": "hosted"}, url=TEXT)

REFUSED: dict[str, tuple[Schema, Schema, str]] = {
    "field removed": (record(a=TEXT, b=TEXT), record(a=TEXT), "b is gone"),
    "field required": (record(a=TEXT), record("a", a=TEXT), "a is required, and was optional"),
    "new field required": (record(a=TEXT), record("b", a=TEXT, b=TEXT), "b is required, and was not"),
    "type changed": (record(a=TEXT), record(a=WHOLE), "a no longer accepts a string"),
    "type narrowed": ({"type": "number"}, WHOLE, " no longer accepts a number"),
    "any narrowed": (record(a={}), record(a=TEXT), "a no longer accepts any value"),
    "null refused": (record(a=either(TEXT, NULL)), record(a=TEXT), "a no longer accepts null"),
    "list of types": ({"type": ["string", "null"]}, {"type": ["string"]}, " no longer accepts null"),
    "alternative removed": (
        either(EMBEDDED, HOSTED),
        EMBEDDED,
        ' no longer accepts an object of engine "hosted"',
    ),
    "one of removed": ({"oneOf": [TEXT, WHOLE]}, {"oneOf": [TEXT]}, " no longer accepts an integer"),
    "value removed": ({"enum": ["a", "b"]}, {"enum": ["a"]}, ' no longer accepts "b"'),
    "values instead of any": (TEXT, {"enum": ["a"]}, " no longer accepts a string"),
    "value beyond a bound": ({"enum": [1, 9]}, {"type": "integer", "maximum": 5}, " no longer accepts 9"),
    "constant changed": ({"const": "a"}, {"const": "b"}, ' no longer accepts "a"'),
    "one is not true": ({"const": 1}, {"const": True}, " no longer accepts 1"),
    "minimum raised": ({**WHOLE, "minimum": 1}, {**WHOLE, "minimum": 2}, " has the `minimum` 2, and had 1"),
    "minimum added": (WHOLE, {**WHOLE, "minimum": 0}, ' has the `minimum` 0, and had "none"'),
    "minimum excluded": (
        {"type": "number", "minimum": 0},
        {"type": "number", "exclusiveMinimum": 0},
        ' has the `exclusiveMinimum` 0, and had "none"',
    ),
    "maximum lowered": ({**WHOLE, "maximum": 9}, {**WHOLE, "maximum": 8}, " has the `maximum` 8, and had 9"),
    "maximum excluded": (
        {**WHOLE, "maximum": 9},
        {**WHOLE, "exclusiveMaximum": 9},
        ' has the `exclusiveMaximum` 9, and had "none"',
    ),
    "text shorter": ({**TEXT, "maxLength": 9}, {**TEXT, "maxLength": 5}, " has the `maxLength` 5, and had 9"),
    "text longer": ({**TEXT, "minLength": 1}, {**TEXT, "minLength": 3}, " has the `minLength` 3, and had 1"),
    "pattern changed": (
        {**TEXT, "pattern": "a"},
        {**TEXT, "pattern": "b"},
        ' has the `pattern` "b", and had "a"',
    ),
    "format added": (TEXT, {**TEXT, "format": "uri"}, ' has the `format` "uri", and had "none"'),
    "fewer items": (listed(TEXT, maxItems=9), listed(TEXT, maxItems=5), " has the `maxItems` 5, and had 9"),
    "items narrowed": (
        listed(WHOLE),
        listed({**WHOLE, "minimum": 0}),
        '[] has the `minimum` 0, and had "none"',
    ),
    "items of objects": (listed(record(a=TEXT)), listed(record()), "[].a is gone"),
    "tuple narrowed": (
        {"type": "array", "prefixItems": [TEXT, either(WHOLE, NULL)]},
        {"type": "array", "prefixItems": [TEXT, WHOLE]},
        "[1] no longer accepts null",
    ),
    "other names refused": (record(a=TEXT), closed(a=TEXT), " no longer accepts other names"),
    "values of a map narrowed": (mapped(record(a=TEXT)), mapped(record()), "*.a is gone"),
    "map taken by a field": (
        mapped(WHOLE),
        {**mapped(WHOLE), **record(n=TEXT)},
        "n no longer accepts an integer",
    ),
    "names narrowed": (
        {**mapped({}), "propertyNames": {}},
        {**mapped({}), "propertyNames": {**TEXT, "maxLength": 8}},
        "(name) no longer accepts any value",
    ),
    "pattern of names removed": (
        {**closed(), "patternProperties": {"^x-": {}}},
        closed(),
        " no longer has names that match ^x-",
    ),
    "values by a pattern of names": (
        {**closed(), "patternProperties": {"^x-": either(TEXT, NULL)}},
        {**closed(), "patternProperties": {"^x-": TEXT}},
        "* no longer accepts null",
    ),
    "fewer names": (
        {**mapped(TEXT)},
        {**mapped(TEXT), "maxProperties": 3},
        ' has the `maxProperties` 3, and had "none"',
    ),
    "default changed": (
        record(a={**WHOLE, "default": 1}),
        record(a={**WHOLE, "default": 2}),
        "a has the default 2, and had 1",
    ),
    "default removed": (record(a={**WHOLE, "default": 1}), record(a=WHOLE), "a has no default, and had 1"),
    "default of a part": (
        record(a={**record(), "default": {"n": 1, "m": [0]}}),
        record(a={**record(), "default": {"n": 1, "m": [1]}}),
        "a.m has the default [1], and had [0]",
    ),
    "default without a part": (
        record(a={**record(), "default": {"n": {"m": 0}}}),
        record(a={**record(), "default": {"n": {}}}),
        "a.n.m has no default, and had 0",
    ),
    "kind removed": (by_kind("a", "b"), by_kind("a"), 'kind no longer accepts "b"'),
    "parameter of a kind removed": (
        by_kind("a", a=closed(k=WHOLE)),
        by_kind("a", a=closed()),
        "(kind=a).params.k is gone",
    ),
    "parameters of a kind restricted": (
        by_kind("a"),
        by_kind("a", a=closed()),
        "(kind=a) has new restrictions",
    ),
    "keyword not compared": (
        {"contentEncoding": "a"},
        {},
        " has another `contentEncoding`, which is not compared",
    ),
}
"""What refuses, or takes otherwise, what a caller of before sends: old, new, and the break."""

TAKEN: dict[str, tuple[Schema, Schema]] = {
    "optional field": (record("a", a=TEXT), record("a", a=TEXT, b=WHOLE)),
    "optional field of a closed object": (closed(a=TEXT), closed(a=TEXT, b={**WHOLE, "default": 3})),
    "no longer required": (record("a", a=TEXT), record(a={**TEXT, "default": ""})),
    "type widened": (WHOLE, {"type": "number"}),
    "any value": (TEXT, {}),
    "null accepted": (TEXT, either(TEXT, NULL)),
    "value added": ({"enum": ["a"]}, {"enum": ["b", "a"]}),
    "any text instead of values": ({"enum": ["a", "b"]}, TEXT),
    "constants as values": (either({"const": "a"}, {"const": "b"}), {"enum": ["a", "b"]}),
    "alternative added": (EMBEDDED, {"oneOf": [HOSTED, EMBEDDED]}),
    "bound widened": ({**WHOLE, "minimum": 1, "maximum": 5}, {**WHOLE, "minimum": 0, "maximum": 6}),
    "bound of another form": (
        {**WHOLE, "minimum": 1, "maximum": 8},
        {**WHOLE, "exclusiveMinimum": 0, "exclusiveMaximum": 9},
    ),
    "bound removed": ({**TEXT, "maxLength": 5, "pattern": "a", "format": "uri"}, TEXT),
    "items widened": (listed(TEXT, maxItems=3), listed(either(TEXT, NULL), maxItems=4)),
    "other names accepted": (closed(a=TEXT), record(a=TEXT)),
    "map beside a new field": (mapped(WHOLE), {**mapped(WHOLE), **record(n=WHOLE)}),
    "description": ({**TEXT, "title": "A", "description": "b"}, {**TEXT, "title": "C", "examples": [1]}),
    "part of a default added": (
        record(a={**record(), "default": {"n": 1}}),
        record(a={**record(), "default": {"n": 1.0, "m": 2}}),
    ),
    "kind added": (by_kind("a", a=closed()), by_kind("a", "b", a=closed(), b=closed("k", k=WHOLE))),
    "parameter of a kind added": (by_kind("a", a=closed()), by_kind("a", a=closed(k=WHOLE))),
}
"""What takes all that a caller of before sends: old and new."""


def sentences(found: list[Break]) -> list[str]:
    return [f"{one.place} {one.text}" for one in found]


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_caller_can_no_longer_send_is_named(case: str) -> None:
    old, new, expected = REFUSED[case]
    assert sentences(compare(old, new, Use.ACCEPTED)) == [expected]


@pytest.mark.parametrize("case", TAKEN)
def test_what_a_caller_can_send_besides_passes(case: str) -> None:
    old, new = TAKEN[case]
    assert compare(old, new, Use.ACCEPTED) == []


@pytest.mark.parametrize("case", [*REFUSED, *TAKEN])
def test_an_equal_schema_breaks_nothing(case: str) -> None:
    for schema in (REFUSED | TAKEN)[case][:2]:
        for use in Use:
            assert compare(schema, copy.deepcopy(schema), use) == []


UNREADABLE: dict[str, tuple[Schema, Schema, str]] = {
    "field removed": (record(a=TEXT, b=TEXT), record(a=TEXT), "b is gone"),
    "field optional": (record("a", a=TEXT), record(a=TEXT), "a may be missing, and was always there"),
    "type changed": (record(a=TEXT), record(a=WHOLE), "a may now be an integer"),
    "type widened": (WHOLE, {"type": "number"}, " may now be a number"),
    "null": (record(a=TEXT), record(a=either(TEXT, NULL)), "a may now be null"),
    "value added": ({"enum": ["a"]}, {"enum": ["a", "b"]}, ' may now be "b"'),
    "any text": ({"enum": ["a"]}, TEXT, " may now be a string"),
    "maximum raised": ({**WHOLE, "maximum": 1}, {**WHOLE, "maximum": 2}, " has the `maximum` 2, and had 1"),
    "minimum removed": ({**WHOLE, "minimum": 0}, WHOLE, ' has the `minimum` "none", and had 0'),
    "alternative added": (EMBEDDED, either(EMBEDDED, HOSTED), ' may now be an object of engine "hosted"'),
    "items": (
        listed(record("id", id=TEXT)),
        listed(record(id=TEXT)),
        "[].id may be missing, and was always there",
    ),
    "values of a map": (mapped(WHOLE), mapped(either(WHOLE, NULL)), "* may now be null"),
    "map closed": (mapped(WHOLE), closed(), " no longer has other names"),
}

READABLE: dict[str, tuple[Schema, Schema]] = {
    "field added": (record("a", a=TEXT), record("a", "b", a=TEXT, b=WHOLE)),
    "field added to a closed object": (closed(a=TEXT), closed(a=TEXT, b=WHOLE)),
    "always there": (record(a=TEXT), record("a", a=TEXT)),
    "never null": (either(TEXT, NULL), TEXT),
    "value removed": ({"enum": ["a", "b"]}, {"enum": ["b"]}),
    "type narrowed": ({"type": "number"}, WHOLE),
    "bounds": (WHOLE, {**WHOLE, "minimum": 0, "maximum": 9}),
    "default": (record(a={**WHOLE, "default": 1}), record(a={**WHOLE, "default": 2})),
    "extra names closed": (record(a=TEXT), closed(a=TEXT)),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_a_reader_does_not_expect_is_named(case: str) -> None:
    old, new, expected = UNREADABLE[case]
    assert sentences(compare(old, new, Use.SENT)) == [expected]


@pytest.mark.parametrize("case", READABLE)
def test_what_a_reader_gets_besides_passes(case: str) -> None:
    old, new = READABLE[case]
    assert compare(old, new, Use.SENT) == []


def test_definitions_are_followed_once_and_may_hold_themselves() -> None:
    old: Schema = {
        "$defs": {"Tree": record(value=WHOLE, children=listed({"$ref": "#/$defs/Tree"}))},
        **record(first={"$ref": "#/$defs/Tree"}, second=either({"$ref": "#/$defs/Tree"}, NULL)),
    }
    new = copy.deepcopy(old)
    del new["$defs"]["Tree"]["properties"]["value"]
    found = compare(old, new, Use.ACCEPTED)
    assert sentences(found) == ["first.value is gone", "second.value is gone"]
    assert len({(one.origin, one.text) for one in found}) == 1


def test_a_reference_is_compared_with_what_it_held() -> None:
    old: Schema = {"$defs": {"A": record(n=WHOLE)}, **record(a={"$ref": "#/$defs/A", "description": "old"})}
    assert compare(old, record(a=record(n=WHOLE)), Use.ACCEPTED) == []
    assert sentences(compare(old, record(a=record(n=TEXT)), Use.ACCEPTED)) == [
        "a.n no longer accepts an integer"
    ]


def test_a_value_is_looked_up_in_the_definitions_of_now() -> None:
    texts, numbers = ({"$defs": {"Item": item}} for item in (TEXT, WHOLE))
    values: Schema = {"enum": [["x"]]}
    old, new = record(a=values), record(a=listed({"$ref": "#/$defs/Item"}))
    assert compare({**numbers, **old}, {**texts, **new}, Use.ACCEPTED) == []
    found = compare({**texts, **old}, {**numbers, **new}, Use.ACCEPTED)
    assert sentences(found) == ['a no longer accepts ["x"]']


def test_what_is_required_beside_alternatives_counts_with_each() -> None:
    old = {**record(a=TEXT, b=TEXT, c=TEXT), "anyOf": [{"required": ["b"]}, {"required": ["c"]}]}
    new = {**old, "required": ["a"]}
    assert sentences(compare(old, new, Use.ACCEPTED)) == ["a is required, and was optional"]
    fewer = {**old, "anyOf": [{"required": ["b"]}]}
    assert sentences(compare(old, fewer, Use.ACCEPTED)) == ["b is required, and was optional"]


def test_what_only_people_read_is_left_out_and_names_are_not() -> None:
    schema = {
        "title": "T",
        "properties": {"title": {"type": "string", "description": "d", "default": {"title": "kept"}}},
        "paths": {"/a": {"get": {"summary": "s", "tags": ["t"], "operationId": "a"}}},
    }
    assert bare(schema) == {
        "properties": {"title": {"type": "string", "default": {"title": "kept"}}},
        "paths": {"/a": {"get": {"operationId": "a"}}},
    }


@pytest.mark.parametrize(
    ("old", "new", "equal"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, True),
        ({"a": 1}, {}, False),
        ({"a": None}, {}, False),
        ([1, 2], [1, 3], False),
        ([1], [1.0], True),
        (False, 0, False),
        (None, None, True),
        ("a", "b", False),
    ],
)
def test_defaults_are_equal_where_nothing_of_before_changed(old: Any, new: Any, equal: bool) -> None:
    assert same(old, new) is equal


# -- any schemas ---------------------------------------------------------------------------------------

LEAVES = st.one_of(
    st.builds(
        lambda low, n: {"type": "integer", "minimum": low, "maximum": low + n},
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 2)),
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, unique=True).map(lambda values: {"enum": values}),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"const": 1}, {"type": "number"}]),
)


def _objects(values: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    names = st.dictionaries(st.sampled_from(["x", "y", "z"]), values, max_size=3)
    needed = st.sets(st.sampled_from(["x", "y", "z"]))
    return st.builds(lambda fields, need: closed(*sorted(need & fields.keys()), **fields), names, needed)


SCHEMAS = st.recursive(
    LEAVES,
    lambda values: st.one_of(
        _objects(values),
        st.builds(lambda item, n: listed(item, maxItems=n), values, st.integers(0, 2)),
        st.lists(values, min_size=1, max_size=2).map(lambda options: either(*options)),
    ),
    max_leaves=5,
)


@st.composite
def changed(draw: st.DrawFn, schema: Schema) -> Schema:
    """A schema of which some part, or none, is another."""
    made = copy.deepcopy(schema)
    if draw(st.integers(0, 5)) == 0:
        return draw(SCHEMAS)
    for name, value in made.get("properties", {}).items():
        made["properties"][name] = draw(changed(value))
    if "properties" in made and draw(st.booleans()):
        made["properties"] |= draw(st.dictionaries(st.sampled_from(["x", "y"]), LEAVES, max_size=1))
        made["required"] = sorted(draw(st.sets(st.sampled_from(["x", "y", "z"]))) & made["properties"].keys())
    if "items" in made:
        made["items"] = draw(changed(made["items"]))
    if "anyOf" in made:
        made["anyOf"] = [draw(changed(one)) for one in made["anyOf"]] + draw(st.lists(LEAVES, max_size=1))
    for name in ("maximum", "maxLength", "maxItems"):
        if name in made:
            made[name] += draw(st.integers(0, 1))
    return made


def values_of(schema: Schema) -> st.SearchStrategy[Any]:
    if "anyOf" in schema:
        return st.one_of([values_of(one) for one in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    match schema["type"]:
        case "integer":
            return st.integers(schema["minimum"], schema["maximum"])
        case "string":
            return st.text("ab", max_size=schema["maxLength"])
        case "number":
            return st.sampled_from([0, 1.5, -2])
        case "array":
            return st.lists(values_of(schema["items"]), max_size=schema["maxItems"])
        case "object":
            fields = {name: values_of(one) for name, one in schema["properties"].items()}
            needed = {name: one for name, one in fields.items() if name in schema["required"]}
            return st.fixed_dictionaries(
                needed, optional={k: v for k, v in fields.items() if k not in needed}
            )
    return {"null": st.none(), "boolean": st.booleans()}[schema["type"]]


@settings(max_examples=400)
@given(st.data())
@pytest.mark.slow
def test_where_nothing_breaks_each_value_of_before_is_accepted(data: st.DataObject) -> None:
    old = data.draw(SCHEMAS)
    new = data.draw(changed(old))
    value = data.draw(values_of(old))
    if not jsonschema_rs.is_valid(new, value):
        assert compare(old, new, Use.ACCEPTED) != []


def opened(schema: Schema) -> Schema:
    """Return a schema whose objects may have more fields, as a reader takes them."""
    made = {key: value for key, value in schema.items() if key != "additionalProperties"}
    if "properties" in made:
        made["properties"] = {name: opened(one) for name, one in made["properties"].items()}
    if "items" in made:
        made["items"] = opened(made["items"])
    if "anyOf" in made:
        made["anyOf"] = [opened(one) for one in made["anyOf"]]
    return made


@settings(max_examples=400)
@given(st.data())
@pytest.mark.slow
def test_where_nothing_breaks_each_value_of_now_is_expected(data: st.DataObject) -> None:
    old = data.draw(SCHEMAS)
    new = data.draw(changed(old))
    value = data.draw(values_of(new))
    if not jsonschema_rs.is_valid(opened(old), value):
        assert compare(old, new, Use.SENT) != []
