"""Language models, prompts and judges."""

from . import base, catalog, judge, prompts, quotation, structured_output, tool_calls, writing
from .base import Chunk, Generator, GeneratorError, Message, Prompt, Write
from .catalog import LateWriter, LlmSpec, blocking_writer, build_generator
from .pricing import MESSAGE_TOKENS, TOKENS_A_WORD, UNPROMPTED, Bound, TokenPrices, most_tokens
from .prompts import answer_bound, answer_to
from .quoting import QUOTED_TOKENS, quote
from .writing import WritingSpec

__all__ = [
    "MESSAGE_TOKENS",
    "QUOTED_TOKENS",
    "TOKENS_A_WORD",
    "UNPROMPTED",
    "Bound",
    "Chunk",
    "Generator",
    "GeneratorError",
    "LateWriter",
    "LlmSpec",
    "Message",
    "Prompt",
    "TokenPrices",
    "Write",
    "WritingSpec",
    "answer_bound",
    "answer_to",
    "base",
    "blocking_writer",
    "build_generator",
    "catalog",
    "judge",
    "most_tokens",
    "prompts",
    "quotation",
    "quote",
    "structured_output",
    "tool_calls",
    "writing",
]
