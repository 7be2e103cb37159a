"""What callers see when a part of the service dies: each is killed under traffic, and the log is checked.

    python benchmarks/outages.py [--database postgresql] [--only search,model] [--rounds 1] [--port 8102]

Starts `armwise serve` with two replicas of its HTTP surface, an arm that does nothing, an arm that asks a
search engine over HTTP, and a language model behind OpenAI's protocol; engine and model are stand-ins that
answer at once. Two clients ask for passages and two for answers of the chat, each without a pause and each
question once: what is refused is counted and not sent again. One after the other is killed with SIGKILL:

    ingress, learner, generator                 a process of the service, which starts it again by itself
    gcs                                         Ray's head on one machine; what then ends is started again
    search, model, database                     what the service needs; started again after three seconds
    everything                                  every process of the service, which is started again at once

By route it prints how many were asked and answered, what the others got, how long nobody was answered at the
longest, and how many seconds after the kill the last request failed; for what was started again after three
seconds, after that start. At the end every acknowledged decision is looked up in the log, and
`armwise log rebuild --verify` recomputes what was learned from it.
"""

import asyncio
import multiprocessing
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, cast

import orjson
import psutil
import sqlalchemy as sa
import typer
import uvloop
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from benchmarks.chat import answer_at_once
from benchmarks.http_load import Answer, Connection, connect, failure, request
from benchmarks.http_target import ROOT, armwise, family, free_port, settings, started, title_of
from benchmarks.service import serve_config
from tests.postgres import Server, running

OWN = {
    "ingress": "ServeReplica:armwise:Ingress",
    "learner": "ServeReplica:armwise:Learner",
    "generator": "ServeReplica:armwise:Generator",
}
"""Part of what the processes call themselves that the service replaces."""

GCS = "gcs_server"
NEEDED = ("search", "model", "database")
PARTS = (*OWN, "gcs", *NEEDED, "everything")
REPLICAS, CLIENTS = 2, 2
BEFORE_S, AWAY_S, CALM_S = 2.0, 3.0, 6.0
"""Seconds of traffic before a kill, of absence of what is needed, and without a failure before the next."""

PATIENCE_S, WHOLE_S = 30.0, 180.0
WORDS = "Which function merges sorted inputs lazily?"
ROUTES = {
    "retrieve": ("/v1/retrieve", {"query": WORDS}),
    "chat": ("/v1/chat/completions", {"model": "auto", "messages": [{"role": "user", "content": WORDS}]}),
}


# -- what the service needs ------------------------------------------------------------------------


class _Engine(asyncio.Protocol):
    """Answers every search alike."""

    _BODY = orjson.dumps({"results": [{"id": "heapq", "title": "heapq", "text": "merge sorted inputs"}]})
    RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(_BODY),
        _BODY,
    )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # those of uvloop are no subclass

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):  # a GET has no body
            self._transport.write(self.RESPONSE)


def search(port: int) -> None:
    """Serve the stand-in of a search engine until the process ends."""

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Engine, "127.0.0.1", port)
        await server.serve_forever()

    uvloop.run(serve())


class Needed:
    """A server in a process of its own that can be killed and started again at its port."""

    def __init__(self, target: Callable[[int], None]) -> None:
        self.port = free_port()
        self._target = target
        self.start()

    def start(self) -> None:
        """Start it, and return once it listens. Raises TimeoutError."""
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=self._target, args=(self.port,), daemon=True)
        self._process.start()
        deadline = time.monotonic() + WHOLE_S
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.05)
        raise TimeoutError(f"{self._target.__name__} does not listen")

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.join()


# -- the clients -----------------------------------------------------------------------------------


@dataclass
class Seen:
    """What the clients of a route saw.

    Attributes:
        answered: When each answer came, by the monotonic clock.
        refused: When each request failed, and with what.
    """

    answered: list[float] = field(default_factory=list)
    refused: list[tuple[float, str]] = field(default_factory=list)

    def longest_s(self, since: float) -> float:
        """Return the longest time without an answer since a moment; answers before it count as one then."""
        return max(b - a for a, b in pairwise([since, *(at for at in self.answered if at > since)]))

    def failed_until_s(self, since: float) -> float:
        """Return how long after a moment the last request failed; 0 where none did after it."""
        return max((at - since for at, _ in self.refused if at > since), default=0.0)

    def labels(self) -> Counter[str]:
        """Return how often each kind of failure was seen."""
        return Counter(label for _, label in self.refused)


class Traffic:
    """Clients that ask without a pause; what they were answered is kept until `reset`.

    Attributes:
        acknowledged: Ids of all decisions that were answered with 200.
        seen: By route, since the last `reset`.
    """

    def __init__(self, port: int) -> None:
        self.acknowledged: set[str] = set()
        self.seen: dict[str, Seen] = {}
        self._address, self._numbers, self._end = ("127.0.0.1", port), count(), False
        self.reset()

    def reset(self) -> None:
        """Forget what was seen."""
        self.seen = {name: Seen() for name in ROUTES}

    async def run(self) -> None:
        """Ask until `end`."""
        await asyncio.gather(*(self._client(name) for name in ROUTES for _ in range(CLIENTS)))

    def end(self) -> None:
        """Let the clients end."""
        self._end = True

    async def _client(self, name: str) -> None:
        path, body = ROUTES[name]
        connection: Connection | None = None
        while not self._end:
            key = f"{name}-{next(self._numbers)}"
            label = ""
            try:
                async with asyncio.timeout(PATIENCE_S):
                    if connection is None or connection.closed:
                        connection = await connect(self._address)
                    answer = await connection.send(request("POST", path, body, idempotency_key=key))
                label = "" if answer.status == 200 else said(answer)
            except OSError as error:
                label = failure(error)
                if connection is not None:
                    connection.close()
            record, now = self.seen[name], time.monotonic()
            if label:
                record.refused.append((now, label))
                await asyncio.sleep(0.02)
            else:
                record.answered.append(now)
                self.acknowledged.add(key)
        if connection is not None:
            connection.close()


def said(answer: Answer) -> str:
    """Return what a response says that is no answer: its status and the code of its error."""
    return f"{answer.label} {(answer.error or {}).get('code', 'without an envelope')}"


# -- the service -----------------------------------------------------------------------------------


class Service:
    """`armwise serve`, started again where it ends, as a service manager does."""

    def __init__(self, config: Path, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._stack = ExitStack()
        self._start()

    def _start(self) -> None:
        self.pid = self._stack.enter_context(started(armwise(self._config), self._folder, {}))

    def find(self, title: str) -> list[psutil.Process]:
        """Return its processes of that title."""
        return [process for process in family(self.pid) if title in title_of(process)]

    def whole(self) -> bool:
        """Whether every process is there that is killed one by one."""
        there = {name: len(self.find(title)) for name, title in OWN.items()}
        return there == dict.fromkeys(OWN, 1) | {"ingress": REPLICAS}

    def kill(self) -> None:
        """Kill every process of it."""
        for process in family(self.pid):
            with suppress(psutil.Error):
                process.kill()

    def ended(self) -> bool:
        """Whether its first process has ended."""
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def again(self) -> None:
        """Start it again."""
        self.kill()
        self._start()

    def close(self) -> None:
        """Stop it."""
        self._stack.close()


# -- measuring -------------------------------------------------------------------------------------


async def until(true: Callable[[], bool], what: str) -> None:
    """Wait. Raises TimeoutError."""
    deadline = time.monotonic() + WHOLE_S
    while not await asyncio.to_thread(true):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WHOLE_S:g} s: {what}")
        await asyncio.sleep(0.1)


async def struck(part: str, service: Service, needed: Mapping[str, Any]) -> tuple[float, float]:
    """Kill a part, and start again what needs it; return when it was killed, and when it was started."""
    began = time.monotonic()
    if part in OWN:
        service.find(OWN[part])[0].kill()
        return began, began
    if part in needed:
        await asyncio.to_thread(needed[part].kill)
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(needed[part].start)
        return began, time.monotonic()
    if part == "gcs":
        service.find(GCS)[0].kill()
        await until(service.ended, "the end of a service without its head")
    else:
        service.kill()
    await asyncio.to_thread(service.again)
    return began, began


@dataclass(frozen=True)
class Row:
    """What the clients of a route saw of one kill.

    Attributes:
        part: What was killed.
        route: What was asked.
        answered: Number of answers.
        others: How often each kind of failure was seen.
        silence_s: Longest time without an answer after the kill.
        failed_until_s: When the last request failed, since the kill or the start of what was away.
    """

    part: str
    route: str
    answered: int
    others: Counter[str]
    silence_s: float
    failed_until_s: float

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        others = ", ".join(f"{n:,} {label}" for label, n in self.others.most_common())
        counts = f"{self.answered + self.others.total():,}", f"{self.answered:,}"
        return [self.part, self.route, *counts, others, f"{self.silence_s:.1f}", f"{self.failed_until_s:.1f}"]


async def case(part: str, service: Service, needed: Mapping[str, Any], traffic: Traffic) -> list[Row]:
    """Kill a part under traffic and wait until all is answered again; return what was seen, by route."""
    await until(service.whole, "all processes of the service")
    traffic.reset()
    await asyncio.sleep(BEFORE_S)
    killed, back = await struck(part, service, needed)

    def calm() -> bool:
        last = max([back, *(at for record in traffic.seen.values() for at, _ in record.refused)])
        answered = [max(record.answered, default=0.0) for record in traffic.seen.values()]
        return time.monotonic() > last + CALM_S and min(answered) > last

    await until(calm, f"answers after {part} was killed")
    return [
        Row(
            part,
            name,
            len(record.answered),
            record.labels(),
            record.longest_s(killed),
            record.failed_until_s(back),
        )
        for name, record in traffic.seen.items()
    ]


async def measure(
    parts: Sequence[str], rounds: int, service: Service, needed: Mapping[str, Any], traffic: Traffic
) -> list[Row]:
    """Kill the parts in turn, and return what was seen."""
    asking = asyncio.create_task(traffic.run())
    await until(lambda: all(record.answered for record in traffic.seen.values()), "the first answers")
    rows = list[Row]()
    for _ in range(rounds):
        for part in parts:
            if part != "database" or "database" in needed:
                rows += await case(part, service, needed, traffic)
    traffic.end()
    await asking
    return rows


def lost(url: str, acknowledged: set[str]) -> set[str]:
    """Return the acknowledged decisions that the log does not have."""
    store = Store(url)
    with store.reading() as connection:
        stored = set(connection.scalars(sa.select(t.decisions.c.id)))
    store.close()
    return acknowledged - stored


@contextmanager
def log_of(database: str, folder: Path) -> Iterator[tuple[str, Server | None]]:
    """Yield the URL of an empty log, and the server that keeps it, if one does."""
    if database == "sqlite":
        yield f"sqlite:///{folder / 'log.db'}", None
    else:
        with running() as server:
            yield server.fresh(), server


def settings_of(folder: Path, url: str, needed: Mapping[str, Any]) -> dict[str, Any]:
    """Return `args` of the service: two arms, one of which asks the search engine, and the language model."""
    at = {name: f"http://127.0.0.1:{needed[name].port}" for name in ("search", "model")}
    remote = {"url": f"{at['search']}/", "request": {"q": "{question}"}}
    return settings(folder) | {
        "log_url": url,
        "arms": {
            "nothing": {"kind": "benchmarks.http_target:Nothing"},
            "engine": {"kind": "remote", "params": remote},
        },
        "llm": {"engine": "openai", "base_url": f"{at['model']}/v1", "model": "instant"},
        "floor": 0.2,
    }


def killed(
    database: str, parts: Sequence[str], rounds: int, port: int, folder: Path, console: Console
) -> tuple[list[Row], set[str]]:
    """Run the service, kill its parts, print what was seen; return it, and decisions that are lost."""
    with log_of(database, folder) as (url, server):
        needed: dict[str, Any] = {"search": Needed(search), "model": Needed(answer_at_once)}
        needed |= {} if server is None else {"database": server}
        args, quiet = settings_of(folder, url, needed), {"enable_access_log": False}
        config = serve_config(folder, port, "armwise.agent.app:build", args, REPLICAS, logging_config=quiet)
        config.write_text(config.read_text().replace("name: app", "name: armwise"))
        traffic, service = Traffic(port), Service(config, folder)
        try:
            rows = uvloop.run(measure(parts, rounds, service, needed, traffic))
        finally:
            service.close()
        table = Table(title=f"{database}, {REPLICAS} replicas; the last two columns in seconds")
        for header in ("killed", "route", "asked", "answered", "others", "longest silence", "failed until"):
            table.add_column(header, overflow="fold")
        for row in rows:
            table.add_row(*row.cells())
        console.print(table)
        gone = lost(url, traffic.acknowledged)
        console.print(f"{len(traffic.acknowledged):,} decisions acknowledged, {len(gone)} not in the log")
        verify = [sys.executable, "-m", "armwise", "log", "rebuild", "--verify", "--config", str(config)]
        checked = subprocess.run(verify, cwd=ROOT, check=False, capture_output=True, text=True)
        console.print(checked.stdout, checked.stderr if checked.returncode else "")
        for name in ("search", "model"):
            needed[name].kill()
    return rows, gone


def main(
    database: Annotated[Literal["sqlite", "postgresql"], typer.Option(help="Which.")] = "postgresql",
    only: Annotated[str, typer.Option(help="Parts to kill, with commas between.")] = ",".join(PARTS),
    rounds: Annotated[int, typer.Option(min=1, help="How often each is killed.")] = 1,
    port: Annotated[int | None, typer.Option(help="Where the service listens.")] = None,
) -> None:
    """Kill and print."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=170)
    parts = only.split(",")
    if unknown := set(parts) - set(PARTS):
        raise typer.BadParameter(f"unknown parts: {', '.join(sorted(unknown))}")
    with TemporaryDirectory(prefix="o", dir="/tmp", ignore_cleanup_errors=True) as name:
        _, gone = killed(database, parts, rounds, port or free_port(), Path(name), console)
    raise typer.Exit(1 if gone else 0)


if __name__ == "__main__":
    typer.run(main)
