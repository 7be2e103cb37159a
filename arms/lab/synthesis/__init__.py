"""Generate questions from a corpus, with the passages that answer them."""

from .extraction import Extraction
from .job import PROMPTED, STYLES, Made, Maker, NoQuestionsError, SynthesisError, synthesize
from .prompting import Prompting, estimate_tokens

__all__ = [
    "PROMPTED",
    "STYLES",
    "Extraction",
    "Made",
    "Maker",
    "NoQuestionsError",
    "Prompting",
    "SynthesisError",
    "estimate_tokens",
    "synthesize",
]
