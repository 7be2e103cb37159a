"""How often does an interval hold the truth where rows of an episode are alike?

    python benchmarks/cluster_coverage.py [--worlds 500] [--seed 2015]

Each world has episodes of ten decisions between two arms, drawn alike, that share a mood: rewards are
correlated within an episode by the share that a column names. The target draws the better arm by 0.7. A cell
has the share of 95 % intervals that hold its value, and their mean width.
"""

from dataclasses import replace
from typing import Annotated

import numpy as np
import typer
from rich.progress import track

from armwise.feedback.arrays import Floats
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import evaluate

EPISODES, TURNS = 100, 10
CORRELATIONS = (0.0, 0.1, 0.3, 0.6)
SPREAD = 0.3
"""Standard deviation of a reward, given its arm."""
TRUTH = 0.3 + 0.2 * 0.7
ESTIMATORS = ("ips", "snips", "dr")


def invent(correlation: float, rng: np.random.Generator) -> tuple[LoggedDraws, Floats]:
    """Return a log with episodes, and the target."""
    n = EPISODES * TURNS
    episode, drawn = np.repeat(np.arange(EPISODES), TURNS), rng.integers(2, size=n)
    mood = rng.normal(0.0, 1.0, EPISODES)[episode] * np.sqrt(correlation)
    reward = 0.3 + 0.2 * drawn + SPREAD * (mood + rng.normal(0.0, 1.0, n) * np.sqrt(1.0 - correlation))
    log = LoggedDraws.from_arrays(("a", "b"), drawn, reward, p_log=np.full((n, 2), 0.5), groups=episode)
    return log, np.tile([0.3, 0.7], (n, 1))


def main(
    worlds: Annotated[int, typer.Option(help="Worlds of each correlation.", min=1)] = 500,
    seed: Annotated[int, typer.Option(help="Draws the worlds.", min=0)] = 2015,
) -> None:
    """Print coverage and width by interval, cluster and correlation."""
    print(
        "| interval | estimator | observation | "
        + " | ".join(f"{correlation:g}" for correlation in CORRELATIONS)
        + " |"
    )
    print("| --- " * (3 + len(CORRELATIONS)) + "|")
    cells_by_key: dict[tuple[str, str, str], list[str]] = {}
    for correlation in CORRELATIONS:
        ends: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
        rngs = np.random.default_rng([seed, int(100 * correlation)]).spawn(worlds)
        for rng in track(rngs, description=f"correlation {correlation:g}"):
            log, p_target = invent(correlation, rng)
            for interval in ("normal", "bootstrap"):
                for cluster in (None, "episode"):
                    evaluation = evaluate(
                        log if cluster else replace(log, groups=np.arange(len(log))),
                        {"t": p_target},
                        np.random.default_rng(0),
                        estimators=ESTIMATORS,
                        interval=interval,
                        reward_model="means",
                        resamples=500,
                    )["t"]
                    for estimate in evaluation.estimates:
                        assert estimate.value is not None
                        key = interval, estimate.estimator, cluster or "row"
                        ends.setdefault(key, []).append((estimate.value.low, estimate.value.high))
        for key, pairs in ends.items():
            low, high = np.array(pairs).T
            held = ((low <= TRUTH) & (high >= TRUTH)).mean()
            cells_by_key.setdefault(key, []).append(f"{held:.3f} {(high - low).mean():.3f}")
    for (interval, estimator, cluster), cells in cells_by_key.items():
        print(f"| {interval} | {estimator} | {cluster} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    typer.run(main)
