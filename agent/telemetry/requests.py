"""The span of a request, in the trace of its caller."""

from typing import TYPE_CHECKING

from armwise.arms import tracing

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = (b"traceparent", b"tracestate")

UNTRACED = frozenset(("/health", "/health/decides", "/ready", "/metrics"))
"""Paths that load balancers and monitoring request many times a second."""


class ServerSpans:
    """Middleware that traces requests if tracing is on.

    Args:
        app: The wrapped application.
    """

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve one request."""
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or path in UNTRACED or not tracing.is_on():
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in HEADERS
        }
        method = scope["method"]
        span = tracing.serving(method, headers, {"http.request.method": method, "url.path": path})
        span.openinference("CHAIN", {})

        async def sending(message: "Message") -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                span.set({"http.response.status_code": status})
                if status >= 500:
                    span.fail(str(status))
            await send(message)

        with tracing.end_span(span), span.current():
            try:
                await self._app(scope, receive, sending)
            finally:
                if route := getattr(scope.get("route"), "path", None):
                    span.otel.update_name(f"{method} {route}")
                    span.set({"http.route": route})
