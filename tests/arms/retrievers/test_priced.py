"""Searches with a price: which of them are charged, the most that they may cost, and what is expected."""

import math
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from armwise.arms.base import ArmError, Passage, Query, Retrieval, Usage
from armwise.arms.corpus import Corpus
from armwise.arms.engines.ingest import fill_collection, read_ingested
from armwise.arms.models import Backbone
from armwise.arms.retrievers import (
    METER,
    ArmGraph,
    ArmSpec,
    ArmSpecError,
    CascadeStep,
    Resources,
    build_arm,
    catalog,
    metering,
    prepare,
)
from tests.arms.contract import DIM, ask
from tests.arms.scripted import writing

HERE = "tests.arms.retrievers.test_priced"

TINY = {"tiny": Backbone(model=f"hashing:{DIM}")}


class Side:
    """A source of a user's own, which finds one passage, or fails."""

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str, *, fails: bool = False) -> None:
        self.name, self._fails = name, fails

    def search(self, query: Query, k: int) -> Retrieval:
        del query, k
        if self._fails:
            raise ArmError(f"{self.name} is down")
        return Retrieval((Passage(f"{self.name}/0", "", f"The river Danube of {self.name}."),))


def side(usd: float, **params: Any) -> ArmSpec:
    return ArmSpec(kind=f"{HERE}:Side", usd=usd, params=params)


SIDES = {"a": side(1.0), "b": side(10.0), "c": side(100.0), "down": side(1000.0, fails=True)}


class Decider:
    """Goes on after the first stage, or does not."""

    k = 2

    def __init__(self, *, goes_on: bool) -> None:
        self._goes_on = goes_on

    def decide(self, question: str, answers: Any, found: Any) -> CascadeStep:
        del question, found
        at = next(at for at, answer in enumerate(answers) if answer is not None)
        return CascadeStep(at, 0.5, None, self._goes_on)


def spent(
    corpus: Corpus, folder: Path, specs: Mapping[str, ArmSpec], *texts: str, goes_on: bool = False
) -> Usage:
    """Return what a search of the arm `arm` spends, also where it fails."""
    have = Resources(
        corpus,
        folder,
        TINY,
        specs,
        write=writing(*texts),
        open_selector=lambda _: Decider(goes_on=goes_on),
    )
    prepare(have, ["arm"])
    query = Query(
        "Which river?", {"tiny": [1.0, *[0.0] * (DIM - 1)]}, expected={"a": 0.9, "b": 0.5, "c": 0.1}
    )
    with metering() as meter, suppress(ArmError):
        build_arm("arm", have).search(query, 2)
    return meter.total


ASKED: list[tuple[str, dict[str, Any], tuple[str, ...], bool, float, float, float]] = [
    # kind, parameters, texts of the model, goes on; charged, expected, most
    ("rrf", {"arms": ["a", "b"]}, (), False, 11.0, 11.0, 11.0),
    ("rrf", {"arms": ["a", "down", "b"]}, (), False, 1001.0, 1011.0, 1011.0),
    ("learned_fusion", {"arms": ["a", "b"]}, (), False, 11.0, 11.0, 11.0),
    ("federated", {"arms": ["c", "b", "a"], "most": 1}, (), False, 1.0, 37.0, 111.0),
    ("federated", {"arms": ["c", "b", "a"], "most": 2}, (), False, 11.0, 74.0, 111.0),
    ("federated", {"arms": ["c", "b", "a"], "most": 3, "enough": 0.0001}, (), False, 1.0, 111.0, 111.0),
    ("expand", {"arm": "b"}, (), False, 20.0, 20.0, 20.0),
    ("plackett_luce", {"arm": "b"}, (), False, 10.0, 10.0, 10.0),
    ("multistep", {"arm": "b", "max_steps": 3}, ("the sea", "DONE"), False, 20.0, 30.0, 30.0),
    ("query_variants", {"arm": "b", "way": "hyde"}, ("A river.",), False, 10.0, 10.0, 10.0),
    ("query_variants", {"arm": "b", "way": "rewrite"}, ("One\nTwo\nThree",), False, 40.0, 40.0, 40.0),
    ("ensemble", {"arms": ["a", "b"]}, ("Yes", "Yes"), False, 11.0, 11.0, 11.0),
    ("cascade", {"stages": [["a"], ["b"]], "decider": "d"}, ("Yes", "Yes"), False, 1.0, 1.0, 11.0),
    ("cascade", {"stages": [["a"], ["b"]], "decider": "d"}, ("Yes", "Yes"), True, 11.0, 1.0, 11.0),
]


@pytest.mark.parametrize(("kind", "params", "texts", "goes_on", "charged", "expected", "most"), ASKED)
def test_each_member_that_is_asked_is_charged_and_no_other(
    corpus: Corpus,
    tmp_path: Path,
    kind: str,
    params: dict[str, Any],
    texts: tuple[str, ...],
    goes_on: bool,
    charged: float,
    expected: float,
    most: float,
) -> None:
    if kind == "federated":
        params = {**params, "profile": {"backbone": "tiny", "searches": 0}}
    specs = {**SIDES, "arm": ArmSpec(kind=kind, params=params)}
    usage = spent(corpus, tmp_path, specs, *texts, goes_on=goes_on)
    assert (usage.usd, usage.search_usd) == (charged, charged)
    assert ArmGraph(specs).estimate_usd("arm") == pytest.approx(expected)
    assert ArmGraph(specs).compute_bound("arm").search_usd == most
    dearer = {**specs, "arm": ArmSpec(kind=kind, params=params, usd=0.5)}
    assert spent(corpus, tmp_path, dearer, *texts, goes_on=goes_on).usd == charged + 0.5
    assert ArmGraph(dearer).estimate_usd("arm") == pytest.approx(expected + 0.5)
    assert ArmGraph(dearer).compute_bound("arm").search_usd == most + 0.5


def test_members_of_members_are_charged_as_they_are_asked() -> None:
    specs = {
        **SIDES,
        "twice": ArmSpec(kind="expand", params={"arm": "a"}),
        "arm": ArmSpec(kind="rrf", params={"arms": ["twice", "a", "b"]}),
    }
    assert ArmGraph(specs).estimate_usd("arm") == ArmGraph(specs).compute_bound("arm").search_usd == 13.0


def test_a_search_beside_a_meter_is_counted_nowhere(corpus: Corpus, tmp_path: Path) -> None:
    """As where a source is sampled."""
    arm = build_arm("a", Resources(corpus, tmp_path, {}, SIDES))
    assert METER.get() is None
    assert [one.id for one in arm.search(Query("Which river?"), 2).passages] == ["a/0"]
    with metering() as meter:
        pass
    arm.search(Query("Which river?"), 2)
    assert meter.total == Usage()


def test_an_abandoned_search_asks_no_paid_source(corpus: Corpus, tmp_path: Path) -> None:
    arm = build_arm("a", Resources(corpus, tmp_path, {}, SIDES))
    with metering() as meter:
        meter.abandoned = True
        with pytest.raises(ArmError, match="the caller no longer waits for this search"):
            arm.search(Query("Which river?"), 2)
    assert meter.spent == []


def test_an_arm_with_a_price_keeps_its_name_and_what_it_needs(corpus: Corpus, tmp_path: Path) -> None:
    specs = {"d": ArmSpec(kind="dense", usd=0.5, params={"backbone": "tiny"})}
    have = Resources(corpus, tmp_path, TINY, specs)
    prepare(have)
    arm = build_arm("d", have)
    assert (arm.name, arm.backbones) == ("d", frozenset({"tiny"}))
    assert [len(arm.search(ask("Vienna", frozenset(TINY)), k).passages) for k in (1, 3)] == [1, 3]


@pytest.mark.skipif(find_spec("qdrant_client") is None, reason="the client is not installed")
def test_a_collection_is_filled_for_nothing_and_has_a_price(corpus: Corpus, tmp_path: Path) -> None:
    place = {"path": str(tmp_path / "engines"), "collection": "c"}
    have = Resources(corpus, tmp_path, {}, {"engine": ArmSpec(kind="qdrant", usd=0.5, params=place)})
    with metering() as meter:
        assert read_ingested("engine", have) == ("", False)
        fill_collection("engine", have)
        found = read_ingested("engine", have)
        assert found is not None
        assert found[1]
    assert meter.spent == []
    with metering() as meter:
        assert build_arm("engine", have).search(Query("Vienna"), 2).passages
    assert meter.total.usd == 0.5


@pytest.mark.parametrize("usd", [-0.001, math.nan, math.inf, "dear", True, None])
def test_a_price_that_is_none_is_refused(usd: Any) -> None:
    with pytest.raises(ValidationError, match=r"usd\n.*(Input should be|is not a number)"):
        ArmSpec(kind="bm25", usd=usd)


def test_an_arm_that_searches_nothing_has_no_price() -> None:
    with pytest.raises(ArmSpecError, match="arm 'n': kind 'none' searches nothing: remove `usd`"):
        ArmGraph({"n": ArmSpec(kind="none", usd=0.001)}).validate(())
    ArmGraph({"n": ArmSpec(kind="none"), "a": SIDES["a"]}).validate(())


def test_a_price_makes_no_other_pipeline_and_no_other_search() -> None:
    dear = SIDES["a"].model_copy(update={"usd": 2.0})
    assert catalog.are_equivalent(SIDES["a"], dear)
    assert ArmGraph(SIDES).search_digest("a") == ArmGraph({"a": dear}).search_digest("a")


def test_a_policy_sees_what_a_search_is_expected_to_cost() -> None:
    free = catalog.arm_features("a", SIDES["a"])
    assert "usd" not in free
    assert catalog.arm_features("a", SIDES["a"], 0.002) == {**free, "usd": pytest.approx(math.log(3.0))}
