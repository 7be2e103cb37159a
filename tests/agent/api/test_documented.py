"""The OpenAPI document has what generators of clients, and readers, need of every operation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from armwise.agent.api.documented import TAGS
from armwise.agent.api.middleware import METRICS, WITHOUT_KEY
from tests.agent.api.contract import published
from tests.agent.asking import look_up
from tests.agent.fakes import Service

ALWAYS = {"400", "403", "408", "413", "421", "431", "500", "503"}
WITH_KEY = {"401", "429"}
IDS = {"name": "bm25", "decision_id": "d-1", "number": 1, "version": 1, "public_id": "k", "store": "stdlib"}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the path, the method and the description of each operation."""
    for path, methods in published()["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def fits(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft202012Validator(schema | {"components": published()["components"]})


@pytest.mark.parametrize(
    ("path", "method", "operation"), list(operations()), ids=lambda one: one if isinstance(one, str) else ""
)
def test_an_operation_is_described_by_documented(path: str, method: str, operation: dict[str, Any]) -> None:
    name = operation["operationId"]
    assert name.isalpha(), f"{method} {path}: **documented(...) in its decorator gives it a name"
    assert sum(name == other["operationId"] for *_, other in operations()) == 1
    assert len(operation["tags"]) == 1, "its router has one of TAGS"
    assert operation["tags"][0] in TAGS
    assert 8 < len(operation["summary"]) <= 110, "the first clause of its docstring"
    closed = path not in WITHOUT_KEY
    assert ("security" in operation) == closed
    for parameter in operation.get("parameters", []):
        assert parameter["description"]

    responses = operation["responses"]
    succeeded = {status for status in responses if status < "300"}
    failures = responses.keys() - succeeded
    assert failures >= ALWAYS | (WITH_KEY if closed else set())
    assert "default" not in failures, "each status is named"
    assert ("422" in failures) == ("llm_failed" in str(responses)), "it is never answered but for a provider"
    assert closed or path == METRICS or not failures & WITH_KEY, "a key is read there, and none is needed"
    for status in failures:
        assert "$ref" in responses[status]["content"]["application/json"]["schema"]
        assert responses[status]["description"].startswith(("- `", "- The provider")), "it names its codes"
    assert succeeded
    for done in succeeded:
        for media in responses[done]["content"].values():
            assert media["schema"], "the reply has a model"
        for link in responses[done].get("links", {}).values():
            target = next(one for *_, one in operations() if one["operationId"] == link["operationId"])
            assert link["parameters"].keys() <= {parameter["name"] for parameter in target["parameters"]}
    for media in operation.get("requestBody", {}).get("content", {}).values():
        fits(media["schema"]).validate(media["example"])


EXTERNAL: dict[str, Any] = {"arms": {"small": {"kind": "external"}, "large": {"kind": "external"}}}


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.slow
async def test_every_example_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool
) -> None:
    """That of `POST /v1/decisions` by a service whose callers carry its arms out."""
    monkeypatch.setenv("ADMIN_KEY", "a-secret")
    changed: dict[str, Any] = {
        "keys": [{"env": "ADMIN_KEY", "scopes": ["admin"]}],
        "tap": {},
        **(EXTERNAL if external else {}),
    }
    async with Service(tmp_path, **changed).running() as service:
        service.client.headers["authorization"] = "Bearer a-secret"
        if not external:
            await look_up(service)
        for path, method, operation in operations():
            if (path == "/v1/decisions") is not external:
                continue
            for media in operation.get("requestBody", {}).get("content", {}).values():
                answer = await service.client.request(method, path.format(**IDS), json=media["example"])
                assert answer.is_success, (path, answer.text)


def test_the_document_has_a_key_for_the_authorize_button_and_servers() -> None:
    document = published()
    ((name, scheme),) = document["components"]["securitySchemes"].items()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert all(one.get("security", [{name: []}]) == [{name: []}] for *_, one in operations())
    assert document["servers"][0]["url"] == "/", "the service that the page came from"
    assert [tag["name"] for tag in document["tags"]] == list(TAGS)
