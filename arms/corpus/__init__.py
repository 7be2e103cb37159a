"""Documents become passages."""

from .corpus import Corpus, ingest, problems
from .permissions import Permitted
from .readers import open_source
from .records import CorpusError

__all__ = ["Corpus", "CorpusError", "Permitted", "ingest", "open_source", "problems"]
