"""The arms that a host runs, and those that run in a replica of the ingress."""

from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path

from armwise.agent.config import AppConfig, ConfigError
from armwise.agent.routers import saved
from armwise.agent.telemetry import begin
from armwise.agent.wings import OPEN_SELECTOR, load
from armwise.arms.deployments import (
    ArmHost,
    ArmSettings,
    Embedders,
    HostedArms,
    SearchHost,
    retrieval_cache,
)
from armwise.arms.llm import Generator, catalog
from armwise.arms.retrievers import ArmGraph, ArmSpec
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.log import Store
from armwise.feedback.registry import arm_sets

Arms = Mapping[str, ArmSpec]

CACHE_BYTES = 256 << 20
"""Size of the file with the passages of arms with `cache`; what was used least recently is removed first."""


def read_settings(config: AppConfig) -> ArmSettings:
    """Return the settings from which every host builds its arms."""
    return ArmSettings(
        config.corpus_sources,
        config.indexes_path,
        config.backbones,
        config.limits.arm_timeout_s,
        load(OPEN_SELECTOR),
        catalog.find_prices(config.llm),
    )


def arms_on(
    host: str | None, arms: Arms, deployments: Collection[str] | None
) -> dict[str, dict[str, ArmSpec]]:
    """Return the arms of a deployment, each with its member arms; None: the process that answers HTTP."""
    graph = ArmGraph(arms)
    return {
        name: graph.closure(name)
        for name, spec in arms.items()
        if spec.action and spec.kind != "none" and graph.deployment(name, deployments) == host
    }


def live(config: AppConfig) -> Arms:
    """Return the live arms; or those of the configuration, if the log is unavailable."""
    try:
        with closing(Store(config.database_url)) as store:
            return config.with_arms(arm_sets.at_start(store, config.arm_documents)).arms
    except (LogUnavailableError, ConfigError):
        return config.arms


def live_on(host: str, config: AppConfig) -> dict[str, dict[str, ArmSpec]]:
    """Begin the telemetry of a deployment at its start, and return its live arms."""
    begin(config.telemetry)
    return arms_on(host, live(config), ArmGraph(config.arms).deployments())


def open_here(
    config: AppConfig,
    deployed: Mapping[str, SearchHost] | None,
    embedders: Embedders,
    generator: Generator,
    folder: Path | None = None,
) -> HostedArms:
    """Build the arms that the process that answers HTTP runs, and load the encoders that it decides with.

    Encoders that only arms need are marked as `expected` of `embedders`: a model takes seconds to load, while
    the replica serves other arms.

    Args:
        config: The configuration.
        deployed: The other hosts of arms, by deployment; None: this process runs all arms.
        embedders: The encoders.
        generator: The language model, for arms that prompt it.
        folder: Folder for the retrievals of arms with `cache`; None: no caching.

    Returns:
        All arms, here and on other hosts.

    Raises:
        ArmError: An arm of the configuration cannot be built, or an encoder cannot be loaded.
    """
    now = live(config)
    # policy and router embed questions
    specs = (config.features.embedding, config.features.similarity)
    router = set() if config.router is None else {saved.read_about(config.router.path).backbone}
    read = {spec.backbone for spec in specs if spec is not None}
    embedders.open(frozenset(router | {name for name in read if name is not None}))
    embedders.expected = ArmGraph(now).embeddings_of_actions()
    here = ArmHost(
        read_settings(config),
        arms_on(None, config.arms, deployed),
        lambda: arms_on(None, now, deployed),
        embedders,
        generator,
        saved.find_passage_backbone(config.router),
    )
    cache = (
        None
        if folder is None
        else retrieval_cache.RetrievalCache(folder, CACHE_BYTES, config.retrieval_cache.ttl_s)
    )
    return HostedArms(here, deployed, embedders, config.arms, cache)
