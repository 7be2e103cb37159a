"""Policies that start from nothing, beside the best fixed arm, in nine settings.

    python benchmarks/cold.py DATA               # what starts cold
    python benchmarks/cold.py DATA --warm        # with 1,000 labels learned as decisions first

DATA holds `qa/`. No vector is needed: a policy sees the form of a question and the description of each arm,
as in the default service. Rewards are a score of the drawn arm, F1 and EM net of 0.02 and recall net of 0.05
a step. A cell is the mean reward in five orders of up to 3,000 questions less that of the arm that is best in
hindsight: over the first 300 questions, over all, and over the last third.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
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
from routing_data import RETRIEVERS, DataSet, qa_outcomes
from routing_offline import ASKED, REPEATS
from routing_online import COLD, VW, Feedback, Player, learn_online, policy

from arms.portfolio import Outcomes
from arms.retrievers import catalog

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


@dataclass(frozen=True)
class Setting:
    """A problem: what a reward is, which arms there are, and how rewards come back.

    Attributes:
        name: Of the column.
        score: What a reward is made of.
        arms: Those to choose among; None for all.
        feedback: When and how often a reward is learned.
        shifts: Whether the questions of several hops come first.
    """

    name: str
    score: str = "f1"
    arms: tuple[str, ...] | None = None
    feedback: Feedback = field(default_factory=Feedback)
    shifts: bool = False


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


def lead(task: tuple[Path, Setting, Player, int]) -> Floats:
    """Return the lead of a policy over the best fixed arm, turn by turn, in one order."""
    folder, setting, player, order = task
    outcomes = outcomes_of(folder / "qa", setting.arms)
    about = {arm: catalog.arm_features(arm, RETRIEVERS[arm]) for arm in outcomes.arms}
    n = len(outcomes.questions)
    data = DataSet("qa", outcomes, np.zeros((n, 0), dtype=np.float32), {}, about)
    reward = (
        outcomes.scores[setting.score]
        - (0.05 if setting.score == "recall" else 0.02) * outcomes.costs["steps"]
    )
    feedback = setting.feedback
    if setting.shifts:
        feedback = replace(feedback, first=np.array([one.dataset in HOPS for one in outcomes.questions]))
    return learn_online(player, data, reward, order, ASKED, feedback).lead(reward)


def main(
    folder: Annotated[Path, typer.Argument(help="Holds qa/.")],
    *,
    warm: Annotated[bool, typer.Option(help="Give labels to learn first.")] = False,
) -> None:
    """Print a table of leads over the best fixed arm."""
    players = WARMED if warm else CANDIDATES
    settings = [one for one in SETTINGS if not warm or one.score == "f1"]
    tasks = [
        (folder, setting, player, order)
        for player, setting, order in product(players.values(), settings, range(REPEATS))
    ]
    os.environ["OMP_NUM_THREADS"] = "1"  # for workers, one a core
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        done = list(track(pool.map(lead, tasks), "policies", len(tasks)))
    first = np.array([one[:300].mean() for one in done]).reshape(len(players), len(settings), REPEATS)
    whole = np.array([one.mean() for one in done]).reshape(first.shape)
    last = np.array([one[-(len(one) // 3) :].mean() for one in done]).reshape(first.shape)
    console = Console(width=170)
    for title, leads in (("first 300", first), ("whole run", whole), ("last third", last)):
        table = Table("policy", *(setting.name for setting in settings), "mean", title=title, box=MARKDOWN)
        for name, row in zip(players, leads, strict=True):
            table.add_row(name, *(f"{mean:+.4f}" for mean in (*row.mean(axis=1), row.mean())))
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
