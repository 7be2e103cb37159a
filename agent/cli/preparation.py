"""What comes before a service: checks, and what is missing is built, from the log to the models.

A child builds, `armwise serve --prepare-only`, whose memory is free again at its end.
"""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NoReturn

from armwise.agent.access import is_loopback, require_closed
from armwise.agent.cli.console import PLAIN, ProgressCallback, console, errors
from armwise.agent.cli.options import open_home, warn_of_a_copy
from armwise.agent.config import AppConfig, ConfigError
from armwise.agent.doctor import (
    check_configuration,
    check_endpoints,
    check_files,
    check_proxies,
    describe_budget_without_prices,
    is_open_to_all,
    require_libraries,
    require_models,
)
from armwise.agent.routers import saved
from armwise.agent.run_folder import NO_QUESTION, RUN_FOLDER
from armwise.agent.wings import OPEN_SELECTOR, load
from armwise.arms.corpus import Corpus, CorpusError, CorpusSource, ingest_all
from armwise.arms.filters import GROUPS
from armwise.arms.indexes import build_once, prepare_vectors
from armwise.arms.llm import catalog
from armwise.arms.models import bundled, require_whole
from armwise.arms.own_processes import ends_with_its_parent, python
from armwise.arms.retrievers import ArmGraph, Resources, prepare_profiles
from armwise.arms.retrievers import prepare as prepare_arms
from armwise.feedback.log import open_log

EXAMPLE_QUESTION = "How do I compress data with gzip?"
"""A question that the documentation of the standard library answers."""

SAMPLED = 50
"""Passages among whose headings and titles one is looked for."""

MAX_SUBJECT = 80
"""Characters of a subject in a suggested question."""


class NotBuiltError(Exception):
    """Something has to be built before the service answers."""


def look(*_: object) -> NoReturn:
    """Refuse to build: in place of a callback of the progress. Raises NotBuiltError."""
    raise NotBuiltError


class ProcessLostError(Exception):
    """A process that the service needs was killed; the message names it and the remedy."""


def check_service(config: Path, settings: AppConfig, host: str) -> None:
    """Make the home, install missing models, and print what is serious, or raise what is wrong."""
    require_libraries(settings)
    if settings.log_path is not None:
        warn_of_a_copy(settings.log_path)
    open_to_all = is_open_to_all(settings, host)
    require_closed(host, is_open=bool(open_to_all), allowed=settings.open)
    if problem := describe_budget_without_prices(settings):
        raise ConfigError(problem)
    findings = check_configuration(settings, host, is_open=open_to_all)
    found = (findings, check_files(settings), check_proxies(settings), check_endpoints(settings))
    for finding in chain(*found):
        if finding.serious:
            errors.print(str(finding), style="yellow", soft_wrap=True)
    open_home(settings)
    install_missing_models(settings)
    require_models(settings)
    if open_to_all and is_loopback(host):
        closes = shlex.join(["armwise", "key", "create", "--name", "me", "-c", str(config)])
        warning = "No API key is set, so any program on this machine can use the service. To require one"
        console.print(f"{warning}: {closes}", **PLAIN)


def install_missing_models(settings: AppConfig) -> None:
    """Install the default models where one that is configured is missing. Raises ModelNotFoundError."""
    models = {model for backbone in settings.backbones.values() for model in backbone.models}
    models |= {spec.model for spec in settings.models.values() if isinstance(spec, catalog.EmbeddedSpec)}
    if bundled.missing(models):
        console.print("Installing the default models (196 MB)", **PLAIN)
        bundled.install()


def prepare(config: AppConfig, progress: ProgressCallback) -> None:
    """Open the log; ingest the corpus and build the indexes, where they are missing or damaged.

    All their files are compared with their digests here, once before a service starts; its processes compare
    sizes.
    """
    config = config.resolve_places()
    config.privacy.redactor()
    config.build_steps()
    open_log(config.database_url, config.reward).close()  # what is wrong with the log is reported at once
    require_whole({model for backbone in config.backbones.values() for model in backbone.models})
    graph = ArmGraph(config.arms)
    elsewhere = any(spec.action and spec.kind != "none" for spec in graph.keep_readable(()).values())
    corpus = ingest_all(
        config.corpus_sources, compare=True, leave_out=True, least=0 if elsewhere else 1, progress=progress
    )
    build_once.discard_damaged(config.indexes_path)
    open_selector, arms = load(OPEN_SELECTOR), graph.keep_readable(corpus.parts)
    resources = Resources(
        corpus,
        config.indexes_path,
        config.backbones,
        arms,
        open_selector=open_selector,
        wait_s=config.limits.search_s,
    )
    prepare_arms(resources, progress=progress)
    if (similarity := config.features.similarity) is not None:
        prepare_profiles(arms, similarity, resources, progress)
    if config.router is not None:
        saved.warn_of_corpus(saved.read_about(config.router.path), corpus.digest)
    for name in saved.find_passage_backbone(config.router):
        prepare_vectors(corpus, config.indexes_path, config.backbones[name], progress)


def start_builder(
    config: Path, folder: Path | None, environment: Mapping[str, str] = os.environ
) -> "subprocess.Popen[bytes]":
    """Start the child that builds what is missing for a run; without a folder, it checks all before."""
    return subprocess.Popen(
        python("-m", "armwise", "serve", "--prepare-only", "--config", str(config)),
        env={**environment, **({} if folder is None else {RUN_FOLDER: str(folder)})},
        preexec_fn=ends_with_its_parent,
    )


def wait_for_builder(builder: "subprocess.Popen[bytes]") -> int:
    """Return the exit code of a builder; end it where waiting is interrupted. Raises ProcessLostError."""
    try:
        code = builder.wait()
    finally:
        builder.terminate()
    if code < 0:
        raise ProcessLostError(
            f"the process that builds what is missing has ended (killed by signal {-code}): start the "
            "service again. If it happens again, look for the out-of-memory killer (`journalctl -k`), "
            "and at `armwise doctor`"
        )
    return code


def suggest_question(sources: Sequence[CorpusSource]) -> str:
    """Return a question that one of the corpora answers; without any corpus, a placeholder."""
    if any(source.source == "stdlib" for source in sources):
        return EXAMPLE_QUESTION
    corpora = open_readable(sources)
    return _ask_about(corpora[0]) if corpora else NO_QUESTION


def open_readable(sources: Sequence[CorpusSource]) -> list[Corpus]:
    """Return the corpora that were read; sources that could not be are left out."""
    corpora = []
    for source in sources:
        with suppress(CorpusError):
            corpora.append(source.open())
    return corpora


def _ask_about(corpus: Corpus) -> str:
    """Return a question about a heading or a title, in words if there is one, or how a passage begins.

    Everybody may read it, so no passage for some groups alone suggests it.
    """
    every = max(1, len(corpus) // SAMPLED)
    sampled = corpus.passages(range(every // 2, len(corpus), every))
    passages = [passage for passage in sampled if GROUPS not in passage.metadata]
    if not passages:
        return NO_QUESTION
    subjects = [str(passage.metadata.get("heading") or passage.title) for passage in passages]
    phrases = [subject for subject in subjects if " " in subject and subject.replace(" ", "").isalpha()]
    middle = passages[len(passages) // 2]
    subject = phrases[len(phrases) // 2] if phrases else middle.title or " ".join(middle.text.split()[:6])
    return f"What is said about {' '.join(subject.split())[:MAX_SUBJECT]}?"
