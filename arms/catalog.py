"""From the name of an arm in the configuration to the arm itself.

An arm is data: a name, a kind, parameters. `KINDS` holds what this package can
build, one line a kind; a class of the user's own enters by its import path,
`package.module:Class`, and is built as `Class(name=name, **params)`; the backbones that it
needs stand in its class attribute `backbones`.
"""

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from arms.base import Arm, NoRetrieval
from arms.corpus import Corpus, Progress
from arms.dense import Dense, DenseParams
from arms.embedding import Backbone
from arms.fusion import Fusion, FusionParams
from arms.lexical import BM25, BM25Params
from arms.nearest import nearest

P = TypeVar("P", bound=BaseModel)


class ArmSpecError(ValueError):
    """An arm is described wrongly; the message names the arm and what would be right."""


class ArmSpec(BaseModel):
    """An arm as the configuration describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(description="A kind of the catalogue, or `package.module:Class` of your own.")
    params: dict[str, Any] = Field(default_factory=dict, description="Parameters of that kind.")


class NoParams(BaseModel):
    """There is nothing to set."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OwnParams(BaseModel):
    """Whatever a class of the user's own takes."""

    model_config = ConfigDict(extra="allow", frozen=True)


@dataclass(frozen=True)
class Resources:
    """What arms are built from: all of it, checked.

    Attributes:
        corpus: The passages.
        indexes: The folder in which indexes are kept.
        backbones: Embedding models by name.
        specs: Every arm by name; a fused arm refers to others.
    """

    corpus: Corpus
    indexes: Path
    backbones: Mapping[str, Backbone]
    specs: Mapping[str, ArmSpec]

    def __post_init__(self) -> None:
        validate_specs(self.specs, self.backbones)


def _nothing(*_: object) -> None:
    """Do nothing: the kind has no index."""


def _none(_: BaseModel) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Kind(Generic[P]):
    """How one kind of arm is described and made.

    Attributes:
        params: Its parameters.
        build: Make the arm of a name, from parameters and resources.
        prepare: Build the index it needs where it is missing, and tell the progress.
        backbones: Name the backbones that its parameters refer to.
        members: Name the arms that its parameters refer to.
        steps: Rounds of retrieval to expect.
    """

    params: type[P]
    build: Callable[[str, P, Resources], Arm]
    prepare: Callable[[P, Resources, Progress | None], None] = _nothing
    backbones: Callable[[P], tuple[str, ...]] = _none
    members: Callable[[P], tuple[str, ...]] = _none
    steps: float = 1.0


def _prepare_bm25(params: BM25Params, have: Resources, progress: Progress | None) -> None:
    BM25.prepare(have.corpus, have.indexes, params, progress)


def _build_bm25(name: str, params: BM25Params, have: Resources) -> Arm:
    return BM25.open(name, have.corpus, have.indexes, params)


def _prepare_dense(params: DenseParams, have: Resources, progress: Progress | None) -> None:
    Dense.prepare(have.corpus, have.indexes, params, have.backbones[params.backbone], progress)


def _build_dense(name: str, params: DenseParams, have: Resources) -> Arm:
    return Dense.open(name, have.corpus, have.indexes, params, have.backbones[params.backbone])


def _build_fusion(name: str, params: FusionParams, have: Resources) -> Arm:
    return Fusion(name, [build_arm(member, have) for member in params.arms], params)


KINDS: dict[str, Kind[Any]] = {
    "none": Kind(NoParams, lambda name, _params, _have: NoRetrieval(name), steps=0.0),
    "bm25": Kind(BM25Params, _build_bm25, _prepare_bm25),
    "dense": Kind(DenseParams, _build_dense, _prepare_dense, backbones=lambda params: (params.backbone,)),
    "rrf": Kind(FusionParams, _build_fusion, members=lambda params: params.arms),
}
"""Every kind of arm that needs no import path."""


def validate_specs(specs: Mapping[str, ArmSpec], backbones: Collection[str]) -> None:
    """Check that every arm could be built, without building one.

    Raises:
        ArmSpecError: A kind, parameter, backbone or member is wrong, or an arm is a
            member of itself.
    """
    for name, spec in specs.items():
        kind, params = _described(name, spec)
        for backbone in kind.backbones(params):
            if backbone not in backbones:
                raise ArmSpecError(
                    f"arm {name!r}: unknown backbone {backbone!r}{nearest(backbone, backbones)}"
                )
        for member in kind.members(params):
            if member not in specs:
                raise ArmSpecError(f"arm {name!r}: unknown arm {member!r}{nearest(member, specs)}")
    for name in specs:
        _refuse_cycles(name, specs, ())


def prepare(
    resources: Resources, names: Iterable[str] | None = None, progress: Progress | None = None
) -> None:
    """Build every index that the arms need, once each; takes seconds when all of them are there.

    Args:
        resources: What arms are built from.
        names: The arms to prepare, and with them their members; None for all.
        progress: Told what is being built, and how much of it is.

    Raises:
        ArmSpecError: There is no such arm.
        ModelNotFoundError: The model of a backbone is not where its name says.
    """
    for name in resources.specs if names is None else names:
        kind, params = _described(name, _spec(name, resources.specs))
        kind.prepare(params, resources, progress)
        prepare(resources, kind.members(params), progress)


def build_arm(name: str, resources: Resources) -> Arm:
    """Build an arm from its index.

    Raises:
        ArmSpecError: There is no such arm, or the user's own class is no arm.
        IndexMismatchError: Its index is missing: call `prepare` first.
    """
    kind, params = _described(name, _spec(name, resources.specs))
    return kind.build(name, params, resources)


def backbones_of(name: str, specs: Mapping[str, ArmSpec]) -> frozenset[str]:
    """Return the embeddings that a query must carry for an arm and its members. Raises ArmSpecError.

    >>> specs = {"d": ArmSpec(kind="dense", params={"backbone": "minilm"}), "b": ArmSpec(kind="bm25")}
    >>> backbones_of("f", {**specs, "f": ArmSpec(kind="rrf", params={"arms": ["b", "d"]})})
    frozenset({'minilm'})
    """
    kind, params = _described(name, _spec(name, specs))
    return frozenset(kind.backbones(params)).union(*(backbones_of(n, specs) for n in kind.members(params)))


def features(name: str, spec: ArmSpec) -> dict[str, float]:
    """Describe an arm to a policy, so that a new arm starts from what its relatives taught.

    `steps` is what the arm is expected to cost before anything is known of it.

    >>> features("rrf", ArmSpec(kind="rrf", params={"arms": ["bm25", "minilm"]}))
    {'arm=rrf': 1.0, 'kind=rrf': 1.0, 'member=bm25': 1.0, 'member=minilm': 1.0, 'steps': 1.0}

    Raises:
        ArmSpecError: The kind or a parameter is wrong.
    """
    kind, params = _described(name, spec)
    told = [f"arm={name}", f"kind={spec.kind}"]
    told += [f"backbone={backbone}" for backbone in kind.backbones(params)]
    told += [f"member={member}" for member in kind.members(params)]
    return {**dict.fromkeys(told, 1.0), "steps": kind.steps}


def _spec(name: str, specs: Mapping[str, ArmSpec]) -> ArmSpec:
    if name not in specs:
        raise ArmSpecError(f"unknown arm {name!r}{nearest(name, specs)}")
    return specs[name]


def _described(name: str, spec: ArmSpec) -> tuple[Kind[Any], Any]:
    """Return the kind of an arm and its checked parameters. Raises ArmSpecError."""
    kind = KINDS.get(spec.kind) or _own_kind(name, spec.kind)
    try:
        return kind, kind.params.model_validate(spec.params)
    except ValidationError as error:
        told = "; ".join(_told(problem, kind.params) for problem in error.errors())
        raise ArmSpecError(f"arm {name!r} of kind {spec.kind!r}: {told}") from error


def _told(problem: Mapping[str, Any], params: type[BaseModel]) -> str:
    """Say in one line what is wrong with a parameter."""
    where = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"unknown parameter {where!r}{nearest(where, params.model_fields)}"
    return f"{where}: {problem['msg']}, got {problem['input']!r}"


def _refuse_cycles(name: str, specs: Mapping[str, ArmSpec], path: tuple[str, ...]) -> None:
    if name in path:
        raise ArmSpecError(f"arm {name!r} is a member of itself: {' -> '.join((*path, name))}")
    kind, params = _described(name, specs[name])
    for member in kind.members(params):
        _refuse_cycles(member, specs, (*path, name))


def _own_kind(name: str, path: str) -> Kind[Any]:
    """Make a kind of a class of the user's own, which checks its parameters itself. Raises ArmSpecError."""
    module, colon, attribute = path.partition(":")
    if not colon:
        raise ArmSpecError(
            f"arm {name!r}: unknown kind {path!r}{nearest(path, KINDS)}; "
            "a class of your own is written package.module:Class"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ArmSpecError(f"arm {name!r}: cannot import {path!r}: {error}") from error
    if not isinstance(found, type):
        raise ArmSpecError(f"arm {name!r}: {path!r} is a {type(found).__name__}, not a class")
    needed = tuple(getattr(found, "backbones", ()))
    return Kind(
        OwnParams,
        lambda name, params, _: _own_arm(name, found, params.model_dump()),
        backbones=lambda _: needed,
    )


def _own_arm(name: str, own_class: type, params: Mapping[str, Any]) -> Arm:
    """Build an arm of a class of the user's own. Raises ArmSpecError."""
    try:
        arm = own_class(name=name, **params)
    except TypeError as error:
        raise ArmSpecError(f"arm {name!r}: {own_class.__name__} cannot be built: {error}") from error
    lacking = [part for part in ("name", "backbones", "search") if not hasattr(arm, part)]
    if lacking:
        raise ArmSpecError(f"arm {name!r}: {own_class.__name__} is no arm, it lacks: {', '.join(lacking)}")
    return cast(Arm, arm)
