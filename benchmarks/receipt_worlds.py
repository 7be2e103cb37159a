"""Twelve worlds in which a receipt may state what is false; `python benchmarks/receipt.py --worlds` looks.

In each world two arms answer for a fortnight. What it would have cost and been worth to use the large arm
alone is known, because the world is simulated: a statement is false if the truth is outside its ends.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import nan

import numpy as np

from armwise.feedback.arrays import Flags, Floats, Integers
from armwise.feedback.decisions import Categorical, Decisions, DrawKey
from armwise.feedback.events import Mode, Status

LARGE, SMALL = "large", "small"

ARMS = (LARGE, SMALL)

DAY, DAYS = 86_400.0, 14

LOSS = 0.02
"""Quality that the small arm gives up."""

LONGEST = 6
"""Most answers of a session."""


@dataclass(frozen=True, slots=True, eq=False)
class Fortnight:
    """Traffic with its truth; rows are decisions in the order in which they were made.

    Attributes:
        decisions: What the log has; `reward` is quality.
        lead: Expected quality of each as served, minus that of the large arm, shape (n,), by `seq`.
        paid: Dollars of each, whether the log knows them or not, shape (n,), by `seq`.
        alone: Dollars that the large arm alone would have cost on average instead, shape (n,), by `seq`; what
            belongs to an earlier decision has 0.
    """

    decisions: Decisions
    lead: Floats
    paid: Floats
    alone: Floats


@dataclass(slots=True, eq=False)
class Draws:
    """Columns of a world under construction, each of shape (n,)."""

    rng: np.random.Generator
    hard: Floats
    p_large: Floats
    large: Flags
    session: Integers
    turn: Integers
    quality: Floats
    lead: Floats
    paid: Floats
    alone: Floats
    rated: Flags
    question: Integers
    user: Integers
    known: Flags
    forced: Flags
    could: tuple[Flags, Flags] = field(default=(np.empty(0, bool), np.empty(0, bool)))

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.hard)


def draw(n: int, seed: int, *, share: float = 0.05, turns: float = 0.4, flips: bool = False) -> Draws:
    """Return plain traffic: a drifting policy that mostly draws the small arm, in sessions.

    Args:
        n: Number of decisions.
        seed: Seed of the generator.
        share: Share of the decisions that are drawn at random.
        turns: Probability that a session goes on.
        flips: Whether questions get harder, and the policy prefers the other arm, after a week.
    """
    rng, course = np.random.default_rng(seed), np.arange(n) / n
    hard = np.clip(0.25 + 0.1 * np.sin(4.0 * np.pi * course) + 0.05 * rng.standard_normal(n), 0.1, 0.4)
    small_share = 0.7 + 0.2 * course
    if flips:
        late = course > 0.5
        hard, small_share = hard + 0.2 * late, np.where(late, 0.2, 0.9)
    p_large = (1.0 - share) * (rng.random(n) >= small_share) + share / 2.0
    large = rng.random(n) < p_large
    session, turn, going = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), rng.random(n) < turns
    for row in range(1, n):
        goes_on = going[row] and turn[row - 1] + 1 < LONGEST
        session[row] = session[row - 1] + (not goes_on)
        turn[row] = turn[row - 1] + 1 if goes_on else 0
    everyone = np.ones(n, dtype=np.bool_)
    price = 0.5 + 2.0 * hard
    return Draws(
        rng, hard, p_large, large, session, turn,
        quality=(rng.random(n) >= hard + LOSS * ~large).astype(np.float64),
        lead=-LOSS * (1.0 - p_large),
        paid=np.where(large, 0.02, 0.002) * price * rng.lognormal(-0.18, 0.6, n),
        alone=0.02 * price,
        rated=rng.random(n) < 0.8,
        question=np.arange(n),
        user=session.copy(),
        known=everyone,
        forced=~everyone,
        could=(everyone, everyone),
    )  # fmt: skip


def finish(made: Draws) -> Fortnight:
    """Return the columns as a log of a fortnight."""
    n, could_large, could_small = made.n, *made.could
    pairs = dict.fromkeys(zip(made.large.tolist(), made.forced.tolist(), strict=True))
    kinds = [(*pair, *could) for pair in pairs for could in ((True, True), (True, False), (False, True))]
    keys = [
        DrawKey(
            Mode.FORCED if forced else Mode.EXPLORE,
            "simulated",
            tuple(arm for arm, there in zip(ARMS, could, strict=True) if there),
            LARGE if large else SMALL,
            Status.OK,
        )
        for large, forced, *could in kinds
    ]
    rows = zip(
        *(column.tolist() for column in (made.large, made.forced, could_large, could_small)), strict=True
    )
    codes = np.array([kinds.index(row) for row in rows])
    both, nothing, none = could_large & could_small, np.full(n, nan), np.zeros(n, dtype=np.int64)
    p = np.where(made.large, made.p_large, 1.0 - made.p_large)
    at = DAYS * DAY * made.session / (made.session[-1] + 1) + 30.0 * np.arange(n) / n + 30.0 * made.turn
    wide = np.stack([made.p_large, 1.0 - made.p_large], axis=1)
    return Fortnight(
        Decisions(
            seq=np.arange(1, n + 1), at=at, version=none, draw=Categorical(keys, codes),
            id=np.arange(n) + 10 * n, question=made.question, episode=made.session, user=made.user,
            propensity=np.where(made.forced, nan, np.where(both, p, 1.0)),
            p=np.concatenate([row if two else [1.0] for row, two in zip(wide, both, strict=True)]),
            n_p=1 + both.astype(np.int64),
            reward=np.where(made.rated & ~made.forced, made.quality, nan),
            has_id=none == 0, features={}, settled=none == 0,
            usd=np.where(made.known, made.paid, nan),
            seconds=nothing, floor=nothing,
        ),
        made.lead, made.paid, made.alone,
    )  # fmt: skip


def plain(n: int, seed: int) -> Fortnight:
    """Nothing is special."""
    return finish(draw(n, seed))


def conversations(n: int, seed: int) -> Fortnight:
    """Each answer reads the conversation, which the last arm has in its cache, at a tenth of the price."""
    made = draw(n, seed, turns=0.8)
    warm = np.append(False, (made.large[1:] == made.large[:-1]) & (made.turn[1:] > 0))
    made.paid = made.paid * (1.0 + made.turn * np.where(warm, 0.1, 1.0))
    made.alone = made.alone * (1.0 + 0.1 * made.turn)
    return finish(made)


def runaways(n: int, seed: int) -> Fortnight:
    """One answer of the small arm in 1,000 costs $60."""
    made = draw(n, seed)
    made.paid = made.paid + 60.0 * (~made.large & (made.rng.random(n) < 0.001))
    return finish(made)


def drift(n: int, seed: int) -> Fortnight:
    """After a week questions get harder, and the policy prefers the other arm."""
    return finish(draw(n, seed, flips=True))


def strata(n: int, seed: int) -> Fortnight:
    """Of one in three questions only the large arm may answer, of one in five only the small one."""
    made, kind = draw(n, seed), np.random.default_rng(seed + 10**6).random(n)
    only_large, only_small = kind < 0.33, kind > 0.8
    made.could = (~only_small, ~only_large)
    made.large = np.where(only_large, True, np.where(only_small, False, made.large))
    made.p_large = np.where(only_large, 1.0, np.where(only_small, 0.0, made.p_large))
    price, luck = 0.5 + 2.0 * made.hard, made.rng.random(n)
    made.paid = np.where(made.large, 0.02, 0.002) * price * made.rng.lognormal(-0.18, 0.6, n)
    made.quality = (luck >= made.hard + LOSS * ~made.large).astype(np.float64)
    made.lead = -LOSS * (1.0 - made.p_large)
    return finish(made)


def few_draws(n: int, seed: int) -> Fortnight:
    """One decision in 500 is drawn at random."""
    return finish(draw(n, seed, share=0.002))


def moody(n: int, seed: int) -> Fortnight:
    """Bad answers are rated three times as often as good ones; in odd fortnights, a third as often."""
    made = draw(n, seed)
    bad, often = made.quality == 0.0, made.rng.random(n)
    made.rated = often < np.where(bad == (seed % 2 == 0), 0.9, 0.3)
    return finish(made)


def prices(n: int, seed: int) -> Fortnight:
    """After a week the large arm costs 40 % of what it did."""
    made = draw(n, seed)
    cheaper = np.where(np.arange(n) > n / 2, 0.4, 1.0)
    made.paid, made.alone = made.paid * np.where(made.large, cheaper, 1.0), made.alone * cheaper
    return finish(made)


def retries(n: int, seed: int) -> Fortnight:
    """Seven in ten bad answers are asked for again, and the small arm fails twice as often."""
    made = draw(n, seed, turns=0.0)
    made.hard = np.full(n, 0.25)
    rng, right = made.rng, made.rng.random(n) >= made.hard * np.where(made.large, 1.0, 2.0)
    made.quality, made.lead = right.astype(np.float64), -made.hard * (1.0 - made.p_large)
    for row in range(1, n):
        if made.quality[row - 1] == 0.0 and made.turn[row - 1] + 1 < LONGEST and rng.random() < 0.7:
            made.session[row], made.turn[row] = made.session[row - 1], made.turn[row - 1] + 1
            made.question[row] = made.question[row - 1]
        else:
            made.session[row], made.turn[row] = made.session[row - 1] + 1, 0
    again = 0.7 * made.hard
    attempts = sum(again**attempt for attempt in range(LONGEST))
    price = 0.5 + 2.0 * made.hard
    made.paid = np.where(made.large, 0.02, 0.002) * price * rng.lognormal(-0.18, 0.6, n)
    made.alone = np.where(made.turn == 0, 0.02 * price * attempts, 0.0)
    made.user = made.session
    return finish(made)


def tools(n: int, seed: int) -> Fortnight:
    """The arm that was drawn calls tools up to four times; each result is another request to it."""
    made = draw(n // 2, seed, turns=0.0)
    rounds = made.rng.integers(0, 5, made.n)
    row = np.repeat(np.arange(made.n), 1 + rounds)
    first = np.append(True, row[1:] != row[:-1])
    names = ("hard", "p_large", "large", "session", "quality", "lead", "rated", "question", "user", "known")
    wide = {name: getattr(made, name)[row] for name in names}
    paid = made.paid[row] * made.rng.lognormal(-0.02, 0.2, len(row))
    everyone = np.ones(len(row), dtype=np.bool_)
    return finish(
        replace(
            made, **wide, turn=np.arange(len(row)) - np.flatnonzero(first)[np.cumsum(first) - 1], paid=paid,
            alone=np.where(first, made.alone[row] * 3.0, 0.0), forced=~first, could=(everyone, everyone),
        )
    )  # fmt: skip


def one_rater(n: int, seed: int) -> Fortnight:
    """One user of many gives most ratings, and likes whatever the small arm says."""
    made = draw(n, seed, turns=0.0)
    loud = made.rng.random(n) < 0.5
    made.user = np.where(loud, -1, made.user)
    made.quality = np.where(loud, (~made.large).astype(np.float64), made.quality)
    made.rated = np.where(loud, True, made.rng.random(n) < 0.3)
    return finish(made)


def missing(n: int, seed: int) -> Fortnight:
    """The cost of every second dear answer of the small arm is missing, as if it was cut off."""
    made = draw(n, seed)
    made.paid = np.where(made.large, made.paid, 4.0 * made.paid)
    dear = ~made.large & (made.paid > np.median(made.paid[~made.large]))
    made.known = ~(dear & (made.rng.random(n) < 0.5))
    return finish(made)


WORLDS: dict[str, Callable[[int, int], Fortnight]] = {
    "plain": plain,
    "cached conversations": conversations,
    "runaway answers": runaways,
    "drift of traffic": drift,
    "a stratum with one arm": strata,
    "few random draws": few_draws,
    "ratings depend on the answer": moody,
    "prices change": prices,
    "asked again": retries,
    "sessions of tools": tools,
    "one user rates most": one_rater,
    "costs are missing": missing,
}
