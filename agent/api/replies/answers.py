"""Replies of a turn: an answer, or passages, with how the arm was chosen."""

from typing import Any, Literal

from pydantic import Field

from agent.api.replies.base import Reply, Time

Mode = Literal["explore", "greedy", "forced"]


class Passage(Reply):
    """A passage that an arm found."""

    id: str
    title: str
    text: str
    score: float
    metadata: dict[str, str | int | float | bool | list[str]]


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


class MadeFunction(Reply):
    """What is called."""

    name: str
    arguments: str = Field(description="JSON, as the language model wrote it.")


class MadeCall(Reply):
    """A call of a function of the request."""

    id: str = Field(description="Names the decision; the result of the call comes under it.")
    type: Literal["function"]
    function: MadeFunction


class UrlCitation(Reply):
    """A passage, and where the text cites it."""

    start_index: int
    end_index: int
    title: str
    url: str


class Annotation(Reply):
    """A citation."""

    type: Literal["url_citation"]
    url_citation: UrlCitation


class AnswerMessage(Reply):
    """What the language model wrote."""

    role: Literal["assistant"]
    content: str | None = Field(description="Null where it calls functions and says nothing.")
    tool_calls: list[MadeCall] = Field(default=[], description="Left out where there is none.")
    annotations: list[Annotation] = Field(default=[], description="Left out where there is none.")


class AnswerChoice(Reply):
    """An answer; there are `n`."""

    index: int
    message: AnswerMessage
    finish_reason: str | None = Field(description="`stop`, `length` or `tool_calls`.")
    logprobs: dict[str, Any] | None = Field(description="`content` has those of each token.")


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


DECISION_HEADERS = {
    name: {"description": text, "schema": {"type": kind}}
    for name, kind, text in (
        ("x-decision-id", "string", "The decision."),
        ("x-propensity", "number", "Probability with which it was drawn."),
        ("x-policy-version", "integer", "The version that decided."),
    )
}
"""Headers of the replies of a decision."""

_ARM = {"description": "The arm that answered.", "schema": {"type": "string"}}

HEADERS = {**DECISION_HEADERS, "x-arm": _ARM}
"""Headers of the replies of a turn."""
