"""Eligibility: which live arms may answer a request, by their switches and by what the request allows."""

from collections.abc import Mapping
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
        profile: Embeddings of what its source is about, if the policy reads similarities.
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
    profile: Profile | None = None
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


def check_eligibility(
    ask: Ask, arms: Mapping[str, ArmInfo], *, restricted: bool = False
) -> tuple[list[str], dict[str, Mask]]:
    """Return the arms that are switched on, allowed by the request, and able to apply its filter.

    Args:
        ask: The request.
        arms: The live arms.
        restricted: Whether any passage of the corpus is restricted to groups.

    Returns:
        The eligible arms, and the others, each with the reason; none of these if the request forces an arm.

    Raises:
        NoEligibleArmError: No arm is left.
    """
    filtered = must_filter(ask, restricted)
    if ask.forced is not None:
        if ask.forced not in arms:
            raise NoEligibleArmError(f"arm {ask.forced!r} is no longer live; available: {', '.join(arms)}")
        if filtered and not arms[ask.forced].filters:
            raise NoEligibleArmError(f"arm {ask.forced!r} {UNFILTERED}")
        return [ask.forced], {}
    masked = _mask_ineligible(ask, arms, filtered=filtered)
    if len(masked) == len(arms):
        why = ", or cannot filter passages" if Mask.CANNOT_FILTER in masked.values() else ""
        raise NoEligibleArmError(f"no arm can answer: {', '.join(arms)} are all disabled or excluded{why}")
    return [name for name in arms if name not in masked], masked


def _mask_ineligible(ask: Ask, arms: Mapping[str, ArmInfo], *, filtered: bool) -> dict[str, Mask]:
    masked = dict[str, Mask]()
    for name, info in arms.items():
        if not info.enabled:
            masked[name] = Mask.DISABLED
        elif name in ask.excluded:
            masked[name] = Mask.EXCLUDED
        elif ask.allowed is not None and name not in ask.allowed:
            masked[name] = Mask.NOT_ALLOWED
        elif filtered and not info.filters:
            masked[name] = Mask.CANNOT_FILTER
        elif info.missing(ask.needs):
            masked[name] = Mask.UNSUPPORTED
    if ask.needs.soft:
        left = {name for name in arms if name not in masked}
        lacking = {name for name in left if arms[name].does_without(ask.needs)}
        if lacking != left:
            masked |= dict.fromkeys(sorted(lacking), Mask.UNSUPPORTED)
    return masked


def must_filter(ask: Ask | Query, restricted: bool) -> bool:
    """Return whether a request needs arms that filter: it has a filter, or passages are restricted."""
    return restricted or ask.where is not None
