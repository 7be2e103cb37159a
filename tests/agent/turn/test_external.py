"""A decision that its caller carries out: one commit, and no answer before it."""

import asyncio
from contextlib import aclosing

import pytest

from armwise.agent.policies import Exploration, FeatureSpec
from armwise.agent.turn import ArmInfo, Ask, Decided, Serving, TurnLoop
from armwise.agent.turn.steps.sticky import StickyStep
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.events import Decision, KeptDraw, Mode
from tests.agent.fakes import FakeArms, FakeEmbedders, MemoryLog, Preferring
from tests.agent.turns import make_decider, make_turns

ARMS = ("a", "b", "c")
ASK = Ask("d-1", "why?", context={"tier": "free"}, external=True)


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def arms() -> FakeArms:
    return FakeArms()


@pytest.fixture
def loop(log: MemoryLog, arms: FakeArms) -> TurnLoop:
    policy = Preferring(a=1.0, b=3.0, c=9.0)
    decider = make_decider(Serving(policy, 7), Exploration(0.1, 0.1))
    infos, features = {name: ArmInfo() for name in ARMS}, FeatureSpec(words=0, shape=False)
    return make_turns(infos, decider, FakeEmbedders().embed, arms.search, log, features=features)


async def test_an_arm_is_drawn_and_nothing_is_searched(
    loop: TurnLoop, log: MemoryLog, arms: FakeArms
) -> None:
    async with aclosing(loop.turn(ASK)) as events:
        (decided,) = [event async for event in events]
    assert isinstance(decided, Decided)
    logged = log.decision
    assert decided.decision == logged
    assert logged.arms == ARMS
    assert logged.context.features == {"tier=free": 1.0}
    assert arms.calls == []


async def test_no_answer_leaves_before_the_decision_is_durable(loop: TurnLoop, log: MemoryLog) -> None:
    log.held = True
    commits = list[object]()
    async with aclosing(loop.turn(ASK, commits.append)) as events:
        first = asyncio.ensure_future(anext(events))
        while not commits:
            await asyncio.sleep(0)
        assert not first.done()
        assert len(log.waiting) == 1
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
    assert log.decision.id == "d-1"


async def test_a_log_that_refuses_is_told(loop: TurnLoop, log: MemoryLog) -> None:
    log.refuse = Decision
    with pytest.raises(LogUnavailableError):
        async with aclosing(loop.turn(ASK)) as events:
            await anext(events)
    assert log.committed == []


async def test_an_external_decision_is_drawn_in_any_conversation(loop: TurnLoop, log: MemoryLog) -> None:
    async def find(_: str) -> KeptDraw:
        raise AssertionError("no arm is kept, so no draw is looked for")

    sticky = StickyStep(9, 600.0, find, loop.decider.clock)
    loop.decider.steps = (*loop.decider.steps, sticky)
    async with aclosing(loop.turn(Ask("d-1", "why?", episode_id="e", external=True))) as events:
        (decided,) = [event async for event in events]
    assert isinstance(decided, Decided)
    assert decided.decision == log.decision
    assert log.decision.mode is Mode.EXPLORE
