"""What a warm start costs the service beside which it runs: latencies with and without one.

    python benchmarks/warm_start.py [--rate 20] [--rounds 5] [--questions examples/stdlib_questions.jsonl]

A service of its own, with default settings, over the documentation of the standard library: three arms that
search, one that does not. Questions come at a steady rate, whether the ones before are answered or not; a
latency counts from when its question was due. Each answer is judged. After a quiet stretch a run is asked for
over HTTP, of questions that none before it had: every arm searches all of them, a portfolio is chosen, a
router trained, a candidate learned, and evaluated on all traffic so far. The stretch that is compared with
the quiet one lasts from the request to the end of the run. Quantiles are those of a stretch; what is told is
the median over the rounds.
"""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import aiohttp
import numpy as np
import orjson
import typer
import yaml
from rich.console import Console
from rich.table import Table

from armwise.agent.lab.simulation import load_questions

ROOT = Path(__file__).resolve().parent.parent
GOAL = 1.2
START_S = 300.0
RUN_S = 300.0
WARM_UP_S = 10.0
LOOK_S = 0.25
BASE = "http://127.0.0.1"


def configuration(home: Path, port: int, asked: Path) -> dict[str, Any]:
    """Return a Serve configuration of a service whose runs ask the questions of a file."""
    source = {"kind": "questions", "path": str(asked), "measure": "R@4", "metrics": {"recall": "R@4"}}
    args = {
        "home": str(home),
        "corpus": {"name": "stdlib", "source": "stdlib"},
        "backbones": {"words": {"model": "hashing:256"}},
        "arms": {
            "none": {"kind": "none"},
            "bm25": {"kind": "bm25"},
            "dense": {"kind": "dense", "params": {"backbone": "words"}},
            "rrf": {"kind": "rrf", "params": {"arms": ["bm25", "dense"]}},
        },
        "llm": {"engine": "scripted", "default": ""},
        "policy": {"kind": "vowpal"},
        "features": {"words": 0},
        "reward": {"metrics": {"recall": {"range": [0, 1]}}, "cost_weight": 0.05},
        "warm_start": {
            "sources": {"exam": source},
            "portfolio": {"measure": "R@4", "k": 2},
            "router": {"kind": "ridge", "utility": {"measures": {"R@4": 1.0}}},
        },
    }
    app = {"name": "armwise", "route_prefix": "/", "import_path": "armwise.agent.app:build", "args": args}
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": port},
        "logging_config": {"enable_access_log": False},
        "applications": [app],
    }


@contextmanager
def running(folder: Path, asked: Path) -> Iterator[str]:
    """Run the service; yield its address. What it says goes into `serve.log`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(configuration(folder / "home", port, asked)))
    log, tool = folder / "serve.log", str(Path(sys.executable).with_name("armwise"))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [tool, "serve", "-c", str(config)], stdout=output, stderr=output, cwd=ROOT, env={**os.environ}
        )
        try:
            yield f"{BASE}:{port}"
        except Exception:
            sys.stderr.write(log.read_text()[-4000:])
            raise
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


@dataclass
class Traffic:
    """Questions at a steady rate, each answer judged by whether it holds what it should.

    Attributes:
        base: Where the service listens.
        questions: Texts, and the ids of the passages that support an answer.
        rate: Questions a second.
        latencies: Of each question: when it was due, by the monotonic clock, and seconds until its answer.
    """

    base: str
    questions: list[tuple[str, frozenset[str]]]
    rate: float
    latencies: list[tuple[float, float]] = field(default_factory=list)

    async def ask(self, session: aiohttp.ClientSession) -> None:
        """Ask until this is cancelled."""
        began, under_way = time.monotonic(), set[asyncio.Task[None]]()
        try:
            for number, question in enumerate(itertools.cycle(self.questions)):
                due = began + number / self.rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                task = asyncio.create_task(self._one(session, due, *question))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                if task.done() and (error := task.exception()):
                    raise error
        finally:
            for task in under_way:
                task.cancel()

    async def _one(self, session: aiohttp.ClientSession, due: float, text: str, gold: frozenset[str]) -> None:
        async with session.post(f"{self.base}/v1/retrieve", json={"query": text}) as response:
            body = await response.json()
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {body}")
        self.latencies.append((due, time.monotonic() - due))
        ids = {passage["id"] for passage in body["passages"]}
        value = len(ids & gold) / len(gold)
        told = {"decision_id": body["agent"]["decision_id"], "metric_name": "recall", "value": value}
        async with session.post(f"{self.base}/v1/feedback", json=told) as response:
            await response.read()

    def between(self, begin: float, end: float) -> list[float]:
        """Return the latencies of the questions that were due in a stretch."""
        return [seconds for due, seconds in self.latencies if begin <= due < end]


@dataclass(frozen=True)
class Round:
    """What one round took.

    Attributes:
        quiet: p50 and p99 without a run, in milliseconds.
        beside: The same beside one.
        run: What is on record of it.
        asked: Questions that were answered beside it.
    """

    quiet: tuple[float, float]
    beside: tuple[float, float]
    run: dict[str, Any]
    asked: int


def quantiles(latencies: list[float]) -> tuple[float, float]:
    """Return p50 and p99 in milliseconds."""
    p50, p99 = np.quantile(latencies, [0.5, 0.99])
    return 1e3 * float(p50), 1e3 * float(p99)


async def get(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """Return a document."""
    async with session.get(url) as response:
        document: dict[str, Any] = await response.json()
        return document


async def warm_start(session: aiohttp.ClientSession, base: str) -> dict[str, Any]:
    """Ask for a run, and return what is on record of it once it has ended."""
    async with session.post(f"{base}/v1/warm-starts") as response:
        reply = await response.json()
    deadline = time.monotonic() + RUN_S
    while time.monotonic() < deadline:
        run = await get(session, f"{base}/v1/warm-starts/{reply['id']}")
        if run["status"] not in ("asked", "running"):
            return run
        await asyncio.sleep(LOOK_S)
    raise TimeoutError(f"run {reply['id']} took longer than {RUN_S:g} s")


async def ready(session: aiohttp.ClientSession, base: str) -> None:
    """Wait until the service answers."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            async with session.get(f"{base}/ready") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.5)
    raise TimeoutError(f"{base} did not answer within {START_S:g} s")


async def measure(
    base: str, asked: Path, file: Path, rate: float, rounds: int, quiet_s: float
) -> list[Round]:
    """Ask at a steady rate, and have a run in each round."""
    questions = [question for question in load_questions(file) if question.gold_ids]
    texts = [(question.question, frozenset(question.gold_ids)) for question in questions]
    parts = [questions[number::rounds] for number in range(rounds)]
    measured = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await ready(session, base)
        traffic = Traffic(base, texts, rate)
        asking = asyncio.create_task(traffic.ask(session))
        await asyncio.sleep(WARM_UP_S)
        for number, part in enumerate(parts):
            lines = [
                orjson.dumps({**question.model_dump(), "id": f"{number}-{question.id}"}) for question in part
            ]
            asked.write_bytes(b"\n".join(lines))
            begin = time.monotonic()
            await asyncio.sleep(quiet_s)
            middle = time.monotonic()
            run = await warm_start(session, base)
            end = time.monotonic()
            if asking.done():
                await asking  # which raises what it failed of
            beside = traffic.between(middle, end)
            measured.append(
                Round(quantiles(traffic.between(begin, middle)), quantiles(beside), run, len(beside))
            )
            await asyncio.sleep(1.0)
        asking.cancel()
    return measured


def report(rounds: list[Round], rate: float, console: Console) -> None:
    """Print the tables."""
    table = Table("", "p50 ms", "p99 ms", title=f"{rate:g} questions a second, {len(rounds)} rounds")
    for column in table.columns[1:]:
        column.justify = "right"
    quiet, beside = np.array([trial.quiet for trial in rounds]), np.array([trial.beside for trial in rounds])
    for name, values in (("without a run", quiet), ("beside a run", beside)):
        table.add_row(name, *(f"{value:.1f}" for value in np.median(values, axis=0)))
    table.add_row("ratio", *(f"{value:.2f} x" for value in np.median(beside / quiet, axis=0)))
    table.caption = f"goal: p99 at most {GOAL} x"
    console.print(table)
    steps = Table("run", "status", "questions beside it", "seconds", "by step")
    for trial in rounds:
        took = trial.run["finished_at"] - trial.run["started_at"]
        told = ", ".join(f"{step['name']} {step['seconds']:.1f}" for step in trial.run["steps"])
        steps.add_row(str(trial.run["id"]), trial.run["status"], f"{trial.asked:,}", f"{took:.1f}", told)
    console.print(steps)


def main(
    rate: Annotated[float, typer.Option(min=1, help="Questions a second.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each with a run.")] = 5,
    quiet: Annotated[float, typer.Option(min=1, help="Seconds of a quiet stretch.")] = 30.0,
    questions: Annotated[
        Path, typer.Option(help="JSON lines with questions and gold_ids, of the documentation.")
    ] = ROOT / "examples" / "stdlib_questions.jsonl",
    folder: Annotated[Path | None, typer.Option(help="Where the home goes; temporary when left out.")] = None,
) -> None:
    """Measure and print."""
    with TemporaryDirectory(dir=folder) as name:
        exam = Path(name) / "exam.jsonl"
        exam.write_text("")
        with running(Path(name), exam) as base:
            measured = asyncio.run(measure(base, exam, questions, rate, rounds, quiet))
    report(measured, rate, Console())


if __name__ == "__main__":
    typer.run(main)
