from .corpus import Corpus, ingest
from .readers import CorpusError

__all__ = ["Corpus", "CorpusError", "ingest"]
