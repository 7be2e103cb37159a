"""The pool of candidate arms, its score matrix, and the choice of a few of them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
