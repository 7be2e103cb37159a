"""Replies of a turn: an answer, or passages, with how the arm was chosen."""

from typing import Literal

from pydantic import Field

from agent.api.replies.base import Reply, Time

Mode = Literal["explore", "greedy", "forced"]


class Passage(Reply):
    """A passage that an arm found."""

    id: str
    title: str
    text: str
    score: float


class AnswerCost(Reply):
    """What a turn took."""

    total: float = Field(description="The priced sum.")
    tokens: int
    retrieval_ms: float
    llm_ms: float
    steps: int = Field(description="Rounds of retrieval.")
    usd: float


class Chosen(Reply):
    """How the arm was chosen and what it cost."""

    decision_id: str = Field(description="Names the decision in feedback.")
    episode_id: str | None
    policy_version: int = Field(description="The version that decided.")
    mode: Mode
    arm_drawn: str
    arm_served: str | None = Field(description="Another one than the drawn arm after a fallback.")
    propensity: float = Field(description="Probability with which the arm was drawn.")
    pmf: dict[str, float] = Field(description="Arm to probability.")
    cost: AnswerCost | None
    reward_deadline: Time = Field(description="Until when feedback counts.")


class Agent(Chosen):
    """The fields that OpenAI's API does not have."""

    passages: list[Passage] = Field(default=[], description="With `return: [passages]`.")
    features: dict[str, float] = Field(default={}, description="With `return: [decision]`.")


class AnswerMessage(Reply):
    """What the language model wrote."""

    role: Literal["assistant"]
    content: str


class AnswerChoice(Reply):
    """The answer; there is one."""

    index: int
    message: AnswerMessage
    finish_reason: Literal["stop", "length"] | None
    logprobs: None


class Usage(Reply):
    """Tokens of the language model."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(Reply):
    """A chat completion, as OpenAI's clients read it."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str = Field(description="`arm/<name>`: the arm that answered.")
    choices: list[AnswerChoice]
    usage: Usage
    agent: Agent


class Retrieval(Reply):
    """Passages without an answer."""

    object: Literal["retrieval"]
    model: str = Field(description="`arm/<name>`: the arm that answered.")
    passages: list[Passage]
    agent: Agent


HEADERS = {
    name: {"description": text, "schema": {"type": kind}}
    for name, kind, text in (
        ("x-decision-id", "string", "The decision."),
        ("x-arm", "string", "The arm that answered."),
        ("x-propensity", "number", "Probability with which it was drawn."),
        ("x-policy-version", "integer", "The version that decided."),
    )
}
"""Headers of the replies of a turn."""
