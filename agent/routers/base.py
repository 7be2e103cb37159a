"""A router scores arms on a question; it is fitted to labels offline and learns nothing while it serves.

outcomes, scores, judge, log --utility--> Labels --fit--> Router --scores--> (n_questions, n_arms)
"""

import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from agent.routers.dataset import (
    SAME_AS,
    ArmTable,
    Features,
    Floats,
    RouterError,
    RoutingDataset,
    Stage,
    positions,
)

State = Mapping[str, NDArray[Any]]
"""What a fitted router holds, as named arrays."""

FORMAT = 1
"""Version of the file of a router: a file of another one is refused."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What a router was fitted on, by name.

    Attributes:
        arms: In the order of its outputs.
        names: Of the numbers of a question.
        dim: Of the embedding.
        retrieved: Names of what retrieval tells of an arm; empty where the router does not look at it.
        answered: Names of what answers tell of an arm; likewise.
    """

    arms: tuple[str, ...]
    names: tuple[str, ...]
    dim: int
    retrieved: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()

    @classmethod
    def of(cls, features: Features, stage: Stage) -> "Schema":
        """Describe features, as far as a router of this stage looks at them. Raises RouterError."""
        if features.stage < stage:
            told, needed = features.stage.name.lower(), stage.name.lower()
            raise RouterError(f"the router looks at what is {needed}, but the features stop at {told}")
        tables = (features.retrieved, features.answered)
        seen = [
            table.names if table is not None and stage >= at else ()
            for at, table in zip((Stage.RETRIEVED, Stage.ANSWERED), tables, strict=True)
        ]
        return cls(features.arms, features.names, features.embedding.shape[1], *seen)

    def conform(self, features: Features) -> Features:
        """Return features with exactly these columns, in this order; arms as they were asked.

        Raises:
            RouterError: An arm or a column is missing.
        """
        positions(self.arms, features.arms)
        if features.embedding.shape[1] != self.dim:
            raise RouterError(
                f"embeddings of {features.embedding.shape[1]} numbers; the router was fitted on {self.dim}"
            )
        question = features.question
        if features.names != self.names:
            question = question[:, positions(features.names, self.names)]
        return Features(
            features.arms,
            features.texts,
            self.names,
            question,
            features.embedding,
            _columns(features.retrieved, self.retrieved),
            _columns(features.answered, self.answered),
        )


def _columns(table: ArmTable | None, names: tuple[str, ...]) -> ArmTable | None:
    if not names:
        return None
    if table is None:
        raise RouterError(f"the router looks at {', '.join(names)} of each arm; nothing was retrieved")
    if table.names == names:
        return table
    for name in names:
        if name.startswith(SAME_AS) and name not in table.names:
            raise RouterError(
                f"the router compares answers with that of arm {name.removeprefix(SAME_AS)!r}, which was not "
                "asked: ask all arms that it was fitted on"
            )
    return ArmTable(names, table.values[:, :, positions(table.names, names)])


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a saved router.

    Attributes:
        format: Version of the file.
        kind: Of the router.
        params: What it was built with.
        schema: What it was fitted on.
        blake2b: Digest of the rest of this line and of the arrays that follow.
    """

    format: int
    kind: str
    params: dict[str, Any]
    schema: Schema
    blake2b: str


def read_header(saved: bytes) -> tuple[Header, bytes]:
    """Return what a saved router says of itself, and the bytes of its arrays. Raises RouterError."""
    line, _, arrays = saved.partition(b"\n")
    try:
        return TypeAdapter(Header).validate_json(line), arrays
    except ValidationError:
        raise RouterError(f"{line[:80]!r} does not begin a saved router") from None


class Router(ABC):
    """Scores arms on questions; the highest is the one to ask.

    A subclass says how it is fitted and asked, given features that have the columns of its schema.
    Cells of unknown utility are left out of what it is fitted to. Randomness comes from a `seed` parameter.

    Attributes:
        kind: Name in the catalogue of routers.
        stage: How far a question must have come before it can be asked.
        schema: What it was fitted on; None before.
    """

    kind: ClassVar[str]
    stage: Stage = Stage.QUESTION
    schema: Schema | None = None

    def fit(self, labels: RoutingDataset) -> Self:
        """Fit to labels, anew, and return itself.

        Raises:
            RouterError: The labels stop before its stage, and it is as it was; or it cannot be fitted to
                them, and it is not fitted any more.
        """
        schema = Schema.of(labels.features, self.stage)
        self.schema = None  # what was fitted before may be half replaced when a fit fails
        self._fit(replace(labels, features=schema.conform(labels.features)))
        self.schema = schema
        return self

    def scores(self, features: Features) -> Floats:
        """Return a finite score of each arm on each question, shape (n_questions, n_arms).

        Raises:
            RouterError: It was not fitted, or an arm or a column is unknown to it or missing.
        """
        scores = self._scores(self._fitted.conform(features))
        if not np.isfinite(scores).all():
            raise RouterError(f"router {self.kind!r} gave a score that is not finite")
        return scores

    def save(self) -> bytes:
        """Return the fitted router: a line that describes it and its digest, and its arrays."""
        schema = self._fitted
        arrays = save_arrays({name: np.asarray(value, order="C") for name, value in self._state().items()})
        return json.dumps(asdict(self._header(schema, arrays))).encode() + b"\n" + arrays

    def load(self, saved: bytes) -> Self:
        """Take the state of a router of the same kind and parameters, and return itself.

        Raises:
            RouterError: The bytes are damaged, or of another kind, other parameters or another version, and
                it is as it was; or the arrays do not fit, and it is not fitted any more.
        """
        told, arrays = read_header(saved)
        mine = self._header(told.schema, arrays)
        for key in ("format", "kind", "params", "blake2b"):
            if (found := getattr(told, key)) != getattr(mine, key):
                raise RouterError(
                    f"the saved router is another or damaged: {key} is {found!r}, not {getattr(mine, key)!r}"
                )
        self.schema = None
        try:
            self._restore(told.schema, load_arrays(arrays))
        except (SafetensorError, KeyError, ValueError) as error:
            raise RouterError(f"the arrays of router {self.kind!r} cannot be read: {error}") from error
        self.schema = told.schema
        return self

    @property
    def _fitted(self) -> Schema:
        if self.schema is None:
            raise RouterError(f"router {self.kind!r} was not fitted yet")
        return self.schema

    def _header(self, schema: Schema, arrays: bytes) -> "Header":
        # through JSON, so that a tuple among the parameters equals what is read back
        params = json.loads(json.dumps(self.params))
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([FORMAT, self.kind, params, asdict(schema)]).encode() + b"\n")
        digest.update(arrays)
        return Header(FORMAT, self.kind, params, schema, digest.hexdigest())

    @property
    @abstractmethod
    def params(self) -> Mapping[str, Any]:
        """The parameters that it was built with, as JSON takes them; `kind` and these build it again."""

    @abstractmethod
    def _fit(self, labels: RoutingDataset) -> None: ...

    @abstractmethod
    def _scores(self, features: Features) -> Floats: ...

    @abstractmethod
    def _state(self) -> State: ...

    @abstractmethod
    def _restore(self, schema: Schema, state: State) -> None: ...


class Parameters(BaseModel):
    """What a router is built with, as JSON takes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Strengths = Annotated[list[Annotated[float, Field(gt=0.0)]], Field(min_length=1)]
"""Weights of squared coefficients, each above 0."""


class StageParameters(Parameters):
    """Those of a router that can look at what is known of each arm."""

    stage: Literal["question", "retrieved", "answered"] = Field(
        "retrieved", description="How far a question must have come; what is known later is not looked at."
    )
    dims: int = Field(32, ge=0, description="Principal components kept of the question's embedding.")


P = TypeVar("P", bound=Parameters)


class Parametrised(Router, Generic[P]):
    """A router whose arguments are the fields of a model.

    Args:
        params: Fields of `Params`.

    Attributes:
        Params: The model.
        chosen: The parameters.

    Raises:
        RouterError: A parameter that is unknown or out of its range.
    """

    Params: ClassVar[type[Any]]
    __signature__: ClassVar[inspect.Signature]
    chosen: P

    def __init_subclass__(cls) -> None:
        """Show the parameters as those of the class."""
        super().__init_subclass__()
        if hasattr(cls, "Params"):
            cls.__signature__ = inspect.signature(cls.Params)

    def __init__(self, **params: Any) -> None:
        try:
            self.chosen = self.Params(**params)
        except ValidationError as error:
            wrong = error.errors()[0]
            name = ".".join(map(str, wrong["loc"]))
            raise RouterError(f"{self.kind}: {name}: {wrong['msg']}, got {wrong['input']!r}") from None
        if isinstance(self.chosen, StageParameters):
            self.stage = Stage[self.chosen.stage.upper()]

    @property
    def params(self) -> Mapping[str, Any]:
        """All of them, the defaults too."""
        return self.chosen.model_dump()
