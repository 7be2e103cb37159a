"""What it costs that an engine lacks a conversation in its cache: a switch of the model, or a pause.

    turns in the log --> tokens that each language model has cached --> dollars by arm --> draw

A model that read a turn of the conversation within its `cache_lifetime_s` reads the same prefix at the price
of cached tokens; another one reads it in full, and may be paid for caching it. Prefixes that the first turn
of the conversation found in a cache, such as the instructions of an agent, belong to all conversations: each
model has them, so they are in no difference.

A miss is paid once, and the turns that follow read what it cached. So a draw counts a share of it, 1 over
`CACHE_TURNS`, and the rest is learned as other costs are.

Passages stand before the conversation in a prompt. So of an arm that searches only the instructions stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from armwise.agent.turn.ask import Ask
from armwise.agent.turn.eligibility import ArmInfo
from armwise.agent.turn.price import LanguageModel, attached_tokens
from armwise.agent.turn.record import tokens_in
from armwise.arms.llm import write_document
from armwise.feedback.events import AnsweredTurn, count_cache_written


@dataclass(frozen=True, slots=True)
class CacheMisses:
    """What a draw counts of the dollars that engines lack the conversation in their caches.

    Attributes:
        usd_weight: Reward that a dollar costs.
        usd: Dollars by arm, above 0; arms that are left out miss nothing.
    """

    usd_weight: float = 0.0
    usd: Mapping[str, float] = field(default_factory=dict)

    def costs(self, arms: Sequence[str]) -> tuple[float, ...]:
        """Return the dollars of each of these arms; empty if none of them costs more.

        >>> CacheMisses(10.0, {"large": 0.02}).costs(["small", "large"]), CacheMisses().costs(["small"])
        ((0.0, 0.02), ())
        """
        return tuple(self.usd.get(arm, 0.0) for arm in arms) if self.usd.keys() & {*arms} else ()


NO_MISSES = CacheMisses()


def expect_misses(
    ask: Ask,
    turns: Sequence[AnsweredTurn],
    arms: Mapping[str, ArmInfo],
    models: Mapping[str, LanguageModel],
    now: float,
) -> dict[str, float]:
    """Return the dollars that a turn costs more with an arm than if its model had the conversation cached.

    Args:
        ask: The request.
        turns: The first turn of its conversation and the newest ones, oldest first.
        arms: Arms that may be drawn.
        models: Language models by name.
        now: Seconds since the epoch.

    Returns:
        Dollars by arm, above 0.
    """
    if not turns:
        return {}
    instructions, read = _count_tokens(ask)
    shared = max((tokens[2] for tokens in turns[0].tokens_by_model.values()), default=0)
    cached = {name: 0 for turn in turns for name in turn.tokens_by_model}
    kept = dict(cached)
    for turn in turns:
        for name in turn.tokens_by_model:
            tokens = _count_cached(turn, name, models.get(name), instructions)
            cached[name] = max(cached[name], tokens)
            if name in models and now - turn.decided_at < models[name].prices.cache_lifetime_s:
                kept[name] = max(kept[name], tokens)
    marked, prefix, usd = _is_marked(ask), max(cached.values()), {}
    for name, info in arms.items():
        model = models.get(info.answering.llm)
        if model is None or not model.caches or (model.marked and not marked):
            continue
        most = min(prefix, instructions if info.searches else read)
        missing = most - max(shared, min(kept.get(info.answering.llm, 0), most))
        if (more := model.prices.compute_miss(max(0, missing))) > 0.0:
            usd[name] = more
    return usd


def _count_cached(turn: AnsweredTurn, name: str, model: LanguageModel | None, instructions: int) -> int:
    """Return the tokens of a turn that a model cached; all that it read where it does not report them."""
    tokens = turn.tokens_by_model[name]
    reports = model is not None and model.marked
    cached = tokens[2] + count_cache_written(tokens) if reports else tokens[0]
    return min(cached, instructions) if turn.quotes_passages else cached


def _count_tokens(ask: Ask) -> tuple[int, int]:
    """Return an estimate of the tokens of the instructions of a request, tools included, and of all of it."""
    instructions = _count_json(ask.options.get("tools"))
    rest = attached_tokens(ask.messages)
    for message in ask.messages:
        tokens = tokens_in(message["content"]) + _count_json(message.get("tool_calls"))
        if message["role"] == "system":
            instructions += tokens
        else:
            rest += tokens
    return instructions, instructions + rest


def _count_json(document: Any) -> int:
    """Return an estimate of the tokens of tools or of calls, if there are any."""
    return tokens_in(write_document(document).decode()) if document else 0


def _is_marked(ask: Ask) -> bool:
    """Return whether a client marked what it wants cached."""
    return any("cache_control" in part for message in ask.messages for part in message.get("parts", ()))
