"""Two models, of which the dear one is better on hard questions alone: who gets the easy ones?

    python benchmarks/two_models.py

Half of 3,000 questions are short, and both models answer them alike (.9); half are long, with numbers, and
the small model answers .4 of them, the large one .85. An answer of the large one costs `gap` more. The policy
sees the form of a question, as `armwise init` has it, and the reward of the model that it draws.
"""

import json
import sys
from collections.abc import Iterator

import learners
import numpy as np
from learners_outcomes import TEMPLATE, entries, read_settings
from learners_worlds import World

from armwise.agent.policies import FeatureSpec, describe

ARMS = ("small", "large")

RIGHT = {"easy": (0.9, 0.9), "hard": (0.4, 0.85)}
"""Probability of a right answer of each model."""

GAPS = (0.03, 0.06, 0.12)
"""What an answer of the large model costs more than one of the small one, in right answers."""

POLICIES = ("template", "linucb", "linear_thompson", "epsilon_greedy", "vowpal")

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


def play(policy: str, gap: float, seed: int) -> tuple[float, float, float]:
    """Return the late share of the large model on easy and on hard questions, and the mean gain over it."""
    questions = [*make_questions(seed)]
    easy = np.array([kind == "easy" for _, kind in questions])
    right = np.array([RIGHT[kind] for _, kind in questions])
    paid = np.array([0.0, gap])
    told = (np.random.default_rng(seed).random(right.shape) < right) - paid
    spec = FeatureSpec.model_validate(read_settings(TEMPLATE)["features"])
    contexts = tuple(describe(text, spec) for text, _ in questions)
    world = World(contexts, ARMS, right - paid, told, (0, len(questions)), {}, watched="large")
    entry = entries()[policy]
    run = learners.play(learners.Ours(entry.spec, world, entry.exploration), world, (seed, 0))
    late = np.arange(len(easy)) >= LATE
    return run.share[late & easy].mean(), run.share[late & ~easy].mean(), run.lead.mean()


def main() -> None:
    """Print a row for each policy and gap, and all figures as JSON to standard error."""
    print("| costs more | policy | large on easy | large on hard | earned over always large, of 1,000 |")
    print("| ---: | --- | ---: | ---: | ---: |")
    for gap in GAPS:
        for policy in POLICIES:
            runs = np.array([play(policy, gap, seed) for seed in range(ORDERS)])
            easy, hard, lead = runs.mean(0)
            error = 1000 * runs[:, 2].std(ddof=1) / ORDERS**0.5
            print(
                f"| {gap} | {policy} | {easy:.2f} | {hard:.2f} | {1000 * lead:+.0f} ({error:.0f}) |",
                flush=True,
            )
            print(json.dumps([gap, policy, runs.tolist()]), file=sys.stderr)


if __name__ == "__main__":
    main()
