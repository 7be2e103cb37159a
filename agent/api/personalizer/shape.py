"""The shape of errors that clients of Personalizer read."""

from collections.abc import Sequence
from typing import Any, Protocol

BASE = "/personalizer/"
"""What the paths of the protocol begin with."""

CODES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "ResourceNotFound",
    409: "Conflict",
    413: "PayloadTooLarge",
    429: "TooManyRequests",
}
"""By status; InternalServerError for the others."""


class Failure(Protocol):
    """What an error of the service says; see `agent.api.errors.ApiError`."""

    code: str
    message: str
    param: str | None
    reasons: Sequence[str] | None

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...


def body(failure: Failure) -> dict[str, Any]:
    """Return the envelope of an error; our own code is the inner one."""
    code = CODES.get(failure.status, "InternalServerError")
    details = [{"code": code, "message": reason} for reason in failure.reasons or ()]
    error = {"code": code, "message": failure.message, "target": failure.param, "details": details}
    return {"error": {**error, "innerError": {"code": failure.code}}}
