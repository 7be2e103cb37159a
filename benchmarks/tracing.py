"""What traces add to a turn: nothing where they are off, and a few per cent where every turn is exported.

    python benchmarks/tracing.py [--rounds 60] [--turns 25]

One process has the whole application without a network, so that microseconds can be seen. The arm finds
nothing at once, and the language model writes from a script. The same process asks in blocks that alternate
between three ways: traces off, a tenth of them sampled, and all of them. Spans are exported over OTLP, in
batches, to a receiver in a process of its own. Wall is the median over the turns of a block, CPU that of the
whole process with the export of a block at its end; a difference is the median over the rounds, each to the
block beside it without traces.
"""

import asyncio
import os
import statistics
import sys
import time
import timeit
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.agent.api import choose_code, create_app
from armwise.agent.config import AppConfig, parse
from armwise.agent.evaluation import verdict
from armwise.agent.hosts import arms as hosted
from armwise.agent.learning import Learner, Recipe
from armwise.agent.serving import Backends, Replica, Telemetry
from armwise.agent.telemetry import TelemetrySpec
from armwise.agent.telemetry.process import build_tracing
from armwise.arms import tracing
from armwise.arms.deployments import Embedders, GeneratorHost, spans
from armwise.arms.llm.writing import DEFAULT
from armwise.feedback.clock import SteadyClock
from armwise.feedback.training_log import take_epoch
from benchmarks.http_target import in_process, settings

BODIES: dict[str, dict[str, Any]] = {
    "/v1/retrieve": {"query": "Which function merges sorted inputs lazily?"},
    "/v1/chat/completions": {
        "model": "auto",
        "messages": [{"role": "user", "content": "Which function merges sorted inputs lazily?"}],
    },
}


class Local:
    """The host of a language model, called as its handle calls it."""

    model = "scripted"

    def __init__(self, host: GeneratorHost) -> None:
        self._host = host

    def stream(self, prompt: Any) -> Any:
        """Yield the answer."""
        return self._host.stream(prompt, tracing.carry())

    async def close(self) -> None:
        """Do nothing: it holds no connection."""


class _Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def receive(port: int) -> None:
    """Accept spans until the process ends."""
    ThreadingHTTPServer(("127.0.0.1", port), _Receiver).serve_forever()


def opened(config: AppConfig) -> Replica:
    """Open the log and wire a replica, with a first version."""
    clock, encoders = SteadyClock(), Embedders(config.backbones)
    writer: Any = Local(GeneratorHost(config.llm))
    backends = Backends(hosted.open_here(config, {}, encoders, writer), encoders, {DEFAULT: writer})
    replica = Replica(
        config, backends, clock=clock, telemetry=Telemetry(), gate=verdict, choose_code=choose_code
    )
    store = replica.store
    learner = Learner(
        store, Recipe.from_config(config), list(config.actions), take_epoch(store, "benchmark", 0.0)
    )
    learner.step()
    return replica


async def ask(app: Any, path: str) -> None:
    """Ask once, as a server would. Raises RuntimeError where it is refused."""
    bodies, status = [orjson.dumps(BODIES[path])], 0
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    headers += [(b"traceparent", f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01".encode())]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "root_path": ""}
    scope |= {"query_string": b"", "headers": headers, "asgi": {"version": "3.0"}, "http_version": "1.1"}
    scope |= {"scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1)}

    async def given() -> dict[str, Any]:
        if not bodies:
            await asyncio.Event().wait()  # it does not hang up
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    async def taken(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(scope, given, taken)
    if status != 200:
        raise RuntimeError(f"{path} answered {status}")


async def block(app: Any, path: str, turns: int, way: tracing.Tracing | None) -> tuple[float, float]:
    """Ask some times in turn, and export; return the median seconds and the CPU seconds of a turn."""
    tracing.switch(way)
    seconds, cpu = [], time.process_time()
    for _ in range(turns):
        began = time.perf_counter()
        await ask(app, path)
        seconds.append(time.perf_counter() - began)
    if way is not None:
        await asyncio.to_thread(_exporting(way).force_flush)
    return statistics.median(seconds), (time.process_time() - cpu) / turns


def _exporting(way: tracing.Tracing) -> Any:
    tracer: Any = way.tracer
    return tracer.span_processor


async def measure(folder: Path, port: int, rounds: int, turns: int, console: Console) -> None:
    """Ask in all ways, and print what each takes."""
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
    os.environ |= endpoint  # the exporter reads it itself, and the sampler its own
    ways: dict[str, tracing.Tracing | None] = {"off": None}
    for name, sampler, share in (("a tenth", "traceidratio", "0.1"), ("all", "always_on", "")):
        os.environ |= {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": share}
        ways[name] = build_tracing(TelemetrySpec(), endpoint)
    app = create_app(opened(parse(settings(folder)).resolve_places()))
    table = Table(
        "route",
        "traces",
        "p50 ms",
        "CPU ms",
        "more ms",
        "more CPU ms",
        title=f"{rounds} rounds of {turns} turns",
    )
    async with app.router.lifespan_context(app):
        while not app.state.replica.ready:
            await asyncio.sleep(0.1)
        for path in BODIES:
            times_by_name: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for number in range(rounds + 2):
                for name in list(ways)[:: 1 if number % 2 else -1]:
                    taken = await block(app, path, turns, ways[name])
                    if number > 1:  # the first ones warm up
                        times_by_name[name].append(taken)
            for name, rows in times_by_name.items():
                wall, cpu = (statistics.median(column) * 1000 for column in zip(*rows, strict=True))
                pairs = [
                    (1e3 * (a[0] - b[0]), 1e3 * (a[1] - b[1]))
                    for a, b in zip(rows, times_by_name["off"], strict=True)
                ]
                more = [statistics.median(column) for column in zip(*pairs, strict=True)]
                table.add_row(
                    path, name, f"{wall:.3f}", f"{cpu:.3f}", *(f"{difference:.3f}" for difference in more)
                )
    tracing.switch(None)
    for way in filter(None, ways.values()):
        _exporting(way).shutdown()  # while the receiver is there
    console.print(table)


def traces_nothing() -> None:
    """Pass what a turn passes where traces are off: six places."""
    with (
        spans.retrieval("corpus", "arm", "question", 4),
        spans.embeddings("model", "question"),
        nullcontext(),
    ):
        tracing.traceparent()
        tracing.carry()
        tracing.is_on()


def main(
    rounds: Annotated[int, typer.Option(help="Blocks of each way.")] = 60,
    turns: Annotated[int, typer.Option(help="Turns of a block.")] = 25,
) -> None:
    """Print what traces add to a turn."""
    console = Console(width=100)
    number = 100_000
    taken = timeit.timeit(traces_nothing, number=number) / number
    console.print(f"the places of a turn where traces are off: {1e6 * taken:.1f} us together")
    with TemporaryDirectory() as folder, in_process(receive) as port:
        asyncio.run(measure(Path(folder), port, rounds, turns, console))


if __name__ == "__main__":
    typer.run(main)
