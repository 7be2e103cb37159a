"""The relevance of passages: features that need no label, and a model fitted to gold passages."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
