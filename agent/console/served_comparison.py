"""What was served, compared with a uniform choice and with each single arm: overall, over time, by kind.

Every judgement follows from the interval of a lead: the reward of what was served minus that of the
alternative, on the same decisions. All intervals of a comparison hold jointly and at every look, since a page
is viewed repeatedly, and the best arm is selected afterwards. So the error probability of 5 % is divided by
the number of intervals (Bonferroni), and each is an asymptotic confidence sequence.

A single arm is compared on the explored decisions for which it was eligible.

    decisions, or sums of the log --> Served --comparison--> ServedComparison --summarise_served--> a sentence
                                        `------stretches---> a Stretch for each part of the course
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf, sqrt

import numpy as np
from typing_extensions import override

from armwise.agent.config import KEPT_FLOOR, AppConfig
from armwise.agent.policies import FORM, select_kinds
from armwise.feedback.arrays import Flags, Floats, Integers
from armwise.feedback.drift import Alarm, newest_alarms
from armwise.feedback.log import Store, listing
from armwise.feedback.ope import Interval, Weighted, confidence_sequences, intervals
from armwise.feedback.registry import LiveArms, Run, arm_sets, promotions, runs
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import rollups, settled

ERROR = 0.05
"""Largest probability that any interval of a comparison ever misses the true value."""

MOST_MORE = 20
"""Furthest forecast of further decisions, as a multiple of those so far."""

MOST_STRETCHES = 40
"""Most points of a learning curve."""

Estimate = tuple[float, Interval] | None


def least_floor(store: Store, config: AppConfig) -> float:
    """Return the least probability of an eligible arm in the log of a configuration."""
    n_arms = max(1, len(config.actions), *(len(live.arms) for live in arm_sets.history(store)))
    kept = KEPT_FLOOR if promotions.had_automatic_canary(store) else 1.0
    return kept * config.explores.among(n_arms)


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
        more: Further decisions needed at least to distinguish the two, if the lead is as estimated; None:
            they are distinguished, or it takes more than the forecast covers.
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
        decisions: Number of decisions served.
        explored: Decisions drawn from the policy's distribution; the others were forced, greedy or continued.
        rewarded: Explored decisions with a reward.
        earned: Mean reward with its interval, if there is a reward.
        uniform: The comparison with a uniform choice; None without a reward, or with a single arm.
        arms: The live arms that can be compared, the best estimate first.
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
        """The arm with the largest estimate, if any can be compared."""
        return self.arms[0] if self.arms else None


@dataclass(frozen=True, slots=True)
class CurveStretch:
    """Consecutive decisions, as a part of a learning curve.

    Attributes:
        begin: Number of decisions before the stretch.
        end: Number of decisions up to its end.
        served: Mean reward of what was served, if there is one.
        uniform: Estimated reward of a uniform choice, if it can be estimated.
        best: Estimated reward of the arm that is best over the entire log.
        shares: Share of each arm in the explored decisions, in [0, 1].
    """

    begin: int
    end: int
    served: Estimate
    uniform: Estimate
    best: Estimate
    shares: Mapping[str, float]

    @property
    def middle(self) -> float:
        """Number of the decision in the middle, counted from 1."""
        return (self.begin + 1 + self.end) / 2


class Served(ABC):
    """What was served, as rows: each is a decision, or the sums of decisions that drew the same arm.

    Args:
        n: Number of decisions.
        n_open: Explored decisions that may still get feedback.
        arms: Names of the drawn arms.
        drawn: Index of the arm that each row drew, shape (n_rows,).
        n_arms: Number of eligible arms, shape (n_rows,).
        explored: Number of explored decisions in each row, shape (n_rows,).
    """

    def __init__(
        self, n: int, n_open: int, arms: Sequence[str], drawn: Integers, n_arms: Integers, explored: Integers
    ) -> None:
        self.n, self.n_open, self.names = n, n_open, arms
        self.drawn, self.n_arms, self.explored = drawn, n_arms, explored

    @abstractmethod
    def having(self, arm: str) -> Flags:
        """Return the rows for which an arm was eligible, shape (n_rows,)."""

    @abstractmethod
    def sums(self, rows: Flags, target: Floats) -> Weighted:
        """Return weighted sums of the rewards of some rows.

        Args:
            rows: The selected rows, shape (n_rows,).
            target: Probability of each row's drawn arm under the target policy, shape (n_rows,).
        """

    @abstractmethod
    def cut(self, most: int) -> Iterator[tuple[int, int, Flags]]:
        """Yield stretches of about equal size: the decisions before it, those up to its end, and its rows.

        Args:
            most: Most stretches.
        """

    @property
    def everything(self) -> Flags:
        """All rows, shape (n_rows,)."""
        return np.ones(len(self.drawn), dtype=np.bool_)

    @property
    def alike(self) -> Floats:
        """Probability of the drawn arm under a uniform choice, shape (n_rows,)."""
        return np.divide(1.0, self.n_arms, out=np.zeros(len(self.n_arms)), where=self.n_arms > 0)

    def drew(self, arm: str) -> Flags:
        """Return the rows that drew an arm, shape (n_rows,)."""
        drawn: Flags = self.drawn == (self.names.index(arm) if arm in self.names else -1)
        return drawn

    def always(self, arm: str) -> Floats:
        """Return the probability of the drawn arm under a policy that always draws `arm`, shape (n_rows,)."""
        return self.drew(arm).astype(np.float64)

    def shares(self, rows: Flags) -> dict[str, float]:
        """Return the share of each arm in the explored decisions of some rows, in [0, 1]."""
        counts = np.bincount(self.drawn[rows], self.explored[rows], len(self.names))
        return {
            self.names[arm]: float(counts[arm] / counts.sum())
            for arm in sorted(np.flatnonzero(counts).tolist(), key=lambda arm: self.names[arm])
        }

    def comparison(self, names: Sequence[str], floor: float, rewards: Interval) -> ServedComparison:
        """Compare what was served with a uniform choice and with each of some arms.

        Args:
            names: The arms.
            floor: Least probability of an eligible arm.
            rewards: Smallest and largest possible reward.
        """
        several = self.n_arms[self.n_arms > 1]
        return compare(
            self.n,
            int(self.explored.sum()),
            int(self.n_arms.max(initial=0)),
            self.sums(self.everything, self.alike),
            {arm: self.sums(self.having(arm), self.always(arm)) for arm in names},
            n_open=self.n_open,
            fewest_arms=int(several.min()) if len(several) else 2,
            floor=floor,
            rewards=rewards,
        )

    def stretches(
        self, best: str | None, n_compared: int, floor: float, rewards: Interval
    ) -> tuple[CurveStretch, ...]:
        """Return the learning curve: stretches of about equal size, in order.

        Args:
            best: The best single arm of the comparison.
            n_compared: Number of arms that it was the best of.
            floor: Least probability of an eligible arm.
            rewards: Smallest and largest possible reward.
        """
        alike, level = self.alike, 1.0 - ERROR / max(1, n_compared)
        stretches = []
        for begin, end, rows in self.cut(min(MOST_STRETCHES, max(1, round(sqrt(self.n) / 2.5)))):
            uniform = self.sums(rows, alike)
            single: Estimate = None
            if best is not None:
                sums = self.sums(rows & self.having(best), self.always(best))
                single = sums.estimate(reach=1.0 / floor, rewards=rewards, level=level)
            stretches.append(
                CurveStretch(
                    begin,
                    end,
                    uniform.unweighted.estimate(reach=1.0, rewards=rewards),
                    uniform.estimate(reach=float(alike[rows].max(initial=0.0)) / floor, rewards=rewards),
                    single,
                    self.shares(rows),
                )
            )
        return tuple(stretches)


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
        decisions: Number of decisions served.
        explored: Decisions drawn from the policy's distribution.
        most_arms: Largest number of eligible arms.
        uniform: Sums over all rewarded decisions, with the weights of a uniform choice.
        arms: For each alternative arm, sums over the rewarded decisions for which it was eligible.
        n_open: Explored decisions that may still get feedback.
        fewest_arms: Smallest number of eligible arms above 1.
        floor: Least probability of an eligible arm.
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
        earned = uniform.r / rewarded, _interval(uniform.unweighted, 1.0, rewards, error)
    return ServedComparison(decisions, explored, rewarded, earned, chance, ranked, n_open)


def alternative(
    name: str | None, sums: Weighted, decisions: int, reach: float, rewards: Interval, error: float
) -> Alternative | None:
    """Return the comparison with an alternative; None if no decision that drew it has a reward.

    Args:
        name: Name of the arm; None: a uniform choice.
        sums: Sums over the rewarded decisions for which it was eligible, with its weights.
        decisions: Number of decisions so far.
        reach: Largest weight that a decision could have had.
        rewards: Smallest and largest possible reward.
        error: Probability that its interval misses.
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
    """Return how many more decisions are needed at least to distinguish a lead from 0; see `Alternative`.

    Widths fall with the square root of the number of decisions, or slower.

    >>> _more(0.1, -0.1, 0.3, 100), _more(0.1, 0.05, 0.15, 100), _more(0.0, -0.1, 0.1, 100)
    (300, None, None)
    """
    if low > 0.0 or high < 0.0 or lead == 0.0:
        return None
    factor = ((high - low) / (2.0 * abs(lead))) ** 2
    more = max(1, ceil(decisions * (factor - 1.0) - 1e-9))
    return more if more <= MOST_MORE * decisions else None


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
    """Return the result on the settled decisions, in a sentence."""
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
    """Return, in words, how many more decisions are needed to distinguish an alternative."""
    counts = [
        choice.more
        for choice in (found.uniform, *found.arms)
        if choice is not None and choice.more is not None
    ]
    if counts:
        return f"about {_counted(rounded(min(counts)), 'more ')} at least"
    return "how many more decisions it takes cannot be foreseen yet"


def rounded(n: int) -> int:
    """Return a number rounded up to two significant digits.

    >>> rounded(7), rounded(43), rounded(1_234)
    (7, 43, 1300)
    """
    scale = int(10 ** max(0, len(str(n)) - 2))
    return -(-n // scale) * scale


def _counted(n: int, more: str = "") -> str:
    return f"{n:,} {more}decision{'' if n == 1 else 's'}"


def _beside(choice: Alternative) -> str:
    """Return a significant lead in words.

    >>> _beside(Alternative("a", 9, 0.5, (0.4, 0.6), -0.05, -0.08, -0.02, None))
    '0.050 (0.020 to 0.080) less'
    """
    ends = sorted((abs(choice.low), abs(choice.high)))
    return f"{abs(choice.lead):.3f} ({ends[0]:.3f} to {ends[1]:.3f}) {'more' if choice.lead > 0 else 'less'}"


def _so_far(choice: Alternative) -> str:
    """Return a lead whose interval contains 0 in words.

    >>> _so_far(Alternative(None, 9, 0.5, (0.4, 0.6), 0.05, -0.02, 0.12, 100))
    'between 0.020 less and 0.120 more'
    """
    return f"between {-choice.low:.3f} less and {choice.high:.3f} more"


def _arms(arms: Sequence[Alternative]) -> str:
    """Return the result for the single arms when none is better, as the end of a sentence."""
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


# -- the course of learning -----------------------------------------------------------------------


MARKS = 12
"""Most changes shown on a curve, the newest ones."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The reward per decision that the newest promoted warm start expected of its candidate.

    Attributes:
        value: Estimate of its evaluation.
        low: Lower bound of the estimate.
        run: Number of the run.
        at: When the run ended, seconds since the epoch.
        decision: Number of decisions by then.
    """

    value: float
    low: float
    run: int
    at: float
    decision: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A change on a learning curve: of the arms, of the recipe, or a drift alarm.

    Attributes:
        at: Time, seconds since the epoch.
        decision: Number of decisions by then.
        what: The change and its reason, as a sentence.
    """

    at: float
    decision: int
    what: str


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """The rewards of a service since its first decision.

    Attributes:
        whole: The comparison on all decisions.
        stretches: The learning curve, in order.
        marks: Changes, in order.
        promise: The expectation of a warm start, if one is on record.
    """

    whole: ServedComparison
    stretches: tuple[CurveStretch, ...]
    marks: tuple[Mark, ...]
    promise: Promise | None


def read_curve(
    store: Store, rule: RewardRule, floor: float, configured: str, *, ranks: bool
) -> LearningCurve:
    """Read the learning curve from the rollups of a log.

    Args:
        store: The log.
        rule: Has the range of rewards.
        floor: Least probability of an eligible arm.
        configured: Digest of the configured recipe, whose warm start sets the promise.
        ranks: Whether actions come with each request, so that single arms cannot be compared.

    Raises:
        LogUnavailableError: Try again later.
    """
    rows = rollups.by_position(store)
    live = [] if ranks else arm_sets.history(store)
    changes = list_changes(live[1:], promotions.newest(store, MARKS), newest_alarms(store, MARKS, rule.join))[
        -MARKS:
    ]
    run = runs.newest(store, configured, [runs.RunState.PROMOTED])
    promise = None if run is None else read_promise(run)
    times = [*(arm_set.at for arm_set in live), *(at for at, _ in changes)]
    later = [0.0 if promise is None else promise.at, inf]
    *positions, promised, last = listing.positions_at(store, [*times, *later])
    since = [0, *positions[1 : len(live)]] if live else []
    arms = [arm_set.arms for arm_set in live]
    sums = PositionSums(rows, arms, since, last, settled.read(store, rule).n_open)
    names = sorted(arms[-1]) if arms else []
    whole = sums.comparison(names, floor, rule.reward_range)
    best = None if whole.best is None else whole.best.name
    marks = tuple(
        Mark(at, sums.decisions_until(position), what)
        for (at, what), position in zip(changes, positions[len(live) :], strict=True)
    )
    if promise is not None:
        promise = replace(promise, decision=sums.decisions_until(promised))
    return LearningCurve(whole, sums.stretches(best, len(names), floor, rule.reward_range), marks, promise)


def read_promise(run: Run) -> Promise | None:
    """Return the expectation of a run's evaluation, if one is on record.

    The candidate of a first start is promoted without an evaluation, because there was no traffic yet.
    """
    for step in run.steps:
        for name, result in (step["found"] if step["name"] == "evaluate" else {}).items():
            figures = result.get("figures")
            if name == f"recipe:{run.candidate}" and figures and run.finished_at is not None:
                expected = figures["served"] + figures["gain"], figures["served"] + figures["low"]
                return Promise(*expected, run.seq, run.finished_at)
    return None


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
            return f"Promotion of version {promotion.version}{_unjudged(promotion)}{reason}"
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


def _unjudged(promotion: promotions.Promotion) -> str:
    by_operator = promotion.forced and not promotion.automatic  # a first start has no traffic to be judged by
    return " without the gate's consent" if by_operator else ""


def _about_alarm(alarm: Alarm) -> str:
    return f"Drift alarm: {alarm.subject} was {alarm.before:.3g} and is {alarm.after:.3g}."


class PositionSums(Served):
    """What was served, from the rollups of a log by position and the sets of live arms.

    Args:
        rows: Rollups by stretch of the log; the slot of a row is the first position of its stretch.
        live: Each set of arms that was live and switched on, in order; empty to compare none.
        since: Position after which each set was live, increasing.
        last: Position of the last decision.
        n_open: Explored decisions that may still get feedback.
    """

    def __init__(
        self,
        rows: rollups.Sums,
        live: Sequence[frozenset[str]],
        since: Sequence[int],
        last: int,
        n_open: int = 0,
    ) -> None:
        names, drawn = np.unique(rows.arm, return_inverse=True)
        self._rows, self._live = rows, live
        self._since = np.array(since, dtype=np.int64)
        self._starts, self._index = np.unique(rows.slot, return_inverse=True)
        widths = np.array([rollups.find_stretch(int(start))[1] for start in self._starts], dtype=np.int64)
        self._widths = np.minimum(widths, np.maximum(1, last + 1 - self._starts))
        counted = np.bincount(self._index, rows.columns["decisions"], len(self._starts))
        self._until = np.cumsum(counted).astype(np.int64)
        n = int(self._until[-1]) if len(self._until) else 0
        explored = rows.columns["explored"].astype(np.int64)
        super().__init__(n, n_open, names.tolist(), drawn, rows.n_arms, explored)

    def decisions_until(self, position: int) -> int:
        """Return the number of decisions up to a position, interpolated within a stretch."""
        at = int(np.searchsorted(self._starts, position, side="right")) - 1
        if at < 0:
            return 0
        before = int(self._until[at - 1]) if at else 0
        share = min(1.0, (position - int(self._starts[at]) + 1) / int(self._widths[at]))
        return before + round((int(self._until[at]) - before) * share)

    @cached_property
    def _whole_sets(self) -> Integers:
        """Index of the live set whose arms were all eligible in a row, shape (n,); -1: some were masked.

        The numbers are compared: a row with as many eligible arms as were live had all of them. Rows of a
        stretch within which the live arms changed get -1.
        """
        none = np.full(len(self.drawn), -1)
        if not len(self._since) or not len(self._starts):
            return none
        first = np.searchsorted(self._since, self._starts, side="left") - 1
        last = np.searchsorted(self._since, self._starts + self._widths - 1, side="left") - 1
        first = np.maximum(first, 0)
        of_stretch = np.where(first == np.maximum(last, 0), first, -1)[self._index]
        sizes = np.array([len(arms) for arms in self._live])[of_stretch]
        return np.where((of_stretch >= 0) & (sizes == self.n_arms), of_stretch, none)

    @override
    def having(self, arm: str) -> Flags:
        """Return the rows in which all live arms were eligible, if `arm` was live."""
        holding = np.array([arm in arms for arms in self._live] + [False])  # index -1 is the last item
        return holding[self._whole_sets]

    @override
    def sums(self, rows: Flags, target: Floats) -> Weighted:
        return weighted(self._rows.where(rows), target[rows])

    @override
    def cut(self, most: int) -> Iterator[tuple[int, int, Flags]]:
        middles = self._until - np.diff(self._until, prepend=0) / 2
        of_start = np.minimum((middles * most / max(1, self.n)).astype(np.int64), most - 1)
        begin = 0
        for number in np.unique(of_start).tolist():
            end = int(self._until[of_start == number][-1])
            yield begin, end, of_start[self._index] == number
            begin = end


def weighted(rows: rollups.Sums, target: Floats) -> Weighted:
    """Return the sums of rows for a target.

    Args:
        rows: Sums by arm and number of eligible arms.
        target: Probability of each row's drawn arm under the target policy, shape (n,).
    """
    c = rows.columns
    return Weighted(
        n=int(c["rewarded"].sum()),
        r=float(c["reward"].sum()),
        r2=float(c["reward2"].sum()),
        **{name: float(c[name] @ target) for name in ("w", "wr", "wr2")},
        **{name: float(c[name] @ (target * target)) for name in ("w2", "w2r", "w2r2")},
    )


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
