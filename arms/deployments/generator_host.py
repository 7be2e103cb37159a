"""The host of the language model."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, nullcontext
from pathlib import Path

from armwise.arms import tracing
from armwise.arms.deployments import spans
from armwise.arms.llm import Chunk, LlmSpec, Prompt, build_generator


class GeneratorHost:
    """Hosts a language model.

    Args:
        spec: The model.
        prepare: Prepares the process, before the model is loaded.
    """

    def __init__(self, spec: LlmSpec, prepare: Callable[[], object] = lambda: None) -> None:
        prepare()
        self._provider, self._model = spec.engine, Path(getattr(spec, "model", spec.engine)).name
        self._generator = build_generator(spec)

    async def ready(self) -> None:
        """Return once the host is ready."""

    async def stream(self, prompt: Prompt, carried: str = "") -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it is written, for the turn of `tracing.carried`. Raises GeneratorError."""
        tracing.enter(carried, prompt.messages[-1]["content"])
        chat = spans.Chat.begin(self._provider, self._model, prompt)
        with nullcontext() if chat is None else tracing.ended(chat.span):
            async with aclosing(self._generator.stream(prompt)) as chunks:
                async for chunk in chunks:
                    if chat is not None:
                        chat.note(chunk)
                    yield chunk
