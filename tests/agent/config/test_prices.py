"""Where dollars count, it is known what each model costs."""

from typing import Any

import pytest

from armwise.agent.config import ConfigError, parse
from armwise.agent.hosts.arms import read_settings
from armwise.agent.serving.replica import name_models
from armwise.arms.llm.base import ScriptedGenerator
from tests.agent.fakes import CONFIG

NEAR = {"engine": "openai", "base_url": "http://ada:secret@127.0.0.1:1/v1", "model": "m"}
LISTED = {"engine": "anthropic", "model": "claude-sonnet-4-5"}

WEIGHED = {"reward": {**CONFIG["reward"], "cost": {"usd": 1.0}}}
LIMITED = {"budget": {"usd_per_request": 0.01}}
COMPARED = {
    "reward": {**CONFIG["reward"], "metrics": {"thumb": {}, "dearer": {"signal": "escalation"}}},
}
EXTERNAL = {"arms": {"small": {"kind": "external"}, "large": {"kind": "external"}}, "backbones": {}}


@pytest.mark.parametrize(
    ("dollars", "reason"),
    [
        (WEIGHED, "the reward weighs dollars (`reward.cost.usd`)"),
        (LIMITED, "the budget is in dollars (`budget.usd_per_request`)"),
        (COMPARED, "the metric 'dearer' compares the prices of arms"),
    ],
)
def test_a_model_without_a_price_is_refused_where_dollars_count(dollars: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse({**CONFIG, **dollars, "llm": LISTED, "llms": {"near": NEAR, "far": {**LISTED, "model": "x"}}})
    named = ("'m'", "http://ada:***@", "`llms.near`", "'x'", "`llms.far`", reason, "usd_per_kilotoken_in")
    assert [part for part in named if part not in str(refused.value)] == []


@pytest.mark.parametrize(
    "llm",
    [
        {**NEAR, "usd": 0},
        {**NEAR, "usd_per_kilotoken_out": 0.1},
        {**NEAR, "usd_per_kilotoken_in": 0.0},
        {**NEAR, "model": "gpt-4o"},
        LISTED,
        {"engine": "scripted"},
        {"engine": "embedded"},
    ],
)
@pytest.mark.parametrize("dollars", [WEIGHED, LIMITED, COMPARED])
def test_each_remedy_makes_the_configuration_valid(llm: dict[str, Any], dollars: dict[str, Any]) -> None:
    config = parse({**CONFIG, **dollars, "llm": llm})
    again = parse(config.model_dump(mode="json"))
    assert again == config, "what is left out stays left out"
    assert again.token_prices == config.token_prices


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"reward": {**CONFIG["reward"], "cost_weight": 0.0, "cost": {"usd": 1.0}}},
        {"budget": {"steps_per_request": 1}},
        {**WEIGHED, **EXTERNAL},
    ],
)
def test_no_price_is_asked_for_where_no_dollar_of_a_model_counts(settings: dict[str, Any]) -> None:
    assert parse({**CONFIG, **settings, "llm": NEAR}).llm.engine == "openai"


@pytest.mark.parametrize("usd", [1, -1, 0.5, "free"])
def test_the_only_price_of_an_answer_is_none(usd: object) -> None:
    with pytest.raises(ConfigError, match=r"llm.usd: "):
        parse({**CONFIG, "llm": {**NEAR, "usd": usd}})


def test_a_model_cannot_be_free_and_have_a_price() -> None:
    with pytest.raises(ConfigError, match=r"llm: usd: 0 .*other prices"):
        parse({**CONFIG, "llm": {**NEAR, "usd": 0, "usd_per_kilotoken_in": 0.1}})


def test_listed_prices_bound_turns_and_price_what_caches_lack() -> None:
    config = parse({**CONFIG, **WEIGHED, "llm": LISTED, "llms": {"near": {**NEAR, "usd": 0}}})
    models = name_models(config, {name: ScriptedGenerator({}) for name in config.models})
    listed, near = models["default"], models["near"]
    assert listed.prices.compute_usd(1000, 100) == pytest.approx(0.003 + 0.0015)
    assert listed.prices.compute_usd(1000, 100, 0, 1000) == pytest.approx(0.00375 + 0.0015)
    assert (listed.caches, near.caches, config.prices_caches) == (True, False, True)
    assert listed.prices.compute_miss(1000) == pytest.approx(0.00345)
    assert near.prices.compute_usd(1000, 100) == 0.0
    assert read_settings(config).prices == listed.prices, "arms that prompt the model charge the same"
    assert not parse({**CONFIG, "llm": LISTED}).prices_caches, "no reward weighs dollars"


def test_answers_at_listed_prices_count_with_what_they_cost() -> None:
    own = {**NEAR, "usd_per_kilotoken_in": 0.5}
    config = parse({**CONFIG, **WEIGHED, "llm": LISTED, "llms": {"near": own}})
    assert config.token_prices == config.reward.token_prices == {"near": (0.5, 0.0, 0.5)}
    assert config.reward.usd_today(0.25, {"default": (10, 10, 0)}) == 0.25
