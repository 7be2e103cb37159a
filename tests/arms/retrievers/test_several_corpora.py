"""Arms over several corpora: each searches its own, fused ones several, and wrong names are refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from armwise.arms.corpus import Corpus, CorpusSource, ingest_all
from armwise.arms.deployments.arm_host import digest_arm
from armwise.arms.engines.ingest import fill_collection, read_ingested
from armwise.arms.lab.jobs.job import Sweep
from armwise.arms.models import Backbone
from armwise.arms.retrievers import (
    ArmGraph,
    ArmSpec,
    ArmSpecError,
    Resources,
    build_arm,
    build_versioned,
    prepare,
)
from armwise.arms.retrievers.catalog import are_equivalent, arm_features
from tests.arms.contract import DIM, ask, check_arm
from tests.arms.corpus.test_corpora import write

CITIES = ["Vienna", "Oslo", "Rome", "Bonn"]
TINY = {"tiny": Backbone(model=f"hashing:{DIM}")}
DENSE = {"backbone": "tiny"}

SPECS = {
    "docs": ArmSpec(kind="bm25", corpus="docs"),
    "tickets": ArmSpec(kind="bm25", corpus="tickets"),
    "near_docs": ArmSpec(kind="dense", corpus="docs", params=DENSE),
    "near_tickets": ArmSpec(kind="dense", corpus="tickets", params=DENSE),
    "ds_docs": ArmSpec(kind="ds", corpus="docs", params={**DENSE, "gamma": 1.0, "threshold": 0.1}),
    "ds_tickets": ArmSpec(kind="ds", corpus="tickets", params={**DENSE, "gamma": 1.0, "threshold": 0.1}),
    "fused": ArmSpec(kind="rrf", params={"arms": ["docs", "near_tickets"]}),
    "expanded": ArmSpec(kind="expand", params={"arm": "fused"}),
    "learned": ArmSpec(kind="learned_fusion", params={"arms": ["docs", "tickets"]}),
    "none": ArmSpec(kind="none"),
}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("several")
    return ingest_all([write(folder, "docs", CITIES), write(folder, "tickets", [*CITIES[::-1], "Paris"])])


@pytest.fixture(scope="module")
def have(several: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Resources:
    made = Resources(several, tmp_path_factory.mktemp("indexes"), TINY, SPECS)
    prepare(made)
    return made


@pytest.mark.parametrize("name", [*SPECS])
def test_every_arm_keeps_its_promises_over_several_corpora(
    name: str, have: Resources, several: Corpus
) -> None:
    check_arm(build_arm(name, have), several)


@pytest.mark.parametrize(
    ("name", "corpora"),
    [
        ("docs", {"docs"}),
        ("near_tickets", {"tickets"}),
        ("ds_docs", {"docs"}),
        ("fused", {"docs", "tickets"}),
        ("expanded", {"docs", "tickets"}),
        ("learned", {"docs", "tickets"}),
        ("none", set()),
    ],
)
def test_an_arm_finds_passages_of_the_corpora_that_it_searches(
    name: str, corpora: set[str], have: Resources
) -> None:
    arm = build_arm(name, have)
    found = arm.search(ask("What of Vienna and Oslo?", arm.backbones), 6).passages
    assert {passage.id.partition("/")[0] for passage in found} == corpora
    assert ArmGraph(SPECS).corpora(name) == corpora


def test_a_sweep_finds_what_each_arm_finds_alone(have: Resources) -> None:
    query = ask("Which of Oslo, Rome and Paris?", frozenset({"tiny"}))
    found = Sweep(have).search(query, 3)
    assert found.problems == {}
    for column, name in enumerate(SPECS):
        alone = [passage.id for passage in build_arm(name, have).search(query, 3).passages]
        assert [passage.id for passage in found.rankings[found.which[column]]] == alone, name


def test_the_corpus_is_part_of_what_an_arm_is() -> None:
    one, other = SPECS["docs"], SPECS["tickets"]
    pair = {"arm": one}, {"arm": other}
    assert digest_arm("arm", pair[0]) != digest_arm("arm", pair[1])
    assert ArmGraph(pair[0]).search_digest("arm") != ArmGraph(pair[1]).search_digest("arm")
    assert not are_equivalent(one, other)
    assert arm_features("arm", one)["corpus=docs"] == 1.0
    assert not any(name.startswith("corpus=") for name in arm_features("arm", ArmSpec(kind="bm25")))


def test_the_version_of_an_arm_is_that_of_its_corpus_alone(have: Resources, tmp_path: Path) -> None:
    def versions(resources: Resources) -> dict[str, str | None]:
        arms = ("docs", "tickets", "fused")
        return {name: build_versioned(name, resources).version() for name in arms}

    before = versions(have)
    changed = ingest_all([write(tmp_path, "docs", CITIES), write(tmp_path, "tickets", ["Bern"])])
    own = Resources(changed, tmp_path / "indexes", TINY, SPECS)
    prepare(own)
    after = versions(own)
    assert before["docs"] == after["docs"]
    assert before["tickets"] != after["tickets"]
    assert before["fused"] != after["fused"]


def test_passages_under_another_name_are_another_version(tmp_path: Path) -> None:
    source = write(tmp_path, "docs", CITIES)

    def version(name: str, corpora: list[CorpusSource]) -> str | None:
        specs = {"arm": ArmSpec(kind="bm25", corpus=name or None)}
        resources = Resources(ingest_all(corpora), tmp_path / "indexes", {}, specs)
        prepare(resources)
        return build_versioned("arm", resources).version()

    named = version("docs", [source])
    renamed = version("wiki", [CorpusSource(source.source, source.folder, "wiki")])
    alone = version("", [CorpusSource(source.source, source.folder)])
    assert len({named, renamed, alone}) == 3, "ids differ, so what was found before does not hold"


@pytest.mark.parametrize(
    ("spec", "corpora", "said"),
    [
        (ArmSpec(kind="bm25"), ["docs", "tickets"], "arm 'a': `corpus` is missing"),
        (ArmSpec(kind="bm25"), ["docs", "tickets"], "set it to one of docs, tickets"),
        (ArmSpec(kind="bm25", corpus="dosc"), ["docs", "wiki"], "unknown corpus 'dosc'; did you mean 'docs'"),
        (ArmSpec(kind="bm25", corpus="docs"), [], "there is one corpus, because `corpora`"),
        (
            ArmSpec(kind="none", corpus="docs"),
            ["docs"],
            "kind 'none' searches no corpus: remove `corpus`",
        ),
        (
            ArmSpec(kind="rrf", corpus="docs", params={"arms": ["b", "c"]}),
            ["docs"],
            "kind 'rrf' searches its members: remove `corpus`",
        ),
        (ArmSpec(kind="qdrant", corpus="gone", params={"path": "p", "collection": "c"}), ["docs"], "'gone'"),
    ],
)
def test_a_wrong_corpus_is_refused(spec: ArmSpec, corpora: list[str], said: str) -> None:
    members = {name: ArmSpec(kind="bm25", corpus="docs") for name in ("b", "c")} if spec.kind == "rrf" else {}
    with pytest.raises(ArmSpecError) as raised:
        ArmGraph({"a": spec, **members}).validate([], corpora)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("spec", "corpora"),
    [
        (ArmSpec(kind="bm25"), ["docs"]),
        (ArmSpec(kind="bm25"), []),
        (ArmSpec(kind="bm25", corpus="docs"), ["docs"]),
        (ArmSpec(kind="qdrant", params={"path": "p", "collection": "c"}), ["docs", "tickets"]),
        (ArmSpec(kind="mcp", params={"url": "https://a.example", "tool": "find"}), ["docs", "tickets"]),
    ],
)
def test_an_arm_may_be_without_a_corpus_where_that_says_enough(spec: ArmSpec, corpora: list[str]) -> None:
    ArmGraph({"a": spec}).validate([], corpora)


class TestEngines:
    """Collections of search engines are filled with the corpus that their arm names."""

    @pytest.fixture
    def engines(self, several: Corpus, tmp_path: Path) -> Resources:
        params = {"path": str(tmp_path / "engine"), "collection": "own"}
        specs = {
            "engine": ArmSpec(kind="qdrant", corpus="tickets", params=params),
            "foreign": ArmSpec(kind="qdrant", params={**params, "collection": "others"}),
        }
        return Resources(several, tmp_path / "indexes", {}, specs)

    def test_a_collection_holds_the_corpus_of_its_arm(self, engines: Resources) -> None:
        assert read_ingested("engine", engines) == ("", False)
        assert fill_collection("engine", engines).written == 5
        assert read_ingested("engine", engines)[1]  # type: ignore[index]
        (first, *_) = build_arm("engine", engines).search(ask("Paris"), 3).passages
        assert first.id == "tickets/Paris"

    def test_a_collection_without_a_corpus_is_filled_by_others(self, engines: Resources) -> None:
        assert read_ingested("foreign", engines) is None
        with pytest.raises(ArmSpecError, match=r"arm 'foreign' names no corpus: .* docs, tickets"):
            fill_collection("foreign", engines)

    def test_an_arm_of_arms_has_no_collection(self, engines: Resources) -> None:
        fused = ArmSpec(kind="rrf", params={"arms": ["engine", "foreign"]})
        resources = replace(engines, specs={**engines.specs, "fused": fused})
        with pytest.raises(
            ArmSpecError, match="arm 'fused' of kind 'rrf' has no collection: use one of the kinds"
        ):
            fill_collection("fused", resources)
