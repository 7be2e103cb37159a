"""The time-out of Ray Serve's own proxy, which refuses in plain text: a replica answers a little sooner.

On one machine `armwise serve` has a proxy of its own, without such a time-out. A cluster has Ray Serve's: its
`request_timeout_s`, in whose place a request may name another with `X-Request-Timeout-Seconds`.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.api import ApiError

HEADER = b"x-request-timeout-seconds"

MARGIN_S = 0.25
"""Seconds for the way from the proxy to a replica and back; of a short time-out, an eighth."""


class TimeLimit:
    """Answer what is late in the envelope, before the proxy gives up.

    A turn is stopped by its own deadline, a margin earlier, so that its refusal names the decision.

    Args:
        app: The application behind it.
        default_s: `request_timeout_s` of the proxy; None for none.
    """

    def __init__(self, app: ASGIApp, default_s: float | None) -> None:
        self._app, self._default_s = app, default_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or (limit_s := self._limit_s(dict(scope["headers"]))) is None:
            await self._app(scope, receive, send)
            return
        margin_s = min(MARGIN_S, limit_s / 8)
        others = [(name, value) for name, value in scope["headers"] if name != HEADER]
        headers = [*others, (HEADER, f"{limit_s - 2 * margin_s:.6f}".encode())]
        try:
            async with asyncio.timeout(limit_s - margin_s) as timeout:

                async def sending(message: Message) -> None:
                    timeout.reschedule(None)  # what has begun cannot become a refusal
                    await send(message)

                await self._app({**scope, "headers": headers}, receive, sending)
        except TimeoutError:
            if not timeout.expired():
                raise
            late = ApiError("deadline_exceeded", f"the time-out of {limit_s:g} s has all but passed")
            request_id = dict(others).get(b"x-request-id")
            await late.response(request_id and request_id.decode("latin-1"))(scope, receive, send)

    def _limit_s(self, headers: dict[bytes, bytes]) -> float | None:
        """Return the time-out that the proxy applies to a request; None for none, and where it is refused."""
        if HEADER not in headers:
            return self._default_s
        try:
            limit_s = float(headers[HEADER])
        except ValueError:
            return None
        return limit_s if 0 < limit_s < float("inf") else None
