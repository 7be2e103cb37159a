"""A decision among actions of a request: one commit, and no answer before it."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from armwise.agent.policies import Exploration, FeatureSpec
from armwise.agent.turn import ArmInfo, Ask, Decided, Decider, Finished, Keeping, Serving, TurnLoop
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.events import Cost, Decision, KeptDraw, Mode, Status
from tests.agent.fakes import FakeArms, FakeEmbedders, MemoryLog, Preferring

SLOTS = ("action-1", "action-2", "action-3")
ASK = Ask(
    "d-1",
    '{"actions":["a","b"],"context":{}}',
    actions={"action-1": {"id=a": 1.0}, "action-2": {"id=b": 1.0}},
    ids={"action-1": "a", "action-2": "b"},
    context={"tier": "free"},
)


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def arms() -> FakeArms:
    return FakeArms()


@pytest.fixture
def loop(log: MemoryLog, arms: FakeArms) -> TurnLoop:
    policy = Preferring(**{"action-1": 1.0, "action-2": 3.0, "action-3": 9.0})
    return TurnLoop(
        arms={name: ArmInfo() for name in SLOTS},
        decider=Decider(Serving(policy, 7), explores=Exploration(0.1, 0.1), salt="salt", wait_s=60.0),
        embed=FakeEmbedders().embed,
        search=arms.search,
        models={},
        log=log,
        features=FeatureSpec(words=0, shape=False),
    )


async def test_the_positions_that_the_request_fills_are_drawn_from_and_nothing_is_searched(
    loop: TurnLoop, log: MemoryLog, arms: FakeArms
) -> None:
    async with aclosing(loop.turn(ASK)) as events:
        decided, finished = [event async for event in events]
    assert isinstance(decided, Decided)
    assert isinstance(finished, Finished)
    logged, execution = log.decision, log.execution
    assert decided.decision == logged
    assert logged.arms == ("action-1", "action-2")
    assert logged.probabilities == pytest.approx((0.3, 0.7))
    assert logged.context.arms == ASK.actions
    assert logged.context.features == {"tier=free": 1.0}
    assert (execution.served, execution.status, execution.cost) == (logged.drawn, Status.OK, Cost())
    assert execution.passages == (ASK.ids[logged.drawn],)
    assert arms.calls == []


async def test_no_answer_leaves_before_both_facts_are_durable(loop: TurnLoop, log: MemoryLog) -> None:
    log.held = True
    commits = list[object]()
    async with aclosing(loop.turn(ASK, commits.append)) as events:
        first = asyncio.ensure_future(anext(events))
        while not commits:
            await asyncio.sleep(0)
        assert not first.done()
        assert [len(facts) for facts, _ in log.waiting] == [2], "one commit has both"
        log.release()
        assert isinstance(await first, Decided)


async def test_a_caller_who_leaves_does_not_take_the_commit_along(loop: TurnLoop, log: MemoryLog) -> None:
    log.held = True
    async with aclosing(loop.turn(ASK)) as events:
        first = asyncio.ensure_future(anext(events))
        while not log.waiting:
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    assert not any(commit.cancelled() for _, commit in log.waiting)
    log.release()
    assert log.execution.decision_id == log.decision.id == "d-1"


async def test_a_log_that_refuses_is_told(loop: TurnLoop, log: MemoryLog) -> None:
    log.refuse = Decision
    with pytest.raises(LogUnavailableError):
        async with aclosing(loop.turn(ASK)) as events:
            await anext(events)
    assert log.committed == []


async def test_an_action_that_was_switched_off_or_excluded_is_not_drawn(
    loop: TurnLoop, log: MemoryLog
) -> None:
    loop.arms = {**loop.arms, "action-2": ArmInfo(enabled=False)}
    async with aclosing(loop.turn(ASK)) as events:
        await anext(events)
    assert log.decision.arms == ("action-1",)
    log.committed.clear()
    loop.arms = {name: ArmInfo() for name in SLOTS}
    async with aclosing(loop.turn(replace(ASK, excluded=frozenset({"action-1"})))) as events:
        await anext(events)
    assert log.decision.arms == ("action-2",)


async def test_one_that_its_caller_carries_out_is_drawn_whatever_its_conversation_had(
    loop: TurnLoop, log: MemoryLog
) -> None:
    async def find(_: str) -> KeptDraw:
        raise AssertionError("no arm is kept, so no draw is looked for")

    loop.find_draw, loop.decider.keeping = find, Keeping(9, 600.0)
    async with aclosing(loop.turn(Ask("d-1", "why?", episode_id="e", external=True))) as events:
        (decided,) = [event async for event in events]
    assert isinstance(decided, Decided)
    assert decided.decision == log.decision
    assert log.decision.mode is Mode.EXPLORE
