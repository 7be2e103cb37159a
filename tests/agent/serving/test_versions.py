"""Which version a replica serves, by the versions and promotions of the log."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from armwise.agent.config import AppConfig, parse
from armwise.agent.learning import Recipe
from armwise.agent.policies import Policy, PolicyError, PolicySpec
from armwise.agent.serving.router_scores import RouterScorer, Scorers
from armwise.agent.serving.versions import ReplicaState, ServedVersion, Versions
from armwise.arms.base import ArmError
from armwise.feedback.drift import Alarms
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import ActivePolicy, Version, promotions, versions
from armwise.feedback.registry.promotions import Action, Promotion
from tests.agent.fakes import CONFIG, FakeArms, FakeEmbedders

# -- over a log without a service ----------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    return parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}", "policy": {"kind": "linucb"}})


class Restored:
    """Stands in for restoring: counts what is asked, and fails on demand."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []
        self.failing = True

    def __call__(self, *args: Any, empty: Policy, relearn: bool) -> Policy:
        _, version, *_ = args
        self.asked.append((version.version, relearn))
        if self.failing:
            raise PolicyError("it is lost")
        return empty


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Restored:
    found = Restored()
    monkeypatch.setattr("armwise.agent.serving.versions.restore_policy", found)
    return found


def published(
    store: Store, config: AppConfig, kind: str = "linucb", examples: int = 0, **params: Any
) -> Version:
    """Publish a version of a policy without a history; it may name the arm `gone`, which is not live."""
    recipe = Recipe(PolicySpec(kind=kind, params=params), config.reward)
    state = recipe.build([*config.actions, "gone"]).save()
    number = versions.publish_beside(store, recipe.draft(state, examples, 0, None, 0, 0.0), state)
    version = versions.find(store, number)
    assert version is not None
    return version


def record(store: Store, config: AppConfig, action: Action, version: Version, share: float = 0.0) -> None:
    promotion = Promotion(0, version.version, action, "because", 0.0, share=share)
    promotions.record(store, Recipe.from_config(config).digest, promotion)


def damage(store: Store, *damaged: Version) -> None:
    numbers = [version.version for version in damaged]
    with store.writing() as connection:
        named = t.versions.c.version.in_(numbers)
        connection.execute(sa.update(t.versions).where(named).values(state=b"damaged"))


def versions_of(store: Store, config: AppConfig) -> Versions:
    return Versions(store, config, Scorers(store, config, FakeArms().vectors, FakeEmbedders().embed))


def served(state: ReplicaState) -> ServedVersion:
    assert state.served is not None
    return state.served


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_before_there_is_a_version_nothing_is_served(store: Store, config: AppConfig) -> None:
    known = versions_of(store, config)
    assert known.read(None) == ReplicaState(None, ActivePolicy(Recipe.from_config(config).digest))
    assert known.recipe is known.configured
    assert known.arms == list(config.actions)
    assert known.empty.kind == "linucb"


def test_a_newer_version_replaces_the_served_one_and_an_older_never(store: Store, config: AppConfig) -> None:
    known = versions_of(store, config)
    first = published(store, config)
    state = known.read(None)
    assert (served(state).version, served(state).policy.kind) == (first, "linucb")
    assert known.read(served(state)).served is served(state)
    published(store, config, kind="uniform", examples=9)
    assert known.read(served(state)).served is served(state), "it is of another recipe"
    second = published(store, config, examples=1)
    assert served(known.read(served(state))).version == second


def test_a_version_is_restored_with_the_policy_of_its_recipe(
    store: Store, config: AppConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    def restore(*args: Any, empty: Policy, relearn: bool) -> Policy:
        calls.append((*args, empty.kind, relearn))
        return empty

    monkeypatch.setattr("armwise.agent.serving.versions.restore_policy", restore)
    ours, other = published(store, config), published(store, config, kind="fixed", arm="none")
    known = versions_of(store, config)
    assert served(known.read(None)).policy is known.empty
    record(store, config, Action.ROLLBACK, other)
    assert served(known.read(None)).version == other
    rest = config.reward, list(config.actions)
    assert calls == [(store, ours, *rest, "linucb", False), (store, other, *rest, "fixed", True)]


def test_the_pinned_version_is_served_and_no_newer_one(store: Store, config: AppConfig) -> None:
    first, newest = published(store, config), published(store, config, examples=1)
    known = versions_of(store, config)
    state = known.read(None)
    assert served(state).version == newest
    record(store, config, Action.ROLLBACK, first)
    state = known.read(served(state))
    assert served(state).version == first
    assert state.active.pin is not None
    assert known.read(served(state)).served is served(state)


def test_a_pin_that_cannot_be_built_here_is_passed_over_and_warned_of_once(
    store: Store, config: AppConfig, caplog: pytest.LogCaptureFixture
) -> None:
    first, newest = published(store, config), published(store, config, examples=1)
    gone = published(store, config, kind="fixed", arm="gone")
    known = versions_of(store, config)
    record(store, config, Action.ROLLBACK, gone)
    for _ in range(3):
        assert served(known.read(None)).version == newest
    (warning,) = warned(caplog)
    assert warning.startswith(
        f"version {gone.version} was promoted but cannot be served, so it is skipped: policy 'fixed' names"
    )
    record(store, config, Action.ROLLBACK, first)
    assert served(known.read(None)).version == first
    record(store, config, Action.ROLLBACK, gone)
    assert served(known.read(None)).version == newest
    assert warned(caplog) == [warning, warning], "once for each rollback"


def test_a_damaged_version_is_warned_of_once_and_the_one_before_stays(
    store: Store, config: AppConfig, caplog: pytest.LogCaptureFixture
) -> None:
    first = published(store, config)
    known = versions_of(store, config)
    state = known.read(None)
    second = published(store, config, examples=1)
    damage(store, second)
    for _ in range(2):
        assert known.read(served(state)).served is served(state)
    lost = "checkpoint of version {} is missing or damaged; the version before it stays in service"
    assert warned(caplog) == [lost.format(second.version)]
    third = published(store, config, examples=2)
    damage(store, third)
    assert known.read(served(state)).served is served(state)
    assert warned(caplog) == [lost.format(second.version), lost.format(third.version)]
    assert served(versions_of(store, config).read(None)).version == first


def test_where_all_versions_are_damaged_nothing_is_served(store: Store, config: AppConfig) -> None:
    damage(store, published(store, config), published(store, config, examples=1))
    assert versions_of(store, config).read(None).served is None


def test_a_damaged_pinned_version_is_not_replaced_and_learned_again_once_per_rollback(
    store: Store, config: AppConfig, restored: Restored, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = published(store, config), published(store, config, examples=1)
    known = versions_of(store, config)
    for attempts in ([True, False, False], [True, False]):
        restored.asked.clear()
        record(store, config, Action.ROLLBACK, first)
        for _ in attempts:
            assert known.read(None).served is None
        assert restored.asked == [(first.version, relearn) for relearn in attempts]
    assert warned(caplog) == ["it is lost; it was promoted: promote another version"] * 2
    restored.failing = False
    assert served(known.read(None)).version == first


def test_a_lost_candidate_is_learned_again_once_per_promotion_and_then_only_read(
    store: Store, config: AppConfig, restored: Restored, caplog: pytest.LogCaptureFixture
) -> None:
    candidate = published(store, config, kind="fixed", arm="none")
    known = versions_of(store, config)
    assert known.read(None).canaries == ()
    for attempts in ([True, False, False], [True, False]):
        restored.asked.clear()
        record(store, config, Action.CANARY, candidate, 0.25)
        for _ in attempts:
            assert known.read(None).canaries == ()
        assert restored.asked == [(candidate.version, relearn) for relearn in attempts]
    assert warned(caplog) == ["it is lost; this candidate gets no traffic, although it was given a share"] * 2
    restored.failing = False
    (canary,) = known.read(None).canaries
    assert (canary.version, canary.share, canary.policy.kind) == (candidate.version, 0.25, "fixed")
    restored.asked.clear()
    assert known.read(None).canaries[0] is canary
    assert restored.asked == []
    record(store, config, Action.CANARY, candidate, 0.5)
    (canary,) = known.read(None).canaries
    assert canary.share == 0.5
    record(store, config, Action.CANARY, candidate, 0.0)
    assert known.read(None).canaries == ()


def test_a_canary_taken_over_keeps_its_policy(store: Store, config: AppConfig) -> None:
    candidate = published(store, config, kind="fixed", arm="none")
    known, configured = versions_of(store, config), Recipe.from_config(config).digest
    seen = []
    for share, automatic in ((0.06, True), (0.06, False), (0.06, True), (0.12, True)):
        promotion = Promotion(
            0, candidate.version, Action.CANARY, "held", 0.0, share=share, automatic=automatic
        )
        promotions.record(store, configured, promotion)
        seen += known.read(None).canaries
    assert [one.share for one in seen] == [0.06, 0.06, 0.06, 0.12]
    assert all(one.policy is seen[0].policy for one in seen)


def test_a_promoted_recipe_is_followed_and_can_be_left(store: Store, config: AppConfig) -> None:
    ours, fixed = published(store, config), published(store, config, kind="fixed", arm="none")
    known = versions_of(store, config)
    state = known.read(None)
    record(store, config, Action.PROMOTE, fixed)
    state = known.read(served(state))
    assert (served(state).version, known.recipe.digest, known.empty.kind) == (
        fixed,
        fixed.recipe,
        "fixed",
    )
    empty = known.empty
    assert known.read(served(state)).served is served(state)
    assert known.empty is empty, "it is built once"
    record(store, config, Action.PROMOTE, ours)
    state = known.read(served(state))
    assert (served(state).version, known.recipe, known.empty.kind) == (ours, known.configured, "linucb")


class ColdScorer:
    """A router whose encoder cannot be reached."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def warm_up(self, _: object) -> None:
        raise ArmError(f"the encoder of {self.name} is away")


async def test_each_router_that_cannot_score_yet_is_logged_once(
    config: AppConfig, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    scorers = Scorers(store, config, FakeArms().vectors, FakeEmbedders().embed)
    first: Any = ColdScorer("the first")
    second: Any = ColdScorer("the second")
    for scorer in (first, first, second, first, second):
        assert not await scorers.warm_up_all([scorer])
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        "the encoder of the first is away",
        "the encoder of the second is away",
    ]


async def test_what_is_read_beside_a_version_whose_router_cannot_score_yet_holds_at_once(
    store: Store, config: AppConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = versions_of(store, config)

    async def refuse(_self: Scorers, scorers: Iterable[object]) -> bool:
        return not [*scorers]

    monkeypatch.setattr(Scorers, "warm_up_all", refuse)
    scorer = RouterScorer.__new__(RouterScorer)
    new = ServedVersion(published(store, config), known.empty, scorer)
    await known.follow(ReplicaState(new, known.active, alarms=Alarms(3)))
    assert (known.state.served, known.state.alarms.count) == (None, 3)
