"""The graph of arms: what is asked of an arm holds of its members."""

import pytest

from armwise.arms.retrievers import ArmGraph, ArmSpec, ArmSpecError

SPECS = {
    "words": ArmSpec(kind="bm25"),
    "near": ArmSpec(kind="dense", params={"backbone": "hashed"}),
    "inner": ArmSpec(kind="rrf", params={"arms": ["near", "words"]}),
    "outer": ArmSpec(kind="rrf", params={"arms": ["words", "inner"]}),
}


def test_the_closure_of_arms_is_theirs_one_after_the_other_and_each_part_once() -> None:
    graph = ArmGraph(SPECS)
    assert [*graph.closure("outer")] == ["outer", "words", "inner", "near"]
    assert [*graph.closure("near", "inner", "words")] == ["near", "inner", "words"]
    assert graph.closure() == {}


def test_a_part_of_a_closure_can_be_changed_without_changing_the_graph() -> None:
    specs = dict(SPECS)
    graph = ArmGraph(specs)
    del graph.closure("inner")["near"], specs["near"]
    assert [*graph.closure("inner")] == ["inner", "near", "words"]


def test_a_wrong_arm_is_refused_where_it_is_reached_and_not_before() -> None:
    graph = ArmGraph({**SPECS, "odd": ArmSpec(kind="rrf", params={"arms": ["words", "wrods"]})})
    assert graph.backbones("outer") == {"hashed"}
    with pytest.raises(ArmSpecError, match="unknown arm 'wrods'; did you mean 'words'"):
        graph.backbones("odd")
    with pytest.raises(ArmSpecError, match="arm 'odd': unknown arm 'wrods'; did you mean 'words'"):
        graph.validate(["hashed"])
