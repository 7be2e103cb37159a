"""The price of a budget goes through the log: from costs to the learner, and from there to every replica."""

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from armwise.agent.learning.learner import PriceKeeper
from armwise.arms.base import Passage, Query, Retrieval
from armwise.feedback.budget import Budget
from armwise.feedback.errors import SupersededError
from armwise.feedback.events import Cost, Decision
from armwise.feedback.log import Operation, Store, operations
from armwise.feedback.log import tables as t
from armwise.feedback.registry import prices
from armwise.feedback.training_log import take_epoch
from tests.agent.asking import forced, look_up, tell
from tests.agent.fakes import Service
from tests.feedback.conftest import decision, execution

STEPS = {"none": 0, "bm25": 1, "dense": 4}

BUDGET: dict[str, Any] = {"steps_per_request": 1.5, "window": 40}


def stepping(arm: str) -> Any:
    async def search(query: Query, k: int) -> Retrieval:
        del query, k
        return Retrieval((Passage(f"{arm}-1", "t", "text", 1.0),), steps=STEPS[arm])

    return search


def a_service(folder: Path, **changes: Any) -> Service:
    policy = {"kind": "fixed", "params": {"arm": "dense"}}
    service = Service(folder, **{"budget": BUDGET, "policy": policy, **changes})
    service.arms.behaviour = {arm: stepping(arm) for arm in STEPS}
    return service


def published(service: Service) -> list[tuple[int, float]]:
    with service.replica.store.reading() as connection:
        rows = operations.read_all(connection, Operation.PRICE)
    return [(row.document["log_seq"], row.document["price"]) for row in rows]


@pytest.mark.parametrize(
    "policy",
    [
        {"kind": "fixed", "params": {"arm": "dense"}},
        {"kind": "linucb"},
        {"kind": "vowpal"},
    ],
    ids=lambda policy: policy["kind"],
)
@pytest.mark.slow
async def test_decisions_record_the_price_and_are_verified_with_it_once_it_is_removed(
    tmp_path: Path, policy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prices, "KEPT", 2)
    async with a_service(tmp_path, policy=policy).running() as service:
        ids, found = [], []
        for _ in range(5):
            for _ in range(4):
                ids.append(f"d-{len(ids)}")
                await look_up(service, {"Idempotency-Key": ids[-1]})
                await tell(service, ids[-1])
            await service.learn()
        for name in ids:
            body = (await service.client.get(f"/v1/decisions/{name}")).json()
            verified = (await service.client.get(f"/v1/decisions/{name}/verify")).json()
            assert verified["verified"], verified["why"]
            found.append(body["steps"].get("budget"))
        assert found[:4] == [None] * 4, "there was no price yet"
        assert len({one["price"] for one in found[4:]}) == 4
        assert len(published(service)) == 2
        assert found[-1]["costs"].keys() == STEPS.keys()


async def test_a_changed_price_is_not_verified(tmp_path: Path) -> None:
    async with a_service(tmp_path, policy={"kind": "uniform"}).running() as service:
        for name in ("d-1", "d-2"):
            await look_up(service, {"Idempotency-Key": name})
            await service.learn()
        assert (await service.client.get("/v1/decisions/d-2/verify")).json()["verified"]
        for change in ({"costs": dict(zip(STEPS, (0.5, 1.0, 4.0), strict=True))}, {"price": 0.3}):
            with service.replica.store.writing() as connection:
                row = t.decisions.c.id == "d-2"
                steps = connection.scalar(sa.select(t.decisions.c.steps).where(row))
                changed = {**steps, "budget": {**steps["budget"], **change}}
                connection.execute(sa.update(t.decisions).where(row).values(steps=changed))
            verified = (await service.client.get("/v1/decisions/d-2/verify")).json()
            assert not verified["verified"]
            assert "what the steps recorded" in " ".join(verified["why"])


@pytest.mark.slow
async def test_an_expensive_policy_is_brought_to_the_ceiling(tmp_path: Path) -> None:
    async with a_service(tmp_path).running() as service:
        spent: list[float] = []
        for turn in range(60):
            answers = [await look_up(service, {"Idempotency-Key": f"d-{turn}-{i}"}) for i in range(5)]
            spent += [answer.json()["agent"]["cost"]["steps"] for answer in answers]
            await service.learn()
        assert spent[:5] == [4] * 5, "before there is a price"
        assert sum(spent) / len(spent) == pytest.approx(1.5, rel=0.1)


async def test_two_replicas_decide_by_the_same_price(
    tmp_path: Path,
) -> None:
    async with a_service(tmp_path).running() as one, a_service(tmp_path).running() as other:
        for service in (one, other, one):
            await look_up(service)
        await one.refresh()
        before = published(one)
        learner = other.learner  # it took the epoch last
        await asyncio.to_thread(learner.step)
        for service in (one, other):
            await service.refresh()
        assert len(published(one)) == len(before) + 1
        assert one.replica.versions.state.price == other.replica.versions.state.price
        assert one.replica.versions.state.price is not None
        for _ in range(5):
            await forced(one, "dense")
        await asyncio.to_thread(learner.step)
        assert len(published(one)) == len(before) + 1


def spend(store: Store, costs: list[tuple[str, int]], first: int = 0) -> None:
    for number, (arm, steps) in enumerate(costs, first):
        name = f"d-{number}"
        made = decision(name)
        made = Decision(name, made.context, ("none", "bm25", "dense"), (0.2, 0.3, 0.5), arm, "uniform", 1)
        store.append([made, execution(name, steps=steps)])


SPENDING = [("dense", 4), ("bm25", 1), ("none", 0), ("dense", 4), ("dense", 5), ("bm25", 1)]


def test_a_keeper_that_is_restarted_publishes_what_one_that_ran_through_does(tmp_path: Path) -> None:
    budget = Budget(steps_per_request=1.0)
    found = []
    for restarts in (False, True):
        with closing(Store(f"sqlite:///{tmp_path / str(restarts)}.db")) as store:
            epoch = take_epoch(store, "test", 0.0)
            keeper = PriceKeeper(store, budget, epoch, lambda: 5.0, {})
            assert keeper.step() is None, "nothing was spent"
            for number, one in enumerate(SPENDING):
                spend(store, [one], number)
                if restarts and number:
                    keeper = PriceKeeper(store, budget, epoch, lambda: 5.0, {})
                if restarts or number == len(SPENDING) - 1:
                    assert keeper.step() is not None
            found.append(prices.latest(store, budget))
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].costs(["none", "bm25", "dense"]) == (0.0, 1.0, pytest.approx(13 / 3))


def test_the_oldest_prices_of_a_budget_go(log_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "KEPT", 3)
    with closing(Store(log_url)) as store:
        epoch = take_epoch(store, "test", 0.0)
        first, other = (Budget(steps_per_request=ceiling) for ceiling in (1.0, 2.0))
        keepers = [PriceKeeper(store, budget, epoch, lambda: 5.0, {}) for budget in (first, other)]
        for number, keeper in enumerate([keepers[1], *[keepers[0]] * 5]):
            spend(store, SPENDING[:1], number)
            newest = keeper.step()
        assert prices.latest(store, first) == newest
        assert prices.latest(store, other) is not None
        with store.reading() as connection:
            kept = operations.read_all(connection, Operation.PRICE)
        assert [row.subject for row in kept] == [other.name] + [first.name] * 3


def test_a_keeper_that_was_superseded_publishes_nothing(log_url: str) -> None:
    budget = Budget(steps_per_request=1.0)
    with closing(Store(log_url)) as store:
        keeper = PriceKeeper(store, budget, take_epoch(store, "a", 0.0), lambda: 5.0, {})
        spend(store, SPENDING[:3])
        published = keeper.step()
        assert published is not None
        take_epoch(store, "b", 0.0)
        spend(store, SPENDING[3:], 3)
        with pytest.raises(SupersededError):
            keeper.step()
        assert prices.latest(store, budget) == published


def test_a_keeper_keeps_price_and_debt_at_new_token_prices(
    tmp_path: Path,
) -> None:
    budget = Budget(usd_per_request=1.0)
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        epoch = take_epoch(store, "test", 0.0)
        first = PriceKeeper(store, budget, epoch, lambda: 5.0, {"large": (10.0, 0.0, 10.0)})
        for number, arm in enumerate(["dense", "bm25", "dense"]):
            made = decision(f"d-{number}")
            made = Decision(made.id, made.context, ("bm25", "dense"), (0.5, 0.5), arm, "uniform", 1)
            spent = Cost(usd=10.0 if arm == "dense" else 0.5)
            tokens = {"large": (1000, 10, 0)} if arm == "dense" else {}
            store.append([made, replace(execution(made.id), cost=spent, tokens_by_model=tokens)])
        before = first.step()
        assert before is not None
        assert before.costs(["bm25", "dense"]) == (0.5, 10.0)
        then = PriceKeeper(store, budget, epoch, lambda: 5.0, {"large": (1.0, 0.0, 1.0)})
        made = Decision("d-3", decision("d-3").context, ("bm25", "dense"), (0.5, 0.5), "bm25", "uniform", 1)
        store.append([made, replace(execution("d-3"), cost=Cost(usd=0.5))])
        after = then.step()
        assert after is not None
        assert after.costs(["bm25", "dense"]) == (0.5, 1.0)
        pacer = before.pacer(budget)
        pacer.note("bm25", 0.5)
        assert (after.price, after.debt) == (pacer.price, pacer.debt)
