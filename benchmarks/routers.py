"""What it takes to route one question to one of seven arms, beside xgboost and onnxruntime on the same trees.

    python benchmarks/routers.py [--decisions 1000] [--rounds 5]

The trees have the size of LTRR's: 34 columns of the question, 6 of each arm, 7 that say which arm it is.
Ours and the peers are handed numbers that are ready and return what the trees add up to: of seven rows one
by one, and of the 42 ordered pairs of arms. Ours is handed the question once, and the arms; the peers are
handed whole rows, already put together. `a router, whole` is what serving calls: names checked, numbers
scaled and projected, the trees, the scores; the heuristic router is beside it. Rounds alternate between the
sides, each side has one thread, and a ratio is a side's median over onnxruntime's in this run.
"""

from collections.abc import Callable
from dataclasses import dataclass
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

from agent.routers import Features, Router, RouterSpec, RoutingDataset, build_router, dataset
from agent.routers.tabular.tree_inference import Forest, Trees

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


@dataclass(frozen=True, slots=True)
class Numbers:
    """What is given to trees, ready.

    Attributes:
        question: Shape (n, 34).
        own: Of each arm, or each ordered pair of arms, shape (n, n_rows, 6).
        names: Which arm, or which pair, shape (n_rows, 7).
    """

    question: NDArray[np.float32]
    own: NDArray[np.float32]
    names: NDArray[np.float32]

    def rows(self) -> NDArray[np.float32]:
        """Return them side by side, shape (n, n_rows, 47)."""
        n, n_rows, _ = self.own.shape
        question = np.broadcast_to(self.question[:, None], (n, n_rows, self.question.shape[1]))
        return np.concatenate([question, self.own, np.broadcast_to(self.names, (n, *self.names.shape))], 2)


def numbers(labels: RoutingDataset, *, pairs: bool) -> tuple[Numbers, NDArray[np.float64]]:
    """Return the rows of all questions, and what each is worth."""
    assert labels.features.retrieved is not None
    question = np.hstack([labels.features.question, labels.features.embedding[:, :DIMS]]).astype(np.float32)
    own, utility = labels.features.retrieved.values.astype(np.float32), labels.utility
    names = np.eye(len(ARMS), dtype=np.float32)
    if not pairs:
        return Numbers(question, own, names), utility - utility.mean(axis=1, keepdims=True)
    one, other = np.nonzero(~np.eye(len(ARMS), dtype=bool))
    ready = Numbers(question, own[:, one] - own[:, other], names[one] - names[other])
    return ready, (utility[:, one] > utility[:, other]).astype(float)


def trees(kind: str, labels: RoutingDataset) -> dict[str, Side]:
    """Grow a forest of the size of a router's, and return who scores one question with it; all agree."""
    pairs = kind.startswith("pairwise")
    ready, target = numbers(labels, pairs=pairs)
    rows = ready.rows()
    rounds, depth, weight = SHAPES[kind]
    grown = {"max_depth": depth, "min_child_weight": weight, "eta": 0.03, "subsample": 0.8, "nthread": 1}
    objective = "binary:logistic" if pairs else "reg:squarederror"
    data = xgboost.DMatrix(rows.reshape(-1, rows.shape[2]), target.ravel())
    booster = xgboost.train({**grown, "objective": objective}, data, rounds)

    forest = Forest(Trees.of_xgboost(booster.save_raw("json")))
    n_question, n_names = ready.question.shape[1], ready.names.shape[1]
    named = forest.possible(ready.names, rows.shape[2] - n_names)

    def ours(i: int) -> NDArray[np.float64]:
        told = forest.possible(ready.question[i]) & forest.possible(ready.own[i], n_question) & named
        return forest.sums(told)

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    model = convert_xgboost(booster, initial_types=[("rows", FloatTensorType([None, rows.shape[2]]))])
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    output = [session.get_outputs()[-1].name]

    for i in range(20):
        margin = booster.inplace_predict(rows[i], predict_type="margin")
        np.testing.assert_allclose(ours(i), margin, atol=1e-5)
        theirs = session.run(output, {"rows": rows[i]})[0][:, -1]
        np.testing.assert_allclose(theirs, 1.0 / (1.0 + np.exp(-margin)) if pairs else margin, atol=1e-5)
    return {
        "onnxruntime": lambda i: session.run(output, {"rows": rows[i]}),
        "xgboost inplace_predict": lambda i: booster.inplace_predict(rows[i]),
        "our forest": ours,
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
    seen = [labels.features.rows([i]) for i in range(decisions)]
    heuristic = build_router(RouterSpec(kind="max_sim")).fit(labels)
    for kind, (n_trees, depth, _) in SHAPES.items():
        router = build_router(RouterSpec(kind=kind)).fit(labels)
        sides = trees(kind, labels) | {
            "a router, whole": partial(whole, router, seen),
            "max_sim, whole": partial(whole, heuristic, seen),
        }
        taken = measure(sides, decisions, rounds)
        rows = "42 pairs" if kind.startswith("pairwise") else "7 rows"
        table = Table(title=f"{kind}: {rows}, {n_trees} trees of depth {depth}")
        for heading in ("", "p50 us", "p99 us", "/ onnxruntime (goal 1.5)"):
            table.add_column(heading, justify="right" if heading else "left")
        peer = float(np.median(taken["onnxruntime"]))
        for name, seconds in taken.items():
            middle, slow = np.quantile(seconds, [0.5, 0.99])
            table.add_row(name, f"{1e6 * middle:.1f}", f"{1e6 * slow:.1f}", f"{middle / peer:.2f}")
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
