"""The tap in the configuration: arms that are names, how they are shared, and what is refused."""

import math
from typing import Any

import pytest

from armwise.agent.config import AppConfig, ConfigError, parse
from armwise.agent.serving.arms import arm_infos
from armwise.arms.retrievers import ArmGraph
from tests.agent.fakes import CONFIG

EXTERNAL: dict[str, Any] = {
    "large": {"kind": "external", "params": {"usd": 0.002, "features": {"billions": 7, "lag": -3}}},
    "small": {"kind": "external"},
}


def tapped(**changes: Any) -> AppConfig:
    return parse({**CONFIG, "arms": EXTERNAL, "tap": {}, **changes})


def test_a_tap_only_looks_unless_it_is_told_otherwise() -> None:
    config = tapped()
    assert config.tap is not None
    assert (config.tap.share, config.tap.incumbent, config.external) == (0.0, None, True)
    assert parse(CONFIG).tap is None
    assert not parse(CONFIG).external


def test_an_arm_of_another_system_is_its_name_its_price_and_its_features() -> None:
    infos = arm_infos(tapped())
    assert infos["small"].features == {"arm=small": 1.0, "kind=external": 1.0, "steps": 0.0}
    assert infos["large"].features == {
        "arm=large": 1.0,
        "kind=external": 1.0,
        "external.billions": pytest.approx(math.log(8)),
        "external.lag": pytest.approx(-math.log(4)),
        "steps": 0.0,
        "usd": pytest.approx(math.log(3)),
    }
    assert ArmGraph(tapped().arms).corpora("large") == frozenset()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tap": {"share": 1.1}}, "less than or equal to 1"),
        ({"tap": {"share": -0.1}}, "greater than or equal to 0"),
        ({"tap": {"incumbent": "larg"}}, "tap.incumbent: 'larg' is not an arm; did you mean 'large'?"),
        ({"tap": {"names": {"gpt": "huge"}}}, "tap.names.gpt: 'huge' is not an arm"),
        ({"tap": {"nams": {}}}, "nams"),
        ({"arms": {**EXTERNAL, "none": {"kind": "none"}}}, "arm 'large' is external"),
        ({"arms": {"large": {"kind": "external", "usd": 1.0}}}, "params.usd"),
        ({"arms": {"large": {"kind": "external", "params": {"usd": -1}}}}, "greater than or equal to 0"),
        ({"arms": {"large": {"kind": "external", "params": {"features": {"": 1}}}}}, "at least 1 character"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        tapped(**changes)
    assert message in str(raised.value)
