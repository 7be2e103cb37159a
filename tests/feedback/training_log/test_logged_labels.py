"""Labels from the log: known cells are means of what was said, all others stay unknown."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.feedback.events import LABELS, Context, Cost, Decision, Example, Mode
from armwise.feedback.reward import Aggregation, Metric, RewardRule, UnknownMetricError
from armwise.feedback.training_log.examples import name_episode
from armwise.feedback.training_log.logged_labels import LabelsError, labels, make_scale

RULE = RewardRule(
    correction_time="PT0S",
    metrics={
        "thumb": Metric(range=(-1.0, 1.0)),
        "errors": Metric(range=(0.0, 4.0), optimize="min"),
        "clicks": Metric(range=(0.0, 2.0), aggregation=Aggregation.SUM),
        "right": Metric(type="boolean"),
    },
    cost_weight=0.5,
)
ARMS = ("a", "b", "c")
STEP = Cost(steps=1)


def example(
    question: str,
    arm: str,
    value: float | None,
    *,
    metric: str = "thumb",
    mode: Mode = Mode.EXPLORE,
    cost: Cost = STEP,
) -> Example:
    chance = 1.0 if mode is Mode.FORCED else 1 / 3
    arms = (arm,) if mode is Mode.FORCED else ARMS
    decision = Decision("d", Context(question), arms, (chance,) * len(arms), arm, "p", 1, mode)
    return Example(1, decision, cost, {} if value is None else {metric: value})


def test_each_decision_labels_the_arm_that_was_drawn_and_no_other() -> None:
    found = labels(
        [example("q1", "b", 1.0), example("q2", "a", -1.0), example("q3", "b", 0.0)],
        make_scale(RULE, "thumb"),
        ARMS,
    )
    assert (found.questions, found.arms) == (("q1", "q2", "q3"), ("a", "b"))
    np.testing.assert_array_equal(found.scores, [[np.nan, 1.0], [0.0, np.nan], [np.nan, 0.5]])
    assert found.scores.dtype == np.float32
    assert (found.used, found.excluded) == (3, {})


def test_a_question_that_is_asked_again_is_the_same_row_and_its_values_are_averaged() -> None:
    values = (1.0, 1.0, -1.0)
    log = [example("q1", "a", value) for value in values] + [example("q1", "c", 0.0)]
    found = labels(log, make_scale(RULE, "thumb"), ARMS)
    assert found.questions == ("q1",)
    np.testing.assert_allclose(found.scores, [[2 / 3, 0.5]])
    assert found.used == 4


def test_costs_are_means_over_the_decisions_of_an_arm() -> None:
    log = [
        example("q1", "a", 1.0, cost=Cost(1, 100, 10, 0.2, 9.0)),
        example("q2", "a", 1.0, cost=Cost(3, 200, 30, 0.4, 9.0)),
        example("q2", "b", 1.0, cost=Cost(0, 50, 5, 0.0, 9.0)),
    ]
    costs = labels(log, make_scale(RULE, "thumb"), ARMS).costs
    assert {name: values.tolist() for name, values in costs.items()} == {
        "steps": [2.0, 0.0],
        "total_tokens": [170.0, 55.0],
        "seconds": pytest.approx([0.3, 0.0]),
    }
    paid = [
        replace(one, cost=replace(one.cost, usd=usd)) for one, usd in zip(log, (0.5, 1.0, 0.0), strict=True)
    ]
    assert labels(paid, make_scale(RULE, "thumb"), ARMS).costs["usd"].tolist() == [0.75, 0.0]


def test_labels_of_a_warm_start_count_for_nothing_but_its_candidate() -> None:
    said = example("q1", "a", 1.0)
    entered = replace(said, decision=replace(said.decision, policy=LABELS))
    of_run = replace(said, decision=replace(entered.decision, episode_id=name_episode(7)))
    found = labels([said, entered, of_run], make_scale(RULE, "thumb"), ARMS)
    assert (found.used, found.excluded) == (2, {"labels of a warm start": 1})
    with pytest.raises(LabelsError, match="decisions left out: 1 labels of a warm start"):
        labels([of_run], make_scale(RULE, "thumb"), ARMS)


def test_what_cannot_be_a_label_is_left_out_and_counted() -> None:
    entered = example("q6", "a", 1.0)
    of_run = replace(entered, decision=replace(entered.decision, policy=LABELS, episode_id=name_episode(7)))
    left_out = [
        example("q2", "a", 1.0, mode=Mode.FORCED),
        example("q3", "a", 1.0, mode=Mode.GREEDY),
        example("q4", "a", None),
        example("q5", "gone", 1.0),
        replace(entered, decision=replace(entered.decision, erased=True)),
        of_run,
    ]
    found = labels([example("q1", "a", 1.0), *left_out, *left_out], make_scale(RULE, "thumb"), ARMS)
    assert found.questions == ("q1",)
    assert found.excluded == {
        "forced": 2,
        "greedy": 2,
        "no reward": 2,
        "of arm 'gone', which there is no longer": 2,
        "without a text, which was erased": 2,
        "labels of a warm start": 2,
    }


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ([], "none"),
        ([example("q", "a", None)], "1 no reward"),
    ],
)
def test_a_log_without_a_label_is_refused(log: list[Example], message: str) -> None:
    with pytest.raises(LabelsError, match=f"decisions left out: {message}"):
        labels(log, make_scale(RULE, "thumb"), ARMS)


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("thumb", -1.0, 0.0),
        ("thumb", 1.0, 1.0),
        ("errors", 0.0, 1.0),
        ("errors", 3.0, 0.25),
        ("clicks", 7.0, 1.0),
        ("right", 1.0, 1.0),
    ],
)
def test_a_metric_is_scaled_by_its_declared_range(metric: str, value: float, expected: float) -> None:
    assert make_scale(RULE, metric)(example("q", "a", value, metric=metric)) == expected
    assert make_scale(RULE, metric)(example("q", "a", value, metric="other")) is None


def test_the_reward_is_scaled_by_where_it_is_clipped() -> None:
    worth = make_scale(RULE, "reward")
    assert worth(example("q", "a", 1.0, metric="right")) == pytest.approx(0.75)  # 1 - 0.5, in [-1, 1]
    assert worth(example("q", "a", 0.0, metric="right", cost=Cost(steps=9))) == 0.0
    assert worth(example("q", "a", None)) is None


def test_a_metric_may_be_called_reward_and_an_unknown_one_is_refused() -> None:
    rule = RewardRule(correction_time="PT0S", metrics={"reward": Metric(range=(0.0, 10.0))})
    assert make_scale(rule, "reward")(example("q", "a", 9.0, metric="reward")) == 0.9
    with pytest.raises(UnknownMetricError, match="'stars' is not declared; available: reward"):
        make_scale(rule, "stars")


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(ARMS), st.floats(-1, 1)), min_size=1))
def test_scores_stay_in_range_and_no_decision_is_lost(turns: list[tuple[str, str, float]]) -> None:
    found = labels([example(*turn) for turn in turns], make_scale(RULE, "thumb"), ARMS)
    known = found.scores[~np.isnan(found.scores)]
    assert np.all((known >= 0.0) & (known <= 1.0))
    assert len(known) == len({(question, arm) for question, arm, _ in turns})
    assert found.used == len(turns)


def test_the_chance_of_a_score_is_that_any_decision_with_its_question_drew_the_arm() -> None:
    def drawn(question: str, arm: str, p: tuple[float, ...], arms: tuple[str, ...] = ARMS) -> Example:
        one = example(question, arm, 1.0)
        return replace(one, decision=replace(one.decision, arms=arms, probabilities=p))

    once = drawn("q1", "a", (0.5, 0.25, 0.25))
    again = drawn("q2", "b", (0.5, 0.25, 0.25)), drawn("q2", "a", (0.2, 0.8), ("a", "b"))
    found = labels([once, *again], make_scale(RULE, "thumb"), ARMS)
    assert found.arms == ("a", "b")
    assert found.chances is not None
    np.testing.assert_allclose(found.chances, [[0.5, 0.25], [1 - 0.5 * 0.8, 1 - 0.75 * 0.2]], rtol=1e-6)
    unknown = replace(once, decision=replace(once.decision, probabilities=()))
    assert labels([once, unknown], make_scale(RULE, "thumb"), ARMS).chances is None


def test_the_reward_is_scaled_by_its_range_where_nothing_costs() -> None:
    worth = make_scale(RULE.model_copy(update={"cost_weight": 0.0}), "reward")
    assert worth(example("q1", "a", 0.0, metric="thumb")) == 0.5
