"""Routes that are asked thousands of times a second.

FastAPI walks through the parameters of a handler and of all that it depends on at each request, which takes
longer than the turn. A `CompiledRoute` does that once. FastAPI still documents the route, and says what is
wrong with a request whose parameters or JSON cannot be read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import orjson
from fastapi._compat import ModelField
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

Result = TypeVar("Result")

JSON = "application/json"

LARGE = 32 * 1024
"""Bytes of a body above which it is read in a thread."""

_LARGE_BODIES = ThreadPoolExecutor(1, "large-body")
"""Reads large bodies one at a time, so that several of them delay other requests no more than one does."""


class InvalidParameterError(Exception):
    """A request lacks a parameter, or has one that is not valid."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A call whose arguments are read from the request, or are the results of earlier calls.

    Attributes:
        call: A coroutine function.
        results: Position of the earlier call, by argument.
        request: The argument that is the request; None for none.
        fields: Where each argument that is read is from, its field, and its value where it is left out.
    """

    call: Callable[..., Awaitable[Any]]
    results: Mapping[str, int]
    request: str | None
    fields: tuple[tuple[str, ModelField, Any], ...]


def _steps(dependant: Dependant, steps: list[_Step]) -> int:
    """Add the calls that a call depends on, each once, and the call; return its position."""
    results = {}
    for needed in dependant.dependencies:
        at = next((at for at, step in enumerate(steps) if step.call is needed.call), None)
        at = _steps(needed, steps) if at is None else at
        if needed.name is not None:
            results[needed.name] = at
    assert dependant.call is not None
    places = {
        "path": dependant.path_params,
        "query": dependant.query_params,
        "header": dependant.header_params,
        "body": dependant.body_params,
    }
    fields = ((place, field, field.get_default()) for place, several in places.items() for field in several)
    steps.append(_Step(dependant.call, results, dependant.request_param_name, tuple(fields)))
    return len(steps) - 1


class CompiledRoute(APIRoute):
    """A route whose handler, and what it depends on, are coroutine functions.

    They take the request, its JSON body as one model, and parameters of path, query and header that are
    single values. What the handler depends on is called before the body is read, so that a caller without
    the scope of the route is refused first.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._steps: list[_Step] = []
        _steps(self.dependant, self._steps)
        self._by_framework, self.app = self.app, self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        results = list[Any]()
        for step in self._steps:
            read: dict[str, Any] = {} if step.request is None else {step.request: request}
            try:
                for place, field, default in step.fields:
                    if place == "body":
                        read[field.name] = await _read_body(field, request)
                    else:
                        read[field.name] = _read_parameter(place, field, default, request)
            except InvalidParameterError:
                await self._by_framework(scope, _again(await request.body(), receive), send)
                return
            for name, at in step.results.items():
                read[name] = results[at]
            results.append(await step.call(**read))
        response: Response = results[-1]
        await response(scope, receive, send)


def _read_parameter(place: str, field: ModelField, default: Any, request: Request) -> Any:
    """Return a parameter of a request. Raises InvalidParameterError."""
    match place:
        case "path":
            sent = request.path_params.get(field.alias)
        case "query":
            sent = request.query_params.get(field.alias) if request.scope["query_string"] else None
        case _:
            sent = request.headers.get(field.alias)
    if sent is None:
        if field.field_info.is_required():
            raise InvalidParameterError
        return default
    value, errors = field.validate(sent)
    if errors:
        raise InvalidParameterError
    return value


async def _read_body(field: ModelField, request: Request) -> Any:
    """Return the body of a request.

    Raises:
        InvalidParameterError: It is not declared as JSON, or is none.
        RequestValidationError: It is JSON of another shape.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise InvalidParameterError
    value, errors = await call_beside(request, partial(_validate_body, field, await request.body()))
    if errors:
        raise RequestValidationError(errors)
    return value


async def call_beside(request: Request, call: Callable[[], Result]) -> Result:
    """Call a function whose time grows with the body of a request, in a thread if the body is large."""
    if len(await request.body()) <= LARGE:
        return call()
    return await asyncio.get_running_loop().run_in_executor(_LARGE_BODIES, call)


def _validate_body(field: ModelField, body: bytes) -> tuple[Any, list[dict[str, Any]]]:
    """Return the value of a body, or what is wrong with it. Raises InvalidParameterError."""
    try:
        sent = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise InvalidParameterError from None
    if sent is None:
        raise InvalidParameterError
    return field.validate(sent, loc=("body",))


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a channel that gives a body that was read already, and then what comes."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return unread.pop() if unread else await receive()

    return receive_again
