"""A caller who picks the id of a decision does not pick its arm, and cannot try an id without using it."""

import json
import logging
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from armwise.agent.policies import choose, sampling
from tests.agent.api.test_routes import ROUTES
from tests.agent.asking import CHAT, late_once_decided, look_up, record, refused, rows, tell
from tests.agent.fakes import Service

WANTED = "dense"


async def the_public(service: Service) -> dict[str, float]:
    """Return the distribution, as every reply has it."""
    pmf: dict[str, float] = (await look_up(service)).json()["agent"]["pmf"]
    return pmf


def steering_ids(salt: str, pmf: dict[str, float], arm: str) -> list[str]:
    """Return 150 ids that would be drawn to an arm, were the salt the whole key of the hash."""
    found = []
    for name in map("attack-{}".format, count()):
        u = sampling.uniform_from(name, salt, list(pmf))
        if list(pmf)[choose_from(pmf, u)] == arm:
            found.append(name)
        if len(found) == 150:
            return found
    raise AssertionError("count() never ends")


def choose_from(pmf: dict[str, float], u: float) -> int:
    return choose(sampling.validate(list(pmf.values()), len(pmf)), u)  # type: ignore[arg-type]


@pytest.mark.slow
async def test_chosen_ids_hit_an_arm_as_often_as_its_propensity_says(tmp_path: Path) -> None:
    policy = {"kind": "fixed", "params": {"arm": "bm25"}}
    async with Service(tmp_path, policy=policy, floor=0.056).running() as service:
        pmf = await the_public(service)
        assert pmf[WANTED] == pytest.approx(0.056)
        hits = 0
        for name in steering_ids("armwise", pmf, WANTED):
            answer = (await look_up(service, {"Idempotency-Key": name})).json()["agent"]
            assert answer["pmf"] == pmf
            hits += answer["arm_drawn"] == WANTED
            verified = await service.client.get(f"/v1/decisions/{name}/verify")
            assert verified.json()["verified"], verified.text
    assert binomtest(hits, 150, pmf[WANTED]).pvalue > 0.001, f"{hits} of 150"


PROBES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "a deadline that has passed": ({}, {"X-Request-Timeout-Seconds": "0.000001"}),
    "no arm is left": ({"agent": {"excluded_arms": ["none", "bm25", "dense"]}}, {}),
    "an unknown arm": ({"model": "arm/nobody"}, {}),
    "a context that is refused": ({"agent": {"context": {"age": [1]}}}, {}),
    "too many passages": ({"k": 10_000}, {}),
}


@pytest.mark.parametrize("probe", PROBES)
async def test_a_refused_request_says_nothing_of_its_draw(service: Service, probe: str) -> None:
    body, headers = PROBES[probe]
    refusal = await look_up(service, {"Idempotency-Key": "probe", **headers}, **body)
    assert refusal.status_code >= 400
    assert not {"x-arm", "x-propensity", "x-policy-version"} & {*refusal.headers}
    assert refusal.json().keys() == {"error"}
    assert (await service.client.get("/v1/decisions/probe")).status_code == 404
    assert (await rows(service))["decisions"] == 0
    assert service.arms.calls == []


@pytest.mark.parametrize("path", ["/v1/retrieve", "/v1/chat/completions"])
async def test_a_draw_that_was_given_up_is_committed_and_its_id_is_used(service: Service, path: str) -> None:
    late_once_decided(service, 5.0)
    headers = {"Idempotency-Key": "given-up", "X-Request-Timeout-Seconds": "5"}
    body = CHAT if "chat" in path else {"query": "which river?"}
    refused(await service.client.post(path, json=body, headers=headers), 408, "deadline_exceeded", final=True)
    found = await record(service, "given-up", lambda one: one.execution)
    del headers["X-Request-Timeout-Seconds"]
    for again in (body, body | {"agent": {"excluded_arms": [found.decision.drawn]}}):
        answer = await service.client.post(path, json=again, headers=headers)
        refused(answer, 409, "idempotency_conflict", "Idempotency-Key")
    assert (await rows(service))["decisions"] == 1


@pytest.mark.parametrize("first", [{"model": "arm/bm25"}, {"agent": {"explore": False}}])
async def test_an_arm_that_was_named_or_taken_greedily_uses_its_id(
    service: Service, first: dict[str, Any]
) -> None:
    headers = {"Idempotency-Key": "d-1"}
    assert (await look_up(service, headers, **first)).status_code == 200
    refused(await look_up(service, headers), 409, "idempotency_conflict", "Idempotency-Key")


@pytest.mark.slow
async def test_no_response_export_message_or_representation_has_the_secret(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = service.replica.store.draw_secret.secret
    decision_id = (await look_up(service)).json()["agent"]["decision_id"]
    await tell(service, decision_id)
    await service.learn()
    texts = [
        repr(service.replica.decider),
        repr(service.replica.turns),
        repr(vars(service.replica)),
        repr(service.replica),
    ]
    paths = [path for method, path in ROUTES if method == "GET"]
    for path in (*paths, *(f"/v1/export?format={form}" for form in ("jsonl", "dsjson"))):
        named = {"model": "auto", "store": "stdlib"}
        url = path.replace(":path", "").format(decision_id=decision_id, number=1, version=1, **named)
        texts.append((await service.client.get(url)).content.decode("latin-1"))
    texts.append(json.dumps(service.config.model_dump(mode="json")))
    assert len("".join(texts)) > 10_000
    for text in (*texts, caplog.text):
        assert secret not in text
