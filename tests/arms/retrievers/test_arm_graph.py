"""The graph of arms: what is asked of an arm holds of its members."""

import pytest

from armwise.arms.retrievers import ArmGraph, ArmSpec, ArmSpecError

SPECS = {
    "words": ArmSpec(kind="bm25"),
    "near": ArmSpec(kind="dense", params={"backbone": "hashed"}),
    "inner": ArmSpec(kind="rrf", params={"arms": ["near", "words"]}),
    "outer": ArmSpec(kind="rrf", params={"arms": ["words", "inner"]}),
}


def test_the_closure_of_arms_has_each_part_once() -> None:
    graph = ArmGraph(SPECS)
    assert [*graph.closure("outer")] == ["outer", "words", "inner", "near"]
    assert [*graph.closure("near", "inner", "words")] == ["near", "inner", "words"]
    assert graph.closure() == {}


def test_a_changed_closure_leaves_the_graph() -> None:
    specs = dict(SPECS)
    graph = ArmGraph(specs)
    del graph.closure("inner")["near"], specs["near"]
    assert [*graph.closure("inner")] == ["inner", "near", "words"]


def test_a_wrong_arm_is_refused_where_it_is_reached() -> None:
    graph = ArmGraph({**SPECS, "odd": ArmSpec(kind="rrf", params={"arms": ["words", "wrods"]})})
    assert graph.backbones("outer") == {"hashed"}
    with pytest.raises(ArmSpecError, match="unknown arm 'wrods'; did you mean 'words'"):
        graph.backbones("odd")
    with pytest.raises(ArmSpecError, match="arm 'odd': unknown arm 'wrods'; did you mean 'words'"):
        graph.validate(["hashed"])
