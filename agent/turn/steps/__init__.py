"""The steps of a turn: its optional parts, one file each.

A service has the steps of `BUILT_IN` that its configuration asks for, in this order, and then its own ones.
Those with `is_last` come after these. Remove a file and its line here, and a service without that part
remains.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np

from armwise.agent.policies import Policy, PolicyError, compute_served_distribution, sampling
from armwise.agent.turn.steps.base import (
    Array,
    Draft,
    DrawInputs,
    DrawTerms,
    StepError,
    StepRecord,
    TurnStep,
)
from armwise.agent.turn.steps.workers import Workers
from armwise.feedback.events import Context, Decision

BUILT_IN = {
    "groups": "groups:GroupStep",
    "sticky": "sticky:StickyStep",
    "incumbent": "incumbent:IncumbentStep",
    "canary": "canary:CanaryStep",
    "floor": "floor:FloorStep",
    "budget": "budget:BudgetStep",
    "cache": "cache:CacheStep",
    "dial": "dial:DialStep",
    "guard": "guard:GuardStep",
    "checks": "checks:CheckStep",
    "signals": "signals:Signals",
    "second_answers": "second_answers:SecondAnswers",
    "health": "health:HealthStep",
}
"""Module and class of each step by its name, in the order of a turn.

The order counts: a canary changes the floor that is planned after it, and second answers are signals, too.
"""

__all__ = [
    "BUILT_IN",
    "Array",
    "Draft",
    "DrawInputs",
    "DrawTerms",
    "StepError",
    "StepRecord",
    "TurnStep",
    "Workers",
    "bind",
    "compute_distribution",
    "load_built_in",
    "weigh_arms",
    "wire_steps",
]


@lru_cache
def load_built_in() -> tuple[type[TurnStep], ...]:
    """Return the classes of `BUILT_IN`, in order."""
    places = (place.split(":") for place in BUILT_IN.values())
    return tuple(getattr(import_module(f"{__name__}.{module}"), name) for module, name in places)


def wire_steps(own: Iterable[TurnStep], **parts: Any) -> tuple[TurnStep, ...]:
    """Return the steps of a service: its own ones among the built-in ones that its configuration asks for.

    Args:
        own: Steps that the service names itself.
        parts: What built-in steps are made of, by the names of the parameters of their `build`. A step that
            names `earlier` gets the built-in steps before it, by name.

    Raises:
        KeyError: A part is missing.
    """
    made: dict[str, TurnStep] = {}
    parts["earlier"] = made
    for kind in load_built_in():
        named = signature(kind.build).parameters.values()
        wanted = {part.name: parts[part.name] for part in named if part.kind is part.KEYWORD_ONLY}
        if (step := kind.build(**wanted)) is not None:
            made[kind.name] = step
    early, late = ([step for step in made.values() if step.is_last is last] for last in (False, True))
    return (*early, *own, *late)


def weigh_arms(
    records: Mapping[str, Mapping[str, Any]], steps: Sequence[TurnStep | type[TurnStep]], arms: Sequence[str]
) -> Sequence[float]:
    """Return the reward that each arm loses by the records of a decision; empty: none loses any."""
    total: Sequence[float] = ()
    for step in steps:
        if step.name in records and (weights := step.weigh(records[step.name], arms)):
            total = [a + b for a, b in zip(total, weights, strict=True)] if total else weights
    return total


def bind(p: Array, decision: Decision, arms: Sequence[str], floor: float) -> Array:
    """Return the distribution of another policy, changed by the steps that bind every policy.

    Args:
        p: The distribution, floor mixed in, shape (n_arms,).
        decision: A logged decision, with the records of its steps.
        arms: The arms that it is over.
        floor: Least probability of an arm.
    """
    for step in load_built_in() if decision.steps else ():
        if step.binds_all and step.name in decision.steps:
            draw = DrawInputs(decision.context, arms, floor, (), dict[int, Policy]().__getitem__)
            p = step.distribute(dict(decision.steps[step.name]), draw, p)
    return p


def compute_distribution(
    records: Mapping[str, StepRecord],
    steps: Sequence[TurnStep | type[TurnStep]],
    context: Context,
    arms: Sequence[str],
    version: int,
    find_policy: Callable[[int], Policy],
    certain: str | None = None,
) -> Array:
    """Return the distribution that an arm is drawn from, shape (n_arms,).

    Args:
        records: What steps do in the draw, by name; steps may add numbers that follow from it.
        steps: The steps, in order; those without a record take no part.
        context: The input of the policy.
        arms: The arms that may be drawn, at least one.
        version: Version of the policy.
        find_policy: Version -> its policy. Raises LookupError.
        certain: The arm that is certain before the draw; None: one is to be chosen.

    Raises:
        PolicyError: The policy, or a step, returned no distribution over the arms.
        StepError: A step cannot take part.
        ValueError: The log lacks what the distribution was computed from.
    """
    penalty = weigh_arms(records, steps, arms)
    floor = records.get("floor", {}).get("least", 0.0)
    draw = DrawInputs(context, arms, floor, penalty, find_policy)
    if certain is None:
        p = compute_served_distribution(find_policy(version), context, arms, floor, penalty)
    else:
        p = np.array([float(arm == certain) for arm in arms])
    for step in steps:
        if step.name in records:
            p = step.distribute(records[step.name], draw, p)
    if p.shape != (len(arms),) or not abs(p.sum() - 1.0) <= sampling.TOLERANCE or p.min() < 0.0:
        raise PolicyError(f"the steps {', '.join(records)} returned no distribution: {p.tolist()}")
    return p
