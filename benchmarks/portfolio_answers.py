"""The answers of a portfolio: a router ranks its members, the first few answer, and a vote selects.

    python benchmarks/portfolio_answers.py FOLDER

FOLDER has `queries.jsonl.gz` and `outcomes.jsonl.gz`: what every arm answered to every question. Everything
is chosen on four folds of the questions and scored on the fifth, in turn: the portfolio (greedy, by
`--score`), the router (fitted to the same score of its members) and the best single arm (by exact match).
Differences are paired by question, with percentile intervals of 95 % over resampled questions.
The fixed order is that in which the members were picked, without a router. `any` is the share of questions
to which one of the members that ran was right: what a perfect selector would reach. `corpus.jsonl.gz` tells
how many tokens of a model a word is.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from routing_data import ENCODER, DataSet, Encoder, json_lines, qa_outcomes
from routing_offline import splits, tokens_of
from tokenizers import Tokenizer

from armwise.agent.routers import RouterSpec, RoutingDataset, build_router
from armwise.arms.lab.portfolio import greedy
from armwise.arms.models import locate
from armwise.arms.more.generative.ensemble import vote
from armwise.arms.tokenizer import count_words

Floats = NDArray[np.float64]

RESAMPLES = 2000
SEED = 7
ROUTERS: dict[str, dict[str, Any]] = {
    "our loss": {"loss": "any"},
    "published loss": {"loss": "mean"},
}
"""Parameters of the contrastive router."""


def interval(lead: Floats) -> str:
    """Return the mean of a difference on each question, and its interval of 95 %."""
    rng = np.random.default_rng(SEED)
    means = [lead[rng.integers(len(lead), size=len(lead))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{lead.mean():+.4f} ({low:+.4f} to {high:+.4f})"


class Played:
    """What a way to answer earned and cost on each question."""

    def __init__(self, data: DataSet) -> None:
        outcomes, n = data.outcomes, len(data.outcomes.questions)
        tokens = tokens_of(outcomes)
        assert tokens is not None
        self._answers, self._scores = outcomes.answers, (outcomes.scores["em"], outcomes.scores["f1"])
        self._costs = (outcomes.costs["llm_calls"], tokens)
        self.earned, self.spent, self.any = np.zeros((2, n)), np.zeros((2, n)), np.zeros(n)

    def play(self, question: int, members: list[int]) -> None:
        """Answer a question by a vote of some arms, the earlier of which decide ties."""
        picked = members[vote([self._answers[question][member] or "" for member in members])]
        self.earned[:, question] = [score[question, picked] for score in self._scores]
        self.any[question] = self._scores[0][question, members].max()
        self.spent[:, question] = [cost[question, members].sum() for cost in self._costs]


def play(data: DataSet, k: int, score: str) -> tuple[Played, dict[tuple[str, int], Played], list[str]]:
    """Choose and fit on four folds, and answer the fifth.

    Returns:
        The best single arm, every router with every number of members, and lines about them.
    """
    outcomes = data.outcomes
    scores, right = np.nan_to_num(outcomes.scores[score]), outcomes.scores["em"]
    best, played = Played(data), dict[tuple[str, int], Played]()
    rises, lines = dict.fromkeys(ROUTERS, 0.0), list[str]()
    for fit in splits(data):
        kept = np.flatnonzero(~fit).tolist()
        chosen = greedy(np.ascontiguousarray(scores[fit].T, dtype=np.float32), k).arms
        members = tuple(outcomes.arms[arm] for arm in chosen)
        single = int(right[fit].mean(axis=0).argmax())
        lines.append(f"portfolio: {', '.join(members)}; best single arm: {outcomes.arms[single]}")
        orders = {"fixed order": np.tile(np.arange(k), (len(kept), 1))}
        features = data.asked.select_arms(members)
        for name, params in ROUTERS.items():
            router = build_router(RouterSpec(kind="contrastive", params=params))
            router.fit(RoutingDataset(features.rows(fit), scores[fit][:, list(chosen)]))
            orders[name] = np.argsort(-router.scores(features.rows(~fit)), axis=1, kind="stable")
            first = scores[kept, np.array(chosen)[orders[name][:, 0]]]
            rises[name] += float((first - scores[kept, single]).sum()) / len(scores)
        for row, question in enumerate(kept):
            best.play(question, [single])
            for name, ranked in orders.items():
                for n in range(1, k + 1):
                    way = played.setdefault((name, n), Played(data))
                    way.play(question, [chosen[at] for at in ranked[row, :n]])
    lines += [f"{score} of the first member, {name}: {rise:+.4f}" for name, rise in rises.items()]
    return best, played, lines


def count_tokens(folder: Path) -> str:
    """Return a line on the tokens of MiniLM in a word of the passages, as the length of a chunk counts it."""
    tokenizer = Tokenizer.from_file(f"{locate(ENCODER.model)}/tokenizer.json")
    tokenizer.no_truncation()
    texts = [passage["text"] for passage in json_lines(folder / "corpus.jsonl.gz")]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    rate = sum(len(each.ids) for each in encoded) / sum(map(count_words, texts))
    return f"{rate:.2f} tokens per word in {len(texts):,} passages"


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of questions and outcomes.")],
    k: Annotated[int, typer.Option("-k", help="Members of the portfolio.", min=3)] = 4,
    score: Annotated[str, typer.Option(help="Score of the portfolio and of the router's labels.")] = "recall",
    cache: Annotated[Path, typer.Option(help="Folder of the vectors of questions.")] = Path("routing/cache"),
) -> None:
    """Play every number of members, and print two tables."""
    outcomes = qa_outcomes(folder)
    with Progress(transient=True) as progress:
        vectors = Encoder(cache, progress)("questions", [question.text for question in outcomes.questions])
    best, played, lines = play(DataSet("qa", outcomes, vectors, {}, {}), k, score)
    table = Table(title=f"Portfolio of {k} by {score}, {len(vectors):,} questions", title_justify="left")
    for column in ("", "run", "EM", "F1", "EM above best single (95 %)", "any", "calls", "tokens"):
        table.add_column(column, justify="left" if not column else "right")
    for (name, n), way in {("best single arm", 1): best, **played}.items():
        (em, f1), (calls, tokens) = way.earned, way.spent.mean(axis=1)
        lead = "" if way is best else interval(em - best.earned[0])
        means = (f"{em.mean():.4f}", f"{f1.mean():.4f}", lead, f"{way.any.mean():.4f}")
        table.add_row(name, str(n), *means, f"{calls:.2f}", f"{tokens:.0f}")
    by_set = Table("", "questions", "best single", "our loss, 3", "above (95 %)", title="EM by data set")
    groups = np.array([question.dataset for question in outcomes.questions])
    for group in np.unique(groups):
        base, routed = (way.earned[0][groups == group] for way in (best, played["our loss", 3]))
        by_set.add_row(
            group, f"{len(base):,}", f"{base.mean():.4f}", f"{routed.mean():.4f}", interval(routed - base)
        )
    console = Console(width=110)
    console.print(table, by_set)
    for one, other in (("published loss", "fixed order"), ("our loss", "fixed order"), ROUTERS):
        for n in (1, 3):
            lead = played[one, n].earned[0] - played[other, n].earned[0]
            lines.append(f"EM with {n} run, {one} above {other}: {interval(lead)}")
    for line in (*lines, count_tokens(folder)):
        console.print(line)


if __name__ == "__main__":
    typer.run(main)
