"""The contract of a kind of arm, and the resources that arms are built from.

Each family of arms defines its kinds in its own file; `armwise.arms.retrievers.catalog` lists them.
"""

import hashlib
import math
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Generic, Protocol, Self, TypeVar, cast, overload

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from typing_extensions import override

from armwise.arms.base import Arm, ArmBuildError, ArmError, Embed, Passage, Progress, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.llm import UNPROMPTED, Bound, Chunk, Prompt, Write, WritingSpec, prompts
from armwise.arms.models import Backbone, digest_backbone
from armwise.arms.relative_paths import find_mark
from armwise.number import Number

P = TypeVar("P", bound=BaseModel)

T = TypeVar("T")

DEFAULT_HOST, INGRESS = "Arms", "Ingress"
"""The default deployment of arms that embed or are not light, and the deployment that answers HTTP."""

Members = Callable[[str], Arm]
"""The name of an arm -> the arm."""

BoundOf = Callable[[str], Bound]
"""The name of an arm -> the most that a search of it spends."""


MOST_MEMBERS = 64
"""Largest number of members of an arm: each of them searches for every question."""

MemberNames = Annotated[tuple[str, ...], Field(min_length=2, max_length=MOST_MEMBERS)]
"""Names of the members of an arm."""


def _each_once(stages: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """Check that each arm is in one stage, and that they are not too many. Raises ValueError."""
    arms = Counter(arm for stage in stages for arm in stage)
    if (total := arms.total()) > MOST_MEMBERS:
        raise ValueError(f"the stages have {total:,} arms; at most {MOST_MEMBERS} are allowed")
    for arm, times in arms.items():
        if times > 1:
            raise ValueError(f"arm {arm!r} occurs twice: list each arm once")
    return stages


Stages = Annotated[
    tuple[Annotated[tuple[str, ...], Field(min_length=1)], ...],
    Field(min_length=2, max_length=MOST_MEMBERS),
    AfterValidator(_each_once),
]
"""Names of arms by the stages of a cascade; the arms of a stage answer together, and each arm once."""


class ArmSpec(BaseModel):
    """An arm: one way to retrieve passages and to answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(description="Kind of the arm, or `package.module:Class` for your own class.")
    corpus: str | None = Field(
        default=None,
        description=(
            "Name of the corpus in `corpora` that the arm searches. Null if the arm searches no corpus, or "
            "if there is only one."
        ),
    )
    params: dict[str, Any] = Field(default_factory=dict, description="Parameters of the kind.")
    action: bool = Field(
        default=True,
        description="Whether the policy may choose the arm. Set false if only other arms search it.",
    )
    host: str = Field(
        default=DEFAULT_HOST,
        pattern=r"^[A-Za-z0-9_-]{1,100}$",
        description=(
            "Ray Serve deployment that runs the arm. If you keep the default, light arms that do not embed "
            "run in `Ingress` instead. With `Ingress`, the arm runs in the process that answers HTTP."
        ),
    )

    cache: bool = Field(
        default=False,
        description=(
            "Whether to keep the arm's results in the `retrieval_cache`. This helps if the arm takes several "
            "milliseconds. Arms with random results cannot use the cache."
        ),
    )
    usd: Number = Field(
        default=0.0,
        ge=0.0,
        description=(
            "Price of one search by this arm, in dollars. Arms that it searches have their own prices."
        ),
    )
    answering: WritingSpec = Field(
        default=WritingSpec(),
        description="Settings that differ from `answering` for this arm.",
    )

    @field_validator("params")
    @classmethod
    def _storable(cls, params: dict[str, Any]) -> dict[str, Any]:
        """Check that the log can store the parameters."""
        try:
            orjson.loads(orjson.dumps(params))
        except (orjson.JSONEncodeError, RecursionError) as error:
            raise ValueError(f"parameters must be numbers, texts, lists and maps ({error})") from None
        if any(not math.isfinite(number) for number in _numbers(params)):
            raise ValueError("parameters must be finite numbers")
        return params


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)
    elif isinstance(value, float):
        yield value


class NoParams(BaseModel):
    """No parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _no_embedder(_: str, backbones: frozenset[str]) -> Mapping[str, NDArray[np.float32]]:
    raise ArmError(f"no encoder is configured for {', '.join(sorted(backbones))}")


def _no_writer(_: Prompt) -> tuple[str, Chunk]:
    raise ArmError("no language model is configured")


class AnswerSelector(Protocol):
    """Selects an answer to a question among those of the arms; thread-safe.

    Attributes:
        k: Number of passages of each arm that it reads, and that an answer is written from.
    """

    k: int

    def select(
        self,
        query: Query,
        answers: Sequence[str],
        found: Sequence[Sequence[Passage]],
        vectors: Mapping[str, NDArray[np.float32]],
    ) -> int:
        """Return the index of the best answer; of equals the first.

        Args:
            query: The question, embedded with the backbone of the selector.
            answers: The answer of each arm, in the order of `SelectorSpec.arms`.
            found: The passages of each answer, best first.
            vectors: Unit vectors of the passages that are in the corpus, shape (dim,), by id.

        Raises:
            ArmError: The selector was trained for other inputs.
        """
        ...


@dataclass(frozen=True, slots=True)
class SelectorSpec:
    """A selector as an ensemble configures it.

    Attributes:
        router: Folder of the trained router.
        arms: Arms whose answers it compares.
        backbone: Name of the backbone of question and passages.
        encoder: The backbone of that name.
        writing: Settings of the answers.
    """

    router: Path
    arms: tuple[str, ...]
    backbone: str
    encoder: Backbone
    writing: prompts.Writing


class MemberRanker(Protocol):
    """Ranks the members of an arm for a question, before any of them searches; thread-safe."""

    def rank(self, query: Query) -> Sequence[int]:
        """Return the indices of all members, the most promising first; of equals the earliest.

        Args:
            query: The question, embedded with the backbone of the ranker.

        Raises:
            ArmError: The members cannot be ranked.
        """
        ...


@dataclass(frozen=True, slots=True)
class RankerSpec:
    """A ranker of members as an ensemble configures it.

    Attributes:
        router: Folder of the trained router.
        arms: The members that it ranks.
        backbone: Name of the backbone of the question.
        encoder: The backbone of that name.
    """

    router: Path
    arms: tuple[str, ...]
    backbone: str
    encoder: Backbone


@dataclass(frozen=True, slots=True)
class CascadeStep:
    """The decision of a cascade after a stage.

    Attributes:
        pick: Index of the best answer so far.
        probability: Predicted probability that this answer is right.
        gain: Predicted gain in reward of running the next stage; None at the last stage.
        goes_on: Whether the next stage runs.
    """

    pick: int
    probability: float
    gain: float | None
    goes_on: bool


class CascadeDecider(Protocol):
    """Decides after each stage of a cascade whether to stop; thread-safe.

    Attributes:
        k: Number of passages of each arm that it reads, and that an answer is written from.
    """

    k: int

    def decide(
        self, question: str, answers: Sequence[str | None], found: Sequence[Sequence[Passage]]
    ) -> CascadeStep:
        """Return what to do after a stage.

        Args:
            question: The question.
            answers: Answers of the arms of all stages so far, in order; None: the arm failed. At least one
                has answered.
            found: The passages of each answer, best first.

        Raises:
            ArmError: The decider was trained for other inputs.
        """
        ...


@dataclass(frozen=True, slots=True)
class DeciderSpec:
    """A decider as a cascade configures it.

    Attributes:
        folder: Folder of the trained cascade.
        stages: Names of the arms by stage.
        writing: Settings of the answers.
    """

    folder: Path
    stages: tuple[tuple[str, ...], ...]
    writing: prompts.Writing


class OpenTrained(Protocol):
    """Opens a model that was trained for an arm: a router of answers or of members, or a cascade's decider.

    Raises:
        ArmBuildError: It was trained for other arms or settings.
    """

    @overload
    def __call__(self, wanted: SelectorSpec, /) -> AnswerSelector: ...

    @overload
    def __call__(self, wanted: RankerSpec, /) -> MemberRanker: ...

    @overload
    def __call__(self, wanted: DeciderSpec, /) -> CascadeDecider: ...


def no_selector(wanted: SelectorSpec | RankerSpec | DeciderSpec, /) -> Any:
    """Refuse to open anything."""
    if isinstance(wanted, DeciderSpec):
        raise ArmBuildError(f"decider {wanted.folder}: deciders of cascades are not available here")
    raise ArmBuildError(f"router {wanted.router}: trained routers are not available here")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check says of an answer.

    Attributes:
        score: How good the answer is, in [0, 1]; a check that only passes or fails gives 1 or 0.
        said: Why, in a short text; empty if there is nothing to say.
    """

    score: float
    said: str = ""


class AnswerCheck(Protocol):
    """Checks an answer; thread-safe."""

    @property
    def llm(self) -> str | None:
        """Name of the language model that it prompts; None: it prompts none."""
        ...

    def compute_bound(self, answer_tokens: int) -> Bound:
        """Return the most that it has the model read and write for an answer of so many tokens."""
        ...

    def __call__(self, question: str, passages: Sequence[Passage], answer: str, write: Write) -> CheckResult:
        """Check an answer; blocks.

        Args:
            question: The question.
            passages: Passages that the answer was written from, best first.
            answer: Text of the answer.
            write: Prompts the language model `llm`.

        Raises:
            ArmError, GeneratorError: It could not be checked.
        """
        ...


@dataclass(frozen=True, slots=True)
class CheckedArms:
    """Two arms, of which the second answers where the answer of the first fails a check.

    Attributes:
        first: Name of the arm that answers first, and whose passages both answer from.
        then: Name of the arm whose settings of the answer apply where the check fails.
        check: The check.
        threshold: Minimum score for sending the first answer.
        explore: Share of the questions where a coin decides, and not the score.
    """

    first: str
    then: str
    check: AnswerCheck
    threshold: float
    explore: float


WAITING = 0.8
"""Share of its time that a search waits for another service, so that it can still report what failed."""


@dataclass(frozen=True)
class Resources:
    """The resources that arms are built from.

    Attributes:
        corpus: The passages: of the corpus that an arm searches, or of all.
        indexes: The folder of the indexes.
        backbones: Embedding models by name.
        specs: Every arm by name; an arm may refer to others.
        embed: Embeds a text that an arm wrote, such as a follow-up query.
        write: Prompts the language model; blocking, thread-safe.
        open_selector: Opens a model that was trained for an arm.
        wait_s: Most seconds that a search waits for another service, its retries included.
    """

    corpus: Corpus
    indexes: Path
    backbones: Mapping[str, Backbone]
    specs: Mapping[str, ArmSpec]
    embed: Embed = _no_embedder
    write: Write = _no_writer
    open_selector: OpenTrained = no_selector
    wait_s: float = 8.0
    _shared: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def forget(self) -> None:
        """Clear the caches of shared objects, so that the next search pays for all of its work."""
        with self._lock:
            for thing in self._shared.values():
                if callable(forget := getattr(thing, "forget", None)):
                    forget()

    def select_corpus(self, spec: ArmSpec) -> "Resources":
        """Return the resources of an arm: with the corpus that it searches."""
        return replace(self, corpus=self.corpus.part(spec.corpus))

    def share(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the object of a key, made once for a corpus, such as an index that arms share."""
        key = (self.corpus.prefix, key)
        with self._lock:
            if key not in self._shared:
                self._shared[key] = make()
            return cast(T, self._shared[key])


class BatchedArms(Protocol):
    """Arms of one kind that share their work on a query; thread-safe.

    Attributes:
        names: The arms.
        backbones: The embeddings that a query must have.
    """

    names: tuple[str, ...]
    backbones: frozenset[str]

    def positions(self, query: Query, k: int) -> NDArray[np.intp]:
        """Return the positions that each arm finds, best first, shape (n_arms, k), filled up with -1.

        Raises:
            ArmError: The search failed.
        """
        ...


class Passages(Protocol):
    """The part of a corpus that versions and batches read."""

    @property
    def name(self) -> str:
        """Name of the corpus."""
        ...

    @property
    def digest(self) -> str:
        """Hash of ids, titles and texts."""
        ...

    def __len__(self) -> int: ...

    def passages(self, positions: Iterable[int]) -> Sequence[Passage]:
        """Return passages by position."""
        ...

    def find_positions(self, ids: Iterable[str]) -> Mapping[str, int]:
        """Return the positions of the ids that the corpus has."""
        ...


ReadVersion = Callable[[bool], str | None]
"""Whether to bypass an answer of seconds ago -> a version; None: unknown. Raises ArmError."""


def digest_contents(corpus: Passages) -> str:
    """Return a hash of all passages with their metadata and their ids: permissions may change alone."""
    metadata: str = getattr(getattr(corpus, "manifest", None), "metadata", "")
    prefix: str = getattr(corpus, "prefix", "")
    return hashlib.blake2b(f"{prefix}{corpus.digest} {metadata}".encode(), digest_size=6).hexdigest()


def digest_vectors(model: str) -> str:
    """Return a short hash of the digest of a model."""
    return hashlib.blake2b(model.encode(), digest_size=4).hexdigest()


class Kind(ABC, Generic[P]):
    """A kind of arm: name it, describe its settings, and write `build` and `search`.

    `armwise.arms.retrievers.catalog` finds each subclass with a name in `kind`. The first line of its
    docstring is its description in `docs/reference/configuration/arm-kinds.md`, with links that are relative
    to `docs/guide/arms.md`. The methods of the class answer questions about an arm before it is built, by its
    settings; the defaults are right for an arm that refers to others by the settings `arm` or `arms`, and to
    an encoder by `backbone`.

    Attributes:
        kind: `kind` in the configuration; empty: the class is the base of some kinds.
        params: Model of the settings.
        example: Settings of a small arm of this kind, which the documentation shows and the tests build. An
            arm in it is the example of the kind of that name; a backbone is `minilm`.
        libraries: Modules that it needs beyond `armwise[serve]` and its backbones.
        features: Numeric settings that a policy sees.
        light: Whether a search takes a few milliseconds of a thread and never waits, members apart: such an
            arm runs in the ingress, unless it embeds.
        filters: Whether a search honours `Query.where` and `Query.groups`, members apart.
        draws: Whether repeating a search may find something else: by the seed of the query, or when a model
            fails silently.
        embeds_texts: Whether it embeds texts that it writes, such as follow-up queries.
        searches_corpus: Whether it searches an index over a corpus.
        holds_corpus: Whether it searches a collection that a corpus is written into.
        name: Name of the arm.
        backbones: The embeddings that a query must have.
    """

    kind: str = ""
    params: type[P]
    example: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    libraries: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    light: bool = False
    filters: bool = False
    draws: bool = False
    embeds_texts: bool = False
    searches_corpus: bool = False
    holds_corpus: bool = False

    name: str
    backbones: frozenset[str] = frozenset()

    @classmethod
    @abstractmethod
    def build(cls, name: str, params: P, have: Resources, member: Members) -> Arm:
        """Build an arm.

        Args:
            name: The arm.
            params: The settings of the arm.
            have: The resources, with the corpus that it searches.
            member: Builds the arms that it refers to.

        Raises:
            ArmBuildError: It cannot be built.
        """

    @abstractmethod
    def search(self, query: Query, k: int) -> Retrieval:
        """Return at most `k` passages, best first, ties broken by id. Raises ArmError."""

    @classmethod
    def prepare(cls, params: P, have: Resources, progress: Progress | None) -> None:
        """Build its index if it is missing, and check what it refers to. Raises ArmBuildError."""

    @classmethod
    def batch(cls, group: Mapping[str, P], have: Resources) -> Sequence[BatchedArms]:
        """Return arms of this kind as batches that share work; empty: the kind has none."""
        del group, have
        return ()

    @classmethod
    def members(cls, params: P) -> tuple[str, ...]:
        """Return the arms that it refers to."""
        arm: str | None = getattr(params, "arm", None)
        return tuple(getattr(params, "arms", ())) if arm is None else (arm,)

    @classmethod
    def encoders(cls, params: P) -> tuple[str, ...]:
        """Return the backbones that it refers to."""
        backbone: str | None = getattr(params, "backbone", None)
        return () if backbone is None else (backbone,)

    @classmethod
    def embeds(cls, params: P) -> tuple[str, ...]:
        """Return the backbones that a query must be embedded with, members apart."""
        return cls.encoders(params)

    @classmethod
    def models(cls, params: P) -> tuple[str, ...]:
        """Return the models that it loads itself: the settings that are folders or models of this machine."""
        fields = cls.params.model_fields.items()
        marked = [name for name, field in fields if find_mark((field.annotation, *field.metadata))]
        return tuple(value for name in marked if (value := getattr(params, name)))

    @classmethod
    def steps(cls, params: P) -> float:
        """Return the expected rounds of retrieval."""
        del params
        return 1.0

    @classmethod
    def searches(cls, params: P, member: str) -> float:
        """Return the expected number of searches of a member."""
        del params, member
        return 1.0

    @classmethod
    def bound(cls, params: P, member: BoundOf) -> Bound:
        """Return the most that a search spends, members included, if each is searched at most once."""
        return sum(map(member, cls.members(params)), UNPROMPTED)

    @classmethod
    def checks(cls, params: P) -> CheckedArms | None:
        """Return how its answers are checked, and which arm answers where they fail; None: they are not."""
        del params
        return None

    @classmethod
    def is_versioned(cls, params: P) -> bool:
        """Return whether the version of what it searches can be known, members apart."""
        return cls.searches_corpus or cls.holds_corpus or bool(cls.members(params))

    @classmethod
    def version_reader(cls, params: P, have: Resources) -> ReadVersion:
        """Return a reader of the version of its own index, empty if only its members have one."""
        version: str | None = "" if cls.is_versioned(params) else None
        if cls.searches_corpus:
            models = [digest_vectors(digest_backbone(have.backbones[name])) for name in cls.encoders(params)]
            version = "-".join([digest_contents(have.corpus), *models])
        return lambda _: version


class NoRetrieval(Kind[BaseModel]):
    """Retrieves nothing.

    >>> NoRetrieval("none").search(Query("2 + 2?"), k=4) == Retrieval(steps=0)
    True
    """

    kind = "none"
    params: type[BaseModel] = NoParams
    light = filters = True

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    @override
    def build(cls, name: str, params: BaseModel, have: Resources, member: Members) -> Self:
        return cls(name)

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        return Retrieval(steps=0)

    @classmethod
    @override
    def steps(cls, params: BaseModel) -> float:
        return 0.0

    @classmethod
    @override
    def is_versioned(cls, params: BaseModel) -> bool:
        return True


class ExternalParams(BaseModel):
    """Parameters of an arm of another system."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    usd: Number = Field(
        default=0.0,
        ge=0.0,
        description=(
            "Approximate dollars per use. Policies see this as a feature. The actual cost comes with each "
            "observation."
        ),
    )
    features: dict[Annotated[str, Field(min_length=1, max_length=100)], Number] = Field(
        default_factory=dict,
        max_length=64,
        description="Further features, such as the size of a model. Policies see log(1 + value).",
    )

    def describe(self) -> dict[str, float]:
        """Return its features by name, without its price."""
        return {
            f"external.{name}": math.copysign(math.log1p(abs(value)), value)
            for name, value in self.features.items()
        }


class ExternalArm(NoRetrieval):
    """Stands for an arm that the caller runs in another system, as with [the tap](tap.md)."""

    kind = "external"
    params = ExternalParams
    example: ClassVar = {"usd": 0.002, "features": {"billions": 8}}
