"""Batch work without a service: score, label, train a router, choose a portfolio."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
