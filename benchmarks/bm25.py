"""BM25 compared with `rank_bm25`: time, memory, difference of scores, and rankings.

    python benchmarks/bm25.py                       # synthetic, 10,000 and 100,000 passages
    python benchmarks/bm25.py --corpus corpus.jsonl.gz --queries queries.jsonl.gz

Both get the same words and the same queries, in turn. Ours is timed to the ranked top, the peer only to its
scores, in seconds of the processor. `ratio` is the median over the queries of the peer's time by ours, with
the range of nine queries in ten; `same top` counts the queries on which both rank the same ten passages.
Memory is what each needs for searching, without the words; ours is memory-mapped and shared by processes.
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

from armwise.agent.lab.simulation import load_questions
from armwise.arms.corpus.readers import open_source
from armwise.arms.retrievers.bm25 import BM25Params, WordWeights
from armwise.arms.stems import index_words
from armwise.arms.top_k import best

QUERIES = 100
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
    return [
        index_words(f"{p.title} {p.text}", "english", "english")
        for record in records
        for p in record.passages
    ]


def questions(documents: Documents, rng: np.random.Generator) -> Documents:
    """Return queries: a few words of one passage each."""
    chosen = rng.choice([n for n, document in enumerate(documents) if document], QUERIES)
    return [rng.choice(documents[n], WORDS_A_QUERY).tolist() for n in chosen]


def asked(path: Path, rng: np.random.Generator) -> Documents:
    """Return the words of some questions of a file, without stop words."""
    everything = load_questions(path)
    return [
        index_words(everything[n].question, "english", "english", question=True)
        for n in rng.choice(len(everything), QUERIES, False)
    ]


def compare(label: str, documents: Documents, table: Table, queries: Path | None = None) -> None:
    """Add one row for each."""
    rng = np.random.default_rng(SEED)
    searched = questions(documents, rng) if queries is None else asked(queries, rng)
    params = BM25Params()
    begun = time.process_time()
    peer = BM25Okapi(documents, k1=params.k1, b=params.b)
    peer_build_s = time.process_time() - begun
    begun = time.process_time()
    columns = WordWeights.build(documents, np.arange(len(documents)), params)
    build_s = time.process_time() - begun

    peer_s, ours_s, apart, alike = [], [], 0.0, 0
    for query in searched:
        begun = time.process_time()
        expected = peer.get_scores(query)
        peer_s.append(time.process_time() - begun)
        begun = time.process_time()
        scores, matched = columns.scores(query)
        top = matched[best(scores[matched], TOP)]
        ours_s.append(time.process_time() - begun)
        alike += bool(np.array_equal(top, matched[best(expected[matched], TOP)]))
        apart = max(apart, float(np.abs(scores - expected).max()))

    peer_ms, ours_ms = 1e3 * float(np.median(peer_s)), 1e3 * float(np.median(ours_s))
    peer_mb = sum(sys.getsizeof(counted) for counted in peer.doc_freqs) / 1e6
    low, middle, high = np.quantile(np.divide(peer_s, ours_s), [0.05, 0.5, 0.95])
    table.add_row(label, "rank_bm25", f"{peer_build_s:.1f}", f"{peer_ms:.2f}", "1", "", "", f"{peer_mb:.0f}")
    table.add_row(
        "", "ours", f"{build_s:.1f}", f"{ours_ms:.2f}", f"{middle:.0f} ({low:.0f} to {high:.0f})",
        f"{apart:.1e}", f"{alike} of {len(searched)}", f"{columns.nbytes / 1e6:.0f}",
        end_section=True,
    )  # fmt: skip


def main(
    corpus: Annotated[
        list[Path] | None, typer.Option(help="JSON lines with id, title and text; instead of the synthetic.")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="JSON lines with questions; instead of words of the passages.")
    ] = None,
) -> None:
    """Compare, and print one table."""
    headings = ("corpus", "", "build s", "ms p50", "ratio", "max diff", "same top", "MB")
    table = Table(
        *headings, title=f"BM25, {QUERIES} queries{'' if queries else f' of {WORDS_A_QUERY} words'}"
    )
    if corpus:
        for path in corpus:
            compare(path.name, read(path), table, queries)
    else:
        for n_passages in (10_000, 100_000):
            compare(f"{n_passages:,}", zipf(n_passages, np.random.default_rng(SEED)), table)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
