"""What was served beside a uniform choice and each single arm, from sums of the log, in one sentence.

Every judgement follows from an interval of a lead: what was served less what the alternative would have
earned, on the same decisions. All intervals of a comparison hold together, and at every look: a page is
looked at again and again, and the best of several arms is known only afterwards. So the error probability of
5 % is divided by the number of intervals (Bonferroni), and each is an asymptotic confidence sequence.

A single arm is compared on the decisions for which it could be drawn, and no other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from armwise.agent.config import AppConfig
from armwise.feedback.log import Store
from armwise.feedback.ope import Interval, Weighted, confidence_sequences, intervals
from armwise.feedback.registry import promotions

ERROR = 0.05
"""Largest probability that any interval of a comparison ever misses."""

MOST_MORE = 20
"""Decisions that are announced at most, as a multiple of those at hand: beyond, nothing is foreseen."""


def least_floor(store: Store, config: AppConfig) -> float:
    """Return the least probability that an arm could be drawn with in the log of a configuration."""
    return config.least_floor if promotions.had_automatic_canary(store) else config.floor


@dataclass(frozen=True, slots=True)
class Alternative:
    """What was served beside one alternative.

    Attributes:
        name: The arm; None for a uniform choice among the arms that could be drawn.
        n: Rewarded decisions on which both are compared.
        value: Estimated reward a decision of the alternative.
        interval: Interval of it.
        lead: Reward a decision of what was served beyond the alternative, on these decisions.
        low: Lower end of the lead.
        high: Upper end of it.
        more: Further decisions that it takes at least to distinguish the two, if the lead is as estimated;
            None where they are distinguished, or where that is out of sight.
    """

    name: str | None
    n: int
    value: float
    interval: Interval
    lead: float
    low: float
    high: float
    more: int | None

    @property
    def worse(self) -> bool:
        """Whether it is shown to earn less than what was served."""
        return self.low > 0.0

    @property
    def better(self) -> bool:
        """Whether it is shown to earn more than what was served."""
        return self.high < 0.0


@dataclass(frozen=True, slots=True)
class ServedComparison:
    """What was served, and its alternatives.

    Attributes:
        decisions: Decisions that were served.
        explored: Those of them that were drawn from the policy's distribution; the others were forced.
        rewarded: Those of the explored ones that have a reward.
        most_arms: Number of arms that could be drawn at most.
        earned: Mean reward with its interval; None without a reward.
        uniform: A uniform choice; None without a reward, or with a single arm.
        arms: The live arms that can be compared, the best estimate first.
        n_open: Explored decisions that may still get feedback, and are in no figure.
    """

    decisions: int
    explored: int
    rewarded: int
    most_arms: int
    earned: tuple[float, Interval] | None
    uniform: Alternative | None
    arms: tuple[Alternative, ...]
    n_open: int = 0

    @property
    def best(self) -> Alternative | None:
        """The arm with the largest estimate; None where none can be compared."""
        return self.arms[0] if self.arms else None


def compare(
    decisions: int,
    explored: int,
    most_arms: int,
    uniform: Weighted,
    arms: Mapping[str, Weighted],
    *,
    n_open: int = 0,
    fewest_arms: int = 2,
    floor: float,
    rewards: Interval,
) -> ServedComparison:
    """Compare what was served with a uniform choice and with each single arm.

    Args:
        decisions: Decisions that were served.
        explored: Those that were drawn from the policy's distribution.
        most_arms: Number of arms that could be drawn at most.
        uniform: Sums over all rewarded decisions, with the weights of a uniform choice.
        arms: For each arm that is an alternative, sums over those for which it could be drawn.
        n_open: Explored decisions that may still get feedback.
        fewest_arms: Number of arms that could be drawn at least, where it was not a single one.
        floor: Least probability of an arm that could be drawn.
        rewards: Smallest and largest possible reward.
    """
    several = most_arms > 1
    error = ERROR / (1 + (1 + len(arms) if several else 0))
    rewarded = uniform.n
    reach = 1.0 / (fewest_arms * floor)
    chance = alternative(None, uniform, decisions, reach, rewards, error) if several else None
    alternatives = [
        arm
        for name, sums in arms.items()
        if several and (arm := alternative(name, sums, decisions, 1.0 / floor, rewards, error)) is not None
    ]
    ranked = tuple(sorted(alternatives, key=lambda arm: (-arm.value, arm.name or "")))
    earned = None
    if rewarded:
        mean = uniform.r / rewarded
        sums = Weighted(
            *(rewarded, uniform.r, uniform.r2, rewarded, uniform.r, rewarded, uniform.r, uniform.r2),
            uniform.r2,
        )
        earned = mean, _interval(sums, 1.0, rewards, error)
    return ServedComparison(decisions, explored, rewarded, most_arms, earned, chance, ranked, n_open)


def alternative(
    name: str | None, sums: Weighted, decisions: int, reach: float, rewards: Interval, error: float
) -> Alternative | None:
    """Return an alternative; None where no decision that drew it has a reward.

    Args:
        name: Name of the arm; None for a uniform choice.
        sums: Sums over the rewarded decisions for which it could be drawn, with its weights.
        decisions: Decisions so far, of which further ones are counted.
        reach: Largest weight that a decision could have had.
        rewards: Smallest and largest possible reward.
        error: Probability with which its interval may miss.
    """
    if sums.n < 1 or sums.w <= 0.0:
        return None
    errors = confidence_sequences.asymptotic_errors(sums.n, 1.0 - error)
    estimate = intervals.lead_from_sums(sums, reach=reach, rewards=rewards, errors=errors)
    assert estimate is not None
    lead, (low, high) = estimate
    value, interval, most = sums.wr / sums.w, _interval(sums, reach, rewards, error), rewards[1] - rewards[0]
    ends = max(-most, low), min(most, high)
    return Alternative(name, sums.n, value, interval, lead, *ends, _more(lead, low, high, decisions))


def _interval(sums: Weighted, reach: float, rewards: Interval, error: float) -> Interval:
    errors = confidence_sequences.asymptotic_errors(sums.n, 1.0 - error)
    estimate = sums.estimate(reach=reach, rewards=rewards, errors=errors)
    assert estimate is not None
    return estimate[1]


def _more(lead: float, low: float, high: float, decisions: int) -> int | None:
    """Return how many more decisions it takes at least to distinguish a lead from 0.

    Widths fall with the square root of the number of decisions, or slower.

    >>> _more(0.1, -0.1, 0.3, 100), _more(0.1, 0.05, 0.15, 100), _more(0.0, -0.1, 0.1, 100)
    (300, None, None)
    """
    if low > 0.0 or high < 0.0 or lead == 0.0:
        return None
    factor = ((high - low) / (2.0 * abs(lead))) ** 2
    more = max(1, ceil(decisions * (factor - 1.0) - 1e-9))
    return more if more <= MOST_MORE * decisions else None


NAMED = 3
"""Arms that a sentence names at most."""

# -- in words ----------------------------------------------------------------------------------------


def summary_of(found: ServedComparison, subject: str = "It") -> str:
    """Return what is known of what was served, in one sentence or two.

    Args:
        found: The comparison.
        subject: What earns, to begin a sentence with.
    """
    if not found.decisions:
        return "Nothing was asked yet. The line begins with the first decision."
    if not found.explored:
        reason = "callers named the arm, or asked for the most probable one"
        return f"The policy has not drawn yet: in all of {_counted(found.decisions)}, {reason}."
    sentence = _known(found, subject)
    if not found.n_open:
        return sentence
    share = found.n_open / found.explored
    still = f"{_counted(found.n_open)} ({share:.0%} of the explored ones) may still get feedback"
    return f"{sentence} {still}, and count once their wait time has passed."


def _known(found: ServedComparison, subject: str) -> str:
    """Return what the settled decisions show."""
    if found.earned is None:
        return f"Too early to say: of {_counted(found.decisions)} none has a reward yet; feedback gives one."
    earned = f"{found.earned[0]:.3f} a decision"
    if found.uniform is None:
        return (
            f"{subject} earns {earned}. A single arm can be drawn, so there is nothing to learn from rewards."
        )
    better = [arm for arm in found.arms if arm.better]
    if better:
        worst = min(better, key=lambda arm: arm.lead)
        return f"{subject} earns {earned}, {_beside(worst)} than always using {worst.name} would."
    others = _arms(found.arms)
    uniform = found.uniform
    if uniform.better or uniform.worse:
        return f"{subject} earns {earned}, {_beside(uniform)} than a uniform choice{others}."
    if any(arm.worse for arm in found.arms):
        return f"{subject} earns {earned}, not distinguished from a uniform choice{others}."
    so_far = f"So far it earns {earned}, {_so_far(uniform)} than a uniform choice."
    return f"Too early to say: {awaited(found)}. {so_far}"


def awaited(found: ServedComparison) -> str:
    """Return how many more decisions it takes at least until an alternative is distinguished."""
    counts = [
        choice.more
        for choice in (found.uniform, *found.arms)
        if choice is not None and choice.more is not None
    ]
    if counts:
        return f"about {_counted(rounded(min(counts)), 'more ')} at least"
    return "how many more decisions it takes cannot be foreseen yet"


def rounded(n: int) -> int:
    """Return a number with two digits that count, rounded up.

    >>> rounded(7), rounded(43), rounded(1_234)
    (7, 43, 1300)
    """
    scale = int(10 ** max(0, len(str(n)) - 2))
    return -(-n // scale) * scale


def _counted(n: int, more: str = "") -> str:
    return f"{n:,} {more}decision{'' if n == 1 else 's'}"


def _beside(choice: Alternative) -> str:
    """Return a lead that is beyond doubt.

    >>> _beside(Alternative("a", 9, 0.5, (0.4, 0.6), -0.05, -0.08, -0.02, None))
    '0.050 (0.020 to 0.080) less'
    """
    ends = sorted((abs(choice.low), abs(choice.high)))
    return f"{abs(choice.lead):.3f} ({ends[0]:.3f} to {ends[1]:.3f}) {'more' if choice.lead > 0 else 'less'}"


def _so_far(choice: Alternative) -> str:
    """Return a lead that may be nothing.

    >>> _so_far(Alternative(None, 9, 0.5, (0.4, 0.6), 0.05, -0.02, 0.12, 100))
    'between 0.020 less and 0.120 more'
    """
    return f"between {-choice.low:.3f} less and {choice.high:.3f} more"


def _arms(arms: Sequence[Alternative]) -> str:
    """Return what is shown of the single arms, of which none is better, to end a sentence."""
    if not arms:
        return ""
    worse = [arm for arm in arms if arm.worse]
    if len(worse) == len(arms):
        nearest = min(worse, key=lambda arm: arm.lead)
        return f"; it earns more than any single arm, {_beside(nearest)} than {nearest.name}"
    if not worse:
        return "; no single arm is shown to be better or worse"
    names = " or ".join(sorted(arm.name or "" for arm in worse)) if len(worse) <= NAMED else ""
    those = f"always using {names}" if names else f"{len(worse)} of {len(arms)} single arms"
    return f"; it earns more than {those}, and no other single arm is shown to be better or worse"
