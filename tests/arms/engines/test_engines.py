"""Arms over real search engines: the contract, what a caller may see, and what ingest leaves there."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armwise.arms.base import ArmError, Passage, Query
from armwise.arms.engines import ingest as ingesting
from armwise.arms.engines import opensearch, postgres, qdrant
from armwise.arms.engines.collection import Collection, FillState, Row
from armwise.arms.engines.conditions import FactsDialect, build_condition, list_facts
from armwise.arms.engines.ingest import Embedded, compute_version, ingest, row_format
from armwise.arms.filters import Comparison, Compound, permits
from tests.arms.contract import ask, check_arm
from tests.arms.engines.conftest import Engine
from tests.arms.engines.passages import InMemory, embedded

WORDS = st.sampled_from(["a", "b", "O'Hara", '"; DROP TABLE x', "100%", "a\\b", "(", "{}", ""])
NUMBERS = st.integers(-3, 3) | st.sampled_from([0.5, -0.5, 1.0, 1e18, -1e-9, 2**40])
SCALARS = st.booleans() | NUMBERS | WORDS
KEYS = st.sampled_from(["x", "y", "a.b", "it's", "%(p0)s", "x[0]", "allowed_groups"])
GROUPS = st.sampled_from(["staff", "a", "O'Hara"])
VALUES = SCALARS | st.lists(WORDS, max_size=2)
METADATA = st.dictionaries(KEYS, VALUES, max_size=3) | st.fixed_dictionaries(
    {"allowed_groups": st.lists(GROUPS, max_size=2) | GROUPS | st.integers(0, 1)}, optional={"x": VALUES}
)
COMPARISONS = (
    st.builds(Comparison, type=st.sampled_from(["eq", "ne"]), key=KEYS, value=SCALARS)
    | st.builds(Comparison, type=st.sampled_from(["gt", "gte", "lt", "lte"]), key=KEYS, value=NUMBERS)
    | st.builds(
        Comparison,
        type=st.sampled_from(["in", "nin"]),
        key=KEYS,
        value=st.lists(SCALARS, max_size=3).map(tuple),
    )
)
WHERE = st.none() | st.recursive(
    COMPARISONS,
    lambda parts: st.builds(
        Compound,
        type=st.sampled_from(["and", "or"]),
        filters=st.lists(parts, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=5,
)

EVERYTHING: list[dict[str, Any]] = [
    {},
    {"allowed_groups": []},
    {"allowed_groups": ["staff", "a"]},
    {"allowed_groups": "O'Hara"},
    {"allowed_groups": 1},
    *(
        {"x": x}
        for x in (0, 1, 1.0, 0.5, -0.5, 2, -3, 3, 1e18, 2**40, -1e-9, True, False, "a", "", [], ["a", "b"])
    ),
    *({"y": y, "a.b": 1, "it's": y} for y in ("O'Hara", '"; DROP TABLE x', "100%", ["a\\b"], ["(", "{}"], 2)),
    {"x": 1, "x[0]": "a", "%(p0)s": "b", "allowed_groups": ["a"]},
    {"a": {"b": 1}},
]
"""Metadata in which every comparison of the tests finds something, and something else."""


class Truth(FactsDialect[bool]):
    """Conditions that are computed, over the facts of one passage."""

    def __init__(self, facts: list[str]) -> None:
        self.facts = set(facts)

    def match_any(self, facts: Any) -> bool:
        return not self.facts.isdisjoint(facts)

    def every(self, parts: Any) -> bool:
        return all(parts)

    def some(self, parts: Any) -> bool:
        return any(parts)

    def negate(self, part: bool) -> bool:
        return not part


@given(METADATA, WHERE, st.frozensets(GROUPS))
@settings(max_examples=150)
@pytest.mark.slow
def test_facts_are_enough_to_tell_what_a_caller_may_see(metadata: Any, where: Any, groups: Any) -> None:
    asked = Query("", where=where, groups=groups)
    assert build_condition(asked, Truth(list_facts(metadata))) is permits(where, groups, metadata)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False), st.sampled_from(["gt", "gte", "lt", "lte"]))
def test_facts_compare_all_numbers(found: float, asked: float, how: Any) -> None:
    where = Comparison(type=how, key="x", value=asked)
    assert build_condition(Query("", where=where), Truth(list_facts({"x": found}))) is permits(
        where, (), {"x": found}
    )


def test_what_is_null_is_no_fact() -> None:
    nothing: Any = {"x": None}
    assert list_facts(nothing) == []


def test_a_whole_number_is_one_fact_with_a_point_and_without() -> None:
    assert list_facts({"a": 5.0}) == list_facts({"a": 5}) != list_facts({"a": 5.5})
    assert build_condition(
        Query("", where=Comparison(type="eq", key="a", value=5.0)), Truth(list_facts({"a": 5}))
    )


@pytest.mark.parametrize("how", ["gt", "gte", "lt", "lte"])
@pytest.mark.parametrize("asked", [10**400, -(10**400), math.nan], ids=["large", "small", "none"])
def test_facts_compare_with_numbers_beyond_all_floats(how: Any, asked: float) -> None:
    where = Comparison(type=how, key="x", value=asked)
    for found in (-1e308, -5, 0, 7.5, 1e308):
        assert build_condition(Query("", where=where), Truth(list_facts({"x": found}))) is permits(
            where, (), {"x": found}
        )


@pytest.fixture(scope="module")
def everything(engine: Engine) -> tuple[Collection, InMemory]:
    corpus = InMemory(
        [Passage(f"p{n}", "", "the word", 0.0, m) for n, m in enumerate(EVERYTHING) if "a" not in m]
    )
    collection = engine.fresh()
    engine.fill(collection, corpus)
    return collection, corpus


@given(WHERE, st.frozensets(GROUPS))
@settings(max_examples=40)
@pytest.mark.slow
def test_an_engine_shows_what_a_caller_may_see(
    everything: tuple[Collection, InMemory], where: Any, groups: Any
) -> None:
    collection, corpus = everything
    asked = Query("word", where=where, groups=groups)
    expected = {p.id: p.metadata for p in corpus.found if permits(where, groups, p.metadata)}
    assert {p.id: p.metadata for p in collection.lexical(asked, 100)} == expected


def test_a_search_by_vectors_has_the_same_filter(everything: tuple[Collection, InMemory]) -> None:
    collection, corpus = everything
    where = Comparison(type="gte", key="x", value=1)
    vector = embedded(corpus).vectors[0]
    found = collection.dense(vector, Query("word", where=where, groups=frozenset({"a"})), 100)
    assert {p.id for p in found} == {p.id for p in corpus.found if permits(where, {"a"}, p.metadata)}
    assert found


@pytest.mark.slow
def test_an_arm_keeps_the_contract(engine: Engine, filled: Collection, encyclopedia: InMemory) -> None:
    for mode in engine.modes:
        check_arm(engine.arm(filled, mode), encyclopedia)  # type: ignore[arg-type]  # which it iterates over


def test_an_arm_finds_by_words_by_vectors_and_by_both(engine: Engine, filled: Collection) -> None:
    for mode in engine.modes:
        arm = engine.arm(filled, mode)
        found = arm.search(ask("Which river flows through ten countries?", arm.backbones), 3).passages
        assert found[0].id == "danube", mode
        assert len(found) == 3


def test_a_word_of_a_title_finds_its_passage(filled: Collection) -> None:
    assert [passage.id for passage in filled.lexical(Query("Amadeus"), 3)] == ["mozart"]


def test_a_passage_of_a_group_is_found_by_its_members_alone(engine: Engine, filled: Collection) -> None:
    for mode in engine.modes:
        arm = engine.arm(filled, mode)
        query = ask("the secret river of Vienna", arm.backbones)
        assert arm.search(replace(query, groups=frozenset({"staff"})), 1).passages[0].id == "secret"
        for groups in (frozenset[str](), frozenset({"guest"})):
            found = arm.search(replace(query, groups=groups), 50).passages
            assert found
            assert "secret" not in {p.id for p in found}


def test_filling_again_writes_nothing(engine: Engine, filled: Collection, encyclopedia: InMemory) -> None:
    assert engine.fill(filled, encyclopedia) == 0
    version = compute_version(encyclopedia, "hashed", row_format(filled))
    assert engine.arm(filled, "lexical").version == version


def test_a_changed_corpus_changes_what_has_changed(engine: Engine) -> None:
    before = [Passage(f"p{n}", "", f"word number{n}", 0.0, {"n": n}) for n in range(6)]
    after = [
        *(before[n] for n in (5, 0, 2)),  # in another order, without p3 and p4
        replace(before[1], metadata={"n": -1}),
        Passage("new'", 'a "title"', "word"),
    ]
    collection = engine.fresh()
    assert engine.fill(collection, InMemory(before)) == 6
    corpus = InMemory(after)
    report = ingest(corpus, collection, embedded(corpus))
    assert (report.written, report.deleted) == (2, 2)
    found = {p.id: p.replace_score(0.0) for p in collection.lexical(Query("word"), 100)}
    assert found == {p.id: p for p in after}
    assert sorted(collection.ids()) == sorted(found)


def test_passages_of_every_page_are_seen(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ingesting, postgres, qdrant, opensearch):
        monkeypatch.setattr(module, "PAGE", 3)
    collection = engine.fresh()
    before = [Passage(f"p{place:02}", "", f"word {place}") for place in range(12)]
    assert engine.fill(collection, InMemory(before)) == 12
    assert sorted(collection.ids()) == [p.id for p in before], "where the last page is full"
    after = [*before[:-1], replace(before[-1], title="changed"), Passage("p12", "", "new")]
    assert engine.fill(collection, InMemory(after)) == 2, "the digests of all others are found"
    assert sorted(collection.ids()) == [p.id for p in after], "where it is not"
    last = InMemory(after[-1:])
    report = ingest(last, collection, embedded(last))
    assert (report.written, report.deleted) == (0, 12)
    assert list(collection.ids()) == ["p12"]
    assert collection.count() == 1


BATCH = 20


def test_a_change_of_permissions_alone_is_written(engine: Engine) -> None:
    collection = engine.fresh()
    open_to_all = Passage("p", "", "word")
    engine.fill(collection, InMemory([open_to_all]))
    before = collection.state()
    assert (
        engine.fill(collection, InMemory([replace(open_to_all, metadata={"allowed_groups": ["staff"]})])) == 1
    )
    assert collection.state() != before
    assert collection.lexical(Query("word"), 5) == []
    assert len(collection.lexical(Query("word", groups=frozenset({"staff"})), 5)) == 1


class _KilledError(Exception):
    """In place of the end of a process."""


def test_a_killed_run_goes_on_where_it_was(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = InMemory([Passage(f"p{n}", "", f"word {n}") for n in range(2 * BATCH + 7)])
    collection = engine.fresh()
    monkeypatch.setattr(ingesting, "BATCH", BATCH)

    def die(_stage: str, done: int, _total: int | None) -> None:
        if done > BATCH:
            raise _KilledError

    vectors = embedded(corpus)
    looked_at: list[str] = []
    digests = collection.digests
    monkeypatch.setattr(collection, "digests", lambda ids: [looked_at.extend(ids), digests(ids)][1])
    with pytest.raises(_KilledError):
        ingest(corpus, collection, vectors, die)
    assert looked_at == [], "of an empty collection, no passage is looked up"
    kept = collection.state()
    assert kept is not None
    assert kept.done == 2 * BATCH
    assert kept.shown == f"..{compute_version(corpus, kept.model, row_format(collection))}"
    looked_at.clear()
    again = ingest(corpus, collection, vectors)
    assert again.written == 7
    assert looked_at == [f"p{n}" for n in range(2 * BATCH, 2 * BATCH + 7)]
    assert collection.count() == len(corpus)


def test_what_ingest_did_not_put_there_is_left_alone(engine: Engine) -> None:
    corpus = InMemory([Passage("p", "", "word")])
    vectors = embedded(corpus)
    collection = engine.fresh()
    collection.create(vectors.vectors.shape[1])
    collection.write([Row(corpus.found[0], "", vectors.vectors[0])])
    with pytest.raises(ArmError, match="1 passages that ingest did not write"):
        ingest(corpus, collection, vectors)


def test_a_collection_is_of_one_corpus_and_one_model(engine: Engine) -> None:
    corpus = InMemory([Passage("p", "", "word")])
    collection = engine.fresh()
    engine.fill(collection, corpus)
    with pytest.raises(ArmError, match="holds corpus 'tests', not 'other'"):
        engine.fill(collection, InMemory(corpus.found, name="other"))
    with pytest.raises(ArmError, match="the collection's vectors are"):
        ingest(corpus, collection, Embedded("another", embedded(corpus).vectors))


def test_a_version_says_when_two_are_mixed() -> None:
    state = FillState(version="a", next="b", corpus="", model="", done=3)
    assert state.shown == "a..b"
    assert replace(state, version="b").shown == "b"


def test_a_missing_collection_is_said(engine: Engine) -> None:
    arm = engine.arm(engine.fresh(), "lexical")
    with pytest.raises(ArmError, match="arm 'arm': "):
        arm.search(Query("word"), 3)


def test_a_question_of_any_text_is_answered(engine: Engine, filled: Collection) -> None:
    for text in ("it's; DROP TABLE x --", "%s %(p0)s :name", "a\0b", "((", "AND OR NOT", "\\", "x:y^2~"):
        collection = engine.arm(filled, "lexical").search(ask(text), 3)
        assert all(math.isfinite(p.score) for p in collection.passages)


def test_nothing_is_near_to_a_vector_of_zeros(engine: Engine, filled: Collection) -> None:
    asked = Query("word", {engine.backbone: np.zeros(4, dtype=np.float32)})
    assert engine.arm(filled, "dense").search(asked, 3).passages == ()


def test_a_second_client_finds_what_the_first_put_there(engine: Engine, filled: Collection) -> None:
    again = engine.open("encyclopedia")
    assert again.state() == filled.state()
    assert [p.id for p in again.lexical(Query("ten countries"), 1)] == ["danube"]
