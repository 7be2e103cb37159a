"""BM25 compared with `rank_bm25`: time, memory and difference of scores.

    python benchmarks/bm25.py                       # synthetic, 10,000 and 100,000 passages
    python benchmarks/bm25.py --corpus corpus.jsonl.gz

Both get the same words and the same queries, in turn. Ours is timed to the ranked top, the
peer only to its scores. Memory is what each needs for searching, without the words; ours
is memory-mapped and shared by processes.
"""

import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rank_bm25 import BM25Okapi
from rich.console import Console
from rich.table import Table

from armwise.arms.corpus.readers import open_source
from armwise.arms.retrievers.bm25 import BM25Params, WordWeights
from armwise.arms.tokenizer import words
from armwise.arms.top_k import best

QUERIES = 30
WORDS_A_QUERY = 6
TOP = 10
SEED = 7

Documents = list[list[str]]


def zipf(n_passages: int, rng: np.random.Generator) -> Documents:
    """Return passages of about 90 words with Zipf's law: rank r in proportion to 1 / r."""
    vocabulary = np.array([f"w{rank}" for rank in range(200_000)], dtype=object)
    cumulative = np.cumsum(1.0 / np.arange(1, len(vocabulary) + 1))
    lengths = rng.integers(40, 140, n_passages)
    drawn = vocabulary[np.searchsorted(cumulative, rng.random(lengths.sum()) * cumulative[-1])]
    return [part.tolist() for part in np.split(drawn, np.cumsum(lengths)[:-1])]


def read(path: Path) -> Documents:
    """Return the words of a corpus, titles and texts, without stop words."""
    records = open_source(path).records(0)
    return [words(f"{p.title} {p.text}", "english") for record in records for p in record.passages]


def questions(documents: Documents, rng: np.random.Generator) -> Documents:
    """Return queries: a few words of one passage each."""
    chosen = rng.choice([n for n, document in enumerate(documents) if document], QUERIES)
    return [rng.choice(documents[n], WORDS_A_QUERY).tolist() for n in chosen]


def compare(label: str, documents: Documents, table: Table) -> None:
    """Add one row for each."""
    rng = np.random.default_rng(SEED)
    params = BM25Params()
    begun = time.perf_counter()
    peer = BM25Okapi(documents, k1=params.k1, b=params.b, epsilon=params.epsilon)
    peer_build_s = time.perf_counter() - begun
    begun = time.perf_counter()
    columns = WordWeights.build(documents, np.arange(len(documents)), params)
    build_s = time.perf_counter() - begun

    peer_s, ours_s, apart = [], [], 0.0
    for query in questions(documents, rng):
        begun = time.perf_counter()
        expected = peer.get_scores(query)
        peer_s.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        scores, matched = columns.scores(query)
        best(scores[matched], TOP)
        ours_s.append(time.perf_counter() - begun)
        apart = max(apart, float(np.abs(scores - expected).max()))

    peer_ms, ours_ms = 1e3 * float(np.median(peer_s)), 1e3 * float(np.median(ours_s))
    peer_mb = sum(sys.getsizeof(counted) for counted in peer.doc_freqs) / 1e6
    table.add_row(label, "rank_bm25", f"{peer_build_s:.1f}", f"{peer_ms:.2f}", "1", "", f"{peer_mb:.0f}")
    table.add_row(
        "", "ours", f"{build_s:.1f}", f"{ours_ms:.2f}", f"{peer_ms / ours_ms:.0f}", f"{apart:.1e}",
        f"{columns.nbytes / 1e6:.0f}",
        end_section=True,
    )  # fmt: skip


def main(
    corpus: Annotated[
        list[Path] | None, typer.Option(help="JSON lines with id, title and text; instead of the synthetic.")
    ] = None,
) -> None:
    """Compare, and print one table."""
    headings = ("corpus", "", "build s", "ms p50", "ratio", "max diff", "MB")
    table = Table(*headings, title=f"BM25, passages by queries of {WORDS_A_QUERY} words")
    if corpus:
        for path in corpus:
            compare(path.name, read(path), table)
    else:
        for n_passages in (10_000, 100_000):
            compare(f"{n_passages:,}", zipf(n_passages, np.random.default_rng(SEED)), table)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
