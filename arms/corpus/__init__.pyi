from .corpus import Corpus, ingest
from .permissions import Permitted
from .readers import CorpusError, open_source

__all__ = ["Corpus", "CorpusError", "Permitted", "ingest", "open_source"]
