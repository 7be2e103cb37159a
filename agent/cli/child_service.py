"""A service in a child process that ends with this one, for verbs that need a service for a while."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import httpx

from armwise.agent.cli.serve_config import LaunchError
from armwise.arms import proxies
from armwise.arms.local_ray import UMASK
from armwise.arms.own_processes import ends_with_its_parent, keep_apart, python

LOOK_S, STOP_S = 5.0, 20.0
"""Seconds that a look at the service may take, and until it has stopped."""


class ChildService:
    """`armwise serve` in one process, in a session of its own: keys of the terminal are not for it.

    Args:
        config: The configuration file.
        url: Where that says to serve.
        log: File that gets what the service prints.
    """

    def __init__(self, config: Path, url: str, log: Path) -> None:
        self._url, self._log, variables = url, log, dict(os.environ)
        self._http = proxies.client(timeout=LOOK_S)
        keep_apart(variables)
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            self._process = subprocess.Popen(
                python("-m", "armwise", "serve", "--single-process", "--config", str(config)),
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                umask=UMASK,
                start_new_session=True,
                preexec_fn=ends_with_its_parent,
            )

    @property
    def code(self) -> int | None:
        """The exit code of the process; None: it runs."""
        return self._process.poll()

    def is_ready(self) -> bool:
        """Return whether it is ready. Raises LaunchError if it has ended."""
        with suppress(httpx.HTTPError):
            if self._http.get(f"{self._url}/ready").is_success:
                return True
        if self.code is not None:
            said = self._log.read_text(errors="replace").strip().splitlines()
            why = said[-1] if said else "it printed nothing"
            raise LaunchError(f"the service ended with {self.code}: {why}. See {self._log}")
        return False

    def stop(self) -> None:
        """Have it finish its requests and end; kill it if that takes too long."""
        self._http.close()
        if self.code is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
