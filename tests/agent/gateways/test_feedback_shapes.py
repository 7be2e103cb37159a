"""Feedback that is not a number, and feedback in the shapes of other systems."""

import asyncio
import base64
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import orjson
import pytest

from armwise.feedback.errors import MetricRedefinedError
from armwise.feedback.events import Feedback
from armwise.feedback.log import open_log
from armwise.feedback.reward import RewardRule
from tests.agent.asking import look_up, record, refused
from tests.agent.fakes import CONFIG, Service

VERDICT = {"type": "categorical", "values": {"good_fit": 1.0, "underpowered": 0.0, "failed": -0.5}}

REWARD = {
    **CONFIG["reward"],
    "metrics": {**CONFIG["reward"]["metrics"], "verdict": VERDICT},
    "complete": "deadline",
}


@pytest.fixture
async def service(tmp_path: Path) -> Any:
    async with Service(tmp_path, reward=REWARD).running() as service:
        yield service


async def turn(service: Service, **agent: Any) -> str:
    return str((await look_up(service, agent=agent)).json()["agent"]["decision_id"])


async def send(service: Service, path: str = "/v1/feedback", **body: Any) -> httpx.Response:
    return await service.client.post(path, json=body)


async def kept(service: Service, decision_id: str, n: int) -> tuple[Feedback, ...]:
    return (await record(service, decision_id, lambda r: len(r.feedback) == n)).feedback


async def shown(service: Service, decision_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await service.client.get(f"/v1/decisions/{decision_id}")).json()
    return found


async def test_a_label_counts_by_its_number_and_is_kept(service: Service) -> None:
    name = await turn(service)
    sent = await send(service, decision_id=name, metric_name="verdict", value="failed", comment="timeout")
    assert sent.json()["status"] == "accepted"
    (item,) = (await shown(service, name))["feedback"]
    assert (item["value"], item["content"]) == (-0.5, {"label": "failed", "comment": "timeout"})
    assert (await shown(service, name))["metrics"] == {"verdict": -0.5}


async def test_what_is_no_label_is_refused(service: Service) -> None:
    expected = "takes one of 'good_fit', 'underpowered', 'failed'"
    values = {"great": expected, 1: expected, False: expected}
    for value, message in (*values.items(), ({"over": "d-2"}, "takes no pair")):
        sent = await send(service, decision_id="d-1", metric_name="verdict", value=value)
        assert message in refused(sent, 400, "invalid_value", "value")


async def test_comments_and_right_answers_are_kept_and_count_in_no_reward(service: Service) -> None:
    name = await turn(service)
    for metric, text in (("comment", "too long"), ("demonstration", "The Danube.")):
        assert (await send(service, decision_id=name, metric_name=metric, value=text)).status_code == 202
    found = await shown(service, name)
    assert [(item["metric_name"], item["value"], item["content"]) for item in found["feedback"]] == [
        ("comment", None, {"comment": "too long"}),
        ("demonstration", None, {"demonstration": "The Danube."}),
    ]
    assert (found["metrics"], found["reward"]) == ({}, None)


async def test_a_preference_is_between_decisions_or_between_arms(service: Service) -> None:
    one, other = await turn(service), await turn(service)
    pairs: list[dict[str, str]] = [{"over": other}, {"better": "bm25", "worse": "dense"}]
    for pair in pairs:
        assert (await send(service, decision_id=one, metric_name="preference", value=pair)).status_code == 202
    assert [item["content"] for item in (await shown(service, one))["feedback"]] == pairs


NO_PAIRS: list[tuple[Any, str, str]] = [
    ({"over": "d-1"}, "invalid_value", "value.over"),
    ({"better": "bm25", "worse": "gone"}, "unknown_arm", "value.worse"),
    ({"better": "bm25", "worse": "bm25"}, "invalid_value", "value"),
    ({"better": "bm25"}, "invalid_value", "value"),
    ({"over": "d-2", "better": "bm25", "worse": "dense"}, "invalid_value", "value"),
    ({"under": "d-2"}, "invalid_value", "value"),
    ({}, "invalid_value", "value"),
    (1, "invalid_value", "value"),
    ("d-2", "invalid_value", "value"),
]


async def test_what_is_no_pair_is_refused(service: Service) -> None:
    for value, code, param in NO_PAIRS:
        sent = await send(service, decision_id="d-1", metric_name="preference", value=value)
        refused(sent, 400, code, param)


SAID: list[tuple[str, Any, Any]] = [
    ("verdict", "good_fit", "failed"),
    ("comment", "good", "bad"),
    ("demonstration", "The Danube.", "The Seine."),
    ("preference", {"better": "bm25", "worse": "dense"}, {"better": "dense", "worse": "bm25"}),
]
"""What a metric is said to be, and what else."""


@pytest.mark.slow
async def test_it_is_one_fact_however_often_it_is_sent_and_can_be_retracted(
    tmp_path: Path, log_url: str
) -> None:
    async with Service(tmp_path, log_url=log_url, reward=REWARD).running() as service:
        for metric, value, other in SAID:
            name = await turn(service)
            body = {"decision_id": name, "metric_name": metric, "feedback_id": f"f-{metric}"}
            first = await send(service, value=value, **body)
            again = await send(service, value=value, **body)
            assert (first.json()["status"], again.json()["status"]) == ("accepted", "duplicate")
            assert metric in refused(await send(service, value=other, **body), 409, "idempotency_conflict")
            assert (await send(service, value=None, **body)).json()["status"] == "accepted"
            assert [item.kind for item in await kept(service, name, 2)] == ["value", "retraction"]
            assert (await shown(service, name))["metrics"] == {}


async def test_a_declared_metric_has_its_name_for_itself(tmp_path: Path) -> None:
    reward = {"metrics": {"comment": {"type": "float"}}}
    async with Service(tmp_path, reward=reward).running() as service:
        sent = await send(service, decision_id="d-1", metric_name="comment", value="good")
        refused(sent, 400, "invalid_value", "value")
        assert (await send(service, decision_id="d-1", metric_name="comment", value=1)).status_code == 202


async def test_texts_are_bounded(tmp_path: Path) -> None:
    async with Service(tmp_path, limits=CONFIG["limits"] | {"body_bytes": 1 << 16}).running() as service:
        for text in ("a" * 10_001, "a\0b", " "):
            sent = await send(service, decision_id="d-1", metric_name="comment", value=text)
            refused(sent, 400, "invalid_value", "value")
        sent = await send(service, decision_id="d-1", metric_name="comment", value="a" * 10_000)
        assert sent.status_code == 202


async def test_the_export_has_all_of_it(service: Service) -> None:
    name = await turn(service)
    await send(service, decision_id=name, metric_name="verdict", value="failed", comment="timeout")
    await send(service, decision_id=name, metric_name="demonstration", value="The Danube.")
    await send(service, decision_id=name, metric_name="thumb", value=1)
    answer = await service.client.get("/v1/export", params={"format": "feedback"})
    lines = [orjson.loads(line) for line in answer.text.splitlines()]
    assert [(line["decision_id"], line["metric"], line["value"], line["content"]) for line in lines] == [
        (name, "verdict", -0.5, {"label": "failed", "comment": "timeout"}),
        (name, "demonstration", None, {"demonstration": "The Danube."}),
        (name, "thumb", 1.0, {}),
    ]
    late = await service.client.get("/v1/export?format=feedback&since=2100-01-01T00:00Z")
    assert late.text == ""


def test_a_label_keeps_its_number_and_others_may_be_added(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"

    def opened(**values: float) -> None:
        store = open_log(url, RewardRule.model_validate(rule(values)), lambda: 1e9)
        store.append([Feedback("f-1", "d-1", "m", values["good"], 1e9, content={"label": "good"})])
        store.close()

    def rule(values: dict[str, float]) -> dict[str, Any]:
        return {"metrics": {"m": {"type": "categorical", "values": values}}}

    opened(good=1, bad=0)
    opened(good=1, bad=0, worse=-1)
    for changed in ({"good": 0.9, "bad": 0}, {"good": 1, "worse": -1}):
        with pytest.raises(MetricRedefinedError, match=r"was categorical \{bad: 0, good: 1, worse: -1\}"):
            opened(**changed)


async def test_feedback_in_tensorzeros_shape(service: Service) -> None:
    name = await turn(service, episode_id="e-1")
    dashed = str(UUID(name))
    path = "/feedback"
    tags = {"who": "me"}
    bodies: list[dict[str, Any]] = [
        {"metric_name": "thumb", "value": 0.5, "inference_id": dashed, "tags": tags},
        {"metric_name": "right", "value": True, "inference_id": name},
        {"metric_name": "comment", "value": "fine", "inference_id": name},
        {"metric_name": "demonstration", "value": [{"type": "text", "text": "x"}], "inference_id": name},
        {"metric_name": "thumb", "value": 1, "episode_id": "e-1"},
    ]
    for body in bodies:
        sent = await send(service, path, **body)
        assert (sent.status_code, sent.json().keys()) == (200, {"feedback_id"}), sent.text
    found = await kept(service, name, 5)
    assert [(one.metric, one.value) for one in found] == [
        ("thumb", 0.5),
        ("right", 1.0),
        ("comment", None),
        ("demonstration", None),
        ("thumb", 1.0),
    ]
    assert found[0].tags == tags
    assert orjson.loads(found[3].content["demonstration"]) == [{"type": "text", "text": "x"}]


@pytest.mark.parametrize("text", [r"\ud800", r"a\udfff"])
async def test_blocks_of_a_demonstration_that_cannot_be_stored_are_refused(
    service: Service, text: str
) -> None:
    name = await turn(service)
    body = f'{{"metric_name": "demonstration", "value": [{{"text": "{text}"}}], "inference_id": "{name}"}}'
    sent = await service.client.post(
        "/feedback", content=body.encode(), headers={"content-type": "application/json"}
    )
    assert 400 <= sent.status_code < 500, sent.text


async def test_a_dry_run_is_checked_and_not_kept(service: Service) -> None:
    name = await turn(service)
    body = {"metric_name": "thumb", "inference_id": name, "dryrun": True}
    assert (await send(service, "/feedback", value=0.5, **body)).json()["feedback_id"]
    refused(await send(service, "/feedback", value=7, **body), 400, "invalid_value", "value")
    refused(await send(service, "/feedback", value=[7], **body), 400, "invalid_value", "value")
    assert (await asyncio.to_thread(service.point.store.record, name)).feedback == ()  # type: ignore[union-attr]


async def test_scores_in_langfuses_shape(service: Service) -> None:
    name = await turn(service, episode_id="s-1")
    path = "/api/public/scores"
    bodies: list[dict[str, Any]] = [
        {"traceId": name, "name": "thumb", "value": 0.5, "dataType": "NUMERIC", "comment": "ok", "id": "f-1"},
        {"traceId": name, "name": "right", "value": 1, "dataType": "BOOLEAN", "environment": "test"},
        {"traceId": name, "name": "verdict", "value": "good_fit", "dataType": "CATEGORICAL"},
        {"sessionId": "s-1", "name": "thumb", "value": 1.0},
    ]
    ids = [(await send(service, path, **body)).json()["id"] for body in bodies]
    assert ids[0] == "f-1"
    found = await kept(service, name, 4)
    assert [one.id for one in found] == ids
    assert found[0].content == {"comment": "ok"}
    assert (found[2].value, found[2].content) == (1.0, {"label": "good_fit"})
    assert found[3].episode_id == "s-1"


async def test_a_list_of_scores_is_kept_as_far_as_it_can_be(service: Service) -> None:
    name = await turn(service)
    good: list[dict[str, Any]] = [
        {"traceId": name, "name": "thumb", "value": 0.5, "id": "f-1"},
        {"traceId": name, "name": "output", "value": "The Danube.", "dataType": "CORRECTION"},
        {"traceId": name, "name": "why", "value": "fine", "dataType": "TEXT"},
    ]
    bad: list[Any] = [{"traceId": name, "name": "thumb", "value": 7}, {"traceId": name}, 3]
    post, path = service.client.post, "/api/public/scores"
    answer = await post(path, json=good)
    assert (answer.status_code, answer.json()) == (202, {"message": "Accepted"})
    thumb, correction, text = await kept(service, name, 3)
    assert (thumb.id, thumb.value) == ("f-1", 0.5)
    assert (correction.content, correction.tags) == ({"demonstration": "The Danube."}, {"name": "output"})
    assert (text.content, text.tags) == ({"comment": "fine"}, {"name": "why"})
    answer = await post(path, json=[*bad, good[0]])
    said = answer.json()
    assert (answer.status_code, said["accepted"], said["rejected"]) == (207, 1, 3)
    assert "metric 'thumb' takes values in" in said["errors"][0]["message"]
    answer = await post(path, json=bad)
    assert "no item was kept" in refused(answer, 400, "invalid_value", "items.0.value")
    refused(await post(path, json=[]), 400, "invalid_value")


async def test_scores_of_a_wrong_type_are_refused(service: Service) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"value": "good", "dataType": "NUMERIC"}, "a number was expected"),
        ({"value": 1, "dataType": "CATEGORICAL"}, "a text was expected"),
        ({"value": 2, "dataType": "BOOLEAN"}, "0 or 1 was expected"),
        ({"value": 1, "sessionId": "s-1"}, "either decision_id or episode_id"),
    ]
    for fields, message in wrong:
        body = {"traceId": "d-1", "name": "thumb"} | fields
        assert message in refused(await send(service, "/api/public/scores", **body), 400, "invalid_value")


async def test_outcomes_in_the_shape_of_the_semantic_router(service: Service) -> None:
    name = await turn(service)
    path = "/v1/router/outcomes"
    model = {"replay_id": name, "target": "model", "target_ref": "bm25", "target_revision": 1}
    body = model | {"verdict": "underpowered", "score": 0.2, "reason": "too weak", "metadata": {"run": "7"}}
    for duplicate in (False, True):
        sent = await service.client.post(path, json=body, headers={"idempotency-key": "k-1"})
        assert sent.status_code == 202
        reply = sent.json()
        assert (reply["id"], reply["replay_id"], reply["duplicate"]) == ("k-1", name, duplicate)
    policy = {"replay_id": name, "target": "policy", "verdict": "failed", "source": "operator"}
    assert (await send(service, path, **policy)).status_code == 202
    verdict, comment = await kept(service, name, 2)
    assert (verdict.metric, verdict.value) == ("verdict", 0.0)
    assert verdict.content == {"label": "underpowered", "comment": "too weak"}
    assert verdict.tags == {"run": "7", "target_ref": "bm25"}
    assert (comment.metric, comment.content) == ("comment", {"comment": "policy: failed"})
    other = model | {"verdict": "overprovisioned"}
    refused(await send(service, path, **other), 400, "invalid_value", "value")


async def test_an_outcome_has_a_score_where_one_is_declared(tmp_path: Path) -> None:
    for metrics, expected in (
        ({"score": {}}, [("score", 0.2)]),
        ({"score": {}, "verdict": VERDICT}, [("verdict", 0.0), ("score", 0.2)]),
    ):
        folder = tmp_path / str(len(metrics))
        folder.mkdir()
        async with Service(folder, reward={"metrics": metrics}).running() as service:
            name = await turn(service)
            body = {"replay_id": name, "target": "model", "verdict": "underpowered", "score": 0.2}
            for duplicate in (False, True):
                sent = await service.client.post(
                    "/v1/router/outcomes", json=body, headers={"idempotency-key": "k"}
                )
                assert (sent.status_code, sent.json().get("duplicate")) == (202, duplicate), sent.text
            found = await kept(service, name, len(expected))
            assert [(one.metric, one.value) for one in found] == expected
            assert [one.id for one in found] == ["k", "k:1"][: len(expected)]


async def test_an_undeclared_verdict_says_what_is_declared(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        body = {"replay_id": "d-1", "target": "model", "verdict": "failed", "score": 0.2}
        sent = await send(service, "/v1/router/outcomes", **body)
        assert "'verdict' is not declared" in refused(sent, 400, "unknown_metric", "metric_name")


async def test_langfuses_clients_send_the_key_as_the_password_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "a-secret")
    keys = [{"env": "JUDGE_KEY", "scopes": ["feedback"], "source": "judge"}]

    def basic(text: str) -> dict[str, str]:
        return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}

    async with Service(tmp_path, keys=keys).running() as service:
        score = {"traceId": "d-1", "name": "thumb", "value": 1, "id": "f-1"}
        post, path = service.client.post, "/api/public/scores"
        for wrong in ("pk:wrong", "a-secret", "a-secret:", ":a-secret", ""):
            refused(await post(path, json=score, headers=basic(wrong)), 401, "invalid_api_key")
        assert (await post(path, json=score, headers=basic("pk:a-secret"))).status_code == 200
        item = {"decision_id": "d-1", "metric_name": "thumb", "value": 1}
        refused(await post("/v1/feedback", json=item, headers=basic("pk:a-secret")), 401, "invalid_api_key")
        facts = await asyncio.to_thread(lambda: [*service.point.store.feedback(10)])
        assert [(one.id, one.source) for one in facts] == [("f-1", "judge")]


async def test_a_preference_over_a_decision_stays_within_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_KEY", "acme-secret")
    keys = [{"env": "ACME_KEY", "scopes": ["decide", "feedback", "read"], "project": "acme"}]
    async with Service(tmp_path, keys=keys).running() as service:
        service.client.headers["authorization"] = "Bearer acme-secret"
        name, other = await turn(service), await turn(service)
        sent = await send(service, decision_id=name, metric_name="preference", value={"over": other})
        assert sent.status_code == 202
        (item,) = (await record(service, f"acme~{name}", lambda r: r.feedback)).feedback
        assert item.content == {"over": f"acme~{other}"}
        assert (await shown(service, name))["feedback"][0]["content"] == {"over": other}
