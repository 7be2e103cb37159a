"""Routers in the log: one for each content, and kept for as long as a chosen version needs them."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from armwise.feedback.events import Mode
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import promotions, routers
from armwise.feedback.registry.promotions import Action, Promotion
from armwise.feedback.registry.routers import StoredRouter
from armwise.feedback.training_log.router_contexts import store_scores
from tests.feedback.conftest import decision
from tests.feedback.training_log.test_router_contexts import published

ROUTER = StoredRouter({"kind": "knn", "n": 3}, b"model", b"unseen")


@pytest.mark.parametrize(
    "other",
    [
        replace(ROUTER, about={"kind": "knn", "n": 4}),
        replace(ROUTER, model=b"another"),
        replace(ROUTER, unseen=b"another"),
        replace(ROUTER, model=b"modelun", unseen=b"seen"),
    ],
    ids=["about", "model", "unseen", "where the model ends"],
)
def test_routers_that_differ_in_one_part_have_digests_of_their_own(other: StoredRouter) -> None:
    assert other.digest != ROUTER.digest
    assert replace(ROUTER, about={"n": 3, "kind": "knn"}).digest == ROUTER.digest, "in any order"


def test_a_router_is_stored_once_and_read_back(store: Store) -> None:
    assert routers.add(store, ROUTER, 100.0) == routers.add(store, ROUTER, 200.0) == ROUTER.digest
    assert routers.find(store, ROUTER.digest) == ROUTER
    assert routers.find(store, "unknown") is None
    with store.reading() as connection:
        assert connection.scalars(sa.select(t.routers.c.at)).all() == [100.0]


def test_of_routers_of_one_moment_the_first_by_digest_stays(store: Store) -> None:
    digests = [routers.add(store, replace(ROUTER, about={"n": n}), 100.0) for n in range(6)]
    routers.prune(store, 1)
    assert [one for one in digests if routers.find(store, one)] == [min(digests)]


def test_the_newest_routers_and_those_of_chosen_versions_stay(store: Store) -> None:
    made = [replace(ROUTER, about={"n": n}) for n in range(6)]
    digests = [routers.add(store, one, 100.0 + n) for n, one in enumerate(made)]
    published(store, *digests, None)
    store.append([decision("d1", mode=Mode.FORCED)])
    for digest in digests:
        store_scores(store, digest, {"d1": {"a": 0.5}})
    for version, action in ((1, Action.PROMOTE), (3, Action.CANARY), (7, Action.ROLLBACK)):
        promotions.record(store, "r", Promotion(0, version, action, "", 100.0))
    routers.prune(store, 2)
    kept = [digests[n] for n in (0, 2, 4, 5)]
    assert [one for one in digests if routers.find(store, one)] == kept
    with store.reading() as connection:
        assert {*connection.scalars(sa.select(t.router_scores.c.router))} == {*kept}
