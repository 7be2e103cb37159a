"""How far off are clipped, switched and shrunk estimates, by the rule that chose their parameter?

    python benchmarks/shrinkage.py [300]

Each simulation invents a world of eight kinds of questions and six arms, lets a policy
with a floor log n decisions that earn 0 or 1, and estimates the value of another one,
which is known. Predictions are the mean reward of each arm, cross-fitted: a poor model.
"""

from collections import defaultdict
from typing import Annotated, get_args

import numpy as np
import typer

from armwise.feedback.arrays import Floats
from armwise.feedback.ope import Sample
from armwise.feedback.ope.estimators import (
    clipped_ips,
    cressie_read,
    dm,
    dr,
    dros,
    ips,
    replay,
    sndr,
    snips,
    switch_dr,
)
from armwise.feedback.ope.reward_model import cross_fit
from armwise.feedback.ope.shrinkage import Rule, fit_clip, fit_shrinkage, fit_threshold

KINDS, ARMS = 8, 6


def nearly_greedy(score: Floats, floor: float) -> Floats:
    """Put all but the floor on the best arm of each row."""
    p = np.full(score.shape, floor)
    p[np.arange(len(score)), score.argmax(axis=1)] += 1.0 - floor * score.shape[1]
    return p


def simulate(n: int, floor: float, rng: np.random.Generator) -> dict[str, float]:
    """Return the error of each estimate on one log, by name."""
    quality = rng.uniform(0.05, 0.95, (KINDS, ARMS))
    logging = nearly_greedy(quality + rng.normal(0.0, 0.3, quality.shape), floor)
    target = nearly_greedy(quality + rng.normal(0.0, 0.1, quality.shape), floor)
    kind = rng.integers(KINDS, size=n)
    p_log = logging[kind]
    drawn = (p_log.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=ARMS - 1)
    reward = (rng.random(n) < quality[kind, drawn]).astype(np.float64)
    q_hat = cross_fit(None, drawn, reward, np.arange(n), ARMS, rng, model="means")
    sample = Sample(p_log[np.arange(n), drawn], drawn, reward, target[kind], q_hat)
    values = {f.__name__: f(sample).value for f in (replay, ips, snips, cressie_read, dm, dr, sndr)}
    weight, residual, expected = sample.weight, sample.prediction.residual, sample.prediction.expected
    for rule in get_args(Rule):
        clip = fit_clip(weight, reward, rule)
        threshold = fit_threshold(weight, residual, expected, rule)
        shrinkage = fit_shrinkage(weight, residual, expected, rule)
        values[f"clipped_ips {rule}"] = clipped_ips(sample, clip=clip).value
        values[f"switch_dr {rule}"] = switch_dr(sample, threshold=threshold).value
        values[f"dros {rule}"] = dros(sample, shrinkage=shrinkage).value
    truth = float((target * quality).sum() / KINDS)
    return {name: value - truth for name, value in values.items()}


def main(
    simulations: Annotated[int, typer.Argument(help="Logs of each floor and size.", min=1)] = 300,
) -> None:
    """Print the root mean square error by estimate, floor and size of the log."""
    rng = np.random.default_rng(2020)
    settings = [(floor, n) for floor in (0.002, 0.02, 0.05) for n in (300, 3000, 20_000)]
    errors = defaultdict(list)
    for floor, n in settings:
        for _ in range(simulations):
            for name, error in simulate(n, floor, rng).items():
                errors[name, floor, n].append(error)
    print(f"root mean square error over {simulations} logs, by floor of both policies and rows")
    print(f"{'':<22}" + "".join(f"{f'{floor}, {n}':>14}" for floor, n in settings))
    for name in sorted(dict.fromkeys(name for name, _, _ in errors), key=lambda name: " " in name):
        cells = (np.sqrt(np.mean(np.square(errors[name, floor, n]))) for floor, n in settings)
        print(f"{name:<22}" + "".join(f"{cell:>14.4f}" for cell in cells))


if __name__ == "__main__":
    typer.run(main)
