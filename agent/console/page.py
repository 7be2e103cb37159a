"""Rendering of the console's pages, including a page for every failure."""

import functools
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import cookie_parser
from typing_extensions import override

from armwise.agent.api import errors
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import NOBODY, ApiDialect, AppReplica
from armwise.agent.config import AppConfig
from armwise.agent.reporting import fill_template
from armwise.agent.serving import Replica
from armwise.arms.llm.catalog import EmbeddedSpec, EndpointSpec, ScriptedSpec, VllmSpec

logger = logging.getLogger(__name__)

CONSOLE = "/console"
"""Path of the console, below the prefix of the service."""

KEY_COOKIE = "armwise_key"
"""Name of the cookie that holds the key of a browser."""


def _authorization(headers: Mapping[bytes, bytes]) -> str:
    if given := headers.get(b"authorization"):
        return given.decode("latin-1")
    cookies = cookie_parser(headers.get(b"cookie", b"").decode("latin-1"))
    return f"Bearer {cookies.get(KEY_COOKIE, '')}"


DIALECT = ApiDialect(CONSOLE, _authorization, answers_refusals=True)
"""The dialect of pages: the key may be in a cookie, and refusals are answered with a page."""

HERE = Path(__file__).parent

TEMPLATES = HERE / "templates"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Content security policy: pages load and run only files of the service; inline code is blocked."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}

PAGES = (
    ("", "Overview"),
    ("/details", "Details"),
    ("/playground", "Playground"),
    ("/decisions", "Decisions"),
    ("/arms", "Arms"),
    ("/policies", "Policies"),
    ("/evaluations", "Evaluations"),
    ("/warm-starts", "Warm starts"),
    ("/system", "System"),
)
"""The path below the console, and the title, of each page of the menu."""

DOCS = "https://github.com/armwise/armwise/blob/main/docs"
"""Where the pages of the documentation are."""

STATIC = {path.name: path.read_bytes() for path in (HERE / "static").iterdir()}
"""Scripts and their licences, by file name."""

MEDIA = {".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}


def find_base(request: Request) -> str:
    """Return the path of the console, with the prefix of the service."""
    return f"{request.scope.get('root_path', '')}{CONSOLE}"


def find_address(request: Request) -> str:
    """Return the address of the service as the browser of a request knows it, with its prefix."""
    forwarded = request.headers.get("x-forwarded-proto", "")  # the proxy passes that of trusted ones on
    scheme = forwarded if forwarded in ("http", "https") else request.url.scheme
    return f"{scheme}://{request.url.netloc}{request.scope.get('root_path', '')}"


def page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a template; for a request of htmx, only its live part.

    Args:
        request: A request that has passed the guard.
        template: Name of the template.
        status: Status of the response.
        values: Variables of the template; texts are escaped.
    """
    caller, partial = request.state.caller, "hx-request" in request.headers
    here = f"{find_base(request)}{_below(request)}"
    query = request.url.query
    html = fill_template(
        TEMPLATES / template,
        base=find_base(request),
        url=functools.partial(address, request),
        below=_below(request),
        section=_section(request),
        here=f"{here}?{query}" if query else here,
        models=name_models(request.app.state.replica),
        read_at=getattr(request.state, "read_at", 0.0),
        link=None if request.method == "GET" else address(request, _section(request)),
        docs=DOCS,
        pages=PAGES,
        may=caller.scopes,
        key=caller.key,
        partial=partial,
        **values,
    )
    return HTMLResponse(html, status, HEADERS)


def address(request: Request, path: str, **query: object) -> str:
    """Return the address of a page.

    Args:
        request: The request.
        path: Path below the console.
        query: Fields of the query.
    """
    return f"{find_base(request)}{path}" + (f"?{urlencode(query)}" if query else "")


def _below(request: Request) -> str:
    """Return the path of a request below the console."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", "")).removeprefix(CONSOLE).rstrip("/")


def _section(request: Request) -> str:
    """Return the path of the page of the menu that a request belongs to, below the console."""
    return "/".join(_below(request).split("/")[:2])


def redirect(request: Request, path: str, **query: object) -> RedirectResponse:
    """Return the response to an action: a redirect to the page that shows its result.

    Args:
        request: The request.
        path: Path below the console.
        query: Fields of the page.
    """
    return RedirectResponse(address(request, path, **query), 303, HEADERS)


def show_failure(request: Request, error: Exception) -> Response:
    """Return a page that reports a failure; without a valid key, a redirect to the login form."""
    failure = errors.translate(error)
    if failure.code == "internal_error":
        logger.error("a page of the console failed", exc_info=error)
    if not hasattr(request.state, "caller"):
        request.state.caller = NOBODY
    failure = failure.show_to(request.state.caller)
    if failure.code == "invalid_api_key" and "hx-request" not in request.headers:
        after = _below(request) if request.method == "GET" else ""
        why = "&expired" if "cookie" in request.headers else ""
        return RedirectResponse(f"{find_base(request)}/login?next={quote(after)}{why}", 303, HEADERS)
    response = page(request, "problem.html", failure.status, failure=failure)
    if failure.retryable:
        response.headers["retry-after"] = str(failure.retry_after_s)
    return response


def unless_refused(request: Request) -> None:
    """Raise the error for which the guard refused a request, if it did."""
    refusal: ApiError | None = getattr(request.state, "refusal", None)
    if refusal is not None:
        raise refusal


class PageRoute(APIRoute):
    """A route whose failures are pages."""

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that answers every failure with a page."""
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                unless_refused(request)
                return await handler(request)
            except Exception as error:  # noqa: BLE001 - an unexpected one is logged
                return show_failure(request, error)

        return answer


async def same_origin(request: Request) -> None:
    """Check that a page of the console sent the request. Raises ApiError.

    A browser names the origin of a form or a script in headers that pages cannot set.
    """
    headers = request.headers
    origin = headers.get("origin", "").partition("://")[2]
    if headers.get("sec-fetch-site") != "same-origin" and origin != headers.get("host"):
        raise ApiError("forbidden", "the request does not come from a page of this console")


ACTION = Depends(same_origin)
"""Dependency of every route that changes something."""


async def _note_time(request: Request, replica: AppReplica) -> None:
    request.state.read_at = replica.clock()


def pages() -> APIRouter:
    """Return a router of pages, which are left out of the OpenAPI document."""
    dependencies = [Depends(_note_time)]
    return APIRouter(
        prefix=CONSOLE, route_class=PageRoute, dependencies=dependencies, include_in_schema=False
    )


async def read_form(request: Request) -> dict[str, str]:
    """Return the non-empty fields of a form. Raises ApiError."""
    try:
        text = (await request.body()).decode()
    except UnicodeDecodeError as error:
        raise ApiError("invalid_request", f"the form is not UTF-8: {error}") from None
    return {name: value for name, value in parse_qsl(text) if value.strip()}


def number(text: str) -> int | float | str:
    """Parse a field of a form as a number; other texts are returned unchanged.

    >>> number("600"), number("0.5"), number("few")
    (600, 0.5, 'few')
    """
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return text


def valid(model: Any, values: object) -> Any:
    """Validate values by a model of the API. Raises ApiError."""
    try:
        return TypeAdapter(model).validate_python(values)
    except ValidationError as error:
        raise errors.translate(RequestValidationError(error.errors())) from None


def name_models(replica: Replica) -> dict[str, str]:
    """Return the language model that writes the answers of each live arm, its own or the default one."""
    return {arm: name_model(replica.config, info.answering.llm) for arm, info in replica.turns.arms.items()}


def name_model(config: AppConfig, name: str) -> str:
    """Return what a language model is called: its file or what its endpoint calls it; its name if it is gone.

    Args:
        config: The configuration.
        name: Name in the configuration.
    """
    match config.models.get(name):
        case ScriptedSpec(engine=engine):
            return engine
        case EndpointSpec(model=model):
            return model
        case EmbeddedSpec(model=model) | VllmSpec(model=model):  # a path
            return model.rpartition("/")[2].removesuffix(".gguf")
        case _:
            return name
