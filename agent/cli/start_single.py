"""Run a configuration in this process, without Ray, once the parent says that it is prepared."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path

from armwise.agent.cli.console import PLAIN, errors
from armwise.agent.run_folder import GO_ON


def main(config: str, folder: str, prepared: Callable[[], bool]) -> int:
    """Serve until interrupted; return the exit code.

    Args:
        config: Path of the configuration.
        folder: Folder of the sockets.
        prepared: Waits until it can be served; returns whether it is to be.
    """
    gc.disable()  # what is imported stays; looking for cycles takes a sixth of the time
    import uvloop

    from armwise.agent.config import ConfigError, load
    from armwise.agent.hosts import single_process
    from armwise.arms.base import ArmError
    from armwise.arms.llm import GeneratorError

    gc.enable()
    try:
        if prepared():
            uvloop.run(single_process.serve(load(Path(config)).settled(), Path(folder)))
    except KeyboardInterrupt:  # before there was anything to stop
        return 0
    except (ConfigError, ArmError, GeneratorError) as error:
        errors.print(str(error), style="red", **PLAIN)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], lambda: sys.stdin.readline() == GO_ON))
