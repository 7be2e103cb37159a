"""Many requests at once: whatever field holds the tokens, a key exceeds its limit by one turn at most."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from armwise.arms.llm import Chunk, Generator, Prompt, write_document
from armwise.arms.llm.pricing import TokenPrices
from armwise.arms.llm.protocols import ProtocolName
from armwise.feedback.registry import KeyLimits, KeySettings, keys
from armwise.feedback.registry.usage import spend
from tests.agent.asking import QUESTION
from tests.agent.fakes import CONFIG, Service

ENGINES: dict[ProtocolName, str] = {"chat": "openai", "messages": "anthropic", "responses": "responses"}

DOORS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}

PRICES = TokenPrices(usd_per_kilotoken_in=0.01, usd_per_kilotoken_out=0.03)

LONG = "\u4e2d1-" * 4000
"""A text of 20,000 bytes, which some tokenizers make a token of each byte of."""

AT_ONCE = 40

ASKED = {"role": "user", "content": QUESTION}
AUDIO = {"type": "input_audio", "input_audio": {"data": LONG, "format": "wav"}}
CALLED = {"type": "function", "function": {"name": "f", "description": LONG, "parameters": {}}}
SIGNED = {"type": "thinking", "thinking": "", "signature": LONG}
REASONS = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": LONG}

FIELDS: list[tuple[ProtocolName, dict[str, Any]]] = [
    ("chat", {"messages": [{"role": "user", "content": LONG}]}),
    ("chat", {"messages": [{"role": "system", "content": LONG}, ASKED]}),
    ("chat", {"messages": [{"role": "assistant", "content": "", "reasoning_content": LONG}, ASKED]}),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}, AUDIO]}]}),
    ("chat", {"messages": [ASKED], "tools": [CALLED]}),
    ("chat", {"messages": [ASKED], "functions": [{"name": "f", "description": LONG}]}),
    ("chat", {"messages": [ASKED], "prediction": {"type": "content", "content": LONG}}),
    ("chat", {"messages": [ASKED], "nobody_knows_this": {"deep": [LONG]}}),
    ("chat", {"messages": [ASKED], LONG: 1}),
    ("messages", {"messages": [ASKED], "system": LONG}),
    ("messages", {"messages": [{"role": "assistant", "content": [SIGNED]}, ASKED]}),
    ("messages", {"messages": [ASKED], "nobody_knows_this": LONG}),
    ("responses", {"input": QUESTION, "instructions": LONG}),
    ("responses", {"input": [REASONS, ASKED]}),
    ("responses", {"input": QUESTION, "nobody_knows_this": LONG}),
]


class ReadsEveryByte(Generator):
    """An endpoint for which each byte that it is sent is a token."""

    model = "m"

    def __init__(self, protocol: ProtocolName, written: int) -> None:
        self.protocol, self.written = protocol, written

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        assert prompt.request is not None
        read = len(write_document(prompt.request.to(self.protocol)))
        written = min(self.written, prompt.max_tokens)
        await asyncio.sleep(0.001)
        yield Chunk("yes", "stop", read, written, PRICES.compute_usd(read, written))


async def ask_at_once(
    folder: Path, protocol: ProtocolName, fields: dict[str, Any], written: int = 1, **limits: Any
) -> tuple[Counter[int], float, int]:
    """Return the status codes of many requests at once of one key, and the USD and tokens that it spent."""
    prices = {name: getattr(PRICES, name) for name in ("usd_per_kilotoken_in", "usd_per_kilotoken_out")}
    llm = {"engine": ENGINES[protocol], "base_url": "http://127.0.0.1:9/v1", "model": "m", **prices}
    changes = {"llm": llm, "limits": {**CONFIG["limits"], "body_bytes": 16 << 20, "in_flight": 2 * AT_ONCE}}
    async with Service(folder, ReadsEveryByte(protocol, written), **changes).running() as service:
        store, quota = service.replica.store, service.replica.quota
        settings = KeySettings("app", ("decide",), limits=KeyLimits(**limits))
        _, token = await asyncio.to_thread(keys.create, store, settings, service.replica.clock())
        await service.refresh()
        header = {"authorization": f"Bearer {token}"}
        answers = await asyncio.gather(
            *(service.client.post(DOORS[protocol], json=fields, headers=header) for _ in range(AT_ONCE))
        )
        await quota.report()
        (used,) = spend(store, service.replica.clock()).values()
        return Counter(answer.status_code for answer in answers), used["total"].usd, used["total"].tokens


def assert_few(codes: Counter[int], most: int) -> None:
    """At least one is answered; others wait for a second at most, which is short on a busy machine."""
    assert 1 <= codes[200] <= most
    assert codes[200] + codes[429] == AT_ONCE


@pytest.mark.parametrize(("protocol", "fields"), FIELDS)
async def test_a_budget_is_exceeded_by_less_than_one_turn(
    tmp_path: Path, protocol: ProtocolName, fields: dict[str, Any]
) -> None:
    one = PRICES.compute_usd(len(write_document(fields)), 1)
    codes, usd, _ = await ask_at_once(
        tmp_path, protocol, {"max_tokens": 100} | fields, max_budget=2.5 * one, budget_duration="1d"
    )
    assert_few(codes, 3)
    assert 0.9 * one <= usd <= 3.1 * one


@pytest.mark.parametrize("limit", ["tpm_limit", "token_budget"])
async def test_a_limit_of_tokens_is_exceeded_by_less_than_one_turn(tmp_path: Path, limit: str) -> None:
    fields = {"messages": [ASKED], "nobody_knows_this": LONG}
    more = {"budget_duration": "1d"} if limit == "token_budget" else {}
    codes, _, tokens = await ask_at_once(tmp_path, "chat", fields, **{limit: 1000}, **more)
    assert_few(codes, 1)
    assert tokens <= 1000 + len(write_document(fields)) + 100


@pytest.mark.parametrize(("limit", "written"), [({}, 512), ({"max_completion_tokens": 3000}, 3000)])
async def test_what_an_answer_may_write_is_reserved_also_if_the_request_has_no_limit(
    tmp_path: Path, limit: dict[str, int], written: int
) -> None:
    """The configured limit counts then, and is what the model is told."""
    fields = {"model": "arm/bm25", "messages": [ASKED]} | limit
    one = PRICES.compute_usd(len(write_document(fields)), written)
    codes, usd, _ = await ask_at_once(
        tmp_path, "chat", fields, 10**6, max_budget=2.5 * one, budget_duration="1d"
    )
    assert_few(codes, 3)
    assert usd <= 3.1 * one


async def test_large_requests_of_a_generous_key_are_answered_at_once(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    fields = {"max_tokens": 100, "messages": [{"role": "user", "content": [image]}]}
    codes, _, _ = await ask_at_once(tmp_path, "chat", fields, tpm_limit=AT_ONCE * 1_100_000)
    assert codes == {200: AT_ONCE}
