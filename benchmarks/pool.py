"""Time of a question on the whole pool, relative to the dense searches that it needs.

    python benchmarks/pool.py [--passages 100000] [--questions 10] [-k 4]

The first table has all arms over two backbones, of 384 and 768 dimensions, and the two dense
searches of the same depth. The second compares Vendi on one question's candidates with a
greedy that uses the vendi-score package, and DiscountedSimilarity with the greedy of its
formula, one configuration after another.

Vectors are synthetic, in topics and with a common direction, as those of language models:
independent ones would all be equally far apart. The graph is synthetic, too: six names per
passage, some of them in hundreds of passages. Everything runs on one thread; picks that
differ are an error.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Annotated, Any

import faiss
import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits
from vendi_score import vendi as package

from armwise.arms.base import Query
from armwise.arms.indexes import VectorIndex
from armwise.arms.lab.portfolio import pool as portfolio_pool
from armwise.arms.more import diversity as discounted
from armwise.arms.more import vendi
from armwise.arms.more.diversity import DiscountedParams, DiverseBatch, Pick
from armwise.arms.more.entity_graph import Graph
from armwise.arms.more.graph import Explorer, GraphBatch, GraphParams
from armwise.arms.more.vendi import VendiParams
from armwise.arms.retrievers import BatchedArms
from armwise.arms.retrievers.dense import Candidates, DenseBatch, FirstStage

Floats = NDArray[np.float32]
Plain = Callable[[Any, Candidates, int], list[int]]
"""One configuration, candidates and k -> picks."""

DIMS = {"small": 384, "large": 768}
DISCOUNTED, VENDI, GRAPH = (
    portfolio_pool.DiscountedGrid(),
    portfolio_pool.VendiGrid(),
    portfolio_pool.GraphGrid(),
)
DEPTH = DISCOUNTED.depth
GOAL = 3.0
"""Goal: time of all arms relative to the shared searches, at most."""
SEARCH = "dense search"
LONGEST = max(GRAPH.max_hops), max(GRAPH.max_candidates)
SEED = 7


def unit(vectors: NDArray[np.floating]) -> Floats:
    """Return rows of length 1."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), dtype=np.float32)


def passages(n: int, dim: int, rng: np.random.Generator) -> Floats:
    """Return unit vectors in topics of about fifty: cosines of about .3 between topics, .65 within one."""
    topics = unit(rng.normal(size=(max(n // 50, 1), dim))) + 0.9 * unit(rng.normal(size=dim))
    vectors = np.empty((n, dim), dtype=np.float32)
    for start in range(0, n, 10_000):
        part = vectors[start : start + 10_000]
        noise = rng.standard_normal(part.shape, dtype=np.float32) / np.sqrt(dim)
        part[:] = unit(topics[rng.integers(len(topics), size=len(part))] + noise)
    return vectors


def questions(near: Floats, n: int, rng: np.random.Generator) -> Floats:
    """Return vectors near passages."""
    chosen = near[rng.choice(len(near), n, replace=False)]
    return unit(chosen + 0.8 * unit(rng.normal(size=chosen.shape)))


def discounted_grid(backbone: str) -> list[DiscountedParams]:
    """Return the 140 configurations over a backbone."""
    over: dict[str, Any] = {"backbone": backbone, "depth": DEPTH}
    return [
        DiscountedParams(**over, gamma=g, threshold=r)
        for g, r in product(DISCOUNTED.gammas, DISCOUNTED.thresholds)
    ]


def vendi_grid(backbone: str) -> list[VendiParams]:
    """Return the 21 configurations over a backbone."""
    return [VendiParams(backbone=backbone, depth=DEPTH, diversity=s) for s in VENDI.diversities]


def entities(n: int, rng: np.random.Generator) -> list[list[str]]:
    """Return the names in each passage: its own, and five others, some of them frequent."""
    others = (n * rng.random((n, 5)) ** 3).astype(int)
    return [[f"e{number}", *(f"e{other}" for other in row)] for number, row in enumerate(others.tolist())]


def graph_grid(backbone: str) -> dict[str, GraphParams]:
    """Return the 18 configurations over a backbone."""
    grid = product(GRAPH.max_hops, GRAPH.max_entity_df, GRAPH.max_candidates)
    return {
        f"arm {n}": GraphParams(backbone=backbone, max_hops=hops, max_entity_df=df, max_candidates=size)
        for n, (hops, df, size) in enumerate(grid)
    }


def batches(backbone: str, stage: FirstStage, explorer: Explorer) -> dict[str, BatchedArms]:
    """Return the arms over a backbone, by family."""

    def batch(params: Sequence[Any], pick: Pick[Any]) -> BatchedArms:
        return DiverseBatch(
            {f"arm {n}": configuration for n, configuration in enumerate(params)}, stage, pick
        )

    return {
        "DiscountedSimilarity": batch(discounted_grid(backbone), discounted.pick),
        "Vendi": batch(vendi_grid(backbone), vendi.pick),
        "GraphDense": GraphBatch(graph_grid(backbone), stage, explorer, LONGEST),
        "dense": DenseBatch(["dense"], stage),
    }


def plain_discounted(params: DiscountedParams, near: Candidates, k: int) -> list[int]:
    """Pick for one configuration by the formula."""
    scores, picks = near.relevance.astype(np.float64), []
    for _ in range(k):
        picks.append(int(scores.argmax()))
        cosines = near.vectors @ near.vectors[picks[-1]]
        scores *= np.exp(-params.gamma * np.where(cosines >= params.threshold, cosines, 0.0))
        scores[picks] = -np.inf
    return picks


def plain_vendi(params: VendiParams, near: Candidates, k: int) -> list[int]:
    """Pick for one configuration; the package scores every set with one more candidate."""
    wide, s = near.vectors.astype(np.float64), params.diversity
    cosines, picks = wide @ wide.T, [0]
    while len(picks) < k:
        values = np.full(len(wide), -np.inf)
        for candidate in set(range(len(wide))) - set(picks):
            chosen = [*picks, candidate]
            values[candidate] = s * package.score_K(cosines[np.ix_(chosen, chosen)])
        picks.append(int((values + (1.0 - s) * near.relevance).argmax()))
    return picks


def timed(call: Callable[[], Any], into: list[float]) -> Any:
    """Return the result of a call, and append its seconds."""
    begun = time.perf_counter()
    result = call()
    into.append(time.perf_counter() - begun)
    return result


def compare(
    configurations: Sequence[Any],
    pick: Pick[Any],
    plain: Plain,
    stage: FirstStage,
    queries: list[Query],
    k: int,
) -> tuple[float, float]:
    """Return the median seconds of ours and of the plain greedy. Raises RuntimeError if picks differ."""
    ours: list[float] = []
    theirs: list[float] = []
    for query in queries:
        near = stage.candidates(query, DEPTH, arm="benchmark")
        picks, _ = timed(partial(pick, configurations, near, k), ours)
        expected = timed(
            lambda near=near: [plain(configuration, near, k) for configuration in configurations], theirs
        )
        if picks.tolist() != expected:
            raise RuntimeError(f"picks differ: {picks.tolist()}, the plain greedy's are {expected}")
    return float(np.median(ours)), float(np.median(theirs))


def search(
    stages: Mapping[str, FirstStage],
    indexes: Mapping[str, VectorIndex],
    explorer: Explorer,
    queries: list[Query],
    k: int,
) -> dict[tuple[str, str], list[float]]:
    """Search every batch for every query; return the seconds by backbone and step."""
    pool = {backbone: batches(backbone, stage, explorer) for backbone, stage in stages.items()}
    taken: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for query, (backbone, stage) in product(queries, stages.items()):
        vector = query.embedding(backbone, arm="benchmark")
        timed(partial(indexes[backbone].nearest, vector, DEPTH), taken[backbone, SEARCH])
        timed(partial(stage.candidates, query, DEPTH, arm="benchmark"), taken[backbone, "first stage"])
        for family, batch in pool[backbone].items():
            timed(partial(batch.positions, query, k), taken[backbone, family])
    return taken


def show_kernels(stage: FirstStage, queries: list[Query], k: int) -> Table:
    """Return a table of both families and the plain greedy."""
    table = Table("", "configurations", "plain ms", "ours ms", "ratio", title=f"{k} of {DEPTH} candidates")
    peers = (
        ("Vendi", vendi_grid(stage.backbone), vendi.pick, plain_vendi),
        ("DiscountedSimilarity", discounted_grid(stage.backbone), discounted.pick, plain_discounted),
    )
    for family, grid, pick, plain in peers:
        ours_s, plain_s = compare(grid, pick, plain, stage, queries, k)
        figures = (f"{1e3 * plain_s:.1f}", f"{1e3 * ours_s:.2f}", f"{plain_s / ours_s:.0f}")
        table.add_row(family, str(len(grid)), *figures)
    table.caption = "picks are equal"
    return table


def show_pool(taken: Mapping[tuple[str, str], list[float]], n_passages: int) -> Table:
    """Return a table of the time of each part, and of all relative to the searches."""
    median_ms = {what: 1e3 * float(np.median(times)) for what, times in taken.items()}
    table = Table("", *DIMS, "both", title=f"ms a question, {n_passages:,} passages, flat index")
    for part in dict.fromkeys(part for _, part in median_ms):
        row = [median_ms[backbone, part] for backbone in DIMS]
        table.add_row(part, *(f"{ms:.2f}" for ms in (*row, sum(row))), end_section=part == SEARCH)
    searches = sum(ms for (_, part), ms in median_ms.items() if part == SEARCH)
    arms = sum(ms for (_, part), ms in median_ms.items() if part != SEARCH)
    table.add_section()
    table.add_row("all arms", "", "", f"{arms:.2f}")
    table.add_row("/ the two searches", "", "", f"{arms / searches:.2f} x")
    table.caption = f"goal at most {GOAL} x"
    return table


def main(
    n_passages: Annotated[int, typer.Option("--passages", help="Passages.", min=DEPTH)] = 100_000,
    n_questions: Annotated[int, typer.Option("--questions", help="Questions.", min=1)] = 10,
    k: Annotated[int, typer.Option("-k", help="Passages that an arm picks.", min=1)] = 4,
) -> None:
    """Measure and print two tables."""
    rng = np.random.default_rng(SEED)
    stages, indexes, embeddings = {}, {}, {}
    for backbone, dim in DIMS.items():
        vectors = passages(n_passages, dim, rng)
        flat = faiss.IndexFlatIP(dim)
        flat.add(vectors)
        indexes[backbone] = VectorIndex(flat)
        stages[backbone] = FirstStage(backbone, indexes[backbone], vectors)
        embeddings[backbone] = questions(vectors, n_questions + 1, rng)
    named = entities(n_passages, rng)
    explorer = Explorer(Graph.build(named))
    queries = [
        Query(
            " ".join(named[rng.integers(n_passages)][:3]).upper(),  # names have capitals
            {backbone: rows[n] for backbone, rows in embeddings.items()},
        )
        for n in range(n_questions + 1)
    ]
    console = Console()
    with threadpool_limits(1):
        search(stages, indexes, explorer, queries[:1], k)  # warms up
        console.print(show_pool(search(stages, indexes, explorer, queries[1:], k), n_passages))
        console.print(show_kernels(stages["large"], queries[1:], k))


if __name__ == "__main__":
    typer.run(main)
