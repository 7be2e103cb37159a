"""The catalogue: data becomes arms, and what is wrong with the data is said in words."""

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from armwise.arms.async_bridge import Blocking
from armwise.arms.base import Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.indexes import IndexMismatchError
from armwise.arms.llm import UNPROMPTED, WritingSpec, base, blocking_writer
from armwise.arms.models import Backbone
from armwise.arms.models.embedding import HashingEmbedder
from armwise.arms.retrievers import ArmGraph, build_arm, catalog, prepare
from armwise.arms.retrievers.catalog import KINDS, ArmSpecError, are_equivalent, arm_features, resolve_kind
from armwise.arms.retrievers.kind import MOST_MEMBERS, ArmSpec, Kind, NoParams, Resources
from tests.arms.contract import DIM, check_arm
from tests.packages import install_package

EXAMPLES = {name: ArmSpec(kind=name, params=dict(kind.example)) for name, kind in KINDS.own.items()}
"""An arm of each kind, by the name of its kind."""


APART = ("remote", "mcp", "langchain", "llamaindex", "haystack")
"""Kinds that need a server or code that is not here; those of engines have a URL or a path."""


def stands_alone(spec: ArmSpec) -> bool:
    """Return whether an arm needs no server, no code, no model and no training but what is here."""
    kind, params = resolve_kind("arm", spec)
    engine = kind.kind in APART or "collection" in spec.params
    defaults = {field.default for field in kind.params.model_fields.values() if field.annotation is str}
    return not engine and {*kind.models(params)} <= defaults


SPECS = {name: spec for name, spec in EXAMPLES.items() if stands_alone(spec)} | {
    "near-fast": ArmSpec(kind="dense", params={"backbone": "minilm", "index": "ivf_pq"}),
    "nested": ArmSpec(kind="rrf", params={"arms": ["rrf", "near-fast"]}),
    "hypothetical": ArmSpec(kind="query_variants", params={"arm": "dense", "way": "hyde"}),
    "own": ArmSpec(kind="tests.arms.retrievers.test_catalog:Own", params={"greeting": "hello"}),
}
"""The arms that are built here; the tests of the other kinds hold those to the contract."""
MOST_LEVELS, MOST_SEARCHES = 8, 256
"""Of an arm with its members."""

SCRIPTED = base.ScriptedGenerator({}, default='{"score": 7}')


def embed(text: str, backbones: frozenset[str]) -> Mapping[str, NDArray[np.float32]]:
    return dict.fromkeys(backbones, HashingEmbedder(DIM).encode_queries([text])[0])


BACKBONES = {"minilm": Backbone(model=f"hashing:{DIM}")}


class Own:
    """An arm as a user would write it."""

    backbones = frozenset({"minilm"})

    def __init__(self, name: str, greeting: str) -> None:
        self.name = name
        self.greeting = greeting

    def search(self, query: Query, k: int) -> Retrieval:
        del query, k
        return Retrieval()


class LightOwn(Own):
    """An arm of a user's own that may search beside HTTP."""

    light = True


class OddlyLight(Own):
    """An arm that does not say whether it is light."""

    light = "yes"


class OddlyFiltering(Own):
    """An arm that does not say whether it finds only what a query permits."""

    filters = 1


class Filtering(Own):
    """An arm that finds only what a query permits."""

    filters = True


class NoArm:
    """A class that is not an arm."""

    def __init__(self, name: str) -> None:
        self.name = name


class Unfinished(Kind[NoParams]):
    """A kind that can be neither built nor searched."""

    params = NoParams


@pytest.fixture(scope="module")
def resources(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Resources:
    indexes, write = tmp_path_factory.mktemp("indexes"), blocking_writer(Blocking(), SCRIPTED)
    ready = Resources(corpus, indexes, BACKBONES, SPECS, embed, write)
    prepare(ready)
    return ready


@pytest.mark.parametrize("name", SPECS)
def test_every_arm_that_is_built_keeps_the_contract(resources: Resources, name: str) -> None:
    arm = build_arm(name, resources)
    assert arm.name == name
    assert arm.backbones == ArmGraph(SPECS).embeddings(name)
    check_arm(arm, resources.corpus)


def test_every_kind_can_be_configured_as_its_example() -> None:
    ArmGraph(EXAMPLES).validate(["minilm"])
    assert {"none", "bm25", "dense", "rrf", "ensemble"} <= SPECS.keys()
    assert SPECS.keys().isdisjoint({"remote", "mcp", "cross_encoder", "cascade", "langchain", "postgres"})


def test_an_arm_of_ones_own_gets_its_name_and_parameters(resources: Resources) -> None:
    arm = build_arm("own", resources)
    assert isinstance(arm, Own)
    assert arm.greeting == "hello"


def test_preparing_arms_prepares_their_members_alone(corpus: Corpus, tmp_path: Path) -> None:
    resources = Resources(corpus, tmp_path, BACKBONES, SPECS)
    prepare(resources, ["rrf"])
    build_arm("rrf", resources)
    with pytest.raises(IndexMismatchError, match="prepare the arms first"):
        build_arm("near-fast", resources)


def test_preparing_again_builds_nothing(resources: Resources) -> None:
    told: list[str] = []
    before = sorted(path.name for path in resources.indexes.iterdir())
    prepare(resources, progress=lambda what, done, total: told.append(f"{what} {done} {total}"))
    assert told == []
    assert sorted(path.name for path in resources.indexes.iterdir()) == before


def test_other_parameters_get_an_index_of_their_own(resources: Resources) -> None:
    longer = {"bm25": ArmSpec(kind="bm25", params={"k1": 2.0})}
    changed = Resources(resources.corpus, resources.indexes, {}, longer)
    prepare(changed)
    query = Query("Who composed an opera in Vienna?")
    scores = [build_arm("bm25", r).search(query, 1).passages[0].score for r in (resources, changed)]
    assert scores[0] != scores[1]


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({"a": ArmSpec(kind="bm52")}, "arm 'a': unknown kind 'bm52'; did you mean 'bm25'"),
        ({"a": ArmSpec(kind="x")}, "; write a class of your own as package.module:Class"),
        ({"a": ArmSpec(kind="bm25", params={"k": 1})}, "unknown parameter 'k'; did you mean 'k1'"),
        ({"a": ArmSpec(kind="bm25", params={"b": 7})}, "b: Input should be less than or equal to 1, got 7"),
        ({"a": ArmSpec(kind="dense")}, "arm 'a' of kind 'dense': backbone: Field required"),
        (
            {"a": ArmSpec(kind="dense", params={"backbone": "minlm"})},
            "unknown backbone 'minlm'; did you mean 'minilm'",
        ),
        (
            {"word": ArmSpec(kind="bm25"), "a": ArmSpec(kind="rrf", params={"arms": ["word", "wort"]})},
            "arm 'a': unknown arm 'wort'; did you mean 'word'",
        ),
        (
            {
                "a": ArmSpec(kind="rrf", params={"arms": ["w", "b"]}),
                "b": ArmSpec(kind="rrf", params={"arms": ["w", "a"]}),
                "w": ArmSpec(kind="bm25"),
            },
            "arm 'a' is a member of itself: a -> b -> a",
        ),
        ({"a": ArmSpec(kind="no_such_package:Arm")}, "cannot import 'no_such_package:Arm'"),
        ({"a": ArmSpec(kind="armwise.arms.base:NoSuchArm")}, "cannot import 'armwise.arms.base:NoSuchArm'"),
        (
            {"a": ArmSpec(kind="armwise.arms.retrievers.kind:INGRESS")},
            "'armwise.arms.retrievers.kind:INGRESS' is a str, not a class",
        ),
        ({"a": ArmSpec(kind="armwise.arms.retrievers:Kind")}, "Kind is not a kind of arm: it lacks params"),
        (
            {"a": ArmSpec(kind="tests.arms.retrievers.test_catalog:Unfinished")},
            "arm 'a': Unfinished is not a kind of arm: it lacks build, search",
        ),
    ],
)
def test_a_wrong_description_is_refused(specs: dict[str, ArmSpec], message: str) -> None:
    with pytest.raises(ArmSpecError) as refusal:
        ArmGraph(specs).validate(BACKBONES)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ArmSpec(kind="tests.arms.retrievers.test_catalog:NoArm"), "is not an arm: it lacks search"),
        (ArmSpec(kind="tests.arms.retrievers.test_catalog:Own"), "cannot be built: .*greeting"),
        (ArmSpec(kind="tests.arms.retrievers.test_catalog:OddlyLight"), "OddlyLight.light must be True or"),
        (ArmSpec(kind="tests.arms.retrievers.test_catalog:OddlyFiltering"), "OddlyFiltering.filters must be"),
    ],
)
def test_a_class_that_is_no_arm_is_refused(
    corpus: Corpus, tmp_path: Path, spec: ArmSpec, message: str
) -> None:
    resources = Resources(corpus, tmp_path, BACKBONES, {"mine": spec})
    with pytest.raises(ArmSpecError, match=message):
        build_arm("mine", resources)


def test_only_cheap_kinds_are_light() -> None:
    own = ArmSpec(kind=f"{LightOwn.__module__}:LightOwn", params={"greeting": "hello"})
    specs = {**EXAMPLES, "own": SPECS["own"], "light own": own}
    graph = ArmGraph(specs)
    light = {name for name in specs if graph.is_light(name)}
    assert light >= {"none", "bm25", "dense", "rrf", "learned_fusion", "expand", "plackett_luce", "light own"}
    prompting = {name for name in specs if graph.compute_bound(name) != UNPROMPTED}
    elsewhere = {name for name, spec in EXAMPLES.items() if not stands_alone(spec)}
    assert light.isdisjoint({*prompting, *elsewhere, "own"}), "a light arm waits for nothing"


def test_an_arm_of_ones_own_filters_where_it_says_so() -> None:
    own = {name: ArmSpec(kind=f"{__name__}:{name}") for name in ("Own", "Filtering")}
    assert {name: ArmGraph(own).filters(name) for name in own} == {"Own": False, "Filtering": True}


def test_an_arm_embeds_texts_of_its_own_where_a_member_does() -> None:
    specs = {
        "near": ArmSpec(kind="dense", params={"backbone": "hashed"}),
        "steps": ArmSpec(kind="multistep", params={"arm": "near"}),
        "fused": ArmSpec(kind="rrf", params={"arms": ["near", "steps"]}),
    }
    graph = ArmGraph(specs)
    found = {name: graph.embeddings_of_texts(name) for name in specs}
    assert found == {"near": frozenset(), "steps": {"hashed"}, "fused": {"hashed"}}


def test_features_tell_kind_backbone_and_expected_steps() -> None:
    assert arm_features("none", SPECS["none"]) == {"arm=none": 1.0, "kind=none": 1.0, "steps": 0.0}
    near = ArmSpec(kind="dense", params={"backbone": "hashed"})
    assert arm_features("near", near) == {
        "arm=near": 1.0,
        "kind=dense": 1.0,
        "backbone=hashed": 1.0,
        "steps": 1.0,
    }
    fused = ArmSpec(kind="rrf", params={"arms": ["words", "near"]}, answering=WritingSpec(passages=5))
    assert arm_features("both", fused) == {
        "arm=both": 1.0,
        "kind=rrf": 1.0,
        "member=words": 1.0,
        "member=near": 1.0,
        "answering.passages": 0.5,
        "steps": 1.0,
    }


def test_a_way_of_writing_is_told_in_numbers_of_one_size() -> None:
    writing = WritingSpec(
        llm="large",
        prompt="brief",
        passages=5,
        word_budget=300,
        max_tokens=64,
        temperature=0.5,
        reasoning="low",
    )
    assert dict(writing.features()) == {
        "llm=large": 1.0,
        "prompt=brief": 1.0,
        "reasoning=low": 1.0,
        "answering.passages": 0.5,
        "answering.word_budget": 0.3,
        "answering.max_tokens": 0.064,
        "answering.temperature": 0.5,
    }


def test_a_policy_is_told_the_numbers_of_an_arm_as_logarithms() -> None:
    params = {"backbone": "hashed", "gamma": 1.0, "threshold": 0.2}
    told = arm_features("d", ArmSpec(kind="ds", params=params))
    assert told["kind=ds"] == told["backbone=hashed"] == told["steps"] == 1.0
    assert told["ds.gamma"] == pytest.approx(np.log(2.0))
    assert told["ds.threshold"] == pytest.approx(np.log(1.2))


def lattice(levels: int, width: int = 2) -> dict[str, ArmSpec]:
    """Return fusions of fusions: each of a level has all arms of the one below as members."""
    specs = {f"a0-{n}": ArmSpec(kind="none") for n in range(width)}
    for level in range(1, levels):
        below = {"arms": [f"a{level - 1}-{n}" for n in range(width)]}
        specs |= {f"a{level}-{n}": ArmSpec(kind="rrf", params=below) for n in range(width)}
    return specs


def test_a_lattice_of_fusions_within_the_bound_is_built(corpus: Corpus, tmp_path: Path) -> None:
    specs, top = lattice(MOST_LEVELS), f"a{MOST_LEVELS - 1}-0"  # 255 searches
    ArmGraph(specs).validate({})
    assert len(ArmGraph(specs).closure(top)) == 2 * MOST_LEVELS - 1
    arm = build_arm(top, Resources(corpus, tmp_path, {}, specs))
    assert arm.search(Query("q"), 3) == Retrieval(steps=0)


@pytest.mark.parametrize("inside_out", [False, True])
@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (lattice(MOST_LEVELS + 1), rf"more than {MOST_LEVELS} levels|in {MOST_LEVELS + 1} levels"),
        (lattice(5_000), rf"more than {MOST_LEVELS} levels|in {MOST_LEVELS + 1} levels"),
        (lattice(3, width=16), rf"would search 273 times .* at most {MOST_SEARCHES} times"),
    ],
    ids=["deep", "very deep", "wide"],
)
def test_members_of_members_that_search_too_often_are_refused(
    specs: dict[str, ArmSpec], message: str, inside_out: bool
) -> None:
    specs = specs if inside_out else dict(reversed(specs.items()))
    with pytest.raises(ArmSpecError, match=message):
        ArmGraph(specs).validate({})


@pytest.mark.parametrize(("members", "fits"), [(51, True), (52, False)])
def test_an_arm_may_search_256_times(members: int, fits: bool) -> None:
    specs = {"none": ArmSpec(kind="none"), "five": ArmSpec(kind="rrf", params={"arms": ["none"] * 4})}
    specs["many"] = ArmSpec(kind="rrf", params={"arms": ["five"] * members})
    with nullcontext() if fits else pytest.raises(ArmSpecError, match="would search 261 times"):
        ArmGraph(specs).validate({})


@pytest.mark.parametrize(
    ("kind", "params", "total"),
    [
        ("rrf", {"arms": ["none"] * 100_000}, "64 items after validation, not"),
        ("learned_fusion", {"arms": ["none"] * 65}, "64 items after validation, not 65"),
        ("ensemble", {"arms": ["none"] * 100_000}, "64 items after validation, not"),
        ("cascade", {"stages": [["none"] * 100_000, ["a"]], "decider": "x"}, "100,001 arms; at most 64"),
        ("cascade", {"stages": [["none"]] * 100_000, "decider": "x"}, "64 items after validation, not"),
        ("cascade", {"stages": [["none"] * 32, ["a"] * 33], "decider": "x"}, "65 arms; at most 64"),
        ("cascade", {"stages": [["a"], ["a"]], "decider": "x"}, "arm 'a' occurs twice"),
        ("cascade", {"stages": [["a", "b", "b"], ["c"]], "decider": "x"}, "arm 'b' occurs twice"),
    ],
)
def test_too_many_or_repeated_members_are_refused(kind: str, params: dict[str, Any], total: str) -> None:
    with pytest.raises(ArmSpecError) as refusal:
        resolve_kind("a", ArmSpec(kind=kind, params=params))
    assert total in str(refusal.value)
    assert len(str(refusal.value)) < 1_000


def test_an_arm_may_have_as_many_members_as_fit() -> None:
    fused = ArmSpec(kind="rrf", params={"arms": ["none"] * MOST_MEMBERS})
    ArmGraph({"none": ArmSpec(kind="none"), "a": fused}).validate({})


def test_two_ways_to_say_the_same_arm_are_the_same() -> None:
    assert are_equivalent(ArmSpec(kind="bm25"), ArmSpec(kind="bm25", params={"k1": 1.2}, host="GPU"))
    assert not are_equivalent(ArmSpec(kind="bm25"), ArmSpec(kind="bm25", params={"k1": 1.3}))
    assert not are_equivalent(ArmSpec(kind="bm25"), ArmSpec(kind="none"))
    short = ArmSpec(kind="bm25", answering=WritingSpec(prompt="short"))
    assert not are_equivalent(ArmSpec(kind="bm25"), short)


@pytest.mark.parametrize(
    "params",
    [
        {"k1": float("inf")},
        {"x": [1.0, float("nan")]},
        {"x": {"y": [float("-inf")]}},
        {"x": {"y": (float("nan"),)}},
        {"k1": 10**30},
        {"x": "\ud800"},
        {"x": {1, 2}},
    ],
)
def test_parameters_that_a_log_cannot_keep_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="parameters must be"):
        ArmSpec(kind="bm25", params=params)


def test_the_digest_of_a_search_is_of_all_its_members() -> None:
    own = ArmSpec(kind=f"{__name__}:Own", params={"greeting": "hello"})
    specs = {"words": ArmSpec(kind="bm25"), "none": ArmSpec(kind="none"), "own": own, "other": own}
    fused = ArmSpec(kind="rrf", params={"arms": ["none", "words"]})
    specs |= {"fused": fused, "again": fused, "drawn": ArmSpec(kind="plackett_luce", params={"arm": "words"})}
    specs["also drawn"] = specs["drawn"]
    graph = ArmGraph(specs)
    digests = {name: graph.search_digest(name) for name in specs}
    assert digests["fused"] == digests["again"]
    assert len({*digests.values()}) == len(digests) - 1
    changed = specs | {"words": ArmSpec(kind="bm25", params={"k1": 0.9})}
    after = ArmGraph(changed)
    same = {name for name in specs if after.search_digest(name) == digests[name]}
    assert same == {"none", "own", "other"}


def test_the_version_of_an_index_is_of_its_model(corpus: Corpus, tmp_path: Path) -> None:
    kind, params = resolve_kind("dense", SPECS["dense"])
    models = [Backbone(model=f"hashing:{dim}") for dim in (8, 16)]
    have = [Resources(corpus, tmp_path, {"minilm": model}, {}) for model in models]
    versions = [kind.version_reader(params, one)(False) for one in (*have, have[0])]
    assert versions[0] == versions[2] != versions[1]


def test_all_that_is_shared_and_can_forget_does(corpus: Corpus, tmp_path: Path) -> None:
    have, forgotten = Resources(corpus, tmp_path, {}, {}), list[str]()

    class Cached:
        def __init__(self, name: str) -> None:
            self.name = name

        def forget(self) -> None:
            forgotten.append(self.name)

    first = have.share("first", lambda: Cached("first"))
    have.share("plain", object)
    have.share("second", lambda: Cached("second"))
    have.forget()
    assert forgotten == ["first", "second"]
    assert have.share("first", lambda: Cached("another")) is first, "it is made once"


# -- kinds -------------------------------------------------------------------------------------------------


PLUGIN = """
from pydantic import BaseModel
from armwise.arms import Passage, Retrieval
from armwise.arms.retrievers import Kind

class GlossaryParams(BaseModel):
    text: str

class GlossaryArm:
    backbones = frozenset()
    light = True
    def __init__(self, name, text="none"):
        self.name, self.text = name, text
    def search(self, query, k):
        return Retrieval((Passage("1", "", self.text),)[:k])

class Glossary(Kind[GlossaryParams]):
    kind = "glossary"
    params = GlossaryParams
    @classmethod
    def build(cls, name, params, have, member):
        return GlossaryArm(name, params.text)
    def search(self, query, k):
        raise NotImplementedError
NEITHER = "a text"
"""
ENTRY_POINTS = """\
glossary = {module}:Glossary
glossary_class = {module}:GlossaryArm
bm25 = {module}:GlossaryArm
neither = {module}:NEITHER
missing = {module}:Missing
other = {module}:Glossary
twice = {module}:GlossaryArm
twice = {module}:NEITHER
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install distributions that add kinds of arms; return the name of their module."""
    module = f"glossary_of_{tmp_path.name.replace('-', '_')}"
    points = ENTRY_POINTS.format(module=module).splitlines()
    install_package(tmp_path, monkeypatch, module, PLUGIN, "armwise.arms", points)
    kinds = catalog.KindCatalogue(
        ["armwise.arms.retrievers"], "armwise.arms", "kind", ArmSpecError, folders=True
    )
    monkeypatch.setattr(catalog, "KINDS", kinds)
    return module


def test_an_installed_package_adds_kinds(plugin: str, corpus: Corpus, tmp_path: Path) -> None:
    specs = {
        "terms": ArmSpec(kind="glossary", params={"text": "A heap is a tree."}),
        "same": ArmSpec(kind="glossary_class", params={"text": "A tree."}),
        "both": ArmSpec(kind="rrf", params={"arms": ["terms", "same"]}),
        "words": ArmSpec(kind="bm25"),
    }
    assert plugin not in sys.modules, "it is not imported before it is used"
    ArmGraph(specs).validate([])
    have = Resources(corpus, tmp_path, {}, specs)
    assert [p.text for p in build_arm("terms", have).search(Query("heap"), 3).passages] == [
        "A heap is a tree."
    ]
    assert [p.text for p in build_arm("same", have).search(Query("heap"), 3).passages] == ["A tree."]
    assert ArmGraph(specs).is_light("same"), "the traits of a class hold"
    assert resolve_kind("words", specs["words"])[0] is KINDS["bm25"], "none takes the place of a kind of ours"
    assert not ArmGraph(specs).is_versioned("both")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ArmSpec(kind="glossery"), "unknown kind 'glossery'; did you mean 'glossary'"),
        (ArmSpec(kind="glossary"), "arm 'a' of kind 'glossary': text: Field required"),
        (ArmSpec(kind="neither"), "'neither' is a str, not a class"),
        (ArmSpec(kind="missing"), "arm 'a': kind 'missing': .*:Missing cannot be imported: AttributeError"),
        (ArmSpec(kind="other"), "arm 'a': kind 'other': .*:Glossary defines a kind named 'glossary'"),
        (ArmSpec(kind="twice"), r"kind 'twice' is registered more than once, by theirs-6 .* and by theirs-7"),
    ],
)
@pytest.mark.usefixtures("plugin")
def test_a_wrong_arm_of_an_installed_package_is_refused(spec: ArmSpec, message: str) -> None:
    with pytest.raises(ArmSpecError, match=message):
        ArmGraph({"a": spec}).validate([])
