"""Retries under one key: a turn that was cut off is finished once, and an error says what a retry gets."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from armwise.agent.access.keyring import new_id
from armwise.agent.turn import AnsweredElsewhereError, Finished, LanguageModel
from armwise.arms.llm import Chunk, Prompt, base
from armwise.arms.llm.writing import DEFAULT
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.events import Decision, Execution
from armwise.feedback.log import tables as t
from tests.agent.api.test_feedback import read_decision
from tests.agent.asking import ask, late_once_decided, look_up, record, refused, rows
from tests.agent.fakes import FakeArms, MemoryLog, Service, failing, pass_time
from tests.agent.turn.test_turn import CHAT, a_loop

KEY = {"idempotency-key": "d-1"}


def test_an_id_is_12_digits_of_milliseconds_and_20_random_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    for milliseconds in (255, 256):
        monkeypatch.setattr(
            "armwise.agent.access.keyring.time",
            SimpleNamespace(time_ns=lambda ms=milliseconds: ms * 1_000_000),
        )
        ids += [new_id(), new_id()]
    assert [name[:12] for name in ids] == ["0000000000ff"] * 2 + ["000000000100"] * 2
    assert {len(name) for name in ids} == {32}
    assert len({name[12:] for name in ids}) == 4


async def cut_off(service: Service, seconds_ago: float) -> Decision:
    """Leave a decision of the usual question in the log, as a process that was killed does."""
    await ask(service, headers={"idempotency-key": "d-0"})
    store = service.replica.store
    whole = store.record("d-0")
    assert whole is not None
    at = whole.decision.decided_at - seconds_ago
    decision = replace(whole.decision, id="d-1", decided_at=at, drawn="none")
    store.append([decision])
    return decision


async def test_a_turn_that_was_cut_off_is_finished_by_its_retry(service: Service) -> None:
    decision = await cut_off(service, seconds_ago=1000.0)
    response = await ask(service, headers={"idempotency-key": "d-1"})
    assert response.status_code == 200, response.text
    ours = response.json()["agent"]
    assert (ours["arm_drawn"], ours["policy_version"]) == ("none", decision.version)
    assert ours["pmf"] == dict(zip(decision.arms, decision.probabilities, strict=True))
    assert (await read_decision(service, "d-1"))["status"] == "ok"
    assert await rows(service) == {
        "decisions": 2,
        "executions": 2,
        "feedback": 0,
        "examples": 0,
        "versions": 1,
    }
    again = await ask(service, headers={"idempotency-key": "d-1"})
    assert again.json()["choices"] == response.json()["choices"]


async def test_a_turn_that_may_still_run_is_not_run_twice(service: Service) -> None:
    await cut_off(service, seconds_ago=10.0)
    response = await ask(service, headers={"idempotency-key": "d-1"})
    assert "is in progress" in refused(response, 503, "in_progress", "Idempotency-Key")
    latest = service.config.limits.answer_s - 10.0
    assert latest - 5.0 < int(response.headers["retry-after"]) <= latest + 1.0, "not before it can be resumed"


async def test_a_retry_may_come_in_a_second_if_the_turn_ends_soon(service: Service) -> None:
    decision, under_way = await cut_off(service, seconds_ago=10.0), service.replica.under_way
    under_way["d-1"] = None
    here = await ask(service, headers=KEY)
    refused(here, 503, "in_progress", "Idempotency-Key")
    under_way.pop("d-1")
    end = decision.decided_at + service.config.limits.answer_s
    waits = [here.headers["retry-after"]]
    for left in (0.5, 1.5, 7.0):
        service.replica.decider.clock = lambda left=left: end - left  # type: ignore[misc]
        waits.append((await ask(service, headers=KEY)).headers["retry-after"])
    assert waits == ["1", "1", "2", "7"]


async def test_a_turn_that_was_cut_off_is_not_finished_by_another_request(service: Service) -> None:
    await cut_off(service, seconds_ago=1000.0)
    other = await ask(service, headers={"idempotency-key": "d-1"}, temperature=1.0)
    assert "used for another request" in refused(other, 409, "idempotency_conflict", "Idempotency-Key")


async def test_a_retry_of_a_turn_that_fell_back_answers_with_the_arm_that_answered(tmp_path: Path) -> None:
    policy = {"kind": "fixed", "params": {"arm": "bm25"}}
    async with Service(tmp_path, fallback="none", policy=policy, floor=1e-12).running() as service:
        service.arms.behaviour["bm25"] = failing
        wish = {"agent": {"return": ["passages"]}}
        first = await ask(service, KEY, **wish)
        assert first.status_code == 200, first.text
        service.arms.behaviour.clear()  # the drawn arm would answer now
        again = await ask(service, KEY, **wish)
        ours = again.json()["agent"]
        assert (ours["arm_drawn"], ours["arm_served"], again.headers["x-arm"]) == ("bm25", "none", "none")
        assert [passage["id"] for passage in ours["passages"]] == ["none-1", "none-2", "none-3", "none-4"]
        assert again.json() == first.json()


class Numbered(base.ScriptedGenerator):
    """Writes another answer each time, each at its own gate."""

    def __init__(self) -> None:
        super().__init__({})
        self.gates = [asyncio.Event(), asyncio.Event()]
        self.begun = 0

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        del prompt
        number, self.begun = self.begun, self.begun + 1
        await self.gates[number].wait()
        yield Chunk(f"answer {number}")
        yield Chunk("", finish_reason="stop", prompt_tokens=1, completion_tokens=2)


async def test_of_two_retries_in_one_replica_one_finishes_the_turn(service: Service) -> None:
    await cut_off(service, seconds_ago=1000.0)
    generator = Numbered()
    service.replica.turns.writer.models = {DEFAULT: LanguageModel(generator)}
    key = {"idempotency-key": "d-1"}
    task = asyncio.create_task(ask(service, headers=key))
    while not generator.begun:
        await asyncio.sleep(0)
    response = await ask(service, headers=key)
    refused(response, 503, "in_progress", "Idempotency-Key")
    assert response.headers["retry-after"] == "1"
    generator.gates[0].set()
    assert (await task).json()["choices"] == (await ask(service, headers=key)).json()["choices"]
    assert generator.begun == 1


async def test_of_two_replicas_that_finish_a_turn_the_later_answers_from_the_log(service: Service) -> None:
    await cut_off(service, seconds_ago=1000.0)
    key = {"idempotency-key": "d-1"}
    async with Service(service.folder).running(ready=False) as other:
        await other.refresh()
        generator = Numbered()
        service.replica.turns.writer.models = other.replica.turns.writer.models = {
            DEFAULT: LanguageModel(generator)
        }
        tasks = []
        for one in (service, other):
            tasks.append(asyncio.create_task(ask(one, headers=key)))
            while generator.begun < len(tasks):
                await asyncio.sleep(0)
        generator.gates[0].set()
        first = await tasks[0]
        generator.gates[1].set()
        message = refused(await tasks[1], 503, "in_progress", "Idempotency-Key")
        assert "answered by another process" in message
        again = await ask(other, headers=key)
        assert again.json()["choices"] == first.json()["choices"]
    assert (await rows(service))["executions"] == 2


async def test_a_turn_whose_execution_is_already_recorded_is_not_answered_again() -> None:
    log = MemoryLog()
    first = [event async for event in a_loop(log).turn(CHAT)]
    assert isinstance(first[-1], Finished)
    for arms in (FakeArms(), FakeArms({"bm25": failing})):
        with pytest.raises(AnsweredElsewhereError, match="'d-1' was meanwhile answered by another process"):
            async for _ in a_loop(log, arms).repeat(CHAT, log.decision, on_commit=lambda _: None):
                pass
    assert log.execution == first[-1].execution


async def test_a_turn_whose_arm_is_gone_is_not_finished(service: Service) -> None:
    await cut_off(service, seconds_ago=1000.0)
    with service.replica.store.writing() as connection:
        changed = sa.update(t.decisions).where(t.decisions.c.id == "d-1")
        connection.execute(changed.values(drawn="old", arms=["old", "bm25"], probabilities=[0.5, 0.5]))
    response = await ask(service, headers={"idempotency-key": "d-1"})
    message = refused(response, 409, "idempotency_conflict", "Idempotency-Key")
    assert message == "'d-1' was decided on arm 'old', which is gone"


async def test_a_turn_is_not_finished_by_a_fallback_that_is_switched_off(tmp_path: Path) -> None:
    async with Service(tmp_path, fallback="bm25").running() as service:
        await cut_off(service, seconds_ago=1000.0)
        await service.client.patch("/v1/arms/bm25", json={"enabled": False})
        service.arms.behaviour["none"] = failing
        response = await ask(service, headers={"idempotency-key": "d-1"})
        refused(response, 502, "arm_failed", final=True)
        assert (await read_decision(service, "d-1"))["arm_served"] is None


# -- failures -----------------------------------------------------------------------------------------


SOON_S = 5.0
"""The deadline of a request, below the time limit of an arm."""


def soon(headers: dict[str, str]) -> dict[str, str]:
    return headers | {"x-request-timeout-seconds": f"{SOON_S:g}"}


async def test_a_deadline_before_the_draw_is_retryable(tmp_path: Path) -> None:
    embedding = {"backbone": "tiny", "dims": 4}
    async with Service(tmp_path, features={"embedding": embedding}).running() as service:
        async with asyncio.timeout(10):
            while not service.replica.ready:
                await asyncio.sleep(0)

        async def never(*_: object) -> Any:
            pass_time(SOON_S)
            await asyncio.Event().wait()

        embed, service.replica.turns.searcher.embed = service.replica.turns.searcher.embed, never
        response = await look_up(service, soon(KEY))
        refused(response, 408, "deadline_exceeded")
        assert response.json()["error"]["decision_id"] is None
        service.replica.turns.searcher.embed = embed
        assert (await look_up(service, KEY)).status_code == 200


async def test_a_deadline_that_passes_after_the_draw_is_final_for_its_key(service: Service) -> None:
    late_once_decided(service, SOON_S)
    response = await look_up(service, soon(KEY))
    refused(response, 408, "deadline_exceeded", final=True)
    assert response.json()["error"]["decision_id"] == "d-1"
    await record(service, "d-1", lambda found: found.execution)
    refused(await look_up(service, KEY), 409, "idempotency_conflict", "Idempotency-Key")
    refused(await look_up(service, soon({})), 408, "deadline_exceeded")


async def test_a_failure_is_final_for_its_key_alone(service: Service) -> None:
    service.arms.behaviour["bm25"] = failing
    refused(await look_up(service, KEY, model="arm/bm25"), 502, "arm_failed", final=True)
    refused(await look_up(service, model="arm/bm25"), 502, "arm_failed")


async def test_if_only_the_execution_cannot_be_stored_the_decision_is_named_and_may_be_resumed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = service.replica.store.append

    def full(facts: Any) -> Any:
        if any(isinstance(fact, Execution) for fact in facts):
            raise LogUnavailableError("the disk is full")
        return append(facts)

    monkeypatch.setattr(service.replica.store, "append", full)
    response = await ask(service, KEY)
    refused(response, 503, "log_unavailable")
    assert response.json()["error"]["decision_id"] == response.headers["x-decision-id"] == "d-1"
    monkeypatch.undo()
    response = await ask(service, KEY)
    refused(response, 503, "in_progress", "Idempotency-Key")
    assert int(response.headers["retry-after"]) > 60


async def test_an_arm_that_fails_while_its_decision_is_being_stored_is_recorded_after_a_deadline(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, append = asyncio.Event(), service.replica.turns.log.append

    def slowly(*facts: Any) -> "asyncio.Future[Any]":
        async def later() -> Any:
            pass_time(SOON_S)
            await held.wait()
            return await append(*facts)

        return asyncio.ensure_future(later()) if isinstance(facts[0], Decision) else append(*facts)

    monkeypatch.setattr(service.replica.turns.log, "append", slowly)
    service.arms.behaviour["bm25"] = failing
    refused(await look_up(service, soon(KEY), model="arm/bm25"), 408, "deadline_exceeded", final=True)
    held.set()
    found = await record(service, "d-1", lambda found: found.execution)
    assert found.execution is not None
    assert found.execution.status == "arm_failed"


async def test_fields_at_their_defaults_do_not_change_the_digest_of_a_request(service: Service) -> None:
    wish = {"agent": {"context": {"n": 3}}}
    first = await ask(service, KEY, **wish)
    assert first.status_code == 200, first.text
    again = await ask(service, KEY, stream=None, stop=None, **wish)
    assert again.json()["choices"] == first.json()["choices"]
    refused(await ask(service, KEY, seed=1, **wish), 409, "idempotency_conflict", "Idempotency-Key")
    await look_up(service, {"idempotency-key": "d-2"})
    kept = await record(service, "d-2", lambda found: found.decision)
    said = b'{"query":"which river runs through Vienna?"}'
    assert kept.decision.request_digest == sha256(said).hexdigest(), "whatever fields are added some day"
