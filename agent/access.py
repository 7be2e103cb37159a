"""Who may do what: keys with scopes, read from the environment, never from a file.

Without keys the service is open, as it should be on a laptop and must not be
on a network.
"""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

from fastapi import Header
from pydantic import BaseModel, ConfigDict, Field

from agent.errors import ApiError

Scope = Literal["decide", "feedback", "admin"]


class Key(BaseModel):
    """A key and what it opens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str = Field(min_length=1, description="Environment variable of the service that holds the key.")
    scopes: tuple[Scope, ...] = Field(
        default=("decide", "feedback"),
        description="`decide` asks and reads, `feedback` tells, `admin` switches and replaces arms, chooses "
        "versions and verifies decisions.",
    )


class Access:
    """Checks the bearer token of a request.

    Args:
        keys: The keys; none leaves everything open.

    Raises:
        ValueError: A variable that should hold a key is empty.
    """

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self._keys = [(os.environ.get(key.env, ""), frozenset(key.scopes)) for key in keys]
        missing = [key.env for key, (secret, _) in zip(keys, self._keys, strict=True) if not secret]
        if missing:
            raise ValueError(f"no key in the environment variable {missing[0]}, which `keys` names")

    def require(self, scope: Scope) -> Callable[..., Awaitable[None]]:
        """Return a dependency that lets a request pass only with a key of this scope."""

        # a coroutine, as FastAPI would take a function to a thread
        async def check(authorization: Annotated[str | None, Header()] = None) -> None:
            if not self._keys:
                return
            scheme, _, key = (authorization or "").partition(" ")
            token = key.strip().encode() if scheme.lower() == "bearer" else b""
            # every key is compared, in constant time, so that the time taken tells nothing
            held = [scopes for secret, scopes in self._keys if hmac.compare_digest(secret.encode(), token)]
            if not held:
                raise ApiError(401, "unauthorized", "a key is needed: Authorization: Bearer <key>")
            if not any(scope in scopes for scopes in held):
                raise ApiError(403, "forbidden", f"this key does not have the scope {scope!r}")

        return check
