"""Feedback over HTTP beyond a value on a decision: episodes, retractions, deferred decisions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.api import decisions
from armwise.feedback.clock import GRACE_S, SteadyClock
from armwise.feedback.events import Feedback, FeedbackKind
from tests.agent.asking import look_up, post, refused, rows, tell
from tests.agent.fakes import CONFIG, Service
from tests.feedback.test_clock import Hands


async def turn(service: Service, **agent: Any) -> str:
    response = await look_up(service, agent=agent)
    assert response.status_code == 200, response.text
    return str(response.json()["agent"]["decision_id"])


async def read_decision(service: Service, decision_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await service.client.get(f"/v1/decisions/{decision_id}")).json()
    return found


async def activate(service: Service, decision_id: str) -> Any:
    response = await service.client.post(f"/v1/decisions/{decision_id}/activate")
    assert response.status_code == 202, response.text
    return response.json()


async def on_episode(service: Service, name: str, value: float, **fields: Any) -> Any:
    body = {"episode_id": name, "metric_name": "thumb", "value": value} | fields
    return await service.client.post("/v1/feedback", json=body)


async def test_a_value_on_an_episode_counts_for_each_of_its_decisions(service: Service) -> None:
    first, second = await turn(service, episode_id="e-1"), await turn(service, episode_id="e-1")
    other = await turn(service, episode_id="e-2")
    response = await on_episode(service, "e-1", 0.5, feedback_id="f-1")
    assert response.status_code == 202
    assert response.json().items() >= {"episode_id": "e-1", "decision_id": None, "status": "stored"}.items()
    await service.learn()
    assert [(await read_decision(service, name))["metrics"] for name in (first, second, other)] == [
        {"thumb": 0.5},
        {"thumb": 0.5},
        {},
    ]
    assert (await read_decision(service, first))["feedback"][0]["episode_id"] == "e-1"


async def test_a_retracted_value_is_not_learned(service: Service) -> None:
    name = await turn(service)
    body = [
        {"decision_id": name, "metric_name": "thumb", "value": 1.0, "feedback_id": "f-1"},
        {"decision_id": name, "metric_name": "thumb", "value": None, "feedback_id": "f-1"},
    ]
    response = await service.client.post("/v1/feedback", json={"items": body})
    assert [row["status"] for row in response.json()["items"]] == ["stored", "stored"]
    await service.learn()
    found = await read_decision(service, name)
    assert (found["metrics"], found["state"]) == ({}, "open")
    assert [item["kind"] for item in found["feedback"]] == ["value", "retraction"]
    await tell(service, name, -1.0, feedback_id="f-2")
    await service.learn()
    assert (await read_decision(service, name))["metrics"] == {"thumb": -1.0}


async def test_a_value_that_arrives_after_its_retraction_does_not_count(service: Service) -> None:
    name = await turn(service)
    await tell(service, name, None, feedback_id="f-1")
    await tell(service, name, 1.0, feedback_id="f-1")
    await service.learn()
    assert (await read_decision(service, name))["state"] == "open"


async def test_a_retraction_without_an_id_is_refused(service: Service) -> None:
    name = await turn(service)
    assert "feedback_id" in refused(await tell(service, name, None), 400, "invalid_value", "feedback_id")
    keyed = await service.client.post(
        "/v1/feedback",
        json={"decision_id": name, "metric_name": "thumb", "value": None},
        headers={"idempotency-key": "f-1"},
    )
    assert keyed.status_code == 202
    wrong = await tell(service, "d-other", None, feedback_id="f-1")
    assert "cannot also be retraction on d-other" in refused(wrong, 409, "idempotency_conflict")


@pytest.mark.slow
async def test_a_deferred_decision_is_learned_once_it_was_shown(on_each: Service) -> None:
    name = await turn(on_each, defer_activation=True)
    found = await read_decision(on_each, name)
    assert (found["deferred"], found["activated"]) == (True, False)
    await tell(on_each, name, 1.0)
    await on_each.learn()
    assert (await read_decision(on_each, name))["state"] == "open"
    receipt = await activate(on_each, name)
    assert (receipt["decision_id"], receipt["status"]) == (name, "stored")
    assert (await activate(on_each, name)) == receipt | {"status": "duplicate"}
    await on_each.learn()
    found = await read_decision(on_each, name)
    assert (found["state"], found["activated"], found["metrics"]) == ("learned", True, {"thumb": 1.0})


async def test_a_decision_can_be_activated_before_it_is_seen(service: Service) -> None:
    assert (await activate(service, "d-1"))["status"] == "stored"
    await look_up(service, headers={"idempotency-key": "d-1"}, agent={"defer_activation": True})
    await tell(service, "d-1", 1.0)
    await service.learn()
    assert (await read_decision(service, "d-1"))["state"] == "learned"


async def test_an_id_that_no_decision_can_have_is_not_activated(service: Service) -> None:
    refused(await post(service, "/v1/decisions/a%20b/activate", b""), 400, "invalid_value", "decision_id")


async def test_a_batch_that_is_sent_again_under_its_key_is_kept_once(on_each: Service) -> None:
    name = await turn(on_each)
    items = [
        {"decision_id": name, "metric_name": "thumb", "value": 1.0},
        {"decision_id": name, "metric_name": "right", "value": True, "feedback_id": "f-1"},
    ]
    key = "k" * 128
    for status in ("stored", "duplicate"):
        response = await on_each.client.post(
            "/v1/feedback", json={"items": items}, headers={"idempotency-key": key}
        )
        receipts = response.json()["items"]
        assert [(row["feedback_id"], row["status"]) for row in receipts] == [
            (f"{key}:0", status),
            ("f-1", status),
        ]
    assert (await rows(on_each))["feedback"] == 2


@pytest.mark.slow
async def test_the_other_items_of_a_batch_with_a_refused_item_are_learned_together(on_each: Service) -> None:
    first, second = await turn(on_each), await turn(on_each)
    await tell(on_each, first, 1.0, feedback_id="f-1")
    items = [
        {"decision_id": second, "metric_name": "thumb", "value": 0.5},
        {"decision_id": second, "metric_name": "thumb", "value": 1.0, "feedback_id": "f-1"},
        {"decision_id": second, "metric_name": "right", "value": True},
    ]
    response = await on_each.client.post("/v1/feedback", json={"items": items})
    receipts = response.json()["items"]
    assert [row.get("status") or row["error"]["code"] for row in receipts] == [
        "stored",
        "idempotency_conflict",
        "stored",
    ]
    await on_each.learn()
    assert (await read_decision(on_each, second))["metrics"] == {"thumb": 0.5, "right": 1.0}


async def test_a_batch_of_which_no_item_is_valid_is_refused_and_names_each_item(service: Service) -> None:
    before = await rows(service)
    items = [
        {"decision_id": "d-1", "metric_name": "thumb", "value": "1"},
        {"decision_id": "d-1", "metric_name": "thumbs", "value": 1},
        3,
    ]
    response = await service.client.post("/v1/feedback", json={"items": items})
    message = refused(response, 400, "invalid_value", "items.0.value")
    assert message == "no item was kept; items.0: metric 'thumb' takes numbers, got '1'"
    codes = [reason.split(": ")[:2] for reason in response.json()["error"]["reasons"]]
    assert codes == [
        ["items.0", "invalid_value"],
        ["items.1", "unknown_metric"],
        ["items.2", "invalid_value"],
    ]
    assert await rows(service) == before


async def test_a_batch_of_which_every_id_is_taken_is_a_conflict(service: Service) -> None:
    await tell(service, "d-1", 1.0, feedback_id="f-1")
    items = [{"decision_id": "d-2", "metric_name": "thumb", "value": 1, "feedback_id": "f-1"}]
    response = await service.client.post("/v1/feedback", json={"items": items})
    assert "items.0: feedback id 'f-1' was used" in refused(response, 409, "idempotency_conflict", "items.0")


async def test_an_activation_is_counted(service: Service) -> None:
    await activate(service, await turn(service, defer_activation=True))
    lines = (await service.client.get("/metrics")).text.splitlines()
    assert 'armwise_feedback_total{metric="activation",status="stored"} 1.0' in lines


async def test_a_decision_shows_the_metrics_that_it_will_be_learned_with(tmp_path: Path) -> None:
    reward = {**CONFIG["reward"], "complete": "deadline"}
    async with Service(tmp_path, reward=reward).running() as service:
        await on_episode(service, "e-1", 1.0)
        name = await turn(service, episode_id="e-1")
        found = await read_decision(service, name)
        assert (len(found["feedback"]), found["metrics"], found["reward"]) == (1, {}, None), "it was before"
        await tell(service, name, 0.5, feedback_id="f-1")
        store, config = service.replica.store, service.config
        record = store.record(name)
        assert record is not None
        late = Feedback(
            "f-1", name, "thumb", None, record.decision.deadline + 1.0, kind=FeedbackKind.RETRACTION
        )
        after = replace(
            record,
            feedback=(*record.feedback, late),
            feedback_seqs=(*record.feedback_seqs, 9),
            feedback_times=(*record.feedback_times, late.received_at),
        )
        for waited, state in ((0.0, "open"), (GRACE_S, "open"), (GRACE_S + 0.1, "closed")):
            shown = decisions.document(after, config.reward, record.decision.deadline + waited)
            assert (shown.metrics, shown.state) == ({"thumb": 0.5}, state)


@pytest.mark.parametrize("about", [{"decision_id": "x"}, {"episode_id": "x"}], ids=str)
async def test_feedback_beyond_the_limit_is_refused(
    tmp_path: Path, about: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.serving.replica.FEEDBACK_ITEMS", 2)
    async with Service(tmp_path).running() as service:
        items = [{**about, "metric_name": "right", "value": True, "feedback_id": f"f{n}"} for n in range(4)]
        batch = (await service.client.post("/v1/feedback", json={"items": items})).json()["items"]
        assert [one.get("status") for one in batch] == ["stored", "stored", None, None]
        assert batch[2]["error"]["code"] == "too_much_feedback"
        answer = await service.client.post("/v1/feedback", json=items[3])
        refused(answer, 409, "too_much_feedback", None)
        (field,) = about
        said = answer.json()["error"]["message"]
        assert f"{field.removesuffix('_id')} x " in said
        assert " 2 values " in said
        again = await service.client.post("/v1/feedback", json=items[0])
        assert again.json()["status"] == "duplicate"
        back = await service.client.post("/v1/feedback", json={**items[0], "value": None})
        assert back.status_code == 202, "what was given can be taken back"
        other = {**items[3], **dict.fromkeys(about, "y")}
        assert (await service.client.post("/v1/feedback", json=other)).status_code == 202


@pytest.mark.parametrize(("complete", "counts"), [("any", False), (None, True)])
async def test_a_second_metric_is_waited_for_unless_declared_otherwise(
    tmp_path: Path, complete: str | None, counts: bool
) -> None:
    reward = {name: value for name, value in CONFIG["reward"].items() if name != "complete"}
    reward |= {} if complete is None else {"complete": complete}
    async with Service(tmp_path, reward=reward).running() as service:
        name = await turn(service)
        await tell(service, name, 1.0)
        await service.learn()
        await tell(service, name, True, metric_name="right")
        await service.learn()
        await tell(service, name, 0.0)
        record = await read_decision(service, name)
        assert record["state"] == "learned"
        assert [item["counts"] for item in record["feedback"]] == [True, counts, False]


async def test_a_rating_can_be_corrected_until_it_is_learned(tmp_path: Path) -> None:
    hands = Hands()
    reward, clock = {**CONFIG["reward"], "correction_time": "PT5S"}, SteadyClock(hands.wall, hands.steady)
    async with Service(tmp_path, clock=clock, reward=reward).running() as service:

        async def look() -> tuple[Any, ...]:
            await service.learn()
            found = await read_decision(service, name)
            until = None if found["closes_at"] is None else found["closes_at"] - hands.wall_at
            return found["state"], until, found["metrics"], [item["counts"] for item in found["feedback"]]

        name = await turn(service)
        wait_s = 1800.0 + GRACE_S
        assert await look() == ("open", wait_s, {}, [])
        await tell(service, name, 1.0, feedback_id="up")
        assert await look() == ("open", 5.0, {"thumb": 1.0}, [True])
        hands.move(2.0)
        await tell(service, name, None, feedback_id="up")
        assert await look() == ("open", wait_s - 2.0, {}, [False, False])
        await tell(service, name, -1.0)
        assert await look() == ("open", 3.0, {"thumb": -1.0}, [False, False, True])
        hands.move(3.5)
        assert await look() == ("learned", None, {"thumb": -1.0}, [False, False, True])
        await tell(service, name, 1.0)
        assert await look() == ("learned", None, {"thumb": -1.0}, [False, False, True, False])


async def test_a_correction_that_ends_the_time_for_it_does_not_count(tmp_path: Path) -> None:
    hands = Hands()
    reward, clock = {**CONFIG["reward"], "correction_time": "PT5S"}, SteadyClock(hands.wall, hands.steady)
    async with Service(tmp_path, clock=clock, reward=reward).running() as service:
        name = await turn(service)
        await tell(service, name, 1.0)
        hands.move(5.5)
        await tell(service, name, -1.0)
        await service.learn()
        found = await read_decision(service, name)
        assert (found["metrics"], [item["counts"] for item in found["feedback"]]) == (
            {"thumb": 1.0},
            [True, False],
        )


async def test_a_decision_shows_which_of_its_feedback_counts(service: Service) -> None:
    name = await turn(service)
    await tell(service, name, 0.5, feedback_id="taken back")
    await tell(service, name, None, feedback_id="taken back")
    await tell(service, name, "Well said.", metric_name="comment")
    await tell(service, name, 1.0)
    record = await read_decision(service, name)
    shown = [(item["kind"], item["value"], item["counts"]) for item in record["feedback"]]
    assert shown == [
        ("value", 0.5, False),
        ("retraction", None, False),
        ("value", None, False),
        ("value", 1.0, True),
    ]
    assert record["metrics"] == {"thumb": 1.0}


@pytest.mark.parametrize(
    ("aggregation", "counts"), [("first", [True, False]), ("last", [False, True]), ("mean", [True, True])]
)
async def test_a_value_that_the_aggregation_passes_over_does_not_count(
    tmp_path: Path, aggregation: str, counts: list[bool]
) -> None:
    thumb = {"range": [-1, 1], "aggregation": aggregation}
    async with Service(tmp_path, reward={"metrics": {"thumb": thumb}}).running() as service:
        name = await turn(service)
        await tell(service, name, 1.0)
        await tell(service, name, -1.0)
        record = await read_decision(service, name)
        assert [item["counts"] for item in record["feedback"]] == counts


async def test_the_policy_says_what_waits_for_feedback_and_how_long_it_takes(service: Service) -> None:
    asked = [await turn(service) for _ in range(3)]
    await tell(service, asked[0], 1.0)
    await service.learn()
    state = (await service.client.get("/v1/policy")).json()["feedback"]
    record = service.replica.store.record(asked[0])
    assert record is not None
    first = record.decision.decided_at
    assert (state["waiting"], state["settled_before"], state["values"]) == (3, first, 0)
    assert state["median_s"] is state["p99_s"] is state["suggested_wait_time"] is None
    assert (state["complete"], state["wait_time"], state["late"]) == ("any", "PT30M", 0.0)
