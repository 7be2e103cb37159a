"""A language model whose endpoint refuses the key, the account or the model of the service."""

from pathlib import Path

import pytest

from armwise.agent.background import Work, read_failures
from armwise.agent.run_folder import RUN_FOLDER
from armwise.arms.llm.base import GeneratorRefusedError, ScriptedGenerator
from tests.agent.fakes import Service

QUESTION = {"model": "auto", "messages": [{"role": "user", "content": "Which river runs through Vienna?"}]}

NOT_FOUND = "no-such-model at https://h/v1: HTTP 404, model_not_found"


async def test_its_refusal_is_shown_until_the_model_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    model = ScriptedGenerator({}, default="The Danube.")
    async with Service(tmp_path, model).running() as service:
        model.error = GeneratorRefusedError(NOT_FOUND)
        for _ in range(2):
            failed = await service.client.post("/v1/chat/completions", json=QUESTION)
            assert (failed.status_code, failed.json()["error"]["retryable"]) == (502, False)
        (shown,) = read_failures()
        assert (shown.work, shown.why) == (Work.MODELS, f"'default': {NOT_FOUND}")
        ready = (await service.client.get("/ready")).json()
        assert [failure["work"] for failure in ready["failed"]] == ["models"]
        model.error = None
        assert (await service.client.post("/v1/chat/completions", json=QUESTION)).status_code == 200
        assert read_failures() == []
