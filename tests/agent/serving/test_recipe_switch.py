"""Policy, router and arms of a version are replaced together, by a promotion and by a rollback."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.agent.learning import Recipe, publish_candidate
from armwise.agent.learning.restore import restore_policy
from armwise.agent.learning.router_scores import keep_router, open_router
from armwise.agent.policies import PolicySpec
from armwise.agent.routers import RouterSpec, build_router, out_of_fold, saved
from armwise.arms.models import Backbone
from armwise.arms.models.embedding import HashingEmbedder
from armwise.feedback.events import ROUTER, SIMILARITY, Decision
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import Version, promotions
from armwise.feedback.training_log import Joiner, router_contexts, take_epoch
from tests.agent.asking import QUESTION, look_up, refused
from tests.agent.fakes import CONFIG, DIM, FakeGate, Service
from tests.agent.learning.test_learner import RULE, facts
from tests.agent.learning.test_promotions import deciding, learned, say
from tests.agent.learning.test_rebuild import lose
from tests.agent.serving.test_arm_replacement import ARMS, NEW, refreshed_until_served
from tests.agent.trained_routers import TEXTS, trained

SCORED = ("none", "fused", "bm25")
"""The arms that the router knows."""

POLICY = PolicySpec(kind="linucb", params={"prior_feature": "router"})


def stored(store: Store, folder: Path, kind: str = "ridge", **params: Any) -> str:
    """Train a router on questions, and keep it in the log."""
    found = trained(build_router(RouterSpec(kind=kind, params=params)), SCORED)
    saved.write_trained(folder, found)
    out_of_fold.write_out_of_fold(folder, found.about, TEXTS, np.full((len(TEXTS), len(SCORED)), 0.5))
    return keep_router(store, folder, 0.0)


def bringing(service: Service, arms: Sequence[str] | None = NEW, kind: str = "ridge") -> Version:
    """Publish a candidate with a router of its own, and with arms unless told otherwise."""
    store, config = service.replica.store, service.config
    router = stored(store, service.folder / "router", kind)
    recipe = Recipe(POLICY, config.reward, router=router, arms=None if arms is None else [*arms])
    return publish_candidate(store, recipe, list(config.actions), backbones=config.backbones)


def decisions(service: Service) -> list[Decision]:
    """All decisions, in order."""
    store = service.replica.store
    with store.reading() as connection:
        ids = list(connection.scalars(sa.select(t.decisions.c.id).order_by(t.decisions.c.seq)))
    found = [store.record(name) for name in ids]
    return [one.decision for one in found if one is not None]


def advised(decision: Decision) -> set[str]:
    """The arms that have a score of a router."""
    return {arm for arm, features in decision.context.arms.items() if ROUTER in features}


async def force(service: Service, version: int) -> None:
    answer = await service.client.post(
        f"/v1/policies/{version}/promote", json={"reason": "because", "force": True}
    )
    assert answer.status_code == 200, answer.text


async def verified(service: Service, decision: Decision) -> bool:
    response = await service.client.get(f"/v1/decisions/{decision.id}/verify")
    assert response.status_code == 200, response.text
    return bool(response.json()["verified"])


@pytest.mark.slow
async def test_every_turn_has_one_recipe_while_arms_are_replaced(tmp_path: Path, log_url: str) -> None:
    async with Service(tmp_path, log_url=log_url, arms=ARMS).running() as service:
        await replace_arms_under_traffic(service)


async def replace_arms_under_traffic(on_each: Service) -> None:
    """Promote a version with other arms and go back, while clients ask."""
    (before,) = await learned(on_each)
    brought = bringing(on_each)
    build, load = asyncio.Event(), on_each.arms.load

    async def slow(specs: Any) -> None:
        await build.wait()
        await load(specs)

    on_each.arms.load = slow  # type: ignore[method-assign]
    stop = asyncio.Event()

    async def client() -> None:
        while not stop.is_set():
            assert (await look_up(on_each)).status_code == 200

    clients = [asyncio.create_task(client()) for _ in range(3)]
    try:
        await asyncio.to_thread(record, on_each, brought)
        for _ in range(3):
            await on_each.refresh()
            assert await deciding(on_each) == before, "its arms are still being built"
        build.set()
        await refreshed_until_served(on_each, "none", "fused")
        assert await deciding(on_each) == brought.version
        assert (await say(on_each, "rollback", before)).status_code == 200
        await refreshed_until_served(on_each, *CONFIG["arms"])
        assert await deciding(on_each) == before
    finally:
        stop.set()
        await asyncio.gather(*clients)
    _, *made = decisions(on_each)  # the first one is what was learned
    seen = {(one.version, frozenset(one.arms), frozenset(advised(one))) for one in made}
    assert seen == {
        (before, frozenset(CONFIG["arms"]), frozenset()),
        (brought.version, frozenset({"none", "fused"}), frozenset({"none", "fused"})),
    }
    some = {one.version: one for one in made}.values()
    assert all([await verified(on_each, one) for one in (*some, *made[-3:])])


def record(service: Service, version: Version) -> None:
    """Promote a version as another replica would."""
    promotion = promotions.Promotion(0, version.version, promotions.Action.PROMOTE, "because", 1.0)
    promotions.record(service.replica.store, Recipe.from_config(service.config).digest, promotion)


async def test_a_replica_that_restarts_serves_the_promoted_policy_router_and_arms(tmp_path: Path) -> None:
    async with Service(tmp_path, arms=ARMS).running() as service:
        brought = bringing(service)
        await force(service, brought.version)
    async with Service(tmp_path, arms=ARMS).running(ready=False) as again:
        await again.refresh()
        await look_up(again)
        last = decisions(again)[-1]
        assert (last.version, last.arms) == (brought.version, ("none", "fused"))
        assert advised(last) == {"none", "fused"}
        scores = open_router(again.replica.store, brought.router or "").scores(
            [QUESTION], HashingEmbedder(DIM)
        )
        found = dict(zip(SCORED, scores[0].tolist(), strict=True))
        for arm in last.arms:
            assert last.context.arms[arm][ROUTER] == pytest.approx(found[arm], rel=1e-6)


async def test_each_earlier_decision_has_the_scores_of_its_own_question_also_after_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.learning.router_scores.BATCH", 2)
    async with Service(tmp_path, arms=ARMS).running() as service:
        for number in range(5):
            await look_up(service, query=f"question {number} of a river")
        brought, made, store = bringing(service, arms=None), decisions(service), service.replica.store
        assert brought.router is not None
        seen = router_contexts.read_contexts(store, made, brought.router)
        questions = [one.context.question for one in made]
        expected = open_router(store, brought.router).scores(questions, HashingEmbedder(DIM))
    assert len(set(questions)) == len(seen) == 5
    for context, scores in zip(seen, expected, strict=True):
        by_arm = dict(zip(SCORED, scores.tolist(), strict=True))
        found = {arm: features[ROUTER] for arm, features in context.arms.items() if ROUTER in features}
        assert found.keys() == {"none", "bm25"}
        assert found == pytest.approx({arm: by_arm[arm] for arm in found}, rel=1e-6)


@pytest.mark.parametrize("what", ["router", "arms"])
@pytest.mark.slow
async def test_a_version_whose_router_or_arms_cannot_be_loaded_is_passed_over_as_a_whole(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Service(tmp_path, arms=ARMS).running() as service:
        (before,) = await learned(service)
        brought = bringing(service)
        if what == "router":
            with service.replica.store.writing() as connection:
                connection.execute(sa.update(t.routers).values(model=b"damaged"))
        else:
            service.arms.unbuildable = frozenset({"fused"})
        record(service, brought)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                await service.refresh()
                await asyncio.sleep(0)
        await look_up(service)
        last = decisions(service)[-1]
        assert (last.version, set(last.arms)) == (before, set(CONFIG["arms"]))
        warned = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        assert len(warned) == 1
        assert ("router" if what == "router" else "fused") in warned[0]
        if what == "router":  # the configured recipe is learned and served in its place
            (later,) = await learned(service)
            assert await deciding(service) == later
            assert list(service.replica.turns.arms) == list(CONFIG["arms"])


async def test_a_promotion_of_a_version_that_cannot_serve_is_refused(tmp_path: Path) -> None:
    async with Service(tmp_path, arms=ARMS, promotion_gate=FakeGate(True)).running() as service:
        brought = bringing(service)
        with service.replica.store.writing() as connection:
            connection.execute(sa.delete(t.routers))
        message = refused(await say(service, "promote", brought.version), 409, "promotion_refused", "version")
        assert "its router: router" in message
        assert "is missing" in message


# -- a canary with another router --------------------------------------------------------------------


async def canary(service: Service, version: int) -> Any:
    body = {"reason": "because", "share": 0.5}
    return await service.client.post(f"/v1/policies/{version}/canary", json=body)


@pytest.mark.slow
async def test_a_canary_sees_the_scores_of_its_own_router_and_is_verified_with_them(on_each: Service) -> None:
    (before,) = await learned(on_each)
    brought = bringing(on_each, arms=None)
    assert (await canary(on_each, brought.version)).status_code == 200
    await look_up(on_each)
    last = decisions(on_each)[-1]
    assert (last.version, last.candidate, last.share) == (before, brought.version, 0.5)
    assert advised(last) == set()
    assert set(last.steps["canary"]["scores"]) == {"none", "bm25"}
    assert await verified(on_each, last)
    assert brought.router is not None
    (seen,) = router_contexts.read_contexts(on_each.replica.store, [last], brought.router)
    assert seen == last.candidate_context
    assert router_contexts.read_contexts(on_each.replica.store, [last], None) == [last.context]
    unscored = dict(router_contexts.list_unscored(on_each.replica.store, brought.router, newest=100))
    assert last.id not in unscored


@pytest.mark.slow
async def test_a_canary_beside_a_promoted_router_decides_without_its_scores(tmp_path: Path) -> None:
    async with Service(tmp_path, arms=ARMS).running() as service:
        (before,) = await learned(service)
        brought = bringing(service, arms=None)
        await force(service, brought.version)
        assert (await canary(service, before)).status_code == 200
        await look_up(service)
        last = decisions(service)[-1]
        assert (last.version, last.candidate) == (brought.version, before)
        assert last.steps["canary"]["scores"] == {}
        assert advised(last) == {"none", "bm25"}
        assert await verified(service, last)


@pytest.mark.slow
async def test_a_canary_with_other_arms_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    async with Service(tmp_path, arms=ARMS).running() as service:
        brought = bringing(service)
        message = refused(await canary(service, brought.version), 409, "promotion_refused", "version")
        assert "brings other arms than the live ones" in message
        assert "`armwise policy apply`" in message


async def test_a_router_that_looks_at_passages_is_served_with_a_version(tmp_path: Path) -> None:
    async with Service(tmp_path, arms=ARMS).running() as service:
        brought = bringing(service, arms=None, kind="max_sim")
        await force(service, brought.version)
        await look_up(service)
        last = decisions(service)[-1]
        assert (last.version, advised(last)) == (brought.version, {"none", "bm25"})
        assert {arm for arm, _, _ in service.arms.calls} >= {"none", "bm25"}
        assert await verified(service, last)


def test_a_candidate_learns_from_how_well_earlier_questions_fitted(tmp_path: Path) -> None:
    fits = {"d-0": {"bm25": 0.6, "none": 0.2}, "d-1": {}, "d-2": {"bm25": 0.5}}
    backbones = {"tiny": Backbone(model=f"hashing:{DIM}")}
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}", RULE.join)) as store:
        router = stored(store, tmp_path / "router", "calibrated", router={"kind": "source_fit"})
        for number, fit in enumerate(fits.values()):
            decision, *others = facts(number)
            assert isinstance(decision, Decision)
            arms = {arm: {SIMILARITY: fit[arm]} if arm in fit else {} for arm in decision.arms}
            decision = replace(decision, context=replace(decision.context, arms=arms), version=0)
            store.append([decision, *others])
        Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(2000.0)
        recipe = Recipe(POLICY, RULE, router=router)
        published = publish_candidate(store, recipe, SCORED, backbones=backbones)
        assert published.examples_seq == 3
        assert router_contexts.list_unscored(store, router, newest=10) == [], "also those that stay without"
        made = router_contexts.read_decisions(store, [*fits])
        contexts = router_contexts.read_contexts(store, made, router)
        first = restore_policy(store, published, RULE, SCORED).save()
        lose(store, published.version)
        assert restore_policy(store, published, RULE, SCORED).save() == first, "it is learned again"
    scores = [[context.arms[arm].get(ROUTER) for arm in ("none", "bm25")] for context in contexts]
    assert scores == [pytest.approx([0.25, 0.75]), [None, None], pytest.approx([0.0, 1.0])]


async def test_a_candidate_that_reads_how_well_a_question_fits_needs_that_feature(tmp_path: Path) -> None:
    async with Service(tmp_path, arms=ARMS, promotion_gate=FakeGate(True)).running() as service:
        brought = bringing(service, kind="source_fit")
        message = refused(await say(service, "promote", brought.version), 409, "promotion_refused", "version")
        assert "add `features: {similarity: {}}`" in message
