"""Ratings of passages are labels of decisions that are not learned, and no part of a reward."""

from dataclasses import replace

import pytest

from armwise.feedback.errors import ConflictError
from armwise.feedback.events import Feedback, FeedbackKind, Mode, Status
from armwise.feedback.log import Store
from armwise.feedback.reward import Complete, Metric, RewardRule
from armwise.feedback.training_log import Joiner, logged_labels, take_epoch
from armwise.feedback.training_log.passages import read_rated_passages
from tests.feedback.conftest import decision, execution, value

METRICS = {"right": Metric(), "thumb": Metric(range=(-1, 1))}

RULE = RewardRule(metrics=METRICS, complete=Complete.ANY, correction_time="PT0S")


def rated(
    name: str, number: float, *, metric: str = "thumb", key: str = "", rater: str | None = None
) -> Feedback:
    key = key or f"{name}:{metric}:{number}:{rater}"
    content = {"passage": "p1"}
    kind = FeedbackKind.PASSAGE
    return Feedback(key, name, metric, number, 105.0, kind=kind, content=content, rater=rater)


def found(store: Store, rule: RewardRule = RULE) -> dict[str, dict[str, float]]:
    return {one.decision.id: dict(one.metrics) for one in read_rated_passages(store, rule)}


def test_a_decision_has_the_mean_of_the_ratings_of_its_passages(store: Store) -> None:
    for name in ("d1", "d2", "d3"):
        store.append([decision(name), execution(name)])
    back = replace(rated("d2", 0.5, key="k"), value=None, kind=FeedbackKind.RETRACTION, content={})
    store.append([rated("d1", 1.0), rated("d1", -1.0, key="other"), rated("d1", 0.5, metric="right")])
    store.append([rated("d2", 0.5, key="k"), back, rated("d3", 1.0, metric="gone")])
    assert found(store) == {"d1": {"thumb": 0.0, "right": 0.5}}


def test_a_passage_that_came_before_a_decision_which_did_not_find_it_is_no_label(store: Store) -> None:
    other = replace(rated("d1", 1.0, key="k"), content={"passage": "nowhere"})
    store.append([other, rated("d1", 0.5), replace(other, id="l", decision_id="d2")])
    store.append([decision("d1"), execution("d1"), decision("d2"), execution("d2")])
    assert found(store) == {"d1": {"thumb": 0.5}}


def test_they_are_labels_where_the_answer_was_not_rated_and_never_learned(store: Store) -> None:
    facts = [decision("d1"), execution("d1"), decision("d2"), execution("d2")]
    facts += [decision("d3", mode=Mode.FORCED), execution("d3"), decision("d4")]
    facts += [execution("d4", Status.ARM_FAILED), rated("d9", 1.0)]
    store.append([*facts, *(rated(name, 1.0) for name in ("d1", "d2", "d3", "d4")), value("d2", "thumb")])
    joiner = Joiner(store, RULE, take_epoch(store, "test", 0.0))
    assert joiner.advance(110.0).examples_seq == 1, "by the rating of an answer"
    labels = logged_labels.labels(
        read_rated_passages(store, RULE), logged_labels.make_scale(RULE, "thumb"), ["a", "b"]
    )
    assert (labels.questions, labels.arms, labels.scores.tolist()) == (("what is d1?",), ("b",), [[1.0]])


def test_one_rater_gives_no_more_of_them_than_of_other_ratings(store: Store) -> None:
    for number in range(60):
        name = f"d{number}"
        rater = "one" if number >= 40 else f"r{number}"
        store.append([decision(name), execution(name), rated(name, 1.0, rater=rater)])
    assert len(found(store)) == 45
    assert len(found(store, RULE.model_copy(update={"rater_share": 1.0}))) == 60


@pytest.mark.parametrize(
    "other", [{"kind": FeedbackKind.VALUE, "content": {}}, {"content": {"passage": "p2"}}]
)
def test_an_id_is_of_one_rating(store: Store, other: dict[str, object]) -> None:
    store.append([decision("d1"), execution("d1"), rated("d1", 1.0, key="k")])
    with pytest.raises(ConflictError, match="'k' was used for"):
        store.append([replace(rated("d1", 1.0, key="k"), **other)])  # type: ignore[arg-type]
