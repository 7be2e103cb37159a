"""Start the service on this machine: build what is missing, then run HAProxy and, behind it, Ray Serve.

`armwise serve` builds in a separate process, which frees its memory, and runs `serve run` with the same file.
HAProxy listens in place of Ray Serve's HTTP proxy, and the replicas of the ingress answer on sockets in a
private folder. If RAY_ADDRESS names a cluster, or HAProxy is missing, Ray Serve's proxy listens. Without Ray,
one process serves that looks itself what is missing: this one loads no settings then.
`armwise ingest` reads a corpus, or fills a search engine with one.
"""

import errno
import math
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Protocol

import psutil
import typer
import yaml
from rich.console import Console

from armwise.agent import wings
from armwise.agent.background import PAUSES_S, Work, WorkFailure, record
from armwise.agent.cli.console import (
    PLAIN,
    console,
    errors,
    print_left_out,
    progress,
    report_errors,
)
from armwise.agent.cli.options import CONFIG, SOURCES, ConfigPath, Key, open_config
from armwise.agent.cli.predecessor import HAND_OVER, Predecessor, find_predecessor
from armwise.agent.cli.ray_processes import ProcessLostError, RayProcesses, explain_loss, how_it_ended
from armwise.agent.cli.serve_config import (
    LaunchError,
    base_url,
    ingress_replicas,
    logs_json,
    read_document,
    read_listening_address,
)
from armwise.agent.cli.served_home import mark_home
from armwise.agent.cli.single_process import SingleProcess, find_deployments
from armwise.agent.configuration_file import find_folder
from armwise.agent.proxy import (
    CONFIGURATION,
    Proxy,
    ProxyError,
    bind_problem,
    ends_with_its_parent,
    haproxy_binary,
    raise_limit_of_files,
    socket_path,
    wait_for_end,
)
from armwise.agent.run_folder import (
    BEHIND,
    COLD,
    CONFIG_FOLDER,
    GO_ON,
    PROGRESS,
    RUN_FOLDER,
    TO_BUILD,
    BuildingProgress,
    read_question,
)
from armwise.arms.local_ray import QUIET, cluster_problem, private_folder
from armwise.arms.own_processes import python

if TYPE_CHECKING:
    from armwise.agent.config import AppConfig

STOP_S = 30.0
"""Seconds to shut down before the next, stronger signal."""

DRAIN_S = 300.0
"""Most seconds that requests under way delay the shutdown."""

START_S, LATE_LOOK_S = 600.0, 5.0
"""Seconds after which a slow start is reported, and pause between two checks of readiness from then on."""

LOOK_S = 0.1
"""Pause between two checks that the processes still run."""

SHORT_LOOK_S = 0.02
"""Pause between two checks that the next step of a start can begin."""

USUAL_PRIORITY = {"RAY_worker_niceness": "0"}
"""Ray would start its workers at niceness 15, and so the service, which people wait for."""

APPLICATION = "armwise.agent.app:build"
"""Import path of the application for Ray Serve."""


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
            help="Once this service is ready, take over the port of the running `armwise serve`. No request "
            "is refused, and the old service finishes its own.",
        ),
    ] = False,
) -> None:
    """Build the corpus and indexes if they are missing, then serve until interrupted."""
    with report_errors():
        remark = ""
        if documents is not None and config != CONFIG:
            raise ValueError(
                f"{documents} and --config {config} both say what to serve: leave one of them out"
            )
        if documents is not None or (config == CONFIG and not config.exists()):
            from armwise.agent.cli.without_config import write

            config, remark = write(documents, llm, port, replace=replace)
            ray = bool(ray)
        elif llm is not None or port is not None:
            where = "llm" if port is None else "http_options.port"
            raise ValueError(f"--llm and --port only work without a configuration: set {where} in {config}")
        if prepare_only:
            _prepare(config)
            return
        single = ray is False and "RAY_ADDRESS" not in os.environ and haproxy_binary() is not None
        settings = None if single else _load(config)  # what is wrong with it is said before anything begins
        if single and (named := find_deployments(read_document(config))):
            raise ValueError(
                f"{config}: deployments has options for {', '.join(named)}: leave these out, or "
                "--single-process"
            )
        address = read_listening_address(config)
        predecessor = find_predecessor(address[1]) if replace else None
        if predecessor is None:
            require_free_port(*address)  # before anything is built
        _announce_cluster(cold=cold)
        raise_limit_of_files()
        once = None if question is None else partial(_ask_once, question, key, remark)
        replaced = None if predecessor is None else predecessor.pid
        marked = nullcontext() if settings is None else mark_home(settings, base_url(address), replaced)
        claimed = nullcontext() if predecessor is None else predecessor.claim_port()
        with claimed, marked, run_folder() as folder:
            if predecessor is not None and folder is None:
                raise ValueError("--replace needs HAProxy on this machine: stop the other service first")
            prepare: Callable[..., int] = wait_until_prepared if single else prepare_in_process
            code = run_service(
                config,
                folder,
                address,
                console,
                once,
                partial(prepare, config, folder),
                remark,
                predecessor,
                single=single,
            )
            raise typer.Exit(code)


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
        require_free_port(*read_listening_address(config))
    with progress() as on_progress:
        prepare_service(config, settings, on_progress)


def _ask_once(question: str, key: str | None, remark: str, url: str) -> None:
    from armwise.agent.cli.service import print_answer

    print_answer(question, None, url, key)
    if remark:
        console.print(remark, style="dim", **PLAIN)


# -- the processes ----------------------------------------------------------------------------------


def prepare_in_process(
    config: Path,
    folder: Path | None = None,
    check: Callable[[], int | None] = lambda: None,
) -> int:
    """Build what is missing in a separate process, which frees its memory when it ends.

    Args:
        config: A Ray Serve configuration file.
        folder: Where to write the configuration of HAProxy; None to write none.
        check: Called meanwhile; an exit code, or an exception, ends the process.

    Returns:
        The exit code of the process or of `check`.

    Raises:
        ProcessLostError: The process was killed.
    """
    words = ["serve", "--prepare-only", "--config", str(config)]
    environment = dict(os.environ) if folder is None else {**os.environ, RUN_FOLDER: str(folder)}
    command = python("-m", "armwise", *words)
    with subprocess.Popen(command, env=environment, preexec_fn=ends_with_its_parent) as preparing:
        try:
            while preparing.poll() is None:
                if (code := check()) is not None:
                    return code
                with suppress(subprocess.TimeoutExpired):
                    preparing.wait(LOOK_S)
        finally:
            preparing.terminate()
    if preparing.returncode < 0:
        raise explain_loss("the process that builds what is missing", how_it_ended(preparing.returncode))
    return preparing.returncode


def wait_until_prepared(config: Path, folder: Path, check: Callable[[], int | None]) -> int:
    """Wait until the one process has prepared itself; what takes long is built by a separate process.

    Args and Returns as `prepare_in_process`.
    """
    while not (folder / CONFIGURATION).exists():
        if (code := check()) is not None:
            return code
        if (folder / TO_BUILD).exists():
            return prepare_in_process(config, folder, check)
        time.sleep(SHORT_LOOK_S)
    return 0


@contextmanager
def run_folder() -> Iterator[Path | None]:
    """Yield the private folder of the run, for sockets and Ray; None: Ray Serve's proxy listens."""
    if "RAY_ADDRESS" in os.environ or haproxy_binary() is None:
        yield None
        return
    with private_folder() as folder:
        yield folder


class Processes(Protocol):
    """The processes of a service below this one.

    Attributes:
        process: The first of them.
    """

    process: "subprocess.Popen[bytes]"

    def check(self) -> int | None:
        """Return the exit code of the first; None while it runs. Raises ProcessLostError."""

    def has_served(self) -> None:
        """Note that the service has become ready."""

    def end(self) -> None:
        """Kill them all."""


def run_service(
    config: Path,
    folder: Path | None,
    address: tuple[str, int],
    console: Console,
    once: Callable[[str], None] | None = None,
    prepare_first: Callable[[Callable[[], int | None]], int] = lambda _: 0,
    remark: str = "",
    predecessor: Predecessor | None = None,
    *,
    single: bool = False,
) -> int:
    """Run the proxy and Ray Serve until interrupted; print when it is ready.

    Ray starts while missing parts are built, and Ray Serve after that. A process that ends meanwhile is
    restarted, or ends the service.

    Args:
        config: A Ray Serve configuration file.
        folder: Folder of the sockets, with the configuration of HAProxy; None: Ray Serve's proxy listens.
        address: Host and port of the configuration.
        console: Where to print.
        once: Called with the address as soon as the service is ready; then the service is stopped.
        prepare_first: Builds what is missing, and returns an exit code; other than 0 ends the service. It
            calls its argument meanwhile, which returns the exit code of Ray, or raises if Ray is lost.
        remark: Printed with the address when the service is ready.
        predecessor: A service that has the address until this one is ready; None: nobody has it.
        single: Whether one process serves, without Ray; it needs a folder, and prepares itself.

    Returns:
        The exit code of Ray Serve, or of an earlier step that failed; 0 after `once`.

    Raises:
        ProcessLostError: A process has ended that is never restarted.
        ProxyError: HAProxy does not run.
        LaunchError: Another program has the port, though it was free before.
    """
    _handle_signals()
    ray = _start(config, folder, predecessor, single=single)
    proxy: Proxy | None = None
    base = base_url(address)
    try:
        if code := prepare_first(ray.check):
            _end_unprepared(ray.process)
            return code
        _send(ray.process, GO_ON)
        ended = None if predecessor is None else _wait_for_replicas(ray, base, config, folder)
        if ended is None:
            proxy = _open(folder, address, predecessor)
            ended = _wait_until_ready(ray, proxy, base)
        if ended is None:
            ray.has_served()
            _retire(predecessor, base, console)
            if once is not None:
                return _answer_once(partial(once, base), ray.process)
            _say_ready(base, folder, console, remark)
            ended = _serve_until_ended(config, folder, ray, proxy)
    except KeyboardInterrupt as interrupt:
        console.print("Shutting down", **PLAIN)
        _send(ray.process, "")
        _drain(proxy, handed_over=isinstance(interrupt, HandedOver))
        return _stop(ray.process)
    except (ProxyError, ProcessLostError, LaunchError) as error:
        _end_after(error, ray, address)
        raise
    else:
        return ended
    finally:
        if proxy is not None:
            proxy.stop()


def _end_after(error: Exception, ray: Processes, address: tuple[str, int]) -> None:
    """End the processes after an error. Raises LaunchError if that is a port which was taken meanwhile."""
    _send(ray.process, "")
    if isinstance(error, ProcessLostError):
        ray.end()  # it would not end in order by itself
    else:
        _stop(ray.process)
    if isinstance(error, ProxyError):
        require_free_port(*address)


def _open(folder: Path | None, address: tuple[str, int], predecessor: Predecessor | None) -> Proxy | None:
    """Start HAProxy, on the sockets of a service that it replaces; None where Ray Serve's proxy listens.

    Raises:
        LaunchError: The service to replace has ended meanwhile, and another program has its port.
    """
    taking = None
    if predecessor is not None and predecessor.has_ended():
        require_free_port(*address)
    elif predecessor is not None:
        taking = predecessor.admin
    return None if folder is None else Proxy(folder / CONFIGURATION, taking)


def _handle_signals() -> None:
    # also SIGINT: a background job inherits that it is ignored, and would pass that to its children
    for number in (signal.SIGINT, signal.SIGTERM, HAND_OVER):
        signal.signal(number, _interrupt)


def _retire(predecessor: Predecessor | None, base: str, console: Console) -> None:
    """Have the service end whose port was taken over, if there is one."""
    if predecessor is not None:
        if predecessor.has_ended():
            console.print(f"Process {predecessor.pid}, which had {base}, ended by itself", **PLAIN)
            return
        console.print(f"Took over {base} from process {predecessor.pid}, which is shutting down", **PLAIN)
        predecessor.retire()


def _answer_once(once: Callable[[], None], process: subprocess.Popen[bytes]) -> int:
    """Answer a question, and stop."""
    try:
        once()
    finally:
        _stop(process)
    return 0


def _serve_until_ended(config: Path, folder: Path | None, ray: Processes, proxy: Proxy | None) -> int:
    """Serve while the rest of a first start is built, and return the exit code of Ray Serve's process."""
    with _build_behind(config, folder) as builder:
        while (ended := _look(ray, proxy)) is None:
            builder.watch()
            time.sleep(LOOK_S)
    return ended


def _end_unprepared(process: subprocess.Popen[bytes]) -> None:
    """Let a Ray without an application end."""
    _send(process, "")
    try:
        wait_for_end(process, STOP_S)
    except subprocess.TimeoutExpired:
        _stop(process)


def _say_ready(base: str, folder: Path | None, console: Console, remark: str) -> None:
    console.rule(f"Ready after {time.time() - psutil.Process().create_time():.0f} s")
    console.print(f"Ask:     armwise ask {shlex.quote(read_question(folder))} --url {base}", **PLAIN)
    console.print(f"Chat:    {base}/chat", **PLAIN)
    console.print(f"See:     {base}/console   {base}/docs   {base}/metrics", **PLAIN)
    if remark:
        console.print(f"Note:    {remark}", **PLAIN)


def _start(config: Path, folder: Path | None, predecessor: Predecessor | None, *, single: bool) -> Processes:
    """Start the processes of a service, which wait for a line before they serve what was not prepared."""
    if single and folder is not None:
        return SingleProcess(partial(_start_single, config, folder, predecessor))
    return RayProcesses(_start_ray(config, folder), folder)


def _start_ray(config: Path, folder: Path | None) -> subprocess.Popen[bytes]:
    """Start Ray, with Ray Serve waiting for a line on its input before it runs the configuration."""
    environment = {**QUIET, **USUAL_PRIORITY, **os.environ, CONFIG_FOLDER: str(find_folder(config))}
    if logs_json(config):  # each line as its process has written it, and every one
        environment |= {"RAY_DISABLE_WORKER_LOG_PREFIX": "1", "RAY_DEDUP_LOGS": "0"}
    if folder is not None:
        config, environment[RUN_FOLDER] = _without_proxy(config, folder), str(folder)
    return subprocess.Popen(
        python("-m", "armwise.agent.cli.start_ray", str(config)),
        env=environment,
        stdin=subprocess.PIPE,
        # a session of its own: Ctrl-C reaches it once, from here, so that it shuts down in order
        start_new_session=True,
        preexec_fn=ends_with_its_parent,
    )


def _start_single(config: Path, folder: Path, predecessor: Predecessor | None) -> subprocess.Popen[bytes]:
    """Start the process of a service without Ray; where something is to build, it waits for a line first."""
    replaced = "" if predecessor is None else str(predecessor.pid)
    few = {"OMP_NUM_THREADS": "1"}  # as Ray has it: threads of a question wait for each other
    return subprocess.Popen(
        python("-m", "armwise.agent.cli.start_single", str(config), replaced),
        env={**QUIET, **few, **os.environ, RUN_FOLDER: str(folder)},
        stdin=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=ends_with_its_parent,
    )


def _drain(proxy: Proxy | None, *, handed_over: bool) -> None:
    """Wait for requests under way; a second Ctrl-C ends them at once."""
    if proxy is not None:
        with suppress(KeyboardInterrupt):
            (proxy.leave if handed_over else proxy.drain)(DRAIN_S)


def _send(process: subprocess.Popen[bytes], line: str) -> None:
    """Write a line to a process that waits for one, and close its input; without a line it ends in order."""
    assert process.stdin is not None
    if process.stdin.closed:
        return
    with suppress(BrokenPipeError):  # it has ended, which is noticed soon
        process.stdin.write(line.encode())
        process.stdin.close()


@contextmanager
def _build_behind(config: Path, folder: Path | None) -> "Iterator[BehindBuilder]":
    """Build the rest of a first start in the background, at low priority."""
    builder = BehindBuilder(config, folder)
    try:
        yield builder
    finally:
        builder.stop()


class BehindBuilder:
    """The process that builds the rest of a first start; restarted after a pause if it is killed.

    Args:
        config: A Ray Serve configuration file.
        folder: Folder of the run; no process is started if it is None, or everything is built.
        clock: Monotonic seconds.
    """

    def __init__(
        self, config: Path, folder: Path | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._folder, self._clock = config, folder, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._kills, self._again_at = 0, math.inf
        if folder is not None and (folder / BEHIND).exists():
            console.print(
                "Keyword search answers until the vector index is ready. It is being built in the background",
                **PLAIN,
            )
            self._process = self._start_builder(folder)

    def watch(self) -> None:
        """Record that the process has ended early, and restart it when that is due."""
        if self._folder is None:
            return
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            if (self._folder / PROGRESS).exists():  # else it is done, or has recorded its failure
                self._again_at = self._clock() + self._record(how_it_ended(code), self._folder)
        if self._clock() >= self._again_at:
            self._again_at = math.inf
            self._process = self._start_builder(self._folder)

    def stop(self) -> None:
        """End the process and its children."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            wait_for_end(self._process)

    def _record(self, how: str, folder: Path) -> float:
        """Record how the process ended; return the pause until it is restarted, infinity for never."""
        pause_s = PAUSES_S[self._kills] if self._kills < len(PAUSES_S) else math.inf
        self._kills += 1
        next_at = None if pause_s == math.inf else time.time() + pause_s
        why = f"the process that builds them has ended ({how})"
        failure = WorkFailure(Work.FIRST_START, why, self._kills, next_at)
        record(failure, folder)
        errors.print(str(failure), style="yellow", **PLAIN)
        if next_at is None:
            BuildingProgress(folder).end()
        return pause_s

    def _start_builder(self, folder: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            python("-m", "armwise.agent.cli.first_start", str(self._config)),
            env={**os.environ, RUN_FOLDER: str(folder)},
            start_new_session=True,
            preexec_fn=ends_with_its_parent,
        )


def _without_proxy(config: Path, folder: Path) -> Path:
    """Write the same configuration without Ray Serve's HTTP proxy; return its path."""
    path, document = folder / "serve.yaml", read_document(config)
    (application,) = document["applications"]
    named = {**application, "import_path": application.get("import_path") or APPLICATION}
    document |= {"proxy_location": "Disabled", "applications": [named]}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def _look(ray: Processes, proxy: Proxy | None) -> int | None:
    """Return the exit code of Ray Serve's process, None while it runs; restart a proxy that has ended.

    Raises:
        ProcessLostError: A process of Ray is lost.
        ProxyError: The proxy keeps ending.
    """
    ended = ray.check()
    if ended is None and proxy is not None and proxy.watch():
        errors.print("HAProxy stopped and was restarted", style="yellow", **PLAIN)
    return ended


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Interrupt Ray Serve; if it does not stop, terminate and then kill it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, number) if number is signal.SIGKILL else process.send_signal(number)
        try:
            return wait_for_end(process, STOP_S)
        except subprocess.TimeoutExpired:
            continue
    return wait_for_end(process)


class HandedOver(KeyboardInterrupt):
    """Another service has taken the port over."""


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise HandedOver if number == HAND_OVER else KeyboardInterrupt


def _wait_for_replicas(ray: Processes, base: str, config: Path, folder: Path | None) -> int | None:
    """Wait for every replica on its socket: a proxy that has just started takes each for a healthy one.

    Returns:
        None once all are ready, or the exit code of Ray Serve's process if that ends before.
    """
    ended, sockets = None, list[Path]()
    if folder is not None:
        sockets = [socket_path(folder, slot) for slot in range(ingress_replicas(config).first)]
    for unix_socket in sockets:
        ended = ended or _wait_until_ready(ray, None, base, unix_socket)
    return ended


def _wait_until_ready(
    ray: Processes, proxy: Proxy | None, base: str, unix_socket: Path | None = None
) -> int | None:
    """Wait for the service at an address, or for a replica on its socket.

    Returns:
        None once it is ready, or the exit code of Ray Serve's process if that ends before.
    """
    import httpx  # here: the process that serves loads meanwhile

    transport = None if unix_socket is None else httpx.HTTPTransport(uds=str(unix_socket))
    late_at, pause_s, next_at = time.monotonic() + START_S, LOOK_S, 0.0
    # one client: each reads the certificates of the system
    with httpx.Client(timeout=5, trust_env=False, transport=transport) as client:
        while (ended := _look(ray, proxy)) is None:
            if time.monotonic() >= next_at:
                with suppress(httpx.HTTPError):
                    if (proxy is None or proxy.has_looked()) and client.get(f"{base}/ready").is_success:
                        return None
                next_at = time.monotonic() + pause_s
            if time.monotonic() >= late_at:
                late_at, pause_s = math.inf, LATE_LOOK_S
                line = f"Not ready after {START_S:g} s, still starting. To see why: curl {base}/ready"
                errors.print(line, style="yellow", **PLAIN)
            time.sleep(LOOK_S)
    return ended


def require_free_port(host: str, port: int) -> None:
    """Check that a port is free. Raises LaunchError, with the process that has it."""
    if (problem := bind_problem(host, port)) is None:
        return
    remedy = "stop the program that uses it, or change http_options.port in the configuration (or use --port)"
    if os.strerror(errno.EADDRINUSE) not in problem:
        raise LaunchError(f"{problem}: {remedy}")
    if (running := find_predecessor(port)) is not None:
        raise LaunchError(
            f"{problem}: another `armwise serve` (process {running.pid}) is using it. To replace it, "
            f"add --replace. Otherwise {remedy}"
        )
    from armwise.agent.checks import describe_owner

    raise LaunchError(f"{problem}{describe_owner(port)}: {remedy}")


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
