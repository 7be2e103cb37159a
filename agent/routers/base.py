"""The contract of a router: it is fitted offline, scores arms on questions, and is frozen while serving.

outcomes, scores, judge, log --utility--> RoutingDataset --fit--> Router --scores--> (n_questions, n_arms)
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from armwise.agent.routers.dataset import (
    SAME_AS,
    ArmTable,
    Features,
    Floats,
    RouterError,
    RoutingDataset,
    Stage,
    positions,
)
from armwise.arms.suggestions import select_names

State = Mapping[str, NDArray[Any]]
"""A fitted router, as named arrays."""

FORMAT = 1
"""Version of the file of a router; other versions are refused."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The arms and the names of the features that a router was fitted on.

    Attributes:
        arms: Arms in the order of the router's outputs.
        names: Names of the features of a question.
        dim: Dimension of the embedding.
        retrieved: Names of the features of an arm after retrieval; empty if unused.
        answered: Names of the features of an arm after answering; empty if unused.
    """

    arms: tuple[str, ...]
    names: tuple[str, ...]
    dim: int
    retrieved: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()

    @classmethod
    def from_features(
        cls, features: Features, stage: Stage, columns: Sequence[str] | None = None
    ) -> "Schema":
        """Return the schema of the features that a router uses.

        Args:
            features: Features of training questions.
            stage: Stage of the router.
            columns: Patterns of the names that it uses; None: all.

        Raises:
            RouterError: The features stop before that stage, or a pattern matches no name.
        """
        if features.stage < stage:
            last, needed = features.stage.name.lower(), stage.name.lower()
            raise RouterError(f"the router needs features of stage {needed}, but they stop at {last}")
        tables = (features.retrieved, features.answered)
        used = [
            table.names if table is not None and stage >= at else ()
            for at, table in zip((Stage.RETRIEVED, Stage.ANSWERED), tables, strict=True)
        ]
        names = [features.names, *used]
        if columns is not None:
            every = [name for group in names for name in group]
            kept = select_names(every, columns, "no feature", RouterError)
            names = [tuple(name for name in group if name in kept) for group in names]
        return cls(features.arms, names[0], features.embedding.shape[1], *names[1:])

    def conform(self, features: Features) -> Features:
        """Return features with exactly these columns, in this order; the order of arms is kept.

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
        return replace(
            features,
            names=self.names,
            question=question,
            retrieved=_columns(features.retrieved, self.retrieved),
            answered=_columns(features.answered, self.answered),
        )


def _columns(table: ArmTable | None, names: tuple[str, ...]) -> ArmTable | None:
    if not names:
        return None
    if table is None:
        raise RouterError(f"the router needs {', '.join(names)} of each arm; nothing was retrieved")
    if table.names == names:
        return table
    for name in names:
        if name.startswith(SAME_AS) and name not in table.names:
            raise RouterError(
                f"the router compares answers with the answer of arm {name.removeprefix(SAME_AS)!r}, which "
                "is missing: give it the answers of all arms that it was fitted on"
            )
    return ArmTable(names, table.values[:, :, positions(table.names, names)])


@dataclass(frozen=True, slots=True)
class RouterHeader:
    """The first line of a saved router.

    Attributes:
        format: Version of the file.
        kind: Kind of the router.
        params: Arguments of its class.
        schema: Schema of the features that it was fitted on.
        blake2b: Digest of the rest of this line and of the arrays that follow.
    """

    format: int
    kind: str
    params: dict[str, Any]
    schema: Schema
    blake2b: str


def read_header(saved: bytes) -> tuple[RouterHeader, bytes]:
    """Return the header of a saved router, and the bytes of its arrays. Raises RouterError."""
    line, _, arrays = saved.partition(b"\n")
    try:
        return TypeAdapter(RouterHeader).validate_json(line), arrays
    except ValidationError:
        raise RouterError(f"{line[:80]!r} does not begin a saved router") from None


class Router(ABC):
    """Scores arms on questions; the best-scored arm answers.

    A subclass implements `_fit` and `_scores` on features that have exactly the columns of its schema, and
    `_state` and `_restore`. It leaves cells of unknown utility out of the fit, and the same labels give the
    same router.

    Attributes:
        kind: Name in the catalogue of routers.
        example: Parameters of a small router of this kind, quick to fit, for the reference and for the tests
            of every kind.
        reads_question: Whether its scores depend on the question.
        reads_fit: Whether it reads how well a question fits the sources: `features.similarity`.
        stage: The stage of the features that it needs.
        libraries: Modules beyond `armwise[serve]` that it needs, torch apart.
        columns: Patterns of the named features that it uses; None: all.
        schema: Schema of the features that it was fitted on, once it is fitted.
    """

    kind: ClassVar[str]
    example: ClassVar[Mapping[str, Any]] = {}
    reads_question: ClassVar[bool] = True
    reads_fit: bool = False
    stage: Stage = Stage.QUESTION
    libraries: tuple[str, ...] = ()
    columns: Sequence[str] | None = None
    schema: Schema | None = None

    def fit(self, labels: RoutingDataset) -> Self:
        """Fit to labels, replacing any earlier fit, and return itself.

        Raises:
            RouterError: The labels lack the features of its stage, which leaves it unchanged; or they cannot
                be fitted, which leaves it unfitted.
        """
        schema = Schema.from_features(labels.features, self.stage, self.columns)
        self.schema = None  # a failed fit may leave half of an earlier one
        self._fit(replace(labels, features=schema.conform(labels.features)))
        self.schema = schema
        return self

    def scores(self, features: Features) -> Floats:
        """Return a finite score of each arm on each question, shape (n_questions, n_arms).

        Raises:
            RouterError: The router is unfitted, or an arm or a column is unknown or missing.
        """
        scores = self._scores(self._fitted.conform(features))
        if not np.isfinite(scores).all():
            raise RouterError(f"router {self.kind!r} gave a score that is not finite")
        return scores

    def save(self) -> bytes:
        """Return the fitted router: its header on one line, then its arrays."""
        from safetensors.numpy import save as save_arrays  # imported here, as evaluations do without

        schema = self._fitted
        arrays = save_arrays({name: np.asarray(value, order="C") for name, value in self._state().items()})
        return json.dumps(asdict(self._header(schema, arrays))).encode() + b"\n" + arrays

    def load(self, saved: bytes) -> Self:
        """Take over the state of a router of the same kind and parameters, and return itself.

        Raises:
            RouterError: The bytes are damaged, or have another kind, other parameters or another version,
                which leaves it unchanged; or the arrays do not fit, which leaves it unfitted.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load as load_arrays

        header, arrays = read_header(saved)
        expected = self._header(header.schema, arrays)
        for key in ("format", "kind", "params", "blake2b"):
            if (value := getattr(header, key)) != (expected_value := getattr(expected, key)):
                raise RouterError(
                    f"the saved router is another or damaged: {key} is {value!r}, not {expected_value!r}"
                )
        self.schema = None
        try:
            self._restore(header.schema, load_arrays(arrays))
        except (SafetensorError, KeyError, ValueError) as error:
            raise RouterError(f"the arrays of router {self.kind!r} cannot be read: {error}") from error
        self.schema = header.schema
        return self

    @property
    def _fitted(self) -> Schema:
        if self.schema is None:
            raise RouterError(f"router {self.kind!r} was not fitted yet")
        return self.schema

    def _header(self, schema: Schema, arrays: bytes) -> "RouterHeader":
        # through JSON, so that a tuple among the parameters equals what is read back
        params = json.loads(json.dumps(self.params))
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([FORMAT, self.kind, params, asdict(schema)]).encode() + b"\n")
        digest.update(arrays)
        return RouterHeader(FORMAT, self.kind, params, schema, digest.hexdigest())

    @property
    @abstractmethod
    def params(self) -> Mapping[str, Any]:
        """The arguments of its class, as JSON; together with `kind` they rebuild it."""

    @abstractmethod
    def _fit(self, labels: RoutingDataset) -> None: ...

    @abstractmethod
    def _scores(self, features: Features) -> Floats: ...

    @abstractmethod
    def _state(self) -> State: ...

    @abstractmethod
    def _restore(self, schema: Schema, state: State) -> None: ...


class Parameters(BaseModel):
    """The parameters of a router, as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class StageParameters(Parameters):
    """The parameters of a router that can use features of arms."""

    stage: Literal["question", "retrieved", "answered"] = Field(
        "retrieved", description="Latest stage whose features the router uses."
    )
    dims: int = Field(
        32, ge=0, description="Number of principal components kept from the question's embedding."
    )
    columns: Annotated[list[str], Field(min_length=1)] | None = Field(
        None,
        description="Names of the features to use, with wildcards. Null uses all.",
    )


class IdentityParameters(StageParameters):
    """The parameters of a router whose rows describe an arm each."""

    identity: bool = Field(True, description="Whether the arm itself is a (one-hot) feature.")


P = TypeVar("P", bound=Parameters)


class Parametrised(Router, Generic[P]):
    """A router whose parameters are the fields of a pydantic model.

    Args:
        params: Fields of `Params`.

    Attributes:
        Params: The model.
        chosen: The parameters.

    Raises:
        RouterError: A parameter is unknown or out of its range.
    """

    Params: ClassVar[type[Any]]
    chosen: P

    def __init__(self, **params: Any) -> None:
        try:
            self.chosen = self.Params(**params)
        except ValidationError as error:
            wrong = error.errors()[0]
            name = ".".join(map(str, wrong["loc"]))
            raise RouterError(f"{self.kind}: {name}: {wrong['msg']}, got {wrong['input']!r}") from None
        if isinstance(self.chosen, StageParameters):
            self.stage = Stage[self.chosen.stage.upper()]
            self.columns = self.chosen.columns

    @property
    def params(self) -> Mapping[str, Any]:
        """All parameters, including defaults."""
        return self.chosen.model_dump()
