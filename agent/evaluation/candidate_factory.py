"""Build candidates by name, as a service with this configuration would."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from agent.config import AppConfig
from agent.evaluation.candidate_names import CandidateError, CandidateName, Kind
from agent.evaluation.candidates import Candidate, Learned, Recorded, Routed, note_label
from agent.learning import Recipe, restore_policy, spec_of
from agent.policies import PolicyError
from feedback.budget import Budget, Pacer
from feedback.events import Decision, Example
from feedback.log import Store
from feedback.registry import Version, arm_sets, versions
from feedback.reward import RewardRule
from feedback.training_log import StartingPoint, examples, observed, router_contexts


@dataclass(frozen=True, slots=True)
class Setting:
    """The service in which candidates would run.

    Attributes:
        config: Configuration of the service.
        rule: Rewards for candidates that learn.
        store: The log; None for an export.
        arms: The live arms.
        budget: Budget of candidates that decide by a policy; None to use the logged prices.
    """

    config: AppConfig
    rule: RewardRule
    store: Store | None
    arms: tuple[str, ...]
    budget: Budget | None = None

    @classmethod
    def of(
        cls, config: AppConfig, rule: RewardRule, store: Store | None, budget: Budget | None = None
    ) -> "Setting":
        """Return the setting of a configuration, with the arms that a service would have."""
        arms = config.arm_documents if store is None else arm_sets.at_start(store, config.arm_documents)
        live = tuple(name for name, arm in arms.items() if arm.get("action", True))
        return cls(config, rule, store, live, budget)

    def version(self, named: CandidateName) -> tuple[Store, Version]:
        """Return the version of a candidate, and its log. Raises CandidateError."""
        if self.store is None:
            raise CandidateError(
                f"candidate {named.name!r}: an export holds no versions; replay the log itself"
            )
        version = versions.find(self.store, named.number)
        if version is None:
            newest = versions.latest(self.store)
            raise CandidateError(
                f"candidate {named.name!r}: there is no version {named.number}"
                + ("" if newest is None else f"; the newest is {newest.version}")
            )
        return self.store, version


def candidate_of(named: CandidateName, setting: Setting) -> Candidate:
    """Build a candidate in its state before the first row of the log.

    Args:
        named: A candidate that reads contexts.
        setting: The service in which it would run.

    Raises:
        CandidateError: It cannot be built; the message says why.
    """
    found = _candidate(named, setting)
    if isinstance(found, Learned) and setting.budget is not None:
        found.pacer = Pacer(setting.budget)
    return found


def _candidate(named: CandidateName, setting: Setting) -> Candidate:
    try:
        match named.kind:
            case Kind.SHADOW:
                return Recorded(frozenset(setting.arms))
            case Kind.ROUTER:
                return Routed(Path(named.argument), setting.config, setting.arms)
            case Kind.VERSION:
                return _version(named, setting)
            case Kind.RECIPE:
                return _recipe(named, setting)
            case Kind.POLICY if named.policy is not None:
                recipe = Recipe(named.policy, setting.rule)
                found = _progressive(f"The policy {named.policy.kind}", recipe, setting)
                found.contexts = lambda block: block  # whichever router served
                return found
            case Kind.CONFIGURED:
                recipe = replace(Recipe.configured(setting.config), reward=setting.rule)
                return _progressive(f"The configured policy, {recipe.policy.kind}", recipe, setting)
            case _:
                raise CandidateError(f"candidate {named.name!r} reads no context")
    except PolicyError as error:
        raise CandidateError(f"candidate {named.name!r}: {error}") from None


def _progressive(what: str, recipe: Recipe, setting: Setting) -> Learned:
    """Build a policy that learns as the log is replayed. Raises PolicyError."""
    policy, start = recipe.build(setting.arms), recipe.start or StartingPoint()
    labels = _labels(setting, start, recipe.router)
    for example in labels:
        if (reward := setting.rule.reward_of(example)) is not None:
            policy.learn(example.decision, reward)
    beside = None
    if start.also is not None and setting.store is not None:
        follower = observed.Beside(
            setting.store, setting.rule, start.also, start.after, start.after, recipe.router
        )
        beside = partial(_beside, follower, setting.rule)
    return _with_router(
        Learned(
            f"{what}, learned from the log as it is replayed: asked about each decision, then taught.",
            frozenset(setting.arms),
            policy,
            setting.config.floor,
            start.after,
            "before its training log begins" if start.after else "",
            taught=_taught(labels),
            beside=beside,
        ),
        recipe.router,
        recipe.arms,
        setting,
    )


def _beside(beside: observed.Beside, rule: RewardRule, example: Example) -> Iterator[tuple[Decision, float]]:
    """Yield what is learned after an example, with its reward."""
    for one in islice(beside.follow((example,)), 1, None):
        if (reward := rule.reward_of(one)) is not None:
            yield one.decision, reward


def _with_router(
    candidate: Learned, router: str | None, arms: Mapping[str, Any] | None, setting: Setting
) -> Learned:
    """Return a candidate that sees the scores of its own router, and draws among the arms that it brings."""
    store = setting.store
    if store is not None:
        candidate.contexts = lambda block: list(router_contexts.with_router(store, block, router))
    candidate.scored = router is not None
    if arms is not None:
        candidate.brought = frozenset(name for name, arm in arms.items() if arm.get("action", True))
        candidate.arms = candidate.brought
    return candidate


def _labels(setting: Setting, start: StartingPoint | None, router: str | None = None) -> list[Example]:
    """Return the labels of a starting point."""
    if start is None:
        return []
    if not start.runs:
        return []
    assert setting.store is not None  # which holds the version that the start is of
    return list(examples.labels_of(setting.store, setting.rule, start, router))


def _taught(labels: Iterable[Example]) -> dict[str, float]:
    """Return when the last label of each question was inserted."""
    found: dict[str, float] = {}
    for example in labels:
        note_label(found, example.decision)
    return found


def _recipe(named: CandidateName, setting: Setting) -> Learned:
    _, version = setting.version(named)
    start = StartingPoint.of(version.start)
    recipe = Recipe(spec_of(version), setting.rule, start, version.router, version.arms)
    if start is not None and start.after:
        _same_positions(version, setting)
    return _progressive(f"The recipe of version {version.version}, {recipe.policy.kind}", recipe, setting)


def _version(named: CandidateName, setting: Setting) -> Learned:
    store, version = setting.version(named)
    _same_positions(version, setting)
    policy = restore_policy(
        store, version, setting.config.reward, list(arm_sets.defined(store)) or list(setting.arms)
    )
    labels = _labels(setting, StartingPoint.of(version.start), version.router)
    found = Learned(
        f"Version {version.version}, {policy.kind}, as it was after {version.examples_seq:,} examples.",
        frozenset(setting.arms),
        policy,
        setting.config.floor,
        version.examples_seq,
        f"learned by version {version.version}",
        frozen=True,
        taught=_taught(labels),
    )
    return _with_router(found, version.router, version.arms, setting)


def _same_positions(version: Version, setting: Setting) -> None:
    """Refuse a version that counts the rows of another training log. Raises PolicyError."""
    if version.join != setting.rule.join:
        raise PolicyError(
            f"version {version.version} has learned from feedback that was joined in another way than the "
            "configuration says, so its rows are not known here: configure the aggregation, "
            "`complete` and the wait time that it was learned under"
        )
