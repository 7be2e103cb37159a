"""A sweep: every arm's own answer, whether it was found in a batch or alone."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from arms.base import ArmError, Passage, Query, Retrieval
from arms.catalog import build_arm, prepare
from arms.corpus import Corpus
from arms.embedding import Backbone
from arms.generator import GeneratorError
from arms.kinds import ArmSpec, Resources
from arms.sweep import FAILED, Stopwatch, Sweep
from tests.arms.conftest import ENCYCLOPEDIA, keep
from tests.arms.contract import DIM, QUESTIONS, ask

HERE = "tests.arms.test_sweep"
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
    "graph": ArmSpec(kind="dense", params={"backbone": "tiny", "index": "hnsw"}),
    "f": ArmSpec(kind="rrf", params={"arms": ["b", "d"]}),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """In order of the ids: a batch breaks ties by position, an arm by id."""
    return keep(tmp_path_factory.mktemp("sorted"), tuple(sorted(ENCYCLOPEDIA, key=lambda p: p.id)))


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indexes")


def resources(corpus: Corpus, indexes: Path, specs: Mapping[str, ArmSpec]) -> Resources:
    have = Resources(corpus, indexes, {"tiny": Backbone(model=f"hashing:{DIM}")}, specs)
    prepare(have)
    return have


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


def test_arms_that_found_the_same_share_one_ranking(corpus: Corpus, indexes: Path) -> None:
    found = Sweep(resources(corpus, indexes, SPECS)).search(ask("vienna", TINY), 1)
    columns = {name: found.which[column] for column, name in enumerate(SPECS)}
    assert columns["d"] == columns["twin"] == columns["graph"]
    rankings = [tuple(passage.id for passage in ranking) for ranking in found.rankings]
    assert len(set(rankings)) == len(rankings)
    assert set(found.which) == set(range(len(rankings)))


def test_passages_from_elsewhere_are_kept_and_cut(corpus: Corpus, indexes: Path) -> None:
    specs = {"far": ArmSpec(kind=f"{HERE}:Foreign"), "b": SPECS["b"]}
    found = Sweep(resources(corpus, indexes, specs)).search(ask("river"), 2)
    assert [passage.id for passage in found.rankings[found.which[0]]] == ["web-0", "web-1"]
    assert (found.steps.tolist(), found.tokens.tolist()) == ([2, 1], [30, 0])


@pytest.mark.parametrize("error", ["arm", "generator"])
def test_an_arm_that_fails_is_told_and_the_others_are_not_touched(
    corpus: Corpus, indexes: Path, error: str
) -> None:
    failing = ArmSpec(kind=f"{HERE}:Failing", params={"word": "river", "error": error})
    sweep = Sweep(resources(corpus, indexes, {"bad": failing, "b": SPECS["b"]}))
    found = sweep.search(ask("river"), 3)
    assert found.which[0] == FAILED
    assert found.problems == {0: "bad does not like 'river'"}
    assert len(found.rankings[found.which[1]]) > 0
    assert sweep.search(ask("opera"), 3).problems == {}


def test_a_batch_that_fails_fails_for_all_its_arms_and_no_other(corpus: Corpus, indexes: Path) -> None:
    sweep = Sweep(resources(corpus, indexes, SPECS))
    found = sweep.search(Query("vienna", {"tiny": np.ones(DIM + 1, dtype=np.float32)}), 3)
    names = list(SPECS)
    assert {names[column] for column in found.problems} == {"d", "twin", "graph", "f"}
    assert {names[column] for column in np.flatnonzero(found.which != FAILED)} == {"b", "n"}
    assert f"({DIM + 1},)" in found.problems[names.index("d")]


def test_every_arm_is_timed_on_its_own_also_one_that_fails(corpus: Corpus, indexes: Path) -> None:
    specs = {**SPECS, "bad": ArmSpec(kind=f"{HERE}:Failing", params={"word": ""})}
    queries = [ask(text, TINY) for text in QUESTIONS]
    stopwatch = Stopwatch(resources(corpus, indexes, specs), queries, k=4, timed=2)
    seconds = {name: stopwatch.seconds(name) for name in specs}
    assert all(0.0 < taken < 1.0 for taken in seconds.values())
    assert seconds["f"] > seconds["n"], "two searches take longer than none"
