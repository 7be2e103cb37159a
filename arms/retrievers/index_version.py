"""The version of an index: which corpus, and which model of vectors, an arm searches.

It changes with ids, titles, texts or metadata of passages, and with the model. Of several indexes, as of the
members of a fused arm, the version is all of them, joined by `+`; `?` stands for one that is unknown.
"""

import hashlib
from collections.abc import Mapping, Sequence

import orjson

from arms.base import ArmError
from arms.retrievers.catalog import closure, described
from arms.retrievers.engines.collection import BETWEEN
from arms.retrievers.kind import ArmSpec, ReadVersion, Resources, unversioned

UNKNOWN = "?"


class IndexVersion:
    """The version of all that an arm and its members search. Thread-safe.

    Args:
        parts: Return the version of each of them.
    """

    def __init__(self, parts: Sequence[ReadVersion]) -> None:
        self._parts = tuple(parts)

    def seen(self) -> str:
        """Return the version as it was seen last, which is seconds ago; empty where nothing is known."""
        try:
            return joined([part(False) for part in self._parts])
        except ArmError:
            return ""

    def now(self) -> str | None:
        """Return the version that is there now; None where it is unknown, or just changes."""
        try:
            version = joined([part(True) for part in self._parts])
        except ArmError:
            return None
        return version if is_settled(version) else None


def joined(parts: Sequence[str | None]) -> str:
    """Return the version of several indexes; None stands for one that is unknown.

    >>> joined(["b", "a", "b", ""]), joined(["a", None]), joined([None])
    ('a+b', 'a+?', '')
    """
    known = sorted({part for part in parts if part})
    return "+".join([*known, UNKNOWN] if known and None in parts else known)


def is_settled(version: str) -> bool:
    """Return whether a version is known, and of an index that is complete.

    >>> [is_settled(one) for one in ("a+b", "", "a+?", "a..b")]
    [True, False, False, False]
    """
    return bool(version) and UNKNOWN not in version and BETWEEN not in version


def changing(before: str, now: str | None) -> str:
    """Return the version of what was searched while an index may have changed.

    >>> changing("a", "a"), changing("a", "b"), changing("a", None)
    ('a', 'a..b', 'a..')
    """
    return before if before == now else f"{before}{BETWEEN}{now or ''}"


def of(name: str, resources: Resources) -> IndexVersion:
    """Return what reads the version of all that an arm and its members search. Raises ArmSpecError."""
    parts = [described(*part) for part in closure(name, resources.specs).items()]
    return IndexVersion([kind.version(params, resources) for kind, params in parts])


def is_versioned(name: str, specs: Mapping[str, ArmSpec]) -> bool:
    """Return whether the version of all that an arm and its members search can be known.

    >>> server = ArmSpec(kind="mcp", params={"url": "https://a.example", "tool": "find"})
    >>> specs = {"b": ArmSpec(kind="bm25"), "m": server}
    >>> is_versioned("b", specs), is_versioned("m", specs)
    (True, False)
    """
    return all(described(*part)[0].version is not unversioned for part in closure(name, specs).items())


def drawing(name: str, specs: Mapping[str, ArmSpec]) -> str | None:
    """Return the first part of an arm that may find something else each time; None for an arm that repeats.

    >>> specs = {"b": ArmSpec(kind="bm25"), "p": ArmSpec(kind="plackett_luce", params={"arm": "b"})}
    >>> fused = ArmSpec(kind="rrf", params={"arms": ["b", "p"]})
    >>> drawing("b", specs), drawing("f", {**specs, "f": fused})
    (None, 'p')
    """
    return next((part for part, spec in closure(name, specs).items() if described(part, spec)[0].draws), None)


def search_digest(name: str, specs: Mapping[str, ArmSpec]) -> str:
    """Return a hash of what an arm searches and how: the same for pipelines that only write otherwise.

    An arm that draws, and one of a user's own class, may depend on its name.

    >>> specs = {"a": ArmSpec(kind="bm25"), "b": ArmSpec(kind="bm25", params={"k1": 1.2})}
    >>> search_digest("a", specs) == search_digest("b", specs)
    True
    """
    parts = closure(name, specs)
    params = {part: described(part, spec)[1].model_dump(mode="json") for part, spec in parts.items()}
    facts = [(part, spec.kind, params[part]) for part, spec in parts.items()]
    own = any(":" in spec.kind for spec in parts.values()) or drawing(name, specs) is not None
    (_, *first), *others = facts
    document = orjson.dumps([name if own else "", first, sorted(others)], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(document, digest_size=16).hexdigest()
