"""Decision points in the configuration: what differs, what is refused, and copies that mean the same."""

from typing import Any

import pytest

from armwise.agent.config import AppConfig, ConfigError, parse
from armwise.agent.learning import Recipe, digest_configuration
from tests.agent.fakes import CONFIG

NEWS: dict[str, Any] = {"arms": {"a": {"kind": "none"}}, "reward": {"metrics": {"click": {}}}}


def with_points(**points: Any) -> AppConfig:
    return parse({**CONFIG, "log_url": "sqlite:////tmp/log.db", "points": points})


def complaint(**points: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        with_points(**points)
    return str(raised.value)


def test_a_point_takes_over_what_it_does_not_name() -> None:
    config = with_points(cheap={"arms": {"none": {"kind": "none"}}, "floor": 0.2})
    own = config.of("cheap")
    assert (list(own.arms), own.floor, own.database_url) == (["none"], 0.2, "sqlite:////tmp/log.cheap.db")
    assert (own.llm, own.reward, own.policy, own.limits) == (
        config.llm,
        config.reward,
        config.policy,
        config.limits,
    )
    assert own.points == {}
    assert config.of("default") is config
    assert list(config.by_point) == ["default", "cheap"]


def test_a_point_may_say_that_its_arms_are_those_of_the_top_level() -> None:
    config = with_points(same={"arms": None, "fallback": "none"})
    assert config.of("same").arms == config.arms
    assert config.of("same").fallback == "none"


def test_a_point_with_other_arms_refuses_while_its_log_is_away() -> None:
    points = {"cheap": {"floor": 0.2}, "own": {"arms": {"a": {"kind": "none"}}}}
    answering = {"log_away": "answer", "fallback": "bm25", "log_url": "sqlite:////tmp/log.db"}
    config = parse({**CONFIG, **answering, "points": points})
    assert [config.of(name).log_away for name in ("cheap", "own")] == ["answer", "refuse"]


def test_a_copy_of_a_configuration_means_the_same() -> None:
    config = with_points(news=NEWS, cheap={"floor": 0.2})
    copy = parse(config.model_dump(mode="json"))
    for point in ("news", "cheap"):
        assert copy.of(point) == config.of(point)
        assert parse(copy.of(point).model_dump(mode="json")) == config.of(point)


def test_a_point_changes_neither_the_recipe_nor_the_evaluations_of_the_others() -> None:
    plain, more = with_points(), with_points(news=NEWS)
    assert Recipe.configured(plain) == Recipe.configured(more)
    assert digest_configuration(plain) == digest_configuration(more)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({"News": NEWS}, "'News' cannot name a decision point: use 1 to 32 of a-z"),
        ({"default": NEWS}, "not 'default', which is the top level"),
        ({"news": {"flor": 0.1}}, "unknown key 'points.news.flor'; did you mean 'floor'?"),
        ({"news": {"floor": 0.4}}, "points.news: floor 0.4 is too large for 3 arms and leaves"),
        ({"news": {"reward": {"metrics": {}}}}, "points.news: reward.metrics declares no metric"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_by_name(points: dict[str, Any], message: str) -> None:
    assert message in complaint(**points)


@pytest.mark.parametrize(
    ("given", "of", "turns"),
    [
        ("episode", "episode", 20),
        ("session", "session", 20),
        ("off", "off", 20),
        (False, "off", 20),
        (None, "off", 20),
        ({"of": "episode", "turns": 2}, "episode", 2),
    ],
)
def test_sticky_has_shorthands(given: object, of: str, turns: int) -> None:
    sticky = parse({**CONFIG, "sticky": given}).sticky
    assert (sticky.of, sticky.turns, sticky.idle_s) == (of, turns, None)
    assert parse(parse({**CONFIG, "sticky": given}).model_dump(mode="json")).sticky == sticky


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("thread", "sticky.of"),
        ({"of": "episode", "turns": 1}, "sticky.turns"),
        ({"of": "episode", "idle": "PT31M"}, "sticky.idle PT31M must be above 0 and at most"),
        ({"of": "episode", "idle": "PT0S"}, "sticky.idle PT0S must be above 0"),
        ({"of": "episode", "idle": "soon"}, "sticky.idle 'soon' is not an ISO 8601 duration"),
    ],
)
def test_a_conversation_without_bounds_is_refused(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse({**CONFIG, "sticky": given})


def test_a_conversation_may_be_idle_for_all_of_the_wait_time() -> None:
    assert parse({**CONFIG, "sticky": {"of": "session", "idle": "PT30M"}}).sticky.idle_s == 1800.0


def test_a_point_keeps_arms_by_its_own_setting() -> None:
    points = {"one": {"sticky": "session"}, "two": {}}
    by_point = parse({**CONFIG, "sticky": "episode", "points": points}).by_point
    assert [one.sticky.of for one in by_point.values()] == ["episode", "session", "episode"]
