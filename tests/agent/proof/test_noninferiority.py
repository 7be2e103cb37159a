"""Non-inferiority beside a reference: what counts, what the ends are made of, and how often they fail."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import optimize

from armwise.agent.proof import noninferiority
from armwise.agent.proof.noninferiority import (
    ERROR,
    SCALE_DRAWS,
    SCALE_SESSIONS,
    SESSION_S,
    NothingComparableError,
    Sessions,
    Settlement,
    Unsaid,
    compare,
    count,
    find_sessions,
    find_tool_rounds,
    trace_quality,
)
from armwise.feedback.arrays import Integers
from armwise.feedback.decisions import Categorical, Decisions, DrawKey
from armwise.feedback.events import LABELS, Mode, Status
from armwise.feedback.ope import confidence_sequences as sequences
from armwise.feedback.ope.confidence_sequences import Evidence, difference, unit_difference, value
from benchmarks.receipt import CLAIM, DAY, LOSS, WAIT_S, Watched, look, simulate, watch


def table(n: int, *, seed: int = 0, session: Integers | None = None, **columns: Any) -> Decisions:
    """Decisions between a and b, drawn with probabilities .3 and .7, a minute apart, by a policy unseen."""
    rng = np.random.default_rng(seed)
    drew_a = rng.random(n) < 0.3
    keys = [DrawKey(Mode.EXPLORE, "linucb", ("a", "b"), arm, Status.OK) for arm in ("a", "b")]
    nothing, zero = np.full(n, np.nan), np.zeros(n, dtype=np.int64)
    made = Decisions(
        seq=np.arange(1, n + 1),
        at=60.0 * np.arange(n),
        version=zero,
        draw=Categorical(keys, np.where(drew_a, 0, 1)),
        id=np.arange(n) + 10**6,
        question=np.arange(n),
        episode=np.arange(n) + 10**6 if session is None else session,
        user=np.arange(n),
        propensity=np.where(drew_a, 0.3, 0.7),
        p=np.tile([0.3, 0.7], n),
        n_p=zero + 2,
        reward=(rng.random(n) < np.where(drew_a, 0.8, 0.7)).astype(np.float64),
        has_id=zero == 0,
        features={},
        settled=zero == 0,
        usd=np.where(drew_a, 0.02, 0.001) * rng.uniform(0.5, 1.5, n),
        seconds=nothing,
        floor=nothing,
    )
    return replace(made, **columns)


def keyed(decisions: Decisions, rows: list[int], **fields: str) -> Decisions:
    """Return the decisions with other fields of how some rows were drawn."""
    keys = [decisions.draw.values[code] for code in decisions.draw.codes.tolist()]
    for row in rows:
        keys[row] = keys[row]._replace(**fields)
    return replace(decisions, draw=Categorical.from_column(keys))


def test_a_digest_does_not_depend_on_what_users_and_sessions_are_called() -> None:
    """Their names are hashed, and each process hashes otherwise: another one must verify a receipt."""
    log = table(300, session=np.arange(300) // 3, user=np.arange(300) % 40)
    names = np.random.default_rng(1).permutation(2 * 10**6)
    renamed = replace(
        log, **{name: names[getattr(log, name)] for name in ("id", "question", "episode", "user")}
    )
    assert Sessions(renamed).digest() == Sessions(log).digest()
    assert Sessions(replace(log, user=np.arange(300) % 39)).digest() != Sessions(log).digest()


# -- bets on units -----------------------------------------------------------------------------------


def evidence(seed: int, n: int = 400) -> Evidence:
    rng = np.random.default_rng(seed)
    weight = rng.choice([0.0, 2.5, 10.0], n, p=[0.7, 0.2, 0.1])
    return Evidence(weight, rng.uniform(-0.2, 1.0, n), (-0.2, 1.0), 10.0)


@pytest.mark.parametrize("seed", range(3))
def test_a_unit_of_one_row_is_bounded_as_a_row(seed: int) -> None:
    rows = evidence(seed)
    low, high = difference(rows, 0.97, one_sided=True), difference(rows.mirrored, 0.995, one_sided=True)
    found = unit_difference(rows, np.arange(400), 1, (0.03, 0.005))
    assert found == pytest.approx((low.estimate[-1], low.low[-1], -high.low[-1]))


def test_a_unit_bets_on_the_sum_of_its_rows() -> None:
    """The bound is where twelve gamblers, who bet unit by unit, would have 1 / error together."""
    rows, starts, most = evidence(4, 200), np.arange(0, 200, 4), 5
    reward = (rows.reward + 0.2) / 1.2
    pull = np.abs(rows.weight - 1.0)

    def wealth(mean: float) -> float:
        total = 0.0
        for bet in sequences.BETS.tolist():
            capital = 1.0 / len(sequences.BETS)
            for start in starts.tolist():
                before = slice(0, start)  # nothing of the unit itself is known
                control = (0.5 + (pull * reward)[before].sum()) / (1.0 + pull[before].sum())
                control = min(control, 0.5 / (bet * 10.0))
                here = slice(start, start + 4)
                sum_of_unit = ((rows.weight[here] - 1.0) * (reward[here] - control)).sum()
                capital *= (1.0 + bet * sum_of_unit / most) / (1.0 + bet * mean)
            total += capital
        return total

    _, low, _ = unit_difference(rows, starts, most, (0.02, 0.02))
    bound = optimize.brentq(lambda mean: wealth(mean) - 50.0, -1.0, 10.0, xtol=1e-12)
    assert low == pytest.approx(1.2 * most * bound, abs=1e-6)


def test_units_in_several_blocks_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, starts = evidence(5), np.arange(0, 400, 2)
    whole = unit_difference(rows, starts, 2, (0.02, 0.02))
    monkeypatch.setattr(sequences, "_BLOCK", 7)
    assert unit_difference(rows, starts, 2, (0.02, 0.02)) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("starts", "most", "errors", "message"),
    [
        ([0, 2, 2], 4, (0.1, 0.1), "start of a unit must be rising"),
        ([0, 4], 4, (0.1, 0.1), "start of a unit must be rising, below 4"),
        ([1, 2], 4, (0.1, 0.1), "the first unit must start at row 0"),
        ([0, 1], 2, (0.1, 0.1), "rows of a unit must be at most 2, got 3 at row 1"),
        ([0, 1], 3, (0.1, 0.0), "errors must be in"),
        ([0, 1], 3, (1.0, 0.1), "errors must be in"),
    ],
)
def test_units_that_are_none_are_refused(
    starts: list[int], most: int, errors: tuple[float, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        unit_difference(evidence(0, 4), np.array(starts), most, errors)


# -- what counts -------------------------------------------------------------------------------------


def test_a_session_ends_an_hour_after_its_first_decision() -> None:
    episode, at = np.array([7, 7, 8, 7, 7]), np.array([0.0, SESSION_S - 1.0, SESSION_S, SESSION_S, 9e9])
    unit, first = find_sessions(episode, at)
    assert unit.tolist() == [0, 0, 1, 2, 3]
    assert first.tolist() == [0.0, SESSION_S, SESSION_S, 9e9]


def test_the_order_is_that_of_the_decisions_whatever_that_of_the_log() -> None:
    made = table(500)
    shuffled = made.take(np.random.default_rng(1).permutation(500))
    assert Sessions(shuffled).digest() == Sessions(made).digest()
    assert compare(Sessions(shuffled), "a") == compare(Sessions(made), "a")


def test_only_the_final_part_counts() -> None:
    made = table(500, session=np.arange(500) // 2)
    whole = Sessions(made, Settlement.from_time(60.0 * 400, sessions=True))
    assert len(whole.rows) == 340, "sessions that began within an hour before may go on"
    assert len(Sessions(made, Settlement.from_time(60.0 * 400, sessions=False)).rows) == 400
    assert len(Sessions(made, Settlement(before=60.0 * 401)).rows) == 401, "the first half of a session"
    shorter = Sessions(made.where(made.at < 60.0 * 400), Settlement(begun_before=60.0 * 400 - SESSION_S))
    assert shorter.digest() == whole.digest()


def test_labels_and_what_was_not_drawn_are_left_out() -> None:
    made = keyed(keyed(table(400), [3, 4], policy=LABELS), [5, 6, 7], mode=Mode.GREEDY)
    assert len(Sessions(made).rows) == 395


def test_the_first_sessions_set_the_scale() -> None:
    """Sessions of three, then longer ones: four decisions count of each, the power of two above three."""
    session = np.concatenate([np.arange(300) // 3, 100 + np.arange(300) // 6])
    counted = count(Sessions(table(600, session=session)), "a")
    assert counted.limit == 4
    assert (~counted.late).sum() == 300
    assert counted.rated.sum() == 50 * 4
    one_more = np.concatenate([[0], session[:-1]])  # one of the first has four
    assert count(Sessions(table(600, session=one_more)), "a").limit == 4
    assert count(Sessions(table(600)), "a").limit == 1


def test_costs_count_from_the_draws_that_set_their_scale_on() -> None:
    """An answer of another arm may be the dearest of those that set it."""
    made = table(400)
    usd = made.usd.copy()
    usd[np.flatnonzero(~Sessions(made).drew("a"))[0]] = 0.5
    sessions = Sessions(made := replace(made, usd=usd))
    counted = count(sessions, "a")
    draws = np.flatnonzero(sessions.drew("a"))
    assert counted.priced.sum() == 400 - draws[SCALE_DRAWS - 1] - 1
    seen = made.usd[: draws[SCALE_DRAWS - 1] + 1]
    assert counted.largest_cost == pytest.approx(noninferiority.HEADROOM * seen.max())


def test_what_was_paid_counts_in_full_and_the_reference_up_to_the_largest_cost() -> None:
    made = table(4000)
    largest, drew_a = count(Sessions(made), "a").largest_cost, Sessions(made).drew("a")
    for drawn in (drew_a, ~drew_a):
        usd = made.usd.copy()
        usd[np.flatnonzero(drawn)[-1]] = largest
        before = compare(Sessions(replace(made, usd=usd)), "a").saved
        usd[np.flatnonzero(drawn)[-1]] = 10.0 * largest
        found = compare(Sessions(replace(made, usd=usd)), "a")
        assert (found.cut, found.beyond_largest) == (1, pytest.approx(9.0 * largest))
        assert before is not None
        assert found.saved is not None
        assert found.saved[1] == pytest.approx(before[1] - 9.0 * largest / found.priced)


def test_nothing_is_said_of_dollars_where_few_answers_decide() -> None:
    made = table(4000)
    usd = made.usd.copy()
    usd[-5] = 60.0
    found = compare(Sessions(replace(made, usd=usd)), "a")
    assert (found.saved, found.dollars_unsaid) == (None, Unsaid.FEW_DECIDE)
    assert found.beyond_largest > 59.0


def test_unknown_costs_count_as_the_worse_case_at_each_end() -> None:
    made, rng = table(2000), np.random.default_rng(3)
    lost = rng.random(2000) < 0.1
    found = compare(Sessions(replace(made, usd=np.where(lost, np.nan, made.usd))), "a")
    whole, counted = compare(Sessions(made), "a"), count(Sessions(made), "a")
    assert found.unpriced == lost[counted.row[counted.priced]].sum()
    assert found.saved is not None
    assert whole.saved is not None
    assert found.saved[1] < whole.saved[1]
    served = lost & ~Sessions(made).drew("a")  # what the reference costs is known
    only = compare(Sessions(replace(made, usd=np.where(served, np.nan, made.usd))), "a")
    assert only.saved is not None
    unknown = only.unpriced / only.priced
    assert only.saved[1] == pytest.approx(whole.saved[1] - unknown * counted.largest_cost, abs=2e-4)


def test_asking_again_costs_with_the_first_answer() -> None:
    made = table(800, session=np.repeat(np.arange(400), 2) + 10**6)
    again = replace(made, question=np.repeat(np.arange(400), 2))
    sessions, alone = Sessions(again), Sessions(made)
    assert sessions.again.tolist() == [False, True] * 400
    assert sessions.usd[::2] == pytest.approx(made.usd[::2] + made.usd[1::2])
    assert compare(sessions, "a").priced < 0.6 * compare(alone, "a").priced


@pytest.mark.parametrize(("cold", "said"), [(1.0, None), (3.0, Unsaid.CACHE), (0.3, Unsaid.HISTORY)])
def test_dollars_are_compared_only_if_taking_over_costs_nothing(cold: float, said: Unsaid | None) -> None:
    made = table(3000, session=np.repeat(np.arange(1000), 3) + 10**6)
    takes_over = Sessions(made).takes_over
    assert takes_over.any()
    usd = made.usd * np.where(takes_over, cold, 1.0)
    assert compare(Sessions(replace(made, usd=usd)), "a").dollars_unsaid is said


def test_an_arm_that_is_cheaper_after_another_one_is_seen_next_to_one_that_is_dearer() -> None:
    """Of both arms together, such differences are none."""
    made = table(3000, session=np.repeat(np.arange(1000), 3) + 10**6)
    sessions = Sessions(made)
    factor = np.where(sessions.drew("a"), 3.0, 1.0 / 3.0)
    usd = made.usd * np.where(sessions.takes_over, factor, 1.0)
    assert compare(Sessions(replace(made, usd=usd)), "a").dollars_unsaid is Unsaid.HISTORY


@pytest.mark.parametrize(("cold", "said"), [(1.0, None), (0.3, None), (3.0, Unsaid.CACHE)])
def test_dollars_are_compared_only_if_an_arm_that_was_idle_costs_no_more(
    cold: float, said: Unsaid | None
) -> None:
    """All sessions share the cache of an arm."""
    made = table(3000)
    idle = Sessions(made).idle
    assert idle[1:].max() == np.diff(made.at[Sessions(made).drew("a")]).max()
    usd = made.usd * np.where(idle > np.quantile(idle, 0.8), cold, 1.0)
    assert compare(Sessions(replace(made, usd=usd)), "a").dollars_unsaid is said


def test_missing_costs_do_not_make_an_arm_look_rated_more_often() -> None:
    """An answer that is neither rated nor priced was given all the same."""
    made, rng = table(6000), np.random.default_rng(5)
    lost = ~Sessions(made).drew("a") & (rng.random(6000) < 0.5)
    reward = np.where(rng.random(6000) < 0.5, made.reward, np.nan)
    some = replace(made, reward=reward, usd=np.where(lost, np.nan, made.usd))
    assert compare(Sessions(some), "a").quality_unsaid is None


def test_a_digest_has_how_long_arms_were_idle() -> None:
    """A request that named its arm is no row, and keeps the cache of that arm warm."""
    made = table(300)
    a, b = (Sessions(keyed(made, [7], mode=Mode.FORCED, drawn=arm)) for arm in ("a", "b"))
    assert len(a.rows) == len(b.rows) == 299
    assert a.digest() != b.digest()


@pytest.mark.parametrize(("answers", "said"), [(20, None), (58, Unsaid.CACHE_UNKNOWN)])
def test_takeovers_without_answers_to_compare_them_with_do_not_show_a_cache(
    answers: int, said: Unsaid | None
) -> None:
    """Of one session, no two answers have the same place."""
    made = table(answers, session=np.zeros(answers, dtype=np.int64))
    assert Sessions(made).takes_over.any()
    assert Sessions(made).history is said


@pytest.mark.parametrize("asks", [True, False])
def test_one_user_who_rates_far_more_than_it_asks_decides_nothing(asks: bool) -> None:
    made, rng = table(3000), np.random.default_rng(7)
    loud = rng.random(3000) < (0.5 if asks else 0.25)
    rated = loud | (rng.random(3000) < (0.9 if asks else 0.2))
    reward = np.where(rated, made.reward, np.nan)
    found = compare(Sessions(replace(made, reward=reward, user=np.where(loud, -1, made.user))), "a")
    assert found.quality_unsaid is (None if asks else Unsaid.ONE_USER)


def test_turns_that_kept_an_arm_cost_with_the_draw_before_them() -> None:
    session = np.array([0, 0, 0, 1, 1, *range(10, 410)])
    made = keyed(table(405, session=session, usd=np.arange(405.0)), [1, 4], mode=Mode.CONTINUED)
    usd = Sessions(made).usd
    assert usd[:3].tolist() == [0.0 + 1.0, 2.0, 3.0 + 4.0]
    lost = made.usd.copy()
    lost[1] = np.nan
    assert Sessions(replace(made, usd=lost)).usd[0] == 0.0


def rounds_of_tools() -> Decisions:
    """Draws of one question each in rows 0, 2, 5 and 8; the other of the first ten rows are forced."""
    session = np.array([0, 0, 0, 1, 0, 1, 1, 0, 2, 2, *range(10, 410)])
    question = np.array([7, 7, 8, 7, 7, 7, 7, 7, 9, 9, *range(10, 410)])
    made = table(410, session=session, usd=np.arange(410.0) + 1.0, question=question)
    made = keyed(made, [*range(9)], drawn="a")
    made = keyed(keyed(made, [7], drawn="b"), [8], drawn="b")
    made = keyed(made, [1, 3, 4, 6, 7], mode=Mode.FORCED)
    return keyed(keyed(made, [9], drawn="b"), [9], mode=Mode.CONTINUED)


def test_rounds_of_tools_cost_with_the_draw_of_their_question_in_their_session() -> None:
    """Not those before a draw (row 3), nor a caller's own choice of another arm (row 7)."""
    made = rounds_of_tools()
    found = find_tool_rounds(made, find_sessions(made.episode, made.at)[0])
    assert found[:10].tolist() == [-1, 0, -1, -1, 0, -1, 5, -1, -1, -1]
    assert (found[10:] == -1).all()
    assert Sessions(made).usd[:4].tolist() == [1.0 + 2.0 + 5.0, 3.0, 6.0 + 7.0, 9.0 + 10.0]
    unknown = made.usd.copy()
    unknown[1] = np.nan
    assert Sessions(replace(made, usd=unknown)).usd[0] == 1.0 + 5.0


def test_a_question_that_is_drawn_for_again_has_the_rounds_of_tools_that_follow() -> None:
    zeros = np.zeros(400, dtype=np.int64)
    made = keyed(table(400, session=zeros, question=zeros), [*range(4)], drawn="a")
    made = keyed(made, [1, 3], mode=Mode.FORCED)
    assert find_tool_rounds(made, zeros)[:4].tolist() == [-1, 0, -1, 2]


def test_rounds_of_tools_of_a_turn_that_kept_its_arm_cost_with_the_draw() -> None:
    session = np.array([0, 0, 0, 0, *range(10, 410)])
    question = np.array([1, 2, 2, 1, *range(10, 410)])
    made = table(404, session=session, usd=np.arange(404.0) + 1.0, question=question)
    made = keyed(made, [0, 1, 2, 3], drawn="a")
    made = keyed(keyed(made, [1], mode=Mode.CONTINUED), [2, 3], mode=Mode.FORCED)
    assert Sessions(made).usd[0] == 1.0 + 2.0 + 3.0 + 4.0


def test_a_round_of_tools_an_hour_after_its_session_began_belongs_to_no_draw() -> None:
    session, question = np.array([0, 0, *range(10, 410)]), np.array([1, 1, *range(10, 410)])
    made = keyed(table(402, session=session, question=question), [0, 1], drawn="a")
    made = keyed(made, [1], mode=Mode.FORCED)
    for late, draw in ((SESSION_S - 1.0, 0), (SESSION_S, -1)):
        at = made.at + np.where(np.arange(402) == 0, 0.0, late - 60.0)
        assert find_tool_rounds(made, find_sessions(session, at)[0])[1] == draw


def test_decisions_without_feedback_count_in_the_savings_alone() -> None:
    made = table(600)
    reward = np.where(np.arange(600) % 2, np.nan, made.reward)
    found = compare(Sessions(replace(made, reward=reward)), "a")
    assert found.decisions == 250
    assert found.priced > 500
    assert found.rated is not None
    assert found.rated[1] < 0.0 < found.rated[2]
    assert compare(Sessions(made), "a").rated is None


def test_feedback_that_depends_on_the_arm_is_found() -> None:
    made = table(4000)
    drew_a = Sessions(made).drew("a")
    reward = np.where(drew_a & (np.arange(4000) % 2 == 0), np.nan, made.reward)
    found = compare(Sessions(replace(made, reward=reward)), "a")
    assert found.rated is not None
    assert found.rated[1] > 0.0
    assert (found.quality, found.quality_unsaid) == (None, Unsaid.RATED_APART)


def test_the_ends_are_those_of_the_differences_on_what_counts() -> None:
    """Of the error the lower end of quality has half, that of savings .4, the upper one .1; for two arms."""
    made = table(900)
    found, late = compare(Sessions(made), "a"), slice(SCALE_SESSIONS, None)
    weight = np.where(Sessions(made).drew("a"), 1.0 / 0.3, 0.0)
    rows = Evidence(weight[late], made.reward[late], (0.0, 1.0), 1.0 / 0.3)
    lower, saved, other = 0.5 * ERROR / 2, 0.4 * ERROR / 2, 0.1 * ERROR / 2
    estimate, low, high = unit_difference(rows, np.arange(800), 1, (other, lower))
    assert found.quality == pytest.approx((-estimate, -high, -low))
    counted = count(Sessions(made), "a")
    paid = Evidence(weight[counted.priced], made.usd[counted.priced], (0.0, counted.largest_cost), 1.0 / 0.3)
    n, spent = int(counted.priced.sum()), made.usd[counted.priced].mean()
    would = value(paid, 1.0 - 2.0 * saved, rows=np.array([n]))
    ends = would.estimate[0], would.low[0]
    assert found.saved == pytest.approx([end - spent for end in ends])
    assert (found.decisions, found.sessions, found.priced, found.scale) == (800, 800, n, SCALE_SESSIONS)
    assert found.served == pytest.approx(made.reward[late].mean())
    assert found.priced_scale == 900 - n
    assert (found.first_at, found.last_at) == (60.0 * min(SCALE_SESSIONS, 900 - n), 60.0 * 899)
    drew = Sessions(made).drew("a")
    assert (found.drawn, found.priced_drawn) == (drew[late].sum(), drew[counted.priced].sum())


def test_a_difference_in_a_session_is_that_of_a_decision() -> None:
    """Bounds are about sums of sessions, figures about decisions: longer sessions do not change these."""
    alone = compare(Sessions(table(3000)), "a")
    together = compare(Sessions(table(3000, session=np.arange(3000) // 2)), "a")
    assert alone.quality is not None
    assert together.quality is not None
    assert together.quality[0] == pytest.approx(alone.quality[0], abs=0.01)
    width = [found[2] - found[1] for found in (alone.quality, together.quality)]
    assert 0.8 < width[1] / width[0] < 1.3


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (table(SCALE_SESSIONS), "25 times, and could be in 100 decisions.* first 100 "),
        (table(150, session=np.arange(150) // 2), "40 times, and could be in 75 sessions.* first 100 "),
        (table(400, reward=np.full(400, np.nan), usd=np.full(400, np.nan)), "neither feedback nor dollars"),
        (table(400, reward=np.full(400, np.nan), usd=np.zeros(400)), "neither feedback nor dollars"),
        (table(400, propensity=np.ones(400), p=np.tile([0.0, 1.0], 400)), "a was never eligible"),
        (keyed(table(400), [*range(400)], drawn="b"), "a was drawn 0 times"),
    ],
)
def test_where_nothing_can_be_compared_it_says_why(made: Decisions, message: str) -> None:
    with pytest.raises(NothingComparableError, match=message):
        compare(Sessions(made), "a")


def test_where_all_that_is_possible_is_in_the_range_nothing_is_said() -> None:
    """A few draws rule nothing out; with more, an end does, and something is said."""
    few, more = (compare(Sessions(table(n, seed=2)), "a") for n in (SCALE_SESSIONS + 10, 3000))
    assert (few.quality, few.quality_unsaid) == (None, Unsaid.TOO_WIDE)
    assert (few.saved, few.dollars_unsaid) == (None, Unsaid.TOO_WIDE)
    assert (more.quality_unsaid, more.dollars_unsaid) == (None, None)


def test_an_estimate_is_possible_for_what_was_served() -> None:
    """All answers of both arms are perfect: no arm can be better than what was served."""
    for reward, sign in ((1.0, 1.0), (0.0, -1.0)):
        for seed in range(4):
            quality = compare(Sessions(table(2000, seed=seed, reward=np.full(2000, reward))), "a").quality
            assert quality is not None
            assert sign * quality[0] >= 0.0
            assert quality[1] <= 0.0 <= quality[2]


def test_the_smallest_log_that_can_be_compared() -> None:
    found = compare(Sessions(table(SCALE_SESSIONS + 1, seed=2)), "a")
    assert found.decisions == 1
    assert (found.quality, found.quality_unsaid) == (None, Unsaid.TOO_WIDE)


def test_a_propensity_that_is_none_leaves_a_row_out() -> None:
    made = table(400)
    p = made.propensity.copy()
    p[[200, 201, 202]] = np.nan, 0.0, 1.5
    assert compare(Sessions(replace(made, propensity=p)), "a").decisions == 297
    p[203] = 0.5  # its distribution has another
    assert compare(Sessions(replace(made, propensity=p)), "a").decisions == 296
    assert Sessions(replace(made, propensity=p)).qualities().keys() == {"a", "b"}


def test_what_drew_its_only_arm_is_compared_with_no_other() -> None:
    """Only the probability of the drawn arm is on record; where it is 1, the other could not be drawn."""
    made = table(400)
    propensity = np.where(np.arange(400) % 4 == 0, 1.0, made.propensity)
    sessions = Sessions(replace(made, propensity=propensity, p=propensity, n_p=np.ones(400, np.int64)))
    for arm in "ab":
        assert (sessions.could(arm) == (sessions.drew(arm) | (propensity < 1.0))).all()


@pytest.mark.parametrize("column", ["at", "propensity", "reward", "usd", "drawn", "episode"])
def test_whatever_a_comparison_reads_changes_the_digest(column: str) -> None:
    made = table(200, session=np.arange(200) // 2)
    sessions = Sessions(made)
    if column == "drawn":
        codes = made.draw.codes.copy()
        codes[7] = 1 - codes[7]
        other = replace(made, draw=Categorical(made.draw.values, codes))
    else:
        values = getattr(made, column).copy()
        values[7] += 10**6 if column == "episode" else 0.5
        other = replace(made, **{column: values})
    assert Sessions(other).digest() != sessions.digest() == Sessions(made).digest()


# -- how often they fail -----------------------------------------------------------------------------


def fortnights(share: float, loss: float, runs: int) -> list[Watched]:
    return [watch(simulate(3_000, share, loss, seed)) for seed in range(runs)]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_over_fortnights_of_daily_looks_false_claims_are_rare_and_the_truth_is_held(share: float) -> None:
    """A policy that loses .02 is hardly ever said to lose less than .01; see docs/benchmarks/receipt.md."""
    watched = fortnights(share, LOSS, 40)
    assert sum(one.claimed for one in watched) <= 2
    assert sum(one.quality for one in watched) >= 38
    assert sum(one.saved for one in watched) >= 38


@pytest.mark.slow
def test_a_claim_is_made_where_it_is_true() -> None:
    said, lead, saved = look(simulate(60_000, 0.5, 0.0, seed=1), 14 * DAY - WAIT_S)
    assert said.quality is not None
    assert said.quality[1] > -2 * CLAIM
    assert said.quality[1] <= lead <= said.quality[2]
    assert said.saved is not None
    assert 0.0 < said.saved[1] <= saved


@pytest.mark.slow
def test_a_look_of_yesterday_is_what_it_was() -> None:
    """More decisions, of which none is settled yet, change nothing."""
    world = simulate(4_000, 0.2, LOSS, seed=3)
    until = 7 * DAY
    known = replace(world, decisions=world.decisions.where(world.decisions.at < until))
    assert look(known, until)[0] == look(world, until)[0]


def test_the_course_of_quality_is_what_was_stated_after_so_many_sessions() -> None:
    """Each point is the comparison of the log as it was then, and the last one that of all of it."""
    decisions = table(1500, seed=3)
    course = trace_quality(Sessions(decisions), "a", points=5)
    rows = [row for row, _ in course]
    assert rows[0] + 1 == 2 * SCALE_SESSIONS
    assert rows[-1] + 1 == 1500
    for row, quality in course:
        then = compare(Sessions(decisions.where(np.arange(1500) <= row)), "a").quality
        assert then == pytest.approx(quality)
