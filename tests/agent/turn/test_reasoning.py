"""The prompt `reasoning` in a service: the reasons are paid for, and the answer alone is sent."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.config import ConfigError, parse
from armwise.agent.turn.record import tokens_in
from armwise.arms.llm import Chunk, GeneratorError, Prompt, prompts
from armwise.arms.llm.base import ScriptedGenerator
from armwise.feedback.events import Status
from tests.agent.asking import events, record
from tests.agent.fakes import CONFIG, Service
from tests.agent.turn.test_checked import LARGE, Paid, ask, execution

ARMS = {
    "thinks": {"kind": "bm25", "answering": {"prompt": "reasoning"}},
    "large": {"kind": "none", "answering": {"llm": "large"}},
}
TAGGED = "It rises in the Black Forest. <answer>The Danube</answer> That is all."
UNTAGGED = "It rises in the Black Forest."


def serve(folder: Path, model: ScriptedGenerator, **changes: Any) -> Service:
    large = Paid("From the large one.", usd=0.5)
    return Service(
        folder, generators={"default": model, "large": large}, arms=ARMS, llms={"large": LARGE}, **changes
    )


def said(answer: Any) -> str:
    choices = [choice for event in events(answer) for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_the_answer_is_sent_without_the_reasons(tmp_path: Path) -> None:
    model = Paid(TAGGED, usd=0.01)
    async with serve(tmp_path, model).running() as service:
        answer = await ask(service, "arm/thinks")
        body = answer.json()
        assert body["choices"][0]["message"]["content"] == "The Danube"
        assert body["choices"][0]["finish_reason"] == "stop"
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (10, 5)
        done = await execution(service, answer)
    assert (done.status, done.answer, done.cost.usd) == (Status.OK, "The Danube", 0.01)
    assert len(model.prompts) == 1
    assert model.prompts[0].messages[0]["content"].endswith("<answer>the answer</answer>")


async def test_a_stream_has_no_word_of_the_reasons(tmp_path: Path) -> None:
    async with serve(tmp_path, Paid(UNTAGGED, TAGGED, usd=0.01)).running() as service:
        assert said(await ask(service, "arm/thinks", stream=True)) == "The Danube"


async def test_without_its_tag_the_model_answers_again(tmp_path: Path) -> None:
    model = Paid(UNTAGGED, "The Danube.", usd=0.01)
    async with serve(tmp_path, model).running() as service:
        answer = await ask(service, "arm/thinks")
        assert answer.json()["choices"][0]["message"]["content"] == "The Danube."
        done = await execution(service, answer)
    assert (done.answer, done.cost.usd) == ("The Danube.", pytest.approx(0.02))
    assert done.tokens_by_model == {"default": (20, 10, 0)}
    first, second = model.prompts
    assert second.messages == prompts.fallback_prompt(first.messages, UNTAGGED)


@pytest.mark.parametrize(
    "body",
    [
        {"n": 2},
        {"stop": ["."]},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "look"}}]},
    ],
    ids=lambda body: next(iter(body)),
)
async def test_a_request_that_would_bind_the_reasons_gets_none(tmp_path: Path, body: dict[str, Any]) -> None:
    model = Paid("The Danube", usd=0.01)
    async with serve(tmp_path, model).running() as service:
        answer = await ask(service, "arm/thinks", **body)
    assert {choice["message"]["content"] for choice in answer.json()["choices"]} == {"The Danube"}
    (asked,) = model.prompts
    assert asked.messages[0]["content"].endswith("If the passages do not hold the answer, say so.")


async def test_reasons_written_before_a_failure_are_paid_for(tmp_path: Path) -> None:
    class Broken(Paid):
        """Fails in the second prompt, after three words."""

        async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().stream(prompt):
                yield chunk
                if len(self.prompts) == 2 and prompt.messages[-1]["content"] == prompts.ANSWER_ALONE:
                    raise GeneratorError("it is gone")

    changes = {"fallback": "large", "policy": {"kind": "fixed", "params": {"arm": "thinks"}}}
    async with serve(tmp_path, Broken(UNTAGGED, "The Danube", usd=0.01), **changes).running() as service:
        for number in range(20):  # until `thinks` is drawn
            answer = await ask(service, "auto", user=str(number))
            done = await execution(service, answer)
            if done.status is Status.FELL_BACK:
                break
    assert answer.json()["choices"][0]["message"]["content"] == "From the large one."
    assert done.cost.usd == pytest.approx(0.51)
    assert done.tokens_by_model["default"][1] == 5 + 1, "one word of the second answer"


async def test_reasons_of_a_caller_who_left_are_paid_for(tmp_path: Path) -> None:
    written = asyncio.Event()

    class Slow(Paid):
        async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
            self.prompts.append(prompt)
            yield Chunk(UNTAGGED)
            written.set()
            await asyncio.Event().wait()

    async with serve(tmp_path, Slow("", usd=0.0)).running() as service:
        message = {"role": "user", "content": "Which river?"}
        asking = asyncio.create_task(
            service.client.post(
                "/v1/chat/completions",
                json={"model": "arm/thinks", "messages": [message]},
                headers={"Idempotency-Key": "left"},
            )
        )
        await written.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        done = (await record(service, "left", lambda found: found.execution)).execution
    assert done is not None
    assert (done.status, done.cost.completion_tokens) == (Status.CANCELLED, tokens_in(UNTAGGED))


def test_a_prompt_of_ones_own_cannot_be_called_reasoning() -> None:
    own = {"with_passages": "{passages}", "without_passages": "Answer."}
    with pytest.raises(ConfigError, match="prompts: 'reasoning' has a meaning already"):
        parse({**CONFIG, "prompts": {"reasoning": own}})
