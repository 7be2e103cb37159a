"""The gate: who is let through, who is held and why, and that looking on makes no difference."""

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from armwise.feedback.arrays import Floats, Matrix
from armwise.feedback.gate_spec import GateSpec
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import confidence_sequences as sequences
from armwise.feedback.ope import gate
from armwise.feedback.ope.gate import Verdict, judge
from benchmarks.gate import SITUATIONS

SPEC, STRICT = GateSpec(), GateSpec(confidence="strict")
SERVED = np.array([0.6, 0.3, 0.1])
CANDIDATE = np.array([0.1, 0.8, 0.1])


def made_log(
    n: int = 3_000, quality: tuple[float, float, float] = (0.4, 0.7, 0.4), seed: int = 0
) -> LoggedDraws:
    """Three arms, drawn by `SERVED`; the second one is better unless said otherwise."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice(3, n, p=SERVED)
    reward = (rng.random(n) < np.array(quality)[drawn]).astype(np.float64)
    log = LoggedDraws.from_arrays(("a", "b", "c"), drawn, reward, p_log=np.tile(SERVED, (n, 1)))
    return replace(log, at=1_000.0 + np.arange(n))


def verdict_of(
    log: LoggedDraws, candidate: Floats = CANDIDATE, spec: GateSpec = SPEC, **checks: int
) -> Verdict:
    """Judge a candidate that always draws from the same distribution."""
    told = {"checked": 100, **checks}
    return judge(spec, log, np.tile(candidate, (len(log), 1)), reward_range=(0.0, 1.0), **told)


def without_the_third_arm() -> LoggedDraws:
    """Return a log that could draw 90 % of what `CANDIDATE` chooses."""
    log = made_log().where(made_log().drawn < 2)
    p_log = np.tile([2 / 3, 1 / 3, 0.0], (len(log), 1))
    return replace(log, p_log=p_log, propensity=p_log[0][log.drawn])


def test_a_candidate_that_is_truly_better_is_promoted_without_a_reason_against_it() -> None:
    verdict = verdict_of(made_log())
    true_gain = (CANDIDATE - SERVED) @ np.array([0.4, 0.7, 0.4])
    assert verdict.promote
    assert verdict.reasons == ()
    assert 0.0 < verdict.figures.low < true_gain
    assert verdict.figures.gain == pytest.approx(true_gain, abs=0.04)


def test_a_candidate_that_is_worse_is_held_and_said_not_to_look_better() -> None:
    verdict = verdict_of(made_log(quality=(0.7, 0.4, 0.4)))
    assert not verdict.promote
    [reason] = verdict.reasons
    assert "does not look better" in reason


def test_too_short_a_log_says_how_much_more_is_needed_and_so_much_is_about_enough() -> None:
    verdict = verdict_of(made_log(150))
    [reason] = verdict.reasons
    assert "which must be above +0.0000; if the gain is so, about " in reason
    more = int(reason.split("about ")[1].split(" more")[0].replace(",", ""))
    assert 100 <= more <= 1_000
    assert verdict_of(made_log(150 + 2 * more)).promote


def lying() -> LoggedDraws:
    """Return a log with propensities that nothing was drawn from."""
    wrong = np.tile([0.3, 0.6, 0.1], (3_000, 1))
    return replace(made_log(), p_log=wrong, propensity=wrong[0][made_log().drawn])


@pytest.mark.parametrize(
    ("log", "spec", "checks", "words"),
    [
        (made_log(), GateSpec(margin=0.2), {}, "above +0.2000"),
        (made_log(), SPEC, {"mismatched": 2}, "2 of 100 recomputed propensities differ"),
        (made_log(), SPEC, {"checked": 7}, "7 decisions were recomputed; 100 are needed"),
        (without_the_third_arm(), SPEC, {}, "drawn 90.0% of what the candidate chooses; 99.0%"),
        (lying(), SPEC, {}, "the propensities are not those that were drawn from"),
    ],
    ids=["margin", "mismatched", "checked", "overlap", "propensities"],
)
def test_one_thing_against_a_candidate_holds_it(
    log: LoggedDraws, spec: GateSpec, checks: dict[str, int], words: str
) -> None:
    assert any(words in reason for reason in verdict_of(log, spec=spec, **checks).reasons)


def test_propensities_need_not_be_recomputed_where_that_is_configured() -> None:
    assert verdict_of(made_log(), spec=GateSpec(least_checked=0), checked=0).promote


def test_a_margin_below_zero_lets_through_what_is_hardly_worse() -> None:
    log = made_log(quality=(0.5, 0.5, 0.5))
    assert not verdict_of(log).promote
    assert verdict_of(log, spec=GateSpec(margin=-0.1)).promote


def test_few_decisions_worth_of_evidence_hold() -> None:
    n, drawn = 300, np.zeros(300, dtype=np.int64)
    drawn[:3] = 1
    log = LoggedDraws.from_arrays(("a", "b"), drawn, np.ones(n), p_log=np.tile([0.99, 0.01], (n, 1)))
    verdict = verdict_of(log, np.array([0.0, 1.0]))
    assert verdict.figures.effective_n == pytest.approx(3.0)
    assert "The log of 300 decisions is worth 3.0 of the candidate's; 50 are needed." in verdict.reasons
    assert "One decision has 33.3% of all weights; 5.0% are allowed." in verdict.reasons


def test_a_candidate_that_draws_nothing_of_the_log_is_held() -> None:
    log = made_log().where(made_log().drawn != 2)
    verdict = verdict_of(log, np.array([0.0, 0.0, 1.0]))
    assert not verdict.promote
    assert (verdict.figures.effective_n, verdict.figures.largest_share) == (0.0, 0.0)


def test_all_that_speaks_against_a_candidate_is_said_at_once() -> None:
    verdict = verdict_of(made_log(40, seed=3), np.array([0.0, 0.0, 1.0]), checked=0, mismatched=0)
    assert len(verdict.reasons) >= 4


def test_where_only_drawn_probabilities_are_known_the_overlap_is_not_judged() -> None:
    whole = made_log(20_000)
    log = LoggedDraws.from_arrays(whole.arms, whole.drawn, whole.reward, propensity=whole.propensity)
    verdict = verdict_of(log, spec=STRICT)
    assert verdict.promote
    assert verdict.figures.overlap is None
    assert verdict.figures.low < verdict_of(whole, spec=STRICT).figures.low


def test_where_some_rows_have_drawn_probabilities_alone_every_eligible_arm_could_be_drawn() -> None:
    log = made_log(20_000)
    alone = np.where(np.eye(3)[log.drawn] > 0.0, log.p_log, np.nan)
    some = np.arange(len(log)) % 2 == 0
    mixed = replace(log, p_log=np.where(some[:, np.newaxis], alone, log.p_log), whole=~some)
    verdict = verdict_of(mixed)
    assert verdict.promote
    assert (verdict.figures.overlap, verdict.figures.expected_weight) == (None, pytest.approx(1.0))
    never = np.where(np.arange(3) == 2, 0.0, mixed.p_log)
    without = replace(mixed, p_log=never).where(log.drawn < 2)
    assert verdict_of(without).figures.expected_weight == pytest.approx(1.0 - CANDIDATE[2])


def test_a_propensity_off_by_a_rounding_error_does_no_harm() -> None:
    log = made_log()
    rounded = replace(log, propensity=log.propensity * (1.0 - 1e-7))
    assert verdict_of(rounded).promote


def test_what_was_known_stays_with_its_decision_where_rows_are_not_in_order_of_time() -> None:
    log, known = made_log(400), 200 + np.arange(400) // 2
    p, told = np.tile(CANDIDATE, (400, 1)), {"reward_range": (0.0, 1.0), "checked": 100}
    back = replace(
        log, **{name: getattr(log, name)[::-1] for name in ("drawn", "propensity", "reward", "seq", "at")}
    )
    found, other = (
        judge(SPEC, some, p, known=then, **told) for some, then in ((log, known), (back, known[::-1]))
    )
    assert found.trail == other.trail
    assert found.trail != judge(SPEC, log, p, known=np.arange(400), **told).trail


def test_a_candidate_is_undecided_until_its_upper_bound_is_at_the_margin() -> None:
    worse = made_log(quality=(0.7, 0.4, 0.4))
    assert verdict_of(worse.where(np.arange(3_000) < 60)).undecided
    judged = verdict_of(worse)
    assert not judged.undecided
    assert judged.figures is not None
    true_gain = (CANDIDATE - SERVED) @ np.array([0.7, 0.4, 0.4])
    assert true_gain < judged.figures.high < 0.0
    assert not verdict_of(made_log()).undecided, "it is promoted"
    assert not verdict_of(made_log(60), mismatched=1).undecided, "the log is wrong"


def test_reach_and_overlap_follow_their_rows_into_the_order_of_decisions() -> None:
    n, rng = 400, np.random.default_rng(2)
    # Early rows could draw every arm, later ones hardly or never the third: reach and overlap change.
    p_log = np.where((np.arange(n) < n // 2)[:, None], [0.4, 0.3, 0.3], [0.60, 0.39, 0.01])
    p_log[300:] = [0.6, 0.4, 0.0]
    drawn = (rng.random(n)[:, None] > p_log.cumsum(axis=1)).sum(axis=1)
    reward = (rng.random(n) < np.array([0.4, 0.7, 0.4])[drawn]).astype(np.float64)
    log = replace(
        LoggedDraws.from_arrays(("a", "b", "c"), drawn, reward, p_log=p_log), at=1_000.0 + np.arange(n)
    )
    mixed = rng.permutation(n)
    shuffled = replace(
        log,
        drawn=drawn[mixed],
        propensity=log.propensity[mixed],
        reward=reward[mixed],
        at=log.at[mixed],
        p_log=p_log[mixed],
    )
    one, other = verdict_of(log), verdict_of(shuffled)
    assert one.figures is not None
    assert other.figures is not None
    assert one.figures.overlap == pytest.approx(0.975)
    np.testing.assert_allclose([p.low for p in other.trail], [p.low for p in one.trail])
    assert [(point.n, point.at) for point in one.trail] == [(point.n, point.at) for point in other.trail]
    assert other.figures.effective_n == pytest.approx(one.figures.effective_n)
    assert other.figures.overlap == pytest.approx(one.figures.overlap)


def test_a_mean_weight_whose_error_nobody_knows_holds_nobody() -> None:
    log = made_log()
    one_question = replace(log, groups=np.zeros(len(log), dtype=np.int64))
    verdict = verdict_of(one_question)
    assert verdict.figures is not None
    assert verdict.figures.weight_error is None
    assert verdict.promote


def test_figures_are_what_they_are_called() -> None:
    log = made_log()
    weight = (CANDIDATE / SERVED)[log.drawn]
    seen = verdict_of(log).figures
    assert (seen.n, seen.checked, seen.mismatched, seen.overlap) == (3_000, 100, 0, pytest.approx(1.0))
    assert seen.served == pytest.approx(log.reward.mean())
    assert seen.mean_weight == pytest.approx(weight.mean())
    of_draws = ((CANDIDATE**2 / SERVED).sum() - 1.0) ** 0.5 / len(log) ** 0.5
    assert seen.weight_error == pytest.approx(max(stats.sem(weight), of_draws))
    assert seen.effective_n == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    assert seen.largest_share == pytest.approx(weight.max() / weight.sum())


@pytest.mark.parametrize("spec", [SPEC, STRICT], ids=["asymptotic", "strict"])
def test_the_trail_is_the_sequence_at_some_decisions_and_ends_at_the_verdict(spec: GateSpec) -> None:
    log = made_log()
    verdict = verdict_of(log, spec=spec)
    assert len(verdict.trail) == 200
    weight = (CANDIDATE / SERVED)[log.drawn]
    evidence = sequences.Evidence(weight, log.reward, (0.0, 1.0), float((CANDIDATE / SERVED).max()))
    every = sequences.difference(evidence, 0.95, one_sided=True, asymptotic=spec is SPEC)
    for point in verdict.trail:
        assert point.at == 999.0 + point.n
        assert point.low == pytest.approx(every.low[point.n - 1])
        assert point.gain == pytest.approx(every.estimate[point.n - 1])
    assert (verdict.trail[-1].n, verdict.trail[-1].low) == (3_000, verdict.figures.low)


def test_the_trail_has_the_level_of_the_conditions_and_the_overlap_of_each_row() -> None:
    log = made_log(400, quality=(0.4, 0.7, 0.9))
    log = log.where(log.drawn < 2)
    log = replace(
        log, p_log=np.tile([0.6, 0.4, 0.0], (len(log), 1)), propensity=np.array([0.6, 0.4])[log.drawn]
    )
    weight = np.array([0.1 / 0.6, 0.8 / 0.4])[log.drawn]
    evidence = sequences.Evidence(weight, log.reward, (0.0, 1.0), 2.0, 0.9)
    expected = sequences.difference(evidence, 0.8, one_sided=True, asymptotic=True)
    verdict = verdict_of(log, spec=GateSpec(level=0.8))
    rows = [point.n - 1 for point in verdict.trail]
    np.testing.assert_allclose([point.low for point in verdict.trail], expected.low[rows])
    assert verdict.figures.level == 0.8


def test_decisions_made_at_the_same_time_are_judged_in_the_order_of_the_log() -> None:
    log = made_log()
    twice = replace(log, at=np.tile([2_000.0, 1_000.0], 1_500))
    rows = np.r_[1:3_000:2, 0:3_000:2]
    in_order = replace(log, drawn=log.drawn[rows], propensity=log.propensity[rows], reward=log.reward[rows])
    assert [p.low for p in verdict_of(twice).trail] == [p.low for p in verdict_of(in_order).trail]


def test_figures_exactly_at_their_limits_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    log = without_the_third_arm()
    figures = verdict_of(log).figures
    monkeypatch.setattr(gate, "LEAST_OVERLAP", figures.overlap)
    monkeypatch.setattr(gate, "LEAST_EFFECTIVE_N", figures.effective_n)
    monkeypatch.setattr(gate, "LARGEST_SHARE", figures.largest_share)
    assert verdict_of(log).reasons == ()


def test_a_bound_exactly_at_the_margin_holds_and_needs_the_least_number_of_further_decisions() -> None:
    log = made_log()
    [reason] = verdict_of(log, spec=GateSpec(margin=verdict_of(log).figures.low)).reasons
    assert reason.endswith("; if the gain is so, about 100 more decisions would show it.")


def test_a_gain_exactly_at_the_margin_does_not_look_better() -> None:
    log = made_log()
    for below in (0.0, 1e-12, 4e-5):  # what rounds to none would take any number of decisions
        [reason] = verdict_of(log, spec=GateSpec(margin=verdict_of(log).figures.gain - below)).reasons
        assert reason.endswith("; the candidate does not look better.")
    [reason] = verdict_of(log, spec=GateSpec(margin=verdict_of(log).figures.gain - 1e-3)).reasons
    assert reason.endswith(" more decisions would show it.")


def test_a_bound_of_few_decisions_is_not_below_what_is_possible() -> None:
    verdict = judge(SPEC, made_log(3), np.tile(CANDIDATE, (3, 1)), reward_range=(0.0, 1.0))
    assert [point.low for point in verdict.trail] == [-1.0] * 3
    assert verdict.figures is not None
    assert verdict.figures.low == -1.0


def test_the_gain_that_is_shown_is_possible() -> None:
    """Half of ten draws are of an arm with a chance of one in a thousand, which earns all there is."""
    p_log, p_target = np.tile([0.999, 0.001], (10, 1)), np.tile([0.0, 1.0], (10, 1))
    log = LoggedDraws.from_arrays(("a", "b"), np.arange(10) % 2, np.arange(10) % 2 * 1.0, p_log=p_log)
    verdict = judge(SPEC, log, p_target, reward_range=(0.0, 1.0))
    assert verdict.figures is not None
    assert verdict.figures.gain == 1.0
    worst = judge(SPEC, replace(log, reward=1.0 - log.reward), p_target, reward_range=(0.0, 1.0))
    assert worst.figures is not None
    assert worst.figures.high == -1.0
    for point in (*verdict.trail, *worst.trail):
        assert -1.0 <= point.low <= point.gain <= 1.0


@pytest.mark.parametrize(("n", "margin"), [(150, 0.02), (600, 0.08), (1_000, 0.1)])
def test_further_decisions_grow_with_the_square_of_the_distance(n: int, margin: float) -> None:
    log = made_log(n)
    verdict = verdict_of(log, spec=GateSpec(margin=margin))
    seen, [reason] = verdict.figures, verdict.reasons
    more = int(reason.split("about ")[1].split(" more")[0].replace(",", ""))
    ratio = (seen.gain - seen.low) / (seen.gain - margin)
    assert more % 100 == 0
    assert more > 100
    assert n + more == pytest.approx(n * ratio * ratio, abs=50)


def test_a_log_without_the_rare_rows_of_large_weight_is_too_small_and_not_wrong() -> None:
    n, drawn, reward = 100, np.zeros(100, dtype=np.int64), np.tile([0.4, 0.6], 50)
    log = LoggedDraws.from_arrays(("a", "b", "c"), drawn, reward, p_log=np.tile([0.99, 0.005, 0.005], (n, 1)))
    candidate = np.tile([[0.7, 0.3, 0.0], [0.8, 0.2, 0.0]], (n // 2, 1))
    verdict = judge(SPEC, log, candidate, reward_range=(0.0, 1.0), checked=n)
    assert verdict.figures.mean_weight < 0.8
    assert not any("mean weight" in reason for reason in verdict.reasons)
    wrong = replace(log, p_log=np.tile([0.5, 0.25, 0.25], (n, 1)), propensity=np.full(n, 0.5))
    assert any(
        "mean weight" in reason
        for reason in judge(SPEC, wrong, candidate, reward_range=(0.0, 1.0), checked=n).reasons
    )


def test_a_mean_weight_may_be_off_by_some_standard_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    log = made_log()
    figures = verdict_of(log).figures
    assert figures.weight_error is not None
    off = abs(figures.mean_weight - figures.expected_weight) / figures.weight_error
    assert off > 0.01
    monkeypatch.setattr(gate, "LARGEST_WEIGHT_ERROR", 1.01 * off)
    assert verdict_of(log).promote
    monkeypatch.setattr(gate, "LARGEST_WEIGHT_ERROR", 0.99 * off)
    [reason] = verdict_of(log).reasons
    assert f"it must be within {0.99 * off:g} of them" in reason


def test_a_candidate_that_is_the_served_policy_is_held_for_its_gain_alone() -> None:
    verdict = verdict_of(made_log(), SERVED)
    assert (verdict.figures.mean_weight, verdict.figures.weight_error) == (1.0, pytest.approx(0.0, abs=1e-12))
    [reason] = verdict.reasons
    assert "; the candidate does not look better." in reason


def test_a_verdict_counts_no_decision_as_checked_unless_it_is_given() -> None:
    log = made_log()
    verdict = judge(SPEC, log, np.tile(CANDIDATE, (len(log), 1)), reward_range=(0.0, 1.0))
    assert (verdict.figures.checked, verdict.figures.mismatched) == (0, 0)
    assert not verdict.promote


def test_the_document_survives_json() -> None:
    verdict = verdict_of(made_log(150))
    read = json.loads(json.dumps(verdict.document()))
    assert verdict_of(made_log()).document()["verdict"] == "promote"
    assert read["verdict"] == "hold"
    assert read["reasons"] == list(verdict.reasons)
    assert read["figures"]["low"] == verdict.figures.low
    assert read["trail"][-1]["n"] == 150


@given(st.integers(1, 60), st.integers(0, 1_000))
def test_a_log_of_any_length_has_a_verdict(n: int, seed: int) -> None:
    verdict = verdict_of(made_log(n, seed=seed))
    assert verdict.figures.n == verdict.trail[-1].n == n
    assert verdict.promote is (not verdict.reasons)


def test_an_arm_that_was_rarely_drawn_is_found_sooner_than_by_the_strict_bound() -> None:
    n, rng = 25_000, np.random.default_rng(2)
    served, candidate = np.array([0.985, 0.005, 0.01]), np.array([0.0, 1.0, 0.0])
    drawn = rng.choice(3, n, p=served)
    reward = (rng.random(n) < np.array([0.5, 0.62, 0.5])[drawn]).astype(np.float64)
    log = LoggedDraws.from_arrays(("a", "b", "c"), drawn, reward, p_log=np.tile(served, (n, 1)))
    assert verdict_of(log, candidate).promote
    assert not verdict_of(log, candidate, STRICT).promote


@pytest.mark.parametrize("situation", list(SITUATIONS)[1:])
@pytest.mark.slow
def test_one_that_is_no_better_is_seldom_promoted_however_often_one_looks(situation: str) -> None:
    runs, bound, promoted = 200, 0, 0
    for rng in np.random.default_rng(7).spawn(runs):
        course = SITUATIONS[situation](1_000, rng)
        bounds = course.bounds()
        bound += bool((bounds.low > 0.0).any())
        promoted += course.promoted(bounds) is not None
    # A gate that fails in 5 % of runs has more failures in one of a thousand seeds.
    assert promoted <= bound <= int(stats.binom.isf(0.001, runs, 0.05))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"p_target": np.tile([0.1, 0.8, 0.1, 0.0], (60, 1))}, "4 columns of p_target, got 3"),
        ({"p_target": np.tile([0.5, 0.4, 0.0], (60, 1))}, r"p_target must be 1, got 0\.9 at row 0"),
        ({"reward_range": (-1.0, 0.5)}, r"declared range \[-1, 0.5\], got 1"),
    ],
)
def test_what_cannot_be_judged_is_refused(changes: dict[str, Any], words: str) -> None:
    given = {"p_target": np.tile(CANDIDATE, (60, 1)), "reward_range": (0.0, 1.0), **changes}
    with pytest.raises(ValueError, match=words):
        judge(SPEC, made_log(60), **given)


def test_the_gate_keeps_few_numbers_of_each_row() -> None:
    """Beside the log itself, judging a million rows takes about 105 MB."""
    n, shares = 1 << 18, np.array([[0.25, 0.75], [0.5, 0.5]])
    p_log, p_target = (
        Matrix(lambda rows, p=p: p[np.arange(n)[rows] % 2], (n, 2)) for p in (shares, shares[::-1])
    )
    log = LoggedDraws(
        *(
            ("a", "b"),
            np.arange(n) % 2,
            np.full(n, 0.25),
            np.arange(n) % 3 / 2.0,
            p_log,
            np.ones(n, np.bool_),
        ),
        groups=np.arange(n) // 4,
        seq=np.arange(1, n + 1),
        at=np.arange(n)[::-1] / 2.0,
        n_eligible=np.full(n, 2),
        version=np.ones(n, np.int64),
    )
    tracemalloc.start()
    try:
        judge(GateSpec(), log, p_target, reward_range=(0.0, 1.0), known=np.arange(n) // 2, checked=500)
        assert tracemalloc.get_traced_memory()[1] < 125 * n
    finally:
        tracemalloc.stop()
