"""Recipes: all that shapes a policy besides the log, and the one that a configuration follows now.

A configuration names a policy and a reward. A candidate may be of another policy or may have started
from labels; once one is promoted, its recipe is followed in the place of the configured one.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError

from agent.config import AppConfig
from agent.policies import Policy, PolicyError, PolicySpec, build_policy
from feedback.log import Store
from feedback.registry import ActivePolicy, Version, active_policy, versions
from feedback.reward import RewardRule
from feedback.training_log import StartingPoint

logger = logging.getLogger(__name__)

DIGEST_CHARS = 12
"""Digits of a digest that tell it from others."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes a policy of a log.

    Attributes:
        policy: What learns.
        reward: What it is told of each decision.
        start: Where it begins to learn; None for the beginning of the log.
    """

    policy: PolicySpec
    reward: RewardRule
    start: StartingPoint | None = None

    @property
    def digest(self) -> str:
        """Names it: equal recipes make equal versions of equal logs."""
        document: dict[str, Any] = {
            "policy": self.policy.model_dump(mode="json"),
            "reward": self.reward.model_dump(mode="json"),
        }
        if self.start is not None:
            document["start"] = self.start.document()
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    @classmethod
    def configured(cls, config: AppConfig) -> Self:
        """Return the one that a configuration names, whatever is promoted."""
        return cls(config.policy, config.reward)

    @classmethod
    def of(cls, version: Version, reward: RewardRule) -> Self:
        """Return the one of a version.

        Args:
            version: What was published.
            reward: How rewards are made.

        Raises:
            PolicyError: It names no policy of ours, or learned from another reward.
        """
        recipe = cls(spec_of(version), reward, StartingPoint.of(version.start))
        if recipe.digest != version.recipe:
            raise PolicyError(
                f"version {version.version} is of recipe {version.recipe[:DIGEST_CHARS]}: it was learned by "
                "another reward than the one that is configured"
            )
        return recipe

    def build(self, arms: Sequence[str]) -> Policy:
        """Build its policy without a history. Raises PolicyError, naming what does not fit."""
        return build_policy(self.policy, arms)

    def draft(
        self,
        state: bytes,
        examples_seq: int,
        applied_seq: int,
        parent: int | None,
        epoch: int,
        now: float,
    ) -> Version:
        """Return a version of it before it is published, with the number 0."""
        return Version(
            version=0,
            parent=parent,
            recipe=self.digest,
            join=self.reward.join,
            policy=self.policy.model_dump(mode="json"),
            examples_seq=examples_seq,
            applied_seq=applied_seq,
            digest=versions.digest_of(state),
            epoch=epoch,
            created_at=now,
            start=None if self.start is None else self.start.document(),
        )


def configuration_of(config: AppConfig) -> str:
    """Return a digest of all that is configured, but for where it runs, who may call and which arms are live.

    What a candidate is judged by follows from it: the gate, the reward, the policy.
    """
    document = config.model_dump(mode="json", exclude={"home", "log_url", "keys", "arms"})
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def spec_of(version: Version) -> PolicySpec:
    """Return the policy that a version is of. Raises PolicyError."""
    try:
        return PolicySpec.model_validate(version.policy)
    except ValidationError as error:
        raise PolicyError(f"version {version.version} names no policy of ours: {error}") from None


def active_recipe(store: Store, config: AppConfig, said: ActivePolicy | None = None) -> Recipe:
    """Return the recipe that is learned and served under a configuration.

    What was promoted and cannot be built here, as of an arm that was removed since, is passed over:
    the configured recipe is active.

    Args:
        store: The log.
        config: Names the configured recipe, and the arms.
        said: What is in force under it; None to look.

    Raises:
        LogUnavailableError: Try again later.
    """
    configured = Recipe.configured(config)
    said = said or active_policy(store, configured.digest)
    if said.recipe == configured.digest:
        return configured
    assert said.promotion is not None
    version = versions.find(store, said.promotion.version)
    assert version is not None  # a word is about a version that was published
    try:
        recipe = Recipe.of(version, config.reward)
        recipe.build(list(config.actions))
    except PolicyError as error:
        logger.warning("version %d was promoted and is passed over: %s", version.version, error)
        return configured
    return recipe
