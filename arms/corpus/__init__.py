"""Documents become passages."""

from .corpora import Corpora, CorpusSource, ingest_all
from .corpus import Corpus, ingest, listed, problems
from .permissions import Permitted
from .readers import BUILT_IN, located, open_source
from .records import CorpusError

__all__ = [
    "BUILT_IN",
    "Corpora",
    "Corpus",
    "CorpusError",
    "CorpusSource",
    "Permitted",
    "ingest",
    "ingest_all",
    "listed",
    "located",
    "open_source",
    "problems",
]
