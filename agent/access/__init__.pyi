from . import callers, hosts, keyring, quota
from .callers import OPEN, Caller, ForeignIdError
from .hosts import Hosts, is_loopback, require_closed
from .keyring import Keyring, NewKey, require_scope
from .quota import Quota, RateLimitedError, SpentError

__all__ = [
    "OPEN",
    "Caller",
    "ForeignIdError",
    "Hosts",
    "Keyring",
    "NewKey",
    "Quota",
    "RateLimitedError",
    "SpentError",
    "callers",
    "hosts",
    "is_loopback",
    "keyring",
    "quota",
    "require_closed",
    "require_scope",
]
