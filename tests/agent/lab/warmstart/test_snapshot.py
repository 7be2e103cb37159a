"""What a run begins from: the alarm that counts, and where a candidate begins to learn."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from armwise.agent.config import ConfigError, load, parse
from armwise.agent.lab.warmstart.run import RunSnapshot
from armwise.feedback.drift import Alarm
from armwise.feedback.log import Store
from armwise.feedback.registry import arm_sets
from armwise.feedback.training_log import StartingPoint
from tests.agent.lab.warmstart.test_run import LATE, TRAFFIC, World, alarm, cold, configured, world

__all__ = ["cold", "world"]  # fixtures


@pytest.mark.parametrize(("raised", "found"), [(TRAFFIC, TRAFFIC), (TRAFFIC + 1, None)])
def test_an_alarm_counts_once_it_is_joined(world: World, raised: int, found: int | None) -> None:
    alarm(world, raised)
    snapshot = RunSnapshot.take(world.config, world.store)
    assert snapshot.examples == 60
    assert (snapshot.alarm and snapshot.alarm.example_seq) == found
    assert snapshot.after == (found or 0)


@pytest.mark.parametrize(
    ("started", "raised", "after"), [(0, None, 0), (70, None, 70), (0, 50, 50), (70, 50, 70), (50, 70, 70)]
)
def test_a_candidate_learns_nothing_before_the_later_of_its_start_and_the_alarm(
    cold: World, started: int, raised: int | None, after: int
) -> None:
    snapshot = RunSnapshot.take(cold.config, cold.store)
    live = replace(snapshot.live, start=StartingPoint((), started) if started else None)
    newest = None if raised is None else Alarm("recipe", "reward", "adwin", 0.8, 0.1, raised, LATE)
    assert replace(snapshot, live=live, alarm=newest).after == after


def test_a_candidate_keeps_the_router_of_the_active_recipe_unless_it_brings_one(cold: World) -> None:
    snapshot = RunSnapshot.take(cold.config, cold.store)
    routed = replace(snapshot, live=replace(snapshot.live, router="kept"))
    assert snapshot.candidate().router is None
    assert routed.candidate().router == "kept"
    assert routed.candidate(router="brought").router == "brought"


# -- the arms that are labelled ---------------------------------------------------------------------------

MEMBERS = {
    "words": {"kind": "bm25", "action": False},
    "near": {"kind": "dense", "params": {"backbone": "tiny"}, "action": False},
    "both": {"kind": "rrf", "params": {"arms": ["words", "near"]}},
}


def labelled(tmp_path: Path, pool: list[str] | None, live: list[str] | None = None) -> list[str]:
    """Return the arms that a run labels, with a pool and other live arms than those of the file."""
    plan = None if pool is None else {"measure": "em", "pool": pool}
    config = parse({**configured(tmp_path, portfolio=plan).model_dump(mode="json"), "arms": MEMBERS})
    with closing(Store(config.database_url, config.reward.join)) as store:
        if live is not None:
            arm_sets.replace(store, live, config.arm_documents)
        return sorted(RunSnapshot.take(config, store).with_pool().actions)


def test_members_of_the_pool_are_labelled_as_well(tmp_path: Path) -> None:
    assert labelled(tmp_path, None) == ["both"]
    assert labelled(tmp_path, ["n*"]) == ["both", "near"]
    assert labelled(tmp_path, ["*"]) == ["both", "near", "words"]


def test_an_action_of_the_file_that_left_can_come_back_by_the_pool(tmp_path: Path) -> None:
    live = ["words"]
    assert labelled(tmp_path, None, live) == ["words"]
    assert labelled(tmp_path, ["near"], live) == ["both", "near", "words"]


def test_a_pool_that_matches_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"portfolio\.pool: no arm is called 'wrods'; did you mean 'words'"):
        labelled(tmp_path, ["wrods"])


def test_a_pool_that_matches_nothing_is_refused_with_its_file(tmp_path: Path) -> None:
    document = configured(tmp_path, portfolio={"measure": "em", "pool": ["dnese"]}).model_dump(mode="json")
    document["home"] = str(tmp_path / "home")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": document}]}))
    with pytest.raises(ConfigError, match=r"config\.yaml: warm_start\.portfolio\.pool: no arm .*'dense'"):
        load(path)
