"""The application: the routes of the core and of the wings, error handlers and middleware over a service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib import metadata

from fastapi import FastAPI

from armwise.agent.access import Hosts
from armwise.agent.api import decisions, feedback, health, observations, pages, ranking, retrieve
from armwise.agent.api.documented import document
from armwise.agent.api.middleware import ErrorBoundary, RequestGuard, answer_errors
from armwise.agent.api.openai import chat, completions, models, responses, vector_stores
from armwise.agent.api.operations import arms, erasures, evaluations, export, keys, policies
from armwise.agent.serving import Replica
from armwise.agent.telemetry import ServerSpans
from armwise.agent.wings import ROUTE_MODULES, load

_HOT = (retrieve, chat, feedback, ranking, observations)
"""Asked thousands of times a second, so found first."""

_OPENAI = (completions, models, responses, vector_stores)
_OPERATIONS = (arms, policies, evaluations, export, erasures, keys)

_WINGS = tuple(load(path) for path in ROUTE_MODULES)

_RESOURCES = (*_HOT, *_OPENAI, decisions, *_OPERATIONS, health, pages)

ROUTES = [
    *(route for resource in _RESOURCES for route in resource.router.routes),
    *(route for wing in _WINGS for route in wing.ROUTES),
]
"""Every route, built once: routes hold no state of a replica, so that all applications share them."""

VERSION = metadata.version("armwise")
"""The version that is installed, which the OpenAPI document names."""

DIALECTS = tuple(dialect for wing in _WINGS for dialect in wing.DIALECTS)
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
