"""Documents become passages."""

from .corpora import Corpora, CorpusSource, ingest_all
from .corpus import Corpus, group_skipped, ingest, problems
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
    "group_skipped",
    "ingest",
    "ingest_all",
    "located",
    "open_source",
    "problems",
]
