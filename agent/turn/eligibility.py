"""Eligibility: which live arms may answer a request, by their switches and by what the request allows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from armwise.agent.turn.ask import Ask
from armwise.agent.turn.checked import CheckedAnswering
from armwise.arms.base import Query
from armwise.arms.llm import UNPROMPTED, Bound, Needs, writing
from armwise.arms.profile import Profile
from armwise.feedback.events import Mask

UNFILTERED = "cannot keep to a filter, or to who may see a passage"


class NoEligibleArmError(ValueError):
    """Every arm is disabled or excluded; nothing was decided."""


class OverloadedError(Exception):
    """Every arm that could be drawn is at its cap of searches; nothing was decided."""


@dataclass(frozen=True, slots=True)
class ArmInfo:
    """Properties of an arm that a turn reads before the arm runs.

    Attributes:
        backbones: Encoders whose embedding of the question it needs.
        features: Features of the arm in a context.
        enabled: Whether it is switched on.
        filters: Whether it applies the filter and the groups of a query.
        answering: How answers are written from its passages.
        protocols: Protocols of its language models, one for each; empty for an engine of this process.
        options: Options and tools of a request that all of its language models have; None: any.
        inputs: What they all read besides text; None: anything.
        cached: Whether its retrievals are cached.
        searched: Hash of what it searches and how: arms with equal hashes find the same passages; empty if
            unknown.
        bound: Most that a search spends.
        profiles: What is known of each of its sources, if the policy reads similarities; None: it has none.
        checked: How its answers are checked, and who answers where they fail; None: they are sent.
        searches: Whether it finds passages, which stand before the conversation in its prompts.
        sources: Names of the corpora that it searches; empty if it searches elsewhere.
    """

    backbones: frozenset[str] = frozenset()
    features: Mapping[str, float] = field(default_factory=dict)
    enabled: bool = True
    filters: bool = False
    answering: writing.Answering = field(default_factory=writing.Answering)
    protocols: tuple[str, ...] = ("",)
    options: frozenset[str] | None = None
    inputs: frozenset[str] | None = None
    cached: bool = False
    searched: str = ""
    bound: Bound = UNPROMPTED
    profiles: Sequence[Profile] | None = None
    checked: CheckedAnswering | None = None
    searches: bool = True
    sources: tuple[str, ...] = ()

    def missing(self, needs: Needs) -> frozenset[str]:
        """Return what its language models lack without which they cannot answer a request."""
        options = needs.hard if self.options is None else self.options
        inputs = needs.inputs if self.inputs is None else self.inputs
        return frozenset().union(*(needs.missing(protocol, options, inputs) for protocol in self.protocols))

    def does_without(self, needs: Needs) -> bool:
        """Return whether it lacks a tool of the request without which it answers nevertheless."""
        options = needs.soft if self.options is None else self.options
        return any(needs.does_without(protocol, options) for protocol in self.protocols)


def list_allowed(ask: Ask, arms: Mapping[str, ArmInfo]) -> tuple[list[str], dict[str, str]]:
    """Return the arms that are switched on, that a request allows, and whose models can do what it needs.

    Args:
        ask: The request.
        arms: The live arms.

    Returns:
        The arms that are left, and the others, each with the reason; none of these if the request forces an
        arm.

    Raises:
        NoEligibleArmError: No arm is left.
    """
    if ask.forced is not None:
        if ask.forced not in arms:
            raise NoEligibleArmError(f"arm {ask.forced!r} is no longer live; available: {', '.join(arms)}")
        return [ask.forced], {}
    masked: dict[str, str] = {
        name: why for name, info in arms.items() if (why := _find_reason(ask, name, info)) is not None
    }
    if ask.document.needs.soft:
        left = {name for name in arms if name not in masked}
        lacking = {name for name in left if arms[name].does_without(ask.document.needs)}
        if lacking != left:
            masked |= dict.fromkeys(sorted(lacking), Mask.UNSUPPORTED)
    if len(masked) == len(arms):
        raise NoEligibleArmError(describe_masked(masked))
    return [name for name in arms if name not in masked], masked


def _find_reason(ask: Ask, name: str, info: ArmInfo) -> str | None:
    """Return why an arm may not answer a request; None: it may."""
    if not info.enabled:
        return Mask.DISABLED
    if name in ask.excluded:
        return Mask.EXCLUDED
    if ask.allowed is not None and name not in ask.allowed:
        return Mask.NOT_ALLOWED
    return Mask.UNSUPPORTED if info.missing(ask.document.needs) else None


def describe_masked(masked: Mapping[str, str]) -> str:
    """Return the message for a request that no arm may answer.

    >>> describe_masked({"small": Mask.DISABLED, "large": Mask.CANNOT_FILTER})
    "no arm can answer: 'small' is disabled, 'large' cannot keep to a filter, or to who may see a passage"
    """
    reasons: dict[str, str] = {
        Mask.EXCLUDED: "is excluded by the request",
        Mask.NOT_ALLOWED: "is not among those that the request allows",
        Mask.DISABLED: "is disabled",
        Mask.CANNOT_FILTER: UNFILTERED,
        Mask.UNSUPPORTED: "lacks what the request needs",
    }
    return "no arm can answer: " + ", ".join(
        f"{name!r} {reasons.get(why, f'is left out ({why})')}" for name, why in masked.items()
    )


def must_filter(ask: Ask | Query, restricted: bool) -> bool:
    """Return whether a request needs arms that filter: it has a filter, or passages are restricted."""
    return restricted or ask.where is not None
