"""What travels over HTTP: requests that are checked field by field, and the shapes of replies."""

import math
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    WithJsonSchema,
)

Identifier = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
Number = Annotated[float, Field(allow_inf_nan=False)]


def _value(value: Any) -> bool | float:
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return value
    raise ValueError("a finite number, true or false was expected")


Value = Annotated[
    bool | float, PlainValidator(_value), WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "number"}]})
]
"""What feedback may carry: checked as one type, so that an error names the field and not a branch of it."""


class Request(BaseModel):
    """A request refuses fields that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AgentOptions(Request):
    """Our own fields, in one object, so that any OpenAI client works unchanged."""

    episode_id: Identifier | None = None
    context: dict[str, StrictBool | StrictInt | StrictFloat | StrictStr] = Field(
        default_factory=dict, max_length=64
    )
    allowed_arms: list[StrictStr] | None = None
    excluded_arms: list[StrictStr] = Field(default_factory=list)
    explore: StrictBool = True
    returns: list[Literal["passages", "decision"]] = Field(default_factory=list, alias="return")


class TextPart(BaseModel):
    """A piece of a message; only text is understood."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: Literal["text"]
    text: StrictStr


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="ignore", frozen=True)  # clients send names and null tool calls along

    role: Literal["system", "developer", "user", "assistant"]
    content: StrictStr | list[TextPart]

    @property
    def text(self) -> str:
        """The words of the message."""
        return (
            self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        )


class StreamOptions(Request):
    """What a stream carries besides the answer."""

    include_usage: StrictBool = False
    include_obfuscation: StrictBool = False


class ChatRequest(Request):
    """`POST /v1/chat/completions`."""

    model: StrictStr = "auto"
    messages: list[ChatMessage] = Field(min_length=1, max_length=200)
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    stop: StrictStr | list[StrictStr] | None = None
    seed: StrictInt | None = None
    n: Literal[1] | None = None
    user: StrictStr | None = None
    agent: AgentOptions = Field(default_factory=AgentOptions)


class RetrieveRequest(Request):
    """`POST /v1/retrieve`."""

    query: StrictStr
    k: Annotated[StrictInt, Field(ge=1)] | None = None
    model: StrictStr = "auto"
    agent: AgentOptions = Field(default_factory=AgentOptions)


class FeedbackItem(Request):
    """One value of one metric for one decision."""

    decision_id: Identifier
    metric_name: StrictStr
    value: Value
    feedback_id: Annotated[StrictStr, Field(min_length=1, max_length=256)] | None = None
    event_time: AwareDatetime | None = None
    tags: dict[str, StrictStr] = Field(default_factory=dict, max_length=32)


class FeedbackBatch(Request):
    """Many items at once; each is checked, kept and answered by itself."""

    items: list[Any] = Field(min_length=1, max_length=1000)


FeedbackRequest = Annotated[
    Annotated[FeedbackItem, Tag("item")] | Annotated[FeedbackBatch, Tag("batch")],
    Discriminator(lambda body: "batch" if isinstance(body, dict) and "items" in body else "item"),
]


class ArmSwitch(Request):
    """`PATCH /v1/arms/{name}`."""

    enabled: StrictBool
