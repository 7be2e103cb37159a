"""Two models, of which the dear one is better on hard questions only: who gets the easy ones?

    python benchmarks/two_models.py [--rated 0.05 --wrong 0.1] [--orders 20]
    python benchmarks/two_models.py --rated 0.05 --wrong 0.1 --table TABLES/routellm.csv --large gpt4

Half of 3,000 questions are short, and both models answer .9 of them right; half are long, with numbers, and
the small model answers .4 of them, the large one .85. An answer of the large one costs `gap` more. The policy
sees the form of a question, as `armwise init` has it, and the reward of the model that it draws, if it is
rated. With a table of `outcome_tables.py`, its questions and rewards are played instead.
"""

import csv
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import learners
import learners_rivals
import numpy as np
import typer
from learners_outcomes import TEMPLATE, Entry, entries, read_settings
from learners_worlds import World
from numpy.typing import NDArray

from armwise.agent.policies import FeatureSpec, describe

Floats, Flags = NDArray[np.float64], NDArray[np.bool_]

Player = learners.Ours | learners.Theirs

ARMS = ("small", "large")

RIGHT = {"easy": (0.9, 0.9), "hard": (0.4, 0.85)}
"""Probability of a right answer of each model."""

GAPS = (0.06, 0.1, 0.2)
"""What an answer of the large model costs more than one of the small one, in right answers."""

POLICIES = (
    "template",
    "linucb",
    "linear_thompson",
    "epsilon_greedy",
    "vowpal",
    "baseline",
    "baseline, explore .1",
)

QUESTIONS, LATE = 3000, 2500
"""Questions of an order, and the first that counts as late."""

SPAN, FOUND = 200, 0.9
"""Questions over which the share of right draws is taken, and the share at which the models are found."""

PLACES = ("Peru", "Chad", "Laos", "Mali", "Iran", "Cuba", "Fiji", "Oman")


def make_questions(seed: int) -> Iterator[tuple[str, str]]:
    """Yield questions, each with its kind."""
    random = np.random.default_rng(seed)
    for _ in range(QUESTIONS):
        if random.random() < 0.5:
            yield f"What is the capital of {random.choice(PLACES)}?", "easy"
        else:
            apart, one, other = random.integers(40, 900, 3)
            yield (
                f"Two trains are {apart} km apart and drive towards each other at {one} and {other} km/h. "
                "After how many minutes do they meet, and how far has each one gone by then?",
                "hard",
            )


def find_entry(policy: str, large: str) -> Entry:
    """Return the policy of a name."""
    found = entries()
    if policy in found:
        return found[policy]
    share = 0.1 if policy.endswith(".1") else found["template"].exploration
    return Entry({"kind": "adaptive", "params": {"baseline": large}}, share, plain=True)


def make_world(gap: float, seed: int) -> tuple[World, Flags, Floats]:
    """Return the simulated questions with the expected rewards, what was observed, and which are easy.

    The last is what an answer of each model costs, shape (2,).
    """
    questions, random = [*make_questions(seed)], np.random.default_rng([seed, 1])
    easy = np.array([kind == "easy" for _, kind in questions])
    right, paid = np.array([RIGHT[kind] for _, kind in questions]), np.array([0.0, gap])
    spec = FeatureSpec.model_validate(read_settings(TEMPLATE)["features"])
    contexts = tuple(describe(text, spec) for text, _ in questions)
    told = (random.random(right.shape) < right) - paid
    return World(contexts, ARMS, right - paid, told, (0, len(questions)), {}), easy, paid


def read_world(path: Path, seed: int) -> World:
    """Return the questions of a table in an order."""
    with path.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    rows = [rows[at] for at in np.random.default_rng(seed).permutation(len(rows))[:QUESTIONS]]
    arms = tuple(name for name in rows[0] if name != "question")
    reward = np.array([[float(row[arm]) for arm in arms] for row in rows])
    spec = FeatureSpec.model_validate(read_settings(TEMPLATE)["features"])
    contexts = tuple(describe(row["question"], spec) for row in rows)
    return World(contexts, arms, reward, reward, (0, len(rows)), {})


def play(
    policy: str, world: World, large: str, seed: int, rated: float, wrong: float, paid: Floats | float = 0.0
) -> tuple[Floats, Floats]:
    """Return the probability of the large model for each question, and the lead over always using it.

    `paid` is the part of the rewards that each arm costs, which a policy may learn apart.
    """
    random, n, at = np.random.default_rng([seed, 2]), len(world.contexts), world.arms.index(large)
    turned, has_rating, uniform = random.random((3, n))
    quality, paid = world.told + paid, np.broadcast_to(paid, len(world.arms))
    around = quality.min() + quality.max()
    told = np.where((turned < wrong)[:, None], around - quality, quality) - paid
    player, p = enter(policy, world, large, seed), np.zeros(world.reward.shape)
    for turn in range(n):
        p[turn], drawn, fact = player.decide(turn, world.arms, float(uniform[turn]))
        if has_rating[turn] < rated:
            reward = float(told[turn, drawn])
            if isinstance(player, learners.Ours) and getattr(player.policy, "learns_costs", False):
                player.policy.learn(fact, reward, float(paid[drawn]))
            else:
                player.learn(turn, fact, world.arms[drawn], reward)
    return p[:, at], (p * world.reward).sum(axis=1) - world.reward[:, at]


def enter(policy: str, world: World, large: str, seed: int) -> Player:
    """Return a policy of ours or of another package, which sees the form of a question."""
    if policy in learners_rivals.RIVALS:
        return learners.enter_by_form(policy, world, seed)
    entry = find_entry(policy, large)
    return learners.Ours(entry.spec, world, entry.exploration)


def simulate(
    policy: str, gap: float, seed: int, rated: float, wrong: float
) -> tuple[float, float, float, float]:
    """Return how an order went.

    That is the late share of the large model on easy and on hard questions, the mean lead over always using
    it, and the first question from which nine of ten of the next 200 draws are right by kind: small if it is
    easy, large if it is hard.
    """
    world, easy, paid = make_world(gap, seed)
    share, lead = play(policy, world, "large", seed, rated, wrong, paid)
    late = np.arange(len(easy)) >= LATE
    right = learners.average(np.where(easy, 1.0 - share, share), SPAN)
    found = learners.find_first(right >= FOUND)
    return share[late & easy].mean(), share[late & ~easy].mean(), lead.mean(), found


def replay(policy: str, path: Path, large: str, seed: int, rated: float, wrong: float) -> float:
    """Return the mean lead over the large model on a table."""
    return play(policy, read_world(path, seed), large, seed, rated, wrong)[1].mean()


def describe_lead(lead: Floats) -> str:
    """Return the mean of the leads of the orders with its standard error, and the worst, times 1,000."""
    error = 1000 * lead.std(ddof=1) / len(lead) ** 0.5
    return f"{1000 * lead.mean():+.1f} ({error:.1f}) | {1000 * lead.min():+.0f} |"


def main(
    rated: Annotated[float, typer.Option(help="Share of answers that are rated.")] = 1.0,
    wrong: Annotated[float, typer.Option(help="Share of ratings that are wrong.")] = 0.0,
    table: Annotated[Path | None, typer.Option(help="A table of `outcome_tables.py`.")] = None,
    large: Annotated[str, typer.Option(help="The arm of the table to compare with.")] = "large",
    orders: Annotated[int, typer.Option(min=2, help="Orders of the questions.")] = 20,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = len(os.sched_getaffinity(0)),
) -> None:
    """Print a row for each policy, and for each gap of the simulation."""
    ratings = {"rated": rated, "wrong": wrong}
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        if table is not None:
            print(f"| policy | lead over {large} | worst order |\n| --- | ---: | ---: |")
            for policy in POLICIES:
                task = partial(replay, policy, table, large, **ratings)
                print(f"| {policy} | {describe_lead(np.array([*pool.map(task, range(orders))]))}", flush=True)
            return
        heads = "extra cost", "policy", "large on easy", "large on hard", "found", "lead over large", "worst"
        print(f"| {' | '.join(heads)} |\n| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
        for gap, policy in product(GAPS, POLICIES):
            runs = np.array([*pool.map(partial(simulate, policy, gap, **ratings), range(orders))])
            easy, hard, *_ = runs.mean(0)
            shares = f"| {gap} | {policy} | {easy:.2f} | {hard:.2f} | {np.median(runs[:, 3]):,.0f} |"
            print(f"{shares} {describe_lead(runs[:, 2])}", flush=True)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    typer.run(main)
