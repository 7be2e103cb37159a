"""Every response in these tests is compared with the OpenAPI document."""

import pytest
from openai import AsyncOpenAI

from armwise.arms.llm import Prompt, base
from tests.agent.api import contract
from tests.agent.fakes import Service


@pytest.fixture(autouse=True)
def _documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "check", staticmethod(contract.check))


def client_of(service: Service) -> AsyncOpenAI:
    """Return the official client of OpenAI, speaking to a service."""
    url = "http://service/v1"
    return AsyncOpenAI(api_key="none", http_client=service.client, base_url=url, max_retries=0)


def prompt_of(service: Service) -> Prompt:
    """Return what the language model has read last."""
    assert isinstance(service.generator, base.ScriptedGenerator)
    assert service.generator.last_prompt is not None
    return service.generator.last_prompt
