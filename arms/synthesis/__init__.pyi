from .extraction import Extraction
from .job import synthesize
from .made import PROMPTED, STYLES, Made, Maker, SynthesisError
from .prompting import Prompting, estimated_tokens

__all__ = [
    "PROMPTED",
    "STYLES",
    "Extraction",
    "Made",
    "Maker",
    "Prompting",
    "SynthesisError",
    "estimated_tokens",
    "synthesize",
]
