"""Time off-policy evaluation beside the obvious ways of writing it.

    python benchmarks/replay.py [rows]

Point estimates stand beside a loop over rows; intervals stand beside numpy's own
index resampling, once for each estimator. What would take minutes is timed on fewer
rows or resamples and scaled, and marked with `~`.
"""

import sys
from collections.abc import Callable
from time import perf_counter

import numpy as np

from feedback.estimators import Floats, Terms
from feedback.intervals import bootstrap, hedged, normal
from feedback.replay import ESTIMATORS, Log, largest_weight, terms

N_ARMS, FLOOR, RESAMPLES = 4, 0.02, 1000


def invent(n: int, rng: np.random.Generator) -> tuple[Log, Floats, Floats]:
    """Return a log of n rows, a target distribution and predictions, both (n, N_ARMS)."""
    p_log, p_target = (
        FLOOR + (1.0 - N_ARMS * FLOOR) * np.eye(N_ARMS)[rng.integers(N_ARMS, size=n)] for _ in range(2)
    )
    drawn = (p_log.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=N_ARMS - 1)
    arms = tuple(f"arm-{j}" for j in range(N_ARMS))
    log = Log(arms, drawn, p_log, rng.uniform(-0.1, 1.0, n), np.arange(n), np.zeros((n, 1)))
    return log, p_target, rng.uniform(0.0, 1.0, (n, N_ARMS))


def points(log: Log, p_target: Floats, q_hat: Floats) -> tuple[list[Terms], list[float]]:
    """Return the terms and the three point estimates, computed as `evaluate` does."""
    parts = [terms(log, p_target, name, q_hat) for name in ESTIMATORS]
    return parts, [part.value for part in parts]


def points_by_row(log: Log, p_target: Floats, q_hat: Floats, n: int) -> list[float]:
    """Return the three point estimates of the first n rows, one row at a time."""
    ips = weights = dr = 0.0
    for i in range(n):
        arm = log.drawn[i]
        weight = p_target[i, arm] / log.p_log[i, arm]
        predicted = sum(p_target[i, a] * q_hat[i, a] for a in range(N_ARMS))
        ips += weight * log.reward[i]
        weights += weight
        dr += predicted + weight * (log.reward[i] - q_hat[i, arm])
    return [float(ips / n), float(ips / weights), float(dr / n)]


def resample_by_index(parts: list[Terms], rng: np.random.Generator, resamples: int) -> None:
    """Draw row numbers with replacement, once for each resample and estimator."""
    for part in parts:
        n = len(part.numerator)
        for _ in range(resamples):
            rows = rng.integers(n, size=n)
            part.numerator[rows].sum() / part.denominator[rows].sum()


def best_of(runs: int, call: Callable[[], object]) -> float:
    """Return the shortest of several times, seconds."""
    times = []
    for _ in range(runs):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)


def report(what: str, ours_s: float, naive: str, naive_s: float, mark: str = "~") -> None:
    """Print one line: ours, the naive way, and how many times faster we are."""
    print(f"{what:<36}{ours_s:>9.3f} s   {naive:<24}{mark}{naive_s:>9.3f} s   {naive_s / ours_s:>7.1f} x")


def main(n: int) -> None:
    """Print the table."""
    rng = np.random.default_rng(2014)
    log, p_target, q_hat = invent(n, rng)
    parts, values = points(log, p_target, q_hat)
    few = min(n, 20_000)
    by_row_s = best_of(2, lambda: points_by_row(log, p_target, q_hat, few)) * n / few
    print(f"{n} rows, {N_ARMS} arms; ips, snips, dr = " + ", ".join(f"{value:.4f}" for value in values))
    report("three point estimates", best_of(5, lambda: points(log, p_target, q_hat)), "row by row", by_row_s)

    safe = [hedged(part, largest_weight(log, p_target), -0.1, 1.0) for part in parts]
    by_index_s = best_of(1, lambda: resample_by_index(safe, rng, 4)) * RESAMPLES / 4
    normal_s = best_of(3, lambda: [normal(part) for part in safe])
    bootstrap_s = best_of(1, lambda: bootstrap(safe, rng, RESAMPLES))
    report("three intervals, closed form", normal_s, f"{RESAMPLES} index resamples", by_index_s)
    report(f"three intervals, {RESAMPLES} resamples", bootstrap_s, f"{RESAMPLES} index resamples", by_index_s)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
