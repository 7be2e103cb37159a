"""What the service answers, compared with its OpenAPI document: no field more, none less, no other status."""

import re
from functools import cache
from typing import Any

import httpx
import jsonschema_rs
from fastapi import FastAPI

from armwise.agent.api.documented import document
from armwise.agent.api.routes import list_routes


@cache
def published() -> dict[str, Any]:
    """Return the document, in which an object has the fields that are declared, and no others."""
    made = document(FastAPI(routes=list_routes()))
    schemas = {
        name: schema if "properties" not in schema else {"additionalProperties": False} | schema
        for name, schema in made["components"]["schemas"].items()
    }
    return made | {"components": made["components"] | {"schemas": schemas}}


@cache
def _validator(path: str, method: str, status: str) -> jsonschema_rs.Validator | None:
    """Return what a JSON reply must fit; None where the operation has none."""
    operation = published()["paths"][path][method]
    assert status in operation["responses"], f"{operation['operationId']} answered {status}: document it"
    content = operation["responses"][status].get("content", {})
    if "application/json" not in content:
        return None
    return jsonschema_rs.Draft202012Validator(
        content["application/json"]["schema"] | {"components": published()["components"]}
    )


def check(response: httpx.Response) -> None:
    """Compare a response with the document; what is not in it, such as an unknown path, may be anything."""
    path, method, paths = response.request.url.path, response.request.method.lower(), published()["paths"]
    if path not in paths:
        path = next((one for one in paths if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", one), path)), "")
    if method not in paths.get(path, ()):
        return
    validator = _validator(path, method, str(response.status_code))
    if response.headers.get("content-type", "").startswith("application/json"):
        assert validator is not None, f"{method} {path} answered JSON: document it"
        validator.validate(response.json())
