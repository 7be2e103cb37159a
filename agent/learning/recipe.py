"""Recipes: everything besides the log that determines a policy; and which recipe is active.

A configuration names a policy and a reward. A candidate may have another policy, or start from labels; its
promotion makes its recipe the active one.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from pydantic import ValidationError

from armwise.agent.config import AppConfig, ConfigError
from armwise.agent.learning.arithmetic import arithmetic
from armwise.agent.learning.router_scores import open_router
from armwise.agent.policies import Policy, PolicyError, PolicySpec, build_policy
from armwise.agent.routers import RouterError
from armwise.feedback.log import Store
from armwise.feedback.registry import ActivePolicy, ArmSet, Version, active_policy, arm_sets, versions
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import StartingPoint

logger = logging.getLogger(__name__)

DIGEST_CHARS = 12
"""Digits of a digest that are shown."""


@dataclass(frozen=True)
class Recipe:
    """Everything besides the log that determines a policy.

    Attributes:
        policy: Kind and parameters of the policy.
        reward: How the reward of a decision is computed.
        start: First example, labels of warm starts, and further sources of learning; None: rewards from the
            beginning of the log.
        router: Digest of the router in the log whose scores the policy reads; None: the configured router.
        arms: Names of the arms that it brings; None: the arms that are live.
    """

    policy: PolicySpec
    reward: RewardRule
    start: StartingPoint | None = None
    router: str | None = None
    arms: list[str] | None = None

    @cached_property  # asked for at each poll
    def digest(self) -> str:
        """Hash of the recipe: equal recipes give equal versions of equal logs."""
        document: dict[str, Any] = {
            "policy": self.policy.model_dump(mode="json"),
            "reward": self.reward.model_dump(mode="json"),
        }
        if self.start is not None:
            document["start"] = self.start.document()
        if self.router is not None:
            document["router"] = self.router
        if self.arms is not None:
            document["arms"] = self.arms
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_config(cls, config: AppConfig) -> Self:
        """Return the recipe of the configuration."""
        return cls(config.policy, config.reward)

    @classmethod
    def from_version(cls, version: Version, reward: RewardRule) -> Self:
        """Return the recipe of a version.

        Args:
            version: A published version.
            reward: The configured reward.

        Raises:
            PolicyError: Its policy is unknown here, or it was learned with another reward.
        """
        start = StartingPoint.from_document(version.start)
        recipe = cls(read_spec(version), reward, start, version.router, version.arms)
        if recipe.digest != version.recipe:
            raise PolicyError(
                f"version {version.version} is of recipe {version.recipe[:DIGEST_CHARS]}: it was learned "
                "with another reward than the configured one"
            )
        return recipe

    def build(self, arms: Sequence[str]) -> Policy:
        """Build the policy before any learning, for the recipe's arms if it has any. Raises PolicyError."""
        return build_policy(self.policy, self.arms or arms)

    def require_servable(self, store: Store, config: AppConfig) -> Policy:
        """Check that router and arms fit this configuration, and return the policy before any learning.

        Args:
            store: The log, which has the router and the live arms.
            config: Configuration of the service.

        Raises:
            PolicyError: It cannot decide here; the message says why.
            LogUnavailableError: Try again later.
        """
        try:
            arms = live_arms(store, config).arms if self.arms is None else self.arms
            config = config.with_arms(arms)
            if self.router is not None:
                has_fit = config.features.similarity is not None
                open_router(store, self.router).trained.check(
                    config.backbones, config.actions, has_fit=has_fit
                )
        except (ConfigError, RouterError) as error:
            raise PolicyError(
                f"its {'arms' if isinstance(error, ConfigError) else 'router'}: {error}"
            ) from None
        return self.build(list(config.actions))

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
            digest=versions.digest_state(state),
            epoch=epoch,
            created_at=now,
            start=None if self.start is None else self.start.document(),
            router=self.router,
            arms=self.arms,
            arithmetic=arithmetic(),
        )


def live_arms(store: Store, config: AppConfig) -> ArmSet:
    """Return the live arms for recipes that bring none; before a first start, those of the configuration."""
    return arm_sets.without_versions(store, config.arm_documents)


def list_known_arms(store: Store, config: AppConfig) -> list[str]:
    """Return the names of all arms that a recipe may name: configured arms, and those that were ever live."""
    return list(dict.fromkeys((*config.actions, *arm_sets.list_defined(store))))


def digest_configuration(config: AppConfig) -> str:
    """Return a digest of the settings that a candidate is judged by: the gate, the reward, the policy.

    Paths, keys and arms are left out.
    """
    apart = {"home", "log_url", "keys", "arms", "observations", "digest"}
    document = config.model_dump(mode="json", exclude=apart)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def read_spec(version: Version) -> PolicySpec:
    """Return the policy specification of a version. Raises PolicyError."""
    try:
        return PolicySpec.model_validate(version.policy)
    except ValidationError as error:
        raise PolicyError(f"version {version.version} has no valid policy: {error}") from None


def active_recipe(store: Store, config: AppConfig, active: ActivePolicy | None = None) -> Recipe:
    """Return the recipe that is learned and served under a configuration.

    That is the promoted recipe; or the configured one, if the promoted one cannot be built, for example
    because an arm was removed, or its router cannot be loaded.

    Args:
        store: The log.
        config: Has the configured recipe, and the arms.
        active: The promotions that hold; None to read them.

    Raises:
        LogUnavailableError: Try again later.
    """
    configured = Recipe.from_config(config)
    active = active or active_policy(store, configured.digest)
    if active.recipe == configured.digest:
        return configured
    assert active.promotion is not None
    version = versions.find(store, active.promotion.version)
    assert version is not None  # a promotion names a version that was published
    try:
        recipe = Recipe.from_version(version, config.reward)
        recipe.require_servable(store, config)
    except PolicyError as error:
        logger.warning(
            "version %d was promoted but cannot be served, so it is skipped: %s", version.version, error
        )
        return configured
    return recipe
