"""What steps record of a decision, written by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from armwise.feedback.events import Decision


def record(
    arms: Sequence[str] = (),
    *,
    floor: float | None = None,
    candidate: int = 0,
    share: float = 0.0,
    candidate_scores: Mapping[str, float] | None = None,
    shadow: Sequence[float] = (),
    incumbent: Sequence[float] = (),
    incumbent_share: float = 0.0,
    price: float = 0.0,
    costs: Sequence[float] = (),
    miss_costs: Sequence[float] = (),
    usd_weight: float = 0.0,
) -> dict[str, dict[str, Any]]:
    """The records of the steps that take part; numbers by arm are in the order of `arms`."""

    def by_arm(values: Sequence[float]) -> dict[str, float]:
        return dict(zip(arms, values, strict=False))

    steps: dict[str, dict[str, Any]] = {}
    if floor is not None:
        steps["floor"] = {"least": floor}
    if candidate or share:
        steps["canary"] = {"version": candidate, "share": share}
        if candidate_scores is not None:
            steps["canary"]["scores"] = dict(candidate_scores)
    if incumbent or shadow:
        steps["incumbent"] = {"shadow": by_arm(shadow)} if shadow else {}
        if incumbent or incumbent_share:
            steps["incumbent"] |= {"share": incumbent_share, "pmf": by_arm(incumbent)}
    if costs:
        steps["budget"] = {"price": price, "costs": by_arm(costs)}
    if miss_costs:
        steps["cache"] = {"usd_weight": usd_weight, "usd": by_arm(miss_costs)}
    return steps


def change(decision: Decision, **changes: Any) -> Decision:
    """Return a decision with other fields, those of its steps' records included; None removes a floor."""
    steps = {name: dict(fields) for name, fields in decision.steps.items()}
    own = {name: value for name, value in changes.items() if name in Decision.__dataclass_fields__}
    arms = own.get("arms", decision.arms)
    for name, value in changes.items():
        if name in own:
            continue
        if name == "floor" and value is None:
            steps.pop("floor", None)
            continue
        step, part = {
            "floor": ("floor", "least"),
            "candidate": ("canary", "version"),
            "share": ("canary", "share"),
            "candidate_scores": ("canary", "scores"),
            "shadow": ("incumbent", "shadow"),
            "incumbent": ("incumbent", "pmf"),
            "incumbent_share": ("incumbent", "share"),
            "price": ("budget", "price"),
            "costs": ("budget", "costs"),
            "miss_costs": ("cache", "usd"),
            "usd_weight": ("cache", "usd_weight"),
        }[name]
        if isinstance(value, tuple):
            value = dict(zip(arms, value, strict=False))
        steps.setdefault(step, {})[part] = value
    return replace(decision, steps=steps, **own)
