"""A replica: what it serves while a newer version cannot be loaded."""

import logging

import pytest

from tests.agent.asking import look_up, tell
from tests.agent.fakes import Service


async def test_a_version_of_another_library_is_warned_of_once_and_the_one_before_served(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await tell(service, "unseen")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("agent.policies.vowpal.VW", "8.0.0")
        service.learner.step()
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            await service.replica.refresh()
    assert (await look_up(service)).json()["agent"]["policy_version"] == 1
    service.replica.check()
    warned = [record for record in caplog.records if record.name == "agent.replica"]
    assert len(warned) == 1
    assert "checkpoint of version 2 cannot be loaded" in warned[0].message
