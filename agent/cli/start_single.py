"""Run a configuration in this process, without Ray: prepare it, where it was not, then serve.

What takes long is built by another process, after which the parent says that it is prepared.
"""

import gc
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import typer

from armwise.agent.cli.console import PLAIN, errors, message_lines, report_errors
from armwise.agent.run_folder import GO_ON, RUN_FOLDER


def main(config: str, replaced: str, prepared: Callable[[], bool]) -> int:
    """Serve until interrupted; return the exit code.

    Args:
        config: Path of the configuration.
        replaced: Process id of the service whose port is taken over; empty: there is none.
        prepared: Waits until what takes long is built; returns whether it was.
    """
    gc.disable()  # what is imported stays; looking for cycles takes a sixth of the time
    from armwise.agent.cli.before_serving import is_prepared
    from armwise.agent.cli.serve_config import base_url, read_listening_address
    from armwise.agent.cli.served_home import mark_home
    from armwise.agent.config import ConfigError, load
    from armwise.arms.base import ArmError
    from armwise.arms.llm import GeneratorError

    path, folder = Path(config), Path(os.environ[RUN_FOLDER])
    try:
        with ExitStack() as stack:
            with report_errors():
                settings, url = load(path), base_url(read_listening_address(path))
                stack.enter_context(mark_home(settings, url, int(replaced or 0), os.getppid()))
                is_built = is_prepared(path, settings, folder)
            import uvloop

            from armwise.agent.hosts import single_process  # while another process builds what is missing

            if is_built or prepared():
                gc.enable()
                uvloop.run(single_process.serve(settings.resolve_places(), folder))
    except KeyboardInterrupt:  # before there was anything to stop
        return 0
    except typer.Exit as ended:
        return ended.exit_code
    except (ConfigError, ArmError, GeneratorError) as error:
        for line in message_lines(error):
            errors.print(line, style="red", **PLAIN)
        return 1
    return 0


if __name__ == "__main__":
    file, before = sys.argv[1:]
    sys.exit(main(file, before, lambda: sys.stdin.readline() == GO_ON))
