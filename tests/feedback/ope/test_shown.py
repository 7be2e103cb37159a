"""Intervals as they are shown: their coverage at few rows where the truth is known, and how they are cut."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import evaluation
from armwise.feedback.ope.evaluation import IMPOSSIBLE
from armwise.feedback.ope.intervals import FEW, Interval, present

REPEATS = 300
"""Logs of each size; a share of 0.95 has a standard error of 0.0126."""

P_LOG, TRUTH = np.array([0.3, 0.7]), np.array([0.6, 0.35])


def drawn_log(n: int, rng: np.random.Generator) -> LoggedDraws:
    """Return a log of two arms that earn 1 with a probability of `TRUTH`."""
    drawn = (rng.random(n) < P_LOG[1]).astype(np.int64)
    reward = (rng.random(n) < TRUTH[drawn]).astype(np.float64)
    return LoggedDraws.from_arrays(("a", "b"), drawn, reward, p_log=np.tile(P_LOG, (n, 1)))


@pytest.mark.parametrize("kind", evaluation.INTERVALS)
@pytest.mark.parametrize("n", [5, 20, 100])
@pytest.mark.slow
def test_intervals_of_few_rows_hold_the_truth_as_often_as_they_say(n: int, kind: str) -> None:
    """Those that are valid at any size in 95 of 100 logs, and the others about."""
    held: dict[tuple[str, str], list[bool]] = {}
    target, rng = np.array([1.0, 0.0]), np.random.default_rng(n)
    value, gain = float(target @ TRUTH), float((target - P_LOG) @ TRUTH)
    for _ in range(REPEATS):
        found = evaluation.evaluate(
            drawn_log(n, rng),
            {"a": np.tile(target, (n, 1))},
            rng,
            estimators=("ips", "snips"),
            interval=kind,
            reward_range=(0.0, 1.0),
            resamples=200,
        )["a"]
        for one in found.estimates:
            for of, figure, truth in (("value", one.value, value), ("gain", one.difference, gain)):
                if figure is not None and figure.kind == kind:
                    held.setdefault((one.estimator, of), []).append(figure.low <= truth <= figure.high)
    assert held
    for name, each in held.items():
        least = 0.925 if kind == "anytime" else 0.91
        assert np.mean(each) >= least or len(each) < 100, (name, len(each), np.mean(each))


@given(
    st.floats(-3.0, 3.0),
    st.tuples(st.floats(-3.0, 3.0), st.floats(-3.0, 3.0)),
    st.floats(0.0, 1e6) | st.just(math.inf),
)
def test_what_is_shown_is_possible_and_holds_its_estimate(value: float, ends: Interval, n: float) -> None:
    ends = min(ends), max(ends)
    estimate, (low, high) = present(value, ends, (-1.0, 2.0), n=n)
    assert -1.0 <= low <= estimate <= high <= 2.0
    assert low < high or math.isinf(n) or estimate in ends
    if -1.0 <= ends[0] <= value <= ends[1] <= 2.0 and n >= FEW and ends[1] - ends[0] > 1e-6:
        assert (estimate, low, high) == (value, *ends)


def test_equal_rows_at_the_end_of_the_range_have_the_exact_interval() -> None:
    """The one of Clopper and Pearson: 2.5 % remain for n rows that are all the best."""
    for n in (1, 2, 5, 100):
        _, (low, high) = present(1.0, (1.0, 1.0), (0.0, 1.0), n=n)
        assert high == 1.0
        assert low**n == pytest.approx(0.025)
        _, (low, _) = present(1.0, (1.0, 1.0), (0.0, 1.0), n=n, level=0.8)
        assert low**n == pytest.approx(0.1)


def test_thirty_rows_that_differ_are_left_as_they_are_and_fewer_are_opened() -> None:
    ends = (0.45, 0.55)
    assert present(0.5, ends, (0.0, 1.0), n=FEW) == (0.5, ends)
    assert present(0.5, ends, (0.0, 1.0)) == (0.5, ends)
    _, (low, high) = present(0.5, ends, (0.0, 1.0), n=FEW - 1)
    missed = 1.0 - 0.025 ** (1 / 29)
    assert (low, high) == pytest.approx((0.5 - 0.5 * missed, 0.5 + 0.5 * missed))


@pytest.mark.parametrize("ends", [(1.1, 1.4), (-0.5, -0.1), (math.nan, math.nan), (math.nan, 0.4)])
def test_of_an_interval_of_which_nothing_is_possible_everything_remains(ends: Interval) -> None:
    assert present(1.2, ends, (0.0, 1.0))[1] == (0.0, 1.0)


def test_propensities_that_cannot_be_show_in_the_note_of_an_estimate() -> None:
    """A hundred rows of the best reward, each drawn far more often than its propensity says."""
    n = 100
    log = LoggedDraws.from_arrays(("a", "b"), np.zeros(n, np.int64), np.ones(n), p_log=np.full((n, 2), 0.5))
    (found,) = evaluation.evaluate(
        log,
        {"a": np.tile([1.0, 0.0], (n, 1))},
        np.random.default_rng(0),
        estimators=("ips",),
        reward_range=(0.0, 1.0),
    )["a"].estimates
    assert found.value is not None
    assert (found.value.value, found.value.low, found.value.high) == (1.0, 0.0, 1.0)
    assert IMPOSSIBLE in found.note


def test_without_a_declared_range_nothing_is_cut() -> None:
    log = LoggedDraws.from_arrays(("a", "b"), np.array([0, 0, 1]), np.ones(3), p_log=np.full((3, 2), 0.5))
    target = {"a": np.tile([1.0, 0.0], (3, 1))}
    free, cut = (
        evaluation.evaluate(log, target, np.random.default_rng(0), estimators=("ips",), reward_range=known)
        for known in (None, (0.0, 1.0))
    )
    for found, value in ((free, 4 / 3), (cut, 1.0)):
        assert found["a"].estimates[0].value is not None
        assert found["a"].estimates[0].value.value == pytest.approx(value)


def test_a_bootstrap_of_a_target_without_estimates_is_empty() -> None:
    log = LoggedDraws.from_arrays(("a", "b"), np.array([0]), np.ones(1), p_log=np.full((1, 2), 0.5))
    (found,) = evaluation.evaluate(
        log, {"b": np.eye(2)[[1]]}, np.random.default_rng(0), estimators=("ips",), interval="bootstrap"
    )["b"].estimates
    assert (found.value, found.note) == (None, evaluation.NEVER_DRAWN)


def half(n: int, *, repeated: bool = False) -> LoggedDraws:
    """Return a log of two arms that are drawn alike in turn; the first earns 0 and the second 1."""
    questions = np.zeros(n, np.int64) if repeated else np.arange(n)
    drawn = np.arange(n) % 2
    return LoggedDraws.from_arrays(
        ("a", "b"), drawn, drawn.astype(np.float64), p_log=np.full((n, 2), 0.5), groups=questions
    )


def estimated(log: LoggedDraws, estimator: str, kind: str = "normal") -> evaluation.EstimatorResult:
    """Return what one estimator says of the first arm."""
    target = {"a": np.tile([1.0, 0.0], (len(log), 1))}
    options = {"estimators": (estimator,), "interval": kind}
    found = evaluation.evaluate(log, target, np.random.default_rng(0), reward_range=(0.0, 1.0), **options)  # type: ignore[arg-type]
    return found["a"].estimates[0]


def test_a_difference_may_be_as_low_as_the_range_is_wide() -> None:
    found = estimated(half(200), "snips").difference
    assert found is not None
    assert found.value == -0.5
    assert -0.7 < found.low < -0.5 < found.high < -0.3
    (few,) = (estimated(half(2), "snips").difference,)
    assert few is not None
    assert -1.0 <= few.low < -0.97, "two rows leave almost everything open"
    assert 0.9 < few.high <= 1.0


def test_a_question_that_is_repeated_counts_as_one_row() -> None:
    found = estimated(half(200, repeated=True), "snips").value
    assert found is not None
    assert (found.value, found.low) == (0.0, 0.0)
    assert found.high >= 0.975
