"""The verbs that start the service, or check it before: serve, ingest, doctor."""

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
from agent.cli.options import CONFIG, ConfigPath, Key

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
    is_open = _is_open(settings, address[0])
    require_closed(address[0], is_open=is_open, allowed=settings.open)
    for finding in _findings(settings, address, is_open=is_open):
        if finding.serious:
            errors.print(str(finding), style="yellow", soft_wrap=True)
    launch.require_free_port(*address)
    settings.home_path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if is_open and is_loopback(address[0]):
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


def _findings(settings: "AppConfig", address: tuple[str, int], *, is_open: bool) -> "Iterator[Finding]":
    from agent.checks import configuration_findings, file_findings

    yield from configuration_findings(settings, address[0], is_open=is_open)
    yield from file_findings(settings)


def doctor(config: ConfigPath = CONFIG) -> None:
    """Check the configuration and this machine; exit with 1 where others can reach too much."""
    with explained():
        from agent.checks import socket_findings
        from agent.config import load

        settings, address = load(config, without=["router"]), launch.address_of(config)
        is_open = _is_open(settings, address[0])
        found = [*_findings(settings, address, is_open=is_open), *socket_findings(address)]
        for finding in sorted(found, key=lambda one: not one.serious):
            console.print(str(finding), style="red" if finding.serious else "", **PLAIN)
        if any(finding.serious for finding in found):
            raise typer.Exit(1)
        console.print("no problem found", **PLAIN)


def _is_open(settings: "AppConfig", host: str) -> bool:
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


Source = Annotated[
    str, typer.Argument(help="JSONL file, BEIR folder, folder of Markdown and text, or `stdlib`.")
]


def init(
    source: Source,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the corpus; else by the source.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the configuration.")] = Path(
        "armwise.yaml"
    ),
    replace: Annotated[bool, typer.Option("--replace", help="Replace a file that is there.")] = False,
) -> None:
    """Read a corpus, and write a configuration that serves it, with a log of its own.

    `armwise serve` then makes questions from the corpus, and starts from what they teach.
    """
    with explained():
        from agent.config import CorpusSpec, load, render_config
        from arms.corpus import ingest

        if output.exists() and not replace:
            raise launch.LaunchError(
                f"{output} is there already: --replace replaces it, -o names another file"
            )
        corpus = CorpusSpec.of(source, name)
        unfinished = output.with_name(output.name + ".part")
        unfinished.write_text(render_config(corpus), encoding="utf-8")
        try:
            settings = load(unfinished).settled()
            with progress() as on_progress:
                passages = ingest(settings.corpus.source, settings.corpus_path, progress=on_progress)
        except BaseException:
            unfinished.unlink()
            raise
        unfinished.replace(output)
        console.print(f"{len(passages):,} passages in corpus {corpus.name!r}; written to {output}", **PLAIN)
        console.print(f"next:    armwise serve -c {output}", **PLAIN)


def ingest_corpus(
    source: Source,
    name: Annotated[str, typer.Option("--name", help="Name of the corpus in the configuration.")],
    config: ConfigPath = CONFIG,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out what cannot be read, and list it.")
    ] = False,
) -> None:
    """Read passages into a corpus; an interrupted run continues where it stopped."""
    with explained():
        from agent.config import CorpusSpec, load
        from arms.corpus import ingest

        spec = CorpusSpec(name=name, source=source)
        target = load(config).home_path / "corpora" / spec.name
        with progress() as on_progress:
            corpus = ingest(source, target, skip_bad=skip_bad, progress=on_progress)
        console.print(f"{len(corpus):,} passages in corpus {name!r}, digest {corpus.digest[:12]}", **PLAIN)
        for line in corpus.skipped():
            errors.print(f"skipped {line}", markup=False)
        console.print(f"serve it with   corpus: {{name: {name}, source: {Path(source).absolute()}}}", **PLAIN)
