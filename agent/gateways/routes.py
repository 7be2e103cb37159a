"""Routes of the gateways: buttons, the chat page, MCP."""

import asyncio
from importlib import import_module

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from armwise.agent.access import require_scope
from armwise.agent.api.errors import ApiError
from armwise.agent.gateways import buttons, chat
from armwise.arms.extras import describe_missing


class _Mcp:
    """The Model Context Protocol, loaded on its first request: most services never get one."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ForbiddenError, or ApiError if the library is not installed."""
        require_scope(scope["state"]["caller"], ("decide", "read", "feedback"))
        if missing := describe_missing(["mcp"]):
            raise ApiError("not_found", f"/mcp is not offered; {missing}")
        mcp = await asyncio.to_thread(import_module, "armwise.agent.gateways.mcp")
        await mcp.serve(scope, receive, send)


ROUTES = (
    *buttons.router.routes,
    *chat.router.routes,
    Route("/mcp", _Mcp(), methods=["POST"]),
)

DIALECTS = ()
