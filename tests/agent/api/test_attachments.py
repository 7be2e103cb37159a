"""Images and files in the forms of chat and of responses: a model that reads them gets them."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.turn import Ask, estimate_attached_tokens
from armwise.arms.llm import Message
from armwise.arms.llm.catalog import EndpointSpec, ScriptedSpec, list_inputs
from tests.agent.api.conftest import prompt_of
from tests.agent.asking import refused, rows
from tests.agent.fakes import CONFIG, Service

PIXEL = "data:image/png;base64," + base64.b64encode(b"\x89PNG of a pixel").decode()
PAPER = "data:application/pdf;base64," + base64.b64encode(b"%PDF-1.7 of a page").decode()
ENDPOINT = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
SHOWN = {"type": "image_url", "image_url": {"url": PIXEL}}
SENT = {"type": "file", "file": {"filename": "a.pdf", "file_data": PAPER}}


@pytest.fixture
async def seeing(tmp_path: Path) -> AsyncIterator[Service]:
    """A service whose model reads images and files."""
    limits = CONFIG["limits"] | {"body_bytes": 16_384}
    async with Service(tmp_path, llm=ENDPOINT, limits=limits).running() as service:
        yield service


@pytest.fixture
async def half_blind(tmp_path: Path) -> AsyncIterator[Service]:
    """A service of which one arm has a model that reads images, and no arm one that reads files."""
    seeing = ENDPOINT | {"inputs": ["image"]}
    arms = CONFIG["arms"] | {"bm25": {"kind": "bm25", "answering": {"llm": "seeing"}}}
    async with Service(tmp_path, llms={"seeing": seeing}, arms=arms).running() as service:
        yield service


def asked(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, *parts]}],
        **fields,
    }


@pytest.mark.parametrize(
    "sent",
    [
        SHOWN,
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "file:///no form is checked"}},
        SENT,
        {"type": "file", "file": {"file_id": "f-1"}},
    ],
)
async def test_a_model_that_reads_them_gets_images_and_files(seeing: Service, sent: dict[str, Any]) -> None:
    response = await seeing.client.post("/v1/chat/completions", json=asked(sent))
    assert response.status_code == 200, response.text
    assert prompt_of(seeing).messages[-1]["content"] == "what is it?"
    assert prompt_of(seeing).messages[-1]["parts"] == [{"type": "text", "text": "what is it?"}, sent]


async def test_a_response_passes_them_on_as_well(seeing: Service) -> None:
    content = [{"type": "input_text", "text": "what is it?"}, {"type": "input_image", "image_url": PIXEL}]
    body = {"input": [{"role": "user", "content": content}]}
    response = await seeing.client.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    assert prompt_of(seeing).messages[-1]["parts"][1] == SHOWN


async def test_a_message_of_texts_alone_has_no_parts(seeing: Service) -> None:
    await seeing.client.post("/v1/chat/completions", json=asked({"type": "text", "text": "really?"}))
    assert prompt_of(seeing).messages[-1] == {"role": "user", "content": "what is it?\nreally?"}


@pytest.mark.parametrize("model", ["auto", "arm/none"])
async def test_a_model_of_text_alone_refuses_images_before_the_draw(service: Service, model: str) -> None:
    before = await rows(service)
    response = await service.client.post("/v1/chat/completions", json=asked(SHOWN, model=model))
    message = refused(response, 400, "unsupported_parameter", "messages")
    assert message == (
        "the language model reads no images: the engine 'scripted' has no such `inputs`; "
        "an arm with a model of the engine 'openai' could"
    )
    assert await rows(service) == before


async def test_an_image_goes_to_an_arm_whose_model_reads_it(half_blind: Service) -> None:
    for _ in range(8):
        response = await half_blind.client.post("/v1/chat/completions", json=asked(SHOWN))
        assert response.json()["agent"]["pmf"] == {"bm25": 1.0}
    text = await half_blind.client.post("/v1/chat/completions", json=asked())
    assert text.json()["agent"]["pmf"].keys() == {"none", "bm25", "dense"}


@pytest.mark.parametrize(
    "fields", [asked(SENT), asked(SHOWN, SENT, model="arm/bm25"), asked(SHOWN, model="arm/dense")]
)
async def test_what_no_model_of_the_named_arms_reads_is_refused(
    half_blind: Service, fields: dict[str, Any]
) -> None:
    response = await half_blind.client.post("/v1/chat/completions", json=fields)
    refused(response, 400, "unsupported_parameter", "messages")


async def test_an_arm_that_a_request_excludes_stays_excluded(half_blind: Service) -> None:
    body = asked(SHOWN, agent={"excluded_arms": ["bm25"]})
    response = await half_blind.client.post("/v1/chat/completions", json=body)
    refused(response, 400, "no_eligible_arm", "agent.excluded_arms")


def test_endpoints_read_all_inputs_unless_told_otherwise() -> None:
    assert list_inputs(EndpointSpec.model_validate(ENDPOINT)) == {"image", "file", "audio"}
    assert list_inputs(EndpointSpec.model_validate(ENDPOINT | {"inputs": []})) == set()
    assert list_inputs(ScriptedSpec(engine="scripted")) == set()


async def test_the_tokens_of_images_and_files_are_reserved(seeing: Service) -> None:
    messages = (Message(role="user", content="", parts=[SHOWN, SHOWN, SENT]),)
    assert estimate_attached_tokens(messages) == 4000 + len(PAPER) // 16
    few = seeing.replica.turns.bound_cost(Ask("d", "what?", (Message(role="user", content=""),)))
    many = seeing.replica.turns.bound_cost(Ask("d", "what?", messages))
    assert many.tokens - few.tokens == estimate_attached_tokens(messages)
