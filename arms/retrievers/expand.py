"""Pseudo-relevance feedback: search, learn from the first passages what to search for, search again.

No language model is needed. A base arm that reads words, such as BM25, gets words of the first passages;
one that reads embeddings gets a vector moved towards theirs.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from armwise.arms.base import Arm, Passage, Query, Retrieval
from armwise.arms.indexes import PassageVectors
from armwise.arms.llm import TOKENS_A_WORD, Bound
from armwise.arms.retrievers.kind import BoundOf, Kind, Members, Resources
from armwise.arms.tokenizer import words

REPEATED = 100
"""Words of an expanded query, of which each is repeated by its weight: BM25 counts them."""

PASSAGES = 2
"""First passages that are taken to be relevant."""

TERMS = 20
"""Words that the query gets from them."""

OWN_WEIGHT = 0.7
"""Weight of the question itself; the passages have the rest."""

VectorsOf = Callable[[Sequence[str]], Mapping[str, NDArray[np.float32]]]
"""Ids of passages -> unit vectors of those in the corpus, shape (dim,), by id."""


class ExpandParams(BaseModel):
    """Parameters of an expanding arm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arm: str = Field(description="Arm that is searched twice.")


class ExpandArm(Kind[ExpandParams]):
    """Searches, then searches again with words or a vector from the first passages (RM3, Rocchio).

    The words of the second query have the probabilities of RM3: `OWN_WEIGHT` times that of the question's
    own words, plus the rest times that of a word in the first passages, weighted by their scores; only the
    `TERMS` most probable are kept. Embeddings are moved by Rocchio's rule, to the normalised
    `OWN_WEIGHT` q + (1 - `OWN_WEIGHT`) mean(passages). Nothing is changed where nothing was found.

    Source: Lavrenko and Croft 2001, Relevance-based language models, SIGIR; Abdul-Jaleel et al. 2004, UMass
    at TREC 2004, for RM3; Rocchio 1971, Relevance feedback in information retrieval.
    """

    kind = "expand"
    params = ExpandParams
    example: ClassVar = {"arm": "bm25"}
    light = filters = True

    def __init__(self, name: str, base: Arm, vectors: Mapping[str, VectorsOf]) -> None:
        self.name = name
        self.backbones = base.backbones
        self._base = base
        self._vectors = vectors

    @classmethod
    @override
    def build(cls, name: str, params: ExpandParams, have: Resources, member: Members) -> Self:
        base = member(params.arm)
        vectors = {  # members that search by words alone may be the only ones over a corpus
            backbone: PassageVectors(have.corpus, have.indexes, have.backbones[backbone], some=True).look_up
            for backbone in base.backbones
        }
        return cls(name, base, vectors)

    @classmethod
    @override
    def steps(cls, params: ExpandParams) -> float:
        return 2.0

    @classmethod
    @override
    def searches(cls, params: ExpandParams, member: str) -> float:
        return 2.0

    @classmethod
    @override
    def bound(cls, params: ExpandParams, member: BoundOf) -> Bound:
        # a question of one word is repeated `REPEATED` times; rounding may double the number of words
        base = member(params.arm)
        return base + base.searching(REPEATED, 2 * REPEATED * TOKENS_A_WORD)

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Return what the second search finds; both are charged."""
        first = self._base.search(query, max(k, PASSAGES))
        relevant = first.passages[:PASSAGES]
        if not relevant:
            return first
        text = expand_question(query.text, relevant)
        moved = {backbone: self._move_vector(query, backbone, relevant) for backbone in self.backbones}
        second = self._base.search(replace(query, text=text, embeddings=moved), k)
        return Retrieval(second.passages, first.steps + second.steps, first.tokens + second.tokens)

    def _move_vector(self, query: Query, backbone: str, relevant: Sequence[Passage]) -> NDArray[np.float32]:
        """Return the query's vector, moved towards those of passages. Raises MissingEmbeddingError."""
        vector = query.embedding(backbone, arm=self.name)
        vectors = self._vectors[backbone]([passage.id for passage in relevant])
        if not vectors:
            return vector
        sum_: NDArray[np.float32] = OWN_WEIGHT * vector + (1.0 - OWN_WEIGHT) * np.mean(
            [*vectors.values()], axis=0
        )
        length = float(np.linalg.norm(sum_))
        return np.asarray(sum_ / length, dtype=np.float32) if length > 0.0 else vector


def expand_question(question: str, relevant: Sequence[Passage]) -> str:
    """Return the text of an expanded query: about `REPEATED` words, each as often as its weight says.

    Args:
        question: The question.
        relevant: At least one passage, best first; its score weighs its words if all scores are above 0.

    >>> tower = Passage("1", "", "steel lattice steel", score=2.0)
    >>> Counter(expand_question("Which tower?", [tower]).split())
    Counter({'tower': 70, 'steel': 20, 'lattice': 10})
    """
    question_words = words(question, "english") or words(question)
    scores = [passage.score for passage in relevant]
    weights = scores if min(scores) > 0.0 else [1.0] * len(scores)
    of_passages: Counter[str] = Counter()
    for passage, weight in zip(relevant, weights, strict=True):
        counts = Counter(words(f"{passage.title} {passage.text}", "english"))
        for word, times in counts.items():
            of_passages[word] += weight * times / counts.total()  # type: ignore[assignment]
    # ties by the word, so that the order of passages does not matter
    kept = dict(sorted(of_passages.items(), key=lambda item: (-item[1], item[0]))[:TERMS])
    probability: Counter[str] = Counter()
    for share, part in ((OWN_WEIGHT, Counter(question_words)), (1.0 - OWN_WEIGHT, kept)):
        total = math.fsum(part.values())
        for word, value in part.items():
            probability[word] += share * value / total  # type: ignore[assignment]
    repeated = {word: round(REPEATED * share) for word, share in probability.items()}
    return " ".join(word for word, times in repeated.items() for _ in range(times)) or question
