"""Replies about a decision: all that is known of it, its recomputation, its feedback."""

from typing import Any, Literal

from pydantic import Field

from agent.api.errors import Envelope
from agent.api.replies.answers import Chosen, MadeCall, Mode
from agent.api.replies.base import Reply, Time

Ending = Literal["ok", "fell_back", "arm_failed", "llm_failed", "llm_timeout", "cancelled"]


class Item(Reply):
    """An item of feedback."""

    feedback_id: str
    kind: Literal["value", "retraction", "activation"]
    episode_id: str | None
    metric_name: str | None
    value: float | None
    content: dict[str, Any] = Field(
        description="Values that are not numbers: `comment`, `demonstration`, `label`, and preferences."
    )
    received_at: Time
    event_time: Time | None
    tags: dict[str, str]
    source: str | None = Field(description="Who judged: user, judge or operator.")
    key: str | None = Field(description="Public id of the key that sent it.")


class RawCost(Reply):
    """A cost vector, before prices."""

    steps: int
    prompt_tokens: int
    completion_tokens: int
    retrieval_s: float
    llm_s: float
    usd: float


class Observed(Reply):
    """What was found out about an arm on the same question, beside the reward."""

    source: Literal["shadow", "judge"]
    arm: str
    share: float = Field(description="Probability with which the decision was sampled.")
    propensity: float = Field(description="Probability with which the arm was taken.")
    value: float | None
    answer: str | None
    passage_ids: list[str]
    cost: RawCost
    judge: str | None
    judge_cost: RawCost
    swapped: bool
    error: str | None
    observed_at: Time


class DecisionBudget(Reply):
    """What a decision was charged under a budget."""

    price: float
    expected_costs: dict[str, float]


class Share(Reply):
    """A canary's part of a decision."""

    version: int
    share: float


class ActionProbability(Reply):
    """An action that could be chosen."""

    id: str
    probability: float


class ActionChoice(Reply):
    """The action that was chosen."""

    object: Literal["decision"]
    point: str
    decision_id: str = Field(description="Names the decision in feedback.")
    episode_id: str | None
    policy_version: int = Field(description="The version that decided.")
    mode: Mode
    chosen: str = Field(description="Id of the action.")
    propensity: float = Field(description="Probability with which it was drawn.")
    ranking: list[ActionProbability] = Field(description="The chosen one first, then by probability.")
    pmf: dict[str, float] = Field(description="Id to probability, in the order of the request.")
    reward_deadline: Time = Field(description="Until when feedback counts.")


class DecisionRow(Reply):
    """A decision of a list."""

    decision_id: str
    episode_id: str | None
    decided_at: Time
    question: str
    mode: Mode
    policy_version: int
    arm_drawn: str
    arm_served: str | None
    propensity: float
    status: Ending | None
    log_seq: int = Field(description="Position in the log.")


class DecisionList(Reply):
    """Decisions, newest first."""

    decisions: list[DecisionRow]
    next: int | None = Field(description="The `before` of the next page; null at the end.")


class WrittenChoice(Reply):
    """One of the answers of a turn."""

    text: str
    tool_calls: list[MadeCall]
    logprobs: list[dict[str, Any]]
    finish_reason: str | None


class ModelTokens(Reply):
    """What a language model read and wrote in a turn."""

    prompt: int
    completion: int
    cached: int = Field(description="Prompt tokens that the engine had cached.")


class DecisionRecord(Chosen):
    """Everything known about a decision."""

    question: str
    erased: bool = Field(description="Whether its texts were erased.")
    features: dict[str, float]
    embedding: list[float]
    arm_features: dict[str, dict[str, float]]
    masked: dict[str, str] = Field(description="The live arms that could not be drawn, and why.")
    policy: str
    decided_at: Time
    floor: float | None
    cost_weight: float | None
    deferred: bool
    activated: bool
    budget: DecisionBudget | None
    shadow: dict[str, float] | None
    canary: Share | None
    status: Ending | None
    error: str | None
    answer: str | None
    choices: list[WrittenChoice] | None = Field(description="All answers, where they are more than a text.")
    passage_ids: list[str]
    stages: list[dict[str, Any]]
    index_version: str | None = Field(
        description="Version of the index that answered; null where it is unknown."
    )
    cached: bool = Field(description="Whether the passages were kept from an earlier search.")
    tokens_by_model: dict[str, ModelTokens] | None = Field(
        description="Where other language models than that of the drawn arm took part; null where none did."
    )
    feedback: list[Item]
    observations: list[Observed]
    metrics: dict[str, float]
    reward: float | None
    example_seq: int | None = Field(description="Position in the training log.")
    state: Literal["running", "open", "learned", "closed"]
    withheld: bool = Field(
        description="Whether answers and passages are left out, which the groups of the key do not permit."
    )


class Recomputed(Reply):
    """A distribution as logged and as recomputed, by arm."""

    max_difference: float
    logged: dict[str, float]
    recomputed: dict[str, float]


class Draw(Reply):
    """The recomputed draw."""

    u: float | None
    arm: str | None
    agrees: bool


class DecisionVerification(Recomputed):
    """The result of recomputing a decision."""

    decision_id: str
    policy_version: int
    candidate: int | None
    share: float
    mode: Mode
    verified: bool
    erased: bool = Field(description="Whether its texts were erased; it is recomputed from its features.")
    tolerance: float
    draw: Draw
    shadow: Recomputed | None
    why: list[str] = Field(description="What differs.")


class FeedbackReceipt(Reply):
    """An item of feedback is durable."""

    feedback_id: str
    decision_id: str | None
    episode_id: str | None
    status: Literal["accepted", "duplicate", "pending_decision", "late_not_learned"]
    log_seq: int = Field(description="Position in the log.")
    hint: str | None = Field(description="What to do about feedback that does not count, or not yet.")


class FeedbackReceipts(Reply):
    """The results of a batch, in the order of its items."""

    items: list[FeedbackReceipt | Envelope]
