"""LTRR on real questions: its models, its features with and without imputed values, and unseen types.

    python benchmarks/ltrr.py DATA                 # three tables
    python benchmarks/ltrr.py DATA --only missing  # one of them: models, missing, unseen

DATA holds `qa/`. The arms are the five of LTRR's seven actions that the data has: no retrieval, BM25 and a
dense retriever, both also with score regularization. Questions and passages are embedded by MiniLM for the
features, whichever encoder the dense retriever has. Labels are LTRR's, with F1: the gain over no retrieval,
scaled to [0, 1] on each question. Routers are fitted in five folds by question, or, for `unseen`, without one
type of question at a time; types of fewer than 100 questions count as `other`.

F1 is that of the answers, without a cost of searches. The gap is the share of the way from the best single
arm to the oracle, with a 95 % interval from a bootstrap over questions; p is that of Wilcoxon's signed-rank
test against the best single arm, times the number of rows (Bonferroni). `picks none` is the share of the
questions that are answered without retrieval; that of the oracle includes questions on which other arms are
as good.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from routing_data import ENCODER, Encoder, json_lines, qa_outcomes

from armwise.agent.lab.offline.evaluate import evaluate_left_out, evaluate_scores
from armwise.agent.lab.offline.labelled_data import select_arms
from armwise.agent.lab.routers import cross_validation, utilities
from armwise.agent.routers import Features, RouterSpec, RoutingDataset, Stage, build_router
from armwise.agent.routers import features as router_features
from armwise.agent.routers.dataset import Floats
from armwise.agent.routers.utility import LTRR, Utility
from armwise.arms.base import Passage
from armwise.arms.lab.portfolio import Outcomes

ARMS = ("none", "bm25", "bm25_regularize")

DENSE = ("mpnet", "minilm")
"""Dense retrievers, of which the first that the data has is taken, plain and regularized."""

COLUMNS = ["length", "shape=keyword", "*_sim.scaled", "moran.scaled"]
"""LTRR's named features; the question's embedding is in 32 principal components by default."""

TREES = ("pointwise_xgboost", "pairwise_xgboost", "lambdamart")
OTHERS = ("pointwise_svm", "pairwise_svm", "pointwise_ffn", "pairwise_ffn", "listnet")
HEURISTICS = ("overall_sim", "avg_sim", "max_sim", "var_sim", "moran")

FEWEST = 100
"""Fewest questions of a type that stands by itself."""

FOLDS, SEED, RESAMPLES = 5, 0, 2000

F1 = Utility(measures={"f1": 1.0})


def read(folder: Path, n: int, encode: Encoder) -> tuple[Outcomes, Features]:
    """Return what the arms earned on some of the questions, and what a router sees after retrieval."""
    every = qa_outcomes(folder)
    kept = np.random.default_rng(SEED).permutation(len(every.questions)) < n
    dense = next(arm for arm in DENSE if f"{arm}_regularize" in every.arms)
    arms = (*ARMS, dense, f"{dense}_regularize")
    outcomes = replace(select_arms(every.only(kept), [every.arms.index(arm) for arm in arms]), costs={})
    found = {name for row in outcomes.passages for ids in row for name in ids or ()}
    corpus = (line for line in json_lines(folder / "corpus.jsonl.gz") if line["id"] in found)
    passages = {line["id"]: Passage(line["id"], line["title"], line["text"]) for line in corpus}
    written = [f"{passage.title}\n{passage.text}" for passage in passages.values()]
    vectors = dict(zip(passages, encode("passages", written, passages=True), strict=True))
    texts = tuple(question.text for question in outcomes.questions)
    embedding = encode("questions", texts)
    rankings = [[[passages[name] for name in ids or ()] for ids in row] for row in outcomes.passages]
    names, table = router_features.QUESTION, router_features.build_question_table(texts)
    retrieved = router_features.build_retrieved_table(texts, embedding, rankings, vectors)
    return outcomes, Features(arms, texts, names, table, embedding, retrieved)


def spec(kind: str, columns: list[str] | None = COLUMNS, **params: Any) -> RouterSpec:
    """Return a router that sees LTRR's columns, or all; without the code of the arm by default."""
    if kind in HEURISTICS:
        return RouterSpec(kind=kind)
    identity = {} if kind == "pairwise_svm" else {"identity": False}
    return RouterSpec(kind=kind, params={"stage": "retrieved", "columns": columns, **identity, **params})


def fitted_scores(
    router: RouterSpec,
    outcomes: Outcomes,
    features: Features,
    parts: Sequence[tuple[NDArray[np.intp], NDArray[np.intp]]],
) -> Floats:
    """Return the scores of held-out questions."""
    scores = np.full((len(features), len(features.arms)), np.nan)
    for training, held_out in parts:
        labels = RoutingDataset(features.rows(training), utilities.utilities(outcomes.only(training), LTRR))
        scores[held_out] = build_router(router).fit(labels).scores(features.rows(held_out))
    return scores


def compare(title: str, rows: dict[str, RouterSpec], outcomes: Outcomes, features: Features) -> Table:
    """Fit routers in folds by question, and lay out what they earned."""
    table = Table(title=f"{title}: {len(features):,} questions", title_justify="left")
    for heading in ("", "F1", "gap", "95 % interval", "p", "picks none"):
        table.add_column(heading, justify="right" if heading else "left")
    worth = outcomes.scores["f1"]
    for column, arm in enumerate(features.arms):
        table.add_row(f"always {arm}", f"{worth[:, column].mean():.4f}", "", "", "", "")
    parts = cross_validation.folds(features.texts, FOLDS, SEED)
    for name, router in rows.items():
        scores = fitted_scores(router, outcomes, features, parts)
        rng = np.random.default_rng(SEED)
        result = evaluate_scores(outcomes, scores, F1, Stage.RETRIEVED, RESAMPLES, rng)
        assert result.gap is not None
        assert result.interval is not None
        low, high = result.interval
        table.add_row(
            name,
            f"{result.rows['router']['f1']:.4f}",
            f"{result.gap:+.1%}",
            f"{low:+.1%} to {high:+.1%}",
            f"{min(1.0, len(rows) * result.p):.2g}",
            f"{np.mean(scores.argmax(axis=1) == features.arms.index('none')):.1%}",
        )
    best = worth.argmax(axis=1)
    table.add_row("oracle", f"{worth.max(axis=1).mean():.4f}", "", "", "", f"{np.mean(best == 0):.1%}")
    return table


def main(
    folder: Annotated[Path, typer.Argument(help="Holds qa/.")],
    questions: Annotated[int, typer.Option(help="Questions, drawn at random.", min=500)] = 4218,
    cache: Annotated[Path, typer.Option(help="Keeps vectors.")] = Path("~/.armwise/benchmarks"),
    only: Annotated[str | None, typer.Option(help="models, missing or unseen.")] = None,
    model: Annotated[str | None, typer.Option(help="Also transformers over this text model.")] = None,
) -> None:
    """Print the tables."""
    console = Console(width=130)
    with Progress(console=console) as progress:
        outcomes, features = read(folder / "qa", questions, Encoder(cache.expanduser(), progress, ENCODER))
    if only in (None, "models"):
        rows = {kind: spec(kind) for kind in (*HEURISTICS, *OTHERS)}
        rows |= {kind: spec(kind, impute=True) for kind in TREES}
        if model is not None:
            own = {"model": model, "dims": features.embedding.shape[1]}
            rows |= {f"transformer, {loss}": spec("transformer", loss=loss, **own)
                     for loss in ("pointwise", "pairwise", "listwise")}  # fmt: skip
        console.print(compare("LTRR's models on its features", rows, outcomes, features))
    if only in (None, "missing"):
        rows = {}
        for kind in TREES:
            rows[f"{kind}: medians for none"] = spec(kind, impute=True)
            rows[f"{kind}: missing stays missing"] = spec(kind)
            rows[f"{kind}: medians, code of the arm"] = spec(kind, impute=True, identity=True)
            rows[f"{kind}: missing, code, all features"] = spec(kind, None, identity=True)
        console.print(compare("Features of no retrieval", rows, outcomes, features))
    if only in (None, "unseen"):
        types = {line["id"]: line["type"] for line in json_lines(folder / "qa" / "queries.jsonl.gz")}
        named = [types[question.id] for question in outcomes.questions]
        count = Counter(named)
        values = np.array([name if count[name] >= FEWEST else "other" for name in named])
        parts = [
            (np.flatnonzero(values != name), np.flatnonzero(values == name)) for name in np.unique(values)
        ]
        for name, impute in (("medians for none", True), ("missing stays missing", False)):
            scores = fitted_scores(spec("pairwise_xgboost", impute=impute), outcomes, features, parts)
            rng = np.random.default_rng(SEED)
            result = evaluate_left_out(outcomes, scores, values, "type", F1, Stage.RETRIEVED, RESAMPLES, rng)
            console.print(f"pairwise_xgboost, {name}")
            console.print(result.table())
            console.print(result.conclusion())


if __name__ == "__main__":
    typer.run(main)
