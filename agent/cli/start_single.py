"""Run a configuration in this process, without Ray: prepare it, where it was not, then serve.

What takes long is built by another process, after which the parent says that it is prepared.
"""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from armwise.agent.cli.console import PLAIN, errors, explained
from armwise.agent.run_folder import GO_ON, RUN_FOLDER


def main(config: str, replaced: str, cold: str, prepared: Callable[[], bool]) -> int:
    """Serve until interrupted; return the exit code.

    Args:
        config: Path of the configuration.
        replaced: Process id of the service whose port is taken over; empty: there is none.
        cold: `cold` for no warm start before the first request.
        prepared: Waits until what takes long is built; returns whether it was.
    """
    gc.disable()  # what is imported stays; looking for cycles takes a sixth of the time
    import uvloop

    from armwise.agent.cli.before_serving import NotBuiltError, look, prepare_service
    from armwise.agent.cli.serve_config import base_url, read_listening_address
    from armwise.agent.cli.served_home import served
    from armwise.agent.config import ConfigError, load
    from armwise.agent.hosts import single_process
    from armwise.agent.proxy import CONFIGURATION
    from armwise.arms.base import ArmError
    from armwise.arms.llm import GeneratorError

    path, folder = Path(config), Path(os.environ[RUN_FOLDER])
    try:
        with explained():
            settings = load(path)
            address = read_listening_address(path)
        with served(settings, base_url(address), int(replaced or 0), os.getppid()):
            if not (folder / CONFIGURATION).exists():  # else an earlier process was prepared, and has ended
                try:
                    with explained():
                        prepare_service(path, settings, look, cold=bool(cold))
                except NotBuiltError:
                    if not prepared():
                        return 0
            gc.enable()
            uvloop.run(single_process.serve(settings.settled(), folder))
    except KeyboardInterrupt:  # before there was anything to stop
        return 0
    except typer.Exit as ended:
        return ended.exit_code
    except (ConfigError, ArmError, GeneratorError) as error:
        errors.print(str(error), style="red", **PLAIN)
        return 1
    return 0


if __name__ == "__main__":
    file, before, without = sys.argv[1:]
    sys.exit(main(file, before, without, lambda: sys.stdin.readline() == GO_ON))
