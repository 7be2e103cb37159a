"""Ask one question of one engine, and see the answer as it is written.

    python -m arms.llm '{"engine": "vllm", "model": "models/SmolLM2-135M-Instruct"}' "Why is the sky blue?"

The shortest way to try an engine that a configuration names, without a service.
"""

import argparse
import asyncio
import sys
import time
from contextlib import aclosing

from pydantic import TypeAdapter

from arms.llm.base import Chunk, Generator, Prompt
from arms.llm.catalog import LlmSpec, build_generator
from arms.llm.prompts import answer_prompt


async def ask(generator: Generator, question: str, *, max_tokens: int = 128) -> Chunk:
    """Write the answer to standard output piece by piece; return the last chunk."""
    prompt = Prompt(answer_prompt([{"role": "user", "content": question}], []), max_tokens=max_tokens)
    last = Chunk()
    async with aclosing(generator.stream(prompt)) as chunks:
        async for last in chunks:
            sys.stdout.write(last.text)
            sys.stdout.flush()
    return last


async def _run(spec: LlmSpec, question: str) -> None:
    generator = build_generator(spec)
    try:
        started = time.perf_counter()
        last = await ask(generator, question)
        seconds = time.perf_counter() - started
    finally:
        await generator.close()
    sys.stdout.write(
        f"\n[{generator.model}: {last.prompt_tokens} tokens read, {last.completion_tokens} written"
        f" in {seconds:.1f} s, {last.finish_reason}]\n"
    )


def main() -> None:
    """Ask what the command line says."""
    parser = argparse.ArgumentParser(description="Ask one question of one engine.")
    parser.add_argument("spec", help="the engine as JSON, with the fields of the `llm` settings")
    parser.add_argument("question")
    args = parser.parse_args()
    asyncio.run(_run(TypeAdapter[LlmSpec](LlmSpec).validate_json(args.spec), args.question))


if __name__ == "__main__":
    main()
