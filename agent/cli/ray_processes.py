"""The processes of Ray that a service depends on: which of them are missing, and whether they come back.

    Ray's own                  never restarted: if one is missing, the service ends at once
    the controller, ingress    restarted by Ray: a background failure; after minutes, the service ends

`Absences` decides from observations; `RayProcesses` observes the processes and has the clock.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import psutil

from armwise.agent.background import Work, WorkFailure, clear, record
from armwise.agent.cli.console import PLAIN, errors
from armwise.agent.proxy import wait_for_end
from armwise.agent.run_folder import RAY_ENDS, RAY_STARTED

LOOK_S = 1.0
"""Pause between two observations of the processes."""

MOST_S = 5.0
"""Most seconds between two observations that count as absence, since this process may have been suspended."""

SAID_S = 5.0
"""Absence in seconds after which a process that Ray restarts is reported as a background failure."""


class Role(StrEnum):
    """A process that a service depends on, in words."""

    CONTROL = "Ray's control service (gcs_server)"
    RAYLET = "Ray's raylet"
    DASHBOARD_AGENT = "Ray's dashboard agent"
    ENVIRONMENT_AGENT = "Ray's runtime-environment agent"
    CONTROLLER = "Ray Serve's controller"
    INGRESS = "the ingress"


PROGRAMS = {
    Role.CONTROL: re.compile(r"\A(.*/)?gcs_server"),
    Role.RAYLET: re.compile(r"\A(.*/)?raylet"),
    Role.DASHBOARD_AGENT: re.compile(r"ray::DashboardAgent"),
    Role.ENVIRONMENT_AGENT: re.compile(r"ray::RuntimeEnvAgent"),
    Role.CONTROLLER: re.compile(r"ray::ServeController\b.*"),
    Role.INGRESS: re.compile(r"ray::ServeReplica:.*:Ingress\b.*"),
}
"""Patterns of process titles, to which Ray adds the method that an actor executes."""

STARTED_AGAIN = (Role.CONTROLLER, Role.INGRESS)
"""Processes that Ray restarts, which takes minutes on a busy machine."""

PATIENCE_S = dict.fromkeys(Role, 2.0) | dict.fromkeys(STARTED_AGAIN, 300.0)
"""Seconds that each process may be missing."""

STARTING_S = 25.0
"""Seconds that Ray's processes may be missing while Ray starts, if its control service is: it may retry."""

ENDING_S = 60.0
"""Seconds that Ray may take to end in order, after which its missing processes count."""


class ProcessLostError(Exception):
    """A process that the service needs has ended; the message names it and the remedy."""


class Absences:
    """How long processes have been missing, by repeated observations.

    Args:
        expected: Processes that run from the start; others are expected once they were observed.
        starting: Whether Ray is starting, which may end all processes and retry.

    Attributes:
        missing_s: Seconds for which each expected process has been missing.
    """

    def __init__(self, expected: Iterable[Role] = (), *, starting: bool = False) -> None:
        self._expected = set(expected)
        self._starting = starting
        self._looked_at: float | None = None
        self.missing_s: dict[Role, float] = {}

    def look(self, there: Collection[Role], now: float, ended: Collection[Role] = ()) -> None:
        """Record an observation.

        Args:
            there: Roles with a running process.
            now: Seconds; a step counts between 0 and `MOST_S`.
            ended: Roles with a process that has ended, observed running before or not.
        """
        passed_s = 0.0 if self._looked_at is None else min(max(now - self._looked_at, 0.0), MOST_S)
        self._looked_at = now
        self._expected |= {*there, *ended}
        before = self.missing_s
        self.missing_s = {
            role: before[role] + passed_s if role in before else 0.0
            for role in Role
            if role in self._expected and role not in there
        }

    @property
    def lost(self) -> list[Role]:
        """Processes that have been missing for too long; if any of Ray's own is, all of Ray's own."""
        begins_anew = self._starting and Role.CONTROL in self.missing_s
        least_s = STARTING_S if begins_anew else 0.0
        late = [
            role for role, missing_s in self.missing_s.items() if missing_s >= max(PATIENCE_S[role], least_s)
        ]
        own = [role for role in self.missing_s if role not in STARTED_AGAIN]
        return own if set(own) & set(late) else late

    @property
    def said(self) -> list[Role]:
        """Processes that have been missing for longer than a restart takes."""
        return [role for role, missing_s in self.missing_s.items() if missing_s >= SAID_S]


class RayProcesses:
    """The processes below the one that has started Ray.

    Args:
        starter: The process that has started Ray, in a separate session.
        folder: Folder of the run, if it has one.
        clock: Monotonic seconds, excluding suspension.

    Attributes:
        process: The process that has started Ray.
    """

    def __init__(
        self,
        starter: "subprocess.Popen[bytes]",
        folder: Path | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.process, self._folder, self._clock = starter, folder, clock
        self._absences = Absences(starting=True)
        self._control: int | None = None
        self._seen: dict[Role, list[psutil.Process]] = {}
        self._ended: set[Role] = set()
        self._next, self._started = 0.0, False
        self._ends_by: float | None = None
        self._failures = 0
        self._said: list[Role] = []

    def check(self) -> int | None:
        """Return the exit code of the process that has started Ray; None while it runs.

        Call it often: it looks at the others every `LOOK_S`.

        Raises:
            ProcessLostError: It was killed or has ended as if nobody needed it, or another one is lost.
        """
        if (code := self.process.poll()) is not None:
            if code > 0:
                return code  # it has said why
            raise explain_loss("the process that runs Ray Serve", how_it_ended(code))
        now = self._clock()
        if now < self._next:
            return None
        self._next = now + LOOK_S
        if "RAY_ADDRESS" in os.environ:
            return None  # its processes belong to others
        if self._ends_in_order(now):
            return None
        there = self._there()
        if not self._started:
            self._follow_start(there)
        self._absences.look(there, now, self._ended)
        if roles := self._absences.lost:
            raise explain_loss(", ".join(roles), "gone, and not started again")
        self._say(self._absences.said)
        return None

    def has_served(self) -> None:
        """Do nothing: Ray restarts what ends."""

    def end(self) -> None:
        """Kill all processes."""
        kill_session(self.process.pid)
        wait_for_end(self.process)

    def _ends_in_order(self, now: float) -> bool:
        """Return whether Ray ends since its starter does, which will say why with its exit code."""
        if self._ends_by is None and self._folder is not None and (self._folder / RAY_ENDS).exists():
            self._ends_by = now + ENDING_S
        return self._ends_by is not None and now < self._ends_by

    def _follow_start(self, there: Collection[Role]) -> None:
        """Detect that Ray has retried its start, or has finished it."""
        if self._folder is None:
            self._started = Role.CONTROLLER in there
        else:
            self._started = (self._folder / RAY_STARTED).exists()
        control = next((process.pid for process in self._seen.get(Role.CONTROL, ())), None)
        if self._started:
            self._absences = Absences((Role.CONTROL, Role.RAYLET))
        elif control not in (None, self._control):
            self._absences, self._control = Absences(starting=True), control

    def _there(self) -> set[Role]:
        """Return the roles with a running process; if one is missing, all processes are searched again."""
        self._seen = {role: list(filter(_runs, processes)) for role, processes in self._seen.items()}
        if any(not self._seen.get(role) for role in Role):
            self._seen = {role: [] for role in Role}
            with suppress(psutil.Error):
                for process in psutil.Process(self.process.pid).children(recursive=True):
                    if (role := find_role(process)) is not None and _runs(process):
                        self._seen[role].append(process)
                    elif _is_ended_control(process):  # Ray itself would wait for it for half a minute
                        self._ended.add(Role.CONTROL)
        return {role for role, processes in self._seen.items() if processes}

    def _say(self, said: list[Role]) -> None:
        """Record missing processes, and print them once."""
        if said == self._said:
            return
        if said:
            self._failures += 1
            failure = WorkFailure(
                Work.SERVICE,
                f"no process of {' and '.join(said)} runs",
                self._failures,
                time.time(),
            )
            record(failure, self._folder)
            errors.print(str(failure), style="yellow", **PLAIN)
        else:
            self._failures = 0
            clear(Work.SERVICE, self._folder)
            errors.print(f"{' and '.join(self._said)}: there again", style="yellow", **PLAIN)
        self._said = said


def explain_loss(what: str, how: str) -> ProcessLostError:
    """Return the error that ends a service, with the remedy."""
    return ProcessLostError(
        f"the service ends without {what} ({how}): start it again, as a service manager does. "
        "If it happens again, look for the out-of-memory killer (`journalctl -k`), and at `armwise doctor`"
    )


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


def find_role(process: psutil.Process) -> Role | None:
    """Return the role of a process; None: it has none, or has ended."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return None
    return role_of_program(words[0]) if words else None


def role_of_program(program: str) -> Role | None:
    """Return the role of a process with this title, if it has one.

    >>> print(role_of_program("ray::ServeReplica:armwise:Ingress.handle_request"))
    the ingress
    """
    return next((role for role, name in PROGRAMS.items() if name.fullmatch(program)), None)


def _runs(process: psutil.Process) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _is_ended_control(process: psutil.Process) -> bool:
    """Return whether a process is a zombie of Ray's control service."""
    try:
        ended = process.status() == psutil.STATUS_ZOMBIE
        return ended and role_of_program(process.name()) is Role.CONTROL
    except psutil.Error:
        return False


def kill_session(number: int) -> None:
    """Kill every process of a session."""
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):  # it has ended, or belongs to another user
            if os.getsid(process.pid) == number:
                process.kill()
