"""Names that clients send as `model`, and what the configuration says that they mean."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.config import AppConfig, ConfigError, parse
from armwise.feedback.events import Mode
from tests.agent.asking import CHAT, QUESTION, refused
from tests.agent.fakes import CONFIG, Service

LARGE = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "large"}

SETTINGS: dict[str, Any] = {
    "llms": {"large": LARGE, "idle": LARGE},
    "arms": {
        **CONFIG["arms"],
        "big": {"kind": "none", "answering": {"llm": "large"}},
        "search": {"kind": "bm25", "answering": {"llm": "large"}},
        "both": {
            "kind": "checked",
            "params": {"first": "big", "then": "none", "check": {"by": "schema", "satisfies": {}}},
        },
    },
    "aliases": {
        "gpt-*": "arm/bm25",
        "gpt-5*": "auto",
        "gpt-5-codex": "large",
        "gpt-4o": "auto",
        "small": "default",
        "idle": "idle",
    },
}

BIG = {"big", "search"}
"""The arms whose answers are all of the large model."""

DOORS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT["messages"]},
    "/v1/responses": {"input": QUESTION},
    "/v1/messages": {"messages": CHAT["messages"], "max_tokens": 9},
    "/v1/retrieve": {"query": QUESTION},
}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path, **SETTINGS).running() as running:
        yield running


async def send(service: Service, model: str, door: str = "/v1/retrieve", **agent: Any) -> Any:
    return await service.client.post(door, json={"model": model, **DOORS[door], "agent": agent})


async def decided(service: Service, model: str, door: str = "/v1/retrieve", **agent: Any) -> Any:
    response = await send(service, model, door, **agent)
    assert response.status_code == 200, response.text
    return response.json()["agent"]


@pytest.mark.parametrize("door", DOORS)
async def test_an_alias_of_a_model_draws_among_its_arms_alone(service: Service, door: str) -> None:
    ours = await decided(service, "gpt-5-codex", door)
    assert ours["mode"] == Mode.EXPLORE.value
    assert ours["pmf"].keys() == BIG


@pytest.mark.parametrize("door", DOORS)
async def test_an_alias_of_an_arm_forces_it_at_every_door(service: Service, door: str) -> None:
    ours = await decided(service, "gpt-3", door)
    assert (ours["mode"], ours["arm_served"]) == (Mode.FORCED.value, "bm25")


@pytest.mark.parametrize("model", ["auto", "gpt-4o", "gpt-5.1"])
async def test_an_alias_of_auto_leaves_all_arms_to_the_policy(service: Service, model: str) -> None:
    assert (await decided(service, model))["pmf"].keys() == SETTINGS["arms"].keys()


async def test_an_arm_that_may_ask_another_model_is_left_out(service: Service) -> None:
    assert (await decided(service, "small"))["pmf"].keys() == CONFIG["arms"].keys()


async def test_an_alias_adds_no_arm_to_those_of_the_request(service: Service) -> None:
    assert (await decided(service, "gpt-5-codex", allowed_arms=["big", "bm25"]))["pmf"].keys() == {"big"}
    assert (await decided(service, "gpt-5-codex", excluded_arms=["big"]))["pmf"].keys() == {"search"}
    for options in ({"allowed_arms": ["bm25"]}, {"allowed_arms": []}, {"excluded_arms": [*BIG]}):
        none_left = await send(service, "gpt-5-codex", **options)
        refused(none_left, 400, "no_eligible_arm", "agent.excluded_arms")
    refused(await send(service, "gpt-3", allowed_arms=["dense"]), 400, "no_eligible_arm", "model")


async def test_an_unknown_arm_is_named_under_an_alias_too(service: Service) -> None:
    response = await send(service, "gpt-5-codex", allowed_arms=["big", "bgi"])
    assert "'bgi'" in refused(response, 400, "unknown_arm", "agent.allowed_arms")


@pytest.mark.parametrize("door", ["/v1/chat/completions", "/v1/responses", "/v1/retrieve"])
async def test_an_unknown_name_is_refused_with_the_remedy(service: Service, door: str) -> None:
    assert "add it to `aliases`" in refused(
        await send(service, "gemini", door), 404, "model_not_found", "model"
    )


async def test_an_alias_of_a_model_without_an_arm_is_refused(service: Service) -> None:
    message = refused(await send(service, "idle"), 404, "model_not_found", "model")
    assert message == "model 'idle' is an alias of the language model 'idle': no live arm answers with it"


async def test_models_lists_exact_aliases_and_finds_the_others(service: Service) -> None:
    listed = [model["id"] for model in (await service.client.get("/v1/models")).json()["data"]]
    arms = [f"arm/{name}" for name in SETTINGS["arms"]]
    assert listed == ["auto", "auto:cheap", "auto:best", *arms, "gpt-5-codex", "gpt-4o", "small", "idle"]
    for name in (*listed, "gpt-5.1"):
        found = await service.client.get(f"/v1/models/{name}")
        assert (found.status_code, found.json()["id"]) == (200, name)
    unknown = await service.client.get("/v1/models/gemini")
    assert "`aliases`" in refused(unknown, 404, "model_not_found", "model")


def configured(aliases: dict[str, str]) -> AppConfig:
    return parse({**CONFIG, **SETTINGS, "aliases": aliases})


def test_the_exact_name_wins_and_then_the_longest_beginning() -> None:
    config = configured({"*": "auto", "a*": "arm/bm25", "a-b*": "large", "a-b-c": "arm/none"})
    meant = ["a-b-c", "a-b-d", "a-c", "b", "a-b-c-d"]
    assert [*map(config.find_alias, meant)] == ["arm/none", "large", "arm/bm25", "auto", "large"]


@pytest.mark.parametrize("name", ["auto", "", "arm/dense", "arm/nobody"])
def test_what_has_a_meaning_of_its_own_is_no_alias(name: str) -> None:
    assert configured({"*": "large", "a*": "large"}).find_alias(name) is None


def test_names_of_anthropic_mean_auto_unless_aliases_are_given() -> None:
    names = ["claude-opus-5", "anthropic/claude-haiku", "claude", "gpt-4o"]
    assert [*map(parse(CONFIG).find_alias, names)] == ["auto", "auto", None, None]
    assert configured({"gpt-4o": "auto"}).find_alias("claude-opus-5") is None


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({"gpt-4o": "larg"}, "aliases.gpt-4o: 'larg' is neither an arm nor .*; did you mean 'large'?"),
        ({"gpt-4o": "arm/bm52"}, "did you mean 'arm/bm25'?"),
        ({"gpt-4o": "bm25"}, "did you mean 'arm/bm25'?"),
        ({"gpt-*-mini": "auto"}, r"'gpt-\*-mini' has a '\*' before its last character"),
        ({"auto": "large"}, "'auto' has a meaning already"),
        ({"arm/x": "auto"}, "'arm/x' has a meaning already"),
        ({"arm/*": "auto"}, "has a meaning already"),
        ({"": "auto"}, "at least 1 character"),
        ({"x" * 257: "auto"}, "at most 256 characters"),
    ],
)
def test_an_alias_that_cannot_be_meant_is_refused(aliases: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured(aliases)


def test_aliases_stay_where_a_policy_has_fewer_arms() -> None:
    config = configured({"gpt-4o": "arm/big", "small": "default"})
    assert config.with_arms(["none", "bm25"]).aliases == config.aliases
