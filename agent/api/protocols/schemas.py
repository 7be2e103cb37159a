"""What the service reads of a request itself; everything else passes to the model as it came.

A field that is not here is no error, and a message, a block or a tool may have any shape.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, Tag, model_validator

from armwise.agent.api.schemas import (
    LARGEST,
    AgentOptions,
    Count,
    Finite,
    Many,
    Name,
    OneOrMany,
    Text,
)

Penalty = Annotated[Finite, Field(ge=-2, le=2)]

Choices = Annotated[StrictInt, Field(ge=1, le=128)]

TopLogprobs = Annotated[StrictInt, Field(ge=0, le=20)]

Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]


class Sent(BaseModel):
    """Base of what a client sends: a field that is null is the same as none, and others are passed on."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        is_object = isinstance(body, dict)
        return {name: value for name, value in body.items() if value is not None} if is_object else body


class ChatRequest(Sent):
    """`POST /v1/chat/completions`, as OpenAI's API has it."""

    model: Name = "auto"
    messages: Annotated[Objects, Field(min_length=1, max_length=4000)]
    stream: StrictBool = False
    stream_options: dict[str, Any] | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    n: Choices | None = None
    seed: Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logprobs: StrictBool | None = None
    top_logprobs: TopLogprobs | None = None
    parallel_tool_calls: StrictBool | None = None
    tools: Annotated[Objects, Field(max_length=512)] | None = None
    user: Text | None = None
    metadata: dict[str, Any] | None = Field(
        default=None,
        description="`session_id` names the conversation, which may keep its arm.",
    )
    prompt_cache_key: Text | None = Field(
        default=None, description="Names the conversation, if nothing else does and it is a UUID."
    )
    agent: AgentOptions = Field(default_factory=AgentOptions)


class ResponsesRequest(Sent):
    """`POST /v1/responses`, as OpenAI's API has it."""

    model: Name = "auto"
    input: (
        Annotated[
            Annotated[StrictStr, Tag("<one>")]
            | Annotated[Objects, Field(min_length=1, max_length=4000), Tag("<many>")],
            OneOrMany,
        ]
        | None
    ) = None
    instructions: Any = None
    stream: StrictBool = False
    max_output_tokens: Count | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    top_logprobs: TopLogprobs | None = None
    parallel_tool_calls: StrictBool | None = None
    tools: Annotated[Objects, Field(max_length=512)] | None = None
    background: StrictBool = False
    previous_response_id: Name | None = Field(
        default=None, description="A response whose provider keeps it, which alone can go on with it."
    )
    user: Text | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: Text | None = None
    agent: AgentOptions = Field(default_factory=AgentOptions)


class Conversation(Sent):
    """`POST /v1/messages/count_tokens`, as Anthropic's API has it."""

    model: Name = Field(default="auto", description="`auto`, `arm/<name>`, or a name of `aliases`.")
    messages: Annotated[Objects, Field(min_length=1, max_length=4000)]
    system: Any = None
    tools: Annotated[Objects, Field(max_length=512)] | None = None
    agent: AgentOptions = Field(default_factory=AgentOptions)


class MessagesRequest(Conversation):
    """`POST /v1/messages`, as Anthropic's API has it."""

    max_tokens: Count = Field(description="At most `limits.completion_tokens` are written.")
    stream: StrictBool = False
    temperature: Annotated[Finite, Field(ge=0, le=1)] | None = None
    top_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    top_k: Count | None = None
    stop_sequences: Many[Text] | None = None
    metadata: dict[str, Any] | None = Field(
        default=None, description="`user_id` is the end user; coding agents name their session in it."
    )
