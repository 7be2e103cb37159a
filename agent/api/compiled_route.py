"""Routes that are asked thousands of times a second.

FastAPI walks through the parameters of a handler and of all that it depends on at each request, which takes
longer than the turn. A `CompiledRoute` does that once. FastAPI still documents the route, and answers what
cannot be read: it says what is wrong with a request.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi._compat import ModelField
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

JSON = "application/json"


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
    single values.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._steps: list[_Step] = []
        _steps(self.dependant, self._steps)
        self._by_framework, self.app = self.app, self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            body = await request.body()
        except ClientDisconnect:
            await self._by_framework(scope, receive, send)
            return
        try:
            arguments = self._arguments(request, body)
        except InvalidParameterError:
            await self._by_framework(scope, _again(body, receive), send)
            return
        results = list[Any]()
        for step, read in zip(self._steps, arguments, strict=True):
            for name, at in step.results.items():
                read[name] = results[at]
            results.append(await step.call(**read))
        response: Response = results[-1]
        await response(scope, receive, send)

    def _arguments(self, request: Request, body: bytes) -> list[dict[str, Any]]:
        """Return what each call takes of a request. Raises UnreadableError."""
        arguments = []
        for step in self._steps:
            read: dict[str, Any] = {} if step.request is None else {step.request: request}
            for place, field, default in step.fields:
                read[field.name] = _value(place, field, default, request, body)
            arguments.append(read)
        return arguments


def _value(place: str, field: ModelField, default: Any, request: Request, body: bytes) -> Any:
    """Return a parameter of a request. Raises UnreadableError."""
    if (sent := _sent(place, field.alias, request, body)) is None:
        if field.field_info.is_required():
            raise InvalidParameterError
        return default
    value, errors = field.validate(sent)
    if errors:
        raise InvalidParameterError
    return value


def _sent(place: str, name: str, request: Request, body: bytes) -> Any:
    """Return what a request has at a place, unchecked; None for nothing. Raises UnreadableError."""
    match place:
        case "path":
            return request.path_params.get(name)
        case "query":
            return request.query_params.get(name) if request.scope["query_string"] else None
        case "header":
            return request.headers.get(name)
    if request.headers.get("content-type") != JSON:
        raise InvalidParameterError
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise InvalidParameterError from None


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a channel that gives a body that was read already, and then what comes."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return unread.pop() if unread else await receive()

    return receive_again
