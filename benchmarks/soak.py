"""Run the service at half of what it carries, and watch its memory, handles, threads and latencies.

    python benchmarks/soak.py [--minutes 60] [--config agent/config/template.yaml] [--csv FILE] [--plot FILE]

Starts `armwise serve` with the file's arms and an empty log. Clients then ask questions of
examples/stdlib_questions.jsonl and judge every answer: recall 1 where a passage is one that answers it.
The first minute, they ask without a pause: that is the load that the service carries. Then they keep to
half of it, whatever the answers take, and one more asks for an answer of the language model every
`--chat-every` seconds. A latency counts from the moment when the request was due.

Prints a row for each of twelve parts of the time, then how much every process grew: the median of the last
quarter less that of the second, since caches fill in the first. Memory is the proportional set size.
"""

import asyncio
import csv
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import orjson
import psutil
import typer
import uvloop
import yaml
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.http_load import Answer, Connection, ask_once, connect, failure, request
from benchmarks.http_target import ROOT, armwise, family, free_port, require_alive, started
from benchmarks.memory import named

QUESTIONS = ROOT / "examples" / "stdlib_questions.jsonl"

CLIENTS = 32
PATIENCE_S = 10.0
START_S = 600.0
CARRIED_S = 60.0
SAMPLE_S = 10.0
PARTS = 12
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment.

    Attributes:
        at: Seconds since half load began.
        name: Which part of the service it is.
        pss: Its memory, MiB.
        handles: Its open files and sockets.
        threads: Its threads.
    """

    at: float
    name: str
    pss: float
    handles: int
    threads: int


@dataclass
class Seen:
    """What the clients saw.

    Attributes:
        latencies: When each request was due, seconds since the load began, and how long it took, seconds.
        chats_s: How long each answer of the language model took.
        labels: Requests by status, or by why there was no response.
        found: Answers that were right.
        judged: Answers.
    """

    latencies: list[tuple[float, float]] = field(default_factory=list)
    chats_s: list[float] = field(default_factory=list)
    labels: Counter[str] = field(default_factory=Counter)
    found: int = 0
    judged: int = 0


class Clients:
    """Clients that look up passages and judge them, over keep-alive connections.

    Args:
        address: Of the service.
        questions: With the `gold_ids` of the passages that answer them.
    """

    def __init__(self, address: tuple[str, int], questions: list[dict[str, Any]]) -> None:
        self._address, self._questions = address, questions
        self._numbers = count()

    async def run(self, seconds: float, every_s: float = 0.0) -> Seen:
        """Ask for some seconds; with `every_s` each client sends a request at most that often."""
        tally, began = Seen(), time.perf_counter()
        offsets = np.linspace(0, every_s, CLIENTS, endpoint=False)
        await asyncio.gather(
            *(self._client(tally, began, float(offset), every_s, seconds) for offset in offsets)
        )
        return tally

    async def _client(self, tally: Seen, began: float, due: float, every_s: float, seconds: float) -> None:
        connection, judgement = None, None
        while due < seconds:
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            question = self._questions[next(self._numbers) % len(self._questions)]
            body = {"query": question["question"], "k": 5}
            wire = judgement or request("POST", "/v1/retrieve", body)
            connection, answer = await self._send(connection, wire)
            now = time.perf_counter() - began
            tally.labels[answer if isinstance(answer, str) else answer.label] += 1
            tally.latencies.append((due, now - due))
            due = due + every_s if every_s else now
            was_judgement, judgement = judgement is not None, None
            if not was_judgement and isinstance(answer, Answer) and answer.status == 200:
                judgement = self._judge(tally, question, answer)
        if connection is not None:
            connection.close()

    async def _send(
        self, connection: Connection | None, wire: bytes
    ) -> tuple[Connection | None, Answer | str]:
        try:
            async with asyncio.timeout(PATIENCE_S):
                if connection is None or connection.closed:
                    connection = await connect(self._address)
                return connection, await connection.send(wire)
        except OSError as error:
            if connection is not None:
                connection.close()
            return None, failure(error)

    def _judge(self, tally: Seen, question: dict[str, Any], answer: Answer) -> bytes:
        document = orjson.loads(answer.body)
        right = any(passage["id"] in question["gold_ids"] for passage in document["passages"])
        tally.judged, tally.found = tally.judged + 1, tally.found + right
        value = {
            "decision_id": document["agent"]["decision_id"],
            "metric_name": "recall",
            "value": float(right),
        }
        return request("POST", "/v1/feedback", value)

    async def chat(self, seen: Seen, seconds: float, every_s: float) -> None:
        """Ask for an answer of the language model every so often."""
        end = time.perf_counter() + seconds
        for question in self._questions * (1 + int(seconds / every_s) // len(self._questions)):
            if time.perf_counter() + every_s > end:
                return
            body = {"model": "auto", "messages": [{"role": "user", "content": question["question"]}]}
            answer = await ask_once(self._address, request("POST", "/v1/chat/completions", body), 60.0)
            seen.labels["chat " + (answer if isinstance(answer, str) else answer.label)] += 1
            if isinstance(answer, Answer):
                seen.chats_s.append(answer.seconds)
            await asyncio.sleep(max(0.0, every_s - (answer.seconds if isinstance(answer, Answer) else 0.0)))


def samples(pid: int, at: float) -> Iterator[Sample]:
    """Yield what every process of a service holds now; of several with one name, the sum."""
    held_by_name: defaultdict[str, list[tuple[float, int, int]]] = defaultdict(list)
    parent = psutil.Process(pid)
    for process in family(pid):
        try:
            held = process.memory_full_info().pss / MIB, process.num_fds(), process.num_threads()
            held_by_name[named(process, parent)].append(held)
        except psutil.Error:  # it ended meanwhile
            continue
    for name, held in held_by_name.items():
        pss, handles, threads = (sum(values) for values in zip(*held, strict=True))
        yield Sample(at, name, float(pss), int(handles), int(threads))


async def watch(pid: int, seconds: float, progress: Progress) -> list[Sample]:
    """Take samples for some seconds."""
    readings: list[Sample] = []
    began = time.perf_counter()
    task = progress.add_task("half load", total=seconds)
    while (at := time.perf_counter() - began) < seconds:
        require_alive(pid)
        readings += await asyncio.to_thread(lambda at=at: list(samples(pid, at)))
        progress.update(task, completed=at)
        await asyncio.sleep(SAMPLE_S)
    progress.update(task, completed=seconds)
    return readings


async def gauges(address: tuple[str, int]) -> dict[str, float]:
    """Return the metrics that have no labels. Raises TimeoutError."""
    answer = await ask_once(address, request("GET", "/metrics"), PATIENCE_S)
    if isinstance(answer, str):
        raise TimeoutError(f"/metrics: {answer}")
    lines = (line.split() for line in answer.body.decode().splitlines() if not line.startswith("#"))
    return {words[0]: float(words[1]) for words in lines if len(words) == 2 and "{" not in words[0]}


async def ready(pid: int, address: tuple[str, int]) -> None:
    """Wait until the service is ready. Raises RuntimeError where it ends, TimeoutError."""
    async with asyncio.timeout(START_S):
        while True:
            require_alive(pid)
            answer = await ask_once(address, request("GET", "/ready"), PATIENCE_S)
            if isinstance(answer, Answer) and answer.status == 200:
                return
            await asyncio.sleep(0.2)


def by_part(found: list[Sample], seen: Seen, seconds: float) -> Table:
    """Return a row for each part of the time."""
    table = Table("minutes", "requests/s", "p50 ms", "p99 ms", "max ms", "PSS MiB", "handles", "threads")
    due, took = np.array(seen.latencies).T
    edges = np.linspace(0, seconds, PARTS + 1)
    for begin, end in pairwise(edges):
        held = [
            (
                sum(s.pss for s in found if s.at == at),
                sum(s.handles for s in found if s.at == at),
                sum(s.threads for s in found if s.at == at),
            )
            for at in sorted({s.at for s in found if begin <= s.at < end})
        ]
        inside = 1e3 * took[(due >= begin) & (due < end)]
        pss, handles, threads = np.median(held, axis=0)
        table.add_row(
            f"{begin / 60:.3g} to {end / 60:.3g}",
            f"{inside.size / (end - begin):.0f}",
            *(f"{value:.1f}" for value in np.quantile(inside, [0.5, 0.99, 1])),
            f"{pss:,.0f}",
            f"{handles:.0f}",
            f"{threads:.0f}",
        )
    return table


def growth(found: list[Sample], seconds: float) -> Table:
    """Return how much each process grew from the second quarter of the time to the last."""
    table = Table("process", "PSS MiB", "grew by", "MiB/h", "handles", "grew by", "threads", "grew by")
    hours = seconds / 2 / 3600
    for name in sorted({s.name for s in found}):
        early = np.array([_held(s) for s in found if s.name == name and 0.25 <= s.at / seconds < 0.5])
        late = np.array([_held(s) for s in found if s.name == name and s.at / seconds >= 0.75])
        if not early.size or not late.size:
            continue  # a process of the start, or of one job
        before, now = np.median(early, axis=0), np.median(late, axis=0)
        grew = now - before
        table.add_row(
            name,
            f"{now[0]:,.1f}",
            f"{grew[0]:+.1f}",
            f"{grew[0] / hours:+.1f}",
            *(f"{now[1]:.0f}", f"{grew[1]:+.0f}", f"{now[2]:.0f}", f"{grew[2]:+.0f}"),
        )
    return table


def _held(sample: Sample) -> tuple[float, int, int]:
    return sample.pss, sample.handles, sample.threads


def draw(found: list[Sample], path: Path) -> None:
    """Draw the memory of the largest processes over time."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    totals: Counter[str] = Counter()
    for sample in found:
        totals[sample.name] += int(sample.pss)
    for name, _ in islice(totals.most_common(), 8):
        points = [sample for sample in found if sample.name == name]
        axes.plot([s.at / 60 for s in points], [s.pss for s in points], label=name, linewidth=1)
    axes.set(xlabel="minutes", ylabel="proportional set size, MiB", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120)


async def soak(
    pid: int, address: tuple[str, int], minutes: float, chat_every_s: float, console: Console
) -> tuple[list[Sample], Seen]:
    """Find the load that a service carries, then keep to half of it, and report."""
    await ready(pid, address)
    clients = Clients(address, [orjson.loads(line) for line in QUESTIONS.open("rb")])
    carried = await clients.run(CARRIED_S)
    rate = len(carried.latencies) / CARRIED_S / 2
    p99 = 1e3 * np.quantile([took for _, took in carried.latencies], 0.99)
    console.print(f"{CLIENTS} clients without a pause: {2 * rate:.0f} requests/s, p99 {p99:.0f} ms")
    console.print(f"full load: {dict(carried.labels)}")
    seconds, before = 60 * minutes, await gauges(address)
    chats = Seen()
    with Progress(console=console) as progress:
        tally, _, readings = await asyncio.gather(
            clients.run(seconds, CLIENTS / rate),
            clients.chat(chats, seconds, chat_every_s),
            watch(pid, seconds, progress),
        )
    after = await gauges(address)
    console.print(by_part(readings, tally, seconds))
    console.print(growth(readings, seconds))
    console.print(f"half load: {dict(tally.labels + chats.labels)}")
    if chats.chats_s:
        p50, p99 = np.quantile(chats.chats_s, [0.5, 0.99])
        console.print(f"answers of the language model: p50 {p50:.1f} s, p99 {p99:.1f} s")
    console.print(
        f"answers found by the policy: {tally.found / max(tally.judged, 1):.3f} of {tally.judged:,}"
    )
    for name in ("armwise_log_seq", "armwise_lag_facts", "armwise_policy_version"):
        console.print(f"{name}: {before[name]:,.0f} before, {after[name]:,.0f} after")
    return readings, tally


def main(
    minutes: Annotated[float, typer.Option(help="At half load.")] = 60.0,
    config: Annotated[Path, typer.Option("--config", "-c", help="A Ray Serve configuration.")] = ROOT
    / "agent/config/template.yaml",
    chat_every: Annotated[float, typer.Option(help="Seconds between answers of the language model.")] = 10.0,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Where to write the samples.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw the memory.")] = None,
) -> None:
    """Soak a service."""
    console = Console(width=130)
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    port = free_port()
    with TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        document["http_options"] = {"host": "127.0.0.1", "port": port}
        (application,) = document["applications"]
        application["args"]["home"] = str(folder / "home")
        (folder / "serve.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        with started(armwise(folder / "serve.yaml"), folder, {}) as pid:
            readings, _ = uvloop.run(soak(pid, ("127.0.0.1", port), minutes, chat_every, console))
    if csv_file is not None:
        with csv_file.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["at_s", "process", "pss_mib", "handles", "threads"])
            writer.writerows([s.at, s.name, s.pss, s.handles, s.threads] for s in readings)
    if plot is not None:
        draw(readings, plot)


if __name__ == "__main__":
    typer.run(main)
