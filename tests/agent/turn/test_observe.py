"""Observations: in the background, bounded, blind, and of the operator's expense; no turn depends on them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest

from armwise.agent.policies import Exploration
from armwise.agent.turn.steps import second_answers
from armwise.agent.turn.steps.second_answers import _Finished
from armwise.arms.base import Passage, Query, Retrieval
from armwise.arms.llm import Chunk, Prompt, base, structured_output
from armwise.feedback.events import Cost, Feedback, Mode, Observation, ObservationSource, Status
from armwise.feedback.training_log import read_examples
from tests.agent.asking import ask
from tests.agent.fakes import CONFIG, Service, failing, hanging

EVERYTHING = {"shadow": 1.0, "judge": 1.0}


async def _found(arm: str, _query: Query, _k: int) -> Retrieval:
    return Retrieval((Passage(f"{arm}-1", f"of {arm}", f"says {arm}", 1.0),), steps=1)


def model(better: Callable[[str], int] = lambda _: 0) -> base.ScriptedGenerator:
    """A model that answers by the arm of its first passage, and judges both answers in a prompt."""

    def reply(prompt: Prompt) -> str:
        system, text = prompt.messages[0]["content"], prompt.messages[-1]["content"]
        if "You grade" in system:
            return '{"score": 7}'
        if "You compare" in system:
            prompts.append(text)
            return f'{{"better": {better(text)}}}'
        return next((f"by {arm}" for arm in ("bm25", "dense") if f"says {arm}" in system), "by none")

    prompts: list[str] = []
    found = base.ScriptedGenerator(reply)
    found.prompts = prompts  # type: ignore[attr-defined]
    return found


def graded(observations: dict[str, Any]) -> dict[str, Any]:
    """Return observations, with a metric of the grades if there are any."""
    reward: dict[str, Any] = CONFIG["reward"]
    if not observations["judge"]:
        return {"observations": observations}
    metrics = {**reward["metrics"], "graded": {"signal": "grade"}}
    return {"observations": observations, "reward": {**reward, "metrics": metrics}}


def grades_of(service: Service, decision_id: str) -> list[Feedback]:
    """Return the grades of the answer to a decision."""
    record = service.replica.store.record(decision_id)
    assert record is not None
    return [one for one in record.feedback if one.metric == "graded"]


async def drained(service: Service) -> None:
    """Wait until everything that is queued is observed, and grades are written."""
    await service.replica.workers.join("second_answers")
    await service.replica.workers.join("signals", "answers")


def service_of(folder: Path, generator: base.ScriptedGenerator, **spec: Any) -> Service:
    found = Service(folder, generator, **graded({**EVERYTHING, **spec}))
    found.arms.behaviour |= {arm: partial(_found, arm) for arm in ("bm25", "dense")}
    return found


def right(text: str) -> int:
    """Return the number of the answer by bm25, which is the best one; 0 if it is neither."""
    answers = text.split("Answer 1:")[1].split("Answer 2:")
    return next((n for n, answer in enumerate(answers, 1) if "by bm25" in answer), 0)


async def test_other_arms_answer_and_a_judge_compares_blindly_in_random_order(tmp_path: Path) -> None:
    generator = model(right)
    async with service_of(tmp_path, generator).running() as service:
        replies = [(await ask(service)).json()["agent"] for _ in range(12)]
        await service.replica.workers.join("second_answers")
        records = [service.replica.store.record(one["decision_id"]) for one in replies]
    swapped: list[bool] = []
    for record in records:
        assert record is not None
        assert record.execution is not None
        assert record.execution.status is Status.OK
        seconds = record.observations
        assert len(seconds) == 1
        assert seconds[0].arm in set(record.decision.arms) - {record.decision.drawn}
        best = "bm25"
        for one in seconds:
            assert one.answer == f"by {one.arm}"
            assert one.value == (one.arm == best) - (record.decision.drawn == best)
            assert (one.share, one.propensity, one.cost.steps) == (1.0, 0.5, int(one.arm != "none"))
            assert one.judge_cost.prompt_tokens > 20
            swapped.append(one.swapped)
    assert set(swapped) == {False, True}
    for prompt in generator.prompts:  # type: ignore[attr-defined]
        assert prompt.count("<answer>") == 2
        assert "arm" not in prompt.replace("warm", "")


@pytest.mark.slow
async def test_a_decision_shows_its_observations_to_those_who_may_read(tmp_path: Path) -> None:
    async with service_of(tmp_path, model(right)).running() as service:
        found = (await ask(service)).json()["agent"]
        await service.replica.workers.join("second_answers")
        shown = (await service.client.get(f"/v1/decisions/{found['decision_id']}")).json()
    assert [one["source"] for one in shown["observations"]] == ["shadow"]
    assert shown["propensity"] == found["propensity"]


async def test_a_key_that_may_not_read_sees_no_observations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_A_USER", "armw-" + "u" * 40)
    service = Service(tmp_path, model(), keys=[{"env": "OF_A_USER"}], **graded(EVERYTHING))
    async with service.running():
        service.client.headers["authorization"] = "Bearer armw-" + "u" * 40
        found = (await ask(service)).json()["agent"]
        await service.replica.workers.join("second_answers")
        shown = (await service.client.get(f"/v1/decisions/{found['decision_id']}")).json()
        record = service.replica.store.record(found["decision_id"])
        assert record is not None
    assert shown["observations"] == []
    assert len(record.observations) == 1


async def test_a_grade_is_feedback_of_the_operator_on_the_metric_that_names_it(tmp_path: Path) -> None:
    async with service_of(tmp_path, model(), shadow=0.0).running() as service:
        found = (await ask(service)).json()["agent"]
        await drained(service)
        (grade,) = grades_of(service, found["decision_id"])
        await service.learn()
        (example,) = read_examples(service.replica.store, service.config.reward.join)
    assert (grade.value, grade.source, grade.rater) == (0.7, "operator", "")
    assert example.metrics == {"graded": 0.7}
    assert service.config.reward.compute_reward(example) == pytest.approx(0.7, abs=0.11)


async def test_a_turn_does_not_wait_for_what_is_observed_and_the_queue_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_answers, "QUEUE", 2)
    service = service_of(tmp_path, model(), judge=0.0)
    async with service.running():
        drawn = (await ask(service)).json()["agent"]["arm_drawn"]
        await service.replica.workers.join("second_answers")
        for arm in {"none", "bm25", "dense"} - {drawn}:
            service.arms.behaviour[arm] = hanging
        monkeypatch.setattr(service.replica, "refresh", AsyncMock())  # which would serve what the log says
        async with service.replica._refreshing:  # noqa: SLF001 - the last one has ended
            pass
        service.replica.decider.serving = replace(service.replica.decider.serving, policy=_Always(drawn))
        service.replica.find_step("floor")._explores = Exploration(0.1, 1e-9)  # noqa: SLF001 - the draw is sure
        for _ in range(5):
            assert (await ask(service)).status_code == 200
        metrics = (await service.client.get("/metrics")).text
        assert 'armwise_observations_total{outcome="shed"} 2.0' in metrics, "one is in work, two wait"


class _Always:
    """A policy that draws one arm."""

    kind = "always"

    def __init__(self, arm: str) -> None:
        self._arm = arm

    def probabilities(self, context: Any, arms: Any) -> Any:
        del context
        return np.array([float(arm == self._arm) for arm in arms])


async def test_an_arm_or_a_judge_that_fails_is_recorded_with_its_reason(tmp_path: Path) -> None:
    async with service_of(tmp_path, model(lambda _: 9)).running() as service:
        service.arms.behaviour["none"] = failing
        service.replica.decider.serving = replace(service.replica.decider.serving, policy=_Always("bm25"))
        for _ in range(20):  # of which either of two arms answers each as well
            await ask(service)
        await service.replica.workers.join("second_answers")
        found = {one.error for one in await _observed(service) if one.value is None}
    assert "ArmError: the index is gone" in found
    unread = next(error for error in found if error.startswith("JudgeError: "))
    assert " 2 attempts" in unread
    assert """'{"better": 9}'""" in unread


async def test_only_answers_to_drawn_arms_are_observed(tmp_path: Path) -> None:
    async with service_of(tmp_path, model()).running() as service:
        replies = [await ask(service, model="arm/bm25"), await ask(service, agent={"explore": False})]
        await service.replica.workers.join("second_answers")
        for reply in replies:
            assert reply.status_code == 200
            record = service.replica.store.record(reply.json()["agent"]["decision_id"])
            assert record is not None
            assert record.observations == ()
            assert record.decision.mode is not Mode.EXPLORE


async def test_nothing_is_observed_beyond_the_ceiling_of_an_hour(tmp_path: Path) -> None:
    async with service_of(tmp_path, model(), tokens_per_hour=1).running() as service:
        observer, now = service.replica.find_step("second_answers"), [1000.0]
        observer.timer = lambda: now[0]
        counts = []
        for later in (0.0, 10.0, 3590.0):
            now[0] += later
            await ask(service)
            await service.replica.workers.join("second_answers")
            counts.append(len(await _observed(service)))
    assert counts == [1, 1, 2], "what is under way is finished, then an hour passes"


@pytest.mark.parametrize(
    ("ceiling", "cost", "judged"),
    [
        ({"tokens_per_hour": 100}, Cost(prompt_tokens=20, completion_tokens=5), Cost(prompt_tokens=25)),
        ({"usd_per_hour": 1.0}, Cost(usd=0.25), Cost(usd=0.25)),
    ],
    ids=["tokens", "usd"],
)
async def test_what_arms_and_judges_cost_counts_towards_the_ceiling_for_an_hour(
    tmp_path: Path, ceiling: dict[str, Any], cost: Cost, judged: Cost
) -> None:
    async with service_of(tmp_path, model(), judge=0.0, **ceiling).running() as service:
        observer, now = service.replica.find_step("second_answers"), [1000.0]
        observer.timer = lambda: now[0]
        found = Observation("d-1", ObservationSource.SHADOW, "bm25", 1.0, cost=cost, judge_cost=judged)
        reached = list[bool]()
        for later in (0.0, 600.0, 2999.5, 0.5):
            now[0] += later
            if len(reached) < 2:
                await observer._commit(found)  # noqa: SLF001
            reached.append(observer._is_exhausted())  # noqa: SLF001
        assert reached == [False, True, True, False]


async def test_an_arm_that_was_disabled_meanwhile_gives_no_second_answer(tmp_path: Path) -> None:
    async with service_of(tmp_path, model(), shadow=0.0, judge=0.0).running() as service:
        await ask(service)
        (decision,) = service.replica.store.newest(1)
        record = service.replica.store.record(decision.id)
        assert record is not None
        assert record.execution is not None
        live, nothing = service.replica.turns.arms, Any
        service.replica.turns.arms = {**live, "bm25": replace(live["bm25"], enabled=False)}
        for arm in ("bm25", "gone"):
            turn = _Finished(nothing, decision, record.execution, (), arm, graded=False)
            await service.replica.find_step("second_answers")._observe(turn)  # noqa: SLF001
        metrics = (await service.client.get("/metrics")).text
        assert 'armwise_observations_total{outcome="shed"} 2.0' in metrics
        assert await _observed(service) == []


async def _observed(service: Service) -> list[Observation]:
    decisions = await asyncio.to_thread(service.replica.store.newest, 100)
    records = [service.replica.store.record(one.id) for one in decisions]
    return [one for record in records if record is not None for one in record.observations]


async def test_the_sample_follows_from_the_decision_and_the_secret(tmp_path: Path) -> None:
    async with service_of(tmp_path, model()).running() as service:
        await ask(service)
        (decision,) = service.replica.store.newest(1)
        observer = service.replica.find_step("second_answers")
        ids = [replace(decision, id=f"d-{n}") for n in range(4000)]

        def sample() -> list[bool]:
            return [observer.is_sampled(one, "shadow", 0.3) for one in ids]

        found = sample()
        assert found == sample()
        assert sum(found) == pytest.approx(1200, abs=120)
        seconds = Counter(observer.draw_other(one) for one in ids)
        assert set(seconds) == set(decision.arms) - {decision.drawn}
        assert min(seconds.values()) == pytest.approx(2000, abs=150)
        service.replica.decider.salt = "another"
        assert found != sample()


class _Endless(base.ScriptedGenerator):
    """Answers, and never ends a grade."""

    def __init__(self) -> None:
        super().__init__({}, default="an answer")
        self.grading = asyncio.Event()

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        if "You grade" in prompt.messages[0]["content"]:
            self.grading.set()
            await asyncio.Event().wait()
        async for chunk in super().stream(prompt):
            yield chunk


async def test_a_stop_gives_up_what_is_left_even_while_the_judge_writes(tmp_path: Path) -> None:
    generator = _Endless()
    async with service_of(tmp_path, generator, shadow=0.0).running() as service:
        assert (await ask(service)).status_code == 200
        await generator.grading.wait()
        assert (await ask(service)).status_code == 200


class Thinking(base.ScriptedGenerator):
    """Answers, and as a judge thinks for so many tokens before it writes."""

    def __init__(self, tokens: int) -> None:
        super().__init__({}, default="by none")
        self.tokens, self.rooms = tokens, list[int]()

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        if "You grade" not in prompt.messages[0]["content"]:
            async for chunk in super().stream(prompt):
                yield chunk
            return
        self.rooms.append(prompt.max_tokens)
        done = prompt.max_tokens > self.tokens
        yield Chunk('{"score": 7}' if done else "")
        yield Chunk(finish_reason="stop" if done else "length", completion_tokens=self.tokens)


ENDPOINT = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}


@pytest.mark.parametrize(
    ("tokens", "llm", "rooms", "value"),
    [
        (1500, ENDPOINT, [2048], 0.7),
        (1500, {**ENDPOINT, "engine": "anthropic"}, [2048], 0.7),
        (1500, {"engine": "embedded"}, [48, 2048], 0.7),
        (5000, ENDPOINT, [2048, 8192], 0.7),
        (9000, ENDPOINT, [2048, 8192, 8192], None),
    ],
)
async def test_a_judge_has_room_to_reason_or_gives_no_grade(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    tokens: int,
    llm: dict[str, Any],
    rooms: list[int],
    value: float | None,
) -> None:
    structured_output._warn.cache_clear()  # noqa: SLF001
    judge = Thinking(tokens)
    async with Service(tmp_path, judge, llm=llm, **graded({"judge": 1.0})).running() as service:
        first, second = [(await ask(service)).json()["agent"]["decision_id"] for _ in range(2)]
        await drained(service)
        grades = [grades_of(service, name) for name in (first, second)]
        spent = [tokens for _, tokens, _ in service.replica.find_step("second_answers")._spent]  # noqa: SLF001
    assert judge.rooms == rooms * 2
    assert [[one.value for one in some] for some in grades] == [[] if value is None else [value]] * 2
    assert spent == [tokens * len(rooms)] * 2
    why = "reasoned and ended at its limit of 8192 tokens"
    assert sum("was not graded: " in one and why in one for one in caplog.messages) == 2 * (value is None)
