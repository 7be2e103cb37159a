"""The errors of the HTTP interface: one table, from which statuses, handlers and the page are generated."""

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
from armwise.agent.jobs import UndecidedError
from armwise.agent.policies import FeatureError
from armwise.agent.replies import Envelope, Failure, construct
from armwise.agent.serving import ask
from armwise.agent.turn import AnsweredElsewhereError, NoEligibleArmError, OverloadedError, TurnError
from armwise.arms.base import ArmError
from armwise.arms.llm import base
from armwise.feedback.errors import (
    LOG_UNUSABLE,
    ConflictError,
    ProjectTakenError,
    QueueFullError,
    TooMuchFeedbackError,
)
from armwise.feedback.events import Status
from armwise.feedback.reward import RewardError, UnknownMetricError


@dataclass(frozen=True)
class ErrorKind:
    """One row of the table of errors.

    Attributes:
        code: Stable name for programs.
        status: HTTP status.
        when: When it is answered, for the page.
        retryable: Whether the same request may succeed later.
        raised_by: Exceptions that are answered with it, each with the field at fault. A subclass may have
            another row.
        ends: Status of turns that are answered with it.
        framework: Whether it is the answer to an `HTTPException` of its status.
    """

    code: str
    status: int
    when: str
    retryable: bool = False
    raised_by: Mapping[type[Exception], str | None] = field(default_factory=dict)
    ends: Status | None = None
    framework: bool = False


_KINDS = (
    ErrorKind(
        "invalid_request",
        400,
        "The body is not declared as JSON, is not UTF-8 JSON, lacks a field or has an unknown "
        "one, an integer has more than 100 digits, or the body is not packed as its "
        "`Content-Encoding` says. Correct what the message names.",
        framework=True,
    ),
    ErrorKind(
        "invalid_value",
        400,
        "A field has the wrong type or is outside its range. Correct the field that `param` names.",
        raised_by={
            ask.InvalidAskError: None,
            RewardError: "value",
            FeatureError: "agent.context",
            ForeignIdError: None,
            base.PromptRefusedError: None,
        },
    ),
    ErrorKind(
        "unsupported_parameter",
        400,
        "The language model cannot do what a parameter asks for. Remove the parameter that `param` names.",
    ),
    ErrorKind(
        "unknown_arm",
        400,
        "The request names an arm that is not configured. Choose one from `GET /v1/arms`.",
        raised_by={ask.UnknownArmError: None},
    ),
    ErrorKind(
        "no_eligible_arm",
        400,
        "The named arm, or every arm, is switched off or excluded. Nothing was decided. Allow "
        "another arm or switch one on.",
        raised_by={ask.ArmExcludedError: None, NoEligibleArmError: "agent.excluded_arms"},
    ),
    ErrorKind(
        "unknown_metric",
        400,
        "The feedback names a metric that the configuration does not declare. Correct the name, "
        "or declare the metric.",
        raised_by={UnknownMetricError: "metric_name"},
    ),
    ErrorKind(
        "empty_window",
        400,
        "There is no decision to evaluate. Choose an earlier `since`, or wait for decisions.",
    ),
    ErrorKind(
        "context_length_exceeded",
        400,
        "The prompt is longer than the language model can read. Shorten it, or use a model that reads more.",
        raised_by={base.PromptTooLongError: "messages"},
    ),
    ErrorKind(
        "invalid_api_key",
        401,
        "The service requires a key. Yours is missing, unknown, disabled or expired. Send a "
        "valid one as `Authorization: Bearer <key>`.",
        raised_by={UnauthorizedError: None},
    ),
    ErrorKind(
        "forbidden",
        403,
        "The key lacks the route's scope or a requested group, or a page of another site sent "
        "the request. Use a key with more rights, or add the site to `hosts`.",
        raised_by={ask.ForeignGroupError: None, ForbiddenError: None},
    ),
    ErrorKind(
        "not_found", 404, "The route does not exist. Find the right one in `/openapi.json`.", framework=True
    ),
    ErrorKind(
        "model_not_found",
        404,
        "The model is neither `auto` nor a configured arm nor an alias. Choose one from `GET /v1/models`.",
        raised_by={ask.UnknownModelError: None},
    ),
    ErrorKind(
        "decision_not_found", 404, "Your project has no decision with this id. Check the id and the key."
    ),
    ErrorKind("arm_not_found", 404, "No live arm has this name. Choose one from `GET /v1/arms`."),
    ErrorKind("key_not_found", 404, "No key has this public id. Choose one from `GET /v1/keys`."),
    ErrorKind(
        "version_not_found",
        404,
        "The log has no policy version with this number. Choose one from `GET /v1/policies`.",
    ),
    ErrorKind(
        "evaluation_not_found",
        404,
        "The log has no evaluation with this number. Choose one from `GET /v1/evaluations`.",
    ),
    ErrorKind(
        "warm_start_not_found",
        404,
        "The log has no warm start with this number. Choose one from `GET /v1/warm-starts`.",
    ),
    ErrorKind(
        "method_not_allowed",
        405,
        "The route does not support the method. Find the right one in `/openapi.json`.",
        framework=True,
    ),
    ErrorKind(
        "deadline_exceeded",
        408,
        "The time limit in `X-Request-Timeout-Seconds` has passed. Retry with a longer one.",
        retryable=True,
        raised_by={ask.DeadlineExceededError: None},
    ),
    ErrorKind(
        "request_timeout",
        408,
        "The client sent its request too slowly. Send the header within `http.request_s`, and "
        "the body at 64 KiB per second or faster.",
        retryable=True,
    ),
    ErrorKind(
        "idempotency_conflict",
        409,
        "The idempotency key or feedback id was used for another request or for a turn that "
        "failed. Use a new one.",
        raised_by={ask.KeyReusedError: None, ConflictError: None},
    ),
    ErrorKind(
        "not_logged",
        409,
        "The decision was made while the log could not be written (`log_away: answer`). Send no "
        "feedback on answers with the header `x-armwise-log: away`.",
        raised_by={UnloggedIdError: None},
    ),
    ErrorKind(
        "too_much_feedback",
        409,
        "The decision or episode already has 1,000 feedback values or retractions. Send no new "
        "ones. You can repeat the stored ones.",
        raised_by={TooMuchFeedbackError: None},
    ),
    ErrorKind(
        "project_taken",
        409,
        "Ids in the log would clash with ids of the new project. Choose another project name.",
        raised_by={ProjectTakenError: "project"},
    ),
    ErrorKind(
        "promotion_refused",
        409,
        "The service cannot serve this version. Change what the message names, or choose another version.",
    ),
    ErrorKind(
        "promotion_gate_failed",
        409,
        "The gate holds the version back, and `reasons` says why. Wait for more evidence, or "
        "skip the gate with `force`.",
    ),
    ErrorKind(
        "changed_meanwhile",
        409,
        "Another promotion or rollback came first. Check `GET /v1/policy` before you send yours again.",
    ),
    ErrorKind(
        "version_unavailable",
        409,
        "The policy of the version can be neither read nor rebuilt. Choose another version.",
    ),
    ErrorKind(
        "not_drawn",
        409,
        "The decision is a label, which no policy drew, so there is nothing to verify. Choose "
        "another decision.",
    ),
    ErrorKind(
        "not_done",
        409,
        "The evaluation is not done, so it has no report yet. Check its status with `GET "
        "/v1/evaluations/{number}`.",
    ),
    ErrorKind("not_configured", 409, "The configuration has no section `warm_start`. Add one."),
    ErrorKind("under_way", 409, "A warm start is already queued or running. Wait until it has finished."),
    ErrorKind(
        "payload_too_large",
        413,
        "The body, unpacked, is larger than `limits.body_bytes`, or has more than 100,000 fields and "
        "items. Send less, or raise `limits.body_bytes`.",
    ),
    ErrorKind(
        "unsupported_encoding",
        415,
        "The body has a `Content-Encoding` other than `gzip`, `deflate` and `zstd`, more than one, or one on "
        "a route that needs no key. Send it in one of these, or without any.",
    ),
    ErrorKind(
        "unknown_host",
        421,
        "The request's `Host` is not listed in `hosts`. If it is a name of your service, add it.",
        raised_by={UnknownHostError: "Host"},
    ),
    ErrorKind(
        "upgrade_required",
        426,
        "The request opens a WebSocket. Armwise speaks only HTTP, so send the request with `POST`, as agents "
        "do after this answer.",
    ),
    ErrorKind(
        "header_too_large",
        431,
        "The header is larger than 16,384 bytes or has more than 100 lines. Send fewer or shorter headers.",
    ),
    ErrorKind(
        "too_many_evaluations",
        429,
        "The queue of evaluations, or your project's share of it, is full. Retry when an "
        "evaluation has finished.",
        retryable=True,
        raised_by={QueueFullError: None},
    ),
    ErrorKind(
        "rate_limit_exceeded",
        429,
        "The key has used its requests or tokens per minute, so nothing was decided. Wait for "
        "the time in `Retry-After`.",
        retryable=True,
        raised_by={RateLimitedError: None},
    ),
    ErrorKind(
        "model_busy",
        429,
        "The language model's provider accepts no more requests for now, and no other arm may "
        "answer. Wait for the time in `Retry-After`.",
        retryable=True,
    ),
    ErrorKind(
        "insufficient_quota",
        429,
        "The key has spent its budget for the day or month, so nothing was decided. Wait until "
        "the period ends, or use another key.",
        raised_by={SpentError: None},
    ),
    ErrorKind(
        "internal_error",
        500,
        "Armwise raised an unexpected exception. Read its traceback in the service's log.",
        raised_by={Exception: None},
    ),
    ErrorKind(
        "arm_failed",
        502,
        "The chosen arm failed and no fallback could replace it, or new arms could not be "
        "built. If the error remains, read the service's log.",
        retryable=True,
        ends=Status.ARM_FAILED,
    ),
    ErrorKind(
        "llm_failed",
        502,
        "The language model failed. If `retryable` is false, its endpoint refused the key, the "
        "account or the model: correct the configuration.",
        retryable=True,
        ends=Status.LLM_FAILED,
    ),
    ErrorKind(
        "not_ready",
        503,
        "The service, an arm, a model or a policy is not ready. If the error remains, read the "
        "service's log.",
        retryable=True,
        raised_by={
            ask.NotReadyError: None,
            ArmError: None,
        },  # outside a turn, whose own failures are `arm_failed`
    ),
    ErrorKind(
        "overloaded",
        503,
        "The service is busy, so nothing new was decided. If this happens often, add replicas "
        "or raise the limit.",
        retryable=True,
        raised_by={OverloadedError: None},
    ),
    ErrorKind(
        "in_progress",
        503,
        "Another request with the same idempotency key is in progress. Wait, then retry to get its answer.",
        retryable=True,
        raised_by={ask.InProgressError: None, AnsweredElsewhereError: "Idempotency-Key"},
    ),
    ErrorKind(
        "log_unavailable",
        503,
        "The log cannot be read or written. If the error remains, run `armwise doctor`.",
        retryable=True,
        raised_by=dict.fromkeys(LOG_UNUSABLE),
    ),
    ErrorKind(
        "replica_lost",
        503,
        "The replica that was answering ended or does not respond. What it committed is kept. "
        "Retry with the same idempotency key.",
        retryable=True,
    ),
    ErrorKind(
        "evaluation_under_way",
        503,
        "The evaluation for the promotion is not done. When it is, request the promotion again.",
        retryable=True,
        raised_by={UndecidedError: None},
    ),
    ErrorKind(
        "llm_timeout",
        504,
        "The language model took longer than `limits.llm_timeout_s`. Retry, or raise the limit.",
        retryable=True,
        ends=Status.LLM_TIMEOUT,
    ),
)

ERRORS: Mapping[str, ErrorKind] = {kind.code: kind for kind in _KINDS}
"""Every error that a client can get, by its code."""

_CODE_OF_EXCEPTION = {
    raised: (kind.code, param) for kind in _KINDS for raised, param in kind.raised_by.items()
}
_CODE_OF_ENDING = {kind.ends: kind.code for kind in _KINDS if kind.ends is not None}
_CODE_OF_STATUS = {kind.status: kind.code for kind in _KINDS if kind.framework}

HANDLED = (
    *(TurnError, ask.UnansweredError, RequestValidationError, HTTPException),
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
        case ask.UnansweredError(__cause__=Exception() as cause):
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
    if isinstance(error, ask.AskError):
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
