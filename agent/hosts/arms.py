"""Which arms a host runs."""

from collections.abc import Mapping
from contextlib import closing

from agent.config import AppConfig, ConfigError
from agent.serving import arms as serving_arms
from arms.retrievers import ArmSpec, closure
from feedback.errors import LogUnavailableError
from feedback.log import Store
from feedback.registry import arm_sets


def arms_on(host: str, arms: Mapping[str, ArmSpec]) -> dict[str, dict[str, ArmSpec]]:
    """Return the arms that a host runs, each with its members."""
    return {
        name: closure(name, arms)
        for name, spec in arms.items()
        if spec.host == host and spec.action and spec.kind != "none"
    }


def live_on(host: str, config: AppConfig) -> dict[str, dict[str, ArmSpec]]:
    """Return the live arms of a host; those of the configuration where the log is unavailable."""
    try:
        with closing(Store(config.database_url)) as store:
            arms = config.with_arms(arm_sets.at_start(store, serving_arms.documents(config.arms))).arms
    except (LogUnavailableError, ConfigError):
        arms = config.arms
    return arms_on(host, arms)
