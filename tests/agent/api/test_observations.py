"""The tap: decisions of another system are kept item by item, learned from, and shared with the policy."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa

from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.events import INCUMBENT, OBSERVED
from armwise.feedback.log import tables as t
from armwise.feedback.training_log import summary
from tests.agent.asking import refused
from tests.agent.fakes import Service

ARMS: dict[str, Any] = {
    "large": {"kind": "external", "params": {"usd": 0.01, "features": {"billions": 400}}},
    "small": {"kind": "external", "params": {"usd": 0.001}},
    "tiny": {"kind": "external"},
}

TAPPED: dict[str, Any] = {
    "arms": ARMS,
    "backbones": {},
    "tap": {"names": {"openai/gpt-large": "large"}},
    "policy": {"kind": "vowpal", "params": {"args": "--cb_explore_adf --epsilon 0.05 -q sa"}},
    "reward": {"metrics": {"right": {"type": "boolean"}}, "correction_time": "PT0S", "cost_weight": 0.0},
    "limits": {"in_flight": 8, "question_chars": 100, "body_bytes": 1 << 20},
}

P = {"large": 0.7, "small": 0.2, "tiny": 0.1}


def serving(tmp_path: Path, log_url: str | None = None, **changes: Any) -> Service:
    url = {} if log_url is None else {"log_url": log_url}
    return Service(tmp_path, **{**TAPPED, **url, **changes})


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with serving(tmp_path).running() as service:
        yield service


@pytest.fixture
async def on_each(tmp_path: Path, log_url: str) -> AsyncIterator[Service]:
    async with serving(tmp_path, log_url).running() as service:
        yield service


def item(name: str | None = None, arm: str = "large", **fields: Any) -> dict[str, Any]:
    named = {} if name is None else {"id": name}
    return {**named, "question": "who wrote Faust?", "arm": arm, **fields}


async def send(
    service: Service, *items: Any, key: str | None = None, bearer: str | None = None, **query: str
) -> httpx.Response:
    headers = {} if key is None else {"idempotency-key": key}
    if bearer is not None:
        headers["authorization"] = f"Bearer {bearer}"
    return await service.client.post(
        "/v1/observations", json={"items": items}, headers=headers, params=query or None
    )


async def kept(service: Service, *items: Any, **more: Any) -> list[dict[str, Any]]:
    answer = await send(service, *items, **more)
    assert answer.status_code == 202, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def record(service: Service, name: str, **query: str) -> dict[str, Any]:
    answer = await service.client.get(f"/v1/decisions/{name}", params=query or None)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def verified(service: Service, name: str) -> dict[str, Any]:
    answer = await service.client.get(f"/v1/decisions/{name}/verify")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


# -- what is kept --------------------------------------------------------------------------------------


async def test_a_decision_of_another_system_is_kept_whole(on_each: Service) -> None:
    cost = {"usd": 0.02, "seconds": 1.5, "prompt_tokens": 30, "completion_tokens": 7, "steps": 2}
    at = datetime.now(UTC) - timedelta(seconds=40)
    sent = item(
        "o-1", "openai/gpt-large", distribution=P, cost=cost, features={"tier": "free", "words": 3},
        episode_id="e-1", at=at.isoformat(),
    )  # fmt: skip
    (found,) = await kept(on_each, sent)
    assert found == {
        "decision_id": "o-1", "arm": "large", "status": "accepted", "evaluable": True, "log_seq": 2,
    }  # fmt: skip
    row = await record(on_each, "o-1")
    assert (row["policy"], row["mode"], row["arm_drawn"], row["arm_served"]) == (
        OBSERVED, "explore", "large", "large",
    )  # fmt: skip
    assert (row["propensity"], row["pmf"], row["status"]) == (0.7, P, "ok")
    assert (row["episode_id"], row["question"]) == ("e-1", "who wrote Faust?")
    assert row["features"]["tier=free"] == 1.0
    assert row["decided_at"] == pytest.approx(at.timestamp(), abs=1e-3)
    assert row["reward_deadline"] == pytest.approx(at.timestamp() + 1800, abs=1e-3)
    assert (row["cost"]["usd"], row["cost"]["llm_ms"], row["cost"]["tokens"]) == (0.02, 1500, 37)
    assert row["cost"]["steps"] == 2
    assert sum(row["shadow"].values()) == pytest.approx(1.0)
    assert row["shadow"].keys() == P.keys()
    assert min(row["shadow"].values()) >= 0.01


@pytest.mark.parametrize(
    ("fields", "propensity", "pmf"),
    [
        ({}, None, {}),
        ({"propensity": 0.5}, 0.5, {"small": 0.5}),
        ({"propensity": 1.0}, 1.0, {"small": 1.0, "large": 0.0, "tiny": 0.0}),
        ({"propensity": 0.25, "arms": ["small", "tiny"]}, 0.25, {"small": 0.25, "tiny": 0.75}),
        ({"distribution": {"small": 1.0}}, 1.0, {"small": 1.0}),
        ({"arms": ["tiny", "small"]}, None, {}),
        ({"distribution": {"small": 1.0}, "arms": ["tiny", "small"]}, 1.0, {"tiny": 0.0, "small": 1.0}),
    ],
)
async def test_no_probability_is_made_up(
    on_each: Service, fields: Mapping[str, Any], propensity: float | None, pmf: Mapping[str, float]
) -> None:
    (found,) = await kept(on_each, item("o-1", "small", **fields))
    assert found["evaluable"] is (propensity is not None)
    row = await record(on_each, "o-1")
    assert (row["propensity"], row["pmf"]) == (propensity, pmf)
    named = fields.get("arms") or fields.get("distribution") or ["small", "large", "tiny"]
    assert sorted(row["shadow"]) == sorted(named)
    with on_each.replica.store.reading() as connection:
        stored = connection.scalar(sa.select(t.decisions.c.propensity))
    assert stored == propensity


async def test_a_failed_decision_is_kept_as_failed(service: Service) -> None:
    await kept(service, item("o-1", status="failed"))
    row = await record(service, "o-1")
    assert (row["status"], row["arm_served"], row["arm_drawn"]) == ("arm_failed", None, "large")


async def test_an_item_that_is_sent_again_is_the_same_one_and_another_is_a_conflict(service: Service) -> None:
    first, other = item("o-1", metrics={"right": True}), item("o-2", "small")
    assert [one["status"] for one in await kept(service, first, other)] == ["accepted"] * 2
    before = service.replica.store.counts()
    assert [one["status"] for one in await kept(service, other, first)] == ["duplicate"] * 2
    answer = await send(service, {**first, "arm": "tiny"})
    refused(answer, 409, "idempotency_conflict", "items.0.id")
    assert service.replica.store.counts() == before


async def test_one_id_twice_in_a_batch_is_kept_once(service: Service) -> None:
    found = await kept(service, item("o-1"), item("o-1"), item("o-1", "tiny"))
    assert [one.get("status") for one in found[:2]] == ["accepted", "duplicate"]
    assert found[2]["error"]["code"] == "idempotency_conflict"
    assert service.replica.store.counts()["decisions"] == 1


async def test_items_without_an_id_are_named_by_the_key_of_the_request(service: Service) -> None:
    ids = [one["decision_id"] for one in await kept(service, item(), item(arm="small"), key="batch-7")]
    assert ids == ["batch-7:0", "batch-7:1"]
    again = await kept(service, item(), item(arm="small"), key="batch-7")
    assert [(one["decision_id"], one["status"]) for one in again] == [(one, "duplicate") for one in ids]
    fresh = [one["decision_id"] for one in await kept(service, item(), item())]
    assert len({*fresh, *ids}) == 4


async def test_an_erased_observation_that_is_sent_again_stays_erased(service: Service) -> None:
    await kept(service, item("o-1"))
    answer = await service.client.delete("/v1/decisions/o-1")
    assert answer.status_code == 200, answer.text
    (found,) = await kept(service, item("o-1"))
    assert found["status"] == "duplicate"
    assert (await record(service, "o-1"))["question"] == ""


BAD: list[tuple[dict[str, Any], str, str, str]] = [
    (item(arm="huge"), "unknown_arm", "arm", "arm 'huge' is not configured; available: large, small, tiny"),
    (item(arms=["large", "huge"]), "unknown_arm", "arms", "'huge'"),
    (item(distribution={"large": 0.5, "huge": 0.5}), "unknown_arm", "distribution", "'huge'"),
    (item(distribution={"large": 0.5, "small": 0.4}), "invalid_value", "distribution", "sum to 0.9"),
    (item(distribution={"small": 1.0}), "invalid_value", "distribution", "has the probability 0: at least"),
    (
        item(distribution={"large": 1e-10, "small": 1.0}),
        "invalid_value",
        "distribution",
        "ty 1e-10: at",
    ),
    (item(distribution={"large": -0.5, "small": 1.5}), "invalid_value", "distribution.large", "greater than"),
    (
        item(distribution={"large": 1.0}, propensity=1.0),
        "invalid_value",
        "propensity",
        "not both",
    ),
    (item(distribution=P, arms=["large", "small"]), "invalid_value", "distribution", "'tiny' has a prob"),
    (item(arms=["small", "tiny"]), "invalid_value", "arms", "'large' is not among: small, tiny"),
    (item(propensity=0.0), "invalid_value", "propensity", "or equal to 0.000000001"),
    (item(propensity=1e-300), "invalid_value", "propensity", "or equal to 0.000000001"),
    (item(propensity=1.5), "invalid_value", "propensity", "less than or equal to 1"),
    (item(propensity=0.5, arms=["large"]), "invalid_value", "propensity", "1 was expected"),
    (item(question="?" * 101), "invalid_value", "question", "101 characters; at most 100"),
    (item(question="a\0b"), "invalid_value", "question", "NUL"),
    (item(features={"x": 1e7}), "invalid_value", "features.x", "scale it"),
    (item(features={"x" * 201: 1}), "invalid_value", "features." + "x" * 200, "201 characters"),
    (item(cost={"usd": -1}), "invalid_value", "cost.usd", "greater than or equal to 0"),
    (item(cost={"prompt_tokens": 2**31}), "invalid_value", "cost.prompt_tokens", "less than or equal"),
    (item(cost={"dollars": 1}), "invalid_request", "cost.dollars", "unknown field"),
    (item(at="2999-01-01T00:00Z"), "invalid_value", "at", "in the future"),
    (item(at="2020-01-01T00:00Z"), "invalid_value", "at", "`armwise import` reads older logs"),
    (item(at=1), "invalid_value", "at", "a date and a time with a zone"),
    (item(metrics={"rigth": 1}), "unknown_metric", "metric_name", "rigth"),
    (item(metrics={"right": 2}), "invalid_value", "value", "neither true nor false"),
    (item(metrics={"right": 1}, reward=1), "invalid_value", "reward", "already has a value for 'right'"),
    (item("a b"), "invalid_value", "id", "pattern"),
    (item(status="running"), "invalid_value", "status", "'ok' or 'failed'"),
    ("nothing", "invalid_value", "", "valid dictionary"),
]


@pytest.mark.slow
async def test_what_is_out_of_bounds_is_named_and_the_rest_is_kept(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    async with serving(tmp_path).running() as service:
        for n, (bad, code, param, message) in enumerate(BAD):
            with subtests.test(message=message, n=n):
                first, second = await kept(service, bad, item(f"good-{n}"))
                assert second["status"] == "accepted"
                error = first["error"]
                assert (error["code"], error["param"] or "") == (code, param), error
                assert message in error["message"]
                alone = await send(service, bad)
                assert alone.status_code >= 400
                assert alone.json()["error"]["code"] == code
        assert service.replica.store.counts()["decisions"] == len(BAD)


@pytest.mark.parametrize(("ago", "kept_there"), [(1790, True), (1810, False), (-50, True), (-70, False)])
async def test_a_time_is_taken_while_feedback_counts_and_little_ahead(
    service: Service, ago: float, kept_there: bool
) -> None:
    at = datetime.fromtimestamp(service.clock() - ago, UTC)
    answer = await send(service, item("o-1", at=at.isoformat()))
    assert (answer.status_code == 202) is kept_there, answer.text
    if kept_there:
        assert (await record(service, "o-1"))["decided_at"] <= service.clock()


async def test_a_batch_is_bounded(service: Service) -> None:
    for items in ([], [item()] * 1001):
        refused(await send(service, *items), 400, "invalid_value", "items")
    async with serving(service.folder / "less", limits={"body_bytes": 4096}).running() as less:
        answer = await send(less, *[item(question="?" * 90)] * 60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


async def test_a_reward_is_the_value_of_the_only_metric(tmp_path: Path, service: Service) -> None:
    await kept(service, item("o-1", reward=True))
    assert (await record(service, "o-1"))["metrics"] == {"right": 1.0}
    two = {"metrics": {"right": {"type": "boolean"}, "thumb": {}}, "cost_weight": 0.0}
    async with serving(tmp_path / "two", reward=two).running() as other:
        error = refused(await send(other, item("o-1", reward=1)), 400, "invalid_value", "items.0.reward")
        assert "right, thumb" in error


async def test_an_unknown_name_is_the_arm_that_the_configuration_says(tmp_path: Path) -> None:
    async with serving(tmp_path, tap={"names": {"gpt": "large", "*": "tiny"}}).running() as service:
        found = await kept(service, item(arm="gpt"), item(arm="whatever"), item(arm="small"))
        assert [one["arm"] for one in found] == ["large", "tiny", "small"]


async def test_probabilities_of_names_of_one_arm_add_up(tmp_path: Path) -> None:
    async with serving(tmp_path, tap={"names": {"gpt": "large"}}).running() as service:
        await kept(service, item("o-1", "gpt", distribution={"gpt": 0.25, "large": 0.5, "tiny": 0.25}))
        assert (await record(service, "o-1"))["pmf"] == {"large": 0.75, "tiny": 0.25}


async def test_a_service_without_a_tap_takes_no_observations(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        message = refused(await send(service, item(arm="bm25")), 400, "invalid_value", "items.0")
        assert "this service takes no observations: set `tap` in its configuration" in message


# -- whose they are ------------------------------------------------------------------------------------


KEYS = {
    "A": {"env": "A", "project": "acme"},
    "B": {"env": "B", "project": "beta"},
    "D": {"env": "D", "scopes": ["decide"]},
    "F": {"env": "F", "scopes": ["feedback"]},
}


@pytest.fixture
async def keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    for name in KEYS:
        monkeypatch.setenv(name, f"secret-of-{name}-that-is-long-enough")
    async with serving(tmp_path, keys=[*KEYS.values()]).running() as service:
        yield service


def bearer(name: str) -> str:
    return f"secret-of-{name}-that-is-long-enough"


async def test_ids_of_one_project_are_no_ids_of_another(keyed: Service) -> None:
    for name in "AB":
        (found,) = await kept(keyed, item("o-1", metrics={"right": name == "A"}), bearer=bearer(name))
        assert (found["decision_id"], found["status"]) == ("o-1", "accepted")
    for name, value in (("A", 1.0), ("B", 0.0)):
        headers = {"authorization": f"Bearer {bearer(name)}"}
        row = (await keyed.client.get("/v1/decisions/o-1", headers=headers)).json()
        assert row["metrics"] == {"right": value}
        assert [one["feedback_id"] for one in row["feedback"]] == ["o-1:right"]
    answer = await send(keyed, item("acme~o-1", "tiny"), bearer=bearer("D"))
    assert "names a project" in refused(answer, 400, "invalid_value", "items.0")


async def test_metrics_need_the_scope_of_feedback(keyed: Service) -> None:
    refused(await send(keyed, item("o-1"), bearer=bearer("F")), 403, "forbidden", None)
    assert (await kept(keyed, item("o-1"), bearer=bearer("D")))[0]["status"] == "accepted"
    first, second = await kept(keyed, item("o-2", metrics={"right": 1}), item("o-3"), bearer=bearer("D"))
    assert (first["error"]["code"], second["status"]) == ("forbidden", "accepted")


# -- a log that is away --------------------------------------------------------------------------------


async def test_what_cannot_be_committed_is_to_be_sent_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise LogUnavailableError("4096 appends are already queued for the log")

    with monkeypatch.context() as patch:
        patch.setattr(service.replica.log, "append", full)
        answer = await send(service, item("o-1"), item("o-2"))
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["retryable"]
    assert [one["status"] for one in await kept(service, item("o-1"), item("o-2"))] == ["accepted"] * 2


# -- learning ------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_policy_learns_from_what_was_observed(on_each: Service) -> None:
    """Large is right for long questions, small for short ones; half of the draws have no propensity."""
    rng = np.random.default_rng(7)
    items = []
    for n in range(200):
        long, arm = bool(rng.integers(2)), ["large", "small"][rng.integers(2)]
        p = {} if n % 2 else {"propensity": 0.5}
        right = (arm == "large") == long
        fields = {"features": {"long": long}, "arms": ["large", "small"], "metrics": {"right": right}, **p}
        items.append(item(f"o-{n}", arm, **fields))
    await kept(on_each, *items)
    await on_each.learn()
    state = (await on_each.client.get("/v1/policy")).json()
    assert state["newest"]["examples_seq"] == 200
    for long, best in ((True, "large"), (False, "small")):
        name = f"after-{best}"
        await kept(on_each, item(name, arms=["large", "small"], features={"long": long}))
        shadow = (await record(on_each, name))["shadow"]
        assert max(shadow, key=lambda arm: shadow[arm]) == best


async def test_feedback_by_id_comes_later_and_is_learned(service: Service) -> None:
    await kept(service, item("o-1"))
    answer = await service.client.post(
        "/v1/feedback", json={"decision_id": "o-1", "metric_name": "right", "value": True}
    )
    assert answer.json()["status"] == "stored"
    await service.learn()
    assert (await record(service, "o-1"))["state"] == "learned"


# -- verification --------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_shadow_is_recomputed_and_the_draw_was_made_elsewhere(on_each: Service) -> None:
    await kept(on_each, item("o-1", distribution=P), item("o-2", metrics={"right": True}))
    for name in ("o-1", "o-2"):
        found = await verified(on_each, name)
        assert (found["verified"], found["elsewhere"], found["why"]) == (True, True, [])
        assert (found["draw"]["u"], found["logged"], found["recomputed"]) == (None, {}, {})
        assert found["shadow"]["logged"] == found["shadow"]["recomputed"]
        assert found["shadow"]["logged"]
    await on_each.learn()
    assert (await verified(on_each, "o-1"))["verified"], "the version of then, not that of now"
    with on_each.replica.store.writing() as connection:
        shadow = dict(zip(found["shadow"]["logged"], (0.5, 0.25, 0.25), strict=True))
        connection.execute(sa.update(t.decisions).values(steps={"incumbent": {"shadow": shadow}}))
    changed = await verified(on_each, "o-1")
    assert not changed["verified"]
    assert "the policy in the shadow differs" in changed["why"][0]


# -- tap, canary, serving ------------------------------------------------------------------------------


async def choose(service: Service, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {} if key is None else {"idempotency-key": key}
    document = {"question": "who wrote Faust?", "incumbent": {"arm": "large"}, **body}
    return await service.client.post("/v1/decisions", json=document, headers=headers)


async def chosen(service: Service, key: str | None = None, **body: Any) -> dict[str, Any]:
    answer = await choose(service, key, **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_at_share_0_the_incumbent_decides_whatever_the_policy_would(service: Service) -> None:
    for arm in ("large", "tiny", "openai/gpt-large"):
        found = await chosen(service, incumbent={"arm": arm})
        best = "large" if arm.startswith("openai") else arm
        assert (found["chosen"], found["propensity"]) == (best, 1.0)


@pytest.mark.parametrize("share", [0.05, 0.5])
async def test_a_canary_draws_from_the_mixture_that_is_logged(
    tmp_path: Path, log_url: str, share: float
) -> None:
    async with serving(tmp_path, log_url, tap={"share": share}, floor=0.1).running() as service:
        asked = {"arm": "large"}, {"distribution": {"small": 0.75, "tiny": 0.25}}
        for n, incumbent in enumerate(asked):
            found = await chosen(service, f"d-{n}", incumbent=incumbent)
            row = await record(service, f"d-{n}")
            theirs = incumbent.get("distribution") or {"large": 1.0}
            assert (row["policy"], row["steps"]["incumbent"]["share"]) == (INCUMBENT, 1 - share)
            assert row["steps"]["incumbent"]["pmf"] == {arm: theirs.get(arm, 0.0) for arm in ARMS}  # type: ignore[attr-defined]
            for arm, p in found["pmf"].items():
                expected = (1 - share) * theirs.get(arm, 0.0) + share * row["shadow"][arm]  # type: ignore[attr-defined]
                assert p == pytest.approx(expected, abs=1e-12)
                assert p >= share * 0.1 - 1e-12
            proof = await verified(service, f"d-{n}")
            assert (proof["verified"], proof["elsewhere"], proof["draw"]["agrees"]) == (True, False, True)
            assert proof["draw"]["u"] is not None
        with service.replica.store.writing() as connection:
            old = connection.scalar(sa.select(t.decisions.c.steps).where(t.decisions.c.id == "d-0"))
            assert isinstance(old, dict)
            pmf = {arm: float(place == 1) for place, arm in enumerate(old["incumbent"]["pmf"])}
            changed = {**old, "incumbent": {**old["incumbent"], "pmf": pmf}}
            connection.execute(sa.update(t.decisions).where(t.decisions.c.id == "d-0").values(steps=changed))
        assert not (await verified(service, "d-0"))["verified"]


async def test_at_share_1_the_policy_decides_with_or_without_an_incumbent(tmp_path: Path) -> None:
    async with serving(tmp_path, tap={"share": 1.0}).running() as service:
        for name, body in (("d-1", {}), ("d-2", {"incumbent": None})):
            found = await chosen(service, name, **body)
            row = await record(service, name)
            assert (row["policy"], row["steps"].get("incumbent"), row["shadow"]) == ("vowpal", None, None)
            assert min(found["pmf"].values()) >= 0.01
            assert (await verified(service, name))["verified"]


async def test_an_incumbent_by_rule_needs_no_word_in_the_request(tmp_path: Path) -> None:
    async with serving(tmp_path, tap={"incumbent": "small"}).running() as service:
        assert (await chosen(service, incumbent=None))["chosen"] == "small"
        assert (await chosen(service, incumbent={"arm": "tiny"}))["chosen"] == "tiny"


async def test_a_choice_repeats_under_its_key_also_once_carried_out(tmp_path: Path) -> None:
    async with serving(tmp_path, tap={"share": 0.5}).running() as service:
        first = await chosen(service, "d-1")
        assert await chosen(service, "d-1") == first
        refused(await choose(service, "d-1", question="?"), 409, "idempotency_conflict", "Idempotency-Key")
        assert (await record(service, "d-1"))["state"] == "running"
        done = item("d-1", first["chosen"], cost={"usd": 0.5}, metrics={"right": True})
        (receipt,) = await kept(service, done)
        assert (receipt["status"], receipt["evaluable"]) == ("completed", True)
        assert [one["status"] for one in await kept(service, done)] == ["duplicate"]
        assert await chosen(service, "d-1") == first
        await service.learn()
        row = await record(service, "d-1")
        assert (row["state"], row["cost"]["usd"], row["metrics"]) == ("learned", 0.5, {"right": 1.0})
        other = next(arm for arm in ARMS if arm != first["chosen"])
        answer = await send(service, item("d-1", other))
        assert first["chosen"] in refused(answer, 409, "idempotency_conflict", "items.0.arm")


CHOICES: list[tuple[dict[str, Any], int, str, str]] = [
    ({"incumbent": None}, 400, "incumbent", "the caller's own choice was expected, as `tap.share` is 0"),
    ({"incumbent": {}}, 400, "incumbent", "either arm, or distribution"),
    ({"incumbent": {"arm": "large", "distribution": {"large": 1.0}}}, 400, "incumbent", "either arm, or"),
    ({"incumbent": {"arm": "huge"}}, 400, "incumbent", "available: large, small, tiny"),
    ({"incumbent": {"distribution": {"large": 0.5}}}, 400, "incumbent", "sum to 0.5"),
    ({"excluded_arms": ["large"]}, 400, "agent.excluded_arms", "the incumbent's arm 'large' is not eligible"),
    ({"excluded_arms": ["huge"]}, 400, "agent.excluded_arms", "available: large, small, tiny"),
    ({"question": "?" * 101}, 400, "question", "101 characters"),
    ({"context": {"x": 1e7}}, 400, "context.x", "scale it"),
    ({"k": 1}, 400, "k", "unknown field"),
]


async def test_a_choice_that_cannot_be_made_is_refused(service: Service, subtests: pytest.Subtests) -> None:
    for body, status, param, message in CHOICES:
        with subtests.test(message=message):
            answer = await choose(service, **body)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (status, param), error
            assert message in error["message"]
    assert service.replica.store.counts()["decisions"] == 0


async def test_arms_that_callers_carry_out_answer_no_question(service: Service) -> None:
    body = {"model": "auto", "messages": [{"role": "user", "content": "?"}]}
    answer = await service.client.post("/v1/chat/completions", json=body)
    assert "POST /v1/decisions" in refused(answer, 400, "invalid_value", "model")


async def test_arms_that_answer_here_are_not_handed_over(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        assert "this service runs its arms itself" in refused(await choose(service), 400, "invalid_value")


async def test_a_chat_is_shared_with_the_callers_own_choice_too(tmp_path: Path) -> None:
    async with Service(tmp_path, tap={"share": 0.0}).running() as service:

        async def ask(**agent: Any) -> httpx.Response:
            body = {"messages": [{"role": "user", "content": "who?"}], "model": "auto", "agent": agent}
            return await service.client.post("/v1/chat/completions", json=body)

        for arm in ("none", "bm25", "dense"):
            answer = (await ask(incumbent={"arm": arm})).json()["agent"]
            assert (answer["arm_drawn"], answer["propensity"]) == (arm, 1.0)
            assert (await verified(service, answer["decision_id"]))["verified"]
        assert (await ask()).json()["agent"]["propensity"] < 1.0
        refused(await ask(incumbent={"arm": "huge"}), 400, "unknown_arm", "agent.incumbent")
    async with Service(tmp_path / "plain").running() as plain:
        body = {"messages": [{"role": "user", "content": "?"}], "agent": {"incumbent": {"arm": "none"}}}
        answer = await plain.client.post("/v1/chat/completions", json={**body, "model": "auto"})
        assert "`tap` is not configured" in refused(answer, 400, "invalid_value", "agent.incumbent")


# -- what reads the log --------------------------------------------------------------------------------


async def filled(service: Service) -> None:
    """Decisions with a whole distribution, with a propensity alone, and with nothing known; one failed."""
    await kept(
        service,
        *(item(f"p-{n}", "small", distribution=P, metrics={"right": n % 2}) for n in range(4)),
        *(item(f"q-{n}", propensity=0.5, metrics={"right": n % 2}) for n in range(4)),
        *(item(f"r-{n}", "tiny", metrics={"right": n % 2}, cost={"usd": 0.1}) for n in range(4)),
        item("open"),
        item("failed", status="failed"),
    )
    await service.learn()


async def test_decisions_of_others_are_not_counted_as_served(on_each: Service) -> None:
    await filled(on_each)
    metrics = (await on_each.client.get("/metrics")).text
    assert 'armwise_tapped_total{arm="tiny",status="accepted"} 4.0' in metrics
    assert "armwise_decisions_total{" not in metrics
    assert not summary.add_up(on_each.replica.store, summary.LogSums()).arms


@pytest.mark.parametrize("form", ["jsonl", "dsjson"])
@pytest.mark.slow
async def test_a_tapped_log_is_exported(on_each: Service, form: str) -> None:
    await filled(on_each)
    await on_each.settle()
    answer = await on_each.client.get("/v1/export", params={"format": form})
    assert answer.status_code == 200, answer.text
    assert "NaN" not in answer.text
    if form == "jsonl":
        assert answer.text.count('"policy":"observed"') == 12
        assert answer.text.count('"probabilities":[]') == 4


@pytest.mark.slow
async def test_an_evaluation_says_what_the_shadow_would_have_earned(on_each: Service) -> None:
    await filled(on_each)
    await on_each.settle()
    with on_each.working():
        body = {"candidates": ["shadow", "configured", "fixed:small"], "gate": True}
        answer = await on_each.client.post("/v1/evaluations", json=body)
        assert answer.status_code == 202, answer.text
        path = f"/v1/evaluations/{answer.json()['id']}"
        found: dict[str, Any] = {"status": "queued"}
        while found["status"] in ("queued", "running"):
            await asyncio.sleep(0.01)
            found = (await on_each.client.get(path)).json()
    assert found["status"] == "done", found
    result = found["result"]
    left_out = result["excluded"]["no propensity on record"]
    assert (result["rows"], left_out) == (8, 4), "those with a propensity"
    by_name = {one["name"]: one for one in result["candidates"]}
    assert by_name["shadow"]["rows"] == by_name["configured"]["rows"] == 8
    row = {name: await record(on_each, name) for name in ("p-1", "p-3", "q-1", "q-3")}
    expected = sum(one["shadow"][one["arm_drawn"]] / one["propensity"] for one in row.values()) / 8
    for name in ("shadow", "configured", "fixed:small"):
        verdict = by_name[name]["verdict"]
        assert verdict["verdict"] == "hold"
        assert any("0 decisions were recomputed" in reason for reason in verdict["reasons"]), verdict
    (ips, *_) = by_name["shadow"]["estimates"]
    assert ips["value"]["value"] == pytest.approx(expected)


async def test_the_end_of_a_decision_made_here_is_not_taken_over(tmp_path: Path) -> None:
    arms = {"none": {"kind": "none"}, "other": {"kind": "none"}}
    async with serving(tmp_path, arms=arms, tap={}).running() as service:
        body = {"query": "who wrote Faust?"}
        made = await service.client.post("/v1/retrieve", json=body, headers={"idempotency-key": "d-1"})
        assert made.status_code == 200, made.text
        ended = item("d-1", made.json()["agent"]["arm_drawn"], metrics={"right": True})
        said = refused(await send(service, ended), 409, "idempotency_conflict", "items.0.id")
        assert (
            said
            == "no item was kept; items.0: id 'd-1' belongs to a decision that this service made and served"
        )
        assert (await record(service, "d-1"))["feedback"] == []
