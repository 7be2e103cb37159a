"""The shapes of OpenAI's requests; a field that is not here is ignored, as clients add fields."""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
    model_validator,
)

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

DEEPEST = 64
"""Levels of a JSON schema and of other documents in a request."""


def _document(value: Any, depth: int = 0) -> Any:
    """Refuse JSON that cannot be written again."""
    if depth > DEEPEST:
        raise ValueError(f"at most {DEEPEST} levels were expected")
    match value:
        case str():
            value.encode()  # raises UnicodeEncodeError, a ValueError, for half a surrogate pair
        case int() | float() if not -LARGEST <= value <= LARGEST:
            raise ValueError(f"numbers of at most {LARGEST} were expected")
        case dict():
            for name, part in value.items():
                _document(name, depth + 1)
                _document(part, depth + 1)
        case list():
            for part in value:
                _document(part, depth + 1)
    return value


Document = Annotated[dict[str, Any], AfterValidator(_document)]

Stop = Annotated[Text, Field(min_length=1)]

OneOrObject = Discriminator(lambda value: "<one>" if isinstance(value, str) else "<object>")

Penalty = Annotated[Finite, Field(ge=-2, le=2)]

FunctionName = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


class Open(BaseModel):
    """Base of what a client sends: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Nullable(Open):
    """Base of a body: a field that is null is the same as none."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        """Leave out null, so that it is the same request as one without the field."""
        is_object = isinstance(body, dict)
        return {name: value for name, value in body.items() if value is not None} if is_object else body


_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")

_FILE = re.compile(r"data:[a-z]{1,20}/[A-Za-z0-9.+-]{1,100};base64,[A-Za-z0-9+/]+={0,2}")

_ADDRESS = re.compile(r"https://[!-~]{1,4088}")
"""An address without spaces and control characters, that the endpoint of a language model may look up."""


def check_image(url: str) -> str:
    """Return where an image is. Raises ValueError for what is neither its data nor an address."""
    if not (_ADDRESS.fullmatch(url) or _IMAGE.fullmatch(url)):
        raise ValueError(
            "an address of https:// or data:image/png;base64,... was expected, or jpeg, gif or webp"
        )
    return url


def check_file(data: str) -> str:
    """Return the data of a file. Raises ValueError for another form."""
    if not _FILE.fullmatch(data):
        raise ValueError("data:application/pdf;base64,... was expected, or another type")
    return data


class ImageUrl(Open):
    """An image: its address, or its data."""

    url: Annotated[Text, AfterValidator(check_image)]
    detail: Name | None = None


class FileData(Open):
    """A file; only one whose data is sent is read."""

    filename: Name | None = None
    file_data: Annotated[Text, AfterValidator(check_file)] | None = None


class CacheControl(Open):
    """Marks the end of what an endpoint may keep of a prompt."""

    type: Name
    ttl: Name | None = None


class Part(Open):
    """A part of a message: text, an image or a file, in the form of chat or of responses."""

    type: Name
    text: Text | None = None
    refusal: Text | None = None
    image_url: ImageUrl | None = None
    file: FileData | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_in_chat(cls, part: Any) -> Any:
        """Read the parts of responses, whose fields of an image or a file are beside the type."""
        match part:
            case {"type": "input_image", "image_url": str(url)}:
                return {**part, "image_url": {"url": url, "detail": part.get("detail")}}
            case {"type": "input_file"}:
                return {**part, "file": {name: part.get(name) for name in ("filename", "file_data")}}
        return part

    @property
    def content(self) -> str | None:
        """The text; None for a message without."""
        return self.refusal if self.type == "refusal" else self.text

    @property
    def attachment(self) -> Literal["image", "file"] | None:
        """What it is besides text."""
        if self.type in ("image_url", "input_image"):
            return "image"
        return "file" if self.type in ("file", "input_file") else None

    def for_model(self) -> dict[str, Any]:
        """Return it as `armwise.arms.llm.Message` has it.

        Raises:
            ValueError: An image or a file has neither data nor, of an image, an address.
        """
        marked = self.cache_control and self.cache_control.model_dump(exclude_none=True)
        more = {"cache_control": marked} if marked else {}
        if self.content is not None:
            return {"type": "text", "text": self.content, **more}
        if self.attachment == "image":
            if self.image_url is None:
                raise ValueError("image_url: an address or data was expected; no images are kept here")
            return {"type": "image_url", "image_url": self.image_url.model_dump(exclude_none=True), **more}
        if self.file is None or self.file.file_data is None:
            raise ValueError("file_data was expected: no files are kept here, and none are fetched")
        return {"type": "file", "file": self.file.model_dump(exclude_none=True), **more}


class CalledFunction(Open):
    """A function that a model called."""

    name: Text
    arguments: Text


class ToolCall(Open):
    """A call that a model made."""

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction
    cache_control: CacheControl | None = None


class ChatMessage(Open):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[Annotated[Text, Tag("<one>")] | Annotated[Many[Part], Tag("<many>")], OneOrMany] | None
    ) = None
    tool_calls: Many[ToolCall] | None = None
    tool_call_id: Text | None = None
    is_error: StrictBool | None = Field(
        default=None, description="Whether the result of a function is what went wrong."
    )


class Function(Open):
    """A function that the model may call."""

    name: FunctionName
    description: Text | None = None
    parameters: Document | None = None
    strict: StrictBool | None = None


class Tool(Open):
    """A tool that the model may use."""

    type: Literal["function"]
    function: Function
    cache_control: CacheControl | None = None


class NamedFunction(Open):
    """The name of a function."""

    name: FunctionName


class ToolChoice(Open):
    """The one function that must be called."""

    type: Literal["function"]
    function: NamedFunction


class AnswerSchema(Open):
    """The JSON schema of an answer."""

    name: Text = "answer"
    description: Text | None = None
    schema_: Document | None = Field(default=None, alias="schema")
    strict: StrictBool | None = None


class ResponseFormat(Open):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: AnswerSchema | None = None


class StreamOptions(Open):
    """What a stream contains besides the answer."""

    include_usage: StrictBool | None = None


class ChatRequest(Nullable):
    """`POST /v1/chat/completions`."""

    model: Name = "auto"
    stream: StrictBool | None = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    max_tokens: Count | None = None
    stop: (
        Annotated[
            Annotated[Stop, Tag("<one>")] | Annotated[Many[Stop], Field(max_length=16), Tag("<many>")],
            OneOrMany,
        ]
        | None
    ) = None
    seed: Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)] | None = None
    n: Annotated[StrictInt, Field(ge=1, le=16)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        dict[Annotated[StrictStr, Field(pattern="^[0-9]{1,9}$")], Annotated[Finite, Field(ge=-100, le=100)]]
        | None
    ) = Field(default=None, max_length=1024)
    user: Text | None = None
    metadata: Document | None = Field(
        default=None,
        description="`session_id` names the session, for `sticky` and for prices of cached tokens.",
    )
    prompt_cache_key: Text | None = Field(
        default=None, description="Names the session for `sticky: session`, where `metadata` does not."
    )
    agent: AgentOptions = Field(default_factory=AgentOptions)
    messages: Many[ChatMessage] = Field(min_length=1, max_length=4000)
    max_completion_tokens: Count | None = None
    tools: Many[Tool] | None = Field(default=None, max_length=512)
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("<one>")]
            | Annotated[ToolChoice, Tag("<object>")],
            OneOrObject,
        ]
        | None
    ) = None
    parallel_tool_calls: StrictBool | None = None
    response_format: ResponseFormat | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    reasoning_effort: Name | None = None
    verbosity: Name | None = None
    modalities: Many[Name] | None = None
    audio: Document | None = None
    functions: list[Any] | None = None
    web_search_options: Document | None = None


class ResponseItem(Open):
    """An item of the input of a response: a message, a call of a function, or the result of one."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Any = None
    call_id: Text | None = None
    name: Text | None = None
    arguments: Text | None = None
    output: Any = None


class ResponseTool(Open):
    """A function that the model may call."""

    type: Literal["function"]
    name: FunctionName
    description: Text | None = None
    parameters: Document | None = None
    strict: StrictBool | None = None


class ResponseToolChoice(Open):
    """The one function that must be called."""

    type: Literal["function"]
    name: FunctionName


class ResponseTextFormat(AnswerSchema):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]


class ResponseText(Open):
    """How an answer is written."""

    format: ResponseTextFormat | None = None
    verbosity: Name | None = None


class Reasoning(Open):
    """How much the model reasons."""

    effort: Name | None = None


class ResponsesRequest(Nullable):
    """`POST /v1/responses`."""

    model: Name = "auto"
    input: Annotated[
        Annotated[Text, Tag("<one>")]
        | Annotated[Many[ResponseItem], Field(min_length=1, max_length=1000), Tag("<many>")],
        OneOrMany,
    ]
    instructions: Text | None = None
    stream: StrictBool | None = False
    max_output_tokens: Count | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    tools: Many[ResponseTool] = Field(default_factory=list, max_length=128)
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("<one>")]
            | Annotated[ResponseToolChoice, Tag("<object>")],
            OneOrObject,
        ]
        | None
    ) = None
    parallel_tool_calls: StrictBool | None = None
    text: ResponseText | None = None
    reasoning: Reasoning | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    include: Many[Name] = Field(default_factory=list, max_length=16)
    metadata: dict[Name, Text] | None = Field(default=None, max_length=16)
    prompt_cache_key: Text | None = None
    background: StrictBool | None = None
    previous_response_id: Name | None = None
    conversation: Any = None
    prompt: Any = None
    agent: AgentOptions = Field(default_factory=AgentOptions)
