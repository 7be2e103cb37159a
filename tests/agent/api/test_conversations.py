"""A conversation keeps the arm that was drawn for its first turn, and its draw gets what its turns earn."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.agent.turn.steps.sticky import StickyStep
from armwise.feedback.decisions import concatenate
from armwise.feedback.drift.alarms import Alarm, raise_alarms
from armwise.feedback.events import Mode
from armwise.feedback.log import Store, listing
from armwise.feedback.log import tables as t
from armwise.feedback.log_columns import read_decisions
from armwise.feedback.training_log import (
    Joiner,
    find_difference,
    read_examples,
    take_epoch,
)
from tests.agent.asking import CHAT, QUESTION, look_up, tell
from tests.agent.fakes import Service, failing
from tests.feedback.examples import read_log

UNIFORM = {"kind": "uniform"}


@pytest.fixture
async def sticky(tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path, policy=UNIFORM, sticky="episode").running() as service:
        yield service


async def turn(service: Service, episode: str | None = "talk", **fields: Any) -> dict[str, Any]:
    """Ask once in an episode, and return how the arm was chosen."""
    options = {**fields.pop("agent", {}), **({} if episode is None else {"episode_id": episode})}
    answer = await look_up(service, agent=options, **fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["agent"]
    return found


async def test_later_turns_keep_the_arm_and_refer_to_the_draw(sticky: Service) -> None:
    first, *later = [await turn(sticky) for _ in range(6)]
    assert (first["mode"], first["propensity"]) == ("explore", pytest.approx(1 / 3))
    for one in later:
        assert (one["mode"], one["arm_drawn"], one["propensity"]) == ("continued", first["arm_drawn"], 1.0)
        assert one["pmf"] == {arm: float(arm == first["arm_drawn"]) for arm in ("none", "bm25", "dense")}
        record = (await sticky.client.get(f"/v1/decisions/{one['decision_id']}")).json()
        assert record["draw_id"] == first["decision_id"]
        verified = (await sticky.client.get(f"/v1/decisions/{one['decision_id']}/verify")).json()
        assert verified["verified"], verified["why"]
        assert verified["draw"] == {"u": None, "arm": first["arm_drawn"], "agrees": True}


async def test_a_continued_arm_that_its_draw_did_not_draw_is_not_verified(sticky: Service) -> None:
    first, second = await turn(sticky), await turn(sticky)
    other = next(arm for arm in first["pmf"] if arm != first["arm_drawn"])
    with sticky.replica.store.writing() as connection:
        d = t.decisions
        connection.execute(sa.update(d).where(d.c.id == first["decision_id"]).values(drawn=other))
    verified = (await sticky.client.get(f"/v1/decisions/{second['decision_id']}/verify")).json()
    assert not verified["verified"]
    assert verified["draw"]["arm"] == other


@pytest.mark.parametrize("changed", [{"mode": Mode.FORCED}, {"episode_id": "another"}])
async def test_a_continued_arm_without_its_draw_is_not_verified(
    sticky: Service, changed: dict[str, Any]
) -> None:
    first, second = await turn(sticky), await turn(sticky)
    with sticky.replica.store.writing() as connection:
        d = t.decisions
        connection.execute(sa.update(d).where(d.c.id == first["decision_id"]).values(**changed))
    verified = (await sticky.client.get(f"/v1/decisions/{second['decision_id']}/verify")).json()
    assert not verified["verified"]
    assert f"the log lacks the draw {first['decision_id']!r} of its episode" in verified["why"][0]


@pytest.mark.parametrize("episode", [None, "one of its own each time"])
async def test_requests_of_no_episode_or_of_another_one_draw(sticky: Service, episode: str | None) -> None:
    named = [episode and f"e-{n}" for n in range(8)]
    turns = [await turn(sticky, name) for name in named]
    assert {one["mode"] for one in turns} == {"explore"}
    assert len({one["arm_drawn"] for one in turns}) > 1


async def test_without_the_setting_every_turn_draws(tmp_path: Path) -> None:
    async with Service(tmp_path, policy=UNIFORM).running() as service:
        assert {(await turn(service))["mode"] for _ in range(4)} == {"explore"}
        assert set(service.replica.store.newest(4)[0].__slots__) >= {"draw_id"}
        assert {one.draw_id for one in service.replica.store.newest(4)} == {None}


async def test_any_replica_and_a_restarted_one_find_the_draw(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"policy": UNIFORM, "sticky": "episode"}
    async with Service(tmp_path, **changes).running() as one, Service(tmp_path, **changes).running() as other:
        turns = [await turn(replica) for replica in (one, other, one, other)]
    async with Service(tmp_path, **changes).running() as restarted:
        turns.append(await turn(restarted))
    assert [found["mode"] for found in turns] == ["explore"] + ["continued"] * 4
    assert len({found["arm_drawn"] for found in turns}) == 1


def keep(service: Service, turns: int) -> None:
    """Keep an arm for so many turns, and for ten seconds."""
    replica = service.replica
    step = StickyStep(turns, 10.0, replica.find_draw, replica.decider.clock, lambda: replica.alarm_at)
    replica.decider.steps = [step if one.name == "sticky" else one for one in replica.decider.steps]


async def test_the_limit_of_turns_counts_the_draw_and_then_another_draw_is_made(sticky: Service) -> None:
    keep(sticky, 3)
    turns = [await turn(sticky) for _ in range(7)]
    continued = ["continued"] * 2
    assert [one["mode"] for one in turns] == ["explore", *continued, "explore", *continued, "explore"]


async def test_a_conversation_that_was_idle_draws_again(sticky: Service) -> None:
    now = sticky.clock()
    sticky.replica.decider.clock = lambda: now
    await turn(sticky)
    keep(sticky, 20)
    now += 10.0
    assert (await turn(sticky))["mode"] == "continued", "until then, and since the newest turn"
    now += 10.0
    assert (await turn(sticky))["mode"] == "continued"
    now += 10.5
    assert (await turn(sticky))["mode"] == "explore"


async def test_a_drift_alarm_since_the_draw_ends_it(sticky: Service) -> None:
    await sticky.learn()
    await turn(sticky)
    assert (await turn(sticky))["mode"] == "continued"
    store, at = sticky.replica.store, sticky.clock()
    alarm = Alarm(sticky.learner.recipe.digest, "reward of none", "adwin", 0.8, 0.1, 1, at)
    raise_alarms(store, take_epoch(store, "test", 0.0), [alarm])
    await sticky.refresh()
    assert sticky.replica.alarm_at == at
    assert [(await turn(sticky))["mode"] for _ in range(2)] == ["explore", "continued"], "drawn after it"


async def test_turns_since_a_drift_alarm_keep_no_draw_from_before_it(sticky: Service) -> None:
    await sticky.learn()
    await turn(sticky)
    store, at = sticky.replica.store, sticky.clock()
    now = at + 1.0
    sticky.replica.decider.clock = lambda: now
    assert (await turn(sticky))["mode"] == "continued"
    alarm = Alarm(sticky.learner.recipe.digest, "reward of none", "adwin", 0.8, 0.1, 1, at)
    raise_alarms(store, take_epoch(store, "test", 0.0), [alarm])
    await sticky.refresh()
    assert sticky.replica.alarm_at == at
    assert (await turn(sticky))["mode"] == "explore"


@pytest.mark.parametrize("fails_at", [0, 1])
async def test_an_arm_that_failed_is_drawn_again(sticky: Service, fails_at: int) -> None:
    options: dict[str, Any] = {"agent": {"allowed_arms": ["bm25"]}}
    for number in range(fails_at + 1):
        sticky.arms.behaviour = {"bm25": failing} if number == fails_at else {}
        answer = await look_up(sticky, agent={"allowed_arms": ["bm25"], "episode_id": "talk"})
        assert answer.status_code == (200 if number < fails_at else 502)
    sticky.arms.behaviour = {}
    assert [(await turn(sticky, **options))["mode"] for _ in range(2)] == ["explore", "continued"]


async def test_an_arm_that_the_request_leaves_out_is_not_kept_and_the_next_draw_is(sticky: Service) -> None:
    first = await turn(sticky)
    second = await turn(sticky, agent={"excluded_arms": [first["arm_drawn"]]})
    third = await turn(sticky)
    assert (second["mode"], third["mode"]) == ("explore", "continued")
    assert first["arm_drawn"] != second["arm_drawn"] == third["arm_drawn"]


async def test_an_arm_that_was_switched_off_is_not_kept(sticky: Service) -> None:
    first = await turn(sticky)
    await sticky.replica.switch(first["arm_drawn"], enabled=False)
    assert (await turn(sticky))["mode"] == "explore"


@pytest.mark.parametrize("aside", [{"model": "arm/bm25"}, {"agent": {"explore": False}}])
async def test_a_forced_or_greedy_turn_neither_continues_nor_ends_it(
    sticky: Service, aside: dict[str, Any]
) -> None:
    assert (await turn(sticky, **aside))["mode"] in ("forced", "greedy")
    first = await turn(sticky)
    assert first["mode"] == "explore", "the one before is not kept"
    assert (await turn(sticky, **aside))["mode"] in ("forced", "greedy")
    last = await turn(sticky)
    assert (last["mode"], last["arm_drawn"]) == ("continued", first["arm_drawn"])


async def test_two_first_turns_at_once_both_draw_and_the_next_keeps_the_later_one(sticky: Service) -> None:
    step, reached = sticky.replica.find_step("sticky"), asyncio.Barrier(2)
    find = step._find_draw  # noqa: SLF001 - the seam to the log

    async def together(episode: str) -> Any:
        found = await find(episode)
        await reached.wait()
        return found

    step._find_draw = together  # noqa: SLF001
    await asyncio.gather(turn(sticky), turn(sticky))
    step._find_draw = find  # noqa: SLF001
    newest, before = sticky.replica.store.newest(2)
    assert {newest.mode, before.mode} == {Mode.EXPLORE}
    third = await turn(sticky)
    assert (third["mode"], third["arm_drawn"]) == ("continued", newest.drawn)


SESSIONS: dict[str, dict[str, Any]] = {
    "the episode": {"agent": {"episode_id": "s-1"}, "prompt_cache_key": "another"},
    "the metadata": {"metadata": {"session_id": "s-1"}, "prompt_cache_key": "another"},
    "the key of the cache": {"prompt_cache_key": "s-1"},
}


@pytest.mark.parametrize("named", SESSIONS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_session_is_named_as_clients_name_it(tmp_path: Path, named: str, path: str) -> None:
    body = CHAT if "chat" in path else {"input": QUESTION}
    async with Service(tmp_path, policy=UNIFORM, sticky="session").running() as service:
        answers = [await service.client.post(path, json=body | SESSIONS[named]) for _ in range(2)]
        found = [answer.json()["agent"] for answer in answers]
    assert [one["mode"] for one in found] == ["explore", "continued"]
    assert len({one["episode_id"] for one in found}) == 1
    assert (found[0]["episode_id"] == "s-1") == ("key" not in named), "the key of a cache is stored hashed"


async def test_the_draw_is_learned_once_with_the_means_of_its_turns(tmp_path: Path) -> None:
    reward = {"metrics": {"thumb": {"range": [-1, 1]}}, "wait_time": "PT3M", "cost_weight": 0.1}
    async with Service(tmp_path, policy=UNIFORM, sticky="episode", reward=reward).running() as service:
        store, clock = service.replica.store, service.clock
        searching = {"excluded_arms": ["none"]}  # whose steps are 0
        turns = [await turn(service, agent=searching) for _ in range(3)]
        for one, value in zip(turns, (1.0, 0.0, -0.25), strict=True):
            assert (await tell(service, one["decision_id"], value)).status_code == 202
        with store.writing() as connection:  # so that the turns differ, before the learner reads them
            e = t.executions
            dearer = sa.update(e).where(e.c.decision_id == turns[1]["decision_id"]).values(steps=4)
            connection.execute(dearer)
        await service.learn()
        assert list(read_examples(store, service.config.reward.join)) == [], "its last turn may get more"
        later, rule = clock() + 200.0, service.config.reward
        executions = [store.record(one["decision_id"]).execution for one in turns]  # type: ignore[union-attr]
        url = service.config.database_url
    with closing(Store(url, rule.join, clock=lambda: later)) as store:
        Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(later)
        (example,) = read_examples(store, rule.join)
        assert find_difference(store, rule)[1] == ""
        assert (example.decision.id, example.turns) == (turns[0]["decision_id"], 3)
        assert example.metrics == {"thumb": 0.25}
        steps = [done.cost.steps for done in executions if done]
        assert example.cost.steps == sum(steps)
        assert steps == [1, 4, 1]
        expected = 0.625 - 0.1 * sum(steps) / 3  # 0.25 in [-1, 1]
        assert rule.compute_reward(example) == pytest.approx(expected)
        (batched,) = read_log(store, rule).reward
        (row,) = [
            one for one in listing.decisions(store, rule, listing.DecisionFilter(), 9).decisions if one.reward
        ]
        table = concatenate([*read_decisions(store, rule, 0.0, later)])
        served = table.reward[~np.isnan(table.reward)].tolist()
        assert [batched, row.reward, *served] == pytest.approx([expected] * 3)


async def test_turns_that_the_decider_of_the_caller_takes_part_in_draw_each(tmp_path: Path) -> None:
    """Its choice is of this turn: an arm that was kept would not be drawn from the mixture on record."""
    changes: dict[str, Any] = {"policy": UNIFORM, "sticky": "episode", "tap": {"share": 0.5}}
    async with Service(tmp_path, **changes).running() as service:
        turns = [await turn(service, agent={"incumbent": {"arm": "bm25"}}) for _ in range(4)]
        assert {one["mode"] for one in turns} == {"explore"}
        assert all(one["pmf"]["bm25"] == pytest.approx(0.5 + 0.5 / 3) for one in turns)
        assert (await turn(service))["mode"] == "explore", "nothing was kept"
        assert (await turn(service))["mode"] == "continued"


@pytest.mark.parametrize(
    ("tap", "asked"), [({"share": 0.5, "incumbent": "bm25"}, None), ({"share": 1.0}, "none")]
)
async def test_a_choice_that_is_not_of_a_single_turn_leaves_a_conversation_its_arm(
    tmp_path: Path, tap: dict[str, Any], asked: str | None
) -> None:
    """The configuration names it for all turns, or it takes no part at all."""
    agent = {} if asked is None else {"incumbent": {"arm": asked}}
    changes: dict[str, Any] = {"policy": UNIFORM, "sticky": "episode", "tap": tap}
    async with Service(tmp_path, **changes).running() as service:
        first, *later = [await turn(service, agent=agent) for _ in range(4)]
        mixed = {"none": 1 / 6, "bm25": 0.5 + 1 / 6, "dense": 1 / 6}
        assert first["pmf"] == pytest.approx(mixed if asked is None else dict.fromkeys(mixed, 1 / 3))
        assert [(one["mode"], one["arm_drawn"]) for one in later] == [("continued", first["arm_drawn"])] * 3
        for one in (first, *later):
            path = f"/v1/decisions/{one['decision_id']}/verify"
            assert (await service.client.get(path)).json()["verified"]
        assert (await turn(service, agent={"incumbent": {"arm": "dense"}}))["mode"] == (
            "explore" if asked is None else "continued"
        ), "a choice of this turn takes part in its draw"
