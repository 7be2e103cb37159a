"""All routes of the console; the login form, scripts and styles need no key."""

from functools import cache

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from armwise.agent.access import UnauthorizedError
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica
from armwise.agent.console import (
    decisions,
    details,
    operating,
    overview,
    playground,
    policies,
    system,
)
from armwise.agent.console.page import (
    ACTION,
    CONSOLE,
    DIALECT,
    HEADERS,
    KEY_COOKIE,
    MEDIA,
    STATIC,
    TEMPLATES,
    find_base,
    page,
    pages,
    read_form,
    redirect,
)
from armwise.agent.reporting import fill_template

router = APIRouter(prefix=CONSOLE, include_in_schema=False)

STYLE = "console.css"


@router.get("/login")
async def form(request: Request, replica: AppReplica) -> Response:
    """The form that asks for a key."""
    if replica.keyring.is_open:
        return redirect(request, "")
    return _form(request, request.query_params.get("next", ""), expired="expired" in request.query_params)


@router.post("/login", dependencies=[ACTION])
async def login(request: Request, replica: AppReplica) -> Response:
    """Store a valid key in a session cookie of the browser."""
    fields = await read_form(request)
    after, key = fields.get("next", ""), fields.get("key", "").strip()
    try:
        replica.keyring.caller(f"Bearer {key}")
    except UnauthorizedError as error:
        return _form(request, after, problem=str(error) if key.isascii() else "a key is ASCII text")
    below = after if after.startswith("/") and not after.startswith(("//", "/\\")) else ""
    response = redirect(request, below)
    secure = request.headers.get("origin", "").startswith("https://")
    response.set_cookie(
        KEY_COOKIE, key, path=find_base(request), secure=secure, httponly=True, samesite="strict"
    )
    return response


@router.post("/logout", dependencies=[ACTION])
async def logout(request: Request) -> RedirectResponse:
    """Forget the key."""
    response = redirect(request, "/login")
    response.delete_cookie(KEY_COOKIE, path=find_base(request), httponly=True, samesite="strict")
    return response


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """A script, a style sheet or a licence."""
    content = _style() if name == STYLE else STATIC.get(name)
    if content is None:
        raise ApiError("not_found", f"there is no file {name!r}")
    media = MEDIA["." + name.rpartition(".")[2]]
    return Response(content, media_type=media, headers={**HEADERS, "cache-control": "max-age=3600"})


def _form(request: Request, after: str, *, expired: bool = False, problem: str = "") -> Response:
    status = 401 if problem else 200
    return page(request, "login.html", status, after=after, expired=expired, problem=problem)


@cache
def _style() -> bytes:
    return fill_template(TEMPLATES / STYLE).encode()


_elsewhere = pages()


@_elsewhere.get("/{path:path}")
async def missing(request: Request) -> Response:
    """There is no such page."""
    raise ApiError("not_found", f"there is no page {request.url.path!r}")


ROUTES = tuple(
    route
    for resource in (
        router,
        playground.answers,
        *(
            module.router
            for module in (overview, details, playground, decisions, policies, operating, system)
        ),
        _elsewhere,
    )
    for route in resource.routes
)
"""Routes in the order of matching."""

DIALECTS = (DIALECT,)
