"""The loop over examples that trains a policy: of the learner, of restored versions and of candidates."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from armwise.agent.learning.recipe import Recipe
from armwise.agent.policies import Policy
from armwise.feedback.events import Example
from armwise.feedback.log import Store
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import read_learned_examples


def learn(
    store: Store,
    recipe: Recipe,
    policy: Policy,
    after: int | None,
    upto: int,
    watch: Callable[[Iterator[Example]], Iterable[Example]] = iter,
) -> None:
    """Train a policy on the examples of its recipe, in order.

    Args:
        store: The log.
        recipe: The recipe of the policy.
        policy: The policy; it is changed.
        after: Position of the training log up to which it has learned, labels included; None: it has learned
            nothing.
        upto: Position of the last example to learn.
        watch: Sees each example before it is learned, and goes on once it is.

    Raises:
        LogGapError: Rows of the training log or of its facts are missing.
    """
    examples = read_learned_examples(store, recipe.reward, recipe.start, after, upto, recipe.router)
    train_on(policy, recipe.reward, watch(examples))


def train_on(policy: Policy, rule: RewardRule, examples: Iterable[Example]) -> None:
    """Train a policy on examples, in order, with the rewards of a rule."""
    learn: Any = policy.learn
    learns_costs = getattr(policy, "learns_costs", False)
    for example in examples:
        reward = rule.compute_learned_reward(example)
        if reward is not None:
            learn(example.decision, reward, *((rule.compute_learned_cost(example),) if learns_costs else ()))
