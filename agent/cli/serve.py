"""Start the service on this machine: build what is missing, then serve in this process or on Ray.

`start_single.py` serves in this process, and `start_ray.py` by Ray's own `serve run`. `armwise ingest` reads
a corpus, or fills a search engine with one.
"""

import errno
import os
import shlex
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
import typer

from armwise.agent import wings
from armwise.agent.cli.console import (
    PLAIN,
    console,
    print_left_out,
    progress,
    report_errors,
)
from armwise.agent.cli.options import CONFIG, SOURCES, ConfigPath, Key, open_config
from armwise.agent.cli.serve_config import LaunchError, base_url, read_listening_address
from armwise.agent.cli.served_home import mark_home
from armwise.agent.process_limits import bind_problem
from armwise.agent.run_folder import COLD, RUN_FOLDER, read_question
from armwise.arms.local_ray import cluster_problem, private_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from armwise.agent.config import AppConfig


def serve(
    documents: Annotated[
        str | None,
        typer.Argument(
            help=f"Serve these without a configuration. {SOURCES} By default --config, or an example."
        ),
    ] = None,
    config: ConfigPath = CONFIG,
    prepare_only: Annotated[
        bool, typer.Option("--prepare-only", help="Build what is missing, then stop.")
    ] = False,
    cold: Annotated[
        bool, typer.Option("--cold", help="Skip the first warm start, as with `warm_start.first: hold`.")
    ] = False,
    question: Annotated[
        str | None, typer.Option("--ask", help="Ask this question once the service is ready, then stop.")
    ] = None,
    key: Key = None,
    llm: Annotated[
        str | None,
        typer.Option(
            "--llm",
            help="Without a configuration: a model of the endpoint OPENAI_BASE_URL (OpenAI's if only "
            "OPENAI_API_KEY is set), or a GGUF file. By default the endpoint's only model, or the bundled "
            "one.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1, max=65535, help="Without a configuration: port to serve on; by default 8000."
        ),
    ] = None,
    ray: Annotated[
        bool | None,
        typer.Option(
            "--ray/--single-process",
            help="Serve on Ray Serve (the default with a configuration), or in one process (the default "
            "without one).",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Once this service is ready, take over the port of the running `armwise serve` of the same "
            "home, in one process. No request is refused, and the old service finishes its own.",
        ),
    ] = False,
) -> None:
    """Build the corpus and indexes if they are missing, then serve until interrupted."""
    with report_errors():
        remark, elsewhere = "", f"set http_options.port in {config} to a free port"
        if documents is not None and config != CONFIG:
            raise ValueError(
                f"{documents} and --config {config} both say what to serve: leave one of them out"
            )
        if documents is not None or (config == CONFIG and not config.exists()):
            from armwise.agent.cli.without_config import write

            config, remark = write(documents, llm, port, replace=replace)
            ray, elsewhere = bool(ray), "add --port with a free port"
        elif llm is not None or port is not None:
            where = "llm" if port is None else "http_options.port"
            raise ValueError(f"--llm and --port only work without a configuration: set {where} in {config}")
        if prepare_only:
            _prepare(config)
            return
        for number in (signal.SIGINT, signal.SIGTERM):  # a job in the background inherits that one is ignored
            signal.signal(number, signal.default_int_handler)
        _announce_cluster(cold=cold)
        once = None if question is None else partial(_ask_once, question, key, remark)
        announce, require_free = (
            partial(_announce, once, remark),
            partial(require_free_port, elsewhere=elsewhere),
        )
        try:
            if ray is False and "RAY_ADDRESS" not in os.environ:
                from armwise.agent.cli.start_single import serve_here

                code = serve_here(config, announce, require_free, replace=replace)
            elif replace:
                raise LaunchError("--replace is for one process. On Ray, `serve deploy` replaces a service")
            else:
                code = _serve_on_ray(config, announce, require_free)
        except KeyboardInterrupt:  # before there was anything to stop
            code = 130
        raise typer.Exit(code)


def _serve_on_ray(
    config: Path, announce: "Callable[[str, Path | None], bool]", require_free: "Callable[[str, int], None]"
) -> int:
    settings, address = _load(config), read_listening_address(config)  # what is wrong is said before all else
    require_free(*address)
    from armwise.agent.cli.start_ray import haproxy_binary, serve_on_ray

    with mark_home(settings, base_url(address), None):
        if "RAY_ADDRESS" in os.environ or haproxy_binary() is None:
            return serve_on_ray(config, settings, address, None, announce)
        with private_folder() as folder:
            return serve_on_ray(config, settings, address, folder, announce)


def _announce(once: "Callable[[str], None] | None", remark: str, url: str, folder: Path | None) -> bool:
    """Print that the service is ready, or ask it a question; return whether it stops then."""
    if once is not None:
        once(url)
        return True
    console.rule(f"Ready after {time.time() - psutil.Process().create_time():.0f} s")
    console.print(f"Ask:     armwise ask {shlex.quote(read_question(folder))} --url {url}", **PLAIN)
    console.print(f"Chat:    {url}/chat", **PLAIN)
    console.print(f"See:     {url}/console   {url}/docs   {url}/metrics", **PLAIN)
    if remark:
        console.print(f"Note:    {remark}", **PLAIN)
    return False


def _announce_cluster(*, cold: bool) -> None:
    """Print which cluster serves; on this machine, pass `--cold` on to the processes to come."""
    if not (cluster := os.environ.get("RAY_ADDRESS")):
        if cold:
            os.environ[COLD] = "1"
        return
    if problem := cluster_problem(cluster):
        raise LaunchError(f"{problem}: unset RAY_ADDRESS to serve on this machine, or start it")
    if cold:
        raise LaunchError("--cold is for this machine: set `warm_start.first: hold` for a cluster")
    console.print(
        f"Serving on the cluster of RAY_ADDRESS={cluster}. Unset it to serve on this machine", **PLAIN
    )


def _load(config: Path) -> "AppConfig":
    from armwise.agent.config import load

    return load(config)


def _prepare(config: Path) -> None:
    from armwise.agent.cli.before_serving import prepare_service

    settings = _load(config)
    if RUN_FOLDER not in os.environ:  # else the process that serves has looked, or takes the port over
        require_free_port(
            *read_listening_address(config), f"set http_options.port in {config} to a free port"
        )
    with progress() as on_progress:
        prepare_service(config, settings, on_progress)


def _ask_once(question: str, key: str | None, remark: str, url: str) -> None:
    from armwise.agent.cli.service import print_answer

    print_answer(question, None, url, key)
    if remark:
        console.print(remark, style="dim", **PLAIN)


def require_free_port(host: str, port: int, elsewhere: str) -> None:
    """Check that a port is free; `elsewhere` says how to use another one.

    Raises:
        LaunchError: It is not free; the message names the process that has it.
    """
    if (problem := bind_problem(host, port)) is None:
        return
    remedy = f"stop the program that uses it, or {elsewhere}"
    if os.strerror(errno.EADDRINUSE) not in problem:
        raise LaunchError(f"{problem}: {remedy}")
    from armwise.agent.checks import describe_owner

    owner = describe_owner(port)
    if "armwise" in owner:
        remedy = f"to replace a service of one process, add --replace. Otherwise {remedy}"
    raise LaunchError(f"{problem}{owner}: {remedy}")


# -- ingest -----------------------------------------------------------------------------------------


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
