"""From the name of a kind in the configuration to the kind itself.

An arm is data: a name, a kind, parameters. `KINDS` has every `Kind` with a name in a module of this package,
and those that installed packages add by entry points of the group `armwise.arms`. A class of the user's own
is given by its import path, `package.module:Class`: a `Kind`, or a class with a `search`, which is built as
`Class(name=name, **params)`. Such a class may have the attributes `backbones`, the backbones that it needs,
`light = True`, if it may search beside HTTP, and `filters = True`, if it finds only what a query permits.
"""

import importlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import override

from armwise.arms.base import Arm
from armwise.arms.catalog import Catalogue
from armwise.arms.relative_paths import locate_params
from armwise.arms.retrievers.kind import ArmSpec, ExternalParams, Kind, Members, Resources
from armwise.arms.suggestions import did_you_mean


class ArmSpecError(ValueError):
    """The description of an arm is wrong; the message says what would be right."""


class OwnParams(BaseModel):
    """Parameters of a class of the user's own."""

    model_config = ConfigDict(extra="allow", frozen=True)


class OwnArm(Kind[OwnParams]):
    """The arms of a class of the user's own that is no kind."""

    params = OwnParams
    own_class: type
    needed: tuple[str, ...]

    @classmethod
    @override
    def build(cls, name: str, params: OwnParams, have: Resources, member: Members) -> Arm:
        try:
            arm = cls.own_class(name=name, **params.model_dump())
        except TypeError as error:
            raise ArmSpecError(f"arm {name!r}: {cls.__name__} cannot be built: {error}") from error
        lacking = [part for part in ("name", "backbones", "search") if not hasattr(arm, part)]
        if lacking:
            raise ArmSpecError(f"arm {name!r}: {cls.__name__} is not an arm: it lacks {', '.join(lacking)}")
        return cast(Arm, arm)

    @classmethod
    @override
    def members(cls, params: OwnParams) -> tuple[str, ...]:
        return ()

    @classmethod
    @override
    def encoders(cls, params: OwnParams) -> tuple[str, ...]:
        return cls.needed


GROUP = "armwise.arms"
"""Group of the entry points by which packages add kinds of arms: each is the class of an arm."""


class KindCatalogue(Catalogue[type[Kind[Any]]]):
    """The kinds of arms: each `Kind` with a name in a module, and what installed packages register."""

    @override
    def find_kinds(self, module: ModuleType) -> Iterator[tuple[str, type[Kind[Any]]]]:
        for value in vars(module).values():
            is_kind = isinstance(value, type) and issubclass(value, Kind) and value.kind != ""
            if is_kind and value.__module__ == module.__name__:
                yield value.kind, value

    @override
    def accept(self, kind: str, registered: object, path: str) -> type[Kind[Any]]:
        found = _kind_of_class(kind, registered)
        if found.kind not in ("", kind):
            raise ArmSpecError(f"kind {kind!r}: {path} defines a kind named {found.kind!r}")
        return found


PACKAGES = ("armwise.arms.retrievers", "armwise.arms.engines", "armwise.arms.more")
"""Where kinds are defined: those of the core, and those of the wings."""

KINDS = KindCatalogue(PACKAGES, GROUP, "kind", ArmSpecError, folders=True)
"""The kinds of arms by name; `KINDS.own` has those of `PACKAGES`."""


def arm_features(name: str, spec: ArmSpec, usd: float = 0.0) -> dict[str, float]:
    """Return the features of an arm, so that a policy generalises to new arms.

    `steps` is the expected cost of an arm without data, and so is `usd` where its searches have a price.

    Args:
        name: The arm.
        spec: Description of the arm.
        usd: Dollars that a search is expected to cost, of `ArmGraph.estimate_usd`.

    >>> arm_features("rrf", ArmSpec(kind="rrf", params={"arms": ["bm25", "minilm"]}))
    {'arm=rrf': 1.0, 'kind=rrf': 1.0, 'member=bm25': 1.0, 'member=minilm': 1.0, 'steps': 1.0}

    Raises:
        ArmSpecError: The kind or a parameter is wrong.
    """
    kind, params = resolve_kind(name, spec)
    indicators = [f"arm={name}", f"kind={spec.kind}"]
    indicators += [f"backbone={backbone}" for backbone in kind.encoders(params)]
    indicators += [] if spec.corpus is None else [f"corpus={spec.corpus}"]
    # logarithms: some parameters are hundreds, others shares
    numbers = {f"{spec.kind}.{name}": math.log1p(getattr(params, name)) for name in kind.features}
    indicators += [f"member={member}" for member in kind.members(params)]
    writing = dict(spec.answering.features())
    # of a thousand searches: one costs a thousandth of a dollar or a few
    if isinstance(params, ExternalParams):
        usd, numbers = params.usd, params.describe()
    price = {"usd": math.log1p(1000.0 * usd)} if usd else {}
    return {**dict.fromkeys(indicators, 1.0), **numbers, **writing, "steps": kind.steps(params), **price}


def are_equivalent(first: ArmSpec, second: ArmSpec) -> bool:
    """Return whether two descriptions are the same pipeline on any host, at any price. Raises ArmSpecError.

    >>> are_equivalent(ArmSpec(kind="bm25"), ArmSpec(kind="bm25", params={"k1": 1.2}))
    True
    """
    if (first.kind, first.corpus, first.answering) != (second.kind, second.corpus, second.answering):
        return False
    return bool(resolve_kind("first", first)[1] == resolve_kind("second", second)[1])


def resolve_kind(name: str, spec: ArmSpec) -> tuple[type[Kind[Any]], Any]:
    """Return the kind of an arm and its validated parameters. Raises ArmSpecError."""
    try:
        kind = _find_kind(spec.kind)
    except ArmSpecError as error:
        raise ArmSpecError(f"arm {name!r}: {error}") from error
    try:
        return kind, kind.params.model_validate(spec.params)
    except ValidationError as error:
        problems = "; ".join(_describe(problem, kind.params) for problem in error.errors())
        raise ArmSpecError(f"arm {name!r} of kind {spec.kind!r}: {problems}") from error


def locate_arms(arms: Mapping[str, ArmSpec], folder: Path) -> dict[str, ArmSpec]:
    """Return arms with the paths among their parameters made absolute.

    Classes of the user's own read their parameters themselves, and unknown kinds are reported elsewhere.

    Args:
        arms: Descriptions of the arms, by name.
        folder: The folder that relative paths are relative to.
    """
    return {
        name: spec.model_copy(update={"params": locate_params(spec.params, KINDS[spec.kind].params, folder)})
        if spec.params and spec.kind in KINDS
        else spec
        for name, spec in arms.items()
    }


def _describe(problem: Mapping[str, Any], params: type[BaseModel]) -> str:
    """Describe a validation error in one line."""
    where = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"unknown parameter {where!r}{did_you_mean(where, params.model_fields)}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not where:  # about several parameters together; all of them could include a password
        return message
    given = repr(problem["input"])
    given = given if len(given) <= 200 else f"{given[:200]}..."
    return f"{where}: {message}, got {given}"


def _find_kind(kind: str) -> type[Kind[Any]]:
    """Find a kind of the catalogue, or that of a class of the user's own. Raises ArmSpecError."""
    module, colon, attribute = kind.partition(":")
    if colon:
        try:
            own: object = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # what an import can raise has no end
            raise ArmSpecError(f"cannot import {kind!r}: {error!r}") from error
        return _kind_of_class(kind, own)
    if kind not in KINDS:
        raise ArmSpecError(
            f"unknown kind {kind!r}{did_you_mean(kind, KINDS)}; "
            "write a class of your own as package.module:Class"
        )
    return KINDS[kind]


def _kind_of_class(path: str, cls: Any) -> type[Kind[Any]]:
    """Return the kind of the arms of a class. Raises ArmSpecError."""
    if not isinstance(cls, type):
        raise ArmSpecError(f"{path!r} is a {type(cls).__name__}, not a class")
    if issubclass(cls, Kind):
        lacking = [*([] if hasattr(cls, "params") else ["params"]), *sorted(cls.__abstractmethods__)]
        if lacking:
            raise ArmSpecError(f"{cls.__name__} is not a kind of arm: it lacks {', '.join(lacking)}")
        return cls
    if not callable(getattr(cls, "search", None)):
        raise ArmSpecError(f"{cls.__name__} is not an arm: it lacks search")
    declared: Any = getattr(cls, "backbones", frozenset())
    if not isinstance(declared, frozenset | set | tuple | list):
        raise ArmSpecError(f"{cls.__name__}.backbones must be a collection of names, set on the class")
    traits: dict[str, Any] = {trait: getattr(cls, trait, False) for trait in ("light", "filters")}
    for trait, value in traits.items():
        if not isinstance(value, bool):
            raise ArmSpecError(f"{cls.__name__}.{trait} must be True or False, set on the class")
    return type(cls.__name__, (OwnArm,), {"own_class": cls, "needed": tuple(declared), **traits})
