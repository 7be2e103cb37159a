"""Every response in these tests is compared with the OpenAPI document."""

import pytest

from tests.agent.api import contract
from tests.agent.fakes import Service


@pytest.fixture(autouse=True)
def _documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "check", staticmethod(contract.check))
