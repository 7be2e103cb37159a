"""The dial: how much cost counts in the draw of one request, instead of the cost weight of the reward.

It changes the draw alone. The reward that is learned stays the same rule for all requests.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from armwise.agent.turn.ask import Ask
from armwise.agent.turn.eligibility import ArmInfo
from armwise.agent.turn.price import LanguageModel
from armwise.agent.turn.steps.base import Draft, StepRecord, TurnStep
from armwise.feedback.events import Cost
from armwise.feedback.reward import RewardRule

TOKEN_BYTES = 4
"""Bytes of a request for a token."""

WRITTEN = 300
"""Tokens that an answer is expected to have, unless its limit is lower."""


class DialStep(TurnStep):
    """Makes each arm lose more reward for its expected cost, or less, than the reward does.

    Args:
        rule: Has the cost weight and the prices of costs.
        models: Language models by name.
    """

    name: ClassVar[str] = "dial"

    def __init__(self, rule: RewardRule, models: Mapping[str, LanguageModel]) -> None:
        self._rule, self._models = rule, models

    @classmethod
    def build(cls, *, reward: RewardRule, models: Mapping[str, LanguageModel]) -> Self:
        """Return the step of a service: any request may turn the dial."""
        return cls(reward, models)

    def plan(self, draft: Draft) -> StepRecord | None:
        """Return the cost weight of the request, how much more that is, and the expected cost of each arm."""
        ask = draft.ask
        if ask.dial is None:
            return None
        costs = {name: self._expect_cost(ask, draft.arms[name]) for name in draft.names}
        return {"cost_weight": ask.dial, "more": ask.dial - self._rule.cost_weight, "costs": costs}

    def _expect_cost(self, ask: Ask, info: ArmInfo) -> float:
        """Return what an answer of an arm costs, at the prices of the reward, as far as prices say."""
        model = self._models.get(info.answering.llm)
        steps = 1 if info.searches else 0
        if not ask.messages or model is None:
            return self._rule.cost.total(Cost(steps=steps))
        written = min(WRITTEN, ask.document.max_tokens or info.answering.limit or WRITTEN)
        size = ask.document.size or sum(len(message["content"]) for message in ask.messages)
        read = size // TOKEN_BYTES
        usd = model.prices.compute_usd(read, written)
        return self._rule.cost.total(Cost(steps, read, written, usd=usd))

    @classmethod
    def weigh(cls, record: Mapping[str, Any], arms: Sequence[str]) -> Sequence[float]:
        """Return what each arm loses more than by the reward; less than 0 if it loses less."""
        return [record["more"] * record["costs"][arm] for arm in arms]
