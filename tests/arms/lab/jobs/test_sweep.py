"""A sweep: every arm's own answer, whether it was found in a batch or alone."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from armwise.arms.base import ArmError, Passage, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.indexes import VectorIndex
from armwise.arms.lab.jobs.job import FAILED, Stopwatch, Sweep
from armwise.arms.llm import GeneratorError
from armwise.arms.models import Backbone
from armwise.arms.more.entity_graph import Graph
from armwise.arms.retrievers import ArmSpec, Resources, build_arm, prepare
from tests.arms.contract import DIM, QUESTIONS, ask

HERE = "tests.arms.lab.jobs.test_sweep"
TINY = frozenset({"tiny"})


class Foreign:
    """Finds what no corpus holds, in two steps and for tokens, and more than it was asked for."""

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str) -> None:
        self.name = name

    def search(self, query: Query, k: int) -> Retrieval:
        del query
        return Retrieval(tuple(Passage(f"web-{n}", "", "Elsewhere.", -n) for n in range(k + 1)), 2, 30)


class Failing:
    """Fails on the questions that hold a word."""

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str, word: str, error: str = "arm") -> None:
        self.name = name
        self._word = word
        self._error = ArmError if error == "arm" else GeneratorError

    def search(self, query: Query, k: int) -> Retrieval:
        del k
        if self._word in query.text:
            raise self._error(f"{self.name} does not like {self._word!r}")
        return Retrieval()


SPECS = {
    "b": ArmSpec(kind="bm25"),
    "d": ArmSpec(kind="dense", params={"backbone": "tiny"}),
    "n": ArmSpec(kind="none"),
    "twin": ArmSpec(kind="dense", params={"backbone": "tiny"}),
    "ivf_pq": ArmSpec(kind="dense", params={"backbone": "tiny", "index": "ivf_pq"}),
    "f": ArmSpec(kind="rrf", params={"arms": ["b", "d"]}),
    "ds": ArmSpec(kind="ds", params={"backbone": "tiny", "gamma": 2.0, "threshold": 0.1}),
    "ds2": ArmSpec(kind="ds", params={"backbone": "tiny", "gamma": 0.1, "threshold": 0.0, "depth": 5}),
    "v": ArmSpec(kind="vendi", params={"backbone": "tiny", "diversity": 0.4}),
    "v2": ArmSpec(kind="vendi", params={"backbone": "tiny", "diversity": 0.8}),
    "g": ArmSpec(kind="graph", params={"backbone": "tiny", "max_hops": 1}),
    "g2": ArmSpec(kind="graph", params={"backbone": "tiny", "max_entity_df": 2}),
}


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indexes")


def resources(corpus: Corpus, indexes: Path, specs: Mapping[str, ArmSpec]) -> Resources:
    have = Resources(corpus, indexes, {"tiny": Backbone(model=f"hashing:{DIM}")}, specs)
    prepare(have)
    return have


@pytest.mark.slow
def test_every_arm_returns_what_it_returns_alone(corpus: Corpus, indexes: Path) -> None:
    have = resources(corpus, indexes, SPECS)
    sweep = Sweep(have)
    for text in QUESTIONS:
        for k in (1, 4, 20):
            found = sweep.search(ask(text, TINY), k)
            assert found.problems == {}
            for column, name in enumerate(SPECS):
                alone = build_arm(name, have).search(ask(text, TINY), k)
                ids = [passage.id for passage in found.rankings[found.which[column]]]
                assert ids == [passage.id for passage in alone.passages]
                assert (found.steps[column], found.tokens[column]) == (alone.steps, alone.tokens)


def test_only_the_named_arms_are_asked_in_their_order(corpus: Corpus, indexes: Path) -> None:
    specs = {**SPECS, "fails": ArmSpec(kind=f"{HERE}:Failing", params={"word": "vienna"})}
    have = resources(corpus, indexes, specs)
    names = ["v2", "f", "ds"]
    query = ask("vienna", TINY)
    some, every = Sweep(have, names).search(query, 4), Sweep(have).search(query, 4)
    assert (some.which.shape, some.problems) == ((3,), {})
    for column, name in enumerate(names):
        assert some.rankings[some.which[column]] == every.rankings[every.which[list(specs).index(name)]]


def test_priced_searches_are_charged_in_a_batch_and_alone(corpus: Corpus, indexes: Path) -> None:
    def dear(name: str, usd: float) -> ArmSpec:
        return SPECS[name].model_copy(update={"usd": usd})

    specs = {
        **SPECS,
        "ds": dear("ds", 0.5),  # in a batch
        "b": dear("b", 0.25),
        "fails": ArmSpec(kind=f"{HERE}:Failing", params={"word": "vienna"}, usd=8.0),
        "v2": dear("v2", 2.0),
        "twice": ArmSpec(kind="expand", params={"arm": "b"}, usd=1.0),
    }
    found = Sweep(resources(corpus, indexes, specs)).search(ask("vienna", TINY), 4)
    paid = {name: usd for name, usd in zip(specs, found.usd.tolist(), strict=True) if usd}
    assert paid == {"b": 0.25, "f": 0.25, "ds": 0.5, "v2": 2.0, "twice": 1.5}


@pytest.mark.parametrize("k", [1, 3])
def test_arms_that_found_the_same_share_one_ranking(corpus: Corpus, indexes: Path, k: int) -> None:
    specs = {**SPECS, "alone": ArmSpec(kind="rrf", params={"arms": ["d", "twin"]})}
    found = Sweep(resources(corpus, indexes, specs)).search(ask("vienna", TINY), k)
    columns = {name: found.which[column] for column, name in enumerate(specs)}
    assert columns["d"] == columns["twin"] == columns["ivf_pq"] == columns["alone"]
    rankings = [tuple(passage.id for passage in ranking) for ranking in found.rankings]
    assert len(set(rankings)) == len(rankings)
    assert set(found.which) == set(range(len(rankings)))


def test_passages_from_elsewhere_are_kept_and_cut(corpus: Corpus, indexes: Path) -> None:
    specs = {"far": ArmSpec(kind=f"{HERE}:Foreign"), "b": SPECS["b"]}
    found = Sweep(resources(corpus, indexes, specs)).search(ask("river"), 2)
    assert [passage.id for passage in found.rankings[found.which[0]]] == ["web-0", "web-1"]
    assert (found.steps.tolist(), found.tokens.tolist()) == ([2, 1], [30, 0])


@pytest.mark.parametrize("error", ["arm", "generator"])
def test_an_arm_that_fails_leaves_the_others(corpus: Corpus, indexes: Path, error: str) -> None:
    failing = ArmSpec(kind=f"{HERE}:Failing", params={"word": "river", "error": error})
    sweep = Sweep(resources(corpus, indexes, {"bad": failing, "b": SPECS["b"]}))
    found = sweep.search(ask("river"), 3)
    assert found.which[0] == FAILED
    assert found.problems == {0: "bad does not like 'river'"}
    assert len(found.rankings[found.which[1]]) > 0
    assert sweep.search(ask("opera"), 3).problems == {}


def test_a_batch_that_fails_fails_for_its_arms_alone(corpus: Corpus, indexes: Path) -> None:
    sweep = Sweep(resources(corpus, indexes, SPECS))
    found = sweep.search(Query("vienna", {"tiny": np.ones(DIM + 1, dtype=np.float32)}), 3)
    names = list(SPECS)
    assert {names[column] for column in found.problems} == set(names) - {"b", "n"}
    assert {names[column] for column in np.flatnonzero(found.which != FAILED)} == {"b", "n"}
    assert f"({DIM + 1},)" in found.problems[names.index("d")]


def test_every_arm_is_timed_on_its_own_also_one_that_fails(
    corpus: Corpus, indexes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = ArmSpec(kind=f"{HERE}:Failing", params={"word": ""})
    specs = {"d": SPECS["d"], "twin": SPECS["twin"], "bad": bad}
    times = (time for n in count(1) for time in (0.0, float(n)))  # the n-th search takes n seconds
    monkeypatch.setattr("armwise.arms.lab.jobs.job.time.perf_counter", lambda: next(times))
    queries = [ask(text, TINY) for text in QUESTIONS]
    stopwatch = Stopwatch(resources(corpus, indexes, specs), queries, k=4, timed=2)
    seconds = {name: stopwatch.seconds(name) for name in specs}
    assert seconds == {"d": 2.5, "twin": 4.5, "bad": 7.5}, "the first search of a kind does not count"


def test_each_timed_search_pays_for_all_that_arms_share(
    corpus: Corpus, indexes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[str] = []
    nearest, walk = VectorIndex.nearest, Graph.walk
    monkeypatch.setattr(VectorIndex, "nearest", lambda *told: shared.append("index") or nearest(*told))
    monkeypatch.setattr(Graph, "walk", lambda *told: shared.append("graph") or walk(*told))
    have = resources(corpus, indexes, SPECS)
    stopwatch = Stopwatch(have, [ask(QUESTIONS[0], TINY)], k=4, timed=3)
    paid = {"ds": ["index"], "ds2": ["index"], "v": ["index"], "g": ["graph"]}
    paid["g2"] = ["graph", "index"]  # Vienna leads nowhere: it is in more passages than two
    warm: set[str] = set()
    for name, steps in paid.items():
        shared.clear()
        stopwatch.seconds(name)
        assert shared == steps * (3 if SPECS[name].kind in warm else 4)
        warm.add(SPECS[name].kind)
