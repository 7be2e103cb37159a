"""What changed in a service, in sentences, and the colours of its arms, on pages and in reports."""

from collections.abc import Iterable

from armwise.agent.reporting import PALETTE
from armwise.feedback.clock import utc
from armwise.feedback.drift import Alarm
from armwise.feedback.guard import Fall
from armwise.feedback.log import Store
from armwise.feedback.registry import Digest, LiveArms, arm_sets, promotions

COLOURS = len(PALETTE)
"""Number of colours of arms; further arms repeat them."""


def number_colours(store: Store) -> dict[str, int]:
    """Return the number of each arm's colour, by the arms in the log. Raises LogUnavailableError."""
    return {name: number % COLOURS for number, name in enumerate(arm_sets.list_defined(store))}


def list_changes(
    live: Iterable[LiveArms],
    promoted: Iterable[promotions.Promotion],
    alarms: Iterable[Alarm],
    falls: Iterable[Fall] = (),
    failed: Iterable[Digest] = (),
    *,
    named: bool = True,
) -> list[tuple[float, str]]:
    """Return the time and the sentence of each change, in order of time.

    Args:
        live: Sets of arms.
        promoted: Promotions, rollbacks and canaries.
        alarms: Drift alarms.
        falls: Classes of requests that a guard sent back.
        failed: Digests that were not sent, or may not have arrived.
        named: Whether these classes are named, which callers of all projects have chosen.
    """
    # arms that a version brought became live by its promotion, which has a sentence
    return sorted(
        [
            *((arm_set.at, _about_arms(arm_set)) for arm_set in live if arm_set.version is None),
            *((promotion.at, _about_promotion(promotion)) for promotion in promoted),
            *((alarm.at, _about_alarm(alarm)) for alarm in alarms),
            *((fall.at, f"Guard: {fall.describe(named=named)}") for fall in falls),
            *((one.at, f"The digest until {utc(one.until)} failed: {one.why}.") for one in failed),
        ]
    )


def _about_arms(arm_set: LiveArms) -> str:
    moved = [
        f"{', '.join(names)} {verb}"
        for names, verb in (
            (arm_set.added, "can be drawn from now on"),
            (arm_set.removed, "can no longer be drawn"),
        )
        if names
    ]
    return f"{'Switch' if arm_set.switched else 'New set of arms'}: {'; '.join(moved)}."


def _about_promotion(promotion: promotions.Promotion) -> str:
    reason = f", because: {promotion.reason}" if promotion.reason else ""
    match promotion.action:
        case promotions.Action.PROMOTE:
            return f"Promotion of version {promotion.version}{_say_unjudged(promotion)}{reason}"
        case promotions.Action.ROLLBACK:
            return f"Rollback to version {promotion.version}{reason}"
        case promotions.Action.CANARY if promotion.share:
            by_itself = ", by itself," if promotion.automatic else ""
            return (
                f"Canary: version {promotion.version}{by_itself} has {promotion.share:.0%} "
                f"of the traffic{reason}"
            )
        case promotions.Action.CANARY:
            return f"End of the canary of version {promotion.version}{reason}"


def _say_unjudged(promotion: promotions.Promotion) -> str:
    by_operator = promotion.forced and not promotion.automatic  # a first start has no traffic to be judged by
    return " without the gate's consent" if by_operator else ""


def _about_alarm(alarm: Alarm) -> str:
    return f"Drift alarm: {alarm.subject} was {alarm.before:.3g} and is {alarm.after:.3g}."
