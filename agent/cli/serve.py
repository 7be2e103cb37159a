"""Start the service on this machine: build what is missing, then serve in this process or on Ray.

`start_single.py` serves in this process, and `start_ray.py` by Ray's own `serve run`.
"""

import errno
import gc
import os
import shlex
import signal
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
import typer

from armwise.agent.cli.console import PLAIN, console, progress, report_errors
from armwise.agent.cli.options import CONFIG, SOURCES, ConfigPath, Key
from armwise.agent.cli.serve_config import LaunchError, base_url, read_listening_address
from armwise.agent.cli.served_home import mark_home
from armwise.agent.process_limits import bind_problem
from armwise.agent.run_folder import COLD, PROGRESS, RUN_FOLDER, read_question
from armwise.arms.local_ray import private_folder

if TYPE_CHECKING:
    from collections.abc import Callable


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
        announce = partial(_announce, question, key, remark)
        require_free = partial(require_free_port, elsewhere=elsewhere)
        try:
            if ray is False and "RAY_ADDRESS" not in os.environ:
                gc.disable()  # what is imported stays; looking for cycles takes a sixth of the time
                from armwise.agent.cli.start_single import serve_here

                code = serve_here(config, announce, require_free, replace=replace)
            elif replace:
                raise LaunchError("--replace is for one process. On Ray, `serve deploy` replaces a service")
            else:
                code = _serve_on_ray(config, announce, require_free)
        except KeyboardInterrupt:  # before there was anything to stop
            code = 130
        finally:
            gc.enable()
        raise typer.Exit(code)


def _serve_on_ray(
    config: Path, announce: "Callable[[str, Path | None], bool]", require_free: "Callable[[str, int], None]"
) -> int:
    from armwise.agent.config import load

    settings, address = load(config), read_listening_address(config)  # what is wrong is said before all else
    require_free(*address)
    from armwise.agent.cli.preparation import check_service
    from armwise.agent.cli.start_ray import haproxy_binary, serve_on_ray

    with ExitStack() as stack:
        stack.enter_context(mark_home(settings, base_url(address), None))
        folder = None
        if "RAY_ADDRESS" not in os.environ and haproxy_binary() is not None:
            folder = stack.enter_context(private_folder())
            check_service(config, settings, address[0])
        return serve_on_ray(config, settings, address, folder, announce)


def _announce(question: str | None, key: str | None, remark: str, url: str, folder: Path | None) -> bool:
    """Print that the service is ready, or ask it a question; return whether it stops then."""
    if question is not None:
        from armwise.agent.cli.service import print_answer

        print_answer(question, None, url, key)
        if remark:
            console.print(remark, style="dim", **PLAIN)
        return True
    console.rule(f"Ready after {time.time() - psutil.Process().create_time():.0f} s")
    console.print(f"Ask:     armwise ask {shlex.quote(read_question(folder))} --url {url}", **PLAIN)
    console.print(f"Chat:    {url}/chat", **PLAIN)
    console.print(f"See:     {url}/console   {url}/docs   {url}/metrics", **PLAIN)
    if folder is not None and (folder / PROGRESS).exists():
        console.print("Note:    keyword search answers until the vector index is built", **PLAIN)
    if remark:
        console.print(f"Note:    {remark}", **PLAIN)
    return False


def _announce_cluster(*, cold: bool) -> None:
    """Print which cluster serves; on this machine, pass `--cold` on to the processes to come."""
    if not (cluster := os.environ.get("RAY_ADDRESS")):
        if cold:
            os.environ[COLD] = "1"
        return
    if cold:
        raise LaunchError("--cold is for this machine: set `warm_start.first: hold` for a cluster")
    console.print(
        f"Serving on the cluster of RAY_ADDRESS={cluster}. Unset it to serve on this machine", **PLAIN
    )


def _prepare(config: Path) -> None:
    from armwise.agent.cli.first_start import build_service
    from armwise.agent.cli.preparation import check_service
    from armwise.agent.config import load

    settings, address = load(config), read_listening_address(config)
    folder = None if (run := os.environ.get(RUN_FOLDER)) is None else Path(run)
    if folder is None:  # else the process that serves has checked it
        require_free_port(*address, f"set http_options.port in {config} to a free port")
        check_service(config, settings, address[0])
    with progress() as on_progress:
        build_service(settings, on_progress, folder)


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
    from armwise.agent.doctor import describe_owner

    owner = describe_owner(port)
    if "armwise" in owner:
        remedy = f"to replace a service of one process, add --replace. Otherwise {remedy}"
    raise LaunchError(f"{problem}{owner}: {remedy}")
