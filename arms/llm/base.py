"""The interface of a generator: a conversation goes in, text comes out in chunks.

GeneratorError                an engine failed
|-- GeneratorTimeoutError     it exceeded its time limit
|-- GeneratorBusyError        it takes no more requests for a while
|-- GeneratorRefusedError     it refuses the service, whatever it is asked
`-- PromptRefusedError        the request has what the engine cannot read
    `-- PromptTooLongError    the conversation does not fit the model's context
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Protocol

from typing_extensions import TypedDict, override

if TYPE_CHECKING:
    from armwise.arms.llm.protocols.request import Request


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an endpoint says of an error; all empty where it says nothing that can be read.

    Attributes:
        message: For the caller whose request it is, and for operators.
        code: Name of the error.
        param: Name of the field at fault.
        type: Kind of the error.
    """

    message: str = ""
    code: str = ""
    param: str = ""
    type: str = ""


class GeneratorError(Exception):
    """An engine failed; the message names the model and the reason.

    Attributes:
        refusal: What its endpoint says, which only the caller whose request it is may read.
        shown: What callers may read in the place of a message that names a model or its address.
        native: The event in which the endpoint says so, where an answer had begun.
    """

    refusal = Refusal()
    shown = ""
    native: "Native | None" = None


class GeneratorTimeoutError(GeneratorError):
    """An engine exceeded its time limit."""


class GeneratorBusyError(GeneratorError):
    """An engine takes no more requests for a while.

    Attributes:
        retry_after_s: Seconds until it takes requests again.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s)  # both, so that it can be pickled
        self.retry_after_s = retry_after_s

    @override
    def __str__(self) -> str:
        return f"{self.args[0]}: again in {self.retry_after_s:g} s"


class GeneratorRefusedError(GeneratorError):
    """An engine refuses the service: its key, its account or its model is wrong.

    Attributes:
        may_be_asked_for: Whether the request may be the reason instead, such as a file that there is not.
        status: HTTP status that the caller gets as well; None: the caller gets that the model failed.
    """

    may_be_asked_for = False
    status: int | None = None


class PromptRefusedError(GeneratorError):
    """The request has what the engine cannot read, such as a wrong JSON schema.

    Attributes:
        status: HTTP status with which its endpoint has refused it.
    """

    status = 400


class PromptTooLongError(PromptRefusedError):
    """The conversation does not fit the context of the model; a shorter one may."""


SILENCE_S = 60.0
"""Longest silence of an endpoint, in seconds, before its answer counts as failed."""

HINTS = frozenset({"parallel_tool_calls", "reasoning_effort", "verbosity", "max_completion_tokens"})
"""Options that an answer can do without: they are left out for engines that do not know them.

`max_completion_tokens` is the name under which endpoints get `Prompt.max_tokens`.
"""

SAMPLING = frozenset({"presence_penalty", "frequency_penalty", "logit_bias"})
LOGPROBS = frozenset({"logprobs", "top_logprobs"})
FORM = frozenset({"response_format", "tools", "tool_choice"})
"""Options of the form of an answer."""


OPTIONS = FORM | SAMPLING | LOGPROBS | HINTS | {"n"}
"""All options of prompts."""


INPUTS: Mapping[str, Literal["image", "file", "audio"]] = {
    "image_url": "image",
    "file": "file",
    "input_audio": "audio",
}
"""What a part of a message is besides text, by its type."""


class Message(TypedDict):
    """A message of a conversation.

    A call that the model made, in `tool_calls`, has OpenAI's shape; a message of the role `tool` holds the
    result of the call `tool_call_id`, or with `is_error` what went wrong. `parts` has OpenAI's shape, too:
    the texts of which `content` is made, images, files and audio between them, and `cache_control` at those
    parts after which a client wants the prompt cached.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    parts: NotRequired[list[dict[str, Any]]]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    is_error: NotRequired[bool]


def list_inputs(messages: Iterable[Message]) -> frozenset[str]:
    """Return what a model must read besides text to answer a conversation, as in `INPUTS`.

    >>> list_inputs([Message(role="user", content="", parts=[{"type": "file"}, {"type": "text"}])])
    frozenset({'file'})
    """
    kinds = (INPUTS.get(part["type"]) for message in messages for part in message.get("parts", ()))
    return frozenset(kind for kind in kinds if kind is not None)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation, and sampling parameters.

    Attributes:
        messages: The conversation, oldest first.
        max_tokens: Largest number of tokens to write, at least 1.
        temperature: 0 takes the likeliest token each time; higher is more varied. None: the endpoint's
            default, and 0 for engines of this process.
        top_p: Probability mass of the likeliest tokens to sample from, in (0, 1].
        stop: Texts that end the answer; they are cut off.
        seed: Seed of the samples; None: the engine's choice.
        options: Further parameters, with OpenAI's names and shapes, out of those that `catalog.list_options`
            names for the engine.
        patience_s: Longest time to the first words in seconds, retries included; None: unlimited.
        request: The request of a client that the prompt is for, which an endpoint is sent in the place of
            what is above; that fills in what the request leaves open.
        instructions: The text of the arm among the instructions: passages, and what to do with them.
        sets_limit: Whether a model is given `max_tokens` where the request has no limit and its protocol
            needs none.
        streams: Whether the answer is sent as it is written, or whole.
        headers: Headers of the request that are passed on with it.
    """

    messages: tuple[Message, ...]
    max_tokens: int = 256
    temperature: float | None = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    patience_s: float | None = None
    request: "Request | None" = None
    instructions: str = ""
    sets_limit: bool = True
    streams: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Native:
    """An event of an endpoint, as it came, or its whole answer.

    Attributes:
        protocol: Protocol of the endpoint.
        document: The event, or the answer.
        whole: Whether it is a whole answer.
        name: Name of the event; empty where it has none.
    """

    protocol: str
    document: Mapping[str, Any]
    whole: bool = False
    name: bytes = b""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer; the last has the finish reason and the usage.

    Attributes:
        text: The text since the previous chunk.
        finish_reason: On the last chunk: `stop`, `length`, `tool_calls`, `content_filter`, `refusal`,
            `pause_turn` or `context_window`.
        prompt_tokens: Tokens that the model read.
        cached_tokens: Tokens among these that the engine had cached, at their price.
        completion_tokens: Tokens that the model wrote, in all choices.
        usd: Price of this answer.
        index: The choice that it belongs to.
        tool_calls: Pieces of calls, in OpenAI's shape: `index`, `id`, `function` with `name` and `arguments`.
        logprobs: Log probabilities of the tokens of the text, in OpenAI's shape.
        finish_reasons: Finish reasons of the choices after the first, on the last chunk.
        cache_written_tokens: Tokens among those read that the engine has cached now.
        usage: The usage as the endpoint reported it, on the last chunk.
        reasoning: Reasoning since the previous chunk, where it can be read.
        native: The event of the endpoint that the chunk, and those after it without one, were read from.
        ended: Whether the answer has ended with this event, so that only usage can follow.
        marks: On the last chunk: the endpoint's id of the answer, and further names under which later
            requests show that they continue it, such as ids of calls.
    """

    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0
    index: int = 0
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    logprobs: tuple[Mapping[str, Any], ...] = ()
    finish_reasons: tuple[str, ...] = ()
    cached_tokens: int = 0
    cache_written_tokens: int = 0
    usage: Mapping[str, Any] | None = None
    reasoning: str = ""
    native: Native | None = None
    ended: bool = False
    marks: tuple[str, ...] = ()


class Generator(Protocol):
    """A language model that streams answers, concurrently.

    Attributes:
        model: Name of the model, for answers and logs.
    """

    model: str

    def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Yield the answer in chunks, the last one with a finish reason.

        Closing the iterator, or cancelling the task that reads it, stops the engine: read it
        inside `contextlib.aclosing`.

        Raises:
            GeneratorError: The engine failed, before or after the first chunk.
        """
        ...

    async def close(self) -> None:
        """Stop all work and free the engine, for good."""
        ...


async def complete(generator: Generator, prompt: Prompt) -> tuple[str, Chunk]:
    """Return a complete answer: its text, and the last chunk with finish reason and usage."""
    texts: list[str] = []
    last = Chunk()
    async with aclosing(generator.stream(prompt)) as chunks:
        async for last in chunks:
            texts.append(last.text)
    return "".join(texts), last


class ScriptedGenerator(Generator):
    """Writes answers from a script: for tests, demos and dry runs.

    A word with the space before it counts as a token. The same prompt always gets the same
    answer.

    Args:
        replies: Answers by the last message of the conversation, or a function of the prompt; a list has the
            functions to call, with their arguments as JSON.
        default: Answer to any other message.
        model: Name of the model.
        error: Raised by each stream when set; may be set and cleared at any time.
        fail_after: Tokens to write before `error` is raised.

    Attributes:
        last_prompt: The prompt of the latest stream.
        interrupted: Number of streams that were closed before their last chunk.

    >>> scripted = ScriptedGenerator({"2 + 2?": "It is 4."})
    >>> asyncio.run(complete(scripted, Prompt(({"role": "user", "content": "2 + 2?"},))))[0]
    'It is 4.'
    """

    def __init__(
        self,
        replies: Mapping[str, str] | Callable[[Prompt], str | Sequence[tuple[str, str]]],
        *,
        default: str = "I do not know.",
        model: str = "scripted",
        error: GeneratorError | None = None,
        fail_after: int = 0,
    ) -> None:
        self.model = model
        self.error = error
        self.fail_after = fail_after
        self.last_prompt: Prompt | None = None
        self.interrupted = 0
        if callable(replies):
            self._reply = replies
        else:
            self._reply = lambda prompt: replies.get(prompt.messages[-1]["content"], default)

    @override
    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        self.last_prompt = prompt
        reply, n = self._reply(prompt), prompt.options.get("n", 1)
        tokens = _words(_before_stop(reply, prompt.stop)) if isinstance(reply, str) else []
        written = tokens[: prompt.max_tokens]
        pieces = [Chunk(token) for token in written] if isinstance(reply, str) else list(_calls(reply))
        finish_reason = "stop" if isinstance(reply, str) else "tool_calls"
        finish_reason = finish_reason if written == tokens else "length"
        try:
            for piece in pieces if self.error is None else pieces[: self.fail_after]:
                for index in range(n):
                    yield replace(piece, index=index)
                await asyncio.sleep(0)  # other tasks run between tokens
        except (GeneratorExit, asyncio.CancelledError):
            self.interrupted += 1
            raise
        if self.error is not None:
            raise self.error
        yield Chunk(
            finish_reason=finish_reason,
            prompt_tokens=sum(len(_words(message["content"])) for message in prompt.messages),
            completion_tokens=n * len(pieces),
            finish_reasons=(finish_reason,) * (n - 1),
        )

    @override
    async def close(self) -> None:
        """Do nothing."""


def _calls(calls: Sequence[tuple[str, str]]) -> Iterator[Chunk]:
    """Yield calls of functions in pieces, as engines do: the name first, then the arguments."""
    for index, (name, arguments) in enumerate(calls):
        call = {"index": index, "id": f"call-{index}", "type": "function"}
        yield Chunk(tool_calls=({**call, "function": {"name": name, "arguments": ""}},))
        for part in (arguments[:5], arguments[5:]):
            yield Chunk(tool_calls=({"index": index, "function": {"arguments": part}},))


def _words(text: str) -> list[str]:
    """Split a text into words with their white space.

    >>> _words(" two  words ")
    [' two', '  words ']
    """
    return re.split(r"(?<=\S)(?=\s+\S)", text) if text.strip() else []


def _before_stop(text: str, stop: tuple[str, ...]) -> str:
    """Return a text up to the first stop text.

    >>> _before_stop("one. two; three", (";", "."))
    'one'
    """
    return min((text.partition(mark)[0] for mark in stop), key=len, default=text)


Write = Callable[[Prompt], tuple[str, Chunk]]
"""A prompt -> the answer, and its last chunk with the usage. Raises GeneratorError."""
