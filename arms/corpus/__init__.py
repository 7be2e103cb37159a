"""Documents become passages."""

from .chunking import Chunking
from .corpora import Corpora, CorpusSource, SourceTrouble, ingest_all
from .corpus import Corpus, group_skipped, ingest, problems
from .permissions import Permitted
from .readers import open_source
from .records import CorpusError

__all__ = [
    "Chunking",
    "Corpora",
    "Corpus",
    "CorpusError",
    "CorpusSource",
    "Permitted",
    "SourceTrouble",
    "group_skipped",
    "ingest",
    "ingest_all",
    "open_source",
    "problems",
]
