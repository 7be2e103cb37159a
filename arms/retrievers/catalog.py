"""From the name of an arm in the configuration to the arm itself.

An arm is data: a name, a kind, parameters. `KINDS` has every `Kind` that a module of this package defines,
and those that installed packages add by entry points of the group `armwise.arms`. A class of the user's own
is given by its import path, `package.module:Class`, and built as `Class(name=name, **params)`; its class
attribute `backbones` names the backbones it needs, `light = True` says that it may search beside HTTP, and
`filters = True` that it finds only what a query permits.
"""

import hashlib
import importlib
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import override

from armwise.arms.base import Arm, ArmError, Progress
from armwise.arms.catalog import Catalogue, present_name
from armwise.arms.llm import UNPROMPTED, Bound
from armwise.arms.models import is_below
from armwise.arms.retrievers.collection import EngineArm, EngineParams, NetworkParams
from armwise.arms.retrievers.ingest import IngestReport, current_version, damage_of, fill_arm
from armwise.arms.retrievers.kind import (
    EXTERNAL,
    NONE,
    ArmSpec,
    ExternalParams,
    Kind,
    ReadVersion,
    Resources,
    Trust,
)
from armwise.arms.retrievers.priced import PricedArm
from armwise.arms.retrievers.versioned import VersionedArm
from armwise.arms.suggestions import did_you_mean

MOST_LEVELS = 8
"""Levels of an arm with its members."""

MOST_SEARCHES = 256
"""Searches of an arm and its members for one question, where each of them searches once."""

FILL_TIMEOUT_S = 600.0
"""Seconds that one batch may take when a collection is filled: indexes grow with it."""


class ArmSpecError(ValueError):
    """The description of an arm is wrong; the message says what would be right."""


class OwnParams(BaseModel):
    """Parameters of a class of the user's own."""

    model_config = ConfigDict(extra="allow", frozen=True)


GROUP = "armwise.arms"
"""Group of the entry points by which packages add kinds of arms: each is a `Kind`, or the class of an arm."""


class KindCatalogue(Catalogue[Kind[Any]]):
    """The kinds of arms: every `Kind` of a module, and what installed packages register."""

    @override
    def defined(self, module: ModuleType) -> Iterator[tuple[str, Kind[Any]]]:
        for value in vars(module).values():
            if isinstance(value, Kind):
                yield value.name, value

    @override
    def accepted(self, kind: str, registered: object, path: str) -> Kind[Any]:
        if not isinstance(registered, Kind):
            return _kind_of_class(kind, registered)
        if registered.name != kind:
            raise ArmSpecError(f"kind {kind!r}: {path} is a kind named {registered.name!r}")
        return registered


PACKAGES = ("armwise.arms.retrievers", "armwise.arms.engines", "armwise.arms.more")
"""Where kinds are defined: those of the core, and those of the wings."""

KINDS = KindCatalogue(PACKAGES, GROUP, "kind", ArmSpecError, folders=True)
"""The kinds of arms by name; `KINDS.own` has those of `PACKAGES`."""


def validate_specs(
    specs: Mapping[str, ArmSpec], backbones: Collection[str], corpora: Collection[str] = ()
) -> None:
    """Check every arm without building it.

    Args:
        specs: The arms by name.
        backbones: Names of the backbones.
        corpora: Names of the corpora; empty for one without a name.

    Raises:
        ArmSpecError: A kind, parameter, backbone, corpus or member is wrong, an arm is a member of itself, or
            its members are nested too deeply or search too often.
    """
    for name, spec in specs.items():
        kind, params = described(name, spec)
        _check_corpus(name, spec, kind, corpora)
        if spec.usd and spec.kind in (NONE.name, EXTERNAL.name):
            hint = "" if spec.kind == NONE.name else "; what it is about goes to params.usd"
            raise ArmSpecError(
                f"arm {name!r}: kind {spec.kind!r} searches nothing: usd has no place there{hint}"
            )
        for backbone in kind.backbones(params):
            if backbone not in backbones:
                raise ArmSpecError(
                    f"arm {name!r}: unknown backbone {backbone!r}{did_you_mean(backbone, backbones)}"
                )
        for member in kind.members(params):
            if member not in specs:
                raise ArmSpecError(f"arm {name!r}: unknown arm {member!r}{did_you_mean(member, specs)}")
    sizes: dict[str, _Size] = {}
    for name in specs:
        _size_of(name, specs, (), sizes)


def _check_corpus(name: str, spec: ArmSpec, kind: Kind[Any], corpora: Collection[str]) -> None:
    """Refuse an arm that names no corpus where it has to, or one that is not there. Raises ArmSpecError."""
    if spec.corpus is None:
        if kind.searches_corpus and len(corpora) > 1:
            there = ", ".join(corpora)
            raise ArmSpecError(
                f"arm {name!r}: corpus is missing: which one does it search? `corpora` has {there}"
            )
    elif kind.name in KINDS.own and not kind.searches_corpus and not issubclass(kind.params, EngineParams):
        what = "searches its members" if kind.members(described(name, spec)[1]) else "searches no corpus"
        raise ArmSpecError(f"arm {name!r}: kind {spec.kind!r} {what}: corpus has no place there")
    elif spec.corpus not in corpora:
        hint = did_you_mean(spec.corpus, corpora) if corpora else "; there is one corpus, without `corpora`"
        raise ArmSpecError(f"arm {name!r}: unknown corpus {spec.corpus!r}{hint}")


def corpora_of(name: str, specs: Mapping[str, ArmSpec]) -> frozenset[str] | None:
    """Return the names of the corpora that an arm and its members search; None where some of it is another.

    >>> specs = {"d": ArmSpec(kind="bm25", corpus="docs"), "t": ArmSpec(kind="bm25", corpus="tickets")}
    >>> sorted(corpora_of("f", {**specs, "f": ArmSpec(kind="rrf", params={"arms": ["d", "t"]})}))
    ['docs', 'tickets']
    >>> corpora_of("m", {"m": ArmSpec(kind="mcp", params={"url": "https://a.example", "tool": "find"})})
    """
    corpora: set[str] = set()
    for part, spec in closure(name, specs).items():
        kind, params = described(part, spec)
        if spec.corpus is not None:
            corpora.add(spec.corpus)
        elif spec.kind not in (NONE.name, EXTERNAL.name) and not kind.members(params):
            return None
    return frozenset(corpora)


def brings_code(spec: ArmSpec, trust: Trust) -> bool:
    """Return whether an arm brings in code of others, and the configuration file has no such arm.

    Nothing is imported.
    """
    outside = ":" in spec.kind or (spec.kind in KINDS and spec.kind not in KINDS.own)
    return outside and _stored(spec) not in [_stored(trusted) for trusted in trust.arms]


def check_new(specs: Mapping[str, ArmSpec], trust: Trust, models: Collection[str], home: Path) -> None:
    """Refuse arms from outside of the configuration file that bring in what it does not name.

    An arm that the file describes in the same way passes. Nothing is imported for another one.

    Args:
        specs: The arms.
        trust: The arms of the file, and what others may reach.
        models: Those of the backbones.
        home: Folder of the service; models and trained routers below it can be named.

    Raises:
        ArmSpecError: A class, model, host or variable is not named in the file, or a parameter is wrong.
    """
    file_specs = [_stored(spec) for spec in trust.arms]
    named_models = {*models, *trust.new_arms.models}
    for name, spec in (("of the file", spec) for spec in trust.arms):
        kind, params = described(name, spec)
        named_models |= {*kind.models(params)}
    for name, spec in specs.items():
        if _stored(spec) in file_specs:
            continue
        if brings_code(spec, trust):
            raise ArmSpecError(
                f"arm {name!r}: {spec.kind!r} is code of your own; only an arm of the configuration file can "
                "bring it in, with the parameters that it has there"
            )
        kind, params = described(name, spec)
        defaults = {field.default for field in kind.params.model_fields.values() if field.annotation is str}
        for model in kind.models(params):
            if model not in named_models | defaults and not is_below(model, home):
                raise ArmSpecError(
                    f"arm {name!r}: model {model!r} is not named in the configuration file: "
                    "`new_arms.models` can name it"
                )
        try:
            kind.check_reach(params, trust.new_arms)
        except ArmError as error:
            raise ArmSpecError(f"arm {name!r}: {error}") from None


def _stored(spec: ArmSpec) -> tuple[str, Any]:
    """Return kind and parameters as the log keeps them."""
    return spec.kind, spec.model_dump(mode="json")["params"]


def prepare(
    resources: Resources, names: Iterable[str] | None = None, progress: Progress | None = None
) -> None:
    """Build the missing indexes of arms.

    Args:
        resources: The resources of the arms.
        names: The arms, whose members are prepared too; None for all.
        progress: Progress callback.

    Raises:
        ArmSpecError: There is no such arm, or one is described wrongly.
        ModelNotFoundError: The model of a backbone cannot be found.
    """
    validate_specs(resources.specs, resources.backbones, resources.corpus.names)
    parts: dict[str, ArmSpec] = {}
    for name in resources.specs if names is None else names:
        if name not in parts:
            parts |= closure(name, resources.specs)
    for name, spec in parts.items():
        kind, params = described(name, spec)
        kind.prepare(params, resources.of(spec), progress)


def fill(name: str, resources: Resources, progress: Progress | None = None) -> IngestReport:
    """Put the corpus into the collection of a search engine that an arm searches.

    Args:
        name: The arm.
        resources: The resources of the arms.
        progress: Progress callback.

    Raises:
        ArmSpecError: There is no such arm, or it has no collection.
        ArmError: The collection holds something else, or the engine fails.
        ModelNotFoundError: The model of the backbone cannot be found.
    """
    spec = _spec(name, resources.specs)
    params = described(name, spec)[1]
    if not isinstance(params, EngineParams):
        kinds = ", ".join(name for name, kind in KINDS.own.items() if issubclass(kind.params, EngineParams))
        raise ArmSpecError(f"arm {name!r} of kind {spec.kind!r} has no collection: its kind would be {kinds}")
    validate_specs({name: spec}, resources.backbones, resources.corpus.names)
    if isinstance(params, NetworkParams):
        spec = spec.model_copy(update={"params": {**spec.params, "timeout_s": FILL_TIMEOUT_S}})
    arm_resources = resources.of(spec)
    if len(arm_resources.corpus.parts) > 1:
        raise ArmSpecError(
            f"arm {name!r} names no corpus: which one is put into its collection? `corpora` has "
            f"{', '.join(resources.corpus.names)}"
        )
    return fill_arm(_engine_arm(name, spec, resources), arm_resources, progress)


def fill_damaged(resources: Resources, progress: Progress | None = None) -> None:
    """Fill again the collections in folders of this machine of which a file is missing or has changed.

    Raises as `fill`.
    """
    for name in resources.specs:
        if damage(name, resources):
            fill(name, resources, progress)


def damage(name: str, resources: Resources) -> list[str]:
    """Return which files of the collection of an arm have changed; empty where it is in no folder.

    Raises as `ingested`.
    """
    params = described(name, _spec(name, resources.specs))[1]
    if not isinstance(params, EngineParams) or isinstance(params, NetworkParams):
        return []
    return damage_of(_engine_arm(name, resources.specs[name], resources))


def ingested(name: str, resources: Resources) -> tuple[str, bool] | None:
    """Return the version of the collection that an arm searches, and whether it is that of the corpus.

    None for an arm without a collection, and for one that names none of several corpora: others fill it. The
    version is empty where nothing was ingested.

    Raises:
        ArmSpecError: There is no such arm.
        ArmError: The engine cannot be asked.
    """
    arm_resources = resources.of(_spec(name, resources.specs))
    if (
        not isinstance(described(name, arm_resources.specs[name])[1], EngineParams)
        or len(arm_resources.corpus.parts) > 1
    ):
        return None
    arm = _engine_arm(name, arm_resources.specs[name], resources)
    return arm.version, arm.version == current_version(arm, arm_resources)


def _engine_arm(name: str, spec: ArmSpec, resources: Resources) -> EngineArm:
    """Build an arm over a collection to fill or to examine it, which costs no search."""
    free = {**resources.specs, name: spec.model_copy(update={"usd": 0.0})}
    return cast(EngineArm, build_arm(name, replace(resources, specs=free)))


def build_arm(name: str, resources: Resources) -> Arm:
    """Build an arm from its index.

    Raises:
        ArmSpecError: There is no such arm, or the user's own class is not an arm.
        IndexMismatchError: Its index is missing: call `prepare` first.
    """

    @cache  # shared members are built once
    def build(name: str) -> Arm:
        spec = _spec(name, resources.specs)
        kind, params = described(name, spec)
        arm: Arm = kind.build(name, params, resources.of(spec), build)
        return PricedArm(arm, spec.usd) if spec.usd else arm

    return build(name)


def closure(name: str, specs: Mapping[str, ArmSpec]) -> dict[str, ArmSpec]:
    """Return an arm and all of its members, by name. Raises ArmSpecError.

    >>> specs = {"d": ArmSpec(kind="bm25"), "b": ArmSpec(kind="bm25"), "e": ArmSpec(kind="none")}
    >>> sorted(closure("f", {**specs, "f": ArmSpec(kind="rrf", params={"arms": ["b", "d"]})}))
    ['b', 'd', 'f']
    """
    parts: dict[str, ArmSpec] = {}
    waiting = deque([name])
    while waiting:
        if (part := waiting.popleft()) not in parts:
            parts[part] = _spec(part, specs)
            kind, params = described(part, parts[part])
            waiting += kind.members(params)
    return parts


def backbones_of(name: str, specs: Mapping[str, ArmSpec]) -> frozenset[str]:
    """Return the backbones of an arm and its members. Raises ArmSpecError.

    >>> specs = {"d": ArmSpec(kind="dense", params={"backbone": "minilm"}), "b": ArmSpec(kind="bm25")}
    >>> backbones_of("f", {**specs, "f": ArmSpec(kind="rrf", params={"arms": ["b", "d"]})})
    frozenset({'minilm'})
    """
    parts = (described(*part) for part in closure(name, specs).items())
    return frozenset[str]().union(*(kind.backbones(params) for kind, params in parts))


def embeddings_of(name: str, specs: Mapping[str, ArmSpec]) -> frozenset[str]:
    """Return the backbones whose embeddings a query must have for an arm and its members.

    >>> embeddings_of("d", {"d": ArmSpec(kind="dense", params={"backbone": "minilm"})})
    frozenset({'minilm'})
    """
    parts = (described(*part) for part in closure(name, specs).items())
    return frozenset[str]().union(*((kind.embeds or kind.backbones)(params) for kind, params in parts))


def embeddings_of_actions(specs: Mapping[str, ArmSpec]) -> frozenset[str]:
    """Return the backbones whose embeddings the queries of all arms must have. Raises ArmSpecError."""
    actions = (name for name, spec in specs.items() if spec.action)
    return frozenset[str]().union(*(embeddings_of(name, specs) for name in actions))


def embedded_by(name: str, specs: Mapping[str, ArmSpec]) -> frozenset[str]:
    """Return the backbones with which an arm or a member embeds texts of its own. Raises ArmSpecError.

    >>> specs = {"d": ArmSpec(kind="dense", params={"backbone": "minilm"})}
    >>> embedded_by("m", {**specs, "m": ArmSpec(kind="multistep", params={"arm": "d"})})
    frozenset({'minilm'})
    """
    parts = closure(name, specs).items()
    writers = [part for part, spec in parts if described(part, spec)[0].embeds_texts]
    return frozenset[str]().union(*(embeddings_of(part, specs) for part in writers))


def is_light(name: str, specs: Mapping[str, ArmSpec]) -> bool:
    """Return whether an arm and all of its members are light. Raises ArmSpecError.

    >>> specs = {"b": ArmSpec(kind="bm25"), "m": ArmSpec(kind="multistep", params={"arm": "b"})}
    >>> fused = ArmSpec(kind="rrf", params={"arms": ["b", "m"]})
    >>> is_light("b", specs), is_light("f", {**specs, "f": fused})
    (True, False)
    """
    return all(described(*part)[0].light for part in closure(name, specs).items())


def filters(name: str, specs: Mapping[str, ArmSpec]) -> bool:
    """Return whether an arm and all of its members find only what a query permits. Raises ArmSpecError.

    >>> server = ArmSpec(kind="mcp", params={"url": "https://a.example", "tool": "find"})
    >>> specs = {"b": ArmSpec(kind="bm25"), "m": server}
    >>> fused = ArmSpec(kind="rrf", params={"arms": ["b", "m"]})
    >>> filters("b", specs), filters("f", {**specs, "f": fused})
    (True, False)
    """
    return all(described(*part)[0].filters for part in closure(name, specs).items())


def search_bound(name: str, specs: Mapping[str, ArmSpec]) -> Bound:
    """Return the most that a search of an arm spends. Raises ArmSpecError.

    A class of the user's own, or a search elsewhere, is taken to prompt no model of this service.

    >>> specs = {"b": ArmSpec(kind="bm25", usd=0.5), "v": ArmSpec(kind="multistep", params={"arm": "b"})}
    >>> search_bound("b", specs)
    Bound(questions=0, read=0, written=0, search_usd=0.5)
    >>> fused = ArmSpec(kind="rrf", params={"arms": ["b", "v"]})
    >>> search_bound("f", {**specs, "f": fused}).written
    32
    """

    @cache  # a member of several arms is described once
    def bound(name: str) -> Bound:
        spec = _spec(name, specs)
        kind, params = described(name, spec)
        if kind.bound is None:
            most = sum(map(bound, kind.members(params)), UNPROMPTED)
        else:
            most = kind.bound(params, bound)
        return most + Bound(search_usd=spec.usd)

    return bound(name)


def expected_usd(name: str, specs: Mapping[str, ArmSpec]) -> float:
    """Return the dollars that searches of an arm and its members are expected to cost. Raises ArmSpecError.

    >>> specs = {"b": ArmSpec(kind="bm25", usd=0.5), "v": ArmSpec(kind="expand", params={"arm": "b"})}
    >>> expected_usd("b", specs), expected_usd("v", specs)
    (0.5, 1.0)
    """

    @cache  # a member of several arms is described once
    def expected(name: str) -> float:
        spec = _spec(name, specs)
        kind, params = described(name, spec)
        members = kind.members(params)
        return spec.usd + sum(kind.searches(params, member) * expected(member) for member in members)

    return expected(name)


def versioned(arm: Arm, name: str, resources: Resources) -> VersionedArm:
    """Return an arm with the version of all that it and its members search. Raises ArmSpecError."""
    parts: list[ReadVersion] = []
    for part, spec in closure(name, resources.specs).items():
        kind, params = described(part, spec)
        if kind.version is not None:
            parts.append(kind.version(params, resources.of(spec)))
        elif not kind.is_versioned:
            parts.append(lambda _: None)
    return VersionedArm(arm, parts)


def is_versioned(name: str, specs: Mapping[str, ArmSpec]) -> bool:
    """Return whether the version of all that an arm and its members search can be known.

    >>> server = ArmSpec(kind="mcp", params={"url": "https://a.example", "tool": "find"})
    >>> specs = {"b": ArmSpec(kind="bm25"), "m": server}
    >>> is_versioned("b", specs), is_versioned("m", specs)
    (True, False)
    """
    return all(described(*part)[0].is_versioned for part in closure(name, specs).items())


def drawing(name: str, specs: Mapping[str, ArmSpec]) -> str | None:
    """Return the first part of an arm that may find something else each time; None for an arm that repeats.

    >>> specs = {"b": ArmSpec(kind="bm25"), "p": ArmSpec(kind="plackett_luce", params={"arm": "b"})}
    >>> fused = ArmSpec(kind="rrf", params={"arms": ["b", "p"]})
    >>> drawing("b", specs), drawing("f", {**specs, "f": fused})
    (None, 'p')
    """
    return next((part for part, spec in closure(name, specs).items() if described(part, spec)[0].draws), None)


def search_digest(name: str, specs: Mapping[str, ArmSpec]) -> str:
    """Return a hash of what an arm searches and how: the same for pipelines that only write otherwise.

    An arm that draws, and one of a user's own class, may depend on its name.

    >>> specs = {"a": ArmSpec(kind="bm25"), "b": ArmSpec(kind="bm25", params={"k1": 1.2})}
    >>> search_digest("a", specs) == search_digest("b", specs)
    True
    """
    parts = closure(name, specs)
    params = {part: described(part, spec)[1].model_dump(mode="json") for part, spec in parts.items()}
    # an arm without a corpus is written as before there were several
    facts = [
        (part, spec.kind, params[part], *([] if spec.corpus is None else [spec.corpus]))
        for part, spec in parts.items()
    ]
    named = any(spec.kind not in KINDS.own for spec in parts.values()) or drawing(name, specs) is not None
    (_, *first), *others = facts
    document = orjson.dumps([name if named else "", first, sorted(others)], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(document, digest_size=16).hexdigest()


def arm_features(name: str, spec: ArmSpec, usd: float = 0.0) -> dict[str, float]:
    """Return the features of an arm, so that a policy generalises to new arms.

    `steps` is the expected cost of an arm without data, and so is `usd` where its searches have a price.

    Args:
        name: The arm.
        spec: Description of the arm.
        usd: Dollars that a search is expected to cost, of `expected_usd`.

    >>> arm_features("rrf", ArmSpec(kind="rrf", params={"arms": ["bm25", "minilm"]}))
    {'arm=rrf': 1.0, 'kind=rrf': 1.0, 'member=bm25': 1.0, 'member=minilm': 1.0, 'steps': 1.0}

    Raises:
        ArmSpecError: The kind or a parameter is wrong.
    """
    kind, params = described(name, spec)
    indicators = [f"arm={name}", f"kind={spec.kind}"]
    indicators += [f"backbone={backbone}" for backbone in kind.backbones(params)]
    indicators += [] if spec.corpus is None else [f"corpus={spec.corpus}"]
    # logarithms: some parameters are hundreds, others shares
    numbers = {f"{spec.kind}.{name}": math.log1p(getattr(params, name)) for name in kind.features}
    indicators += [f"member={member}" for member in kind.members(params)]
    writing = dict(spec.answering.features())
    # of a thousand searches: one costs a thousandth of a dollar or a few
    if isinstance(params, ExternalParams):
        usd, numbers = params.usd, params.described()
    price = {"usd": math.log1p(1000.0 * usd)} if usd else {}
    return {**dict.fromkeys(indicators, 1.0), **numbers, **writing, "steps": kind.steps(params), **price}


def same(one: ArmSpec, other: ArmSpec) -> bool:
    """Return whether two descriptions are the same pipeline on any host, at any price. Raises ArmSpecError.

    >>> same(ArmSpec(kind="bm25"), ArmSpec(kind="bm25", params={"k1": 1.2}))
    True
    """
    if (one.kind, one.corpus, one.answering) != (other.kind, other.corpus, other.answering):
        return False
    return bool(described("one", one)[1] == described("other", other)[1])


def _spec(name: str, specs: Mapping[str, ArmSpec]) -> ArmSpec:
    if name not in specs:
        raise ArmSpecError(f"unknown arm {name!r}{did_you_mean(name, specs)}")
    return specs[name]


def described(name: str, spec: ArmSpec) -> tuple[Kind[Any], Any]:
    """Return the kind of an arm and its validated parameters. Raises ArmSpecError."""
    kind = _kind(name, spec.kind)
    try:
        return kind, kind.params.model_validate(spec.params)
    except ValidationError as error:
        problems = "; ".join(_describe(problem, kind.params) for problem in error.errors())
        raise ArmSpecError(f"arm {name!r} of kind {spec.kind!r}: {problems}") from error


def _describe(problem: Mapping[str, Any], params: type[BaseModel]) -> str:
    """Describe a validation error in one line."""
    where = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"unknown parameter {where!r}{did_you_mean(where, params.model_fields)}"
    given = repr(problem["input"])
    given = given if len(given) <= 200 else f"{given[:200]}..."
    return f"{where}: {problem['msg'].removeprefix('Value error, ')}, got {given}"


class _Size(NamedTuple):
    """Levels of an arm with its members, 1 without any, and the searches that one question begins."""

    levels: int
    searches: int


def _size_of(
    name: str, specs: Mapping[str, ArmSpec], path: tuple[str, ...], sizes: dict[str, _Size]
) -> _Size:
    """Return the size of an arm. Raises ArmSpecError where it is a member of itself, or too large."""
    if name in path:
        raise ArmSpecError(f"arm {name!r} is a member of itself: {' -> '.join((*path, name))}")
    if name in sizes:
        return sizes[name]
    if len(path) >= MOST_LEVELS:  # also the bound of this recursion
        raise ArmSpecError(
            f"arm {path[0]!r} has members in more than {MOST_LEVELS} levels, which is the most"
        )
    kind, params = described(name, specs[name])
    parts = [_size_of(member, specs, (*path, name), sizes) for member in kind.members(params)]
    size = _Size(
        1 + max((part.levels for part in parts), default=0), 1 + sum(part.searches for part in parts)
    )
    if size.levels > MOST_LEVELS:
        raise ArmSpecError(
            f"arm {name!r} has members in {size.levels} levels: at most {MOST_LEVELS} levels fit"
        )
    if size.searches > MOST_SEARCHES:
        raise ArmSpecError(
            f"arm {name!r} would search {size.searches:,} times for a question, members of members included: "
            f"at most {MOST_SEARCHES} times"
        )
    sizes[name] = size
    return size


def _kind(name: str, kind: str) -> Kind[Any]:
    """Return a kind of the catalogue, or that of a class of the user's own. Raises ArmSpecError."""
    kind = present_name(kind)
    module, colon, attribute = kind.partition(":")
    if not colon and kind not in KINDS:
        raise ArmSpecError(
            f"arm {name!r}: unknown kind {kind!r}{did_you_mean(kind, KINDS)}; "
            "a class of your own is written package.module:Class"
        )
    try:
        return _kind_of_class(kind, _imported(module, attribute)) if colon else KINDS[kind]
    except ArmSpecError as error:
        raise ArmSpecError(f"arm {name!r}: {error}") from error


def _imported(module: str, attribute: str) -> object:
    """Return what a path of imports names. Raises ArmSpecError."""
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # what an import can raise has no end
        raise ArmSpecError(f"cannot import '{module}:{attribute}': {error!r}") from error


def _kind_of_class(path: str, cls: Any) -> Kind[Any]:
    """Return the kind of the arms of a class. Raises ArmSpecError."""
    if not isinstance(cls, type):
        raise ArmSpecError(f"{path!r} is a {type(cls).__name__}, not a class")
    if not callable(getattr(cls, "search", None)):
        raise ArmSpecError(f"{cls.__name__} is not an arm: it lacks search")
    declared: Any = getattr(cls, "backbones", frozenset())
    if not isinstance(declared, frozenset | set | tuple | list):
        raise ArmSpecError(f"{cls.__name__}.backbones must be names, set on the class")
    traits: dict[str, Any] = {trait: getattr(cls, trait, False) for trait in ("light", "filters")}
    for trait, value in traits.items():
        if not isinstance(value, bool):
            raise ArmSpecError(f"{cls.__name__}.{trait} must be True or False, set on the class")
    needed = tuple(declared)
    return Kind(
        path,
        (cls.__doc__ or "").partition("\n")[0],
        OwnParams,
        lambda name, params, *_: _own_arm(name, cls, params.model_dump()),
        backbones=lambda _: needed,
        light=traits["light"],
        filters=traits["filters"],
    )


def _own_arm(name: str, own_class: type, params: Mapping[str, Any]) -> Arm:
    """Build an arm of a class of the user's own. Raises ArmSpecError."""
    try:
        arm = own_class(name=name, **params)
    except TypeError as error:
        raise ArmSpecError(f"arm {name!r}: {own_class.__name__} cannot be built: {error}") from error
    lacking = [part for part in ("name", "backbones", "search") if not hasattr(arm, part)]
    if lacking:
        raise ArmSpecError(f"arm {name!r}: {own_class.__name__} is not an arm: it lacks {', '.join(lacking)}")
    return cast(Arm, arm)
