"""What the routes that are asked thousands of times a second read of a request.

FastAPI takes longer to read a request than its turn takes. Such a route is a plain one of Starlette, which
reads the request by these functions and calls the handler. FastAPI documents the handler, and never runs it.
"""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from armwise.agent.access import Caller, require_scope
from armwise.agent.api.middleware import identify_caller
from armwise.agent.api.schemas import IdempotencyKey, Timeout
from armwise.agent.config import Scope
from armwise.agent.serving import Replica
from armwise.arms import large
from armwise.arms.llm import DocumentError, check_levels, read_integer

Result = TypeVar("Result")

JSON = "application/json"

_KEY, _TIMEOUT = TypeAdapter[str | None](IdempotencyKey), TypeAdapter[float | None](Timeout)


def add_route(router: APIRouter, path: str, serve: Callable[[Request], Awaitable[Response]]) -> None:
    """Serve POST requests to a path, before a handler of FastAPI with the same path."""
    route = Route(path, serve)

    async def run(request: Request) -> Response:
        request.scope["route"] = route  # as FastAPI does: traces name a request by it
        return await serve(request)

    router.add_route(path, run, ["POST"])


def read_caller(request: Request, scope: Scope) -> tuple[Replica, Caller]:
    """Return the replica that answers, and the caller of a request. Raises ForbiddenError."""
    require_scope(request.state.caller, (scope,))
    return request.app.state.replica, identify_caller(request)


def read_key(request: Request) -> str | None:
    """Return the idempotency key of a request. Raises RequestValidationError."""
    return read_header(request, "Idempotency-Key", _KEY)


def read_timeout(request: Request) -> float | None:
    """Return the seconds in which a request has to be answered. Raises RequestValidationError."""
    return read_header(request, "X-Request-Timeout-Seconds", _TIMEOUT)


def read_header(request: Request, name: str, kind: TypeAdapter[Result | None]) -> Result | None:
    """Return the value of a header; None if it is left out. Raises RequestValidationError."""
    sent = request.headers.get(name)
    return None if sent is None else validate(kind, sent, "header", name)


async def read_json(request: Request) -> bytes:
    """Return the body of a request, which is declared as JSON. Raises RequestValidationError."""
    body = await request.body()
    if not body:
        raise RequestValidationError([{"type": "missing", "loc": ("body",)}])
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared == JSON or (declared.startswith("application/") and declared.endswith("+json")):
        return body
    raise RequestValidationError([{"type": "dict_type", "loc": ("body",), "input": body, "msg": ""}])


async def read_body(request: Request, kind: TypeAdapter[Result]) -> Result:
    """Return the JSON body of a request.

    Raises:
        RequestValidationError: It is not declared as JSON, is none, or has another shape.
        HTTPException: Its text cannot be decoded.
    """
    body = await read_json(request)
    return await call_beside(request, lambda: validate(kind, _parse(body), "body"))


async def call_beside(request: Request, call: Callable[[], Result]) -> Result:
    """Call a function whose time grows with the body of a request, in a thread unless that is small."""
    return await large.call_beside(len(await request.body()), call)


def _parse(body: bytes) -> Any:
    """Return what JSON says. Raises RequestValidationError, HTTPException."""
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(body)
    try:
        # also UTF-16, NaN and halves of surrogate pairs, which fields refuse
        check_levels(body)
        return json.loads(body, parse_int=read_integer)
    except json.JSONDecodeError as error:
        problem = {"type": "json_invalid", "loc": ("body", error.pos), "msg": str(error)}
        raise RequestValidationError([problem]) from None
    except DocumentError as error:
        problem = {"type": "json_invalid", "loc": ("body",), "msg": str(error)}
        raise RequestValidationError([problem]) from None
    except ValueError as error:
        raise HTTPException(400, "There was an error parsing the body") from error


def validate(kind: TypeAdapter[Result], sent: Any, *place: str) -> Result:
    """Return what a value is read as; `place` is where it stands. Raises RequestValidationError."""
    try:
        return kind.validate_python(sent, from_attributes=True)  # FastAPI words refusals so
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise RequestValidationError(
            [{**problem, "loc": (*place, *problem["loc"])} for problem in problems]
        ) from None
