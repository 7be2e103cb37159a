"""What a turn costs when its arm does nothing, beside a bare Ray Serve application.

    python benchmarks/service.py [--tuned] [--rounds 5] [--folder FOLDER]

Both applications run in one Ray Serve, behind one proxy and with the same settings,
and make the same two hops: client -> proxy -> FastAPI ingress -> one deployment
handle. The bare one validates a body, awaits the handle and returns JSON. Ours also
describes the question, asks the policy, draws, and commits the decision and the
execution to SQLite with full synchronisation before it answers. Requests come from
one keep-alive client, in alternating rounds; a ratio is the median over the rounds. CPU is
that of all processes of the service, and tells the two apart also on a busy machine.

`--tuned` sets RAY_SERVE_THROUGHPUT_OPTIMIZED=1 and turns the access log off, for both.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import aiohttp
import numpy as np
import orjson
import typer
import yaml
from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from rich.console import Console
from rich.progress import track
from rich.table import Table

from agent.config.sections import Limits
from arms.base import Query, Retrieval

ROOT = Path(__file__).resolve().parent.parent
REQUESTS = {1: 200, 32: 1000}
"""Clients at once, and how many requests they make in a round."""

WARM_UP = 300
START_S = 180.0
GOAL = 1.3
QUESTION = {"query": "Which function merges sorted inputs lazily?"}


class Nothing:
    """An arm behind a hop that finds nothing, at no cost of its own."""

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str) -> None:
        self.name = name

    def search(self, query: Query, k: int) -> Retrieval:
        """Return no passage."""
        del query, k
        return Retrieval()


# -- the bare application ------------------------------------------------------------------------


class Question(BaseModel):
    """What the bare application is asked."""

    query: str


bare_app = FastAPI()


class BareHost:
    """The far end of the bare application's only hop."""

    async def search(self, query: str) -> list[str]:
        """Return nothing."""
        del query
        return []


@serve.ingress(bare_app)
class Bare:
    """An ingress that only passes the question on."""

    def __init__(self, host: DeploymentHandle[Any]) -> None:
        self._host = host

    @bare_app.post("/v1/retrieve")
    async def retrieve(self, body: Question) -> dict[str, Any]:
        """Return what the host found."""
        return {"object": "retrieval", "passages": await self._host.search.remote(body.query)}


def bare(_: dict[str, Any]) -> Application:
    """Build the bare application, with the settings of ours."""
    cpus = {"num_cpus": 0.1}
    at_once = 4 * Limits().in_flight
    host = serve.deployment(name="BareHost", max_ongoing_requests=at_once, ray_actor_options=cpus)
    ingress = serve.deployment(name="Bare", max_ongoing_requests=at_once, ray_actor_options=cpus)
    return ingress(Bare).bind(host(BareHost).bind())


# -- the service, started ------------------------------------------------------------------------


def configuration(folder: Path, port: int, *, tuned: bool) -> dict[str, Any]:
    """Return a Serve configuration of both applications."""
    corpus = folder / "corpus.jsonl"
    corpus.write_bytes(orjson.dumps({"id": "heapq", "title": "heapq", "text": "merge sorted inputs"}))
    ours = {
        "home": str(folder / "home"),
        "corpus": {"name": "one", "source": str(corpus)},
        "arms": {name: {"kind": "benchmarks.service:Nothing"} for name in ("a", "b", "c", "d")},
        "llm": {"engine": "scripted", "default": ""},
        "policy": {"kind": "vowpal", "params": {"args": "--cb_explore_adf --epsilon 0.05"}},
        "reward": {"metrics": {"recall": {"range": [0, 1]}}},
    }
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": port},
        "logging_config": {"enable_access_log": not tuned},
        "applications": [
            {"name": "ours", "route_prefix": "/ours", "import_path": "agent.app:build", "args": ours},
            {"name": "bare", "route_prefix": "/bare", "import_path": "benchmarks.service:bare", "args": {}},
        ],
    }


@contextmanager
def running(folder: Path, *, tuned: bool) -> Iterator[tuple[str, int]]:
    """Run both applications in a Ray Serve of their own; yield its address and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(configuration(folder, port, tuned=tuned)))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),  # where the replicas find this file
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": str(int(tuned)),
    }
    command = [str(Path(sys.executable).with_name("serve")), "run", "--address", "local", str(config)]
    log = folder / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, cwd=folder, start_new_session=True
        )
        try:
            yield f"http://127.0.0.1:{port}", process.pid
        except Exception:
            sys.stderr.write(log.read_text()[-4000:])
            raise
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


# -- measuring -----------------------------------------------------------------------------------


def cpu_s(root: int) -> float:
    """Return the seconds that a process and its descendants have computed so far, as Linux tells them."""
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            told = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], ticks[pid] = int(told[1]), int(told[11]) + int(told[12])
    total = 0
    for pid, own in ticks.items():
        ancestor = pid
        while ancestor != root and ancestor in parents:
            ancestor = parents[ancestor]
        total += own if ancestor == root else 0
    return total / os.sysconf("SC_CLK_TCK")


@dataclass
class Side:
    """What one application took, one number a round.

    Attributes:
        p50_ms: Median latency.
        p99_ms: Latency of the slowest hundredth.
        rate: Requests a second.
        cpu_ms: CPU that a request took.
    """

    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def note(self, latencies_s: list[float], seconds: float, cpu_s: float) -> None:
        """Add a round."""
        p50, p99 = np.quantile(latencies_s, [0.5, 0.99])
        self.p50_ms.append(1e3 * float(p50))
        self.p99_ms.append(1e3 * float(p99))
        self.rate.append(len(latencies_s) / seconds)
        self.cpu_ms.append(1e3 * cpu_s / len(latencies_s))


async def ready(session: aiohttp.ClientSession, base: str) -> None:
    """Wait until both answer."""
    deadline = time.monotonic() + START_S
    for path in ("/bare/v1/retrieve", "/ours/v1/retrieve"):
        while True:
            try:
                async with session.post(base + path, json=QUESTION) as response:
                    if response.status == 200:
                        break
            except aiohttp.ClientError:
                pass
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} did not answer within {START_S:g} s")
            await asyncio.sleep(0.5)


async def ask(session: aiohttp.ClientSession, url: str, clients: int, requests: int) -> list[float]:
    """Ask from several clients at once; return the latencies in seconds."""
    latencies: list[float] = []
    left = iter(range(requests))

    async def client() -> None:
        for _ in left:
            began = time.perf_counter()
            async with session.post(url, json=QUESTION) as response:
                body = await response.json()
            latencies.append(time.perf_counter() - began)
            if response.status != 200 or body["passages"]:
                raise RuntimeError(f"{url} answered {response.status}: {body}")

    await asyncio.gather(*(client() for _ in range(clients)))
    return latencies


async def measure(base: str, process: int, rounds: int) -> dict[int, dict[str, Side]]:
    """Ask both in turn."""
    sides = {clients: {"bare": Side(), "ours": Side()} for clients in REQUESTS}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await ready(session, base)
        for name in ("bare", "ours"):
            await ask(session, f"{base}/{name}/v1/retrieve", max(REQUESTS), WARM_UP)
        for _ in track(range(rounds), "rounds"):
            for clients, requests in REQUESTS.items():
                for name, side in sides[clients].items():
                    began, computed = time.perf_counter(), cpu_s(process)
                    latencies = await ask(session, f"{base}/{name}/v1/retrieve", clients, requests)
                    side.note(latencies, time.perf_counter() - began, cpu_s(process) - computed)
    return sides


def report(sides: dict[int, dict[str, Side]], title: str, console: Console) -> None:
    """Print the table."""
    columns = {"p50_ms": "p50 ms", "p99_ms": "p99 ms", "rate": "requests/s", "cpu_ms": "CPU ms a request"}
    table = Table("clients", "application", *columns.values(), title=title)
    for clients, both in sides.items():
        for name, side in both.items():
            shown = (f"{np.median(getattr(side, what)):.1f}" for what in columns)
            table.add_row(str(clients), name, *shown)
        ratios = (
            f"{np.median(np.divide(getattr(both['ours'], what), getattr(both['bare'], what))):.2f} x"
            for what in columns
        )
        table.add_row("", "ratio", *ratios, end_section=True)
    table.caption = f"two hops: proxy, one handle; goal at most {GOAL} x p50 and p99"
    console.print(table)


def main(
    tuned: Annotated[bool, typer.Option("--tuned", help="Throughput mode, no access log.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds.")] = 5,
    folder: Annotated[Path | None, typer.Option(help="Where the log goes; temporary when left out.")] = None,
) -> None:
    """Compare and print."""
    title = "tuned" if tuned else "default settings"
    with TemporaryDirectory(dir=folder) as name, running(Path(name), tuned=tuned) as (base, process):
        report(asyncio.run(measure(base, process, rounds)), title, Console())


if __name__ == "__main__":
    typer.run(main)
