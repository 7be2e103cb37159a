"""The candidates of an evaluation: names, distributions decision by decision, and how they are built.

    LearnedTarget  a policy that learns as the log is replayed, or a frozen version
    Recorded       what the policy would have drawn from when another system decided, as logged
    RouterTarget   the best arm by the scores of a trained router, which are computed again

A learning candidate returns its distribution for a decision before it learns from it (progressive
validation).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import ValidationError
from typing_extensions import override

from armwise.agent.config import AppConfig
from armwise.agent.learning import Recipe, StoredTrained, read_spec, restore_policy, teach, train_on
from armwise.agent.policies import (
    POLICIES,
    Policy,
    PolicyError,
    PolicySpec,
    compute_served_distribution,
    sampling,
)
from armwise.agent.routers import RouterError, Stage, dataset
from armwise.agent.spec import lines
from armwise.agent.turn import load_built_in, weigh_arms
from armwise.arms.models import ModelNotFoundError, build_embedder
from armwise.feedback.budget import Budget, Pacer
from armwise.feedback.events import LABELS, ROUTER, Decision, Example
from armwise.feedback.log import Store
from armwise.feedback.registry import Version, arm_sets, versions
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import StartingPoint, examples, router_contexts


class EvaluationError(ValueError):
    """An evaluation is impossible; the message says why."""


class CandidateError(EvaluationError):
    """A candidate is unknown, or cannot be evaluated on this log; the message says what can."""


class CandidateKind(StrEnum):
    """The kinds of candidates; a name is a kind, followed by `:` and its argument if it takes one."""

    SERVED = "served"
    """The logging policy."""
    UNIFORM = "uniform"
    """The uniform distribution over the eligible arms."""
    FIXED = "fixed"
    """Always one arm."""
    CONFIGURED = "configured"
    """The policy of the configuration, learned as the log is replayed."""
    SHADOW = "shadow"
    """What the policy would have drawn from when another system decided, as logged."""
    VERSION = "version"
    """One version, frozen."""
    CANARY = "canary"
    """One version, frozen, on the decisions in which it took part as a canary."""
    RECIPE = "recipe"
    """The recipe of a version, learned as the log is replayed."""
    POLICY = "policy"
    """Any policy of the catalogue, learned as the log is replayed."""
    ROUTER = "router"
    """The best arm by the scores of a trained router."""


BASELINE = CandidateKind.SERVED.value

ARGUMENT = {
    CandidateKind.FIXED: "<arm>",
    CandidateKind.VERSION: "<n>",
    CandidateKind.CANARY: "<n>",
    CandidateKind.RECIPE: "<n>",
    CandidateKind.POLICY: "<YAML>",
    CandidateKind.ROUTER: "<folder>",
}

DEEPEST = 20
"""Most levels of nesting in the YAML of a policy."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

CANDIDATE_NAMES = tuple(
    f"{kind}:{ARGUMENT[kind]}" if kind in ARGUMENT else str(kind) for kind in CandidateKind
)
"""The forms of a name."""


@dataclass(frozen=True, slots=True)
class CandidateName:
    """The parsed name of a candidate.

    Attributes:
        name: The name in the request.
        kind: Kind of the candidate.
        argument: Text after the `:`; empty if there is none.
        number: Number of the version; 0 for other kinds.
        policy: The policy, for `policy:<YAML>`.
    """

    name: str
    kind: CandidateKind
    argument: str = ""
    number: int = 0
    policy: PolicySpec | None = None


def parse_name(name: str) -> CandidateName:
    """Parse the name of a candidate.

    Raises:
        CandidateError: The name has another form.

    >>> parse_name("version:7").number
    7
    >>> parse_name("best")
    Traceback (most recent call last):
    armwise.agent.evaluation.candidates.CandidateError: candidate 'best' is not one of: served, uniform, \
fixed:<arm>, configured, shadow, version:<n>, canary:<n>, recipe:<n>, policy:<YAML>, router:<folder>
    """
    prefix, _, argument = name.partition(":")
    if prefix not in list(CandidateKind) or (CandidateKind(prefix) in ARGUMENT) != bool(argument.strip()):
        hint = f"; did you mean 'policy:{{kind: {name}}}'?" if name in POLICIES else ""
        raise CandidateError(f"candidate {name!r} is not one of: {', '.join(CANDIDATE_NAMES)}{hint}")
    kind = CandidateKind(prefix)
    if kind in (CandidateKind.VERSION, CandidateKind.CANARY, CandidateKind.RECIPE):
        if not argument.isdecimal() or int(argument) < 1:
            raise CandidateError(f"candidate {name!r} names no version: expected a whole number from 1 on")
        return CandidateName(name, kind, argument, number=int(argument))
    policy = _policy(argument) if kind is CandidateKind.POLICY else None
    return CandidateName(name, kind, argument, policy=policy)


def spell_out(name: str) -> str:
    """Return the name of a candidate, with the file of a policy replaced by its contents.

    For the command line only, so that names from the network cannot read files of this machine.

    Raises:
        CandidateError: The file cannot be read.

    >>> spell_out("policy:{kind: uniform}")
    'policy:{kind: uniform}'
    """
    kind, _, argument = name.partition(":")
    if kind != CandidateKind.POLICY or argument.lstrip().startswith("{"):
        return name
    try:
        document = yaml.safe_load(Path(argument).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CandidateError(f"candidate {name!r}: {error}") from None
    if isinstance(document, dict) and document.keys() == {"policy"}:
        document = document["policy"]
    flow = yaml.safe_dump(document, default_flow_style=True, sort_keys=False, width=10_000)
    return f"policy:{flow.strip()}"


def _policy(text: str) -> PolicySpec:
    """Parse a policy in YAML. Raises CandidateError."""
    try:
        document = _read(text)
    except (yaml.YAMLError, ValueError) as error:
        raise CandidateError(f"policy {text!r} is not valid YAML: {error}") from None
    try:
        return PolicySpec.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(lines(error, PolicySpec))
        raise CandidateError(
            f"policy {text!r}: {problems}; "
            "expected something like policy:{kind: linucb, params: {alpha: 0.5}}"
        ) from None


def _read(text: str) -> object:
    """Parse YAML; aliases and deep nesting, which could use much memory, are refused.

    Raises:
        YAMLError: It is malformed.
        ValueError: It has an alias, is nested too deeply, or has an invalid value.

    >>> _read("{kind: &a uniform, params: {again: *a}}")
    Traceback (most recent call last):
    ValueError: *a is an alias: write its contents out instead
    """
    depth = 0
    for event in yaml.parse(text, _LOADER):
        match event:
            case yaml.AliasEvent():
                raise ValueError(f"*{event.anchor} is an alias: write its contents out instead")
            case yaml.CollectionStartEvent():
                depth += 1
            case yaml.CollectionEndEvent():
                depth -= 1
        if depth > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels")
    return yaml.load(text, _LOADER)  # a safe loader, by another name # nosec B506


class LeftOutError(Exception):
    """A candidate cannot be evaluated on a decision; decisions are counted by the message."""


class Candidate(ABC):
    """Returns its distribution for one decision after the other, in the order of the log.

    Attributes:
        about: Description in a sentence.
        after: It is evaluated on rows after this position of the training log.
        reason: Why rows up to there are left out.
        arms: The arms that it can draw.
        brought: Arms that become live with it; empty if it draws among the live arms.
    """

    about: str
    after: int
    reason: str
    arms: frozenset[str]
    brought: frozenset[str]

    def view(self, block: Sequence[Example]) -> Sequence[Example]:
        """Return rows with the contexts as this candidate would have seen them: by default as they are."""
        return block

    def prepare(self, decisions: Sequence[Decision]) -> None:
        """Prepare for the next decisions, in batch; by default do nothing."""
        del decisions

    @abstractmethod
    def probabilities(self, decision: Decision, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return its distribution with the floor mixed in, shape (n_arms,).

        Args:
            decision: The logged decision.
            arms: The eligible arms that the candidate can draw, at least one.

        Raises:
            LeftOutError: It cannot be evaluated on this decision.
        """

    def learn(self, example: Example, reward: float | None) -> None:
        """Learn from a row of the training log; by default do nothing.

        Args:
            example: Each row in turn, including rows without a reward.
            reward: Reward of the decision; None: it is not learned from.
        """
        del example, reward

    def notes(self) -> Sequence[str]:
        """Return remarks after the last row, a sentence each; by default none."""
        return ()


def note_label(taught: dict[str, float], label: Decision) -> None:
    """Record when the last label of a question was inserted."""
    question = label.context.question
    taught[question] = max(label.decided_at, taught.get(question, -math.inf))


def _choose_floor(decision: Decision, explores: sampling.Exploration, n_arms: int) -> float:
    """Return the floor of a candidate: at least the logged floor, which an alarm may have raised."""
    return max(explores.among(n_arms), sampling.lower_floor(decision.floor or 0.0, n_arms))


@dataclass(eq=False)
class LearnedTarget(Candidate):
    """A policy with the configured floor, or the logged one if that is higher.

    A canary has the logged floor, so that it differs from what was served only in its choices.

    Args:
        policy: The policy in its state before the first row of the log.
        rule: Gives the rewards that the policy learns; None: it has learned all that it will.
        taught: When the labels of each learned question were inserted, seconds since the epoch: earlier
            decisions on the question may be the source of the labels, and are left out. Labels in the
            training log are added as they are learned.
        pacer: Computes the price of a budget; None: the logged price of each decision applies.
        contexts: Returns rows with the scores of the candidate's router.
        scored: Whether the candidate has a router, whose scores it needs to decide.
        canary: Number of the version, to evaluate it only on decisions that it took part in; 0: on all.

    Attributes:
        largest_share: Largest share of the canary in the decisions so far; 0: it had none.
    """

    about: str
    arms: frozenset[str]
    policy: Policy
    explores: sampling.Exploration
    after: int = 0
    reason: str = ""
    rule: RewardRule | None = None
    taught: dict[str, float] = field(default_factory=dict)
    pacer: Pacer | None = None
    contexts: Callable[[Sequence[Example]], Sequence[Example]] = lambda block: block
    scored: bool = False
    brought: frozenset[str] = frozenset()
    canary: int = 0
    largest_share: float = 0.0
    _last: tuple[str, dict[str, float]] = ("", {})
    _paid: list[float] = field(default_factory=list)

    @override
    def view(self, block: Sequence[Example]) -> Sequence[Example]:
        """Return the rows with the scores of the candidate's router, if it has one."""
        return self.contexts(block)

    @override
    def probabilities(self, decision: Decision, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the distribution of the policy."""
        if self.canary and decision.candidate != self.canary:
            raise LeftOutError("the candidate version took no part")
        if self.scored and not any(ROUTER in features for features in decision.context.arms.values()):
            raise LeftOutError("its router did not score the decision")
        if decision.decided_at <= self.taught.get(decision.context.question, -math.inf):
            raise LeftOutError("it may have learned from a label made of the decision")
        records = dict(decision.steps)
        if self.pacer is not None:
            costs = dict(zip(arms, self.pacer.costs(arms), strict=True))
            records["budget"] = {"price": self.pacer.price, "costs": costs}
        penalty = weigh_arms(records, load_built_in(), arms)
        floor = (decision.floor or 0.0) if self.canary else _choose_floor(decision, self.explores, len(arms))
        if self.canary:
            self.largest_share = max(self.largest_share, decision.share)
        p = compute_served_distribution(self.policy, decision.context, arms, floor, penalty)
        self._last = decision.id, dict(zip(arms, p.tolist(), strict=True))
        return p

    @override
    def learn(self, example: Example, reward: float | None) -> None:
        """Update the policy; one without a rule has learned the rows up to its position already."""
        learned = (example.seq <= self.after) if self.rule is None else (example.seq > self.after)
        if learned and reward is not None and example.decision.policy == LABELS:
            note_label(self.taught, example.decision)
        if learned and self.rule is not None and reward is not None:
            teach(self.policy, self.rule, example, reward)
        if self.pacer is not None and example.decision.policy != LABELS:
            self._pay(self.pacer, example)

    def _pay(self, pacer: Pacer, example: Example) -> None:
        """Charge the expected cost of the candidate: the mean costs of arms, weighed by its distribution."""
        name, p = self._last
        spent, paid = pacer.budget.measure(example.cost) / example.turns, None  # a request's
        if name == example.decision.id:
            paid = math.fsum(share * cost for share, cost in zip(p.values(), pacer.costs([*p]), strict=True))
            self._paid.append(paid)
        pacer.note(example.decision.drawn, spent, paid)

    @override
    def notes(self) -> Sequence[str]:
        """Return its estimated spending under a budget."""
        if self.pacer is None or not self._paid:
            return ()
        budget, mean = self.pacer.budget, math.fsum(self._paid) / len(self._paid)
        return (
            f"Under a ceiling of {budget.ceiling:g} {budget.unit} a request it would have spent {mean:.4g}, "
            "by the mean cost of each arm.",
        )


@dataclass(eq=False)
class Recorded(Candidate):
    """What the policy would have drawn from when another system decided or took part."""

    arms: frozenset[str]
    about: str = "What the policy would have drawn from when another system decided, as logged then."
    after: int = 0
    reason: str = ""
    brought: frozenset[str] = frozenset()

    @override
    def probabilities(self, decision: Decision, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the logged distribution over the eligible arms."""
        if not decision.shadow:
            raise LeftOutError("no shadow on record")
        if len(arms) != len(decision.arms):
            raise LeftOutError("an arm of the shadow is no longer live")
        return np.array(decision.shadow)


class RouterTarget(Candidate):
    """The arm with the best score of a router that reads the question; ties are split evenly.

    Questions that the router was trained on get its out-of-fold scores; see
    `armwise.agent.routers.out_of_fold`.

    Args:
        folder: Folder of the trained router.
        config: Configuration of the service in which it would run.
        arms: The live arms.

    Raises:
        CandidateError: The router cannot be read, does not fit, or reads passages.
    """

    after, reason, brought = 0, "", frozenset[str]()

    def __init__(self, folder: Path, config: AppConfig, arms: Sequence[str]) -> None:
        try:
            stored = StoredTrained.read(folder)
            trained = stored.trained
            trained.check(config.backbones, arms)
            self._embedder = build_embedder(config.backbones[trained.about.backbone])
        except (RouterError, ModelNotFoundError) as error:
            raise CandidateError(f"candidate 'router:{folder}': {error}") from None
        if trained.router.stage is not Stage.QUESTION:
            raise CandidateError(
                f"candidate 'router:{folder}' needs the passages of every arm, but the log keeps those that "
                "one arm found. If it advised the service, the log has its scores: evaluate policy:{kind: "
                "routed, params: {epsilon: 0}} instead"
            )
        self._stored, self._known = stored, trained.about.arms
        self._explores = config.explores
        self._scores: dict[str, dataset.Floats] = {}
        self.arms = frozenset(arms) & frozenset(self._known)
        self.about = f"The best arm by the scores of the {trained.about.kind} router in {folder}."

    @override
    def prepare(self, decisions: Sequence[Decision]) -> None:
        """Score the questions in one batch."""
        texts = tuple(dict.fromkeys(decision.context.question for decision in decisions))
        self._scores = dict(zip(texts, self._stored.scores(texts, self._embedder), strict=True))

    @override
    def probabilities(self, decision: Decision, arms: Sequence[str]) -> NDArray[np.float64]:
        """Put all but the floor on the best arms."""
        scores = self._scores[decision.context.question][[self._known.index(arm) for arm in arms]]
        if np.isnan(scores).any():
            raise LeftOutError("the router was trained on the question")
        return sampling.mix_floor(sampling.greedy(scores), _choose_floor(decision, self._explores, len(arms)))


@dataclass(frozen=True, slots=True)
class CandidateService:
    """The service in which candidates would run.

    Attributes:
        config: Configuration of the service.
        rule: Rewards for candidates that learn.
        store: The log; None: an export is evaluated.
        arms: The live arms.
        budget: Budget of candidates that decide by a policy; None: the logged prices apply.
    """

    config: AppConfig
    rule: RewardRule
    store: Store | None
    arms: tuple[str, ...]
    budget: Budget | None = None

    @classmethod
    def from_config(
        cls, config: AppConfig, rule: RewardRule, store: Store | None, budget: Budget | None = None
    ) -> "CandidateService":
        """Return the service of a configuration, with its live arms."""
        arms = tuple(config.actions) if store is None else arm_sets.at_start(store, config.arm_documents)
        return cls(config, rule, store, arms, budget)

    def version(self, named: CandidateName) -> tuple[Store, Version]:
        """Return the log, and the version of a candidate. Raises CandidateError."""
        if self.store is None:
            raise CandidateError(
                f"candidate {named.name!r}: an export has no versions; replay the log itself"
            )
        version = versions.find(self.store, named.number)
        if version is None:
            newest = versions.latest(self.store)
            raise CandidateError(
                f"candidate {named.name!r}: there is no version {named.number}"
                + ("" if newest is None else f"; the newest is {newest.version}")
            )
        return self.store, version


def build_candidate(named: CandidateName, setting: CandidateService) -> Candidate:
    """Build a candidate in its state before the first row of the log.

    Args:
        named: A candidate that reads contexts.
        setting: The service in which it would run.

    Raises:
        CandidateError: It cannot be built; the message says why.
    """
    try:
        match named.kind:
            case CandidateKind.SHADOW:
                return Recorded(frozenset(setting.arms))
            case CandidateKind.ROUTER:
                return RouterTarget(Path(named.argument), setting.config, setting.arms)
            case CandidateKind.VERSION | CandidateKind.CANARY:
                candidate = _version(named, setting)
            case CandidateKind.RECIPE:
                candidate = _recipe(named, setting)
            case CandidateKind.POLICY if named.policy is not None:
                recipe = Recipe(named.policy, setting.rule)
                candidate = _progressive(f"The policy {named.policy.kind}", recipe, setting)
                candidate.contexts = lambda block: block  # with the scores of the router that served
            case CandidateKind.CONFIGURED:
                recipe = replace(Recipe.from_config(setting.config), reward=setting.rule)
                candidate = _progressive(f"The configured policy, {recipe.policy.kind}", recipe, setting)
            case _:
                raise CandidateError(f"candidate {named.name!r} does not use the context")
    except PolicyError as error:
        raise CandidateError(f"candidate {named.name!r}: {error}") from None
    if setting.budget is not None:
        candidate.pacer = Pacer(setting.budget)
    return candidate


def _progressive(what: str, recipe: Recipe, setting: CandidateService) -> LearnedTarget:
    """Build a policy that learns as the log is replayed. Raises PolicyError."""
    policy, start = recipe.build(setting.arms), recipe.start or StartingPoint()
    labels = _labels(setting, start, recipe.router)
    train_on(policy, setting.rule, labels)
    return _with_router(
        LearnedTarget(
            f"{what}, learned from the log as it is replayed: asked about each decision, then taught.",
            frozenset(setting.arms),
            policy,
            setting.config.explores,
            start.after,
            "before its training log begins" if start.after else "",
            setting.rule,
            taught=_find_label_times(labels),
        ),
        recipe.router,
        recipe.arms,
        setting,
    )


def _with_router(
    candidate: LearnedTarget, router: str | None, arms: Collection[str] | None, setting: CandidateService
) -> LearnedTarget:
    """Return a candidate that reads the scores of its router, and draws among the arms that it brings."""
    store = setting.store
    if store is not None:
        candidate.contexts = lambda block: list(router_contexts.with_router(store, block, router))
    candidate.scored = router is not None
    if arms is not None:
        candidate.brought = frozenset(arms)
        candidate.arms = candidate.brought
    return candidate


def _labels(
    setting: CandidateService, start: StartingPoint | None, router: str | None = None
) -> list[Example]:
    """Return the labels of a starting point."""
    if start is None:
        return []
    if not start.runs:
        return []
    assert setting.store is not None  # a start belongs to a version, which is in the log
    return list(examples.read_labels(setting.store, setting.rule, start, router))


def _find_label_times(labels: Iterable[Example]) -> dict[str, float]:
    """Return when the last label of each question was inserted."""
    taught: dict[str, float] = {}
    for example in labels:
        note_label(taught, example.decision)
    return taught


def _recipe(named: CandidateName, setting: CandidateService) -> LearnedTarget:
    _, version = setting.version(named)
    start = StartingPoint.from_document(version.start)
    recipe = Recipe(read_spec(version), setting.rule, start, version.router, version.arms)
    if start is not None and start.after:
        _same_positions(version, setting)
    return _progressive(f"The recipe of version {version.version}, {recipe.policy.kind}", recipe, setting)


def _version(named: CandidateName, setting: CandidateService) -> LearnedTarget:
    store, version = setting.version(named)
    _same_positions(version, setting)
    policy = restore_policy(
        store, version, setting.config.reward, arm_sets.list_defined(store) or list(setting.arms)
    )
    labels = _labels(setting, StartingPoint.from_document(version.start), version.router)
    candidate = LearnedTarget(
        f"Version {version.version}, {policy.kind}, as it was after {version.examples_seq:,} examples"
        + (", where it took part as a canary." if named.kind is CandidateKind.CANARY else "."),
        frozenset(setting.arms),
        policy,
        setting.config.explores,
        version.examples_seq,
        f"learned by version {version.version}",
        taught=_find_label_times(labels),
        canary=version.version if named.kind is CandidateKind.CANARY else 0,
    )
    return _with_router(candidate, version.router, version.arms, setting)


def _same_positions(version: Version, setting: CandidateService) -> None:
    """Check that a version counts rows of this training log. Raises PolicyError."""
    if version.join != setting.rule.join:
        raise PolicyError(
            f"version {version.version} learned from feedback that was joined in another way than the "
            "configuration says, so its rows are unknown here: configure the aggregation, "
            "`complete` and the wait time with which it learned"
        )
