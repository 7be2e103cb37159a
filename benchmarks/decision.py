"""What it takes to decide: from features to a drawn arm, beside Vowpal Wabbit alone.

    python benchmarks/decision.py [--decisions 2000] [--rounds 5]

Ours is the whole decision: the policy's distribution, checked, the floor mixed in, and
the draw hashed from an id. The two peers stop at VW's probabilities: `VW predict` is
handed examples that are ready, `VW text` parses the same decision, already written, and
predicts. All policies have learned from the same 200 rewards. Rounds alternate between
the sides, and a ratio is a side's median over its peer's median in this run.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from vowpalwabbit import Workspace

from agent.policies.catalog import PolicySpec, build_policy
from agent.policies.vowpal import DEFAULT
from agent.policy import Policy, choose, served_distribution, uniform_from
from feedback.events import Context, Decision

ARMS = tuple(f"arm{i}" for i in range(10))
FEATURES = {name: {"steps": 1.0} for name in ARMS}
FLOOR = 0.01
SEED = 7

POLICIES = {
    "uniform": PolicySpec(kind="uniform"),
    "fixed": PolicySpec(kind="fixed", params={"arm": ARMS[0]}),
    "epsilon_greedy": PolicySpec(kind="epsilon_greedy"),
    "vowpal": PolicySpec(kind="vowpal"),
}


def contexts(n: int, dims: int, *, dense: bool) -> list[Context]:
    """Return contexts with so many features, as an embedding or by name."""
    rng = np.random.default_rng(SEED)
    rows = rng.normal(size=(n, dims)).astype(np.float32).tolist()
    if dense:
        return [Context("?", {}, tuple(row), FEATURES) for row in rows]
    return [Context("?", {f"x{i}": v for i, v in enumerate(row)}, (), FEATURES) for row in rows]


def taught(spec: PolicySpec, seen: list[Context]) -> Policy:
    """Return a policy that has learned from 200 uniform draws."""
    rng = np.random.default_rng(SEED)
    policy = build_policy(spec, ARMS)
    share = (1.0 / len(ARMS),) * len(ARMS)
    for i in range(200):
        drawn = ARMS[rng.integers(len(ARMS))]
        decision = Decision(f"d-{i}", seen[i % len(seen)], ARMS, share, drawn, spec.kind, 0)
        policy.learn(decision, float(rng.random()))
    return policy


def decide(policy: Policy, seen: list[Context], i: int) -> int:
    """Draw an arm as the service does."""
    return choose(served_distribution(policy, seen[i], ARMS, FLOOR), uniform_from(f"decision-{i}", "salt"))


def as_text(context: Context) -> str:
    """Write a decision as VW's text."""
    named = context.features or {str(i): value for i, value in enumerate(context.embedding)}
    shared = " ".join(f"{name}:{value:.6f}" for name, value in named.items())
    lines = [f"shared |{'s' if context.features else 'e'} {shared}"]
    return "\n".join([*lines, *(f"|a {name} |f steps:1" for name in ARMS)])


def peers(seen: list[Context]) -> dict[str, Callable[[int], Any]]:
    """Return VW alone, taught nothing: its speed does not depend on its weights."""
    vw = Workspace(arg_list=[*DEFAULT.split(), "--quiet"])
    texts = [as_text(context) for context in seen]
    ready = [vw.parse(text) for text in texts[:50]]

    def from_text(i: int) -> None:
        examples = vw.parse(texts[i])
        vw.predict(examples)
        vw.finish_example(examples)

    return {"VW predict": lambda i: vw.predict(ready[i % 50]), "VW text": from_text}


def measure(sides: dict[str, Callable[[int], Any]], decisions: int, rounds: int) -> dict[str, np.ndarray]:
    """Time every call of every side, in seconds; the first round only warms."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(rounds + 1):
        for name, side in sides.items():
            for i in range(decisions):
                start = time.perf_counter()
                side(i)
                if round_:
                    taken[name].append(time.perf_counter() - start)
    return {name: np.array(seconds) for name, seconds in taken.items()}


def main(
    decisions: Annotated[int, typer.Option(help="Decisions a round", min=50)] = 2000,
    rounds: Annotated[int, typer.Option(help="Rounds that count", min=1)] = 5,
) -> None:
    """Measure and print a table."""
    console = Console()
    for dims, dense in ((32, False), (32, True), (384, True)):
        seen = contexts(decisions, dims, dense=dense)
        sides = peers(seen)
        for name, spec in POLICIES.items():
            sides[name] = partial(decide, taught(spec, seen), seen)
        taken = measure(sides, decisions, rounds)
        table = Table(title=f"10 arms, {dims} {'dense' if dense else 'named'} features")
        for heading in ("", "p50 us", "p99 us", "/ text (goal 1.0)", "/ predict (reach 2.0)"):
            table.add_column(heading, justify="right" if heading else "left")
        medians = {name: float(np.median(seconds)) for name, seconds in taken.items()}
        for name, seconds in taken.items():
            table.add_row(
                name,
                f"{1e6 * medians[name]:.1f}",
                f"{1e6 * float(np.quantile(seconds, 0.99)):.1f}",
                f"{medians[name] / medians['VW text']:.2f}",
                f"{medians[name] / medians['VW predict']:.2f}",
            )
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
