"""The worlds of `drift.py`: some stay as they are, some change at a known place."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from armwise.agent.policies import PolicySpec, build_policy, choose, compute_served_distribution
from armwise.feedback.drift import monitor as drift_monitor
from armwise.feedback.events import Context, Cost, Decision, Example
from armwise.feedback.reward import Metric, RewardRule

RULE = RewardRule(metrics={"right": Metric()})
ARMS = ("a", "b", "c", "d", "e")

LONG = 100_000
"""Examples of a world that stays as it is."""

LEARNING = 30_000
"""Examples while a policy learns."""

PATIENCE = 2_000
"""Rewards of an arm, or questions, after which a change that was not noticed counts as missed."""

Build = Callable[[], Any]
"""Builds a detector of changes."""

OURS: Build = drift_monitor.build_detector

Rewards = Callable[[np.random.Generator, int], np.ndarray]

WORLDS: dict[str, Rewards] = {
    "right 1 in 10": lambda rng, n: (rng.random(n) < 0.1).astype(float),
    "right 1 in 2": lambda rng, n: (rng.random(n) < 0.5).astype(float),
    "right 9 in 10": lambda rng, n: (rng.random(n) < 0.9).astype(float),
    "F1 less cost": lambda rng, n: rng.choice([0.0, 1.0], n) * rng.random(n) - 0.1 * rng.integers(1, 4, n),
}


def questions(
    rng: np.random.Generator, n: int, *, words: int = 10, new: float = 0.0, turn: float = 0.0
) -> list[Context]:
    """Return questions whose words are drawn by Zipf's law, with an embedding of 8 numbers.

    Args:
        rng: Draws them.
        n: How many.
        words: How long they are, on average.
        new: Share of their words that the language did not have.
        turn: How far the mean of the embeddings has turned, in right angles.
    """
    law = 1.0 / np.arange(1, 3001)
    drawn = rng.choice(3000, (n, 8), p=law / law.sum()) + 3000 * (rng.random((n, 8)) < new)
    mean = 0.4 * np.array([np.cos(turn * np.pi / 2), np.sin(turn * np.pi / 2), *[0.0] * 6])
    vectors = (mean + 0.35 * rng.normal(size=(n, 8))) * np.sqrt(8)
    rows = zip(rng.poisson(words, n).tolist(), drawn.tolist(), vectors.tolist(), strict=True)
    return [
        Context("word " * length, {f"w={word}": 1.0 for word in row}, tuple(vector))
        for length, row, vector in rows
    ]


def examples(contexts: Sequence[Context], arms: Sequence[str]) -> Iterator[Example]:
    """Yield a training log."""
    for seq, (context, arm) in enumerate(zip(contexts, arms, strict=True), start=1):
        yield Example(seq, Decision("d", context, ARMS, (0.2,) * 5, arm, "uniform", 1), Cost(), {})


def noticed(
    build: Build, contexts: Sequence[Context], rewards: Sequence[float]
) -> Iterator[drift_monitor.Change]:
    """Yield what a monitor notices in a log of one arm."""
    drift_monitor.build_detector = build
    monitor = drift_monitor.Monitor(RULE)
    for example, reward in zip(examples(contexts, ["a"] * len(contexts)), rewards, strict=True):
        yield from monitor.see(example, reward)


def false_alarms(rng: np.random.Generator, build: Build, rewards: Rewards) -> Counter[str]:
    """Return the alarms by subject in a world of one arm that stays as it is."""
    some = questions(rng, 5000)
    contexts = [some[i] for i in rng.integers(len(some), size=LONG)]
    return Counter(change.subject for change in noticed(build, contexts, rewards(rng, LONG).tolist()))


def while_learning(rng: np.random.Generator, kind: str, *, linear: bool) -> tuple[int, int]:
    """Return the alarms of rewards while a policy learns in a world that stays as it is.

    There are eight kinds of questions, which each arm answers well or badly. A context names the kind, or,
    where the world is not linear, gives three marks that tell it together.

    Returns:
        Ours, and those of the same detector on the plain rewards.
    """
    worth = (rng.uniform(0.3, 0.7, 5) + rng.normal(0, 0.2, (8, 5))).clip(0.02, 0.98)
    marks = [[f"kind={k}"] if linear else [f"{bit}={k >> bit & 1}" for bit in range(3)] for k in range(8)]
    about = {arm: {f"arm={arm}": 1.0} for arm in ARMS}
    contexts = [Context("which?", dict.fromkeys(names, 1.0), (), about) for names in marks]
    policy = build_policy(PolicySpec(kind=kind), ARMS)
    monitor, ours, theirs = drift_monitor.Monitor(RULE), 0, 0
    plain = {arm: OURS() for arm in ARMS}
    served: list[np.ndarray] = []
    for seq in range(1, LEARNING + 1):
        if seq % 50 == 1:
            served = [compute_served_distribution(policy, context, ARMS, 0.01) for context in contexts]
        k = int(rng.integers(8))
        drawn = choose(served[k], rng.random())
        arm, reward = ARMS[drawn], float(rng.random() < worth[k, drawn])
        decision = Decision("d", contexts[k], ARMS, tuple(served[k].tolist()), arm, kind, 1)
        ours += len(monitor.see(Example(seq, decision, Cost(), {}), reward))
        plain[arm].update(reward)
        theirs += plain[arm].drift_detected
        policy.learn(decision, reward)
    return ours, theirs


def delay(rng: np.random.Generator, build: Build, before: int, fall: float) -> float:
    """Return after how many rewards of an arm its fall is noticed; infinity where it is missed.

    The arm was right 7 times in 10 for `before` rewards.
    """
    n = before + PATIENCE
    p = np.where(np.arange(n) < before, 0.7, 0.7 - fall)
    changes = noticed(build, questions(rng, n), (rng.random(n) < p).astype(float).tolist())
    return next(
        (
            float(change.example_seq - before)
            for change in changes
            if change.subject == "reward of a" and change.example_seq > before
        ),
        np.inf,
    )


def turned(
    rng: np.random.Generator, before: Sequence[Context], after: Sequence[Context]
) -> tuple[float, str]:
    """Return after how many questions it is noticed that they are others, and by what."""
    rewards = rng.random(len(before) + len(after)).tolist()
    for change in noticed(OURS, [*before, *after], rewards):
        if change.example_seq > len(before) and change.subject != "reward of a":
            return float(change.example_seq - len(before)), change.subject
    return np.inf, "nothing"
