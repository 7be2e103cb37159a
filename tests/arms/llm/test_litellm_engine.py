"""What LiteLLM is given of a request, without the library."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from armwise.arms.llm import litellm_engine
from armwise.arms.llm.base import GeneratorTimeoutError, Prompt
from armwise.arms.llm.catalog import EndpointSpec
from armwise.arms.llm.litellm_engine import LiteLLMGenerator
from armwise.arms.llm.protocols import Request


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Arguments of each call of a library that answers nothing."""
    calls = list[dict[str, Any]]()

    async def acompletion(**arguments: Any) -> None:
        calls.append(arguments)
        raise TimeoutError

    def get_llm_provider(name: str) -> list[str]:
        return name.split("/")[::-1]

    library = SimpleNamespace(
        acompletion=acompletion,
        get_llm_provider=get_llm_provider,
        openai_compatible_providers=["groq"],
        BadRequestError=KeyError,
        Timeout=TimeoutError,
    )
    monkeypatch.setitem(sys.modules, "litellm", library)
    monkeypatch.setattr(litellm_engine, "ENVIRONMENT", {})
    return calls


SETTINGS = {
    "api_base": "http://elsewhere/v1",
    "base_url": "http://elsewhere/v1",
    "api_key": "theirs",
    "api_version": "1",
    "custom_llm_provider": "openai",
    "extra_headers": {"x": "y"},
    "extra_body": {"model": "dearer"},
    "fallbacks": ["dearer"],
    "mock_response": "anything",
    "vertex_credentials": "/etc/passwd",
    "aws_sts_endpoint": "http://elsewhere",
    "metadata": {"model_group": "dearer"},
    "timeout": 1e9,
}


@pytest.mark.parametrize(("provider", "passes"), [("azure", True), ("groq", True), ("bedrock", False)])
async def test_no_client_sets_what_the_library_itself_reads(
    given: list[dict[str, Any]], provider: str, *, passes: bool
) -> None:
    spec = EndpointSpec(engine="litellm", model=f"{provider}/m", api_key_env=None)
    messages = [{"role": "user", "content": "Why?"}]
    body = {**SETTINGS, "messages": messages, "model": "auto", "top_p": 0.5}
    prompt = Prompt(({"role": "user", "content": "Why?"},), request=Request("chat", body), sets_limit=False)
    with pytest.raises(GeneratorTimeoutError):
        [chunk async for chunk in LiteLLMGenerator(spec).stream(prompt)]
    [arguments] = given
    del arguments["logger_fn"]
    own = {"timeout": 60.0, "num_retries": 0, "max_retries": 0}
    asked = {"model": f"{provider}/m", "messages": messages, "top_p": 0.5, "temperature": 0.0}
    streams = {"stream": True, "stream_options": {"include_usage": True}}
    assert arguments == own | asked | streams | ({"extra_body": SETTINGS} if passes else {})
