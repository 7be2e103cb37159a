"""The interface of an arm: a query goes in, passages come out.

An arm is independent of learning, HTTP and Ray, and immutable once built.

    ArmError                   an arm failed
    |-- ArmBuildError          it cannot be built from its description
    `-- MissingEmbeddingError  the query lacks an embedding that the arm needs
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from armwise.arms.filters import Comparison, Compound, Metadata

if TYPE_CHECKING:  # the command line imports this file, and must not wait for numpy
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a language model, and the price of them and of paid searches.

    Attributes:
        prompt_tokens: Tokens that the model read.
        completion_tokens: Tokens that the model wrote.
        cached_tokens: Tokens among those read that the engine had cached.
        usd: The total price.
        search_usd: The part of the price that searches cost.
        cache_written_tokens: Tokens among those read that the engine has cached now.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    usd: float = 0.0
    search_usd: float = 0.0
    cache_written_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum.

        >>> (Usage(1, 2) + Usage(10, 20, 5, 0.5)).prompt_tokens
        11
        """
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.usd + other.usd,
            self.search_usd + other.search_usd,
            self.cache_written_tokens + other.cache_written_tokens,
        )


UNUSED = Usage()
"""Usage of a free search that prompts no language model."""


class ArmError(Exception):
    """An arm failed; the message names it and the reason.

    Attributes:
        usage: What the arm used before it failed.
    """

    usage: Usage = UNUSED


class QuestionRefusedError(ArmError):
    """An arm refused a question, such as one that is too long; that says little about other questions."""


class ArmBuildError(ArmError):
    """An arm cannot be built from its configuration."""


class MissingEmbeddingError(ArmError):
    """The query lacks the embedding of a backbone that the arm needs."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that an arm can return.

    Attributes:
        id: Id, unique within its corpus.
        title: Title of its document; may be empty.
        text: The text.
        score: The arm's score; compare it only within one retrieval.
        metadata: Other facts, such as its page or the groups that may see it.
    """

    id: str
    title: str
    text: str
    score: float = 0.0
    metadata: Metadata = field(default_factory=dict, hash=False)

    @property
    def cited(self) -> str:
        """The name for a citation: the title, and the page if the metadata has one.

        >>> Passage("report.pdf#p3-1", "Report", "Sales grew.", metadata={"page": 3}).cited
        'Report, p. 3'
        """
        page = self.metadata.get("page")
        if isinstance(page, bool) or not isinstance(page, int):
            return self.title
        return f"{self.title}, p. {page}" if self.title else f"p. {page}"

    def replace_score(self, score: float) -> "Passage":
        """Return the same passage with another score."""
        return replace(self, score=score)


@dataclass(frozen=True, slots=True)
class Query:
    """A question, with its embeddings and the limits on the passages it may find.

    Attributes:
        text: The question.
        embeddings: Unit vectors by the name of the backbone, shape (dim,), float32.
        seed: Seed for arms that draw at random, derived from the decision id.
        where: Condition that the metadata of every passage must meet.
        groups: The caller's groups: a passage with `allowed_groups` must name one of them.
        expected: How well each arm should fit the question, higher is better; empty if unknown.
    """

    text: str
    embeddings: "Mapping[str, NDArray[np.float32]]" = field(default_factory=dict)
    seed: int = 0
    where: Comparison | Compound | None = None
    groups: frozenset[str] = frozenset()
    expected: Mapping[str, float] = field(default_factory=dict)

    def embedding(self, backbone: str, *, arm: str) -> "NDArray[np.float32]":
        """Return the vector of `backbone`, shape (dim,). Raises MissingEmbeddingError."""
        try:
            return self.embeddings[backbone]
        except KeyError:
            have = ", ".join(sorted(self.embeddings)) or "none"
            raise MissingEmbeddingError(
                f"arm {arm!r} needs a {backbone!r} embedding; the query has: {have}"
            ) from None


@dataclass(frozen=True, slots=True)
class StageRun:
    """A stage of a cascade or of a federated search that ran, or the members of an ensemble.

    Attributes:
        arms: The members that were asked.
        failed: The members that gave no answer.
        steps: Rounds of retrieval of this stage.
        tokens: Tokens of the language model of this stage.
        picked: The member with the best answer so far; None: all have failed.
        probability: Predicted probability that this answer is right; None: unknown, or all have failed.
        gain: Predicted gain in reward of running the next stage; None: all have failed, or it is the last.
    """

    arms: tuple[str, ...]
    failed: tuple[str, ...]
    steps: int
    tokens: int
    picked: str | None = None
    probability: float | None = None
    gain: float | None = None


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What a search found, and what it cost.

    Attributes:
        passages: The passages, best first, ties broken by id, ids unique.
        steps: Rounds of retrieval: 0 without a search, 1 for a plain search.
        tokens: Tokens of a language model that the arm itself called.
        stages: The stages that the arm ran, in order; empty if it has none.
        usage: Usage counted by the host: all calls of the language model, including those that `tokens`
            leaves out, and priced searches.
        index_version: Version of the index of the passages, set by the host; empty if unknown.
        cached: Whether the passages came from the retrieval cache.
        answer: Answer that the arm itself produced; empty if one must still be written.
    """

    passages: tuple[Passage, ...] = ()
    steps: int = 1
    tokens: int = 0
    stages: tuple[StageRun, ...] = ()
    usage: Usage = UNUSED
    index_version: str = ""
    cached: bool = False
    answer: str = ""


@runtime_checkable
class Arm(Protocol):
    """One way to find passages. It is immutable once built, and thread-safe.

    Attributes:
        name: Name in the configuration, which is the bandit's action.
        backbones: The embeddings that a query must have.

    Your own class may also set `light = True`: a search takes at most a few milliseconds of a thread and
    never waits, so it may run in the HTTP process. With `filters = True`, it returns only passages that
    a query permits, so it may serve requests with a filter, and passages with groups.
    """

    name: str
    backbones: frozenset[str]

    def search(self, query: Query, k: int) -> Retrieval:
        """Return at most `k` passages, best first, ties broken by id. Raises ArmError."""
        ...


Progress = Callable[[str, int, int | None], None]
"""Progress callback: the stage, the amount that is done, and the total (None if unknown)."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of the configuration: parts of headers, URLs, deployments, folders and objects of JavaScript."""

RESERVED = frozenset(("auto",))
"""Names that cannot be given: `auto` in the place of a model has the policy choose."""


def check_name(name: str) -> str:
    """Return the name of an arm, a corpus, a backbone, a language model or the like.

    >>> check_name("bm25"), check_name("bge-m3_v1.5")
    ('bm25', 'bge-m3_v1.5')

    Raises:
        ValueError: The name is invalid; the message has the reason.
    """
    if not NAME.fullmatch(name):
        shown = name if len(name) <= 120 else f"{name[:120]}..."
        raise ValueError(
            f"{shown!r} is not a valid name: use 1 to 100 of A-Z a-z 0-9 . _ -, and begin with a letter or "
            "a digit"
        )
    if name.lower() in RESERVED:
        raise ValueError(f"{name!r} is not a valid name: it asks for the policy's choice")
    return name


def is_name(name: str) -> bool:
    """Return whether `check_name` accepts a name."""
    try:
        check_name(name)
    except ValueError:
        return False
    return True


Embed = Callable[[str, frozenset[str]], "Mapping[str, NDArray[np.float32]]"]
"""Text and names of backbones -> a unit vector of shape (dim,) for each. Raises ArmError."""
