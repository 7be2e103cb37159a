"""After an alarm more is explored for a while, as the log says, and labels are asked for until some come."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.agent.config import ConfigError, parse
from armwise.agent.learning.learner import Learner
from armwise.agent.learning.recipe import Recipe
from armwise.agent.policies import PolicySpec
from armwise.feedback.clock import SteadyClock
from armwise.feedback.drift import Alarm, DriftSpec, newest_alarms, read_alarms
from armwise.feedback.drift.alarms import raise_alarms
from armwise.feedback.events import Context, Cost, Decision, Execution, Feedback, Status
from armwise.feedback.log import Operation, Store, operations
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import take_epoch
from tests.agent.asking import look_up, record
from tests.agent.fakes import CONFIG, Service
from tests.agent.lab.warmstart.test_insert_labels import outcomes_file, warmed

NOW = 1_800_000_000.0
RAISED = {"exploration": 0.75}
SURE = {"kind": "fixed", "params": {"arm": "dense"}}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service whose policy always takes the same arm, at a time that is set."""
    service = Service(tmp_path, policy=SURE, floor=0.01, drift=RAISED)
    async with service.running():
        at(service, NOW)
        yield service


class Set(SteadyClock):
    """A clock that stands."""

    def __init__(self, now: float) -> None:
        super().__init__()
        self._now = now

    def __call__(self) -> float:
        return self._now


def at(service: Service, now: float) -> None:
    """Set the clock that says until when the floor is raised."""
    service.replica.clock = Set(now)


def alarm(service: Service, seen_at: float, seq: int = 1) -> None:
    store = service.replica.store
    epoch = take_epoch(store, "test", seen_at)
    recipe = service.learner.recipe.digest
    raise_alarms(store, epoch, [Alarm(recipe, "reward of bm25", "adwin", 0.75, 0.25, seq, seen_at)])


async def floor_of_a_turn(service: Service) -> float:
    """Ask a question, and return the floor of its decision, checked against the distribution."""
    await service.refresh()
    asked = (await look_up(service)).json()["agent"]
    decision = (await record(service, asked["decision_id"], lambda found: found.execution)).decision
    assert decision.arms == ("none", "bm25", "dense")
    low, high = decision.floor, 1 - 2 * decision.floor
    assert decision.probabilities == pytest.approx((low, low, high))
    assert asked["propensity"] == decision.propensity
    return decision.floor


async def shown(service: Service) -> Any:
    return (await service.client.get("/v1/policy")).json()["drift"]


async def test_an_alarm_raises_the_floor_and_the_log_says_so_until_its_time_is_over(service: Service) -> None:
    assert await floor_of_a_turn(service) == 0.01
    alarm(service, NOW)
    assert await floor_of_a_turn(service) == 0.25
    at(service, NOW + 599)
    assert await floor_of_a_turn(service) == 0.25
    at(service, NOW + 3600)
    assert await floor_of_a_turn(service) == 0.01


async def test_a_second_alarm_starts_the_time_anew(service: Service) -> None:
    alarm(service, NOW)
    alarm(service, NOW + 300, seq=2)
    at(service, NOW + 3899)
    assert await floor_of_a_turn(service) == 0.25
    at(service, NOW + 3900)
    assert await floor_of_a_turn(service) == 0.01


async def test_an_alarm_of_long_ago_raises_nothing(service: Service) -> None:
    alarm(service, NOW - 3600)
    assert await floor_of_a_turn(service) == 0.01
    assert (await shown(service))["warm_start_open"] is True


async def test_an_alarm_of_another_training_log_raises_nothing(service: Service) -> None:
    alarm(service, NOW)
    with service.replica.store.writing() as connection:
        connection.execute(sa.update(t.versions).values(join="of other metrics"))
    assert await floor_of_a_turn(service) == 0.01
    assert (await shown(service))["alarms"] == 0


async def test_a_floor_that_is_higher_anyhow_stays(tmp_path: Path) -> None:
    service = Service(tmp_path, policy=SURE, floor=0.3, drift={"exploration": 0.5})
    async with service.running():
        at(service, NOW)
        alarm(service, NOW)
        assert await floor_of_a_turn(service) == 0.3


async def test_without_drift_in_the_configuration_an_alarm_changes_nothing(tmp_path: Path) -> None:
    service = Service(tmp_path, policy=SURE, drift=None)
    async with service.running():
        at(service, NOW)
        alarm(service, NOW)
        assert await floor_of_a_turn(service) == pytest.approx(0.02 / 3)
        assert await shown(service) is None


async def test_the_policy_tells_of_the_last_alarm(service: Service) -> None:
    await service.refresh()
    assert await shown(service) == {
        "alarms": 0,
        "last": None,
        "floor": 0.01,
        "until": None,
        "warm_start_open": False,
    }
    alarm(service, NOW - 60)
    alarm(service, NOW, seq=2)
    await service.refresh()
    last = {"subject": "reward of bm25", "detector": "adwin", "before": 0.75, "after": 0.25}
    assert await shown(service) == {
        "alarms": 2,
        "last": {**last, "example_seq": 2, "at": NOW, "rater": None},
        "floor": 0.25,
        "until": NOW + 3600,
        "warm_start_open": True,
    }
    metrics = (await service.client.get("/metrics")).text
    assert "armwise_drift_alarms 2.0" in metrics.splitlines()


async def test_labels_that_are_entered_close_what_an_alarm_has_opened(service: Service) -> None:
    alarm(service, NOW - 1e9)  # before the labels, whose time is that of this machine
    outcomes = outcomes_file(service.folder, 5)
    store = service.replica.store
    await asyncio.to_thread(warmed, service.config, outcomes, dry_run=True)
    assert read_alarms(store).warm_start_open, "nothing was entered"
    await asyncio.to_thread(warmed, service.config, outcomes)
    assert not read_alarms(store).warm_start_open
    await asyncio.to_thread(warmed, service.config, outcomes)
    with store.reading() as connection:
        warmed_up = operations.read_all(connection, Operation.WARM_START)
    assert [row.document["labels"] for row in warmed_up] == [15], "entered once"


def test_a_setting_of_drift_that_is_not_known_is_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'drift.floor'.*exploration"):
        parse({**CONFIG, "drift": {"floor": 0.1}})
    assert parse(CONFIG).drift == DriftSpec(), "on, unless it is told not to be"
    assert parse(parse(CONFIG).model_dump(mode="json")).drift == DriftSpec()


# -- the learner ------------------------------------------------------------------------------------------

RULE = RewardRule(correction_time="PT0S", metrics={"right": Metric()}, cost_weight=0.0)
SPEC = PolicySpec(kind="uniform")
TURNS = 400
"""Of a log in which an arm begins to fail half-way."""


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[Callable[[str], Store]]:
    """Make logs by name."""
    made: list[Store] = []

    def make(name: str) -> Store:
        made.append(Store(f"sqlite:///{tmp_path / name}.db"))
        return made[-1]

    yield make
    for store in made:
        store.close()


def happen(store: Store, turns: range) -> None:
    """Write judged turns; each number always gives the same."""
    right = np.random.default_rng(0).random(TURNS) < np.where(np.arange(TURNS) < TURNS // 2, 0.9, 0.1)
    facts: list[Decision | Execution | Feedback] = []
    for number in turns:
        name = f"d-{number}"
        context = Context("which?", {"w=river": 1.0})
        decision = Decision(
            name, context, ("a", "b"), (0.5, 0.5), "a", "uniform", 1, decided_at=100.0, deadline=160.0
        )
        facts += (
            decision,
            Execution(name, "a", Status.OK, Cost(), finished_at=100.0),
            Feedback(f"{name}:right", name, "right", float(right[number]), 101.0),
        )
    store.append(facts)


def learner(store: Store, spec: DriftSpec | None, policy: PolicySpec = SPEC) -> Learner:
    epoch = take_epoch(store, "test", 100.0)
    return Learner(store, Recipe(policy, RULE), ["a", "b"], epoch, lambda: 102.0, drift=spec)


def alarms_of(store: Store) -> list[tuple[Any, ...]]:
    return [astuple(alarm) for alarm in reversed(newest_alarms(store, 99))]


@pytest.mark.slow
def test_alarms_do_not_depend_on_steps_or_restarts(
    make_store: Callable[[str], Store],
) -> None:
    at_once = make_store("a")
    happen(at_once, range(TURNS))
    learner(at_once, DriftSpec()).step()
    ((_, subject, detector, before, after, seq, seen_at, _),) = alarms_of(at_once)
    assert (subject, detector, seen_at) == ("reward of a", "adwin", 102.0)
    assert TURNS // 2 < seq < TURNS
    assert before > after

    in_steps = make_store("b")
    for start in range(0, TURNS, 60):
        happen(in_steps, range(start, min(start + 60, TURNS)))
        one = learner(in_steps, DriftSpec())  # each takes up what the one before it has published
        one.step()
        one.step()
    assert alarms_of(in_steps) == alarms_of(at_once)


def test_a_learner_that_is_not_to_look_raises_none(make_store: Callable[[str], Store]) -> None:
    store = make_store("log")
    happen(store, range(TURNS))
    learner(store, None).step()
    assert alarms_of(store) == []


ADAPTIVE = PolicySpec(kind="adaptive")


@pytest.mark.slow
def test_alarms_of_restarting_policies_do_not_depend_on_steps(
    make_store: Callable[[str], Store],
) -> None:
    at_once = make_store("a")
    happen(at_once, range(TURNS))
    learner(at_once, DriftSpec(), ADAPTIVE).step()
    found = alarms_of(at_once)
    ((_, subject, _, before, after, seq, seen_at, _),) = [row for row in found if row[2] == "policy"]
    assert (subject, seen_at) == ("restart, reward of a", 102.0)
    assert TURNS // 2 < seq < TURNS // 2 + 60
    assert before == pytest.approx(0.9, abs=0.1)
    assert after < before, "some of the 100 that are kept at least came before"

    in_steps = make_store("b")
    for start in range(0, TURNS, 60):
        happen(in_steps, range(start, min(start + 60, TURNS)))
        one = learner(in_steps, DriftSpec(), ADAPTIVE)
        one.step()
        one.step()
    assert alarms_of(in_steps) == found


@pytest.mark.slow
def test_a_restart_is_told_where_no_alarms_are_raised(
    make_store: Callable[[str], Store], caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store("log")
    happen(store, range(TURNS))
    learner(store, None, ADAPTIVE).step()
    assert alarms_of(store) == []
    (told,) = [record.getMessage() for record in caplog.records if "restarts" in record.getMessage()]
    assert re.fullmatch(
        r"example 2\d\d: the policy restarts .* \d+ rewards, because a now earns 0\.\d+ .* 0\.\d+ before",
        told,
    )
