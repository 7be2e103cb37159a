"""Non-inferiority: what was served, beside always using one arm, in quality and in dollars, at every look.

    decisions --settle--> Settlement --sessions--> Sessions --compare(reference)--> ArmComparison

The quality that was lost or gained and the dollars that were saved are means of conditional expectations over
the decisions made so far, bounded by confidence sequences (`armwise.feedback.ope.confidence_sequences`): the
bounds may be read after every decision, and hold at all looks together. An error of `ERROR` is shared by the
three ends and by all arms that could be the reference, so that the reference may be chosen from the data:
most of it belongs to the lower ends, which say "no worse than" and "at least".

A session is one observation: its decisions may depend on each other. It has the decisions of an episode
within `SESSION_S` of the first; later ones begin another. It counts once all of it is settled, so that what
counts at one look counts at all later ones, unchanged. What an answer costs is known before the next
decision, so in the savings each decision is one observation, given all that was before it. A question that is
asked again in its session is no decision of its own there: what that costs belongs to the first answer.

The first sessions set the scale, which must be known before a bet is placed, and are left out: how many
decisions of a session count in quality, and the largest cost that counts in full.

Only decisions that could have drawn the reference count, with a propensity above 0 on record.

    dollars   What was served cost what it cost: that is a sum, not an estimate. Only what the reference would
              have cost is bounded, by its draws. Where a cost is unknown, the worse case counts.
              Nothing is said where a few answers decide, or where an arm that takes a conversation over
              pays for what its cache lacks: alone, it would not.
    quality   That of decisions with feedback. Nothing is said where feedback does not come as often whichever
              arm answered, or where one user gives too large a share of it.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import inf, sqrt
from typing import Annotated, ClassVar

import numpy as np
from pydantic import ConfigDict, Field, FiniteFloat, NonNegativeInt

from armwise.feedback.arrays import TOLERANCE, Flags, Floats, Integers
from armwise.feedback.decisions import Decisions, encode
from armwise.feedback.events import LABELS, Mode, Status
from armwise.feedback.ope import confidence_sequences

ERROR = 0.05
"""Largest probability that any end of any comparison ever fails, whichever arm is the reference."""

QUALITY_SHARE, SAVED_SHARE = 0.5, 0.4
"""Shares of the error that the lower ends of quality and of savings have; the rest is above quality."""

SESSION_S = 3600.0
"""Seconds after the first decision of a session in which the episode continues it."""

SCALE_SESSIONS = 100
"""First sessions, which set how many decisions of a session count."""

SCALE_DRAWS = 10
"""Draws of the reference with a known cost that set the largest cost that counts in full."""

HEADROOM = 4.0
"""The largest cost that counts in full, as a multiple of the largest that set it."""

ENOUGH = 20
"""Draws from which on an arm can be the reference by default."""

FEW_DECIDE = 0.5
"""Part of the savings that the dollars beyond the largest cost may be, on either side."""

LARGEST_RATER, RATES_MORE = 1.0 / 3.0, 1.25
"""Share of the feedback that one user may give, and the multiple of its share of the decisions, if more."""

COLD_Z = 4.0
"""Standard errors by which answers must be dearer where a cache is cold to show that caches count."""

ALL_COLD_Z = 2.0
"""Standard errors by which those of each arm must be dearer, so that caches are the reason."""

COLD_ROWS = 500
"""Consecutive decisions among which they are compared."""


class Unsaid(StrEnum):
    """Why nothing is said of dollars or quality although they are on record."""

    FEW_DECIDE = "few_decide"
    """A few very expensive answers are most of the difference."""

    CACHE = "cache"
    """Answers cost more where the cache of their arm is cold: of an arm that answers alone, it is not."""

    HISTORY = "history"
    """What an answer costs depends on which arm answered before it in its session."""

    CACHE_UNKNOWN = "cache_unknown"
    """Arms take conversations over from each other, too few to see whether they pay for cold caches."""

    RATED_APART = "rated_apart"
    """Feedback comes more often, or less, on what was served than on the answers of the reference."""

    ONE_USER = "one_user"
    """One user gave more than `LARGEST_RATER` of the feedback, and rates more often than the others."""

    LATE = "late"
    """Feedback that came too late to count is better or worse than what came in time."""

    OUTSIDE = "outside"
    """Feedback is outside the range of its metric, and would count as the nearer end."""

    TOO_WIDE = "too_wide"
    """The range is as wide as all that is possible."""


Ends = tuple[FiniteFloat, FiniteFloat, FiniteFloat]
"""An estimate, its lower and its upper end."""


class NothingComparableError(ValueError):
    """No decision can be compared with the reference; the message says why."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The part of a log that is final; the default is all of it.

    Attributes:
        before: Decisions before this time count, seconds since the epoch.
        begun_before: Sessions that began before this time count, seconds since the epoch.
    """

    before: float = inf
    begun_before: float = inf

    @classmethod
    def from_time(cls, before: float, *, sessions: bool) -> "Settlement":
        """Return the final part of a log whose decisions are settled before a time.

        Args:
            before: The time, seconds since the epoch; infinite: the entire log is settled.
            sessions: Whether decisions belong to sessions, which have to be settled as a whole.
        """
        return cls(before, before - SESSION_S if sessions else before)


@dataclass(frozen=True, slots=True)
class ArmComparison:
    """What was served, beside always using the reference.

    Attributes:
        reference: The arm.
        n_arms: Number of arms that could be the reference; they share the error.
        decisions: Decisions that count in quality.
        sessions: Sessions of these, or of the priced ones; as many as decisions where the log has none.
        drawn: Decisions that count in quality and drew the reference.
        served: Mean quality of these decisions; None: no feedback counts.
        quality: Quality of a decision as served, minus that of the reference; None: no feedback counts, or
            `quality_unsaid` says why.
        priced: Decisions that count in the savings.
        priced_drawn: Decisions of these that drew the reference.
        priced_scale: First decisions left out of the savings, which set the largest cost.
        spent: Mean dollars of these decisions, as far as known; None without savings.
        saved: Dollars of a decision with the reference, minus those as served, and the lower end of that. No
            upper end: nothing bounds what an answer of the reference may cost. None: not enough are known, or
            `dollars_unsaid` says why.
        largest_cost: Dollars up to which an answer of the reference counts in full; None without savings.
        cut: Decisions among `priced` that were dearer.
        beyond_largest: Dollars of these beyond `largest_cost`, in all.
        unpriced: Decisions among `priced` without a known cost.
        dollars_unsaid: Why `saved` is missing although dollars are on record.
        quality_unsaid: Why `quality` is missing although feedback is on record.
        rated: How much more often a decision as served has feedback than one of the reference; None: all have
            it, or those without are not on record.
        session_limit: Decisions of a session that count in quality.
        beyond: Decisions left out of quality beyond the limit.
        scale: First decisions left out of quality, which set the scale.
        first_at: Time of the first decision that counts in either, seconds since the epoch.
        last_at: Time of the last one.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")  # a receipt has it as its figures

    reference: Annotated[str, Field(max_length=1000)]
    n_arms: NonNegativeInt
    decisions: NonNegativeInt
    sessions: NonNegativeInt
    drawn: NonNegativeInt
    served: FiniteFloat | None
    quality: Ends | None
    priced: NonNegativeInt
    priced_drawn: NonNegativeInt
    priced_scale: NonNegativeInt
    spent: FiniteFloat | None
    saved: tuple[FiniteFloat, FiniteFloat] | None
    largest_cost: FiniteFloat | None
    cut: NonNegativeInt
    beyond_largest: FiniteFloat
    unpriced: NonNegativeInt
    dollars_unsaid: Unsaid | None
    quality_unsaid: Unsaid | None
    rated: Ends | None
    session_limit: NonNegativeInt
    beyond: NonNegativeInt
    scale: NonNegativeInt
    first_at: FiniteFloat
    last_at: FiniteFloat


class Sessions:
    """The final explored decisions of a log, in the order in which they were made, and their sessions.

    Args:
        decisions: The decisions of the log, with distributions where these are known; `reward` is quality.
        settlement: The final part of it.

    Attributes:
        rows: The explored decisions.
        unit: Session of each row, shape (n,), numbered in the order in which they began.
        usd: Dollars of each draw, of its rounds of tools, of the turns that kept its arm, and of asking
            again, shape (n,); NaN: unknown.
        again: Whether the question of a row was asked in its session before, shape (n,).
        place: How many answers are before it in its session, shape (n,).
        takes_over: Whether the answer before it in its session is from another arm, shape (n,).
        idle: Seconds since its arm last answered anyone, shape (n,); 0: it had not, or did so just then.
        names: All arms that could be drawn, by name.
    """

    def __init__(self, decisions: Decisions, settlement: Settlement = Settlement()) -> None:
        final = decisions.at < settlement.before
        decisions = decisions.where(final & decisions.draw.each(lambda key: key.policy != LABELS))
        decisions = decisions.take(np.lexsort((decisions.seq, decisions.at)))
        unit, first = find_sessions(decisions.episode, decisions.at)
        kept = decisions.explored & (first[unit] < settlement.begun_before)
        asked_first = find_first_asking(decisions, unit)
        rows = decisions.where(kept)
        self.rows = replace(rows, user=encode(rows.user))  # hashes differ from process to process
        self.usd = _with_later_turns(decisions, unit, asked_first)[kept]
        self.again = (asked_first != np.arange(len(decisions)))[kept]
        place, takes_over = _find_places(decisions, unit)
        self.place, self.takes_over, self.idle = place[kept], takes_over[kept], _find_idle(decisions)[kept]
        self.unit = encode(unit[kept])
        arms = {arm for key in self.rows.draw.values for arm in key.arms}
        self.names = tuple(sorted(arm for arm in arms if self.could(arm).any()))

    @cached_property
    def known(self) -> Flags:
        """Whether the propensity of a row is on record, as its distribution has it, shape (n,)."""
        p, rows = self.rows.propensity, self.rows
        known: Flags = (p > 0.0) & (p <= 1.0 + TOLERANCE)
        whole = np.flatnonzero(known & rows.whole & (rows.place() >= 0))
        known[whole] = np.abs(rows.p[rows.start[whole] + rows.place()[whole]] - p[whole]) <= TOLERANCE
        return known

    @cached_property
    def randomised(self) -> Flags:
        """Whether another arm could have been drawn, as far as is on record, shape (n,)."""
        randomised: Flags = self.known & (self.rows.propensity < 1.0)
        return randomised

    def could(self, arm: str) -> Flags:
        """Return whether an arm could be drawn, with a propensity on record, shape (n,)."""
        return self.rows.possible(arm) & self.known & (self.randomised | self.drew(arm))

    def drew(self, arm: str) -> Flags:
        """Return whether an arm was drawn, shape (n,)."""
        return self.rows.draw.each(lambda key: key.drawn == arm)

    def chance(self, arm: str, some: Flags) -> Floats | None:
        """Return the probability of an arm in some rows, shape (n_some,); None: it is not on record."""
        rows = self.rows
        if not rows.whole[some].all():
            return None
        chance: Floats = rows.p[rows.start[some] + rows.place(arm)[some]]
        return chance

    def costs(self) -> dict[str, float]:
        """Return the mean dollars of each arm that was drawn at a known cost."""
        known = {arm: self.usd[self.drew(arm) & self.could(arm) & ~np.isnan(self.usd)] for arm in self.names}
        return {arm: float(paid.mean()) for arm, paid in known.items() if len(paid)}

    def prices(self) -> dict[str, float]:
        """Return the estimated dollars of an answer if an arm always answered, like `qualities`."""
        return self._means(self.usd)

    def qualities(self) -> dict[str, float]:
        """Return the estimated quality of each arm that was drawn `ENOUGH` times with feedback (SNIPS)."""
        return self._means(self.rows.reward)

    def _means(self, values: Floats) -> dict[str, float]:
        means = {}
        for arm in self.names:
            some = self.drew(arm) & self.could(arm) & ~np.isnan(values)
            if some.sum() >= ENOUGH:
                weight = 1.0 / self.rows.propensity[some]
                means[arm] = float(weight @ values[some] / weight.sum())
        return means

    @cached_property
    def history(self) -> Unsaid | None:
        """Why what went before keeps dollars from being compared; None: nothing shows that it costs.

        By arm, answers after those of another arm in the same session are compared with answers after its
        own. If those of all arms are dearer, caches are cold. If not, what an arm writes may be read again
        later. For the first answer of a session, a cache is the colder the longer its arm was idle.
        """
        paid, taken = ~self.again & (self.usd > 0.0), self.takes_over.astype(np.float64)
        first, later = paid & (self.place == 0) & (self.idle > 0.0), paid & (self.place > 0)
        mine, idle = [self.drew(arm) for arm in self.names], np.log(np.maximum(self.idle, 1e-9))
        found = [self._compare_costs(np.flatnonzero(later & one), taken) for one in mine]
        after = [z for z, n in found if n] or [0.0]
        if max(map(abs, after)) > COLD_Z:
            return Unsaid.CACHE if min(after) > ALL_COLD_Z else Unsaid.HISTORY
        if any(self._compare_costs(np.flatnonzero(first & one), idle)[0] > COLD_Z for one in mine):
            return Unsaid.CACHE
        unknown = sum(n for _, n in found) < ENOUGH <= taken[later].sum()
        return Unsaid.CACHE_UNKNOWN if unknown else None

    def _compare_costs(self, rows: Integers, cold: Floats) -> tuple[float, int]:
        """Return by how many standard errors colder answers are dearer, and how many answers are colder.

        Logarithms of dollars are compared by the same arm, at the same place of a session, and at about the
        same time.
        """
        if not len(rows):
            return 0.0, 0
        keys = self.rows.draw.codes[rows], self.place[rows], rows // COLD_ROWS
        group = np.unique(np.column_stack(keys), axis=0, return_inverse=True)[1].ravel()
        n, columns = np.bincount(group), (cold[rows], np.log(self.usd[rows]))
        colder, dearer = (column - (np.bincount(group, column) / n)[group] for column in columns)
        error = sqrt(float(colder**2 @ dearer**2))
        return (float(colder @ dearer) / error if error else 0.0), int((colder > 0.0).sum())

    def digest(self) -> str:
        """Return the SHA-256 of everything that a comparison reads of the rows, in hexadecimal."""
        rows, place = self.rows, {arm: at for at, arm in enumerate(self.names)}
        drawn = np.array([place.get(key.drawn, -1) for key in rows.draw.values], dtype=np.int64)
        numbers = [rows.at, rows.propensity, rows.reward, self.usd, self.idle]
        for arm in self.names:
            could = self.could(arm)
            chance = self.chance(arm, could)
            numbers.append(could.astype(np.float64))
            numbers += [] if chance is None else [chance]
        found = hashlib.sha256(json.dumps(self.names).encode())
        for column in (drawn[rows.draw.codes], self.unit, rows.user, self.place, self.takes_over, self.again):
            found.update(column.astype("<i8").tobytes())
        for values in numbers:
            found.update(np.where(np.isnan(values), np.nan, values).astype("<f8").tobytes())
        return found.hexdigest()


def has_sessions(decisions: Decisions) -> bool:
    """Return whether any decision belongs to an episode."""
    return bool((decisions.episode != decisions.id).any())


def find_sessions(episode: Integers, at: Floats) -> tuple[Integers, Floats]:
    """Return the session of each decision, shape (n,), and the time of the first of each, shape (n_units,).

    Decisions are in the order in which they were made, and so are sessions.

    >>> find_sessions(np.array([7, 8, 7, 7]), np.array([0.0, 1.0, 3599.0, 3600.0]))[0].tolist()
    [0, 1, 0, 2]
    """
    begun, unit, first = dict[int, tuple[int, float]](), list[int](), list[float]()
    for name, time in zip(episode.tolist(), at.tolist(), strict=True):
        session = begun.get(name)
        if session is None or time - session[1] >= SESSION_S:
            session = begun[name] = len(first), time
            first.append(time)
        unit.append(session[0])
    return np.array(unit, dtype=np.int64), np.array(first)


def find_tool_rounds(decisions: Decisions, unit: Integers) -> Integers:
    """Return the row of the draw that each request with results of tools belongs to, shape (n,); -1: none.

    Such a request has no draw of its own: in the same session it has the question and the arm of a draw, or
    of a turn that kept its arm, and the mode is `forced`. One that names the arm and asks again looks alike.

    Args:
        decisions: The decisions, in the order in which they were made.
        unit: Session of each, shape (n,).
    """
    found, asked, draws = np.full(len(decisions), -1), dict[tuple[int, int], int](), dict[int, int]()
    codes, keys = decisions.draw.codes.tolist(), decisions.draw.values
    if all(key.mode != Mode.FORCED for key in keys):
        return found
    columns = unit.tolist(), decisions.question.tolist(), decisions.episode.tolist(), codes
    for row, (session, question, episode, code) in enumerate(zip(*columns, strict=True)):
        match keys[code].mode:
            case Mode.EXPLORE:
                asked[session, question] = draws[episode] = row
            case Mode.CONTINUED if episode in draws:
                asked[session, question] = draws[episode]
            case Mode.FORCED:
                draw = asked.get((session, question), -1)
                same = draw >= 0 and keys[codes[draw]].drawn == keys[code].drawn
                found[row] = draw if same else -1
    return found


def find_first_asking(decisions: Decisions, unit: Integers) -> Integers:
    """Return the row of the draw in whose session a question was first asked, shape (n,); itself if it is.

    Args:
        decisions: The decisions, in the order in which they were made.
        unit: Session of each, shape (n,).
    """
    found, rows = np.arange(len(decisions)), np.flatnonzero(decisions.explored)
    asked = np.column_stack([unit[rows], decisions.question[rows]])
    _, first, code = np.unique(asked, axis=0, return_index=True, return_inverse=True)
    found[rows] = rows[first[code.ravel()]]
    return found


def _find_places(decisions: Decisions, unit: Integers) -> tuple[Integers, Flags]:
    """Return how many answers are before each in its session, and if the last of them is of another arm."""
    order = np.argsort(unit, kind="stable")
    begins = np.append(True, np.diff(unit[order]) != 0)
    rank = np.arange(len(order)) - np.flatnonzero(begins)[np.cumsum(begins) - 1]
    drawn = np.unique([key.drawn for key in decisions.draw.values], return_inverse=True)[1]
    arm = drawn[decisions.draw.codes[order]]
    place, takes_over = np.empty(len(order), dtype=np.int64), np.empty(len(order), dtype=np.bool_)
    place[order], takes_over[order] = rank, ~begins & np.append(False, arm[1:] != arm[:-1])
    return place, takes_over


def _find_idle(decisions: Decisions) -> Floats:
    """Return the seconds since the arm of each decision last answered, shape (n,); 0: it had not."""
    idle = np.zeros(len(decisions))
    drawn = np.unique([key.drawn for key in decisions.draw.values], return_inverse=True)[1]
    arm = drawn[decisions.draw.codes]
    for one in np.unique(arm):
        rows = np.flatnonzero(arm == one)
        idle[rows[1:]] = np.diff(decisions.at[rows])
    return idle


def _with_later_turns(decisions: Decisions, unit: Integers, asked_first: Integers) -> Floats:
    """Return the dollars of each decision, shape (n,), with those of what belongs to it.

    These are rounds of tools, turns that kept the arm, and the same question asked again. In the log of a
    service, each is a decision of its own. In an export the dollars of kept turns are in the draw, and rounds
    of tools are missing.
    """
    usd, draws = decisions.usd.copy(), dict[int, int]()
    rounds = find_tool_rounds(decisions, unit)
    paid = np.flatnonzero((rounds >= 0) & ~np.isnan(decisions.usd))
    np.add.at(usd, rounds[paid], decisions.usd[paid])
    kept = decisions.draw.each(lambda key: key.mode == Mode.CONTINUED)
    rows = np.flatnonzero(kept | decisions.explored) if kept.any() else np.empty(0, dtype=np.int64)
    for row, episode, continued in zip(
        rows.tolist(), decisions.episode[rows].tolist(), kept[rows].tolist(), strict=True
    ):
        if not continued:
            draws[episode] = row
        elif episode in draws and not np.isnan(decisions.usd[row]):
            usd[draws[episode]] += decisions.usd[row]
    again = np.flatnonzero(asked_first != np.arange(len(decisions)))
    np.add.at(usd, asked_first[again], usd[again])
    return usd


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """The decisions that could have drawn the reference, session by session.

    Attributes:
        row: Index of each among the rows, shape (n,).
        unit: The session of each among these, shape (n,): 0, 1, 2, without gaps.
        weight: The importance weight, shape (n,); above 0: it drew the reference.
        reach: Largest weight that each could have had, shape (n,); None: unknown.
        limit: Decisions of a session that count in quality.
        inside: Whether each is within the limit, shape (n,).
        late: Whether each is after the sessions that set the limit, shape (n,).
        rated: Those that count in quality, shape (n,).
        priced: Those that count in the savings, shape (n,).
        priced_scale: How many come before these.
        largest_cost: Dollars up to which an answer counts in full; 0: nothing was charged, or the reference
            was hardly drawn.
    """

    row: Integers
    unit: Integers
    weight: Floats
    reach: Floats | None
    limit: int
    inside: Flags
    late: Flags
    rated: Flags
    priced: Flags
    priced_scale: int
    largest_cost: float

    def difference(
        self,
        values: Floats,
        kept: Flags,
        possible: tuple[float, float],
        errors: tuple[float, float],
    ) -> Ends | None:
        """Return the value of a decision with the reference, minus that as served; None: none is kept.

        Args:
            values: A value of each decision, shape (n,).
            kept: The decisions that count, shape (n,).
            possible: Smallest and largest possible value.
            errors: Errors of the lower and the upper end.
        """
        rows = np.flatnonzero(kept)
        if not len(rows):
            return None
        starts = np.unique(self.unit[rows], return_index=True)[1]
        reach = None if self.reach is None else self.reach[rows]
        evidence = confidence_sequences.Evidence(self.weight[rows], values[rows], possible, reach)
        ends = confidence_sequences.unit_difference(evidence, starts, self.limit, errors)
        span, share = possible[1] - possible[0], len(starts) / len(rows)
        estimate, low, high = (float(np.clip(share * end, -span, span)) for end in ends)
        return estimate, low, high

    def estimate_saved(self, paid: Floats, error: float) -> tuple[tuple[float, float], float, bool] | None:
        """Return the dollars saved by a decision with their lower end, and the part that few answers are.

        The last value is whether it is certain that the reference would have cost anything.

        An answer of the reference counts up to the largest cost, so the lower end holds whatever it costs.
        Where a cost is unknown, it takes the worse case.

        Args:
            paid: Dollars of each decision, shape (n,); NaN: unknown.
            error: Error of the lower end.
        """
        rows = np.flatnonzero(self.priced)
        rows, largest = rows[np.argsort(self.row[rows])], self.largest_cost
        if not largest or not len(rows):
            return None
        paid, weight = paid[rows], self.weight[rows]
        reach, unknown = None if self.reach is None else self.reach[rows], np.isnan(paid)

        def bound(missing: float) -> tuple[float, float]:
            costs = np.where(unknown, missing, np.minimum(paid, largest))
            evidence = confidence_sequences.Evidence(weight, costs, (0.0, largest), reach)
            last = np.array([len(rows)])
            found = confidence_sequences.value(evidence, 1.0 - error, rows=last, one_sided=True)
            return float(found.estimate[0]), float(found.low[0])

        least, low = bound(0.0)
        most, _ = bound(largest) if unknown.any() else (least, low)
        known = float(np.where(unknown, 0.0, paid).mean())
        dear = np.maximum(np.where(unknown, 0.0, paid) - largest, 0.0)
        few = max(float(dear.mean()), float(weight @ dear) / len(rows))
        spent_at_most = known + largest * float(unknown.mean())
        estimate = (least + most - known - spent_at_most) / 2.0 + float(weight @ dear) / len(rows)
        return (max(estimate, -spent_at_most), low - spent_at_most), few, low > 0.0


def count(sessions: Sessions, reference: str) -> Counted:
    """Return the decisions that count beside an arm.

    Raises:
        NothingComparableError: The arm was never drawn, nothing was randomised, or too little was decided.
    """
    could = sessions.could(reference)
    if not (could & sessions.randomised).any():
        raise NothingComparableError(f"{reference} was never eligible together with other arms")
    row, chance = np.flatnonzero(could), sessions.chance(reference, could)
    order = np.argsort(sessions.unit[row], kind="stable")
    row = row[order]
    _, starts, unit = np.unique(sessions.unit[row], return_index=True, return_inverse=True)
    weight = sessions.drew(reference)[row] / (
        sessions.rows.propensity[row] if chance is None else chance[order]
    )
    if len(starts) <= SCALE_SESSIONS or not weight.any():
        of = "sessions" if len(starts) < len(row) else "decisions"
        times = f"{reference} was drawn {np.count_nonzero(weight):,} times"
        raise NothingComparableError(
            f"{times}, and could be in {len(starts):,} {of}, which is too few: it takes more than "
            f"{SCALE_SESSIONS}, since the first {SCALE_SESSIONS} only set the scale"
            if weight.any()
            else f"{times}, although it could be in {len(starts):,} {of}"
        )
    rank, late = np.arange(len(row)) - starts[unit], unit >= SCALE_SESSIONS
    limit = 1 << int(rank[~late].max()).bit_length()
    inside, paid = rank < limit, sessions.usd[row]
    after, largest = _set_scale(row, paid, weight > 0.0)
    return Counted(
        row,
        unit,
        weight,
        None if chance is None else 1.0 / chance[order],
        limit,
        inside,
        late,
        inside & late & ~np.isnan(sessions.rows.reward[row]),
        after & ~sessions.again[row],
        int((~after).sum()),
        largest,
    )


def _set_scale(row: Integers, paid: Floats, drawn: Flags) -> tuple[Flags, float]:
    """Return which decisions come after those that set the scale of costs, shape (n,), and the largest cost.

    They are those up to the `SCALE_DRAWS`-th draw of the reference at a known cost.
    """
    known = ~np.isnan(paid)
    draws = np.sort(row[drawn & known])
    if len(draws) < SCALE_DRAWS:
        return np.zeros(len(paid), dtype=np.bool_), 0.0
    after = row > draws[SCALE_DRAWS - 1]
    return after, HEADROOM * float(paid[known & ~after].max())


def compare(sessions: Sessions, reference: str, rewards: tuple[float, float] = (0.0, 1.0)) -> ArmComparison:
    """Compare what was served with always using one arm.

    Args:
        sessions: The decisions.
        reference: The arm.
        rewards: Smallest and largest possible quality.

    Raises:
        NothingComparableError: The arm was never drawn, nothing was randomised, too little was decided, or
            neither feedback nor dollars are on record.
    """
    counted = count(sessions, reference)
    quality, paid = sessions.rows.reward[counted.row], sessions.usd[counted.row]
    lower, other = share_error(sessions)
    rated, priced, largest = counted.rated, counted.priced, counted.largest_cost
    lead = counted.difference(quality, rated, rewards, (other, lower))
    found = counted.estimate_saved(paid, ERROR * SAVED_SHARE / len(sessions.names))
    if lead is None and found is None:
        raise NothingComparableError(
            f"the log has neither feedback nor dollars for decisions that could draw {reference}"
        )
    known = (
        rated | ~np.isnan(paid) | sessions.rows.draw.each(lambda key: key.status == Status.OK)[counted.row]
    )
    answered, more = counted.inside & counted.late & known, None
    if not rated[answered].all():
        more = counted.difference(rated.astype(np.float64), answered, (0.0, 1.0), (other, other))
    dollars_unsaid = quality_unsaid = None
    if found is not None:
        (saved, _), few, bounded = found
        dollars_unsaid = Unsaid.FEW_DECIDE if few > FEW_DECIDE * abs(saved) else sessions.history
        dollars_unsaid = dollars_unsaid or (None if bounded else Unsaid.TOO_WIDE)
    if lead is not None:
        if more is not None and not more[1] <= 0.0 <= more[2]:
            quality_unsaid = Unsaid.RATED_APART
        elif _is_mostly_of_one_user(sessions, counted.row[rated], counted.row[answered]):
            quality_unsaid = Unsaid.ONE_USER
        lead, bounded = _limit(lead, float(quality[rated].mean()), rewards)
        quality_unsaid = quality_unsaid or (None if bounded else Unsaid.TOO_WIDE)
    some = priced if lead is None else rated
    at, dear = sessions.rows.at[counted.row[priced | rated]], priced & (paid > largest)
    return ArmComparison(
        reference=reference,
        n_arms=len(sessions.names),
        decisions=int(rated.sum()),
        sessions=len(np.unique(counted.unit[some])),
        drawn=int((counted.weight[rated] > 0.0).sum()),
        served=None if lead is None else float(quality[rated].mean()),
        quality=None if lead is None or quality_unsaid else _negate(lead),
        priced=0 if found is None else int(priced.sum()),
        priced_drawn=0 if found is None else int((counted.weight[priced] > 0.0).sum()),
        priced_scale=0 if found is None else counted.priced_scale,
        spent=None if found is None or np.isnan(paid[priced]).all() else float(np.nanmean(paid[priced])),
        saved=None if found is None or dollars_unsaid else found[0],
        largest_cost=None if found is None else largest,
        cut=0 if found is None else int(dear.sum()),
        beyond_largest=0.0 if found is None else float((paid[dear] - largest).sum()),
        unpriced=0 if found is None else int(np.isnan(paid[priced]).sum()),
        dollars_unsaid=dollars_unsaid,
        quality_unsaid=quality_unsaid,
        rated=None if more is None else _negate(more),
        session_limit=counted.limit,
        beyond=int((~counted.inside & counted.late).sum()),
        scale=int((~counted.late).sum()),
        first_at=float(at.min()),
        last_at=float(at.max()),
    )


def _limit(lead: Ends, served: float, rewards: tuple[float, float]) -> tuple[Ends, bool]:
    """Return a lead whose estimate is possible for what was served, and whether an end rules anything out.

    The ends stay: they are about what was expected, which may be above or below the mean that came out.
    """
    estimate, low, high = lead
    least, most = rewards[0] - served, rewards[1] - served
    possible = float(np.clip(estimate, least, most))
    return (float(np.clip(possible, low, high)) if low <= high else possible, low, high), (
        low > least or high < most
    )


def _is_mostly_of_one_user(sessions: Sessions, rated: Integers, answered: Integers) -> bool:
    """Return whether one user rates much more than it asks, and gives a large share of the feedback."""
    user, count = np.unique(sessions.rows.user[rated], return_counts=True)
    share = float(count.max()) / len(rated)
    asks = float((sessions.rows.user[answered] == user[count.argmax()]).mean())
    return len(rated) >= ENOUGH and share > max(LARGEST_RATER, RATES_MORE * asks)


def trace_quality(
    sessions: Sessions, reference: str, rewards: tuple[float, float] = (0.0, 1.0), points: int = 14
) -> list[tuple[int, Ends]]:
    """Return `ArmComparison.quality` as it was after growing numbers of sessions; all of it holds together.

    Args:
        sessions: The decisions.
        reference: The arm.
        rewards: Smallest and largest possible quality.
        points: Most points, at numbers of sessions that grow by a factor.

    Returns:
        For each point the index of the last row that counts, and the quality; the last is that of all.

    Raises:
        NothingComparableError: As by `compare`.
    """
    counted = count(sessions, reference)
    quality, (lower, other) = sessions.rows.reward[counted.row], share_error(sessions)
    n_units, found = int(counted.unit[-1]) + 1, list[tuple[int, Ends]]()
    first = min(n_units, 2 * SCALE_SESSIONS)
    for edge in np.unique(np.geomspace(first, n_units, points).round().astype(int)).tolist():
        before = counted.unit < edge
        lead = counted.difference(quality, counted.rated & before, rewards, (other, lower))
        if lead is not None:
            found.append((int(counted.row[before].max()), _negate(lead)))
    return found


def share_error(sessions: Sessions) -> tuple[float, float]:
    """Return the errors of the lower and of the upper end of quality."""
    error = ERROR / len(sessions.names)
    return QUALITY_SHARE * error, (1.0 - QUALITY_SHARE - SAVED_SHARE) * error


def _negate(ends: Ends) -> Ends:
    estimate, low, high = ends
    return -estimate, -high, -low
