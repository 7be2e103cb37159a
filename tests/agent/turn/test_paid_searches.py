"""Searches with a price, from the configuration to the log, to limits, and to what a policy learns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.turn import Ask, bound_search
from armwise.arms.base import ArmError, Passage, Query, Retrieval, Usage
from armwise.arms.corpus import CorpusSource
from armwise.arms.deployments import ArmHost, ArmSettings, Embedders, HostedArms
from armwise.arms.llm.base import ScriptedGenerator
from tests.agent.asking import look_up, tell
from tests.agent.fakes import Service
from tests.neighbours import write_corpus

HERE = "tests.agent.turn.test_paid_searches"

PRICE = 0.002


class Source:
    """A source of a user's own: all of them hold the same."""

    backbones: frozenset[str] = frozenset()
    light = True

    def __init__(self, name: str, *, fails: bool = False) -> None:
        self.name, self._fails = name, fails

    def search(self, query: Query, k: int) -> Retrieval:
        del query, k
        if self._fails:
            raise ArmError("the source is down")
        return Retrieval((Passage("danube", "Danube", "The Danube runs through Vienna."),))


def source(usd: float = 0.0, **params: Any) -> dict[str, Any]:
    return {"kind": f"{HERE}:Source", "usd": usd, "params": params}


ARMS: dict[str, Any] = {
    "dear": source(PRICE),
    "cheap": source(),
    "down": source(PRICE, fails=True),
    "both": {"kind": "rrf", "params": {"arms": ["dear", "cheap"]}},
}


@asynccontextmanager
async def paying(folder: Path, **changes: Any) -> AsyncIterator[Service]:
    """A service whose arms are built and searched in this process, once it is ready."""
    settings: dict[str, Any] = {
        "arms": {**ARMS, "down": {**ARMS["down"], "action": False}},
        "backbones": {},
        "policy": {"kind": "uniform"},
        "reward": {
            "metrics": {"thumb": {}},
            "complete": "any",
            "correction_time": "PT0S",
            "cost": {"steps": 0, "usd": 100},
            "cost_weight": 1,
        },
        **changes,
    }
    here = ArmHost(
        ArmSettings(
            (CorpusSource(str(write_corpus(folder / "c.jsonl")), folder / "corpus"),), folder, {}, 30.0
        ),
        {},
        dict,
        Embedders({}),
        ScriptedGenerator({}),
    )
    service = Service(folder, searched=HostedArms(here, {}, Embedders({}), {}), **settings)  # type: ignore[arg-type]
    service.arms.know(service.config.arms)
    async with service.running():
        async with asyncio.timeout(10):
            while not service.replica.ready:
                await asyncio.sleep(0)
        yield service


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with paying(tmp_path, llm={"engine": "scripted", "usd_per_kilotoken_in": 1.0}) as running:
        yield running


@pytest.mark.parametrize(("arm", "usd"), [("dear", PRICE), ("both", PRICE), ("cheap", 0.0)])
async def test_the_cost_of_a_search_is_everywhere(service: Service, arm: str, usd: float) -> None:
    found = (await look_up(service, model=f"arm/{arm}")).json()["agent"]
    assert found["cost"]["usd"] == usd
    assert found["cost"]["total"] == pytest.approx(100 * usd)
    await tell(service, found["decision_id"])
    await service.learn()
    told = (await service.client.get(f"/v1/decisions/{found['decision_id']}")).json()
    assert told["cost"]["usd"] == usd
    assert told["reward"] == pytest.approx(1.0 - 100 * usd), "also where tokens count at the prices of today"
    assert told["tokens_by_model"] is None, "no language model was asked"
    assert ("usd" in told["arm_features"][arm]) == (usd > 0.0)


async def test_a_search_that_fails_is_charged_beside_that_of_the_fallback(tmp_path: Path) -> None:
    changes = {"arms": {**ARMS, "dear": source(0.5)}, "fallback": "dear"}
    async with paying(tmp_path, **changes, policy={"kind": "fixed", "params": {"arm": "down"}}) as service:
        turns = [(await look_up(service, {"Idempotency-Key": f"d-{n}"})).json()["agent"] for n in range(2)]
    failed = [one for one in turns if one["arm_drawn"] == "down"]
    assert failed
    assert [(one["arm_served"], one["cost"]["usd"]) for one in failed] == [("dear", 0.5 + PRICE)] * len(
        failed
    )


async def test_the_most_that_a_turn_may_cost_has_the_searches_of_all_members(service: Service) -> None:
    for arm, usd in {"dear": PRICE, "both": PRICE, "cheap": 0.0}.items():
        assert bound_search(service.replica.turns.arms[arm], "Which river?", {}) == Usage(
            usd=usd, search_usd=usd
        )


async def test_a_turn_may_cost_what_its_dearest_arm_does_although_others_are_free(service: Service) -> None:
    turns = service.replica.turns
    assert turns.bound_cost(Ask("d", "Which river?")).usd == PRICE
    assert turns.bound_cost(Ask("d", "Which river?", excluded=frozenset({"dear", "both"}))).usd == 0.0


async def test_arms_are_shown_with_their_price(service: Service) -> None:
    shown = {arm["name"]: arm for arm in (await service.client.get("/v1/arms")).json()["arms"]}
    assert {name: arm["usd"] for name, arm in shown.items()} == {"dear": PRICE, "cheap": 0.0, "both": 0.0}


@pytest.mark.parametrize("policy", ["adaptive", "linucb"])
@pytest.mark.slow
async def test_a_policy_learns_to_ask_the_cheaper_source(tmp_path: Path, policy: str) -> None:
    arms = {"dear": source(PRICE), "cheap": source()}
    async with paying(tmp_path, arms=arms, policy={"kind": policy}) as service:
        drawn = []
        for turn in range(120):
            found = (await look_up(service, {"Idempotency-Key": f"d-{turn}"})).json()["agent"]
            drawn.append(found["arm_drawn"])
            await tell(service, found["decision_id"])
            if turn % 10 == 9:
                await service.learn()
        first, last = (part.count("cheap") for part in (drawn[:10], drawn[-40:]))
        assert first < 10, "both were tried"
        assert last >= 34
