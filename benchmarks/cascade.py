"""A cascade on outcomes of real language models: share of the gap, steps, tokens and reward by rule to stop.

    python benchmarks/cascade.py DATA                       # table of qa, and its plot in `cascade/`
    python benchmarks/cascade.py DATA --no-relevance        # in minutes
    python benchmarks/cascade.py DATA --only routerbench    # language models with prices

Five folds by question: what stands there is of questions on which neither the model of relevance, nor a
router, nor a threshold was fitted. The gap is the way in exact match from the best single arm to the oracle
of all arms of the data; reward is F1 minus 0.02 a step. `off` is the mean error of the probability that the
picked answer is right. Of `routerbench` and `routellm` the files have no answers: a stage sees the question
alone, so that only the order of the models is learned, and both are paid where the second is asked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn
from rich.table import Table
from routing_data import DataSet, Encoder, qa, routers

from armwise.agent.lab.routers import cascade, cross_validation
from armwise.agent.lab.routers.cascade.fitted import CascadeWalk
from armwise.agent.lab.routers.cascade.validation import calibration_error, collect_costs
from armwise.agent.lab.routers.trees import PointwiseXGBoost
from armwise.arms.base import Passage
from armwise.arms.lab import relevance as relevance_training
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.relevance import features as relevance_features
from armwise.arms.relevance import model as relevance_model

Floats = NDArray[np.float64]

CACHE = Path.home() / ".armwise" / "benchmarks"
FOLDS, PRICE = 5, 0.02
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7)
PROBABILITIES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
TWO = (("none", "graph"), ("rrf",))


@dataclass
class Line:
    """What one way to answer earned on each question, NaN where it was not scored; each of shape (n,)."""

    n: int
    values: dict[str, Floats] = field(default_factory=dict)

    def add(self, held_out: NDArray[np.intp], **values: Floats) -> None:
        """Enter the questions of a fold."""
        for name, column in values.items():
            self.values.setdefault(name, np.full(self.n, np.nan))[held_out] = column


def remember_candidates() -> None:
    """Compute the features of a question and a set of arms once, whichever folds they are in."""
    compute, features = relevance_features.candidates, {}

    def remembered(question: str, passages: Mapping[str, Sequence[Passage]]) -> object:
        key = question, *((arm, *(passage.id for passage in of)) for arm, of in passages.items())
        if key not in features:
            features[key] = compute(question, passages)
        return features[key]

    relevance_model.candidates = relevance_training.candidates = remembered


def labels_of(
    outcomes: Outcomes, passages: Mapping[str, Passage], stages: Sequence[Sequence[str]]
) -> cascade.CascadeDataset:
    """Return what a cascade of these stages is fitted to."""
    arms = [arm for stage in stages for arm in stage]
    at = [outcomes.arms.index(arm) for arm in arms]
    retrieved = tuple(
        [[passages[name] for name in row[arm] or ()] for arm in at] for row in outcomes.passages
    )
    answers = tuple([row[arm] or "" for arm in at] for row in outcomes.answers)
    texts = [question.text for question in outcomes.questions]
    gold = tuple(frozenset(question.gold_ids) for question in outcomes.questions)
    features = tuple(
        cascade.stage_features(
            texts, arms[:count], [row[:count] for row in retrieved], [row[:count] for row in answers]
        )
        for count in np.cumsum([len(stage) for stage in stages])
    )
    return cascade.CascadeDataset(
        features,
        outcomes.scores["em"][:, at],
        outcomes.scores["f1"][:, at],
        PRICE * outcomes.costs["steps"][:, at],
        cascade.StageObservations(retrieved, answers, gold),
    )


def play(
    labels: cascade.CascadeDataset, walk: CascadeWalk, spec: cascade.CascadeSpec, tokens: Floats
) -> dict[str, Floats]:
    """Return what a walk earned and cost on each question."""
    row = np.arange(len(labels))
    used = np.arange(labels.right.shape[1]) < np.array(spec.counts)[walk.stage][:, None]
    spent = (labels.cost * used).sum(axis=1)
    return {
        "em": labels.right[row, walk.pick],
        "reward": labels.quality[row, walk.pick] - spent,
        "steps": spent / PRICE,
        "tokens": (tokens * used).sum(axis=1),
        "probability": walk.probability,
    }


def rules(
    outcomes: Outcomes,
    labels: cascade.CascadeDataset,
    spec: cascade.CascadeSpec,
    name: str,
    lines: dict[str, Line],
    tick: Callable[[], None],
) -> None:
    """Fit a cascade on each fold, and play every rule to stop on the rest."""
    n = len(labels)
    at = [outcomes.arms.index(arm) for arm in spec.arms]
    tokens = collect_costs(outcomes)["tokens"][:, at]
    texts = labels.features[0].texts
    last = len(spec.stages) - 1
    for training, held_out in cross_validation.folds(texts, FOLDS, 0):
        fitted, rest = labels.rows(training), labels.rows(held_out)
        made, gains = cascade.fit_cascade(spec, fitted, lambda *_: None)
        features = made.features(rest)
        limits = {f"{name}, by reward": np.zeros(last)}
        for stage in range(last + 1):
            always = np.where(np.arange(last) < stage, -np.inf, np.inf)
            limits[f"{name}, always stage {stage + 1}"] = always
        if last == 1:
            limits |= {f"{name}, share {share:g}": share_thresholds(gains, [share]) for share in SHARES}
        for what, thresholds in limits.items():
            walk = made.walk(features, thresholds)
            lines.setdefault(what, Line(n)).add(held_out, **play(rest, walk, spec, tokens[held_out]))
        if last == 1:
            first, second = (made.walk(features, np.array([limit])) for limit in (np.inf, -np.inf))
            for probability in PROBABILITIES:
                on = first.probability < probability
                walk = CascadeWalk(
                    np.where(on, 1, 0),
                    np.where(on, second.pick, first.pick),
                    np.where(on, second.probability, first.probability),
                )
                what = f"{name}, until P(right) {probability:g}"
                lines.setdefault(what, Line(n)).add(held_out, **play(rest, walk, spec, tokens[held_out]))
        tick()


def share_thresholds(gains: Sequence[Floats], shares: Sequence[float]) -> Floats:
    """Return the threshold of each stage but the last, shape (n_stages - 1,).

    Args:
        gains: Predicted gains at each of these stages, each of shape (n,).
        shares: Share of the questions that go on, at each of these stages.

    >>> share_thresholds([np.array([0.1, 0.2, 0.3, 0.4])], [0.25]).round(3).tolist()
    [0.325]
    """
    here = np.ones(len(gains[0]), dtype=bool) if gains else np.ones(0, dtype=bool)
    thresholds = []
    for gain, share in zip(gains, shares, strict=True):
        reached = gain[here]
        threshold = float(np.quantile(reached, 1.0 - share)) if share > 0.0 and len(reached) else np.inf
        thresholds.append(-np.inf if share == 1.0 else threshold)
        here &= gain > thresholds[-1]
    return np.array(thresholds)


def table_of(outcomes: Outcomes, lines: Mapping[str, Line]) -> tuple[Table, list[dict[str, object]]]:
    """Lay out the lines: as a table, and as rows of a document."""
    em = outcomes.scores["em"]
    texts = [question.text for question in outcomes.questions]
    parts = [held_out for _, held_out in cross_validation.folds(texts, FOLDS, 0)]

    def gap(values: Floats, rows: NDArray[np.intp]) -> float:
        best = em[rows].mean(axis=0).max()
        return float((values[rows].mean() - best) / (em[rows].max(axis=1).mean() - best))

    table = Table(title=f"qa, {len(texts):,} questions")
    for column in ("", "EM", "gap", "per fold", "steps", "tokens", "reward", "off"):
        table.add_column(column, justify="right" if column else "left")
    document = []
    for name, line in lines.items():
        values = line.values
        everything = gap(values["em"], np.arange(len(texts)))
        shares = [gap(values["em"], rows) for rows in parts]
        row = {key: float(values[key].mean()) for key in ("em", "steps", "tokens", "reward")}
        row |= {"gap": everything, "folds": shares}
        off = None
        if "probability" in values:
            off = row["off"] = calibration_error(values["probability"], values["em"])
        document.append({"name": name, **row})
        table.add_row(
            name,
            f"{row['em']:.4f}",
            f"{everything:.1%}",
            f"{min(shares):.1%} to {max(shares):.1%}",
            f"{row['steps']:.2f}",
            f"{row['tokens']:,.0f}",
            f"{row['reward']:.4f}",
            "" if off is None else f"{off:.3f}",
        )
    return table, document


def draw(document: Sequence[Mapping[str, object]], path: Path) -> None:
    """Plot reward against steps."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    groups: dict[str, list[Mapping[str, object]]] = {}
    for row in document:
        name = str(row["name"])
        kind = "by share of questions" if ", share" in name else "by P(right)" if "P(right)" in name else name
        prefix = name.partition(",")[0]
        groups.setdefault(f"{prefix}, {kind}" if kind.startswith("by ") else name, []).append(row)
    for name, rows in groups.items():
        x, y = ([float(row[key]) for row in rows] for key in ("steps", "reward"))
        axes.plot(x, y, marker="o" if len(rows) > 1 else "D", linewidth=1.2, markersize=4, label=name)
    axes.set(xlabel="steps a question", ylabel="reward (F1 - 0.02 a step)", title="qa: cascades")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


PAIRS = {
    "routerbench": ("zero-one-ai/Yi-34B-Chat", "gpt-4-1106-preview"),
    "routellm": ("mixtral", "gpt4"),
}
"""A cheap model and the best one, of the files that have two or more."""

LISTED = {"mixtral": 0.24, "gpt4": 24.7}
"""Dollars a million tokens, where a file has none; of RouteLLM (2024), arXiv:2406.18665."""


def models(data: DataSet, pair: tuple[str, str], tick: Callable[[], None]) -> Table:
    """Ask the cheap model, then the best one where a predictor of the question expects it to gain most."""
    outcomes = data.outcomes
    at = [outcomes.arms.index(arm) for arm in pair]
    right = outcomes.scores["em"][:, at]
    listed = np.tile([LISTED.get(arm, np.nan) for arm in pair], (len(right), 1))
    usd = 1000.0 * outcomes.costs["usd"][:, at] if "usd" in outcomes.costs else listed
    features = (data.asked.select_arms(pair[:1]), data.asked.select_arms(pair))
    labels = cascade.CascadeDataset(features, right, right, np.zeros(right.shape))
    spec = cascade.CascadeSpec(stages=tuple((arm,) for arm in pair))
    answers = partial(PointwiseXGBoost, stage="question", centre=False)
    gain = partial(PointwiseXGBoost, centre=False)
    asks_second = {share: np.zeros(len(right), dtype=bool) for share in SHARES}
    for training, held_out in cross_validation.folds(features[0].texts, FOLDS, 0):
        made, gains = cascade.fit_cascade(spec, labels.rows(training), lambda *_: None, answers, gain)
        rest = [arm_features.rows(held_out) for arm_features in features]
        for share, column in asks_second.items():
            column[held_out] = made.walk(rest, share_thresholds(gains, [share])).stage == 1
        tick()
    unit = "dollars per 1,000" if "usd" in outcomes.costs else "dollars a million tokens"
    table = Table(title=f"{data.name}, {len(right):,} questions: {pair[0]}, then {pair[1]}; {unit}")
    for column in ("second asked", "right", "of a random share", "cascade pays", "router pays"):
        table.add_column(column, justify="right")
    cheap, best = right.mean(axis=0)
    table.add_row("never", f"{cheap:.4f}", "", f"{usd[:, 0].mean():.3f}", f"{usd[:, 0].mean():.3f}")
    for on in asks_second.values():
        share = float(on.mean())
        table.add_row(
            f"{share:.1%}",
            f"{np.where(on, right[:, 1], right[:, 0]).mean():.4f}",
            f"{cheap + share * (best - cheap):.4f}",
            f"{(usd[:, 0] + on * usd[:, 1]).mean():.3f}",
            f"{np.where(on, usd[:, 1], usd[:, 0]).mean():.3f}",
        )
    table.add_row("always", f"{best:.4f}", "", f"{usd.sum(axis=1).mean():.3f}", f"{usd[:, 1].mean():.3f}")
    wrong = right[:, 0] < right[:, 1]
    oracle_usd = (usd[:, 0] + wrong * usd[:, 1]).mean()
    table.add_row(
        f"{wrong.mean():.1%}, by an oracle", f"{right.max(axis=1).mean():.4f}", "", f"{oracle_usd:.3f}", ""
    )
    return table


def main(
    data: Path,
    only: Annotated[list[str] | None, typer.Option(help="qa, routerbench or routellm.")] = None,
    relevance: Annotated[bool, typer.Option(help="Also with predicted relevance.")] = True,
    output: Annotated[Path, typer.Option(help="Folder of the plot.")] = Path("cascade"),
    cache: Annotated[Path, typer.Option(help="Folder of vectors.")] = CACHE,
) -> None:
    """Print the tables, and draw the plot of qa."""
    remember_candidates()
    columns = (SpinnerColumn(), "{task.description}", MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(width=120)
    with Progress(*columns, console=Console(stderr=True)) as progress:

        def ticking(what: str, times: int) -> Callable[[], None]:
            task = progress.add_task(what, total=times)
            return lambda: progress.advance(task)

        encode = Encoder(cache, progress)
        for name in only or ["qa", *PAIRS]:
            if name == "qa":
                document = _of_qa(qa(data / "qa", encode, None), relevance, ticking, console)
                output.mkdir(parents=True, exist_ok=True)
                (output / "qa.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
                draw(document, output / "qa.png")
            else:
                console.print(models(routers(data, name, encode, 2000), PAIRS[name], ticking(name, FOLDS)))


def _of_qa(
    data: DataSet, relevance: bool, ticking: Callable[[str, int], Callable[[], None]], console: Console
) -> list[dict[str, object]]:
    outcomes = data.outcomes
    passages = {name: passage for name, (passage, _) in data.passages.items()}
    tokens, n = collect_costs(outcomes)["tokens"], len(outcomes.questions)
    lines: dict[str, Line] = {}
    for arm in ("graph", "rrf"):
        at = outcomes.arms.index(arm)
        spent = PRICE * outcomes.costs["steps"][:, at]
        lines[arm] = Line(n)
        lines[arm].add(
            np.arange(n),
            em=outcomes.scores["em"][:, at],
            reward=outcomes.scores["f1"][:, at] - spent,
            steps=spent / PRICE,
            tokens=tokens[:, at],
        )
    labels = labels_of(outcomes, passages, TWO)
    for learned, name in ((False, "words"), (True, "words and relevance"))[: 1 + relevance]:
        spec = cascade.CascadeSpec(stages=TWO, relevance=learned)
        rules(outcomes, labels, spec, name, lines, ticking(name, FOLDS))
        table, document = table_of(outcomes, lines)
        console.print(table)
    return document


if __name__ == "__main__":
    typer.run(main)
