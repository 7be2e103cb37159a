"""Time our estimates, intervals, and a replay with a policy that learns, and those of obp.

    python benchmarks/estimators.py [--rows 1000000] [--arms 10] [--decisions 100000]
                                    [--obp /tmp/obp/bin/python] [--beside FOLDER]

`--obp` is the Python of an environment that has obp; `benchmarks/obp_golden.py` says how
to make one. Both sides read the same arrays, validate them and estimate the same six
values; intervals are bootstraps with 100 resamples, ours with the points, obp's without.
Times are of the processor, so that a busy machine does not blur them: run it with
OMP_NUM_THREADS=1.

In the replay, LinUCB decides so many `--decisions`, whose context is eight numbers, and
`ips` says what it earned. We learn from each of them. obp's `run_bandit_replay` learns
only those on which both agree. First both have the decisions in memory. Then the whole
processes are compared: ours is the verb `armwise replay FILE`, which also audits
the log; obp's imports obp and loads arrays. `--beside` is the folder of another checkout
of Armwise, whose verb is timed too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from time import process_time
from typing import Any

import numpy as np

from armwise.agent.policies import PolicySpec, ReplayStep, build_policy, sampling
from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.events import Context, Cost, Decision, Example
from armwise.feedback.jsonl import Header, export_lines
from armwise.feedback.ope import Sample, Terms, intervals
from armwise.feedback.ope.estimators import (
    dm,
    dr,
    ips,
    snips,
    switch_dr,
)
from armwise.feedback.ope.reward_model import cross_fit
from armwise.feedback.reward import Metric, RewardRule

RESAMPLES, RUNS = 100, 5

RULE = RewardRule(metrics={"right": Metric()}, cost_weight=0.0, clip=(0.0, 1.0))

BLOCK = 256
"""Decisions that are replayed at once, as in a replay."""

DIM = 8
"""Numbers in the context of a decision of the replay."""


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


def write_log(path: Path, log: dict[str, Floats | Integers], contexts: Floats) -> None:
    """Write a log as an export."""
    arms = tuple(f"arm{number}" for number in range(log["p_target"].shape[1]))
    columns = (log[name].tolist() for name in ("drawn", "p_log", "reward"))
    rows = zip(*columns, contexts.tolist(), strict=True)

    def examples() -> Iterator[Example]:
        for seq, (drawn, p, reward, context) in enumerate(rows, start=1):
            seen = Context(f"question {seq}", {}, tuple(context))
            at, until = float(seq), seq + RULE.wait_s
            made = Decision(
                f"d{seq}", seen, arms, tuple(p), arms[drawn], "uniform", 1, decided_at=at, deadline=until
            )
            yield Example(seq, made, Cost(), {"right": reward})

    header = Header(written_at=0.0, arms=arms, reward=RULE)
    _, *lines = export_lines(examples(), header)
    # only what differs from the defaults, so that other versions read it too
    first = {"format": header.format, "schema": header.number, **header.model_dump(exclude_defaults=True)}
    path.write_bytes(json.dumps(first).encode() + b"\n" + b"".join(lines))


def time_verb(path: Path, checkout: Path) -> float:
    """Return the processor time of `armwise replay` of an export by LinUCB, seconds."""
    policy = "policy:{kind: linucb, params: {dims: 0}}"
    words = ["replay", str(path), "--policy", policy, "--estimator", "ips"]
    compiled = {"PYTHONPYCACHEPREFIX": str(path.parent / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
    for _ in range(2):  # the first run compiles the modules, as an installation does
        before = getrusage(RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "armwise", *words],
            check=True,
            capture_output=True,
            cwd=path.parent,
            env={**os.environ, **compiled, "PYTHONPATH": str(checkout)},
        )
        after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def time_following(log: dict[str, Floats | Integers], contexts: Floats) -> float:
    """Return the processor time of LinUCB and `ips` on decisions in memory, seconds."""
    n, n_arms = log["p_log"].shape
    arms = tuple(f"arm{number}" for number in range(n_arms))
    floor, share = 0.02 / n_arms, (1.0 / n_arms,) * n_arms
    rows = zip(contexts.tolist(), log["drawn"].tolist(), log["reward"].tolist(), strict=True)
    steps = [
        ReplayStep(
            Decision(str(i), Context("?", {}, tuple(x)), arms, share, arms[drawn], "u", 1),
            arms,
            floor,
            (),
            reward,
        )
        for i, (x, drawn, reward) in enumerate(rows)
    ]
    policy = build_policy(PolicySpec(kind="linucb", params={"dims": 0}), arms)
    start = process_time()
    found = [p for at in range(0, n, BLOCK) for p in sampling.replay(policy, steps[at : at + BLOCK])]
    columns = {name: log[name] for name in ("propensity", "drawn", "reward")}
    ips(Sample(**columns, p_target=np.array(found)))
    return process_time() - start


def compare_replays(n: int, n_arms: int, python: str | None, beside: Path | None) -> None:
    """Print what a replay of so many decisions takes, by a policy that learns."""
    rng = np.random.default_rng(2010)
    log, contexts = invent(n, n_arms, rng), rng.standard_normal((n, DIM))
    log["p_log"] = np.full((n, n_arms), 1.0 / n_arms)
    log["drawn"], log["propensity"] = rng.integers(n_arms, size=n), log["p_log"][:, 0]
    with tempfile.TemporaryDirectory() as folder:
        write_log(Path(folder) / "log.jsonl", log, contexts)
        here = Path(__file__).parents[1]
        ours_s = time_verb(Path(folder) / "log.jsonl", here)
        other_s = None if beside is None else time_verb(Path(folder) / "log.jsonl", beside)
    theirs = time_obp(python, {**log, "context": contexts}) if python else {}
    in_memory_s = time_following(log, contexts)
    report(f"LinUCB on {n:,} decisions in memory", in_memory_s, theirs.get("replay_s"))
    if theirs:
        per_reward = (in_memory_s / n, theirs["replay_s"] / theirs["learned"])
        print(f"microseconds a learned reward: {1e6 * per_reward[0]:.0f}, obp {1e6 * per_reward[1]:.0f}")
    report(f"the process, {n:,} decisions read and audited", ours_s, theirs.get("process_s"))
    if other_s is not None:
        print(f"the same by {beside}: {other_s:.3f} s, {other_s / ours_s:.1f} x")


def best_of(runs: int, call: Callable[[], object]) -> float:
    """Return the least processor time of several runs, seconds."""
    times = []
    for _ in range(runs):
        start = process_time()
        call()
        times.append(process_time() - start)
    return min(times)


def time_obp(python: str, log: dict[str, Floats | Integers]) -> dict[str, Any]:
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
    report("switch_dr", best_of(3, lambda: switch_dr(sample)))


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
    parser.add_argument("--decisions", type=int, default=100_000)
    parser.add_argument("--beside", type=Path, help="folder of another checkout of Armwise")
    parser.add_argument("--obp", help="Python of an environment that has obp")
    given = parser.parse_args()
    main(given.rows, given.arms, given.obp)
    compare_replays(given.decisions, given.arms, given.obp, given.beside)
