"""Routes that are asked thousands of times a second.

FastAPI takes longer to read a request than its turn takes. A door is a route of FastAPI, which documents its
handler; its requests are read by the functions of this module, which word refusals as FastAPI does.
"""

import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, get_type_hints

import orjson
from fastapi import params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from armwise.agent.access import require_scope
from armwise.agent.api.middleware import identify_caller
from armwise.arms import large
from armwise.arms.llm import Document, DocumentError, check_levels, read_document, read_integer

Result = TypeVar("Result")

JSON = "application/json"


async def read_body(request: Request, kind: TypeAdapter[Result]) -> Result:
    """Return the JSON body of a request.

    Raises:
        RequestValidationError: It is not declared as JSON, is none, or has another shape.
        HTTPException: Its text cannot be decoded.
    """
    body = await _read_json(request)
    return await call_beside(request, lambda: _validate(kind, _parse(body), "body"))


async def read_sent(request: Request, kind: TypeAdapter[Result]) -> Result:
    """Return what the service itself reads of a request, and keep the document as `request.state.document`.

    Raises:
        RequestValidationError: It is not declared as JSON, is none, or a field has another type.
    """
    body = await _read_json(request)

    def read() -> tuple[Document, Result]:
        try:
            document = read_document(body)
        except DocumentError as error:
            raise _refuse_json(error) from None
        return document, _validate(kind, document, "body")

    request.state.document, sent = await call_beside(request, read)
    return sent


class Door(APIRoute):
    """A route that calls its handler with the parameters that it names.

    These are `request`, `replica`, `caller`, `body`, and headers and parts of the path by their annotation.
    """

    read_body = staticmethod(read_body)

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler, scopes = self.endpoint, (self.openapi_extra or {}).get("x-scopes", ())
        hints = get_type_hints(handler, include_extras=True)
        body = TypeAdapter[Any](hints.pop("body")) if "body" in hints else None
        readers = {name: _find_reader(name, kind) for name, kind in hints.items() if name != "return"}

        async def serve(request: Request) -> Response:
            if scopes:
                require_scope(request.state.caller, scopes)
            given = {name: read(request) for name, read in readers.items()}
            if body is not None:
                given["body"] = await self.read_body(request, body)
            response: Response = await handler(**given)
            return response

        return serve


class DocumentDoor(Door):
    """A door whose requests travel whole to a model of the same protocol."""

    read_body = staticmethod(read_sent)


_OWN: dict[str, Callable[[Request], Any]] = {
    "request": lambda request: request,
    "replica": lambda request: request.app.state.replica,
    "caller": identify_caller,
}
"""What reads a parameter of a handler by its name."""


def _find_reader(name: str, kind: Any) -> Callable[[Request], Any]:
    """Return what reads a parameter of a handler; it raises RequestValidationError."""
    for source in getattr(kind, "__metadata__", ()):
        if isinstance(source, params.Header):
            return partial(_read_header, str(source.alias), TypeAdapter(kind))
        if isinstance(source, params.Path):
            return partial(_read_path, name, TypeAdapter(kind))
    return _OWN[name]


def _read_header(name: str, kind: TypeAdapter[Any], request: Request) -> Any:
    sent = request.headers.get(name)
    return None if sent is None else _validate(kind, sent, "header", name)


def _read_path(name: str, kind: TypeAdapter[Any], request: Request) -> Any:
    return _validate(kind, request.path_params[name], "path", name)


async def _read_json(request: Request) -> bytes:
    """Return the body of a request, which is declared as JSON. Raises RequestValidationError."""
    body = await request.body()
    if not body:
        raise RequestValidationError([{"type": "missing", "loc": ("body",)}])
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared == JSON or (declared.startswith("application/") and declared.endswith("+json")):
        return body
    raise RequestValidationError([{"type": "dict_type", "loc": ("body",), "input": body, "msg": ""}])


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
    except (json.JSONDecodeError, DocumentError) as error:
        raise _refuse_json(error) from None
    except ValueError as error:
        raise HTTPException(400, "There was an error parsing the body") from error


def _refuse_json(error: ValueError) -> RequestValidationError:
    return RequestValidationError([{"type": "json_invalid", "loc": ("body",), "msg": str(error)}])


def _validate(kind: TypeAdapter[Result], sent: Any, *place: str) -> Result:
    """Return what a value is read as; `place` is where it stands. Raises RequestValidationError."""
    try:
        return kind.validate_python(sent, from_attributes=True)  # FastAPI words refusals so
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise RequestValidationError(
            [{**problem, "loc": (*place, *problem["loc"])} for problem in problems]
        ) from None
