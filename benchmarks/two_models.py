"""Two models, of which the dear one is better on hard questions only: who gets the easy ones?

    python benchmarks/two_models.py [--rated 0.05 --wrong 0.1]

Half of 3,000 questions are short, and both models answer .9 of them right; half are long, with numbers, and
the small model answers .4 of them, the large one .85. An answer of the large one costs `gap` more. The policy
sees the form of a question, as `armwise init` has it, and the reward of the model that it draws, if it is
rated.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Annotated

import learners
import numpy as np
import typer
from learners_outcomes import TEMPLATE, Entry, entries, read_settings
from learners_worlds import World

from armwise.agent.policies import FeatureSpec, describe

ARMS = ("small", "large")

RIGHT = {"easy": (0.9, 0.9), "hard": (0.4, 0.85)}
"""Probability of a right answer of each model."""

GAPS = (0.03, 0.06, 0.12)
"""What an answer of the large model costs more than one of the small one, in right answers."""

BASELINE = {"kind": "adaptive", "params": {"baseline": "large"}}

POLICIES = (
    "template",
    "linucb",
    "linear_thompson",
    "epsilon_greedy",
    "vowpal",
    "baseline",
    "baseline, explore .1",
)

QUESTIONS, LATE, ORDERS = 3000, 2500, 20
"""Questions of an order, the first that counts as late, and orders."""

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


def find_entry(policy: str) -> Entry:
    """Return the policy of a name."""
    found = entries()
    if policy in found:
        return found[policy]
    share = 0.1 if policy.endswith(".1") else found["template"].exploration
    return Entry(BASELINE, share, plain=True)


def play(policy: str, gap: float, seed: int, rated: float, wrong: float) -> tuple[float, float, float]:
    """Return the late share of the large model on easy and on hard questions, and the mean lead over it."""
    questions, random = [*make_questions(seed)], np.random.default_rng([seed, 1])
    easy = np.array([kind == "easy" for _, kind in questions])
    right, paid = np.array([RIGHT[kind] for _, kind in questions]), np.array([0.0, gap])
    answered = random.random(right.shape) < right
    turned, has_rating = random.random((2, len(easy)))
    told = np.where((turned < wrong)[:, None], ~answered, answered) - paid
    spec = FeatureSpec.model_validate(read_settings(TEMPLATE)["features"])
    contexts = tuple(describe(text, spec) for text, _ in questions)
    world = World(contexts, ARMS, right - paid, told, (0, len(questions)), {}, watched="large")
    entry = find_entry(policy)
    player, uniform = learners.Ours(entry.spec, world, entry.exploration), random.random(len(easy))
    large, lead = np.zeros((2, len(easy)))
    for turn in range(len(easy)):
        p, _, fact = player.decide(turn, ARMS, float(uniform[turn]))
        large[turn], lead[turn] = p[1], (p[0] * (world.reward[turn, 0] - world.reward[turn, 1]))
        if has_rating[turn] < rated:
            player.policy.learn(fact, float(told[turn, ARMS.index(fact.drawn)]))
    late = np.arange(len(easy)) >= LATE
    return large[late & easy].mean(), large[late & ~easy].mean(), lead.mean()


def main(
    rated: Annotated[float, typer.Option(help="Share of answers that are rated.")] = 1.0,
    wrong: Annotated[float, typer.Option(help="Share of ratings that are wrong.")] = 0.0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = len(os.sched_getaffinity(0)),
) -> None:
    """Print a row for each policy and gap."""
    print("| extra cost | policy | large on easy | large on hard | lead over large, of 1,000 | worst order |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for gap, policy in product(GAPS, POLICIES):
            runs = np.array([*pool.map(partial(play, policy, gap, rated=rated, wrong=wrong), range(ORDERS))])
            easy, hard, lead = runs.mean(0)
            error = 1000 * runs[:, 2].std(ddof=1) / ORDERS**0.5
            print(
                f"| {gap} | {policy} | {easy:.2f} | {hard:.2f} | {1000 * lead:+.1f} ({error:.1f}) "
                f"| {1000 * runs[:, 2].min():+.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    typer.run(main)
