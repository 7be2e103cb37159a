from .corpus import Corpus, ingest
from .readers import CorpusError, open_source

__all__ = ["Corpus", "CorpusError", "ingest", "open_source"]
