"""R3AG's router on outcomes of language models: its labels, its ablations, and how often it picks each arm.

    python benchmarks/r3ag.py DATA

DATA holds `qa/`, as in `routing.py`. The encoder of questions is frozen; small heads are fitted. The label
of quality is the recall of the supporting passages, as no judge has seen these passages; it is 0 for `none`.
Each question is scored by a router that was fitted to the other four folds. `less best` is the exact match
of a row less that of the best single arm, question by question, with the 95 % interval of the mean. The
best single arm and the best arm of each source are chosen on the questions that are scored.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from routing_data import DataSet, Encoder, qa_outcomes

from armwise.agent.lab.routers import cross_validation, utilities
from armwise.agent.lab.routers.r3ag import positives
from armwise.agent.routers import RouterSpec, build_router
from armwise.agent.routers.utility import R3AG

Picks = NDArray[np.intp]

FOLDS = 5
WORST_SHARE = 0.0005
"""Arms that are picked less often are not listed."""


@dataclass(frozen=True)
class Row:
    """A way to fit the router.

    Attributes:
        name: As the table calls it.
        params: Parameters of the router.
        utility: What differs from the paper's utility.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    utility: Mapping[str, Any] = field(default_factory=dict)


ROWS = (
    Row("labels as published", {"positives": "published"}),
    Row("R3AG, reduced"),
    Row("without attention", {"without": "attention"}),
    Row("without quality", {"without": "quality"}),
    Row("without utility", {"without": "utility"}),
    Row("no prior: tied arms are positives together", utility={"prior": 0.0}),
    Row("0.02 off the utility per step", utility={"cost_weight": 0.02}),
)


def pick(data: DataSet, row: Row) -> Picks:
    """Return the column of the picked arm on each question, by routers fitted to the other folds."""
    outcomes, utility = data.outcomes, R3AG.model_copy(update=dict(row.utility))
    picks = np.full(len(outcomes.questions), -1)
    texts = [question.text for question in outcomes.questions]
    for fit, scored in cross_validation.folds(texts, FOLDS, 0):
        training = outcomes.only(fit)
        labels = utilities.routing_labels(data.asked.rows(fit), training, utility, training.scores["recall"])
        router = build_router(RouterSpec(kind="capability", params=dict(row.params))).fit(labels)
        picks[scored] = router.scores(data.asked.rows(scored)).argmax(axis=1)
    return picks


def describe_labels(data: DataSet) -> Iterator[str]:
    """Yield what the labels say of no retrieval."""
    outcomes = data.outcomes
    em, none = outcomes.scores["em"], outcomes.arms.index("none")
    right = em[:, none] == 1.0
    labels = utilities.routing_labels(data.asked, outcomes, R3AG)
    published = positives(labels.utility, 2)
    ours = positives(labels.utility, 2, labels.outcome)
    yield f"all arms have the same outcome on {1 - labels.telling.mean():.1%} of the questions"
    yield f"none is right on {right.mean():.1%}, and it alone on {(right & (em.sum(axis=1) == 1)).mean():.1%}"
    yield (
        f"none is a positive on {published[:, none].mean():.1%} by the published labels, "
        f"on {ours[:, none].mean():.1%} by ours"
    )
    yield (
        f"positives by the prior alone: {(published & ~ours).sum() / published.sum():.1%} "
        "of the published ones"
    )


def add_row(table: Table, name: str, picks: Picks, data: DataSet, seconds: float | None = None) -> None:
    """Add what some picks earn to a table."""
    outcomes, at = data.outcomes, np.arange(len(picks))
    em, f1, steps = outcomes.scores["em"], outcomes.scores["f1"], outcomes.costs["steps"]
    gain = em[at, picks] - em[:, em.mean(axis=0).argmax()]
    middle, half = gain.mean(), 1.96 * gain.std(ddof=1) / len(gain) ** 0.5
    shares = np.bincount(picks, minlength=len(outcomes.arms)) / len(picks)
    listed = [arm for arm in np.argsort(-shares, kind="stable").tolist() if shares[arm] > WORST_SHARE]
    table.add_row(
        name,
        f"{em[at, picks].mean():.4f}",
        f"{f1[at, picks].mean():.4f}",
        f"{middle:+.4f} ({middle - half:+.4f} to {middle + half:+.4f})",
        f"{steps[at, picks].mean():.2f}",
        f"{shares[outcomes.arms.index('none')]:.1%}",
        ", ".join(f"{outcomes.arms[arm]} {shares[arm]:.1%}" for arm in listed),
        "" if seconds is None else f"{seconds:.0f}",
    )


def compare(data: DataSet, console: Console, progress: Progress) -> None:
    """Fit every row, and print the table."""
    outcomes = data.outcomes
    em, n = outcomes.scores["em"], len(outcomes.questions)
    best, sources = int(em.mean(axis=0).argmax()), np.array([one.dataset for one in outcomes.questions])
    of_source = np.zeros(n, dtype=np.intp)
    for source in np.unique(sources):
        of_source[sources == source] = em[sources == source].mean(axis=0).argmax()
    table = Table(title=f"{data.name}: {n:,} questions, {len(outcomes.arms)} arms", title_justify="left")
    for column in ("", "EM", "F1", "less best", "steps", "none", "picked", "fit s"):
        table.add_column(column, justify="left" if column in ("", "picked") else "right")
    add_row(table, "no retrieval", np.full(n, outcomes.arms.index("none")), data)
    add_row(table, f"best single arm, {outcomes.arms[best]}", np.full(n, best), data)
    add_row(table, "best arm of each source", of_source, data)
    task = progress.add_task(data.name, total=len(ROWS))
    for row in ROWS:
        begun = time.perf_counter()
        picks = pick(data, row)
        add_row(table, row.name, picks, data, time.perf_counter() - begun)
        progress.advance(task)
    of_tied = 1e-6 * em.mean(axis=0)  # of the best arms of a question, the one that is best on average
    add_row(table, "oracle", (em + of_tied).argmax(axis=1), data)
    console.print(table)
    for line in describe_labels(data):
        console.print(line, highlight=False)


def main(
    folder: Annotated[Path, typer.Argument(help="Holds qa/.")],
    cache: Annotated[Path, typer.Option(help="Keeps vectors.")] = Path("~/.armwise/benchmarks"),
) -> None:
    """Fit the router in every way, and print a table."""
    console, outcomes = Console(width=190), qa_outcomes(folder / "qa")
    with Progress(console=console) as progress:
        encode = Encoder(cache.expanduser(), progress)
        vectors = encode("questions of qa", [question.text for question in outcomes.questions])
        compare(DataSet("qa", outcomes, vectors, {}, {}), console, progress)


if __name__ == "__main__":
    typer.run(main)
