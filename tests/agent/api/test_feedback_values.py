"""Feedback that is not a number, and feedback in the shapes of other systems."""

from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from armwise.feedback.errors import MetricRedefinedError
from armwise.feedback.events import Feedback
from armwise.feedback.log import open_log
from armwise.feedback.reward import RewardRule
from tests.agent.asking import look_up, record, refused, tell
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
    assert sent.json()["status"] == "stored"
    (item,) = (await shown(service, name))["feedback"]
    assert (item["value"], item["content"]) == (-0.5, {"label": "failed", "comment": "timeout"})
    assert (await shown(service, name))["metrics"] == {"verdict": -0.5}


async def test_what_is_no_label_is_refused(service: Service) -> None:
    expected = "takes one of 'good_fit', 'underpowered', 'failed'"
    values = {"great": expected, 1: expected, False: expected}
    for value, message in (*values.items(), ({"over": "d-2"}, "not a preference")):
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
async def test_it_is_one_fact_however_often_sent_and_retractable(tmp_path: Path, log_url: str) -> None:
    async with Service(tmp_path, log_url=log_url, reward=REWARD).running() as service:
        for metric, value, other in SAID:
            name = await turn(service)
            body = {"decision_id": name, "metric_name": metric, "feedback_id": f"f-{metric}"}
            first = await send(service, value=value, **body)
            again = await send(service, value=value, **body)
            assert (first.json()["status"], again.json()["status"]) == ("stored", "duplicate")
            assert metric in refused(await send(service, value=other, **body), 409, "idempotency_conflict")
            assert (await send(service, value=None, **body)).json()["status"] == "stored"
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


async def test_a_passage_is_rated_apart_from_the_answer(service: Service) -> None:
    asked = (await look_up(service)).json()
    name, first = asked["agent"]["decision_id"], asked["passages"][0]["id"]

    async def rate(value: Any, metric: str = "thumb", **fields: Any) -> httpx.Response:
        return await tell(service, name, value, metric_name=metric, **fields)

    assert (await rate(1, passage=first, feedback_id="f")).status_code == 202
    text = refused(await rate(1, passage="nowhere"), 400, "invalid_value", "passage")
    assert text == "the decision has no passage 'nowhere'"
    refused(await rate("Good.", "comment", passage=first), 400, "invalid_value", "passage")
    await service.learn()
    found = (await service.client.get(f"/v1/decisions/{name}")).json()
    (item,) = found["feedback"]
    assert (item["kind"], item["value"], item["content"]) == ("passage", 1.0, {"passage": first})
    assert (item["counts"], found["metrics"], found["state"]) == (False, {}, "open")
    assert (await rate(None, feedback_id="f")).status_code == 202
    absent = await tell(service, "nobody", 1, passage=first)
    assert (absent.status_code, absent.json()["status"]) == (202, "stored")
    item = {"episode_id": "e", "metric_name": "thumb", "value": 1, "passage": first}
    assert (await service.client.post("/v1/feedback", json=item)).status_code == 400
