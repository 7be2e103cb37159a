"""A client of a running service: ask, retrieve, decide, send feedback, read and promote policies.

Requests to a service that is busy or drops the connection are sent again under the same idempotency key, so
that each is one decision, or one fact of feedback.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
