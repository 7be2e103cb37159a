"""Many targets on one log: values, differences to a baseline, intervals, and what cannot be told."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from armwise.feedback.arrays import Floats, Integers, Matrix, take_drawn
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import evaluation
from armwise.feedback.ope.estimators import ESTIMATORS, estimate
from armwise.feedback.ope.evaluation import (
    INTERVALS,
    NEVER_DRAWN,
    EstimatorResult,
    Evaluation,
    evaluate_each,
    predict,
)
from armwise.feedback.ope.intervals import by_group, difference, hedge, normal
from armwise.feedback.ope.sample import Sample

ARMS = ("a", "b", "c")
VALUES = np.array([0.2, 0.5, 0.8])
"""Chance that each arm is right."""


@pytest.fixture(scope="module")
def log() -> LoggedDraws:
    """1,200 decisions on 400 questions by a policy that prefers some arm on each."""
    rng = np.random.default_rng(6)
    n = 1_200
    p_log = 0.1 + 0.7 * np.eye(3)[rng.integers(3, size=n)]
    drawn = (p_log.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    reward = (rng.random(n) < VALUES[drawn]).astype(np.float64)
    questions = np.concatenate([np.arange(400), rng.integers(400, size=n - 400)])
    return LoggedDraws.from_arrays(
        *(ARMS, drawn, reward),
        p_log=p_log,
        groups=questions,
    )


def kinds(log: LoggedDraws) -> Floats:
    """Return features: the kind of the question of each row."""
    return np.eye(3)[log.groups % 3]


def evaluate(log: LoggedDraws, *args: Any, **options: Any) -> dict[str, Evaluation]:
    """Evaluate with the kinds of questions as features."""
    return evaluation.evaluate(log, *args, features=kinds(log), **options)


def always(log: LoggedDraws, *shares: float) -> Floats:
    """The target that draws from one distribution in every row."""
    return np.tile(shares, (len(log), 1))


def by_name(estimates: tuple[EstimatorResult, ...]) -> dict[str, EstimatorResult]:
    return {one.estimator: one for one in estimates}


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_every_estimator_says_what_it_says_alone(log: LoggedDraws) -> None:
    p = always(log, 0.1, 0.2, 0.7)
    q_hat = predict(log, kinds(log), np.random.default_rng(1))
    found = evaluate(log, {"t": p}, rng(), estimators=tuple(ESTIMATORS), q_hat=q_hat, reward_model="means")[
        "t"
    ]
    sample = Sample(log.propensity, log.drawn, log.reward, p, q_hat)
    assert [one.estimator for one in found.estimates] == list(ESTIMATORS)
    for one in found.estimates:
        terms = estimate(sample, one.estimator)
        assert one.value is not None
        assert one.value.value == terms.value
        assert (one.effective_n, one.note) == (terms.effective_n, "")
        assert one.value.low < one.value.value < one.value.high
        assert abs(terms.value - (p[0] @ VALUES)) < 0.1
    np.testing.assert_array_equal(found.weight, sample.weight)
    assert found.diagnostics.n == len(log) == len(found.log)


def test_intervals_take_rows_of_one_question_as_one_and_hedge(log: LoggedDraws) -> None:
    p, reach = always(log, 0.0, 0.0, 1.0), 10.0
    one = evaluate(log, {"t": p}, rng(), estimators=("snips",))["t"].estimates[0]
    terms, served = (
        estimate(Sample(log.propensity, log.drawn, log.reward, q), "snips") for q in (p, log.p_log)
    )
    safe = hedge(by_group(terms, log.groups), reach, 0.0, 1.0)
    other = hedge(by_group(served, log.groups), 1.0, 0.0, 1.0)
    assert one.value is not None
    assert (one.value.low, one.value.high) == pytest.approx(normal(safe), rel=1e-12)
    assert one.difference is not None
    assert one.difference.value == pytest.approx(terms.value - log.reward.mean())
    assert (one.difference.low, one.difference.high) == pytest.approx(
        normal(difference(safe, other)), rel=1e-12
    )


def test_what_was_served_is_worth_what_it_earned_and_differs_from_nothing(log: LoggedDraws) -> None:
    found = evaluate(log, {"served": log.p_log, "same": log.p_log.copy()}, rng(), interval="bootstrap")
    for one in found["served"].estimates:
        assert one.difference is None
        assert one.effective_n == pytest.approx(len(log))
    assert found["served"].estimates[0].value is not None
    assert found["served"].estimates[0].value.value == pytest.approx(log.reward.mean())
    for one in found["same"].estimates:
        assert one.difference is not None
        assert (one.difference.value, one.difference.low, one.difference.high) == pytest.approx(
            (0, 0, 0), abs=1e-6
        )


def test_a_baseline_may_be_any_target(log: LoggedDraws) -> None:
    targets = {"c": always(log, 0.0, 0.0, 1.0), "b": always(log, 0.0, 1.0, 0.0)}
    found = evaluate(log, targets, rng(), baseline="b", estimators=("dr",))
    assert found["b"].estimates[0].difference is None
    better = found["c"].estimates[0].difference
    assert better is not None
    assert better.low < 0.3 < better.high
    assert better.low > 0.1
    names: Any = {"estimators": ("ips",), "interval": "anytime"}
    (betting,) = evaluate(log, targets, rng(), baseline="b", **names)["c"].estimates
    assert betting.value is not None
    assert betting.difference is not None
    assert (betting.value.kind, betting.difference.kind) == ("anytime", "normal"), (
        "it is beside what was served"
    )
    with pytest.raises(ValueError, match="unknown target 'd'; available: c, b"):
        evaluate(log, targets, rng(), baseline="d")


@pytest.mark.parametrize("interval", ["normal", "bootstrap"])
def test_what_was_served_is_a_baseline_like_its_distribution(log: LoggedDraws, interval: str) -> None:
    """It takes the plain mean where a target takes weights, and these are 1."""
    asked: Any = {"estimators": tuple(ESTIMATORS), "interval": interval}
    targets = {"uniform": always(log, 0.25, 0.25, 0.5), "served": log.p_log.copy()}
    one, other = (
        evaluate(log, targets, rng(), baseline=baseline, **asked)["uniform"].estimates
        for baseline in (None, "served")
    )
    assert all(each.difference for each in one)
    assert one == other


@pytest.mark.slow
@pytest.mark.parametrize(("estimators", "most"), [(("ips",), 95), (("ips", "snips"), 110)])
def test_an_evaluation_takes_few_bytes_a_row(estimators: tuple[str, ...], most: int) -> None:
    n = 100_000
    p = rng().dirichlet(np.ones(2), n) * 0.8 + 0.1
    log = LoggedDraws.from_arrays(
        ("a", "b"), (rng().random(n) > p[:, 0]).astype(np.int64), rng().random(n), p_log=p
    )
    target = np.roll(p, 1, axis=1)
    tracemalloc.start()
    try:
        for _ in evaluate_each(log, {"one": target}, rng(), estimators=estimators, reward_range=(0.0, 1.0)):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / n <= most


def test_a_target_is_judged_by_its_own_rows_and_compared_on_those_that_both_have(log: LoggedDraws) -> None:
    targets = {"c": always(log, 0.0, 0.0, 1.0), "b": always(log, 0.0, 1.0, 0.0)}
    first, odd = np.arange(len(log)) < 900, np.arange(len(log)) % 2 == 1
    found = evaluate(log, targets, rng(), kept={"c": first, "b": odd}, baseline="b", estimators=("ips",))
    alone = evaluate(log.where(first), {"c": targets["c"][first]}, rng(), estimators=("ips",))
    both = first & odd
    shared = evaluate(
        log.where(both), {k: p[both] for k, p in targets.items()}, rng(), baseline="b", estimators=("ips",)
    )
    (one,), (by_itself,), (together,) = (x["c"].estimates for x in (found, alone, shared))
    assert one.value == by_itself.value
    assert one.difference == together.difference
    assert len(found["c"].log) == 900


def test_where_only_propensities_are_known_targets_are_compared_with_what_was_earned(
    log: LoggedDraws,
) -> None:
    p = always(log, 0.1, 0.2, 0.7)
    bare = LoggedDraws.from_arrays(
        log.arms, log.drawn, log.reward, propensity=log.propensity, groups=log.groups
    )
    known, unknown = (
        by_name(evaluate(x, {"t": p}, rng(), estimators=("ips", "dr"))["t"].estimates) for x in (log, bare)
    )
    for name in ("ips", "dr"):
        one, other = known[name], unknown[name]
        assert one.value is not None
        assert other.value is not None
        assert one.value.value == other.value.value
        assert other.difference is not None
        assert other.difference.value == pytest.approx(other.value.value - log.reward.mean())


def test_a_target_that_draws_what_the_log_could_not_has_no_estimates(log: LoggedDraws) -> None:
    p_log = np.where(np.arange(3) == (log.drawn[:, None] + 1) % 3, 0.0, log.p_log)
    p_log /= p_log.sum(axis=1, keepdims=True)
    narrow = replace(log, p_log=p_log, propensity=take_drawn(p_log, log.drawn))
    (one,) = evaluate(narrow, {"c": always(log, 0.0, 0.0, 1.0)}, rng(), estimators=("ips",))["c"].estimates
    assert (one.value, one.difference) == (None, None)
    assert one.note.startswith("draws with a chance of 0.")


def test_a_target_that_drew_nothing_that_was_drawn_is_said_so(log: LoggedDraws) -> None:
    never = np.eye(3)[(log.drawn + 1) % 3]
    found = by_name(evaluate(log, {"t": never}, rng(), estimators=("ips", "dm"))["t"].estimates)
    assert (found["ips"].value, found["ips"].note) == (None, NEVER_DRAWN)
    assert found["dm"].value is not None


def test_a_single_question_leaves_out_what_needs_a_model(log: LoggedDraws) -> None:
    one = replace(log, groups=np.zeros(len(log), dtype=np.int64))
    names = ("ips", "dr")
    found = by_name(evaluate(one, {"t": always(log, 0.2, 0.4, 0.4)}, rng(), estimators=names)["t"].estimates)
    assert found["ips"].value is not None
    assert (found["dr"].value, found["dr"].note) == (None, "needs two different questions or more")
    with pytest.raises(ValueError, match="at least 2 folds and 2 questions"):
        predict(one, kinds(log), rng())


@pytest.mark.parametrize("kind", INTERVALS)
def test_each_interval_is_for_some_estimators_and_normal_stands_in(log: LoggedDraws, kind: str) -> None:
    applies = {
        "normal": tuple(ESTIMATORS),
        "bootstrap": tuple(ESTIMATORS),
        "anytime": tuple(name for name, one in ESTIMATORS.items() if one.anytime),
    }[kind]
    p, truth = always(log, 0.2, 0.3, 0.5), VALUES @ [0.2, 0.3, 0.5]
    options = {"estimators": tuple(ESTIMATORS), "resamples": 300, "reward_range": (0.0, 1.0)}
    found = evaluate(log, {"t": p}, rng(), interval=kind, **options)["t"].estimates  # type: ignore[arg-type]
    usual = by_name(evaluate(log, {"t": p}, rng(), **options)["t"].estimates)  # type: ignore[arg-type]
    assert [one.estimator for one in found] == list(ESTIMATORS)
    for one in found:
        assert one.value is not None
        assert one.difference is not None
        if one.estimator != "dm":  # whose interval does not know how wrong its model is
            assert one.value.low < truth < one.value.high
        for figure in (one.value, one.difference):
            if one.estimator in applies:
                assert (figure.kind, figure.why) == (kind, "")
            else:
                assert (figure.kind, figure.why) == ("normal", f"{kind} does not apply to it")
        if one.value.kind == one.difference.kind == kind:
            assert (one.note, one.value.why) == ("", "")
        else:
            assert one.note == f"normal interval: {kind} does not apply to it"
            assert replace(one.value, why="") == usual[one.estimator].value


def test_rare_rewards_that_did_not_come_leave_the_interval_open() -> None:
    rate, n, held = 0.02, 100, 0
    for seed in range(100):
        draws = np.random.default_rng(seed)
        drawn, reward = draws.integers(2, size=n), (draws.random(n) < rate).astype(np.float64)
        log = LoggedDraws.from_arrays(ARMS[:2], drawn, reward, p_log=np.full((n, 2), 0.5))
        found = evaluate(
            log, {"a": always(log, 1.0, 0.0)}, rng(), estimators=("snips",), reward_range=(0.0, 1.0)
        )
        value = found["a"].estimates[0].value
        assert value is not None
        assert value.high > value.low
        held += value.low <= rate <= value.high
    assert held >= 93


def test_equal_rewards_do_not_make_a_value_certain() -> None:
    log = LoggedDraws.from_arrays(
        ARMS[:2], np.arange(200) % 2, np.full(200, 0.9), p_log=np.full((200, 2), 0.5)
    )
    targets = {"a": always(log, 1.0, 0.0)}
    for kind in INTERVALS:
        names = ("ips", "snips")
        found = evaluate(log, targets, rng(), estimators=names, interval=kind, reward_range=(-1.0, 1.0))
        for one in found["a"].estimates:
            assert one.value is not None
            assert one.value.low < 0.88


@pytest.mark.parametrize("kind", INTERVALS)
def test_a_single_row_is_estimated_and_no_estimator_takes_the_others_down(kind: str) -> None:
    one = LoggedDraws.from_arrays(ARMS[:2], np.array([0]), np.array([0.9]), p_log=np.full((1, 2), 0.5))
    found = evaluate(
        one,
        {"a": always(one, 1.0, 0.0)},
        rng(),
        estimators=("ips", "snips"),
        interval=kind,
        reward_range=(0.0, 1.0),
    )
    assert all(each.value is not None for each in found["a"].estimates)


@pytest.mark.parametrize("known", ["none", "all but the first"])
def test_an_interval_for_weights_of_any_size_needs_no_largest_one(log: LoggedDraws, known: str) -> None:
    bare = replace(log, whole=(np.arange(len(log)) > 0) & (known != "none"))
    p = {"t": always(log, 0.1, 0.2, 0.7)}
    (betting,) = evaluate(bare, p, rng(), estimators=("ips",), interval="anytime")["t"].estimates
    assert betting.note == "", "it holds for weights of any size"


def test_each_distribution_is_made_once(log: LoggedDraws) -> None:
    made: list[str] = []

    class Lazy(dict[str, Floats]):
        def __getitem__(self, name: str) -> Floats:
            made.append(name)
            return super().__getitem__(name)

        def items(self) -> Iterator[tuple[str, Floats]]:  # type: ignore[override]
            return ((name, self[name]) for name in self)

    p = always(log, 0.1, 0.2, 0.7)
    evaluate(log, Lazy({"s": p, "t": p}), rng(), estimators=("ips",))
    assert made == ["s", "t"]


def test_the_same_seed_gives_the_same_estimates_whatever_else_is_asked(log: LoggedDraws) -> None:
    p = always(log, 0.2, 0.3, 0.5)
    once = evaluate(log, {"t": p}, rng(), interval="bootstrap", resamples=100)
    again = evaluate(log, {"o": p[:, ::-1], "t": p}, rng(), interval="bootstrap", resamples=100)
    assert once["t"].estimates == again["t"].estimates


def test_what_cannot_be_asked_is_refused(log: LoggedDraws) -> None:
    p = always(log, 0.2, 0.3, 0.5)
    with pytest.raises(ValueError, match=r"t must have the shape \(1200, 3\), got \(1200, 2\)"):
        evaluate(log, {"t": p[:, :2]}, rng())
    with pytest.raises(ValueError, match=r"sum of t must be 1, got 0\.9 at row 0"):
        evaluate(log, {"t": p * 0.9}, rng())
    with pytest.raises(ValueError, match="unknown estimator 'dx'; available: ips"):
        evaluate(log, {"t": p}, rng(), estimators=("dx",))
    with pytest.raises(ValueError, match="unknown interval 'wald'; available: normal, bootstrap"):
        evaluate(log, {"t": p}, rng(), interval="wald")


def test_progress_is_told_a_target_at_a_time(log: LoggedDraws) -> None:
    told: list[tuple[str, int, int | None]] = []
    p = always(log, 0.2, 0.3, 0.5)
    evaluate(log, {"s": p, "t": p}, rng(), progress=lambda *step: told.append(step))
    assert told == [("evaluating", 1, 2), ("evaluating", 2, 2)]


def test_blocks_of_a_long_log_do_not_show(log: LoggedDraws, monkeypatch: pytest.MonkeyPatch) -> None:
    p, options = always(log, 0.1, 0.2, 0.7), {"reward_range": (0.0, 1.0), "reward_model": "means"}
    near = np.where(
        np.arange(len(log))[:, None] < 1_000, log.p_log, p
    )  # differs from the log at its end alone
    targets = {"p": p, "near": near}
    whole = evaluate(log, targets, rng(), **options)
    monkeypatch.setattr("armwise.feedback.arrays.BLOCK", 7)
    in_blocks = evaluate(log, targets, rng(), **options)
    for name, found in whole.items():
        assert found.estimates == in_blocks[name].estimates
        seen, again = found.diagnostics, in_blocks[name].diagnostics
        assert seen.mean_weight_error == pytest.approx(again.mean_weight_error)
        shares = [one.target for one in seen.overlap]
        assert shares == pytest.approx([one.target for one in again.overlap])


def test_a_target_may_be_made_a_block_at_a_time(log: LoggedDraws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.feedback.arrays.BLOCK", 100)
    p, most = always(log, 0.1, 0.2, 0.7), 0

    def make(rows: slice | Integers) -> Floats:
        nonlocal most
        most = max(most, len(p[rows]))
        return p[rows]

    kept = {"one": log.drawn != 2, "two": log.drawn != 1}
    options: dict[str, Any] = {"reward_range": (0.0, 1.0), "reward_model": "means", "kept": kept}
    made = dict.fromkeys(kept, Matrix(make, p.shape))
    by_blocks = evaluate(log, made, rng(), baseline="one", **options)
    whole = evaluate(log, dict.fromkeys(kept, p), rng(), baseline="one", **options)
    for name, found in whole.items():
        assert by_blocks[name].estimates == found.estimates
        assert by_blocks[name].diagnostics == found.diagnostics
    assert 0 < most <= 100
