"""What can be evaluated of a training log, and what is counted of the rest."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from armwise.feedback.arrays import Floats
from armwise.feedback.decisions import Selection
from armwise.feedback.events import ESTIMATED, LABELS, Context, Cost, Mode
from armwise.feedback.logged_draws import EmptyLogError, LoggedDraws
from armwise.feedback.reward import Metric, RewardRule
from tests.feedback.examples import example, log_of_examples

AT = 1_767_225_600.0
"""2026 begins."""


RULE = RewardRule(correction_time="PT0S", metrics={"right": Metric()}, cost_weight=0.01)

EXAMPLES = [
    example(1, (0.9, 0.1), 0, context=Context("who?"), cost=Cost(steps=1)),
    example(2, (0.5, 0.5), "graph", {"right": 0.0}, context=Context("where?"), arms=("dense", "graph")),
    example(3, (0.9, 0.1), 1, context=Context("who?")),
    example(4, mode=Mode.FORCED),
    example(5, mode=Mode.GREEDY),
    example(6, metrics={}),
    example(7, mode=Mode.FORCED),
    example(8, policy=LABELS),
    example(9, metrics={}, failed=True),
]


@pytest.fixture
def log() -> LoggedDraws:
    return log_of_examples(EXAMPLES, RULE)


def test_each_row_keeps_its_own_eligible_arms(log: LoggedDraws) -> None:
    assert log.arms == ("bm25", "dense", "graph")
    np.testing.assert_array_equal(log.p_log, [[0.9, 0.1, 0.0], [0.0, 0.5, 0.5], [0.9, 0.1, 0.0]])
    np.testing.assert_array_equal(log.drawn, [0, 2, 1])
    np.testing.assert_array_equal(log.propensity, [0.9, 0.5, 0.1])
    np.testing.assert_allclose(log.reward, [0.99, 0.0, 1.0])
    np.testing.assert_array_equal(log.groups, [0, 1, 0])
    np.testing.assert_array_equal(log.seq, [1, 2, 3])
    np.testing.assert_array_equal(log.at, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(log.possible(slice(3))[:, log.column["graph"]], [False, True, False])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_row_without_a_distribution_leaves_the_others_theirs_and_says_what_was_eligible(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.feedback.decisions._CHUNK", 1)
    examples = [example(seq, (0.9, 0.1)) for seq in (1, 2, 3)]
    examples[place] = example(place + 1, (0.9,), arms=("bm25", "graph"))
    log = log_of_examples(examples, RULE)
    column = {arm: np.asarray(log.p_log)[:, j].tolist() for arm, j in log.column.items()}
    there = [row == place for row in range(3)]
    assert (log.is_whole, log.whole.tolist()) == (False, [not alone for alone in there])
    assert column["bm25"] == log.propensity.tolist() == [0.9, 0.9, 0.9]
    np.testing.assert_array_equal(column["dense"], [0.0 if alone else 0.1 for alone in there])
    np.testing.assert_array_equal(column["graph"], [np.nan if alone else 0.0 for alone in there])
    possible = log.possible(slice(3))
    assert possible[:, log.column["dense"]].tolist() == [not alone for alone in there]
    assert possible[:, log.column["graph"]].tolist() == there
    # what is unknown is taken to be as likely as the drawn arm
    evenly = np.array([[0.2, 0.0, 0.8] if alone else [0.5, 0.5, 0.0] for alone in there])
    evenly = evenly[:, [("bm25", "dense", "graph").index(arm) for arm in log.arms]]
    assert log.reach(evenly).tolist() == [0.8 / 0.9 if alone else 5.0 for alone in there]


def test_a_drawn_arm_of_probability_1_says_that_no_other_could_be_drawn() -> None:
    log = log_of_examples([example(1, (1.0,), arms=("bm25", "dense")), example(2, (0.9, 0.1))], RULE)
    np.testing.assert_array_equal(log.p_log, [[1.0, 0.0], [0.9, 0.1]])
    assert log.is_whole


def test_a_decision_between_a_single_arm_has_the_whole_distribution() -> None:
    log = log_of_examples([example(1, (1.0,)), example(2, (0.9, 0.1))], RULE)
    np.testing.assert_array_equal(log.p_log, [[1.0, 0.0], [0.9, 0.1]])


def test_decisions_whose_questions_were_erased_are_of_questions_of_their_own() -> None:
    gone = [example(seq, context=Context(""), erased=True) for seq in (1, 2)]
    log = log_of_examples([*gone, example(3, context=Context("")), example(4, context=Context(""))], RULE)
    np.testing.assert_array_equal(log.groups, [0, 1, 2, 2])


def test_three_metrics_are_added_up_without_an_error_of_rounding() -> None:
    rule = RewardRule(correction_time="PT0S", metrics={name: Metric() for name in "abc"}, cost_weight=0.0)
    one = example(1, metrics={"a": 0.1, "b": 0.2, "c": 0.3})
    assert (0.1 + 0.2 + 0.3) / 3 != 0.6 / 3
    assert log_of_examples([one], rule).reward.tolist() == [rule.compute_reward(one)] == [0.6 / 3]


def test_what_cannot_be_evaluated_is_counted_by_its_first_reason(log: LoggedDraws) -> None:
    assert log.excluded == {"forced": 2, "failed": 1, "greedy": 1, "labels": 1, "no reward": 1}


def test_where_no_decision_has_a_propensity_the_log_has_none() -> None:
    unknown = [
        replace(one, decision=replace(one.decision, probabilities=())) for one in (example(1), example(2))
    ]
    log = log_of_examples(unknown, RULE)
    assert log.seq.tolist() == [1, 2]
    assert (log.has_propensities, log.is_whole, log.excluded) == (False, False, {})
    assert np.isnan(log.propensity).all()
    assert log.reach(np.tile(np.eye(len(log.arms))[0], (2, 1))).tolist() == [0.0, 0.0]
    assert log.where(np.array([False, True])).seq.tolist() == [2]


def test_estimated_propensities_are_counted_over_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.feedback.decisions._CHUNK", 1)
    rows = [
        replace(one, decision=replace(one.decision, policy=policy))
        for one, policy in zip(map(example, (1, 2, 3)), (ESTIMATED, ESTIMATED, "imported"), strict=True)
    ]
    assert log_of_examples(rows, RULE).estimated == 2


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"probabilities": ()}, "no propensity on record"),
        ({"probabilities": (0.5, 0.25)}, "no distribution"),
        ({"probabilities": (0.5, 0.25, 0.25)}, "no distribution"),
        ({"probabilities": (1.5, -0.5)}, "no distribution"),
        ({"probabilities": (float("nan"), 1.0)}, "no distribution"),
        ({"probabilities": (0.0, 1.0)}, "propensity not in (0, 1]"),
        ({"probabilities": (0.0,)}, "propensity not in (0, 1]"),
        ({"probabilities": (1.5,)}, "propensity not in (0, 1]"),
        ({"drawn": "nobody"}, "drawn arm not in the distribution"),
    ],
)
def test_a_decision_that_is_no_draw_is_left_out(wrong: dict[str, Any], reason: str) -> None:
    odd = example(2)
    odd = replace(odd, decision=replace(odd.decision, **wrong))
    log = log_of_examples([example(1), odd], RULE)
    assert log.seq.tolist() == [1]
    assert log.excluded == {reason: 1}


@pytest.mark.parametrize(
    ("selection", "kept", "reason"),
    [
        (Selection(since=2.0), [2, 3], "outside the window"),
        (Selection(until=3.0), [1, 2], "outside the window"),
        (Selection(since=2.0, until=3.0), [2], "outside the window"),
        (Selection(versions=(1, 3)), [1, 3], "another version"),
        (Selection(features={"tier=free": 1.0}), [1], "other features"),
        (Selection(features={"tier=free": 0.0, "n": 2.0}), [3], "other features"),
        (Selection(prefix="acme~"), [3], "another project"),
        (Selection(excluded_id_part="~"), [1, 2], "another project"),
        (Selection(prefix="acme~", features={"tier=free": 0.0}), [3], "another project"),
    ],
)
def test_a_selection_says_what_is_looked_at(selection: Selection, kept: list[int], reason: str) -> None:
    examples = [
        example(1, context=Context("", {"tier=free": 1.0})),
        example(2, version=2, policy="vowpal"),
        example(3, id="acme~d3", version=3, context=Context("", {"n": 2.0})),
    ]
    log = log_of_examples(examples, RULE, selection)
    assert log.seq.tolist() == kept
    assert log.excluded == {reason: 3 - len(kept)}


@pytest.mark.parametrize("until", [AT, 0.0])
def test_a_window_that_does_not_end_after_it_begins_is_refused(until: float) -> None:
    with pytest.raises(ValueError, match=r"window from 2026-01-01T00:00:00Z to .* is empty"):
        Selection(since=AT, until=until)


def test_a_selection_that_leaves_nothing_says_why() -> None:
    examples = [example(1, decided_at=AT), example(2, decided_at=AT + 60.5), example(3, mode=Mode.FORCED)]
    with pytest.raises(EmptyLogError, match=r"versions 7.* has 2 from .*: 2 outside the window"):
        log_of_examples(examples[:2], RULE, Selection(since=AT + 3600, versions=(7,)))
    with pytest.raises(EmptyLogError, match=r"left out: 1 forced$"):
        log_of_examples(examples[2:], RULE)
    with pytest.raises(EmptyLogError, match="the training log is empty"):
        log_of_examples([], RULE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"p_log": np.array([[0.9, 0.2, 0.0]] * 3)}, "sum of p_log .* got 1.1 at row 0"),
        ({"p_log": np.array([[0.5, 0.5, 0.0]] * 3)}, "p_log for the drawn arm, got 0.9 at row 0"),
        ({"p_log": np.ones((3, 1))}, r"p_log must have the shape \(3, 3\), got \(3, 1\)"),
        ({"propensity": np.array([0.9, 0.5, 0.0])}, "propensity .* got 0 at row 2"),
        ({"propensity": np.array([0.9, 1.5, 0.1])}, "propensity .* got 1.5 at row 1"),
        ({"drawn": np.array([0, 1, 3])}, "drawn .* got 3 at row 2"),
        ({"drawn": np.array([0, 1])}, r"drawn .*\(2,\)"),
        ({"reward": np.array([0.0, np.nan, 1.0])}, "reward must be finite, got nan at row 1"),
        ({"groups": np.array([0, 1])}, r"groups .* got \(2,\)"),
        ({"groups": np.array([0, 1, 3])}, "group must be at least 0 and below 3, got 3 at row 2"),
        ({"groups": np.array([0, 2, 2])}, "rows of a group must be above 0.* got 0 at row 1"),
        ({"reward": np.zeros(0)}, "no draw to evaluate"),
    ],
)
def test_arrays_that_are_no_log_are_refused(log: LoggedDraws, change: dict[str, Any], words: str) -> None:
    names = ("arms", "drawn", "propensity", "reward", "groups")
    arrays = {name: getattr(log, name) for name in names} | {"p_log": np.asarray(log.p_log)}
    assert LoggedDraws.from_arrays(**arrays).drawn.tolist() == [0, 2, 1]
    with pytest.raises(ValueError, match=words):
        LoggedDraws.from_arrays(**(arrays | change))


def test_where_only_propensities_are_known_the_other_arms_are_unknown_or_impossible() -> None:
    log = LoggedDraws.from_arrays(
        ("a", "b"), np.array([0, 1, 1]), np.zeros(3), propensity=np.array([0.4, 1.0, 0.9])
    )
    np.testing.assert_array_equal(log.p_log, [[0.4, np.nan], [0.0, 1.0], [np.nan, 0.9]])
    assert (log.whole.tolist(), log.is_whole) == ([False, True, False], False)


def test_some_rows_of_a_log_are_a_log() -> None:
    log = LoggedDraws.from_arrays(
        ("a", "b"),
        np.array([0, 1, 1, 0]),
        np.array([0.0, 1.0, 2.0, 3.0]),
        p_log=np.tile([0.25, 0.75], (4, 1)),
        groups=np.array([0, 1, 2, 1]),
    )
    some = log.where(np.array([False, True, False, True]))
    assert (some.reward.tolist(), some.groups.tolist(), some.seq.tolist()) == ([1.0, 3.0], [0, 0], [2, 4])


@pytest.mark.parametrize("p_log", [None, np.array([[1.000001]])], ids=["alone", "whole"])
def test_a_propensity_above_one_by_a_rounding_error_is_accepted(p_log: Floats | None) -> None:
    arrays: dict[str, Any] = {"arms": ("a",), "drawn": np.array([0]), "reward": np.ones(1), "p_log": p_log}
    assert LoggedDraws.from_arrays(**arrays, propensity=np.array([1.000001])).propensity.tolist() == [
        1.000001
    ]
    with pytest.raises(ValueError, match=r"propensity must be in \(0, 1\], got 1.00001 at row 0"):
        LoggedDraws.from_arrays(**arrays, propensity=np.array([1.00001]))


def test_a_log_needs_the_probability_of_what_was_drawn() -> None:
    with pytest.raises(ValueError, match="needs p_log, or the propensities of the drawn arms"):
        LoggedDraws.from_arrays(("a",), np.zeros(1, np.int64), np.zeros(1))
