"""Which arms may answer a request: what a turn knows of them, and which of them the request leaves."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from armwise.agent.turn.ask import Ask
from armwise.arms.base import Query
from armwise.arms.llm import UNPROMPTED, Bound, base, writing
from armwise.arms.profile import Profile
from armwise.feedback.events import Mask

UNFILTERED = "cannot keep to a filter, or to who may see a passage"


class NoEligibleArmError(ValueError):
    """Every arm is disabled or excluded; nothing was decided."""


class OverloadedError(Exception):
    """Every arm that could be drawn is at its cap of searches; nothing was decided."""


@dataclass(frozen=True, slots=True)
class ArmInfo:
    """What the turn knows of an arm before it runs.

    Attributes:
        backbones: The embeddings that a query must have.
        features: Features of the arm in a context.
        enabled: Whether it is switched on.
        filters: Whether it finds only what a query permits.
        answering: How its answers are written.
        options: Names of the `Prompt.options` that its language model is given; None for any.
        cached: Whether what it finds is kept.
        searched: Hash of what it searches and how: arms that have it in common find the same; empty where
            that is not known.
        bound: Most that a search spends.
        profile: What its source is about; None where that is not looked at, or not known.
    """

    backbones: frozenset[str] = frozenset()
    features: Mapping[str, float] = field(default_factory=dict)
    enabled: bool = True
    filters: bool = False
    answering: writing.Answering = field(default_factory=writing.Answering)
    options: frozenset[str] | None = None
    cached: bool = False
    searched: str = ""
    bound: Bound = UNPROMPTED
    profile: Profile | None = None


def list_eligible(ask: Ask, arms: Mapping[str, ArmInfo], *, restricted: bool = False) -> list[str]:
    """Return the arms that are neither switched off nor excluded by the request, and keep to its filter.

    Args:
        ask: The request.
        arms: The live arms.
        restricted: Whether any passage is for some groups alone.

    Raises:
        NoEligibleArmError: There is none.
    """
    if ask.forced is not None:
        if ask.forced not in arms:
            raise NoEligibleArmError(f"arm {ask.forced!r} is not live any more; there are: {', '.join(arms)}")
        if must_filter(ask, restricted) and not arms[ask.forced].filters:
            raise NoEligibleArmError(f"arm {ask.forced!r} {UNFILTERED}")
        return [ask.forced]
    masked = mask_ineligible(ask, arms, restricted=restricted)
    if len(masked) == len(arms):
        why = ", or cannot filter passages" if Mask.CANNOT_FILTER in masked.values() else ""
        raise NoEligibleArmError(f"no arm is left of {', '.join(arms)}: all are disabled or excluded{why}")
    return [name for name in arms if name not in masked]


def mask_ineligible(ask: Ask, arms: Mapping[str, ArmInfo], *, restricted: bool = False) -> dict[str, Mask]:
    """Return the arms that are switched off, or that the request leaves out; none where it names one."""
    masked, options = {}, ask.options.keys() - base.HINTS
    for name, info in arms.items() if ask.forced is None else ():
        if not info.enabled:
            masked[name] = Mask.DISABLED
        elif name in ask.excluded:
            masked[name] = Mask.EXCLUDED
        elif ask.allowed is not None and name not in ask.allowed:
            masked[name] = Mask.NOT_ALLOWED
        elif must_filter(ask, restricted) and not info.filters:
            masked[name] = Mask.CANNOT_FILTER
        elif info.options is not None and options - info.options:
            masked[name] = Mask.UNSUPPORTED
    return masked


def must_filter(ask: Ask | Query, restricted: bool) -> bool:
    """Return whether a request is only for arms that find nothing but what it permits."""
    return restricted or ask.where is not None
