"""Worlds in which a receipt may state what is false; `python benchmarks/receipt.py --worlds` looks.

In each world two arms answer for a fortnight. What it would have cost and been worth to use the large arm
alone is known, because the world is simulated. A world is plain traffic with a few lines changed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isnan, nan

import numpy as np

from armwise.feedback.arrays import Flags, Floats, Integers
from armwise.feedback.decisions import Categorical, Decisions, DrawKey
from armwise.feedback.events import Mode, Status

LARGE, SMALL = "large", "small"

ARMS = (LARGE, SMALL)

DAY, DAYS = 86_400.0, 14

WAIT_S = 12 * 3600.0
"""Longest time that feedback takes."""

LOSS = 0.02
"""Quality that the small arm gives up."""

LONGEST = 6
"""Most answers of a session."""

BAD, GOOD = 0, 1


@dataclass(slots=True, eq=False)
class Draws:
    """Columns of a world under construction; the first axis of two is the arm, as in `ARMS`.

    Attributes:
        rng: Generator of what follows the draws.
        hard: Probability that the large arm answers badly, shape (n,).
        p_large: Probability of the large arm, shape (n,).
        large: Whether it was drawn, shape (n,).
        session: Session, shape (n,).
        turn: Place in the session, shape (n,).
        question: Question, shape (n,).
        user: User, shape (n,).
        right: Probability of a good answer, given what was before it, shape (2, n).
        luck: An answer is good if this is below that probability, shape (n,).
        praised: Probability that a bad answer is called good, and a good one is, shape (2 arms, 2, n).
        rated: Probability that an answer that is called bad is rated, and one that is called good is, shape
            (2 arms, 2, n).
        late: Probability that a bad rating comes too late to count.
        silence: Reward of an answer without a rating.
        cost: Expected dollars, given what was before it, shape (2, n).
        tail: What is paid, in multiples of that, shape (n,).
        same: Expected dollars of the large arm if it answers each of these requests, shape (n,).
        alone: Expected dollars of a service that always uses the large arm, shape (n,); what belongs to an
            earlier decision has 0. Both are views of `cost` until a world has its own.
        right_alone: Probability of a good answer by such a service, shape (n,).
        known: Whether the log knows what was paid, shape (n,).
        forced: Whether the arm was not drawn, shape (n,).
        could: Whether each arm could be drawn, shape (2, n).
        caches: Whether an arm that takes a conversation over pays for what its cache lacks.
        rereads: Whether what an arm writes makes later answers of the conversation dearer.
    """

    rng: np.random.Generator
    hard: Floats
    p_large: Floats
    large: Flags
    session: Integers
    turn: Integers
    question: Integers
    user: Integers
    right: Floats
    luck: Floats
    praised: Floats
    rated: Floats
    cost: Floats
    tail: Floats
    same: Floats
    alone: Floats
    right_alone: Floats
    known: Flags
    forced: Flags
    could: Flags
    late: float = 0.0
    silence: float = nan
    caches: bool = False
    rereads: bool = False

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.large)

    def served(self, values: Floats) -> Floats:
        """Return the values of the arm that was drawn, of an array of shape (2, n)."""
        return np.where(self.large, values[0], values[1])

    @property
    def good(self) -> Flags:
        """Whether each answer is good."""
        return self.luck < self.served(self.right)

    def repeat(self, row: Integers) -> "Draws":
        """Return some rows, each as often as it is named."""
        columns = {
            name: getattr(self, name)[..., row]
            for name in self.__slots__
            if isinstance(getattr(self, name), np.ndarray)
        }
        rest = {name: getattr(self, name) for name in self.__slots__ if name not in columns}
        return Draws(**columns, **rest)


@dataclass(frozen=True, slots=True, eq=False)
class Fortnight:
    """Traffic with its truth; rows are decisions in the order in which they were made.

    Attributes:
        decisions: What the log has; `reward` is quality.
        made: What is true of them, by `seq`.
        paid: Dollars of each, whether the log knows them or not, shape (n,), by `seq`.
    """

    decisions: Decisions
    made: Draws
    paid: Floats

    def quality(self, rows: Integers, of: str) -> tuple[float, float, float]:
        """Return the expected quality of rows as served, of the large arm, and of the small one.

        Args:
            rows: The rows, by `seq`.
            of: `all` answers, where the large arm had answered everything; the `same` requests, each with
                what was before it; their `ratings`, late ones too; those `in time`; or the mean `reward`.
        """
        made = self.made
        p = np.stack([made.p_large, 1.0 - made.p_large])[:, rows]
        right, praised, rated = (getattr(made, name)[..., rows] for name in ("right", "praised", "rated"))
        if of == "all":
            served = (p * right).sum(axis=0).mean()
            return float(served), float(made.right_alone[rows].mean()), float(right[1].mean())
        truth = np.stack([1.0 - right, right], axis=1)
        called_good = (truth * praised).sum(axis=1)
        called = np.stack([1.0 - called_good, called_good], axis=1)
        if of == "reward" and isnan(made.silence):
            of = "in time"
        if of in ("in time", "reward"):
            rated = rated * np.array([1.0 - made.late, 1.0])[:, np.newaxis]
        everyone, seen = np.ones_like(right), called * rated
        if of == "same":
            counts, value = everyone, right
        elif of == "reward":
            counts, value = everyone, seen[:, GOOD] + made.silence * (1.0 - seen.sum(axis=1))
        else:
            counts, value = seen.sum(axis=1), seen[:, GOOD]
        large, small = value.sum(axis=1) / counts.sum(axis=1)
        return float((p * value).sum() / (p * counts).sum()), float(large), float(small)

    def is_rated_apart(self, rows: Integers) -> bool:
        """Return whether what was served is rated, in time, more or less often than the large arm."""
        made = self.made
        called_good = made.right * made.praised[:, GOOD] + (1.0 - made.right) * made.praised[:, BAD]
        rate = called_good * made.rated[:, GOOD]
        rate += (1.0 - called_good) * made.rated[:, BAD] * (1.0 - made.late)
        more = (1.0 - made.p_large) * (rate[1] - rate[0])
        return bool(abs(more[rows].mean()) > 1e-9)

    def dollars(self, of: str) -> Floats:
        """Return the expected dollars of each row.

        Args:
            of: `all`, where the large arm answered everything; or the `same` requests, if it answered each.
        """
        return self.made.alone if of == "all" else self.made.same


def draw(
    n: int, seed: int, *, share: float = 0.05, turns: float = 0.4, loss: float = LOSS, flips: bool = False
) -> Draws:
    """Return plain traffic: a drifting policy that mostly draws the small arm, in sessions.

    Args:
        n: Number of decisions.
        seed: Seed of the generator.
        share: Share of the decisions that are drawn at random.
        turns: Probability that a session goes on.
        loss: Quality that the small arm gives up.
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
    session, turn = number_turns(rng.random(n) < turns)
    none = np.zeros(n, dtype=np.bool_)
    cost = np.outer([0.02, 0.002], 0.5 + 2.0 * hard)
    right = np.stack([1.0 - hard, 1.0 - hard - loss])
    return Draws(
        rng, hard, p_large, large, session, turn, question=np.arange(n), user=session.copy(),
        right=right, luck=rng.random(n),
        praised=np.broadcast_to(np.array([0.0, 1.0])[:, np.newaxis], (2, 2, n)).copy(),
        rated=np.full((2, 2, n), 0.8),
        cost=cost, tail=rng.lognormal(-0.18, 0.6, n),
        same=cost[0], alone=cost[0], right_alone=right[0],
        known=~none, forced=none, could=np.stack([~none, ~none]),
    )  # fmt: skip


def number_turns(going: Flags) -> tuple[Integers, Integers]:
    """Return session and turn of each row; `going`: whether it continues the one before, if that may be."""
    session, turn = (np.zeros(len(going), dtype=np.int64) for _ in range(2))
    for row in range(1, len(going)):
        goes_on = going[row] and turn[row - 1] + 1 < LONGEST
        session[row] = session[row - 1] + (not goes_on)
        turn[row] = turn[row - 1] + 1 if goes_on else 0
    return session, turn


def finish(made: Draws) -> Fortnight:
    """Return the columns as a log of a fortnight."""
    n, (could_large, could_small), rng = made.n, made.could, made.rng
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
    arm, row = 1 - made.large, np.arange(n)
    called = (rng.random(n) < made.praised[arm, made.good.astype(int), row]).astype(int)
    rated = rng.random(n) < made.rated[arm, called, row]
    rated &= (called == GOOD) | (rng.random(n) >= made.late)
    reward = np.where(rated, called, made.silence)
    paid = made.served(made.cost) * made.tail
    return Fortnight(
        Decisions(
            seq=np.arange(1, n + 1), at=at, version=none, draw=Categorical(keys, codes),
            id=np.arange(n) + 10 * n, question=made.question, episode=made.session, user=made.user,
            propensity=np.where(made.forced, nan, np.where(both, p, 1.0)),
            p=np.concatenate([row if two else [1.0] for row, two in zip(wide, both, strict=True)]),
            n_p=1 + both.astype(np.int64),
            reward=np.where(made.forced, nan, reward),
            has_id=none == 0, features={}, settled=none == 0,
            usd=np.where(made.known, paid, nan),
            seconds=nothing, floor=nothing,
        ),
        made, paid,
    )  # fmt: skip


# -- sessions, caches and prices -------------------------------------------------------------------


def plain(n: int, seed: int) -> Draws:
    """Nothing is special."""
    return draw(n, seed)


def conversations(n: int, seed: int) -> Draws:
    """Each answer reads the conversation, which the last arm has in its cache, at a tenth of the price."""
    made = draw(n, seed, turns=0.8)
    before = np.append(False, made.large[:-1])
    warm = np.stack([before, ~before]) & (made.turn > 0)
    made.same = made.alone = made.cost[0] * (1.0 + 0.1 * made.turn)
    made.cost = made.cost * (1.0 + made.turn * np.where(warm, 0.1, 1.0))
    made.caches = True
    return made


def shared_cache(n: int, seed: int) -> Draws:
    """The large arm keeps its instructions in a cache while it is used often, at a fifth of the price."""
    made = draw(n, seed)
    used = np.maximum.accumulate(np.where(made.large, np.arange(n), -n))
    idle = np.arange(n) - np.append(-n, used[:-1]) > 4
    made.same = made.alone = 0.2 * made.cost[0]
    made.cost[0] *= np.where(idle, 1.0, 0.2)
    made.caches = True
    return made


def rare(n: int, seed: int) -> Draws:
    """The large arm takes few conversations over, and no arm has a cache."""
    made = draw(n, seed, turns=0.8)
    made.p_large = np.full(n, 0.01)
    made.large = made.rng.random(n) < made.p_large
    return made


def long_answers(n: int, seed: int) -> Draws:
    """The small arm writes six times as much, which later turns read again."""
    made = draw(n, seed, turns=0.8)
    written = np.where(made.large, 1.0, 6.0)
    before, first = np.cumsum(written) - written, np.flatnonzero(made.turn == 0)
    read = before - before[first[made.session]]
    made.cost = np.stack([0.02 * (1.0 + 0.3 * read), 0.004 * (6.0 + 0.3 * read)])
    made.same = made.cost[0]
    made.alone = 0.02 * (1.0 + 0.3 * made.turn)
    made.rereads = True
    return made


def runaways(n: int, seed: int) -> Draws:
    """One answer of the small arm in 1,000 costs $60."""
    return run_away(draw(n, seed), 1, 0.001)


def dear_reference(n: int, seed: int) -> Draws:
    """One answer of the large arm in 1,500 costs $60; otherwise both arms cost the same."""
    made = draw(n, seed)
    made.cost[1] = made.cost[0]
    return run_away(made, 0, 1.0 / 1500.0)


def run_away(made: Draws, arm: int, chance: float) -> Draws:
    """Have answers of an arm cost $60 more with some probability."""
    more = (made.large == (arm == 0)) & (made.rng.random(made.n) < chance)
    paid = made.served(made.cost) * made.tail + 60.0 * more
    made.cost[arm] += 60.0 * chance
    made.tail = paid / made.served(made.cost)
    return made


def drift(n: int, seed: int) -> Draws:
    """After a week questions get harder, and the policy prefers the other arm."""
    return draw(n, seed, flips=True)


def strata(n: int, seed: int) -> Draws:
    """Of one in three questions only the large arm may answer, of one in five only the small one."""
    made, kind = draw(n, seed), np.random.default_rng(seed + 10**6).random(n)
    only_large, only_small = kind < 0.33, kind > 0.8
    made.could = np.stack([~only_small, ~only_large])
    made.large = np.where(only_large, True, np.where(only_small, False, made.large))
    made.p_large = np.where(only_large, 1.0, np.where(only_small, 0.0, made.p_large))
    return made


def few_draws(n: int, seed: int) -> Draws:
    """One decision in 500 is drawn at random."""
    return draw(n, seed, share=0.002)


def prices(n: int, seed: int) -> Draws:
    """After a week the large arm costs 40 % of what it did."""
    made = draw(n, seed)
    made.cost[0] *= np.where(np.arange(n) > n / 2, 0.4, 1.0)
    return made


def missing(n: int, seed: int) -> Draws:
    """The cost of every second dear answer of the small arm is missing, as if it was cut off."""
    made = draw(n, seed)
    made.cost[1] *= 4.0
    dear = ~made.large & (made.tail > np.median(made.tail[~made.large]))
    made.known = ~(dear & (made.rng.random(n) < 0.5))
    return made


def tools(n: int, seed: int) -> Draws:
    """The arm that was drawn calls tools up to four times; each result is another request to it."""
    made = draw(n // 2, seed, turns=0.0)
    row = np.repeat(np.arange(made.n), 1 + made.rng.integers(0, 5, made.n))
    first = np.append(True, row[1:] != row[:-1])
    made = made.repeat(row)
    made.turn = np.arange(made.n) - np.flatnonzero(first)[np.cumsum(first) - 1]
    made.tail = made.tail * made.rng.lognormal(-0.02, 0.2, made.n)
    made.alone, made.forced = np.where(first, 3.0 * made.cost[0], 0.0), ~first
    return made


# -- what users do after a bad answer --------------------------------------------------------------


def go_on(n: int, seed: int, after_bad: float, after_good: float) -> Draws:
    """Return traffic in which users go on more often after a bad answer; the small arm fails twice as often.

    Args:
        n: Number of decisions.
        seed: Seed of the generator.
        after_bad: Probability of another request after a bad answer.
        after_good: Probability of another request after a good one.
    """
    made = draw(n, seed, turns=0.0, loss=0.25)
    made.hard = np.full(n, 0.25)
    made.right = np.outer([0.75, 0.5], np.ones(n))
    made.right_alone = made.right[0]
    going = made.rng.random(n) < np.where(np.append(True, made.good[:-1]), after_good, after_bad)
    made.session, made.turn = number_turns(going)
    again = 0.25 * after_bad + 0.75 * after_good
    made.cost = np.outer([0.02, 0.002], np.ones(n))
    made.same = made.cost[0]
    made.alone = np.where(made.turn == 0, 0.02 * sum(again**attempt for attempt in range(LONGEST)), 0.0)
    made.user = made.session
    return made


def retries(n: int, seed: int) -> Draws:
    """Seven in ten bad answers are asked for again."""
    made = go_on(n, seed, 0.7, 0.0)
    made.question = made.session
    return made


def asked_elsewhere(n: int, seed: int) -> Draws:
    """Seven in ten bad answers are asked for again, in other words and in another session."""
    made = go_on(n, seed, 0.7, 0.0)
    made.session, made.turn = np.arange(n), np.zeros(n, dtype=np.int64)
    return made


def prolonged(n: int, seed: int) -> Draws:
    """A session goes on after eight in ten bad answers, and after two in ten good ones."""
    return go_on(n, seed, 0.8, 0.2)


def spoiled(n: int, seed: int) -> Draws:
    """After a bad answer the next one of the session is worse by 40 points, whichever arm gives it."""
    made = draw(n, seed, share=0.3, turns=0.8, loss=0.1)
    alone = [0.75]
    for _ in range(1, LONGEST):
        alone.append(0.75 - 0.4 * (1.0 - alone[-1]))
    made.right, made.right_alone = np.outer([0.75, 0.65], np.ones(n)), np.array(alone)[made.turn]
    for row in range(1, n):
        if made.turn[row] and made.luck[row - 1] >= made.right[int(not made.large[row - 1]), row - 1]:
            made.right[:, row] -= 0.4
    return made


# -- ratings ---------------------------------------------------------------------------------------


def moody(n: int, seed: int) -> Draws:
    """Bad answers are rated three times as often as good ones; in odd fortnights, a third as often."""
    made = draw(n, seed)
    made.rated[:, BAD], made.rated[:, GOOD] = (0.9, 0.3) if seed % 2 == 0 else (0.3, 0.9)
    return made


def chosen(n: int, seed: int) -> Draws:
    """Half of the answers of each arm are rated: good ones of the small arm, bad ones of the large one."""
    made = draw(n, seed, share=0.2, loss=0.1)
    made.rated[1, BAD], made.rated[0, BAD] = 0.2, 0.8
    for arm in (0, 1):
        bad = 1.0 - made.right[arm]
        made.rated[arm, GOOD] = (0.5 - bad * made.rated[arm, BAD]) / (1.0 - bad)
    return made


def late(n: int, seed: int) -> Draws:
    """Two thirds of the bad ratings come after `wait_time`; the small arm is worse by 10 points."""
    made = draw(n, seed, share=0.3, loss=0.1)
    made.late = 2.0 / 3.0
    return made


def silence(n: int, seed: int) -> Draws:
    """Silence counts as 1, and one in four bad answers is rated; the small arm is worse by 20 points."""
    made = draw(n, seed, share=0.2, loss=0.2)
    made.rated[:, BAD], made.rated[:, GOOD], made.silence = 0.25, 0.05, 1.0
    return made


def lenient(n: int, seed: int) -> Draws:
    """A judge rates all answers, and likes a third of the bad ones; the small arm is worse by 40 points."""
    made = draw(n, seed, share=0.2, loss=0.4)
    made.praised[:, BAD], made.rated[:] = 1.0 / 3.0, 1.0
    return made


def one_rater(n: int, seed: int) -> Draws:
    """One user of many gives most ratings, and likes whatever the small arm says."""
    made = draw(n, seed, turns=0.0)
    loud = made.rng.random(n) < 0.5
    made.user = np.where(loud, -1, made.user)
    made.praised[0][:, loud], made.praised[1][:, loud] = 0.0, 1.0
    made.rated[:] = np.where(loud, 1.0, 0.3)
    return made


_MAKERS: dict[str, Callable[[int, int], Draws]] = {
    "plain": plain,
    "cached conversations": conversations,
    "a cache that all sessions share": shared_cache,
    "few takeovers, no cache": rare,
    "long answers are read again": long_answers,
    "runaway answers": runaways,
    "a runaway of the reference": dear_reference,
    "drift of traffic": drift,
    "a stratum with one arm": strata,
    "few random draws": few_draws,
    "prices change": prices,
    "costs are missing": missing,
    "sessions of tools": tools,
    "asked again": retries,
    "asked again elsewhere": asked_elsewhere,
    "bad answers prolong sessions": prolonged,
    "a bad answer spoils the next": spoiled,
    "ratings depend on the answer": moody,
    "ratings depend on arm and answer": chosen,
    "bad ratings come late": late,
    "silence counts as 1": silence,
    "a lenient judge": lenient,
    "one user rates most": one_rater,
}


def _simulate(make: Callable[[int, int], Draws], n: int, seed: int) -> Fortnight:
    return finish(make(n, seed))


WORLDS: dict[str, Callable[[int, int], Fortnight]] = {
    name: partial(_simulate, make) for name, make in _MAKERS.items()
}
