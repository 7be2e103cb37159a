"""An audit of propensities: its bets are fair, true logs pass, and each planted fault is found and named."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from armwise.agent.proof.propensity_audit import (
    ERROR,
    FEATURE_PRIORS,
    PRIORS,
    SLICES,
    Audit,
    Check,
    CheckStatus,
    Draws,
    _Bettor,
    _blocks,
    _correct_errors,
    _Test,
    audit,
)
from armwise.feedback.arrays import take_drawn
from benchmarks.audit import ARMS, FAULTS, TRUE, World, alarmed, alone, contextual, finds, log_of, world

SEEDS = 3


def named(found: Audit, name: str) -> Check:
    return next(check for check in found.checks if check.name == name)


# -- the bets ----------------------------------------------------------------------------------------


def every_log(p: np.ndarray, **columns: object) -> list[tuple[float, Draws]]:
    """Return every log that the distributions could have drawn, each with its probability."""
    n, k = p.shape
    logs = []
    for drawn in product(range(k), repeat=n):
        column = np.array(drawn)
        chance = take_drawn(p, column)
        made = Draws(tuple("abc"[:k]), column, chance, p, **columns)  # type: ignore[arg-type]
        logs.append((float(chance.prod()), made))
    return logs


def distributions(n: int, k: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.asarray(0.94 * rng.dirichlet(np.ones(k), n) + 0.06 / k)


CODES = np.array([0, 1, 0, 0, 1, 1, 0, 1, 1, 0, -1])


@pytest.mark.parametrize("priors", [PRIORS, FEATURE_PRIORS], ids=["few cells", "many cells"])
@pytest.mark.slow
def test_bets_on_whole_distributions_are_fair(priors: np.ndarray) -> None:
    """Over all logs that the propensities could have drawn, the mean wealth is 1, also of learned odds."""
    p = distributions(11, 2, seed=3)
    assert list(_blocks(11)) == [(0, 8), (8, 11)]
    wealth = [(chance, np.exp(_Bettor(log).bet(CODES, 2, priors).path[-1])) for chance, log in every_log(p)]
    assert sum(chance for chance, _ in wealth) == pytest.approx(1.0)
    assert sum(chance * one for chance, one in wealth) == pytest.approx(1.0, abs=1e-9)
    assert max(one for _, one in wealth) > 1.2


def test_bets_on_the_shape_of_distributions_are_fair() -> None:
    p = distributions(9, 2, seed=4)
    logs = [(chance, _Bettor(log).bet_on_shapes()) for chance, log in every_log(p)]
    for kind in logs[0][1]:
        assert sum(chance * np.exp(one[kind][-1]) for chance, one in logs) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("floor", [None, np.full(9, 0.03)], ids=["no floor", "floor"])
@pytest.mark.slow
def test_bets_where_only_the_drawn_propensity_is_known_are_fair(floor: np.ndarray | None) -> None:
    p = distributions(9, 2, seed=5)
    logs = [(chance, replace(log, p=None)) for chance, log in every_log(p, floor=floor)]
    wealth = [(chance, np.exp(_Bettor(log).bet(CODES[:9], 2).path[-1])) for chance, log in logs]
    # a bet below 1 is fair where its bound does not depend on what was drawn
    assert sum(chance * one for chance, one in wealth) <= 1.0 + 1e-9
    if floor is None:
        assert sum(chance * one for chance, one in wealth) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.slow
def test_bets_on_how_many_draws_are_probable_never_gain_on_average() -> None:
    p = distributions(6, 3, seed=6)
    wealth = [(chance, np.exp(_Bettor(replace(log, p=None)).counts()[-1])) for chance, log in every_log(p)]
    mean = sum(chance * one for chance, one in wealth)
    assert 0.5 < mean <= 1.0 + 1e-9


def test_small_propensities_that_are_drawn_too_often_win_the_bet_on_the_number_of_arms() -> None:
    """The mean of 1 / p is at most the number of eligible arms, which is two here and one column less."""
    eligible = np.tile([True, True, False], (60, 1))
    rare = Draws(("a", "b", "c"), np.arange(60) % 2, np.full(60, 0.1), None, eligible)
    assert _Bettor(rare).counts()[-1] > 50.0
    assert _Bettor(replace(rare, arms=("a", "b"), eligible=eligible[:, :2])).counts()[-1] > 50.0
    assert _Bettor(replace(rare, propensity=np.full(60, 0.5))).counts().max() <= 1e-9


@pytest.mark.parametrize("n", [1, 7, 8, 9, 200, 12_345])
def test_blocks_follow_each_other_to_the_last_row(n: int) -> None:
    blocks = list(_blocks(n))
    assert [start for start, _ in blocks] == [0, *(stop for _, stop in blocks[:-1])]
    assert blocks[-1][1] == n
    assert max(stop - start for start, stop in blocks) <= max(8, n // 40)


def test_tests_are_corrected_by_the_procedure_of_holm() -> None:
    """Of three tests the smallest is compared with a third of the level, the next with a half."""
    p_values = {"a": 0.02, "b": 0.0049, "c": 0.0033, "none": None}
    tests = [
        _Test(name, "", "", None if p is None else -float(np.log(p)), "advice")
        for name, p in p_values.items()
    ]
    checks = {check.name: check.status for check in _correct_errors(tests, 0.01)}
    assert checks == {"a": "pass", "b": "fail", "c": "fail", "none": "skipped"}
    tests[2] = replace(tests[2], evidence=-float(np.log(0.0034)))
    assert {check.status for check in _correct_errors(tests, 0.01)} == {"pass", "skipped"}


# -- true logs, and planted faults -------------------------------------------------------------------


@pytest.mark.parametrize("make", TRUE)
@pytest.mark.parametrize("n", [200, 1000])
def test_no_true_log_fails(make: Callable[[World], Draws], n: int) -> None:
    """Of policies that learn, with floors of .01, with rewards that are late or missing."""
    for seed in range(SEEDS):
        assert not alarmed(audit(make(world(n, 100 + seed))))


@pytest.mark.parametrize(("make", "check", "both"), FAULTS)
def test_a_planted_fault_is_found_in_2000_rows(
    make: Callable[[World], Draws], check: str, both: bool
) -> None:
    """Also where only the propensities of drawn arms are known, but for faults that hide there."""
    log = make(world(2000, 1))
    assert finds(audit(log), check)
    if both and make.__name__ not in HIDDEN:
        assert finds(audit(alone(log)), check)


HIDDEN = ("temperature", "argmax_override")
"""Faults that take more rows where only the propensities of drawn arms are known."""


def test_the_verdict_on_1_of_n_names_the_arm_and_what_would_be_right() -> None:
    n, rng = 2000, np.random.default_rng(0)
    drawn = rng.choice(4, n, p=[0.1, 0.2, 0.1, 0.6])
    found = audit(Draws(ARMS, drawn, np.full(n, 0.25), np.full((n, 4), 0.25)))
    check = named(found, "mean weight of each arm")
    share = float((drawn == 3).mean())
    assert found.status is check.status is CheckStatus.FAIL
    assert f"both was drawn for {share:.0%} of the rows" in check.advice
    assert check.found == f"{share * 4:.3f} of both"
    # what follows from it is no fault of its own
    assert named(found, "calibration").status is CheckStatus.WARN
    assert "follow from the check above, mean weight of each arm" in named(found, "calibration").advice
    assert [one.name for one in found.faults] == [check.name]


@pytest.mark.parametrize(
    ("name", "cause"),
    [("greedy_logged", "a floor or an epsilon, which the draws"), ("floor_not_applied", "was not applied")],
)
def test_the_verdict_on_a_floor_says_which_way_it_is_wrong(name: str, cause: str) -> None:
    make = next(one for one, _, _ in FAULTS if one.__name__ == name)
    found = named(audit(make(world(2000, 2))), "calibration")
    assert found.status is CheckStatus.FAIL
    assert cause in found.advice


def test_a_feature_that_predicts_the_draw_is_named() -> None:
    make = next(one for one, _, _ in FAULTS if one.__name__ == "hidden_feature")
    for log in (make(world(4000, 3)), alone(make(world(4000, 3)))):
        advice = named(audit(log), "draws and features").advice
        assert advice.startswith("The feature 7 predicts the draw: if it is ")


def test_the_time_of_another_policy_is_named() -> None:
    make = next(one for one, _, _ in FAULTS if one.__name__ == "stretch")
    check = named(audit(make(world(4000, 3))), "mean weight over time")
    assert check.status is CheckStatus.FAIL
    begins = [int(4000 * part / SLICES + 0.999) + 1 for part in (7, 8, 9)]
    assert any(f"From decision {begin:,} on" in check.advice for begin in begins), check.advice


def test_rows_of_a_user_that_keep_their_arm_are_one_draw() -> None:
    """Tests then read the first of each, and find no other fault."""
    make = next(one for one, _, _ in FAULTS if one.__name__ == "sticky")
    log = make(world(2000, 4))
    found = audit(log)
    assert found.status is CheckStatus.WARN
    assert found.tested == len(np.unique(log.groups["user"]))
    assert "100% of the decisions of one user" in named(found, "draws within users").advice
    assert audit(replace(log, groups={})).tested == 2000


# -- counts ------------------------------------------------------------------------------------------


def small(n: int = 40, **columns: object) -> Draws:
    p = np.tile([0.5, 0.25, 0.25], (n, 1))
    drawn = np.arange(n) * 7 % 4 % 3
    return replace(Draws(("a", "b", "c"), drawn, take_drawn(p, drawn), p), **columns)


def test_a_log_without_propensities_fails_plainly() -> None:
    found = audit(small(propensity=np.full(40, np.nan), p=None))
    assert found.status is CheckStatus.FAIL
    assert found.tested == 0
    assert found.checks[0].advice.startswith("It has no propensities.")
    assert audit(small(0)).status is CheckStatus.FAIL


def test_decisions_without_a_propensity_are_a_warning_and_in_no_test() -> None:
    log = small()
    propensity, p = log.propensity.copy(), log.p
    assert p is not None
    propensity[3] = p[3] = np.nan
    found = audit(replace(log, propensity=propensity))
    assert found.checks[0].status is CheckStatus.WARN
    assert found.checks[0].found == "39 of 40 (97.5 %)"
    assert found.tested == 39
    assert named(found, "propensities possible").found == "all 39 are"


def test_what_nothing_is_drawn_with_fails_and_is_in_no_test() -> None:
    log = small()
    assert log.p is not None
    wrong = {
        "a propensity of 0,": replace(log, propensity=np.where(np.arange(40) == 1, 0.0, log.propensity)),
        "a propensity of 1.5,": replace(log, propensity=np.where(np.arange(40) == 1, 1.5, log.propensity)),
        "sum to another number than 1, such as 1.25": replace(
            log, p=log.p + (np.arange(40) == 1)[:, None] * (np.arange(3) == (log.drawn[1] + 1) % 3) * 0.25
        ),
        "differ from their distributions": replace(
            log, propensity=np.where(np.arange(40) == 1, log.propensity + 0.01, log.propensity)
        ),
        "were not eligible": replace(
            log, eligible=~((np.arange(40) == 1)[:, None] & (np.arange(3) == log.drawn[1]))
        ),
    }
    for message, made in wrong.items():
        found = audit(made)
        check = named(found, "propensities possible")
        assert check.status is CheckStatus.FAIL
        assert message in check.advice
        assert check.found == "1 of 40 are not"
        assert found.tested == 39


def test_a_floor_that_is_claimed_and_not_kept_fails() -> None:
    """A floor above 1 / n is lowered to it, and a decision without one claims nothing."""
    for floor, status in ((0.25, CheckStatus.PASS), (0.26, CheckStatus.FAIL), (0.0, CheckStatus.SKIPPED)):
        assert named(audit(small(floor=np.full(40, floor))), "floor").status is status
    uniform = np.full((40, 3), 1.0 / 3.0)
    log = small(p=uniform, propensity=uniform[:, 0], floor=np.full(40, 0.5))
    assert named(audit(log), "floor").status is CheckStatus.PASS
    one = np.where(np.arange(40) == 5, 0.3, np.nan)
    assert named(audit(small(floor=one)), "floor").found == "1 of 1 (100 %)"


def test_arms_without_a_chance_are_counted_where_they_were_eligible() -> None:
    p = np.where((np.arange(40) < 10)[:, None], [1.0, 0.0, 0.0], [0.5, 0.25, 0.25])
    drawn = np.where(np.arange(40) < 10, 0, small().drawn)
    log = small(p=p, drawn=drawn, propensity=take_drawn(p, drawn))
    found = audit(log)
    check = named(found, "arms that could not be drawn")
    assert (check.status, check.found) == (CheckStatus.WARN, "10 of 40 (25 %)")
    assert check.advice.startswith("b was eligible with a probability of 0 in 10 of 40 (25 %) rows")
    masked = replace(log, eligible=p > 0.0)
    assert named(audit(masked), "arms that could not be drawn").status is CheckStatus.PASS
    assert named(audit(masked), "deterministic draws").found == "0 of 40 drawn with probability 1"


@pytest.mark.parametrize(("n", "status"), [(30, CheckStatus.PASS), (100, CheckStatus.FAIL)])
def test_a_log_of_certain_draws_of_several_arms_fails(n: int, status: CheckStatus) -> None:
    drawn = np.arange(100) % 3 % 2
    check = named(
        audit(Draws(("a", "b"), drawn, np.where(np.arange(100) < n, 1.0, 0.5))), "deterministic draws"
    )
    assert check.status is status
    assert ("30 of 100 (30 %)" in check.found) is (n == 30)


@pytest.mark.parametrize(
    ("arms", "p", "status"),
    [
        (("a", "b"), np.tile([0.0, 1.0], (100, 1)), CheckStatus.FAIL),
        (("a", "b"), None, CheckStatus.FAIL),
        (("b",), np.ones((100, 1)), CheckStatus.WARN),
    ],
    ids=["whole distributions", "drawn propensity", "one arm"],
)
def test_a_log_in_which_nothing_was_left_to_chance_never_passes(
    arms: tuple[str, ...], p: np.ndarray | None, status: CheckStatus
) -> None:
    reward = np.where(np.arange(100) % 3, np.nan, 1.0)
    found = audit(Draws(arms, np.full(100, len(arms) - 1), np.ones(100), p, reward=reward))
    assert (named(found, "deterministic draws").status, found.tested) == (status, 0)
    assert bool(found.doubt) is (status is CheckStatus.FAIL)
    assert "nan" not in " ".join(check.found for check in found.checks)


def test_an_arm_that_alone_was_drawn_is_named_once_by_the_check_of_missing_rewards() -> None:
    p = np.tile([0.5, 0.5], (100, 1))
    reward = np.where(np.arange(100) % 4, np.nan, 1.0)
    found = audit(Draws(("a", "b"), np.zeros(100, dtype=np.int64), p[:, 0], p, reward=reward))
    assert named(found, "missing rewards").found == "75% of a have no reward"


def test_weights_above_a_thousand_are_a_warning() -> None:
    for least, status in ((0.001, CheckStatus.PASS), (0.0009, CheckStatus.WARN)):
        propensity = np.where(np.arange(40) == 2, least, 0.5)
        log = Draws(("a", "b"), np.arange(40) % 2, propensity)
        assert named(audit(log), "weights").status is status


def test_a_decision_that_stands_twice_fails_and_counts_once_in_the_tests() -> None:
    found = audit(small(ids=np.minimum(np.arange(40), 37)))
    assert named(found, "ids").found == "2 of 40 (5 %)"
    assert named(found, "ids").status is CheckStatus.FAIL
    assert found.tested == 38


def test_a_feature_that_is_the_reward_fails_and_one_that_explains_it_well_does_not() -> None:
    rng = np.random.default_rng(0)
    reward = np.where(np.arange(400) < 300, rng.random(400), np.nan)
    log = small(400, reward=reward, values={"near": np.nan_to_num(reward) + rng.normal(0.0, 0.02, 400)})
    assert named(audit(log), "leaks").status is CheckStatus.PASS
    exact = replace(log, values={**log.values, "score": 1.0 - 2.0 * np.nan_to_num(reward)})
    check = named(audit(exact), "leaks")
    assert check.status is CheckStatus.FAIL
    assert "The feature score is the reward" in check.advice


def test_rewards_that_may_still_come_are_not_missing() -> None:
    """Those of the last third wait, of one arm more often: a fact of time, not of the arm's quality."""
    log = contextual(world(3000, 0))
    waiting = (log.drawn == 2) & (np.arange(3000) > 1000)
    reward = np.where(waiting | (np.arange(3000) % 4 == 0), np.nan, log.reward)
    lost, waits = audit(replace(log, reward=reward)), audit(replace(log, reward=reward, waiting=waiting))
    assert named(lost, "missing rewards").status is CheckStatus.WARN
    assert named(waits, "missing rewards").status is CheckStatus.PASS


def test_columns_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"reward must have the shape of drawn, \(40,\), got \(39,\)"):
        small(reward=np.ones(39))
    with pytest.raises(ValueError, match=r"features 'x' must have the shape"):
        small(features={"x": np.zeros(3, dtype=np.int64)})
    with pytest.raises(ValueError, match=r"p must have the shape \(40, 3\), got \(40, 2\)"):
        small(p=np.full((40, 2), 0.5))
    with pytest.raises(ValueError, match="drawn must be a column below 3, got 3"):
        small(drawn=np.full(40, 3))


def test_the_whole_audit_is_at_the_level_that_it_says() -> None:
    """A looser level rejects what the usual one does not."""
    w = world(300, 8)
    p = np.full((300, 4), 0.25)
    log = log_of(w, p, np.where(w.rng.random(300) < 0.16, 0, w.rng.integers(0, 4, 300)))
    p_values = [check.p_value for check in audit(log).checks if check.p_value is not None]
    assert ERROR < min(p_values) < 0.1
    assert audit(log, error=0.9).status is CheckStatus.FAIL
    assert audit(log).status is not CheckStatus.FAIL


def test_between_two_arms_greedier_draws_are_found_by_the_propensity_of_the_drawn_arm() -> None:
    """Since the probability of the other arm follows; in 30 seeded logs of each kind."""

    def count(power: float) -> int:
        found = 0
        for seed in range(30):
            rng = np.random.default_rng(seed)
            p = 1.0 / (1.0 + np.exp(-1.5 * rng.normal(size=2000)))
            true = p**power / (p**power + (1.0 - p) ** power)
            drawn = (rng.random(2000) < true).astype(np.int64)
            found += audit(Draws(("a", "b"), drawn, np.where(drawn == 1, p, 1.0 - p))).status == "fail"
        return found

    assert count(1.0) <= 2
    assert count(1.3) >= 20
