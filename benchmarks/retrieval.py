"""Recall@k of the arms of a configuration, by data set.

    python benchmarks/retrieval.py FOLDER [--config agent/config/template.yaml] [--home HOME] [-k 4]

FOLDER has `corpus.jsonl.gz` (id, title, text) and `queries.jsonl.gz` (id, dataset, question,
gold_ids). If it also has `outcomes.jsonl.gz` (id, dataset, arm, recall), the recalls of those
arms are printed in brackets beside ours of the same name, or of the same backbone. Indexes
are kept under HOME and used again.
"""

import gzip
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import typer
import yaml
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from armwise.arms.base import Query
from armwise.arms.corpus import ingest
from armwise.arms.models import Backbone, build_embedder
from armwise.arms.retrievers import ArmSpec, Resources, build_arm, prepare

TEMPLATE = Path(__file__).parents[1] / "agent/config/template.yaml"

Recalls = dict[str, dict[str, float]]
"""Arm to data set to mean recall in [0, 1]; the data set `all` is the mean over questions."""


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a compressed file of JSON lines."""
    with gzip.open(path) as file:
        yield from map(orjson.loads, file)


def describe(config: Path) -> tuple[dict[str, Backbone], dict[str, ArmSpec]]:
    """Return the backbones and arms of a Serve configuration."""
    args = yaml.safe_load(config.read_text())["applications"][0]["args"]
    backbones = {name: Backbone.model_validate(spec) for name, spec in args["backbones"].items()}
    return backbones, {name: ArmSpec.model_validate(spec) for name, spec in args["arms"].items()}


def embed(questions: list[str], backbones: Mapping[str, Backbone]) -> dict[str, NDArray[np.float32]]:
    """Return the vectors of all questions by backbone, each of shape (n_questions, dim)."""
    return {name: build_embedder(backbone).encode_queries(questions) for name, backbone in backbones.items()}


def mean_by_dataset(rows: list[tuple[str, float]]) -> dict[str, float]:
    """Average recalls, each with its data set, by data set and over all."""
    by_dataset: defaultdict[str, list[float]] = defaultdict(list)
    for dataset, recall in rows:
        by_dataset[dataset].append(recall)
    by_dataset["all"] = [recall for _, recall in rows]
    return {dataset: float(np.mean(recalls)) for dataset, recalls in by_dataset.items()}


def measure(resources: Resources, queries: list[dict[str, Any]], k: int) -> tuple[Recalls, dict[str, float]]:
    """Search with every arm for every question; return recalls and median times of a search in ms."""
    vectors = embed([query["question"] for query in queries], resources.backbones)
    recalls, took_ms = {}, {}
    for name in resources.specs:
        arm = build_arm(name, resources)
        rows, seconds = [], []
        for n, query in enumerate(queries):
            embedded = Query(query["question"], {b: vectors[b][n] for b in arm.backbones})
            begun = time.perf_counter()
            passages = arm.search(embedded, k).passages
            seconds.append(time.perf_counter() - begun)
            gold = set(query["gold_ids"])
            rows.append((query["dataset"], len(gold & {passage.id for passage in passages}) / len(gold)))
        recalls[name] = mean_by_dataset(rows)
        took_ms[name] = 1e3 * float(np.median(seconds))
    return recalls, took_ms


def recorded(path: Path) -> Recalls:
    """Return the recalls of recorded outcomes, if there are any."""
    rows: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for outcome in lines(path) if path.exists() else ():
        rows[outcome["arm"]].append((outcome["dataset"], outcome["recall"]))
    return {arm: mean_by_dataset(recalls) for arm, recalls in rows.items()}


def show(ours: Recalls, theirs: Recalls, took_ms: Mapping[str, float], resources: Resources, k: int) -> Table:
    """Return a table of the recalls, one row per data set and one column per arm."""
    table = Table("data set", *ours, title=f"Recall@{k}, in brackets as recorded")
    peers = {}
    for arm in ours:
        names = (arm, resources.specs[arm].params.get("backbone"))
        peers[arm] = next((theirs[name] for name in names if name in theirs), {})
    for dataset in next(iter(ours.values())):
        cells = []
        for arm, recalls in ours.items():
            beside = f" [dim]({peers[arm][dataset]:.3f})[/dim]" if dataset in peers[arm] else ""
            cells.append(f"{recalls[dataset]:.3f}{beside}")
        table.add_row(dataset, *cells, end_section=dataset == "all")
    table.add_row("ms a search, p50", *(f"{took_ms[arm]:.2f}" for arm in ours))
    return table


def main(
    folder: Annotated[Path, typer.Argument(help="Folder with the corpus and the queries.")],
    config: Annotated[Path, typer.Option(help="Configuration of arms and backbones.")] = TEMPLATE,
    home: Annotated[Path, typer.Option(help="Folder of corpus and indexes.")] = Path(".retrieval"),
    k: Annotated[int, typer.Option("-k", help="Passages that an arm may return.")] = 4,
) -> None:
    """Prepare, search, and print one table."""
    backbones, specs = describe(config)
    with Progress() as bars:
        shown: dict[str, Any] = {}

        def progress(what: str, done: int, total: int | None) -> None:
            if what not in shown:
                shown[what] = bars.add_task(what)
            bars.update(shown[what], completed=done, total=total)

        corpus = ingest(folder / "corpus.jsonl.gz", home / "corpora" / folder.name, progress=progress)
        resources = Resources(corpus, home / "indexes", backbones, specs)
        prepare(resources, progress=progress)
    ours, took_ms = measure(resources, list(lines(folder / "queries.jsonl.gz")), k)
    Console().print(show(ours, recorded(folder / "outcomes.jsonl.gz"), took_ms, resources, k))


if __name__ == "__main__":
    typer.run(main)
