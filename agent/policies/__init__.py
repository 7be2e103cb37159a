"""Bandit policies: a context in, a distribution over arms out; one file a policy."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
