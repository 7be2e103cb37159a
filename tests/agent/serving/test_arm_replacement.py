"""Replacing the live arms: at once for new turns, never for one under way, and never half."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.agent.api.operations import arms as operations
from armwise.agent.api.schemas import ArmDescription
from armwise.agent.config import ConfigError
from armwise.agent.hosts import arms as hosts
from armwise.agent.hosts.learner import LearnerHost
from armwise.agent.lab.warmstart.run import RunSnapshot
from armwise.agent.learning import publish_candidate
from armwise.agent.policies import PolicySpec
from armwise.agent.run_folder import RUN_FOLDER, BuildingProgress
from armwise.agent.turn import Ask, NoEligibleArmError
from armwise.arms.base import ArmBuildError, Query, Retrieval
from armwise.arms.retrievers import ArmSpec
from armwise.feedback.registry import arm_sets
from tests.agent.asking import look_up, refused, tell
from tests.agent.attacks import MODULE, a_trap
from tests.agent.fakes import CONFIG, FakeGate, Service
from tests.agent.learning.test_promotions import deciding, say

OWN = "tests.arms.retrievers.test_catalog:Own"

NEW = {
    "none": {"kind": "none"},
    "fused": {"kind": "rrf", "params": {"arms": ["bm25", "dense"]}},
    "bm25": {"kind": "bm25", "action": False},
    "dense": {"kind": "dense", "params": {"backbone": "tiny"}, "action": False},
}


async def put(service: Service, arms: dict[str, Any], **rest: Any) -> httpx.Response:
    return await service.client.put("/v1/arms", json={"arms": arms, **rest})


def names(response: httpx.Response) -> list[str]:
    return [arm["name"] for arm in response.json()["arms"]]


async def refreshed_until_served(service: Service, *arms: str) -> None:
    async with asyncio.timeout(30):
        while tuple(service.point.turns.arms) != arms:
            await service.refresh()


async def test_the_new_arms_are_built_and_then_chosen_among(service: Service) -> None:
    replaced = await put(service, NEW)
    assert replaced.status_code == 200, replaced.text
    assert names(replaced) == ["none", "fused"]
    assert set(service.arms.loaded) == {frozenset(NEW)}
    pmf = (await look_up(service)).json()["agent"]["pmf"]
    assert set(pmf) == {"none", "fused"}


async def test_a_part_of_an_arm_is_no_action_and_cannot_be_forced(service: Service) -> None:
    await put(service, NEW)
    refused = await service.client.post("/v1/retrieve", json={"query": "Who?", "model": "arm/bm25"})
    assert refused.status_code == 404
    assert "there are: auto, arm/none, arm/fused" in refused.json()["error"]["message"]


async def test_while_a_first_start_builds_an_arm_its_live_part_answers_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = {"large": {**NEW["fused"], "answering": {"llm": "large"}}}
    whole = {
        **dear,
        "hybrid": NEW["fused"],
        "near": {**NEW["dense"], "action": True},
        "none": {"kind": "none"},
    }
    parts = {"bm25": NEW["bm25"], "dense": NEW["dense"], "pair": {**NEW["fused"], "action": False}}
    llms = {"large": {"engine": "scripted", "default": ""}}
    async with Service(tmp_path, arms={**whole, **parts}, llms=llms).running() as service:
        await put(service, {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}})

        async def asked(model: str) -> httpx.Response:
            return await service.client.post("/v1/retrieve", json={"query": "Who?", "model": model})

        async def listed() -> list[str]:
            models = (await service.client.get("/v1/models")).json()["data"]
            return [model["id"] for model in models if model["id"].startswith("arm/")]

        assert (await asked("arm/hybrid")).status_code == 404, "it was replaced, and nothing builds it"
        assert await listed() == ["arm/none", "arm/bm25"]
        monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
        progress = BuildingProgress(tmp_path)
        progress("embedding passages", 3, 9)
        answered = await asked("arm/hybrid")
        assert answered.json()["agent"]["arm_served"] == "bm25", answered.text
        assert (await asked("arm/near")).status_code == 404, "no part of it is live"
        assert (await asked("arm/pair")).status_code == 404, "it is a part of others"
        assert (await asked("arm/large")).status_code == 404, "its words would be answered by another model"
        assert await listed() == ["arm/none", "arm/bm25", "arm/hybrid"]
        progress.end()
        assert (await asked("arm/hybrid")).status_code == 404


async def test_what_was_learned_of_an_arm_that_stays_is_kept(service: Service) -> None:
    before = service.point.versions.version
    await put(service, NEW)
    assert service.point.versions.version == before
    assert (await look_up(service)).json()["agent"]["policy_version"] == before.version  # type: ignore[union-attr]


async def test_a_turn_under_way_ends_with_the_arm_that_was_drawn_for_it(service: Service) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_query: Query, _k: int) -> Retrieval:
        reached.set()
        await go_on.wait()
        return Retrieval()

    service.arms.behaviour["dense"] = slow
    turn = asyncio.create_task(
        service.client.post("/v1/retrieve", json={"query": "Who?", "model": "arm/dense"})
    )
    await reached.wait()
    await put(service, NEW)
    go_on.set()
    answer = await turn
    assert answer.status_code == 200
    assert answer.json()["agent"]["arm_served"] == "dense"


async def test_another_replica_follows_at_its_next_look(service: Service) -> None:
    await put(service, NEW)
    other = Service(service.folder)
    async with other.running(ready=False):
        await other.refresh()
        assert list(other.point.turns.arms) == ["none", "fused"]
        assert other.arms.loaded == [frozenset(NEW)]


async def test_an_arm_that_was_switched_off_stays_off_when_it_stays(service: Service) -> None:
    await service.client.patch("/v1/arms/none", json={"enabled": False})
    replaced = await put(service, NEW)
    assert {arm["name"]: arm["enabled"] for arm in replaced.json()["arms"]} == {"none": False, "fused": True}


@pytest.mark.parametrize(
    ("arms", "status", "message"),
    [
        ({"x": {"kind": "bm52"}}, 400, "arm 'x': unknown kind 'bm52'; did you mean 'bm25'"),
        ({"x": {"kind": "dense", "params": {"backbone": "huge"}}}, 400, "unknown backbone 'huge'"),
        ({"x": {"kind": "bm25", "action": False}}, 400, "no arm is an action"),
        ({"bm25": {"kind": "bm25", "params": {"k1": 2.0}}}, 409, "arm 'bm25' was"),
        ({}, 400, "at least 1"),
        ({"a b": {"kind": "bm25"}}, 400, "is not a valid name"),
    ],
)
async def test_wrong_arms_are_refused_and_the_live_ones_stay(
    service: Service, arms: dict[str, Any], status: int, message: str
) -> None:
    refused = await put(service, arms)
    assert refused.status_code == status, refused.text
    assert message in refused.json()["error"]["message"]
    assert names(await service.client.get("/v1/arms")) == list(CONFIG["arms"])


async def test_arms_chosen_with_another_encoder_of_the_same_name_are_refused(service: Service) -> None:
    refused = await put(service, NEW, backbones={"tiny": {"model": "hashing:7"}})
    assert refused.status_code == 400
    assert "backbone 'tiny' is {'model': 'hashing:16'" in refused.json()["error"]["message"]
    accepted = await put(service, NEW, backbones={"tiny": CONFIG["backbones"]["tiny"]})
    assert accepted.status_code == 200


async def test_arms_that_cannot_be_built_change_nothing(service: Service) -> None:
    service.arms.unbuildable = frozenset({"fused"})
    refused = await put(service, NEW)
    assert refused.status_code == 502
    assert refused.json()["error"]["message"] == "arm 'fused' cannot be built"
    service.arms.unbuildable = frozenset()
    await service.refresh()
    assert names(await service.client.get("/v1/arms")) == list(CONFIG["arms"])


@pytest.mark.slow
async def test_a_replica_that_cannot_build_them_says_so_once_and_serves_the_arms_before(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    await put(service, NEW)
    other = Service(service.folder)
    other.arms.unbuildable = frozenset({"fused"})
    with caplog.at_level(logging.WARNING):
        async with other.running(ready=False):
            for _ in range(5):
                await other.refresh()
            assert list(other.point.turns.arms) == list(CONFIG["arms"])
    warned = [record.message for record in caplog.records if record.name == "armwise.agent.serving.arms"]
    assert warned == ["still serving the arms before set 2: arm 'fused' cannot be built"]


async def test_arms_that_could_not_be_built_are_tried_again_later(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.serving.arms.REBUILD_S", 0.0)
    await put(service, NEW)
    other = Service(service.folder)
    other.arms.unbuildable = frozenset({"fused"})
    async with other.running(ready=False):
        await other.refresh()
        other.arms.unbuildable = frozenset()
        await refreshed_until_served(other, "none", "fused")


async def test_versions_and_switches_are_followed_while_arms_are_built(service: Service) -> None:
    other = Service(service.folder)
    built = asyncio.Event()

    async def slow(_specs: object) -> None:
        await built.wait()

    async with other.running(ready=False):
        await other.refresh()
        other.arms.load = slow  # type: ignore[method-assign]
        await put(service, NEW)
        await service.client.patch("/v1/arms/none", json={"enabled": False})
        await tell(service, (await look_up(service)).json()["agent"]["decision_id"])
        await other.learn()
        await service.refresh()
        assert list(other.point.turns.arms) == list(CONFIG["arms"])
        assert not other.point.turns.arms["none"].enabled
        assert other.point.versions.version == service.point.versions.version
        built.set()
        await refreshed_until_served(other, "none", "fused")
        assert not other.point.turns.arms["none"].enabled


async def test_a_refused_set_leaves_the_arms_that_are_run_as_they_were(service: Service) -> None:
    await put(service, {"bm25": {"kind": "bm25", "params": {"k1": 2.0}}})
    assert service.arms.known == frozenset(CONFIG["arms"])


async def test_code_comes_in_by_the_configuration_file_alone(service: Service) -> None:
    refused = await put(service, {"x": {"kind": "this:s"}})
    assert refused.status_code == 400
    assert "only an arm of the configuration file can bring it in" in refused.json()["error"]["message"]


REMOTE = {"url": "http://127.0.0.1:9/search", "request": {"q": "{question}"}}

ROUTER = {"router": "/etc", "backbone": "tiny"}

ATTACKS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "os:system"}, "'os:system' is code of your own"),
    ({"kind": f"{MODULE}:call"}, f"'{MODULE}:call' is code of your own"),
    ({"kind": OWN, "params": {"greeting": "../../etc"}}, f"'{OWN}' is code of your own"),
    ({"kind": "remote", "params": REMOTE}, "127.0.0.1:9 is not a host that `new_arms.hosts`"),
    (
        {"kind": "remote", "params": {**REMOTE, "url": "http://169.254.169.254/latest/meta-data"}},
        "169.254.169.254:80 is not a host",
    ),
    ({"kind": "mcp", "params": {"url": REMOTE["url"]}}, "127.0.0.1:9 is not a host that `new_arms.hosts`"),
    ({"kind": "remote", "params": {**REMOTE, "url": "http://named.example@evil/"}}, "evil:80 is not a host"),
    ({"kind": "remote", "params": {**REMOTE, "url": "http://named.example.evil/"}}, "is not a host"),
    ({"kind": "remote", "params": {**REMOTE, "url": "http://named.example:8443/"}}, "is not a host"),
    (
        {"kind": "remote", "params": {**REMOTE, "url": "http://named.example/", "header_env": {"X": "HOME"}}},
        "the variable HOME may not be sent to named.example:80",
    ),
    (
        {"kind": "remote", "params": {**REMOTE, "url": "http://other.example/", "header_env": {"X": "KEY"}}},
        "the variable KEY may not be sent to other.example:80",
    ),
    (
        {"kind": "cross_encoder", "params": {"arm": "bm25", "model": "/tmp/model"}},
        "model '/tmp/model'",
    ),
    (
        {"kind": "cascade", "params": {"stages": [["none"], ["bm25"]], "decider": "/etc"}},
        "model '/etc'",
    ),
    (
        {"kind": "cross_encoder", "params": {"arm": "bm25", "model": "evil/model"}},
        "model 'evil/model'",
    ),
    (
        {
            "kind": "graph",
            "params": {"backbone": "tiny", "entities": "ner", "ner_model": "package:os/.."},
        },
        "model 'package:os/..' is not named",
    ),
    (
        {"kind": "ensemble", "params": {"arms": ["bm25", "none"], "select": "learned", **ROUTER}},
        "model '/etc' is not named",
    ),
]
"""An arm that a client puts, and a part of the refusal."""

ALLOWED = {"hosts": {"named.example": ["KEY"], "other.example": []}}


@pytest.mark.parametrize(("arm", "refusal"), ATTACKS)
async def test_an_arm_reaches_what_the_configuration_names_and_nothing_else(
    arm: dict[str, Any], refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = a_trap(tmp_path, monkeypatch)
    service = Service(tmp_path, new_arms=ALLOWED)
    async with service.running():
        refused = await put(service, {**CONFIG["arms"], "x": arm})
        assert refused.status_code == 400, refused.text
        assert refusal in refused.json()["error"]["message"]
        assert names(await service.client.get("/v1/arms")) == list(CONFIG["arms"])
    trap.check()


@pytest.mark.parametrize(("arm", "refusal"), ATTACKS)
async def test_an_arm_that_was_written_into_the_log_is_passed_over(
    arm: dict[str, Any],
    refusal: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trap = a_trap(tmp_path, monkeypatch)
    service = Service(tmp_path, new_arms=ALLOWED)
    async with service.running():
        store, config = service.point.store, service.point.config
        configured = config.arm_documents
        arm_sets.replace(store, {**configured, "x": arm}, configured, lambda *_: True)
        await service.refresh()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "arm-builder"))
        await service.refresh()
        assert list(service.point.turns.arms) == list(CONFIG["arms"])
        assert hosts.live(config) == config.arms  # what a replica builds at its start
        with pytest.raises(ConfigError) as error:
            RunSnapshot.of(config, store)  # what a warm start runs
        assert refusal in str(error.value)
    assert any(refusal in message for message in caplog.messages)
    trap.check()


async def test_a_model_below_home_can_be_named_and_none_that_only_seems_to_be_there(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "model").mkdir(parents=True)
    (home / "link").symlink_to(tmp_path)
    service = Service(tmp_path, home=str(home))
    async with service.running():
        for model, status in (("model", 200), ("../elsewhere", 400), ("link/elsewhere", 400), ("", 400)):
            params = {"arm": "bm25", "model": str(home / model)}
            answer = await put(service, {**CONFIG["arms"], "x": {"kind": "cross_encoder", "params": params}})
            assert answer.status_code == status, answer.text


async def test_an_arm_that_reaches_what_is_named_is_live(tmp_path: Path) -> None:
    service = Service(tmp_path, new_arms={**ALLOWED, "models": ["owner/model"]})
    far = {**REMOTE, "url": "https://named.example/search", "header_env": {"X": "KEY"}}
    read = {"arm": "bm25", "model": "owner/model"}
    async with service.running():
        new = {"far": {"kind": "remote", "params": far}, "read": {"kind": "cross_encoder", "params": read}}
        replaced = await put(service, {**CONFIG["arms"], **new})
        assert replaced.status_code == 200, replaced.text
        again = await put(service, {**CONFIG["arms"], "far": new["far"]})
        assert again.status_code == 200, again.text


async def test_an_arm_that_cannot_be_built_as_described_is_the_caller_s_mistake(service: Service) -> None:
    async def load(_specs: object) -> None:
        raise ArmBuildError("arm 'x': no deployment 'GPU' hosts arms; there are: Arms")

    service.arms.load = load  # type: ignore[method-assign]
    refused = await put(service, {"x": {"kind": "bm25", "host": "GPU"}})
    assert refused.status_code == 400
    assert "no deployment 'GPU'" in refused.json()["error"]["message"]


async def test_an_arm_that_vanished_meanwhile_is_refused_and_nothing_decided(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = service.point.store.record

    def swap(key: str) -> Any:
        service.point.turns.arms = {"none": service.point.turns.arms["none"]}
        return record(key)

    loop = service.point.turns
    monkeypatch.setattr(service.point.store, "record", swap)
    body = {"query": "Who?", "model": "arm/dense"}
    refused = await service.client.post("/v1/retrieve", json=body, headers={"idempotency-key": "k"})
    assert refused.status_code == 404
    with pytest.raises(NoEligibleArmError, match="arm 'dense' is not live any more; there are: none"):
        await anext(loop.turn(Ask("id", "Who?", forced="dense")))


async def test_what_a_former_arm_answered_is_answered_again(service: Service) -> None:
    asked = {"query": "Who?", "agent": {"allowed_arms": ["dense"]}}
    key = {"idempotency-key": "k-1"}
    first = await service.client.post("/v1/retrieve", json=asked, headers=key)
    await put(service, NEW)
    again = await service.client.post("/v1/retrieve", json=asked, headers=key)
    assert again.status_code == 200, again.text
    assert again.json()["agent"]["arm_served"] == first.json()["agent"]["arm_served"] == "dense"


FAR = {
    "kind": "remote",
    "params": {"url": "http://me:s3cret@127.0.0.1:9/find?key=s3cret", "request": {"q": "{question}"}},
    "usd": 0.5,
}


@pytest.mark.parametrize(
    "arms",
    [
        CONFIG["arms"],
        NEW,
        {
            **NEW,
            "far": {**FAR, "action": False},
            "both": {"kind": "rrf", "params": {"arms": ["far", "fused"]}},
        },
        {**CONFIG["arms"], "far": {**FAR, "answering": {"word_budget": 40}}},
    ],
    ids=["actions alone", "parts", "a part of a part", "every setting"],
)
async def test_what_was_read_of_the_arms_can_be_put_back_and_changes_nothing(
    tmp_path: Path, arms: dict[str, Any]
) -> None:
    async with Service(tmp_path, arms=arms).running() as service:
        await service.client.patch("/v1/arms/none", json={"enabled": False})
        shown = (await service.client.get("/v1/arms")).json()
        assert shown["specs"].keys() == arms.keys()
        assert shown["parts"] == {name: arm for name, arm in shown["specs"].items() if not arm["action"]}
        configured = dict(service.point.config.arms)
        again = await put(service, shown["specs"])
        assert again.status_code == 200, again.text
        assert again.json() == {**shown, "arm_set": shown["arm_set"] + 1}
        assert (await service.client.get("/v1/arms")).json() == again.json()
        assert service.point.config.arms == configured
        added = await put(service, {**shown["specs"], "words": {"kind": "bm25"}})
        assert names(added) == [*names(again), "words"]


async def test_what_may_be_secret_in_an_address_is_never_shown_and_stays_where_it_is_put_back(
    tmp_path: Path,
) -> None:
    url = "http://me:s3cret@127.0.0.1:9/find?key=s3cret&page=1#s3cret"
    far = {
        "kind": "remote",
        "params": {"url": url, "method": "POST", "request": {"q": "{question}", "to": [url]}},
    }
    part = {**far, "action": False}
    arms = {
        **CONFIG["arms"],
        "far": far,
        "part": part,
        "both": {"kind": "rrf", "params": {"arms": ["part", "bm25"]}},
    }
    async with Service(tmp_path, arms=arms).running() as service:
        shown = (await service.client.get("/v1/arms")).json()
        hidden = "http://***@127.0.0.1:9/find?key=***&page=***#***"
        as_shown = {arm["name"]: arm["params"] for arm in shown["arms"]} | {
            name: arm["params"] for name, arm in shown["parts"].items()
        }
        for name in ("far", "part"):
            assert as_shown[name]["url"] == hidden
            assert as_shown[name]["request"] == {"q": "{question}", "to": [hidden]}
        again = {name: {**arm, "params": as_shown[name]} for name, arm in arms.items() if name != "none"}
        answers = [
            await put(service, again),
            await service.client.patch("/v1/arms/far", json={"enabled": False}),
        ]
        for answer in answers:
            assert answer.status_code == 200, answer.text
            assert "s3cret" not in answer.text
        assert "s3cret" not in (await service.client.get("/v1/arms")).text
        live = service.point.config.arms
        assert live["far"].params["url"] == live["part"].params["url"] == url
        changed = {**far, "params": {**far["params"], "url": hidden.replace("page", "side")}}
        other = await put(service, {"other": changed, "bm25": CONFIG["arms"]["bm25"]})
        assert other.status_code == 400, "what is masked stands for nothing but the arm of that name"


# -- recipes -----------------------------------------------------------------------------------------------


async def test_watcher_learner_and_api_ask_of_a_recipe_that_it_fits_the_arms_that_are_live_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.hosts.learner.LearnerThread", lambda *_: None)  # the steps are ours
    async with Service(tmp_path, promotion_gate=FakeGate(True)).running() as service:
        (host,) = LearnerHost(service.config)._learners  # noqa: SLF001
        watcher = service.point.versions
        learner = host._learner()  # noqa: SLF001
        configured = learner.recipe
        recipe = replace(configured, policy=PolicySpec(kind="fixed", params={"arm": "fused"}))
        version = publish_candidate(service.point.store, recipe, ["fused"]).version
        refused(await say(service, "promote", version), 409, "promotion_refused", "version")
        await put(service, NEW)
        assert (await say(service, "promote", version)).status_code == 200
        assert await deciding(service) == version
        learner = host._learner(learner)  # noqa: SLF001
        assert watcher.recipe == learner.recipe == recipe
        await put(service, CONFIG["arms"])
        await service.refresh()
        assert watcher.recipe == host._learner(learner).recipe == configured  # noqa: SLF001
        refused(await say(service, "rollback", version), 409, "promotion_refused", "version")
        host._store.close()  # noqa: SLF001


def complaint_of(response: httpx.Response) -> str:
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_value"), response.text
    assert len(response.content) < 2_000
    return str(error["message"])


@pytest.mark.parametrize("name", ["auto", "AUTO", "..", ".", "", "__proto__", "-x", "a/b", "a\nb", "x" * 101])
async def test_a_name_that_means_something_else_is_refused_with_the_reason(
    service: Service, name: str
) -> None:
    message = complaint_of(await put(service, {**CONFIG["arms"], name: {"kind": "none"}}))
    assert "is not a valid name: " in message
    assert ("stands for the choice of the policy" in message) == (name.lower() == "auto")


@pytest.fixture
async def roomy(tmp_path: Path) -> AsyncIterator[Service]:
    """A service with the default limit of a body, 1 MiB."""
    async with Service(tmp_path, limits={**CONFIG["limits"], "body_bytes": 1 << 20}).running() as service:
        yield service


def fusions(levels: int) -> dict[str, Any]:
    arms: dict[str, Any] = {"a0": {"kind": "none"}}
    for level in range(1, levels):
        arms[f"a{level}"] = {"kind": "rrf", "params": {"arms": [f"a{level - 1}"] * 2}}
    return arms


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        (
            {"none": {"kind": "none"}, "x": {"kind": "rrf", "params": {"arms": ["none"] * 90_000}}},
            "at most 64 items after validation, not",
        ),
        (dict(reversed(fusions(400).items())), "has members in more than 8 levels"),
        (fusions(400), "has members in 9 levels: at most 8"),
        ({f"a{n}": {"kind": "none"} for n in range(1001)}, "at most 1000 items after validation, not more"),
    ],
    ids=["members", "levels", "levels inside out", "arms"],
)
async def test_arms_that_would_search_without_end_are_refused_with_the_number(
    roomy: Service, arms: dict[str, Any], message: str
) -> None:
    assert message in complaint_of(await put(roomy, arms))
    assert names(await roomy.client.get("/v1/arms")) == list(CONFIG["arms"])


@pytest.mark.parametrize("depth", [50, 150, 300, 900, 5_000, 90_000])
async def test_parameters_of_any_depth_are_refused(roomy: Service, depth: int) -> None:
    nested = b'{"arms": {"x": {"kind": "bm25", "params": {"k1": ' + b"[" * depth + b"]" * depth + b"}}}}"
    headers = {"content-type": "application/json"}
    response = await roomy.client.put("/v1/arms", content=nested, headers=headers)
    assert response.status_code == 400, response.text
    assert len(response.content) < 2_000


def test_what_is_masked_is_that_of_the_live_arm_where_the_arm_is_of_the_same_kind_alone() -> None:
    live = ArmSpec(kind="remote", params={"url": "https://me:pw@search.example/find"})
    shown = {"url": "https://***@search.example/find"}
    for kind, url in (("remote", live.params["url"]), ("mcp", shown["url"])):
        again = operations._unmasked(ArmDescription(kind=kind, params=shown), live)  # noqa: SLF001
        assert again["params"] == {"url": url}
