"""Filters of passages: the laws of comparisons, and what a caller may see."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from armwise.arms.filters import Comparison, Compound, Filter, matches, permits

SCALARS = st.booleans() | st.integers(-3, 3) | st.sampled_from(["a", "b"])
KEYS = st.sampled_from(["x", "y"])
METADATA = st.dictionaries(KEYS, SCALARS | st.lists(st.sampled_from(["a", "b"]), max_size=2))

PARSE: TypeAdapter[Comparison | Compound] = TypeAdapter(Filter)


@given(KEYS, SCALARS, METADATA)
def test_what_is_not_equal_is_the_opposite_of_what_is(key: str, value: Any, metadata: Any) -> None:
    equal = matches(Comparison(type="eq", key=key, value=value), metadata)
    assert matches(Comparison(type="ne", key=key, value=value), metadata) is not equal


@given(KEYS, st.lists(SCALARS, max_size=3), METADATA)
def test_in_a_list_is_equal_to_one_of_it(key: str, values: list[Any], metadata: Any) -> None:
    one = any(matches(Comparison(type="eq", key=key, value=value), metadata) for value in values)
    assert matches(Comparison(type="in", key=key, value=tuple(values)), metadata) is one
    assert matches(Comparison(type="nin", key=key, value=tuple(values)), metadata) is not one


@given(st.integers(-3, 3), st.integers(-3, 3))
def test_numbers_are_ordered(value: int, found: int) -> None:
    results = {
        how: matches(Comparison(type=how, key="x", value=value), {"x": found})  # type: ignore[arg-type]
        for how in ("gt", "gte", "lt", "lte")
    }
    assert results == {
        "gt": found > value,
        "gte": found >= value,
        "lt": found < value,
        "lte": found <= value,
    }


@pytest.mark.parametrize("found", [True, "3", "a", [True], ["3"], [], None])
@pytest.mark.parametrize("how", ["gt", "gte", "lt", "lte"])
def test_what_is_no_number_is_neither_above_nor_below_one(how: Any, found: Any) -> None:
    assert not any(matches(Comparison(type=how, key="x", value=value), {"x": found}) for value in (0, 2))


def test_both_or_one_condition_has_to_hold() -> None:
    first, second = ({"type": "eq", "key": "x", "value": v} for v in (1, 2))
    both, one = (PARSE.validate_python({"type": how, "filters": [first, second]}) for how in ("and", "or"))
    assert not matches(both, {"x": 1})
    assert matches(one, {"x": 2})
    assert not matches(one, {"x": 3})


def test_a_truth_is_not_a_number() -> None:
    assert not matches(Comparison(type="eq", key="x", value=True), {"x": 1})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"type": "in", "key": "x", "value": ["a"] * 1001},
            "1001 values; at most 1000",
        ),
        ({"type": "eq", "key": "x", "value": "a" * 1001}, "a value has more than 1000 characters"),
        ({"type": "eq", "key": "x", "value": ["a"]}, "'eq' needs one value"),
        ({"type": "in", "key": "x", "value": "a"}, "'in' needs a list"),
        ({"type": "gt", "key": "x", "value": "a"}, "'gt' needs a number, got 'a'"),
        ({"type": "like", "key": "x", "value": "a"}, "like"),
        ({"type": "and", "filters": []}, "at least 1"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PARSE.validate_python(wrong)


@pytest.mark.parametrize(
    "largest",
    [
        {"type": "in", "key": "x", "value": ["a"] * 1000},
        {"type": "eq", "key": "x", "value": "a" * 1000},
        {"type": "nin", "key": "x", "value": []},
        {"type": "eq", "key": "x" * 64, "value": ""},
    ],
    ids=["values", "characters", "no value", "name"],
)
def test_the_largest_and_the_smallest_comparisons_are_accepted(largest: dict[str, Any]) -> None:
    assert PARSE.validate_python(largest).type == largest["type"]


def test_a_filter_has_a_largest_depth_and_a_largest_size() -> None:
    deep: dict[str, Any] = {"type": "eq", "key": "x", "value": 1}
    leaf = deep
    for _ in range(7):
        deep = {"type": "and", "filters": [deep]}
    assert matches(PARSE.validate_python(deep), {"x": 1})
    deep = {"type": "and", "filters": [deep]}
    halves = [{"type": "and", "filters": [leaf] * 32}] * 2
    assert matches(PARSE.validate_python({"type": "or", "filters": halves}), {"x": 1})
    with pytest.raises(ValidationError, match="8 deep"):
        PARSE.validate_python(deep)
    with pytest.raises(ValidationError, match="64 conditions"):
        PARSE.validate_python({"type": "or", "filters": [{"type": "and", "filters": [leaf] * 33}] * 2})


@given(st.sets(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_a_passage_is_for_its_groups_alone(groups: set[str], allowed: list[str]) -> None:
    assert permits(None, groups, {"allowed_groups": allowed}) is bool(groups & set(allowed))
    assert permits(None, groups, {})


def test_a_passage_whose_groups_cannot_be_read_is_for_nobody() -> None:
    assert not permits(None, {"a"}, {"allowed_groups": 1})
    assert permits(None, {"a"}, {"allowed_groups": "a"})
