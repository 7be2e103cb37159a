"""The code of docs/guide/litellm.md with LiteLLM's proxy: what it draws, logs and reports."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.openai.conftest import BIN, ROOT, free_port, started
from tests.pages import blocks_of

PAGE, MODELS = "docs/guide/litellm.md", "docs/tutorials/several-models.md"

KEY = "sk-litellm-0123456789abcdef"

LITELLM = {"PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

SPY = """
import json

from litellm.integrations.custom_logger import CustomLogger


class Spy(CustomLogger):
    def write(self, kwargs):
        logged = kwargs["standard_logging_object"]
        fields = {name: logged[name] for name in ("status", "model_group", "response_cost")}
        with open("payloads.jsonl", "a") as file:
            fields["armwise"] = (logged["metadata"]["spend_logs_metadata"] or {}).get("armwise")
            file.write(json.dumps(fields) + "\\n")

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        self.write(kwargs)

    async def async_log_failure_event(self, kwargs, response_obj, start_time, end_time):
        self.write(kwargs)


spy = Spy()
"""

MORE_MODELS = """
  - model_name: chat
    litellm_params: {model: openai/broken, api_base: "http://127.0.0.1:1/v1", api_key: none}
    model_info: {arm: broken}
"""

CHANGES = {
    # longer than on the page: the machine of a test may be busy
    "bound_s=0.1": "bound_s=30",
    "      tap:": "        broken: {kind: external}\n      tap:",
    "{kind: adaptive}": "{kind: uniform}",
    "routing.armwise": "[routing.armwise, routing.spy]",
    "num_retries: 1": "num_retries: 2, retry_after: 0, allowed_fails: 1000",
    "\nlitellm_settings": f"{MORE_MODELS}litellm_settings",
}
"""What the test changes in the files of the page."""


@dataclass(frozen=True)
class Running:
    """LiteLLM's proxy, the service that decides for it, and the folder in which they run."""

    proxy: httpx.Client
    service: httpx.Client
    folder: Path

    def ask(self, question: str, model: str = "chat", **more: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": question}], **more}
        return self.proxy.post("/v1/chat/completions", json=body).raise_for_status()

    def record(self, decision_id: str, status: str = "ok") -> dict[str, Any]:
        """Return a decision once its end was reported."""
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            record: dict[str, Any] = (
                self.service.get(f"/v1/decisions/{decision_id}").raise_for_status().json()
            )
            if record["status"] == status:
                return record
            time.sleep(0.1)
        raise AssertionError(f"{decision_id} is not {status}: {record}")

    def payloads(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "payloads.jsonl").read_text().splitlines()]


def replace_ports(text: str, ports: Mapping[str, str]) -> str:
    """Replace the ports that a page shows, in one pass: a free port may contain a shown one."""
    return re.sub("|".join(ports), lambda shown: ports[shown[0]], text)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The files of the page at other ports, with a model that fails."""
    folder = tmp_path_factory.mktemp("litellm") / "proxy"
    folder.mkdir()
    ports = {"8100": str(free_port()), "8102": str(free_port()), "8103": str(free_port())}
    texts = {block.title: block.text for page in (PAGE, MODELS) for block in blocks_of(page)}
    texts["routing.py"] += SPY
    for name in ("service.yaml", "routing.py", "litellm.yaml", "models.py"):
        text = texts[name]
        for shown, changed in CHANGES.items():
            text = text.replace(shown, changed)
        (folder / name).write_text(replace_ports(text, ports))
    models = subprocess.Popen([sys.executable, "models.py"], cwd=folder, stderr=subprocess.DEVNULL)
    url, proxy = f"http://127.0.0.1:{ports['8100']}", f"http://127.0.0.1:{ports['8103']}"
    serve = [str(BIN / "armwise"), "serve", "--cold", "-c", str(folder / "service.yaml")]
    command = [
        *(str(Path(sys.executable).parent / "litellm"), "--config", "litellm.yaml"),
        *("--host", "127.0.0.1", "--port", ports["8103"]),
    ]
    (folder / "logs").mkdir()
    headers = {"authorization": f"Bearer {KEY}"}
    try:
        with (
            started(serve, f"{url}/ready", folder / "logs", cwd=folder),
            started(command, f"{proxy}/health/readiness", folder, cwd=folder, **LITELLM),
            httpx.Client(base_url=proxy, headers=headers, timeout=60) as client,
            httpx.Client(base_url=url, timeout=60) as service,
        ):
            yield Running(client, service, folder)
    finally:
        models.kill()
        models.wait()


def test_a_call_goes_to_the_model_that_was_drawn_and_says_which_decision_it_was(running: Running) -> None:
    reply = running.ask("Multiply 12 by 7.")
    record = running.record(reply.headers["x-decision-id"])
    answer = reply.json()["choices"][0]["message"]["content"]
    assert answer == {"small": "74", "large": "84"}[reply.headers["x-arm"]]
    assert record["question"] == "Multiply 12 by 7."
    assert record["arm_drawn"] == record["arm_served"] == reply.headers["x-arm"]
    assert float(reply.headers["x-propensity"]) == pytest.approx(record["propensity"], 1e-5)
    assert 0.0 < record["propensity"] < 1.0
    assert reply.headers["x-policy-version"] == str(record["policy_version"])


def test_what_a_call_cost_and_took_is_the_cost_of_its_decision(running: Running) -> None:
    reply = running.ask("Add 1 and 2.")
    cost = running.record(reply.headers["x-decision-id"])["cost"]
    assert cost["usd"] == pytest.approx(float(reply.headers["x-litellm-response-cost"]))
    assert cost["usd"] > 0.0
    assert cost["tokens"] == reply.json()["usage"]["total_tokens"]
    assert cost["llm_ms"] > 0.0


def test_the_log_of_litellm_has_the_decision_its_arm_and_its_propensity(running: Running) -> None:
    reply = running.ask("Add 3 and 4.")
    record = running.record(reply.headers["x-decision-id"])
    (logged,) = [
        one
        for one in running.payloads()
        if (one["armwise"] or {}).get("decision_id") == record["decision_id"]
    ]
    assert logged["status"] == "success"
    assert logged["armwise"] == {
        "decision_id": record["decision_id"],
        "arm": record["arm_drawn"],
        "propensity": record["propensity"],
        "policy_version": record["policy_version"],
    }


def test_a_stream_is_decided_and_reported_as_well(running: Running) -> None:
    reply = running.ask("Add 5 and 6.", stream=True)
    assert "11" in reply.text
    record = running.record(reply.headers["x-decision-id"])
    assert record["arm_drawn"] == reply.headers["x-arm"]
    assert record["cost"]["tokens"] > 0


def test_a_model_that_fails_is_reported_and_the_retry_draws_among_the_others(running: Running) -> None:
    for n in range(60):
        reply = running.ask(f"Add {n} and 1.")
        assert reply.json()["choices"][0]["message"]["content"] == str(n + 1)
        if reply.headers["x-litellm-attempted-retries"] != "0":
            break
    else:
        raise AssertionError("the model that fails was never drawn")
    retry = running.record(reply.headers["x-decision-id"])
    assert retry["masked"] == {"broken": "not_allowed"}
    logged = [one["armwise"] for one in running.payloads() if one["armwise"] and one["status"] == "failure"]
    first = running.record(logged[-1]["decision_id"], "arm_failed")
    assert first["arm_drawn"] == "broken"
    assert first["question"] == retry["question"]


def test_a_user_rates_an_answer_at_the_address_of_litellm(running: Running) -> None:
    reply = running.ask("Multiply 3 by 4.")
    right = reply.json()["choices"][0]["message"]["content"] == "12"
    item = {"decision_id": reply.headers["x-decision-id"], "metric_name": "right", "value": right}
    assert running.proxy.post("/armwise/feedback", json=item).raise_for_status().json()["status"] == "stored"
    assert running.record(item["decision_id"])["metrics"] == {"right": float(right)}
    address = running.proxy.base_url.join("/armwise/feedback")
    assert httpx.post(address, json=item, headers={"authorization": "Bearer sk-another"}).is_error


def test_features_and_the_session_of_a_call_are_those_of_its_decision(running: Running) -> None:
    metadata = {"armwise": {"features": {"tier": "free"}}, "session_id": "talk-1"}
    reply = running.ask("Add 7 and 8.", metadata=metadata)
    record = running.record(reply.headers["x-decision-id"])
    assert record["episode_id"] == "talk-1"
    assert any("tier" in name for name in record["features"])


def test_a_client_cannot_write_decisions_into_the_metadata_of_a_call(running: Running) -> None:
    forged = {"x": {"id": "forged", "arm": "small"}}
    reply = running.ask("Add 9 and 9.", metadata={"armwise_routing": forged, "armwise": {"id": "forged"}})
    assert running.record(reply.headers["x-decision-id"])["arm_drawn"] == reply.headers["x-arm"]
    assert running.service.get("/v1/decisions/forged").status_code == 404


def test_messages_of_anthropics_protocol_are_decided_as_well(running: Running) -> None:
    body = {"model": "chat", "max_tokens": 9, "messages": [{"role": "user", "content": "Add 2 and 2."}]}
    before = running.service.get("/v1/decisions").json()["decisions"]
    running.proxy.post("/v1/messages", json=body)
    after = running.service.get("/v1/decisions").json()["decisions"]
    assert len(after) > len(before)
    assert after[0]["question"] == "Add 2 and 2."


def test_the_log_passes_the_audit(running: Running) -> None:
    for n in range(40):
        running.ask(f"Add {n} and 2.")
    command = [str(BIN / "armwise"), "audit", "-c", str(running.folder / "service.yaml")]
    done = subprocess.run(command, cwd=running.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "No fault was found" in done.stdout


def test_the_commands_of_the_page_work_as_they_stand(tmp_path: Path) -> None:
    folder, used = tmp_path / "a" / "page", {name: str(free_port()) for name in ("8100", "8102", "8103")}
    folder.mkdir(parents=True)

    models = [block for block in blocks_of(MODELS) if block.title == "models.py"]
    blocks = [*blocks_of(PAGE), *models]
    for block in blocks:
        if block.title:
            (folder / block.title).write_text(
                replace_ports(block.text, used).replace("bound_s=0.1", "bound_s=30")
            )
    commands = [
        block.text for block in blocks if block.language == "bash" and "pip install" not in block.text
    ]
    path = f"{Path(sys.executable).parent}:{BIN}:{os.environ['PATH']}"
    done = subprocess.run(
        [
            "bash",
            "-eo",
            "pipefail",
            "-c",
            replace_ports("".join(commands), used).replace("curl -s ", "curl -sS --fail-with-body "),
        ],
        cwd=folder,
        env=os.environ | LITELLM | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "x-decision-id: " in done.stdout
    assert '"status":"stored"' in done.stdout
    assert "No fault was found in 1 draws" in done.stdout


WITHOUT = """
import asyncio, json, socket, sys, time
import litellm
from armwise.agent.integrations.litellm_router import ArmwiseRouter

listening = socket.create_server(("127.0.0.1", 0))  # takes connections, and never answers
silent = f"http://127.0.0.1:{listening.getsockname()[1]}"
endpoint = {"api_base": sys.argv[1], "api_key": "none"}


async def ask(url, bound_s):
    armwise = ArmwiseRouter(url, bound_s=bound_s)
    litellm.callbacks = [armwise]
    params = [{"model": f"openai/{name}", **endpoint} for name in ("small", "large")]
    models = [{"model_name": "chat", "litellm_params": one} for one in params]
    router, metadata, started = litellm.Router(model_list=models), {}, time.perf_counter()
    question = [{"role": "user", "content": "?"}]
    await armwise.async_filter_deployments("chat", models, question, {"metadata": metadata})
    took = time.perf_counter() - started
    reply = await router.acompletion("chat", messages=[{"role": "user", "content": "Multiply 12 by 7."}])
    logged = metadata["spend_logs_metadata"]["armwise"]
    return reply.choices[0].message.content, armwise.decided, armwise.undecided, logged["undecided"], took


asked = ("http://127.0.0.1:1", 30.0), (silent, 0.2)
print(json.dumps([asyncio.run(ask(*one)) for one in asked]))
"""


def test_without_an_answer_in_time_litellm_decides_and_says_why(running: Running) -> None:
    models = re.search(r"http://127.0.0.1:\d+/v1", (running.folder / "litellm.yaml").read_text())
    assert models
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, models[0]],
        cwd=running.folder,
        env=os.environ | LITELLM,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    away, silent = json.loads(done.stdout)
    assert away[0] in ("74", "84")
    assert silent[0] in ("74", "84")
    assert away[1:3] == silent[1:3] == [0, 2]
    assert "POST" in away[3] or "connect" in away[3].lower()
    assert silent[3] == "no answer within 200 ms"
    assert 0.2 <= silent[4] < 2.0
    assert "LiteLLM decided instead of Armwise (2 times so far" in done.stderr
