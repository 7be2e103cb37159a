"""What a run begins from: the alarm that counts, and where a candidate begins to learn."""

from dataclasses import replace

import pytest

from armwise.agent.lab.warmstart.run import RunSnapshot
from armwise.feedback.drift import Alarm
from armwise.feedback.training_log import StartingPoint
from tests.agent.lab.warmstart.test_run import LATE, TRAFFIC, World, alarm, cold, world

__all__ = ["cold", "world"]  # fixtures


@pytest.mark.parametrize(("raised", "found"), [(TRAFFIC, TRAFFIC), (TRAFFIC + 1, None)])
def test_an_alarm_counts_once_its_example_is_in_the_training_log(
    world: World, raised: int, found: int | None
) -> None:
    alarm(world, raised)
    snapshot = RunSnapshot.of(world.config, world.store)
    assert snapshot.examples == 60
    assert (snapshot.alarm and snapshot.alarm.example_seq) == found
    assert snapshot.after == (found or 0)


@pytest.mark.parametrize(
    ("started", "raised", "after"), [(0, None, 0), (70, None, 70), (0, 50, 50), (70, 50, 70), (50, 70, 70)]
)
def test_a_candidate_learns_nothing_before_the_later_of_its_start_and_the_alarm(
    cold: World, started: int, raised: int | None, after: int
) -> None:
    snapshot = RunSnapshot.of(cold.config, cold.store)
    live = replace(snapshot.live, start=StartingPoint((), started) if started else None)
    newest = None if raised is None else Alarm("recipe", "reward", "adwin", 0.8, 0.1, raised, LATE)
    assert replace(snapshot, live=live, alarm=newest).after == after


def test_a_candidate_keeps_the_router_of_the_active_recipe_unless_it_brings_one(cold: World) -> None:
    snapshot = RunSnapshot.of(cold.config, cold.store)
    routed = replace(snapshot, live=replace(snapshot.live, router="kept"))
    assert snapshot.candidate().router is None
    assert routed.candidate().router == "kept"
    assert routed.candidate(router="brought").router == "brought"
