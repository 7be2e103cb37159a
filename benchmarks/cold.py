"""Policies that start from nothing, beside the best fixed arm, in nine settings.

    python benchmarks/cold.py DATA               # what starts cold
    python benchmarks/cold.py DATA --warm        # with 1,000 labels learned as decisions first
    python benchmarks/cold.py DATA --prior       # with a router of 1,000 labels as the prior

DATA holds `qa/`; for `--prior` also the other folders of `routing_data.py`, each a further setting. No vector
is needed: a policy sees the form of a question and the description of each arm, as in the default service.
Rewards are a score of the drawn arm, F1 and EM net of 0.02 and recall net of 0.05 a step. A cell is the mean
reward in five orders of up to 3,000 questions less that of the arm that is best in hindsight: over the first
300 questions, over all, and over the last third. With `--prior` it is over the first 300, 600, 1,500 and
3,000, beside the least that is allowed: .003 below what the floor costs.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import track
from rich.table import Table
from routing_data import RETRIEVERS, DataSet, Encoder, Vectors, mba, qa_outcomes, routers
from routing_offline import ASKED, REPEATS
from routing_online import CALIBRATED, COLD, LABELLED, VW, Feedback, Player, learn_online, policy
from typing_extensions import override

from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.retrievers import catalog

Floats = NDArray[np.float64]

FOUR = ("none", "bm25", "minilm", "rrf")
"""The kinds of the default service."""

HOPS = ("2wikimultihopqa", "hotpotqa", "musique")
"""Questions that need several passages: with a shift, they come before the others."""

CANDIDATES: Mapping[str, Player] = {
    "VW SquareCB": COLD["VW SquareCB"],
    "VW synthetic cover": COLD["VW synthetic cover"],
    "epsilon-greedy": COLD["epsilon-greedy"],
    "Thompson": COLD["Thompson"],
    "LinUCB, ridge 10": policy("linucb", ridge=10.0),
    "LinUCB": COLD["LinUCB"],
    "LinUCB, ridge 300": policy("linucb", ridge=300.0),
    "LinUCB, disjoint": COLD["LinUCB, disjoint"],
}
"""By name; `LinUCB` has ridge 100, `VW SquareCB` the default arguments of `vowpal`."""

SQUARECB = f"{VW} --squarecb --clip_p 1 -q sa -q ea"

AVERAGING = policy("vowpal", args=f"{SQUARECB} --gamma_scale 20 --learning_rate 0.5 --power_t 1")

GREEDY = policy("vowpal", args=f"{SQUARECB} --gamma_scale 100 --learning_rate 0.5 --power_t 1")

WARMED: Mapping[str, Player] = {
    "VW SquareCB": replace(COLD["VW SquareCB"], labels=True),
    "VW SquareCB, power_t 1": replace(AVERAGING, labels=True),
    "VW SquareCB, power_t 1, gamma_scale 100": replace(GREEDY, labels=True),
    "Thompson": replace(COLD["Thompson"], labels=True),
    "LinUCB": replace(COLD["LinUCB"], labels=True),
}
"""Those that learn labels first."""

PRIOR: Mapping[str, Player] = {
    "adaptive, warm": replace(policy("adaptive"), router=CALIBRATED),
    "adaptive, cold": policy("adaptive"),
    "LinUCB on the router": replace(policy("linucb", prior_feature="router"), router=CALIBRATED),
}
"""The default policy with and without the scores of a router, and LinUCB with them."""

UNTIL = (300, 600, 1500, 3000)

SLACK = 0.003
"""How far the lead may be below what the floor costs."""


@dataclass(frozen=True)
class Setting:
    """A problem: what a reward is, which arms there are, and how rewards come back.

    Attributes:
        name: Of the column.
        score: What a reward is made of.
        arms: Those to choose among; None for all.
        feedback: When and how often a reward is learned.
        shifts: Whether the questions of several hops come first.
        corpus: Where the questions are from.
    """

    name: str
    score: str = "f1"
    arms: tuple[str, ...] | None = None
    feedback: Feedback = field(default_factory=Feedback)
    shifts: bool = False
    corpus: str = "qa"


SETTINGS = (
    Setting("11 arms, F1"),
    Setting("EM", "em"),
    Setting("recall", "recall"),
    Setting("F1, delay 100", feedback=Feedback(delay=100)),
    Setting("F1, 20 % feedback", feedback=Feedback(share=0.2)),
    Setting("F1, a shift", shifts=True),
    Setting("4 arms, F1", arms=FOUR),
    Setting("4 arms, EM", "em", FOUR),
    Setting("4 arms, recall", "recall", FOUR),
)


FURTHER = (
    Setting("MBA-RAG", "em", corpus="mba"),
    Setting("RouterBench", "em", corpus="routerbench"),
    Setting("RouterDC", "em", corpus="routerdc"),
    Setting("RouteLLM", "em", corpus="routellm"),
)
"""Other corpora: steps of retrieval, and language models."""


@cache
def outcomes_of(folder: Path, arms: tuple[str, ...] | None) -> Outcomes:
    """Return the outcomes of some arms, read once a worker."""
    every = qa_outcomes(folder)
    at = [every.arms.index(arm) for arm in arms or every.arms]
    cut = {
        name: {key: column[:, at] for key, column in getattr(every, name).items()}
        for name in ("scores", "costs")
    }
    rows = {
        name: tuple(tuple(row[arm] for arm in at) for row in getattr(every, name))
        for name in ("passages", "answers")
    }
    return replace(every, arms=tuple(every.arms[arm] for arm in at), **cut, **rows)


class Unencoded(Encoder):
    """Returns vectors without a column."""

    def __init__(self) -> None:
        pass

    @override
    def __call__(self, name: str, texts: Sequence[str], *, passages: bool = False) -> Vectors:
        return np.zeros((len(texts), 0), dtype=np.float32)


@lru_cache(maxsize=1)
def problem(folder: Path, setting: Setting) -> tuple[DataSet, Floats]:
    """Return the questions of a setting and the reward of each arm."""
    if setting.corpus == "mba":
        data = mba(folder, Unencoded())
    elif setting.corpus != "qa":
        data = routers(folder, setting.corpus, Unencoded(), LABELLED + ASKED)
    else:
        outcomes = outcomes_of(folder / "qa", setting.arms)
        about = {arm: catalog.arm_features(arm, RETRIEVERS[arm]) for arm in outcomes.arms}
        vectors = np.zeros((len(outcomes.questions), 0), dtype=np.float32)
        weight = 0.05 if setting.score == "recall" else 0.02
        data = DataSet("qa", outcomes, vectors, {}, about, cost=("steps", weight))
    name, weight = data.cost
    quality = data.outcomes.scores[setting.score]
    return data, quality - weight * data.outcomes.costs[name] if weight else quality


def lead(task: tuple[Path, Setting, Player, int]) -> tuple[Floats, float]:
    """Return the lead of a policy over the best fixed arm, turn by turn, and what the floor costs."""
    folder, setting, player, order = task
    data, reward = problem(folder, setting)
    feedback = setting.feedback
    if setting.shifts:
        hops = np.array([question.dataset in HOPS for question in data.outcomes.questions])
        feedback = replace(feedback, first=hops)
    curve = learn_online(player, data, reward, order, ASKED, feedback)
    earned = reward[curve.asked].mean(axis=0)
    return curve.lead(reward), player.floor * float((earned.max() - earned).sum())


def main(
    folder: Annotated[Path, typer.Argument(help="Holds qa/.")],
    *,
    warm: Annotated[bool, typer.Option(help="Give labels to learn first.")] = False,
    prior: Annotated[bool, typer.Option(help="Give the scores of a router.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = len(os.sched_getaffinity(0)),
) -> None:
    """Print a table of leads over the best fixed arm."""
    players = PRIOR if prior else WARMED if warm else CANDIDATES
    settings = (
        [*SETTINGS, *FURTHER]
        if prior
        else [setting for setting in SETTINGS if not warm or setting.score == "f1"]
    )
    tasks = [
        (folder, setting, player, order)
        for setting, player, order in product(settings, players.values(), range(REPEATS))
    ]
    os.environ["OMP_NUM_THREADS"] = "1"  # for workers, one a core
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        done = list(track(pool.map(lead, tasks), "policies", len(tasks)))
    leads = [curve for curve, _ in done]
    console = Console(width=170)
    if prior:
        print_prior(console, settings, leads, np.array([cost for _, cost in done]))
        return
    first = _by_player([curve[:300].mean() for curve in leads], settings)
    whole = _by_player([curve.mean() for curve in leads], settings)
    last = _by_player([curve[-(len(curve) // 3) :].mean() for curve in leads], settings)
    for title, means in (("first 300", first), ("whole run", whole), ("last third", last)):
        table = Table("policy", *(setting.name for setting in settings), "mean", title=title, box=MARKDOWN)
        for name, row in zip(players, means, strict=True):
            table.add_row(name, *(f"{mean:+.4f}" for mean in (*row.mean(axis=1), row.mean())))
        console.print(table)


def _by_player(means: Sequence[float], settings: Sequence[Setting]) -> Floats:
    """Return means by player, setting and order."""
    return np.array(means).reshape(len(settings), -1, REPEATS).swapaxes(0, 1)


def print_prior(
    console: Console, settings: Sequence[Setting], leads: Sequence[Floats], costs: Floats
) -> None:
    """Print the leads until each question, which of them are too low, and where cold is better than warm."""
    means = [_by_player([curve[:until].mean() for curve in leads], settings) for until in UNTIL]
    until = np.stack(means, axis=2)  # player, setting, until, order
    least = -_by_player(costs.tolist(), settings)[..., None, :] - SLACK
    for name, player_leads, bound in zip(PRIOR, until, least, strict=True):
        table = Table("setting", *(f"{n:,}" for n in UNTIL), "least", "too low", title=name, box=MARKDOWN)
        for setting, row, limit in zip(settings, player_leads, bound, strict=True):
            cells = [f"{mean:+.4f}" for mean in row.mean(axis=1)]
            table.add_row(
                setting.name, *cells, f"{limit.mean():+.4f}", f"{(row < limit).sum()} of {row.size}"
            )
        console.print(table)
    table = Table("policy", "cells too low", "runs too low", title="means of five orders, and single ones")
    table.box = MARKDOWN
    for name, player_leads, bound in zip(PRIOR, until, least, strict=True):
        low, each = player_leads.mean(axis=2) < bound.mean(axis=2), player_leads < bound
        table.add_row(name, f"{low.sum()} of {low.size}", f"{each.sum()} of {each.size}")
    console.print(table)
    warm, cold, _ = until
    better, each = cold.mean(axis=2) > warm.mean(axis=2), cold > warm
    console.print(
        f"cold is better than warm in {better.sum()} of {better.size} cells, "
        f"and in {each.sum()} of {each.size} runs"
    )


if __name__ == "__main__":
    typer.run(main)
