"""A new virtual environment with what a page tells its reader to install."""

import logging
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.live.conftest import free_port
from tests.pages import Reader, ports_of

logger = logging.getLogger(__name__)

LEFT_OUT = ("ARMWISE_", "OPENAI_", "PYTEST", "PYTHON", "RAY_", "VIRTUAL_ENV")
"""How variables begin that no command sees."""

START_S, PROMOTED_S, STOP_S = 300.0, 1500.0, 60.0
"""How long a start, the first warm start and a stop may take on a busy machine."""


class Fresh:
    """A virtual environment, with a home of its own.

    Args:
        folder: An empty folder.
        wheel: The distribution of this tree.

    Attributes:
        folder: An empty folder, in which commands run.
        environ: Variables of the commands.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._wheel, self._bin = wheel, folder / "env" / "bin"
        subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
        self.folder = folder / "empty"
        self.folder.mkdir()
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
        cache = os.environ.get("PIP_CACHE_DIR", str(Path("~/.cache/pip").expanduser()))
        self.environ |= {"HOME": str(folder), "PIP_CACHE_DIR": cache, "COLUMNS": "100"}
        self.environ["PATH"] = f"{self._bin}:/usr/local/bin:/usr/bin:/bin"
        self.environ["PIP_NO_COMPILE"] = "1"  # a minute less; Python compiles what is imported

    def install(self, *requirements: str) -> None:
        """Install requirements from wheels only, this project from its own."""
        ours = [
            re.sub(r"^armwise(\[.*\])?$", rf"armwise\1 @ {self._wheel.as_uri()}", r) for r in requirements
        ]
        with timed(f"pip install {' '.join(requirements)}"):
            self.run("pip", "install", "--disable-pip-version-check", "--only-binary", ":all:", *ours)

    def run(self, *words: str, within_s: float = 900.0, ends_with: int = 0) -> str:
        """Run a program of the environment that ends with a code, and return what it prints."""
        done = subprocess.run(
            [str(self._bin / words[0]), *words[1:]],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
        assert done.returncode == ends_with, (
            f"{shlex.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return done.stderr if ends_with else done.stdout

    def distributions(self) -> set[str]:
        """Return the names of what is installed, without what a new environment has."""
        listed = self.run("pip", "list", "--format", "freeze", "--disable-pip-version-check")
        return {re.split("[= ]", line)[0] for line in listed.splitlines()} - {"pip", "setuptools", "wheel"}

    @contextmanager
    def serving(self, *words: str) -> Iterator["Service"]:
        """Start `armwise serve` with these words, and end it."""
        url = f"http://127.0.0.1:{(port := free_port())}"
        log = self.folder.parent / "serve.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(self._bin / "armwise"), "serve", "--port", str(port), *words],
                cwd=self.folder,
                env=self.environ,
                stdout=out,
                stderr=out,
            )
        try:
            service = Service(url, process, log)
            service.wait_for("Ready after", START_S)
            yield service
        finally:
            process.terminate()
            process.wait(STOP_S)

    def read(self, page: str, instead: Mapping[str, str] | None = None) -> Reader:
        """Save the files of a page and enter its commands. Each must succeed."""
        ports = {port: str(free_port()) for port in ports_of(page)}
        reader = Reader(page, self.folder, {**ports, **(instead or {})}, self.environ)
        with timed(page):
            status = reader.run()
        assert status == 0, reader.errors()
        return reader


class Service:
    """A running `armwise serve`: its address, its process and what it prints."""

    def __init__(self, url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.url, self._process, self._log = url, process, log

    def wait_for(self, said: str, within_s: float) -> str:
        """Wait until a text is printed, and return all that was printed."""
        deadline = time.monotonic() + within_s
        with timed(f"until {said!r}"):
            while said not in (printed := self._log.read_text(errors="replace")):
                assert self._process.poll() is None, f"the service has ended:\n{printed[-3000:]}"
                assert time.monotonic() < deadline, f"no {said!r} in {within_s:.0f} s:\n{printed[-3000:]}"
                time.sleep(0.2)
        return printed


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Log the seconds of a step."""
    began = time.perf_counter()
    yield
    logger.info("%s: %.1f s", what, time.perf_counter() - began)
