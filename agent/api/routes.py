"""The application: the routes of the core and of the wings, error handlers and middleware over a service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib import metadata

from fastapi import FastAPI
from starlette.routing import BaseRoute

from armwise.agent.access import Hosts
from armwise.agent.api import decisions, external, feedback, health, models, observations, pages, retrieve
from armwise.agent.api.documented import document
from armwise.agent.api.middleware import ApiDialect, ErrorBoundary, RequestGuard, answer_errors
from armwise.agent.api.operations import arms, erasures, evaluations, export, keys, policies
from armwise.agent.api.protocols import chat, messages, responses
from armwise.agent.serving import Replica
from armwise.agent.telemetry import ServerSpans
from armwise.agent.wings import ROUTE_MODULES, load

_HOT = (retrieve, chat, messages, responses, feedback, external, observations)
"""Asked thousands of times a second, so found first."""

_OPERATIONS = (arms, policies, evaluations, export, erasures, keys)

_RESOURCES = (*_HOT, models, decisions, *_OPERATIONS, health, pages)

VERSION = metadata.version("armwise")
"""The version that is installed, which the OpenAPI document names."""


@cache
def list_routes() -> list[BaseRoute]:
    """Return every route, built once: routes hold no state of a replica, so that all applications share them.

    Wings are loaded here, and not where this module is imported: they import it.
    """
    own = [route for resource in _RESOURCES for route in resource.router.routes]
    return [*own, *(route for path in ROUTE_MODULES for route in load(path).ROUTES)]


def list_dialects() -> list[ApiDialect]:
    """Return how the clients of other APIs send their key."""
    wings = [dialect for path in ROUTE_MODULES for dialect in load(path).DIALECTS]
    return [messages.DIALECT, *wings]


def create_app(replica: Replica) -> FastAPI:
    """Return the application of one replica; it starts and stops the replica with its own lifespan."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        replica.start()
        yield
        await replica.stop()

    app = FastAPI(
        title="Armwise",
        version=VERSION,
        lifespan=lifespan,
        routes=list_routes(),
        docs_url=None,
        redoc_url=None,
    )
    app.openapi = partial(document, app)  # type: ignore[method-assign]
    app.state.replica = replica
    answer_errors(app)
    app.add_middleware(
        RequestGuard,
        keyring=replica.keyring,
        quota=replica.quota,
        hosts=Hosts(replica.config.hosts),
        limits=replica.config.limits,
        refused=replica.telemetry.count_refusal,
        dialects=list_dialects(),
    )
    app.add_middleware(ServerSpans)
    app.add_middleware(ErrorBoundary)
    return app
