"""The version of what an arm searches."""

import pytest

from armwise.arms.base import ArmError, Query, Retrieval
from armwise.arms.retrievers.versioned import VersionedArm


class Empty:
    """Finds nothing."""

    name = "empty"
    backbones: frozenset[str] = frozenset()

    def search(self, query: Query, k: int) -> Retrieval:
        del query, k
        return Retrieval(())


@pytest.mark.parametrize(
    ("versions", "settled"), [(["b", "a"], "a+b"), (["a", None], None), ([""], None), (["a..b"], None)]
)
def test_a_version_is_known_once_every_index_is_complete(
    versions: list[str | None], settled: str | None
) -> None:
    arm = VersionedArm(Empty(), [lambda _fresh, version=version: version for version in versions])
    assert arm.version() == settled


def test_a_search_names_the_version_it_saw_and_the_new_one() -> None:
    asked: list[bool] = []

    def read(fresh: bool) -> str:
        asked.append(fresh)
        return "b" if fresh else "a"

    arm = VersionedArm(Empty(), [read])
    found = arm.search(Query("river"), 3)
    assert found.index_version == "a"
    assert arm.version() == "b"
    assert arm.check_version(found).index_version == "a..b"
    assert asked == [False, True, True]


def test_an_engine_that_is_away_leaves_the_version_unknown() -> None:
    def away(_fresh: bool) -> str:
        raise ArmError("away")

    arm = VersionedArm(Empty(), [away])
    assert arm.version() is None
    assert arm.search(Query("river"), 3).index_version == ""
