"""The process of a service without Ray, as its parent sees it."""

import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from armwise.agent.cli.console import PLAIN, errors
from armwise.agent.cli.ray_processes import explain_loss, how_it_ended, kill_session
from armwise.agent.proxy import wait_for_end
from armwise.agent.run_folder import GO_ON

ENDS, ENDS_S = 5, 60.0
"""Ends of the process, and the seconds within which they show that a restart is of no use."""


class SingleProcess:
    """The process that serves; once it has served, it is started again when it ends.

    Args:
        start: Starts the process, which waits for `GO_ON` on its input.
        clock: Monotonic seconds.

    Attributes:
        process: The process that runs now.
    """

    def __init__(
        self, start: "Callable[[], subprocess.Popen[bytes]]", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._start, self._clock = start, clock
        self._ends: deque[float] = deque(maxlen=ENDS)
        self._has_served = False
        self.process = start()

    def has_served(self) -> None:
        """Note that it has become ready: from now on it is started again."""
        self._has_served = True

    def check(self) -> int | None:
        """Return the exit code of the process; None while it runs, or was started again.

        Raises:
            ProcessLostError: It was killed before it served, or ends again and again.
        """
        if (code := self.process.poll()) is None:
            return None
        if not self._has_served:
            if code >= 0:
                return code  # it has said why
            raise explain_loss("the process that serves", how_it_ended(code))
        self._ends.append(self._clock())
        if len(self._ends) == ENDS and self._ends[-1] - self._ends[0] < ENDS_S:
            raise explain_loss("the process that serves", f"{how_it_ended(code)}, as {ENDS - 1} times before")
        errors.print(
            f"the process that serves has ended ({how_it_ended(code)}), and was started again",
            style="yellow",
            **PLAIN,
        )
        kill_session(self.process.pid)  # what it has left
        self.process = self._start()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as line:  # it may have ended already
            line.write(GO_ON.encode())
        return None

    def end(self) -> None:
        """Kill the process and its children."""
        kill_session(self.process.pid)
        wait_for_end(self.process)


def find_deployments(document: dict[str, object]) -> list[str]:
    """Return the names of deployments for which a Serve configuration has options."""
    found = []
    applications = document.get("applications")
    for application in applications if isinstance(applications, list) else ():
        found += [str(one.get("name")) for one in application.get("deployments") or ()]
    return found
