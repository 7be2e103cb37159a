"""The model of relevance on questions of six data sets: what fusing, routing and picking by it is worth.

    python benchmarks/relevance.py DATA                     # fusion: by arms, by labels, on other data sets
    python benchmarks/relevance.py DATA --routing ROW       # that router of routing.py, with its columns
    python benchmarks/relevance.py DATA --pretrain FOLDER   # fit the model of the package

DATA holds `qa/`, as in `routing.py`. A passage is gold if it supports the answer to a question. Each arm
found four passages; Recall@4 is the mean share of the gold passages among the four that are kept. Models are
fitted to four of five folds of the questions and judged on the fifth; those of few labels to some questions
of these folds. A router's training questions are seen with models of relevance of other folds of them.
"""

import gzip
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table
from routing_data import Encoder, qa
from routing_offline import gap, nanmean, played, splits
from routing_rows import SHORTLISTS

from armwise.agent.lab.offline import read_questions, relevance_of_others, validate_relevance
from armwise.agent.lab.offline.router_features import FITTING
from armwise.agent.lab.routers import cross_validation
from armwise.agent.routers import RouterSpec, RoutingDataset, build_router
from armwise.agent.routers.features import with_relevance
from armwise.arms.base import Passage
from armwise.arms.lab.portfolio import Outcomes, read_outcomes
from armwise.arms.lab.relevance import Case, Examples, Fitting
from armwise.arms.relevance import write_model
from armwise.arms.retrievers import fuse

PRETRAINED = Fitting(by_name=False, draws=4, depth=4, rounds=250, learning_rate=0.06, min_child_weight=20.0)
"""The model of the package: it knows no arm by name."""

FUSED = (("bm25", "graph"), ("bm25", "minilm"))

RETRIEVED = "after retrieval"

ROWS: Mapping[str, tuple[str, ...] | None] = {RETRIEVED: None, **SHORTLISTS, "all answers": None}
"""Rows of trees of `routing.py`, by their arms; None for all."""

FOLDS, K = 5, 4

CACHE = Path("~/.armwise/benchmarks")

Found = list[list[list[Passage]]]

Part = tuple[NDArray[np.intp], NDArray[np.intp]]


def found_by(outcomes: Outcomes, passages: Mapping[str, Passage], arms: Sequence[str]) -> Found:
    """Return the passages of some arms: `found[question][arm]`."""
    at = [outcomes.arms.index(arm) for arm in arms]
    return [[[passages[name] for name in row[arm] or ()] for arm in at] for row in outcomes.passages]


def cases_of(outcomes: Outcomes, found: Found, arms: Sequence[str]) -> list[Case]:
    """Return questions with what some arms found."""
    return [
        Case(question.text, dict(zip(arms, row, strict=True)), frozenset(question.gold_ids))
        for question, row in zip(outcomes.questions, found, strict=True)
    ]


def recalls(cases: Sequence[Case], examples: Examples, parts: Sequence[Part]) -> list[str]:
    """Return the columns of a table of fusion."""
    result = validate_relevance(cases, examples.out_of_fold(parts), K)
    assert result is not None
    recall = result.recall
    best = max((recall[arm], arm) for arm in cases[0].found if arm in recall)
    names = ("rrf of all", "learned fusion", "best arm a question", "every passage found")
    return [f"{best[0]:.3f} ({best[1]})", *(f"{recall[name]:.3f}" for name in names), f"{result.auc:.3f}"]


def fusions(outcomes: Outcomes, passages: Mapping[str, Passage], console: Console) -> None:
    """Print the recall of fused lists, by members and by the number of labelled questions."""
    texts = [question.text for question in outcomes.questions]
    folds = cross_validation.folds(texts, FOLDS, 0)
    table = Table(title="Recall@4 on held-out questions", title_justify="left")
    for column in ("arms", "labels", "best single", "rank fusion", "learned", "best arm", "all found", "AUC"):
        table.add_column(column)
    for arms in FUSED:
        cases = cases_of(outcomes, found_by(outcomes, passages, arms), arms)
        examples = Examples.from_cases(cases)
        for labels in (30, 300, None):
            rng = np.random.default_rng(0)
            parts = [(rng.permutation(training)[:labels], held_out) for training, held_out in folds]
            table.add_row(", ".join(arms), f"{labels or 'all'}", *recalls(cases, examples, parts))
        console.print(table)


def transfer(outcomes: Outcomes, passages: Mapping[str, Passage], console: Console) -> None:
    """Print the recall of the model of the package on a data set that it was not fitted to."""
    sets = np.array([question.dataset for question in outcomes.questions])
    every = Examples.from_cases(
        cases_of(outcomes, found_by(outcomes, passages, outcomes.arms), outcomes.arms), PRETRAINED
    )
    table = Table(title="Recall@4 of a model fitted to the other five data sets", title_justify="left")
    for column in ("data set", *(f"{', '.join(arms)}: single / rrf / learned" for arms in FUSED)):
        table.add_column(column)
    for name in track(sorted(set(sets)), "data sets", console=console):
        model, row = every.fit(np.flatnonzero(sets != name)), [name]
        held_out = outcomes.only(sets == name)
        for arms in FUSED:
            cases = cases_of(held_out, found_by(held_out, passages, arms), arms)
            result = validate_relevance(
                cases, [model.relevance(case.question, case.found) for case in cases], K
            )
            assert result is not None
            shown = (max(result.recall[arm] for arm in arms), result.recall["rrf of all"])
            row.append(" / ".join(f"{value:.3f}" for value in (*shown, result.recall["learned fusion"])))
        table.add_row(*row)
    console.print(table)


def latency(outcomes: Outcomes, passages: Mapping[str, Passage], console: Console) -> None:
    """Print the processor time of fusing what two and ten arms found, beside rank fusion."""
    for arms in (FUSED[0], tuple(arm for arm in outcomes.arms if arm != "none")):
        cases = cases_of(outcomes, found_by(outcomes, passages, arms), arms)[:1000]
        model = Examples.from_cases(cases[:300]).fit()
        begun = time.process_time()
        for case in cases:
            fuse([*case.found.values()])
        ranks = time.process_time()
        for case in cases:
            model.relevance(case.question, case.found)
        learned = time.process_time()
        console.print(
            f"{len(arms)} arms of {K} passages: rank fusion {ranks - begun:.3f} ms, learned fusion "
            f"{learned - ranks:.2f} ms of processor time a question"
        )


def routing(data: Path, rows: Sequence[str], console: Console) -> None:
    """Print what routers of `routing.py` choose that also see the relevance of passages."""
    with Progress(console=console) as progress:
        data_set = qa(data / "qa", Encoder(CACHE.expanduser(), progress), None)
    outcomes = data_set.outcomes
    passages = {name: passage for name, (passage, _) in data_set.passages.items()}
    texts = [question.text for question in outcomes.questions]
    table = Table(title="Routers with columns of relevance, five folds", title_justify="left")
    for column in ("", "EM", "F1", "cost", "gap", "+-"):
        table.add_column(column)
    for name in rows:
        arms, stage = ROWS[name] or outcomes.arms, "retrieved" if name == RETRIEVED else "answered"
        retrieved, base = found_by(outcomes, passages, arms), data_set.features(arms)
        examples = Examples.from_cases(cases_of(outcomes, retrieved, arms), FITTING)
        at = [outcomes.arms.index(arm) for arm in arms]
        answers = [[row[arm] or "" for arm in at] for row in outcomes.answers]
        trees = {"dims": 0, "rounds": 600, "stage": stage}
        spec, em = RouterSpec(kind="pointwise_xgboost", params=trees), outcomes.scores["em"]
        folds: list[dict[str, NDArray[np.float64]]] = []
        for fit in track(splits(data_set), name, console=console):
            _, relevance = relevance_of_others(examples, texts, np.flatnonzero(fit), seed=0)
            features, router = (
                with_relevance(base, relevance, retrieved, answers),
                build_router(spec),
            )
            router.fit(RoutingDataset(features.rows(fit), em[fit][:, at]))
            picks = np.full(len(fit), -1)
            picks[~fit] = np.array(at)[router.scores(features.rows(~fit)).argmax(axis=1)]
            folds.append(played(data_set, picks, router.stage, at))
        values = {key: nanmean([fold[key] for fold in folds]) for key in ("em", "f1", "cost")}
        spread = float(np.std([gap(fold["em"], data_set) for fold in folds]))
        means = (f"{np.nanmean(column):.4f}" for column in values.values())
        table.add_row(name, *means, f"{gap(values['em'], data_set):+.1%}", f"{spread:.1%}")
    console.print(table)


def main(
    data: Annotated[Path, typer.Argument(help="Folder with `qa/`.")],
    pretrain: Annotated[Path | None, typer.Option(help="Fit the model of the package into a folder.")] = None,
    rows: Annotated[list[str] | None, typer.Option("--routing", help="A row of `ROWS`; repeatable.")] = None,
) -> None:
    """Print the tables."""
    console = Console(width=140)
    if rows:
        routing(data, rows, console)
        return
    outcomes = read_outcomes(
        data / "qa" / "outcomes.jsonl.gz", read_questions(data / "qa" / "queries.jsonl.gz")
    )
    passage_ids = {name for row in outcomes.passages for ids in row for name in ids or ()}
    with gzip.open(data / "qa" / "corpus.jsonl.gz") as corpus:
        lines = [line for line in map(orjson.loads, corpus) if line["id"] in passage_ids]
    passages = {line["id"]: Passage(line["id"], line["title"], line["text"]) for line in lines}
    if pretrain is not None:
        cases = cases_of(outcomes, found_by(outcomes, passages, outcomes.arms), outcomes.arms)
        model = Examples.from_cases(cases, PRETRAINED).fit()
        write_model(pretrain, model)
        console.print(f"{len(model.save()):,} bytes, {model.header.questions:,} questions, into {pretrain}")
        return
    latency(outcomes, passages, console)
    transfer(outcomes, passages, console)
    fusions(outcomes, passages, console)


if __name__ == "__main__":
    typer.run(main)
