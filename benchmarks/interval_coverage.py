"""How often do the 95 % intervals of `feedback.intervals` hold the truth?

    python benchmarks/interval_coverage.py [simulations]

Each simulation invents a world of six kinds of questions and four arms, lets an
epsilon-greedy policy with a floor of 0.02 log n decisions in it, and evaluates four
other policies whose true value is known. Rewards are 0 or 1 less the arm's cost, so
they lie in [-0.1, 1].
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from feedback.estimators import Floats, Integers
from feedback.intervals import Interval, bernstein, bootstrap, hedged, normal
from feedback.replay import ESTIMATORS, Log, fit_reward_model, largest_weight, terms

KINDS, COST, FLOOR = 6, np.array([0.0, 0.03, 0.06, 0.1]), 0.02
ARMS = ("a", "b", "c", "d")


@dataclass(frozen=True, slots=True)
class World:
    """What each arm earns on each kind of question, and who logs.

    Attributes:
        quality: Chance of a right answer, shape (KINDS, 4).
        logging: The policy that logs, shape (KINDS, 4).
        targets: Policies to evaluate, by name, each of shape (KINDS, 4).
    """

    quality: Floats
    logging: Floats
    targets: dict[str, Floats]

    @classmethod
    def invent(cls, rng: np.random.Generator) -> "World":
        """Draw qualities, a policy that saw them blurred, and four to be evaluated."""
        quality = rng.uniform(0.1, 0.9, (KINDS, len(ARMS)))
        seen = quality + rng.normal(0.0, 0.15, quality.shape)
        often = np.bincount(seen.argmax(axis=1), minlength=len(ARMS))
        targets = {
            "candidate": nearly_greedy(quality - COST + rng.normal(0.0, 0.1, quality.shape)),
            "commonest arm": np.tile(np.eye(len(ARMS))[often.argmax()], (KINDS, 1)),
            "rarest arm": np.tile(np.eye(len(ARMS))[often.argmin()], (KINDS, 1)),
            "uniform": np.full(quality.shape, 1.0 / len(ARMS)),
        }
        return cls(quality, nearly_greedy(seen), targets)

    def value(self, target: Floats) -> float:
        """Return the true expected reward of a policy, shape (KINDS, 4)."""
        return float((target * (self.quality - COST)).sum() / KINDS)

    def log(self, n: int, rng: np.random.Generator) -> tuple[Log, Integers]:
        """Return n logged decisions and the kind of each question, shape (n,)."""
        kind = rng.integers(KINDS, size=n)
        p_log = self.logging[kind]
        drawn = (p_log.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=len(ARMS) - 1)
        reward = (rng.random(n) < self.quality[kind, drawn]) - COST[drawn]
        return Log(ARMS, drawn, p_log, reward, np.arange(n), np.eye(KINDS)[kind]), kind


def nearly_greedy(score: Floats) -> Floats:
    """Put all but the floor on the best arm of each row."""
    p = np.full(score.shape, FLOOR)
    p[np.arange(len(score)), score.argmax(axis=1)] = 1.0 - FLOOR * (score.shape[1] - 1)
    return p


def simulate(
    n: int, simulations: int, rng: np.random.Generator
) -> Iterator[tuple[str, str, str, Interval, float]]:
    """Yield target, estimator, kind of interval, the interval and the truth, `simulations` times over."""
    for _ in range(simulations):
        world = World.invent(rng)
        log, kind = world.log(n, rng)
        q_hat = fit_reward_model(log, rng)
        low, high = -COST.max(), 1.0
        for name, target in world.targets.items():
            p_target, truth = target[kind], world.value(target)
            reach = largest_weight(log, p_target)
            if not p_target[np.arange(n), log.drawn].any():
                continue  # refused: the log says nothing of this target
            plain = [terms(log, p_target, estimator, q_hat) for estimator in ESTIMATORS]
            safe = [hedged(part, reach, log.reward.min(), log.reward.max()) for part in plain]
            for part, safe_part, resampled in zip(plain, safe, bootstrap(safe, rng, 500), strict=True):
                yield name, part.estimator, "default", normal(safe_part), truth
                yield name, part.estimator, "not hedged", normal(part), truth
                yield name, part.estimator, "bootstrap", resampled, truth
                if part.estimator != "snips":
                    yield name, part.estimator, "bernstein", bernstein(part, reach, low, high), truth


def main(simulations: int) -> None:
    """Print, for each sample size, target and estimator, coverage and mean width."""
    kinds = ("default", "not hedged", "bootstrap", "bernstein")
    print(f"share of {simulations} logs whose interval holds the truth (mean width)")
    print(f"{'n':>5}  {'target':<14} {'estimator':<10}" + "".join(f"{kind:>15}" for kind in kinds))
    rng = np.random.default_rng(2015)
    for n in (500, 1500):
        hits, widths = defaultdict(list), defaultdict(list)
        for target, estimator, kind, (low, high), truth in simulate(n, simulations, rng):
            for row in ((target, estimator), ("all", estimator)):
                hits[row, kind].append(low <= truth <= high)
                widths[row, kind].append(high - low)
        for row in sorted(dict.fromkeys(row for row, _ in hits), key=lambda row: row[0] == "all"):
            cells = (
                f"{np.mean(hits[row, kind]):.3f} ({np.mean(widths[row, kind]):.2f})"
                if (row, kind) in hits
                else "-"
                for kind in kinds
            )
            print(f"{n:>5}  {row[0]:<14} {row[1]:<10}" + "".join(f"{cell:>15}" for cell in cells))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
