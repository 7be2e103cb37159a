"""Everything at once, for an hour: kills, an odd model, clients that leave or hold on, and a ledger.

    python benchmarks/everything.py [--minutes 60] [--database sqlite] [--seed 0]

`armwise serve` with two ingress replicas over an endpoint whose every other answer is odd, each oddity of
`odd_endpoints.py` in turn. Three clients ask and rate, and write down what was acknowledged. Meanwhile

    killed       an ingress replica, the learner or HAProxy, and at times everything, `crash_ray.py`
    leaving      a client begins a stream, and closes its connection after the first piece
    holding      forty connections send half a header, and hold it for ten seconds
    operating    an evaluation is asked for, and what one caller said is erased

Afterwards the log is checked as in `crash.py`: every acknowledgement is looked up, and training log, versions
and distributions are computed again. Ends with 1 where anything is wrong, or an answer was none that a client
should get.
"""

import asyncio
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx
import numpy as np
import psutil
import typer
from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.crash import Database, log_of
from benchmarks.crash_children import EXACT
from benchmarks.crash_ray import Deployed, deployed, plan
from benchmarks.http_target import memory_mib
from benchmarks.odd_endpoints import OddEndpoint

HELD = 40
"""Connections that hold half a header."""

HOLDING_S, LEAVING_S, OPERATING_S, SAMPLE_S = 10.0, 0.5, 20.0, 5.0
"""Pauses of those who hold, leave and operate, and between two samples of memory."""

BETWEEN_S = 15.0
"""Pause between two kills, once the service is back."""


@contextmanager
def odd_endpoint() -> Iterator[str]:
    """Yield the base URL of an endpoint, in a thread, of which every other answer is odd."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    urls: list[str] = []
    ready = threading.Event()

    async def listen() -> None:
        async with OddEndpoint(every=2).listening() as url:
            urls.append(url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(listen()), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


class Beside:
    """What happens beside the clients, each in a thread, until it is stopped.

    Attributes:
        done: How often each did what it does; refusals and lost connections are part of it.
        mib: Memory of all processes of the service, in MiB, at each sample.
    """

    def __init__(self, service: Deployed, base_url: str) -> None:
        self.done = Counter[str]()
        self.mib: list[float] = []
        self._service, self._base_url = service, base_url
        self._over = threading.Event()
        acts: dict[str, tuple[Callable[[], None], float]] = {
            "left a stream": (self._leave, LEAVING_S),
            f"held {HELD} connections": (self._hold, 0.1),
            "evaluated and erased": (self._operate, OPERATING_S),
            "sampled": (self._sample, SAMPLE_S),
        }
        self._threads = [
            threading.Thread(target=self._again, args=(name, *act), daemon=True) for name, act in acts.items()
        ]

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Let it happen."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()

    def _again(self, name: str, act: Callable[[], None], pause_s: float) -> None:
        while not self._over.wait(pause_s):
            with suppress(httpx.TransportError, OSError, psutil.Error):
                act()
                self.done[name] += 1

    def _leave(self) -> None:
        number = self.done["left a stream"]
        body = {"messages": [{"role": "user", "content": f"which river is number {number}?"}], "stream": True}
        with (
            httpx.Client(base_url=self._base_url, timeout=10.0) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            next(response.iter_raw(), b"")

    def _hold(self) -> None:
        with ExitStack() as stack:
            url = httpx.URL(self._base_url)
            for _ in range(HELD):
                connection = stack.enter_context(socket.create_connection((url.host, url.port), timeout=5.0))
                connection.sendall(b"POST /v1/retrieve HTTP/1.1\r\nHost: x\r\nX-Half: ")
            self._over.wait(HOLDING_S)

    def _operate(self) -> None:
        number = self.done["evaluated and erased"]
        with httpx.Client(base_url=self._base_url, timeout=30.0) as client:
            client.post("/v1/evaluations", json={"candidates": ["fixed:bm25"]})
            body = {"query": "which sea is it?", "agent": {"episode_id": f"gone-{number}"}}
            client.post("/v1/retrieve", json=body)
            client.delete(f"/v1/episodes/gone-{number}")

    def _sample(self) -> None:
        self.mib.append(memory_mib(self._service.pid))


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long.")] = 60.0,
    database: Annotated[Database, typer.Option(help="Where the log is.")] = Database.SQLITE,
    seed: Annotated[int, typer.Option(help="Draws questions and kills.")] = 0,
) -> None:
    """Let it all happen, check the log, and print the table."""
    console = Console(width=110)
    with TemporaryDirectory() as name, odd_endpoint() as odd, log_of(database, Path(name)) as (url, server):
        settings = {"llm": {"engine": "openai", "base_url": odd, "model": "odd", "max_retries": 0}}
        with deployed(url, EXACT, server, seed=seed, settings=settings) as service:
            beside = Beside(service, service.base_url)
            began = time.monotonic()
            with beside.going_on(), Progress(console=console) as progress:
                bar = progress.add_task("everything at once", total=60.0 * minutes)
                for case in plan(10_000, seed, database=server is not None):
                    time.sleep(BETWEEN_S)
                    progress.update(bar, completed=time.monotonic() - began)
                    if time.monotonic() - began > 60.0 * minutes:
                        break
                    service.strike(case)
            verdict = service.end()
    ledger, kills = service.ledger, Counter(kill.victim for kill in service.kills)
    answers = np.array([kill.answers_s for kill in service.kills] or [0.0])
    statuses = Counter(answer.status or "not known to the client" for answer in ledger.answered)
    table = Table("what", "figure", box=MARKDOWN)
    for what, figure in (
        ("minutes", f"{(time.monotonic() - began) / 60:.0f}"),
        ("killed", ", ".join(f"{victim} {n}" for victim, n in kills.most_common())),
        ("answers again, median and longest", f"{np.median(answers):.1f} s, {answers.max():.1f} s"),
        *((name, f"{n:,}") for name, n in sorted(beside.done.items()) if name != "sampled"),
        ("acknowledged decisions", f"{len(ledger.answered):,}"),
        ("of these ended", ", ".join(f"{status} {n:,}" for status, n in statuses.most_common())),
        ("acknowledged feedback", f"{len(ledger.kept):,}"),
        ("refused, sent again", f"{ledger.refused:,}"),
        ("facts in the log, examples", f"{verdict.facts:,}, {verdict.examples:,}"),
        ("versions and distributions compared", f"{len(verdict.versions):,}, {verdict.decisions:,}"),
        ("MiB, median and most", f"{np.median(beside.mib):,.0f}, {max(beside.mib):,.0f}"),
        ("wrong in the log", f"{len(verdict.faults)}"),
        ("odd answers", f"{len(ledger.odd)}"),
    ):
        table.add_row(what, figure)
    console.print(table)
    for text in (*map(str, verdict.faults[:5]), *ledger.odd[:5]):
        console.print(text[:500], markup=False)
    raise typer.Exit(bool(verdict.faults or ledger.odd))


if __name__ == "__main__":
    typer.run(main)
