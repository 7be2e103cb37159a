"""An arm that knows the version of its index: which corpus, and which model of vectors, it searches.

It changes with ids, titles, texts or metadata of passages, and with the model. Of several indexes, as of the
members of a fused arm, the version is all of them, joined by `+`; `?` stands for one that is unknown.
"""

from collections.abc import Sequence
from dataclasses import replace

from armwise.arms.base import Arm, ArmError, Query, Retrieval
from armwise.arms.retrievers.kind import ReadVersion

UNKNOWN = "?"

BETWEEN = ".."
"""Separator between the old and the new version of an index that is being changed."""


class VersionedArm:
    """An arm that knows the version of its index: what it finds has the one that answered. Thread-safe.

    Args:
        arm: The arm.
        parts: Return the versions of what it and its members search.
    """

    def __init__(self, arm: Arm, parts: Sequence[ReadVersion]) -> None:
        self.name, self.backbones = arm.name, arm.backbones
        self._arm, self._parts = arm, tuple(parts)

    def search(self, query: Query, k: int) -> Retrieval:
        """Search, and note the version of seconds ago, empty where nothing is known. Raises ArmError."""
        try:
            version = join_versions([part(False) for part in self._parts])
        except ArmError:
            version = ""
        return replace(self._arm.search(query, k), index_version=version)

    def check_version(self, retrieval: Retrieval) -> Retrieval:
        """Return what was just found; if the index has changed meanwhile, its version names both."""
        return replace(retrieval, index_version=changing(retrieval.index_version, self.version()))

    def version(self) -> str | None:
        """Return the version that is there now; None where it is unknown, or just changes."""
        try:
            version = join_versions([part(True) for part in self._parts])
        except ArmError:
            return None
        return version if is_settled(version) else None


def join_versions(parts: Sequence[str | None]) -> str:
    """Return the version of several indexes; None stands for one that is unknown.

    >>> join_versions(["b", "a", "b", ""]), join_versions(["a", None]), join_versions([None])
    ('a+b', 'a+?', '')
    """
    versions = sorted({part for part in parts if part})
    return "+".join([*versions, UNKNOWN] if versions and None in parts else versions)


def is_settled(version: str) -> bool:
    """Return whether a version is known, and of an index that is complete.

    >>> [is_settled(version) for version in ("a+b", "", "a+?", "a..b")]
    [True, False, False, False]
    """
    return bool(version) and UNKNOWN not in version and BETWEEN not in version


def changing(before: str, now: str | None) -> str:
    """Return the version of what was searched while an index may have changed.

    >>> changing("a", "a"), changing("a", "b"), changing("a", None)
    ('a', 'a..b', 'a..')
    """
    return before if before == now else f"{before}{BETWEEN}{now or ''}"
