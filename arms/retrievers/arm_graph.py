"""The arms of a configuration and the members that they name, as a graph.

    rrf --> bm25          closure("rrf")    rrf, bm25, minilm
     '----> minilm        backbones("rrf")  those of all three

Most questions about an arm concern its closure: what it searches, costs and needs.
"""

import hashlib
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from armwise.arms import proxies
from armwise.arms.base import ArmBuildError
from armwise.arms.llm import Bound
from armwise.arms.retrievers.catalog import KINDS, ArmSpecError, resolve_kind
from armwise.arms.retrievers.kind import (
    DEFAULT_HOST,
    INGRESS,
    ArmSpec,
    CheckedArms,
    ExternalArm,
    Kind,
    NoRetrieval,
)
from armwise.arms.suggestions import did_you_mean

MOST_LEVELS = 8
"""Largest number of levels of an arm with its members."""

MOST_SEARCHES = 256
"""Largest number of searches of an arm and its members for a question, if each searches once."""


class SourceAwayError(ArmBuildError):
    """The arm searches a corpus that could not be read, or needs a proxy that cannot be used."""


class _Size(NamedTuple):
    """Levels of an arm with its members, 1 without members, and the searches for a question."""

    levels: int
    searches: int


class ArmGraph:
    """Arms by name, and properties that follow from their members.

    It works on descriptions; arms are built elsewhere. The parameters of an arm are validated once, when it
    is first reached: every method raises ArmSpecError if an arm that it reaches is missing or misdescribed.

    Args:
        specs: The arms by name; they are copied.

    Attributes:
        specs: The arms by name.
    """

    def __init__(self, specs: Mapping[str, ArmSpec]) -> None:
        self.specs: Mapping[str, ArmSpec] = dict(specs)
        self._kinds: dict[str, tuple[type[Kind[Any]], Any]] = {}
        self._closures: dict[str, tuple[str, ...]] = {}
        self._sizes: dict[str, _Size] = {}
        self._bounds: dict[str, Bound] = {}
        self._usd: dict[str, float] = {}

    def spec(self, name: str) -> ArmSpec:
        """Return the description of an arm."""
        if name not in self.specs:
            raise ArmSpecError(f"unknown arm {name!r}{did_you_mean(name, self.specs)}")
        return self.specs[name]

    def resolve(self, name: str) -> tuple[type[Kind[Any]], Any]:
        """Return the kind of an arm and its validated parameters."""
        if name not in self._kinds:
            self._kinds[name] = resolve_kind(name, self.spec(name))
        return self._kinds[name]

    def members(self, name: str) -> tuple[str, ...]:
        """Return the arms that an arm names, in its order.

        >>> ArmGraph({"f": ArmSpec(kind="rrf", params={"arms": ["d", "b"]})}).members("f")
        ('d', 'b')
        """
        kind, params = self.resolve(name)
        return kind.members(params)

    def closure(self, *names: str) -> dict[str, ArmSpec]:
        """Return arms and all of their members, by name: each arm before its members.

        >>> specs = {"d": ArmSpec(kind="bm25"), "b": ArmSpec(kind="bm25"), "e": ArmSpec(kind="none")}
        >>> [*ArmGraph({**specs, "f": ArmSpec(kind="rrf", params={"arms": ["b", "d"]})}).closure("f")]
        ['f', 'b', 'd']
        """
        return {part: self.specs[part] for name in names for part in self._closure(name)}

    def _closure(self, name: str) -> tuple[str, ...]:
        if name not in self._closures:
            parts: dict[str, None] = {}
            waiting = deque([name])
            while waiting:
                if (part := waiting.popleft()) not in parts:
                    parts[part] = None
                    waiting += self.members(part)
            self._closures[name] = tuple(parts)
        return self._closures[name]

    def _resolve_members(self, name: str) -> Iterable[tuple[type[Kind[Any]], Any]]:
        """Return the kinds and parameters of an arm and its members."""
        return map(self.resolve, self._closure(name))

    def validate(self, backbones: Collection[str], corpora: Collection[str] = ()) -> None:
        """Check every arm without building it.

        Args:
            backbones: Names of the backbones.
            corpora: Names of the corpora; empty: there is one without a name.

        Raises:
            ArmSpecError: A kind, parameter, backbone, corpus or member is wrong, with a line for each; or an
                arm is a member of itself, or its members are nested too deeply or search too often.
        """
        problems = []
        for name in self.specs:
            try:
                self._check_arm(name, backbones, corpora)
            except ArmSpecError as error:
                problems.append(str(error))
        if problems:
            raise ArmSpecError("\n".join(problems))
        for name in self.specs:
            self._measure(name, ())
        for name in self.specs:
            self._check_checked(name)

    def _check_arm(self, name: str, backbones: Collection[str], corpora: Collection[str]) -> None:
        """Check an arm without its members. Raises ArmSpecError."""
        spec, (kind, params) = self.specs[name], self.resolve(name)
        self._check_corpus(name, corpora)
        if spec.usd and spec.kind in (NoRetrieval.kind, ExternalArm.kind):
            hint = "" if spec.kind == NoRetrieval.kind else ", or set params.usd instead"
            raise ArmSpecError(f"arm {name!r}: kind {spec.kind!r} searches nothing: remove `usd`{hint}")
        for backbone in kind.encoders(params):
            if backbone not in backbones:
                raise ArmSpecError(
                    f"arm {name!r}: unknown backbone {backbone!r}{did_you_mean(backbone, backbones)}"
                )
        for member in kind.members(params):
            if member not in self.specs:
                raise ArmSpecError(f"arm {name!r}: unknown arm {member!r}{did_you_mean(member, self.specs)}")

    def _check_checked(self, name: str) -> None:
        """Check that both arms of a checked one answer from the same passages. Raises ArmSpecError."""
        if (checked := self.find_checks(name)) is None:
            return
        for part in (checked.first, checked.then):
            if self.find_checks(part) is not None:
                raise ArmSpecError(
                    f"arm {name!r}: {part!r} is itself a checked arm: an arm can be checked once only"
                )
        alike = self.search_digest(checked.first) == self.search_digest(checked.then)
        if not alike and self.specs[checked.then].kind != NoRetrieval.kind:
            raise ArmSpecError(
                f"arm {name!r}: {checked.then!r} answers from the passages of {checked.first!r}, so it must "
                "search in the same way, or be of kind 'none'"
            )

    def _check_corpus(self, name: str, corpora: Collection[str]) -> None:
        """Check that an arm names a corpus if it has to, and that the corpus exists. Raises ArmSpecError."""
        spec, (kind, params) = self.specs[name], self.resolve(name)
        if spec.corpus is None:
            if kind.searches_corpus and len(corpora) > 1:
                there = ", ".join(corpora)
                raise ArmSpecError(f"arm {name!r}: `corpus` is missing: set it to one of {there}")
        elif spec.kind in KINDS.own and not (kind.searches_corpus or kind.holds_corpus):
            what = "searches its members" if kind.members(params) else "searches no corpus"
            raise ArmSpecError(f"arm {name!r}: kind {spec.kind!r} {what}: remove `corpus`")
        elif spec.corpus not in corpora:
            hint = (
                did_you_mean(spec.corpus, corpora)
                if corpora
                else ": there is one corpus, because `corpora` is not set"
            )
            raise ArmSpecError(f"arm {name!r}: unknown corpus {spec.corpus!r}{hint}")

    def _measure(self, name: str, path: tuple[str, ...]) -> _Size:
        """Return the size of an arm. Raises ArmSpecError if it is a member of itself, or too large."""
        if name in path:
            raise ArmSpecError(f"arm {name!r} is a member of itself: {' -> '.join((*path, name))}")
        if name in self._sizes:
            return self._sizes[name]
        if len(path) >= MOST_LEVELS:  # also the bound of this recursion
            raise ArmSpecError(
                f"arm {path[0]!r} has members in more than {MOST_LEVELS} levels, which is the maximum"
            )
        parts = [self._measure(member, (*path, name)) for member in self.members(name)]
        size = _Size(
            1 + max((part.levels for part in parts), default=0), 1 + sum(part.searches for part in parts)
        )
        if size.levels > MOST_LEVELS:
            raise ArmSpecError(
                f"arm {name!r} has members in {size.levels} levels; at most {MOST_LEVELS} levels are allowed"
            )
        if size.searches > MOST_SEARCHES:
            raise ArmSpecError(
                f"arm {name!r} would search {size.searches:,} times per question, counting members of "
                f"members; at most {MOST_SEARCHES} times are allowed"
            )
        self._sizes[name] = size
        return size

    def may_search_corpus(self, name: str) -> bool:
        """Return whether an arm itself needs a corpus: a kind of your own always may."""
        kind, _ = self.resolve(name)
        return self.specs[name].kind not in KINDS.own or kind.searches_corpus or kind.holds_corpus

    def describe_bad_proxies(self) -> dict[str, str]:
        """Return why the proxy that an arm itself needs cannot be used, by arm."""
        found = dict[str, str]()
        for name in self.specs:
            try:
                proxies.find_proxy(getattr(self.resolve(name)[1], "url", None) or "")
            except proxies.ProxySettingError as error:
                found[name] = str(error)
        return found

    def describe_away(self, read: Collection[str]) -> dict[str, str]:
        """Return why arms cannot search: their corpus was not read, or their proxy cannot be used.

        Args:
            read: The corpora that were read, by the prefixes of their ids, as in `Corpus.parts`.
        """
        away = self.describe_bad_proxies()
        for name, spec in self.specs.items():
            if spec.corpus is not None and f"{spec.corpus}/" not in read:
                away[name] = f"corpus {spec.corpus!r} cannot be read"
            elif spec.corpus is None and self.resolve(name)[0].searches_corpus and not read:
                away[name] = "the corpus cannot be read"
        parts = {name: [part for part in self._closure(name) if part in away] for name in self.specs}
        return {name: away[found[0]] for name, found in parts.items() if found}

    def require_readable(self, name: str, read: Collection[str]) -> None:
        """Raise SourceAwayError if an arm cannot search; see `describe_away`."""
        if why := self.describe_away(read).get(name):
            raise SourceAwayError(f"arm {name!r}: {why}")

    def keep_readable(self, read: Collection[str]) -> dict[str, ArmSpec]:
        """Return the arms that can search; see `describe_away`."""
        away = self.describe_away(read)
        return {name: spec for name, spec in self.specs.items() if name not in away}

    def corpora(self, name: str) -> frozenset[str] | None:
        """Return the names of the corpora that an arm and its members search; None: it searches elsewhere.

        >>> specs = {"d": ArmSpec(kind="bm25", corpus="docs"), "t": ArmSpec(kind="bm25", corpus="tickets")}
        >>> sorted(ArmGraph({**specs, "f": ArmSpec(kind="rrf", params={"arms": ["d", "t"]})}).corpora("f"))
        ['docs', 'tickets']
        >>> server = ArmSpec(kind="mcp", params={"url": "https://a.example", "tool": "find"})
        >>> ArmGraph({"m": server}).corpora("m")
        """
        corpora: set[str] = set()
        for part, spec in self.closure(name).items():
            if spec.corpus is not None:
                corpora.add(spec.corpus)
            elif spec.kind not in (NoRetrieval.kind, ExternalArm.kind) and not self.members(part):
                return None
        return frozenset(corpora)

    def backbones(self, name: str) -> frozenset[str]:
        """Return the backbones of an arm and its members.

        >>> specs = {"d": ArmSpec(kind="dense", params={"backbone": "minilm"}), "b": ArmSpec(kind="bm25")}
        >>> ArmGraph({**specs, "f": ArmSpec(kind="rrf", params={"arms": ["b", "d"]})}).backbones("f")
        frozenset({'minilm'})
        """
        return frozenset[str]().union(
            *(kind.encoders(params) for kind, params in self._resolve_members(name))
        )

    def embeddings(self, name: str) -> frozenset[str]:
        """Return the backbones whose embeddings a query must have for an arm and its members.

        >>> ArmGraph({"d": ArmSpec(kind="dense", params={"backbone": "minilm"})}).embeddings("d")
        frozenset({'minilm'})
        """
        return frozenset[str]().union(*(kind.embeds(params) for kind, params in self._resolve_members(name)))

    def embeddings_of_actions(self) -> frozenset[str]:
        """Return the backbones whose embeddings the queries of all actions must have."""
        actions = (name for name, spec in self.specs.items() if spec.action)
        return frozenset[str]().union(*map(self.embeddings, actions))

    def embeddings_of_texts(self, name: str) -> frozenset[str]:
        """Return the backbones with which an arm or a member embeds texts that it wrote.

        >>> specs = {"d": ArmSpec(kind="dense", params={"backbone": "minilm"})}
        >>> graph = ArmGraph({**specs, "m": ArmSpec(kind="multistep", params={"arm": "d"})})
        >>> graph.embeddings_of_texts("m"), graph.embeddings_of_texts("d")
        (frozenset({'minilm'}), frozenset())
        """
        writers = (part for part in self._closure(name) if self.resolve(part)[0].embeds_texts)
        return frozenset[str]().union(*map(self.embeddings, writers))

    def is_light(self, name: str) -> bool:
        """Return whether an arm and all of its members are light.

        >>> specs = {"b": ArmSpec(kind="bm25"), "m": ArmSpec(kind="multistep", params={"arm": "b"})}
        >>> graph = ArmGraph({**specs, "f": ArmSpec(kind="rrf", params={"arms": ["b", "m"]})})
        >>> graph.is_light("b"), graph.is_light("f")
        (True, False)
        """
        return all(kind.light for kind, _ in self._resolve_members(name))

    def filters(self, name: str) -> bool:
        """Return whether an arm and all of its members find only what a query permits.

        >>> server = ArmSpec(kind="mcp", params={"url": "https://a.example", "tool": "find"})
        >>> specs = {"b": ArmSpec(kind="bm25"), "m": server}
        >>> graph = ArmGraph({**specs, "f": ArmSpec(kind="rrf", params={"arms": ["b", "m"]})})
        >>> graph.filters("b"), graph.filters("f")
        (True, False)
        """
        return all(kind.filters for kind, _ in self._resolve_members(name))

    def is_versioned(self, name: str) -> bool:
        """Return whether the versions of all indexes of an arm and its members can be known.

        >>> server = ArmSpec(kind="mcp", params={"url": "https://a.example", "tool": "find"})
        >>> graph = ArmGraph({"b": ArmSpec(kind="bm25"), "m": server})
        >>> graph.is_versioned("b"), graph.is_versioned("m")
        (True, False)
        """
        return all(kind.is_versioned(params) for kind, params in self._resolve_members(name))

    def random_part(self, name: str) -> str | None:
        """Return the first part of an arm whose results may vary between searches; None: none do.

        >>> specs = {"b": ArmSpec(kind="bm25"), "p": ArmSpec(kind="plackett_luce", params={"arm": "b"})}
        >>> graph = ArmGraph({**specs, "f": ArmSpec(kind="rrf", params={"arms": ["b", "p"]})})
        >>> graph.random_part("b"), graph.random_part("f")
        (None, 'p')
        """
        return next((part for part in self._closure(name) if self.resolve(part)[0].draws), None)

    def find_checks(self, name: str) -> CheckedArms | None:
        """Return how the answers of an arm are checked; None: they are sent as they are."""
        kind, params = self.resolve(name)
        return kind.checks(params)

    def compute_bound(self, name: str) -> Bound:
        """Return the most that a search of an arm spends.

        A user's class, or a search elsewhere, is assumed to prompt no model of this service.

        >>> specs = {"b": ArmSpec(kind="bm25", usd=0.5), "v": ArmSpec(kind="multistep", params={"arm": "b"})}
        >>> graph = ArmGraph({**specs, "f": ArmSpec(kind="rrf", params={"arms": ["b", "v"]})})
        >>> graph.compute_bound("b")
        Bound(questions=0, read=0, written=0, search_usd=0.5)
        >>> graph.compute_bound("f").written
        32
        """
        if name not in self._bounds:
            kind, params = self.resolve(name)
            most = kind.bound(params, self.compute_bound)
            self._bounds[name] = most + Bound(search_usd=self.specs[name].usd)
        return self._bounds[name]

    def estimate_usd(self, name: str) -> float:
        """Return the expected cost of the searches of an arm and its members, in dollars.

        >>> specs = {"b": ArmSpec(kind="bm25", usd=0.5), "v": ArmSpec(kind="expand", params={"arm": "b"})}
        >>> ArmGraph(specs).estimate_usd("b"), ArmGraph(specs).estimate_usd("v")
        (0.5, 1.0)
        """
        if name not in self._usd:
            kind, params = self.resolve(name)
            members = kind.members(params)
            self._usd[name] = self.specs[name].usd + sum(
                kind.searches(params, member) * self.estimate_usd(member) for member in members
            )
        return self._usd[name]

    def search_digest(self, name: str) -> str:
        """Return a hash of what an arm searches and how: the same for pipelines that differ in writing only.

        For an arm that draws, or of a user's class, it may depend on the name.

        >>> graph = ArmGraph({"a": ArmSpec(kind="bm25"), "b": ArmSpec(kind="bm25", params={"k1": 1.2})})
        >>> graph.search_digest("a") == graph.search_digest("b")
        True
        """
        parts = self.closure(name)
        params = {part: self.resolve(part)[1].model_dump(mode="json") for part in parts}
        # an arm without a corpus keeps the form from when there was a single corpus
        facts = [
            (part, spec.kind, params[part], *([] if spec.corpus is None else [spec.corpus]))
            for part, spec in parts.items()
        ]
        named = any(spec.kind not in KINDS.own for spec in parts.values())
        named = named or self.random_part(name) is not None
        (_, *first), *others = facts
        document = orjson.dumps([name if named else "", first, sorted(others)], option=orjson.OPT_SORT_KEYS)
        return hashlib.blake2b(document, digest_size=16).hexdigest()

    def deployment(self, name: str, deployments: Collection[str] | None) -> str | None:
        """Return the deployment that runs an arm; None: the process that answers HTTP.

        Args:
            name: The arm.
            deployments: Existing deployments. The one that an arm names is returned even if it is missing.
                None: that process runs everything.

        >>> near = ArmSpec(kind="dense", params={"backbone": "minilm"})
        >>> graph = ArmGraph({"b": ArmSpec(kind="bm25"), "d": near, "far": ArmSpec(kind="bm25", host="Far")})
        >>> [graph.deployment(name, ["Arms"]) for name in ("b", "d", "far")]
        [None, 'Arms', 'Far']
        >>> [graph.deployment(name, None) for name in ("b", "d", "far")]
        [None, None, None]
        """
        host = self.spec(name).host
        if deployments is None or host == INGRESS:
            return None
        if host == DEFAULT_HOST:
            stays = self.is_light(name) and not self.backbones(name)
            return None if stays or DEFAULT_HOST not in deployments else host
        return host

    def deployments(self) -> tuple[str, ...]:
        """Return the deployments that the arms need besides the one that answers HTTP.

        >>> ArmGraph({"b": ArmSpec(kind="bm25"), "far": ArmSpec(kind="bm25", host="Far")}).deployments()
        ('Far',)
        """
        named = [spec.host for spec in self.specs.values() if spec.host not in (DEFAULT_HOST, INGRESS)]
        actions = [name for name, spec in self.specs.items() if spec.action]
        default = [DEFAULT_HOST for name in actions if self.deployment(name, [DEFAULT_HOST]) == DEFAULT_HOST]
        return tuple(dict.fromkeys([*default, *named]))
