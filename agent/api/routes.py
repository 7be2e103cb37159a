"""The application: the routers of this room, the error handlers and the middleware over one service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module, metadata

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from armwise.agent.access import Hosts
from armwise.agent.api import (
    buttons,
    decisions,
    feedback,
    feedback_shapes,
    health,
    observations,
    pages,
    ranking,
    retrieve,
)
from armwise.agent.api.console import page
from armwise.agent.api.console import routes as console
from armwise.agent.api.documented import document
from armwise.agent.api.middleware import ErrorBoundary, RequestGuard, answer_errors
from armwise.agent.api.openai import chat, completions, models, responses, vector_stores
from armwise.agent.api.operations import arms, erasures, evaluations, export, keys, policies, warm_starts
from armwise.agent.serving import Replica
from armwise.agent.telemetry import ServerSpans

_HOT = (retrieve, chat, feedback, ranking, observations)
"""Asked thousands of times a second, so found first."""

_OPENAI = (completions, models, responses, vector_stores)
_QUESTIONS = (decisions, feedback_shapes, buttons)
_OPERATIONS = (arms, policies, evaluations, warm_starts, export, erasures, keys)

_RESOURCES = (*_HOT, *_OPENAI, *_QUESTIONS, *_OPERATIONS, health, pages)


class _Mcp:
    """The Model Context Protocol, which its first request loads: most services have none, and would wait."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        mcp = await asyncio.to_thread(import_module, "armwise.agent.api.mcp")
        await mcp.serve(scope, receive, send)


ROUTES = [
    *(
        route
        for router in (*(resource.router for resource in _RESOURCES), *console.ROUTERS)
        for route in router.routes
    ),
    Route("/mcp", _Mcp(), methods=["POST"]),
]
"""Every route, built once: routes hold no state of a replica, so that all applications share them."""

VERSION = metadata.version("armwise")
"""The version that is installed, which the OpenAPI document names."""

DIALECTS = (feedback_shapes.LANGFUSE, page.DIALECT)
"""How the clients of other APIs send their key."""


def create_app(replica: Replica) -> FastAPI:
    """Return the application of one replica; it starts and stops the replica with its own lifespan."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await replica.start()
        yield
        await replica.stop()

    app = FastAPI(
        title="Armwise", version=VERSION, lifespan=lifespan, routes=ROUTES, docs_url=None, redoc_url=None
    )
    app.openapi = partial(document, app)  # type: ignore[method-assign]
    app.state.service = service = replica.service
    answer_errors(app)
    app.add_middleware(
        RequestGuard,
        keyring=service.keyring,
        quota=service.quota,
        hosts=Hosts(service.config.hosts),
        limits=service.config.limits,
        refused=service.telemetry.refused,
        dialects=DIALECTS,
    )
    app.add_middleware(ServerSpans)
    app.add_middleware(ErrorBoundary)
    return app
