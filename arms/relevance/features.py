"""Label-free features of a passage that one of several arms found for a question.

    question, rankings by arm --candidates--> passages (n), table (n, len(NAMES)), reciprocal ranks by arm

No column of the table depends on the names or the scores of the arms: ranks are aggregated over them. Nor is
anything read from an index: the rarity of a word is that among the passages that were found for the
question. So one model serves any arms, over any corpus.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from armwise.arms.base import Passage
from armwise.arms.tokenizer import ENGLISH, words

Floats = NDArray[np.float64]

RANKS = (
    *("best_rank", "second_rank", "reciprocal_ranks", "mean_reciprocal_rank", "votes", "vote_share"),
    *("first_places", "fused_place", "arms", "candidates"),
)
"""From the rankings alone; `fused_place` is the place by reciprocal rank fusion."""

WORDS = (
    *("coverage", "rare_coverage", "rare_above_mean", "rare_place", "only_here", "rarest_missed"),
    *("bm25", "bm25_share", "bm25_place", "beyond_best", "pairs", "content_pairs"),
    *("names", "titled_by_name", "years_found", "years_missed"),
)
"""From the words of the question in the passage.

`rare` weighs words by their rarity, `only_here` is the weight of those that no other candidate has, and
`beyond_best` the share of the words that the best passage by BM25 lacks.
"""

TITLES = (
    *("title_in_question", "title_words", "rare_title_words", "question_in_title", "same_title"),
    *("linked_by", "linked_by_named", "linked_by_rare", "links", "links_named", "links_rare"),
)
"""From titles. A passage links another if its text has the other's title; `named` are those whose title is
in the question, and `rare` is the largest `rare_coverage` at the other end."""

ALIKE = ("alike", "alike_best")
"""Mean cosine of the words with the other candidates, and that with the best one by BM25."""

PASSAGE = ("length", "years", "numbers", "capitals")
"""From the passage alone."""

QUESTION = (
    *("question_words", "question_names", "asks_who", "asks_when", "asks_where", "asks_number"),
    *("asks_verdict", "compares"),
)
"""From the question alone: the same for all of its passages."""

NAMES = (*RANKS, *WORDS, *TITLES, *ALIKE, *PASSAGE, *QUESTION)
"""All columns, in order."""

RISING = frozenset(
    {
        *("reciprocal_ranks", "mean_reciprocal_rank", "votes", "vote_share", "first_places"),
        *("rare_coverage", "rare_above_mean", "bm25", "bm25_share", "pairs", "content_pairs", "names"),
        *("title_in_question", "linked_by_named", "linked_by_rare"),
    }
)
"""Columns that can only raise the relevance of a passage, whatever the labels; few labels need that."""

FALLING = frozenset({"best_rank", "second_rank", "fused_place", "rare_place", "bm25_place"})
"""Columns that can only lower it."""

NOT_FOUND = 100
"""Second rank of a passage that one arm found."""

CACHED = 256
"""Passages whose words are kept: arms find the same ones for a question."""

K1, B, FUSION_CONSTANT = 1.2, 0.75, 60.0

_NAME = re.compile(
    r"\b[A-Z][\w.'\u2019-]*(?:\s+(?:(?:of|the|and|de|von|van|du|la)\s+)*[A-Z0-9][\w.'\u2019-]*)*"
)
_YEAR = re.compile(r"\b1[0-9]{3}\b|\b20[0-9]{2}\b")
_NUMBER = re.compile(r"\d+")
_CAPITAL = re.compile(r"\b[A-Z]")
_BRACKETED = re.compile(r"\([^()]*\)")
_COMPARES = re.compile(r"\b(?:or|both|same|more|older|younger|earlier|later|first|than)\b", re.IGNORECASE)
_VERDICT = re.compile(r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CandidatePassages:
    """What arms found for a question.

    Attributes:
        passages: The distinct passages, in order of their ids.
        table: Finite, shape (n_passages, len(NAMES)).
        reciprocal: By arm, 1 / rank of each passage, 0 if the arm did not find it; shape (n_passages,).
    """

    passages: tuple[Passage, ...]
    table: Floats
    reciprocal: Mapping[str, Floats]


def candidates(question: str, rankings: Mapping[str, Sequence[Passage]]) -> CandidatePassages:
    """Return the distinct passages of some rankings, and their features.

    Args:
        question: The question.
        rankings: The passages of each arm, best first, ids unique. Empty ones count as not asked.

    >>> emma, ada = Passage("p", "Emma", "A novel by Jane Austen."), Passage("q", "Ada", "A novel.")
    >>> seen = candidates("Who wrote Emma?", {"bm25": [emma], "dense": [ada, emma], "none": []})
    >>> seen.table[:, NAMES.index("votes")].tolist(), seen.reciprocal["dense"].tolist()
    ([2.0, 1.0], [0.5, 1.0])
    """
    rankings = {arm: ranking for arm, ranking in rankings.items() if ranking}
    by_id = {passage.id: passage for ranking in rankings.values() for passage in ranking}
    passages = tuple(by_id[name] for name in sorted(by_id))
    row = {passage.id: number for number, passage in enumerate(passages)}
    reciprocal = {arm: np.zeros(len(passages)) for arm in rankings}
    for arm, ranking in rankings.items():
        for rank, passage in enumerate(ranking, start=1):
            reciprocal[arm][row[passage.id]] = 1.0 / rank
    if not passages:
        return CandidatePassages((), np.empty((0, len(NAMES))), reciprocal)
    query, read = (
        _QuestionWords.from_question(question),
        [_read(passage.title, passage.text) for passage in passages],
    )
    by_words = _words(query, read)
    rare, best = by_words[:, WORDS.index("rare_coverage")], int(by_words[:, WORDS.index("bm25")].argmax())
    columns = (
        _ranks(np.column_stack([*reciprocal.values()])),
        by_words,
        _titles(query, read, rare),
        _alike(read, best),
        np.array([_passage(passage) for passage in passages]),
        np.tile(_question(question, query), (len(passages), 1)),
    )
    return CandidatePassages(passages, np.hstack(columns), reciprocal)


@dataclass(frozen=True, slots=True)
class _QuestionWords:
    """A question as words.

    Attributes:
        every: All words, in order.
        content: Those that are not a function words, in order; all of them if there are no others.
        names: Capitalised spans, padded with spaces.
        years: Years.
    """

    every: list[str]
    content: list[str]
    names: list[str]
    years: Set[str]

    @classmethod
    def from_question(cls, question: str) -> "_QuestionWords":
        every = words(question)
        content = [word for word in every if word not in ENGLISH] or every
        return cls(every, content, _names(question), frozenset(_YEAR.findall(question)))


@dataclass(frozen=True, slots=True)
class _PassageWords:
    """A passage as words.

    Attributes:
        padded: Words of title and text, between spaces.
        counts: How often each word occurs.
        pairs: Pairs of words that follow each other.
        title: Words of the title without what is in parentheses, padded; empty without a title.
        title_words: Words of the whole title, without function words.
    """

    padded: str
    counts: Counter[str]
    pairs: Set[tuple[str, str]]
    title: str
    title_words: Set[str]


@lru_cache(maxsize=CACHED)
def _read(title: str, text: str) -> _PassageWords:
    every = words(f"{title} {text}")
    name = words(_BRACKETED.sub(" ", title)) or words(title)
    return _PassageWords(
        f" {' '.join(every)} ",
        Counter(every),
        set(pairwise(every)),
        f" {' '.join(name)} " if name else "",
        set(words(title, "english")),
    )


def _ranks(reciprocal: Floats) -> Floats:
    """Return the columns of `RANKS` from reciprocal ranks, shape (n_passages, n_arms)."""
    n_passages, n_arms = reciprocal.shape
    there = reciprocal > 0.0
    ranks = np.where(there, 1.0 / np.where(there, reciprocal, 1.0), NOT_FOUND)
    ordered = np.sort(np.column_stack([ranks, np.full(n_passages, NOT_FOUND)]), axis=1)
    votes, total = there.sum(axis=1), reciprocal.sum(axis=1)
    fused = np.where(there, 1.0 / (FUSION_CONSTANT + ranks), 0.0).sum(axis=1).round(12)
    ones = np.ones(n_passages)
    by_rank = (ordered[:, 0], ordered[:, 1], total, total / n_arms, votes, votes / n_arms)
    others = ((reciprocal == 1.0).sum(axis=1), _places(fused), n_arms * ones, n_passages * ones)
    return np.column_stack([*by_rank, *others])


def _places(scores: Floats) -> Floats:
    """Return 1 plus the number of higher scores, shape (n,).

    >>> _places(np.array([0.5, 2.0, 0.5])).tolist()
    [2.0, 1.0, 2.0]
    """
    return np.asarray(1.0 + (scores[None, :] > scores[:, None]).sum(axis=1))


def _rarity(found_in: NDArray[np.int_], n: int) -> Floats:
    """Return the weight of words that occur in so many of n passages, above 0."""
    return np.log1p((n - found_in + 0.5) / (found_in + 0.5))


def _words(query: _QuestionWords, read: Sequence[_PassageWords]) -> Floats:
    """Return the columns of `WORDS`."""
    terms = [*dict.fromkeys(query.content)] or [""]
    counts = np.array([[passage.counts[word] for word in terms] for passage in read], dtype=np.float64)
    there = counts > 0.0
    found_in = there.sum(axis=0)
    rarity = _rarity(found_in, len(read))
    rare = there @ rarity / rarity.sum()
    lengths = np.array([passage.counts.total() for passage in read], dtype=np.float64)
    damping = K1 * (1.0 - B + B * lengths / max(1.0, lengths.mean()))
    bm25 = (rarity * counts * (K1 + 1.0) / (counts + damping[:, None])).sum(axis=1)
    lacking = ~there[bm25.argmax()]
    pairs, content_pairs = set(pairwise(query.every)), set(pairwise(query.content))
    matches = [
        (
            len(pairs & passage.pairs) / max(1, len(pairs)),
            len(content_pairs & passage.pairs) / max(1, len(content_pairs)),
            sum(name in passage.padded for name in query.names) / max(1, len(query.names)),
            passage.title in query.names,
            sum(year in passage.counts for year in query.years),
            sum(year not in passage.counts for year in query.years),
        )
        for passage in read
    ]
    columns = (
        *(there.mean(axis=1), rare, rare - rare.mean(), _places(rare)),
        *((there & (found_in == 1)) @ rarity / rarity.sum(), np.where(there, 0.0, rarity).max(axis=1)),
        *(bm25, bm25 / (bm25.max() or 1.0), _places(bm25), there @ lacking / max(1, lacking.sum())),
    )
    return np.column_stack([*columns, np.array(matches, dtype=np.float64)])


def _names(question: str) -> list[str]:
    """Return the capitalised spans of a question as padded words, without function words before the first.

    >>> _names("Who is the mother of the director of film Polish-Russian War?")
    [' polish russian war ']
    """
    spans = []
    for span in _NAME.findall(question):
        names = words(span)
        while names and names[0] in ENGLISH and question.startswith(span):
            names = names[1:]
        if names:
            spans.append(f" {' '.join(names)} ")
    return [*dict.fromkeys(spans)]


def _titles(query: _QuestionWords, read: Sequence[_PassageWords], rare: Floats) -> Floats:
    """Return the columns of `TITLES`.

    Args:
        query: The question.
        read: The passages.
        rare: Their `rare_coverage`, shape (n_passages,).
    """
    padded, content = f" {' '.join(query.every)} ", set(query.content)
    named = np.array([bool(passage.title) and passage.title in padded for passage in read])
    titles, often = Counter(passage.title for passage in read), Counter[str]()
    for passage in read:
        often.update(passage.title_words)
    links = np.array(
        [[bool(to.title) and to.title != of.title and to.title in of.padded for to in read] for of in read]
    )
    matches = []
    for passage in read:
        shared = [*passage.title_words & content]
        rarity = {
            word: math.log1p((len(read) - often[word] + 0.5) / (often[word] + 0.5))
            for word in passage.title_words
        }
        matches.append(
            (
                len(shared) / max(1, len(passage.title_words)),
                math.fsum(rarity[word] for word in shared) / (math.fsum(rarity.values()) or 1.0),
                len(shared) / max(1, len(content)),
                titles[passage.title],
            )
        )
    columns = (
        *(links.sum(axis=0), links[named].sum(axis=0), (links * rare[:, None]).max(axis=0)),
        *(links.sum(axis=1), links[:, named].sum(axis=1), (links * rare).max(axis=1)),
    )
    return np.column_stack([named, np.array(matches, dtype=np.float64), *columns])


def _alike(read: Sequence[_PassageWords], best: int) -> Floats:
    """Return the columns of `ALIKE`; words are weighted by their rarity."""
    words_of = [passage.counts.keys() - ENGLISH for passage in read]
    column = {word: number for number, word in enumerate(sorted(set[str]().union(*words_of)))}
    vectors = np.zeros((len(read), len(column)))
    for row, some in enumerate(words_of):
        vectors[row, [column[word] for word in some]] = 1.0
    vectors *= np.log1p(len(read) / vectors.sum(axis=0))
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosines = vectors @ vectors.T
    others = (cosines.sum(axis=1) - cosines.diagonal()) / max(1, len(read) - 1)
    return np.column_stack([others, cosines[:, best]])


def _passage(passage: Passage) -> tuple[float, ...]:
    """Return the columns of `PASSAGE`."""
    text = passage.text
    n = max(1, len(text.split()))
    return n, len(_YEAR.findall(text)), len(_NUMBER.findall(text)), len(_CAPITAL.findall(text)) / n


def _question(question: str, query: _QuestionWords) -> tuple[float, ...]:
    """Return the columns of `QUESTION`."""
    every = set(query.every)
    return (
        len(query.every),
        len(query.names),
        not every.isdisjoint({"who", "whom", "whose"}),
        not every.isdisjoint({"when", "year", "date"}),
        "where" in every,
        "how" in every and not every.isdisjoint({"many", "much", "long", "old", "far"}),
        bool(_VERDICT.match(question.strip())),
        bool(_COMPARES.search(question)),
    )
