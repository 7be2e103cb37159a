"""Checked arms: the cheap model answers, a check looks at it, and the dear model answers where it fails."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.config import ConfigError, parse
from armwise.agent.serving import arm_infos
from armwise.agent.turn import Ask, CheckedAnswering, RequestDocument, check_texts
from armwise.arms.llm import Chunk, GeneratorError, Prompt
from armwise.arms.llm.base import ScriptedGenerator
from armwise.arms.llm.writing import Answering
from armwise.arms.more.checked import command
from armwise.arms.retrievers import CheckResult
from armwise.feedback.events import Status
from tests.agent.asking import events, record
from tests.agent.fakes import CONFIG, Service
from tests.arms.more.checked.test_checks import alive

LARGE = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "large"}
PRICED = {**LARGE, "usd_per_kilotoken_in": 1.0, "usd_per_kilotoken_out": 2.0}
JSON = {"by": "schema", "satisfies": {"type": "object", "required": ["river"]}}
RIGHT, WRONG = '{"river": "Danube"}', "The Danube."


class Paid(ScriptedGenerator):
    """Says what it is told to, for money; keeps what it was asked.

    Attributes:
        usd: Price of an answer.
        prompts: All prompts.
    """

    def __init__(self, *said: str, usd: float, calls: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(lambda _: calls or said[min(len(self.prompts), len(said)) - 1])
        self.usd, self.prompts = usd, list[Prompt]()

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        self.prompts.append(prompt)
        async for chunk in super().stream(prompt):
            last = Chunk(finish_reason="stop", prompt_tokens=10, completion_tokens=5, usd=self.usd)
            yield last if chunk.finish_reason else chunk


def arms(check: dict[str, Any], **params: Any) -> dict[str, Any]:
    return {
        "none": {"kind": "none"},
        "large": {"kind": "none", "answering": {"llm": "large", "max_tokens": 77}},
        "checked": {
            "kind": "checked",
            "params": {"first": "none", "then": "large", "check": check, **params},
        },
    }


def make(folder: Path, small: Paid, large: Paid, check: dict[str, Any], **params: Any) -> Service:
    models = {"default": small, "large": large}
    changes = {"llms": {"large": LARGE, "grader": LARGE}} | params.pop("changes", {})
    return Service(
        folder, generators={**models, **params.pop("models", {})}, arms=arms(check, **params), **changes
    )


async def ask(service: Service, model: str = "arm/checked", **body: Any) -> Any:
    message = {"role": "user", "content": "Which river?"}
    return await service.client.post(
        "/v1/chat/completions", json={"model": model, "messages": [message], **body}
    )


async def execution(service: Service, answer: Any) -> Any:
    decision = answer.headers["x-decision-id"]
    return (await record(service, decision, lambda found: found.execution)).execution


@pytest.fixture
def small() -> Paid:
    return Paid(WRONG, usd=0.001)


@pytest.fixture
def large() -> Paid:
    return Paid(RIGHT, usd=0.02)


@pytest.fixture
async def service(tmp_path: Path, small: Paid, large: Paid) -> AsyncIterator[Service]:
    async with make(tmp_path, small, large, JSON).running() as running:
        yield running


async def test_a_failing_answer_is_replaced_and_paid(service: Service, small: Paid, large: Paid) -> None:
    answer = await ask(service)
    assert answer.json()["choices"][0]["message"]["content"] == RIGHT
    done = await execution(service, answer)
    assert (done.status, done.served, done.answer) == (Status.OK, "checked", RIGHT)
    assert done.cost.usd == pytest.approx(0.021)
    assert (done.cost.prompt_tokens, done.cost.completion_tokens) == (20, 10)
    assert {*done.tokens_by_model} == {"default", "large"}
    first, second = done.stages
    assert (first["arms"], first["llm"], first["score"], first["goes_on"]) == (["none"], "default", 0.0, True)
    assert first["said"].startswith("not JSON")
    assert (first["threshold"], first["probability"]) == (0.5, 1.0)
    assert (second["arms"], second["llm"], second["score"], second["goes_on"]) == (
        ["large"],
        "large",
        None,
        False,
    )
    assert large.prompts[0].max_tokens == 77, "it answers as its own arm does"
    assert small.prompts[0].messages == large.prompts[0].messages


async def test_a_passing_answer_is_sent_and_paid_for_alone(tmp_path: Path, large: Paid) -> None:
    async with make(tmp_path, Paid(RIGHT, usd=0.001), large, JSON).running() as service:
        answer = await ask(service)
        assert answer.json()["choices"][0]["message"]["content"] == RIGHT
        done = await execution(service, answer)
    assert done.cost.usd == 0.001
    assert [(stage["llm"], stage["score"], stage["goes_on"]) for stage in done.stages] == [
        ("default", 1.0, False)
    ]
    assert not large.prompts


async def test_nothing_of_an_answer_that_fails_is_streamed(service: Service) -> None:
    answer = await ask(service, stream=True)
    said = "".join(
        choice["delta"].get("content") or "" for event in events(answer) for choice in event["choices"]
    )
    assert said == RIGHT


async def test_the_second_model_answers_where_the_first_fails(service: Service, small: Paid) -> None:
    small.error = GeneratorError("it is down")
    answer = await ask(service)
    assert answer.json()["choices"][0]["message"]["content"] == RIGHT
    done = await execution(service, answer)
    assert done.status is Status.OK
    assert (done.stages[0]["failed"], done.stages[0]["score"]) == (["none"], None)
    assert "it is down" in done.stages[0]["said"]
    assert done.cost.usd == 0.02


async def test_a_failing_answer_is_never_sent(service: Service, large: Paid) -> None:
    large.error = GeneratorError("it is down")
    answer = await ask(service)
    assert answer.status_code == 502
    done = await execution(service, answer)
    assert done.status is Status.LLM_FAILED
    assert done.cost.usd == 0.001, "the first answer is paid for"
    assert len(done.stages) == 2


async def test_an_answer_that_calls_functions_is_sent_unchecked(tmp_path: Path, large: Paid) -> None:
    small = Paid(usd=0.001, calls=[("look_up", "{}")])
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    async with make(tmp_path, small, large, JSON).running() as service:
        answer = await ask(service, tools=[tool])
        assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look_up"
        done = await execution(service, answer)
    assert [(stage["score"], stage["goes_on"]) for stage in done.stages] == [(None, False)]


@pytest.mark.parametrize(("grade", "sent"), [(7, WRONG), (6, RIGHT)])
async def test_a_judge_is_paid_for_and_its_grade_is_held_against_the_threshold(
    tmp_path: Path, small: Paid, large: Paid, grade: int, sent: str
) -> None:
    grader = Paid(f'{{"score": {grade}}}', usd=0.0005)
    check = {"by": "judge", "judge": "grader"}
    async with make(
        tmp_path, small, large, check, threshold=0.7, models={"grader": grader}
    ).running() as service:
        answer = await ask(service)
        assert answer.json()["choices"][0]["message"]["content"] == sent
        done = await execution(service, answer)
    assert done.stages[0]["score"] == grade / 10
    assert done.cost.usd == pytest.approx(0.0015 + (0.02 if sent == RIGHT else 0.0))
    assert done.tokens_by_model["grader"][:2] == (10, 5)


async def test_an_answer_that_cannot_be_judged_has_failed(tmp_path: Path, small: Paid, large: Paid) -> None:
    grader = Paid("well", usd=0.0005)
    check = {"by": "judge", "judge": "grader"}
    async with make(tmp_path, small, large, check, models={"grader": grader}).running() as service:
        done = await execution(service, await ask(service))
    assert done.answer == RIGHT
    assert (done.stages[0]["score"], done.stages[0]["goes_on"]) == (None, True)
    assert done.stages[0]["said"].startswith("not checked: JudgeError")
    assert done.cost.usd == pytest.approx(0.001 + 0.02 + 2 * 0.0005), "both attempts of the judge"


async def test_a_command_reads_the_answer(tmp_path: Path, large: Paid) -> None:
    check = {
        "by": "command",
        "command": [sys.executable, "-c", "import sys; sys.exit('x' in sys.stdin.read())"],
    }
    small = Paid("a", "x", usd=0.001)
    async with make(tmp_path, small, large, check).running() as service:
        said = [(await ask(service)).json()["choices"][0]["message"]["content"] for _ in range(2)]
    assert said == ["a", RIGHT]


async def test_the_second_model_answers_where_the_check_fails_unexpectedly(
    tmp_path: Path, small: Paid, large: Paid, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(command, "run_confined", broken)
    async with make(tmp_path, small, large, {"by": "command", "command": ["true"]}).running() as service:
        answer = await ask(service)
        assert answer.json()["choices"][0]["message"]["content"] == RIGHT
        first = (await execution(service, answer)).stages[0]
    assert (first["score"], first["said"]) == (
        None,
        "not checked: ArmError: OSError: see the service's log",
    )


class Held:
    """An arm whose checks wait until they are let go.

    Attributes:
        checked: The arm.
        begun: The texts whose check has begun.
        go: Ends the checks.
    """

    def __init__(self, at_once: int = 16) -> None:
        self.llm, self.begun, self.go = None, asyncio.Queue[str](), threading.Event()
        self._loop = asyncio.get_running_loop()
        places = asyncio.Semaphore(at_once)
        self.checked = CheckedAnswering("small", "large", Answering(), self, 0.5, places=places)  # type: ignore[arg-type]

    def __call__(self, question: str, passages: object, answer: str, write: object) -> CheckResult:
        del question, passages, write
        self._loop.call_soon_threadsafe(self.begun.put_nowait, answer)
        return CheckResult(float(self.go.wait(30.0)))

    async def score(self, *answers: str) -> float:
        async def never(name: str, prompt: Prompt) -> tuple[str, Chunk]:
            raise AssertionError(f"{name} is prompted: {prompt}")

        return (await check_texts(self.checked, "?", (), answers, never)).score


async def leave(*tasks: asyncio.Task[float]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_slow_checks_of_an_arm_hold_up_no_other_arm() -> None:
    slow, quick = Held(), Held()
    quick.go.set()
    waiting = [asyncio.create_task(slow.score("a")) for _ in range(40)]
    for _ in range(16):
        await slow.begun.get()
    async with asyncio.timeout(10.0):
        assert await quick.score("b") == 1.0
    assert not any(task.done() for task in waiting)
    slow.go.set()
    async with asyncio.timeout(10.0):
        assert await asyncio.gather(*waiting) == [1.0] * 40


async def test_a_check_keeps_its_place_until_it_has_ended_though_its_caller_left() -> None:
    arm = Held(at_once=2)
    left = [asyncio.create_task(arm.score("left")) for _ in range(2)]
    assert [await arm.begun.get() for _ in left] == ["left", "left"]
    await leave(*left)
    later = asyncio.create_task(arm.score("later"))
    await asyncio.sleep(0)
    assert arm.checked.places.locked()
    assert arm.begun.empty()
    arm.go.set()
    async with asyncio.timeout(10.0):
        assert await later == 1.0


async def test_no_further_choice_is_checked_once_the_caller_has_left() -> None:
    arm = Held(at_once=1)
    asking = asyncio.create_task(arm.score("first", "second"))
    assert await arm.begun.get() == "first"
    await leave(asking)
    arm.go.set()
    async with asyncio.timeout(10.0), arm.checked.places:  # the check has ended
        assert arm.begun.empty()


@pytest.mark.slow
def test_a_service_ends_at_once_though_a_command_still_checks_an_answer(tmp_path: Path) -> None:
    mark = f"63.{os.getpid()}"
    code = """
import asyncio, os, sys
from armwise.agent.turn import CheckedAnswering, check_texts
from armwise.arms.llm.writing import Answering
from armwise.arms.more.checked import CommandCheck

begun, mark = sys.argv[1:]
shell = f"setsid sleep {mark} & echo > {begun}; sleep {mark}"
check = CommandCheck(by="command", command=["sh", "-c", shell], seconds=60)

async def main():
    checked = CheckedAnswering("a", "b", Answering(), check, 0.5)
    asyncio.create_task(check_texts(checked, "?", (), ["x"], None))
    while not os.path.exists(begun):
        await asyncio.sleep(0.02)

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "begun"), mark], check=True, timeout=20.0)
    until = time.monotonic() + 10.0
    while alive(mark):
        assert time.monotonic() < until, "what the command started still runs"
        time.sleep(0.02)


async def test_a_caller_who_leaves_ends_the_judging(tmp_path: Path, small: Paid, large: Paid) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    class Slow(Paid):
        async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            yield Chunk(prompt.messages[0]["content"])

    check = {"by": "judge", "judge": "grader"}
    async with make(tmp_path, small, large, check, models={"grader": Slow("", usd=0.0)}).running() as service:
        asking = asyncio.create_task(
            service.client.post(
                "/v1/chat/completions",
                json={"model": "arm/checked", "messages": [{"role": "user", "content": "Which river?"}]},
                headers={"Idempotency-Key": "left"},
            )
        )
        await asked.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(10):
            await ended.wait()
        done = (await record(service, "left", lambda found: found.execution)).execution
    assert done is not None
    assert done.status is Status.CANCELLED
    assert not large.prompts


@pytest.mark.parametrize("texts", [(RIGHT, WRONG), (WRONG, RIGHT)])
async def test_several_choices_pass_only_if_each_does(
    tmp_path: Path, large: Paid, texts: tuple[str, str]
) -> None:
    class Mixed(Paid):
        async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
            self.prompts.append(prompt)
            for index, text in enumerate(texts):
                yield Chunk(text, index=index)
            yield Chunk(finish_reason="stop", finish_reasons=("stop",), usd=0.001)

    async with make(tmp_path, Mixed(RIGHT, usd=0.0), large, JSON).running() as service:
        done = await execution(service, await ask(service, n=2))
    assert done.stages[0]["score"] == 0.0
    assert done.stages[0]["goes_on"]


async def test_a_coin_overrules_the_score_in_its_share(tmp_path: Path, large: Paid) -> None:
    async with make(tmp_path, Paid(RIGHT, usd=0.001), large, JSON, explore=0.8).running() as service:
        stages = [(await execution(service, await ask(service))).stages[0] for _ in range(60)]
    went_on = [stage for stage in stages if stage["goes_on"]]
    assert 10 <= len(went_on) <= 40, "0.4 of 60, three deviations"
    assert {stage["probability"] for stage in went_on} == {0.4}
    assert {stage["probability"] for stage in stages if not stage["goes_on"]} == {0.6}
    assert {stage["score"] for stage in stages} == {1.0}


async def test_a_turn_may_cost_models_and_judge(tmp_path: Path, small: Paid, large: Paid) -> None:
    dear = {**PRICED, "usd_per_kilotoken_out": 3.0}
    changes = {"llms": {"large": PRICED, "grader": dear}, "keys": []}
    check = {"by": "judge", "judge": "grader"}
    service = make(tmp_path, small, large, check, models={"grader": Paid("", usd=0.0)}, changes=changes)
    turns = service.replica.turns
    message = {"role": "user", "content": "Which river?"}
    most = {
        arm: turns.bound_cost(Ask("d", "Which river?", (message,), forced=arm))
        for arm in ("none", "large", "checked")
    }
    assert most["checked"].usd > most["large"].usd > most["none"].usd == 0.0
    judged = most["checked"].usd - most["large"].usd
    assert judged > 48 * 2 * 3.0 / 1000, "two attempts to grade"
    assert most["checked"].tokens > most["large"].tokens + most["none"].tokens
    service.close()


async def test_a_judge_is_paid_for_each_choice(tmp_path: Path, small: Paid, large: Paid) -> None:
    changes = {"llms": {"large": LARGE, "grader": PRICED}, "keys": []}
    check = {"by": "judge", "judge": "grader"}
    service = make(tmp_path, small, large, check, models={"grader": Paid("", usd=0.0)}, changes=changes)
    message = {"role": "user", "content": "Which river?"}
    most = [
        service.replica.turns.bound_cost(
            Ask(
                "d",
                "Which river?",
                (message,),
                forced="checked",
                document=RequestDocument(options={"n": n} if n else {}),
            )
        )
        for n in (0, 1, 2, 3)
    ]
    assert most[0].usd == most[1].usd > 0.0, "only the judge costs anything"
    assert most[2].usd > 1.8 * most[1].usd, "the judge reads and writes nearly all"
    assert most[3].usd - most[2].usd == pytest.approx(most[2].usd - most[1].usd)
    service.close()


async def test_a_turn_may_cost_what_both_models_may(tmp_path: Path, small: Paid, large: Paid) -> None:
    changes = {"llms": {"large": PRICED}, "llm": {"engine": "scripted"}}
    service = make(tmp_path, small, large, JSON, changes=changes)
    turns, message = service.replica.turns, {"role": "user", "content": "Which river?"}
    most = {
        arm: turns.bound_cost(Ask("d", "Which river?", (message,), forced=arm))
        for arm in ("none", "large", "checked")
    }
    assert most["checked"].tokens >= most["none"].tokens + most["large"].tokens
    assert most["checked"].usd > most["large"].usd, "all at the price of the dearer one"
    assert most["large"].usd > 0.0
    service.close()


def test_a_checked_arm_takes_the_options_that_both_models_take() -> None:
    plain = {**LARGE, "request": {"tools": None}}
    config = parse({**CONFIG, "llm": LARGE, "llms": {"large": plain}, "arms": arms(JSON)})
    infos = arm_infos(config)
    options = [infos[name].options or frozenset() for name in ("none", "large", "checked")]
    assert "tools" in options[0]
    assert "tools" not in options[1]
    assert options[2] == options[0] & options[1]
    assert options[2]


def test_a_checked_arm_answers_first_as_its_first_arm_does() -> None:
    made = arms(JSON)
    made["checked"]["params"] |= {"first": "large", "then": "none"}
    config = parse({**CONFIG, "llms": {"large": LARGE}, "arms": made})
    assert config.find_answering("checked") == config.find_answering("large")
    assert config.find_answering("checked").max_tokens == 77
    assert parse(config.model_dump(mode="json")).find_answering("checked").llm == "large"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"then": "bm25"}, "arm 'checked': 'bm25' answers from the passages of 'none', so it must search"),
        ({"then": "larg"}, "unknown arm 'larg'; did you mean 'large'"),
        ({"check": {"by": "judge", "judge": "graders"}}, "the judge 'graders' is not declared; did you mean"),
        ({"threshold": 1.5}, "threshold"),
        ({"explore": -0.1}, "explore"),
    ],
)
def test_a_checked_arm_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    made = arms(JSON)
    made["checked"]["params"] |= change
    with pytest.raises(ConfigError, match=message):
        parse({**CONFIG, "llms": {"large": LARGE, "grader": LARGE}, "arms": {**CONFIG["arms"], **made}})


def test_a_checked_arm_is_checked_once_and_has_no_answering_of_its_own() -> None:
    twice = arms(JSON) | {
        "again": {"kind": "checked", "params": {"first": "checked", "then": "large", "check": JSON}}
    }
    with pytest.raises(ConfigError, match="'checked' is itself a checked arm"):
        parse({**CONFIG, "llms": {"large": LARGE}, "arms": twice})
    own = arms(JSON)
    own["checked"]["answering"] = {"llm": "large"}
    with pytest.raises(ConfigError, match="remove its answering"):
        parse({**CONFIG, "llms": {"large": LARGE}, "arms": own})


async def test_the_time_of_a_check_counts(tmp_path: Path, large: Paid) -> None:
    check = {"by": "command", "command": [sys.executable, "-c", "import time; time.sleep(0.2)"]}
    async with make(tmp_path, Paid("a", usd=0.001), large, check).running() as service:
        done = await execution(service, await ask(service))
    assert done.cost.llm_s >= 0.2
