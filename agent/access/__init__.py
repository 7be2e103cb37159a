"""Access control: keys, projects, limits and budgets, and the host names of the service."""

from .hosts import Hosts, UnknownHostError, count_as, is_loopback, local_url, require_closed
from .keyring import (
    OPEN,
    Caller,
    ForbiddenError,
    ForeignIdError,
    Instant,
    Keyring,
    NewKey,
    UnauthorizedError,
    UnloggedIdError,
    is_unlogged,
    make_unlogged_id,
    require_scope,
)
from .quota import Quota, RateLimitedError, SpentError

__all__ = [
    "OPEN",
    "Caller",
    "ForbiddenError",
    "ForeignIdError",
    "Hosts",
    "Instant",
    "Keyring",
    "NewKey",
    "Quota",
    "RateLimitedError",
    "SpentError",
    "UnauthorizedError",
    "UnknownHostError",
    "UnloggedIdError",
    "count_as",
    "is_loopback",
    "is_unlogged",
    "local_url",
    "make_unlogged_id",
    "require_closed",
    "require_scope",
]
