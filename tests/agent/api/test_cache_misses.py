"""A draw counts what it costs that a language model lacks the conversation in its cache; the log has it."""

from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.agent.learning import verify_states
from armwise.agent.policies import PolicySpec, build_policy
from armwise.agent.proof.audit import find_doubt
from armwise.agent.turn.record import tokens_in
from armwise.arms.base import Query, Retrieval
from armwise.arms.llm import Chunk, Generator, Prompt
from armwise.feedback.clock import SteadyClock
from armwise.feedback.decisions import EVERYTHING
from armwise.feedback.events import Decision
from armwise.feedback.log import Store, rows
from armwise.feedback.log import tables as t
from armwise.feedback.sources import LogSource
from benchmarks import sticky
from tests.agent.fakes import FakeArms, Service

PRICES = {"small": (0.001, 0.0001), "large": (0.01, 0.001)}
"""USD for a thousand tokens read, and read from the cache."""

BEGUN = "Read this file. " + "A line of it is long. " * 300


class Caching(Generator):
    """A model that has cached what it read of a conversation, which its first message names."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.read = dict[str, int]()

    async def stream(self, prompt: Prompt) -> AsyncIterator[Chunk]:  # type: ignore[override]
        first, *_ = prompt.messages
        read = sum(tokens_in(message["content"]) for message in prompt.messages)
        cached = min(self.read.get(first["content"], 0), read)
        self.read[first["content"]] = read
        per_read, per_cached = PRICES[self.model]
        usd = ((read - cached) * per_read + cached * per_cached) / 1000
        yield Chunk("Yes.")
        counts = {"prompt_tokens": read, "completion_tokens": 1, "cached_tokens": cached}
        yield Chunk(finish_reason="stop", usd=usd, **counts)  # type: ignore[arg-type]

    async def close(self) -> None:
        pass


def priced(model: str, **fields: Any) -> dict[str, Any]:
    read, cached = PRICES[model]
    prices = {"usd_per_kilotoken_in": read, "usd_per_kilotoken_cached": cached}
    return {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m", **prices, **fields}


def serve(folder: Path, clock: SteadyClock | None = None, **changes: Any) -> Service:
    settings: dict[str, Any] = {
        "arms": {"small": {"kind": "none"}, "large": {"kind": "none", "answering": {"llm": "large"}}},
        "llm": priced("small"),
        "llms": {"large": priced("large")},
        "policy": {"kind": "linucb"},
        "exploration": 0.2,
        "reward": {
            "metrics": {"right": {"type": "boolean"}},
            "cost": {"steps": 0, "usd": 1.0},
            "cost_weight": 10.0,
        },
        "limits": {"question_chars": 100_000, "body_bytes": 1 << 20},
    }
    models = {"default": Caching("small"), "large": Caching("large")}
    found = FakeArms(dict.fromkeys(PRICES, find_nothing))
    return Service(
        folder,
        models["default"],
        {"large": models["large"]},
        searched=found,
        clock=clock,
        **(settings | changes),
    )


async def find_nothing(query: Query, k: int) -> Retrieval:
    del query, k
    return Retrieval(steps=0)


def talk(turns: int, begun: str = BEGUN) -> list[dict[str, str]]:
    """Return the messages of a conversation with so many turns before the last question."""
    said = [{"role": "user", "content": begun}]
    for number in range(turns):
        said += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"And line {number}?"}]
    return said


async def ask(service: Service, turns: int, model: str = "auto", **fields: Any) -> dict[str, Any]:
    """Ask in a conversation, and return the record of the decision."""
    body = {"model": model, "messages": talk(turns), "agent": {"episode_id": "talk"}} | fields
    answer = await service.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    name = answer.json()["agent"]["decision_id"]
    found: dict[str, Any] = (await service.client.get(f"/v1/decisions/{name}")).json()
    return found


def first_probability(record: dict[str, Any]) -> float:
    return float(record["pmf"]["large"])


async def test_a_switch_costs_what_the_other_model_has_not_cached(tmp_path: Path) -> None:
    async with serve(tmp_path).running() as service:
        first = await ask(service, 0, "arm/small")
        assert first["steps"].get("cache") is None
        read = first["tokens_by_model"]["default"]["prompt"]
        second = await ask(service, 1)
        missed = second["steps"]["cache"]
        assert missed["usd_weight"] == 10.0
        assert missed["usd"] == {"small": 0.0, "large": pytest.approx(read * 0.009 / 1000 / 5, rel=0.01)}
        other = await ask(service, 1, agent={"episode_id": "other"})
        assert other["steps"].get("cache") is None
        assert first_probability(second) < first_probability(other)
        verified = (await service.client.get(f"/v1/decisions/{second['decision_id']}/verify")).json()
        assert verified["verified"], verified["why"]


async def test_it_is_counted_over_the_turns_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.turn.steps.cache.TURNS", 1.0)
    async with serve(tmp_path).running() as service:
        read = (await ask(service, 0, "arm/small"))["tokens_by_model"]["default"]["prompt"]
        missed = (await ask(service, 1))["steps"]["cache"]["usd"]["large"]
        assert missed == pytest.approx(read * 0.009 / 1000, rel=0.01)


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": {"metrics": {"right": {"type": "boolean"}}, "cost": {"usd": 0.0}}},
        {"reward": {"metrics": {"right": {"type": "boolean"}}, "cost": {"usd": 1.0}, "cost_weight": 0.0}},
        {
            "llm": priced("small", usd_per_kilotoken_cached=None),
            "llms": {"large": priced("large", usd_per_kilotoken_cached=None)},
        },
    ],
    ids=["dollars are free", "cost has no weight", "cached tokens have no price"],
)
async def test_where_nothing_counts_the_log_is_not_read(tmp_path: Path, changes: dict[str, Any]) -> None:
    service = serve(tmp_path, **changes)

    async def fail(_: str) -> Any:
        raise AssertionError("read")

    if (step := service.replica.find_step("cache")) is not None:
        step._find_turns = fail  # noqa: SLF001 - the seam to the log
    async with service.running():
        await ask(service, 0)
        assert (await ask(service, 1))["steps"].get("cache") is None
        body = {"messages": talk(0), "metadata": {"session_id": "s-1"}}
        answer = (await service.client.post("/v1/chat/completions", json=body)).json()
        assert answer["agent"]["episode_id"] is None


async def test_a_session_that_is_named_is_a_conversation_and_a_shared_key_is_none(tmp_path: Path) -> None:
    async with serve(tmp_path).running() as service:
        named = {"metadata": {"session_id": "s-1"}, "agent": {}}
        first = await ask(service, 0, "arm/small", **named)
        assert first["episode_id"] == "s-1"
        assert (await ask(service, 1, **named))["steps"]["cache"]["usd"]["large"] > 0.0
        keyed = {"prompt_cache_key": "k-1", "agent": {}}
        assert (await ask(service, 0, "arm/small", **keyed))["episode_id"] is None
        assert (await ask(service, 1, **keyed))["steps"].get("cache") is None


async def test_another_replica_and_a_restart_find_what_is_cached(tmp_path: Path) -> None:
    async with serve(tmp_path).running() as service:
        await ask(service, 0, "arm/large")
    async with serve(tmp_path).running() as service:
        assert set((await ask(service, 1))["steps"]["cache"]["usd"].values()) > {0.0}


@dataclass
class Wall:
    """A clock that is moved."""

    now: float = 1_790_812_800.0

    def __call__(self) -> float:
        return self.now


async def test_a_cache_lapses_with_time(tmp_path: Path) -> None:
    wall = Wall()
    async with serve(tmp_path, clock=SteadyClock(wall, wall)).running() as service:
        await ask(service, 0, "arm/small")
        wall.now += 299.0
        assert (await ask(service, 1, "arm/small"))["steps"].get("cache") is None
        wall.now += 301.0
        lapsed = (await ask(service, 2))["steps"]["cache"]["usd"]
        assert min(lapsed.values()) > 0.0


async def test_models_of_anthropics_protocol_say_what_they_cache(tmp_path: Path) -> None:
    large = {"engine": "anthropic", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    service = serve(tmp_path, llms={"large": {**large, "usd_per_kilotoken_cached": 0.5}})
    models = service.replica.turns.writer.models
    assert [models[name].marked for name in ("default", "large")] == [False, True]
    assert models["large"].prices.usd_per_kilotoken_cached == 0.5
    service.close()


@pytest.mark.slow
async def test_the_log_of_conversations_is_sound_and_gives_the_same_policy_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    service = serve(tmp_path)
    async with service.running():
        for number in range(60):
            for turn in range(3):
                body = {
                    "messages": talk(turn, f"Talk {number}. {BEGUN}"),
                    "agent": {"episode_id": f"talk-{number}"},
                }
                answer = (await service.client.post("/v1/chat/completions", json=body)).json()["agent"]
                right = bool(rng.random() < (0.9 if answer["arm_drawn"] == "large" else 0.6))
                told = {
                    "decision_id": answer["decision_id"],
                    "metric_name": "right",
                    "value": right,
                }
                (await service.client.post("/v1/feedback", json=told)).raise_for_status()
            if number % 10 == 9:
                await service.learn()
        counted, checked = 0, 0
        with closing(Store(service.config.database_url, service.config.reward.join)) as store:
            for decision in _decisions(store):
                verified = (await service.client.get(f"/v1/decisions/{decision.id}/verify")).json()
                assert verified["verified"], verified["why"]
                checked, counted = checked + 1, counted + ("cache" in decision.steps)
            assert checked == 180
            assert 100 < counted <= 120, "none of the first turns, and few where both have all of it cached"
            rule = service.config.reward
            assert not find_doubt(LogSource(store, rule), rule, EVERYTHING, lambda *_: None)
            rebuilt = verify_states(store, service.config, lambda *_: None, every=True)
            assert rebuilt.sound


def _decisions(store: Store) -> list[Decision]:
    with store.reading() as connection:
        return [
            *map(
                rows.read_decision, connection.execute(sa.select(*rows.DECISION).order_by(t.decisions.c.seq))
            )
        ]


@pytest.mark.slow
def test_counting_what_a_cache_lacks_earns_more_than_not_counting_and_than_staying() -> None:
    earned = {
        setting: np.array(
            [
                np.mean(sticky.run(_policy(), setting, seed, 200, sticky.WORLDS["an agent"]).rewards)
                for seed in range(4)
            ]
        )
        for setting in ("a decision a turn", sticky.COUNTS_CACHES, "sticky: episode")
    }
    counting = earned.pop(sticky.COUNTS_CACHES)
    for other in earned.values():
        assert (counting - other).mean() > 0.005
        assert (counting > other).sum() >= 3


def _policy() -> Any:
    return build_policy(PolicySpec(kind="linucb"), list(sticky.ARMS))
