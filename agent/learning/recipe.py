"""Recipes: everything besides the log that determines a policy, and the one that is active.

A configuration names a policy and a reward. A candidate may have another policy, or start from labels;
once it is promoted, its recipe is active in the place of the configured one.
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
"""Digits of a digest that are shown."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a policy is learned by.

    Attributes:
        policy: Kind and parameters of the policy.
        reward: How the reward of a decision is computed.
        start: First example, and labels of warm starts; None for the beginning of the log.
    """

    policy: PolicySpec
    reward: RewardRule
    start: StartingPoint | None = None

    @property
    def digest(self) -> str:
        """Identifies the recipe: equal recipes give equal versions of equal logs."""
        document: dict[str, Any] = {
            "policy": self.policy.model_dump(mode="json"),
            "reward": self.reward.model_dump(mode="json"),
        }
        if self.start is not None:
            document["start"] = self.start.document()
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    @classmethod
    def configured(cls, config: AppConfig) -> Self:
        """Return the recipe of the configuration, whatever is promoted."""
        return cls(config.policy, config.reward)

    @classmethod
    def of(cls, version: Version, reward: RewardRule) -> Self:
        """Return the recipe of a version.

        Args:
            version: A published version.
            reward: The configured reward.

        Raises:
            PolicyError: Its policy is unknown here, or it was learned by another reward.
        """
        recipe = cls(spec_of(version), reward, StartingPoint.of(version.start))
        if recipe.digest != version.recipe:
            raise PolicyError(
                f"version {version.version} is of recipe {version.recipe[:DIGEST_CHARS]}: it was learned by "
                "another reward than the one that is configured"
            )
        return recipe

    def build(self, arms: Sequence[str]) -> Policy:
        """Build the policy without a history. Raises PolicyError."""
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
        """Return an unpublished version of the recipe, with the number 0."""
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
    """Return a digest of the configuration without paths, keys and arms.

    It covers what a candidate is judged by: the gate, the reward, the policy.
    """
    document = config.model_dump(mode="json", exclude={"home", "log_url", "keys", "arms", "new_arms"})
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def spec_of(version: Version) -> PolicySpec:
    """Return the policy specification of a version. Raises PolicyError."""
    try:
        return PolicySpec.model_validate(version.policy)
    except ValidationError as error:
        raise PolicyError(f"version {version.version} has no valid policy: {error}") from None


def active_recipe(store: Store, config: AppConfig, active: ActivePolicy | None = None) -> Recipe:
    """Return the recipe that is learned and served under a configuration.

    Where the promoted recipe cannot be built, for example because an arm was removed, the configured
    one is active.

    Args:
        store: The log.
        config: Names the configured recipe, and the arms.
        active: The promotions that hold under it; None to read them.

    Raises:
        LogUnavailableError: Try again later.
    """
    configured = Recipe.configured(config)
    active = active or active_policy(store, configured.digest)
    if active.recipe == configured.digest:
        return configured
    assert active.promotion is not None
    version = versions.find(store, active.promotion.version)
    assert version is not None  # a promotion names a version that was published
    try:
        recipe = Recipe.of(version, config.reward)
        recipe.build(list(config.actions))
    except PolicyError as error:
        logger.warning("version %d was promoted and is passed over: %s", version.version, error)
        return configured
    return recipe
