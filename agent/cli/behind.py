"""Child processes that build: before a service answers, and the rest of a first start while it does."""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from armwise.agent.background import PAUSES_S, Work, WorkFailure, record
from armwise.agent.cli.console import PLAIN, console, errors
from armwise.agent.run_folder import BEHIND, PROGRESS, RUN_FOLDER, BuildingProgress
from armwise.arms.own_processes import ends_with_its_parent, python


class ProcessLostError(Exception):
    """A process that the service needs was killed; the message names it and the remedy."""


class BuildProcess:
    """The process that builds what is missing, and frees its memory when it ends.

    Args:
        config: A configuration file.
        folder: The folder of the run; None: that of no run.
        environment: Variables of the process; None: those of this one.
    """

    def __init__(
        self, config: Path, folder: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        environment = dict(os.environ if environment is None else environment)
        if folder is not None:
            environment[RUN_FOLDER] = str(folder)
        command = python("-m", "armwise", "serve", "--prepare-only", "--config", str(config))
        self._process = subprocess.Popen(command, env=environment, preexec_fn=ends_with_its_parent)

    def wait(self) -> int:
        """Return its exit code; end it where waiting is interrupted. Raises ProcessLostError."""
        try:
            code = self._process.wait()
        finally:
            self._process.terminate()
        if code < 0:
            raise ProcessLostError(
                f"the process that builds what is missing has ended ({how_it_ended(code)}): start the "
                "service again. If it happens again, look for the out-of-memory killer (`journalctl -k`), "
                "and at `armwise doctor`"
            )
        return code


class BehindBuilder:
    """The process that builds the rest of a first start; restarted after a pause if it is killed.

    Args:
        config: A configuration file.
        folder: Folder of the run; no process is started if it is None, or everything is built.
        environment: Variables of the process; None: those of this one.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        config: Path,
        folder: Path | None,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._folder, self._clock = config, folder, clock
        self._environment = os.environ if environment is None else environment
        self._process: subprocess.Popen[bytes] | None = None
        self._kills, self._again_at = 0, math.inf
        if folder is not None and (folder / BEHIND).exists():
            self._again_at = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def watch(self) -> None:
        """Start the process when that is due, and record that it has ended early."""
        if self._folder is None:
            return
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            if (self._folder / PROGRESS).exists():  # else it is done, or has recorded its failure
                self._again_at = self._clock() + self._record(how_it_ended(code), self._folder)
        if self._clock() >= self._again_at:
            if self._again_at == -math.inf:
                until = "Keyword search answers until the vector index is ready"
                console.print(f"{until}. It is being built in the background", **PLAIN)
            self._again_at = math.inf
            self._process = subprocess.Popen(
                python("-m", "armwise.agent.cli.first_start", str(self._config)),
                env={**self._environment, RUN_FOLDER: str(self._folder)},
                start_new_session=True,
                preexec_fn=ends_with_its_parent,
            )

    def stop(self) -> None:
        """End the process and its children."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()

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


def how_it_ended(code: int) -> str:
    """Describe an exit code.

    >>> how_it_ended(-9), how_it_ended(0)
    ('killed by SIGKILL', 'exit code 0')
    """
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
