"""What was served in a period, what it earned and saved, and what changed, from the turns of the log.

Rewards are compared as on the overview of the console, on the turns of the period: with a uniform choice, and
with each single arm on the turns for which it could be drawn. Dollars and seconds are compared with always
using the dearest arm in the same way. That arm is known only after looking, so its intervals have the level
of all arms together. Costs have no declared range: the largest one that was observed stands for it.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np

from armwise.agent.config import AppConfig
from armwise.agent.console.period_curve import AtEqualQuality, CurvePoint, at_equal_quality, curve_of
from armwise.agent.evaluation.audit import propensity_doubt
from armwise.agent.evaluation.kinds import KindShares, rows_by_kind, shares_by_kind
from armwise.agent.evaluation.learning_curve import MOST_STRETCHES, CurveStretch, changes_of
from armwise.agent.evaluation.served import (
    ERROR,
    Alternative,
    ServedComparison,
    alternative,
    compare,
    least_floor,
)
from armwise.arms.base import Progress
from armwise.feedback.arrays import Flags, Floats, Integers
from armwise.feedback.clock import utc
from armwise.feedback.drift import newest_alarms
from armwise.feedback.log import Store, listing
from armwise.feedback.ope import Draws, Interval, Weighted, confidence_sequences, intervals
from armwise.feedback.registry import arm_sets, evaluations, promotions, runs
from armwise.feedback.training_log import rollups, served_turns

NEWEST = 200
"""Promotions, alarms and runs among which those of the period are looked for."""

NEWEST_VERDICTS = 20
"""Evaluations among which verdicts of the gate are looked for."""

KINDS_OF = 20_000
"""Newest explored turns of the period that are compared by kind of question."""

REPORT_EVERY = 5000
"""Turns between two reports of progress."""


class NothingServedError(ValueError):
    """No decision was made in the period; the message says of when the log has some."""


@dataclass(frozen=True, slots=True)
class Saving:
    """What was saved beside always using one arm.

    Attributes:
        n: Answers on which both are compared: those for which the arm could be drawn.
        each: Saved an answer; below 0 where more was spent.
        low: Lower end of its interval.
        high: Upper end of it.
    """

    n: int
    each: float
    low: float
    high: float

    @property
    def total(self) -> tuple[float, float, float]:
        """Saved in all, with its interval."""
        return self.n * self.each, self.n * self.low, self.n * self.high


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """What an arm did.

    Attributes:
        name: Name of the arm.
        decisions: Turns that it was drawn or named for.
        share: Share of the explored turns, in [0, 1].
        usd: Mean dollars of its answers; None without one.
        seconds: Mean seconds of its answers; None without one.
        failed: Turns in which it or the language model failed.
    """

    name: str
    decisions: int
    share: float
    usd: float | None
    seconds: float | None
    failed: int


@dataclass(frozen=True, slots=True)
class KindGain:
    """What was served for a kind of question, beside the best single arm of the period.

    Attributes:
        name: The value of the feature.
        beside: That arm on the decisions of the kind, with the lead of what was served.
    """

    name: str
    beside: Alternative


@dataclass(frozen=True, slots=True)
class Kinds:
    """Kinds of questions.

    Attributes:
        feature: The feature whose values distinguish them; empty for none.
        shares: Shares of the arms by kind.
        positions: Positions of the decisions by kind.
    """

    feature: str
    shares: tuple[KindShares, ...]
    positions: Mapping[str, Integers]

    @classmethod
    def of(cls, draws: Sequence[rollups.NewestDraw]) -> "Kinds":
        """Return the kinds of some explored decisions."""
        feature, rows = rows_by_kind([draw.features for draw in draws])
        _, shares = shares_by_kind([(draw.arm, draw.features) for draw in draws])
        seq = np.array([draw.seq for draw in draws], dtype=np.int64)
        return cls(feature, tuple(shares), {name: seq[held] for name, held in rows.items()})


@dataclass(frozen=True, slots=True)
class RawMean:
    """What an arm earned on what it was drawn for, which estimates nothing: others decided what that was.

    Attributes:
        name: Name of the arm.
        n: Decisions that drew it and have a reward.
        reward: Their mean reward.
    """

    name: str
    n: int
    reward: float


@dataclass(frozen=True, slots=True)
class Period:
    """A report of a period.

    Attributes:
        since: Begin, seconds since the epoch.
        until: End.
        whole: What was served beside its alternatives.
        arms: Figures of each arm, the most drawn first.
        feature: The feature by whose values kinds are listed; empty for none.
        kinds: Shares of the arms by kind of question.
        gains: What was served beside the best single arm, by kind of question, the largest lead first.
        stretches: The course over the decisions of the period.
        dearest: The arm with the largest estimated cost; None where costs cannot be compared.
        usd: Saved dollars beside it; None where nothing was charged.
        seconds: Saved seconds beside it; None where no time was measured.
        spent_usd: Dollars that were charged.
        changes: What changed, each with its time, in order.
        held: What the gate held, each with its time and reasons, in order.
        curve: Cost and reward of what was served and of each arm; empty without costs.
        equal: What was served beside each arm and beside the cheapest mix that is as good, by both.
        without: Explored decisions that have no propensity on record, and are in no comparison.
        raw: Raw means of the arms, where decisions have no propensity.
        source: The file that it was read from; empty for the log of a service.
        notes: Remarks on the log; a sentence each.
        doubt: Why the propensities on record cannot be trusted; empty where the audit finds no fault.
    """

    since: float
    until: float
    whole: ServedComparison
    arms: tuple[ArmFigures, ...]
    feature: str
    kinds: tuple[KindShares, ...]
    stretches: tuple[CurveStretch, ...]
    dearest: str | None
    usd: Saving | None
    seconds: Saving | None
    spent_usd: float
    changes: tuple[tuple[float, str], ...]
    held: tuple[tuple[float, str], ...]
    curve: tuple[CurvePoint, ...] = ()
    equal: tuple[AtEqualQuality, ...] = ()
    without: int = 0
    raw: tuple[RawMean, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()
    doubt: str = ""
    gains: tuple[KindGain, ...] = ()

    @property
    def rewarded(self) -> int:
        """Explored decisions with a reward, with a propensity on record or without."""
        return sum(raw_mean.n for raw_mean in self.raw) if self.without else self.whole.rewarded

    @property
    def beside_dearest(self) -> Alternative | None:
        """The dearest arm as an alternative by reward; None where it has none."""
        return next((arm for arm in self.whole.arms if arm.name == self.dearest), None)


def read_period(
    store: Store,
    config: AppConfig,
    since: float,
    until: float,
    on_progress: Progress,
    *,
    ranks: bool = False,
) -> Period:
    """Read a period from a log.

    Args:
        store: The log.
        config: The configuration of its decision point.
        since: Begin, seconds since the epoch.
        until: End; a decision at this time is not part of it.
        on_progress: Called with the progress.
        ranks: Whether actions come with each request, so that there is no arm which could always be used.

    Raises:
        NothingServedError: No decision was made in the period.
        LogUnavailableError: Try again later.
    """
    turns = Turns(served_turns.between(store, config.reward, since, until), on_progress)
    if not turns.n:
        raise NothingServedError(_nothing(store, since, until))
    live = [arms for arms in arm_sets.history(store) if arms.at < until] or arm_sets.history(store)[:1]
    names = tuple(turns.names) if not live else tuple(sorted(live[-1].arms & set(turns.names)))
    if ranks:
        names = ()
    floor = least_floor(store, config)
    upto = listing.positions_at(store, [until])[0]
    draws = rollups.newest_draws(store, KINDS_OF, listing.DecisionFilter(since=since, until=until), upto)
    changes = changes_of(
        arm_sets.history(store)[1:],
        promotions.newest(store, NEWEST),
        newest_alarms(store, NEWEST, config.reward.join),
    )
    return period_of(
        turns,
        names,
        floor,
        config.reward.reward_range,
        (since, until),
        Kinds.of(draws),
        changes=tuple(change for change in changes if since <= change[0] < until),
        held=tuple(sorted(_held(store, since, until))),
    )


def period_of(
    turns: "Turns",
    names: Sequence[str],
    floor: float,
    rewards: Interval,
    window: tuple[float, float],
    kinds: Kinds,
    *,
    changes: tuple[tuple[float, str], ...] = (),
    held: tuple[tuple[float, str], ...] = (),
    source: str = "",
    notes: tuple[str, ...] = (),
) -> Period:
    """Return the report of some turns.

    Args:
        turns: The turns.
        names: Arms that could always be used.
        floor: Least probability of an arm that could be drawn.
        rewards: Smallest and largest possible reward.
        window: Begin and end.
        kinds: Kinds of questions.
        changes: What changed.
        held: What the gate held.
        source: The file that they were read from; empty for the log of a service.
        notes: Remarks on the log.
    """
    whole = turns.comparison(names, floor, rewards)
    dearest, usd, seconds = turns.savings(names, floor)
    best = None if whole.best is None else whole.best.name
    curve = curve_of(turns, names, floor, rewards)
    return Period(
        *window,
        whole,
        turns.figures(),
        kinds.feature,
        kinds.shares,
        turns.stretches(best, len(names), floor, rewards),
        dearest,
        usd,
        seconds,
        float(np.nansum(turns.usd)),
        changes,
        held,
        curve,
        at_equal_quality(turns, curve, floor, rewards),
        turns.without,
        turns.raw_means() if turns.without else (),
        source,
        notes,
        propensity_doubt(turns.draws()) or "",
        () if best is None else turns.gains(kinds.positions, best, floor, rewards),
    )


def _nothing(store: Store, since: float, until: float) -> str:
    if served_turns.any_elsewhere(store, since, until):
        return (
            f"no decision was made by this service alone from {utc(since)} to {utc(until)}: another system "
            "decided, or took part. `armwise replay` says what policies would have earned on its decisions"
        )
    from_to = f"no decision was made from {utc(since)} to {utc(until)}"
    span = listing.span(store)
    if span is None:
        return f"{from_to}: the log holds none yet"
    return f"{from_to}: the log has some from {utc(span[0])} to {utc(span[1])}"


def _held(store: Store, since: float, until: float) -> Iterator[tuple[float, str]]:
    """Yield what the gate and warm starts held in a period, with their reasons."""
    judged = set()
    for run in runs.page(store, NEWEST):
        judged.add(run.evaluation)
        if run.status is runs.RunState.HELD and since <= (run.finished_at or 0.0) < until:
            decided = [step["found"] for step in run.steps if step["name"] == "decide"]
            reasons = " ".join(reason for decision in decided for reason in decision.get("reasons", ()))
            yield run.finished_at or 0.0, f"Warm start {run.seq} was held: {reasons}"
    for evaluation in evaluations.page(store, NEWEST_VERDICTS):
        if evaluation.seq in judged or not evaluation.request.get("gate"):
            continue
        if evaluation.finished_at is None or not since <= evaluation.finished_at < until:
            continue
        for candidate in (evaluations.result_of(store, evaluation.seq) or {}).get("candidates", ()):
            if (verdict := candidate.get("verdict")) and verdict["verdict"] == "hold":
                yield (
                    evaluation.finished_at,
                    f"The gate held {candidate['name']}: {' '.join(verdict['reasons'])}",
                )


class Turns:
    """Turns as columns.

    Args:
        turns: The turns.
        on_progress: Called with the progress.

    Attributes:
        n: How many there are.
        n_open: How many explored ones may still get feedback.
        names: Every arm that was drawn or could be.
        usd: Dollars of each answer, shape (n,); nan where there is none.
        reward: Reward of each explored turn, shape (n,); nan where there is none.
    """

    def __init__(self, turns: Iterator[served_turns.ServedTurn], on_progress: Progress) -> None:
        pools: dict[tuple[str, ...], int] = {}
        columns: list[tuple[Any, ...]] = []
        positions, self.n_open = array("q"), 0
        for turn in turns:
            code = pools.setdefault(turn.arms, len(pools))
            cost = turn.cost
            paid = (np.nan, np.nan) if cost is None else (cost.usd, cost.retrieval_s + cost.llm_s)
            earned = np.nan if turn.reward is None or not turn.explored else turn.reward
            made = turn.decided_at, turn.propensity, turn.explored, turn.failed
            columns.append((code, turn.drawn, *made, earned, *paid))
            self.n_open += turn.explored and not turn.settled
            positions.append(turn.seq)
            if len(columns) % REPORT_EVERY == 0:
                on_progress("decisions", len(columns), None)
        self.n, self._seq = len(columns), np.array(positions, dtype=np.int64)
        on_progress("decisions", self.n, self.n)
        by_column = list(zip(*columns, strict=True)) if columns else [()] * 9
        pool, drawn, at, propensity, explored, failed, reward, usd, seconds = by_column
        self.names = sorted({*drawn, *(arm for arms in pools for arm in arms)})
        self._pools, self._pool = list(pools), np.array(pool, dtype=np.int64)
        self._drawn = np.array(drawn, dtype=np.object_)
        self._at = np.array(at, dtype=np.float64)
        self._weight = 1.0 / np.array(propensity, dtype=np.float64)
        self._explored, self._failed = np.array(explored, dtype=bool), np.array(failed, dtype=bool)
        self.reward = np.array(reward, dtype=np.float64)
        self.usd = np.array(usd, dtype=np.float64)
        self._seconds = np.array(seconds, dtype=np.float64)
        self._n_arms = np.array([len(arms) for arms in pools], dtype=np.int64)[self._pool]

    def having(self, arm: str) -> Flags:
        """Return the turns for which an arm could be drawn, shape (n,)."""
        holding: Flags = np.array([arm in arms for arms in self._pools], dtype=bool)[self._pool]
        return holding

    def sums(self, rows: Flags, values: Floats, target: Floats) -> Weighted:
        """Return sums over some turns with a value, with the probability of the drawn arm by the target."""
        rows = rows & self._explored & ~np.isnan(values) & ~np.isnan(self._weight)
        r, w = values[rows], (self._weight * target)[rows]
        served = len(r), float(r.sum()), float(r @ r)
        ours = float(w.sum()), float(w @ r), float(w @ w), float((w * w) @ r), float((w * r) @ (w * r))
        return Weighted(*served, *ours, float(w @ (r * r)))

    @property
    def every(self) -> Flags:
        """All turns, shape (n,)."""
        return np.ones(self.n, dtype=bool)

    @property
    def served(self) -> Floats:
        """Probability of the drawn arm, as it was drawn with, shape (n,)."""
        served: Floats = 1.0 / self._weight
        return served

    @property
    def costs(self) -> Floats | None:
        """Dollars of each answer, of seconds where none were charged, shape (n,); None without either."""
        for values in (self.usd, self._seconds):
            if np.nansum(values) > 0.0:
                return values
        return None

    @property
    def without(self) -> int:
        """Number of explored turns without a propensity."""
        return int((self._explored & np.isnan(self._weight)).sum())

    @property
    def alike(self) -> Floats:
        """Probability of the drawn arm under a uniform choice, shape (n,)."""
        alike: Floats = 1.0 / np.maximum(1, self._n_arms)
        return alike

    def always(self, arm: str) -> Floats:
        """Return the probability of the drawn arm under a policy that always draws one, shape (n,)."""
        always: Floats = (self._drawn == arm).astype(np.float64)
        return always

    def comparison(self, names: Sequence[str], floor: float, rewards: Interval) -> ServedComparison:
        """Compare what was served with a uniform choice and with each of some arms."""
        several = self._n_arms[self._n_arms > 1]
        return compare(
            self.n,
            int(self._explored.sum()),
            int(self._n_arms.max()),
            self.sums(self.every, self.reward, self.alike),
            {arm: self.sums(self.having(arm), self.reward, self.always(arm)) for arm in names},
            n_open=self.n_open,
            fewest_arms=int(several.min()) if len(several) else 2,
            floor=floor,
            rewards=rewards,
        )

    def gains(
        self, kinds: Mapping[str, Integers], arm: str, floor: float, rewards: Interval
    ) -> tuple[KindGain, ...]:
        """Compare what was served with an arm on the decisions of each kind; the largest lead comes first.

        Args:
            kinds: Positions of the decisions of each kind.
            arm: The arm.
            floor: Least probability of an arm that could be drawn.
            rewards: Smallest and largest possible reward.
        """
        gains, error = [], ERROR / max(1, len(kinds))
        for name, positions in kinds.items():
            rows = self.having(arm) & np.isin(self._seq, positions)
            sums = self.sums(rows, self.reward, self.always(arm))
            beside = alternative(arm, sums, len(positions), 1.0 / floor, rewards, error)
            if beside is not None:
                gains.append(KindGain(name, beside))
        return tuple(sorted(gains, key=lambda gain: (-gain.beside.lead, gain.name)))

    def savings(self, names: Sequence[str], floor: float) -> tuple[str | None, Saving | None, Saving | None]:
        """Return the dearest arm, and the dollars and the seconds that were saved beside always using it.

        Dearest is the arm with the largest estimate of dollars an answer, of seconds where none were charged.
        """
        charged = bool(np.nansum(self.usd) > 0.0)
        measured = bool(np.nansum(self._seconds) > 0.0)
        values = self.usd if charged else self._seconds
        sums = {arm: self.sums(self.having(arm), values, self.always(arm)) for arm in names}
        means = {arm: arm_sums.wr / arm_sums.w for arm, arm_sums in sums.items() if arm_sums.w > 0.0}
        if len(means) < 2 or not (charged or measured):
            return None, None, None
        dearest = max(means, key=lambda arm: (means[arm], arm))
        usd = self._saving(dearest, self.usd, len(names), floor) if charged else None
        seconds = self._saving(dearest, self._seconds, len(names), floor) if measured else None
        return dearest, usd, seconds

    def _saving(self, arm: str, values: Floats, arms: int, floor: float) -> Saving | None:
        sums, top = self.sums(self.having(arm), values, self.always(arm)), float(np.nanmax(values))
        errors = confidence_sequences.asymptotic_errors(max(1, sums.n), 1.0 - ERROR / arms)
        estimate = intervals.lead_from_sums(sums, reach=1.0 / floor, rewards=(0.0, top), errors=errors)
        if estimate is None:
            return None
        lead, (low, high) = estimate
        return Saving(sums.n, -lead, max(-top, -high), min(top, -low))

    def figures(self) -> tuple[ArmFigures, ...]:
        """Return the figures of each arm that was drawn, the most drawn first."""
        explored = max(1, int(self._explored.sum()))
        figures = []
        for arm in self.names:
            mine = self._drawn == arm
            if not mine.any():
                continue
            usd, seconds = (values[mine & ~np.isnan(values)] for values in (self.usd, self._seconds))
            figures.append(
                ArmFigures(
                    arm,
                    int(mine.sum()),
                    int((mine & self._explored).sum()) / explored,
                    float(usd.mean()) if len(usd) else None,
                    float(seconds.mean()) if len(seconds) else None,
                    int((mine & self._failed).sum()),
                )
            )
        return tuple(sorted(figures, key=lambda arm_figures: (-arm_figures.decisions, arm_figures.name)))

    def draws(self) -> Draws:
        """Return the explored turns that have a propensity, in the order in which they were made."""
        holding = np.array([[arm in arms for arm in self.names] for arms in self._pools], dtype=bool)
        column = {arm: place for place, arm in enumerate(self.names)}
        rows = np.flatnonzero(self._explored & ~np.isnan(self._weight))
        rows = rows[np.argsort(self._at[rows], kind="stable")]
        drawn = np.array([column[arm] for arm in self._drawn[rows].tolist()], dtype=np.int64)
        return Draws(tuple(self.names), drawn, self.served[rows], None, holding[self._pool[rows]])

    def raw_means(self) -> tuple[RawMean, ...]:
        """Return the mean reward of each arm that was drawn, on what it was drawn for, the best first."""
        means = []
        for arm in self.names:
            earned = self.reward[(self._drawn == arm) & ~np.isnan(self.reward)]
            if len(earned):
                means.append(RawMean(arm, len(earned), float(earned.mean())))
        return tuple(sorted(means, key=lambda mean: (-mean.reward, mean.name)))

    def stretches(
        self, best: str | None, arms: int, floor: float, rewards: Interval
    ) -> tuple[CurveStretch, ...]:
        """Cut the turns into stretches of as many decisions each, with the best arm by name."""
        most = min(MOST_STRETCHES, max(1, round(sqrt(self.n) / 2.5)))
        edges = np.linspace(0, self.n, most + 1).round().astype(int).tolist()
        stretches = []
        for begin, end in pairwise(edges):
            here = np.zeros(self.n, dtype=bool)
            here[begin:end] = True
            single = None
            if best is not None:
                level = 1.0 - ERROR / max(1, arms)
                rows = here & self.having(best)
                sums = self.sums(rows, self.reward, self.always(best))
                single = sums.estimate(reach=1.0 / floor, rewards=rewards, level=level)
            reach = float(self.alike[here].max()) / floor
            uniform = self.sums(here, self.reward, self.alike).estimate(reach=reach, rewards=rewards)
            served = self.sums(here, self.reward, self.served).estimate(reach=1.0, rewards=rewards)
            drawn = self._drawn[here & self._explored].tolist()
            shares = {arm: drawn.count(arm) / len(drawn) for arm in sorted(set(drawn))}
            stretches.append(CurveStretch(begin, end, served, uniform, single, shares))
        return tuple(stretches)
