"""Translate permissions and filters of a query into the filter language of an engine.

`build_condition` decomposes `Query.where` and `Query.groups`; for an engine that compares metadata, a
`ConditionDialect` composes the parts again. For other engines, each passage stores `list_facts`, and every
condition becomes a search for facts. A fact is a hash, so texts of a caller stay out of filters.

Both agree with `armwise.arms.filters.permits`.
"""

import hashlib
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeVar

import orjson
from typing_extensions import override

from armwise.arms.base import Query
from armwise.arms.filters import GROUPS, Comparison, Compound, Metadata, Scalar

T = TypeVar("T")

Order = Literal["gt", "gte", "lt", "lte"]

FACT_BYTES = 12
"""Two of a billion passages share a hash of so many bytes with a probability below 1e-10."""

DIGITS = 16
"""Hexadecimal digits of a number in `_sortable`."""


class ConditionDialect(Protocol[T]):
    """How an engine writes conditions. Values of a caller are passed as data, never in statements."""

    def match_one(self, key: str, values: Sequence[Scalar]) -> T:
        """Return: the value of `key` is one of these, or it is a list that holds one of them."""
        ...

    def compare(self, key: str, how: Order, number: float) -> T:
        """Return: the value of `key` is a number above or below another one."""
        ...

    def lacks(self, key: str) -> T:
        """Return: there is no `key`, or it is null; an empty list is a value."""
        ...

    def every(self, parts: Sequence[T]) -> T:
        """Return: all of these hold."""
        ...

    def some(self, parts: Sequence[T]) -> T:
        """Return: one of these holds."""
        ...

    def negate(self, part: T) -> T:
        """Return: this does not hold."""
        ...


def build_condition(query: Query, dialect: ConditionDialect[T]) -> T:
    """Return the condition that every passage of a query fulfils."""
    open_to_all = dialect.lacks(GROUPS)
    if query.groups:
        open_to_all = dialect.some([open_to_all, dialect.match_one(GROUPS, sorted(query.groups))])
    return (
        open_to_all
        if query.where is None
        else dialect.every([open_to_all, _build_filter(query.where, dialect)])
    )


def _build_filter(where: Comparison | Compound, dialect: ConditionDialect[T]) -> T:
    """Return the condition of a filter, without that of permissions."""
    if isinstance(where, Compound):
        parts = [_build_filter(part, dialect) for part in where.filters]
        return dialect.every(parts) if where.type == "and" else dialect.some(parts)
    values = where.value if isinstance(where.value, tuple) else (where.value,)
    if where.type in ("eq", "in"):
        return dialect.match_one(where.key, values)
    if where.type in ("ne", "nin"):
        return dialect.negate(dialect.match_one(where.key, values))
    (number,) = values
    return dialect.compare(where.key, where.type, _float(number))  # type: ignore[arg-type]  # what remains


class FactsDialect(ConditionDialect[T], Protocol[T]):
    """The dialect of an engine that looks for texts in a list, over the facts of passages."""

    def match_any(self, facts: Sequence[str]) -> T:
        """Return: one of these, which may be empty, is among the facts of the passage."""
        ...

    @override
    def match_one(self, key: str, values: Sequence[Scalar]) -> T:
        return self.match_any([_fact(key, "is", _canonical(value)) for value in values])

    @override
    def compare(self, key: str, how: Order, number: float) -> T:
        return self.match_any([_fact(key, "begins", digits) for digits in _prefixes(how, number)])

    @override
    def lacks(self, key: str) -> T:
        return self.negate(self.match_any([_presence(key)]))


def list_facts(metadata: Metadata) -> list[str]:
    """Return the facts of metadata as hashes: equalities, presences, and the first digits of numbers.

    >>> len(list_facts({"product": "router"})), len(list_facts({"year": 2024})), list_facts({})
    (2, 18, [])
    """
    facts = set[str]()
    for key, value in metadata.items():
        if value is None:
            continue
        facts.add(_presence(key))
        for scalar in [value] if isinstance(value, str | int | float) else value:
            facts.add(_fact(key, "is", _canonical(scalar)))
        if isinstance(value, int | float) and not isinstance(value, bool):
            digits = _sortable(float(value))
            facts.update(_fact(key, "begins", digits[:n]) for n in range(1, DIGITS + 1))
    return sorted(facts)


def dump_metadata(metadata: Metadata) -> str:
    """Return metadata as JSON, with sorted keys."""
    return orjson.dumps(dict(metadata), option=orjson.OPT_SORT_KEYS).decode()


def load_metadata(text: str | bytes | Mapping[str, object] | None) -> Metadata:
    """Return metadata from JSON, or from the mapping that an engine has parsed."""
    metadata = orjson.loads(text) if isinstance(text, str | bytes) else text
    return metadata if isinstance(metadata, Mapping) else {}  # type: ignore[return-value]  # as it was stored


def _presence(key: str) -> str:
    """Return the fact of passages whose metadata has a key that is not null."""
    return _fact(key, "is there", "")


def _fact(key: str, how: str, value: object) -> str:
    return hashlib.blake2b(orjson.dumps([key, how, value]), digest_size=FACT_BYTES).hexdigest()


def _canonical(value: Scalar) -> list[str]:
    """Return a value so that equal ones are the same: 1 is 1.0, and True is not 1."""
    if isinstance(value, str):
        return ["text", value]
    if isinstance(value, bool):
        return ["truth", str(value)]
    whole = isinstance(value, int) or value.is_integer()
    return ["number", str(int(value)) if whole else repr(value)]


def _float(number: Scalar) -> float:
    """Return the nearest float; one that is too large is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if int(number) > 0 else -math.inf


def _sortable(number: float) -> str:
    """Return the bits of a number as digits that sort as the numbers do.

    >>> _sortable(-1.0) < _sortable(-0.5) < _sortable(0.0) == _sortable(-0.0) < _sortable(2.0)
    True
    """
    (bits,) = struct.unpack(">Q", struct.pack(">d", number + 0.0))
    return f"{bits ^ ((1 << 64) - 1 if bits >> 63 else 1 << 63):0{DIGITS}x}"


def _prefixes(how: Order, number: float) -> Iterator[str]:
    """Yield the first digits of all numbers above or below a number: those of a path in a tree of digits.

    Source: Schindler and Diepenbroek 2008, Generic XML-based framework for metadata portals, Computers and
    Geosciences 34(12), on which the numeric fields of Lucene were built.
    """
    if math.isnan(number):
        return
    digits = _sortable(number)
    for place, digit in enumerate(digits):
        others = range(int(digit, 16) + 1, 16) if how in ("gt", "gte") else range(int(digit, 16))
        yield from (f"{digits[:place]}{other:x}" for other in others)
    if how in ("gte", "lte"):
        yield digits
