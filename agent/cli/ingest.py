"""`armwise ingest`: read documents into a corpus, or fill a search engine with one."""

from pathlib import Path
from typing import Annotated

import typer

from armwise.agent import wings
from armwise.agent.cli.console import PLAIN, console, print_left_out, progress, report_errors
from armwise.agent.cli.options import CONFIG, SOURCES, ConfigPath, open_config


def ingest_corpus(
    source: Annotated[str | None, typer.Argument(help=SOURCES)] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the corpus in the configuration.")
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into", help="Put the corpus of the configuration into the search engine of this arm instead."
        ),
    ] = None,
    config: ConfigPath = CONFIG,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad/--strict", help="List what cannot be read and go on, or stop there."),
    ] = True,
) -> None:
    """Read documents into a corpus, or put a corpus into a search engine.

    An interrupted run continues where it stopped.
    """
    with report_errors():
        if into is not None:
            if source is not None or name is not None or not skip_bad:
                raise ValueError("--into puts the corpus of the configuration there: it takes no source")
            _fill(config, into)
            return
        if source is None or name is None:
            raise ValueError("which corpus? `armwise ingest SOURCE --name NAME`, or `--into ARM`")
        from armwise.agent.config import CorpusSpec
        from armwise.arms.corpus import ingest
        from armwise.arms.places import locate_source

        spec = CorpusSpec(name=name, source=source)
        settings = open_config(config)
        target = settings.home_path / "corpora" / spec.name
        with progress() as on_progress:
            chunking = next(
                (each.chunking for each in settings.corpus_sources if each.folder == target), spec.chunking
            )
            corpus = ingest(source, target, skip_bad=skip_bad, chunking=chunking, progress=on_progress)
        console.print(f"Read {len(corpus):,} passages into {name!r}, digest {corpus.digest[:12]}", **PLAIN)
        print_left_out([corpus])
        place = locate_source(source)
        single = f"corpus: {{name: {name}, source: {place}}}"
        several = f"corpora: {{{name}: {{source: {place}}}}}"
        console.print(
            f"To serve it, put this into the configuration: {several if settings.corpora else single}",
            **PLAIN,
        )


def _fill(config: Path, arm: str) -> None:
    """Put the corpus into the engine of an arm, and print a summary. Raises ValueError, ArmError."""
    from armwise.arms.corpus import ingest_all
    from armwise.arms.retrievers import Resources

    with progress() as on_progress:
        settings = open_config(config).resolve_places()
        corpus = ingest_all(settings.corpus_sources, progress=on_progress)
        resources = Resources(corpus, settings.indexes_path, settings.backbones, settings.arms)
        done = wings.load(wings.FILL_COLLECTION)(arm, resources, on_progress)
    console.print(
        f"{done.written:,} passages written, {done.deleted:,} deleted; version {done.version}", **PLAIN
    )
