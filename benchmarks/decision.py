"""What it takes to decide and to learn, beside Vowpal Wabbit alone.

    python benchmarks/decision.py [--decisions 2000] [--rounds 5]

Ours is the whole decision: the policy's distribution, checked, the floor mixed in, and
the draw hashed from an id. The two peers stop at VW's probabilities: `VW predict` is
handed examples that are ready, `VW text` parses the same decision, already written, and
predicts. All policies have learned from the same 200 rewards.

To learn is to take in one reward of one decision, checked. Its peers are `VW text`, which
parses and learns, and the bare formula of Sherman and Morrison for one inverse and one
vector of weights, in numpy, handed vectors that are ready: what a linear bandit must do.

Rounds alternate between the sides, and a ratio is a side's median over its peer's median
in this run. A side that is slow makes fewer calls a round.
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

from armwise.agent.policies import (
    Policy,
    PolicySpec,
    Uniform,
    build_policy,
    choose,
    compute_served_distribution,
    sampling,
)
from armwise.agent.policies.vowpal import DEFAULT
from armwise.feedback.events import Context, Decision

ARMS = tuple(f"arm{i}" for i in range(10))
FEATURES = {name: {"steps": 1.0} for name in ARMS}
FLOOR = 0.01
SEED = 7

LONGEST_S = 0.5
"""What a side may take of a round."""


def specs(*, dense: bool) -> dict[str, PolicySpec]:
    """Return the policies; those that hash named features keep no columns for them where there are none."""
    columns = {"dims": 0} if dense else {}
    return {
        "uniform": PolicySpec(kind="uniform"),
        "fixed": PolicySpec(kind="fixed", params={"arm": ARMS[0]}),
        "epsilon_greedy": PolicySpec(kind="epsilon_greedy"),
        "vowpal": PolicySpec(kind="vowpal"),
        "linucb": PolicySpec(kind="linucb", params=columns),
        "linucb, disjoint": PolicySpec(kind="linucb", params={"shared": False, **columns}),
        "linear_thompson": PolicySpec(kind="linear_thompson", params=columns),
        "adaptive": PolicySpec(kind="adaptive"),
        "neural": PolicySpec(kind="neural"),
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
    policy = build_policy(spec, ARMS)
    for decision, reward in rewarded([seen[i % len(seen)] for i in range(200)], spec.kind):
        policy.learn(decision, reward)
    return policy


def rewarded(seen: list[Context], kind: str) -> list[tuple[Decision, float]]:
    """Return a uniform draw and a reward for each context."""
    rng = np.random.default_rng(SEED)
    share = (1.0 / len(ARMS),) * len(ARMS)
    drawn = [ARMS[i] for i in rng.integers(len(ARMS), size=len(seen))]
    decisions = [Decision(f"d-{i}", seen[i], ARMS, share, drawn[i], kind, 0) for i in range(len(seen))]
    return list(zip(decisions, rng.random(len(seen)).tolist(), strict=True))


def decide(policy: Policy, seen: list[Context], i: int) -> int:
    """Draw an arm as the service does."""
    return choose(
        compute_served_distribution(policy, seen[i], ARMS, FLOOR),
        sampling.uniform_from(f"decision-{i}", "salt"),
    )


def learn(policy: Policy, rows: list[tuple[Decision, float]], i: int) -> None:
    """Take in one reward."""
    policy.learn(*rows[i])


def as_text(context: Context, drawn: str = "", cost: float = 0.0) -> str:
    """Write a decision as VW's text; with the arm that was drawn, one to learn from."""
    named = context.features or {str(i): value for i, value in enumerate(context.embedding)}
    shared = " ".join(f"{name}:{value:.6f}" for name, value in named.items())
    lines = [f"shared |{'s' if context.features else 'e'} {shared}"]
    label = f"0:{cost}:{1.0 / len(ARMS)} "
    return "\n".join([*lines, *(f"{label if name == drawn else ''}|a {name} |f steps:1" for name in ARMS)])


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


def teachers(seen: list[Context]) -> dict[str, Callable[[int], Any]]:
    """Return the peers of learning."""
    vw = Workspace(arg_list=[*DEFAULT.split(), "--quiet"])
    rows = rewarded(seen, "vowpal")
    texts = [as_text(decision.context, decision.drawn, 1.0 - reward) for decision, reward in rows]
    vectors = [np.array([*context.features.values(), *context.embedding]) for context in seen]
    inverse, weights = np.eye(len(vectors[0])), np.zeros(len(vectors[0]))

    def bare(i: int) -> None:
        nonlocal inverse, weights
        x = vectors[i]
        gain = inverse @ x
        gain /= 1.0 + x @ gain
        weights = weights + gain * (rows[i][1] - weights @ x)
        inverse = inverse - np.outer(gain, inverse @ x)

    return {"numpy update": bare, "VW text": lambda i: vw.learn(texts[i])}


def measure(sides: dict[str, Callable[[int], Any]], calls: int, rounds: int) -> dict[str, np.ndarray]:
    """Time the calls of every side, in seconds; the first round only warms."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(rounds + 1):
        for name, side in sides.items():
            until = time.perf_counter() + LONGEST_S
            for i in range(calls):
                start = time.perf_counter()
                side(i)
                end = time.perf_counter()
                if round_:
                    taken[name].append(end - start)
                if end > until:
                    break
    return {name: np.array(seconds) for name, seconds in taken.items()}


def report(title: str, taken: dict[str, np.ndarray], peers: dict[str, str]) -> Table:
    """Return a table of times, and of their ratios to peers, under a heading each."""
    table = Table(title=title)
    for heading in ("", "p50 us", "p99 us", *peers.values()):
        table.add_column(heading, justify="right" if heading else "left")
    medians = {name: float(np.median(seconds)) for name, seconds in taken.items()}
    for name, seconds in taken.items():
        table.add_row(
            name,
            f"{1e6 * medians[name]:.1f}",
            f"{1e6 * float(np.quantile(seconds, 0.99)):.1f}",
            *(f"{medians[name] / medians[peer]:.2f}" for peer in peers),
        )
    return table


def main(
    decisions: Annotated[int, typer.Option(help="Decisions and rewards a round", min=50)] = 2000,
    rounds: Annotated[int, typer.Option(help="Rounds that count", min=1)] = 5,
) -> None:
    """Measure and print a table."""
    console = Console()
    for dims, dense in ((32, False), (32, True), (384, True)):
        drawn_contexts = contexts(decisions, dims, dense=dense)
        width = f"10 arms, {dims} {'dense' if dense else 'named'} features"
        policies = {name: taught(spec, drawn_contexts) for name, spec in specs(dense=dense).items()}
        sides = peers(drawn_contexts) | {
            name: partial(decide, policy, drawn_contexts) for name, policy in policies.items()
        }
        taken = measure(sides, decisions, rounds)
        goals = {"VW text": "/ text (goal 1.0)", "VW predict": "/ predict (reach 2.0)"}
        console.print(report(f"deciding: {width}", taken, goals))

        sides = teachers(drawn_contexts)
        for name, policy in policies.items():
            if not isinstance(policy, Uniform):
                sides[name] = partial(learn, policy, rewarded(drawn_contexts, policy.kind))
        taken = measure(sides, decisions, rounds)
        goals = {"numpy update": "/ update (goal 1.5)", "VW text": "/ text"}
        console.print(report(f"learning: {width}", taken, goals))


if __name__ == "__main__":
    typer.run(main)
