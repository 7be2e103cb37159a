"""The features of a question: its words, its form, its embedding.

Named features are sparse and cheap to read in a log: `w=river` for a word,
`shape=question` for a form, `has_digit` for a mark. The embedding is the
vector that the retrievers search with, cut down to a few numbers.
"""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from armwise.arms.profile import ProfileSpec
from armwise.arms.tokenizer import split_words
from armwise.feedback.events import ROUTER, Context
from armwise.feedback.texts import FORM as FORM
from armwise.feedback.texts import QUESTION_WORDS, compress

DIGIT = re.compile(r"\d")

QUOTE = re.compile(r"[\"\u201c\u201d\u201e\u00ab\u00bb]")

MAX_WORDS = 32
"""Number of words at which the feature `length` is 1."""

MAX_CAPITALS = 8
"""Number of capitalised words at which the feature `capitals` is 1."""

STOP_WORDS = frozenset(
    split_words("""
    a an and are as at be been but by can could did do does for from had has have he her him his i if in
    into is it its many may me more most much my no not of on or our s she should so some such than that
    the their them then there these they this those to under up upon us was we were will with would you your
    """)
)
"""Words that carry no information on the subject; question words are kept as features."""


class FeatureError(ValueError):
    """A caller sent a value that cannot be a feature; the message names the key."""


class EmbeddingSpec(BaseModel):
    """The embedding of the question as features."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backbone: str = Field(description="Backbone that embeds the question.")
    dims: int = Field(
        default=32,
        ge=1,
        description="Number of dimensions that the policy sees, after a fixed random projection.",
    )


class FeatureSpec(BaseModel):
    """Features of a question that a policy sees."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    words: int = Field(
        default=16,
        ge=0,
        description=(
            'Maximum question words that become features. Words such as "the" do not count. 0 uses none.'
        ),
    )
    shape: bool = Field(
        default=True,
        description=(
            "Whether the question's length, form (keyword, question, statement), digits, quotes and capitals "
            "are features."
        ),
    )
    embedding: EmbeddingSpec | None = Field(
        default=None, description="Embedding of the question as features."
    )
    similarity: ProfileSpec | None = Field(
        default=None,
        description=(
            "How well the question fits each arm's sources, by its words and, with a backbone, by a sample "
            "of their passages: a feature of the arm. Policies without router scores start from it."
        ),
    )


def describe(
    question: str,
    spec: FeatureSpec,
    *,
    embedding: NDArray[np.float32] | None = None,
    extra: Mapping[str, float | str | bool] | None = None,
    arms: Mapping[str, Mapping[str, float]] | None = None,
) -> Context:
    """Return the context of a question.

    Args:
        question: The text.
        spec: Which features to compute.
        embedding: Unit vector of the question by the backbone of `spec`, shape (dim,).
        extra: The caller's features: a number becomes a feature of that name, after `compress`; a text or a
            boolean becomes the feature `key=value`. They replace computed features of the same name.
        arms: Features of each arm, passed on unchanged.

    Raises:
        FeatureError: An extra number is not finite.
        ValueError: The embedding is missing or too short.

    >>> describe("Who wrote Emma?", FeatureSpec(), extra={"tier": "free"}).features
    ... # doctest: +NORMALIZE_WHITESPACE
    {'w=who': 1.0, 'w=wrote': 1.0, 'w=emma': 1.0, 'shape=question': 1.0, 'ask=who': 1.0, 'has_mark': 1.0,
     'length': 0.09375, 'capitals': 0.125, 'tier=free': 1.0}
    """
    features = _words(_lower(question, pairs=True), spec) if spec.words else {}
    if spec.shape:
        features |= form(question)
    if extra:
        features |= dict(_name_feature(key, value) for key, value in extra.items())
    dense = _dense(embedding, spec.embedding) if spec.embedding else ()
    return Context(question, features, dense, arms or {})


def form(question: str) -> dict[str, float]:
    """Return the features of a question's form, with the names of `FORM`; missing ones are 0.

    >>> form("Who wrote Emma?")["length"]
    0.09375
    """
    return _shape(question, split_words(question, contractions=True), _lower(question))


def _lower(question: str, *, pairs: bool = False) -> list[str]:
    return [word.lower() for word in split_words(question, contractions=True, pairs=pairs)]


def _words(lower: list[str], spec: FeatureSpec) -> dict[str, float]:
    """Return the first distinct words, each as a feature.

    >>> _words(["the", "river", "the", "sea"], FeatureSpec(words=1))
    {'w=river': 1.0}
    """
    kept = dict.fromkeys(word for word in lower if word not in STOP_WORDS)
    return {f"w={word}": 1.0 for word in islice(kept, spec.words)}


def _shape(question: str, words: list[str], lower: list[str]) -> dict[str, float]:
    """Return features of the form of a question: a question, a statement, or mere keywords.

    >>> _shape("hastings battle 1066", ["hastings", "battle", "1066"], ["hastings", "battle", "1066"])
    {'shape=keyword': 1.0, 'length': 0.09375, 'has_digit': 1.0}
    """
    question_word = next((word for word in lower if word in QUESTION_WORDS), None)
    marked = question.rstrip().endswith("?")
    plain = "keyword" if STOP_WORDS.isdisjoint(lower) else "statement"
    shape = "question" if question_word or marked else plain
    features = {f"shape={shape}": 1.0}
    if question_word:
        features[f"ask={question_word}"] = 1.0
    if marked:
        features["has_mark"] = 1.0
    features["length"] = min(len(words), MAX_WORDS) / MAX_WORDS
    # The first word is capitalised in any sentence.
    if capitals := sum(word[0].isupper() for word in words[1:]):
        features["capitals"] = min(capitals, MAX_CAPITALS) / MAX_CAPITALS
    if DIGIT.search(question):
        features["has_digit"] = 1.0
    if QUOTE.search(question):
        features["has_quote"] = 1.0
    return features


def _name_feature(key: str, value: float | str | bool) -> tuple[str, float]:
    """Return the name and value of the feature for a value that the caller sent.

    >>> _name_feature("tier", "free"), _name_feature("beta", True), _name_feature("age", 10)
    (('tier=free', 1.0), ('beta=true', 1.0), ('age', 2.0))
    """
    if isinstance(value, bool):
        return f"{key}={str(value).lower()}", 1.0
    if isinstance(value, str):
        return f"{key}={value}", 1.0
    if not math.isfinite(value):
        raise FeatureError(f"context {key!r} is {value}; a finite number was expected")
    return key, compress(value)


def _dense(embedding: NDArray[np.float32] | None, spec: EmbeddingSpec) -> tuple[float, ...]:
    """Reduce an embedding; a unit vector gives numbers of about unit variance."""
    if embedding is None:
        raise ValueError(f"the features need a {spec.backbone!r} embedding of the question; none was given")
    dim = len(embedding)
    if dim < spec.dims:
        raise ValueError(f"the {spec.backbone!r} embedding has {dim} numbers, fewer than dims: {spec.dims}")
    return tuple((embedding @ _directions(dim, spec.dims)).tolist())


@lru_cache(maxsize=8)
def _directions(dim: int, dims: int) -> NDArray[np.float32]:
    """Return `dims` random directions as columns, shape (dim, dims), standard normal."""
    return np.random.default_rng(0).standard_normal((dim, dims), dtype=np.float32)


FEATURE = ROUTER
"""The feature of an arm that holds its router score."""


KIND_OF_WORDS = "w"
"""Prefix of the features of words, which are not kinds of questions."""


def select_kinds(features: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the features that say what kind of question it is, each with its value.

    >>> select_kinds({"ask=who": 1.0, "tier=free": 1.0, "w=river": 1.0, "length": 0.3})
    [('ask', 'who'), ('tier', 'free')]
    """
    parts = (name.partition("=") for name in features)
    return [(head, value) for head, equals, value in parts if equals and head != KIND_OF_WORDS]
