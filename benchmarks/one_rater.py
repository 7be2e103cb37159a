"""What does one key teach that lies about every answer?

    python benchmarks/one_rater.py [--honest 300] [--runs 20] [--seed 0]

Three arms are right .8, .5 and .2 of the time. The users of an application rate `--honest` answers. Then
another key asks, is drawn for as everybody, and rates each answer of the best arm 0 and all others 1: while
the application is silent, or while its users rate as often. The table has the share that the best arm is
drawn for, the mean of `--runs`, with and without the limit of `reward.rater_share`; what the limit leaves out
is not learned later, as if each deadline found no room. A minute of one core.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from armwise.agent.policies import Policy, PolicySpec, build_policy, choose, compute_served_distribution
from armwise.feedback.events import Context, Decision
from armwise.feedback.reward import RATER_SHARE
from armwise.feedback.training_log.raters import RaterShares

ARMS, RATES, FLOOR = ("a0", "a1", "a2"), (0.8, 0.5, 0.2), 0.01
CONTEXT = Context("?", {"w=what": 1.0}, (), {arm: {f"arm={arm}": 1.0} for arm in ARMS})
LOOKS = (0, 10, 30, 100, 300)
"""Ratings of the liar after which the share is read."""

KINDS: dict[str, dict[str, Any]] = {
    "adaptive": {"kind": "adaptive", "params": {"dims": 4}},
    "linucb": {"kind": "linucb", "params": {"dims": 4}},
    "vowpal": {"kind": "vowpal"},
}


@dataclass
class Teaching:
    """A policy that learns what raters have room for."""

    policy: Policy
    shares: RaterShares
    rng: np.random.Generator

    def rate(self, rater: str) -> None:
        """Draw an arm, have it rated, and learn the rating if it is within the share of the rater."""
        p = compute_served_distribution(self.policy, CONTEXT, ARMS, FLOOR)
        drawn = choose(p, self.rng.random())
        honest = float(self.rng.random() < RATES[drawn])
        reward = honest if rater == "application" else float(drawn != 0)
        has_room = self.shares.has_room(rater)
        self.shares.add(rater, learned=has_room)
        if has_room:
            self.policy.learn(Decision("d", CONTEXT, ARMS, tuple(p.tolist()), ARMS[drawn], "x", 1), reward)

    @property
    def best(self) -> float:
        """Share that the best arm is drawn for, the floor included."""
        return float(compute_served_distribution(self.policy, CONTEXT, ARMS, FLOOR)[0])


def course(spec: dict[str, Any], most: float, *, goes_on: bool, honest: int, seed: int) -> list[float]:
    """Return the share of the best arm at each look."""
    policy = build_policy(PolicySpec.model_validate(spec), ARMS)
    teaching = Teaching(policy, RaterShares(most), np.random.default_rng([seed, 7]))
    for _ in range(honest):
        teaching.rate("application")
    read = [teaching.best]
    for number in range(1, LOOKS[-1] + 1):
        if goes_on:
            teaching.rate("application")
        teaching.rate("liar")
        if number in LOOKS:
            read.append(teaching.best)
    return read


def main(
    honest: Annotated[int, typer.Option(min=1)] = 300,
    runs: Annotated[int, typer.Option(min=1)] = 20,
    seed: int = 0,
) -> None:
    """Print the table."""
    table = Table("policy", "application", "limit", *(f"{n:,} lies" for n in LOOKS), box=MARKDOWN)
    for name, spec in KINDS.items():
        for goes_on in (False, True):
            for most in (1.0, RATER_SHARE):
                seen = [
                    course(spec, most, goes_on=goes_on, honest=honest, seed=seed + run) for run in range(runs)
                ]
                shares = (f"{share:.2f}" for share in np.mean(seen, axis=0))
                limit = "none" if most == 1.0 else f"{most:g}"
                table.add_row(name, "goes on" if goes_on else "silent", limit, *shares)
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
