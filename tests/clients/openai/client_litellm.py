"""The code of docs/tutorials/coming-from.md for those who come from LiteLLM's router."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.clients.openai.conftest import BIN, ROOT, free_port, started
from tests.pages import blocks_of

PAGE, MODELS = "docs/tutorials/coming-from.md", "docs/tutorials/several-models.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files of both pages, with the models and the service running at other ports."""
    folder = tmp_path_factory.mktemp("tutorial")
    service, models = free_port(), free_port()
    for block in (*blocks_of(PAGE), *blocks_of(MODELS)):
        if block.title.endswith((".py", ".yaml")):
            text = block.text.replace("8100", str(service)).replace("8102", str(models))
            (folder / block.title).write_text(text)
    (folder / "address").write_text(f"http://127.0.0.1:{service}")
    endpoint = subprocess.Popen([sys.executable, "models.py"], cwd=folder, stderr=subprocess.DEVNULL)
    command = [str(BIN / "armwise"), "serve", "--cold", "-c", str(folder / "models.yaml")]
    try:
        with started(command, f"http://127.0.0.1:{service}/ready", folder, ARMWISE_HOME=str(folder / "home")):
            yield folder
    finally:
        endpoint.kill()
        endpoint.wait()


def printed(script: str, folder: Path) -> str:
    """Run a script of the page; return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [sys.executable, script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_policy_draws_a_model_and_learns_whether_its_answer_was_right(folder: Path) -> None:
    answer = printed("after.py", folder)
    with httpx.Client(base_url=(folder / "address").read_text()) as client:
        (row,) = client.get("/v1/decisions").raise_for_status().json()["decisions"]
        record = client.get(f"/v1/decisions/{row['decision_id']}").raise_for_status().json()
        verified = client.get(f"/v1/decisions/{row['decision_id']}/verify").raise_for_status().json()
    assert record["arm_drawn"] == {"84": "large", "74": "small"}[answer]
    assert record["metrics"] == {"right": float(answer == "84")}
    assert 0.0 < record["propensity"] < 1.0
    assert verified["verified"]
