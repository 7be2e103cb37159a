"""Language models that write what a test says, for all who ask one and wait."""

import asyncio

from armwise.arms.llm import Chunk, Prompt, Write, base


def writing(*texts: str, prompts: list[Prompt] | None = None) -> Write:
    """Return a model that writes these texts, one a call; it counts words as tokens."""
    left = list(texts)
    scripted = base.ScriptedGenerator(lambda _: left.pop(0))

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        if prompts is not None:
            prompts.append(prompt)
        return asyncio.run(base.complete(scripted, prompt))

    return write


def shown(prompt: Prompt) -> str:
    """Return all that a model was shown."""
    return "\n".join(message["content"] for message in prompt.messages)
