"""How much memory and processor time the idle default service takes, and how long its start and its stop are.

    python benchmarks/memory.py [--config agent/config/template.yaml] [--source FOLDER] [--arms bm25,dense]
    python benchmarks/memory.py --replicas 2
    python benchmarks/memory.py --single-process
    python benchmarks/memory.py --pid PID

Compiles the code and builds the indexes where they are not there yet, starts `armwise serve`, waits until it
is ready and settled, and prints its processes as a Markdown table. `--source` takes the code of another
checkout, to compare; `--replicas` starts so many replicas of the HTTP surface; `--pid` attaches to a service
that runs. Memory is the proportional set size: a page that several processes share counts for its part in
each, so that the sum is what the service takes. `--arms` also prints how long one client then waits for
`POST /v1/retrieve` with each of these arms, forced by `model: arm/<name>`, on one connection.
"""

import compileall
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import orjson
import psutil
import typer
import yaml

ROOT = Path(__file__).resolve().parent.parent

START_S = 600.0
"""Longest start that is waited for."""

IDLE_S = 20.0
"""Seconds over which processor time is measured."""

STOP_S = 60.0
"""Time to shut down in order before the processes are killed."""

SETTLE_S = 15.0
"""Idle time before the measurement: workers that Ray started in reserve, and does not need, have gone."""

MIB = 2**20

QUESTIONS = ROOT / "examples" / "stdlib_questions.jsonl"

REQUESTS, WARM_UP = 500, 50
"""Of each arm."""


@dataclass(frozen=True)
class Usage:
    """What one process of the service takes."""

    name: str
    pss: int
    rss: int


def service(
    config: Annotated[Path, typer.Option("--config", "-c", help="The Ray Serve configuration file.")] = ROOT
    / "agent/config/template.yaml",
    source: Annotated[Path, typer.Option("--source", help="The checkout whose code is served.")] = ROOT,
    pid: Annotated[int | None, typer.Option("--pid", help="Measure this `armwise serve`.")] = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="Replicas of the HTTP surface.")] = None,
    single: Annotated[bool, typer.Option("--single-process", help="Serve without Ray.")] = False,
    settle: Annotated[float, typer.Option("--settle", help="Seconds of idle time.")] = SETTLE_S,
    arms: Annotated[str, typer.Option("--arms", help="Arms to time, with commas between.")] = "",
) -> None:
    """Measure a service."""
    if pid is not None:
        print(table(usages(pid)))
        return
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        if replicas is not None:
            document["applications"][0]["deployments"] = [{"name": "Ingress", "num_replicas": replicas}]
            config = Path(folder) / config.name
            config.write_text(yaml.safe_dump(document), encoding="utf-8")
        measure(document, config, source, settle, arms, ["--single-process"] if single else [])


def measure(
    document: dict[str, Any], config: Path, source: Path, settle: float, arms: str, words: list[str]
) -> None:
    """Start the service of a configuration, and print what it takes."""
    http = document.get("http_options") or {}
    base = f"http://{http.get('host', '127.0.0.1')}:{http.get('port', 8000)}"
    command = [
        sys.executable,
        "-c",
        "from armwise.agent.cli.main import main; main()",
        "serve",
        "-c",
        str(config),
    ]
    environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
    if not (source / "agent" / "cli" / "main.py").exists():  # a checkout from before the rooms
        command[2] = "from armwise.agent.cli import main; main()"
    for package in ("agent", "arms", "feedback"):  # as pip does where it installs them
        compileall.compile_dir(source / package, quiet=1)
    subprocess.run(
        [*command, "--prepare-only"], cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    with started([*command, *words], source, environment, f"{base}/ready") as (process, seconds):
        time.sleep(settle)
        print(table(usages(process.pid)))
        computed = cpu_s(process.pid)
        time.sleep(IDLE_S)
        idle = (cpu_s(process.pid) - computed) / IDLE_S
        print(f"\nready after {seconds:.1f} s, idle at {idle:.3f} of a core")
        if arms:
            print(f"\n{latencies(base, arms.split(','))}")
        stopping = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait(STOP_S)
        print(f"\nstopped within {time.monotonic() - stopping:.1f} s")


def cpu_s(pid: int) -> float:
    """Return the processor seconds of a process and of its descendants so far."""
    seconds = 0.0
    for process in (top := psutil.Process(pid), *top.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


@contextmanager
def started(
    command: list[str], folder: Path, environment: dict[str, str], ready: str
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """Start a service, wait until it is ready, and stop it when the block is left.

    Yields:
        The process, and the seconds from its start until it was ready.

    Raises:
        RuntimeError: It ended, or was not ready within `START_S`.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    )
    tree = psutil.Process(process.pid)
    members = [tree]
    try:
        yield process, _wait(process, ready, start)
        with suppress(psutil.NoSuchProcess):  # it may have been stopped
            members = [tree, *tree.children(recursive=True)]
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.kill()


def _wait(process: subprocess.Popen[bytes], ready: str, start: float) -> float:
    while (seconds := time.monotonic() - start) < START_S:
        if process.poll() is not None:
            raise RuntimeError(f"the service ended with status {process.returncode}")
        with suppress(httpx.HTTPError):
            if httpx.get(ready, timeout=5).is_success:
                return seconds
        time.sleep(0.1)
    raise RuntimeError(f"{ready}: the service was not ready within {START_S:g} s")


def usages(pid: int) -> list[Usage]:
    """Return what a process and its descendants take, the largest first."""
    parent = psutil.Process(pid)
    readings = []
    for process in [parent, *parent.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            memory = process.memory_full_info()  # reads /proc/PID/smaps_rollup
            readings.append(Usage(named(process, parent), memory.pss, memory.rss))
    return sorted(readings, key=lambda usage: -usage.pss)


def named(process: psutil.Process, parent: psutil.Process) -> str:
    """Return a name of a process that tells which part of the service it is."""
    words = process.cmdline() or [process.name()]
    if process == parent:
        return "armwise serve"
    title = words[0]
    if title.startswith("ray::"):
        return title.split(":", 4)[-1].split(".")[0] if "Replica" in title else title
    names = [Path(word).name for word in words if not word.startswith("-")]
    python = names[0].startswith("python") and len(names) > 1
    return names[1] if python else names[0]


def table(found: list[Usage]) -> str:
    """Return a Markdown table with a row for each process, and the sum."""
    rows = [(usage.name, usage.pss, usage.rss) for usage in found]
    total = sum(usage.pss for usage in found)
    lines = ["| process | PSS, MiB | RSS, MiB |", "|---|---:|---:|"]
    lines += [f"| {name} | {pss / MIB:,.0f} | {rss / MIB:,.0f} |" for name, pss, rss in rows]
    lines.append(f"| **all {len(rows)}** | **{total / MIB:,.0f}** | |")
    return "\n".join(lines)


def latencies(base: str, arms: list[str]) -> str:
    """Return a Markdown table of how long searches with each arm take."""
    questions = itertools.cycle(orjson.loads(line)["question"] for line in QUESTIONS.open("rb"))
    lines = ["| arm | p50 ms | p99 ms |", "|---|---:|---:|"]
    with httpx.Client(base_url=base, timeout=30) as client:
        for arm in arms:
            taken = [_waited(client, arm, next(questions)) for _ in range(WARM_UP + REQUESTS)]
            p50, p99 = 1e3 * np.quantile(taken[WARM_UP:], [0.5, 0.99])
            lines.append(f"| {arm} | {p50:.1f} | {p99:.1f} |")
    return "\n".join(lines)


def _waited(client: httpx.Client, arm: str, question: str) -> float:
    start = time.perf_counter()
    client.post("/v1/retrieve", json={"query": question, "model": f"arm/{arm}"}).raise_for_status()
    return time.perf_counter() - start


if __name__ == "__main__":
    typer.run(service)
