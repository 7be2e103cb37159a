"""Where arms, encoders and the language model run: in this process, or behind Ray Serve handles."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
