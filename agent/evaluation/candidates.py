"""Candidates of a replay, and how they are built from their names.

A `Candidate` decides a logged decision, and may learn from its example. What else may determine its
distribution is its own business: scores of a router, a budget, the share of a canary, what caches lacked.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
from typing_extensions import override

from armwise.agent.config import AppConfig
from armwise.agent.evaluation.candidate_names import CandidateError, CandidateKind, CandidateName
from armwise.agent.learning import Recipe, StoredTrained, read_spec, restore_policy, train_on
from armwise.agent.policies import (
    Policy,
    PolicyError,
    ReplayStep,
    sampling,
)
from armwise.agent.routers import RouterError, Stage
from armwise.agent.turn import bind, load_built_in, weigh_arms
from armwise.arms.models import ModelNotFoundError, build_embedder
from armwise.feedback.arrays import Floats
from armwise.feedback.budget import Budget, Pacer
from armwise.feedback.events import LABELS, ROUTER, Decision, Example
from armwise.feedback.log import Store
from armwise.feedback.registry import Version, arm_sets, versions
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import StartingPoint, examples, router_contexts


class LeftOutError(Exception):
    """A candidate cannot be evaluated on a decision; decisions are counted by the message."""


@dataclass(eq=False)
class Candidate(ABC):
    """What could have decided.

    Attributes:
        name: Name in the request.
        about: Description in a sentence.
        arms: The arms that it can draw.
        after: Position of the training log up to which it is not evaluated.
        reason: Why it is not.
        brought: Arms that become live with it.
        share: Largest share that it had as a canary so far; 0: it had none.
        label_times: When the last label of each learned question was inserted, seconds since the epoch.
            Earlier decisions on the question may be the source of the label, and are left out.
    """

    name: str
    about: str
    arms: frozenset[str]
    _: KW_ONLY
    after: int = 0
    reason: str = ""
    brought: frozenset[str] = frozenset()
    share: float = 0.0
    label_times: dict[str, float] = field(default_factory=dict)

    @abstractmethod
    def replay(
        self, block: Sequence[Example], arms: Sequence[tuple[str, ...]], rewards: Sequence[float | None]
    ) -> Iterator[Floats | str]:
        """Yield its distribution at each example, floor mixed in, shape (n_arms,), or why it is left out.

        A candidate that learns learns each example before it decides the next one.

        Args:
            block: Examples in their order.
            arms: The eligible arms that it can draw; none: it is not asked, and yields "".
            rewards: What a learner learns from each; None: nothing.
        """

    def notes(self) -> tuple[str, ...]:
        """Return remarks after the last example, a sentence each."""
        return ()


@dataclass(eq=False)
class PolicyCandidate(Candidate):
    """A policy with the configured floor, or the logged one if that is higher.

    A canary has the logged floor, so that it differs from what was served only in its choices.

    Attributes:
        policy: The policy in its state before the first example.
        explores: The configured exploration.
        rule: Gives the rewards that it learns; None: it has learned all that it will.
        pacer: Finds the price of a budget; None: the logged price of each decision applies.
        canary: Number of the version, to evaluate it only on decisions that it took part in; 0: on all.
        router: Digest of the router whose scores it needs to decide, if any.
        store: The log that has the scores; None: contexts are read as logged.
    """

    policy: Policy
    explores: sampling.Exploration
    rule: RewardRule | None = None
    pacer: Pacer | None = None
    canary: int = 0
    router: str | None = None
    store: Store | None = None
    _paid: list[float] = field(default_factory=list)

    @override
    def replay(
        self, block: Sequence[Example], arms: Sequence[tuple[str, ...]], rewards: Sequence[float | None]
    ) -> Iterator[Floats | str]:
        if self.store is not None:
            block = list(router_contexts.with_router(self.store, block, self.router))
        rows, most = zip(block, arms, rewards, strict=True), len(block) if self.pacer is None else 1
        while several := [*islice(rows, most)]:  # what one pays changes the price of the next
            asked = [self._ask(*row) for row in several]
            found = sampling.replay(self.policy, [step for step, _ in asked])
            for (example, _, _), (step, reason), p in zip(several, asked, found, strict=True):
                if p is not None:
                    p = bind(p, example.decision, step.arms, step.floor)
                if self.pacer is not None and example.decision.policy != LABELS:
                    self._pay(self.pacer, example, step.arms, p)
                yield reason if p is None else p

    def _ask(self, example: Example, arms: tuple[str, ...], reward: float | None) -> tuple[ReplayStep, str]:
        """Return what is asked and learned at an example, and why it is not asked, if it should be."""
        decision, floor, reason = example.decision, 0.0, ""
        penalty: Sequence[float] = ()
        if not arms:
            pass
        elif self.canary and decision.candidate != self.canary:
            reason = "the candidate version took no part"
        elif self.router and not any(ROUTER in features for features in decision.context.arms.values()):
            reason = "its router did not score the decision"
        elif decision.decided_at <= self.label_times.get(decision.context.question, -math.inf):
            reason = "it may have learned from a label made of the decision"
        else:
            records, floor = decision.steps, _choose_floor(decision, self.explores, len(arms))
            if self.pacer is not None:
                costs = dict(zip(arms, self.pacer.costs(arms), strict=True))
                records = {**records, "budget": {"price": self.pacer.price, "costs": costs}}
            if self.canary:
                floor, self.share = decision.floor or 0.0, max(self.share, decision.share)
            penalty = weigh_arms(records, load_built_in(), arms) if records else ()
        cost = 0.0
        has_learned = example.seq <= self.after if self.rule is None else example.seq > self.after
        if has_learned and reward is not None and decision.policy == LABELS:
            self.note_label(decision)
        if self.rule is None or not has_learned:
            reward = None
        elif reward is not None and getattr(self.policy, "learns_costs", False):
            cost = self.rule.compute_learned_cost(example)
        return ReplayStep(decision, () if reason else arms, floor, penalty, reward, cost), reason

    def note_label(self, label: Decision) -> None:
        """Record when a label that it has learned was inserted."""
        question = label.context.question
        self.label_times[question] = max(label.decided_at, self.label_times.get(question, -math.inf))

    def _pay(self, pacer: Pacer, example: Example, arms: tuple[str, ...], p: Floats | None) -> None:
        """Charge the expected cost of the candidate: the mean costs of arms, weighed by its distribution."""
        spent, paid = pacer.budget.measure(example.cost) / example.turns, None  # a request's
        if p is not None:
            paid = math.fsum(share * cost for share, cost in zip(p.tolist(), pacer.costs(arms), strict=True))
            self._paid.append(paid)
        pacer.note(example.decision.drawn, spent, paid)

    @override
    def notes(self) -> tuple[str, ...]:
        if self.pacer is None or not self._paid:
            return ()
        budget, mean = self.pacer.budget, math.fsum(self._paid) / len(self._paid)
        return (
            f"Under a ceiling of {budget.ceiling:g} {budget.unit} a request it would have spent {mean:.4g}, "
            "by the mean cost of each arm.",
        )


class StaticCandidate(Candidate):
    """A candidate that learns nothing, and decides each example by itself."""

    @abstractmethod
    def decide(self, decision: Decision, arms: tuple[str, ...]) -> Floats:
        """Return its distribution over some arms, at least one. Raises LeftOutError."""

    @override
    def replay(
        self, block: Sequence[Example], arms: Sequence[tuple[str, ...]], rewards: Sequence[float | None]
    ) -> Iterator[Floats | str]:
        for example, eligible in zip(block, arms, strict=True):
            try:
                yield self.decide(example.decision, eligible) if eligible else ""
            except LeftOutError as error:
                yield str(error)


class Recorded(StaticCandidate):
    """What the policy would have drawn from when another system decided or took part."""

    @override
    def decide(self, decision: Decision, arms: tuple[str, ...]) -> Floats:
        if not decision.shadow:
            raise LeftOutError("no shadow on record")
        if len(arms) != len(decision.arms):
            raise LeftOutError("an arm of the shadow is no longer live")
        return np.array(decision.shadow)


_Asked = tuple[str, tuple[tuple[str, float], ...]]
"""A question, and how well it fits the sources of each arm."""


def _read_question(decision: Decision) -> _Asked:
    return decision.context.question, tuple(decision.context.similarities.items())


class RouterCandidate(StaticCandidate):
    """The arm with the best score of a router that reads the question; ties are split evenly.

    Questions that the router was trained on get its out-of-fold scores; see
    `armwise.agent.routers.out_of_fold`.

    Raises:
        CandidateError: The router cannot be read, does not fit, or reads passages.
    """

    def __init__(self, name: str, folder: Path, config: AppConfig, arms: Sequence[str]) -> None:
        try:
            stored = StoredTrained.read(folder)
            trained = stored.trained
            trained.check(config.backbones, arms, has_fit=config.features.similarity is not None)
            self._embedder = build_embedder(config.backbones[trained.about.backbone])
        except (RouterError, ModelNotFoundError) as error:
            raise CandidateError(f"candidate {name!r}: {error}") from None
        if trained.router.stage is not Stage.QUESTION:
            raise CandidateError(
                f"candidate {name!r} needs the passages of every arm, but the log keeps those that one arm "
                "found. If it advised the service, the log has its scores: evaluate policy:{kind: routed, "
                "params: {epsilon: 0}} instead"
            )
        about = f"The best arm by the scores of the {trained.about.kind} router in {folder}."
        super().__init__(name, about, frozenset(arms) & frozenset(trained.about.arms))
        self._stored, self._known, self._explores = stored, trained.about.arms, config.explores
        self._block: Sequence[Example] = ()
        self._scores: dict[_Asked, Floats] = {}

    @override
    def replay(
        self, block: Sequence[Example], arms: Sequence[tuple[str, ...]], rewards: Sequence[float | None]
    ) -> Iterator[Floats | str]:
        self._block, self._scores = block, {}
        return super().replay(block, arms, rewards)

    @override
    def decide(self, decision: Decision, arms: tuple[str, ...]) -> Floats:
        if not self._scores:  # in one batch, if any of it is decided
            asked = dict.fromkeys(_read_question(example.decision) for example in self._block)
            texts, fits = [text for text, _ in asked], [dict(fit) for _, fit in asked]
            self._scores = dict(zip(asked, self._stored.scores(texts, self._embedder, fits), strict=True))
        scores = self._scores[_read_question(decision)][[self._known.index(arm) for arm in arms]]
        if np.isnan(scores).any():
            if self._stored.trained.router.reads_fit and not decision.context.similarities:
                raise LeftOutError("the log does not say how well the question fits each source")
            raise LeftOutError("the router was trained on the question")
        return sampling.mix_floor(sampling.greedy(scores), _choose_floor(decision, self._explores, len(arms)))


def _choose_floor(decision: Decision, explores: sampling.Exploration, n_arms: int) -> float:
    """Return the floor of a candidate: at least the logged floor, which an alarm may have raised."""
    return max(explores.among(n_arms), sampling.lower_floor(decision.floor or 0.0, n_arms))


@dataclass(frozen=True, slots=True)
class CandidateService:
    """The service in which candidates would run.

    Attributes:
        config: Configuration of the service.
        rule: Rewards for candidates that learn.
        store: The log; None: an export is replayed.
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


def build_candidate(named: CandidateName, service: CandidateService) -> Candidate:
    """Build a candidate in its state before the first example.

    Args:
        named: A candidate that reads contexts.
        service: The service in which it would run.

    Raises:
        CandidateError: It cannot be built; the message says why.
    """
    try:
        match named.kind:
            case CandidateKind.SHADOW:
                about = "What the policy would have drawn from when another system decided, as logged then."
                return Recorded(named.name, about, frozenset(service.arms))
            case CandidateKind.ROUTER:
                return RouterCandidate(named.name, Path(named.argument), service.config, service.arms)
            case CandidateKind.VERSION | CandidateKind.CANARY:
                candidate = _version(named, service)
            case CandidateKind.RECIPE:
                candidate = _recipe(named, service)
            case CandidateKind.POLICY if named.policy is not None:
                candidate = _learner(named.name, "The policy", Recipe(named.policy, service.rule), service)
                candidate.store = None  # it reads the scores of the router that served
            case _:
                recipe = replace(Recipe.from_config(service.config), reward=service.rule)
                candidate = _learner(named.name, "The configured policy,", recipe, service)
    except PolicyError as error:
        raise CandidateError(f"candidate {named.name!r}: {error}") from None
    candidate.pacer = None if service.budget is None else Pacer(service.budget)
    return candidate


def _learner(name: str, what: str, recipe: Recipe, service: CandidateService) -> PolicyCandidate:
    """Build a policy that learns as the log is replayed. Raises PolicyError."""
    policy, start = recipe.build(service.arms), recipe.start or StartingPoint()
    labels = _labels(service, start, recipe.router)
    train_on(policy, service.rule, labels)
    candidate = PolicyCandidate(
        name,
        f"{what} {recipe.policy.kind}, learned from the log as it is replayed: asked about each decision, "
        "then taught.",
        frozenset(service.arms if recipe.arms is None else recipe.arms),
        policy,
        service.config.explores,
        service.rule,
        router=recipe.router,
        store=service.store,
        after=start.after,
        reason="before its training log begins" if start.after else "",
        brought=frozenset(recipe.arms or ()),
    )
    for example in labels:
        candidate.note_label(example.decision)
    return candidate


def _recipe(named: CandidateName, service: CandidateService) -> PolicyCandidate:
    _, version = service.version(named)
    start = StartingPoint.from_document(version.start)
    if start is not None and start.after:
        _require_join(version, service)
    recipe = Recipe(read_spec(version), service.rule, start, version.router, version.arms)
    return _learner(named.name, f"The recipe of version {version.version},", recipe, service)


def _version(named: CandidateName, service: CandidateService) -> PolicyCandidate:
    store, version = service.version(named)
    _require_join(version, service)
    policy = restore_policy(
        store, version, service.config.reward, arm_sets.list_defined(store) or list(service.arms)
    )
    is_canary = named.kind is CandidateKind.CANARY
    candidate = PolicyCandidate(
        named.name,
        f"Version {version.version}, {policy.kind}, as it was after {version.examples_seq:,} examples"
        + (", where it took part as a canary." if is_canary else "."),
        frozenset(service.arms if version.arms is None else version.arms),
        policy,
        service.config.explores,
        canary=version.version if is_canary else 0,
        router=version.router,
        store=store,
        after=version.examples_seq,
        reason=f"learned by version {version.version}",
        brought=frozenset(version.arms or ()),
    )
    for example in _labels(service, StartingPoint.from_document(version.start), version.router):
        candidate.note_label(example.decision)
    return candidate


def _labels(service: CandidateService, start: StartingPoint | None, router: str | None) -> list[Example]:
    """Return the labels that a starting point names."""
    if start is None or not start.runs:
        return []
    assert service.store is not None  # a start belongs to a version, which is in the log
    return list(examples.read_labels(service.store, service.rule, start, router))


def _require_join(version: Version, service: CandidateService) -> None:
    """Check that a version counts rows of this training log. Raises PolicyError."""
    if version.join != service.rule.join:
        raise PolicyError(
            f"version {version.version} learned from feedback that was joined in another way than the "
            "configuration says, so its rows are unknown here: configure the aggregation, "
            "`complete` and the wait time with which it learned"
        )
