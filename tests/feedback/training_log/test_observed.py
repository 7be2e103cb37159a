"""What is learned beside rewards: at positions that follow from the log, and nothing else of it changes."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from armwise.feedback.events import (
    LABELS,
    Cost,
    Decision,
    Example,
    Mode,
    Observation,
    ObservationSource,
    Status,
    Tick,
)
from armwise.feedback.log import Fact, Receipt, Store
from armwise.feedback.reward import Complete, Metric, Prices, RewardRule
from armwise.feedback.training_log import Joiner, StartingPoint, observed, read_learned_examples, take_epoch
from armwise.feedback.training_log.observed import (
    Also,
    Calibration,
    Graded,
    find_source,
    list_audited,
    list_graded,
    move_metrics,
)
from armwise.feedback.training_log.router_contexts import store_scores
from tests.feedback.conftest import decision, execution, value
from tests.feedback.training_log.test_router_contexts import published
from tests.steps import change

RULE = RewardRule(metrics={"right": Metric()}, cost_weight=0.1)
SHADOW = StartingPoint(also=Also(shadow=1.0))
JUDGE = StartingPoint(also=Also(judge=True))
BOTH = StartingPoint(also=Also(shadow=0.5, judge=True))


@pytest.fixture(autouse=True)
def few_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "AUDITS", 10)
    monkeypatch.setattr(observed, "AGREEMENT", 0.5)


def second(name: str, preference: float | None = 1.0, arm: str = "a") -> Observation:
    return Observation(
        name,
        ObservationSource.SHADOW,
        arm,
        0.3,
        1.0,
        preference,
        Cost(2, 20, 5),
        "model",
        Cost(prompt_tokens=50),
        True,
        ("p7",),
        "another answer",
        observed_at=103.0,
    )


def grade(name: str, number: float | None) -> Observation:
    return Observation(
        name, ObservationSource.JUDGE, "b", 0.1, value=number, judge="model", observed_at=103.0
    )


def turn(name: str) -> list[Fact]:
    return [decision(name), execution(name)]


def joined(store: Store, now: float = 110.0) -> None:
    Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(now)


def learned(store: Store, start: StartingPoint | None) -> list[tuple[int, str]]:
    return [(one.seq, one.decision.id) for one in read_learned_examples(store, RULE, start)]


def test_an_observation_is_read_back_as_it_was_written_and_kept_once(store: Store) -> None:
    facts = [*turn("d"), second("d"), grade("d", 0.75), second("d", None)]
    assert store.append(facts)[2:] == [Receipt(3), Receipt(4), Receipt()], "the arm of a decision once"
    assert store.append([second("d", -1.0)]) == [Receipt()]
    record = store.record("d")
    assert record is not None
    assert record.observations == (second("d"), grade("d", 0.75))


def test_a_second_answer_is_learned_by_feedback_and_preference(store: Store) -> None:
    store.append([*turn("d"), second("d", -1.0), value("d", number=0.75)])
    joined(store)
    own, other = read_learned_examples(store, RULE, SHADOW)
    assert (own.decision, own.metrics) == (decision("d"), {"right": 0.75}), "the decision is as it was"
    assert other.metrics == {"right": 0.0}
    assert RULE.compute_reward(other) == pytest.approx(-0.2), "it pays for its own cost"
    label = other.decision
    assert (label.arms, label.probabilities, label.drawn) == (("a",), (1.0,), "a")
    assert (label.policy, label.context, find_source(label)) == (
        LABELS,
        own.decision.context,
        ObservationSource.SHADOW,
    )
    assert [one.decision.id for one in read_learned_examples(store, RULE)] == ["d"], "unless a recipe opts in"


def test_what_is_learned_beside_a_decision_has_nothing_of_how_that_was_drawn(store: Store) -> None:
    made = change(
        decision("d"),
        arms=("a", "b", "c"),
        probabilities=(0.25, 0.5, 0.25),
        version=7,
        episode_id="e",
        shadow=(0.25, 0.5, 0.25),
        candidate=3,
        share=0.25,
        price=0.5,
        costs=(1.0, 2.0, 3.0),
        cost_weight=0.25,
    )
    store.append([made, execution("d"), second("d"), value("d", number=0.25), *turn("f"), value("f")])
    joined(store)
    other = next(one for one in read_learned_examples(store, RULE, SHADOW) if find_source(one.decision))
    assert other.decision == Decision(
        "d/shadow/a",
        made.context,
        ("a", "c"),
        (0.5, 0.5),
        "a",
        LABELS,
        0,
        decided_at=made.decided_at,
        deadline=made.deadline,
        episode_id="beside/shadow",
        cost_weight=0.25,
    )
    assert (other.cost, other.metrics, other.seq, other.by) == (Cost(2, 20, 5), {"right": 1.0}, 1, 4)


def test_what_a_cache_lacked_is_out_of_what_is_learned_of_a_second_answer_too(store: Store) -> None:
    rule = RULE.model_copy(update={"cost": Prices(steps=0.0, usd=1.0), "cost_weight": 1.0})
    made = change(decision("d"), arms=("b", "a"), miss_costs=(0.0, 0.25), usd_weight=1.0)
    paid = replace(second("d", 1.0), cost=Cost(usd=0.5))
    store.append([made, execution("d"), paid, value("d", number=1.0)])
    joined(store)
    own, other = read_learned_examples(store, rule, SHADOW)
    assert other.decision.miss_usd == 0.25
    assert (rule.compute_reward(other), rule.compute_learned_reward(other)) == (0.5, 0.75)
    assert rule.compute_reward(own) == rule.compute_learned_reward(own)


def test_only_a_label_was_observed() -> None:
    label = replace(decision("d"), policy=LABELS, episode_id="beside/judge")
    assert find_source(label) is ObservationSource.JUDGE
    for other in (
        replace(label, policy="linucb"),
        replace(label, episode_id=None),
        replace(label, episode_id="e"),
    ):
        assert find_source(other) is None


def test_scores_that_come_later_change_nothing_of_what_was_learned_beside(store: Store) -> None:
    store.append([*turn("d"), second("d"), value("d")])
    joined(store)

    def seen() -> list[tuple[str, object]]:
        found = read_learned_examples(store, RULE, SHADOW, router="router")
        return [(one.decision.id, one.decision.context.arms["a"].get("router")) for one in found]

    assert seen() == [("d", None), ("d/shadow/a", None)]
    store_scores(store, "router", {"d": {"a": 0.5, "b": 0.25}})
    assert seen() == [("d", 0.5), ("d/shadow/a", None)], "a learner that read it before has not seen any"


@pytest.mark.parametrize(("router", "score"), [("router", 0.5), ("another", None)])
def test_what_is_learned_beside_has_the_scores_that_its_decision_was_made_with(
    store: Store, router: str, score: float | None
) -> None:
    published(store, "router")
    made, *facts = turn("d")
    assert isinstance(made, Decision)
    scored = replace(made, version=1, context=made.context.with_scores({"a": 0.5}))
    store.append([scored, *facts, second("d"), value("d")])
    joined(store)
    found = read_learned_examples(store, RULE, SHADOW, router=router)
    assert [one.decision.context.arms["a"].get("router") for one in found] == [score, score]


def test_what_another_rule_has_joined_moves_nothing(store: Store) -> None:
    other = RULE.model_copy(update={"complete": Complete.DEADLINE, "default": 0.0})
    store.append([*turn("a"), *turn("b"), second("b"), value("b"), second("a"), value("a")])
    joined(store)
    before = list(read_learned_examples(store, RULE, SHADOW))
    Joiner(store, other, take_epoch(store, "test", 0.0)).advance(5000.0)
    assert len(list(read_learned_examples(store, other, SHADOW))) == 4
    assert list(read_learned_examples(store, RULE, SHADOW)) == before
    assert [one.decision.id for one in before] == ["b", "b/shadow/a", "a", "a/shadow/a"]


def test_the_newest_grades_are_listed_with_the_feedback_that_they_predict(store: Store) -> None:
    rule = RewardRule(metrics={"right": Metric(range=(0.0, 4.0))})
    for i in range(4):
        store.append([*turn(f"d{i}"), grade(f"d{i}", i / 4), second(f"d{i}")])
    store.append([*turn("failed"), grade("failed", None), value("d1", number=1.0), value("d2", number=3.0)])
    joined(store)
    Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(110.0)
    assert list_graded(store, rule, 4) == [
        Graded("b", 0.75, None),
        Graded("b", 0.5, 0.75),
        Graded("b", 0.25, 0.25),
        Graded("b", 0.0, None),
    ]
    assert list_graded(store, rule, 2) == [Graded("b", 0.75, None), Graded("b", 0.5, 0.75)]


def test_metrics_count_by_their_weights_and_ends() -> None:
    rule = RewardRule(
        metrics={
            "right": Metric(weight=3.0),
            "errors": Metric(range=(0.0, 10.0), optimize="min"),
            "stars": Metric(range=(1.0, 5.0)),
        }
    )
    assert rule.quality({"right": 0.5, "errors": 2.5, "another": 9.0}) == pytest.approx((3 * 0.5 + 0.75) / 4)
    assert move_metrics(rule, {"errors": 9.0, "stars": 2.0, "another": 9.0}, -0.25) == {
        "errors": 10.0,
        "stars": 1.0,
    }


def test_an_observation_waits_for_its_decision_and_an_example(store: Store) -> None:
    store.append([*turn("a"), second("a"), *turn("b"), value("b")])
    store.append([*turn("c"), value("c"), second("b"), value("a"), second("c")])
    joined(store)
    assert learned(store, SHADOW) == [
        (1, "b"),
        (2, "c"),
        (3, "a"),
        (3, "a/shadow/a"),
        (3, "b/shadow/a"),
    ], "that on c is after the last example"


def test_what_gives_no_value_is_not_learned(store: Store) -> None:
    rule = RULE.model_copy(update={"default": 0.5, "failed": 0.0})
    store.append([*turn("no preference"), second("no preference", None), value("no preference")])
    store.append([decision("failed"), execution("failed", Status.ARM_FAILED), second("failed")])
    store.append([decision("forced", mode=Mode.FORCED), execution("forced"), second("forced")])
    store.append([*turn("silent"), second("silent"), Tick(5000.0)])
    Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(5000.0)
    found = [one.decision.id for one in read_learned_examples(store, rule, SHADOW)]
    assert found == ["no preference", "failed", "silent"]


def test_a_recipe_that_starts_later_learns_nothing_of_earlier_decisions(store: Store) -> None:
    store.append([*turn("a"), value("a"), *turn("b"), second("a"), second("b"), value("b")])
    joined(store)
    assert learned(store, replace(SHADOW, after=1)) == [(2, "b"), (2, "b/shadow/a")]


def audits(store: Store, n: int, sign: float = 1.0) -> None:
    for i in range(n):
        right = i % 2
        store.append([*turn(f"a{i}"), grade(f"a{i}", 0.5 + sign * (right - 0.5) / 2)])
        store.append([value(f"a{i}", number=float(right))])


def test_grades_are_learned_once_enough_of_them_agree_with_feedback(store: Store) -> None:
    store.append([*turn("too early"), grade("too early", 0.75)])
    audits(store, 10)
    store.append([*turn("d"), grade("d", 0.625), *turn("e"), value("e", number=0.0)])
    joined(store)
    *own, last = read_learned_examples(store, RULE, JUDGE)
    assert [one.decision.id for one in own] == [*(f"a{i}" for i in range(10)), "e"]
    assert (last.decision.id, find_source(last.decision)) == ("d/judge/b", ObservationSource.JUDGE)
    assert last.metrics == {"right": pytest.approx(0.75)}, "0.5 is what it grades by where feedback gives 1"
    assert last.decision.drawn == "b"
    assert last.decision.probabilities == (0.25, 0.75)


def test_a_grade_stands_for_every_metric_between_its_worst_and_its_best(store: Store) -> None:
    errors = Metric(range=(0.0, 10.0), optimize="min")
    rule = RewardRule(metrics={"right": Metric(), "errors": errors}, complete=Complete.ANY)
    audits(store, 10)
    done = replace(execution("d"), cost=Cost(7, 20))
    store.append([decision("d"), done, grade("d", 0.625), *turn("e"), value("e", number=0.0)])
    Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(110.0)
    last = list(read_learned_examples(store, rule, JUDGE))[-1]
    assert last.metrics == {"right": pytest.approx(0.75), "errors": pytest.approx(2.5)}
    assert last.cost == Cost(7, 20), "of the decision, not of the judge"
    assert (last.seq, last.by) == (11, 46)


def test_a_judge_that_contradicts_feedback_is_not_believed(store: Store) -> None:
    audits(store, 12, sign=-1.0)
    store.append([*turn("d"), grade("d", 0.75), *turn("e"), value("e")])
    joined(store)
    assert all(find_source(one.decision) is None for one in read_learned_examples(store, RULE, JUDGE))


def test_an_objection_names_what_is_missing() -> None:
    few, noise = [(0.0, 0.0), (1.0, 1.0)], [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)] * 3
    assert "2 decisions have a grade and feedback, and 10 are needed" in Calibration.fit(few).objection()
    assert "correlate with feedback by 0.00, and 0.5 or more" in Calibration.fit(noise).objection()
    assert not Calibration.fit(few * 5).objection(), "ten are enough"
    assert not Calibration(10, 0.5, 1.0, 0.5, 0.5).objection(), "and so is this agreement"
    assert Calibration.fit([(0.5, 1.0)] * 20).agreement == 0.0, "a judge that gives one grade says nothing"


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=30))
def test_the_calibration_is_least_squares(pairs: list[tuple[float, float]]) -> None:
    grades, values = np.array(pairs).T
    assume(grades.std() >= 1e-3 and values.std() >= 1e-3)
    found = Calibration.fit(pairs)
    slope, intercept = np.polyfit(grades, values, 1)
    assert found.agreement == pytest.approx(np.corrcoef(grades, values)[0, 1], abs=1e-9)
    assert found.predict(0.5) == pytest.approx(np.clip(intercept + slope / 2, 0, 1), abs=1e-9)


def test_a_prediction_is_a_fraction_of_the_range() -> None:
    found = Calibration.fit([(0.0, 0.0), (0.5, 1.0)])
    assert (found.predict(1.0), found.predict(-0.5)) == (1.0, 0.0)


def test_nothing_to_learn_is_refused() -> None:
    with pytest.raises(ValidationError, match="`also` needs `shadow` or `judge`"):
        Also()


OPS = st.lists(
    st.tuples(st.sampled_from(["turn", "value", "second", "grade"]), st.integers(0, 5), st.integers(0, 4)),
    min_size=20,
    max_size=70,
)


def facts_of(ops: Sequence[tuple[str, int, int]]) -> list[Fact]:
    """Return facts in which observations come before, between and after the feedback on their decisions."""
    found: list[Fact] = []
    made = 0
    for op, ago, number in ops:
        name = f"d{max(0, made - 1 - ago)}"
        if op == "turn" or not made:
            found += turn(f"d{made}")
            made += 1
        elif op == "value":
            found.append(value(name, number=number / 4, key=f"{name}:{len(found)}"))
        else:
            found.append(second(name, number / 2 - 1) if op == "second" else grade(name, number / 4))
    return found


@settings(max_examples=15, deadline=None)
@given(OPS, st.sets(st.integers(1, 40)), st.integers(1, 7), st.integers(2, 20))
@pytest.mark.slow
def test_where_an_observation_is_learned_does_not_depend_on_how_the_log_is_read(
    ops: list[tuple[str, int, int]], cuts: set[int], chunk: int, window: int
) -> None:
    def read(start: StartingPoint, steps: Sequence[int | None]) -> list[Example]:
        return [
            one
            for after, upto in pairwise(steps)
            for one in read_learned_examples(store, RULE, start, after, upto)
        ]

    start = StartingPoint(also=Also(shadow=0.5, judge=True))
    with (
        TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        closing(Store(f"sqlite:///{Path(folder) / 'log.db'}")) as store,
    ):
        store.append(facts_of(ops))
        joined(store)
        patch.setattr(observed, "WINDOW", window)
        patch.setattr(observed, "AUDITS", 2)
        patch.setattr(observed, "AGREEMENT", 0.01)
        at_once = read(start, [None, None])
        n = max((one.seq for one in at_once), default=0)
        patch.setattr(observed, "CHUNK", chunk)
        patch.setattr(observed, "LOOKED_UP", 2)
        assert read(start, [None, *sorted(cut for cut in cuts if cut < n), n]) == at_once
        store.append([*turn("later"), value("later")])
        joined(store)
        again = [one for one in read_learned_examples(store, RULE, start) if one.seq <= n]
        assert again == at_once, "later facts change nothing of it"


def test_a_learner_that_continues_knows_the_audits_up_to_where_it_stopped_and_no_others(store: Store) -> None:
    audits(store, 4)
    store.append([*turn("silent"), grade("silent", 0.5), Tick(5000.0)])
    store.append([*turn("late"), value("late"), grade("late", 1.0)])
    seq = store.log_seq()
    store.append([Tick(9000.0)])
    rule = RULE.model_copy(update={"default": 0.5})
    Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(9000.0)

    def known(first: int, after: int, upto: int, limit: int = 9) -> list[str]:
        with store.reading() as connection:
            found = list_audited(connection, rule, first, after, upto, limit)
        return [one.what.decision_id for one in found]

    assert known(0, 9, seq) == ["late", "a3", "a2", "a1", "a0"], (
        "newest first, those without feedback left out"
    )
    assert known(0, 9, seq - 1) == ["a3", "a2", "a1", "a0"], "a grade that comes later is not known"
    assert (known(1, 3, seq), known(0, 9, seq, 2)) == (["a2", "a1"], ["late", "a3"])


def test_grades_are_calibrated_by_the_newest_thousand_audits() -> None:
    assert observed.WINDOW == 1000
