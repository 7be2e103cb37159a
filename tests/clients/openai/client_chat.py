"""Chat through the libraries that people use: a whole answer, a stream, and an answer of a given shape."""

import json
import subprocess
import sys
from pathlib import Path

import aisuite
import httpx
import instructor
import litellm
import openai
import pytest
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage as HaystackMessage
from haystack.utils import Secret
from langchain_openai import ChatOpenAI
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION = "When was the bridge of Avignon built?"
MESSAGES = [{"role": "user", "content": QUESTION}]


class Answer(BaseModel):
    """The shape that an answer is asked for."""

    year: int = Field(ge=0, le=2100)


@pytest.fixture
def base(service: str) -> str:
    return f"{service}/v1"


@pytest.fixture
def client(base: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base, api_key="none", max_retries=0)


def test_openai_gets_an_answer_with_the_fields_that_ask_for_nothing(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="auto",
        messages=MESSAGES,
        max_tokens=8,
        tools=[],
        logprobs=False,
        response_format={"type": "text"},
        metadata={"shop": "one"},
        user="someone",
        store=False,
        n=1,
        presence_penalty=0,
        frequency_penalty=0,
        service_tier="auto",
    )
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 8


def test_openai_streams_and_counts(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="arm/bm25", messages=MESSAGES, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage.completion_tokens <= 8


def test_openai_parses_an_answer_into_a_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="auto", messages=MESSAGES, max_tokens=32, response_format=Answer
    )
    assert isinstance(answer.choices[0].message.parsed, Answer)


def test_openai_lists_and_finds_models(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert set(names) == {"auto", "auto:cheap", "auto:best", "arm/none", "arm/bm25"}
    assert client.models.retrieve("arm/bm25").id == "arm/bm25"
    with pytest.raises(openai.NotFoundError, match="arm/nobody"):
        client.models.retrieve("arm/nobody")


def test_openai_responses_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="auto", input=QUESTION, max_output_tokens=16)
    assert whole.output_text
    with client.responses.stream(model="auto", input=QUESTION, max_output_tokens=16) as stream:
        events = list(stream)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")  # cut, it is incomplete


def test_litellm_answers_and_streams(base: str) -> None:
    ours = {
        "model": "openai/auto",
        "api_base": base,
        "api_key": "none",
        "messages": MESSAGES,
        "max_tokens": 8,
    }
    assert litellm.completion(**ours).choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**ours, stream=True))


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_instructor_fills_a_model(client: openai.OpenAI, mode: instructor.Mode) -> None:
    asked = instructor.from_openai(client, mode=mode).chat.completions.create(
        model="auto", messages=MESSAGES, max_tokens=64, response_model=Answer, max_retries=1
    )
    assert isinstance(asked, Answer)


def test_pydantic_ai_answers(base: str) -> None:
    model = OpenAIChatModel("auto", provider=OpenAIProvider(base_url=base, api_key="none"))
    assert Agent(model, model_settings={"max_tokens": 8}).run_sync(QUESTION).output


def test_langchain_answers_streams_and_structures(base: str) -> None:
    model = ChatOpenAI(model="auto", base_url=base, api_key="none", max_tokens=32)
    assert model.invoke(QUESTION).content
    assert "".join(chunk.content for chunk in model.stream(QUESTION))
    structured = model.with_structured_output(Answer, method="json_schema")
    assert isinstance(structured.invoke(QUESTION), Answer)


def test_llama_index_answers_and_streams(base: str) -> None:
    model = OpenAILike(model="auto", api_base=base, api_key="none", is_chat_model=True, max_tokens=8)
    messages = [ChatMessage(role="user", content=QUESTION)]
    assert model.chat(messages).message.content
    assert list(model.stream_chat(messages))[-1].message.content


def test_haystack_answers(base: str) -> None:
    generator = OpenAIChatGenerator(
        model="auto",
        api_base_url=base,
        api_key=Secret.from_token("none"),
        generation_kwargs={"max_completion_tokens": 8},
    )
    assert generator.run([HaystackMessage.from_user(QUESTION)])["replies"][0].text


def test_aisuite_answers(base: str) -> None:
    client = aisuite.Client({"openai": {"base_url": base, "api_key": "none"}})
    answer = client.chat.completions.create(model="openai:auto", messages=MESSAGES, max_tokens=8)
    assert answer.choices[0].message.content


def test_llm_answers_on_the_command_line(base: str, tmp_path: Path) -> None:
    model = {"model_id": "armwise", "model_name": "auto", "api_base": base, "can_stream": True}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))  # JSON is YAML
    command = [
        sys.executable,
        "-m",
        "llm",
        "-m",
        "armwise",
        "-o",
        "max_tokens",
        "8",
        "--key",
        "none",
        QUESTION,
    ]
    asked = subprocess.run(
        command, env={"LLM_USER_PATH": str(tmp_path), "PATH": ""}, capture_output=True, text=True, check=False
    )
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.strip()


def test_what_an_engine_cannot_do_is_refused_by_name(service: str) -> None:
    body = {"model": "auto", "messages": MESSAGES, "n": 99}
    refused = httpx.post(f"{service}/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "n"
