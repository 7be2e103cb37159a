"""What the service replies, typed. Fields that a newer service adds are passed over."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from feedback.reward import RewardRule


class Cost(BaseModel):
    """The raw cost vector, and `total`: its priced sum."""

    model_config = ConfigDict(extra="allow")
    total: float
    tokens: int = 0
    retrieval_ms: float = 0.0
    llm_ms: float = 0.0
    usd: float = 0.0


class Passage(BaseModel):
    """A passage that was found."""

    id: str
    title: str = ""
    text: str = ""
    score: float = 0.0
    metadata: dict[str, Any] = Field(default_factory=dict)


class Message(BaseModel):
    """What the language model wrote."""

    content: str | None = None


class Completion(BaseModel):
    """One answer; the service gives one."""

    message: Message


class AgentFields(BaseModel):
    """The `agent` object of a reply: how the arm was chosen and what it cost."""

    decision_id: str
    episode_id: str | None = None
    policy_version: int | str
    arm_drawn: str
    arm_served: str | None = None
    propensity: float
    pmf: dict[str, float]
    cost: Cost
    passages: list[Passage] = []


class Answer(BaseModel):
    """Passages, and an answer that was written from them where one was asked for.

    Attributes:
        agent: How the arm was chosen, and what it cost.
        passages: Best first.
        choices: The text, as OpenAI's API has it.
        latency_s: Seconds from the request to the whole answer, retries included.
    """

    agent: AgentFields
    passages: list[Passage] = []
    choices: list[Completion] = []
    latency_s: float = 0.0

    @model_validator(mode="after")
    def _passages_of_either_route(self) -> Self:
        self.passages = self.passages or self.agent.passages
        return self

    @property
    def decision_id(self) -> str:
        """Names the answer in feedback."""
        return self.agent.decision_id

    @property
    def arm(self) -> str:
        """The arm that found the passages."""
        return self.agent.arm_served or self.agent.arm_drawn

    @property
    def propensity(self) -> float:
        """Probability with which the arm was drawn."""
        return self.agent.propensity

    @property
    def passage_ids(self) -> list[str]:
        """Ids of the passages, best first."""
        return [passage.id for passage in self.passages]

    @property
    def text(self) -> str:
        """The text of the language model; empty without one."""
        return (self.choices[0].message.content or "") if self.choices else ""


class Share(BaseModel):
    """The probability of an action."""

    id: str
    probability: float


class Choice(BaseModel):
    """A decision over actions that came with the request.

    Attributes:
        decision_id: Names it in feedback.
        chosen: The action that was drawn.
        propensity: The probability with which it was drawn.
        ranking: Every action, the most probable first.
    """

    decision_id: str
    chosen: str
    propensity: float
    ranking: list[Share] = []


class ArmState(BaseModel):
    """An arm, as far as a client needs to know it."""

    name: str
    enabled: bool = True


class Arms(BaseModel):
    """Reply of `GET /v1/arms`."""

    arms: list[ArmState]


class Serving(BaseModel):
    """Which version decides, and whether it is pinned."""

    version: int | None
    pinned: bool
    chosen: int | None = None
    reason: str | None = None


class PolicyState(BaseModel):
    """How far the policy has learned, the reward that it learns from, and which version decides."""

    applied_seq: int
    reward: RewardRule
    serving: Serving | None = None

    @field_validator("reward", mode="before")
    @classmethod
    def _known(cls, reward: Any) -> Any:
        """Drop fields of the reward that this client does not know, of a newer service."""
        if not isinstance(reward, dict):
            return reward
        return {name: value for name, value in reward.items() if name in RewardRule.model_fields}


class Verification(BaseModel):
    """The result of recomputing a decision."""

    verified: bool
    max_difference: float
    why: list[str] = []


class Receipt(BaseModel):
    """The result of one item of feedback."""

    feedback_id: str = ""
    status: str = ""
    log_seq: int | None = None
    error: Mapping[str, Any] | None = None


class Receipts(BaseModel):
    """Reply to feedback, in the order of the items."""

    items: list[Receipt] = Field(min_length=1)

    @property
    def log_seq(self) -> int:
        """The last position in the log: all is learned when `applied_seq` has reached it."""
        return max(receipt.log_seq or 0 for receipt in self.items)
