"""Conditions on the metadata of passages, in the form that OpenAI's vector stores have.

    {"type": "eq", "key": "product", "value": "router"}
    {"type": "and", "filters": [{"type": "gte", "key": "year", "value": 2024}, ...]}

A passage whose metadata has `allowed_groups` is only for callers of one of these groups; others are for
everybody. Filter and groups are both part of the query, and `permits` checks them together, so that an arm
cannot forget one.

Source: OpenAI, API reference, `POST /vector_stores/{id}/search`, `filters`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Scalar = str | int | float | bool

Metadata = Mapping[str, Scalar | Sequence[str]]
"""Facts about a passage by name; a list holds texts, such as tags or groups."""

GROUPS = "allowed_groups"
"""Name of the metadata that holds the groups whose callers may see a passage."""

MAX_CONDITIONS = 64
"""Largest number of conditions of a filter: engines and masks are linear in them."""

MAX_DEPTH = 8

MAX_VALUES, MAX_TEXT = 1_000, 1_000
"""Largest number of values that a condition compares with, and of characters of a text among them."""


class Comparison(BaseModel):
    """A condition on one name; a list of texts fulfils it where one of them does (`ne`, `nin`: where all do).

    A passage without the name fulfils `ne` and `nin` alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"] = Field(description="How to compare.")
    key: str = Field(min_length=1, max_length=64, description="Name in the metadata.")
    value: Scalar | tuple[Scalar, ...] = Field(
        union_mode="smart", description="What to compare with; a list for `in` and `nin`."
    )

    @model_validator(mode="after")
    def _check_value(self) -> "Comparison":
        values = self.values
        if len(values) > MAX_VALUES:
            raise ValueError(f"the filter has {len(values)} values; at most {MAX_VALUES} are allowed")
        if any(isinstance(value, str) and len(value) > MAX_TEXT for value in values):
            raise ValueError(f"a value has more than {MAX_TEXT} characters")
        listed = isinstance(self.value, tuple)
        if listed != (self.type in ("in", "nin")):
            expected = "a list" if self.type in ("in", "nin") else "one value"
            raise ValueError(f"{self.type!r} needs {expected}, got {self.value!r}")
        ordered = self.type in ("gt", "gte", "lt", "lte")
        if ordered and (isinstance(self.value, bool) or not isinstance(self.value, int | float)):
            raise ValueError(f"{self.type!r} needs a number, got {self.value!r}")
        return self

    @property
    def values(self) -> tuple[Scalar, ...]:
        """The values to compare with, as a tuple."""
        return self.value if isinstance(self.value, tuple) else (self.value,)

    @cached_property
    def known(self) -> frozenset[tuple[bool, Scalar]]:
        """The values, each with whether it is true or false: `True` is not 1, as in JSON."""
        return frozenset((isinstance(value, bool), value) for value in self.values)


class Compound(BaseModel):
    """Several conditions: all of them (`and`), or one (`or`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["and", "or"] = Field(description="How to join.")
    filters: tuple["Filter", ...] = Field(
        min_length=1, max_length=MAX_CONDITIONS, description="What to join."
    )

    @model_validator(mode="after")
    def _check_size(self) -> "Compound":
        if measure_depth(self) > MAX_DEPTH:
            raise ValueError(f"filters may be nested at most {MAX_DEPTH} deep")
        if sum(1 for _ in comparisons(self)) > MAX_CONDITIONS:
            raise ValueError(f"a filter may have at most {MAX_CONDITIONS} conditions")
        return self


Filter = Annotated[Comparison | Compound, Field(discriminator="type")]
"""A condition on the metadata of a passage."""

Compound.model_rebuild()


def measure_depth(where: Comparison | Compound) -> int:
    """Return how deep a filter is nested; 1 for a comparison."""
    return 1 if isinstance(where, Comparison) else 1 + max(map(measure_depth, where.filters))


def comparisons(where: Comparison | Compound) -> Iterator[Comparison]:
    """Yield every comparison of a filter."""
    if isinstance(where, Comparison):
        yield where
    else:
        for part in where.filters:
            yield from comparisons(part)


def matches(where: Comparison | Compound, metadata: Metadata) -> bool:
    """Return whether metadata fulfils a filter.

    >>> matches(Comparison(type="gte", key="year", value=2024), {"year": 2025})
    True
    >>> matches(Comparison(type="in", key="tag", value=("a", "b")), {"tag": ["b", "c"]})
    True
    """
    if isinstance(where, Compound):
        parts = (matches(part, metadata) for part in where.filters)
        return all(parts) if where.type == "and" else any(parts)
    if where.type in ("ne", "nin"):
        return not _holds(where, metadata.get(where.key))
    return _holds(where, metadata.get(where.key))


def permits(where: Comparison | Compound | None, groups: Collection[str], metadata: Metadata) -> bool:
    """Return whether a caller with these groups may see a passage, and the filter admits it.

    >>> permits(None, (), {}), permits(None, (), {"allowed_groups": ["staff"]})
    (True, False)
    """
    allowed = metadata.get(GROUPS)
    names = (allowed,) if isinstance(allowed, str) else allowed
    if allowed is not None and (not isinstance(names, Sequence) or not set(names) & set(groups)):
        return False
    return where is None or matches(where, metadata)


def hide_groups(metadata: Metadata) -> dict[str, Scalar | Sequence[str]]:
    """Return metadata as callers see it: without the groups, which may name others.

    >>> hide_groups({"year": 2024, "allowed_groups": ["board"]})
    {'year': 2024}
    """
    return {name: value for name, value in metadata.items() if name != GROUPS}


def _holds(where: Comparison, stored: Scalar | Sequence[str] | None) -> bool:
    """Return whether a value, or an item of a list, fulfils a condition; `ne` and `nin` as `eq` and `in`."""
    if stored is None:
        return False
    if isinstance(stored, Sequence) and not isinstance(stored, str):
        return any(_holds(where, element) for element in stored)
    if where.type in ("eq", "ne", "in", "nin"):
        return (isinstance(stored, bool), stored) in where.known
    value = where.value
    if isinstance(stored, str | bool) or isinstance(value, str | bool) or not isinstance(value, int | float):
        return False
    return {"gt": stored > value, "gte": stored >= value, "lt": stored < value, "lte": stored <= value}[
        where.type
    ]
