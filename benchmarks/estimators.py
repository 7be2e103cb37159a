"""Time our estimates and intervals, and those of obp beside them.

    python benchmarks/estimators.py [--rows 1000000] [--arms 10] [--obp /tmp/obp/bin/python]

`--obp` is the Python of an environment that has obp; `benchmarks/obp_golden.py` says how
to make one. Both sides read the same arrays, validate them and estimate the same six
values; intervals are bootstraps with 100 resamples, ours with the points, obp's without.
Times are of the processor, so that a busy machine does not blur them: run it with
OMP_NUM_THREADS=1.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time

import numpy as np

from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.ope import Sample, Terms, intervals
from armwise.feedback.ope.estimators import (
    dm,
    dr,
    ips,
    replay,
    snips,
    switch_dr,
)
from armwise.feedback.ope.reward_model import cross_fit

RESAMPLES, RUNS = 100, 5


def invent(n: int, n_arms: int, rng: np.random.Generator) -> dict[str, Floats | Integers]:
    """Return the columns of a log by name, with a floor of 0.02 in both policies."""
    p_log, p_target = ((1.0 - 0.02 * n_arms) * rng.dirichlet(np.ones(n_arms), n) + 0.02 for _ in range(2))
    drawn = (p_log.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=n_arms - 1)
    quality = rng.uniform(0.0, 1.0, n_arms)
    return {
        "propensity": p_log[np.arange(n), drawn],
        "drawn": drawn,
        "reward": (rng.random(n) < quality[drawn]).astype(np.float64),
        "p_target": p_target,
        "q_hat": quality + rng.normal(0.0, 0.1, (n, n_arms)),
    }


def four(log: dict[str, Floats | Integers]) -> list[Terms]:
    """Return the terms of four estimates, from arrays that were not looked at before."""
    sample = Sample(**log)
    return [estimator(sample) for estimator in (ips, snips, dm, dr)]


def points(log: dict[str, Floats | Integers]) -> dict[str, float]:
    """Return four values by name."""
    return {terms.estimator: terms.value for terms in four(log)}


def best_of(runs: int, call: Callable[[], object]) -> float:
    """Return the least processor time of several runs, seconds."""
    times = []
    for _ in range(runs):
        start = process_time()
        call()
        times.append(process_time() - start)
    return min(times)


def time_obp(python: str, log: dict[str, Floats | Integers]) -> dict[str, object]:
    """Let obp's environment time the same arrays."""
    with tempfile.TemporaryDirectory() as folder:
        for name, array in log.items():
            np.save(Path(folder) / f"{name}.npy", array)
        peer = Path(__file__).with_name("obp_peer.py")
        arguments = [folder, str(RESAMPLES), str(RUNS)]
        done = subprocess.run([python, str(peer), *arguments], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def report(what: str, ours_s: float, theirs_s: float | None = None) -> None:
    """Print one line: ours, obp's and how many times faster we are."""
    beside = "" if theirs_s is None else f"{theirs_s:>12.3f} s{theirs_s / ours_s:>9.1f} x"
    print(f"{what:<44}{ours_s:>9.3f} s{beside}")


def main(n: int, n_arms: int, python: str | None) -> None:
    """Print the table."""
    rng = np.random.default_rng(2011)
    log = invent(n, n_arms, rng)
    theirs = time_obp(python, log) if python else {}
    print(f"{n:,} rows, {n_arms} arms" + ("" if python else "; obp is absent: name its Python with --obp"))
    print(f"{'':<44}{'ours':>11}" + (f"{'obp':>14}{'ratio':>11}" if python else ""))
    points_s = best_of(RUNS, lambda: points(log))
    intervals_s = best_of(3, lambda: intervals.bootstrap(four(log), rng, RESAMPLES))
    report("four point estimates", points_s, theirs.get("points_s"))
    report(f"the same with intervals, {RESAMPLES} resamples", intervals_s, theirs.get("intervals_s"))
    if python:
        ours = points(log)
        apart = max(abs(ours[name] - value) for name, value in theirs["values"].items())
        print(f"largest difference of a value: {apart:.1e}")

    sample = Sample(**log)
    means_s = best_of(3, lambda: fit_means(sample, rng))
    report("reward model: cross-fitted means", means_s)
    for estimator in (replay, switch_dr):
        report(estimator.__name__, best_of(3, lambda f=estimator: f(sample)))


def fit_means(sample: Sample, rng: np.random.Generator) -> Floats:
    """Return predictions by the mean reward of each arm, each row being a question of its own."""
    n, n_arms = sample.p_target.shape
    return cross_fit(None, sample.drawn, sample.reward, np.arange(n), n_arms, rng, model="means")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--arms", type=int, default=10)
    parser.add_argument("--obp", help="Python of an environment that has obp")
    given = parser.parse_args()
    main(given.rows, given.arms, given.obp)
