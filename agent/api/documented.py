"""The OpenAPI document: what an operation needs, answers and refuses, said once beside its route.

`document_route` gives a route its key's scope, its identifier, its reply and its errors.
"""

from collections.abc import Mapping
from http import HTTPStatus
from itertools import groupby
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from armwise.agent.api.errors import ERRORS, PASSED_ON, ErrorKind
from armwise.agent.api.middleware import require
from armwise.agent.config import Scope
from armwise.agent.replies import Envelope
from armwise.number import with_bounds

TAGS = {
    "answers": "Ask: the policy chooses an arm, which retrieves; a language model writes the answer.",
    "decisions": "What was decided, and whether it can be recomputed.",
    "feedback": "Values of metrics, which the policy learns from.",
    "arms": "The arms that are live.",
    "policies": "What decides now, its versions, promotion, rollback and canary.",
    "evaluations": "What other policies would have earned, from the log.",
    "warm starts": "Runs that turn labels into a candidate.",
    "log": "The training log in the formats of other systems, and the erasure of texts.",
    "keys": "Keys of callers, their limits and what they have used.",
    "service": "Health, metrics and the names of models.",
}
"""The groups of operations. A router names one in `tags`."""

SERVERS = [
    {"url": "/", "description": "The service that this document is from."},
    {"url": "http://127.0.0.1:8000", "description": "`armwise serve` on this machine."},
]

KEY = "key"
"""The security scheme."""

ENVELOPE = {"application/json": {"schema": {"$ref": "#/components/schemas/Envelope"}}}

TURN = (
    *("no_eligible_arm", "unknown_arm", "model_not_found", "idempotency_conflict", "in_progress"),
    *("deadline_exceeded", "arm_failed", "insufficient_quota"),
)
"""Errors of a turn."""

ANSWER = (
    *(*TURN, "llm_failed", "llm_timeout", "model_busy"),
    *("context_length_exceeded", "unsupported_parameter"),
)
"""Errors of a turn that the language model answers."""

_ANY = (
    *("invalid_request", "invalid_value", "request_timeout", "payload_too_large", "unsupported_encoding"),
    *("unknown_host", "upgrade_required", "forbidden"),  # a page of another site
)
_PROXY = ("header_too_large", "internal_error", "not_ready", "overloaded", "log_unavailable", "replica_lost")
_WITH_KEY = ("invalid_api_key", "rate_limit_exceeded")


def document_route(
    operation_id: str,
    reply: Any,
    *codes: str,
    scopes: tuple[Scope, ...] = (),
    status: int = 200,
    success: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    failure: type[BaseModel] | None = None,
) -> dict[str, Any]:
    """Return the arguments of a route's decorator that document it, and that require a key.

    Args:
        operation_id: Stable name, by which generated clients call it.
        reply: The model of its JSON reply; None where it is not JSON, or empty.
        *codes: The errors that it can answer with, besides those of every operation.
        scopes: Scopes, one of which a key needs; none for an operation without a key.
        status: The status of its reply.
        success: More of the reply's description: `content` of other types, `headers`, `links`.
        example: A body that it accepts.
        failure: The model of its errors; None for the envelope, and else that of another protocol.
    """
    common = (*_ANY, *_PROXY, *(_WITH_KEY if scopes else ()))
    extra: dict[str, Any] = {}
    if scopes:
        extra |= {"security": [{KEY: []}], "x-scopes": list(scopes)}
    if example is not None:
        extra["requestBody"] = {"content": {"application/json": {"example": example}}}
    done = _describe_status(status) | dict(success or {})
    if reply is not None:
        done["model"] = reply
    return {
        "operation_id": operation_id,
        "status_code": status,
        "response_model": None,
        "responses": {
            status: done,
            **_failures({*common, *codes}, failure, PASSED_ON if "llm_failed" in codes else ()),
        },
        "dependencies": [require(*scopes)] if scopes else [],
        "openapi_extra": extra,
    }


def _describe_status(status: int) -> dict[str, Any]:
    return {"description": HTTPStatus(status).phrase}


def _failures(
    codes: set[str], model: type[BaseModel] | None, refused: tuple[int, ...]
) -> dict[int, dict[str, Any]]:
    """Return the responses of some errors by status; each names its codes.

    Args:
        codes: The codes of the errors.
        model: The model of the body; None for the envelope.
        refused: Statuses that the provider of a language model may answer with.
    """

    def status(kind: ErrorKind) -> int:
        return kind.status

    kinds = sorted((ERRORS[code] for code in codes), key=lambda kind: (kind.status, kind.code))
    texts = {number: [f"- `{kind.code}`" for kind in same] for number, same in groupby(kinds, status)}
    for number in refused:
        texts.setdefault(number, []).append(
            "- The provider of the language model refused the request; its code and message are passed on."
        )
    failures: dict[int, dict[str, Any]] = {}
    for number, lines in sorted(texts.items()):
        text = "\n".join(lines)
        failures[number] = {"description": text, **({"model": model} if model else {"content": ENVELOPE})}
        if number in (429, 503):
            wait = {"description": "Seconds after which a retry may succeed.", "schema": {"type": "integer"}}
            failures[number]["headers"] = {"Retry-After": wait}
    return failures


def link(operation_id: str, **parameters: str) -> dict[str, Any]:
    """Return a link to an operation whose parameters are in a reply, such as `$response.body#/id`."""
    return {"links": {operation_id: {"operationId": operation_id, "parameters": parameters}}}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an application, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            summary="A contextual bandit chooses a retriever for each question, and learns from feedback.",
            routes=app.routes,
            tags=[{"name": name, "description": text} for name, text in TAGS.items()],
            servers=SERVERS,
            license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        )
        _complete(made)
        app.openapi_schema = made | {"components": with_bounds(made["components"])}
    return app.openapi_schema


def _complete(made: dict[str, Any]) -> None:
    """Add the envelope, the security scheme, summaries and scopes; the 422 of FastAPI is never answered."""
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    _, shared = models_json_schema([(Envelope, "serialization")], ref_template="#/components/schemas/{model}")
    schemas |= shared["$defs"]
    schemas["Failure"]["properties"]["code"]["examples"] = sorted(ERRORS)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    scheme = {"type": "http", "scheme": "bearer", "description": "A key: `sk-aw-...`, or a configured one."}
    components["securitySchemes"] = {KEY: scheme}
    for path in made["paths"].values():
        for operation in path.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
            text = operation.get("description", "")
            operation["summary"] = text.split("\n")[0].partition(". ")[0].partition(":")[0].rstrip(".")
            if scopes := operation.get("x-scopes"):
                needed = " or ".join(f"`{scope}`" for scope in scopes)
                operation["description"] = f"{text}\n\nScope: {needed}."
