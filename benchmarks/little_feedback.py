"""What learning loses where feedback is rare, late or wrong, and what observations of a judge give back.

    python benchmarks/little_feedback.py FOLDER [--seeds 8] [--only adaptive] [--worlds calm,swap] [--further]

FOLDER holds `qa/`. The worlds, orders and draws are those of `learners.py`, with feedback on a share of the
3,000 turns; with `--further` also 100 turns late, or with one value in ten or four in ten turned around. A
judge grades every answer, or compares a second one in 30 % of the turns that have feedback; what is learned
of that is calibrated and believed as a service does by default, at the first reward that comes after.

The plain judge knows no right answer. Its grade, in tenths, is how much of the answer (token F1) seven other
arms say, too. The better one grades by .3 + .6 F1 with an error of standard deviation .3. The first table has
how well both agree with F1. A figure is 1,000 times the mean over all turns, with its standard error over the
orders; losses and gains are paired by order.
"""

import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations, product
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from learners import OURS, Ours
from learners_worlds import ASKED, FOUR, HALF, LABELLED, World, worlds
from numpy.typing import NDArray
from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import track
from rich.table import Table
from routing_data import qa_outcomes

from armwise.feedback.answer_metrics import token_f1
from armwise.feedback.events import LABELS, Decision
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log.observed import WINDOW, Also, Calibration, move_metrics

Floats = NDArray[np.float64]

RULE = RewardRule(metrics={"f1": Metric()})

ALSO = Also(shadow=1.0, judge=True)

COMPARED = 0.3
"""Share of the turns that a second arm answers."""

PLAIN, BETTER = "plain", "better"
"""The judges."""


@dataclass(frozen=True)
class Feedback:
    """Which turns have feedback, how many turns later, and which share of it is turned around."""

    share: float
    delay: int = 0
    turned: float = 0.0

    def __str__(self) -> str:
        text = f"{self.share:.0%}".replace("%", " %") if self.share < 1 else "all"
        late = f", {self.delay} late" if self.delay else ""
        return text + late + (f", {10 * self.turned:.0f} in 10 wrong" if self.turned else "")


SHARES, FURTHER = (1.0, 0.2, 0.02), ((100, 0.0), (0, 0.1), (0, 0.4))


OBSERVED: Mapping[str, tuple[str, float]] = {
    "grades": (PLAIN, 0.0),
    "grades of the better judge": (BETTER, 0.0),
    "second answers": (PLAIN, COMPARED),
}
"""Which judge, and the share of the turns with a second answer; every answer is graded where it is 0."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What all arms answered to the questions of a world: the value of each and its grades, shape (n, 4)."""

    value: Floats
    grades: Mapping[str, Floats]

    def swapped(self, one: int, other: int) -> "Answers":
        """Return them with the answers of two arms exchanged after half of the questions."""

        def exchanged(rows: Floats) -> Floats:
            swapped_rows = rows.copy()
            swapped_rows[HALF:, [one, other]] = rows[HALF:, [other, one]]
            return swapped_rows

        return Answers(exchanged(self.value), {name: exchanged(rows) for name, rows in self.grades.items()})


@cache
def judged(folder: Path) -> Answers:
    """Return the value and the grades of the answers to all questions."""
    every = qa_outcomes(folder)
    at, others = [
        [i for i, arm in enumerate(every.arms) if (arm in FOUR) is among_four] for among_four in (True, False)
    ]
    at.sort(key=lambda i: FOUR.index(every.arms[i]))
    value = every.scores["f1"][:, at]
    answers = [[answer or "" for answer in row] for row in every.answers]
    alike = [[np.mean([token_f1(row[i], [row[j]]) for j in others]) for i in at] for row in answers]
    noise = np.random.default_rng(0).normal(0.0, 0.3, value.shape)
    better = np.clip(0.3 + 0.6 * value + noise, 0.0, 1.0)
    return Answers(value, {PLAIN: np.round(np.array(alike), 1), BETTER: np.round(better, 1)})


def answers_in(folder: Path, seed: int, world: World, title: str) -> Answers:
    """Return the answers to the questions of a world in its order."""
    every = judged(folder)
    order = np.random.default_rng(seed).permutation(len(every.value))[LABELLED : LABELLED + ASKED]
    answers = Answers(every.value[order], {name: rows[order] for name, rows in every.grades.items()})
    if title not in ("swap", "cold"):
        return answers
    best = FOUR.index(worlds(folder, seed)["calm"].watched)
    return answers.swapped(best, FOUR.index(world.watched))


class Beside:
    """What is learned besides feedback: as `armwise.feedback.training_log.observed` does, without a log."""

    def __init__(self, player: Ours, answers: Answers, paid: Floats, judge: str, compared: Floats) -> None:
        self._player, self._answers, self._paid = player, answers, paid
        self._grades, self._compared = answers.grades[judge], compared
        self._asked: list[tuple[int, Decision, int]] = []
        self._audits: deque[tuple[float, float]] = deque(maxlen=WINDOW)

    def ask(self, turn: int, fact: Decision, arm: int) -> None:
        """Let a turn be graded: that is learned once a reward comes."""
        self._asked.append((turn, fact, arm))

    def learn_grades(self, turn: int, arm: int, value: float) -> None:
        """Learn the grades of the turns since the reward before this one."""
        self._audits.append((float(self._grades[turn, arm]), value))
        others = [earlier for earlier in self._asked if earlier[0] != turn]
        self._asked.clear()
        calibration = Calibration.fit(self._audits) if others else None
        if calibration is not None and not calibration.objection():
            for earlier_turn, fact, drawn in others:
                expected = calibration.predict(float(self._grades[earlier_turn, drawn]))
                self._player.policy.learn(_label(fact), expected - float(self._paid[earlier_turn, drawn]))

    def learn_second(self, turn: int, fact: Decision, arm: int, value: float) -> None:
        """Learn the answer of another arm by its comparison with the one that has feedback."""
        assert ALSO.shadow is not None
        if (u := self._compared[turn]) >= COMPARED:
            return
        others = [at for at in range(len(FOUR)) if at != arm]
        other = others[int(u / COMPARED * len(others))]
        preferred = np.sign(self._grades[turn, other] - self._grades[turn, arm])
        told = move_metrics(RULE, {"f1": value}, ALSO.shadow * float(preferred))["f1"]
        names = tuple(FOUR[at] for at in others)
        share = (1.0 / len(others),) * len(others)
        label = replace(_label(fact), arms=names, probabilities=share, drawn=FOUR[other])
        self._player.policy.learn(label, told - float(self._paid[turn, other]))


def _label(fact: Decision) -> Decision:
    return replace(fact, policy=LABELS, version=0)


def play(
    name: str, world: World, answers: Answers, feedback: Feedback, observed: str, seed: Sequence[int]
) -> float:
    """Return the mean lead of a policy over the best arm of the time."""
    n, index = len(world.reward), {arm: i for i, arm in enumerate(world.arms)}
    uniform = np.random.default_rng(seed).random(n)
    answered, turned, compared = np.random.default_rng([*seed, 3]).random((3, n))
    told = np.where((turned < feedback.turned)[:, None], 1.0 - answers.value, answers.value)
    player, paid = Ours(OURS[name], world), answers.value - world.reward
    judge, share = OBSERVED.get(observed, (PLAIN, 0.0))
    beside = Beside(player, answers, paid, judge, compared)
    due: deque[tuple[int, Decision, int]] = deque()
    lead = -world.best
    for turn in range(n):
        p, _, fact = player.decide(turn, FOUR, float(uniform[turn]))
        lead[turn] += p @ world.reward[turn]
        beside.ask(turn, fact, index[fact.drawn])
        due.append((turn, fact, index[fact.drawn]))
        if len(due) <= feedback.delay:
            continue
        past_turn, fact, arm = due.popleft()
        if answered[past_turn] >= feedback.share:
            continue
        value = float(told[past_turn, arm])
        player.policy.learn(fact, value - float(paid[past_turn, arm]))
        if observed and share:
            beside.learn_second(past_turn, fact, arm, value)
        elif observed:
            beside.learn_grades(past_turn, arm, value)
    return 1000.0 * float(lead.mean())


def task(item: tuple[int, str, str], folder: Path, conditions: Sequence[Feedback]) -> Floats:
    """Return the leads of a policy in one order of a world, shape (n_conditions, 1 + n_observed)."""
    seed, title, name = item
    world = worlds(folder, seed)[title]
    answers, number = answers_in(folder, seed, world, title), [*worlds(folder, seed)].index(title)
    leads = np.full((len(conditions), 1 + len(OBSERVED)), np.nan)
    for (row, feedback), (column, observed) in product(enumerate(conditions), enumerate(("", *OBSERVED))):
        if not observed or feedback.share < 1.0:
            leads[row, column] = play(name, world, answers, feedback, observed, (seed, number))
    return leads


def agreement(folder: Path) -> Table:
    """Return how well the judges agree with F1."""
    every, headings = judged(folder), ("correlation", "the same, a question", "right of two that differ")
    table = Table("judge", *headings, title="agreement with F1", box=MARKDOWN)
    value = every.value
    for name, grades in every.grades.items():
        correlation = Calibration.fit(list(zip(grades.ravel(), value.ravel(), strict=True))).agreement
        centred = [(rows - rows.mean(axis=1, keepdims=True)).ravel() for rows in (grades, value)]
        pairs = [
            (value[:, i] - value[:, j], grades[:, i] - grades[:, j]) for i, j in combinations(range(4), 2)
        ]
        truth, judgement = np.concatenate(pairs, axis=1)
        right = (np.sign(truth) == np.sign(judgement))[truth != 0].mean()
        table.add_row(name, f"{correlation:.2f}", f"{np.corrcoef(*centred)[0, 1]:.2f}", f"{right:.2f}")
    return table


def main(
    folder: Annotated[Path, typer.Argument(help="Holds qa/.")],
    *,
    seeds: Annotated[int, typer.Option(min=2, help="Orders of the questions.")] = 8,
    only: Annotated[str, typer.Option(help="Names of policies, by commas.")] = (
        "adaptive,LinUCB on the router,Vowpal Wabbit"
    ),
    within: Annotated[str, typer.Option("--worlds", help="Names of worlds, by commas.")] = "calm,swap",
    further: Annotated[bool, typer.Option(help="Let feedback also be late or wrong.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = len(os.sched_getaffinity(0)),
) -> None:
    """Print the losses and the gains of each policy in each world."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for workers, one a core
    console, cases = Console(width=170), [*product(within.split(","), only.split(","))]
    conditions = [
        Feedback(share, *how) for share in SHARES for how in ((0, 0.0), *(FURTHER if further else ()))
    ]
    items = [(seed, *case) for seed in range(seeds) for case in cases]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        work = pool.map(partial(task, folder=folder / "qa", conditions=conditions), items)
        all_leads = np.array([*track(work, "orders", len(items), console=Console(stderr=True))])
    console.print(agreement(folder / "qa"))
    for (title, name), leads in zip(
        cases, all_leads.reshape(seeds, len(cases), -1).swapaxes(0, 1), strict=True
    ):
        console.print(table_of(f"{name}, {title}", conditions, leads.reshape(seeds, len(conditions), -1)))


def table_of(title: str, conditions: Sequence[Feedback], found: Floats) -> Table:
    """Return the table of leads of shape (n_orders, n_conditions, 1 + n_observed)."""
    table = Table("feedback", "lead", "lost", *OBSERVED, title=title, box=MARKDOWN)
    for row, feedback in enumerate(conditions):
        leads = found[:, row]
        lost = leads[:, 0] - found[:, 0, 0]
        gains = (leads[:, 1:] - leads[:, :1]).T
        table.add_row(str(feedback), *map(_mean, (leads[:, 0], lost, *gains)))
    return table


def _mean(values: Floats) -> str:
    """Return the mean and its standard error; nothing where it was not measured."""
    if np.isnan(values).any():
        return ""
    return f"{values.mean():+.1f} ± {values.std(ddof=1) / np.sqrt(len(values)):.1f}"


if __name__ == "__main__":
    typer.run(main)
