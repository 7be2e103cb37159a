"""What an arm is: a question goes in, passages come out.

Everything in this package speaks the five words of this file. An arm knows
nothing of learning, of HTTP or of Ray: it is built once, and then only read.

    ArmError                   an arm could not answer
    |-- ArmBuildError          it cannot be built as it is described
    `-- MissingEmbeddingError  the query lacks the embedding the arm needs
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class ArmError(Exception):
    """An arm could not answer; the message says which one and why."""


class ArmBuildError(ArmError):
    """An arm cannot be built as it is described; the message says why."""


class MissingEmbeddingError(ArmError):
    """The query does not carry the embedding of a backbone that the arm needs."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that an arm can return.

    Attributes:
        id: Unique within its corpus.
        title: Title of the document it was cut from; may be empty.
        text: The words themselves.
        score: The arm's own score; comparable within one answer only.
    """

    id: str
    title: str
    text: str
    score: float = 0.0

    def scored(self, score: float) -> "Passage":
        """Return the same passage with another score."""
        return replace(self, score=score)


@dataclass(frozen=True, slots=True)
class Query:
    """A question, embedded at most once per backbone.

    Attributes:
        text: The question as it was asked.
        embeddings: Backbone name to unit vector, each of shape (dim,), float32.
        seed: Source of randomness for stochastic arms, derived from the decision id.
    """

    text: str
    embeddings: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    seed: int = 0

    def embedding(self, backbone: str, *, arm: str) -> NDArray[np.float32]:
        """Return the vector of `backbone`, shape (dim,). Raises MissingEmbeddingError."""
        try:
            return self.embeddings[backbone]
        except KeyError:
            have = ", ".join(sorted(self.embeddings)) or "none"
            raise MissingEmbeddingError(
                f"arm {arm!r} needs a {backbone!r} embedding; the query carries: {have}"
            ) from None


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What one search returned and what it took.

    Attributes:
        passages: Best first, ties broken by id, ids unique.
        steps: Rounds of retrieval that were run: 0 for none, 1 for a plain search.
        tokens: Tokens that the arm spent on a language model of its own.
    """

    passages: tuple[Passage, ...] = ()
    steps: int = 1
    tokens: int = 0


@runtime_checkable
class Arm(Protocol):
    """One way to find passages. Immutable once built, safe to call from many threads.

    Attributes:
        name: What the configuration calls it; the action of the bandit.
        backbones: The embeddings that a query must carry for this arm.
    """

    name: str
    backbones: frozenset[str]

    def search(self, query: Query, k: int) -> Retrieval:
        """Return at most `k` passages, best first, ties broken by id. Raises ArmError."""
        ...


class NoRetrieval:
    """The arm that looks nothing up: the model answers from what it knows, at no step.

    >>> NoRetrieval("none").search(Query("2 + 2?"), k=4)
    Retrieval(passages=(), steps=0, tokens=0)
    """

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str) -> None:
        self.name = name

    def search(self, query: Query, k: int) -> Retrieval:
        """Return no passage, in no step."""
        del query, k
        return Retrieval(steps=0)


Progress = Callable[[str, int, int | None], None]
"""Told what is being done, how much of it is done, and of how much (None: not known)."""

NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
"""Arms stand in headers and URLs, backbones in names of deployments."""

Embed = Callable[[str, frozenset[str]], Mapping[str, NDArray[np.float32]]]
"""Text and names of backbones -> a unit vector of shape (dim,) for each. Raises ArmError."""
