"""A promotion rests on a verdict about what is served now."""

from functools import partial
from pathlib import Path

import httpx

from armwise.agent.evaluation import EvaluationRequest, verdict
from armwise.agent.learning import Recipe, digest_configuration, publish_candidate
from armwise.agent.policies import PolicySpec
from armwise.feedback.registry import evaluations
from tests.agent.asking import refused
from tests.agent.fakes import Service


def published(service: Service) -> int:
    """Publish a version of another recipe, which has to pass the gate."""
    recipe = Recipe(PolicySpec(kind="linucb"), service.config.reward)
    return publish_candidate(service.replica.store, recipe, list(service.config.actions)).version


def approve(service: Service, version: int) -> int:
    """Record an evaluation by which the gate promotes a version; return its number."""
    store, configured = service.replica.store, digest_configuration(service.config)
    request = EvaluationRequest(candidates=(f"recipe:{version}",), gate=True).model_dump(mode="json")
    evaluations.submit(store, configured, request, service.replica.clock())
    return let_through(service)


def let_through(service: Service) -> int:
    """Answer the oldest evaluation that is queued with a promotion; return its number."""
    store, configured, now = (
        service.replica.store,
        digest_configuration(service.config),
        service.replica.clock,
    )
    claimed = evaluations.claim(store, configured, "worker", now())
    assert claimed is not None
    (name,) = claimed.request["candidates"]
    report = {"candidates": [{"name": name, "verdict": {"promote": True, "reasons": []}}]}
    evaluations.finish(store, claimed, evaluations.StoredResult(report, "<html>"), now())
    return claimed.seq


async def post(service: Service, version: int, action: str, **said: float) -> httpx.Response:
    return await service.client.post(f"/v1/policies/{version}/{action}", json={"reason": "better", **said})


def without_waiting(service: Service) -> None:
    """Let the gate answer at once where it has no verdict: no worker evaluates."""
    service.replica.gate = partial(verdict, wait_s=0.0)


async def test_a_fresh_verdict_is_used(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        without_waiting(service)
        candidate = published(service)
        number = approve(service, candidate)
        answer = await post(service, candidate, "promote")
        assert answer.status_code == 200, answer.text
        assert answer.json()["promotion"]["evaluation"] == number


async def test_a_canary_is_promoted_by_the_verdict_on_what_decided(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        without_waiting(service)
        candidate = published(service)
        assert (await post(service, candidate, "canary", share=0.5)).status_code == 200
        approve(service, candidate)
        refused(await post(service, candidate, "promote"), 503, "evaluation_under_way")
        queued = evaluations.page(service.replica.store, 1)[0]
        assert queued.request["candidates"] == [f"canary:{candidate}"], "the recipe is not what had a share"
        number = let_through(service)
        answer = await post(service, candidate, "promote")
        assert (answer.status_code, answer.json()["promotion"]["evaluation"]) == (200, number)


async def test_a_verdict_from_before_the_last_promotion_is_not_used(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        without_waiting(service)
        candidate = published(service)
        number = approve(service, candidate)
        assert (await post(service, 1, "rollback")).status_code == 200
        message = refused(await post(service, candidate, "promote"), 503, "evaluation_under_way")
        assert f"evaluation {number + 1}" in message, "it is evaluated again, against what is served now"
        serving = (await service.client.get("/v1/policy")).json()
        assert (serving["version"], serving["promotion"]) == (1, None)
