"""Recipes: equal ones have equal digests, and the one that is active is what was promoted last."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.config import AppConfig, parse
from armwise.agent.learning.learner import Learner
from armwise.agent.learning.recipe import Recipe, active_recipe, digest_configuration
from armwise.agent.learning.training import train_on
from armwise.agent.policies import PolicyError, PolicySpec
from armwise.agent.policies.base import Uniform
from armwise.feedback.events import Context, Cost, Decision, Example
from armwise.feedback.log import Store
from armwise.feedback.registry import Version, promotions
from armwise.feedback.reward import Metric, Prices, RewardRule
from armwise.feedback.training_log import StartingPoint, take_epoch
from tests.agent.fakes import CONFIG
from tests.steps import change

SPEC = PolicySpec(kind="linucb")
RULE = RewardRule(correction_time="PT0S", metrics={"thumb": Metric(range=(-1, 1))})


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    return parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})


def published(store: Store, recipe: Recipe) -> Version:
    version = Learner(store, recipe, ["bm25"], take_epoch(store, "test", 0.0)).step()
    assert version is not None
    return version


def test_a_recipe_is_all_that_shapes_a_policy_and_nothing_else() -> None:
    base = Recipe(SPEC, RULE).digest
    assert Recipe(SPEC.model_copy(), RewardRule.model_validate(RULE.model_dump(mode="json"))).digest == base
    others = [
        Recipe(PolicySpec(kind="linucb", params={"alpha": 0.5}), RULE),
        Recipe(SPEC, RULE.model_copy(update={"clip": (-2.0, 2.0)})),
        Recipe(SPEC, RULE, StartingPoint(runs=(1,))),
        Recipe(SPEC, RULE, StartingPoint(runs=(1, 2))),
        Recipe(SPEC, RULE, StartingPoint(runs=(1,), after=2)),
        Recipe(PolicySpec(kind="lin_ts"), RULE),
        Recipe(SPEC, RULE.model_copy(update={"cost_weight": 0.7})),
        Recipe(SPEC, RULE, router="a" * 64),
        Recipe(SPEC, RULE, router="b" * 64),
        Recipe(SPEC, RULE, arms=[]),
        Recipe(SPEC, RULE, arms=["bm25"]),
        Recipe(SPEC, RULE, arms=["bm25", "dense"]),
    ]
    assert len({base, *(one.digest for one in others)}) == 1 + len(others)


def test_a_policy_chooses_among_the_arms_of_its_recipe() -> None:
    recipe = Recipe(PolicySpec(kind="fixed", params={"arm": "bm25"}), RULE, arms=["bm25"])
    assert recipe.build(["none"]).kind == "fixed"
    with pytest.raises(PolicyError):
        replace(recipe, arms=["dense"]).build(["bm25"])


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"reward": {**CONFIG["reward"], "cost_weight": 0.2}}, False),
        ({"policy": {"kind": "linucb"}}, False),
        ({"floor": 0.02}, False),
        ({"gate": {"margin": 0.05}}, False),
        ({"features": {"shape": False}}, False),
        ({"home": "/elsewhere"}, True),
        ({"log_url": "sqlite:///elsewhere.db"}, True),
        ({"keys": [{"env": "A_KEY"}]}, True),
        ({"arms": {"bm25": {"kind": "bm25"}}}, True),
        ({"observations": {"shadow": 0.5}}, True),
    ],
    ids=str,
)
def test_an_evaluation_is_of_gate_reward_and_policy(change: dict[str, Any], same: bool) -> None:
    assert (digest_configuration(parse(CONFIG | change)) == digest_configuration(parse(CONFIG))) == same


@pytest.mark.parametrize("start", [None, StartingPoint(), StartingPoint(runs=(2, 4), after=0)])
def test_a_version_says_of_which_recipe_it_is(tmp_path: Path, start: StartingPoint | None) -> None:
    store = Store(f"sqlite:///{tmp_path / 'log.db'}")
    recipe = Recipe(SPEC, RULE, start)
    version = published(store, recipe)
    assert Recipe.from_version(version, RULE) == recipe
    with pytest.raises(PolicyError, match=r"version 1 is of recipe .* learned with another reward"):
        Recipe.from_version(version, RULE.model_copy(update={"cost_weight": 0.7}))
    with pytest.raises(PolicyError, match="version 1 has no valid policy"):
        Recipe.from_version(replace(version, policy={"params": {}}), RULE)
    store.close()


def test_the_configured_recipe_is_followed_until_a_promotion(store: Store, config: AppConfig) -> None:
    configured = Recipe.from_config(config)
    assert active_recipe(store, config) == configured
    other = Recipe(SPEC, config.reward, StartingPoint(runs=(3,)))
    ours, theirs = published(store, configured), published(store, other)
    promotions.record(
        store,
        configured.digest,
        promotions.Promotion(0, theirs.version, promotions.Action.ROLLBACK, "why not", 1.0),
    )
    assert active_recipe(store, config) == configured
    promotions.record(
        store,
        configured.digest,
        promotions.Promotion(0, theirs.version, promotions.Action.PROMOTE, "why not", 1.0),
    )
    assert active_recipe(store, config) == other
    promotions.record(
        store,
        configured.digest,
        promotions.Promotion(0, ours.version, promotions.Action.ROLLBACK, "why not", 1.0),
    )
    assert active_recipe(store, config) == other
    priced = config.model_copy(update={"reward": config.reward.model_copy(update={"cost_weight": 0.7})})
    assert active_recipe(store, priced) == Recipe.from_config(priced)
    promotions.record(
        store,
        configured.digest,
        promotions.Promotion(0, ours.version, promotions.Action.PROMOTE, "why not", 1.0),
    )
    assert active_recipe(store, config) == configured


def test_what_was_promoted_and_cannot_be_built_here_is_passed_over(
    store: Store, config: AppConfig, caplog: pytest.LogCaptureFixture
) -> None:
    configured = Recipe.from_config(config)
    gone = Recipe(PolicySpec(kind="fixed", params={"arm": "gone"}), config.reward)
    version = Learner(store, gone, ["gone"], take_epoch(store, "test", 0.0)).step()
    assert version is not None
    promotions.record(
        store,
        configured.digest,
        promotions.Promotion(0, version.version, promotions.Action.PROMOTE, "why not", 1.0),
    )
    assert active_recipe(store, config) == configured
    (warned,) = caplog.records
    assert warned.message.startswith(
        "version 1 was promoted but cannot be served, so it is skipped: policy 'fixed' names the arm"
    )


def test_a_policy_is_trained_on_rewards_without_what_caches_lacked() -> None:
    heard, paid = list[float](), list[float]()

    class Listening(Uniform):
        def learn(self, decision: Decision, reward: float) -> None:  # noqa: ARG002
            heard.append(reward)

    class ListeningToCosts(Uniform):
        learns_costs = True

        def learn(self, decision: Decision, reward: float, cost: float = 0.0) -> None:  # noqa: ARG002
            paid.append(cost)

    rule = RewardRule(
        correction_time="PT0S", metrics={"right": Metric()}, cost=Prices(steps=0.0, usd=1.0), cost_weight=1.0
    )
    arms, p = ("a", "b"), (0.5, 0.5)
    made = Decision("d", Context("?"), arms, p, "b", "uniform", 1)
    made = change(made, miss_costs=(0.0, 0.25), usd_weight=9.0)
    once = Example(1, made, Cost(usd=0.5), {"right": 1.0})
    examples = [once, replace(once, turns=2), replace(once, decision=replace(made, drawn="a"))]
    train_on(Listening(), rule, examples)
    assert heard == [0.75, 0.875, 0.5], "the mean of two turns has half of it"
    train_on(ListeningToCosts(), rule, examples)
    assert paid == [0.25, 0.125, 0.5], "what the reward lacks to the quality, which is 1"
