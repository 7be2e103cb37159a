"""Evaluations and warm starts share a table and its numbers; each kind sees and claims its own only."""

import pytest

from armwise.feedback.errors import SupersededError
from armwise.feedback.log import Store
from armwise.feedback.registry import EvaluationRow, Run, evaluations, runs

OURS = "ours"
"""Digest of a configuration, and of its recipe."""


def one_of_each(store: Store) -> tuple[EvaluationRow, Run]:
    """Request an evaluation, then a warm start."""
    return evaluations.submit(store, OURS, {}, 1.0), runs.request(store, OURS, 2.0)


def test_each_number_is_that_of_one_job(store: Store) -> None:
    evaluation, run = one_of_each(store)
    assert (evaluation.seq, run.seq) == (1, 2)
    assert evaluations.find(store, run.seq) is None
    assert runs.find(store, evaluation.seq) is None
    assert evaluations.page(store, 9) == [evaluation]
    assert runs.page(store, 9) == [run]


def test_a_worker_of_both_claims_each_by_its_own_rules(store: Store) -> None:
    evaluation, run = one_of_each(store)
    assert evaluations.claim(store, OURS, "w", 3.0, only=run.seq) is None
    assert runs.claim(store, OURS, runs.Trigger.SCHEDULE, "w", 3.0).seq == run.seq
    first = evaluations.claim(store, OURS, "w", 3.0)
    assert first is not None, "a run under way excludes no evaluation"
    assert first.seq == evaluation.seq
    evaluations.finish(store, first, evaluations.StoredResult({}, ""), 4.0)
    assert evaluations.claim(store, OURS, "w", 1000.0) is None, "a dead run is no evaluation to claim"
    assert not runs.under_way(store, 1000.0)


def test_a_run_takes_no_place_and_no_turn_of_an_evaluation(store: Store) -> None:
    run = runs.claim(store, OURS, runs.Trigger.SCHEDULE, "w", 100.0)
    evaluations.submit(store, OURS, {}, 101.0, most=1)
    evaluations.submit(store, OURS, {}, 102.0, project="first")
    mine = evaluations.claim(store, OURS, "w", 103.0)
    assert mine is not None
    assert mine.project is None, "the run was claimed for the service, but is no evaluation of it"
    runs.finish(store, run, runs.RunState.HELD, 104.0)
    evaluations.release(store, mine)
    with pytest.raises(SupersededError, match="w no longer holds evaluation 2: it is queued"):
        evaluations.finish(store, mine, evaluations.StoredResult({}, ""), 105.0)
