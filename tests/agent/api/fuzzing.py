"""Requests that Schemathesis makes from the OpenAPI document, and what is wrong with their answers."""

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema
from schemathesis.python import asgi

from tests.agent.api.contract import published
from tests.agent.fakes import CONFIG, Service

KEY = "a-secret"
START_S = 30.0

SETTINGS: dict[str, Any] = {
    "auth": {"openapi": {"key": {"bearer": KEY}}},
    "suppress-health-check": ["all"],
    "checks": {
        # a body that fits its schema may name an arm, a metric or a version that does not exist, or a group
        # that is not the key's
        "positive_data_acceptance": {
            "expected-statuses": ["2xx", "400", "403", "404", "408", "409", "413", "429"]
        },
        # what is too large is refused before it is read
        "negative_data_rejection": {"expected-statuses": ["400", "401", "403", "404", "405", "413"]},
    },
}


@dataclass
class Found:
    """What a run has found.

    Attributes:
        answers: Requests by operation and status.
        phases: Requests by phase.
        failures: How often each failure was seen.
        errors: What kept an operation from being looked at.
    """

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        by_status = Counter[int]()
        for (_, status), count in sorted(self.answers.items()):
            by_status[status] += count
        return (
            f"{sum(by_status.values()):,} requests; by status {dict(by_status)}, by phase {dict(self.phases)}"
        )

    def add(self, event: events.ScenarioFinished) -> None:
        """Count the requests of a scenario, and note the failures."""
        for case_id, interaction in event.recorder.interactions.items():
            if interaction.response is not None:
                label = event.recorder.cases[case_id].value.operation.label
                self.answers[label, interaction.response.status_code] += 1
                self.phases[event.phase.value] += 1
        for case_id, checks in event.recorder.checks.items():
            label = event.recorder.cases[case_id].value.operation.label
            for check in checks:
                if check.failure_info is not None:
                    failure, sample = check.failure_info.failure, check.failure_info.code_sample
                    self.failures[f"{label}: {check.name}: {failure.title}: {failure.message}\n{sample}"] += 1


def started(folder: Path) -> Service:
    """Return a service with a key, a version, a decision and an evaluation.

    Its document allows no field that is not declared.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADMIN_KEY", KEY)
        limits = CONFIG["limits"] | {"body_bytes": 2**20}
        changed: dict[str, Any] = {
            "keys": [{"env": "ADMIN_KEY", "scopes": ["admin"]}],
            "tap": {},
        }
        service = Service(folder, limits=limits, **changed)
    service.learner.step()
    service.app.openapi_schema = published()
    deadline = time.monotonic() + START_S
    with asgi.get_client(service.app) as client:
        while client.get("http://testserver/ready").status_code != 200:
            assert time.monotonic() < deadline
        # what the examples of the document name
        client.headers.update({"authorization": f"Bearer {KEY}", "idempotency-key": "q-1"})
        assert client.post("http://testserver/v1/retrieve", json={"query": "?"}).status_code == 200
        assert client.post("http://testserver/v1/evaluations", json={}).status_code == 202
    return service


def fuzz(service: Service, *, phases: tuple[str, ...], examples: int, **settings: Any) -> Found:
    """Send requests in process, with every check of Schemathesis.

    Args:
        service: Answers them.
        phases: Which requests: examples, coverage (of each constraint), fuzzing, stateful (along links).
        examples: Most requests of an operation in a phase of random ones.
        settings: More of the configuration of Schemathesis, such as `seed`.
    """
    names = ("examples", "coverage", "fuzzing", "stateful")
    document = SETTINGS | {
        "generation": {"max-examples": examples, "with-security-parameters": False, "database": "none"},
        "phases": {name: {"enabled": name in phases} for name in names},
        **{name.replace("_", "-"): value for name, value in settings.items()},
    }
    config = SchemathesisConfig.from_dict(document)
    schema = schemathesis.openapi.from_asgi("/openapi.json", service.app, config=config)
    found = Found()
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            found.add(event)
        elif isinstance(event, events.NonFatalError):
            found.errors.append(f"{event.label}: {event.value!r}")
        elif isinstance(event, events.FatalError):
            found.errors.append(repr(event.exception))
    return found
