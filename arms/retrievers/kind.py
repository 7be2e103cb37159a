"""What a kind of arm is, and what arms are built from.

Each family of arms describes its kinds in its own file; `arms.retrievers.catalog` names them.
"""

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from arms.base import Arm, ArmBuildError, ArmError, Embed, Passage, Progress, Query
from arms.corpus import Corpus
from arms.llm import Chunk, Prompt, Write, prompts
from arms.models import Backbone

P = TypeVar("P", bound=BaseModel)

T = TypeVar("T")

DEFAULT_HOST = "Arms"
"""The deployment that runs every arm that names no other."""

Members = Callable[[str], Arm]
"""The name of an arm -> that arm, built."""


class ArmSpec(BaseModel):
    """An arm as the configuration describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(description="A kind of the catalogue, or `package.module:Class` of your own.")
    params: dict[str, Any] = Field(default_factory=dict, description="Parameters of that kind.")
    action: bool = Field(
        default=True,
        description="False: not an action of the bandit, only a part of other arms that name it.",
    )
    host: str = Field(
        default=DEFAULT_HOST,
        pattern=r"^[A-Za-z0-9_-]{1,100}$",
        description="Deployment that runs it: arms that name another than the rest have processes, "
        "and a number of replicas, of their own.",
    )

    @field_validator("params")
    @classmethod
    def _storable(cls, params: dict[str, Any]) -> dict[str, Any]:
        """Refuse what the log could not keep."""
        try:
            orjson.loads(orjson.dumps(params))
        except (orjson.JSONEncodeError, RecursionError) as error:
            raise ValueError(f"parameters must be numbers, texts, lists and maps ({error})") from None
        if any(not math.isfinite(number) for number in _numbers(params)):
            raise ValueError("parameters must be finite")
        return params


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)
    elif isinstance(value, float):
        yield value


class NoParams(BaseModel):
    """There is nothing to set."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _no_embedder(_: str, backbones: frozenset[str]) -> Mapping[str, NDArray[np.float32]]:
    raise ArmError(f"no encoder is at hand to embed with {', '.join(sorted(backbones))}")


def _no_writer(_: Prompt) -> tuple[str, Chunk]:
    raise ArmError("no language model is at hand")


class AnswerSelector(Protocol):
    """Picks one of several answers to a question; safe to call from many threads.

    Attributes:
        k: Passages of each arm that it looks at, and that an answer is to be written from.
    """

    k: int

    def select(
        self,
        query: Query,
        answers: Sequence[str],
        found: Sequence[Sequence[Passage]],
        vectors: Mapping[str, NDArray[np.float32]],
    ) -> int:
        """Return the index of the best answer, of several the first.

        Args:
            query: The question, embedded with the backbone of the picker.
            answers: One of each arm, in the order in which the picker was asked for.
            found: The passages that each was written from, best first.
            vectors: Unit vector of each passage of the corpus among them, shape (dim,), by id.

        Raises:
            ArmError: What it looks at does not fit.
        """
        ...


@dataclass(frozen=True, slots=True)
class SelectorSpec:
    """What a picker is to do.

    Attributes:
        router: Folder of the trained router that picks.
        arms: Whose answers it compares.
        backbone: Name of the backbone by which it looks at the question and at passages.
        encoder: What is declared under that name.
        writing: How the answers are written.
    """

    router: Path
    arms: tuple[str, ...]
    backbone: str
    encoder: Backbone
    writing: prompts.Writing


OpenSelector = Callable[[SelectorSpec], AnswerSelector]
"""Reads a trained router that picks answers. Raises ArmBuildError where it does not fit."""


def no_selector(wanted: SelectorSpec) -> AnswerSelector:
    """Refuse to read a router."""
    raise ArmBuildError(f"router {wanted.router}: nothing is at hand that reads one")


@dataclass(frozen=True)
class Resources:
    """What arms are built from.

    Attributes:
        corpus: The passages.
        indexes: The folder in which indexes are kept.
        backbones: Embedding models by name.
        specs: Every arm by name; an arm may refer to others.
        embed: Embeds a text that an arm made up itself, such as a follow-up question.
        write: Asks the language model; blocks, and may be called from many threads.
        open_selector: Opens a trained router that selects answers.
    """

    corpus: Corpus
    indexes: Path
    backbones: Mapping[str, Backbone]
    specs: Mapping[str, ArmSpec]
    embed: Embed = _no_embedder
    write: Write = _no_writer
    open_selector: OpenSelector = no_selector
    _shared: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def forget(self) -> None:
        """Drop what shared things keep of former questions, so that the next search pays for all of it."""
        with self._lock:
            for thing in self._shared.values():
                if callable(forget := getattr(thing, "forget", None)):
                    forget()

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned for this key the first time: an index that several arms read."""
        with self._lock:
            if key not in self._shared:
                self._shared[key] = make()
            return cast(T, self._shared[key])


class Batch(Protocol):
    """Arms of one kind that share their work on a query; safe to call from many threads.

    Attributes:
        names: The arms.
        backbones: The embeddings that a query must carry.
    """

    names: tuple[str, ...]
    backbones: frozenset[str]

    def positions(self, query: Query, k: int) -> NDArray[np.intp]:
        """Return what each arm would, as positions in the corpus, best first.

        Returns:
            Shape (n_arms, k), rows in the order of `names`; -1 where an arm finds fewer than `k`.

        Raises:
            ArmError: The question cannot be looked up.
        """
        ...


def _nothing(*_: object) -> None:
    """Do nothing: the kind has no index."""


def _none(_: BaseModel) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Kind(Generic[P]):
    """How one kind of arm is described and made.

    Attributes:
        params: Its parameters.
        build: Make the arm of a name, from parameters, resources and the members it refers to.
        prepare: Build the index it needs where it is missing, and tell the progress.
        batch: Make batches of the arms of this kind, given by name, that share work; None where none do.
        backbones: Name the backbones that its parameters refer to.
        embeds: Name those that a query must carry; None where it must carry all of them.
        members: Name the arms that its parameters refer to.
        models: Name the models that it loads itself, as `arms.models.locate` takes them.
        told: Names of the numbers among its parameters that a policy sees.
        steps: Rounds of retrieval to expect.
    """

    params: type[P]
    build: Callable[[str, P, Resources, Members], Arm]
    prepare: Callable[[P, Resources, Progress | None], None] = _nothing
    batch: Callable[[Mapping[str, P], Resources], Sequence[Batch]] | None = None
    backbones: Callable[[P], tuple[str, ...]] = _none
    embeds: Callable[[P], tuple[str, ...]] | None = None
    members: Callable[[P], tuple[str, ...]] = _none
    models: Callable[[P], tuple[str, ...]] = _none
    features: tuple[str, ...] = ()
    steps: Callable[[P], float] = lambda _: 1.0
