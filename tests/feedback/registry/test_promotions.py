"""Promotions: the newest of a configuration counts, and all are kept, with the checkpoints they need."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from armwise.feedback.errors import ChangedMeanwhileError, RebuiltError, SupersededError
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import arm_sets
from armwise.feedback.registry.promotions import (
    Action,
    ActivePolicy,
    FinishedRun,
    Promotion,
    active_policy,
    find_by_recipe,
    first_starts,
    newest,
    record,
    was_active,
)
from armwise.feedback.registry.runs import Run, RunState, Trigger, claim, finish, save_progress
from armwise.feedback.registry.runs import find as find_run
from armwise.feedback.registry.versions import (
    Version,
    checkpoint,
    digest_state,
    find,
    is_kept,
    page,
    publish,
    publish_beside,
)
from armwise.feedback.training_log import REBUILD, take_epoch
from tests.feedback.registry.test_versions import KEPT_CHECKPOINTS, draft

LEASE_S = 60.0
"""Seconds without a heartbeat after which a worker is dead."""


def published(store: Store, recipe: str = "ours", state: bytes = b"state") -> Version:
    """A version of a learner that has just taken over."""
    made = draft(store, state, recipe)
    return replace(made, version=publish(store, made, state))


def promote(
    store: Store,
    version: Version,
    action: Action,
    reason: str = "why not",
    after: int | None = None,
    finished: FinishedRun | None = None,
    **more: Any,
) -> Promotion:
    """Record an action of the configuration `ours`, and return it with its number."""
    promotion = Promotion(0, version.version, action, reason, 9.0, **more)
    return recorded(store, "ours", promotion, after=after, finished=finished)


def recorded(store: Store, configured: str, promotion: Promotion, **more: Any) -> Promotion:
    """Record an action, and return it with its number."""
    record(store, configured, promotion, **more)
    return replace(promotion, seq=newest(store, 1)[0].seq)


def test_the_recipe_of_the_configuration_is_active_before_any_promotion(store: Store) -> None:
    published(store)
    assert active_policy(store, "ours") == ActivePolicy("ours")
    assert newest(store, 5) == []


def test_the_newest_promotion_counts_by_the_order_of_the_log_and_not_of_clocks(store: Store) -> None:
    first, second = published(store), published(store)
    record(store, "ours", Promotion(0, second.version, Action.ROLLBACK, "worse answers", 9.0))
    pin = recorded(store, "ours", Promotion(0, first.version, Action.ROLLBACK, "worse still", 8.0))
    assert active_policy(store, "ours") == ActivePolicy("ours", pin=pin, newest=pin)
    promotion = recorded(store, "ours", Promotion(0, second.version, Action.PROMOTE, "mended", 7.0))
    assert active_policy(store, "ours") == ActivePolicy("ours", promotion, newest=promotion)


def test_a_promotion_makes_its_recipe_active_a_rollback_keeps_it(store: Store) -> None:
    ours, other = published(store), published(store, "other")
    promotion = promote(store, other, Action.PROMOTE, forced=True, evaluation=4)
    assert active_policy(store, "ours") == ActivePolicy("other", promotion, newest=promotion)
    promote(store, ours, Action.ROLLBACK)
    active = active_policy(store, "ours")
    assert (active.recipe, active.promotion) == ("other", promotion), "which is what is learned meanwhile"
    assert active.pin is not None
    assert active.pin.version == ours.version
    promote(store, ours, Action.PROMOTE)
    assert active_policy(store, "ours").recipe == "ours"
    assert active_policy(store, "ours").pin is None


def test_a_promotion_of_one_configuration_does_not_change_another(store: Store) -> None:
    ours, other = published(store), published(store, "other")
    promote(store, other, Action.PROMOTE)
    promote(store, ours, Action.ROLLBACK)
    promote(store, other, Action.CANARY, share=0.1)
    assert active_policy(store, "other") == ActivePolicy("other")
    record(store, "other", Promotion(0, ours.version, Action.PROMOTE, "why not", 1.0))
    assert active_policy(store, "other").recipe == "ours"
    assert active_policy(store, "ours").recipe == "other"


def test_a_recipe_was_active_once_it_was_promoted_for_the_configuration(store: Store) -> None:
    ours, other = published(store), published(store, "other")
    assert was_active(store, "ours", "ours")
    promote(store, other, Action.CANARY, share=0.1)
    record(store, "other", Promotion(0, other.version, Action.PROMOTE, "why not", 1.0))
    assert not was_active(store, "ours", "other")
    promote(store, other, Action.PROMOTE)
    promote(store, ours, Action.PROMOTE)
    assert was_active(store, "ours", "other")
    assert not was_active(store, "ours", "third"), "what was promoted has another recipe"


@pytest.mark.parametrize("end", [Action.PROMOTE, Action.ROLLBACK, Action.CANARY])
def test_a_canary_gets_its_share_until_the_next_promotion(store: Store, end: Action) -> None:
    ours, other = published(store), published(store, "other")
    promote(store, ours, Action.ROLLBACK)
    pin = active_policy(store, "ours").pin
    first = promote(store, other, Action.CANARY, share=0.25)
    active = active_policy(store, "ours")
    assert (active.recipe, active.pin) == ("ours", pin), "a canary ends nothing"
    assert active.canaries == (first,)
    assert active.canary(other.version) == first
    assert active.canary(ours.version) is None
    promote(store, other if end is Action.CANARY else ours, end)
    assert active_policy(store, "ours").canaries == ()
    promote(store, other, Action.CANARY, share=0.5)
    (canary,) = active_policy(store, "ours").canaries
    assert canary.share == 0.5


def test_who_decided_is_on_record(store: Store) -> None:
    ours = published(store)
    by_itself = Promotion(0, ours.version, Action.CANARY, "held", 9.0, share=0.1, automatic=True)
    record(store, "ours", by_itself)
    (canary,) = active_policy(store, "ours").canaries
    assert canary.automatic
    promote(store, ours, Action.CANARY, share=0.1)
    (canary,) = active_policy(store, "ours").canaries
    assert not canary.automatic


@pytest.fixture(scope="module")
def shared() -> Iterator[Store]:
    """A log for many histories, each under a configuration of its own."""
    with closing(Store("sqlite://")) as store:
        yield store


numbers = count()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(Action), st.booleans(), st.sampled_from([0.0, 0.1, 0.5]))))
@pytest.mark.slow
def test_the_active_policy_follows_from_the_actions_in_order(
    shared: Store, actions: list[tuple[Action, bool, float]]
) -> None:
    configured = f"configuration {next(numbers)}"
    versions = {True: published(shared, configured), False: published(shared, "other")}
    expected = ActivePolicy(configured)
    for action, own, share in actions:
        version = versions[own]
        promotion = Promotion(0, version.version, action, "why not", 9.0, share=share)
        promotion = recorded(shared, configured, promotion)
        if action is Action.PROMOTE:
            expected = ActivePolicy(version.recipe, promotion, newest=promotion)
        elif action is Action.ROLLBACK:
            expected = replace(expected, pin=promotion, canaries=(), newest=promotion)
        else:
            by_version = {one.version: one for one in expected.canaries} | {version.version: promotion}
            canaries = tuple(by_version[number] for number in sorted(by_version) if by_version[number].share)
            expected = replace(expected, canaries=canaries, newest=promotion)
        found = active_policy(shared, configured)
        assert (found, found.seq) == (expected, promotion.seq)


# -- concurrent promotions -----------------------------------------------------------------


def test_a_promotion_that_rests_on_an_older_one_than_the_newest_is_refused(store: Store) -> None:
    ours, other = published(store), published(store, "other")
    first = promote(store, other, Action.PROMOTE, after=0).seq
    with pytest.raises(ChangedMeanwhileError, match=f"promotion {first} changed the active policy"):
        promote(store, ours, Action.PROMOTE, after=0)
    record(store, "others", Promotion(0, ours.version, Action.ROLLBACK, "elsewhere", 9.0))
    promote(store, ours, Action.PROMOTE, after=first)
    assert [one.version for one in newest(store, 5)] == [ours.version, ours.version, other.version]


def test_of_promotions_that_rest_on_the_same_one_exactly_one_is_recorded(url: str) -> None:
    with closing(Store(url)) as store:
        version = published(store).version
    start = threading.Barrier(4)

    def try_promotion(number: int) -> bool:
        with closing(Store(url)) as own:
            start.wait()
            try:
                record(own, "ours", Promotion(0, version, Action.PROMOTE, str(number), 9.0), after=0)
            except ChangedMeanwhileError:
                return False
            return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(try_promotion, range(4))) == [False, False, False, True]
    with closing(Store(url)) as store:
        assert len(newest(store, 5)) == 1


COLUMNS = {"inputs": {"log": 3}, "steps": [{"name": "decide"}], "candidate": 1, "evaluation": 2}


def begun(store: Store) -> Run:
    return claim(store, "ours", Trigger.ALARM, "here:1", 5.0)


def rows(store: Store) -> list[object]:
    """All that a promotion by a run writes."""
    with store.reading() as connection:
        return [connection.execute(table.select()).all() for table in (t.operations, t.jobs)]


def test_a_run_ends_with_its_promotion(store: Store) -> None:
    run, other = begun(store), published(store, "other")
    promote(store, other, Action.PROMOTE, after=0, finished=FinishedRun(run, COLUMNS))
    found = find_run(store, run.seq)
    assert found is not None
    assert (found.status, found.alive_at, found.finished_at) == (RunState.PROMOTED, 9.0, 9.0)
    assert (found.inputs, found.steps, found.candidate, found.evaluation) == tuple(COLUMNS.values())
    assert active_policy(store, "ours").recipe == "other"


@pytest.mark.parametrize("late", [False, True])
def test_a_run_that_may_not_promote_leaves_nothing_behind(store: Store, late: bool) -> None:
    run, ours, other = begun(store), published(store), published(store, "other")
    if late:  # it was taken for dead
        claim(store, "ours", Trigger.RESUMED, "there:2", 6.0 + LEASE_S)
    else:
        promote(store, ours, Action.ROLLBACK)
    before, after = rows(store), active_policy(store, "ours").seq if late else 0
    with pytest.raises(SupersededError if late else ChangedMeanwhileError):
        promote(store, other, Action.PROMOTE, after=after, finished=FinishedRun(run, COLUMNS))
    assert rows(store) == before


@pytest.mark.parametrize(
    ("action", "live"), [(Action.PROMOTE, True), (Action.ROLLBACK, True), (Action.CANARY, False)]
)
def test_promotions_and_rollbacks_have_the_live_arms(store: Store, action: Action, live: bool) -> None:
    arms = arm_sets.start(store, {"bm25": {"kind": "bm25"}})
    promote(store, published(store), action, share=0.0 if live else 0.25)
    (recorded,) = newest(store, 1)
    assert recorded.arm_set == (arms.seq if live else None)


def test_a_version_that_was_never_published_cannot_be_chosen(store: Store) -> None:
    missing = replace(published(store), version=77)
    with pytest.raises(IntegrityError):
        promote(store, missing, Action.ROLLBACK)
    assert newest(store, 5) == []


@pytest.mark.parametrize("action", [Action.PROMOTE, Action.ROLLBACK])
def test_the_bytes_of_a_version_that_was_chosen_are_not_pruned(store: Store, action: Action) -> None:
    chosen, _, other = (published(store) for _ in range(3))
    promote(store, chosen, action)
    newest = [published(store) for _ in range(KEPT_CHECKPOINTS)][-1].version
    assert not is_kept(chosen.version, newest)
    assert not is_kept(other.version, newest)
    assert checkpoint(store, chosen.version) == b"state"
    assert checkpoint(store, other.version) is None


def test_the_bytes_of_the_newest_version_of_a_recipe_are_not_pruned(store: Store) -> None:
    replaced, candidate = published(store, "other"), published(store, "other")
    newest = [published(store) for _ in range(KEPT_CHECKPOINTS + 1)][-1].version
    assert not is_kept(replaced.version, newest)
    assert checkpoint(store, replaced.version) is None
    assert checkpoint(store, candidate.version) == b"state"


def test_pruned_bytes_are_stored_again_with_a_promotion(store: Store) -> None:
    pruned, *_ = [published(store) for _ in range(KEPT_CHECKPOINTS + 1)]
    assert checkpoint(store, pruned.version) is None
    rollback = Promotion(0, pruned.version, Action.ROLLBACK, "better", 1.0)
    record(store, "ours", rollback, b"another state")
    assert checkpoint(store, pruned.version) is None
    record(store, "ours", rollback, b"state")
    assert checkpoint(store, pruned.version) == b"state"


# -- versions of other recipes --------------------------------------------------------------------------


def beside(store: Store, since: int, examples_seq: int = 3, recipe: str = "other") -> Version | None:
    """Publish a version beside a learner, of a training log that was read under an epoch."""
    draft = Version(0, None, recipe, "j", {}, examples_seq, 5, digest_state(b"new"), since, 2.0)
    return find(store, publish_beside(store, draft, b"new"))


def test_a_version_beside_a_learner_leaves_the_learner_its_epoch(store: Store) -> None:
    ours = published(store)
    found = beside(store, ours.epoch)
    assert found is not None
    assert (found.version, found.epoch) == (ours.version + 1, ours.epoch)
    draft = replace(ours, version=0, examples_seq=4)
    assert publish(store, draft, b"state") == found.version + 1


def test_it_is_refused_where_the_training_log_was_made_anew_meanwhile(store: Store) -> None:
    ours = published(store)
    take_epoch(store, REBUILD, 1.0)
    take_epoch(store, "a learner", 2.0)
    with pytest.raises(RebuiltError, match=f"epoch {ours.epoch + 1} rebuilt the training log"):
        beside(store, ours.epoch)
    assert find(store, ours.version + 1) is None
    assert beside(store, ours.epoch + 2) is not None


def test_it_may_follow_from_the_training_log_as_a_rebuild_left_it(store: Store) -> None:
    published(store)
    rebuild = take_epoch(store, REBUILD, 1.0)
    found = beside(store, rebuild)
    assert found is not None
    assert found.epoch == rebuild


def test_it_is_of_an_epoch_of_its_own_where_no_learner_ever_ran(store: Store) -> None:
    first = beside(store, 0)
    assert first is not None
    assert first.epoch == 1
    assert beside(store, 0, recipe="third") == replace(first, version=first.version + 1, recipe="third"), (
        "and no other one is taken"
    )


def test_what_a_version_of_the_recipe_has_learned_is_not_published_again(store: Store) -> None:
    first = beside(store, 0, examples_seq=3)
    assert first is not None
    assert beside(store, first.epoch, examples_seq=3) == first
    assert beside(store, first.epoch, examples_seq=2) == first
    further = beside(store, first.epoch, examples_seq=4)
    assert further is not None
    assert further.version == first.version + 1


def test_pages_hold_every_version_once_newest_first(store: Store) -> None:
    expected: list[Version] = []
    for total in range(7):
        for limit in (1, 2, 3):
            seen: list[Version] = []
            while rows := page(store, limit, seen[-1].version if seen else None):
                assert len(rows) <= limit
                seen += [version for version, _ in rows]
            assert seen == expected, (total, limit)
        expected.insert(0, published(store))


def test_a_page_says_whose_bytes_are_kept(store: Store) -> None:
    newest = [published(store) for _ in range(KEPT_CHECKPOINTS + 2)][-1].version
    kept = {version.version: kept for version, kept in page(store, 100)}
    assert kept == {number: is_kept(number, newest) for number in kept}
    assert set(kept.values()) == {True, False}


def test_the_live_arms_are_those_of_a_pin_and_else_those_of_the_promotion() -> None:
    promotion, pin = (Promotion(seq, 1, Action.PROMOTE, "", 9.0, arm_set=seq) for seq in (1, 2))
    assert ActivePolicy("r", promotion, pin, newest=pin).arm_set == 2
    assert ActivePolicy("r", promotion, newest=promotion).arm_set == 1
    assert ActivePolicy("r", pin=replace(pin, arm_set=None)).arm_set == 0
    assert (ActivePolicy("r").arm_set, ActivePolicy("r", newest=pin).seq, ActivePolicy("r").seq) == (0, 2, 0)


def test_the_timeline_goes_on_before_a_row(store: Store) -> None:
    """Each page of the promotions begins before the last row of the page above it."""
    version = published(store)
    _, second, _, fourth, _ = (promote(store, version, Action.ROLLBACK, reason).seq for reason in "abcde")
    assert [row.reason for row in newest(store, 2)] == ["e", "d"]
    assert [row.reason for row in newest(store, 2, fourth)] == ["c", "b"]
    assert [row.reason for row in newest(store, 2, second)] == ["a"]


def test_the_newest_promotion_of_each_recipe_is_found_under_one_configuration(store: Store) -> None:
    """Rollbacks, canaries and other configurations do not count as promotions of a recipe."""
    ours, other, third = published(store), published(store, "other"), published(store, "third")
    promote(store, other, Action.PROMOTE, "first")
    promote(store, other, Action.PROMOTE, "second")
    promote(store, ours, Action.ROLLBACK)
    promote(store, third, Action.CANARY, share=0.1)
    record(store, "another", Promotion(0, third.version, Action.PROMOTE, "elsewhere", 9.0))
    found = find_by_recipe(store, "ours", ["ours", "other", "third", "nowhere"])
    assert {recipe: row.reason for recipe, row in found.items()} == {"other": "second"}
    assert find_by_recipe(store, "ours", ["ours"]) == {}


def test_the_promotion_of_a_first_start_is_told_from_one_that_was_forced(store: Store) -> None:
    """It is the first promotion of the candidate of a promoted run that no evaluation judged."""
    chosen, unjudged, judged = published(store), published(store, "other"), published(store, "third")
    promote(store, chosen, Action.PROMOTE, "an operator forced it", forced=True)
    for candidate, evaluation in ((unjudged, None), (judged, 7)):
        mine = claim(store, "ours", Trigger.FIRST, "worker", 1.0)
        finished = FinishedRun(mine, {"candidate": candidate.version, "evaluation": evaluation})
        promote(
            store, candidate, Action.PROMOTE, "a run", finished=finished, forced=True, evaluation=evaluation
        )
    promote(store, unjudged, Action.CANARY, share=0.1)
    promote(store, unjudged, Action.PROMOTE, "forced once more", forced=True)
    numbers = [chosen.version, unjudged.version, judged.version]
    reasons = {row.seq: (row.version, row.reason) for row in newest(store, 9)}
    assert [reasons[seq] for seq in first_starts(store, numbers)] == [(unjudged.version, "a run")]
    assert first_starts(store, [chosen.version]) == set()


def test_a_promotion_of_the_candidate_of_a_run_that_held_it_was_forced(store: Store) -> None:
    """A run that ended without a promotion has promoted nothing, whatever an operator does later."""
    candidate = published(store, "other")
    mine = claim(store, "ours", Trigger.REQUEST, "worker", 1.0)
    save_progress(store, mine, 2.0, inputs={}, steps=[], candidate=candidate.version)
    finish(store, mine, RunState.HELD, 3.0)
    promote(store, candidate, Action.PROMOTE, forced=True)
    assert first_starts(store, [candidate.version]) == set()
