"""Prices of known models: against sums by hand, and against the library's own arithmetic."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from genai_prices import Usage
from genai_prices.data_snapshot import get_snapshot

from armwise.arms.llm import price_list
from armwise.arms.llm.base import Chunk, Generator, Prompt, complete
from armwise.arms.llm.catalog import EndpointSpec, build_generator, find_prices, is_priced
from armwise.arms.llm.price_list import find_listed
from armwise.arms.llm.pricing import PricedGenerator, TokenCounts, TokenPrices, count_usage

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)

OPENAI = "https://api.openai.com/v1"
AZURE = "https://ours.openai.azure.com/openai/v1"
ANTHROPIC = "https://api.anthropic.com/v1"
GOOGLE = "https://generativelanguage.googleapis.com/v1beta/openai"
DEEPSEEK = "https://api.deepseek.com/v1"
OPENROUTER = "https://openrouter.ai/api/v1"
GATEWAY = "http://127.0.0.1:4000/v1"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time at which prices hold, which a test may change."""
    at = SimpleNamespace(now=NOON)
    monkeypatch.setattr(price_list, "time", SimpleNamespace(time=lambda: at.now.timestamp()))
    return at


class Reporting(Generator):
    """An endpoint whose answer reports this usage, in a protocol."""

    model = "m"

    def __init__(self, usage: dict[str, Any], protocol: Literal["chat", "messages", "responses"]) -> None:
        self.usage, self.protocol = usage, protocol

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:  # noqa: ARG002 (of the protocol)
        found = count_usage(self.usage, self.protocol)
        assert found is not None
        yield Chunk(
            finish_reason="stop",
            prompt_tokens=found.prompt,
            completion_tokens=found.completion,
            cached_tokens=found.cached,
            cache_written_tokens=found.cache_written,
            usage=self.usage,
        )

    async def close(self) -> None: ...


async def charged(
    address: str, model: str, usage: dict[str, Any], protocol: Any = "chat", **settings: Any
) -> float:
    spec = EndpointSpec.model_validate({"engine": "openai", "base_url": address, "model": model, **settings})
    generator = PricedGenerator(Reporting(usage, protocol), find_prices(spec))
    _, last = await complete(generator, Prompt(({"role": "user", "content": "Why?"},)))
    return last.usd


RESPONSE = {
    "input_tokens": 9939,
    "input_tokens_details": {"cached_tokens": 8320},
    "output_tokens": 1610,
    "output_tokens_details": {"reasoning_tokens": 1344},
    "total_tokens": 11549,
}
MESSAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 4332,
    "cache_creation_input_tokens": 4613,
    "cache_creation": {"ephemeral_5m_input_tokens": 4513, "ephemeral_1h_input_tokens": 100},
    "output_tokens": 211,
    "service_tier": "standard",
}
LONG = {**MESSAGE, "input_tokens": 200_000}
KEPT = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 1000,
    "cache_creation": {"ephemeral_1h_input_tokens": 1000},
    "output_tokens": 10,
}
SEARCHED = {**MESSAGE, "server_tool_use": {"web_search_requests": 3}}
GEMINI = {"prompt_tokens": 66, "completion_tokens": 6, "total_tokens": 100}
HIT = {
    "prompt_tokens": 563,
    "completion_tokens": 116,
    "total_tokens": 679,
    "prompt_cache_hit_tokens": 512,
    "prompt_cache_miss_tokens": 51,
}
AUDIO = {
    "prompt_tokens": 64,
    "prompt_tokens_details": {"audio_tokens": 44},
    "completion_tokens": 90,
    "completion_tokens_details": {"audio_tokens": 80},
}


CHARGED = pytest.mark.parametrize(
    ("address", "model", "usage", "protocol", "millionths"),
    [
        (OPENAI, "gpt-5", RESPONSE, "responses", 1619 * 1.25 + 8320 * 0.125 + 1610 * 10),
        (OPENAI, "gpt-5", {**RESPONSE, "service_tier": "flex"}, "responses", 9581.875),
        (OPENAI, "gpt-5", {**RESPONSE, "service_tier": "priority"}, "responses", 2 * 19163.75),
        (OPENAI, "gpt-5", {**RESPONSE, "service_tier": ["flex"]}, "responses", 19163.75),
        (OPENAI, "gpt-5", {**RESPONSE, "service_tier": "scale"}, "responses", 19163.75),
        (AZURE, "gpt-5", {**RESPONSE, "service_tier": "flex"}, "responses", 19163.75),  # not OpenAI's tier
        (OPENAI, "gpt-audio", AUDIO, "chat", 20 * 2.5 + 44 * 32 + 10 * 10 + 80 * 64),
        (ANTHROPIC, "claude-sonnet-4-5", MESSAGE, "messages", 22018.35),
        (ANTHROPIC, "claude-sonnet-4-5", {**MESSAGE, "service_tier": "batch"}, "messages", 11009.175),
        (ANTHROPIC, "claude-sonnet-4-5", KEPT, "messages", 1000 * 6 + 10 * 15),
        (ANTHROPIC, "claude-sonnet-4-5", SEARCHED, "messages", 22018.35 + 30_000),
        (
            ANTHROPIC,
            "claude-sonnet-4-5",
            LONG,
            "messages",
            200_000 * 6 + 4332 * 0.6 + 4513 * 7.5 + 100 * 12 + 211 * 22.5,
        ),
        (GOOGLE, "gemini-2.5-pro", GEMINI, "chat", 66 * 1.25 + 34 * 10),
        (DEEPSEEK, "deepseek-chat", HIT, "chat", 51 * 0.27 + 512 * 0.07 + 116 * 1.1),
        (OPENROUTER, "openai/gpt-4o", {**GEMINI, "cost": 0.0123}, "chat", 12_300),
        (OPENROUTER, "nobody/knows", {**GEMINI, "cost": 0.0123}, "chat", 12_300),
        (GATEWAY, "gpt-4o", GEMINI, "chat", 66 * 2.5 + 34 * 10),
    ],
)


@CHARGED
async def test_an_answer_costs_what_its_provider_charges(
    address: str, model: str, usage: dict[str, Any], protocol: Any, millionths: float
) -> None:
    assert await charged(address, model, usage, protocol) * 1e6 == pytest.approx(millionths, rel=1e-12)


@CHARGED
def test_no_answer_costs_more_than_its_tokens_may(
    address: str, model: str, usage: dict[str, Any], protocol: Any, millionths: float
) -> None:
    """Whatever is cached, at whichever tier; a bill, and searches of the provider, are not known before."""
    prices, counts = find_listed(address, model), count_usage(usage, protocol)
    if prices is None or counts is None or usage.keys() & {"cost", "server_tool_use"}:
        return
    assert prices.compute_most(counts.prompt, counts.completion) * 1e6 >= millionths * (1 - 1e-12)


def test_the_sum_of_both_kinds_of_caches_is_right() -> None:
    assert sum([10 * 3, 4332 * 0.3, 4513 * 3.75, 100 * 6, 211 * 15]) == pytest.approx(22018.35)


async def test_a_price_of_the_night_holds_at_night(clock: SimpleNamespace) -> None:
    clock.now = NOON.replace(hour=20)
    usd = await charged(DEEPSEEK, "deepseek-chat", HIT)
    assert usd * 1e6 == pytest.approx(51 * 0.135 + 512 * 0.035 + 116 * 0.55)


async def test_a_tier_is_charged_from_its_first_day(clock: SimpleNamespace) -> None:
    clock.now = datetime(2026, 10, 11, 12, tzinfo=UTC)
    usd = await charged(OPENAI, "gpt-5", {**RESPONSE, "service_tier": "flex"}, "responses")
    assert usd * 1e6 == pytest.approx(19163.75)


@pytest.mark.parametrize(
    "cost", [-1, float("nan"), float("inf"), 1e300, 10**400, True, "0.5", {"total_cost": 1}, None]
)
async def test_a_bill_that_is_no_amount_of_dollars_is_passed_over(cost: object) -> None:
    assert await charged(GATEWAY, "gpt-4o", {**GEMINI, "cost": cost}) == pytest.approx(0.000505)


@pytest.mark.parametrize("settings", [{"usd_per_kilotoken_in": 1.0}, {"usd": 0}])
async def test_a_bill_wins_over_what_is_configured(settings: dict[str, float]) -> None:
    assert await charged(GATEWAY, "m", {**GEMINI, "cost": 0.5}, **settings) == 0.5
    assert await charged(GATEWAY, "m", {**GEMINI, "cost": 0}, **settings) == 0.0


async def test_what_is_configured_wins_over_the_list() -> None:
    prices = {"usd_per_kilotoken_in": 1.0, "usd_per_kilotoken_out": 2.0}
    assert await charged(OPENAI, "gpt-4o", GEMINI, **prices) == pytest.approx(0.066 + 0.068)
    assert await charged(OPENAI, "gpt-4o", GEMINI, usd_per_kilotoken_out=2.0) == pytest.approx(0.068)
    assert await charged(OPENAI, "gpt-4o", GEMINI, usd_per_kilotoken_in=0.0) == 0.0
    assert await charged(OPENAI, "gpt-4o", GEMINI, usd=0) == 0.0


@pytest.mark.parametrize(
    ("details", "at_most"),
    [
        ({"prompt_tokens_details": {"audio_tokens": 10**9}}, 64 * 32 + 90 * 10),
        ({"completion_tokens_details": {"audio_tokens": 10**9}}, 64 * 2.5 + 90 * 64),
        ({"prompt_tokens_details": "none", "completion_tokens_details": [1]}, 64 * 2.5 + 90 * 10),
    ],
)
async def test_no_more_tokens_of_a_kind_are_charged_than_there_are(details: Any, at_most: float) -> None:
    usage = {"prompt_tokens": 64, "completion_tokens": 90, **details}
    assert await charged(OPENAI, "gpt-audio", usage) * 1e6 == pytest.approx(at_most)


async def test_no_more_tokens_are_kept_for_an_hour_than_are_kept() -> None:
    usage = {**MESSAGE, "cache_creation": {"ephemeral_1h_input_tokens": 10**9}}
    usd = await charged(ANTHROPIC, "claude-sonnet-4-5", usage, "messages")
    assert usd * 1e6 == pytest.approx(10 * 3 + 4332 * 0.3 + 4613 * 6 + 211 * 15)


PROVIDERS = {
    "openai": OPENAI,
    "anthropic": ANTHROPIC,
    "google": GOOGLE,
    "deepseek": DEEPSEEK,
    "openrouter": OPENROUTER,
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "x-ai": "https://api.x.ai/v1",
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_model_costs_what_the_library_computes(provider: str) -> None:
    rng, snapshot, checked = np.random.default_rng(7), get_snapshot(), 0
    (models,) = (one.models for one in snapshot.providers if one.id == provider)
    for model in models:
        if (prices := find_listed(PROVIDERS[provider], model.id)) is None:
            continue
        read = int(rng.integers(1, 400_000))
        cached, kept, hour = (int(part) for part in rng.multinomial(read, [0.3, 0.2, 0.1, 0.4])[:3])
        written = int(rng.integers(1, 5_000))
        usage = Usage(
            input_tokens=read,
            output_tokens=written,
            cache_read_tokens=cached,
            cache_write_tokens=kept + hour,
            cache_write_1h_tokens=hour,
        )
        truth = snapshot.calc(usage, model.id, None, PROVIDERS[provider], NOON)
        reported = {"cache_creation": {"ephemeral_1h_input_tokens": hour}}
        answer = Chunk(
            prompt_tokens=read,
            completion_tokens=written,
            cached_tokens=cached,
            cache_written_tokens=kept + hour,
            usage=reported,
        )
        assert prices.charge(answer) == pytest.approx(float(truth.total_price), rel=1e-9), model.id
        checked += 1
    assert checked >= 5


@pytest.mark.parametrize(
    ("address", "model"),
    [
        (GATEWAY, "m"),
        (GATEWAY, "large"),
        (GATEWAY, "deepseek-r1:7b"),  # files of an open model, as Ollama names them
        (GATEWAY, "deepseek-ai/deepseek-chat"),
        (GATEWAY, "claude-sonnet-4-5-grok"),  # a name of two providers
        (OPENAI, "claude-sonnet-4-5"),
        (OPENAI, "whisper-1"),  # priced by the hour
        (ANTHROPIC, "m"),
    ],
)
def test_a_model_that_the_name_does_not_settle_has_no_price(address: str, model: str) -> None:
    assert find_listed(address, model) is None
    spec = EndpointSpec.model_validate({"engine": "openai", "base_url": address, "model": model})
    assert not is_priced(spec)
    assert find_prices(spec) == TokenPrices()


def test_resolved_prices_are_those_of_a_short_prompt() -> None:
    spec = {"engine": "openai", "base_url": GOOGLE, "model": "gemini-2.5-pro", "cache_lifetime_s": 60.0}
    prices = find_prices(EndpointSpec.model_validate(spec))
    assert prices.per_kilotoken == (0.00125, 0.01, 0.000125)
    assert prices.cache_lifetime_s == 60.0
    assert prices.compute_miss(1000) == pytest.approx(0.001125)
    assert prices.compute_usd(200_000, 10) == pytest.approx(0.25 + 0.0001)
    assert prices.compute_usd(200_001, 10) == pytest.approx(0.5000025 + 0.00015), "a bound knows the length"


def test_an_answer_of_an_endpoint_is_always_priced_for_its_bill() -> None:
    spec = {"engine": "openai", "base_url": GATEWAY, "model": "m"}
    assert isinstance(build_generator(EndpointSpec.model_validate(spec)), PricedGenerator)


CHAT = {"prompt_tokens": 10, "completion_tokens": 5}
RESPONSES = {"input_tokens": 10, "output_tokens": 5}


@pytest.mark.parametrize(
    ("protocol", "usage", "expected"),
    [
        ("chat", {**CHAT, "total_tokens": 15}, TokenCounts(10, 5)),
        ("chat", {**CHAT, "total_tokens": 19}, TokenCounts(10, 9)),
        ("chat", {**CHAT, "total_tokens": 3}, TokenCounts(10, 5)),
        ("chat", {**CHAT, "total_tokens": True}, TokenCounts(10, 5)),
        ("chat", {**CHAT, "total_tokens": 10**10}, TokenCounts(10, 5)),
        ("chat", {**CHAT, "prompt_tokens_details": {"cached_tokens": 10}}, TokenCounts(10, 5, 10)),
        ("chat", {**CHAT, "prompt_tokens_details": {"cached_tokens": 11}}, TokenCounts(10, 5)),
        ("chat", {**CHAT, "prompt_tokens_details": {"cached_tokens": "4"}}, TokenCounts(10, 5)),
        ("chat", {**CHAT, "prompt_tokens_details": None}, TokenCounts(10, 5)),
        ("chat", {**CHAT, "prompt_cache_hit_tokens": 4}, TokenCounts(10, 5, 4)),
        (
            "chat",
            {**CHAT, "prompt_tokens_details": {"cached_tokens": 3}, "prompt_cache_hit_tokens": 4},
            TokenCounts(10, 5, 3),
        ),
        (
            "chat",
            {**CHAT, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 6}},
            TokenCounts(10, 5, 4, 6),
        ),
        (
            "chat",
            {**CHAT, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 7}},
            TokenCounts(10, 5, 4),
        ),
        ("chat", RESPONSES, None),
        ("chat", {"prompt_tokens": 10}, None),
        ("chat", {**CHAT, "completion_tokens": -1}, None),
        ("chat", {**CHAT, "completion_tokens": 5.0}, None),
        ("chat", {**CHAT, "prompt_tokens": 10**9 + 1}, None),
        ("chat", [1], None),
        ("chat", None, None),
        ("responses", {**RESPONSES, "total_tokens": 19}, TokenCounts(10, 9)),
        ("responses", {**RESPONSES, "input_tokens_details": {"cached_tokens": 4}}, TokenCounts(10, 5, 4)),
        (
            "responses",
            {**RESPONSES, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2}},
            TokenCounts(10, 5, 4, 2),
        ),
        ("responses", CHAT, None),
        ("messages", RESPONSES, TokenCounts(10, 5)),
        ("messages", {**RESPONSES, "total_tokens": 99}, TokenCounts(10, 5)),
        ("messages", {**RESPONSES, "cache_read_input_tokens": 7}, TokenCounts(17, 5, 7)),
        ("messages", {**RESPONSES, "cache_creation_input_tokens": 7}, TokenCounts(17, 5, 0, 7)),
        ("messages", {**RESPONSES, "cache_creation_input_tokens": "7"}, TokenCounts(10, 5)),
        ("messages", {**RESPONSES, "cache_read_input_tokens": 10**9}, None),
        ("messages", {"output_tokens": 5}, None),
        ("messages", CHAT, None),
    ],
)
def test_usage_is_read_leniently(protocol: Any, usage: Any, expected: TokenCounts | None) -> None:
    assert count_usage(usage, protocol) == expected
