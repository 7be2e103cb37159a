"""Non-inferiority: what was served, beside always using one arm, in quality and in dollars, at every look.

    decisions --settle--> Settlement --sessions--> Sessions --compare(reference)--> ArmComparison

The quality that was lost or gained and the dollars that were saved are means of conditional expectations over
the decisions made so far, bounded by confidence sequences (`armwise.feedback.ope.confidence_sequences`): the
bounds may be read after every decision, and hold at all looks together. An error of `ERROR` is shared by the
four ends and by all arms that could be the reference, so that the reference may be chosen from the data:
half of it belongs to the lower end of quality, the one that says "no worse than".

A session is one observation: its decisions may depend on each other. It has the decisions of an episode
within `SESSION_S` of the first; later ones begin another. It counts once all of it is settled, so that what
counts at one look counts at all later ones, unchanged. What an answer costs is known before the next
decision, so in the savings each decision is one observation, given all that was before it.

The first sessions set the scale, which must be known before a bet is placed, and are left out: how many
decisions of a session count in quality, and the largest cost that counts in full.

Only decisions that could have drawn the reference count, with a propensity above 0 on record. Quality is that
of decisions with feedback. It has to come as often whichever arm answered: `ArmComparison.rated` tests that.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from armwise.feedback.arrays import TOLERANCE, Flags, Floats, Integers
from armwise.feedback.decisions import Decisions, encode
from armwise.feedback.events import LABELS, Mode
from armwise.feedback.ope import confidence_sequences

ERROR = 0.05
"""Largest probability that any end of any comparison ever fails, whichever arm is the reference."""

LOWER_SHARE = 0.5
"""Share of the error that the lower end of quality has; the three other ends share the rest."""

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

Ends = tuple[float, float, float]
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
        sessions: Sessions of these; as many as decisions where the log has none.
        drawn: Decisions of these that drew the reference.
        served: Mean quality of these decisions; None: no feedback counts.
        quality: Quality of a decision as served, minus that of the reference; None: no feedback counts.
        priced: Decisions that count in the savings.
        spent: Mean dollars of these decisions; None without savings.
        saved: Dollars of a decision with the reference, minus those as served; None: not enough are known.
        largest_cost: Dollars up to which an answer counts in full; None without savings.
        cut: Decisions among `priced` that were dearer, and count as so much.
        rated: How much more often a decision as served has feedback than one of the reference; None: all have
            it, or those without are not on record.
        session_limit: Decisions of a session that count in quality.
        beyond: Decisions left out of quality beyond the limit.
        scale: First decisions left out of quality, which set the scale.
        first_at: Time of the first decision that counts, seconds since the epoch.
        last_at: Time of the last one.
    """

    reference: str
    n_arms: int
    decisions: int
    sessions: int
    drawn: int
    served: float | None
    quality: Ends | None
    priced: int
    spent: float | None
    saved: Ends | None
    largest_cost: float | None
    cut: int
    rated: Ends | None
    session_limit: int
    beyond: int
    scale: int
    first_at: float
    last_at: float


class Sessions:
    """The final explored decisions of a log, in the order in which they were made, and their sessions.

    Args:
        decisions: The decisions of the log, with distributions where these are known; `reward` is quality.
        settlement: The final part of it.

    Attributes:
        rows: The explored decisions.
        unit: Session of each row, shape (n,), numbered in the order in which they began.
        usd: Dollars of each draw, of its rounds of tools and of the turns that kept its arm, shape (n,); NaN:
            unknown.
        names: All arms that could be drawn, by name.
    """

    def __init__(self, decisions: Decisions, settlement: Settlement = Settlement()) -> None:
        final = decisions.at < settlement.before
        decisions = decisions.where(final & decisions.draw.each(lambda key: key.policy != LABELS))
        decisions = decisions.take(np.lexsort((decisions.seq, decisions.at)))
        unit, first = find_sessions(decisions.episode, decisions.at)
        kept = decisions.explored & (first[unit] < settlement.begun_before)
        self.rows, self.usd = decisions.where(kept), _with_later_turns(decisions, unit)[kept]
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
        """Return the mean dollars of each arm that was drawn `ENOUGH` times at a known cost."""
        return self._means(self.usd, weighted=False)

    def prices(self) -> dict[str, float]:
        """Return the estimated dollars of an answer if an arm always answered, like `qualities`."""
        return self._means(self.usd, weighted=True)

    def qualities(self) -> dict[str, float]:
        """Return the estimated quality of each arm that was drawn `ENOUGH` times with feedback (SNIPS)."""
        return self._means(self.rows.reward, weighted=True)

    def _means(self, values: Floats, *, weighted: bool) -> dict[str, float]:
        means = {}
        for arm in self.names:
            some = self.drew(arm) & self.could(arm) & ~np.isnan(values)
            if some.sum() >= ENOUGH:
                weight = 1.0 / self.rows.propensity[some] if weighted else np.ones(int(some.sum()))
                means[arm] = float(weight @ values[some] / weight.sum())
        return means

    def digest(self) -> str:
        """Return the SHA-256 of everything that a comparison reads of the rows, in hexadecimal."""
        rows, place = self.rows, {arm: at for at, arm in enumerate(self.names)}
        drawn = np.array([place.get(key.drawn, -1) for key in rows.draw.values], dtype=np.int64)
        numbers = [rows.at, rows.propensity, rows.reward, self.usd]
        for arm in self.names:
            could = self.could(arm)
            chance = self.chance(arm, could)
            numbers.append(could.astype(np.float64))
            numbers += [] if chance is None else [chance]
        found = hashlib.sha256(json.dumps(self.names).encode())
        for column in (drawn[rows.draw.codes], self.unit):
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


def _with_later_turns(decisions: Decisions, unit: Integers) -> Floats:
    """Return the dollars of each decision, shape (n,), with those of its rounds of tools and of kept turns.

    In the log of a service, each of these is a decision of its own. In an export the dollars of kept turns
    are in the draw, and rounds of tools are missing.
    """
    usd, draws = decisions.usd.copy(), dict[int, int]()
    rounds = find_tool_rounds(decisions, unit)
    paid = np.flatnonzero((rounds >= 0) & ~np.isnan(decisions.usd))
    np.add.at(usd, rounds[paid], decisions.usd[paid])
    kept = decisions.draw.each(lambda key: key.mode == Mode.CONTINUED)
    if not kept.any():
        return usd
    rows = np.flatnonzero(kept | decisions.explored)
    for row, episode, continued in zip(
        rows.tolist(), decisions.episode[rows].tolist(), kept[rows].tolist(), strict=True
    ):
        if not continued:
            draws[episode] = row
        elif episode in draws and not np.isnan(decisions.usd[row]):
            usd[draws[episode]] += decisions.usd[row]
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
    largest_cost: float

    def difference(
        self,
        values: Floats,
        kept: Flags,
        possible: tuple[float, float],
        errors: tuple[float, float],
        *,
        at_once: bool = False,
    ) -> Ends | None:
        """Return the value of a decision with the reference, minus that as served; None: none is kept.

        Args:
            values: A value of each decision, shape (n,).
            kept: The decisions that count, shape (n,).
            possible: Smallest and largest possible value.
            errors: Errors of the lower and the upper end.
            at_once: Whether a value is known before the next decision, so that each is one observation.
        """
        rows = np.flatnonzero(kept)
        if not len(rows):
            return None
        if at_once:
            rows, limit = rows[np.argsort(self.row[rows])], 1
            starts = np.arange(len(rows))
        else:
            starts, limit = np.unique(self.unit[rows], return_index=True)[1], self.limit
        reach = None if self.reach is None else self.reach[rows]
        evidence = confidence_sequences.Evidence(self.weight[rows], values[rows], possible, reach)
        ends = confidence_sequences.unit_difference(evidence, starts, limit, errors, squares=at_once)
        span, share = possible[1] - possible[0], len(starts) / len(rows)
        estimate, low, high = (float(np.clip(share * end, -span, span)) for end in ends)
        return estimate, low, high


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
        raise NothingComparableError(
            f"{reference} was drawn {np.count_nonzero(weight):,} times in {len(starts):,} {of}, which is "
            "too few: the first "
            f"{SCALE_SESSIONS} only set the scale"
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
        after & ~np.isnan(paid),
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
    lower, other = _errors(sessions)
    rated, priced, largest = counted.rated, counted.priced, counted.largest_cost
    lead = counted.difference(quality, rated, rewards, (other, lower))
    saved = None
    if largest > 0.0:
        costs = np.minimum(paid, largest)
        saved = counted.difference(costs, priced, (0.0, largest), (other, other), at_once=True)
    if lead is None and saved is None:
        raise NothingComparableError(
            f"the log has neither feedback nor dollars for decisions that could draw {reference}"
        )
    answered, more = counted.inside & counted.late & (rated | ~np.isnan(paid)), None
    if not rated[answered].all():
        more = counted.difference(rated.astype(np.float64), answered, (0.0, 1.0), (other, other))
    some = priced if lead is None else rated
    at = sessions.rows.at[counted.row[some]]
    return ArmComparison(
        reference=reference,
        n_arms=len(sessions.names),
        decisions=int(rated.sum()),
        sessions=len(np.unique(counted.unit[some])),
        drawn=int((counted.weight[some] > 0.0).sum()),
        served=None if lead is None else float(quality[rated].mean()),
        quality=None if lead is None else _negate(lead),
        priced=0 if saved is None else int(priced.sum()),
        spent=None if saved is None else float(paid[priced].mean()),
        saved=saved,
        largest_cost=None if saved is None else largest,
        cut=0 if saved is None else int((paid[priced] > largest).sum()),
        rated=None if more is None else _negate(more),
        session_limit=counted.limit,
        beyond=int((~counted.inside & counted.late).sum()),
        scale=int((~counted.late).sum()),
        first_at=float(at.min()),
        last_at=float(at.max()),
    )


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
    quality, (lower, other) = sessions.rows.reward[counted.row], _errors(sessions)
    n_units, found = int(counted.unit[-1]) + 1, list[tuple[int, Ends]]()
    first = min(n_units, 2 * SCALE_SESSIONS)
    for edge in np.unique(np.geomspace(first, n_units, points).round().astype(int)).tolist():
        before = counted.unit < edge
        lead = counted.difference(quality, counted.rated & before, rewards, (other, lower))
        if lead is not None:
            found.append((int(counted.row[before].max()), _negate(lead)))
    return found


def _errors(sessions: Sessions) -> tuple[float, float]:
    """Return the error of the lower end of quality, and that of each other end."""
    lower, n_arms = ERROR * LOWER_SHARE, len(sessions.names)
    return lower / n_arms, (ERROR - lower) / 3.0 / n_arms


def _negate(ends: Ends) -> Ends:
    estimate, low, high = ends
    return -estimate, -high, -low
