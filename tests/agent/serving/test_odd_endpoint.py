"""An endpoint whose answers are odd in fields and bytes: what is answered, recorded and held in memory."""

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from armwise.arms.llm import Prompt
from armwise.arms.llm import endpoint as endpoints
from armwise.arms.llm.base import ScriptedGenerator
from armwise.arms.llm.endpoint import EndpointGenerator
from armwise.feedback.events import Status
from tests.agent.asking import ask
from tests.agent.fakes import Service
from tests.odd_endpoint import OddEndpoint, asked

ANSWERED = {
    "nothing odd",
    "CR LF",
    "CR",
    "comments and other fields",
    "a mark of the order of bytes",
    "no space after data:",
    "data in two lines",
    "without [DONE]",
    "more after [DONE]",
    "cut after its end",
    "the type of JSON",
    "gzip",
}
"""Oddities of the bytes with which an answer is complete."""

REFUSED = {
    **{f"status {status}": status for status in (400, 404, 422)},
    **{f"status {status}": 400 for status in (409, 418)},
    "an error 1,800 levels deep": 400,
}
"""Oddities that are the caller's, and their status."""

ODD = "0.choices.0.delta"

FIELDS = {
    "0.choices: null": 200,
    "0.choices: absent": 200,
    f"{ODD}: null": 200,
    f"{ODD}.content: null": 200,
    f"{ODD}.content: -1": 200,
    f"{ODD}.content: a list": 200,
    f"{ODD}.content: no object": 200,
    f"{ODD}.content: 10^30": 200,
    f"{ODD}.content: a lone surrogate": 200,
    f"{ODD}.content: a megabyte": 502,
    f"{ODD}.tool_calls.0.index: absent": 200,
    f"{ODD}.tool_calls.0.function: absent": 502,
    f"{ODD}.tool_calls.0.function.arguments: no object": 200,
    f"{ODD}.tool_calls.0.function.name: a lone surrogate": 200,
    "0.choices.0.index: 4000000": 502,
    "0.choices.0.index: -1": 502,
    "0.choices.0.logprobs.content.0.logprob: not a number": 502,
    "0.id: a lone surrogate": 200,
    "0.id: a megabyte": 200,
    "0.created: 10^30": 200,
    "0.error: a text": 502,
    "1.choices.0.finish_reason: a megabyte": 200,
    "1.choices.0.finish_reason: a text": 200,
    "1.choices.0.finish_reason: a lone surrogate": 200,
    "1.choices.0.finish_reason: null": 502,
    "1.choices.0.finish_reason: no text": 502,
    "2.usage: no object": 200,
    "2.usage: a text": 200,
    "2.usage.prompt_tokens: null": 200,
    "2.usage.prompt_tokens: 10^30": 200,
    "2.usage.completion_tokens: a fraction": 200,
    "2.usage.completion_tokens: -1": 200,
    "2.usage.prompt_tokens_details.cached_tokens: 4000000": 200,
}
"""Oddities of the fields, and the status of the answer."""

MOST_MIB = 150


@pytest.fixture
async def endpoint() -> AsyncIterator[tuple[OddEndpoint, str]]:
    odd = OddEndpoint()
    async with odd.listening() as url:
        yield odd, url


@pytest.mark.slow
async def test_every_odd_answer_is_an_answer_or_a_recorded_failure_in_bounded_memory(
    endpoint: tuple[OddEndpoint, str],
    tmp_path: Path,
    subtests: pytest.Subtests,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoints, "ANSWER_BYTES", 4 << 20)  # of 16: less time
    odd, url = endpoint
    of_bytes = [name for name in odd.names if name[:2] not in ("0.", "1.", "2.")]
    expected = {name: 200 if name in ANSWERED else 502 for name in of_bytes} | REFUSED | FIELDS
    assert len(expected) > 60
    generator = EndpointGenerator("chat", url, "odd", timeout_s=5.0, max_retries=0)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with Service(tmp_path, generator).running() as service:
        for name, status in expected.items():
            with subtests.test(name):
                row = await asked(service.client, name, odd.names.index(name))
                assert (row.kept, row.status) == (True, status), row
                assert ("secret" in row.shown) == (name in REFUSED and "status" in name), "for its caller"
                assert (
                    service.replica.store.counts()["executions"]
                    == service.replica.store.counts()["decisions"]
                )
    await generator.close()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024 < MOST_MIB


@pytest.mark.slow
async def test_tokens_that_cannot_be_true_are_not_recorded(
    endpoint: tuple[OddEndpoint, str], tmp_path: Path
) -> None:
    odd, url = endpoint
    generator = EndpointGenerator("chat", url, "odd")
    async with Service(tmp_path, generator).running() as service:
        recorded = []
        for name in ("nothing odd", "2.usage.prompt_tokens: 10^30", "2.usage.completion_tokens: 4000000"):
            usage = json.loads((await asked(service.client, name, odd.names.index(name))).shown)["usage"]
            recorded.append((usage["prompt_tokens"], usage["completion_tokens"]))
    await generator.close()
    assert recorded[0] == (9, 3)
    assert recorded[1] == recorded[2]
    assert 20 < recorded[1][0] < 200
    assert 3 < recorded[1][1] < 10


@pytest.mark.slow
async def test_where_the_endpoint_answers_oddly_the_fallback_answers_and_the_breaker_counts(
    endpoint: tuple[OddEndpoint, str], tmp_path: Path
) -> None:
    odd, url = endpoint
    generator = EndpointGenerator("chat", url, "odd", max_retries=0)
    changes = {
        "llms": {"good": {"engine": "scripted"}},
        "arms": {"none": {"kind": "none", "answering": {"llm": "good"}}, "bm25": {"kind": "bm25"}},
        "fallback": "none",
    }
    good = ScriptedGenerator({}, default="The Rhine.")
    async with Service(tmp_path, generator, {"good": good}, **changes).running() as service:
        number = odd.names.index("no JSON")
        body = {"messages": [{"role": "user", "content": f"oddity {number}"}], "agent": {"explore": True}}
        served = set()
        for _ in range(20):
            reply = await ask(service, **body)
            assert reply.status_code == 200
            served.add((reply.json()["agent"]["arm_drawn"], reply.json()["agent"]["arm_served"]))
        assert served == {("none", "none"), ("bm25", "none")}
    await generator.close()


ENDPOINT = {"engine": "openai", "base_url": "http://h/v1", "model": "m"}


@pytest.mark.parametrize(
    ("changes", "fields", "temperature"),
    [
        ({}, {}, None),
        ({}, {"temperature": 0}, 0.0),
        ({"answering": {"temperature": 0.0}}, {}, 0.0),
        ({"answering": {"temperature": 0.0}}, {"temperature": 1}, 1.0),
        ({"answering": {"max_tokens": 9}}, {}, None),
        ({"arms": {"none": {"kind": "none", "answering": {"temperature": 0.5}}}}, {}, 0.5),
    ],
)
async def test_an_endpoint_is_sent_a_temperature_that_somebody_has_named(
    tmp_path: Path, changes: dict[str, Any], fields: dict[str, Any], temperature: float | None
) -> None:
    async with Service(tmp_path, **{"llm": ENDPOINT, **changes}).running() as service:
        assert (await ask(service, **fields)).status_code == 200
        assert isinstance(service.generator, ScriptedGenerator)
        assert service.generator.last_prompt is not None
        assert service.generator.last_prompt.temperature == temperature


async def test_the_name_of_the_limit_of_tokens_is_passed_on_to_an_endpoint(tmp_path: Path) -> None:
    async with Service(tmp_path, llm=ENDPOINT).running() as service:
        assert isinstance(service.generator, ScriptedGenerator)
        for field, named in (("max_completion_tokens", {"max_completion_tokens": 7}), ("max_tokens", {})):
            assert (await ask(service, **{field: 7})).status_code == 200
            prompt = service.generator.last_prompt
            assert prompt is not None
            assert (prompt.max_tokens, prompt.options) == (7, named)
    async with Service(tmp_path).running() as other:
        assert (await ask(other, max_completion_tokens=7)).status_code == 200, (
            "of an engine that has no such name"
        )


async def test_a_bug_of_a_generator_is_a_failure_of_the_language_model(tmp_path: Path) -> None:
    generator = ScriptedGenerator(lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    async with Service(tmp_path, generator).running() as service:
        reply = await ask(service)
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "llm_failed")
        said = reply.json()["error"]["message"]
        assert "ZeroDivisionError" in said
        assert "division by zero" not in said, "the log has it"
        record = await asyncio.to_thread(service.replica.store.record, reply.headers["x-decision-id"])
        assert record is not None
        assert record.execution is not None
        assert record.execution.status is Status.LLM_FAILED
        streamed = await ask(service, stream=True)
        assert (streamed.status_code, streamed.json()["error"]["code"]) == (502, "llm_failed"), (
            "before its first byte"
        )


@pytest.mark.parametrize("status", [401, 402, 403])
@pytest.mark.slow
async def test_a_wrong_key_of_an_endpoint_is_not_worth_a_retry(
    endpoint: tuple[OddEndpoint, str], tmp_path: Path, status: int
) -> None:
    odd, url = endpoint
    generator = EndpointGenerator("chat", url, "odd")
    async with Service(tmp_path, generator).running() as service:
        number = odd.names.index(f"status {status}")
        reply = await ask(service, messages=[{"role": "user", "content": f"oddity {number}"}])
        assert (reply.status_code, reply.json()["error"]["retryable"]) == (502, False)
    await generator.close()


@pytest.mark.slow
async def test_who_leaves_ends_the_stream_in_a_second(
    endpoint: tuple[OddEndpoint, str],
) -> None:
    odd, url = endpoint
    generator = EndpointGenerator("chat", url, "odd")
    number = odd.names.index("empty events without an end")
    prompt = Prompt(({"role": "user", "content": str(number)},), max_tokens=100_000)

    async def read() -> None:
        async for _ in generator.stream(prompt):
            pass

    reading = asyncio.create_task(read())
    await odd.began.wait()
    assert not odd.left.is_set()
    reading.cancel()
    async with asyncio.timeout(1.0):
        await odd.left.wait()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await generator.close()
