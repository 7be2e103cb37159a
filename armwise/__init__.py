"""Sends each question to the cheapest source and model that answers it, and proves it from your log.

    from armwise import Client, LinUCB, choose, evaluate_arrays, ips

Each name is imported when it is first used: a program that uses only the client does not load the evaluation.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent.client import AsyncClient, Client, ClientError
    from .agent.policies import (
        Adaptive,
        EpsilonGreedy,
        LinearThompson,
        LinUCB,
        Policy,
        VowpalWabbit,
        choose,
        compute_served_distribution,
    )
    from .arms import Arm, ArmError, Passage, Query, Retrieval
    from .feedback import Context, Cost, Decision, RewardRule
    from .feedback.ope import Sample, dm, dr, evaluate_arrays, ips, snips, switch_dr

ROOMS = {
    "agent.client": ("AsyncClient", "Client", "ClientError"),
    "agent.policies": (
        *("Adaptive", "EpsilonGreedy", "LinUCB", "LinearThompson", "Policy", "VowpalWabbit"),
        *("choose", "compute_served_distribution"),
    ),
    "arms": ("Arm", "ArmError", "Passage", "Query", "Retrieval"),
    "feedback": ("Context", "Cost", "Decision", "RewardRule"),
    "feedback.ope": ("Sample", "dm", "dr", "evaluate_arrays", "ips", "snips", "switch_dr"),
}
"""The public names, by the package that defines them."""

__all__ = [
    "Adaptive",
    "Arm",
    "ArmError",
    "AsyncClient",
    "Client",
    "ClientError",
    "Context",
    "Cost",
    "Decision",
    "EpsilonGreedy",
    "LinUCB",
    "LinearThompson",
    "Passage",
    "Policy",
    "Query",
    "Retrieval",
    "RewardRule",
    "Sample",
    "VowpalWabbit",
    "choose",
    "compute_served_distribution",
    "dm",
    "dr",
    "evaluate_arrays",
    "ips",
    "snips",
    "switch_dr",
]


def __getattr__(name: str) -> Any:
    for room, names in ROOMS.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
