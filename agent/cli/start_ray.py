"""Start Ray with the processes that one machine needs, and run a Serve configuration: `serve run`.

Without the dashboard, eleven processes fewer. Where RAY_ADDRESS names a cluster, that one is used as it is.
A deployment that Ray Serve gives up ends the process, with its reason; one that is unhealthy is reported.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.cli.console import PLAIN, errors
from agent.proxy import RUN_FOLDER
from arms import local_ray

OBJECT_STORE_BYTES = 256 * 2**20
"""What passes between replicas is small: passages, vectors, pieces of answers."""

LOOK_S = 1.0
"""Pause between two looks at the deployments."""

SERVE = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",  # fewer threads between a request and its answer
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",  # which that would switch on, with a proxy of Ray's own
}
"""Variables of Ray Serve, also on a cluster."""

STATES = (("DEPLOY_FAILED", "has failed for good", True), ("UNHEALTHY", "is unhealthy", False))
"""Statuses of a deployment that are problems, what is said of them, and whether Ray Serve has given it up."""

GAVE_UP = 3
"""Exit code where Ray Serve has given a deployment up."""


def main(config: str) -> int:
    """Run a Serve configuration until interrupted, or given up by Ray Serve; return the exit code."""
    for name, value in SERVE.items():
        os.environ.setdefault(name, value)
    if "RAY_ADDRESS" not in os.environ:
        run = os.environ.get(RUN_FOLDER)
        local_ray.start(Path(run) if run else None, namespace="serve", object_store_memory=OBJECT_STORE_BYTES)
    from ray.serve.scripts import cli  # Ray reads the environment when it is imported

    watch = Watch()
    watch.start()
    try:
        cli(["run", config], standalone_mode=False)
    except SystemExit as ended:
        return watch.code or (ended.code if isinstance(ended.code, int) else 0)
    return watch.code


class Watch(threading.Thread):
    """Reports unhealthy deployments; interrupts the main thread where Ray Serve has given one up.

    Attributes:
        code: Exit code of the process; 0 while no deployment was given up.
    """

    def __init__(self) -> None:
        super().__init__(name="deployments", daemon=True)
        self.code = 0

    def run(self) -> None:
        """Look at the deployments until one is given up."""
        from ray import serve

        reported: set[str] = set()
        pause = threading.Event()
        while not self.code:
            pause.wait(LOOK_S)
            try:
                lines = list(problems(serve.status().applications))
            except Exception:  # noqa: BLE001 - a controller that starts or stops raises what it likes
                continue
            for line, for_good in lines:
                if line not in reported:
                    errors.print(line, style="red" if for_good else "yellow", **PLAIN)
                if for_good:
                    self.code = GAVE_UP
            reported = {line for line, _ in lines}
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def problems(applications: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield what is wrong with deployments, and whether Ray Serve has given them up.

    Args:
        applications: Overviews of `serve.status()` by name.
    """
    for application in applications.values():
        failed = [
            (f"deployment {name} {what}: {one.message.strip()}", for_good)
            for name, one in sorted(application.deployments.items())
            for status, what, for_good in STATES
            if one.status.value == status
        ]
        yield from failed
        if application.status.value == "DEPLOY_FAILED" and not any(for_good for _, for_good in failed):
            yield f"the application cannot be deployed: {application.message.strip()}", True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
