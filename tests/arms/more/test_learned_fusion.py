"""Learned fusion: the most relevant passages of all members, by a model that is checked before it serves."""

from pathlib import Path

import pytest

from armwise.arms import extras
from armwise.arms.base import ArmBuildError, Query
from armwise.arms.corpus import Corpus
from armwise.arms.more.learned_fusion import LearnedFusionArm, LearnedFusionParams
from armwise.arms.retrievers import (
    ArmGraph,
    ArmSpec,
    Resources,
    build_arm,
    prepare,
)
from tests.arms.relevance.test_model import MODEL
from tests.arms.retrievers.test_fusion import Ranked

PARAMS = LearnedFusionParams(arms=("good", "bad"))


def test_passages_are_in_the_order_of_their_relevance(corpus: Corpus) -> None:
    members = [Ranked(corpus, ["tide", "bee", "opera"]), Ranked(corpus, ["fox", "opera"])]
    query = Query("What is an opera?")
    found = LearnedFusionArm("learned", members, PARAMS, MODEL).search(query, 3).passages
    rankings = {
        name: member.search(query, 4).passages for name, member in zip(PARAMS.arms, members, strict=True)
    }
    relevance = MODEL.relevance(query.text, rankings)
    assert {passage.id: passage.score for passage in found}.items() <= relevance.items()
    assert [passage.id for passage in found] == sorted(relevance, key=lambda name: -relevance[name])[:3]


def test_members_are_asked_for_what_the_model_knows(corpus: Corpus) -> None:
    member, other = Ranked(corpus, ["fox", "bee"]), Ranked(corpus, ["fox"])
    arm = LearnedFusionArm("learned", [member, other], PARAMS, MODEL)
    arm.search(Query("?"), 2)
    arm.search(Query("?"), 9)
    assert member.asked == [MODEL.header.k, 9]


def test_without_its_library_it_is_neither_prepared_nor_built(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = {
        "words": ArmSpec(kind="bm25"),
        "near": ArmSpec(kind="bm25"),
        "all": ArmSpec(kind="learned_fusion", params={"arms": ["words", "near"]}),
    }
    have = Resources(corpus, tmp_path, {}, specs)
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "xgboost")
    missing = r"arm 'all' of kind 'learned_fusion': xgboost is not installed: .*'armwise\[trees\]'"
    with pytest.raises(ArmBuildError, match=missing):
        prepare(have)
    prepare(have, ["words", "near"])
    with pytest.raises(ArmBuildError, match=missing):
        build_arm("all", have)


def test_costs_of_the_members_are_those_of_the_arm(corpus: Corpus) -> None:
    members = [Ranked(corpus, ["fox"], steps=1, tokens=3), Ranked(corpus, ["bee"], steps=2, tokens=4)]
    arm = LearnedFusionArm("learned", members, PARAMS, MODEL)
    found = arm.search(Query("?"), 4)
    assert (found.steps, found.tokens) == (2, 7)
    assert arm.backbones == {"of fox", "of bee"}


def test_the_packaged_model_prefers_a_passage_that_says_it(corpus: Corpus, tmp_path: Path) -> None:
    specs = {
        "words": ArmSpec(kind="bm25"),
        "titles": ArmSpec(kind="bm25", params={"title_weight": 3}),
        "learned": ArmSpec(kind="learned_fusion", params={"arms": ["words", "titles"]}),
    }
    resources = Resources(corpus, tmp_path, {}, specs)
    prepare(resources)
    best = build_arm("learned", resources).search(Query("Which opera did Mozart compose in Vienna?"), 2)
    assert best.passages[0].id == "mozart"
    assert ArmGraph(specs).is_light("learned")


def specs(model: str) -> dict[str, ArmSpec]:
    params = {"arms": ["words", "none"], "model": model}
    return {
        "words": ArmSpec(kind="bm25"),
        "none": ArmSpec(kind="none"),
        "learned": ArmSpec(kind="learned_fusion", params=params),
    }


@pytest.mark.parametrize(
    ("model", "message"),
    [("nowhere", "nowhere has no relevance model"), ("/no/folder", "there is no file or folder")],
)
def test_a_model_that_is_missing_is_refused(corpus: Corpus, tmp_path: Path, model: str, message: str) -> None:
    with pytest.raises(ArmBuildError, match=message):
        prepare(Resources(corpus, tmp_path, {}, specs(model)))
