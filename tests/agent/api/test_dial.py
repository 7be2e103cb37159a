"""A request turns the dial: cost counts more or less in its draw, as the log says, and not in its reward."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.agent.config import ConfigError, parse
from armwise.agent.turn.steps.dial import DialStep
from armwise.arms.llm.base import ScriptedGenerator
from tests.agent.asking import CHAT, QUESTION, refused, tell
from tests.agent.fakes import CONFIG, Service

PRICED: dict[str, Any] = {
    "llm": {"engine": "scripted", "usd_per_kilotoken_in": 0.1, "usd_per_kilotoken_out": 1.0},
    "llms": {"large": {"engine": "scripted", "usd_per_kilotoken_in": 1.0, "usd_per_kilotoken_out": 10.0}},
    "arms": {
        "small": {"kind": "none"},
        "large": {"kind": "none", "answering": {"llm": "large"}},
        "searching": {"kind": "bm25"},
    },
    "answering": {"max_tokens": 100},
    "reward": {
        "metrics": {"thumb": {}},
        "cost_weight": 0.1,
        "cost": {"steps": 0.0, "usd": 1.0},
        "complete": "any",
    },
    "policy": {"kind": "adaptive"},
    "aliases": {"gpt-frugal": "auto:cheap"},
}
"""A small and a large model, of which the large one costs ten times as much, and cost counts a little."""

HEADER = "X-Armwise-Cost-Weight"


@pytest.fixture
async def priced(tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path, ScriptedGenerator({}, default="Done."), **PRICED).running() as service:
        yield service


async def ask(
    service: Service, model: str = "auto", weight: str | None = None, **fields: Any
) -> dict[str, Any]:
    """Ask with a name of a model or with the header; return how the arm was chosen."""
    headers = {} if weight is None else {HEADER: weight}
    answer = await service.client.post(
        "/v1/chat/completions", json=CHAT | {"model": model} | fields, headers=headers
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["agent"]
    return found


async def test_a_request_that_wants_it_cheap_or_good_gets_that_more_often(priced: Service) -> None:
    large = [(await ask(priced, model))["pmf"]["large"] for model in ("auto:cheap", "auto", "auto:best")]
    assert large == sorted(large)
    assert large[0] < large[1] < large[2]
    floor = priced.replica.compute_floor(3)
    assert floor < large[0] < 1.1 * floor, "no arm is left out"
    assert (await ask(priced, "gpt-frugal"))["pmf"] == (await ask(priced, "auto:cheap"))["pmf"]


@pytest.mark.parametrize("policy", ["adaptive", "linucb", "epsilon_greedy", "uniform", "vowpal"])
async def test_the_log_has_what_the_arm_was_drawn_with(tmp_path: Path, policy: str) -> None:
    params = CONFIG["policy"]["params"] if policy == "vowpal" else {}
    changes = PRICED | {"policy": {"kind": policy, "params": params}}
    async with Service(tmp_path, ScriptedGenerator({}, default="Done."), **changes).running() as service:
        for number in range(6):
            rated = await ask(service, "auto:best")
            assert (await tell(service, rated["decision_id"], number % 2)).status_code == 202
        await service.learn()
        for model, weight, told in (
            ("auto:cheap", None, 1.0),
            ("auto:best", None, 0.0),
            ("auto", "0.25", 0.25),
            ("auto:best", "2", 2.0),  # the header comes first
        ):
            chosen = await ask(service, model, weight)
            path = f"/v1/decisions/{chosen['decision_id']}"
            logged = (await service.client.get(path)).json()
            assert logged["steps"]["dial"]["cost_weight"] == pytest.approx(told)
            verified = (await service.client.get(f"{path}/verify")).json()
            assert verified["verified"], verified["why"]
            assert chosen["propensity"] == chosen["pmf"][chosen["arm_drawn"]]
        plain = (await service.client.get(f"/v1/decisions/{(await ask(service))['decision_id']}")).json()
        assert "dial" not in plain["steps"]


async def test_the_reward_is_the_same_rule_whatever_the_dial_says(priced: Service) -> None:
    for model in ("auto:cheap", "auto", "auto:best"):
        asked = await ask(priced, model, agent={"allowed_arms": ["large"]})
        await tell(priced, asked["decision_id"], 1.0)
    await priced.settle()
    newest = [one.id for one in priced.replica.store.newest(3)]
    rewards = [(await priced.client.get(f"/v1/decisions/{name}")).json()["reward"] for name in newest]
    assert rewards == [pytest.approx(rewards[0])] * 3
    assert rewards[0] < 1.0, "with the cost"


async def test_what_an_answer_costs_is_expected_from_its_price(priced: Service) -> None:
    asked = await ask(priced, "auto:cheap", max_tokens=50)
    logged = (await priced.client.get(f"/v1/decisions/{asked['decision_id']}")).json()["steps"]["dial"][
        "costs"
    ]
    assert logged["large"] == pytest.approx(10 * logged["small"])
    assert logged["small"] == logged["searching"]
    assert 0.05 < logged["small"] < 0.06, "50 tokens written, and some read"


@pytest.mark.parametrize("weight", ["-0.1", "1001", "nan", "inf", "1_0", "", "cheap", "9" * 400])
async def test_a_weight_out_of_range_is_refused_by_its_value(priced: Service, weight: str) -> None:
    answer = await priced.client.post("/v1/chat/completions", json=CHAT, headers={HEADER: weight})
    assert repr(weight[:50]) in refused(answer, 400, "invalid_value", HEADER)


async def test_a_repeat_with_another_weight_is_another_request(priced: Service) -> None:
    async def send(**weight: str) -> httpx.Response:
        headers = {"Idempotency-Key": "k-1", **weight}
        return await priced.client.post("/v1/chat/completions", json=CHAT, headers=headers)

    answers = [await send(), await send(), await send(**{HEADER: "0"})]
    assert [one.status_code for one in answers[:2]] == [200, 200]
    refused(answers[2], 409, "idempotency_conflict", "Idempotency-Key")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/retrieve"])
async def test_every_door_reads_the_names(priced: Service, path: str) -> None:
    said = {"messages": CHAT["messages"], "max_tokens": 9}
    body = {"/v1/responses": {"input": QUESTION}, "/v1/retrieve": {"query": QUESTION}}.get(path, said)
    answer = await priced.client.post(path, json={**body, "model": "auto:best"})
    logged = await priced.client.get(f"/v1/decisions/{answer.json()['agent']['decision_id']}")
    assert logged.json()["steps"]["dial"]["cost_weight"] == 0.0


async def test_names_are_listed_where_cost_counts_and_refused_elsewhere(
    priced: Service, tmp_path: Path
) -> None:
    listed = [one["id"] for one in (await priced.client.get("/v1/models")).json()["data"]]
    assert listed[:4] == ["auto", "auto:cheap", "auto:best", "arm/small"]
    free = {**PRICED, "reward": {"metrics": {"thumb": {}}, "cost_weight": 0.0}}
    async with Service(
        tmp_path / "free", ScriptedGenerator({}, default="Done."), **free
    ).running() as service:
        listed = [one["id"] for one in (await service.client.get("/v1/models")).json()["data"]]
        assert "auto:cheap" not in listed
        answer = await service.client.post("/v1/chat/completions", json=CHAT | {"model": "auto:cheap"})
        assert "reward.worth" in refused(answer, 400, "invalid_value", "model")


async def test_another_name_after_auto_is_no_model(priced: Service) -> None:
    answer = await priced.client.post("/v1/chat/completions", json=CHAT | {"model": "auto:fast"})
    refused(answer, 404, "model_not_found", "model")


def test_the_names_cannot_be_aliases_of_something_else() -> None:
    with pytest.raises(ConfigError, match="'auto:best' has a meaning already"):
        parse({**CONFIG, "aliases": {"auto:best": "arm/bm25"}})


def test_a_weight_below_that_of_the_reward_gives_back_what_the_reward_takes() -> None:
    record = {"cost_weight": 0.0, "more": -0.5, "costs": {"a": 0.25, "b": 2.0, "out": 9.0}}
    assert DialStep.weigh(record, ["b", "a"]) == [-1.0, -0.125]


@pytest.mark.parametrize("is_on", [True, False])
async def test_visitors_of_the_chat_page_have_the_dial_where_the_configuration_says_so(
    tmp_path: Path, *, is_on: bool
) -> None:
    changes = PRICED | {"chat": {"dial": is_on}}
    async with Service(tmp_path, ScriptedGenerator({}, default="Done."), **changes).running() as service:
        page = (await service.client.get("/chat")).text
        assert ('id="dial" hidden' in page) != is_on
        said = {"conversation": "0" * 32, "messages": [{"role": "user", "content": QUESTION}]}
        answer = await service.client.post("/chat/ask", json={**said, "model": "auto:best"})
        if not is_on:
            assert "chat.dial" in refused(answer, 400, "invalid_value", "model")
            return
        assert answer.status_code == 200, answer.text
        (newest,) = service.replica.store.newest(1)
        assert newest.steps["dial"]["cost_weight"] == 0.0
        assert (
            await service.client.post("/chat/ask", json={**said, "model": "arm/large"})
        ).status_code == 400
