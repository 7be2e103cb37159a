"""The shape of errors that clients of Personalizer read."""

from collections.abc import Sequence
from typing import Any

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


def body(status: int, code: str, message: str, target: str | None, reasons: Sequence[str]) -> dict[str, Any]:
    """Return the envelope of an error; our own code is the inner one."""
    theirs = CODES.get(status, "InternalServerError")
    details = [{"code": theirs, "message": reason} for reason in reasons]
    error = {"code": theirs, "message": message, "target": target, "details": details}
    return {"error": {**error, "innerError": {"code": code}}}
