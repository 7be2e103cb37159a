"""What was served, compared with a uniform choice and with each single arm: overall, over time, by kind.

Every judgement follows from the interval of a lead: the reward of what was served minus that of the
alternative, on the same decisions. All intervals of a comparison hold jointly and at every look, since a page
is viewed repeatedly, and the best arm is selected afterwards. So the error probability of 5 % is divided by
the number of intervals (Bonferroni), and each is a betting confidence sequence, as in the gate and a receipt.

A single arm is compared on the explored decisions for which it was eligible.

    evidence of decisions --compare--> ServedComparison --summarise_served--> a sentence
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from armwise.agent.config import KEPT_FLOOR, AppConfig
from armwise.agent.policies import FORM, select_kinds
from armwise.agent.reporting import PALETTE, write_further
from armwise.feedback.drift import Alarm
from armwise.feedback.log import Store
from armwise.feedback.ope import Interval, confidence_sequences
from armwise.feedback.ope.confidence_sequences import Evidence
from armwise.feedback.ope.intervals import Further, forecast_more
from armwise.feedback.registry import LiveArms, arm_sets, promotions

ERROR = 0.05
"""Largest probability that any interval of a comparison ever misses the true value."""

MOST_STRETCHES = 40
"""Most points of a learning curve."""

LEAST = 20
"""Fewest rewarded decisions of a point: the intervals are valid from a few dozen on."""

Estimate = tuple[float, Interval] | None


COLOURS = len(PALETTE)
"""Number of colours of arms; further arms repeat them."""


def number_colours(store: Store) -> dict[str, int]:
    """Read the arms from the log, and return the number of each arm's colour, on all pages and in reports."""
    return {name: number % COLOURS for number, name in enumerate(arm_sets.list_defined(store))}


def least_floor(store: Store, config: AppConfig) -> float:
    """Return the least probability of an eligible arm in the log of a configuration."""
    n_arms = max(1, len(config.actions), *(len(live.arms) for live in arm_sets.history(store)))
    kept = KEPT_FLOOR if promotions.had_automatic_canary(store) else 1.0
    return kept * config.explores.among(n_arms)


ENOUGH = 20.0
"""Effective number of rewards from which on an arm can be called the best by its estimate."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """What was served, compared with one alternative.

    Attributes:
        name: The arm; None: a uniform choice among the eligible arms.
        n: Rewarded decisions of the comparison.
        value: Estimated reward per decision of the alternative.
        interval: Interval of `value`.
        lead: Reward per decision of what was served, minus that of the alternative.
        low: Lower end of the lead.
        high: Upper end of the lead.
        more: Least and most further decisions until the two are distinguished; None: they are, or it takes
            more than the forecast covers.
        few: Whether it was drawn too rarely to be called the best by its estimate.
    """

    name: str | None
    n: int
    value: float
    interval: Interval
    lead: float
    low: float
    high: float
    more: Further | None
    few: bool = False

    @property
    def worse(self) -> bool:
        """Whether it is shown to earn less than what was served."""
        return self.low > 0.0

    @property
    def better(self) -> bool:
        """Whether it is shown to earn more than what was served."""
        return self.high < 0.0

    @property
    def amount(self) -> str:
        """The lead with its interval, in words."""
        return lead_in_words(self.lead, self.low, self.high)

    @property
    def doubt(self) -> str:
        """That the two cannot be told apart, and when they may be, in words; empty: they can."""
        if self.better or self.worse:
            return ""
        return f"cannot be told apart{say_when(self.more)}"


@dataclass(frozen=True, slots=True)
class ServedComparison:
    """What was served, and its alternatives.

    Attributes:
        decisions: Number of decisions served.
        explored: Decisions drawn from the policy's distribution; the others were forced, greedy or continued.
        rewarded: Explored decisions with a reward.
        earned: Mean reward with its interval, if there is a reward.
        uniform: The comparison with a uniform choice; None without a reward, or with a single arm.
        arms: The live arms that can be compared, the best estimate first; those that have hardly been drawn
            come last, however good theirs is.
        n_open: Explored decisions that are left out because they may still get feedback.
    """

    decisions: int
    explored: int
    rewarded: int
    earned: tuple[float, Interval] | None
    uniform: Alternative | None
    arms: tuple[Alternative, ...]
    n_open: int = 0

    @property
    def best(self) -> Alternative | None:
        """The arm with the largest estimate of those that were drawn often enough, if any can be compared."""
        return self.arms[0] if self.arms else None

    @property
    def best_in_words(self) -> str:
        """What `best` is, in words: the best single arm only if its interval is above those of all others."""
        if self.best is None:
            return ""
        near = [arm for arm in self.arms[1:] if arm.interval[1] >= self.best.interval[0]]
        if len(self.arms) == 1:
            return "the only arm that can be compared"
        if not near:
            return "the best single arm"
        others = near[0].name if len(near) == 1 else f"{len(near)} other arms"
        return f"the best estimate, but cannot be told apart from {others}"

    @property
    def compared(self) -> Alternative | None:
        """What the learning curve is drawn beside: the best arm; where there is none, a uniform choice."""
        return self.best or self.uniform


@dataclass(frozen=True, slots=True)
class CurveStretch:
    """Consecutive decisions, as a part of a learning curve.

    Attributes:
        begin: Number of decisions before the stretch.
        end: Number of decisions up to its end.
        lead: Reward per decision of what was served, minus that of `ServedComparison.compared`, over all
            decisions up to the end of the stretch; None: too few have a reward to exclude anything that is
            possible, or there is nothing to compare with.
        shares: Share of each arm in the explored decisions, in [0, 1].
    """

    begin: int
    end: int
    lead: Estimate
    shares: Mapping[str, float]


def compare(
    decisions: int,
    explored: int,
    most_arms: int,
    served: Evidence | None,
    uniform: Evidence | None,
    arms: Mapping[str, Evidence | None],
    *,
    n_open: int = 0,
) -> ServedComparison:
    """Compare what was served with a uniform choice and with each single arm.

    Args:
        decisions: Number of decisions served.
        explored: Decisions drawn from the policy's distribution.
        most_arms: Largest number of eligible arms.
        served: The rewarded decisions, each with the weight 1; None: there is none.
        uniform: The rewarded decisions, with the weights of a uniform choice.
        arms: For each alternative arm, the rewarded decisions for which it was eligible, with its weights.
        n_open: Explored decisions that may still get feedback.
    """
    several = most_arms > 1
    error = divide_error(len(arms)) if several else ERROR
    chance = alternative(None, uniform, decisions, error) if several else None
    alternatives = [
        arm
        for name, evidence in arms.items()
        if several and (arm := alternative(name, evidence, decisions, error)) is not None
    ]
    ranked = tuple(sorted(alternatives, key=lambda arm: (arm.few, -arm.value, arm.name or "")))
    rewarded = 0 if served is None else len(served.reward)
    earned = None if served is None else estimate_value(served, error)
    return ServedComparison(decisions, explored, rewarded, earned, chance, ranked, n_open)


def divide_error(n_arms: int) -> float:
    """Return the error of each interval: of the reward, a uniform choice, and each of some arms (Bonferroni).

    >>> divide_error(3)
    0.01
    """
    return ERROR / (2 + n_arms)


def alternative(
    name: str | None, evidence: Evidence | None, decisions: int, error: float
) -> Alternative | None:
    """Return the comparison with an alternative; None if no decision that drew it has a reward.

    Args:
        name: Name of the arm; None: a uniform choice.
        evidence: The rewarded decisions for which it was eligible, with its weights.
        decisions: Number of decisions so far.
        error: Probability that its interval misses.
    """
    if evidence is None or not evidence.weight.any():
        return None
    (value, interval), (lead, (low, high)) = estimate_value(evidence, error), estimate_lead(evidence, error)
    few = float(evidence.weight.sum() ** 2) < ENOUGH * float(evidence.weight @ evidence.weight)
    more = None if low > 0.0 or high < 0.0 else forecast_more(abs(lead), (high - low) / 2.0, decisions)
    return Alternative(name, len(evidence.reward), value, interval, lead, low, high, more, few)


def estimate_value(evidence: Evidence, error: float) -> tuple[float, Interval]:
    """Return the self-normalised mean of what a target earns, and its interval at every look."""
    found = confidence_sequences.value(evidence, 1.0 - error, rows=np.array([len(evidence.reward)]))
    average = float(evidence.weight @ evidence.reward / evidence.weight.sum())
    return average, (min(float(found.low[0]), average), max(float(found.high[0]), average))


def estimate_lead(evidence: Evidence, error: float) -> tuple[float, Interval]:
    """Return what was earned beyond a target, and its interval at every look."""
    return estimate_leads(evidence, error, [len(evidence.reward)])[0]


def estimate_leads(evidence: Evidence, error: float, rows: Sequence[int]) -> list[tuple[float, Interval]]:
    """Return `estimate_lead` after some numbers of rows, which rise; the target was drawn among the first."""
    last = np.array(rows)
    found = confidence_sequences.difference(evidence, 1.0 - error, rows=last)
    served, weight, target = (
        np.cumsum(column)[last - 1]
        for column in (evidence.reward, evidence.weight, evidence.weight * evidence.reward)
    )
    leads = served / last - target / weight
    columns = (values.tolist() for values in (leads, -found.high, -found.low))
    return [(lead, (min(low, lead), max(high, lead))) for lead, low, high in zip(*columns, strict=True)]


# -- in words -------------------------------------------------------------------------------------


NAMED = 3
"""Most arms named in a sentence."""


def summarise_served(found: ServedComparison, subject: str = "It") -> str:
    """Return a summary of a comparison, in one or two sentences.

    Args:
        found: The comparison.
        subject: Subject of the first sentence.
    """
    if not found.decisions:
        return "Nothing was asked yet."
    if not found.explored:
        reason = "callers named the arm, or asked for the most probable one"
        return f"The policy has not drawn yet: in all of {format_decisions(found.decisions)}, {reason}."
    sentence = _describe_result(found, subject)
    if not found.n_open:
        return sentence
    share = 100.0 * found.n_open / found.explored
    still = f"the feedback window of {format_decisions(found.n_open)} ({share:.0f} %) is still open"
    if found.earned is None:
        return f"Nothing can be estimated yet: {still}. They count once it has closed."
    return f"{sentence} {still[0].upper()}{still[1:]}: they count once it has closed."


def _describe_result(found: ServedComparison, subject: str) -> str:
    """Return the result on the settled decisions, in a sentence."""
    if found.earned is None:
        return f"Of {format_decisions(found.decisions)} none has a reward yet: send feedback on some answers."
    earned = f"{found.earned[0]:.3f} a decision"
    if found.uniform is None:
        return (
            f"{subject} earns {earned}. A single arm can be drawn, so there is nothing to learn from rewards."
        )
    better = [arm for arm in found.arms if arm.better]
    if better:
        worst = min(better, key=lambda arm: arm.lead)
        return f"{subject} earns {earned}, {worst.amount} than always using {worst.name} would."
    others = _arms(found.arms)
    uniform = found.uniform
    if uniform.better or uniform.worse:
        return f"{subject} earns {earned}, {uniform.amount} than a uniform choice{others}."
    if any(arm.worse for arm in found.arms):
        return f"{subject} earns {earned}, which cannot be told apart from a uniform choice{others}."
    so_far = f"So far it earns {earned}, {uniform.amount} than a uniform choice"
    return f"{so_far}: the two cannot be told apart{say_when_decided(found)}."


def say_when_decided(found: ServedComparison) -> str:
    """Return when an alternative can be told apart, to end a sentence; empty: it cannot be foreseen."""
    choices = [choice for choice in (found.uniform, *found.arms) if choice is not None]
    forecasts = [choice.more for choice in choices if choice.more is not None]
    return say_when(min(forecasts, key=lambda more: more[0], default=None))


def say_when(more: Further | None) -> str:
    """Return how many more decisions it takes to distinguish two choices, to end a sentence; empty for None.

    >>> say_when((43, 1_300)), say_when(None)
    (' yet: that takes about 43 to 1,300 more decisions', '')
    """
    return "" if more is None else f" yet: that takes {write_further(more)}"


def format_decisions(n: int) -> str:
    """Return a number of decisions in words.

    >>> format_decisions(1), format_decisions(1_200)
    ('1 decision', '1,200 decisions')
    """
    return f"{n:,} decision{'' if n == 1 else 's'}"


def lead_in_words(lead: float, low: float, high: float) -> str:
    """Return a lead with its interval in words: how much more or less, or that it may be either.

    >>> lead_in_words(-0.05, -0.08, -0.02), lead_in_words(0.05, -0.02, 0.12)
    ('0.050 (0.020 to 0.080) less', 'between 0.020 less and 0.120 more')
    """
    if low <= 0.0 <= high:
        return f"between {-low:.3f} less and {high:.3f} more"
    ends = sorted((abs(low), abs(high)))
    return f"{abs(lead):.3f} ({ends[0]:.3f} to {ends[1]:.3f}) {'more' if lead > 0 else 'less'}"


def name_alternative(beside: Alternative) -> str:
    """Return an alternative in words.

    >>> name_alternative(Alternative("bm25", 9, 0.5, (0.4, 0.6), 0.1, 0.0, 0.2, None))
    'always bm25'
    """
    return "a uniform choice" if beside.name is None else f"always {beside.name}"


def _arms(arms: Sequence[Alternative]) -> str:
    """Return the result for the single arms when none is better, as the end of a sentence."""
    if not arms:
        return ""
    worse = [arm for arm in arms if arm.worse]
    if len(worse) == len(arms):
        nearest = min(worse, key=lambda arm: arm.lead)
        return f"; it earns more than any single arm, {nearest.amount} than {nearest.name}"
    if not worse:
        return "; no single arm is shown to be better or worse"
    names = " or ".join(sorted(arm.name or "" for arm in worse)) if len(worse) <= NAMED else ""
    those = f"always using {names}" if names else f"{len(worse)} of {len(arms)} single arms"
    return f"; it earns more than {those}, and no other single arm is shown to be better or worse"


# -- what changed ---------------------------------------------------------------------------------


def list_changes(
    live: Iterable[LiveArms], promoted: Iterable[promotions.Promotion], alarms: Iterable[Alarm]
) -> list[tuple[float, str]]:
    """Return the time and the sentence of each change, in order of time."""
    # arms that a version brought became live by its promotion, which has a sentence
    return sorted(
        [
            *((arm_set.at, _about_arms(arm_set)) for arm_set in live if arm_set.version is None),
            *((promotion.at, _about_promotion(promotion)) for promotion in promoted),
            *((alarm.at, _about_alarm(alarm)) for alarm in alarms),
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


# -- kinds of questions ---------------------------------------------------------------------------


MOST_KINDS = 8
"""Most kinds shown by name; the others are summed up."""

OTHERS = "all others"


@dataclass(frozen=True)
class KindShares:
    """The arms drawn for one kind of question.

    Attributes:
        name: Value of the feature that defines the kind.
        n: Explored decisions of the kind.
        shares: Share of each drawn arm, in [0, 1].
    """

    name: str
    n: int
    shares: Mapping[str, float]


def shares_by_kind(draws: Sequence[tuple[str, Mapping[str, float]]]) -> tuple[str, list[KindShares]]:
    """Return a feature that divides questions into kinds, and the shares of the arms by its values.

    A feature with more than one value is preferred; then one that callers send over one that is computed from
    the question; then the most frequent one.

    Args:
        draws: Drawn arm of each decision, and the named features of its question.

    >>> who, how = {"ask=who": 1.0}, {"ask=how": 1.0, "w=x": 1.0}
    >>> shares_by_kind([("a", who), ("b", who), ("b", how)])[1]
    [KindShares(name='who', n=2, shares={'a': 0.5, 'b': 0.5}), KindShares(name='how', n=1, shares={'b': 1.0})]
    """
    feature, rows = rows_by_kind([features for _, features in draws])
    counts = {value: Counter(draws[row][0] for row in held) for value, held in rows.items()}
    return feature, [
        KindShares(value, drawn.total(), {arm: n / drawn.total() for arm, n in sorted(drawn.items())})
        for value, drawn in counts.items()
    ]


def rows_by_kind(questions: Sequence[Mapping[str, float]]) -> tuple[str, dict[str, list[int]]]:
    """Return the feature that divides questions into kinds (`shares_by_kind`), and the questions by value.

    Args:
        questions: Named features of each question.

    Returns:
        The feature, and the indices of the questions of each value, the most frequent value first and
        `OTHERS` last; an empty name and mapping if no feature names a kind.

    >>> rows_by_kind([{"tier=pro": 1.0}, {"tier=free": 1.0}, {"tier=pro": 1.0}, {}])
    ('tier', {'pro': [0, 2], 'free': [1], 'all others': [3]})
    """
    named = [select_kinds(features) for features in questions]
    heads = Counter(head for kinds in named for head in {head for head, _ in kinds})
    if not heads:
        return "", {}
    values_of = Counter(head for head, _ in {kind for kinds in named for kind in kinds})
    forms = {name.partition("=")[0] for name in FORM}
    feature = max(heads, key=lambda head: (values_of[head] > 1, head not in forms, heads[head], head))
    counts = Counter(value for kinds in named for head, value in kinds if head == feature)
    shown = [value for value, _ in counts.most_common(MOST_KINDS)]
    rows = defaultdict[str, list[int]](list)
    for row, kinds in enumerate(named):
        values = [value for head, value in kinds if head == feature] or [OTHERS]
        for value in {value if value in shown else OTHERS for value in values}:
            rows[value].append(row)
    return feature, {value: rows[value] for value in (*shown, OTHERS) if value in rows}
