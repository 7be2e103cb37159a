"""Every page of the console."""

from fastapi import APIRouter, Request, Response

from agent.api.console import decisions, evidence, operating, overview, playground, session, system
from agent.api.console.page import pages
from agent.api.errors import ApiError

_elsewhere = pages()


@_elsewhere.get("/{path:path}")
async def missing(request: Request) -> Response:
    """There is no such page."""
    raise ApiError("not_found", f"there is no page {request.url.path!r}")


ROUTERS: tuple[APIRouter, ...] = (
    session.router,
    playground.answers,
    *(resource.router for resource in (overview, playground, decisions, evidence, operating, system)),
    _elsewhere,
)
"""In the order in which they are matched."""
