"""A client that `openapi-python-client` makes from the document reads replies of each group of operations."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from armwise.agent.api.documented import TAGS
from tests.agent.api.contract import published
from tests.agent.fakes import Service

NAME = "client_of_armwise"

CHAT = {"messages": [{"role": "user", "content": "which river?"}], "agent": {"return": ["passages"]}}
THUMB = {"decision_id": "d-1", "metric_name": "thumb", "value": 1}

CALLS: list[tuple[str, str, dict[str, Any], str]] = [
    ("answers.retrieve", "RetrieveRequest", {"query": "which river?", "k": 2}, "Retrieval"),
    ("answers.create_chat_completion", "ChatRequest", CHAT, "Completion"),
    ("answers.create_chat_completion", "ChatRequest", CHAT | {"model": "arm/bm52"}, "Envelope"),
    ("answers.create_response", "ResponsesRequest", {"input": "which river?"}, "ResponseObject"),
    ("decisions.decide", "DecisionRequest", {"question": "which page?"}, "Envelope"),
    ("decisions.list_decisions", "", {"limit": 2}, "DecisionList"),
    ("decisions.get_decision", "", {"decision_id": "d-1"}, "DecisionRecord"),
    ("decisions.get_decision", "", {"decision_id": "nope"}, "Envelope"),
    ("decisions.compare_decision", "", {"decision_id": "d-1"}, "DecisionNow"),
    ("decisions.verify_decision", "", {"decision_id": "d-1"}, "DecisionVerification"),
    ("feedback.send_feedback", "FeedbackItem", THUMB, "FeedbackReceipt"),
    ("feedback.send_feedback", "FeedbackBatch", {"items": [THUMB, {}]}, "FeedbackReceipts"),
    ("feedback.activate_decision", "", {"decision_id": "d-1"}, "FeedbackReceipt"),
    ("arms.list_arms", "", {}, "ArmList"),
    ("arms.switch_arm", "ArmSwitch", {"name": "bm25", "enabled": True}, "Arm"),
    ("arms.replace_arms", "ArmsReplacement", {"arms": ["none"]}, "ArmList"),
    ("policies.get_policy", "", {}, "Policy"),
    ("policies.list_policies", "", {"limit": 5}, "PolicyVersions"),
    ("policies.start_canary", "CanaryChoice", {"version": 1, "reason": "new", "share": 0.1}, "Policy"),
    ("policies.rollback_policy", "VersionChoice", {"version": 1, "reason": "worse"}, "Policy"),
    ("policies.promote_policy", "PromotionChoice", {"version": 9, "reason": "better"}, "Envelope"),
    ("evaluations.create_evaluation", "EvaluationRequest", {"candidates": ["uniform"]}, "EvaluationState"),
    ("evaluations.list_evaluations", "", {}, "EvaluationList"),
    ("evaluations.get_evaluation", "", {"number": 1}, "EvaluationResult"),
    ("evaluations.get_evaluation_report", "", {"number": 1}, "Envelope"),
    ("warm_starts.create_warm_start", "", {}, "Envelope"),
    ("warm_starts.list_warm_starts", "", {}, "WarmStartList"),
    ("log.export_log", "", {}, "NoneType"),
    ("keys.create_key", "NewKey", {"name": "app", "scopes": ["admin"], "rpm_limit": 6}, "NewKeyState"),
    ("keys.list_keys", "", {}, "KeyList"),
    ("keys.disable_key", "", {"public_id": "nope"}, "Envelope"),
    ("service.list_models", "", {}, "Models"),
    ("service.get_model", "", {"model": "auto"}, "Model"),
    ("service.health_decides", "", {}, "Deciding"),
    ("service.ready", "", {}, "Ready"),
    ("service.metrics", "", {}, "str"),
]
"""Operations, the model of the body, the arguments with its fields, and the type of the reply."""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The generated package."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "openapi.json").write_text(json.dumps(published()))
    config = folder / "config.yaml"
    config.write_text(f"package_name_override: {NAME}\npost_hooks: []\n")
    command = ["openapi-python-client", "generate", "--path", folder / "openapi.json", "--meta", "none"]
    made = subprocess.run(
        [
            Path(sys.executable).parent / command[0],
            *command[1:],
            "--config",
            config,
            "--output-path",
            folder / NAME,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    warnings = [line for line in made.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]
    assert warnings == ["WARNING parsing GET /v1/export within log."], made.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module(NAME)
        for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
            del sys.modules[name]


@pytest.mark.slow
async def test_a_generated_client_calls_each_group_of_operations(
    generated: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    assert {call.partition(".")[0] for call, *_ in CALLS} == {tag.replace(" ", "_") for tag in TAGS}
    monkeypatch.setenv("ADMIN_KEY", "a-secret")
    keys = [{"env": "ADMIN_KEY", "scopes": ["admin"]}]
    async with Service(tmp_path, keys=keys).running() as service:
        client = generated.AuthenticatedClient(base_url="http://service", token="a-secret")
        client.set_async_httpx_client(
            httpx.AsyncClient(
                transport=httpx.ASGITransport(service.app),
                base_url="http://service",
                headers={"Authorization": "Bearer a-secret"},
            )
        )
        models = importlib.import_module(f"{NAME}.models")
        asked = importlib.import_module(f"{NAME}.api.answers.retrieve").asyncio_detailed
        body = models.RetrieveRequest(query="which river?")
        await asked(client=client, body=body, idempotency_key="d-1")
        for name, model, given, reply in CALLS:
            with subtests.test(name):
                operation = importlib.import_module(f"{NAME}.api.{name}")
                arguments = {
                    key: given[key] for key in given.keys() & operation.asyncio_detailed.__annotations__
                }
                if model:
                    fields = {key: value for key, value in given.items() if key not in arguments}
                    arguments["body"] = getattr(models, model).from_dict(fields)
                answer = await operation.asyncio_detailed(client=client, **arguments)
                assert type(answer.parsed).__name__ == reply, answer.content
                assert (reply == "Envelope") == (answer.status_code >= 400)
                if hasattr(answer.parsed, "to_dict"):
                    assert answer.parsed.to_dict() == json.loads(answer.content)
