"""What it costs that a language model lacks a conversation in its cache, from the turns in the log."""

from typing import Any

import pytest

from armwise.agent.turn import ArmInfo, Ask, LanguageModel, RequestDocument
from armwise.agent.turn.steps.cache import CacheStep, expect_misses
from armwise.arms.llm import TokenPrices, base
from armwise.arms.llm.base import Message
from armwise.arms.llm.writing import DEFAULT, Answering
from armwise.feedback.events import AnsweredTurn, ModelTokens

NOW = 1000.0

SMALL = TokenPrices(usd_per_kilotoken_in=1.0, usd_per_kilotoken_cached=0.25)
LARGE = TokenPrices(usd_per_kilotoken_in=10.0, usd_per_kilotoken_cached=1.0)

LONG = "word " * 5000


def model(prices: TokenPrices, protocol: str = "") -> LanguageModel:
    return LanguageModel(base.ScriptedGenerator({}), prices, protocol=protocol)


MODELS = {DEFAULT: model(SMALL), "large": model(LARGE)}


def arm(llm: str = DEFAULT, *, searches: bool = False) -> ArmInfo:
    return ArmInfo(answering=Answering(llm=llm), searches=searches)


ARMS = {"small": arm(), "large": arm("large")}


def said(text: str = LONG, *, mark: bool = False) -> Message:
    part = {"type": "text", "text": text} | ({"cache_control": {"type": "ephemeral"}} if mark else {})
    return Message(role="user", content=text, parts=[part])


def ask(*messages: Message, **fields: Any) -> Ask:
    return Ask("d", "?", messages=messages or (said(),), episode_id="talk", **fields)


def turn(at: float = NOW - 10.0, quotes: bool = False, **tokens: ModelTokens) -> AnsweredTurn:
    named = {DEFAULT if name == "small" else name: counts for name, counts in tokens.items()}
    return AnsweredTurn(named, at, quotes)


def misses(*turns: AnsweredTurn, asked: Ask | None = None, **fields: Any) -> dict[str, float]:
    settings: dict[str, Any] = {"arms": ARMS, "models": MODELS, "now": NOW} | fields
    return expect_misses(asked or ask(), turns, **settings)


def test_a_first_turn_misses_nothing() -> None:
    assert misses() == {}


def test_a_switch_reads_the_conversation_in_full_and_who_stays_does_not() -> None:
    assert misses(turn(small=(1000, 50, 0))) == {"large": pytest.approx(9.0)}
    assert misses(turn(large=(1000, 50, 0))) == {"small": pytest.approx(0.75)}


def test_what_a_model_read_before_it_was_left_is_still_cached() -> None:
    found = misses(turn(large=(1000, 50, 0)), turn(small=(1500, 50, 0)), turn(small=(2000, 50, 1500)))
    assert found == {"large": pytest.approx(9.0)}, "1,000 of 2,000 tokens"


def test_a_short_request_beside_the_conversation_does_not_shorten_what_is_cached() -> None:
    found = misses(turn(small=(1000, 50, 0)), turn(small=(100, 50, 0)))
    assert found == {"large": pytest.approx(9.0)}, "an agent asks for a title"


@pytest.mark.parametrize(("age", "lapsed"), [(299.0, False), (300.0, True)])
def test_a_pause_beyond_the_lifetime_of_the_cache_is_a_miss_of_every_model(age: float, lapsed: bool) -> None:
    found = misses(turn(NOW - age, large=(1000, 50, 0)))
    assert found == {"small": pytest.approx(0.75)} | ({"large": pytest.approx(9.0)} if lapsed else {})


def test_each_model_has_its_own_lifetime() -> None:
    hour = LARGE.model_copy(update={"cache_lifetime_s": 3600.0})
    found = misses(turn(NOW - 1000.0, large=(1000, 50, 0)), models=MODELS | {"large": model(hour)})
    assert found == {"small": pytest.approx(0.75)}


def test_tokens_that_the_first_turn_found_in_a_cache_are_no_difference() -> None:
    first = turn(NOW - 900.0, small=(800, 50, 600))
    assert misses(first, turn(small=(1000, 50, 800))) == {"large": pytest.approx(9.0 * 0.4)}
    assert misses(first) == {"large": pytest.approx(1.8), "small": pytest.approx(0.15)}


def test_a_conversation_that_was_cut_counts_as_far_as_it_goes_on() -> None:
    found = misses(turn(small=(9000, 50, 0)), asked=ask(said("word " * 400)))
    assert found == {"large": pytest.approx(9.0 * 0.5)}, "2,000 bytes are 500 tokens"


def test_tools_and_calls_are_of_the_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "n" * 2000}}]
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "a" * 2000}}]
    spoken = Message(role="assistant", content="", tool_calls=calls)
    offered = RequestDocument(options={"tools": tools})
    found = misses(turn(small=(9000, 50, 0)), asked=ask(said("Go on."), spoken, document=offered))
    assert 9.0 < found["large"] < 9.6, "some 1,040 tokens"


def test_passages_stand_before_the_conversation_so_only_instructions_stay() -> None:
    system = Message(role="system", content="rule " * 400)
    asked = ask(system, said())
    arms = {"small": arm(), "large": arm("large"), "reads": arm("large", searches=True)}
    found = misses(turn(small=(4000, 50, 0)), asked=asked, arms=arms)
    assert found == {"large": pytest.approx(36.0), "reads": pytest.approx(4.5)}
    quoted = misses(turn(quotes=True, small=(4000, 50, 0)), asked=asked, arms=arms)
    assert quoted == {"large": pytest.approx(4.5), "reads": pytest.approx(4.5)}


def test_an_engine_that_caches_what_is_marked_says_how_much_that_was() -> None:
    dear = LARGE.model_copy(update={"usd_per_kilotoken_cache_write": 12.5})
    models = {DEFAULT: model(SMALL, "messages"), "large": model(dear, "messages")}
    reported = turn(small=(1000, 50, 0, 0.0, 800))
    assert misses(reported, models=models, asked=ask(said(mark=True))) == {"large": pytest.approx(0.8 * 11.5)}
    again = turn(small=(1000, 50, 800, 0.0, 100))
    found = misses(reported, again, models=models, asked=ask(said(mark=True)))
    assert found == {"large": pytest.approx(0.9 * 11.5)}
    assert misses(reported, models=models) == {}, "nothing is marked"
    unmarked = turn(small=(1000, 50, 0))
    assert misses(unmarked, models=models, asked=ask(said(mark=True))) == {}


def test_models_without_a_price_of_cached_tokens_miss_nothing() -> None:
    free = {DEFAULT: model(SMALL), "large": model(TokenPrices(usd_per_kilotoken_in=10.0))}
    assert misses(turn(small=(1000, 50, 0)), models=free) == {}
    assert misses(turn(large=(1000, 50, 0)), models=free) == {"small": pytest.approx(0.75)}
    assert misses(turn(gone=(1000, 50, 0)), models=free) == {"small": pytest.approx(0.75)}
    assert misses(turn(large=(1000, 50, 0)), models={}) == {}


def test_the_reward_that_misses_cost_is_in_the_order_of_the_arms() -> None:
    record = {"usd_weight": 2.0, "usd": {"large": 0.5}}
    assert CacheStep.weigh(record, ["large", "small"]) == [1.0, 0.0]
