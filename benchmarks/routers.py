"""How long it takes to route one question to one of seven arms, beside the same trees in onnxruntime.

    python benchmarks/routers.py [--decisions 1000] [--rounds 5]

The trees have the size of LTRR's: 34 columns of the question, 6 of each arm, 7 of the one-hot code of the
arm. `onnxruntime` and `xgboost inplace_predict` get rows that are ready, seven arms or the 42 ordered pairs
of them, and return the sums of the trees. `a router, whole` is what serving calls: names checked, numbers
scaled and projected, rows put together, the trees, the scores; a train-free router is beside it. Rounds
alternate between the sides, each side has one thread, and a ratio is a side's median over onnxruntime's in
this run.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer
import xgboost
from decision import measure
from numpy.typing import NDArray
from onnxmltools.convert import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from rich.console import Console
from rich.table import Table

from armwise.agent.routers import Features, Router, RouterSpec, RoutingDataset, build_router, dataset

ARMS = ("none", "bm25", "bm25-smooth", "bm25-drawn", "dense", "dense-smooth", "dense-drawn")
SEEN = ("overall_sim", "avg_sim", "max_sim", "var_sim", "moran", "cross_sim")
NAMES = ("words", "keywords")
DIM, DIMS = 384, 32
QUESTIONS = 1500
SEED = 7

SHAPES = {"pointwise_xgboost": (300, 4, 20.0), "pairwise_xgboost": (100, 5, 2.0)}
"""Trees, their depth and the least weight of a leaf, as the routers have them by default."""

Side = Callable[[int], Any]


def world() -> RoutingDataset:
    """Return questions on which what was retrieved, and the topic, tell something of the best arm."""
    rng = np.random.default_rng(SEED)
    embedding = rng.normal(size=(QUESTIONS, DIM)).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    retrieved = rng.normal(size=(QUESTIONS, len(ARMS), len(SEEN)))
    retrieved[:, 0] = np.nan
    utility = 0.5 * np.nan_to_num(retrieved[:, :, 2]) + 5.0 * embedding[:, : len(ARMS)]
    features = Features(
        ARMS,
        tuple(f"question {i}" for i in range(QUESTIONS)),
        NAMES,
        rng.normal(size=(QUESTIONS, len(NAMES))),
        embedding,
        dataset.ArmTable(SEEN, retrieved),
    )
    return RoutingDataset(features, utility + rng.normal(size=utility.shape))


def numbers(labels: RoutingDataset, *, pairs: bool) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the rows of all questions, shape (n, n_rows, 47), and the target of each, shape (n, n_rows)."""
    assert labels.features.retrieved is not None
    question = np.hstack([labels.features.question, labels.features.embedding[:, :DIMS]])
    retrieved, utility, names = labels.features.retrieved.values, labels.utility, np.eye(len(ARMS))
    target = utility - utility.mean(axis=1, keepdims=True)
    if pairs:
        first, second = np.nonzero(~np.eye(len(ARMS), dtype=bool))
        retrieved, names = retrieved[:, first] - retrieved[:, second], names[first] - names[second]
        target = (utility[:, first] > utility[:, second]).astype(float)
    n, n_rows, _ = retrieved.shape
    parts = (
        np.broadcast_to(question[:, None], (n, n_rows, question.shape[1])),
        retrieved,
        np.broadcast_to(names, (n, *names.shape)),
    )
    return np.concatenate(parts, axis=2, dtype=np.float32), target


def trees(kind: str, labels: RoutingDataset) -> dict[str, Side]:
    """Grow as many trees as a router has, and return what scores one question by them; both agree."""
    pairs = kind.startswith("pairwise")
    rows, target = numbers(labels, pairs=pairs)
    rounds, depth, weight = SHAPES[kind]
    grown = {"max_depth": depth, "min_child_weight": weight, "eta": 0.03, "subsample": 0.8, "nthread": 1}
    objective = "binary:logistic" if pairs else "reg:squarederror"
    data = xgboost.DMatrix(rows.reshape(-1, rows.shape[2]), target.ravel())
    booster = xgboost.train({**grown, "objective": objective}, data, rounds)

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    model = convert_xgboost(booster, initial_types=[("rows", FloatTensorType([None, rows.shape[2]]))])
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    output = [session.get_outputs()[-1].name]
    for i in range(20):
        peer = session.run(output, {"rows": rows[i]})[0][:, -1]
        np.testing.assert_allclose(peer, booster.inplace_predict(rows[i]), atol=1e-5)
    return {
        "onnxruntime": lambda i: session.run(output, {"rows": rows[i]}),
        "xgboost inplace_predict": lambda i: booster.inplace_predict(rows[i]),
    }


def whole(router: Router, seen: list[Features], i: int) -> int:
    """Route one question."""
    return int(router.scores(seen[i]).argmax())


def main(
    decisions: Annotated[int, typer.Option(help="Questions a round", min=50, max=QUESTIONS)] = 1000,
    rounds: Annotated[int, typer.Option(help="Rounds that count", min=1)] = 5,
) -> None:
    """Measure and print a table a kind of router."""
    console, labels = Console(), world()
    features = [labels.features.rows([i]) for i in range(decisions)]
    heuristic = build_router(RouterSpec(kind="max_sim")).fit(labels)
    for kind, (n_trees, depth, _) in SHAPES.items():
        router = build_router(RouterSpec(kind=kind)).fit(labels)
        sides = trees(kind, labels) | {
            "a router, whole": partial(whole, router, features),
            "max_sim, whole": partial(whole, heuristic, features),
        }
        taken = measure(sides, decisions, rounds)
        rows = "42 pairs" if kind.startswith("pairwise") else "7 rows"
        table = Table(title=f"{kind}: {rows}, {n_trees} trees of depth {depth}")
        for heading in ("", "p50 us", "p99 us", "/ onnxruntime"):
            table.add_column(heading, justify="right" if heading else "left")
        peer = float(np.median(taken["onnxruntime"]))
        for name, seconds in taken.items():
            middle, slow = np.quantile(seconds, [0.5, 0.99])
            table.add_row(name, f"{1e6 * middle:.1f}", f"{1e6 * slow:.1f}", f"{middle / peer:.2f}")
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
