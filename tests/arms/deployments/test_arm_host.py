"""The host of arms: what it builds, in which threads it searches, what its errors are."""

import asyncio
import pickle
import socket
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armwise.arms import tracing
from armwise.arms.base import ArmBuildError, ArmError, Passage, Query, Retrieval, Usage
from armwise.arms.corpus import Corpus
from armwise.arms.deployments import Embedders, arm_host
from armwise.arms.deployments.arm_host import UnbuiltArmError, digest_arm
from armwise.arms.llm import Chunk, Prompt, base
from armwise.arms.llm.pricing import TokenPrices
from armwise.arms.models.embedding import HashingEmbedder
from armwise.arms.retrievers import ArmGraph, ArmSpec, VersionedArm
from tests.arms.deployments.places import BACKBONES, SPECS, Broken, Light, Waiting, open_host, own

MOON = "Where is the moon?"

GRAPH = ArmGraph(SPECS)

ODD = own(Broken).model_copy(update={"params": {"odd": 1}})
"""An arm that can be described and not be built."""


def asked(text: str = MOON) -> Query:
    return Query(text, {"tiny": HashingEmbedder(64).encode_queries([text])[0]})


async def search(
    host: arm_host.ArmHost, name: str, specs: Mapping[str, ArmSpec] = SPECS, k: int = 1
) -> Retrieval:
    """Search an arm that the host knows."""
    return await host.search(name, digest_arm(name, ArmGraph(specs).closure(name)), asked(), k)


@pytest.mark.parametrize("arm", ["bm25", "dense", "rrf"])
async def test_a_live_arm_is_built_at_the_start_and_known_by_its_key(tmp_path: Path, arm: str) -> None:
    host = open_host(tmp_path, arm)
    found = await search(host, arm)
    assert [passage.title for passage in found.passages] == ["moon"]


async def test_an_arm_gives_up_another_service_before_its_own_time_is_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        far = {"far": ArmSpec(kind="remote", params={"url": url, "request": {"q": "{question}"}})}
        host = open_host(tmp_path, "far", specs=far, limit_s=0.25)
        with pytest.raises(ArmError, match=r"no response within 0\.2 s"):
            await search(host, "far", far)


async def test_an_unknown_arm_is_built_from_its_description(tmp_path: Path) -> None:
    host, specs = open_host(tmp_path), GRAPH.closure("bm25")
    key = digest_arm("bm25", specs)
    with pytest.raises(UnbuiltArmError, match="bm25"):
        await host.search("bm25", key, asked(), 1)
    first = await host.search("bm25", key, asked(), 1, specs)
    assert [passage.title for passage in first.passages] == ["moon"]
    assert await host.search("bm25", key, asked(), 1) == first


async def test_an_arm_that_two_searches_need_at_once_is_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, specs, built = open_host(tmp_path), GRAPH.closure("bm25"), list[str]()
    together, build = threading.Barrier(2), arm_host.build_versioned

    def counted(name: str, *have: Any) -> Any:
        built.append(name)
        with suppress(threading.BrokenBarrierError):  # one thread meets no other
            together.wait(timeout=0.1)
        return build(name, *have)

    monkeypatch.setattr(arm_host, "build_versioned", counted)
    key = digest_arm("bm25", specs)
    await asyncio.gather(*(host.search("bm25", key, asked(), 1, specs) for _ in range(2)))
    assert built == ["bm25"]


async def test_a_loaded_arm_is_known(tmp_path: Path) -> None:
    host, names = open_host(tmp_path), ("rrf", "dense")
    await host.load({name: GRAPH.closure(name) for name in names})
    for name in names:
        found = await search(host, name)
        assert [passage.title for passage in found.passages] == ["moon"]


def test_a_configured_arm_that_cannot_be_built_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArmBuildError, match=r"arm 'odd' cannot be built: .*keyword argument 'odd'"):
        open_host(tmp_path, "odd", specs={"odd": ODD})


@pytest.mark.parametrize("configured", [{}, {"odd": {"odd": SPECS["bm25"]}}], ids=["new", "of that name"])
async def test_a_replacement_that_cannot_be_built_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, configured: dict[str, dict[str, ArmSpec]]
) -> None:
    host = open_host(tmp_path, "odd", "bm25", specs={**SPECS, "odd": ODD}, configured=configured)
    assert "arm 'odd' cannot be built" in caplog.text
    assert (await search(host, "bm25")).passages


async def test_a_mistake_in_an_arm_is_an_error_of_the_arm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    specs = {"broken": own(Broken)}
    host = open_host(tmp_path, "broken", specs=specs)
    with pytest.raises(ArmError, match="ZeroDivisionError: a mistake"):
        await search(host, "broken", specs)
    assert "arm 'broken' failed" in caplog.text
    assert "Traceback" in caplog.text


async def test_what_an_arm_prompts_is_counted(tmp_path: Path) -> None:
    host = open_host(tmp_path, "steps")
    found = await search(host, "steps", k=2)
    assert found.usage.completion_tokens == 4  # "Where is the moon?"
    assert found.usage.prompt_tokens + found.usage.completion_tokens == found.tokens


class Paid(base.ScriptedGenerator):
    """A model of which each answer has a price, and whose engine has read a part of each prompt before."""

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().stream(prompt):
            ends = chunk.finish_reason is not None
            kept = {"cached_tokens": 3, "cache_written_tokens": 2}
            yield replace(chunk, usd=0.25, **kept) if ends else chunk  # type: ignore[arg-type]


async def test_cached_tokens_and_prices_of_all_prompts_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = {**SPECS, "both": ArmSpec(kind="ensemble", params={"arms": ["bm25", "dense"]})}
    host = open_host(tmp_path, "both", specs=specs, generator=Paid({}, default="At the sea."))
    key, search = digest_arm("both", ArmGraph(specs).closure("both")), VersionedArm.search
    usage = (await host.search("both", key, asked(), 1)).usage
    assert (usage.completion_tokens, usage.cached_tokens, usage.usd) == (6, 6, 0.5)
    assert usage.cache_written_tokens == 4
    monkeypatch.setattr(
        VersionedArm, "search", lambda *told: replace(search(*told), usage=Usage(1000, 100, 10, 1.0))
    )
    assert (await host.search("both", key, asked(), 1)).usage == usage + Usage(1000, 100, 10, 1.0)


def test_what_is_prompted_outside_of_a_search_is_of_none() -> None:
    """As where an index is prepared with a language model."""
    write = arm_host.meter_calls(
        lambda prompt: (f"{prompt.max_tokens} tokens", Chunk(prompt_tokens=3)), TokenPrices()
    )
    assert write(Prompt((), 7)) == ("7 tokens", Chunk(prompt_tokens=3))


async def test_what_members_prompt_is_counted_where_an_arm_fails(
    tmp_path: Path,
) -> None:
    both = ArmSpec(kind="ensemble", params={"arms": ["bm25", "dense"]})
    specs = {**SPECS, "both": both, "broken": own(Broken)}
    specs["inner"] = ArmSpec(kind="query_variants", params={"arm": "broken", "way": "hyde"})
    specs["half"] = ArmSpec(kind="query_variants", params={"arm": "inner", "way": "hyde"})
    host = open_host(tmp_path, "both", "half", specs=specs)
    found = await search(host, "both", specs)
    assert found.usage.completion_tokens == 8
    with pytest.raises(ArmError, match="a mistake") as failed:
        await search(host, "half", specs)
    assert failed.value.usage.completion_tokens == 8
    assert pickle.loads(pickle.dumps(failed.value)).usage == failed.value.usage  # as a handle returns it


async def test_priced_searches_are_charged_where_an_arm_fails(
    tmp_path: Path,
) -> None:
    dear = SPECS["bm25"].model_copy(update={"usd": 0.125})
    specs = {**SPECS, "bm25": dear, "broken": own(Broken).model_copy(update={"usd": 2.0})}
    specs["both"] = ArmSpec(kind="ensemble", params={"arms": ["bm25", "dense"]})
    host = open_host(tmp_path, "both", "broken", specs=specs, generator=Paid({}, default="At the sea."))
    usage = (await search(host, "both", specs)).usage
    assert (usage.completion_tokens, usage.usd, usage.search_usd) == (6, 0.625, 0.125)
    with pytest.raises(ArmError, match="a mistake") as failed:
        await search(host, "broken", specs)
    assert failed.value.usage == Usage(usd=2.0, search_usd=2.0)


async def test_an_arm_of_another_price_is_another_one_for_its_host(tmp_path: Path) -> None:
    host, dear = open_host(tmp_path, "bm25"), SPECS["bm25"].model_copy(update={"usd": 0.125})
    keys = [digest_arm("rrf", {**GRAPH.closure("rrf"), "bm25": one}) for one in (SPECS["bm25"], dear)]
    assert keys[0] != keys[1]
    key = digest_arm("bm25", {"bm25": dear})
    assert (await host.search("bm25", key, asked(), 1, {"bm25": dear})).usage.usd == 0.125
    free = await search(host, "bm25")
    assert free.usage == Usage()


class Slow(base.ScriptedGenerator):
    """A model that never ends, until it may."""

    def __init__(self) -> None:
        super().__init__({}, default="Where is the sun?")
        self.begun, self.gate = threading.Semaphore(0), threading.Event()
        self.calls = 0

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        self.calls += 1
        self.begun.release()
        while not self.gate.is_set():
            await asyncio.sleep(0)
        async for chunk in super().stream(prompt):
            yield chunk


async def test_a_search_that_nobody_waits_for_prompts_no_more(tmp_path: Path) -> None:
    specs, slow = {"bm25": ArmSpec(kind="bm25")}, Slow()
    specs["four"] = ArmSpec(kind="multistep", params={"arm": "bm25", "max_steps": 9})
    specs["both"] = ArmSpec(kind="ensemble", params={"arms": ["four", "bm25"]})
    host = open_host(tmp_path, "both", specs=specs, generator=slow)
    task = asyncio.create_task(search(host, "both", specs, 9))
    for _ in range(2):  # both members, in threads of their own
        assert await asyncio.to_thread(slow.begun.acquire, timeout=30)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    slow.gate.set()
    after = host.search("bm25", digest_arm("bm25", specs), asked(), 1, {"bm25": specs["bm25"]})
    assert (await after).passages
    pool = host._arms[digest_arm("both", ArmGraph(specs).closure("both"))].pool  # noqa: SLF001 - its end shows nowhere else
    await asyncio.to_thread(pool.shutdown)
    assert slow.calls == 2


async def test_a_search_that_is_cancelled_prompts_nothing(tmp_path: Path) -> None:
    specs, model = {"slow": own(Waiting)}, base.ScriptedGenerator({}, default="DONE")
    specs["steps"] = ArmSpec(kind="multistep", params={"arm": "slow"})
    key = digest_arm("steps", ArmGraph(specs).closure("steps"))
    host = open_host(tmp_path, "steps", specs=specs, generator=model)
    for cancelled in (False, True):
        model.last_prompt = None
        task = asyncio.create_task(host.search("steps", key, asked(), 9))
        assert await asyncio.to_thread(Waiting.began.acquire, timeout=30)
        if cancelled:
            task.cancel()
            await asyncio.wait([task])
        Waiting.gate.release()
        if not cancelled:
            await task
            assert model.last_prompt is not None
    await asyncio.to_thread(host._arms[key].pool.shutdown)  # noqa: SLF001 - its end shows nowhere else
    assert model.last_prompt is None


async def test_a_call_out_of_time_is_counted_with_the_most(
    tmp_path: Path,
) -> None:
    prices, slow = TokenPrices(usd_per_kilotoken_in=1.0, usd_per_kilotoken_out=100.0), Slow()
    host = open_host(tmp_path, "steps", generator=slow, limit_s=0.05, prices=prices)
    with pytest.raises(ArmError, match=r"took longer than 0\.05 s") as failed:
        await search(host, "steps", k=2)
    slow.gate.set()
    usage = failed.value.usage
    assert (usage.completion_tokens, slow.calls) == (32, 1)
    assert usage.prompt_tokens > 100
    assert usage.usd == pytest.approx(usage.prompt_tokens / 1000 + 3.2)
    read, written = GRAPH.compute_bound("steps").tokens(MOON)
    assert usage.prompt_tokens <= read
    assert usage.completion_tokens <= written


class Noting:
    """An arm of a user's own that finds the turn that it searches for."""

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str) -> None:
        self.name = name

    def search(self, query: Query, k: int) -> Retrieval:
        del query, k
        turn = tracing.TURN.get()
        return Retrieval((Passage(turn.decision_id, turn.episode_id, turn.question),))


async def test_an_arm_searches_for_the_turn_of_its_caller(tmp_path: Path) -> None:
    specs = {"noting": own(Noting)}
    host, key = open_host(tmp_path, "noting", specs=specs), digest_arm("noting", specs)
    for search in (host.search, host.search_version):
        found = await search("noting", key, asked(), 1, carried='["", "d-1", "e-1"]')
        assert found.passages == (Passage("d-1", "e-1", MOON),)


async def test_a_search_names_the_version_of_its_index(tmp_path: Path) -> None:
    specs = {**SPECS, "own": own(Light), "odd": ArmSpec(kind="rrf", params={"arms": ["bm25", "own"]})}
    specs["again"] = ArmSpec(kind="rrf", params={"arms": ["bm25", "dense"], "depth": 9})
    names = ("bm25", "dense", "rrf", "again", "own", "odd")
    host, versions = open_host(tmp_path, *names, specs=specs), dict[str, str]()
    for _ in range(2):
        Light.gate.release()
    for name in names:
        found = await search(host, name, specs)
        versions[name] = found.index_version
    corpus = versions["bm25"]
    assert versions["dense"].startswith(f"{corpus}-")
    assert versions["rrf"] == versions["again"] == f"{corpus}+{versions['dense']}"
    assert (versions["own"], versions["odd"]) == ("", f"{corpus}+?")


async def test_an_arm_that_waits_holds_up_nothing_else(tmp_path: Path) -> None:
    specs = {**SPECS, "slow": own(Waiting)}
    host = open_host(tmp_path, "slow", "bm25", specs=specs)
    slow = asyncio.create_task(search(host, "slow", specs))
    try:
        assert await asyncio.to_thread(Waiting.began.acquire, timeout=30)
        assert (await search(host, "bm25", specs)).passages
        assert not slow.done()
    finally:
        Waiting.gate.release()
    (passage,) = (await slow).passages
    assert passage.id != threading.current_thread().name


async def test_an_arm_that_writes_queries_loads_its_encoder(tmp_path: Path) -> None:
    embedders = Embedders(BACKBONES)
    plain = open_host(tmp_path, "dense", embedders=embedders)
    assert embedders.loaded == frozenset()
    specs = GRAPH.closure("steps")
    await plain.load({"steps": specs})
    assert embedders.loaded == {"tiny"}
    found = await plain.search("steps", digest_arm("steps", specs), asked("Where is the sea?"), 2)
    assert {passage.title for passage in found.passages} == {"sea", "moon"}


async def test_vectors_of_passages_are_those_of_the_corpus(tmp_path: Path) -> None:
    host = open_host(tmp_path, looked_at=frozenset({"tiny"}))
    found = await host.vectors("tiny", ["p7", "elsewhere"])
    (expected,) = HashingEmbedder(64).encode_passages(["moon. The moon stands beside the queen."])
    assert found.keys() == {"p7"}
    assert np.array_equal(found["p7"], expected)
    made_later = await open_host(tmp_path).vectors("tiny", ["p7"])
    assert np.array_equal(made_later["p7"], expected)
    with pytest.raises(ArmError, match="vectors of 'missing': KeyError"):
        await host.vectors("missing", ["p7"])


async def test_passages_are_returned_by_their_ids(tmp_path: Path) -> None:
    host = open_host(tmp_path)
    assert [passage.title for passage in await host.passages(["p7", "elsewhere", "p1"])] == ["moon", "sea"]
    assert await host.is_restricted() is False


async def test_a_corpus_that_cannot_be_read_is_an_error_of_the_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is away")

    host = open_host(tmp_path)
    monkeypatch.setattr(Corpus, "passages", fail)
    with pytest.raises(ArmError, match="passages of the corpus: OSError: the disk is away"):
        await host.passages(["p7"])


@pytest.mark.parametrize(
    "other",
    [
        {"name": "b"},
        {"specs": {"a": ArmSpec(kind="bm25"), "c": ArmSpec(kind="bm25")}},
        {"specs": {"a": ArmSpec(kind="dense")}},
        {"specs": {"a": ArmSpec(kind="bm25", params={"k1": 1.0})}},
        {"specs": {"a": ArmSpec(kind="bm25", params={"b": 2.0})}},
    ],
    ids=["name", "member", "kind", "value", "parameter"],
)
def test_arms_that_differ_in_anything_have_other_keys(other: dict[str, Any]) -> None:
    same = {"name": "a", "specs": {"a": ArmSpec(kind="bm25", params={"k1": 2.0})}}
    assert digest_arm(**same) == digest_arm(**same)  # type: ignore[arg-type]
    assert digest_arm(**same) != digest_arm(**same | other)  # type: ignore[arg-type]


def test_the_order_of_members_is_not_part_of_a_key() -> None:
    one, other = ArmSpec(kind="bm25"), ArmSpec(kind="dense")
    assert digest_arm("a", {"a": one, "b": other}) == digest_arm("a", {"b": other, "a": one})
    orders = [{"k1": 1.0, "b": 0.5}, {"b": 0.5, "k1": 1.0}]
    assert len({digest_arm("a", {"a": ArmSpec(kind="bm25", params=params)}) for params in orders}) == 1


@pytest.mark.parametrize("then", ["b", None])
async def test_a_search_of_a_changing_index_names_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str | None
) -> None:
    host, key = open_host(tmp_path, "bm25"), digest_arm("bm25", GRAPH.closure("bm25"))
    version = (await host.search("bm25", key, asked(), 1)).index_version
    assert version
    assert await host.version("bm25", key) == version
    assert (await host.search_version("bm25", key, asked(), 1)).index_version == version
    monkeypatch.setattr(VersionedArm, "version", lambda _: then)
    assert (await host.search_version("bm25", key, asked(), 1)).index_version == f"{version}..{then or ''}"
