"""The error envelope: every failure has a status, a stable code and a message that names the value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from agent.jobs import UndecidedError
from agent.policies import FeatureError
from agent.serving import TurnError, messages
from arms.base import ArmError
from arms.llm import base
from feedback.errors import ConflictError, LogUnavailableError, QueueFullError
from feedback.events import Status
from feedback.reward import RewardError, UnknownMetricError

BUG = 500
"""Status of what nobody foresaw; the traceback is in the log of the service."""


class Failure(BaseModel):
    """What went wrong, for programs and for people."""

    type: Literal["invalid_request_error", "server_error"]
    code: str = Field(description="Stable name.")
    message: str = Field(description="Names the offending value and what would be right.")
    param: str | None = Field(description="The field at fault.")
    request_id: str | None
    retryable: bool = Field(description="Whether the same request may succeed later.")
    decision_id: str | None = Field(description="The decision that is kept nevertheless.")
    reasons: list[str] | None = Field(description="What a verdict against a candidate rests on.")


class Envelope(BaseModel):
    """The body of every response that is not a success."""

    error: Failure


@dataclass(eq=False)  # not frozen: the server clears the traceback of what it has answered
class ApiError(Exception):
    """A request that cannot be served.

    Attributes:
        status: HTTP status.
        code: Stable name for programs.
        message: For people; names the offending value and what would be right.
        param: The field at fault.
        decision_id: The decision that is kept nevertheless, if it had come to be made.
        retry_after_s: When to ask again, where that helps.
        final: Whether the same request, under its key, can only be refused from now on.
        reasons: What a verdict rests on; None where there was none.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    decision_id: str | None = None
    retry_after_s: int = 1
    final: bool = False
    reasons: Sequence[str] | None = None

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (408, 429, 502, 503, 504) and not self.final

    def body(self, request_id: str | None) -> dict[str, Any]:
        """Return the envelope, as OpenAI clients read it."""
        failure = Failure(
            type="server_error" if self.status >= 500 or self.status == 408 else "invalid_request_error",
            code=self.code,
            message=self.message,
            param=self.param,
            request_id=request_id,
            retryable=self.retryable,
            decision_id=self.decision_id,
            reasons=None if self.reasons is None else list(self.reasons),
        )
        return Envelope(error=failure).model_dump()

    def response(self, request_id: str | None) -> JSONResponse:
        """Return the envelope as a response."""
        headers = {"retry-after": str(self.retry_after_s)} if self.status in (429, 503) else {}
        if self.decision_id:
            headers["x-decision-id"] = self.decision_id
        return JSONResponse(self.body(request_id), self.status, headers)


_TURN_FAILURES = {
    Status.ARM_FAILED: (502, "arm_failed"),
    Status.LLM_FAILED: (502, "llm_failed"),
    Status.LLM_TIMEOUT: (504, "llm_timeout"),
}

_RAISED: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (messages.NoEligibleArmError, 400, "no_eligible_arm", "agent.excluded_arms"),
    (messages.OverloadedError, 503, "overloaded", None),
    (messages.AnsweredElsewhereError, 503, "in_progress", "Idempotency-Key"),
    (UnknownMetricError, 400, "unknown_metric", "metric_name"),
    (RewardError, 400, "invalid_value", "value"),
    (FeatureError, 400, "invalid_value", "agent.context"),
    (ConflictError, 409, "idempotency_conflict", None),
    (QueueFullError, 429, "too_many_evaluations", None),
    (UndecidedError, 503, "evaluation_under_way", None),
    (LogUnavailableError, 503, "log_unavailable", None),
    (ArmError, 503, "not_ready", None),  # before anything was drawn: an encoder, vectors or a router are away
)
"""What may be raised besides, and what a client sees of it; the first that fits counts."""

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large"}


def translate(error: Exception) -> ApiError:
    """Return the failure that a client sees for what was raised inside."""
    match error:
        case ApiError():
            return error
        case TurnError():
            if isinstance(error.__cause__, base.PromptTooLongError):
                return ApiError(400, "context_length_exceeded", str(error), "messages", error.decision_id)
            status, code = _TURN_FAILURES[error.status]
            return ApiError(status, code, str(error), decision_id=error.decision_id)
        case RequestValidationError():
            return _invalid(error)
        case HTTPException(__cause__=UnicodeDecodeError() as cause):
            return ApiError(400, "invalid_request", f"the body is not UTF-8: {cause}")
        case HTTPException():
            code = _HTTP_CODES.get(error.status_code, "invalid_request")
            return ApiError(error.status_code, code, str(error.detail))
    for kind, status, code, param in _RAISED:
        if isinstance(error, kind):
            return ApiError(status, code, str(error), param)
    return ApiError(BUG, "internal_error", f"{type(error).__name__}: see the log of the service")


_SOURCES = ("body", "query", "path", "header")
"""What a place begins with: where FastAPI looked, not what the client wrote."""

_BRANCHES = {"<item>", "<batch>", "<one>", "<many>", "[key]"}
"""Parts of a place that say as what pydantic read it."""


def _invalid(error: RequestValidationError) -> ApiError:
    """Name the first field at fault: 422 becomes 400, as OpenAI clients expect."""
    problem = error.errors()[0]
    place = problem["loc"][problem["loc"][:1] in [(source,) for source in _SOURCES] :]
    param = ".".join(str(part) for part in place if part not in _BRANCHES) or None
    match problem["type"]:
        case "extra_forbidden":
            return ApiError(400, "invalid_request", f"unknown field {param!r}", param)
        case "missing":
            return ApiError(400, "invalid_request", f"field {param or 'body'!r} is missing", param)
        case "json_invalid":
            return ApiError(400, "invalid_request", f"the body is not JSON: {problem['msg']}")
        case "model_attributes_type" | "dict_type" if isinstance(problem["input"], bytes):
            return ApiError(
                400, "invalid_request", "the body must be declared as content-type: application/json"
            )
        case _:
            shown = repr(problem.get("input"))
            shown = shown if len(shown) <= 80 else shown[:77] + "..."
            message = problem["msg"].removeprefix("Value error, ")
            return ApiError(400, "invalid_value", f"{param or 'body'}: {message}, got {shown}", param)


def install(app: FastAPI) -> None:
    """Make every failure of an application answer with the envelope."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        response = translate(error).response(request.headers.get("x-request-id"))
        response.headers.update(getattr(error, "headers", None) or {})  # such as Allow, with a 405
        return response

    for kind in (
        ApiError,
        TurnError,
        RequestValidationError,
        HTTPException,
        *(row[0] for row in _RAISED),
        Exception,
    ):
        app.add_exception_handler(kind, answer)
