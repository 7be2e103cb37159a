"""Carry a log to and from JSON lines, VW dsjson and OBP's layout."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
