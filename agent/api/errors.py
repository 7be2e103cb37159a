"""The errors of the HTTP interface: one table of codes, statuses and exceptions.

`docs/reference/errors.md` says of each code what happened and what to do.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from armwise.agent.access import (
    Caller,
    ForbiddenError,
    ForeignIdError,
    RateLimitedError,
    SpentError,
    UnauthorizedError,
    UnknownHostError,
    UnloggedIdError,
)
from armwise.agent.api.responses import StdlibJson
from armwise.agent.policies import FeatureError
from armwise.agent.replies import Envelope, Failure, construct
from armwise.agent.serving import admission
from armwise.agent.turn import AnsweredElsewhereError, NoEligibleArmError, OverloadedError, TurnError
from armwise.arms.base import ArmError
from armwise.arms.llm import base
from armwise.feedback.errors import (
    LOG_UNUSABLE,
    ConflictError,
    ProjectTakenError,
    QueueFullError,
    TooMuchFeedbackError,
    UndecidedError,
)
from armwise.feedback.events import Status
from armwise.feedback.reward import RewardError, UnknownMetricError


@dataclass(frozen=True)
class ErrorKind:
    """One row of the table of errors.

    Attributes:
        code: Stable name for programs.
        status: HTTP status.
        retryable: Whether the same request may succeed later.
        raised_by: Exceptions that are answered with it, each with the field at fault. A subclass may have
            another row.
        ends: Status of turns that are answered with it.
        framework: Whether it is the answer to an `HTTPException` of its status.
    """

    code: str
    status: int
    retryable: bool = False
    raised_by: Mapping[type[Exception], str | None] = field(default_factory=dict)
    ends: Status | None = None
    framework: bool = False


_KINDS = (
    ErrorKind("invalid_request", 400, framework=True),
    ErrorKind(
        "invalid_value",
        400,
        raised_by={
            admission.InvalidAskError: None,
            RewardError: "value",
            FeatureError: "agent.context",
            ForeignIdError: None,
            base.PromptRefusedError: None,
        },
    ),
    ErrorKind("unsupported_parameter", 400),
    ErrorKind("unknown_arm", 400, raised_by={admission.UnknownArmError: None}),
    ErrorKind(
        "no_eligible_arm",
        400,
        raised_by={admission.ArmExcludedError: None, NoEligibleArmError: "agent.excluded_arms"},
    ),
    ErrorKind("unknown_metric", 400, raised_by={UnknownMetricError: "metric_name"}),
    ErrorKind("empty_window", 400),
    ErrorKind("context_length_exceeded", 400, raised_by={base.PromptTooLongError: "messages"}),
    ErrorKind("invalid_api_key", 401, raised_by={UnauthorizedError: None}),
    ErrorKind("forbidden", 403, raised_by={admission.ForeignGroupError: None, ForbiddenError: None}),
    ErrorKind("not_found", 404, framework=True),
    ErrorKind("model_not_found", 404, raised_by={admission.UnknownModelError: None}),
    ErrorKind("decision_not_found", 404),
    ErrorKind("arm_not_found", 404),
    ErrorKind("key_not_found", 404),
    ErrorKind("version_not_found", 404),
    ErrorKind("evaluation_not_found", 404),
    ErrorKind("warm_start_not_found", 404),
    ErrorKind("method_not_allowed", 405, framework=True),
    ErrorKind("deadline_exceeded", 408, retryable=True, raised_by={admission.DeadlineExceededError: None}),
    ErrorKind("request_timeout", 408, retryable=True),
    ErrorKind("idempotency_conflict", 409, raised_by={admission.KeyReusedError: None, ConflictError: None}),
    ErrorKind("not_logged", 409, raised_by={UnloggedIdError: None}),
    ErrorKind("too_much_feedback", 409, raised_by={TooMuchFeedbackError: None}),
    ErrorKind("project_taken", 409, raised_by={ProjectTakenError: "project"}),
    ErrorKind("promotion_refused", 409),
    ErrorKind("promotion_gate_failed", 409),
    ErrorKind("changed_meanwhile", 409),
    ErrorKind("version_unavailable", 409),
    ErrorKind("not_drawn", 409),
    ErrorKind("not_done", 409),
    ErrorKind("not_configured", 409),
    ErrorKind("under_way", 409),
    ErrorKind("payload_too_large", 413),
    ErrorKind("unsupported_encoding", 415),
    ErrorKind("unknown_host", 421, raised_by={UnknownHostError: "Host"}),
    ErrorKind("upgrade_required", 426),
    ErrorKind("header_too_large", 431),
    ErrorKind("too_many_evaluations", 429, retryable=True, raised_by={QueueFullError: None}),
    ErrorKind("rate_limit_exceeded", 429, retryable=True, raised_by={RateLimitedError: None}),
    ErrorKind("model_busy", 429, retryable=True),
    ErrorKind("insufficient_quota", 429, raised_by={SpentError: None}),
    ErrorKind("internal_error", 500, raised_by={Exception: None}),
    ErrorKind("arm_failed", 502, retryable=True, ends=Status.ARM_FAILED),
    ErrorKind("llm_failed", 502, retryable=True, ends=Status.LLM_FAILED),
    ErrorKind(
        "not_ready",
        503,
        retryable=True,
        raised_by={admission.NotReadyError: None, ArmError: None},  # a turn's own failures are `arm_failed`
    ),
    ErrorKind("overloaded", 503, retryable=True, raised_by={OverloadedError: None}),
    ErrorKind(
        "in_progress",
        503,
        retryable=True,
        raised_by={admission.InProgressError: None, AnsweredElsewhereError: "Idempotency-Key"},
    ),
    ErrorKind("log_unavailable", 503, retryable=True, raised_by=dict.fromkeys(LOG_UNUSABLE)),
    ErrorKind("replica_lost", 503, retryable=True),
    ErrorKind("evaluation_under_way", 503, retryable=True, raised_by={UndecidedError: None}),
    ErrorKind("llm_timeout", 504, retryable=True, ends=Status.LLM_TIMEOUT),
)

ERRORS: Mapping[str, ErrorKind] = {kind.code: kind for kind in _KINDS}
"""Every error that a client can get, by its code."""

_CODE_OF_EXCEPTION = {
    raised: (kind.code, param) for kind in _KINDS for raised, param in kind.raised_by.items()
}
_CODE_OF_ENDING = {kind.ends: kind.code for kind in _KINDS if kind.ends is not None}
_CODE_OF_STATUS = {kind.status: kind.code for kind in _KINDS if kind.framework}

HANDLED = (
    *(TurnError, admission.UnansweredError, RequestValidationError, HTTPException),
    *(_CODE_OF_EXCEPTION.keys() - {Exception}),
)
"""Exceptions of routes besides `ApiError`; `translate` turns any exception into one."""


PASSED_ON = (400, 413, 415, 422, 424)
"""Statuses with which the provider of a language model refuses a request: any other becomes 400."""


@dataclass(frozen=True, slots=True)
class ProviderRefusal:
    """How the provider of a language model has refused a request.

    Attributes:
        status: HTTP status.
        refusal: What it says.
    """

    status: int
    refusal: base.Refusal


@dataclass(eq=False)  # not frozen: the server clears the traceback of an exception that it has answered
class ApiError(Exception):
    """A request that cannot be served.

    Attributes:
        code: One of `ERRORS`, which has its status.
        message: For people; names the offending value and what would be right.
        param: The field at fault.
        decision_id: Id of the decision, if one was logged.
        retry_after_s: Seconds after which a retry may succeed.
        final: Whether the same request will be refused from now on: under its idempotency key, or until an
            operator intervenes.
        reasons: Reasons why the gate holds a candidate, or errors of the items of a batch.
        meter: The limit of a key that is used up.
        provider: What the provider of a language model says of the request, which it has refused.
    """

    code: str
    message: str
    param: str | None = None
    decision_id: str | None = None
    retry_after_s: int = 1
    final: bool = False
    reasons: Sequence[str] | None = None
    meter: str | None = None
    provider: ProviderRefusal | None = None

    @property
    def status(self) -> int:
        """The HTTP status."""
        return ERRORS[self.code].status if self.provider is None else self.provider.status

    @property
    def shown_code(self) -> str | None:
        """The code that a client gets: that of the provider, if it refused the request and names one."""
        said = None if self.provider is None else self.provider.refusal
        return said.code or None if said is not None and said.message else self.code

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return ERRORS[self.code].retryable and not self.final

    @property
    def _type(self) -> str:
        """The type of the error in OpenAI's API."""
        if self.provider is not None and self.provider.refusal.type:
            return self.provider.refusal.type
        if self.status == 429:
            kind = "requests" if self.code == "model_busy" else "invalid_request_error"
            return self.meter or (kind if self.retryable else "insufficient_quota")
        return "server_error" if self.status >= 500 or self.status == 408 else "invalid_request_error"

    def show_to(self, caller: Caller) -> "ApiError":
        """Return the error with ids as the caller knows them."""
        reasons = None if self.reasons is None else list(map(caller.strip_prefix, self.reasons))
        decision_id = self.decision_id and caller.strip_prefix(self.decision_id)
        return replace(
            self, message=caller.strip_prefix(self.message), reasons=reasons, decision_id=decision_id
        )

    def without_details(self, message: str) -> "ApiError":
        """Return the error with another message, and without what may name arms, models or decisions."""
        return ApiError(self.code, message, retry_after_s=self.retry_after_s, final=self.final)

    def envelope(self, request_id: str | None) -> Envelope:
        """Return the body of the response, as OpenAI clients read it."""
        failure = construct(
            Failure,
            type=self._type,
            code=self.shown_code,
            message=self.message,
            param=self.param,
            request_id=request_id,
            retryable=self.retryable,
            decision_id=self.decision_id,
            reasons=None if self.reasons is None else list(self.reasons),
        )
        return construct(Envelope, error=failure)

    def response(self, request_id: str | None) -> JSONResponse:
        """Return the response, with the envelope as its body."""
        wait = self.status == 503 or (self.status == 429 and self.retryable)
        seconds = self.retry_after_s
        headers = {"retry-after": str(seconds), "retry-after-ms": str(1000 * seconds)} if wait else {}
        headers |= {"x-decision-id": self.decision_id} if self.decision_id else {}
        headers["x-content-type-options"] = "nosniff"  # the middleware does not see internal errors
        return StdlibJson(self.envelope(request_id), self.status, headers)


def translate(error: Exception) -> ApiError:
    """Return the error that a client gets for an exception."""
    match error:
        case ApiError():
            return error
        case admission.UnansweredError(__cause__=Exception() as cause):
            failure = translate(cause)
            final = failure.final or error.final
            return replace(failure, decision_id=error.decision_id, final=final).show_to(error.caller)
        case TurnError():
            return _translate_turn(error)
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            return _translate_framework(error)
    nearest = next(kind for kind in type(error).__mro__ if kind in _CODE_OF_EXCEPTION)
    if nearest is Exception:
        return ApiError("internal_error", f"{type(error).__name__}: see the service's log")
    code, param = _CODE_OF_EXCEPTION[nearest]
    if isinstance(error, admission.AskError):
        return ApiError(code, str(error), error.param, retry_after_s=error.retry_after_s)
    if isinstance(error, RateLimitedError):
        wait = max(1, math.ceil(error.retry_after_s))
        return ApiError(code, str(error), param, retry_after_s=wait, meter=error.meter)
    return ApiError(code, str(error), param)


def _translate_turn(error: TurnError) -> ApiError:
    cause, kept = error.__cause__, error.execution.decision_id
    said = cause.refusal if isinstance(cause, base.GeneratorError) else base.Refusal()
    if isinstance(cause, base.PromptRefusedError):
        code, param = _CODE_OF_EXCEPTION[type(cause)]
        text, at = (said.message, said.param or None) if said.message else (cause.shown or str(cause), param)
        status = cause.status if cause.status in PASSED_ON else 400
        return ApiError(code, text, at, kept, provider=ProviderRefusal(status, said))
    if isinstance(cause, base.GeneratorBusyError):
        provider = ProviderRefusal(ERRORS["model_busy"].status, said) if said.message else None
        wait = max(1, math.ceil(cause.retry_after_s))
        text = said.message or f"the language model takes no more requests for {wait} s"
        return ApiError("model_busy", text, None, kept, retry_after_s=wait, provider=provider)
    code = _CODE_OF_ENDING[error.execution.status]
    if isinstance(cause, base.GeneratorRefusedError) and cause.status is not None:
        text = said.message or f"the language model answers {cause.shown}"
        provider = ProviderRefusal(cause.status, said)
        return ApiError(code, text, said.param or None, kept, final=True, provider=provider)
    if code in _SAID_OF_MODELS:
        why = said.message or ((cause.shown or str(cause)) if isinstance(cause, base.GeneratorError) else "")
        text = f"{_SAID_OF_MODELS[code]}{f': {why}' if why else ''}; the decision has the error for operators"
    else:
        text = str(error)
    final = isinstance(cause, base.GeneratorRefusedError)
    return ApiError(code, text, decision_id=kept, final=final)


_SAID_OF_MODELS = {
    "llm_failed": "the language model failed",
    "llm_timeout": "the language model took too long",
}
"""What callers read where the error of a turn may name a model and its address."""


def find_native(error: Exception) -> base.Native | None:
    """Return the event in which the provider of a language model says why its answer has failed, if any."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, base.GeneratorError):
        cause = cause.__cause__
    return None if cause is None else cause.native


def choose_code(error: Exception) -> str:
    """Return the code of the error that a client gets for an exception."""
    return translate(error).code


def _translate_framework(error: HTTPException) -> ApiError:
    match error.__cause__:
        case ApiError() as cause:
            return cause
        case UnicodeDecodeError() as cause:
            return ApiError("invalid_request", f"the body is not UTF-8: {cause}")
    return ApiError(_CODE_OF_STATUS.get(error.status_code, "invalid_request"), str(error.detail))


_SOURCES = ("body", "query", "path", "header")
"""First parts of a location, where FastAPI names the source of a value; fields are named without them."""

_BRANCHES = {"<item>", "<batch>", "<one>", "<many>", "<object>", "[key]"}
"""Parts of a location that name a branch of a union, or a key: pydantic's names, not the client's."""

LONGEST_PARAM = 300
"""Most characters of the name of a field, which may include a client's key of an object."""


def _invalid(error: RequestValidationError) -> ApiError:
    """Name the first field at fault: 422 becomes 400, as OpenAI clients expect."""
    problem = error.errors()[0]
    place = problem["loc"][problem["loc"][:1] in [(source,) for source in _SOURCES] :]
    param = ".".join(str(part) for part in place if part not in _BRANCHES)[:LONGEST_PARAM] or None
    match problem["type"]:
        case "extra_forbidden":
            return ApiError("invalid_request", f"unknown field {param!r}", param)
        case "missing":
            return ApiError("invalid_request", f"field {param or 'body'!r} is missing", param)
        case "too_short" if not problem["input"]:
            least = problem["ctx"]["min_length"]
            return ApiError("invalid_value", f"{param or 'body'} is empty: add at least {least}", param)
        case "json_invalid":
            said = problem["msg"]
            if isinstance(error.body, str):  # FastAPI names the place apart
                said = str(json.JSONDecodeError(problem["ctx"]["error"], error.body, problem["loc"][-1]))
            return ApiError("invalid_request", f"the body cannot be read as JSON: {said}")
        case "model_attributes_type" | "dict_type" if isinstance(problem["input"], bytes):
            message = "the body must be declared as content-type: application/json"
            return ApiError("invalid_request", message)
        case _:
            shown = repr(problem.get("input"))
            shown = shown if len(shown) <= 80 else shown[:77] + "..."
            message = problem["msg"].removeprefix("Value error, ")
            return ApiError("invalid_value", f"{param or 'body'}: {message}, got {shown}", param)
