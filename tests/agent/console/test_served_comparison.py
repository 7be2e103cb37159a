"""What is said of what was served follows from intervals that hold together, at every look."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armwise.agent.console.served_comparison import (
    Alternative,
    ServedComparison,
    compare,
    least_floor,
    summarise_served,
)
from armwise.agent.learning import Recipe, publish_candidate
from armwise.feedback.log import Store
from armwise.feedback.ope.confidence_sequences import Evidence
from armwise.feedback.registry import arm_sets, promotions
from tests.agent.lab.warmstart.test_run import configured

LOOKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)

RUNS = 60


def looked_at(seed: int, right: tuple[float, ...], rewards: tuple[float, float]) -> list[tuple[bool, str]]:
    """Return for each look at a learning policy whether all intervals hold the truth, and the sentence."""
    rng, k, floor, n = np.random.default_rng(seed), len(right), 0.02, LOOKS[-1]
    means, drawn, counts = np.array(right), np.empty(n, int), np.ones(k)
    p, reward, total = np.empty((n, k)), np.empty(n), np.full(k, 0.5)
    for i in range(n):
        if i % 50 == 0:
            now = np.full(k, floor if i else 1.0 / k)
            if i:
                now[np.argmax(total / counts)] += 1.0 - k * floor
        p[i], drawn[i] = now, rng.choice(k, p=now)
        reward[i] = float(rng.random() < means[drawn[i]])
        counts[drawn[i]] += 1
        total[drawn[i]] += reward[i]
    found = []
    for look in LOOKS:
        a, r, w = drawn[:look], reward[:look], 1.0 / p[np.arange(look), drawn[:look]]
        arms = {str(arm): Evidence((a == arm) * w, r, rewards, 1.0 / floor) for arm in range(k)}
        served, alike = (
            Evidence(np.ones(look), r, rewards, 1.0),
            Evidence(w / k, r, rewards, 1.0 / (k * floor)),
        )
        one = compare(look, look, k, served, alike, arms)
        earned = float((p[:look] @ means).mean())
        truth = {None: earned - means.mean(), **{str(arm): earned - means[arm] for arm in range(k)}}
        assert one.uniform is not None
        assert one.earned is not None
        holds = all(other.low <= truth[other.name] <= other.high for other in (one.uniform, *one.arms))
        found.append((holds and one.earned[1][0] <= earned <= one.earned[1][1], summarise_served(one)))
    return found


@pytest.mark.parametrize("right", [(0.5, 0.5, 0.5), (0.2, 0.5, 0.8), (0.95, 0.9, 0.7)])
@pytest.mark.parametrize("rewards", [(0.0, 1.0), pytest.param((-1.0, 1.0), marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_all_intervals_of_all_looks_hold_the_truth_in_95_of_100_logs(
    right: tuple[float, ...], rewards: tuple[float, float]
) -> None:
    """Five of 60 are within two standard errors of one in twenty."""
    looks = [looked_at(seed, right, rewards) for seed in range(RUNS)]
    missed = sum(not all(holds for holds, _ in one) for one in looks)
    assert missed <= 5
    if max(right) - min(right) > 0.5:
        certain = [one[-1][1] for one in looks if "So far" not in one[-1][1]]
        told = sum("more than a uniform choice" in said or "less than always" in said for said in certain)
        assert told > RUNS / 2, "2,000 decisions show it, mostly"


def test_two_equal_rewards_prove_nothing() -> None:
    """Intervals of few rewards are as wide as rewards allow, and not wider."""
    one, two = (Evidence(np.full(2, weight), np.ones(2), (0.0, 1.0), 100.0) for weight in (1.0, 2.0))
    found = compare(2, 2, 2, one, one, {"a": two})
    assert found.uniform is not None
    assert (found.uniform.lead, found.uniform.low, found.uniform.high) == (0.0, -1.0, 1.0)
    assert found.earned == (1.0, (0.0, 1.0))
    assert found.arms[0].interval == (0.0, 1.0)
    assert summarise_served(found) == (
        "So far it earns 1.000 a decision, between 1.000 less and 1.000 more than a uniform choice: the two "
        "cannot be told apart yet: that takes at least about 22 more decisions."
    )


def test_more_arms_make_each_interval_wider() -> None:
    """The best of many is chosen after looking, so each of them is held to a smaller error."""
    rng = np.random.default_rng(0)
    r, w = rng.random(500), np.full(500, 2.0)
    one, many = (
        compare(
            *(500, 500, 2, None, Evidence(np.ones(500), r, (0.0, 1.0), 2.0)),
            dict.fromkeys(names, Evidence(w, r, (0.0, 1.0), 2.0)),
        )
        for names in ("a", "abcdefgh")
    )
    assert [other.name for other in many.arms] == [*"abcdefgh"], "of equal ones the first by name"
    assert many.arms[0].high - many.arms[0].low > 1.05 * (one.arms[0].high - one.arms[0].low)


LEAD = Alternative(None, 900, 0.6, (0.5, 0.7), 0.05, 0.02, 0.08, None)

OPEN = Alternative("a", 900, 0.7, (0.5, 0.8), -0.01, -0.05, 0.06, (1_200, 4_000))

LESS = Alternative("b", 900, 0.2, (0.1, 0.3), 0.5, 0.4, 0.6, None)

MORE = Alternative("c", 900, 0.8, (0.7, 0.9), -0.1, -0.15, -0.02, None)

WHOLE = ServedComparison(1000, 950, 900, (0.71, (0.6, 0.8)), LEAD, (OPEN,))


NOTHING: dict[str, Any] = {"rewarded": 0, "earned": None, "uniform": None, "arms": ()}

UNSURE = replace(LEAD, low=-0.02, more=(5_000, None))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decisions": 0, "explored": 0, **NOTHING}, ["Nothing was asked yet."]),
        ({"explored": 0, **NOTHING}, ["has not drawn yet", "1,000 decisions"]),
        ({"decisions": 1, "explored": 1, **NOTHING}, ["Of 1 decision none has a reward", "feedback"]),
        ({"uniform": None, "arms": ()}, ["It earns 0.710", "single arm can be drawn"]),
        ({}, ["0.050 (0.020 to 0.080) more than a uniform", "no single arm is shown"]),
        (
            {"uniform": replace(LEAD, lead=-0.05, low=-0.08, high=-0.02), "arms": ()},
            ["0.050 (0.020 to 0.080) less than a uniform"],
        ),
        ({"arms": (MORE, OPEN, LESS)}, ["0.100 (0.020 to 0.150) less than always using c "]),
        (
            {"arms": (MORE, replace(MORE, name="d", lead=-0.2, low=-0.3, high=-0.1))},
            ["0.200 (0.100 to 0.300) less than always using d "],
        ),
        ({"arms": (OPEN, LESS)}, ["more than a uniform", "more than always using b", "no other single arm"]),
        (
            {"arms": (replace(LESS, name="d", lead=0.1, low=0.05, high=0.2), LESS)},
            ["more than any single arm, 0.100 (0.050 to 0.200) more than d."],
        ),
        (
            {"arms": (OPEN, *(replace(LESS, name=name) for name in "defg"))},
            ["more than 4 of 5 single arms", "no other single arm"],
        ),
        ({"uniform": UNSURE, "arms": (OPEN, LESS)}, ["cannot be told apart", "more than always using b"]),
        (
            {"uniform": UNSURE},
            ["So far", "between 0.020 less and 0.080 more", "about 1,200 to 4,000 more decisions"],
        ),
        ({"uniform": replace(UNSURE, more=(1, 90)), "arms": ()}, ["So far", "up to about 90 more decisions"]),
    ],
)
def test_a_judgement_stands_where_an_interval_leaves_0_out(changes: dict[str, Any], said: list[str]) -> None:
    sentence = summarise_served(replace(WHOLE, **changes))
    assert [part for part in said if part not in sentence] == []
    uniform = changes.get("uniform", LEAD)
    assert ("told apart" in sentence) is bool(uniform and uniform.doubt)


@pytest.mark.parametrize(
    ("fields", "doubt"),
    [
        ({}, ""),
        ({"low": -0.3, "high": -0.01}, ""),
        ({"low": 0.0}, "cannot be told apart"),
        ({"high": 0.0, "low": -0.1}, "cannot be told apart"),
        (
            {"low": -0.1, "more": (410_000, None)},
            "cannot be told apart yet: that takes at least about 410,000 more decisions",
        ),
    ],
)
def test_an_alternative_is_in_doubt_where_its_interval_holds_0(fields: dict[str, Any], doubt: str) -> None:
    found = replace(LEAD, **fields).doubt
    assert found.startswith(doubt)
    assert bool(found) == bool(doubt)


def test_so_many_decisions_later_the_lead_is_told_apart() -> None:
    """With as many more decisions of the same kind as announced, the interval leaves 0 out."""
    rng = np.random.default_rng(1)
    n = 1000
    first = rng.random(n) < 0.6
    reward = np.where(first, rng.random(n) < 0.55, rng.random(n) < 0.45).astype(float)

    def after(times: int) -> ServedComparison:
        r, w = np.tile(reward, times), np.tile(np.where(first, 0.5 / 0.6, 0.5 / 0.4), times)
        arms = {"b": Evidence(np.tile(~first / 0.4, times), r, (0.0, 1.0), 2.5)}
        return compare(n * times, n * times, 2, None, Evidence(w, r, (0.0, 1.0), 2.5), arms)

    now = after(1)
    (arm,) = now.arms
    assert arm.more is not None
    least, most = arm.more
    assert most is not None
    assert not after(1 + least // n).arms[0].worse
    assert after(2 + most // n).arms[0].worse


@pytest.mark.parametrize(("gap", "foreseen"), [(0.12, True), (0.001, False)])
def test_a_lead_that_is_out_of_sight_names_no_most(gap: float, foreseen: bool) -> None:
    """More than twenty times the decisions at hand is no forecast."""
    weight, noise = np.tile([0.5, 1.5], 200), np.tile([0.2, 0.2, 0.8, 0.8], 100)
    reward = noise + np.where(weight < 1.0, gap, 0.0)
    found = compare(400, 400, 2, None, Evidence(weight, reward, (0.0, 1.0), 2.0), {}).uniform
    assert found is not None
    assert found.lead == pytest.approx(gap / 4)
    assert found.more is not None
    assert (found.more[1] is not None) is foreseen


def test_the_least_floor_is_that_of_a_canary_once_one_was_automatic(tmp_path: Path) -> None:
    config = configured(tmp_path, canary="auto").model_copy(update={"floor": 0.02})
    with closing(Store(config.database_url)) as store:
        recipe = Recipe.from_config(config)
        number = publish_candidate(store, recipe, list(config.actions)).version

        def recorded(action: promotions.Action, share: float, *, automatic: bool) -> float:
            promotion = promotions.Promotion(0, number, action, "so", 9.0, share=share, automatic=automatic)
            promotions.record(store, recipe.digest, promotion)
            return least_floor(store, config)

        assert least_floor(store, config) == 0.02
        assert recorded(promotions.Action.CANARY, 0.1, automatic=False) == 0.02, "all of it is kept"
        assert recorded(promotions.Action.PROMOTE, 0.0, automatic=True) == 0.02
        assert recorded(promotions.Action.CANARY, 0.1, automatic=True) == 0.005
        assert recorded(promotions.Action.CANARY, 0.0, automatic=True) == 0.005, "its decisions stay"


def test_the_least_floor_is_that_of_the_most_arms_that_were_ever_live(tmp_path: Path) -> None:
    config = configured(tmp_path)
    with closing(Store(config.database_url)) as store:
        n_arms = len(config.actions)
        assert least_floor(store, config) == pytest.approx(0.02 / n_arms)
        more = {f"arm-{number}": {"kind": "none"} for number in range(n_arms + 2)}
        arm_sets.start(store, more)
        arm_sets.start(store, {"one": {"kind": "none"}})
        assert least_floor(store, config) == pytest.approx(0.02 / (n_arms + 2))
        fixed = config.model_copy(update={"floor": 0.01})
        assert least_floor(store, fixed) == 0.01, "whatever the number of arms"


def test_an_arm_that_was_hardly_drawn_is_not_called_the_best_however_good_its_estimate_is() -> None:
    rng, n = np.random.default_rng(3), 2000
    reward = np.full(n, 0.6)
    often, seldom = np.full(n, 1.0), np.zeros(n)
    often[rng.choice(n, 20, replace=False)] = 0.0
    drawn = np.flatnonzero(often == 0.0)

    def best(times: int) -> str | None:
        weight, earned = seldom.copy(), reward.copy()
        weight[drawn[:times]], earned[drawn[:times]] = 100.0, 1.0
        arms, alike = (
            {name: Evidence(each, earned, (0.0, 1.0), 100.0) for name, each in some.items()}
            for some in ({"often": often, "seldom": weight}, {"alike": (often + weight) / 2})
        )
        found = compare(n, n, 2, None, alike["alike"], arms).best
        return None if found is None else found.name

    assert [best(4), best(19), best(20)] == ["often", "often", "seldom"]


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([(0.7, 0.9)], "the only arm that can be compared"),
        ([(0.7, 0.9), (0.4, 0.6)], "the best single arm"),
        ([(0.7, 0.9), (0.5, 0.7)], "the best estimate, but cannot be told apart from arm 1"),
        ([(0.7, 0.9), (0.4, 0.6), (0.1, 0.8), (0.6, 0.8)], "cannot be told apart from 2 other arms"),
        ([], ""),
    ],
)
def test_an_arm_is_the_best_only_where_its_interval_says_so(
    ends: list[tuple[float, float]], said: str
) -> None:
    arms = tuple(
        Alternative(f"arm {number}", 90, sum(each) / 2.0, each, 0.0, -0.1, 0.1, None)
        for number, each in enumerate(ends)
    )
    assert ServedComparison(90, 90, 90, None, None, arms).best_in_words.endswith(said)
