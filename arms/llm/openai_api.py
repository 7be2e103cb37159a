"""Any endpoint with the OpenAI chat-completions protocol, through the official client."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import openai
from openai.types.chat import chat_completion_chunk
from typing_extensions import override

from arms.llm.base import (
    Chunk,
    Generator,
    GeneratorError,
    GeneratorTimeoutError,
    Message,
    Prompt,
    PromptTooLongError,
)
from arms.secrets import secret_of

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
        usd_per_kilotoken: Price of 1000 tokens read, and of 1000 tokens written.
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
        usd_per_kilotoken: tuple[float, float] = (0.0, 0.0),
        request: Mapping[str, Any] | None = None,
    ) -> None:
        key = "none" if api_key_env is None else secret_of(api_key_env)
        if not key:
            raise GeneratorError(f"{model} at {base_url} needs a key: set the variable {api_key_env}")
        self.model = model
        self._name = f"{model} at {base_url}"
        self._usd_per_kilotoken = usd_per_kilotoken
        self._request = dict(request or {})
        self._timeout_s = timeout_s
        self._client = openai.AsyncOpenAI(
            base_url=base_url, api_key=key, timeout=timeout_s, max_retries=max_retries
        )

    @override
    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        written: list[str] = []
        finish_reasons: dict[int, str] = {}
        usage: openai.types.CompletionUsage | None = None
        try:
            async with await self._client.chat.completions.create(**self._body(prompt)) as events:
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

    def _last(self, finish_reasons: list[str], prompt_tokens: int, completion_tokens: int) -> Chunk:
        price_in, price_out = self._usd_per_kilotoken
        return Chunk(
            finish_reason=finish_reasons[0],
            finish_reasons=tuple(finish_reasons[1:]),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            usd=(prompt_tokens * price_in + completion_tokens * price_out) / 1000,
        )


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
