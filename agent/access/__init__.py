"""Who may do what: keys, projects, limits and budgets, and the host names of the service."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
