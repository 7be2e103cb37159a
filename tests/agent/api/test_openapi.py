"""The application against its own OpenAPI document, with requests that fit it and that do not."""

import logging
import os
from collections.abc import Iterator

import pytest
from schemathesis.python import asgi

from tests.agent.api.contract import published
from tests.agent.api.fuzzing import Found, fuzz, started
from tests.agent.fakes import Service

logger = logging.getLogger(__name__)

SECONDS = int(os.environ.get("FUZZ_S", "60"))

UNANSWERED = {
    "POST /v1/decisions",
    "POST /v1/warm-starts",
    "GET /v1/warm-starts/{number}",
    "GET /v1/evaluations/{number}/report",
}
"""Operations that this service refuses always: its arms answer here, it has no labels, nothing evaluates."""


@pytest.fixture  # of one test: Schemathesis ends the lifespan of the application with it
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that has started and has a version to serve."""
    yield started(tmp_path_factory.mktemp("openapi"))
    asgi.shutdown_lifespans()


EVERY = {f"{method.upper()} {path}" for path, one in published()["paths"].items() for method in one}


def require_as_documented(found: Found) -> None:
    """Check a run: nothing failed, and nothing was left out."""
    logger.info("%s", found)
    assert found.errors == []
    assert not found.failures, "\n\n".join(found.failures)
    assert not any(status >= 500 for _, status in found.answers)
    assert {label for label, _ in found.answers} == EVERY


@pytest.mark.slow
def test_every_request_is_answered_as_documented_and_never_with_a_5xx(service: Service) -> None:
    found = fuzz(service, phases=("examples", "fuzzing", "stateful"), examples=8, seed=1)
    require_as_documented(found)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 90)
def test_many_requests_are_answered_as_documented_and_never_with_a_5xx(service: Service) -> None:
    phases = ("examples", "coverage", "fuzzing", "stateful")
    found = fuzz(service, phases=phases, examples=200, max_time=SECONDS, continue_on_failure=True)
    require_as_documented(found)
    assert {label for label, status in found.answers if status < 300} == EVERY - UNANSWERED
