"""A model of any provider that LiteLLM knows, asked by its library as a chat completion.

A request belongs to a caller, and LiteLLM's functions take addresses, keys and files by the same names as
options of a chat. So it is given the options that `PASSED` names; any other field of the request is one of
the body that is sent, for providers that LiteLLM asks by OpenAI's protocol, and is left out for others.

The library is imported with its downloads, logs and advice off: the list of prices, headers of betas and
tokenizers are those of the package, no file `.env` is read, and no image is fetched by its address.
"""

import logging
import os
import re
import warnings
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from armwise.arms import proxies, upstream
from armwise.arms.large import call_beside
from armwise.arms.llm.base import (
    SILENCE_S,
    Chunk,
    Generator,
    GeneratorError,
    GeneratorTimeoutError,
    Prompt,
    Refusal,
)
from armwise.arms.llm.endpoint import (
    BUSY,
    OMISSIBLE,
    StatusError,
    error_of_answer,
    error_of_status,
    list_attempts,
    read_prompt,
)
from armwise.arms.llm.protocols import chat
from armwise.arms.llm.protocols.answer import (
    UNLIMITED_TOKENS,
    AnswerLimits,
    find_unsupported,
    read_refusal,
    refusal_in,
)
from armwise.arms.llm.translate.documents import Document, write_document
from armwise.arms.own_processes import except_this_machine
from armwise.arms.secrets import read_secret
from armwise.arms.upstream import UpstreamError

if TYPE_CHECKING:
    from armwise.arms.llm.catalog import EndpointSpec

logger = logging.getLogger(__name__)

ENVIRONMENT = {
    "LITELLM_MODE": "PRODUCTION",  # reads no file `.env`
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "MAX_IMAGE_URL_DOWNLOAD_SIZE_MB": "0",  # callers name these addresses
}
"""Variables that LiteLLM reads when it is imported; those that are set stay."""

LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")

PASSED = OMISSIBLE | {
    *("model", "messages", "stream", "max_tokens", "max_completion_tokens", "stop", "n"),
    *("functions", "function_call", "tools", "tool_choice", "response_format", "logit_bias"),
    *("logprobs", "top_logprobs", "modalities", "audio", "prediction", "thinking", "web_search_options"),
    *("user", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
}
"""Fields of a chat that LiteLLM reads; it has no other use for these names."""

LEFT_OUT = OMISSIBLE | {
    *("user", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    "prediction",
}
"""Fields without which an answer is still the answer: they are not sent to models that do not take them."""


class LiteLLMGenerator(Generator):
    """Writes answers with a model that LiteLLM knows.

    Args:
        spec: The model.

    Raises:
        GeneratorError: The variable of the key is not set, or LiteLLM knows no provider of this name.
    """

    def __init__(self, spec: "EndpointSpec") -> None:
        key = read_secret(spec.api_key_env) if spec.api_key_env is not None else ""
        if spec.api_key_env is not None and not key:
            raise GeneratorError(f"{spec.model} needs a key: set the environment variable {spec.api_key_env}")
        try:
            proxies.require_usable()  # the library reads all of them, whichever it needs
        except proxies.ProxySettingError as error:
            raise GeneratorError(f"{spec.model}: {error}") from error
        self._library = litellm = _import_litellm()
        try:
            provider = litellm.get_llm_provider(spec.model)[1]
        except litellm.BadRequestError as error:
            what = f"LiteLLM knows no provider of {spec.model!r}: begin the name with one, as in `azure/...`"
            raise GeneratorError(what) from error
        self.model = spec.model
        self._passes_fields = provider in ("openai", "azure", *litellm.openai_compatible_providers)
        self._attempts = 1 + spec.max_retries
        self._request = spec.request
        self._unsupported = set[str]()
        self._settings: dict[str, Any] = {
            **({} if spec.base_url is None else {"api_base": str(spec.base_url)}),
            **({"api_key": key} if key else {}),
            "num_retries": 0,
            "max_retries": 0,
        }

    @override
    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        request, patch = read_prompt(prompt, self.model)
        body = await call_beside(request.size, lambda: chat.write(request.to("chat"), patch))
        sent_bytes = len(await call_beside(request.size, lambda: write_document(body)))
        choices = body["n"] if isinstance(body.get("n"), int) and body["n"] > 0 else 1
        tokens = chat.read_limit(body) or UNLIMITED_TOKENS
        limits = AnswerLimits(choices, tokens, sent_bytes)
        answer = chat.Reader(limits, [message["content"] for message in prompt.messages])
        with self._name_errors():
            async for attempt in list_attempts(self._attempts, prompt.patience_s):
                with attempt:
                    reply = await self._begin(body, prompt)
            if not prompt.streams:
                for piece in answer.read(reply.model_dump(mode="json", warnings=False)):
                    yield piece
            else:
                async with aclosing(reply) as events:
                    with self._read_errors():
                        async for event in events:
                            for piece in answer.read(_document(event)):
                                yield piece
            yield answer.last()

    @override
    async def close(self) -> None:
        """Do nothing: the library keeps its connections, for all models together."""

    def _arguments(self, body: Document, prompt: Prompt) -> dict[str, Any]:
        """Return what LiteLLM is called with."""
        body = {name: value for name, value in body.items() if name not in self._unsupported}
        own = {name: value for name, value in body.items() if name in PASSED}
        others = {name: value for name, value in body.items() if name not in PASSED | self._request.keys()}
        silent_s = SILENCE_S if prompt.streams else max(SILENCE_S, prompt.patience_s or 0.0)
        merged = own | {"timeout": silent_s} | self._settings | self._request
        if others and self._passes_fields:
            configured = merged.get("extra_body")
            merged["extra_body"] = others | (configured if isinstance(configured, dict) else {})
        return {name: value for name, value in merged.items() if value is not None}

    async def _begin(self, body: Document, prompt: Prompt) -> Any:
        """Send a request, and again without a field that the model does not take. Raises StatusError."""
        while True:
            sent = list[object]()  # LiteLLM logs just before it sends
            try:
                with self._read_errors(sent):
                    return await self._library.acompletion(
                        **self._arguments(body, prompt), logger_fn=sent.append
                    )
            except StatusError as error:
                lacking = _find_lacking(error) & body.keys() - self._unsupported - self._request.keys()
                if not lacking:
                    raise
                self._unsupported |= lacking
                logger.warning(
                    "%s does not accept %s: later requests are sent without", self.model, sorted(lacking)
                )

    @contextmanager
    def _read_errors(self, sent: Sequence[object] = ("an answer",)) -> Iterator[None]:
        """Have an error of LiteLLM be the status that it stands for.

        Args:
            sent: Empty until the request is sent.
        """
        try:
            yield
        except self._library.Timeout as error:
            raise TimeoutError from error
        except self._library.exceptions.openai.APIError as error:
            said = _read_refusal(error)
            logger.warning("%s: %s", self.model, upstream.quote_start(said.message.encode()))
            status = getattr(error, "status_code", None)
            if not sent and type(error.__cause__ or error.__context__).__module__ == "builtins":
                status = 400  # LiteLLM trips over a request that it does not check
            headers = getattr(error, "litellm_response_headers", None)
            if headers is None:
                headers = getattr(getattr(error, "response", None), "headers", {})
            raise StatusError(status if isinstance(status, int) else 500, headers, said) from error

    @contextmanager
    def _name_errors(self) -> Iterator[None]:
        """Have whatever fails be an error that names the model."""
        try:
            yield
        except TimeoutError as error:
            late = GeneratorTimeoutError(f"{self.model} sent nothing for too long")
            late.shown = "it sent nothing for too long"
            raise late from error
        except UpstreamError as error:
            raise error_of_answer(self.model, error) from error
        except StatusError as error:
            rest_s = upstream.retry_after_s(error.headers) or 0.0 if error.status in BUSY else 0.0
            raise error_of_status(self.model, error, rest_s) from error


def _document(event: Any) -> Document:
    """Return an event of a stream, with the bill of its provider in the place of LiteLLM's own estimate."""
    document: Document = event.model_dump(mode="json", warnings=False, exclude_none=True)
    hidden = getattr(event, "_hidden_params", None) or {}
    if "upstream_usage_cost" in hidden and "usage" in document:
        document["usage"] = {**document["usage"], "cost": hidden["upstream_usage_cost"]}
    return document


_LACKS = re.compile(r"support(?: parameters:)? (\[[^]]*\]|\w+)")


def _find_lacking(error: StatusError) -> set[str]:
    """Return the fields that a model does not take, of those without which it can answer.

    Only a message of LiteLLM itself names them; that of a provider may quote the request.
    """
    if error.status not in (400, 422):
        return set()
    is_own = type(error.__cause__).__name__ == "UnsupportedParamsError"
    named = _LACKS.search(error.refusal.message) if is_own else None
    names = re.findall(r"\w+", named[1]) if named else []
    return {*names, find_unsupported(error.refusal)} & LEFT_OUT


def _read_refusal(error: Any) -> Refusal:
    """Return what a provider says of an error, or else what LiteLLM says of it, on one line.

    The message of LiteLLM is the provider's after two names: `litellm.BadRequestError: OpenAIException - no`.
    """
    body = getattr(error, "body", None)
    if isinstance(body, dict) and (said := read_refusal(body)).message:
        return said
    message = str(error.message)
    said = refusal_in(
        message.partition(" - ")[2].partition("\nReceived Messages=")[0].encode(errors="replace")
    )
    return said if said.message else Refusal(message.partition("\n")[0])


def _import_litellm() -> Any:
    """Import LiteLLM, which takes seconds, and leave warnings and logs of the process as they are."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    except_this_machine(os.environ)
    level = logging.getLogger("httpx").level
    with warnings.catch_warnings():
        import litellm
    logging.getLogger("httpx").setLevel(level)
    for name in LOGGERS:
        quiet = logging.getLogger(name)
        quiet.handlers.clear()
        quiet.setLevel(logging.CRITICAL)  # what fails is raised, and its log may hold what callers sent
    litellm.suppress_debug_info = True
    litellm.disable_hf_tokenizer_download = True
    litellm.disable_streaming_logging = True
    return litellm
