"""The first hour of a newcomer: a router of made questions only, then real ones, each with one reward.

    python benchmarks/first_hour.py DATA --config CONFIG -o FOLDER --plot first_hour.png

CONFIG names a corpus of the passages of DATA/qa and arms by the names of its outcomes; an arm that it lacks
has the labels of its stand-in. Questions are made from the corpus by rules and scored by recall. Their
weights bring the lexical and the dense arms on a par. A router is fitted to a
sample by weight, and its scores are drawn towards the mean of each arm as far as pays on styles that were
left out of the fit. No label of a real question is used. Then policies answer real questions in five orders.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
import typer
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from routing_data import RETRIEVERS, DataSet, Encoder, embedder, qa
from routing_online import CALIBRATED, FORM

from armwise.agent.config import AppConfig, load
from armwise.agent.lab.offline import Synthesis, make_questions, open_corpus, read_questions
from armwise.agent.lab.offline.balancing import balance, sample
from armwise.agent.lab.routers import open_selector
from armwise.agent.policies import (
    PolicySpec,
    build_policy,
    choose,
    compute_served_distribution,
    describe,
    sampling,
)
from armwise.agent.routers import Features, RoutingDataset, build_router
from armwise.agent.routers import features as router_features
from armwise.arms.lab.jobs import ScoreJob
from armwise.arms.lab.jobs.score_job import ScoreWorker
from armwise.arms.lab.scoring import RetrievalScorer
from armwise.feedback.events import Decision
from armwise.feedback.ope.sample import effective_size

Floats = NDArray[np.float64]

ORDERS, ASKED, FIRST, FLOOR, STEP = 5, 3000, 300, 0.001, 0.02

STAND_INS = {"mpnet": "minilm", "multi": "rrf"}
"""Whose labels an arm has that CONFIG lacks: another encoder, and no language model."""

DEFAULT_FOUR = ("none", "bm25", "minilm", "rrf")

SHARES = (0.0, 0.1, 0.25, 0.5, 1.0)
"""How much of a router's differences between questions is kept."""

POLICIES: Mapping[str, PolicySpec] = {
    "LinUCB, cold": PolicySpec(kind="linucb", params={"ridge": 100.0}),
    "made labels as they are": PolicySpec(kind="routed", params={"epsilon": 0.0}),
    "balanced": PolicySpec(kind="routed", params={"epsilon": 0.0}),
    "balanced and shrunk": PolicySpec(kind="routed", params={"epsilon": 0.0}),
    "LinUCB from balanced and shrunk": PolicySpec(kind="linucb", params={"prior_feature": "router"}),
    "adaptive from balanced and shrunk": PolicySpec(kind="adaptive"),
}


class Made:
    """Made questions, their scores by arm, and a router of them.

    Args:
        config: The corpus and the arms.
        folder: Where questions and scores are, or will be.
        n: Questions to make.
        console: Where the report of the synthesis goes.
    """

    def __init__(self, config: AppConfig, folder: Path, n: int, console: Console) -> None:
        path, scores = folder / "made.jsonl", folder / "scores.npy"
        if not path.exists():
            made = Synthesis(config=config, output=path, questions=n, with_model=False)
            make_questions(made, console, lambda *_: None)
        questions = read_questions(path)
        if not scores.exists():
            scorer = RetrievalScorer("R@4", 4)
            job = ScoreJob(
                questions=tuple(questions),
                corpus=open_corpus(config, None, lambda *_: None),
                indexes=config.indexes_path,
                specs=config.arms,
                backbones=config.backbones,
                scorer=lambda _: scorer,
                open_selector=open_selector,
            )
            job.prepare(lambda *_: None)
            worker = ScoreWorker(job)
            np.save(scores, np.vstack([worker.block(number).scores for number in range(job.n_blocks)]))
        self.columns = {arm: np.load(scores)[:, at].astype(float) for at, arm in enumerate(config.arms)}
        self.texts = [question.text for question in questions]
        self.styles = np.array([orjson.loads(line)["type"] for line in path.read_bytes().splitlines()])
        self.vectors = embedder().encode_queries(self.texts)
        even = np.ones(len(questions))
        self.weights = balance(even, self.columns["bm25"], self.columns["minilm"])

    def utility(self, arms: Sequence[str]) -> Floats:
        """Return recall less the price of the steps, shape (n_questions, n_arms)."""
        steps = [0.0 if RETRIEVERS[arm].kind == "none" else 1.0 + 0.35 * (arm == "multi") for arm in arms]
        columns = [self.columns[arm if arm in self.columns else STAND_INS[arm]] for arm in arms]
        return np.stack(columns, axis=1) - STEP * np.array(steps)

    def features(self, arms: Sequence[str], rows: NDArray[np.intp]) -> Features:
        """Return what a router sees of some of the questions."""
        texts = [self.texts[row] for row in rows]
        table = router_features.build_question_table(texts)
        return Features(tuple(arms), tuple(texts), router_features.QUESTION, table, self.vectors[rows])

    def sample(self, among: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return a sample of some questions by weight."""
        weights = self.weights * among
        return sample(weights, round(effective_size(weights)), 0)

    def scores(self, asked: Features, *, balanced: bool = True, share: float = 1.0) -> Floats:
        """Return what a router of these questions expects of each arm on others."""
        everything = np.ones(len(self.texts), dtype=bool)
        rows = self.sample(everything) if balanced else np.arange(len(self.texts))
        return self._fitted(asked, rows, share)

    def best_share(self, arms: Sequence[str]) -> float:
        """Return the share of the differences between questions that pays on styles left out of the fit."""
        earned = dict.fromkeys(SHARES, 0.0)
        utility = self.utility(arms)
        for style in np.unique(self.styles):
            fit, held_out = (self.sample(self.styles != style), self.sample(self.styles == style))
            scores = self._fitted(self.features(arms, held_out), fit, 1.0)
            mean = utility[fit].mean(axis=0)
            for share in SHARES:
                drawn = (mean + share * (scores - mean)).argmax(axis=1)
                earned[share] += float(utility[held_out, drawn].mean())
        return max(SHARES, key=earned.__getitem__)

    def _fitted(self, features: Features, rows: NDArray[np.intp], share: float) -> Floats:
        utility = self.utility(features.arms)[rows]
        router = build_router(CALIBRATED).fit(RoutingDataset(self.features(features.arms, rows), utility))
        mean = utility.mean(axis=0)
        return np.asarray(mean + share * (router.scores(features) - mean))


def play(
    spec: PolicySpec, data: DataSet, arms: tuple[str, ...], reward: Floats, scores: Floats, order: int
) -> Floats:
    """Return the expected reward of each turn less that of the best fixed arm, shape (n_asked,).

    Args:
        spec: The policy.
        data: The real questions.
        arms: To choose among.
        reward: Of these arms, shape (n_questions, n_arms).
        scores: Of a router, which are a feature of each arm; same shape.
        order: Seed of the order.
    """
    policy = build_policy(spec, arms)
    rows = np.random.default_rng(order).permutation(len(reward))[:ASKED]
    earned = np.empty(len(rows))
    for turn, row in enumerate(rows.tolist()):
        told = {arm: {**data.about[arm], "router": float(scores[row, at])} for at, arm in enumerate(arms)}
        context = describe(data.outcomes.questions[row].text, FORM, embedding=None, arms=told)
        p = compute_served_distribution(policy, context, arms, FLOOR)
        name = f"{order}/{turn}"
        drawn = choose(p, sampling.uniform_from(name, "first hour"))
        decision = Decision(name, context, arms, tuple(p.tolist()), arms[drawn], policy.kind, turn)
        policy.learn(decision, float(reward[row, drawn]))
        earned[turn] = (p * reward[row]).sum()
    return np.asarray(earned - reward[rows][:, reward[rows].mean(axis=0).argmax()])


def main(
    folder: Annotated[Path, typer.Argument(help="Holds qa/.")],
    config: Annotated[Path, typer.Option(help="Corpus and arms, a Ray Serve configuration file.")],
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("first_hour"),
    plot: Annotated[Path | None, typer.Option(help="Where the plot goes.")] = None,
    questions: Annotated[int, typer.Option(help="Questions to make.")] = 1000,
    cache: Annotated[Path, typer.Option(help="Keeps vectors.")] = Path("~/.armwise/benchmarks"),
) -> None:
    """Print what policies earn on real questions, in the first 300 and over 3,000 turns."""
    os.environ["OMP_NUM_THREADS"] = "1"
    console = Console(width=130)
    output.mkdir(parents=True, exist_ok=True)
    with Progress(console=console) as progress:
        data = qa(folder / "qa", Encoder(cache.expanduser(), progress), None)
    made = Made(load(config).resolve_places(), output, questions, console)
    for name, weights in (("as they are", np.ones(len(made.texts))), ("balanced", made.weights)):
        means = {arm: float((weights * column).mean()) for arm, column in made.columns.items()}
        size = effective_size(weights)
        shown = ", ".join(f"{arm} {mean:.3f}" for arm, mean in means.items())
        console.print(f"recall on made questions, {name} ({size:,.0f}): {shown}", highlight=False)
    title = f"reward less that of the best fixed arm, {ORDERS} orders of {ASKED:,} real questions"
    table = Table("arms", "reward", "policy", "first 300", "above", "all 3,000", "above", title=title)
    figure = Figure(figsize=(11, 7), dpi=130, layout="constrained")
    panels = iter(figure.subplots(2, 2, sharex=True).flatten())
    for arms in (data.outcomes.arms, DEFAULT_FOUR):
        features, at = data.asked.select_arms(arms), [data.outcomes.arms.index(arm) for arm in arms]
        share = made.best_share(arms)
        console.print(f"{len(arms)} arms: {share:.0%} of a router's differences between questions are kept")
        zeros = np.zeros((len(features.texts), len(arms)))
        shrunk = made.scores(features, share=share)
        scores = (zeros, made.scores(features, balanced=False), made.scores(features), shrunk, shrunk, shrunk)
        for measure in ("recall", "f1"):
            reward = data.outcomes.scores[measure] - STEP * data.outcomes.costs["steps"]
            axes = next(panels)
            axes.set_title(f"{len(arms)} arms, {measure} less {STEP} a step", loc="left")
            axes.axhline(0.0, color="#22303c", linewidth=0.8)
            for (name, spec), router_scores in zip(POLICIES.items(), scores, strict=True):
                leads = [
                    play(spec, data, arms, reward[:, at], router_scores, order) for order in range(ORDERS)
                ]
                first, whole = [curve[:FIRST].mean() for curve in leads], [curve.mean() for curve in leads]
                cells = [
                    cell
                    for some in (first, whole)
                    for cell in (f"{np.mean(some):+.4f}", f"{sum(curve >= 0 for curve in some)} of {ORDERS}")
                ]
                table.add_row(f"{len(arms)}", measure, name, *cells)
                axes.plot(np.cumsum(np.mean(leads, axis=0)), label=name, linewidth=1.2)
    console.print(table)
    axes.legend(frameon=False, fontsize=8)
    figure.supxlabel("real questions")
    figure.supylabel("summed reward less that of the best fixed arm")
    if plot is not None:
        figure.savefig(plot)


if __name__ == "__main__":
    typer.run(main)
