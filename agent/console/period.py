"""The report of a period: decisions, rewards, savings, and changes; from a log or a file.

Rewards are compared as on the overview of the console: with a uniform choice, and with each single arm on the
decisions for which it was eligible. Dollars, or seconds where none were charged, are compared in the same
way. The costs of an arm are taken to be within two standard deviations of their mean where it was drawn often
enough to know them, and else at most the observed maximum.

What was served before is compared by its means: the decisions before the active recipe began to decide, or
before the period. Other questions may have been asked then, which no interval knows.

A policy without features can reach every point between two arms, by drawing one of them with a fixed
probability. So the arms and the lines between them are possible without learning, and the mix with the same
reward as the served policy shows what learning saved at equal quality. An alternative counts as equally good
if the interval of its lead excludes a loss beyond `EQUAL` of the range of rewards. All these intervals hold
jointly (Bonferroni), and are anytime-valid. The mix is selected from the data, among all pairs and shares, so
its interval is the weighted mean of those of its arms: if these hold, it holds for every mix.

A file is an export, or the converted log of another system. It has only decisions and their outcomes, without
promotions, alarms or verdicts. Its least propensity replaces the exploration floor, which bounds weights.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise, permutations
from math import inf, sqrt
from pathlib import Path

import numpy as np

from armwise.agent.config import AppConfig
from armwise.agent.console.served_comparison import (
    COLOURS,
    ERROR,
    LEAST,
    MOST_STRETCHES,
    Alternative,
    CurveStretch,
    KindShares,
    ServedComparison,
    alternative,
    compare,
    divide_error,
    estimate_lead,
    estimate_leads,
    estimate_value,
    least_floor,
    list_changes,
    number_colours,
    rows_by_kind,
    shares_by_kind,
)
from armwise.agent.evaluation.audit import propensity_doubt
from armwise.arms.base import Progress
from armwise.feedback.arrays import Flags, Floats, Integers
from armwise.feedback.clock import utc
from armwise.feedback.decisions import Decisions, concatenate, tabulate
from armwise.feedback.drift import newest_alarms
from armwise.feedback.events import FOREIGN, LABELS, NOT_SERVED, UNRECOVERED
from armwise.feedback.jsonl import read_export, read_headers
from armwise.feedback.log import Store, listing
from armwise.feedback.ope import Draws, Interval
from armwise.feedback.ope.confidence_sequences import Evidence
from armwise.feedback.ope.intervals import Further, forecast_more
from armwise.feedback.registry import arm_sets, evaluations, promotions, runs, versions
from armwise.feedback.reward import RewardRule
from armwise.feedback.sources import ExportSource, any_elsewhere, read_decisions
from armwise.feedback.training_log.draws import NewestDraw, newest_draws

NEWEST = 200
"""Newest promotions, alarms and runs that are searched for those of the period."""

NEWEST_VERDICTS = 20
"""Newest evaluations that are searched for verdicts of the gate."""

KINDS_OF = 20_000
"""Most explored turns, the newest of the period, that are compared by kind of question."""

EQUAL = 0.02
"""Loss up to which two rewards count as equal, as a share of the range of rewards."""

FEW_RATED = 0.2
"""Share of rated decisions below which a report says first that few are rated."""

FIGURES = 4
"""Number of intervals of each alternative: its reward, its cost, and the lead in both."""

FLOOR = 0.05
"""Least propensity to assume if no decision between arms has a recorded propensity."""


class NothingServedError(ValueError):
    """No decision was made in the period; the message has the times of decisions in the log."""


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """Counts and means of an arm.

    Attributes:
        name: Name of the arm.
        decisions: Number of turns that drew it, or were forced to it.
        share: Share of the explored turns, in [0, 1].
        usd: Mean dollars of its answers, if there are any.
        seconds: Mean seconds of its answers, if there are any.
        failed: Turns in which the arm or the language model failed.
    """

    name: str
    decisions: int
    share: float
    usd: float | None
    seconds: float | None
    failed: int


@dataclass(frozen=True, slots=True)
class KindGain:
    """The served policy on a kind of question, compared with the arm of the best estimate.

    Attributes:
        name: Value of the feature that defines the kind.
        beside: The comparison with that arm on the decisions of the kind.
    """

    name: str
    beside: Alternative


@dataclass(frozen=True, slots=True)
class Kinds:
    """Kinds of questions.

    Attributes:
        feature: The feature whose values are the kinds; empty if there is none.
        shares: Shares of the arms by kind.
        positions: Positions of the decisions by kind.
    """

    feature: str
    shares: tuple[KindShares, ...]
    positions: Mapping[str, Integers]

    @classmethod
    def from_draws(cls, draws: Sequence[NewestDraw]) -> "Kinds":
        """Return the kinds of some explored decisions."""
        feature, rows = rows_by_kind([draw.features for draw in draws])
        _, shares = shares_by_kind([(draw.arm, draw.features) for draw in draws])
        seq = np.array([draw.seq for draw in draws], dtype=np.int64)
        return cls(feature, tuple(shares), {name: seq[held] for name, held in rows.items()})


@dataclass(frozen=True, slots=True)
class RawMean:
    """Mean reward of an arm on the decisions that drew it; biased, since the policy selected these decisions.

    Attributes:
        name: Name of the arm.
        n: Rewarded decisions that drew it.
        reward: Mean reward of these decisions.
    """

    name: str
    n: int
    reward: float


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of the cost-quality curve.

    Attributes:
        name: The arm; None: the served policy.
        n: Rewarded decisions of the estimate.
        reward: Reward per decision.
        reward_interval: Interval of `reward`.
        cost: Dollars per answer; or seconds, if no dollars were charged.
        cost_interval: Interval of `cost`.
    """

    name: str | None
    n: int
    reward: float
    reward_interval: Interval
    cost: float
    cost_interval: Interval


@dataclass(frozen=True, slots=True)
class AtEqualQuality:
    """The served policy, compared with an alternative by cost and reward.

    Attributes:
        name: The alternative, in words.
        n: Rewarded decisions of the comparison.
        lead: Reward per decision of the served policy, minus that of the alternative.
        low: Lower end of the lead.
        high: Upper end of the lead.
        saved: Cost per answer of the alternative, minus that of the served policy.
        saved_low: Lower end of the savings.
        saved_high: Upper end of the savings.
        margin: Loss up to which two rewards count as equal.
        more: Least and most further decisions until it is decided whether the cheaper one is as good; None:
            it is, or takes more than can be forecast.
        shares: Arms of the alternative, each with its probability; empty: it is no fixed mix of arms.
    """

    name: str
    n: int
    lead: float
    low: float
    high: float
    saved: float
    saved_low: float
    saved_high: float
    margin: float
    more: Further | None
    shares: tuple[tuple[str, float], ...] = ()

    @property
    def served_saves(self) -> bool:
        """Whether the served policy is shown to be cheaper and as good."""
        return self.saved_low > 0.0 and self.low >= -self.margin

    @property
    def alternative_saves(self) -> bool:
        """Whether the alternative is shown to be cheaper and as good."""
        return self.saved_high < 0.0 and self.high <= self.margin

    @property
    def verdict(self) -> str:
        """The result of the comparison, in a few words."""
        if self.served_saves:
            return "what was served is cheaper and as good"
        if self.alternative_saves:
            return "it is cheaper and as good"
        cheaper = self.saved_high < 0.0
        if cheaper and self.low > 0.0:
            return "it is cheaper and worse"
        if self.saved_low > 0.0 and self.high < 0.0:
            return "it is dearer and better"
        return "not known"


@dataclass(frozen=True, slots=True)
class Period:
    """A report of a period.

    Attributes:
        since: Begin, seconds since the epoch.
        until: End, seconds since the epoch.
        whole: The served policy, compared with its alternatives.
        arms: Figures of each arm, the most drawn first.
        feature: The feature whose values are the kinds; empty if there is none.
        kinds: Shares of the arms by kind of question.
        stretches: The learning curve of the period.
        spent_usd: Dollars charged.
        changes: Changes, each with its time, in order.
        held: Candidates that the gate held, each with its time and reasons, in order.
        curve: Cost and reward of the served policy and of each arm; empty: there are no costs.
        equal: Comparisons by cost and reward with each arm, and with the cheapest mix that is as good.
        without: Explored decisions without a recorded propensity, which comparisons leave out.
        raw: Raw means of the arms, if decisions lack propensities.
        source: The file that was read; empty: the log of a service.
        notes: Remarks on the log; a sentence each.
        doubt: Why the recorded propensities cannot be trusted; empty: they pass the audit.
        ratings: Why the rated decisions may not stand for all, in a sentence; empty: nothing shows it.
        gains: Comparison with the arm of the best estimate by kind of question, the largest lead first.
        before: Comparison with what was served before, if anything was; without costs, nothing is saved.
        colours: Number of each arm's colour.
    """

    since: float
    until: float
    whole: ServedComparison
    arms: tuple[ArmFigures, ...]
    feature: str
    kinds: tuple[KindShares, ...]
    stretches: tuple[CurveStretch, ...]
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
    ratings: str = ""
    gains: tuple[KindGain, ...] = ()
    before: AtEqualQuality | None = None
    colours: Mapping[str, int] = field(default_factory=dict)

    @property
    def beside_best(self) -> AtEqualQuality | None:
        """The comparison with the arm of the best estimate, if there are costs; the reward is of `whole`."""
        best = self.whole.best
        if best is None:
            return None
        found = next((one for one in self.equal if one.shares == ((best.name, 1.0),)), None)
        return found and replace(found, lead=best.lead, low=best.low, high=best.high)

    @property
    def rewarded(self) -> int:
        """Explored decisions with a reward, with or without a recorded propensity."""
        return sum(raw_mean.n for raw_mean in self.raw) if self.without else self.whole.rewarded


def read_period(
    store: Store,
    config: AppConfig,
    since: float,
    until: float,
    on_progress: Progress,
) -> Period:
    """Read a period from a log.

    Args:
        store: The log.
        config: The configuration.
        since: Begin, seconds since the epoch.
        until: End, exclusive.
        on_progress: Called with the progress.

    Raises:
        NothingServedError: No decision was made in the period.
        LogUnavailableError: Try again later.
    """
    decisions = _read_decisions(store, config, since, until, on_progress)
    if decisions is None:
        raise NothingServedError(_nothing(store, since, until))
    turns = Turns(decisions)
    live = [arms for arms in arm_sets.history(store) if arms.at < until] or arm_sets.history(store)[:1]
    names = tuple(turns.names) if not live else tuple(sorted(live[-1].arms & set(turns.names)))
    floor = least_floor(store, config)
    upto = listing.positions_at(store, [until])[0]
    draws = newest_draws(store, KINDS_OF, listing.DecisionFilter(since=since, until=until), upto)
    changes = list_changes(
        arm_sets.history(store)[1:],
        promotions.newest(store, NEWEST),
        newest_alarms(store, NEWEST, config.reward.join),
    )
    return build_period(
        turns,
        names,
        floor,
        config.reward.reward_range,
        (since, until),
        Kinds.from_draws(draws),
        number_colours(store),
        changes=tuple(change for change in changes if since <= change[0] < until),
        held=tuple(sorted(_list_held(store, since, until))),
        before=_read_before(store, config, since, until, decisions),
    )


def _read_decisions(
    store: Store,
    config: AppConfig,
    since: float,
    until: float,
    on_progress: Progress | None = None,
    *,
    elsewhere: bool = False,
) -> Decisions | None:
    """Return the decisions of a time, those of other systems if asked for; None: there are none."""
    without = (LABELS,) if elsewhere else NOT_SERVED
    parts = read_decisions(store, config.reward, since, until, without=without, on_progress=on_progress)
    decisions = [part for part in parts if len(part)]
    return concatenate(decisions) if decisions else None


def _read_before(
    store: Store, config: AppConfig, since: float, until: float, decisions: Decisions
) -> AtEqualQuality | None:
    """Compare what the last recipe of a period served with what was served as long before; None: nothing was.

    If nothing was served before it began to decide, the period is compared with what came before the period.
    Where this service decided nothing at all then, it is what other systems decided.
    """
    began = find_recipe_begin(store, until)
    for elsewhere in (False, True):
        for end in dict.fromkeys((since if began is None else began, since)):
            window = max(0.0, end - (until - since)), end
            before = _read_decisions(store, config, *window, elsewhere=elsewhere)
            if before is not None:
                now = Turns(decisions.where(decisions.at >= end))
                return compare_before(now, Turns(before), end, config.reward.reward_range)
    return None


def find_recipe_begin(store: Store, until: float) -> float | None:
    """Return when the recipe that is active at a time was promoted or rolled back to; None: it never was."""
    acts = [
        act
        for act in promotions.newest(store, NEWEST)
        if act.at < until and act.action is not promotions.Action.CANARY
    ]
    found = {version: versions.find(store, version) for version in {act.version for act in acts}}
    recipes = [version and version.recipe for version in (found[act.version] for act in acts)]
    changed = zip(acts, recipes, [*recipes, None][1:], strict=True)
    return next((act.at for act, recipe, earlier in changed if recipe != earlier), None)


def build_period(
    turns: "Turns",
    names: Sequence[str],
    floor: float,
    rewards: Interval,
    window: tuple[float, float],
    kinds: Kinds,
    colours: Mapping[str, int],
    *,
    changes: tuple[tuple[float, str], ...] = (),
    held: tuple[tuple[float, str], ...] = (),
    source: str = "",
    notes: tuple[str, ...] = (),
    before: AtEqualQuality | None = None,
) -> Period:
    """Return the report of some turns.

    Args:
        turns: The turns.
        names: Arms to compare with.
        floor: Least probability of an eligible arm.
        rewards: Smallest and largest possible reward.
        window: Begin and end.
        kinds: Kinds of questions.
        colours: Number of each arm's colour.
        changes: Changes, with their times.
        held: Candidates that the gate held, with times and reasons.
        source: The file that was read; empty: the log of a service.
        notes: Remarks on the log.
        before: Comparison with what was served before, if anything was.
    """
    whole = turns.comparison(names, floor, rewards)
    best = None if whole.best is None else whole.best.name
    curve = trace_curve(turns, names, floor, rewards)
    return Period(
        *window,
        whole,
        turns.figures(),
        kinds.feature,
        kinds.shares,
        turns.stretches(whole, len(names), floor, rewards),
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
        doubt_ratings(turns, whole, floor),
        () if best is None else turns.gains(kinds.positions, best, floor, rewards),
        before,
        colours,
    )


def doubt_ratings(turns: "Turns", whole: ServedComparison, floor: float) -> str:
    """Return why the rated decisions may not stand for all: few are, or those of a worse arm more often.

    Where one arm is rated more often than another, whether an answer is rated depends on the answer, and the
    mean rating is not that of all answers.

    Args:
        turns: The turns.
        whole: The comparison, with the arms in the order of their estimates.
        floor: Least probability of an eligible arm.
    """
    final = ~np.isnan(turns.rated)
    n, rated = int(final.sum()), int(np.nansum(turns.rated))
    if not rated:
        return ""
    ends, arms = {}, [str(arm.name) for arm in whole.arms if not arm.few]
    for arm in arms:
        some = turns.evidence(arm, turns.having(arm), floor, (0.0, 1.0), turns.rated)
        if some is not None:
            ends[arm] = estimate_value(some, ERROR / len(arms))
    for better, worse in combinations([arm for arm in arms if arm in ends], 2):
        (one, (one_low, one_high)), (other, (other_low, other_high)) = ends[better], ends[worse]
        if one_low > other_high or other_low > one_high:
            often, seldom = (better, worse) if one > other else (worse, better)
            rates = max(one, other), min(one, other)
            return (
                f"Answers of {often} are rated more often than answers of {seldom} ({rates[0]:.0%} and "
                f"{rates[1]:.0%}), so whether an answer is rated depends on it: rewards below are only of "
                "rated answers."
            )
    if rated < FEW_RATED * n:
        return f"Only {rated:,} of {n:,} decisions ({rated / n:.0%}) are rated: rewards below are of these."
    return ""


def _nothing(store: Store, since: float, until: float) -> str:
    if any_elsewhere(store, since, until):
        return (
            f"from {utc(since)} to {utc(until)} another system made every decision, or took part in it. "
            "Run `armwise replay` to see what policies would have earned on its decisions"
        )
    from_to = f"no decision was made from {utc(since)} to {utc(until)}"
    span = listing.span(store)
    if span is None:
        return f"{from_to}: the log holds none yet"
    return f"{from_to}: the log has some from {utc(span[0])} to {utc(span[1])}"


def _list_held(store: Store, since: float, until: float) -> Iterator[tuple[float, str]]:
    """Yield the candidates that the gate or a warm start held in a period, with times and reasons."""
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
        for candidate in (evaluations.read_result(store, evaluation.seq) or {}).get("candidates", ()):
            if (verdict := candidate.get("verdict")) and verdict["verdict"] == "hold":
                yield (
                    evaluation.finished_at,
                    f"The gate held {candidate['name']}: {' '.join(verdict['reasons'])}",
                )


# -- of a file ------------------------------------------------------------------------------------


def measure_span(path: Path) -> tuple[float, float]:
    """Return the times of the first and the last decision of a file, labels left out.

    Raises:
        ExchangeError: The file cannot be read.
        NothingServedError: The file has no decision.
    """
    first, last = inf, -inf
    for example in read_export(path):
        if example.decision.policy != LABELS:
            at = example.decision.decided_at
            first, last = min(first, at), max(last, at)
    if first > last:
        raise NothingServedError(f"{path}: it has no decision")
    return first, last


def read_file_period(path: Path, since: float, until: float, on_progress: Progress) -> Period:
    """Read a period from a file.

    Args:
        path: The file.
        since: Begin, seconds since the epoch.
        until: End, exclusive.
        on_progress: Called with the progress.

    Raises:
        ExchangeError: The file cannot be read.
        NothingServedError: No decision was made in the period.
    """
    rule = next(iter(read_headers(path))).reward
    parts = list[Decisions]()
    draws: deque[NewestDraw] = deque(maxlen=KINDS_OF)
    for part in _read_rows(path, rule, since, until):
        for row in np.flatnonzero(part.explored).tolist():
            drawn = part.draw.values[part.draw.codes[row]].drawn
            draws.append(NewestDraw(int(part.seq[row]), drawn, part.context[row].features))
        if parts:
            on_progress("decisions", sum(map(len, parts)), None)
        parts.append(replace(part, context=()))
    if not parts:
        first, last = measure_span(path)
        raise NothingServedError(
            f"no decision was made from {utc(since)} to {utc(until)}: {path} has some from {utc(first)} to "
            f"{utc(last)}"
        )
    decisions = concatenate(parts)
    turns = Turns(decisions)
    on_progress("decisions", turns.n, turns.n)
    notes = ["A file has no promotions, alarms or verdicts: they are in the log of a service."]
    if any(key.policy not in FOREIGN for key in decisions.draw.values):
        notes.append(
            "An export has the decisions that are learned from; without a default reward, those with "
            "feedback."
        )
    names = tuple(turns.names) if turns.n > turns.without else ()
    earlier = [
        replace(part, context=()) for part in _read_rows(path, rule, max(0.0, 2 * since - until), since)
    ]
    before = None
    if earlier:
        before = compare_before(turns, Turns(concatenate(earlier)), since, rule.reward_range)
    return build_period(
        turns,
        names,
        min(least_propensity(decisions), 1.0 / max(2, len(turns.names))),
        rule.reward_range,
        (since, until),
        Kinds.from_draws(draws),
        {name: number % COLOURS for number, name in enumerate(turns.names)},
        source=str(path),
        notes=tuple(notes),
        before=before,
    )


def _read_rows(path: Path, rule: RewardRule, since: float, until: float) -> Iterator[Decisions]:
    """Yield the decisions of a time from a file, labels left out."""
    examples = (
        example
        for example in read_export(path)
        if example.decision.policy != LABELS and since <= example.decision.decided_at < until
    )
    return tabulate(examples, rule, settled=ExportSource(path).settled.before)


def least_propensity(decisions: Decisions) -> float:
    """Return the least recorded propensity of decisions with at least two eligible arms."""
    p = decisions.p[np.repeat(decisions.explored & (decisions.width > 1), decisions.n_p)]
    return float(p[p > 0.0].min(initial=inf)) if (p > 0.0).any() else FLOOR


# -- figures --------------------------------------------------------------------------------------


class Turns:
    """The decisions of a period; each is a row.

    Args:
        decisions: The decisions.

    Attributes:
        n: Number of decisions.
        n_open: Explored decisions that may still get feedback.
        names: Names of the arms.
        drawn: Index of the arm that each row drew, shape (n,).
        n_arms: Number of arms that could be drawn, shape (n,).
        explored: 1 for each explored decision, 0 for the others, shape (n,).
        usd: Dollars of each answer, NaN for turns without an answer, shape (n,).
        seconds: Seconds of each answer, NaN for turns without an answer, shape (n,).
        reward: Reward of each explored and settled turn, NaN if it has none, shape (n,).
        rated: Whether each explored and settled turn has a reward, 1 or 0, NaN for the others, shape (n,).
        policies: Kinds of the policies that decided, in order.
    """

    def __init__(self, decisions: Decisions) -> None:
        keys = decisions.draw.values
        could = {arm: decisions.possible(arm) for arm in {arm for key in keys for arm in key.arms}}
        names = sorted({key.drawn for key in keys} | {arm for arm, rows in could.items() if rows.any()})
        place = {arm: index for index, arm in enumerate(names)}
        self.n, self.n_open = len(decisions), int((decisions.explored & ~decisions.settled).sum())
        self.names, self.n_arms = names, decisions.n_possible
        self.drawn = np.array([place[key.drawn] for key in keys], dtype=np.int64)[decisions.draw.codes]
        self.explored = decisions.explored.astype(np.int64)
        self.policies = sorted({key.policy for key in keys})
        self._could, self._seq, self._at = could, decisions.seq, decisions.at
        self._weight = 1.0 / decisions.propensity
        self._failed = decisions.draw.each(lambda key: key.status in UNRECOVERED)
        final = decisions.explored & decisions.settled
        self.reward = np.where(final, decisions.reward, np.nan)
        self.rated = np.where(final, ~np.isnan(decisions.reward), np.nan)
        self.usd, self.seconds, self._decisions = decisions.usd, decisions.seconds, decisions

    def having(self, arm: str) -> Flags:
        """Return the rows for which an arm could be drawn, shape (n,)."""
        return self._could.get(arm, np.zeros(self.n, dtype=np.bool_))

    def evidence(
        self,
        name: str | None,
        rows: Flags,
        floor: float,
        possible: Interval,
        values: Floats | None = None,
    ) -> Evidence | None:
        """Return turns as evidence on an alternative, in order; None: its draws have no values.

        Args:
            name: An arm; None: a uniform choice.
            rows: The turns that could draw it, shape (n,).
            floor: Least probability of an eligible arm where the distribution is not on record.
            possible: Smallest and largest possible value.
            values: A value of each turn, NaN where it has none, shape (n,); None: the rewards.
        """
        values = self.reward if values is None else values
        rows = self._comparable(rows, values)
        weight = (self._weight * (self.alike if name is None else self.always(name)))[rows]
        if not weight.any():
            return None
        d, some = self._decisions, np.flatnonzero(rows)
        least = np.full(len(some), floor)
        known = np.flatnonzero(d.whole[some])
        at = d.start[some[known]]
        if name is not None:
            least[known] = d.p[at + d.place(name)[some[known]]]
        elif len(known):
            positive = np.where(d.p > 0.0, d.p, 1.0)
            least[known] = np.minimum.reduceat(positive, d.start[d.whole])[
                np.cumsum(d.whole)[some[known]] - 1
            ]
        reach = np.maximum(weight, (1.0 / self.n_arms[some] if name is None else 1.0) / least)
        return Evidence(weight, np.clip(values[rows], *possible), possible, reach)

    def _comparable(self, rows: Flags, values: Floats) -> Flags:
        """Return the explored ones of some rows that have a value and a propensity on record, shape (n,)."""
        found: Flags = rows & (self.explored > 0) & ~np.isnan(values) & ~np.isnan(self._weight)
        return found

    @property
    def costs(self) -> Floats | None:
        """Dollars of each answer, or seconds if no dollars were charged, shape (n,); None: all are 0."""
        for values in (self.usd, self.seconds):
            if np.nansum(values) > 0.0:
                return values
        return None

    @property
    def dearest(self) -> float:
        """The largest of `costs`, which stands for the largest that is possible."""
        costs = self.costs
        return 0.0 if costs is None else float(np.nanmax(costs))

    @property
    def without(self) -> int:
        """Number of explored turns without a propensity."""
        return int(((self.explored > 0) & np.isnan(self._weight)).sum())

    def gains(
        self, kinds: Mapping[str, Integers], arm: str, floor: float, rewards: Interval
    ) -> tuple[KindGain, ...]:
        """Compare the served policy with an arm on the decisions of each kind; the largest lead comes first.

        Args:
            kinds: Positions of the decisions of each kind.
            arm: The arm.
            floor: Least probability of an eligible arm.
            rewards: Smallest and largest possible reward.
        """
        gains, error = [], ERROR / max(1, len(kinds))
        for name, positions in kinds.items():
            rows = self.having(arm) & np.isin(self._seq, positions)
            evidence = self.evidence(arm, rows, floor, rewards)
            beside = alternative(arm, evidence, len(positions), error)
            if beside is not None:
                gains.append(KindGain(name, beside))
        return tuple(sorted(gains, key=lambda gain: (-gain.beside.lead, gain.name)))

    def mean(self, values: Floats, possible: Interval) -> tuple[float, Interval] | None:
        """Return the mean of values over the explored turns, if any has one, with an interval.

        Args:
            values: A value of each turn, NaN where it has none, shape (n,).
            possible: Smallest and largest possible value.
        """
        found = self.as_served(values, possible)
        return None if found is None else estimate_value(found, ERROR / FIGURES)

    def as_served(self, values: Floats, possible: Interval) -> Evidence | None:
        """Return the explored turns that have a value, each with the weight 1; None: there is none."""
        r = values[(self.explored > 0) & ~np.isnan(values)]
        return Evidence(np.ones(len(r)), np.clip(r, *possible), possible, 1.0) if len(r) else None

    def figures(self) -> tuple[ArmFigures, ...]:
        """Return the figures of each arm that was drawn, the most drawn first."""
        n_explored = max(1, int(self.explored.sum()))
        figures = []
        for arm in self.names:
            mine = self.drew(arm)
            if not mine.any():
                continue
            usd, seconds = (values[mine & ~np.isnan(values)] for values in (self.usd, self.seconds))
            figures.append(
                ArmFigures(
                    arm,
                    int(mine.sum()),
                    int(self.explored[mine].sum()) / n_explored,
                    float(usd.mean()) if len(usd) else None,
                    float(seconds.mean()) if len(seconds) else None,
                    int((mine & self._failed).sum()),
                )
            )
        return tuple(sorted(figures, key=lambda arm_figures: (-arm_figures.decisions, arm_figures.name)))

    def draws(self) -> Draws:
        """Return the explored turns with a recorded propensity, in the order in which they were made."""
        rows = np.flatnonzero((self.explored > 0) & ~np.isnan(self._weight))
        rows = rows[np.argsort(self._at[rows], kind="stable")]
        eligible = np.column_stack([self.having(arm)[rows] for arm in self.names])
        return Draws(tuple(self.names), self.drawn[rows], 1.0 / self._weight[rows], None, eligible)

    def raw_means(self) -> tuple[RawMean, ...]:
        """Return the mean reward of each arm on the turns that drew it, the best first."""
        means = []
        for arm in self.names:
            earned = self.reward[self.drew(arm) & ~np.isnan(self.reward)]
            if len(earned):
                means.append(RawMean(arm, len(earned), float(earned.mean())))
        return tuple(sorted(means, key=lambda mean: (-mean.reward, mean.name)))

    @property
    def everything(self) -> Flags:
        """All rows, shape (n,)."""
        return np.ones(len(self.drawn), dtype=np.bool_)

    @property
    def alike(self) -> Floats:
        """Probability of the drawn arm under a uniform choice, shape (n,)."""
        return np.divide(1.0, self.n_arms, out=np.zeros(len(self.n_arms)), where=self.n_arms > 0)

    def drew(self, arm: str) -> Flags:
        """Return the rows that drew an arm, shape (n,)."""
        drawn: Flags = self.drawn == (self.names.index(arm) if arm in self.names else -1)
        return drawn

    def always(self, arm: str) -> Floats:
        """Return the probability of the drawn arm under a policy that always draws `arm`, shape (n,)."""
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
        return compare(
            self.n,
            int(self.explored.sum()),
            int(self.n_arms.max(initial=0)),
            self.as_served(self.reward, rewards),
            self.evidence(None, self.everything, floor, rewards),
            {arm: self.evidence(arm, self.having(arm), floor, rewards) for arm in names},
            n_open=self.n_open,
        )

    def stretches(
        self, whole: ServedComparison, n_compared: int, floor: float, rewards: Interval
    ) -> tuple[CurveStretch, ...]:
        """Return the learning curve: stretches of about equal size, in order.

        The lead of each is over all decisions so far, beside the arm that is the best in the end. Its
        intervals are those of the comparison of all arms: they hold at every point, whichever arm is best.

        Args:
            whole: The comparison on all decisions.
            n_compared: Number of arms that were compared.
            floor: Least probability of an eligible arm.
            rewards: Smallest and largest possible reward.
        """
        beside, most = whole.compared, rewards[1] - rewards[0]
        name = None if beside is None else beside.name
        could = self.everything if name is None else self.having(name)
        evidence = None if beside is None else self.evidence(name, could, floor, rewards)
        n_rows = np.cumsum(self._comparable(could, self.reward))
        stretches = [*self.cut(min(MOST_STRETCHES, max(1, round(sqrt(self.n) / 2.5))))]
        leads = dict[int, tuple[float, Interval]]()
        if evidence is not None:
            drawn = max(LEAST, 1 + int(np.argmax(evidence.weight > 0.0)))
            looks = sorted(
                {int(n_rows[end - 1]) for _, end, _ in stretches if end and n_rows[end - 1] >= drawn}
            )
            found = estimate_leads(evidence, divide_error(n_compared), looks) if looks else []
            # an interval that excludes nothing is not drawn
            leads = {n: one for n, one in zip(looks, found, strict=True) if one[1] != (-most, most)}
        return tuple(
            CurveStretch(begin, end, leads.get(int(n_rows[end - 1])) if end else None, self.shares(rows))
            for begin, end, rows in stretches
        )

    def cut(self, most: int) -> Iterator[tuple[int, int, Flags]]:
        """Yield stretches of about equal size: the decisions before it, those up to its end, and its rows."""
        edges = np.linspace(0, self.n, most + 1).round().astype(int).tolist()
        for begin, end in pairwise(edges):
            rows = np.zeros(self.n, dtype=bool)
            rows[begin:end] = True
            yield begin, end, rows


# -- cost and quality -----------------------------------------------------------------------------


def trace_curve(
    turns: Turns, names: Sequence[str], floor: float, rewards: Interval
) -> tuple[CurvePoint, ...]:
    """Return the points of the served policy, which comes first, and of each arm; empty without costs.

    Args:
        turns: The turns of the period.
        names: The arms.
        floor: Least probability of an eligible arm.
        rewards: Smallest and largest possible reward.
    """
    costs = turns.costs
    if costs is None:
        return ()
    error, points = ERROR / (FIGURES * (1 + len(names))), []
    for name in (None, *names):
        rows = turns.everything if name is None else turns.having(name)
        earned, paid = (
            turns.as_served(values, possible)
            if name is None
            else turns.evidence(name, rows, floor, possible, values)
            for values, possible in ((turns.reward, rewards), (costs, (0.0, turns.dearest)))
        )
        if earned is not None and paid is not None:
            figures = *estimate_value(earned, error), *estimate_value(paid, error)
            points.append(CurvePoint(name, len(earned.reward), *figures))
    return tuple(points) if len(points) > 1 and points[0].name is None else ()


def at_equal_quality(
    turns: Turns, points: Sequence[CurvePoint], floor: float, rewards: Interval
) -> tuple[AtEqualQuality, ...]:
    """Compare the served policy with each single arm, and with the cheapest mix that is as good.

    Args:
        turns: The turns of the period.
        points: The cost-quality curve.
        floor: Least probability of an eligible arm.
        rewards: Smallest and largest possible reward.
    """
    arms = [point for point in points if point.name is not None]
    if not arms or points[0].name is not None:
        return ()
    alternatives: list[tuple[tuple[str, float], ...]] = [((str(arm.name), 1.0),) for arm in arms]
    if (mix := cheapest_mix(points[0], arms)) is not None:
        alternatives.append(mix)
    error = ERROR / (FIGURES * (len(alternatives) + 1))
    pairs = len(arms) * (len(arms) - 1)
    comparisons = [_beside(turns, shares, floor, rewards, error, pairs) for shares in alternatives]
    return tuple(comparison for comparison in comparisons if comparison is not None)


def cheapest_mix(
    served: CurvePoint, arms: Sequence[CurvePoint]
) -> tuple[tuple[str, float], tuple[str, float]] | None:
    """Return the cheapest mix of two arms with the estimated reward of the served policy, if there is one.

    >>> ends = (0.0, 1.0)
    >>> points = [CurvePoint("a", 9, 0.4, ends, 1.0, ends), CurvePoint("b", 9, 0.8, ends, 9.0, ends)]
    >>> cheapest_mix(CurvePoint(None, 9, 0.7, ends, 2.0, ends), points)
    (('a', 0.25), ('b', 0.75))
    """
    best: tuple[float, tuple[tuple[str, float], tuple[str, float]]] | None = None
    for worse, better in permutations(arms, 2):
        if not worse.reward < served.reward < better.reward:
            continue
        share = (better.reward - served.reward) / (better.reward - worse.reward)
        cost = share * worse.cost + (1.0 - share) * better.cost
        if best is None or cost < best[0]:
            share = round(share, 4)
            best = cost, ((str(worse.name), share), (str(better.name), round(1.0 - share, 4)))
    return None if best is None else best[1]


def _beside(
    turns: Turns,
    shares: tuple[tuple[str, float], ...],
    floor: float,
    rewards: Interval,
    error: float,
    pairs: int,
) -> AtEqualQuality | None:
    """Compare the served policy with an arm, or a mix of two, on the turns for which these were eligible.

    The interval of an arm on all its turns misses with the probability `error`. The intervals on the fewer
    turns of a mix, for each of the `pairs`, share it.
    """
    costs = turns.costs
    assert costs is not None
    rows = turns.everything
    for arm, _ in shares:
        rows = rows & turns.having(arm)

    def leads(values: Floats, possible: Interval) -> tuple[int, list[float]] | None:
        """Return the number of compared turns, and the lead of the served policy with its interval."""
        n, parts = 0, list[Floats]()
        for arm, share in shares:
            is_whole = bool((rows == turns.having(arm)).all())
            evidence = turns.evidence(arm, rows, floor, possible, values)
            if evidence is None:
                return None
            found, ends = estimate_lead(evidence, error / (1 if is_whole else pairs))
            n, parts = len(evidence.reward), [*parts, share * np.array([found, *ends])]
        return n, np.sum(parts, axis=0).tolist()

    reward, cost = leads(turns.reward, rewards), leads(costs, (0.0, turns.dearest))
    if reward is None or cost is None:
        return None
    n, (lead, low, high) = reward
    saved, saved_high, saved_low = (-each for each in cost[1])
    span = rewards[1] - rewards[0]
    low, high = max(-span, low), min(span, high)
    margin = EQUAL * span
    found = AtEqualQuality(
        name_shares(shares), n, lead, low, high, saved, saved_low, saved_high, margin, None, shares
    )
    if found.verdict != "not known":
        return found
    cheaper_leads = lead if saved > 0.0 else -lead
    return replace(found, more=forecast_more(cheaper_leads + margin, (high - low) / 2.0, n))


def name_shares(shares: Sequence[tuple[str, float]]) -> str:
    """Return arms that are drawn at random with fixed probabilities, in words.

    >>> name_shares([("a", 1.0)]), name_shares([("a", 0.25), ("b", 0.75)])
    ('always a', 'a for 25% and b for 75%, at random')
    """
    if len(shares) == 1:
        return f"always {shares[0][0]}"
    return " and ".join(f"{arm} for {share:.0%}" for arm, share in shares) + ", at random"


def compare_before(now: Turns, before: Turns, end: float, rewards: Interval) -> AtEqualQuality | None:
    """Compare the means of what is served with those of what was served before; None: one has no reward.

    Args:
        now: The turns since `end`.
        before: The turns before it.
        end: When the earlier ones ended, seconds since the epoch.
        rewards: Smallest and largest possible reward.
    """
    priced_by_usd = max(float(np.nansum(turns.usd)) for turns in (now, before)) > 0.0
    costs = [turns.usd if priced_by_usd else turns.seconds for turns in (now, before)]
    top = max(float(np.nanmax(each, initial=0.0)) for each in costs)
    ours, theirs = (turns.mean(turns.reward, rewards) for turns in (now, before))
    if ours is None or theirs is None:
        return None
    lead, low, high = _subtract(ours, theirs)
    paid = [
        turns.mean(values, (0.0, top)) if top else None
        for turns, values in zip((now, before), costs, strict=True)
    ]
    spent_now, spent_before = paid
    saved = (0.0, 0.0, 0.0)
    if spent_now is not None and spent_before is not None:
        saved = _subtract(spent_before, spent_now)
    name = f"what decided before {utc(end)} ({', '.join(before.policies)})"
    n = int((~np.isnan(now.reward)).sum())
    return AtEqualQuality(name, n, lead, low, high, *saved, EQUAL * (rewards[1] - rewards[0]), None)


def _subtract(one: tuple[float, Interval], other: tuple[float, Interval]) -> tuple[float, float, float]:
    """Return a difference with its ends, which hold where both intervals do.

    >>> _subtract((3.0, (2.0, 5.0)), (1.0, (0.5, 1.5)))
    (2.0, 0.5, 4.5)
    """
    (a, (a_low, a_high)), (b, (b_low, b_high)) = one, other
    return a - b, a_low - b_high, a_high - b_low
