"""Ratings that come too late to count: whether they say other things than those in time."""

from dataclasses import replace

import numpy as np
import pytest

from armwise.feedback.events import Tick
from armwise.feedback.log import Store
from armwise.feedback.training_log.lateness import RatingTimes, read
from tests.feedback.training_log.test_settled import RULE, asked, clicked, looked


def rated(n: int, late: float, good: float, good_if_late: float, seed: int = 0) -> RatingTimes:
    """Return ratings, a share of them late, with the probabilities that a rating is good."""
    rng = np.random.default_rng(seed)
    is_late = rng.random(n) < late
    value = (rng.random(n) < np.where(is_late, good_if_late, good)).astype(np.float64)
    at = np.arange(n, dtype=np.float64)
    return RatingTimes(at, at + np.where(is_late, 100.0, 1.0), is_late, value)


@pytest.mark.parametrize(
    ("late", "good", "good_if_late", "differ"),
    [
        (0.2, 0.8, 0.4, True),  # bad ratings come late
        (0.2, 0.4, 0.8, True),  # good ones do
        (0.2, 0.8, 0.8, False),
        (0.002, 0.8, 0.0, False),  # too few
        (0.0, 0.8, 0.8, False),
        (1.0, 0.8, 0.8, False),  # nothing to compare with
    ],
)
def test_late_ratings_are_compared_with_those_in_time_to_both_sides(
    late: float, good: float, good_if_late: float, differ: bool
) -> None:
    assert rated(5000, late, good, good_if_late).differ(np.inf) is differ


def test_ratings_that_come_late_but_are_like_the_others_seldom_differ() -> None:
    """With three standard errors, in 0.3 % of the logs: in at most 4 of 400."""
    assert sum(rated(400, 0.3, 0.6, 0.6, seed).differ(np.inf) for seed in range(400)) <= 4


def test_what_comes_after_a_time_changes_nothing_before_it() -> None:
    """A rating counts by its own time, too: one that is late comes after others."""
    found = rated(5000, 0.2, 0.8, 0.4)
    assert found.differ(3000.0)
    slow = replace(found, received_at=found.decided_at + np.where(found.late, 1e6, 1.0))
    assert not slow.differ(5000.0), "all were decided, and no late one had come"
    assert slow.differ(2e6)


@pytest.mark.parametrize(("needed", "enough"), [(1, True), (2, True), (3, False)])
def test_ratings_are_read_where_enough_of_them_came_after_the_deadline_of_their_decision(
    store: Store, needed: int, enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four ratings, two are late; in a time, those of its decisions count."""
    monkeypatch.setattr("armwise.feedback.training_log.lateness.ENOUGH", needed)
    facts = [fact for i in range(4) for fact in asked(i, float(i))]
    looked(
        store, [*facts, clicked(0, 1.0), clicked(1, 6.0), clicked(2, 152.0), clicked(3, 153.0), Tick(160.0)]
    )
    found = read(store, RULE)
    assert (found is not None) is enough
    assert read(store, RULE, until=2.0) is read(store, RULE.model_copy(update={"metrics": {}})) is None
    young = read(store, RULE, since=3.0)
    assert (young is not None and len(young.value) == 1) is (needed == 1)
    if found is not None:
        late = sorted(zip(found.decided_at, found.late, strict=True))
        assert late == [(0.0, False), (1.0, False), (2.0, True), (3.0, True)]
        assert {*found.value.tolist()} <= {0.0, 1.0}
