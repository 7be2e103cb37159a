"""The service of the demo: its process, and requests to it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
from typing_extensions import override

from armwise.agent.cli.serve_config import LaunchError
from armwise.agent.client import ClientError
from armwise.agent.client.calls import BUSY
from armwise.agent.client.client import retry_after_s
from examples.demo.record import Exchange

PATIENCE_S = 7200.0
"""How long nothing may change before what is waited for is given up.

On a busy machine, work at low priority may hardly run for an hour.
"""

STOP_S = 30.0
"""How long it may take to stop in order."""

LONGEST_PAUSE_S = 10.0
"""Longest pause before a request is sent again to a service that is busy, unless that says how long."""

LONGEST_ANSWER = 1200
"""Characters of an answer that are shown."""


class Patience:
    """Lasts as long as what is waited for goes on, and `PATIENCE_S` after it last did.

    Args:
        limit_s: Seconds in which nothing changes.
        clock: Monotonic seconds.
    """

    def __init__(self, limit_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._seen: object = None
        self._changed_at = clock()

    def lasts(self, seen: object) -> bool:
        """Return whether to go on waiting, by what is seen now, which may have changed."""
        if seen != self._seen:
            self._seen, self._changed_at = seen, self._clock()
        return self._clock() - self._changed_at < self._limit_s


class PatientTransport(httpx.AsyncBaseTransport):
    """Sends a request again while the service is busy.

    Args:
        transport: Sends each request.
        patience_s: Seconds after which the answer that it is busy is returned.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport, patience_s: float = PATIENCE_S) -> None:
        self._transport, self._patience_s = transport, patience_s

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        patience, pause_s = Patience(self._patience_s), 0.1
        while True:
            response = await self._transport.handle_async_request(request)
            if response.status_code not in BUSY or not patience.lasts(None):
                return response
            await response.aclose()
            await asyncio.sleep(retry_after_s(response.headers.get("retry-after"), default=pause_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    @override
    async def aclose(self) -> None:
        await self._transport.aclose()


def armwise(*words: str) -> list[str]:
    """Return a command line of this program, by the interpreter that runs now."""
    return [str(Path(sys.executable).with_name("armwise")), *words]


def prepare(config: Path, home: Path) -> None:
    """Build what the service needs: the child prints its own progress.

    Raises:
        LaunchError: It cannot be built; the child printed why.
    """
    built = subprocess.run(
        armwise("serve", "--prepare-only", "--config", str(config)), env=_environment(home), check=False
    )
    if built.returncode:
        raise LaunchError(f"{config}: what it serves cannot be built")


@contextmanager
def serving(config: Path, home: Path, log: Path, url: str, mode: str) -> Iterator[None]:
    """Run `armwise serve` in a process of its own, from when it is ready until the block is left.

    Args:
        config: What is served.
        home: ARMWISE_HOME of the service.
        log: Takes what it prints.
        url: Where it listens.
        mode: `--ray` or `--single-process`.

    Raises:
        LaunchError: It does not become ready.
    """
    with log.open("wb") as printed, _interruptible():
        # in a session of its own, so that Ctrl-C reaches it once, from here, and it can stop in order
        process = subprocess.Popen(
            armwise("serve", "--config", str(config), mode),
            env=_environment(home),
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_until_ready(process, url, log)
            yield
        finally:
            _stop(process)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, also where the demo was started in the background."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "ARMWISE_HOME": str(home)}


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    patience, said = Patience(), ""
    while patience.lasts((said, log.stat().st_size)):
        if process.poll() is not None:
            raise LaunchError(f"the service ended with status {process.returncode}: see {log}")
        with suppress(httpx.HTTPError):
            reply = httpx.get(f"{url}/ready", timeout=60)
            if reply.is_success:
                return
            said = reply.text
        time.sleep(0.5)
    raise LaunchError(f"the service is not ready, and said nothing new for {PATIENCE_S:g} s: see {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to stop in order, and insist where it does not."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
            return


class Desk:
    """Sends what an operator sends, and keeps how that would be typed.

    Args:
        http: Client whose base URL is that of the service.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def get(self, path: str) -> Any:
        """Return the reply of a path. Raises ClientError."""
        status, document = await self.send("GET", path)
        if status >= httpx.codes.BAD_REQUEST:
            raise ClientError(f"GET {path} gave {status}: {document}")
        return document

    async def text(self, path: str) -> str:
        """Return a page. Raises ClientError."""
        response = await self._answer("GET", path, None)
        if not response.is_success:
            raise ClientError(f"GET {path} gave {response.status_code}")
        return response.text

    async def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the document of an answer, also where it is a refusal. Raises ClientError."""
        response = await self._answer(method, path, body)
        if response.is_server_error:
            raise ClientError(f"{method} {path} gave {response.status_code}: {response.text[:200]}")
        return response.status_code, response.json()

    async def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        try:
            return await self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise ClientError(f"{method} {path}: {type(error).__name__} {error}") from error

    def exchange(self, method: str, path: str, body: Mapping[str, Any] | None, answer: Any) -> Exchange:
        """Say how a request would be typed, and what was answered."""
        url = f"{self._http.base_url}".rstrip("/") + path
        words = ["curl", *(["-X", method] if method != "GET" else []), url]
        if body is not None:
            words += ["-H", "'content-type: application/json'", "-d", f"'{orjson.dumps(body).decode()}'"]
        text = orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode()
        return Exchange(
            " ".join(words), text if len(text) <= LONGEST_ANSWER else f"{text[:LONGEST_ANSWER]}\n…"
        )
