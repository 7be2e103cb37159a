"""Serve a configuration in this process, without Ray.

What takes long to build is built by a child, which frees its memory. Nothing restarts this process: a service
manager does, such as systemd.
"""

import gc
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from armwise.agent.cli.console import PLAIN, console
from armwise.agent.cli.serve_config import LaunchError, base_url, find_deployments, read_listening_address
from armwise.agent.cli.served_home import find_process, mark_home
from armwise.agent.process_limits import bind_problem, raise_limit_of_files
from armwise.agent.run_folder import HAND_OVER, RUN_FOLDER
from armwise.arms.local_ray import private_folder


def serve_here(
    config: Path,
    announce: Callable[[str, Path | None], bool],
    require_free_port: Callable[[str, int], None],
    *,
    replace: bool,
) -> int:
    """Serve until interrupted; return the exit code.

    Args:
        config: A configuration file.
        announce: Called with the URL and the folder of the run when the service is ready; returns whether
            it stops then.
        require_free_port: Checks that nobody has the port.
        replace: Whether to take the port over from a service of the same home.
    """
    for_builders = dict(os.environ)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of a question wait for each other
    import uvloop

    from armwise.agent.cli import first_start, preparation
    from armwise.agent.config import load
    from armwise.agent.hosts import single_process

    if named := find_deployments(config):
        raise LaunchError(
            f"{config}: deployments has options for {', '.join(named)}: leave these out, or --single-process"
        )
    settings, address = load(config), read_listening_address(config)
    url = base_url(address)
    predecessor = find_process(settings.home_path, url) if replace else None
    if predecessor is None:
        require_free_port(*address)
    elif problem := bind_problem(*address, shared=True):
        raise LaunchError(
            f"process {predecessor.pid} does not share its port: {problem}. Stop it first. With Ray, "
            "`serve deploy` replaces what a cluster runs"
        )
    raise_limit_of_files()
    replaced = None if predecessor is None else predecessor.pid
    with private_folder() as folder, mark_home(settings, url, replaced):
        os.environ[RUN_FOLDER] = str(folder)

        def prepare() -> int:
            try:
                first_start.build_service(settings, preparation.look, folder)
            except preparation.NotBuiltError:
                builder = preparation.start_builder(config, folder, for_builders)
                return preparation.wait_for_builder(builder)
            return 0

        def ready() -> bool:
            if predecessor is not None:
                _retire(predecessor, url)
            return announce(url, folder)

        preparation.check_service(config, settings, address[0])
        gc.enable()
        return uvloop.run(
            single_process.serve(
                settings.resolve_places(),
                folder,
                address,
                prepare=prepare,
                ready=ready,
                replaces=None if predecessor is None else predecessor.is_running,
            )
        )


def _retire(predecessor: psutil.Process, url: str) -> None:
    """Have the service whose port was taken over finish its requests and end."""
    if predecessor.is_running():
        console.print(f"Took over {url} from process {predecessor.pid}, which is shutting down", **PLAIN)
        with suppress(psutil.NoSuchProcess):
            predecessor.send_signal(HAND_OVER)
    else:
        console.print(f"Process {predecessor.pid}, which had {url}, ended by itself", **PLAIN)
