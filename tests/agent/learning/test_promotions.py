"""Rollback and promotion: what an operator says of a version is served by every replica, and kept."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from armwise.agent.cli.service import describe_serving
from armwise.agent.learning.learner import publish_candidate
from armwise.agent.learning.recipe import Recipe
from armwise.agent.policies import Policy, PolicyError, PolicySpec
from armwise.feedback.errors import QueueFullError, UndecidedError
from armwise.feedback.log import tables as t
from armwise.feedback.registry import Version, promotions
from armwise.feedback.registry import versions as registry_versions
from tests.agent.asking import look_up, refused, tell
from tests.agent.fakes import CONFIG, FakeGate, Service


async def learned(service: Service, versions: int = 1) -> list[int]:
    """Give it something to learn, so often; return the versions that came of it."""
    found = []
    for _ in range(versions):
        decision_id = (await look_up(service)).json()["agent"]["decision_id"]
        await tell(service, decision_id)
        version = await asyncio.to_thread(service.learner.step)
        assert version is not None
        found.append(version.version)
    await service.refresh()
    return found


async def say(service: Service, action: str, version: int, reason: str = "because") -> httpx.Response:
    return await service.client.post(f"/v1/policies/{version}/{action}", json={"reason": reason})


async def shown(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = (await service.client.get("/v1/policy")).json()
    return found


async def listed(service: Service, **query: int) -> dict[str, Any]:
    response = await service.client.get("/v1/policies", params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def deciding(service: Service) -> int:
    """The version that made a decision."""
    return int((await look_up(service)).json()["agent"]["policy_version"])


def prune(service: Service, version: int) -> None:
    with service.replica.store.writing() as connection:
        connection.execute(sa.update(t.versions).where(t.versions.c.version == version).values(state=None))


# -- which version is served -------------------------------------------------------------------------


@pytest.mark.slow
async def test_after_a_rollback_exactly_that_version_decides_while_learning_goes_on(on_each: Service) -> None:
    chosen, newest = await learned(on_each, 2)
    before = await shown(on_each)
    assert before["serving"] == {
        "version": newest,
        "pinned": False,
        "chosen": None,
        "since": None,
        "reason": None,
    }
    answer = await say(on_each, "rollback", chosen, "worse answers since noon")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["serving"]["version"], body["serving"]["pinned"]) == (chosen, True)
    assert body["serving"]["reason"] == "worse answers since noon"
    assert body["serving"]["since"] > before["created_at"]
    assert await deciding(on_each) == chosen
    (later,) = await learned(on_each)
    after = await shown(on_each)
    assert await deciding(on_each) == after["version"] == chosen
    assert after["newest"]["version"] == later > newest
    assert after["applied_seq"] == body["applied_seq"] < body["log_seq"], "it never learns what came later"
    assert after == body | {name: after[name] for name in ("newest", "log_seq", "feedback")}


async def test_after_a_promotion_the_newest_version_decides_and_those_after_it(service: Service) -> None:
    chosen, newest = await learned(service, 2)
    await say(service, "rollback", chosen)
    body = (await say(service, "promote", newest)).json()
    assert body["serving"] == {
        "version": newest,
        "pinned": False,
        "chosen": None,
        "since": None,
        "reason": None,
    }
    assert await deciding(service) == newest
    (later,) = await learned(service)
    assert await deciding(service) == later


@pytest.mark.slow
async def test_a_rollback_does_not_hold_another_reward(
    tmp_path: Path,
) -> None:
    async with Service(tmp_path).running() as service:
        (chosen,) = await learned(service)
        await say(service, "rollback", chosen)
    reward = {**CONFIG["reward"], "cost_weight": 0.5}
    async with Service(tmp_path, reward=reward).running() as priced:
        assert await deciding(priced) > chosen
        assert not (await shown(priced))["serving"]["pinned"]
    async with Service(tmp_path).running(ready=False) as back:
        await back.refresh()
        assert await deciding(back) == chosen


# -- another recipe ----------------------------------------------------------------------------------


def publish(service: Service) -> Version:
    """Publish a candidate of another policy."""
    recipe = Recipe(PolicySpec(kind="linucb"), service.config.reward)
    return publish_candidate(service.replica.store, recipe, list(service.config.actions))


async def promote(service: Service, version: int, *, force: bool = False) -> httpx.Response:
    body = {"reason": "better", "force": force}
    return await service.client.post(f"/v1/policies/{version}/promote", json=body)


async def taught(service: Service) -> Version:
    """Give it something to learn, as the recipe that is followed does; return what came of it."""
    await tell(service, (await look_up(service)).json()["agent"]["decision_id"])
    await service.learn()
    version = service.replica.versions.version
    assert version is not None
    return version


@pytest.mark.slow
async def test_a_promoted_recipe_is_served_and_learned_from_there_on(tmp_path: Path, log_url: str) -> None:
    async with Service(
        tmp_path, promotion_gate=FakeGate(True, evaluation=12), log_url=log_url
    ).running() as service:
        before = await taught(service)
        candidate = publish(service)
        assert (await shown(service))["promotion"] is None
        body = (await promote(service, candidate.version)).json()
        assert (body["kind"], body["version"], body["serving"]["pinned"]) == (
            "linucb",
            candidate.version,
            False,
        )
        assert body["promotion"] == {
            "version": candidate.version,
            "since": body["promotion"]["since"],
            "reason": "better",
            "forced": False,
            "evaluation": 12,
            "deciding": True,
        }
        made = (await look_up(service)).json()["agent"]["decision_id"]
        record = (await service.client.get(f"/v1/decisions/{made}")).json()
        assert (record["policy"], record["policy_version"]) == ("linucb", candidate.version)
        after = await taught(service)
        assert (after.recipe, after.parent) == (candidate.recipe, candidate.version)
        assert after.examples_seq == before.examples_seq + 1
        said = (await listed(service))["promotions"]
        assert [(one["action"], one["forced"], one["evaluation"]) for one in said] == [("promote", False, 12)]


async def test_other_replicas_follow_a_promotion_and_answer_all_the_while(tmp_path: Path) -> None:
    async with Service(tmp_path, promotion_gate=FakeGate(True)).running() as service:
        candidate = publish(service)
        async with Service(tmp_path).running(ready=False) as other:
            await other.refresh()
            answers = [await look_up(other)]
            await promote(service, candidate.version)
            answers.append(await look_up(other))
            await other.refresh()
            answers.append(await look_up(other))
            assert [one.status_code for one in answers] == [200] * 3
            first, meanwhile, last = (one.json()["agent"]["policy_version"] for one in answers)
            assert (first, last) == (1, candidate.version)
            assert meanwhile in (first, last), "it looks for itself, each second"
    async with Service(tmp_path).running() as again:
        assert await deciding(again) == candidate.version, "a restart keeps it"
        assert again.learner.recipe == Recipe(PolicySpec(kind="linucb"), again.config.reward)


@pytest.mark.slow
async def test_the_configured_recipe_can_come_back(
    tmp_path: Path,
) -> None:
    async with Service(tmp_path, promotion_gate=FakeGate(True)).running() as service:
        ours, candidate = await taught(service), publish(service)
        await promote(service, candidate.version)
        body = (await say(service, "rollback", ours.version)).json()
        assert (body["version"], body["kind"]) == (ours.version, "vowpal")
        await tell(service, (await look_up(service)).json()["agent"]["decision_id"])
        await service.learn()
        assert service.learner.recipe.digest == candidate.recipe, "which goes on learning meanwhile"
        body = await shown(service)
        assert (body["version"], body["newest"]["parent"]) == (ours.version, candidate.version)
        assert (await promote(service, ours.version)).status_code == 200
        following = await taught(service)
        assert (following.recipe, following.parent) == (ours.recipe, ours.version)
        assert following.examples_seq == 3, "it learns what happened meanwhile"


async def test_the_gate_holds_a_candidate_and_says_why(tmp_path: Path) -> None:
    gate = FakeGate(False, "the gain may be none", "too few rows", evaluation=7)
    async with Service(tmp_path, promotion_gate=gate).running() as service:
        candidate = publish(service).version
        response = await promote(service, candidate)
        message = refused(response, 409, "promotion_gate_failed", "version")
        assert message == f"version {candidate} is held by the gate: the gain may be none; too few rows"
        assert response.json()["error"]["reasons"] == ["the gain may be none", "too few rows"]
        assert gate.asked == [candidate]
        assert (await listed(service))["promotions"] == []
        assert await deciding(service) == 1


async def test_a_rollback_is_no_way_around_the_gate(tmp_path: Path) -> None:
    async with Service(tmp_path, promotion_gate=FakeGate(False, "too few rows")).running() as service:
        candidate = publish(service)
        message = refused(
            await say(service, "rollback", candidate.version), 409, "promotion_refused", "version"
        )
        assert f"version {candidate.version} is of recipe {candidate.recipe[:12]}" in message
        assert "promote it" in message
        await promote(service, candidate.version, force=True)
        following = await taught(service)
        assert (await say(service, "rollback", candidate.version)).json()["version"] == candidate.version
        await say(service, "rollback", 1)
        await say(service, "rollback", following.version)
        assert await deciding(service) == following.version


async def test_a_candidate_that_names_an_arm_that_is_gone_is_refused(tmp_path: Path) -> None:
    gate = FakeGate(True)
    async with Service(tmp_path, promotion_gate=gate).running() as service:
        fixed = Recipe(PolicySpec(kind="fixed", params={"arm": "colbert"}), service.config.reward)
        gone = publish_candidate(service.replica.store, fixed, ["none", "colbert"]).version
        message = refused(await promote(service, gone), 409, "promotion_refused", "version")
        assert message.startswith(f"version {gone} cannot serve here: policy 'fixed' names the arm 'colbert'")
        refused(await promote(service, gone, force=True), 409, "promotion_refused", "version")
        assert (gate.asked, (await listed(service))["promotions"]) == ([], [])


async def test_a_forced_promotion_is_recorded_as_forced(tmp_path: Path) -> None:
    gate = FakeGate(False, "too few rows", evaluation=7)
    async with Service(tmp_path, promotion_gate=gate).running() as service:
        candidate = publish(service).version
        body = (await promote(service, candidate, force=True)).json()
        assert body["version"] == candidate
        assert (body["promotion"]["forced"], body["promotion"]["evaluation"]) == (True, 7)
        (said,) = (await listed(service))["promotions"]
        assert (said["forced"], said["evaluation"]) == (True, 7)


async def test_what_the_gate_lets_through_is_not_forced_although_that_was_allowed(tmp_path: Path) -> None:
    async with Service(tmp_path, promotion_gate=FakeGate(True, evaluation=7)).running() as service:
        body = (await promote(service, publish(service).version, force=True)).json()
        assert (body["promotion"]["forced"], body["promotion"]["evaluation"]) == (False, 7)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UndecidedError("evaluation 7 goes on"), 503, "evaluation_under_way"),
        (QueueFullError("too many wait"), 429, "too_many_evaluations"),
    ],
)
async def test_without_a_verdict_a_candidate_can_only_be_forced(
    tmp_path: Path, error: Exception, status: int, code: str
) -> None:
    gate = FakeGate(True)
    gate.error = error
    async with Service(tmp_path, promotion_gate=gate).running() as service:
        candidate = publish(service).version
        assert refused(await promote(service, candidate), status, code) == str(error)
        assert (await listed(service))["promotions"] == []
        body = (await promote(service, candidate, force=True)).json()
        assert (body["promotion"]["forced"], body["promotion"]["evaluation"]) == (True, None)


@pytest.mark.slow
async def test_the_recipe_that_is_followed_passes_no_gate(tmp_path: Path) -> None:
    gate = FakeGate(False, "never")
    async with Service(tmp_path, promotion_gate=gate).running() as service:
        chosen, newest = await learned(service, 2)
        await say(service, "rollback", chosen)
        assert (await say(service, "promote", newest)).json()["version"] == newest
        await promote(service, publish(service).version, force=True)
        following = await taught(service)
        assert (await say(service, "promote", following.version)).json()["version"] == following.version
        assert len(gate.asked) == 1


async def test_a_promotion_that_cannot_be_followed_here_leaves_the_version_before_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Service(tmp_path, promotion_gate=FakeGate(True)).running() as service:
        candidate = publish(service).version
        monkeypatch.setattr("armwise.feedback.registry.versions.checkpoint", lambda *_: b"damaged")
        message = refused(await promote(service, candidate), 503, "not_ready", "version")
        assert message == f"version {candidate} was promoted and cannot be read here: version 1 still decides"
        assert await deciding(service) == 1
        monkeypatch.undo()
        await service.refresh()
        assert await deciding(service) == candidate


class BusyGate(FakeGate):
    """A gate that lets others speak while it judges."""

    def __init__(self, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(True)
        self._meanwhile = meanwhile

    async def __call__(self, *args: Any, **options: Any) -> dict[str, Any]:
        await self._meanwhile()
        return await super().__call__(*args, **options)


async def test_what_is_said_while_the_gate_judges_is_not_overridden(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        chosen, _ = await learned(service, 2)
        service.replica.gate = BusyGate(lambda: say(service, "rollback", chosen, "incident"))
        message = refused(
            await promote(service, publish(service).version), 409, "changed_meanwhile", "version"
        )
        (rollback,) = promotions.newest(service.replica.store, 2)
        assert message == f"promotion {rollback.seq} changed the active policy in the meantime"
        assert await deciding(service) == chosen


# -- bytes -------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_bytes_of_a_version_that_holds_are_never_pruned(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        _, chosen = await learned(service, 2)
        await say(service, "rollback", chosen)
        newest = (await learned(service, registry_versions.KEPT_CHECKPOINTS + 2))[-1]
        assert not registry_versions.is_kept(chosen, newest)
        assert not registry_versions.is_kept(chosen + 2, newest)
        assert registry_versions.checkpoint(service.replica.store, chosen) is not None
        found = {one["version"]: one for one in (await listed(service))["versions"]}
        assert (found[chosen]["kept"], found[chosen + 2]["kept"], found[newest]["kept"]) == (
            True,
            False,
            True,
        )
        assert (found[chosen]["serving"], found[newest]["serving"]) == (True, False)
    async with Service(tmp_path).running() as again:
        assert await deciding(again) == chosen


@pytest.mark.slow
async def test_a_version_whose_bytes_are_lost_is_learned_again_and_its_bytes_put_back(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        chosen, newest = await learned(service, 2)
        prune(service, chosen)
        assert (await say(service, "rollback", chosen)).status_code == 200
        assert await deciding(service) == chosen
        assert registry_versions.checkpoint(service.replica.store, chosen) is not None
        prune(service, chosen)
        assert newest > chosen
    async with Service(tmp_path).running() as again:
        assert await deciding(again) == chosen, "as no other version may decide"


async def test_a_version_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        chosen, newest = await learned(service, 2)
        prune(service, chosen)
        with service.replica.store.writing() as connection:
            connection.execute(sa.update(t.examples).values(metrics={"thumb": -1.0}))
        message = refused(await say(service, "rollback", chosen), 409, "version_unavailable", "version")
        assert f"checkpoint of version {chosen} is missing or damaged" in message
        assert (await listed(service))["promotions"] == []
        assert await deciding(service) == newest


def unreadable(*_: object, **__: object) -> Policy:
    raise PolicyError("cannot be learned again")


@pytest.mark.slow
async def test_a_chosen_version_that_cannot_be_read_is_told_beside_the_one_that_decides(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, newest = await learned(service, 2)
    monkeypatch.setattr("armwise.agent.serving.versions.restore_policy", unreadable)
    message = refused(await say(service, "rollback", chosen, "worse"), 503, "not_ready", "version")
    assert message == f"version {chosen} was chosen and cannot be read here: version {newest} still decides"
    told = (await shown(service))["serving"]
    assert (told["version"], told["chosen"], told["pinned"], told["reason"]) == (
        newest,
        chosen,
        True,
        "worse",
    )
    assert f"version {newest}, although version {chosen} was chosen" in describe_serving(await shown(service))
    monkeypatch.undo()
    await service.refresh()
    assert await deciding(service) == chosen


async def test_a_promotion_needs_no_bytes_of_the_version_that_it_names(service: Service) -> None:
    chosen, newest = await learned(service, 2)
    await say(service, "rollback", newest)
    prune(service, chosen)
    with service.replica.store.writing() as connection:
        connection.execute(sa.update(t.examples).values(metrics={"thumb": -1.0}))
    body = (await say(service, "promote", chosen)).json()
    assert (body["serving"]["version"], body["serving"]["pinned"]) == (newest, False)


# -- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["promote", "rollback"])
async def test_what_cannot_be_served_is_refused_and_leaves_no_word(tmp_path: Path, action: str) -> None:
    reward = {**CONFIG["reward"], "cost_weight": 0.5}
    async with Service(tmp_path, reward=reward).running() as service:
        other = service.replica.versions.version
    assert other is not None
    gate = FakeGate(True)
    async with Service(tmp_path, promotion_gate=gate).running() as service:
        ours = service.replica.versions.version
        assert ours is not None
        message = refused(await say(service, action, other.version), 409, "promotion_refused", "version")
        assert f"version {other.version} is of recipe {other.recipe[:12]}: " in message
        assert "another reward" in message
        message = refused(await say(service, action, 99), 404, "version_not_found", "version")
        assert message == "there is no version 99"
        assert (await listed(service))["promotions"] == []
        assert await deciding(service) == ours.version
        assert gate.asked == []


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("/v1/policies/1/rollback", {}, "invalid_request", "reason"),
        ("/v1/policies/1/rollback", {"reason": ""}, "invalid_value", "reason"),
        ("/v1/policies/1/promote", {"reason": "x" * 1001}, "invalid_value", "reason"),
        ("/v1/policies/1/promote", {"reason": "x", "force": 1}, "invalid_value", "force"),
        ("/v1/policies/1/rollback", {"reason": "x", "force": True}, "invalid_request", "force"),
        ("/v1/policies/1/canary", {"reason": "x"}, "invalid_request", "share"),
        ("/v1/policies/0/promote", {"reason": "x"}, "invalid_value", "version"),
        ("/v1/policies/newest/promote", {"reason": "x"}, "invalid_value", "version"),
        (f"/v1/policies/{2**63}/rollback", {"reason": "x"}, "invalid_value", "version"),
    ],
)
async def test_a_word_must_name_a_version_and_a_reason(
    service: Service, path: str, body: dict[str, Any], code: str, param: str
) -> None:
    refused(await service.client.post(path, json=body), 400, code, param)


# -- looking -----------------------------------------------------------------------------------------


async def test_versions_are_told_newest_first_and_page_by_page(service: Service) -> None:
    made = [1, *await learned(service, 3)]
    versions = (await listed(service))["versions"]
    assert [one["version"] for one in versions] == made[::-1]
    served = service.replica.versions.version
    assert isinstance(served, Version)
    assert versions[0] == {
        "version": served.version,
        "parent": served.parent,
        "recipe": served.recipe[:12],
        "kind": "vowpal",
        "params": {"args": "--cb_explore_adf --epsilon 0.05"},
        "examples_seq": 3,
        "applied_seq": served.applied_seq,
        "digest": served.digest,
        "created_at": served.created_at,
        "start": None,
        "router": None,
        "arms": None,
        "kept": True,
        "serving": True,
    }
    assert [one["serving"] for one in versions] == [True, False, False, False]
    first = (await listed(service, limit=3))["versions"]
    rest = (await listed(service, limit=3, before=first[-1]["version"]))["versions"]
    assert first + rest == versions
    for query, param in (({"limit": 0}, "limit"), ({"limit": 1001}, "limit"), ({"before": 0}, "before")):
        refused(await service.client.get("/v1/policies", params=query), 400, "invalid_value", param)
