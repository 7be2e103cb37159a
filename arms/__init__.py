"""What we can do: kinds of arms, language models, and choosing a portfolio among them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
