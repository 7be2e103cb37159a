"""Any endpoint with the OpenAI chat-completions protocol, through the official client.

What fails for a moment is tried again within the patience of the prompt. Where an endpoint says that its
rate is used up, no request is sent until it may be.
"""

import re
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import openai
from openai.types.chat import ChatCompletionChunk, chat_completion_chunk
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_random_exponential,
)
from typing_extensions import override

from armwise.arms.llm.base import (
    Chunk,
    Generator,
    GeneratorBusyError,
    GeneratorError,
    GeneratorTimeoutError,
    Message,
    Prompt,
    PromptTooLongError,
)
from armwise.arms.secrets import secret_of

PAUSE = wait_random_exponential(multiplier=0.5, max=8.0)
"""Wait between attempts without Retry-After: random, up to 0.5 s, then 1, 2 and so on."""

LONGEST_PAUSE_S = 60.0
"""Longest Retry-After that is waited for."""

PASSING = frozenset((408, 409, 429))
"""Statuses below 500 after which another attempt may succeed."""

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

CHARACTERS_PER_TOKEN = 4
"""Estimate for English text, for endpoints that report no usage."""


class OpenAIGenerator(Generator):
    """Writes answers with the model of an endpoint.

    Usage that the endpoint does not report is estimated from the length of the texts.

    Args:
        base_url: Base URL of the protocol, mostly ending in `/v1`.
        model: Name of the model at the endpoint.
        api_key_env: Environment variable that holds the key; None for no key.
        timeout_s: Longest silence of the endpoint.
        max_retries: Further attempts after a refused or failed connection, 429 or 5xx.
        request: Fields merged into each request body; None removes a field.

    Raises:
        GeneratorError: The environment variable is not set.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        timeout_s: float = 60.0,
        max_retries: int = 2,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        key = "none" if api_key_env is None else secret_of(api_key_env)
        if not key:
            raise GeneratorError(f"{model} at {base_url} needs a key: set the variable {api_key_env}")
        self.model = model
        self._name = f"{model} at {base_url}"
        self._attempts = 1 + max_retries
        self._rests_until = 0.0
        self._request = dict(request or {})
        self._timeout_s = timeout_s
        self._client = openai.AsyncOpenAI(base_url=base_url, api_key=key, timeout=timeout_s, max_retries=0)

    @override
    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        written: list[str] = []
        finish_reasons: dict[int, str] = {}
        usage: openai.types.CompletionUsage | None = None
        try:
            async with await self._begun(prompt) as events:
                async for event in events:
                    usage = event.usage or usage
                    for choice in event.choices:
                        if choice.finish_reason:
                            finish_reasons[choice.index] = choice.finish_reason
                        piece = _piece(choice)
                        if piece.text or piece.tool_calls:
                            written += [piece.text, *(str(call["function"]) for call in piece.tool_calls)]
                            yield piece
        except openai.APITimeoutError as error:
            raise GeneratorTimeoutError(f"{self._name} was silent for {self._timeout_s} s") from error
        except openai.RateLimitError as error:
            self._rest(retry_after_s(error.response.headers) or 1.0)
            raise self._busy(str(error)) from error
        except openai.BadRequestError as error:
            too_long = "context" in str(error)  # in the code or the message of all known servers
            raise (PromptTooLongError if too_long else GeneratorError)(f"{self._name}: {error}") from error
        except openai.OpenAIError as error:
            raise GeneratorError(f"{self._name}: {error}") from error
        if 0 not in finish_reasons:
            raise GeneratorError(f"{self._name} ended its answer without a finish reason")
        read = [message["content"] for message in prompt.messages]
        yield self._last(
            [reason for _, reason in sorted(finish_reasons.items())],
            usage.prompt_tokens if usage else estimate_tokens("".join(read)),
            usage.completion_tokens if usage else estimate_tokens("".join(written)),
            cached_in(usage),
        )

    @override
    async def close(self) -> None:
        await self._client.close()

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        body: dict[str, Any] = {
            **prompt.options,
            "model": self.model,
            "messages": [_written(message) for message in prompt.messages],
            "max_tokens": prompt.max_tokens,
            "temperature": prompt.temperature,
            "top_p": prompt.top_p,
            "stop": prompt.stop or None,
            "seed": prompt.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {name: value for name, value in (body | self._request).items() if value is not None}

    async def _begun(self, prompt: Prompt) -> openai.AsyncStream[ChatCompletionChunk]:
        """Send a request, and again while it fails for a moment and there is time."""
        if self._rests_until > time.monotonic():
            raise self._busy("its rate is used up")
        stop, left = stop_after_attempt(self._attempts), prompt.patience_s
        attempts = AsyncRetrying(
            stop=stop if left is None else stop | stop_before_delay(left),
            wait=_pause,
            retry=retry_if_exception(_passes),
            reraise=True,
        )
        async for attempt in attempts:
            with attempt:
                events: openai.AsyncStream[ChatCompletionChunk]
                events = await self._client.chat.completions.create(**self._body(prompt))
        self._rest(used_up_s(events.response.headers))
        return events

    def _rest(self, seconds: float) -> None:
        if seconds:
            self._rests_until = max(self._rests_until, time.monotonic() + seconds)

    def _busy(self, why: str) -> GeneratorBusyError:
        left = max(0.1, self._rests_until - time.monotonic())
        return GeneratorBusyError(f"{self._name}: {why}", round(left, 3))

    def _last(
        self, finish_reasons: list[str], prompt_tokens: int, completion_tokens: int, cached_tokens: int
    ) -> Chunk:
        return Chunk(
            finish_reason=finish_reasons[0],
            finish_reasons=tuple(finish_reasons[1:]),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=cached_tokens,
        )


def _passes(error: BaseException) -> bool:
    if isinstance(error, openai.APIStatusError):
        return error.status_code in PASSING or error.status_code >= 500
    return isinstance(error, openai.APIConnectionError)  # a time-out is one


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    requested_s = retry_after_s(error.response.headers) if isinstance(error, openai.APIStatusError) else 0.0
    return min(requested_s, LONGEST_PAUSE_S) or PAUSE(state)


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds of Retry-After, or of `retry-after-ms`; 0 where there is none in seconds.

    >>> retry_after_s({"retry-after": "2"}), retry_after_s({"retry-after-ms": "40"}), retry_after_s({})
    (2.0, 0.04, 0.0)
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit)
        except (KeyError, ValueError):
            continue
    return 0.0


def used_up_s(headers: Mapping[str, str]) -> float:
    """Return the seconds until a rate that is used up is there again; 0 where some is left.

    >>> used_up_s({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m30s"})
    90.0
    >>> used_up_s({"x-ratelimit-remaining-tokens": "100", "x-ratelimit-reset-tokens": "6ms"})
    0.0
    """
    rests = [
        sum(float(n) * _SECONDS[unit] for n, unit in _DURATION.findall(headers[f"x-ratelimit-reset-{of}"]))
        for of in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{of}") == "0" and f"x-ratelimit-reset-{of}" in headers
    ]
    return max(rests, default=0.0)


def cached_in(usage: openai.types.CompletionUsage | None) -> int:
    """Return the tokens that an endpoint has read from its cache."""
    details = usage.prompt_tokens_details if usage else None
    return (details.cached_tokens if details else None) or 0


def _piece(choice: chat_completion_chunk.Choice) -> Chunk:
    """Return what an event says of one choice."""
    calls = choice.delta.tool_calls or ()
    logprobs = choice.logprobs.content if choice.logprobs else None
    return Chunk(
        choice.delta.content or "",
        index=choice.index,
        tool_calls=tuple(
            {
                "index": call.index,
                **({"id": call.id, "type": "function"} if call.id else {}),
                "function": call.function.model_dump(exclude_none=True) if call.function else {},
            }
            for call in calls
        ),
        logprobs=tuple(token.model_dump() for token in logprobs or ()),
    )


def _written(message: Message) -> dict[str, Any]:
    """Return a message as the protocol has it: one that only calls functions has no text."""
    return (
        {**message, "content": None} if message.get("tool_calls") and not message["content"] else {**message}
    )


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text, at least 1.

    >>> estimate_tokens("four words of text.")
    5
    """
    return max(1, round(len(text) / CHARACTERS_PER_TOKEN))
