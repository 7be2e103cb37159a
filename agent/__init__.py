"""What we choose: policies, routers, the service that runs them, and the tools around it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
