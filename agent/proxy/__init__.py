"""The HTTP proxy of one machine: HAProxy in front of the ingress replicas, which answer on Unix sockets."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
