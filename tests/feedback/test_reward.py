"""Reward: raw values and a raw cost vector become one number, by a rule that is declared."""

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from armwise.feedback.decisions import rewards
from armwise.feedback.events import Cost, ModelTokens
from armwise.feedback.reward import (
    Aggregation,
    Complete,
    Metric,
    Prices,
    RewardError,
    RewardRule,
)
from tests.feedback.conftest import value
from tests.feedback.examples import example, some_examples, some_rule

RULE = RewardRule(
    metrics={
        "right": Metric(type="boolean", weight=3.0),
        "thumb": Metric(range=(-1, 1), weight=1.0),
        "seconds": Metric(range=(0, 60), optimize="min", weight=1.0),
    },
    cost_weight=0.1,
    clip=(-5.0, 5.0),
)

# -- what a right answer is worth ---------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.05, 0.1, 1.0])
def test_an_answer_loses_the_share_that_it_costs_of_what_a_right_one_is_worth(weight: float) -> None:
    rule = RewardRule(metrics={"right": Metric()}, worth=0.01, cost_weight=weight)
    assert rule.reward({"right": 1.0}, Cost(usd=0.002)) == pytest.approx(0.8)
    assert rule.reward({"right": 1.0}, Cost(steps=1)) == pytest.approx(1 - weight)
    assert RewardRule.model_validate_json(rule.model_dump_json()) == rule


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cost": Prices(usd=5.0)}, "worth and cost.usd both price a dollar"),
        ({"cost_weight": 0.0}, "worth needs a cost_weight above 0"),
        ({"worth": 5e-324}, "is too small: name the dollars"),
        ({"worth": 0.0}, "greater than 0"),
    ],
)
def test_a_worth_that_cannot_price_a_dollar_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RewardRule.model_validate({"worth": 0.01, **fields})


# -- values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "given", "kept"),
    [
        ("right", True, 1.0),
        ("right", False, 0.0),
        ("right", 1, 1.0),
        ("thumb", -1, -1.0),
        ("thumb", 0.25, 0.25),
        ("seconds", 60, 60.0),
    ],
)
def test_a_value_of_the_declared_type_is_kept(metric: str, given: bool | float, kept: float) -> None:
    assert RULE.metric(metric).parse(given, metric) == kept


@pytest.mark.parametrize(
    ("metric", "given", "said"),
    [
        ("right", 0.5, "metric 'right' is boolean: 0.5 is neither true nor false"),
        ("thumb", True, "metric 'thumb' takes numbers, got True"),
        ("thumb", 1.5, r"metric 'thumb' takes values in \[-1, 1\], got 1.5"),
        ("seconds", -0.1, r"metric 'seconds' takes values in \[0, 60\], got -0.1"),
        ("thumb", math.nan, "got nan"),
        ("thumb", math.inf, "got inf"),
    ],
)
def test_another_type_or_a_value_out_of_range_is_refused(metric: str, given: bool | float, said: str) -> None:
    with pytest.raises(RewardError, match=said):
        RULE.metric(metric).parse(given, metric)


# -- several values become one ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"signal": "retry", "type": "float"},
        {"signal": "retry", "optimize": "max"},
        {"signal": "check", "optimize": "min"},
        {"signal": "check", "type": "boolean"},
        {"signal": "grade", "range": (0.0, 2.0)},
    ],
)
def test_a_signal_has_its_own_type_and_range(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"with optimize \w+: remove type"):
        Metric.model_validate(given)


@pytest.mark.parametrize(
    ("how", "one"),
    [(Aggregation.FIRST, 0.5), (Aggregation.LAST, 1.0), (Aggregation.MEAN, 0.25), (Aggregation.SUM, 0.75)],
)
def test_several_values_become_one_as_declared(how: Aggregation, one: float) -> None:
    assert Metric(range=(-1, 1), aggregation=how).aggregate([0.5, -0.75, 1.0]) == one


@given(st.permutations([0.1, 0.2, 0.3, -0.4, 1e-9]))
def test_mean_and_sum_do_not_depend_on_the_order(values: list[float]) -> None:
    for how in (Aggregation.MEAN, Aggregation.SUM):
        metric = Metric(range=(-1, 1), aggregation=how)
        assert metric.aggregate(values) == metric.aggregate(sorted(values))


def test_feedback_is_folded_by_metric_and_what_is_no_longer_declared_is_left_out() -> None:
    items = [
        value("d", "thumb", -1.0, key="1"),
        value("d", "right", 1.0, key="2"),
        value("d", "gone", 7.0, key="3"),
        value("d", "thumb", 0.5, key="4"),
    ]
    assert RULE.aggregate(items) == {"thumb": 0.5, "right": 1.0}
    assert RULE.aggregate([]) == {}


@pytest.mark.parametrize(
    ("when", "none", "one", "every"),
    [
        (Complete.ANY, False, True, True),
        (Complete.ALL, False, False, True),
        (Complete.DEADLINE, False, False, False),
    ],
)
def test_a_decision_is_complete_as_declared(when: Complete, none: bool, one: bool, every: bool) -> None:
    rule = RULE.model_copy(update={"complete": when})
    values = {"right": 1.0, "thumb": 0.0, "seconds": 3.0}
    assert [rule.is_complete(v) for v in ({}, {"thumb": 1.0}, values)] == [none, one, every]


# -- quality and cost ---------------------------------------------------------------------------------------


def test_several_metrics_are_waited_for_unless_the_rule_says_otherwise() -> None:
    one, two = {"right": {}}, {"right": {}, "thumb": {}}
    assert RewardRule.model_validate({"metrics": one}).complete is Complete.ANY
    assert RewardRule.model_validate({"metrics": two}).complete is Complete.ALL
    named = RewardRule.model_validate({"metrics": two, "complete": "any"})
    assert named.complete is Complete.ANY
    for rule in (named, RewardRule.model_validate({"metrics": two})):
        assert RewardRule.model_validate(rule.model_dump(mode="json")) == rule, "what is stored says it"


@pytest.mark.parametrize("declared", ["default", "failed"])
def test_where_silence_or_a_failure_has_a_value_each_decision_waits_for_its_deadline(declared: str) -> None:
    rule = RewardRule.model_validate({"metrics": {"right": {}}, declared: 0.0})
    assert rule.complete is Complete.DEADLINE
    assert not rule.is_complete({"right": 1.0})
    changed = RewardRule.model_validate({"metrics": {"right": {}}}).model_copy(update={declared: 0.0})
    assert changed.learned_at is Complete.DEADLINE, "also where it is declared by a copy"
    assert not changed.is_complete({"right": 1.0})
    for refused in ("any", "all"):
        with pytest.raises(ValueError, match=f"complete '{refused}' with {declared} 0"):
            RewardRule.model_validate({"metrics": {"right": {}}, declared: 0.0, "complete": refused})


@pytest.mark.parametrize(
    ("values", "quality"),
    [
        ({}, None),
        ({"gone": 1.0}, None),
        ({"right": 1.0}, 1.0),
        ({"thumb": -1.0}, 0.0),
        ({"thumb": 0.5}, 0.75),
        ({"right": 1.0, "thumb": -1.0}, 0.75),
        ({"right": 1.0, "thumb": 0.0}, 0.875),
        ({"seconds": 0.0}, 1.0),
        ({"seconds": 60.0}, 0.0),
        ({"right": 0.0, "thumb": 1.0, "seconds": 15.0}, 0.35),
    ],
)
def test_quality_is_the_weighted_mean_of_the_metrics_that_have_a_value(
    values: dict[str, float], quality: float | None
) -> None:
    assert RULE.quality(values) == quality


def test_without_feedback_quality_is_the_default() -> None:
    assert RewardRule(default=0.25).quality({}) == 0.25
    assert RewardRule(default=0.25, cost_weight=0.1).reward({}, Cost(steps=1)) == pytest.approx(0.15)
    assert RewardRule().reward({}, Cost(steps=1)) is None


@pytest.mark.parametrize(
    ("metric", "places"),
    [
        (Metric(range=(1, 5)), {1.0: 0.0, 2.0: 0.25, 3.0: 0.5, 5.0: 1.0}),
        (Metric(range=(1, 5), aggregation=Aggregation.SUM), {0.0: 0.0, 5.0: 1.0, 12.0: 1.0}),
        (Metric(range=(0, 5000), optimize="min"), {0.0: 1.0, 1250.0: 0.75, 5000.0: 0.0, 9000.0: 0.0}),
        (Metric(range=(10, 60), optimize="min"), {10.0: 1.0, 20.0: 0.8, 60.0: 0.0}),
        (Metric(range=(-1, 1)), {-1.0: 0.0, 0.0: 0.5, 1.0: 1.0}),
        (
            Metric(type="categorical", values={"good": 2, "bad": -2, "so": 1}),
            {2.0: 1.0, -2.0: 0.0, 1.0: 0.75},
        ),
        (Metric(), {0.0: 0.0, 0.3: 0.3, 1.0: 1.0}),
    ],
)
def test_a_value_counts_by_its_place_in_its_range(metric: Metric, places: dict[float, float]) -> None:
    rule, n = RewardRule(metrics={"m": metric}, cost_weight=0.0), len(places)
    assert {value: rule.quality({"m": value}) for value in places} == pytest.approx(places)
    columns = rewards(rule, {"m": np.array([*places])}, {}, np.full(n, False))
    assert columns.tolist() == [rule.reward({"m": value}, Cost()) for value in places]


@given(st.floats(-9, 9), st.floats(0.125, 9), st.sampled_from(["max", "min"]), st.floats(0, 1))
def test_the_value_at_a_place_has_this_place(
    low: float, width: float, optimize: Literal["max", "min"], place: float
) -> None:
    metric = Metric(range=(low, low + width), optimize=optimize)
    assert metric.scale(metric.value_at(place)) == pytest.approx(place, abs=1e-12)
    worst, best = metric.value_at(0.0), metric.value_at(1.0)
    assert (worst, best) == (metric.range if optimize == "max" else metric.range[::-1]), "exactly"
    assert metric.scale(metric.move(worst, place)) == pytest.approx(place, abs=1e-12)
    assert metric.move(best, place) == best


@pytest.mark.parametrize(("failed", "reward"), [(-0.5, -0.75), (None, None)])
def test_a_failed_arm_earns_what_is_declared_for_it(failed: float | None, reward: float | None) -> None:
    rule = RewardRule(metrics={"right": Metric()}, cost_weight=0.25, default=0.5, failed=failed)
    lost, silent = (example(metrics={}, cost=Cost(steps=1), failed=each) for each in (True, False))
    assert rule.compute_reward(lost) == reward
    assert rule.compute_reward(silent) == 0.25
    none = np.full(2, np.nan)
    columns = rewards(rule, {"right": none}, {"steps": np.ones(2)}, np.array([True, False]))
    np.testing.assert_array_equal(columns, [np.nan if reward is None else reward, 0.25])


@pytest.mark.parametrize(
    ("prices", "total"),
    [
        (Prices(steps=1), 2.0),
        (Prices(steps=0, kilotokens=1), 0.5),
        (Prices(steps=0, seconds=1), 3.5),
        (Prices(steps=0, usd=10), 0.1),
        (Prices(steps=1, kilotokens=1, seconds=1, usd=10), 6.1),
        (Prices(steps=0), 0.0),
    ],
)
def test_each_component_of_cost_has_its_price(prices: Prices, total: float) -> None:
    assert prices.total(Cost(2, 300, 200, 0.5, 3.0, 0.01)) == pytest.approx(total)


TODAY = {"large": (1.0, 2.0, 0.5), "small": (0.0, 4.0, 0.0), "kept": (1.0, 2.0, 0.25, 3.0)}


@pytest.mark.parametrize(
    ("tokens", "usd"),
    [
        ({"large": (2000, 500, 0)}, 3.0),
        ({"large": (2000, 500, 1000)}, 2.5),
        ({"large": (2000, 500, 0), "small": (9000, 250, 9000)}, 4.0),
        ({"large": (2000, 500, 0, 0.5), "small": (9000, 250, 9000, 0.25)}, 4.75),
        ({"large": (2000, 500, 0, 0.0, 1000)}, 3.0),
        ({"kept": (2000, 500, 400, 0.5, 1000)}, 5.2),
        ({"large": (2000, 500, 0), "gone": (1, 1, 0)}, 7.0),
        ({}, 7.0),
    ],
)
def test_tokens_count_at_known_prices_of_today(tokens: dict[str, ModelTokens], usd: float) -> None:
    prices = Prices(steps=0.5, usd=0.1)
    rule = RewardRule(
        metrics={"right": Metric()},
        cost_weight=1.0,
        cost=prices,
        token_prices=TODAY,
    )
    cost = Cost(steps=1, usd=7.0)
    assert rule.usd_today(7.0, tokens) == usd
    assert rule.price(cost, tokens) == pytest.approx(0.5 + 0.1 * usd)
    one = example(metrics={"right": 1.0}, cost=cost, tokens=tokens)
    assert rule.compute_reward(one) == pytest.approx(max(-1.0, 1.0 - 0.5 - 0.1 * usd))
    assert rule.model_copy(update={"token_prices": {}}).compute_reward(one) == pytest.approx(-0.2)


def test_the_reward_is_quality_minus_weighted_cost() -> None:
    assert RULE.reward({"right": 1.0}, Cost(steps=3)) == pytest.approx(0.7)
    free = RULE.model_copy(update={"cost_weight": 0.0})
    assert free.reward({"right": 1.0}, Cost(steps=3)) == 1.0


@pytest.mark.parametrize(("steps", "reward"), [(0, 0.5), (1, 0.5), (4, -0.5), (9, -0.5)])
def test_the_reward_is_clipped_on_both_sides(steps: int, reward: float) -> None:
    rule = RewardRule(metrics={"right": Metric()}, cost_weight=0.5, clip=(-0.5, 0.5))
    assert rule.reward({"right": 1.0}, Cost(steps=steps)) == reward
    assert rule.net(1.0, steps) == reward, "the same of a cost that was priced before"


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        ({}, (-1.0, 1.0)),
        ({"cost_weight": 0.0}, (0.0, 1.0)),
        ({"cost": {"steps": 0.0}}, (0.0, 1.0)),
        ({"cost": {"steps": 0.0, "usd": 1.0}}, (-1.0, 1.0)),
        ({"clip": (-0.05, 1.0)}, (-0.05, 1.0)),
        ({"clip": (-3.0, 3.0)}, (-3.0, 1.0)),
        ({"clip": (0.25, 0.5), "cost_weight": 0.0}, (0.25, 0.5)),
        ({"default": -0.5, "cost_weight": 0.0}, (-0.5, 1.0)),
        ({"default": 0.5, "cost_weight": 0.0}, (0.0, 1.0)),
        ({"failed": -0.25, "cost_weight": 0.0}, (-0.25, 1.0)),
        ({"failed": -2.0, "cost_weight": 0.0}, (-1.0, 1.0)),
        ({"default": 2.0, "clip": (-1.0, 3.0), "cost_weight": 0.0}, (0.0, 2.0)),
        ({"metrics": {"stars": {"range": (1, 5)}}, "cost_weight": 0.0}, (0.0, 1.0)),
        ({"metrics": {}}, (-1.0, 1.0)),
        ({"metrics": {}, "default": 0.25, "failed": 0.5, "cost_weight": 0.0}, (0.25, 0.5)),
        ({"metrics": {}, "default": 0.25, "cost_weight": 0.0}, (-1.0, 1.0)),
    ],
)
def test_the_range_of_rewards_is_that_of_the_rule_and_not_the_clip(
    change: dict[str, object], ends: tuple[float, float]
) -> None:
    rule = RewardRule.model_validate({"metrics": {"right": {}}, **change})
    assert rule.reward_range == ends


@given(st.integers(0, 2**32 - 1))
def test_no_reward_lies_outside_of_its_range(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rule = some_rule(rng)
    low, high = rule.reward_range
    assert rule.clip[0] <= low < high <= rule.clip[1]
    earned = [reward for each in some_examples(rng, 30) if (reward := rule.compute_reward(each)) is not None]
    assert all(low <= reward <= high for reward in earned)


# -- declarations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("duration", "seconds"), [("PT30M", 1800.0), ("PT0.5S", 0.5), ("P1DT1H", 90000.0), ("00:01:00", 60.0)]
)
def test_the_wait_time_is_an_iso_duration(duration: str, seconds: float) -> None:
    assert RewardRule(wait_time=duration).wait_s == seconds


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"wait_time": "soon"}, "'soon' is not an ISO 8601 duration such as PT30M"),
        ({"wait_time": "-PT1S"}, "must be longer than zero"),
        ({"clip": (1, -1)}, r"clip \(1\.0, -1\.0\) is empty"),
        ({"cost_weight": -1}, "greater than or equal to 0"),
        ({"metrics": {"m": {"range": (1, 1)}}}, r"range \[1\.0, 1\.0\] is empty"),
        ({"metrics": {"m": {"range": (0, math.inf)}}}, "finite number"),
        (
            {"metrics": {"m": {"range": (-1e308, 1e308)}}},
            r"range \[-1e\+308, 1e\+308\] is too wide",
        ),
        ({"metrics": {"m": {"type": "boolean", "range": (-1, 1)}}}, "a boolean takes no range"),
        ({"metrics": {"m": {"weight": 0}}}, "greater than 0"),
        ({"cost": {"steps": -1}}, "greater than or equal to 0"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RewardRule.model_validate(wrong)
