"""Prices of known models, from the list in the package `genai-prices`, without a request to any network.

A price of the list depends on more than the number of tokens: how long the prompt is, how long a cache keeps
it, the service tier, audio. The price of an answer reads all of it from the usage that its provider reports.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, ModelPrice, TieredPrices
from pydantic import ConfigDict, Field
from typing_extensions import override

from armwise.arms.llm.base import Chunk
from armwise.arms.llm.pricing import MOST_TOKENS, TokenPrices, read_count

MINUTE = 60.0
"""Seconds for which a price holds: some begin on a date, others at an hour of the day."""

Tiers = tuple[tuple[int, float], ...]
"""A price by the length of the prompt: tokens beyond which it holds, the most first, and USD for a token."""

Tier = tuple[str, str]
"""What a provider reports of an answer that changes its price, such as its service tier: name and value."""

_READ = ("prompt_tokens_details", "input_tokens_details")
_WRITTEN = ("completion_tokens_details", "output_tokens_details")

_DETAILS = {
    "input_audio_mtok": (_READ, "audio_tokens"),
    "input_image_mtok": (_READ, "image_tokens"),
    "input_video_mtok": (_READ, "video_tokens"),
    "output_audio_mtok": (_WRITTEN, "audio_tokens"),
    "output_image_mtok": (_WRITTEN, "image_tokens"),
    "output_video_mtok": (_WRITTEN, "video_tokens"),
    "output_reasoning_mtok": (_WRITTEN, "reasoning_tokens"),
}
"""Where usage reports the tokens that some models have a price of their own for, by its name in the list."""


class ListedPrices(TokenPrices):
    """Prices of a model of the list, in USD for 1000 tokens of a short prompt at the standard tier.

    What is computed from numbers of tokens counts the length of the prompt, too; `charge` counts all that the
    usage of the answer reports.

    Attributes:
        address: Base URL of the endpoint.
        model: Name of the model there.
    """

    model_config = ConfigDict(frozen=True)

    address: str = Field(description="Base URL of the endpoint.")
    model: str = Field(description="Name of the model, as the endpoint calls it.")

    @override
    def compute_usd(
        self,
        prompt_tokens: int,
        completion_tokens: int,
        cached_tokens: int = 0,
        cache_written_tokens: int = 0,
    ) -> float:
        counts = prompt_tokens, completion_tokens, cached_tokens, cache_written_tokens
        return self._rates({}).total(*counts, {})

    @override
    def compute_most(self, prompt_tokens: int, completion_tokens: int) -> float:
        at = int(time.time() / MINUTE)
        tiers = [frozenset[Tier](), *(frozenset({tier}) for tier in _find_tiers(self.address, self.model))]
        every = [_find_rates(self.address, self.model, tier, at) for tier in tiers]
        return max(rates.bound(prompt_tokens, completion_tokens) for rates in every)

    @property
    @override
    def window(self) -> int:
        found = _find_model(self.address, self.model)
        return (found and found[0].context_window) or MOST_TOKENS

    @override
    def _price(self, answer: Chunk) -> float:
        usage = answer.usage or {}
        counts = answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens
        return self._rates(usage).total(*counts, answer.cache_written_tokens, usage)

    def _rates(self, usage: Mapping[str, Any]) -> "_Rates":
        known = _find_tiers(self.address, self.model)
        tiers = frozenset(tier for tier in known if _is_reported(tier, usage))
        return _find_rates(self.address, self.model, tiers, int(time.time() / MINUTE))


def find_listed(address: str, model: str) -> ListedPrices | None:
    """Return the prices of a model at an address; None: the list has none, or the name says too little.

    The provider is found by the address. An address of no known provider may be that of a gateway: there a
    name such as `gpt-4o` stands for the model of the one provider that has such names. A name with a slash or
    a colon does not, as local engines name the files of open models so.

    Args:
        address: Base URL of the endpoint.
        model: Name of the model there.

    >>> prices = find_listed("https://api.anthropic.com/v1", "claude-sonnet-4-5")
    >>> prices.per_kilotoken
    (0.003, 0.015, 0.0003, 0.00375)
    >>> find_listed("http://127.0.0.1:11434/v1", "deepseek-r1:7b")
    """
    if _find_model(address, model) is None:
        return None
    rates = _find_rates(address, model, frozenset(), int(time.time() / MINUTE))
    read, written, cached, kept = (
        round(tiers[-1][1] * 1000, 15) for tiers in (rates.read, rates.written, rates.cached, rates.kept)
    )
    return ListedPrices(
        usd_per_kilotoken_in=read,
        usd_per_kilotoken_out=written,
        usd_per_kilotoken_cached=cached if rates.cached != rates.read else None,
        usd_per_kilotoken_cache_write=kept if rates.kept != rates.read else None,
        address=address,
        model=model,
    )


@dataclass(frozen=True, slots=True)
class _Rates:
    """Prices at a time and a tier: of a token read, written, cached, kept for minutes or an hour, and more.

    Attributes:
        request: USD for each answer.
        search: USD for each search of the web that the provider made.
        details: Prices of tokens read or written of another kind: where usage reports them, and as what.
    """

    read: Tiers
    written: Tiers
    cached: Tiers
    kept: Tiers
    kept_an_hour: Tiers
    request: float
    search: float
    details: tuple[tuple[tuple[str, ...], str, Tiers], ...]

    def total(self, read: int, written: int, cached: int, kept: int, usage: Mapping[str, Any]) -> float:
        """Return the price of an answer in USD."""
        per_read, per_written, per_kept = (_at(tiers, read) for tiers in (self.read, self.written, self.kept))
        usd = (read - cached - kept) * per_read + written * per_written
        usd += cached * _at(self.cached, read) + kept * per_kept
        if kept and (hour := read_count(usage, "cache_creation", "ephemeral_1h_input_tokens")):
            usd += min(hour, kept) * (_at(self.kept_an_hour, read) - per_kept)
        for places, name, tiers in self.details:
            most, instead = (read, per_read) if places is _READ else (written, per_written)
            count = next(filter(None, (read_count(usage, place, name) for place in places)), 0)
            usd += min(count, most) * (_at(tiers, read) - instead)
        if self.search and (searches := read_count(usage, "server_tool_use", "web_search_requests")):
            usd += searches * self.search
        return max(0.0, usd + self.request)

    def bound(self, read: int, written: int) -> float:
        """Return the most that an answer may cost in USD, whatever is cached, and of whichever kind."""
        details = [(places, tiers) for places, _, tiers in self.details]
        of_read = [self.read, self.cached, self.kept, self.kept_an_hour]
        of_read += [tiers for places, tiers in details if places is _READ]
        of_written = [self.written, *(tiers for places, tiers in details if places is _WRITTEN)]
        per_read, per_written = (max(_at(tiers, read) for tiers in each) for each in (of_read, of_written))
        return read * per_read + written * per_written + self.request


def _at(tiers: Tiers, read: int) -> float:
    """Return the price of a token in a prompt of this length.

    >>> _at(((200_000, 2.0), (-1, 1.0)), 200_000), _at(((200_000, 2.0), (-1, 1.0)), 200_001)
    (1.0, 2.0)
    """
    for beyond, usd in tiers:
        if read > beyond:
            return usd
    return tiers[-1][1]


def _is_reported(tier: Tier, usage: Mapping[str, Any]) -> bool:
    """Return whether an answer is of a tier; the list knows batches as a kind of processing."""
    return usage.get(tier[0]) == tier[1] or (
        tier == ("processing", "batch") and usage.get("service_tier") == "batch"
    )


@lru_cache(maxsize=256)
def _find_model(address: str, name: str) -> tuple[ModelInfo, bool] | None:
    """Return a model of the list that has a price of tokens, and whether its tiers hold at this address."""
    snapshot = get_snapshot()
    try:
        provider = snapshot.find_provider(None, None, address)
    except LookupError:
        provider = None
    if provider is None:
        if re.search("[/:]", name):
            return None
        claiming = [
            one
            for one in snapshot.providers
            if one.model_match is not None and one.model_match.is_match(name.lower())
        ]
        if len(claiming) != 1:
            return None
        (provider,) = claiming
    model = provider.find_model(name, all_providers=snapshot.providers)
    if model is None or not {"input_mtok", "output_mtok"} & _list_prices(model, {}, time.time()).keys():
        return None
    return model, any(model is one for one in provider.models)  # a reseller may have tiers of its own


@lru_cache(maxsize=256)
def _find_tiers(address: str, name: str) -> frozenset[Tier]:
    """Return the tiers of a model that the list has prices for."""
    found = _find_model(address, name)
    variants = found[0].price_variants if found is not None and found[1] else None
    return frozenset(tier for variant in variants or () for tier in variant.when.items())


@lru_cache(maxsize=1024)
def _find_rates(address: str, name: str, tiers: frozenset[Tier], minute: int) -> _Rates:
    """Return the prices of a model that is in the list at these tiers, in a minute since the epoch."""
    found = _find_model(address, name)
    assert found is not None
    prices = _list_prices(found[0], dict(tiers), minute * MINUTE)
    read, written = (_to_tiers(prices.get(name, Decimal())) for name in ("input_mtok", "output_mtok"))
    cached = _to_tiers(prices["cache_read_mtok"]) if "cache_read_mtok" in prices else read
    kept = _to_tiers(prices["cache_write_mtok"]) if "cache_write_mtok" in prices else read
    hour = _to_tiers(prices["cache_write_1h_mtok"]) if "cache_write_1h_mtok" in prices else kept
    by_thousands = (prices.get(f"{name}_kcount", Decimal()) for name in ("requests", "web_searches"))
    request, search = (_to_tiers(price, 1000)[-1][1] for price in by_thousands)
    details = tuple((*where, _to_tiers(prices[name])) for name, where in _DETAILS.items() if name in prices)
    return _Rates(read, written, cached, kept, hour, request, search, details)


def _list_prices(model: ModelInfo, tiers: Mapping[str, str], now: float) -> dict[str, Decimal | TieredPrices]:
    """Return the prices of a model by their names in the list, such as `input_mtok`, in USD."""
    prices: ModelPrice = model.get_prices(datetime.fromtimestamp(now, UTC), tiers)
    return {name: value for name, value in vars(prices).items() if value is not None}


def _to_tiers(price: Decimal | TieredPrices, of: int = 1_000_000) -> Tiers:
    """Return a price of so many as prices of one, by the length of the prompt.

    >>> _to_tiers(Decimal("2.5"))
    ((-1, 2.5e-06),)
    """
    if isinstance(price, Decimal):
        return ((-1, float(price / of)),)
    above = [(tier.start, float(tier.price / of)) for tier in reversed(price.tiers)]
    return (*above, (-1, float(price.base / of)))
