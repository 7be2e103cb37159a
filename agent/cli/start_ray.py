"""Start Ray with the processes that one machine needs, and run a Serve configuration: `serve run`.

Ray starts at once; the configuration is run when the parent says that it is prepared. Where RAY_ADDRESS names
a cluster, that one is used as it is.
A deployment that Ray Serve gives up ends the process, with its reason; one that is unhealthy is reported.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import yaml
from rich.text import Text

from armwise.agent.background import Work, WorkFailure, clear, record
from armwise.agent.cli.console import PLAIN, errors
from armwise.agent.cli.serve_config import read_document
from armwise.agent.run_folder import CONFIG_FOLDER, GO_ON, RAY_ENDS, RAY_STARTED, RUN_FOLDER
from armwise.arms import local_ray

OBJECT_STORE_BYTES = 256 * 2**20
"""What passes between replicas is small: passages, vectors, pieces of answers."""

LOOK_S = 1.0
"""Pause between two looks at the deployments."""

SERVE = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",  # fewer threads between a request and its answer
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",  # which that would switch on, with a proxy of Ray's own
    # each stop ends the controller while it shuts down, and Ray announces that it will try again for ever
    "RAY_DEDUP_LOGS_SKIP_REGEX": r"ServeController\.graceful_shutdown failed",
}
"""Variables of Ray Serve, also on a cluster."""

GIVEN_UP = "DEPLOY_FAILED"
"""Status of what Ray Serve no longer tries to start."""

STATES = ((GIVEN_UP, "has failed for good", True), ("UNHEALTHY", "is unhealthy", False))
"""Statuses of a deployment that are problems, what is said of them, and whether Ray Serve has given it up."""

GAVE_UP = 3
"""Exit code where Ray Serve has given a deployment up."""

INTERRUPTED = 130
"""Exit code where it was interrupted before there was anything to run."""


def main(config: str, prepared: Callable[[], bool] = lambda: True) -> int:
    """Run a Serve configuration until interrupted, or given up by Ray Serve; return the exit code.

    Args:
        config: Path of the configuration.
        prepared: Waits until it can be run; returns whether it is to be run.
    """
    for name, value in SERVE.items():
        os.environ.setdefault(name, value)
    try:
        quiet = {"namespace": "serve", "logging_level": logging.WARNING}  # else a line amid the progress
        if "RAY_ADDRESS" in os.environ:
            local_ray.connect(**quiet)
        else:
            run = os.environ.get(RUN_FOLDER)
            local_ray.start(Path(run) if run else None, object_store_memory=OBJECT_STORE_BYTES, **quiet)
            _mark(RAY_STARTED)
        from ray.serve.scripts import cli  # now: it reads the environment, and what is prepared takes longer

        if not prepared():
            return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except local_ray.RayNotStartedError as error:
        errors.print(str(error), style="red", **PLAIN)
        return 1
    watch = DeploymentWatch()
    watch.start()
    try:
        with for_cluster(config) as path:
            # without a folder, it imports from this one
            cli(["run", "--app-dir", os.devnull, path], standalone_mode=False)
    except SystemExit as ended:
        if not watch.given_up:
            return ended.code if isinstance(ended.code, int) else 0
    finally:
        _mark(RAY_ENDS)  # it ends with this process
    for problem in watch.given_up:
        errors.print(str(problem), style="red", **PLAIN)
    return GAVE_UP if watch.given_up else 0


@contextmanager
def for_cluster(config: str) -> Iterator[str]:
    """Yield a configuration that passes its folder on to the processes of a cluster, too."""
    if "RAY_ADDRESS" not in os.environ:  # they inherit the variable from this one
        yield config
        return
    document = read_document(Path(config))
    for application in document["applications"]:
        runtime = application.setdefault("runtime_env", {})
        runtime["env_vars"] = {
            CONFIG_FOLDER: os.environ[CONFIG_FOLDER],
            **runtime.get("env_vars", {}),
        }
    with NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(document, file)
        file.flush()
        yield file.name


def _mark(name: str) -> None:
    """Create a file in the folder of the run, if there is one, by which the parent knows how far Ray is."""
    if run := os.environ.get(RUN_FOLDER):
        (Path(run) / name).touch()


@dataclass(frozen=True)
class Problem:
    """What is wrong with a deployment, or with the application as a whole.

    Attributes:
        what: Name of the process, and how it is.
        message: What Ray Serve says: a sentence, or a traceback after it.
        for_good: Whether Ray Serve has given it up.
    """

    what: str
    message: str
    for_good: bool

    def __str__(self) -> str:
        """Return one line: what is wrong, and why, which is the last line of a traceback."""
        return f"{self.what}: {self.message.splitlines()[-1] if self.message else 'without a reason'}"


def problems(applications: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with the deployments of applications.

    Args:
        applications: Overviews of `serve.status()` by name.
    """
    for application in applications.values():
        of_deployments = [
            Problem(f"deployment {name} {what}", deployment.message.strip(), for_good)
            for name, deployment in sorted(application.deployments.items())
            for status, what, for_good in STATES
            if deployment.status.value == status
        ]
        yield from of_deployments
        if application.status.value == GIVEN_UP and not any(problem.for_good for problem in of_deployments):
            yield Problem("the application cannot be deployed", application.message.strip(), for_good=True)


class DeploymentWatch(threading.Thread):
    """Reports and records unhealthy deployments; interrupts the main thread where Ray Serve has given one up.

    Attributes:
        given_up: What Ray Serve has given up; empty while there is hope.
    """

    def __init__(self) -> None:
        super().__init__(name="deployments", daemon=True)
        self.given_up: list[Problem] = []
        self._reported: list[Problem] = []
        self._failures = 0

    def run(self) -> None:
        """Look at the deployments until one is given up; print each problem when it comes up."""
        import ray
        from ray import serve

        pause = threading.Event()
        while not self.given_up:
            pause.wait(LOOK_S)
            if not ray.is_initialized():  # not yet, or no longer: a look would start another Ray
                continue
            if local_ray.start_log_monitor_again():
                errors.print("Ray's log monitor had ended, and was started again", style="yellow", **PLAIN)
            try:
                there = list(problems(serve.status().applications))
            except Exception:  # noqa: BLE001 - a controller that starts or stops raises what it likes # nosec B112
                continue
            self._report(there)
            self.given_up = [problem for problem in there if problem.for_good]
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _report(self, there: list[Problem]) -> None:
        """Print what has come up since the last look, and record what is wrong until nothing is."""
        new = [problem for problem in there if problem not in self._reported]
        for problem in new:
            errors.print(Text(f"{problem.what}: {problem.message}"), style="yellow", **PLAIN)
        if there and there != self._reported:
            self._failures += bool(new)
            why = "; ".join(map(str, there))
            record(WorkFailure(Work.DEPLOYMENTS, why, self._failures, time.time()))
        elif not there and self._reported:
            self._failures = 0
            clear(Work.DEPLOYMENTS)
        self._reported = there


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], lambda: sys.stdin.readline() == GO_ON))
