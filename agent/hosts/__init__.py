"""What the deployments of the service run, each in a module that imports only what it needs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
