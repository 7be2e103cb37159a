"""Language models, prompts and judges."""

from . import base, catalog, judge, prompts, protocols, quotation, structured_output, tool_calls, writing
from .base import Chunk, Generator, GeneratorError, Message, Native, Prompt, Write
from .catalog import LateWriter, LlmSpec, blocking_writer, build_generator
from .pricing import MESSAGE_TOKENS, TOKENS_A_WORD, UNPROMPTED, Bound, TokenPrices, count_words, most_tokens
from .prompts import answer_bound, answer_to
from .protocols import PROTOCOLS, Document, DocumentError, ProtocolName, Request
from .protocols.needs import Needs, read_needs
from .protocols.request import (
    LONGEST_NUMBER,
    MOST_MEMBERS,
    check_levels,
    count_members,
    has_long_number,
    object_at,
    objects,
    read_document,
    read_integer,
    storable,
    text_at,
    write_document,
)
from .quoting import QUOTED_TOKENS, quote
from .writing import WritingSpec

__all__ = [
    "LONGEST_NUMBER",
    "MESSAGE_TOKENS",
    "MOST_MEMBERS",
    "PROTOCOLS",
    "QUOTED_TOKENS",
    "TOKENS_A_WORD",
    "UNPROMPTED",
    "Bound",
    "Chunk",
    "Document",
    "DocumentError",
    "Generator",
    "GeneratorError",
    "LateWriter",
    "LlmSpec",
    "Message",
    "Native",
    "Needs",
    "Prompt",
    "ProtocolName",
    "Request",
    "TokenPrices",
    "Write",
    "WritingSpec",
    "answer_bound",
    "answer_to",
    "base",
    "blocking_writer",
    "build_generator",
    "catalog",
    "check_levels",
    "count_members",
    "count_words",
    "has_long_number",
    "judge",
    "most_tokens",
    "object_at",
    "objects",
    "prompts",
    "protocols",
    "quotation",
    "quote",
    "read_document",
    "read_integer",
    "read_needs",
    "storable",
    "structured_output",
    "text_at",
    "tool_calls",
    "write_document",
    "writing",
]
