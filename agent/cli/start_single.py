"""Serve a configuration in this process, without Ray.

What takes long to build is built by a child, which frees its memory. Nothing restarts this process: a service
manager does, such as systemd.
"""

import gc
import os
from collections.abc import Callable
from pathlib import Path

from armwise.agent.cli.behind import BehindBuilder, BuildProcess
from armwise.agent.cli.console import PLAIN, console
from armwise.agent.cli.predecessor import Predecessor, claim_port
from armwise.agent.cli.serve_config import LaunchError, base_url, find_deployments, read_listening_address
from armwise.agent.cli.served_home import mark_home
from armwise.agent.hosts.port import require_shared
from armwise.agent.process_limits import raise_limit_of_files
from armwise.agent.run_folder import RUN_FOLDER
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
    gc.disable()  # what is imported stays; looking for cycles takes a sixth of the time
    from armwise.agent.cli.before_serving import NotBuiltError, look, prepare_service
    from armwise.agent.config import load

    if named := find_deployments(config):
        raise LaunchError(
            f"{config}: deployments has options for {', '.join(named)}: leave these out, or --single-process"
        )
    settings, address = load(config), read_listening_address(config)
    home, url = settings.home_path, base_url(address)
    with claim_port(home, url if replace else "") as predecessor, private_folder() as folder:
        if predecessor is None:
            require_free_port(*address)
        else:
            require_shared(*address, predecessor.pid)
        raise_limit_of_files()
        os.environ[RUN_FOLDER] = str(folder)
        with mark_home(settings, url, None if predecessor is None else predecessor.pid):
            try:
                prepare_service(config, settings, look)
            except NotBuiltError:
                if code := BuildProcess(config, folder, for_builders).wait():
                    return code
            import uvloop

            from armwise.agent.hosts import single_process

            gc.enable()
            with BehindBuilder(config, folder, for_builders) as builder:
                uvloop.run(
                    single_process.serve(
                        settings.resolve_places(),
                        folder,
                        address,
                        ready=lambda: _retire(predecessor, url) or announce(url, folder),
                        look=builder.watch,
                        replaces=None if predecessor is None else predecessor.runs,
                    )
                )
    return 0


def _retire(predecessor: Predecessor | None, url: str) -> bool:
    """Have the service end whose port was taken over, if there is one; return False."""
    if predecessor is None:
        return False
    if predecessor.runs():
        console.print(f"Took over {url} from process {predecessor.pid}, which is shutting down", **PLAIN)
        predecessor.retire()
    else:
        console.print(f"Process {predecessor.pid}, which had {url}, ended by itself", **PLAIN)
    return False
