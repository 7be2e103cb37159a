"""BM25 as `rank_bm25` defines it, with precomputed postings.

`rank_bm25` computes the statistics at build time. The weight of every word in every passage
is stored by word, so a search reads only the postings of its words. The columns are
memory-mapped and shared between processes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from rank_bm25 import BM25Okapi

from arms.base import Progress, Query, Retrieval
from arms.corpus import Corpus
from arms.indexes import build_once
from arms.retrievers.kind import Kind, Members, Resources, of_corpus
from arms.tokenizer import StopWords, words
from arms.top_k import best

FORMAT = 1
"""Format of the files below; raised when their contents change."""

PROGRESS_EVERY = 10_000


class BM25Params(BaseModel):
    """Parameters of a BM25 arm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    k1: float = Field(1.2, gt=0.0, description="Saturation: the larger, the more a repeated word counts.")
    b: float = Field(0.75, ge=0.0, le=1.0, description="Normalisation by the length of a passage.")
    epsilon: float = Field(
        0.25,
        ge=0.0,
        description="Weight of a word in over half of the passages, as a share of the mean weight.",
    )
    stop_words: StopWords = Field("english", description="Words to ignore: `english` or `none`.")
    title_weight: int = Field(
        1, ge=0, le=1000, description="How many times the title is read before the text."
    )


class BM25:
    """Rank passages by the words that they share with the query, rare words first.

    Source: Robertson and Zaragoza 2009, The Probabilistic Relevance Framework: BM25 and
    Beyond; with the floor on frequent words of Trotman et al. 2014, Improvements to BM25
    and Language Models Examined.
    """

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str, corpus: Corpus, params: BM25Params, columns: "Columns") -> None:
        self.name = name
        self._corpus = corpus
        self._params = params
        self._columns = columns

    @classmethod
    def prepare(
        cls, corpus: Corpus, indexes: Path, params: BM25Params, progress: Progress | None = None
    ) -> None:
        """Build the index if it is missing. Raises ValueError if no passage has a word."""
        identity = _identity(corpus, params)

        def write(unfinished: Path) -> None:
            Columns.build(_documents(corpus, params, progress), corpus.ids(), params).save(unfinished)

        build_once.publish(build_once.folder(indexes, "bm25", identity), identity, write)

    @classmethod
    def open(cls, name: str, corpus: Corpus, indexes: Path, params: BM25Params) -> Self:
        """Open the index that `prepare` built. Raises IndexMismatchError."""
        identity = _identity(corpus, params)
        target = build_once.folder(indexes, "bm25", identity)
        build_once.check(target, identity)
        return cls(name, corpus, params, Columns.load(target))

    def search(self, query: Query, k: int) -> Retrieval:
        """Return passages with at least one word of the query, at most `k` of them."""
        scores, matched = self._columns.scores(words(query.text, self._params.stop_words))
        permitted = self._corpus.permitted(query)
        if permitted is not None:
            matched = matched[permitted.mask[self._columns.positions(matched)]]
        rows = matched[best(scores[matched], k)]
        found = self._corpus.passages(self._columns.positions(rows))
        return Retrieval(tuple(p.scored(float(scores[row])) for p, row in zip(found, rows, strict=True)))


class Columns:
    """The weight of every word in every passage, stored by word; memory-mapped when loaded.

    Rows are passages in order of their ids, which breaks ties.
    """

    def __init__(
        self,
        vocabulary: dict[str, int],
        starts: NDArray[np.int64],
        rows: NDArray[np.int32],
        weights: NDArray[np.float64],
        order: NDArray[np.int32],
    ) -> None:
        """Wrap the columns.

        Args:
            vocabulary: Word to term number, 0..n_terms-1.
            starts: Start of each term's postings, and the end of the last, shape (n_terms + 1,).
            rows: The rows of a term's passages, ascending, shape (n_postings,).
            weights: Their weights, shape (n_postings,).
            order: Position of each row in the corpus, shape (n_passages,).
        """
        self._vocabulary = vocabulary
        self._starts = starts
        self._rows = rows
        self._weights = weights
        self._order = order

    @classmethod
    def build(cls, documents: Iterable[list[str]], ids: Sequence[str], params: BM25Params) -> Self:
        """Compute the columns of tokenised documents, each with its id.

        Needs about 2 kB of memory for a passage of 90 words.

        Raises:
            ValueError: No document has a word.
        """
        vocabulary: defaultdict[str, int] = defaultdict()
        vocabulary.default_factory = vocabulary.__len__
        # numbers are shared objects, words a new object in each document
        numbered = ([vocabulary[word] for word in document] for document in documents)
        try:
            okapi = BM25Okapi(numbered, k1=params.k1, b=params.b, epsilon=params.epsilon)
        except ZeroDivisionError:
            raise ValueError("no passage has a word to index: are all of them stop words?") from None
        order = np.argsort(np.asarray(ids), kind="stable").astype(np.int32)
        counted = [okapi.doc_freqs[position] for position in order]
        lengths = np.asarray(okapi.doc_len, dtype=np.float64)[order]
        n_terms, n_postings = len(vocabulary), sum(map(len, counted))

        rows = np.repeat(np.arange(len(order), dtype=np.int32), [len(document) for document in counted])
        terms = np.fromiter(chain.from_iterable(counted), np.int32, n_postings)
        times = np.fromiter(chain.from_iterable(map(dict.values, counted)), np.float64, n_postings)
        rarity = np.fromiter(map(okapi.idf.__getitem__, range(n_terms)), np.float64, n_terms)
        damping = params.k1 * (1 - params.b + params.b * lengths / okapi.avgdl)
        weights = rarity[terms] * (times * (params.k1 + 1) / (times + damping[rows]))

        by_term = np.argsort(terms, kind="stable")
        starts = np.concatenate(([0], np.cumsum(np.bincount(terms, minlength=n_terms))))
        return cls(dict(vocabulary), starts, rows[by_term], weights[by_term], order)

    def save(self, target: Path) -> None:
        """Write the columns into a folder."""
        (target / "vocabulary.txt").write_text("\n".join(self._vocabulary), encoding="utf-8")
        for name in _ARRAYS:
            np.save(target / f"{name}.npy", getattr(self, f"_{name}"))

    @classmethod
    def load(cls, target: Path) -> Self:
        """Map the columns of a folder into memory."""
        vocabulary = (target / "vocabulary.txt").read_text(encoding="utf-8").split("\n")
        arrays = {name: np.load(target / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
        return cls({word: term for term, word in enumerate(vocabulary)}, **arrays)

    def scores(self, query: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Score every passage; a repeated word of the query counts as often.

        Returns:
            The scores, shape (n_passages,), and the rows with a word of the query, ascending.
            A score of common words only may be 0 or less.
        """
        scores = np.zeros(len(self._order))
        matched = np.zeros(len(self._order), dtype=bool)
        for word, times in Counter(query).items():
            term = self._vocabulary.get(word)
            if term is not None:
                postings = slice(self._starts[term], self._starts[term + 1])
                rows = self._rows[postings]
                scores[rows] += times * self._weights[postings]
                matched[rows] = True
        return scores, np.flatnonzero(matched)

    @property
    def nbytes(self) -> int:
        """Size of the arrays, without the vocabulary."""
        return sum(array.nbytes for array in (self._starts, self._rows, self._weights, self._order))

    def positions(self, rows: NDArray[np.intp]) -> list[int]:
        """Return the positions of rows in the corpus."""
        positions: list[int] = self._order[rows].tolist()
        return positions


_ARRAYS = ("starts", "rows", "weights", "order")


def _documents(corpus: Corpus, params: BM25Params, progress: Progress | None) -> Iterator[list[str]]:
    """Yield the words of each passage, title first, in order of position."""
    for done, passage in enumerate(corpus, start=1):
        title = words(passage.title, params.stop_words)
        yield title * params.title_weight + words(passage.text, params.stop_words)
        if progress is not None and (done % PROGRESS_EVERY == 0 or done == len(corpus)):
            progress("indexing words", done, len(corpus))


def _identity(corpus: Corpus, params: BM25Params) -> build_once.Identity:
    return {"format": FORMAT, "corpus": corpus.digest, **params.model_dump()}


def _prepare(params: BM25Params, have: Resources, progress: Progress | None) -> None:
    BM25.prepare(have.corpus, have.indexes, params, progress)


def _build(name: str, params: BM25Params, have: Resources, _: Members) -> BM25:
    return BM25.open(name, have.corpus, have.indexes, params)


KIND = Kind(BM25Params, _build, _prepare, light=True, filters=True, version=of_corpus)
