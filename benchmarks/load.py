"""Put the service under more load than it carries, slow down what it needs, and watch it recover.

    python benchmarks/load.py [--only sweep,overload] [--steady-minutes 30] [--guidellm FILE]

Starts `armwise serve` with arms that do nothing, a log in a PostgreSQL of its own, behind a connection that
can be slowed down, and a stand-in of a language model, which writes 16 words in .5 s and four answers at
once, and can be slowed down too. Then, one after the other:

    sweep       `wrk` (Debian's package) asks POST /v1/retrieve over more and more connections;
                `guidellm` asks for answers of the chat at rising rates, where --guidellm names its program
                (an environment of its own: pip install guidellm)
    overload    for 60 s ten times as many clients as the service carries
    database    for 30 s every message from and to the database takes 50 ms longer
    model       for 30 s the language model takes ten times as long
    idle        1,000 connections that ask nothing, for 30 s
    steady      half as many clients, by default for 30 minutes

Of all but the sweep it prints, for clients of /v1/retrieve and of the chat (streamed): what was answered, the
latencies, and the time to the first byte of an answer; and of the service: memory (proportional set size) and
open files before, at most, and after, and how long until it had recovered: until ten requests in a row were
answered, each within three times the slowest hundredth of before.
"""

import asyncio
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import orjson
import psutil
import sqlalchemy as sa
import typer
import uvloop
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.http_load import Answer, Connection, Load, ask_once, connect, failure, load, request
from benchmarks.http_target import (
    armwise,
    delay_database,
    family,
    free_port,
    in_process,
    settings,
    started,
    write_slowly,
)
from benchmarks.service import Side, ready, serve_config
from tests.postgres import running

PARTS = ("sweep", "overload", "database", "model", "idle", "steady")

CONNECTIONS = (1, 8, 32, 64, 128, 256)
"""Of the sweep."""

STREAMS = (1, 2, 4, 8, 16, 32)
"""Clients of the chat."""

PROMPTS = 10_000
"""Lines for guidellm, which asks each once: more than are answered in a sweep."""

SWEEP_S, OVERLOAD_S, SLOW_S, BASE_S = 10.0, 60.0, 30.0, 10.0

RETRIEVING, CHATTING = 16, 4
"""Clients that ask without a pause while nothing is slowed down: about what the service carries."""

DELAY_S = 0.05
SLOWER = 10.0
IDLE = 1000
PATIENCE_S = 15.0
RECOVERY_S = 120.0
MIB = 2**20

WORDS = {"role": "user", "content": "Which function merges sorted inputs lazily?"}
RETRIEVE = request("POST", "/v1/retrieve", {"query": WORDS["content"]})
CHAT = request("POST", "/v1/chat/completions", {"model": "auto", "messages": [WORDS], "stream": True})

LUA = f"""
wrk.method = "POST"
wrk.body = '{orjson.dumps({"query": WORDS["content"]}).decode()}'
wrk.headers["Content-Type"] = "application/json"
"""


# -- what is put under load ----------------------------------------------------------------------


@dataclass
class Target:
    """A running service.

    Attributes:
        side: Its address and its process.
        delay_s: How long each message of the database is kept.
        slower: How many times as long the language model takes.
    """

    side: Side
    delay_s: Any
    slower: Any


@contextmanager
def target(folder: Path) -> Iterator[Target]:
    """Start the service and what it needs."""
    shared = multiprocessing.get_context("spawn").Value
    delay_s, slower = shared("d", 0.0), shared("d", 1.0)
    with ExitStack() as stack:
        url = sa.make_url(stack.enter_context(running()).fresh())
        unix = f"{url.query['host']}/.s.PGSQL.5432"
        database = stack.enter_context(in_process(delay_database, socket=unix, delay_s=delay_s))
        model = stack.enter_context(in_process(write_slowly, slower=slower))
        args = settings(folder) | {
            "log_url": f"postgresql://{url.username}@127.0.0.1:{database}/{url.database}",
            "llm": {"engine": "openai", "base_url": f"http://127.0.0.1:{model}/v1", "model": "slow"},
        }
        port = free_port()
        config = serve_config(
            folder, port, "armwise.agent.app:build", args, logging_config={"enable_access_log": False}
        )
        side = Side(port, stack.enter_context(started(armwise(config), folder, {})))
        uvloop.run(ready("the service", side))
        yield Target(side, delay_s, slower)


@dataclass
class Held:
    """Memory and open files of all processes of the service, looked at every second or so."""

    pid: int
    mib: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def look(self) -> None:
        """Look once."""
        mib, files = 0.0, 0
        for process in family(self.pid):
            with suppress(psutil.Error):
                mib += process.memory_full_info().pss / MIB
                files += process.num_fds()
        self.mib.append(mib)
        self.files.append(files)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look until the block is left, and once after it."""
        end = threading.Event()

        def watch() -> None:
            while not end.wait(1.0):
                self.look()

        self.look()
        watching = asyncio.create_task(asyncio.to_thread(watch))
        try:
            yield
        finally:
            end.set()
            await watching


# -- the sweep -----------------------------------------------------------------------------------


def sweep(side: Side, folder: Path, guidellm: Path | None, console: Console) -> None:
    """Ask over more and more connections, and print what was answered."""
    script = folder / "retrieve.lua"
    script.write_text(LUA)
    table = Table("connections", "requests/s", "p50", "p99", "not 2xx or 3xx", title="wrk, POST /v1/retrieve")
    for connections in CONNECTIONS:
        command = ["wrk", "-t1", f"-c{connections}", f"-d{SWEEP_S:.0f}s", "--latency", "-s", str(script)]
        command += [f"http://127.0.0.1:{side.port}/v1/retrieve"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        row = (r"Requests/sec: +(\S+)", r" 50% +(\S+)", r" 99% +(\S+)", r"Non-2xx or 3xx responses: (\d+)")
        matches = (re.search(pattern, text) for pattern in row)
        table.add_row(str(connections), *(match[1] if match else "0" for match in matches))
    console.print(table)
    if guidellm is not None:
        sweep_chat(side, folder, guidellm, console)


def sweep_chat(side: Side, folder: Path, guidellm: Path, console: Console) -> None:
    """Ask for answers with more and more clients of guidellm, and print what it found."""
    prompts, out = folder / "prompts.jsonl", folder / "guidellm.json"
    prompts.write_bytes((orjson.dumps({"prompt": WORDS["content"]}) + b"\n") * PROMPTS)
    command = [str(guidellm), "run", "--disable-console"]
    command += ["--backend", f"kind=openai_http,target=http://127.0.0.1:{side.port},model=auto"]
    command += ["--profile", "kind=concurrent,streams=1"]
    command += ["--override", "profile.streams", ",".join(map(str, STREAMS))]
    command += ["--constraint", f"kind=max_duration,seconds={SWEEP_S:.0f}"]
    command += ["--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={out}"]
    variables = {"GUIDELLM__MAX_WORKER_PROCESSES": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **variables}, check=False
    )
    if done.returncode:
        raise RuntimeError(f"guidellm failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    table = Table("clients", "answers/s", "first token p50 ms", "p99 ms", "answer p50 s", "not answered")
    for streams, benchmark in zip(STREAMS, orjson.loads(out.read_bytes())["benchmarks"], strict=True):
        table.add_row(str(streams), *chat_row(benchmark["metrics"]))
    console.print("guidellm, POST /v1/chat/completions, streamed")
    console.print(table)


def chat_row(found: dict[str, Any]) -> Iterator[str]:
    """Yield the cells of one number of clients from the metrics of guidellm."""
    first = found["time_to_first_token_ms"]["successful"]["percentiles"]
    totals = found["request_totals"]
    yield f"{found['requests_per_second']['successful']['mean']:.1f}"
    yield f"{first['p50']:,.0f}"
    yield f"{first['p99']:,.0f}"
    yield f"{found['request_latency']['successful']['median']:.2f}"
    yield f"{totals['errored']:,}"


# -- disturbances --------------------------------------------------------------------------------


@dataclass
class Row:
    """What one disturbance did."""

    name: str
    retrieve: Load
    chat: Load
    held: Held
    before: tuple[float, int]
    recovered_s: float


async def disturbed(
    name: str,
    it: Target,
    seconds: float,
    begin: Callable[[], Any],
    end: Callable[[], Any],
    times: float = 1.0,
) -> Row:
    """Ask as usual, then for some seconds while something is slowed down; wait until it has recovered."""
    address, held = it.side.address, Held(it.side.pid)
    usual = await asked(address, BASE_S)
    held.look()
    before = held.mib[-1], held.files[-1]
    async with held.watched():
        began = begin()
        if asyncio.iscoroutine(began):
            await began
        retrieve, chat = await asked(address, seconds, times)
        ended = end()
        if asyncio.iscoroutine(ended):
            await ended
        limits = [3 * float(np.quantile(load.latencies_s["200"], 0.99)) for load in usual]
        recovered = await recovery(address, limits)
        await asyncio.sleep(5.0)
    return Row(name, retrieve, chat, held, before, recovered)


async def asked(address: tuple[str, int], seconds: float, times: float = 1.0) -> tuple[Load, Load]:
    """Ask for passages and for answers."""
    return await asyncio.gather(
        load(address, RETRIEVE, round(RETRIEVING * times), seconds, PATIENCE_S),
        load(address, CHAT, round(CHATTING * times), seconds, PATIENCE_S),
    )


async def recovery(address: tuple[str, int], limits_s: list[float]) -> float:
    """Return the seconds until both kinds of requests are answered as before; NaN where they never are."""
    began = time.perf_counter()

    async def seconds_until(wire: bytes, limit_s: float) -> float:
        in_a_row, since = 0, began
        while in_a_row < 10 and time.perf_counter() - began < RECOVERY_S:
            at = time.perf_counter()
            answer = await ask_once(address, wire, PATIENCE_S)
            fine = isinstance(answer, Answer) and answer.status == 200 and answer.seconds <= limit_s
            in_a_row = in_a_row + 1 if fine else 0
            since = since if fine and in_a_row > 1 else at
        return since - began if in_a_row == 10 else float("nan")

    return max(
        await asyncio.gather(*(seconds_until(*pair) for pair in zip((RETRIEVE, CHAT), limits_s, strict=True)))
    )


@dataclass
class Idle:
    """Connections that ask nothing."""

    address: tuple[str, int]
    connections: list[Connection] = field(default_factory=list)
    refused: int = 0

    async def open(self) -> None:
        """Open them; each has asked once, as a browser's has."""
        for _ in range(IDLE):
            try:
                self.connections.append(await connect(self.address))
                await self.connections[-1].send(request("GET", "/health"))
            except OSError as error:
                self.refused += bool(failure(error))

    def close(self) -> None:
        """Close them."""
        for connection in self.connections:
            connection.close()


async def measure(it: Target, only: set[str], steady_s: float, rows: list[Row]) -> None:
    """Disturb the service in turn, and add what it did."""

    def put(shared: Any, value: float) -> Callable[[], None]:
        return lambda: setattr(shared, "value", value)

    def nothing() -> None: ...

    if "overload" in only:
        rows.append(await disturbed("ten times the clients", it, OVERLOAD_S, nothing, nothing, 10))
    if "database" in only:
        change = put(it.delay_s, DELAY_S), put(it.delay_s, 0.0)
        rows.append(await disturbed("slow database", it, SLOW_S, *change))
    if "model" in only:
        change = put(it.slower, SLOWER), put(it.slower, 1.0)
        rows.append(await disturbed("slow model", it, SLOW_S, *change))
    if "idle" in only:
        idle = Idle(it.side.address)
        rows.append(await disturbed(f"{IDLE:,} idle connections", it, SLOW_S, idle.open, idle.close))
        assert not idle.refused, f"{idle.refused} connections were refused"
    if "steady" in only:
        rows.append(
            await disturbed(f"steady, {steady_s / 60:g} minutes", it, steady_s, nothing, nothing, 0.5)
        )


def report(rows: list[Row]) -> Iterator[Table]:
    """Yield the tables."""
    latencies = ("p50 ms", "p99 ms", "first byte p50", "p99")
    table = Table("", "clients of", "asked", "answered", "503", "others", *latencies)
    for row in rows:
        for name, traffic in (("retrieve", row.retrieve), ("chat", row.chat)):
            counts = {label: len(latencies) for label, latencies in traffic.latencies_s.items()}
            others = ", ".join(f"{n} {label}" for label, n in counts.items() if label not in ("200", "503"))
            answered = traffic.latencies_s.get("200") or [np.nan], traffic.first_s or [np.nan]
            shown = [f"{1e3 * q:,.0f}" for values in answered for q in np.quantile(values, [0.5, 0.99])]
            numbers = (f"{n:,}" for n in (traffic.count, counts.get("200", 0), counts.get("503", 0)))
            table.add_row(row.name if name == "retrieve" else "", name, *numbers, others or "0", *shown)
    yield table
    table = Table(
        "", "memory MiB before", "at most", "after", "files before", "at most", "after", "recovered s"
    )
    for row in rows:
        mib, files = row.held.mib, row.held.files
        numbers = f"{row.before[0]:,.0f}", f"{max(mib):,.0f}", f"{mib[-1]:,.0f}"
        handles = f"{row.before[1]:,}", f"{max(files):,}", f"{files[-1]:,}"
        table.add_row(row.name, *numbers, *handles, f"{row.recovered_s:.1f}")
    yield table


def main(
    only: Annotated[str, typer.Option(help="Parts, with commas between.")] = ",".join(PARTS),
    steady_minutes: Annotated[float, typer.Option(min=0.1, help="Length of the steady part.")] = 30.0,
    guidellm: Annotated[Path | None, typer.Option(help="Program of guidellm.")] = None,
) -> None:
    """Start the service, disturb it, and print the tables."""
    parts = set(only.split(","))
    if unknown := parts - set(PARTS):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    console = Console() if sys.stdout.isatty() else Console(width=150)
    with (
        TemporaryDirectory(prefix="load", dir="/tmp", ignore_cleanup_errors=True) as name,
        target(Path(name)) as it,
    ):
        if "sweep" in parts:
            sweep(it.side, Path(name), guidellm, console)
        rows: list[Row] = []
        try:
            uvloop.run(measure(it, parts, 60 * steady_minutes, rows))
        finally:  # also of a run that is interrupted
            for table in report(rows) if rows else ():
                console.print(table)


if __name__ == "__main__":
    typer.run(main)
