"""The comparison of OpenAPI documents and of error codes: what a client relies on is named when it goes."""

import copy
from typing import Any

import pytest

from tests.release.changes import Change, changed
from tests.release.openapi import breaks, broken_codes
from tests.release.snapshot import stored, versions

ITEM = "#/components/schemas/Item"
DOCUMENT: dict[str, Any] = {
    "paths": {
        "/items/{name}": {
            "get": {
                "operationId": "getItem",
                "x-scopes": ["read", "decide"],
                "parameters": [
                    {"in": "path", "name": "name", "required": True, "schema": {"type": "string"}},
                    {"in": "query", "name": "limit", "schema": {"type": "integer", "default": 10}},
                ],
                "responses": {
                    "200": {
                        "headers": {"x-request-id": {}},
                        "content": {
                            "application/json": {"schema": {"$ref": ITEM}},
                            "text/plain": {"schema": {"type": "string"}},
                        },
                    },
                    "404": {"content": {"application/json": {"schema": {"type": "object"}}}},
                },
            },
            "put": {
                "operationId": "putItem",
                "requestBody": {
                    "required": False,
                    "content": {"application/json": {"schema": {"$ref": ITEM}}},
                },
                "responses": {"200": {"content": {"application/json": {"schema": {"$ref": ITEM}}}}},
            },
        }
    },
    "components": {
        "schemas": {
            "Item": {
                "type": "object",
                "properties": {"id": {"type": "string"}, "size": {"enum": ["s", "m"]}},
                "required": ["id"],
            },
            "Choice": {
                "type": "object",
                "properties": {"pair": {"type": "array", "items": {"type": "string"}}},
            },
        }
    },
}
GET, PUT = "GET /items/{name}", "PUT /items/{name}"


def operation(made: dict[str, Any], method: str = "get") -> dict[str, Any]:
    found: dict[str, Any] = made["paths"]["/items/{name}"][method]
    return found


def parameter(made: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in operation(made)["parameters"] if one["name"] == name)
    return found


def schema(made: dict[str, Any], name: str = "Item") -> dict[str, Any]:
    found: dict[str, Any] = made["components"]["schemas"][name]
    return found


BREAKS: dict[str, tuple[Change, list[str]]] = {
    "route removed": (lambda made: made["paths"].clear(), [f"{GET}: is gone", f"{PUT}: is gone"]),
    "method removed": (lambda made: made["paths"]["/items/{name}"].pop("put"), [f"{PUT}: is gone"]),
    "renamed": (
        lambda made: operation(made).update(operationId="item"),
        [f"{GET}: operation is named item, and was getItem"],
    ),
    "scope removed": (
        lambda made: operation(made).update({"x-scopes": ["read"]}),
        [f"{GET}: key of scope decide no longer suffices"],
    ),
    "key required": (
        lambda made: operation(made, "put").update({"x-scopes": ["admin"]}),
        [f"{PUT}: key is required, and was not"],
    ),
    "parameter removed": (
        lambda made: operation(made)["parameters"].pop(),
        [f"{GET}: query parameter limit is gone"],
    ),
    "parameter required": (
        lambda made: parameter(made, "limit").update(required=True),
        [f"{GET}: query parameter limit is required, and was optional"],
    ),
    "new parameter required": (
        lambda made: operation(made)["parameters"].append(
            {"in": "header", "name": "x-for", "required": True, "schema": {}}
        ),
        [f"{GET}: header parameter x-for is new and required"],
    ),
    "parameter narrowed": (
        lambda made: parameter(made, "limit")["schema"].update(maximum=5),
        [f'{GET}: query parameter limit has the `maximum` 5, and had "none"'],
    ),
    "default of a parameter": (
        lambda made: parameter(made, "limit")["schema"].update(default=20),
        [f"{GET}: query parameter limit has the default 20, and had 10"],
    ),
    "body required": (
        lambda made: operation(made, "put")["requestBody"].update(required=True),
        [f"{PUT}: request is required, and was not"],
    ),
    "body of a get": (
        lambda made: operation(made).update(requestBody={"required": True, "content": {}}),
        [f"{GET}: request is required, and was not"],
    ),
    "body removed": (
        lambda made: operation(made, "put").pop("requestBody"),
        [f"{PUT}: request as application/json is gone"],
    ),
    "status removed": (
        lambda made: operation(made)["responses"].pop("404"),
        [f"{GET}: status 404 is gone"],
    ),
    "header removed": (
        lambda made: operation(made)["responses"]["200"]["headers"].clear(),
        [f"{GET}: status 200 header `x-request-id` is gone"],
    ),
    "type of a reply removed": (
        lambda made: operation(made)["responses"]["200"]["content"].pop("text/plain"),
        [f"{GET}: status 200 as text/plain is gone"],
    ),
    "reply of another type": (
        lambda made: operation(made)["responses"]["200"]["content"]["text/plain"].update(
            schema={"type": "null"}
        ),
        [f"{GET}: status 200 may now be null"],
    ),
    "field required, and in replies always there": (
        lambda made: schema(made)["required"].append("size"),
        [f"{PUT}: request field `size` is required, and was optional"],
    ),
    "field optional": (
        lambda made: schema(made)["required"].clear(),
        [f"{GET}: status 200 field `id` may be missing, and was always there (and in 1 other place)"],
    ),
    "value removed, which replies no longer have": (
        lambda made: schema(made)["properties"]["size"]["enum"].remove("s"),
        [f'{PUT}: request field `size` no longer accepts "s"'],
    ),
    "value added, which requests may have": (
        lambda made: schema(made)["properties"]["size"]["enum"].append("l"),
        [f'{GET}: status 200 field `size` may now be "l" (and in 1 other place)'],
    ),
    "field removed": (
        lambda made: schema(made)["properties"].pop("size"),
        [f"{GET}: status 200 field `size` is gone (and in 2 other places)"],
    ),
    "schema of any value": (
        lambda made: schema(made, "Choice")["properties"].pop("pair"),
        ["schema Choice: field `pair` is gone"],
    ),
    "schema of any value removed": (
        lambda made: made["components"]["schemas"].pop("Choice"),
        ["schema Choice: is gone"],
    ),
}

ADDITIONS: dict[str, Change] = {
    "route": lambda made: made["paths"].update({"/new": {"get": {"responses": {}}}}),
    "method": lambda made: made["paths"]["/items/{name}"].update(
        delete={"requestBody": {"required": True, "content": {}}, "responses": {}}
    ),
    "scope": lambda made: operation(made)["x-scopes"].append("operate"),
    "no key any more": lambda made: operation(made).pop("x-scopes"),
    "optional parameter": lambda made: operation(made)["parameters"].append(
        {"in": "query", "name": "before", "schema": {"type": "string"}}
    ),
    "parameter optional": lambda made: parameter(made, "name").pop("required"),
    "optional body": lambda made: operation(made).update(requestBody={"content": {}}),
    "type of a request": lambda made: operation(made, "put")["requestBody"]["content"].update(
        {"text/csv": {}}
    ),
    "status": lambda made: operation(made)["responses"].update({"429": {}}),
    "header": lambda made: operation(made)["responses"]["404"].update(headers={"retry-after": {}}),
    "type of a reply": lambda made: operation(made)["responses"]["200"]["content"].update({"text/csv": {}}),
    "field of requests and replies": lambda made: schema(made)["properties"].update(n={"type": "integer"}),
    "schema": lambda made: made["components"]["schemas"].update(New={"type": "null"}),
    "description": lambda made: operation(made).update(summary="Return an item", tags=["items"]),
}


@pytest.mark.parametrize("case", BREAKS)
def test_what_breaks_a_client_is_named(case: str) -> None:
    change, expected = BREAKS[case]
    assert breaks(DOCUMENT, changed(DOCUMENT, change)) == expected


@pytest.mark.parametrize("case", ADDITIONS)
def test_what_is_added_for_clients_passes(case: str) -> None:
    assert breaks(DOCUMENT, changed(DOCUMENT, ADDITIONS[case])) == []


CODES = {"not_ready": {"status": 503, "retryable": True}, "unknown_arm": {"status": 404, "retryable": False}}


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({**CODES, "another": {"status": 400, "retryable": False}}, []),
        ({"not_ready": CODES["not_ready"]}, ["error unknown_arm: is gone"]),
        (
            {**CODES, "unknown_arm": {"status": 400, "retryable": False}},
            ["error unknown_arm: has the status 400, and had 404"],
        ),
        (
            {**CODES, "not_ready": {"status": 503, "retryable": False}},
            ["error not_ready: has the retryable False, and had True"],
        ),
    ],
)
def test_a_code_keeps_its_status_and_whether_a_retry_helps(new: dict[str, Any], expected: list[str]) -> None:
    assert broken_codes(CODES, new) == expected


# -- the document of the release, with one change ----------------------------------------------------

RELEASED: dict[str, tuple[Change, str]] = {
    "route": (
        lambda made: made["paths"].pop("/v1/feedback"),
        "POST /v1/feedback: is gone",
    ),
    "field of a request": (
        lambda made: made["components"]["schemas"]["RetrieveRequest"]["properties"].pop("query"),
        "POST /v1/retrieve: request field `query` is gone",
    ),
    "field of every error": (
        lambda made: made["components"]["schemas"]["Envelope"]["properties"].pop("error"),
        "status 400 field `error` is gone (and in",
    ),
}


@pytest.mark.parametrize("case", RELEASED)
@pytest.mark.slow
def test_a_break_of_the_released_document_is_one_sentence(case: str) -> None:
    change, expected = RELEASED[case]
    old = stored(versions()[0])["openapi"]
    new = copy.deepcopy(old)
    change(new)
    (found,) = breaks(old, new)
    assert expected in found
    assert breaks(old, copy.deepcopy(old)) == []
