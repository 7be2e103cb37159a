"""Plant faults in simulated logs, audit them, and count how often each is found; and audit true logs.

    python benchmarks/audit.py --logs 1000 --faulty 200 --services 400

Every log has four arms, a policy and twelve features, of which two move the policy. True logs come from
eight kinds of policies, as many logs of each; a false alarm is one that fails, or that a test warns of. A
fault counts as found where the audit fails, or warns of it by the named check where it is a warning.
"""

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.agent.proof.propensity_audit import Audit, CheckStatus, Draws, audit
from armwise.feedback.arrays import Flags, Floats, take_drawn
from tests.agent.proof.honest import World as Service
from tests.agent.proof.honest import audit_service

ARMS = ("none", "words", "vectors", "both")

N_FEATURES, MOVING = 12, 2
"""Features of a row, and how many of them move the policy."""


@dataclass(frozen=True, eq=False)
class World:
    """Questions, and what arms earn on them.

    Attributes:
        features: Shape (n, N_FEATURES), 0 or 1.
        score: What a policy that has learned knows of each arm, shape (n, n_arms).
        reward: Reward of each arm, shape (n, n_arms), 0 or 1.
        rng: Source of the draws.
    """

    features: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    score: Floats
    reward: Floats
    rng: np.random.Generator

    def __len__(self) -> int:
        return len(self.score)


def world(n: int, seed: int) -> World:
    """Return a world of n questions."""
    rng = np.random.default_rng(seed)
    features = (rng.random((n, N_FEATURES)) < rng.uniform(0.1, 0.6, N_FEATURES)).astype(np.int64)
    effect = rng.normal(0.0, 1.0, (MOVING, len(ARMS)))
    score = features[:, :MOVING] @ effect + rng.normal(0.0, 0.5, len(ARMS))
    reward = (rng.random((n, len(ARMS))) < 1.0 / (1.0 + np.exp(-score))).astype(np.float64)
    return World(features, score, reward, rng)


def softmax(score: Floats, temperature: float = 1.0) -> Floats:
    """Return distributions by scores, shape (n, n_arms)."""
    p = np.exp((score - score.max(axis=1, keepdims=True)) / temperature)
    total: Floats = p / p.sum(axis=1, keepdims=True)
    return total


def floored(p: Floats, floor: float) -> Floats:
    """Return distributions with a floor mixed in, shape (n, n_arms)."""
    mixed: Floats = (1.0 - floor * p.shape[1]) * p + floor
    return mixed


def drawn(p: Floats, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Draw a column for each row of distributions, shape (n,)."""
    column = (p.cumsum(axis=1) < rng.random((len(p), 1))).sum(axis=1)
    return column.clip(max=p.shape[1] - 1)


def log_of(w: World, p: Floats, column: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None) -> Draws:
    """Return a log that has the distribution of each row; the draws follow it where none are given."""
    column = drawn(p, w.rng) if column is None else column
    n = len(w)
    return Draws(
        ARMS,
        column,
        take_drawn(p, column),
        p,
        features={f"feature {j}": w.features[:, j] for j in range(N_FEATURES)},
        values={f"feature {j}": w.features[:, j].astype(np.float64) for j in range(N_FEATURES)},
        reward=take_drawn(w.reward, column),
        ids=np.arange(n),
        at=60.0 * np.arange(n),
    )


def alone(log: Draws) -> Draws:
    """Return a log with the propensities of drawn arms alone."""
    return replace(log, p=None)


# -- true logs ---------------------------------------------------------------------------------------


def uniform(w: World) -> Draws:
    """All arms alike."""
    return log_of(w, np.full((len(w), len(ARMS)), 1.0 / len(ARMS)))


def epsilon_greedy(w: World) -> Draws:
    """The best arm so far with 0.9, learned as it goes; the best one changes by the draws."""
    return _learned(w, lambda mean, _: np.where(np.arange(len(ARMS)) == int(np.argmax(mean)), 0.925, 0.025))


def adaptive(w: World) -> Draws:
    """Exponential weights on estimated rewards, floor .01, a distribution for each decision."""

    def weights(_: Floats, total: Floats) -> Floats:
        p = np.exp(0.05 * (total - total.max()))
        return np.asarray(0.96 * p / p.sum() + 0.01)

    return _learned(w, weights)


def contextual(w: World) -> Draws:
    """A softmax of scores by features, floor .01, with rewards missing at random."""
    log = log_of(w, floored(softmax(w.score, 0.5), 0.01))
    assert log.reward is not None
    return replace(log, reward=np.where(w.rng.random(len(w)) < 0.4, np.nan, log.reward))


def small_floor(w: World) -> Draws:
    """The best arm by features, floor .01."""
    best = np.eye(len(ARMS))[w.score.argmax(axis=1)]
    return log_of(w, floored(best, 0.01))


def delayed(w: World) -> Draws:
    """A softmax whose rewards take time, more for hard questions: the last ones still wait."""
    log = log_of(w, floored(softmax(w.score), 0.02))
    assert log.reward is not None
    assert log.at is not None
    received = log.at + w.rng.exponential(3600.0, len(w)) * (1.0 + w.features[:, 0])
    waiting: Flags = received > log.at[-1]
    reward = np.where(waiting, np.nan, log.reward)
    return replace(log, reward=reward, waiting=waiting)


def drawn_alone(w: World) -> Draws:
    """As `contextual`, with the propensities of drawn arms alone."""
    return alone(contextual(w))


def adaptive_alone(w: World) -> Draws:
    """As `adaptive`, with the propensities of drawn arms alone."""
    return alone(adaptive(w))


TRUE = (uniform, epsilon_greedy, adaptive, contextual, small_floor, delayed, drawn_alone, adaptive_alone)


def _learned(w: World, policy: Callable[[Floats, Floats], Floats]) -> Draws:
    """Return the log of a policy that learns from each of its rewards."""
    n, k = len(w), len(ARMS)
    p, column = np.zeros((n, k)), np.zeros(n, dtype=np.int64)
    counts, sums, total = np.ones(k), np.full(k, 0.5), np.zeros(k)
    for row, chance in enumerate(w.rng.random(n).tolist()):
        p[row] = policy(sums / counts, total)
        arm = int(min(k - 1, np.searchsorted(p[row].cumsum(), chance, side="right")))
        column[row] = arm
        earned = w.reward[row, arm]
        counts[arm], sums[arm] = counts[arm] + 1.0, sums[arm] + earned
        total[arm] += (earned - 0.5) / p[row, arm]
    return log_of(w, p, column)


# -- faults ------------------------------------------------------------------------------------------


def _as(w: World, logged: Floats, true: Floats) -> Draws:
    return log_of(w, logged, drawn(true, w.rng))


def one_of_n(w: World) -> Draws:
    """1/n logged, drawn with .40, .25, .20, .15."""
    true = np.tile([0.4, 0.25, 0.2, 0.15], (len(w), 1))
    return _as(w, np.full(true.shape, 0.25), true)


def one_of_n_contextual(w: World) -> Draws:
    """1/n logged, drawn by a softmax of features."""
    return _as(w, np.full((len(w), len(ARMS)), 0.25), softmax(w.score))


def floor_not_logged(w: World) -> Draws:
    """Floor .05 mixed in and not logged, softmax."""
    logged = softmax(w.score, 0.25)
    return _as(w, logged, floored(logged, 0.05))


def small_floor_not_logged(w: World) -> Draws:
    """Floor .02 mixed in and not logged, softmax."""
    logged = softmax(w.score, 0.25)
    return _as(w, logged, floored(logged, 0.02))


def greedy_logged(w: World) -> Draws:
    """Greedy with floor .01 logged, drawn with floor .03."""
    best = np.eye(len(ARMS))[w.score.argmax(axis=1)]
    return _as(w, floored(best, 0.01), floored(best, 0.03))


def floor_not_applied(w: World) -> Draws:
    """Floor .03 logged and not applied, greedy."""
    best = np.eye(len(ARMS))[w.score.argmax(axis=1)]
    return _as(w, floored(best, 0.03), best)


def temperature(w: World) -> Draws:
    """Softmax logged at temperature 1, drawn at .7."""
    return _as(w, softmax(w.score), softmax(w.score, 0.7))


def argmax_override(w: World) -> Draws:
    """A fifth of the rows took the best arm, the distribution logged."""
    p = floored(softmax(w.score), 0.02)
    column = drawn(p, w.rng)
    return log_of(w, p, np.where(w.rng.random(len(w)) < 0.2, p.argmax(axis=1), column))


def fallback(w: World) -> Draws:
    """A tenth of the draws fell back to `words`, logged as drawn."""
    p = floored(softmax(w.score), 0.02)
    column = drawn(p, w.rng)
    return log_of(w, p, np.where(w.rng.random(len(w)) < 0.1, 1, column))


def hidden_feature(w: World) -> Draws:
    """Odds of `both` doubled where a feature is set, not logged."""
    p = floored(softmax(w.score), 0.02)
    tilt = np.where((w.features[:, 7] == 1)[:, np.newaxis] & (np.arange(len(ARMS)) == 3), 2.0, 1.0)
    true = p * tilt
    return _as(w, p, true / true.sum(axis=1, keepdims=True))


def stretch(w: World) -> Draws:
    """A sixth of the log drawn uniformly, the softmax logged."""
    p = floored(softmax(w.score, 0.5), 0.02)
    here = (np.arange(len(w)) >= 0.6 * len(w)) & (np.arange(len(w)) < 0.77 * len(w))
    return _as(w, p, np.where(here[:, np.newaxis], 0.25, p))


def round_robin(w: World) -> Draws:
    """Arms take turns, 1/n logged."""
    return log_of(w, np.full((len(w), len(ARMS)), 0.25), np.arange(len(w)) % len(ARMS))


def row_before(w: World) -> Draws:
    """Propensities of the row before."""
    p = floored(softmax(w.score), 0.02)
    return _as(w, np.roll(p, 1, axis=0), p)


def columns_swapped(w: World) -> Draws:
    """Propensities of two arms swapped."""
    p = floored(softmax(w.score), 0.02)
    return _as(w, p[:, [0, 1, 3, 2]], p)


def sticky(w: World) -> Draws:
    """Users of eight decisions keep their first arm, a uniform draw logged."""
    users = w.rng.integers(0, max(1, len(w) // 8), len(w))
    arm_of = w.rng.integers(0, len(ARMS), len(w))
    p = np.full((len(w), len(ARMS)), 0.25)
    return replace(log_of(w, p, arm_of[users]), groups={"user": users})


def missing(w: World) -> Draws:
    """Rewards of one arm missing twice as often."""
    log = log_of(w, floored(softmax(w.score), 0.02))
    assert log.reward is not None
    lost = w.rng.random(len(w)) < np.where(log.drawn == 2, 0.6, 0.3)
    return replace(log, reward=np.where(lost, np.nan, log.reward))


def duplicated(w: World) -> Draws:
    """A hundredth of the decisions twice."""
    log = log_of(w, floored(softmax(w.score), 0.02))
    again = w.rng.choice(len(w), len(w) // 100, replace=False)
    return log.where(np.sort(np.concatenate([np.arange(len(w)), again])))


def leak(w: World) -> Draws:
    """A feature that was made from the reward."""
    log = log_of(w, floored(softmax(w.score), 0.02))
    assert log.reward is not None
    return replace(log, values={**log.values, "graded": 2.0 * log.reward - 1.0})


def certain(w: World) -> Draws:
    """A tenth of the log drawn with probability 1."""
    p = floored(softmax(w.score), 0.02)
    best = np.eye(len(ARMS))[p.argmax(axis=1)]
    here = np.arange(len(w)) < len(w) // 10
    return log_of(w, np.where(here[:, np.newaxis], best, p))


def without_floor(w: World) -> Draws:
    """Greedy without a floor, logged as drawn."""
    return log_of(w, np.eye(len(ARMS))[w.score.argmax(axis=1)])


Fault = tuple[Callable[[World], Draws], str, bool]

FAULTS: tuple[Fault, ...] = (
    (one_of_n, "", True),
    (one_of_n_contextual, "", True),
    (floor_not_logged, "", True),
    (small_floor_not_logged, "", True),
    (greedy_logged, "", True),
    (floor_not_applied, "", True),
    (temperature, "", True),
    (argmax_override, "", True),
    (fallback, "", True),
    (hidden_feature, "", True),
    (stretch, "", True),
    (round_robin, "", True),
    (row_before, "", True),
    (columns_swapped, "", True),
    (duplicated, "", False),
    (leak, "", False),
    (sticky, "draws within users", False),
    (missing, "missing rewards", False),
    (certain, "arms that could not be drawn", False),
    (without_floor, "arms that could not be drawn", False),
)
"""Each fault, the check that warns of it (empty where the audit fails), and whether to try it with the
propensities of drawn arms alone too."""


def finds(result: Audit, check: str) -> bool:
    """Return whether an audit finds a fault."""
    if not check:
        return result.status is CheckStatus.FAIL
    return any(outcome.name == check and outcome.status is CheckStatus.WARN for outcome in result.checks)


def one_of(make: Callable[[World], Draws], n: int, found: Callable[[Audit], bool], seed: int) -> bool:
    """Return whether the audit of a log of n rows satisfies a condition."""
    return found(audit(make(world(n, seed))))


def is_doubted(n: int, seed: int) -> bool:
    """Return whether an honest log of a simulated service, or an export of it, is refused."""
    return bool(audit_service(Service.of(seed), n).doubt)


def drawn_arms_of(make: Callable[[World], Draws], w: World) -> Draws:
    """Return a log with the propensities of drawn arms alone."""
    return alone(make(w))


def _row(cells: list[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=int, default=1000, help="true logs of each size, of all kinds")
    parser.add_argument("--faulty", type=int, default=200, help="logs of each fault and size")
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 2000, 10000])
    parser.add_argument("--true-rows", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--services", type=int, default=100, help="logs of services, of each size")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    print("False alarms: audits of true logs that fail, and those in which a test warns\n")
    _row(["true log", *(f"{n:,} rows" for n in given.true_rows)])
    _row(["---", *("---" for _ in given.true_rows)])
    each = -(-given.logs // len(TRUE))
    totals = np.zeros(len(given.true_rows), dtype=np.int64)
    with ProcessPoolExecutor(given.workers) as pool:

        def count(
            make: Callable[[World], Draws], n: int, logs: int, condition: Callable[[Audit], bool]
        ) -> int:
            return sum(pool.map(partial(one_of, make, n, condition), range(given.seed, given.seed + logs)))

        for make in TRUE:
            alarms = [count(make, n, each, alarmed) for n in given.true_rows]
            totals += alarms
            _row([_about(make), *(f"{alarm} of {each}" for alarm in alarms)])
        _row(["**all**", *(f"**{total} of {each * len(TRUE)}**" for total in totals)])
        seeds = range(given.seed, given.seed + given.services)
        refused = [sum(pool.map(partial(is_doubted, n), seeds)) for n in given.true_rows]
        _row(["logs of services", *(f"{n} of {given.services}" for n in refused)])
        print(f"\nFaults: share of {given.faulty} logs in which each is found\n")
        _row(["fault", "verdict", *(f"{n:,} rows" for n in given.rows)])
        _row(["---", "---", *("---" for _ in given.rows)])
        for make, check, both in FAULTS:
            verdict = f"warn, {check}" if check else "fail"
            for label in ("", "; drawn arm alone") if both else ("",):
                made = partial(drawn_arms_of, make) if label else make
                condition = partial(finds, check=check)
                shares = [count(made, n, given.faulty, condition) / given.faulty for n in given.rows]
                _row([_about(make) + label, verdict, *(f"{share:.3f}" for share in shares)])
    log = contextual(world(2000, given.seed))
    began = time.perf_counter()
    audit(log)
    print(f"\nAn audit of 2,000 rows with {N_FEATURES} features took {time.perf_counter() - began:.2f} s.")


def _about(make: Callable[[World], Draws]) -> str:
    return (make.__doc__ or "").strip().rstrip(".")


def alarmed(result: Audit) -> bool:
    """Return whether an audit of a true log raises a false alarm."""
    return any(
        check.status is CheckStatus.FAIL or (check.status is CheckStatus.WARN and check.p_value is not None)
        for check in result.checks
    )


if __name__ == "__main__":
    main()
