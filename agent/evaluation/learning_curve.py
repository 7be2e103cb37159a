"""The course of learning over decisions, from the first one on: rewards, shares of the arms, changes.

Rewards are those of explored decisions. The log is cut into stretches of about as many decisions each; each
has the reward of what was served beside the best single arm and a uniform choice, by `snips`. What is known
of all of it together is a `ServedComparison`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, sqrt

import numpy as np

from armwise.agent.evaluation.served import ERROR, ServedComparison, compare
from armwise.feedback.arrays import Flags, Floats, Integers
from armwise.feedback.drift import Alarm, newest_alarms
from armwise.feedback.log import Store, listing
from armwise.feedback.ope import Interval, Weighted, intervals
from armwise.feedback.registry import LiveArms, Run, arm_sets, promotions, runs
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import rollups, settled

MOST_STRETCHES = 40
"""Points of a curve at most."""

MARKS = 12
"""Changes that a curve shows at most: the newest ones."""

Estimate = tuple[float, Interval] | None


@dataclass(frozen=True, slots=True)
class Promise:
    """The reward a decision that the newest promoted warm start expected of what it promoted.

    Attributes:
        value: As its evaluation estimated it.
        low: Lower bound.
        run: Number of the run.
        at: When it ended, seconds since the epoch.
        decision: How many decisions there were by then.
    """

    value: float
    low: float
    run: int
    at: float
    decision: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A change of what is served or of what comes in.

    Attributes:
        at: When, seconds since the epoch.
        decision: How many decisions there were by then.
        what: The change and its reason, as a sentence.
    """

    at: float
    decision: int
    what: str


@dataclass(frozen=True, slots=True)
class CurveStretch:
    """Some decisions in a row.

    Attributes:
        begin: Decisions before it.
        end: Decisions up to its end.
        served: Mean reward of what was served; None without a reward.
        uniform: What a uniform choice would have earned; None where that is unknown.
        best: What the best single arm of the whole comparison would have earned.
        shares: Share of each arm of the explored decisions, in [0, 1]; empty without one.
    """

    begin: int
    end: int
    served: Estimate
    uniform: Estimate
    best: Estimate
    shares: Mapping[str, float]

    @property
    def middle(self) -> float:
        """Number of the decision in its middle, from 1."""
        return (self.begin + 1 + self.end) / 2


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """What a policy has earned since the first decision.

    Attributes:
        whole: All decisions together.
        stretches: The same in parts, in order.
        marks: What changed, in order.
        promise: What a warm start expected; None where none is on record.
    """

    whole: ServedComparison
    stretches: tuple[CurveStretch, ...]
    marks: tuple[Mark, ...]
    promise: Promise | None


def read_curve(
    store: Store, rule: RewardRule, floor: float, configured: str, *, ranks: bool
) -> LearningCurve:
    """Read the course of learning from the sums of a log.

    Args:
        store: The log.
        rule: Has the range of rewards.
        floor: Least probability of an arm that could be drawn.
        configured: Digest of the configured recipe, whose warm start is looked for.
        ranks: Whether actions come with each request, so that there is no arm which could always be used.

    Raises:
        LogUnavailableError: Try again later.
    """
    rows = rollups.by_position(store)
    live = [] if ranks else arm_sets.history(store)
    changes = changes_of(live[1:], promotions.newest(store, MARKS), newest_alarms(store, MARKS, rule.join))[
        -MARKS:
    ]
    run = runs.newest(store, configured, [runs.RunState.PROMOTED])
    promise = None if run is None else promise_of(run)
    times = [*(arm_set.at for arm_set in live), *(at for at, _ in changes)]
    later = [0.0 if promise is None else promise.at, inf]
    *positions, promised, last = listing.positions_at(store, [*times, *later])
    since = [0, *positions[1 : len(live)]] if live else []
    sums = PositionSums(rows, [arm_set.arms for arm_set in live], since, last, rule.reward_range, floor)
    whole = sums.comparison(settled.read(store, rule).n_open)
    best = None if whole.best is None else whole.best.name
    marks = tuple(
        Mark(at, sums.decisions_until(position), what)
        for (at, what), position in zip(changes, positions[len(live) :], strict=True)
    )
    if promise is not None:
        promise = replace(promise, decision=sums.decisions_until(promised))
    return LearningCurve(whole, sums.stretches(best), marks, promise)


def promise_of(run: Run) -> Promise | None:
    """Return what the evaluation of a run expected of its candidate; None where none is on record.

    The candidate of a first start is promoted without one: there was no traffic to judge it by.
    """
    for step in run.steps:
        for name, result in (step["found"] if step["name"] == "evaluate" else {}).items():
            figures = result.get("figures")
            if name == f"recipe:{run.candidate}" and figures and run.finished_at is not None:
                expected = figures["served"] + figures["gain"], figures["served"] + figures["low"]
                return Promise(*expected, run.seq, run.finished_at)
    return None


def changes_of(
    live: Iterable[LiveArms], promoted: Iterable[promotions.Promotion], alarms: Iterable[Alarm]
) -> list[tuple[float, str]]:
    """Return changes with their times and a sentence each, in order of time."""
    # arms that a version brought became live by its promotion, which has a sentence of its own
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
    by_operator = promotion.forced and not promotion.automatic  # a first start has nothing to be judged by
    return " without the gate's consent" if by_operator else ""


def _about_alarm(alarm: Alarm) -> str:
    return f"Drift alarm: {alarm.subject} was {alarm.before:.3g} and is {alarm.after:.3g}."


class PositionSums:
    """Sums of a log by position, and the arms that were live there.

    Args:
        rows: Sums by stretch of the log; the slot of a row is the position where its stretch starts.
        live: Names of the arms that were live and switched on, in order; empty where none are compared.
        since: Position after which each of them was live, rising.
        last: Position of the last decision.
        rewards: Smallest and largest possible reward.
        floor: Least probability of an arm that could be drawn.
    """

    def __init__(
        self,
        rows: rollups.Sums,
        live: Sequence[frozenset[str]],
        since: Sequence[int],
        last: int,
        rewards: Interval,
        floor: float,
    ) -> None:
        self._rows, self._live, self._rewards, self._floor = rows, live, rewards, floor
        self._since = np.array(since, dtype=np.int64)
        self._starts, self._index = np.unique(rows.slot, return_inverse=True)
        widths = np.array([rollups.stretch_of(int(start))[1] for start in self._starts], dtype=np.int64)
        self._widths = np.minimum(widths, np.maximum(1, last + 1 - self._starts))
        counted = np.bincount(self._index, rows.columns["decisions"], len(self._starts))
        self._until = np.cumsum(counted).astype(np.int64)

    @property
    def decisions(self) -> int:
        """All decisions."""
        return int(self._until[-1]) if len(self._until) else 0

    def decisions_until(self, position: int) -> int:
        """Return how many decisions there are up to a position, interpolated within a stretch."""
        at = int(np.searchsorted(self._starts, position, side="right")) - 1
        if at < 0:
            return 0
        before = int(self._until[at - 1]) if at else 0
        share = min(1.0, (position - int(self._starts[at]) + 1) / int(self._widths[at]))
        return before + round((int(self._until[at]) - before) * share)

    @cached_property
    def _whole_sets(self) -> Integers:
        """Which of the live sets a row was drawn from, (n,); -1 where not all of its arms could be drawn.

        A set of as many arms as are live holds all of these. Where the live arms changed within a stretch,
        its rows are of neither set.
        """
        none = np.full(len(self._rows.arm), -1)
        if not len(self._since) or not len(self._starts):
            return none
        first = np.searchsorted(self._since, self._starts, side="left") - 1
        last = np.searchsorted(self._since, self._starts + self._widths - 1, side="left") - 1
        first = np.maximum(first, 0)
        of_stretch = np.where(first == np.maximum(last, 0), first, -1)[self._index]
        sizes = np.array([len(arms) for arms in self._live])[of_stretch]
        return np.where((of_stretch >= 0) & (sizes == self._rows.n_arms), of_stretch, none)

    def with_arm(self, arm: str) -> Flags:
        """Return the rows of decisions for which every live arm could be drawn, this one among them, (n,)."""
        holding = np.array([arm in arms for arms in self._live] + [False])  # -1 is the last one
        return holding[self._whole_sets]

    def comparison(self, n_open: int = 0) -> ServedComparison:
        """Compare what was served with a uniform choice and every arm that is live now.

        Args:
            n_open: Explored decisions that may still get feedback.
        """
        rows = self._rows
        total = rows.total()
        several = rows.n_arms[rows.n_arms > 1]
        return compare(
            self.decisions,
            int(total["explored"]),
            int(rows.n_arms.max(initial=0)),
            weighted(rows, _alike(rows)),
            {
                arm: weighted(some, (some.arm == arm).astype(np.float64))
                for arm in sorted(self._live[-1] if self._live else ())
                for some in [rows.where(self.with_arm(arm))]
            },
            n_open=n_open,
            fewest_arms=int(several.min(initial=rows.n_arms.max(initial=2))) if len(several) else 2,
            floor=self._floor,
            rewards=self._rewards,
        )

    def stretches(self, best: str | None) -> tuple[CurveStretch, ...]:
        """Cut the log into stretches of about as many decisions, with the best arm by name."""
        n = self.decisions
        if not n:
            return ()
        most = min(MOST_STRETCHES, max(1, round(sqrt(n) / 2.5)))
        middles = self._until - np.diff(self._until, prepend=0) / 2
        of_start = np.minimum((middles * most / n).astype(np.int64), most - 1)
        rows, of_row, arms = self._rows, of_start[self._index], 0 if not self._live else len(self._live[-1])
        with_best = None if best is None else self.with_arm(best)
        stretches, begin = [], 0
        for number in np.unique(of_start).tolist():
            here, end = of_row == number, int(self._until[of_start == number][-1])
            some = rows.where(here)
            single: Estimate = None
            if best is not None and with_best is not None:
                best_rows = rows.where(here & with_best)
                single = self._estimate(
                    best_rows, (best_rows.arm == best) * 1.0, 1.0, 1.0 - ERROR / max(1, arms)
                )
            served = _plain(some)
            uniform = self._estimate(some, _alike(some), float(_alike(some).max(initial=0.0)))
            mean = intervals.from_sums(*served, reach=1.0, rewards=self._rewards)
            stretches.append(CurveStretch(begin, end, mean, uniform, single, _shares(some)))
            begin = end
        return tuple(stretches)

    def _estimate(
        self, rows: rollups.Sums, scale: Floats, largest: float, level: float = intervals.LEVEL
    ) -> Estimate:
        reach = largest / self._floor
        return weighted(rows, scale).estimate(reach=reach, rewards=self._rewards, level=level)


def weighted(rows: rollups.Sums, scale: Floats) -> Weighted:
    """Return the sums of rows for a target.

    Args:
        rows: Sums by arm and number of eligible arms.
        scale: Probability that the target gives to the drawn arm of each row, shape (n,).
    """
    c = rows.columns
    return Weighted(
        n=int(c["rewarded"].sum()),
        r=float(c["reward"].sum()),
        r2=float(c["reward2"].sum()),
        **{name: float(c[name] @ scale) for name in ("w", "wr", "wr2")},
        **{name: float(c[name] @ (scale * scale)) for name in ("w2", "w2r", "w2r2")},
    )


def _plain(rows: rollups.Sums) -> tuple[int, float, float, float, float, float]:
    """Return the sums of `intervals.from_sums` for the mean reward."""
    n, r, r2 = (float(rows.columns[name].sum()) for name in ("rewarded", "reward", "reward2"))
    return int(n), n, r, n, r, r2


def _alike(rows: rollups.Sums) -> Floats:
    """Return the probability of a uniform choice in each row, shape (n,)."""
    return np.divide(1.0, rows.n_arms, out=np.zeros(len(rows.n_arms)), where=rows.n_arms > 0)


def _shares(rows: rollups.Sums) -> dict[str, float]:
    explored = rows.columns["explored"]
    counts = {arm: float(explored[rows.arm == arm].sum()) for arm in sorted(set(rows.arm))}
    return {arm: n / float(explored.sum()) for arm, n in counts.items() if n}
