"""BM25 as `rank_bm25` defines it, with precomputed postings.

`rank_bm25` counts the words of the passages and computes their rarity and lengths when an index is built. Its
own search looks every word of a question up in a dictionary of every passage, which takes 60 to 260 times as
long (`benchmarks/bm25.py`) for the same scores and ranking. So the weight of every word in every passage is
stored by word, and a search reads only the postings of its words. The columns are memory-mapped and shared
between processes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from armwise.arms.base import Progress, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.indexes import build_once
from armwise.arms.manifest import Identity
from armwise.arms.retrievers.kind import Kind, Members, Resources
from armwise.arms.stems import SAMPLE, Language, find_index_version, find_language, index_words
from armwise.arms.tokenizer import StopWords
from armwise.arms.top_k import best
from armwise.number import Number

FORMAT = 2
"""Format of the files below; raised when their contents change."""

LANGUAGE = "language.txt"
"""File of the language of the stems."""

PROGRESS_EVERY = 10_000

TERMS_AT_ONCE = 10_000
"""Terms whose weights are computed at a time."""


EPSILON = 0.25
"""Weight of a word in over half of the passages, as a share of the mean weight."""


class BM25Params(BaseModel):
    """Parameters of a BM25 arm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    k1: Number = Field(
        1.2, gt=0.0, description=("BM25's saturation. A larger value makes repeated words count more.")
    )
    b: Number = Field(0.75, ge=0.0, le=1.0, description="How much a passage's length lowers its score.")
    stop_words: StopWords = Field("english", description="Words to ignore.")
    language: Literal["auto"] | Language = Field(
        "auto",
        description=(
            "Language of the passages, in which other forms of a word are found as well, such as its plural: "
            "`auto` detects it, and `none` finds only the same form."
        ),
    )
    title_weight: int = Field(
        1, ge=0, le=1000, description="Weight of the title, relative to 1 for the text."
    )


class BM25Arm(Kind[BM25Params]):
    """Ranks passages by the question's words, with the scores of `rank_bm25`.

    Source: Robertson and Zaragoza 2009, The Probabilistic Relevance Framework: BM25 and
    Beyond; with the floor on frequent words of Trotman et al. 2014, Improvements to BM25
    and Language Models Examined.
    """

    kind = "bm25"
    params = BM25Params
    light = filters = searches_corpus = True

    def __init__(
        self, name: str, corpus: Corpus, params: BM25Params, language: Language, columns: "WordWeights"
    ) -> None:
        self.name = name
        self._corpus = corpus
        self._params = params
        self._language: Language = language
        self._columns = columns

    @classmethod
    @override
    def prepare(cls, params: BM25Params, have: Resources, progress: Progress | None) -> None:
        """Build the index if it is missing. Raises ValueError if no passage has a word."""
        corpus, identity = have.corpus, _identity(have.corpus, params)

        def write(unfinished: Path) -> None:
            language = _find_language(corpus) if params.language == "auto" else params.language
            documents = _documents(corpus, params, language, progress)
            WordWeights.build(documents, corpus.order(), params).save(unfinished)
            (unfinished / LANGUAGE).write_text(language)

        build_once.build(build_once.folder(have.indexes, "bm25", identity), identity, write)

    @classmethod
    @override
    def build(cls, name: str, params: BM25Params, have: Resources, member: Members) -> Self:
        """Open the index that `prepare` built. Raises IndexMismatchError."""
        identity = _identity(have.corpus, params)
        target = build_once.folder(have.indexes, "bm25", identity)
        build_once.check(target, identity)
        language = cast(Language, (target / LANGUAGE).read_text())
        return cls(name, have.corpus, params, language, WordWeights.load(target))

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Return passages with at least one word of the query, at most `k` of them."""
        asked = index_words(query.text, self._language, self._params.stop_words, question=True)
        scores, matched = self._columns.scores(asked)
        permitted = self._corpus.find_permitted(query)
        if permitted is not None:
            matched = matched[permitted.mask[self._columns.positions(matched)]]
        rows = matched[best(scores[matched], k)]
        passages = self._corpus.passages(self._columns.positions(rows))
        return Retrieval(
            tuple(p.replace_score(float(scores[row])) for p, row in zip(passages, rows, strict=True))
        )


class WordWeights:
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
    def build(cls, documents: Iterable[list[str]], order: NDArray[np.integer], params: BM25Params) -> Self:
        """Compute the columns of tokenised documents.

        Needs some 40 bytes of memory for each different word of a passage.

        Args:
            documents: The words of each, in order of position.
            order: Position of each row, shape (n_documents,): positions by id.
            params: Parameters of the weights.

        Raises:
            ValueError: No document has a word.
        """
        from armwise.arms.retrievers._bm25_counts import (
            Counts,  # here: a service that only searches does not load it
        )

        vocabulary: defaultdict[str, int] = defaultdict()
        vocabulary.default_factory = vocabulary.__len__
        numbered = ([vocabulary[word] for word in document] for document in documents)
        try:
            counts = Counts(numbered, k1=params.k1, b=params.b, epsilon=EPSILON)
        except ZeroDivisionError:
            raise ValueError("no passage has a word to index; are all words stop words?") from None
        n_terms = len(vocabulary)
        lengths = np.asarray(counts.doc_len, dtype=np.float64)
        damping = params.k1 * (1 - params.b + params.b * lengths / counts.avgdl)
        by_term = counts.by_term(order, n_terms)
        starts, rows = by_term.indptr.astype(np.int64), by_term.indices.astype(np.int32, copy=False)
        rarity = np.fromiter(map(counts.idf.__getitem__, range(n_terms)), np.float64, n_terms)
        weights = np.empty(len(rows))
        damping = damping[order]
        for first in range(0, n_terms, TERMS_AT_ONCE):
            bounds = starts[first : first + TERMS_AT_ONCE + 1]
            part = slice(bounds[0], bounds[-1])
            often = by_term.data[part].astype(np.float64)
            rare = np.repeat(rarity[first : first + TERMS_AT_ONCE], np.diff(bounds))
            weights[part] = rare * (often * (params.k1 + 1) / (often + damping[rows[part]]))
        return cls(dict(vocabulary), starts, rows, weights, order.astype(np.int32))

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


def _find_language(corpus: Corpus) -> Language:
    """Return the language of a corpus, from passages that are spread evenly over it."""
    step = -(-len(corpus) // SAMPLE)
    sample = corpus.passages(list(range(0, len(corpus), step)))
    return find_language(f"{passage.title} {passage.text}" for passage in sample)


def _documents(
    corpus: Corpus, params: BM25Params, language: Language, progress: Progress | None
) -> Iterator[list[str]]:
    """Yield the words of each passage, title first, in order of position."""
    for done, passage in enumerate(corpus, start=1):
        title = index_words(passage.title, language, params.stop_words)
        yield title * params.title_weight + index_words(passage.text, language, params.stop_words)
        if progress is not None and (done % PROGRESS_EVERY == 0 or done == len(corpus)):
            progress("indexing words", done, len(corpus))


def _identity(corpus: Corpus, params: BM25Params) -> Identity:
    return {"format": FORMAT, "words": find_index_version(), "corpus": corpus.digest, **params.model_dump()}
