"""Reading the log into arrays, targets, predictions, and the whole evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.interval_coverage import World
from feedback.estimators import Floats
from feedback.events import Context, Cost, Decision, Example, Mode
from feedback.replay import Log, evaluate, fit_reward_model, fixed, target, terms, uniform


def quality(example: Example) -> float | None:
    """Accuracy less a hundredth a step; None without feedback."""
    return example.metrics["acc"] - 0.01 * example.cost.steps if "acc" in example.metrics else None


def example(
    seq: int,
    probabilities: Mapping[str, float],
    drawn: str,
    acc: float | None = 1.0,
    question: str = "",
    mode: Mode = Mode.EXPLORE,
    embedding: tuple[float, ...] = (),
) -> Example:
    context = Context(question or f"who is number {seq}?", {"n_words": 4.0}, embedding)
    arms, p = tuple(probabilities), tuple(probabilities.values())
    decision = Decision(f"d{seq}", context, arms, p, drawn, "greedy", 1, mode)
    return Example(seq, decision, Cost(steps=1), {} if acc is None else {"acc": acc})


EXAMPLES = [
    example(1, {"bm25": 0.9, "dense": 0.1}, "bm25", acc=1.0, question="who?"),
    example(2, {"dense": 0.5, "graph": 0.5}, "graph", acc=0.0, question="where?"),
    example(3, {"bm25": 0.9, "dense": 0.1}, "dense", acc=1.0, question="who?"),
    example(4, {"bm25": 0.9, "dense": 0.1}, "bm25", mode=Mode.FORCED),
    example(5, {"bm25": 0.9, "dense": 0.1}, "bm25", mode=Mode.GREEDY),
    example(6, {"bm25": 0.9, "dense": 0.1}, "bm25", acc=None),
    example(7, {"bm25": 0.9, "dense": 0.1}, "bm25", mode=Mode.FORCED),
]


@pytest.fixture
def log() -> Log:
    return Log.from_examples(EXAMPLES, quality)


def test_each_row_keeps_its_own_eligible_arms(log: Log) -> None:
    assert log.arms == ("bm25", "dense", "graph")
    np.testing.assert_array_equal(log.p_log, [[0.9, 0.1, 0.0], [0.0, 0.5, 0.5], [0.9, 0.1, 0.0]])
    np.testing.assert_array_equal(log.drawn, [0, 2, 1])
    np.testing.assert_array_equal(log.propensity, [0.9, 0.5, 0.1])
    np.testing.assert_allclose(log.reward, [0.99, -0.01, 0.99])
    np.testing.assert_array_equal(log.questions, [0, 1, 0])
    assert log.X.shape[0] == len(log) == 3
    assert log.n_questions == 2


def test_what_may_not_be_evaluated_is_counted_by_reason(log: Log) -> None:
    assert log.excluded == {"forced": 2, "greedy": 1, "no reward": 1}


def test_a_log_of_which_nothing_is_left_says_why() -> None:
    with pytest.raises(ValueError, match=r"left out: \{'forced': 1, 'no reward': 1\}"):
        Log.from_examples([EXAMPLES[3], EXAMPLES[5]], quality)


def test_features_tell_questions_apart_and_take_embeddings_that_all_rows_have() -> None:
    p = {"a": 0.5, "b": 0.5}
    plain = [example(1, p, "a", question="red"), example(2, p, "b", question="blue")]
    bare = Log.from_examples(plain, quality).X
    assert (bare[0] != bare[1]).nnz
    vectors = [example(i, p, "a", embedding=(0.1 * i, 0.2)) for i in (1, 2)]
    np.testing.assert_allclose(
        Log.from_examples(vectors, quality).X[:, -2:].toarray(), [[0.1, 0.2], [0.2, 0.2]]
    )
    mixed = Log.from_examples([*vectors, plain[0]], quality)
    assert mixed.X.shape[1] == bare.shape[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p_log": np.array([[0.9, 0.2, 0.0]] * 3)}, "sum of p_log must be 1, got 1.1 at row 0"),
        ({"p_log": np.array([[0.5, 0.5, 0.0]] * 3)}, "drawn arm must be above 0, got 0 at row 1"),
        ({"drawn": np.array([0, 1, 3])}, "drawn must be a column of p_log, got 3 at row 2"),
        ({"drawn": np.array([0, 1])}, r"drawn, reward and questions must be \(3,\)"),
        ({"reward": np.array([0.0, np.nan, 1.0])}, "reward must be finite, got nan at row 1"),
        ({"questions": np.array([0, 1, 3])}, "question code must be below 3, got 3 at row 2"),
        ({"questions": np.array([0, 2, 2])}, "rows of a question code must be above 0.*got 0 at row 1"),
        ({"X": np.zeros((2, 4))}, r"X \(3, d\)"),
    ],
)
def test_arrays_that_are_no_log_are_refused(log: Log, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(log, **change)


def test_uniform_and_fixed_draw_only_what_was_eligible(log: Log) -> None:
    np.testing.assert_array_equal(uniform(log), [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.5, 0.0]])
    np.testing.assert_array_equal(fixed(log, "bm25"), [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="arm 'web' is not in the log; it has: bm25, dense, graph"):
        fixed(log, "web")


def test_a_policy_is_asked_again_in_the_context_and_arms_of_each_row(log: Log) -> None:
    asked = []

    def always_last(context: Context, arms: Sequence[str]) -> Floats:
        asked.append((context.question, tuple(arms)))
        return np.eye(len(arms))[-1]

    np.testing.assert_array_equal(target(log, always_last), [[0, 1, 0], [0, 0, 1], [0, 1, 0]])
    assert asked == [("who?", ("bm25", "dense")), ("where?", ("dense", "graph")), ("who?", ("bm25", "dense"))]
    with pytest.raises(ValueError, match=r"read it with Log\.from_examples"):
        target(replace(log, decisions=()), always_last)
    with pytest.raises(ValueError, match="one probability for each eligible arm makes 6, got 3"):
        target(log, lambda *_: np.ones(1))


def test_a_target_that_draws_what_the_log_could_not_is_refused(log: Log) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="0 for an arm that the log could not draw, got 1 at row 0"):
        evaluate(log, np.tile([0.0, 0.0, 1.0], (3, 1)), rng, ("ips",))
    with pytest.raises(ValueError, match=r"must have the shape \(3, 3\)"):
        evaluate(log, np.ones((3, 1)), rng, ("ips",))
    with pytest.raises(ValueError, match=r"sum of p_target must be 1, got 0\.9 at row 0"):
        evaluate(log, log.p_log * 0.9, rng, ("ips",))


def test_an_estimator_must_exist_and_dr_needs_predictions(log: Log) -> None:
    with pytest.raises(ValueError, match="no estimator 'dm'; there are: ips, snips, dr"):
        terms(log, log.p_log, "dm")
    with pytest.raises(ValueError, match="dr needs q_hat"):
        terms(log, log.p_log, "dr")


@pytest.fixture
def simulated() -> tuple[World, Log, Any]:
    """A world, 1,500 decisions in it, and the kind of each question."""
    rng = np.random.default_rng(6)
    world = World.invent(rng)
    log, kind = world.log(1_500, rng)
    return world, log, kind


def test_no_prediction_depends_on_a_reward_of_the_same_question(simulated: tuple[World, Log, Any]) -> None:
    _, log, _ = simulated
    grouped = replace(log, questions=np.arange(len(log)) // 3)
    rows = np.flatnonzero(grouped.questions == 7)
    changed = grouped.reward.copy()
    changed[rows] = -0.1
    before = fit_reward_model(grouped, np.random.default_rng(0))
    after = fit_reward_model(replace(grouped, reward=changed), np.random.default_rng(0))
    np.testing.assert_array_equal(before[rows], after[rows])
    assert not np.array_equal(before, after)


def test_predictions_beat_the_mean_and_stay_within_the_rewards(simulated: tuple[World, Log, Any]) -> None:
    world, log, kind = simulated
    q_hat = fit_reward_model(log, np.random.default_rng(0))
    truth = (world.quality - [0.0, 0.03, 0.06, 0.1])[kind]
    assert ((q_hat - truth) ** 2).mean() < 0.7 * ((log.reward.mean() - truth) ** 2).mean()
    assert log.reward.min() <= q_hat.min()
    assert q_hat.max() <= log.reward.max()


def test_an_arm_that_was_never_drawn_is_predicted_from_the_others(log: Log) -> None:
    q_hat = fit_reward_model(replace(log, drawn=np.array([1, 1, 1])), np.random.default_rng(0))
    assert np.isfinite(q_hat).all()


def test_dr_is_tighter_than_ips_once_the_model_has_learned(simulated: tuple[World, Log, Any]) -> None:
    _, log, _ = simulated
    ips, _, dr = evaluate(log, uniform(log), np.random.default_rng(1))
    assert dr.high - dr.low < 0.95 * (ips.high - ips.low)


def test_there_is_nothing_to_hold_out_of_a_single_question(log: Log) -> None:
    with pytest.raises(ValueError, match="at least 2 folds and 2 questions, got 1 and 1"):
        fit_reward_model(replace(log, questions=np.zeros(3, dtype=np.int64)), np.random.default_rng(0))


def test_the_logging_policy_is_worth_its_mean_reward(simulated: tuple[World, Log, Any]) -> None:
    _, log, _ = simulated
    ips, snips = evaluate(log, log.p_log, np.random.default_rng(0), ("ips", "snips"))
    assert (ips.value, snips.value) == pytest.approx((log.reward.mean(), log.reward.mean()))
    assert ips.n == len(log)
    assert ips.effective_n == pytest.approx(len(log))


def test_the_bootstrap_and_the_closed_form_agree_on_a_log_of_fair_size(
    simulated: tuple[World, Log, Any],
) -> None:
    _, log, _ = simulated
    closed = evaluate(log, uniform(log), np.random.default_rng(4))
    resampled = evaluate(log, uniform(log), np.random.default_rng(4), resamples=2_000)
    for one, other in zip(closed, resampled, strict=True):
        assert one.value == other.value
        assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=0.15 * (one.high - one.low))


def test_the_same_seed_gives_the_same_estimates(simulated: tuple[World, Log, Any]) -> None:
    _, log, _ = simulated
    once, again = (evaluate(log, uniform(log), np.random.default_rng(3), resamples=100) for _ in range(2))
    assert once == again


def test_repeating_every_question_does_not_tighten_the_interval(simulated: tuple[World, Log, Any]) -> None:
    _, log, _ = simulated
    fivefold = Log(
        log.arms,
        *(
            np.concatenate([column] * 5)
            for column in (log.drawn, log.p_log, log.reward, log.questions, log.X)
        ),
    )
    rng = np.random.default_rng(0)
    for one, five in zip(
        evaluate(log, uniform(log), rng, ("ips", "snips")),
        evaluate(fivefold, uniform(fivefold), rng, ("ips", "snips")),
        strict=True,
    ):
        assert five.value == pytest.approx(one.value)
        assert five.high - five.low == pytest.approx(one.high - one.low, rel=0.1)
