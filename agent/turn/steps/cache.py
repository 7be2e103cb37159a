"""What it costs that an engine lacks a conversation in its cache: a switch of the model, or a pause.

    turns in the log --> tokens that each language model has cached --> dollars by arm --> draw

A model that read a turn of the conversation within its `cache_lifetime_s` reads the same prefix at the price
of cached tokens; another one reads it in full, and may be paid for caching it. Prefixes that the first turn
of the conversation found in a cache, such as the instructions of an agent, belong to all conversations: each
model has them, so they are in no difference.

A miss is paid once, and the turns that follow read what it cached. So a draw counts a share of it, 1 over
`TURNS`, and the rest is learned as other costs are.

Passages stand before the conversation in a prompt. So of an arm that searches only the instructions stay.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from armwise.agent.turn.ask import Ask
from armwise.agent.turn.eligibility import ArmInfo
from armwise.agent.turn.price import LanguageModel, estimate_attached_tokens
from armwise.agent.turn.record import tokens_in
from armwise.agent.turn.steps.base import Draft, StepRecord, TurnStep
from armwise.arms.llm import write_document
from armwise.feedback.events import AnsweredTurn, count_cache_written
from armwise.feedback.reward import RewardRule

FindTurns = Callable[[str], Awaitable[Sequence[AnsweredTurn]]]
"""Episode -> its first turn and its newest ones, oldest first. Raises LogUnavailableError."""

TURNS = 5.0
"""Turns over which a draw spreads what a cache lacks: the turns that follow read it from there."""


class CacheStep(TurnStep):
    """Counts the dollars that an arm costs more because its engine lacks the conversation in its cache.

    Args:
        models: Language models by name.
        find_turns: Returns turns of a conversation.
        usd_weight: Reward that a dollar costs.
        clock: Seconds since the epoch.
    """

    name: ClassVar[str] = "cache"

    def __init__(
        self,
        models: Mapping[str, LanguageModel],
        find_turns: FindTurns,
        usd_weight: float,
        clock: Callable[[], float],
    ) -> None:
        self._models, self._find_turns = models, find_turns
        self._usd_weight, self._clock = usd_weight, clock

    @classmethod
    def build(
        cls,
        *,
        prices_caches: bool,
        models: Mapping[str, LanguageModel],
        find_turns: FindTurns,
        reward: RewardRule,
        clock: Callable[[], float],
    ) -> Self | None:
        """Return the step of a service; None: no cache has a price."""
        return cls(models, find_turns, reward.usd_weight, clock) if prices_caches else None

    async def read(self, draft: Draft) -> StepRecord | None:
        """Return what arms cost more in this turn of a conversation; None: no arm does."""
        ask = draft.ask
        goes_on = ask.episode_id is not None and bool(ask.messages) and not ask.external
        if not goes_on or not draft.is_open:
            return None
        arms = {name: draft.arms[name] for name in draft.names}
        asked = (self._models.get(info.answering.llm) for info in arms.values())
        if not any(model is not None and model.caches for model in asked):
            return None
        turns = await self._find_turns(ask.episode_id or "")
        usd = expect_misses(ask, turns, arms, self._models, self._clock())
        return {"usd_weight": self._usd_weight, "usd": {arm: more / TURNS for arm, more in usd.items()}}

    def plan(self, draft: Draft) -> StepRecord | None:
        """Return the dollars that each arm costs more, and the reward that a dollar costs."""
        found: StepRecord | None = draft.found.get(self.name)
        if found is None or not found["usd"].keys() & {*draft.names}:
            return None
        return {**found, "usd": {arm: found["usd"].get(arm, 0.0) for arm in draft.names}}

    @classmethod
    def weigh(cls, record: Mapping[str, Any], arms: Sequence[str]) -> Sequence[float]:
        """Return the reward that the dollars of each arm cost."""
        return [record["usd_weight"] * record["usd"].get(arm, 0.0) for arm in arms]


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
    # whether the client has marked what it wants cached
    marked = any("cache_control" in part for message in ask.messages for part in message.get("parts", ()))
    prefix, usd = max(cached.values()), {}
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
    instructions = _count_json(ask.document.options.get("tools"))
    rest = estimate_attached_tokens(ask.messages)
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
