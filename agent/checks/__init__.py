"""Checks of a configuration and of this machine: what is open to others, and what would fail."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
