"""A GGUF model in this process, run by llama.cpp through xllamacpp.

The engine calls back for every token, from a thread of its own. The library always opens
a port on the loopback device; a random key that is kept secret locks it.
"""

import asyncio
import secrets
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import orjson
import xllamacpp
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
from armwise.arms.models import compute_cores, locate_here


class EmbeddedGenerator(Generator):
    """Writes answers with a GGUF model; `model` is the name of the file.

    Args:
        model: Path of a GGUF file, or `package:<module>/<file>`.
        context_tokens: Most tokens of prompt and answer together; each slot reserves memory for them.
        slots: Answers written at once; more are queued.
        threads: Compute threads; None takes one for each of `compute_cores`.

    Raises:
        ModelNotFoundError: There is no such file.
        GeneratorError: llama.cpp cannot load the file.
    """

    def __init__(
        self, model: str, *, context_tokens: int = 4096, slots: int = 4, threads: int | None = None
    ) -> None:
        path = locate_here(model)
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context_tokens * slots
        params.n_parallel = slots
        for cpu in (params.cpuparams, params.cpuparams_batch):
            cpu.n_threads = threads or len(compute_cores())
        params.cache_ram_mib = 0  # prefixes are reused within a slot; a second copy may take 8 GiB
        params.port = 0
        params.api_keys = [secrets.token_urlsafe()]
        params.verbosity = -1
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise GeneratorError(f"{path} is not a GGUF model that llama.cpp can load") from error
        self.model = path.stem
        self._gone = threading.Event()
        self._workers = ThreadPoolExecutor(slots, thread_name_prefix="embedded-llm")

    @override
    def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        return tool_calls.hold_calls(prompt.options, self._pieces(prompt))

    async def _pieces(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        finish_reason = None
        async with aclosing(self._events(_request(prompt))) as events:
            async for event in events:
                if "error" in event:
                    raise self._error(event["error"])
                for choice in event["choices"]:
                    finish_reason = choice["finish_reason"] or finish_reason
                    if text := choice["delta"].get("content"):
                        yield Chunk(text, logprobs=tuple((choice.get("logprobs") or {}).get("content") or ()))
                if usage := event.get("usage"):
                    yield Chunk("", finish_reason, usage["prompt_tokens"], usage["completion_tokens"])
        if finish_reason is None:
            raise GeneratorError(f"{self.model} was closed before its answer was complete")

    async def _events(self, request: bytes) -> AsyncGenerator[dict[str, Any], None]:
        """Run a request in a worker thread, and yield its events on the loop."""
        loop = asyncio.get_running_loop()
        # Unbounded: it never holds more than `max_tokens` events.
        arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        left = False

        def deliver(event: bytes) -> bool:
            """Pass an event to the loop; True makes the engine stop and free the slot."""
            if left or self._gone.is_set():
                return True
            loop.call_soon_threadsafe(arrived.put_nowait, event)
            return False

        answer = loop.run_in_executor(self._workers, self._server.handle_chat_completions, request, deliver)
        answer.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (event := await arrived.get()) is not None:
                yield orjson.loads(event)
            if not answer.cancelled():
                answer.result()  # raises what the library raised
        except ValueError as error:  # of a schema
            refused = PromptRefusedError(f"{self.model}: {error}")
            refused.shown = str(error)
            raise refused from error
        except RuntimeError as error:  # the library cannot read the request
            failure = GeneratorError(f"{self.model}: {error}")
            failure.shown = str(error)
            raise failure from error
        finally:
            left = True
            answer.cancel()  # removes it from the queue if it has not started

    @override
    async def close(self) -> None:
        self._gone.set()
        await asyncio.to_thread(self._workers.shutdown, cancel_futures=True)
        del self._server

    def _error(self, error: dict[str, Any]) -> GeneratorError:
        kind = PromptTooLongError if error["type"] == "exceed_context_size_error" else GeneratorError
        if "parse grammar" in error["message"]:  # such as one without an end
            kind = PromptRefusedError
        failure = kind(f"{self.model}: {error['message']}")
        failure.shown = error["message"]
        return failure


def _request(prompt: Prompt) -> bytes:
    messages, schema = tool_calls.describe_tools(prompt)
    options = {name: value for name, value in prompt.options.items() if name not in tool_calls.TOOLS}
    if schema is not None:
        options["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    return orjson.dumps(
        {
            **options,
            "messages": messages,
            "max_tokens": prompt.max_tokens,
            "temperature": prompt.temperature or 0.0,
            "top_p": prompt.top_p,
            "stop": prompt.stop,
            "seed": prompt.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
