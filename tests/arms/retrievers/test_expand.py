"""Pseudo-relevance feedback: the second search is for what the first passages are about."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Passage, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.models import Backbone
from armwise.arms.retrievers import ArmSpec, build_arm, expand, prepare
from armwise.arms.retrievers.expand import REPEATED, TERMS, ExpandArm, expand_question
from armwise.arms.retrievers.kind import Resources
from armwise.arms.tokenizer import words
from tests.arms.contract import DIM, QUESTIONS, ask

TEXTS = st.text("abc ", min_size=1, max_size=20).filter(words)


@pytest.fixture(scope="module")
def resources(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Resources:
    specs = {
        "words": ArmSpec(kind="bm25"),
        "near": ArmSpec(kind="dense", params={"backbone": "hashed"}),
        **{f"expanded {base}": ArmSpec(kind="expand", params={"arm": base}) for base in ("words", "near")},
    }
    ready = Resources(
        corpus, tmp_path_factory.mktemp("indexes"), {"hashed": Backbone(model=f"hashing:{DIM}")}, specs
    )
    prepare(ready)
    return ready


@pytest.mark.parametrize("base", ["words", "near"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_with_all_the_weight_is_searched_as_it_is(
    resources: Resources, base: str, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expand, "OWN_WEIGHT", 1.0)
    plain, arm = build_arm(base, resources), build_arm(f"expanded {base}", resources)
    query = ask(question, plain.backbones)
    found, expected = arm.search(query, 5), plain.search(query, 5)
    assert [p.id for p in found.passages] == [p.id for p in expected.passages]
    assert found.steps == (2 if expected.passages else 1)


def test_a_passage_is_found_by_words_of_the_first_ones(
    resources: Resources,
) -> None:
    question = Query("What is the capital of Austria?")
    assert "danube" not in [p.id for p in build_arm("words", resources).search(question, 9).passages]
    assert "danube" in [p.id for p in build_arm("expanded words", resources).search(question, 9).passages]


def test_a_vector_is_moved_towards_those_of_the_first_passages() -> None:
    asked: list[Query] = []

    class Near:
        name, backbones = "near", frozenset({"one"})

        def search(self, query: Query, k: int) -> Retrieval:
            asked.append(query)
            return Retrieval((Passage("a", "", "word"), Passage("b", "", "other"))[:k], 1, 3)

    vectors = {"a": np.array([0.0, 1.0], dtype=np.float32)}
    arm = ExpandArm("e", Near(), {"one": lambda _: vectors})
    found = arm.search(Query("?", {"one": np.array([1.0, 0.0], dtype=np.float32)}, seed=4), 1)
    assert asked[1].embeddings["one"] == pytest.approx(np.array([0.7, 0.3]) / np.hypot(0.7, 0.3))
    assert asked[1].seed == 4
    assert (len(found.passages), found.steps, found.tokens) == (1, 2, 6)
    vectors.clear()  # passages of another corpus
    arm.search(Query("?", {"one": np.array([1.0, 0.0], dtype=np.float32)}), 1)
    assert asked[3].embeddings["one"].tolist() == [1.0, 0.0]


def test_a_vector_that_is_cancelled_out_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expand, "OWN_WEIGHT", 0.5)
    asked: list[Query] = []

    class Near:
        name, backbones = "near", frozenset({"one"})

        def search(self, query: Query, _: int) -> Retrieval:
            asked.append(query)
            return Retrieval((Passage("a", "", "word"),))

    opposed = {"a": np.array([-1.0, 0.0], dtype=np.float32)}
    arm = ExpandArm("e", Near(), {"one": lambda _: opposed})
    arm.search(Query("?", {"one": np.array([1.0, 0.0], dtype=np.float32)}), 1)
    assert asked[1].embeddings["one"].tolist() == [1.0, 0.0]


def test_words_are_weighted_as_by_rm3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expand, "TERMS", 3)
    first = Passage("1", "Rome", "capital capital Italy", score=3.0)
    second = Passage("2", "", "Italy boot", score=1.0)
    counts = Counter(expand_question("The capital of Italy?", [first, second]).split())
    # of the passages: capital 3 * 2/4, italy 3 * 1/4 + 1/2, rome 3 * 1/4; boot is the fourth
    of_passages = np.array([1.5, 1.25, 0.75]) / 3.5
    expected = 70 * np.array([0.5, 0.5, 0.0]) + 30 * of_passages
    assert counts == dict(
        zip(("capital", "italy", "rome"), expected.round().astype(int).tolist(), strict=True)
    )


def test_passages_without_scores_count_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for scores in ((3.0, 0.0), (3.0, -1.0), (0.0, 0.0)):
        relevant = [Passage("1", "", "river", scores[0]), Passage("2", "", "canal", scores[1])]
        assert Counter(expand_question("water", relevant).split()) == {"water": 70, "canal": 15, "river": 15}
        with monkeypatch.context() as patched:
            patched.setattr(expand, "TERMS", 1)
            assert set(expand_question("water", relevant).split()) == {"water", "canal"}


def test_a_question_stays_as_it_is_where_no_word_is_left() -> None:
    assert expand_question("!?", [Passage("1", "", "of the")]) == "!?"


def test_a_question_of_stop_words_alone_keeps_them() -> None:
    counts = Counter(expand_question("the who", [Passage("1", "", "band")]).split())
    assert counts == {"the": 35, "who": 35, "band": 30}


def test_two_passages_are_taken_to_be_relevant() -> None:
    asked: list[tuple[str, int]] = []

    class Words:
        name, backbones = "words", frozenset[str]()

        def search(self, query: Query, k: int) -> Retrieval:
            asked.append((query.text, k))
            return Retrieval(tuple(Passage(one, "", one, 1.0) for one in ("alpha", "beta", "gamma"))[:k])

    arm = ExpandArm("e", Words(), {})
    arm.search(Query("?"), 1)
    arm.search(Query("?"), 3)
    assert [k for _, k in asked] == [2, 1, 3, 3]
    assert [set(text.split()) for text, _ in asked[1::2]] == [{"alpha", "beta"}] * 2


@given(TEXTS, st.lists(st.tuples(TEXTS, st.floats(-2.0, 9.0)), min_size=1, max_size=4))
def test_an_expanded_query_is_bounded(question: str, found: list[tuple[str, float]]) -> None:
    relevant = [Passage(str(n), "", text, score) for n, (text, score) in enumerate(found)]
    counts = Counter(expand_question(question, relevant).split())
    own = {*words(question)}
    assert len(counts.keys() - own) <= TERMS
    assert counts.total() <= REPEATED + len(own) + TERMS
