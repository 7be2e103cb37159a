"""Errors of a client.

ClientError               the service is out of reach, or refused the request
`-- AnswerFailedError     the service failed on this request only; the next may succeed
"""

import httpx
import orjson

HINTS = {
    "invalid_api_key": "pass `key`, or set ARMWISE_API_KEY",
    "forbidden": "use a key with that scope: `armwise key create` makes one",
    "unknown_arm": "`GET /v1/arms` lists the arms",
    "model_not_found": "`GET /v1/models` lists the models",
    "unknown_metric": "`reward.metrics` of the configuration declares metrics",
    "unknown_host": "add the name to `hosts` of the configuration",
    "insufficient_quota": "`armwise key list` shows what the key has used",
}
"""Advice by the code of the error."""


class ClientError(Exception):
    """The service cannot be reached or refused a request; the message says why and what to do.

    Attributes:
        status: The HTTP status, if there was a response.
        code: The error's code; empty if there is none.
        param: The field at fault, if a field is.
        decision_id: Id of the decision, if one was logged.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str = "",
        param: str | None = None,
        decision_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.decision_id = status, code, param, decision_id


class AnswerFailedError(ClientError):
    """The service failed to answer this request."""


def read_failure(response: httpx.Response) -> ClientError:
    """Return the error that a response stands for; the response was read."""
    request = response.request
    details = envelope(response.content)
    code = str(details.get("code") or "")
    foreign = response.text[:200] or response.reason_phrase  # of a proxy, or of another service
    message = f"{code}: {details.get('message')}" if details else foreign
    place = f"{request.method} {request.url.copy_with(userinfo=b'')}"
    hint = f"; {HINTS[code]}" if code in HINTS else ""
    failed = response.status_code == httpx.codes.REQUEST_TIMEOUT or response.is_server_error
    return (AnswerFailedError if failed else ClientError)(
        f"{place} gave {response.status_code}, {message}{hint}",
        status=response.status_code,
        code=code,
        param=details.get("param"),
        decision_id=details.get("decision_id"),
    )


def envelope(content: bytes | str) -> dict[str, str | None]:
    """Return the error in a body; empty if it has none."""
    try:
        error = orjson.loads(content)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}
