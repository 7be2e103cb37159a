"""The verbs that start the service, or read its corpus: serve, ingest."""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli import launch
from agent.cli.ask import print_answer
from agent.cli.console import PLAIN, ProgressCallback, console, errors, explained, progress
from agent.cli.options import CONFIG, POINT, ConfigPath, Key, Point, open_home, opened

if TYPE_CHECKING:
    from agent.checks import Finding
    from agent.config import AppConfig


def serve(
    config: ConfigPath = CONFIG,
    prepare_only: Annotated[
        bool, typer.Option("--prepare-only", help="Build what is missing and stop.")
    ] = False,
    cold: Annotated[
        bool, typer.Option("--cold", help="Begin without labels made from the corpus: no `warm_start.first`.")
    ] = False,
    question: Annotated[
        str | None, typer.Option("--ask", help="Ask this once it is ready, then stop.")
    ] = None,
    key: Key = None,
) -> None:
    """Build what is missing (corpus, indexes), then serve until interrupted or, with --ask, answered."""
    with explained():
        if prepare_only:
            _prepare(config, cold=cold)
            return
        once = None if question is None else partial(print_answer, question, None, key=key)
        with launch.run_folder() as folder:
            code = launch.prepared(config, folder, cold=cold)
            raise typer.Exit(code or launch.serve(config, folder, launch.address_of(config), console, once))


def _prepare(config: Path, *, cold: bool) -> None:
    from agent.access import is_loopback, require_closed
    from agent.cli.prepare import prepare
    from agent.config import load
    from agent.proxy import RUN_FOLDER, Listening, write_configuration

    settings, address = load(config), launch.address_of(config)
    open_to_all = is_open(settings, address[0])
    require_closed(address[0], is_open=open_to_all, allowed=settings.open)
    for finding in _findings(settings, address, open_to_all=open_to_all):
        if finding.serious:
            errors.print(str(finding), style="yellow", soft_wrap=True)
    launch.require_free_port(*address)
    open_home(settings)
    if open_to_all and is_loopback(address[0]):
        console.print("open to every program of this machine: `armwise key create` closes it", **PLAIN)
    with progress() as on_progress:
        prepare(settings, on_progress)
        if not cold:
            _warm_start(settings, on_progress)
    if folder := os.environ.get(RUN_FOLDER):
        write_configuration(settings, Listening(*address, Path(folder), launch.ingress_replicas(config)))


def _warm_start(settings: "AppConfig", on_progress: ProgressCallback) -> None:
    """Learn from questions made of the corpus, before the first request; a failure leaves a cold start."""
    from agent.warmstart import RunFailedError, warm_start_before_traffic
    from feedback.errors import LogUnavailableError, UnderWayError

    try:
        warm_start_before_traffic(settings, console, on_progress)
    except (RunFailedError, UnderWayError, LogUnavailableError) as error:
        errors.print(f"{error}; the service starts without it", style="yellow", markup=False, soft_wrap=True)


def _findings(settings: "AppConfig", address: tuple[str, int], *, open_to_all: bool) -> "Iterator[Finding]":
    from agent.checks import configuration_findings, file_findings

    yield from configuration_findings(settings, address[0], is_open=open_to_all)
    yield from file_findings(settings)


def is_open(settings: "AppConfig", host: str) -> bool:
    """Return whether there is no key. Raises LogUnavailableError, except on loopback: replicas wait."""
    from agent.access import Keyring, is_loopback
    from feedback.errors import LogUnavailableError
    from feedback.log import Store

    keyring = Keyring(settings.keys, time.time)
    if keyring.is_open and (settings.log_path is None or settings.log_path.exists()):
        try:
            with closing(Store(settings.database_url)) as store:
                keyring.refresh(store)
        except LogUnavailableError:
            if not is_loopback(host):
                raise
    return keyring.is_open


SOURCES = "A JSONL file, a BEIR folder, a folder of documents, one of them, or `stdlib`."


def ingest_corpus(
    source: Annotated[str | None, typer.Argument(help=SOURCES)] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the corpus in the configuration.")
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into", help="Instead: put the corpus of the configuration into the search engine of this arm."
        ),
    ] = None,
    point: Point = POINT,
    config: ConfigPath = CONFIG,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out what cannot be read, and list it.")
    ] = False,
) -> None:
    """Read passages into a corpus, or a corpus into a search engine; an interrupted run continues."""
    with explained():
        if into is not None:
            if source is not None or name is not None or skip_bad:
                raise ValueError("--into puts the corpus of the configuration there: it takes no source")
            _fill(config, point, into)
            return
        if source is None or name is None:
            raise ValueError("which corpus? `armwise ingest SOURCE --name NAME`, or `--into ARM`")
        from agent.config import CorpusSpec
        from arms.corpus import ingest

        spec = CorpusSpec(name=name, source=source)
        target = opened(config).home_path / "corpora" / spec.name
        with progress() as on_progress:
            corpus = ingest(source, target, skip_bad=skip_bad, progress=on_progress)
        console.print(f"{len(corpus):,} passages in corpus {name!r}, digest {corpus.digest[:12]}", **PLAIN)
        for line in corpus.skipped():
            errors.print(f"skipped {line}", markup=False)
        console.print(f"serve it with   corpus: {{name: {name}, source: {Path(source).absolute()}}}", **PLAIN)


def _fill(config: Path, point: str, arm: str) -> None:
    from agent.cli.prepare import fill

    with progress() as on_progress:
        done = fill(opened(config), point, arm, on_progress)
    console.print(done, **PLAIN)
