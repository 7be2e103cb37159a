"""Time of a search under a filter: the first with it, the next ones, and without any.

    OMP_NUM_THREADS=1 python benchmarks/filters.py CORPUS.jsonl.gz [--home HOME] [--searches 50]

Every passage of the corpus (id, title, text) gets a tenant, a number below 1,000 and an address of its own.
Questions are titles. Vectors are hashed words: what they cost to search does not depend on what they mean.
`build` is what the first query of a filter pays once; the searches are those of the next ones. Times are
those of one processor, so that other programs count little.
"""

import gzip
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from armwise.arms.base import Query
from armwise.arms.corpus import Corpus, ingest
from armwise.arms.filters import Comparison
from armwise.arms.models import Backbone, build_embedder
from armwise.arms.retrievers import ArmSpec, Resources, build_arm, prepare

BACKBONE = Backbone(model="hashing:384")

ARMS = {
    "bm25": ArmSpec(kind="bm25"),
    "dense": ArmSpec(kind="dense", params={"backbone": "b"}),
    "vendi": ArmSpec(kind="vendi", params={"backbone": "b", "diversity": 0.3, "depth": 100}),
    "graph": ArmSpec(kind="graph", params={"backbone": "b"}),
}

K = 10


def tagged(source: Path, target: Path, *, restricted: bool) -> Path:
    """Write a corpus with metadata; return its file."""
    with gzip.open(source) as lines, target.open("wb") as file:
        for n, line in enumerate(lines):
            row = orjson.loads(line)
            metadata: dict[str, Any] = {"tenant": f"t{n % 10}", "number": n % 1000, "url": f"https://a/{n}"}
            if restricted:
                metadata["allowed_groups"] = [f"g{n % 10}"]
            kept = {name: row[name] for name in ("id", "title", "text")}
            file.write(orjson.dumps(kept | {"metadata": metadata}) + b"\n")
    return target


def milliseconds(run: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    begun = time.thread_time()
    run()
    return 1e3 * (time.thread_time() - begun)


def built(corpus: Corpus, home: Path) -> Resources:
    """Return the resources of all arms over a corpus, their indexes made where they are missing."""
    have = Resources(corpus, home / "indexes", {"b": BACKBONE}, ARMS)
    prepare(have)
    return have


def row_of(table: Table, name: str, have: Resources, queries: list[Query]) -> None:
    """Add the median time of a search by each arm."""
    have.forget()
    first = milliseconds(lambda: have.corpus.find_permitted(queries[0]))
    permitted = have.corpus.find_permitted(queries[0])
    count = len(have.corpus) if permitted is None else permitted.count
    again = 1e3 * float(
        np.median([milliseconds(lambda: have.corpus.find_permitted(queries[0])) for _ in range(999)])
    )
    cells = []
    for arm in (build_arm(name, have) for name in ARMS):
        arm.search(queries[-1], K)
        cells.append(f"{np.median([milliseconds(partial(arm.search, q, K)) for q in queries]):.2f}")
    table.add_row(name, f"{count:,}", f"{first:.1f}", f"{again:.1f}", *cells)


def questions(corpus: Corpus, n: int) -> list[Query]:
    """Return the titles of passages as queries."""
    step = max(1, len(corpus) // n)
    texts = [p.title or p.text[:80] for p in corpus.passages(range(0, step * n, step))]
    vectors: Mapping[str, NDArray[np.float32]] = {"b": build_embedder(BACKBONE).encode_queries(texts)}
    return [Query(text, {"b": vectors["b"][i]}) for i, text in enumerate(texts)]


def main(
    source: Annotated[Path, typer.Argument(help="Compressed JSON lines of passages.")],
    home: Annotated[Path, typer.Option(help="Folder of corpora and indexes.")] = Path("/tmp/filters"),
    searches: Annotated[int, typer.Option(help="Searches of each arm and filter.")] = 50,
) -> None:
    """Print the times."""
    home.mkdir(parents=True, exist_ok=True)
    table = Table("filter", "permitted", "build, ms", "again, us", *(f"{name}, ms" for name in ARMS))
    free = built(ingest(tagged(source, home / "free.jsonl", restricted=False), home / "free"), home)
    queries = questions(free.corpus, searches)
    wheres = {
        "one tenant in ten": Comparison(type="eq", key="tenant", value="t3"),
        "another tenant": Comparison(type="eq", key="tenant", value="t4"),
        "half": Comparison(type="lt", key="number", value=500),
        "one in 100": Comparison(type="lt", key="number", value=10),
        "one passage": Comparison(type="eq", key="url", value="https://a/77"),
    }
    row_of(table, "none", free, queries)
    for name, where in wheres.items():
        row_of(table, name, free, [replace(query, where=where) for query in queries])
    closed = built(ingest(tagged(source, home / "closed.jsonl", restricted=True), home / "closed"), home)
    for name, groups in (("one group in ten", {"g3"}), ("nine groups", {f"g{n}" for n in range(9)})):
        row_of(table, name, closed, [replace(query, groups=frozenset(groups)) for query in queries])
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
