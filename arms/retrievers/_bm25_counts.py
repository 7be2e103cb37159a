"""The statistics of `rank_bm25`, which are computed when an index of words is built."""

from array import array
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi
from scipy.sparse import csc_array, csr_array


class Counts(BM25Okapi):  # type: ignore[misc]  # it has no types
    """The statistics of `rank_bm25`, with the counts of words in arrays and not in a dictionary a document.

    Attributes:
        terms: Terms of the documents, each once in a document, shape (n_postings,).
        times: How often, shape (n_postings,).
        ends: Where each document begins, and the last one ends, shape (n_documents + 1,).
    """

    def _initialize(self, corpus: Iterable[list[int]]) -> dict[int, int]:
        """Count; return the number of documents of each term, in order of first occurrence."""
        self.terms, self.times, self.ends = array("i"), array("i"), array("q", [0])
        documents: dict[int, int] = {}
        for document in corpus:
            counted = Counter(document)
            self.terms.extend(counted)
            self.times.extend(counted.values())
            self.ends.append(len(self.terms))
            self.doc_len.append(len(document))
            for term in counted:
                documents[term] = documents.get(term, 0) + 1
        self.corpus_size = len(self.doc_len)
        self.avgdl = sum(self.doc_len) / self.corpus_size
        return documents

    def by_term(self, order: NDArray[np.integer], n_terms: int) -> csc_array:
        """Return the counts by term, the documents of each in this order, and give up the arrays."""
        rows = csr_array((self.times, self.terms, self.ends), shape=(len(order), n_terms), dtype=np.int32)
        del self.times, self.terms
        rows = rows[order]
        return rows.tocsc()  # sorts by counting, and keeps the order of the rows
