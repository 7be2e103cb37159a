"""What all routes of the protocol share: their paths, their decision point and the shape of their errors.

The paths of version 1.0 begin with `/personalizer/v1.0`, those of 2022-09-01-preview with `/personalizer`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel, ConfigDict, Field, StrictStr
from pydantic.alias_generators import to_camel

from armwise.agent.access import Caller
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppService, Dialect, identify_caller, require
from armwise.agent.config import Scope
from armwise.agent.serving import DecisionPoint

PATH = "/personalizer"

VERSIONS = (f"{PATH}/v1.0", PATH)

SUBSCRIPTION_KEY = b"ocp-apim-subscription-key"
"""Header in which clients of Personalizer send their key."""

CODES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "ResourceNotFound",
    409: "Conflict",
    413: "PayloadTooLarge",
    429: "TooManyRequests",
}
"""Personalizer's codes of errors by status; InternalServerError for the others."""


def _authorization(headers: Mapping[bytes, bytes]) -> str:
    if SUBSCRIPTION_KEY in headers:
        return "Bearer " + headers[SUBSCRIPTION_KEY].decode("latin-1")
    return headers.get(b"authorization", b"").decode("latin-1")


class Body(BaseModel):
    """Base of the bodies and the replies: what an older or newer client sends besides is not read."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        serialize_by_alias=True,
    )


class Code(Body):
    """The code of `/v1`."""

    code: str


class Reason(Code):
    """One of several reasons, under Personalizer's code."""

    message: str


class Failure(Reason):
    """What went wrong."""

    target: str | None
    details: Sequence[Reason]
    inner_error: Code


class ErrorBody(Body):
    """The body of an error as Personalizer has it; our own code is the inner one."""

    error: Failure


def _body_of(failure: ApiError) -> ErrorBody:
    code = CODES.get(failure.status, "InternalServerError")
    error = Failure(
        code=code,
        message=failure.message,
        target=failure.param,
        details=[Reason(code=code, message=reason) for reason in failure.reasons or ()],
        inner_error=Code(code=failure.code),
    )
    return ErrorBody(error=error)


DIALECT = Dialect(PATH, _authorization, _body_of)
"""How its clients send their key, and read an error."""

EventId = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9._:~-]{1,128}$")]
"""Id of an event, which is a decision: fewer characters than Personalizer allows."""

EventPath = Annotated[EventId, Path()]


def route(
    router: APIRouter, method: str, path: str, status: int, scope: Scope
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Serve a function under the paths of both versions.

    They are not in the OpenAPI document: clients of Personalizer have one of its own.
    """

    def add(handler: Callable[..., Any]) -> Callable[..., Any]:
        for version in VERSIONS:
            router.add_api_route(
                version + path,
                handler,
                methods=[method],
                status_code=status,
                response_model=None,
                dependencies=[require(scope)],
                include_in_schema=False,
            )
        return handler

    return add


async def _point(service: AppService) -> DecisionPoint:
    point = service.config.personalizer
    if point is None:
        message = (
            "no decision point speaks Personalizer's protocol: `personalizer` of the configuration names one"
        )
        raise ApiError("point_not_found", message)
    return service.points[point]


ProtocolPoint = Annotated[DecisionPoint, Depends(_point)]
"""The decision point that the configuration names."""


async def _caller(request: Request, point: ProtocolPoint) -> Caller:
    return identify_caller(point, request)


PointCaller = Annotated[Caller, Depends(_caller)]


def unsupported(message: str, target: str | None = None) -> ApiError:
    """Return the error for what the protocol has and this service does not do."""
    return ApiError("invalid_value", message, target)
