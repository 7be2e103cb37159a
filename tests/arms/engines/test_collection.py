"""An arm over any engine: the rankings that it asks for, what it makes of them, how long a version holds."""

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from armwise.arms.base import ArmError, Passage, Query, QuestionRefusedError
from armwise.arms.engines import collection as collections
from armwise.arms.engines.collection import CollectionVersion, EngineArm, FillState
from armwise.arms.engines.opensearch import Index, OpenSearchArm
from armwise.arms.retrievers import build_arm
from armwise.arms.retrievers.catalog import resolve_kind
from armwise.arms.retrievers.kind import ArmSpec, Resources
from tests.arms.engines.passages import CollectionInMemory
from tests.arms.retrievers.test_catalog import BACKBONES

ASKED = Query("which river?", {"hashed": np.array([0.6, 0.8], dtype=np.float32)})


def passage(name: str, score: float) -> Passage:
    return Passage(name, "", f"text of {name}", score)


def arm_over(collection: CollectionInMemory, mode: str = "lexical", **params: Any) -> OpenSearchArm:
    found = {"url": "http://x", "collection": "c", "mode": mode, "backbone": "hashed", **params}
    return OpenSearchArm("arm", resolve_kind("arm", ArmSpec(kind="opensearch", params=found))[1], collection)


# -- a search ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "k", "calls"),
    [
        ("lexical", 3, [("lexical", 3)]),
        ("dense", 3, [("dense", 3)]),
        ("hybrid", 3, [("lexical", 50), ("dense", 50)]),
        ("hybrid", 60, [("lexical", 60), ("dense", 60)]),
    ],
)
def test_a_mode_asks_for_its_rankings(mode: str, k: int, calls: list[tuple[str, int]]) -> None:
    collection = CollectionInMemory()
    arm_over(collection, mode).search(ASKED, k)
    assert collection.calls == calls


def test_two_rankings_are_fused_and_cut_to_k() -> None:
    words = [passage("a", 9.0), passage("b", 5.0), passage("c", 1.0)]
    near = [passage("c", 0.9), passage("b", 0.8), passage("d", 0.1)]
    found = arm_over(CollectionInMemory(words, near), "hybrid").search(ASKED, 3).passages
    assert [one.id for one in found] == ["c", "b", "a"]
    assert [one.score for one in found] == pytest.approx([1 / 63 + 1 / 61, 2 / 62, 1 / 61])


def test_scores_count_to_the_fifth_place() -> None:
    words = [passage("c", 0.5000041), passage("a", 0.4999962), passage("b", math.nan), passage("d", -0.25)]
    found = arm_over(CollectionInMemory(words)).search(ASKED, 4).passages
    assert [(one.id, one.score) for one in found] == [("a", 0.5), ("c", 0.5), ("b", 0.0), ("d", -0.25)]
    (apart, _) = (
        arm_over(CollectionInMemory([passage("a", 0.50001), passage("b", 0.50002)])).search(ASKED, 2).passages
    )
    assert apart.id == "b"


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_no_engine_is_asked_for_nothing(mode: str) -> None:
    collection = CollectionInMemory()
    arm = arm_over(collection, mode)
    arm.search(Query(" ?! ", {"hashed": np.zeros(2, dtype=np.float32)}), 3)
    assert collection.calls == []
    arm.search(replace(ASKED, text=" ?! "), 3)
    assert [what for what, _ in collection.calls] == ["dense"]
    arm.search(replace(ASKED, text="\u00bfRiver?"), 3)
    assert [what for what, _ in collection.calls[1:]] == {"dense": ["dense"], "hybrid": ["lexical", "dense"]}[
        mode
    ]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_vector_that_is_not_finite_is_refused(number: float) -> None:
    collection = CollectionInMemory()
    query = Query("river", {"hashed": np.array([1.0, number], dtype=np.float32)})
    with pytest.raises(ArmError, match=r"arm 'arm': .*not finite"):
        arm_over(collection, "dense").search(query, 3)
    assert collection.calls == []


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (QuestionRefusedError("too long"), QuestionRefusedError, "arm 'arm': too long"),
        (ArmError("is away"), ArmError, "arm 'arm': is away"),
        (OSError("no route\nto the host"), ArmError, "arm 'arm': OSError: no route"),
        (ValueError("x" * 999), ArmError, f"arm 'arm': ValueError: {'x' * 300}"),
    ],
    ids=["refused", "of the arm", "of the client", "a long one"],
)
def test_what_a_client_raises_is_an_error_in_one_line(
    raised: Exception, kind: type[ArmError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = CollectionInMemory()

    def fail(*_: object) -> None:
        raise raised

    for what in ("lexical", "dense"):
        monkeypatch.setattr(collection, what, fail)
    for mode in ("lexical", "dense"):
        with pytest.raises(ArmError) as failed:
            arm_over(collection, mode).search(ASKED, 3)
        assert (type(failed.value), str(failed.value)) == (kind, message)


# -- its version -------------------------------------------------------------------------------------------


class Clocked:
    """The version of a collection whose state a test sets, by a clock that it turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.asked = 1000.0, 0
        self.state: Callable[[], FillState | None] = lambda: None
        monkeypatch.setattr(collections, "time", SimpleNamespace(monotonic=lambda: self.now))
        collection = CollectionInMemory()
        monkeypatch.setattr(collection, "state", self._answer)
        self.version = CollectionVersion(collection)

    def _answer(self) -> FillState | None:
        self.asked += 1
        return self.state()

    def holds(self, version: str) -> None:
        self.state = lambda: FillState(version, version, "corpus", "", 1)

    def is_away(self) -> None:
        def fail() -> FillState | None:
            raise ArmError("the engine is away")

        self.state = fail


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Clocked:
    return Clocked(monkeypatch)


def test_a_version_holds_for_ten_seconds(clocked: Clocked) -> None:
    clocked.holds("a")
    assert clocked.version(False) == "a"
    clocked.holds("b")
    clocked.now += 9.99
    assert (clocked.version(False), clocked.asked) == ("a", 1)
    assert (clocked.version(True), clocked.asked) == ("b", 2)
    clocked.holds("c")
    clocked.now += 9.99
    assert clocked.version(False) == "b", "ten seconds from the last look"
    clocked.now += 0.01
    assert clocked.version(False) == "c"


def test_an_engine_that_is_away_has_no_version(clocked: Clocked) -> None:
    clocked.holds("a")
    assert clocked.version(False) == "a"
    clocked.is_away()
    with pytest.raises(ArmError, match="is away"):
        clocked.version(True)
    assert clocked.version(False) is None, "what is there now is unknown"
    clocked.now += 9.99
    assert (clocked.version(False), clocked.asked) == (None, 2), "each search would wait for it otherwise"
    clocked.now += 0.01
    clocked.holds("b")
    assert clocked.version(False) == "b"


def test_a_collection_without_ingest_has_no_version(clocked: Clocked) -> None:
    assert clocked.version(False) is None
    assert arm_over(CollectionInMemory()).version == ""


# -- what arms share ---------------------------------------------------------------------------------------

ONE = {"url": "http://x", "collection": "c", "backbone": "hashed"}


@pytest.mark.parametrize(
    ("changed", "shared"),
    [
        ({"mode": "hybrid"}, True),
        ({"url": "http://y"}, False),
        ({"collection": "d"}, False),
        ({"backbone": None}, False),
        ({"key_env": "SEARCH_KEY"}, False),
    ],
    ids=str,
)
def test_arms_share_a_collection_that_they_ask_in_the_same_way(
    changed: dict[str, Any], shared: bool, corpus: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "secret")
    specs = {
        name: ArmSpec(kind="opensearch", params=params) for name, params in (("a", ONE), ("b", ONE | changed))
    }
    have = Resources(corpus, tmp_path, BACKBONES, specs)
    one, other = (build_arm(name, have) for name in specs)
    assert isinstance(one, EngineArm)
    assert isinstance(other, EngineArm)
    assert (one.collection is other.collection) is shared


def test_engines_at_one_address_share_no_collection(corpus: Any, tmp_path: Any) -> None:
    kinds = ("opensearch", "elasticsearch")
    have = Resources(corpus, tmp_path, BACKBONES, {kind: ArmSpec(kind=kind, params=ONE) for kind in kinds})
    arms = [build_arm(kind, have) for kind in kinds]
    assert [type(arm.collection).__name__ for arm in arms] == ["Index", "ElasticIndex"]  # type: ignore[attr-defined]


def test_arms_over_one_collection_share_its_version(
    corpus: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    is_away = False

    def state(index: Any) -> FillState:
        if is_away:
            raise OSError("no route\nto the host")
        name = index._rest._root.rpartition("/")[2]  # noqa: SLF001
        asked.append(name)
        return FillState(f"version of {name}", f"version of {name}", "corpus", "", 1)

    monkeypatch.setattr(Index, "state", state)
    have = Resources(corpus, tmp_path, BACKBONES, {})
    reads = []
    for changed in ({}, {"mode": "hybrid"}, {"collection": "d"}):
        kind, params = resolve_kind("arm", ArmSpec(kind="opensearch", params=ONE | changed))
        reads.append(kind.version_reader(params, have))
    assert [read(False) for read in reads] == ["version of c", "version of c", "version of d"]
    assert asked == ["c", "d"]
    is_away = True
    with pytest.raises(ArmError, match=r"^OSError: no route$"):
        reads[0](True)
