"""The application against its own OpenAPI document, with requests that fit it and that do not."""

import json
import time
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.python import asgi
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from agent.api.operations.export import MEDIA_TYPES
from tests.agent.fakes import Service

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]
START_S = 30.0
KEY = "a-secret"

bounded = settings(
    max_examples=40,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture  # of one test: Schemathesis ends the lifespan of the application with it
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that has started and has a version to serve."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADMIN_KEY", KEY)
        keys = [{"env": "ADMIN_KEY", "scopes": ["admin"]}]
        service = Service(tmp_path_factory.mktemp("openapi"), keys=keys)
    service.learner.step()
    deadline = time.monotonic() + START_S
    with asgi.get_client(service.app) as client:
        while client.get("http://testserver/ready").status_code != 200:
            assert time.monotonic() < deadline
    yield service
    asgi.shutdown_lifespans()


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_request_is_answered_as_documented_and_never_with_a_5xx(
    service: Service, subtests: pytest.Subtests, mode: GenerationMode
) -> None:
    document = schemathesis.openapi.from_asgi("/openapi.json", service.app)
    for operation in (found.ok() for found in document.get_all_operations()):
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # a text in a path cannot be of a wrong type

        @bounded
        @given(case=operation.as_strategy(generation_mode=mode))
        def is_answered(case: Case) -> None:
            response = case.call_and_validate(checks=CHECKS, headers={"authorization": f"Bearer {KEY}"})
            assert response.status_code < 500
            kind = response.headers["content-type"][0]
            if kind.startswith("application/json"):
                json.loads(response.content)
            else:
                texts = ("text/event-stream", "text/html", "text/plain")
                assert kind.startswith((*texts, *MEDIA_TYPES.values()))

        with subtests.test(operation.label):
            is_answered()
