"""The arm set of a replica over a log alone: what is read, when it is built, and what it replaces."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from armwise.agent.background import Work, read_failures
from armwise.agent.config import AppConfig, parse
from armwise.agent.routers import saved
from armwise.agent.run_folder import RUN_FOLDER
from armwise.agent.serving.arms import ArmRegistry, LoggedArms
from armwise.agent.turn import TurnLoop
from armwise.arms.retrievers import ArmSpec
from armwise.feedback.log import Store
from armwise.feedback.registry import ArmSet, arm_sets
from tests.agent.fakes import CONFIG, FakeArms
from tests.agent.serving.test_arm_replacement import ARMS, FUSED, NEW

OTHER = ("none", "hybrid", "fused")


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    return parse(
        {
            **CONFIG,
            "arms": {**ARMS, "hybrid": {**FUSED, "action": False}},
            "log_url": f"sqlite:///{tmp_path / 'log.db'}",
        }
    )


class Replica:
    """A registry of arms with what it acts on.

    Attributes:
        arms: Builds; waits for `go_on` where that is cleared.
        turns: The arms that turns draw among.
    """

    def __init__(self, config: AppConfig, store: Store, router: saved.RouterFacts | None = None) -> None:
        self.arms = FakeArms()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.builds: list[frozenset[str]] = []
        load = self.arms.load

        async def slow(specs: Mapping[str, ArmSpec]) -> None:
            self.builds.append(frozenset(specs))
            await self.go_on.wait()
            await load(specs)

        self.arms.load = slow  # type: ignore[method-assign]
        self.turns = SimpleNamespace(arms={}, former={})
        self.registry = ArmRegistry(config, store, self.arms, cast(TurnLoop, self.turns), router)

    async def follow(self) -> None:
        await self.registry.follow(self.registry.read())

    async def built(self) -> None:
        """Wait until no build is under way."""
        for task in asyncio.all_tasks():
            if task.get_name() == "arm-builder":
                await asyncio.wait([task])

    @property
    def names(self) -> list[str]:
        return list(self.turns.arms)


@pytest.fixture
async def replica(config: AppConfig, store: Store) -> Replica:
    """One that serves the configured arms."""
    found = Replica(config, store)
    await found.follow()
    return found


async def test_the_first_reading_records_the_configured_arms(config: AppConfig, store: Store) -> None:
    one = Replica(config, store)
    configured = tuple(CONFIG["arms"])
    assert one.registry.seq == 0
    assert one.registry.read() == LoggedArms(ArmSet(1, configured), frozenset())
    assert arm_sets.live(store) == ArmSet(1, configured)
    arm_sets.switch(store, "none", enabled=False, now=0.0)
    assert one.registry.read() == LoggedArms(ArmSet(1, configured), frozenset({"none"})), "it is not served"
    await one.follow()
    assert one.registry.read() == LoggedArms(None, frozenset({"none"}))


def test_a_start_says_once_which_arms_are_gone(
    config: AppConfig, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    arm_sets.start(store, {"cheap": {"kind": "none"}})
    Replica(config, store).registry.read()
    assert "; gone: cheap. What was learned about cheap is not used." in caplog.text
    caplog.clear()
    Replica(config, store).registry.read()
    assert caplog.text == ""


async def test_the_configured_arms_are_served_without_being_built_again(replica: Replica) -> None:
    assert (replica.registry.seq, replica.builds, replica.names) == (1, [], list(CONFIG["arms"]))
    assert replica.arms.known >= frozenset(CONFIG["arms"])
    assert replica.turns.arms["dense"].backbones == frozenset({"tiny"})
    assert replica.turns.former == {}


async def test_a_first_set_of_other_arms_is_built_before_it_is_served(
    replica: Replica, config: AppConfig, store: Store
) -> None:
    await replica.registry.replace(NEW)
    second = Replica(config, store)
    await second.follow()
    assert (second.registry.seq, len(second.builds), second.names) == (2, 1, ["none", "fused"])
    assert second.registry.config.arms == replica.registry.config.arms


async def test_a_newer_set_is_built_once_beside_the_turns_and_then_served(
    replica: Replica, config: AppConfig, store: Store
) -> None:
    second = Replica(config, store)
    await second.follow()
    await replica.registry.replace(NEW)
    second.go_on.clear()
    for _ in range(3):
        await second.follow()
        await asyncio.sleep(0)
        assert second.names == list(CONFIG["arms"])
    second.go_on.set()
    await second.built()
    assert (second.registry.seq, second.names, len(second.builds)) == (2, ["none", "fused"], 1)
    assert list(second.turns.former) == list(CONFIG["arms"])
    await replica.registry.replace(OTHER)
    await second.follow()
    await second.built()
    assert set(second.names) == {"none", "hybrid", "fused"}
    assert set(second.turns.former) == {"none", "bm25", "dense", "fused"}


async def test_a_set_that_was_built_too_late_does_not_replace_a_newer_one(
    replica: Replica, config: AppConfig, store: Store
) -> None:
    second = Replica(config, store)
    await second.follow()
    await replica.registry.replace(NEW)
    second.go_on.clear()
    await second.follow()
    await asyncio.sleep(0)
    replaced = asyncio.create_task(second.registry.replace(OTHER))
    async with asyncio.timeout(30):
        while len(second.builds) < 2:
            await asyncio.sleep(0)
    slow = second.registry.read()
    assert slow.newer is not None
    assert slow.newer.seq == 2
    second.go_on.set()
    await replaced
    await second.built()
    assert (second.registry.seq, set(second.names)) == (3, {"none", "hybrid", "fused"})
    await second.registry.follow(slow)
    await second.built()
    assert (second.registry.seq, set(second.names)) == (3, {"none", "hybrid", "fused"})


async def test_a_stopped_registry_builds_no_further(
    replica: Replica, config: AppConfig, store: Store
) -> None:
    replica.registry.stop()
    second = Replica(config, store)
    await second.follow()
    await replica.registry.replace(NEW)
    second.go_on.clear()
    await second.follow()
    await asyncio.sleep(0)
    second.registry.stop()
    await second.built()
    second.go_on.set()
    assert (second.names, second.registry.seq) == (list(CONFIG["arms"]), 1)


@pytest.mark.parametrize("served", [False, True], ids=["starting", "serving"])
async def test_a_set_that_cannot_be_built_is_tried_again_after_a_pause_and_warned_of_once(
    replica: Replica,
    config: AppConfig,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    *,
    served: bool,
) -> None:
    now = 1000.0
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    second = Replica(config, store)
    if served:
        await second.follow()
    second.arms.unbuildable = frozenset({"fused"})
    await replica.registry.replace(NEW)
    for later, builds in ((0.0, 1), (29.0, 1), (30.0, 2), (59.0, 2), (60.0, 3)):
        now = 1000.0 + later
        await second.follow()
        await second.built()
        assert len(second.builds) == builds
        (failure,) = read_failures()
        assert (failure.work, failure.attempts, "fused" in failure.why) == (Work.ARMS, builds, True)
    second.arms.unbuildable = frozenset()
    now += 30.0
    await second.follow()
    await second.built()
    assert (second.registry.seq, second.names) == (2, ["none", "fused"])
    assert read_failures() == []
    warned = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert warned == ["arm set 2 cannot be served, so the earlier arms stay: arm 'fused' cannot be built"]


async def test_switches_apply_to_live_arms(replica: Replica, store: Store) -> None:
    arms = replica.turns.arms
    arm_sets.switch(store, "fused", enabled=False, now=0.0)
    await replica.follow()
    assert replica.turns.arms is arms, "that arm is not live"
    arm_sets.switch(store, "dense", enabled=False, now=0.0)
    await replica.follow()
    assert {name: info.enabled for name, info in replica.turns.arms.items()} == {
        "none": True,
        "bm25": True,
        "dense": False,
    }
    assert replica.turns.arms["dense"].backbones == arms["dense"].backbones
    await replica.registry.replace(NEW)
    assert not replica.turns.arms["fused"].enabled
    arm_sets.switch(store, "fused", enabled=True, now=0.0)
    await replica.follow()
    assert replica.turns.arms["fused"].enabled


async def test_a_router_that_does_not_know_a_new_arm_is_warned_of(
    config: AppConfig, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    about = saved.RouterFacts.model_construct(arms=tuple(CONFIG["arms"]))
    one = Replica(config, store, about)
    await one.follow()
    assert caplog.messages == []
    await one.registry.replace(NEW)
    assert caplog.messages == ["the router was not trained on fused: it gives them no score"]
