from . import base, catalog, judge, prompts, quotation, structured_output, writing
from .answers import answer_to
from .base import Chunk, Generator, GeneratorError, Message, Prompt, Write
from .blocking import LateWriter, blocking_writer
from .catalog import LlmSpec, build_generator
from .writing import WritingSpec

__all__ = [
    "Chunk",
    "Generator",
    "GeneratorError",
    "LateWriter",
    "LlmSpec",
    "Message",
    "Prompt",
    "Write",
    "WritingSpec",
    "answer_to",
    "base",
    "blocking_writer",
    "build_generator",
    "catalog",
    "judge",
    "prompts",
    "quotation",
    "structured_output",
    "writing",
]
