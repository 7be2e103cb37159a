"""Evaluations over HTTP: submitted, run beside the service, and read as JSON and as a page."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from armwise.agent.config import Scope, parse
from armwise.agent.evaluation import EvaluationRequest
from armwise.agent.learning import digest_configuration
from armwise.feedback.log import tables as t
from armwise.feedback.registry import KeySettings, evaluations, keys
from tests.agent.asking import look_up, refused, tell
from tests.agent.fakes import CONFIG, Service
from tests.agent.judged import judged_log

EVALUATIONS = "/v1/evaluations"
LINUCB = "policy:{kind: linucb, params: {alpha: 0.5}}"


@pytest.fixture
async def judged(tmp_path: Path) -> AsyncIterator[Service]:
    """A service whose log holds judged turns."""
    judged_log(parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"}), turns=60)
    async with Service(tmp_path).running() as service:
        yield service


async def submitted(service: Service, **request: Any) -> httpx.Response:
    return await service.client.post(EVALUATIONS, json=request)


async def shown(service: Service, number: int) -> dict[str, Any]:
    response = await service.client.get(f"{EVALUATIONS}/{number}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def ended(service: Service, number: int) -> dict[str, Any]:
    """Poll until it has ended, as a client does."""
    async with asyncio.timeout(60):
        while (found := await shown(service, number))["status"] in ("queued", "running"):
            await asyncio.sleep(0.01)
    return found


async def keys_of(service: Service, *holders: tuple[str, Scope]) -> dict[str, dict[str, str]]:
    """Make a key of each project and scope; return their headers by `project scope`."""
    headers = {}
    for project, scope in holders:
        settings = KeySettings(f"{project} {scope}", (scope,), project=project)
        now = service.replica.clock()
        _, token = await asyncio.to_thread(keys.create, service.replica.store, settings, now)
        headers[f"{project} {scope}"] = {"authorization": f"Bearer {token}"}
    await service.refresh()
    return headers


# -- from a request to its result --------------------------------------------------------------------


@pytest.mark.slow
async def test_an_evaluation_is_submitted_run_and_read(judged: Service) -> None:
    answer = await submitted(judged, candidates=["uniform", "fixed:bm25"], gate=True)
    assert answer.status_code == 202, answer.text
    submitted_one = answer.json()
    place = answer.headers["location"]
    assert place == f"{EVALUATIONS}/{submitted_one['id']}"
    assert (submitted_one["status"], submitted_one["done"], submitted_one["error"]) == ("queued", 0.0, None)
    assert submitted_one["request"]["candidates"] == ["uniform", "fixed:bm25"]
    assert submitted_one["started_at"] is submitted_one["finished_at"] is None
    with judged.working():
        found = await ended(judged, submitted_one["id"])
    assert (found["status"], found["done"], found["error"]) == ("done", 1.0, None)
    assert submitted_one["submitted_at"] <= found["started_at"] <= found["finished_at"]
    result = found["result"]
    assert result["rows"] == 60
    assert [one["name"] for one in result["candidates"]] == ["served", "uniform", "fixed:bm25"]
    assert all(one["verdict"]["verdict"] in ("promote", "hold") for one in result["candidates"][1:])
    page = await judged.client.get(f"{place}/report")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<html" in page.text
    assert "fixed:bm25" in page.text
    policy = page.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "sandbox"} <= {*policy}, "no script runs"
    assert not any(part.startswith("script-src") for part in policy)


@pytest.mark.slow
async def test_a_policy_that_is_written_out_is_evaluated(judged: Service) -> None:
    number = (await submitted(judged, candidates=[LINUCB])).json()["id"]
    with judged.working():
        found = await ended(judged, number)
    assert found["error"] is None
    assert [one["name"] for one in found["result"]["candidates"]] == ["served", LINUCB]


async def test_an_error_of_the_worker_is_the_error_of_the_evaluation(judged: Service) -> None:
    number = (await submitted(judged, until="1970-01-01T00:00:01Z")).json()["id"]
    built = (await submitted(judged, candidates=["policy:{kind: linucb, params: {alpha: -1}}"])).json()["id"]
    with judged.working():
        empty, wrong = await ended(judged, number), await ended(judged, built)
    assert (empty["status"], empty["result"]) == ("failed", None)
    assert "1970-01-01" in empty["error"]
    assert wrong["status"] == "failed"
    assert "alpha" in wrong["error"]
    report = await judged.client.get(f"{EVALUATIONS}/{number}/report")
    message = refused(report, 409, "not_done", "number")
    assert message == f"evaluation {number} is failed: only one that is done has a report"


# -- reading -----------------------------------------------------------------------------------------


async def test_evaluations_are_listed_newest_first_in_pages(judged: Service) -> None:
    numbers = [(await submitted(judged, seed=seed)).json()["id"] for seed in range(4)]
    store = judged.replica.store
    ours = digest_configuration(judged.replica.config)
    mine, other = evaluations.claim(store, ours, "w", 1.0), evaluations.claim(store, ours, "other", 1.0)
    assert mine is not None
    assert other is not None
    evaluations.finish(store, mine, evaluations.StoredResult({"rows": 3}, "<html>"), 2.0)
    evaluations.fail(store, other, "why", 2.0)
    listed = (await judged.client.get(EVALUATIONS)).json()["evaluations"]
    assert [one["id"] for one in listed] == numbers[::-1]
    assert [one["status"] for one in listed] == ["queued", "queued", "failed", "done"]
    assert listed[2]["error"] == "why"
    assert all("result" not in one for one in listed), "results are read one at a time"
    first = (await judged.client.get(EVALUATIONS, params={"limit": 3})).json()["evaluations"]
    query = {"limit": 3, "before": first[-1]["id"]}
    assert first + (await judged.client.get(EVALUATIONS, params=query)).json()["evaluations"] == listed
    assert (await shown(judged, numbers[0]))["result"] == {"rows": 3}


async def test_an_evaluation_is_named_by_its_number(service: Service) -> None:
    for path in ("7", "7/report"):
        answer = await service.client.get(f"{EVALUATIONS}/{path}")
        assert refused(answer, 404, "evaluation_not_found", "number") == "there is no evaluation 7"
    for number in ("0", "-1", "newest", str(2**63)):
        refused(await service.client.get(f"{EVALUATIONS}/{number}"), 400, "invalid_value", "number")


# -- refused -----------------------------------------------------------------------------------------


def nested(levels: int) -> str:
    """Write out a policy of an unknown kind with so many levels."""
    return "{kind: none, params: {a: " + "[" * (levels - 2) + "]" * (levels - 2) + "}}"


REFUSED: list[tuple[dict[str, Any], str, str | None, str]] = [
    ({"candidate": ["uniform"]}, "invalid_request", "candidate", "unknown field 'candidate'"),
    ({"candidates": ["best"]}, "invalid_value", None, "'best' is not one of: served, uniform"),
    ({"candidates": ["fixed:bm52"]}, "invalid_value", "candidates", "did you mean 'bm25'?"),
    ({"baseline": "fixed:bm52"}, "invalid_value", "candidates", "did you mean 'bm25'?"),
    ({"candidates": ["version:77"]}, "invalid_value", "candidates", "there is no version 77"),
    ({"candidates": ["recipe:77"]}, "invalid_value", "candidates", "there is no version 77"),
    ({"candidates": [f"recipe:{2**70}"]}, "invalid_value", "candidates", "there is no version"),
    ({"candidates": ["policy:{kind: linucp}"]}, "invalid_value", "candidates", "did you mean 'linucb'?"),
    ({"candidates": ["policy:policy.yaml"]}, "invalid_value", None, "policy"),
    (
        {"candidates": ["policy:{kind: &a uniform, params: {b: *a}}"]},
        "invalid_value",
        None,
        "write its contents out",
    ),
    ({"candidates": [f"policy:{nested(20)}"]}, "invalid_value", "candidates", "no policy of kind 'none'"),
    ({"candidates": [f"policy:{nested(21)}"]}, "invalid_value", None, "more than 20 levels"),
    ({"candidates": [f"policy:{{kind: {'x' * 2000}}}"]}, "invalid_value", "candidates.0", "2000 characters"),
    ({"candidates": ["policy:{kind: uniform, params: {a: 2026-99-99}}"]}, "invalid_value", None, "month"),
    ({"estimators": ["ips", "snisp"]}, "invalid_value", None, "snisp"),
    ({"interval": "wide"}, "invalid_value", None, "wide"),
    ({"versions": [3, 2]}, "invalid_value", None, "versions 3 to 2"),
    ({"since": "2001-01-01T00:00:00Z", "until": "2000-01-01T00:00:00Z"}, "invalid_value", None, "before"),
    ({"until": "9999-12-31T23:59:59-23:59"}, "invalid_value", "until", "up to the year 9999 in UTC"),
    ({"until": "9999-12-31T23:59:59.999999Z"}, "invalid_value", "until", "up to the year 9999 in UTC"),
    ({"since": "0001-01-01T00:00:00+00:01"}, "invalid_value", "since", "up to the year 9999 in UTC"),
    ({"since": "2999-01-01T00:00:00Z"}, "empty_window", "since", "in the future"),
    ({"cost_weight": -1}, "invalid_value", "cost_weight", "greater than or equal to 0"),
    ({"seed": 2**70}, "invalid_value", None, ""),
]
"""A request, the code of its refusal, the field at fault where that is one, and a part of the message."""


async def test_a_request_that_cannot_be_evaluated_is_refused_at_once(
    judged: Service, subtests: pytest.Subtests
) -> None:
    for request, code, param, part in REFUSED:
        with subtests.test(str(request)):
            answer = await submitted(judged, **request)
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert error["code"] == code
            assert param is None or error["param"] == param
            assert part in error["message"]
    assert (await judged.client.get(EVALUATIONS)).json() == {"evaluations": []}


def test_the_names_of_all_candidates_together_are_bounded() -> None:
    names = tuple(f"fixed:{n:0300}" for n in range(99))
    with pytest.raises(
        ValueError, match="the names have 30,300 characters together; at most 20,000 are allowed"
    ):
        EvaluationRequest(candidates=names)


FILES: list[tuple[str, str]] = [
    ("router:/etc", "only the configured router"),
    ("router:/etc\0", "names no folder: "),
    ("router:{home}/../elsewhere", "only the configured router"),
    ("router:{home}", "only the configured router"),
    ("policy:/etc/passwd", "policy '/etc/passwd': args: Input should be a valid dictionary"),
    ("policy:{kind: neural, params: {encoder: /etc}}", "encoder '/etc' may name a file"),
    (
        "policy:{kind: vowpal, params: {args: '--cb_explore_adf -p /tmp/written'}}",
        "vw argument '-p' is not allowed",
    ),
    (
        "policy:{kind: vowpal, params: {args: '--cb_explore_adf --cache_file=/tmp/written'}}",
        "vw argument '--cache_file' is not allowed",
    ),
    ("policy:{kind: vowpal, params: {args: ['-p', /tmp/written]}}", "vw arguments are a text"),
    ("policy:{kind: neural, params: {encoder: /etc}}", "encoder '/etc' may name a file"),
]
"""A candidate that names a file, and a part of the message; `{home}` is the folder of the service."""


async def test_a_caller_names_no_file_of_the_machine(
    judged: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv("ARMWISE_HOME", str(tmp_path / "home"))
    for candidate, part in FILES:
        with subtests.test(candidate):
            name = candidate.replace("{home}", str(tmp_path / "home"))
            answer = await submitted(judged, candidates=[name])
            assert answer.status_code == 400, answer.text
            assert part in answer.json()["error"]["message"]


async def test_a_router_below_the_folder_of_the_service_may_be_named(
    judged: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ARMWISE_HOME", str(tmp_path / "home"))
    answer = await submitted(judged, candidates=[f"router:{tmp_path}/home/runs/7/router"])
    assert answer.status_code == 202, answer.text


async def test_an_evaluation_of_an_empty_log_is_refused(service: Service) -> None:
    message = refused(await submitted(service), 400, "empty_window")
    assert message == "the log has no decisions yet"


@pytest.mark.slow
async def test_a_project_has_its_share_of_the_queue(judged: Service) -> None:
    headers = await keys_of(judged, ("greedy", "operate"), ("small", "operate"))

    async def submit(project: str) -> httpx.Response:
        return await judged.client.post(EVALUATIONS, json={}, headers=headers[f"{project} operate"])

    answers = [await submit("greedy") for _ in range(20)]
    assert [answer.status_code for answer in answers] == [202] * 10 + [429] * 10
    message = refused(answers[-1], 429, "too_many_evaluations")
    assert "10 evaluations of project 'greedy' are queued or running; it may have 10" in message
    answers = [await submit("small") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [202] * 5 + [429]
    assert "it may have 5" in refused(answers[-1], 429, "too_many_evaluations")


@pytest.mark.slow
async def test_features_of_other_projects_select_nothing_for_a_key_without_admin(judged: Service) -> None:
    """Each word of a question of others would say what its answer has earned."""
    headers = await keys_of(judged, ("acme", "operate"), ("default", "operate"), ("default", "admin"))
    with judged.replica.store.writing() as connection:
        columns = t.decisions.c.id, t.executions.c.decision_id, t.examples.c.decision_id
        for column in columns:
            theirs = column.in_([f"judged-{n}" for n in range(20)])
            connection.execute(sa.update(column.table).where(theirs).values({column: "acme~" + column}))

    async def rows(who: str, **request: Any) -> tuple[int, dict[str, int]]:
        made = await judged.client.post(EVALUATIONS, json=request, headers=headers[who])
        assert made.status_code == 202, made.text
        path, result = f"{EVALUATIONS}/{made.json()['id']}", None
        with judged.working():
            async with asyncio.timeout(60):
                while result is None:
                    await asyncio.sleep(0.01)
                    shown = (await judged.client.get(path, headers=headers[who])).json()
                    assert shown["status"] != "failed", shown
                    result = shown["result"]
        return result["rows"], result["excluded"]

    word = {"features": {"w": "question"}}
    assert await rows("acme operate", **word) == (20, {"another project": 40})
    assert await rows("default operate", **word) == (40, {"another project": 20})
    assert await rows("default admin", **word) == (60, {})
    assert await rows("default admin", **word, project="acme") == (20, {"another project": 40})
    assert await rows("acme operate") == (60, {}), "what all projects have taught is judged as a whole"
    of_others = {"json": {"project": "default"}, "headers": headers["acme operate"]}
    message = refused(await judged.client.post(EVALUATIONS, **of_others), 403, "forbidden", "project")
    assert "for project 'acme', not" in message


async def test_an_evaluation_of_another_projects_decisions_alone_is_not_shown(judged: Service) -> None:
    headers = await keys_of(judged, ("acme", "operate"), ("zeta", "operate"))
    made = dict[tuple[str, bool], int]()
    for who, header in headers.items():
        for body in ({}, {"features": {"w": "river"}}):
            reply = await judged.client.post(EVALUATIONS, json=body, headers=header)
            made[who, bool(body)] = reply.json()["id"]
    for who, other in (("acme operate", "zeta operate"), ("zeta operate", "acme operate")):
        listed = (await judged.client.get(EVALUATIONS, headers=headers[who])).json()["evaluations"]
        theirs = made[other, True]
        assert {state["id"] for state in listed} == {*made.values()} - {theirs}
        for page in (str(theirs), f"{theirs}/report"):
            reply = await judged.client.get(f"{EVALUATIONS}/{page}", headers=headers[who])
            refused(reply, 404, "evaluation_not_found", "number")
            path = f"/console/evaluations/{page}"
            assert (await judged.client.get(path, headers=headers[who])).status_code == 404


# -- turns of the service ----------------------------------------------------------------------------


@pytest.mark.slow
async def test_turns_of_the_service_are_evaluated_once_they_are_learned(service: Service) -> None:
    for _ in range(3):
        await tell(service, (await look_up(service)).json()["agent"]["decision_id"])
    await service.settle()
    number = (await submitted(service, candidates=["uniform", "configured", "recipe:1"])).json()["id"]
    with service.working():
        found = await ended(service, number)
    assert found["error"] is None
    assert found["result"]["rows"] == 3
