"""The client of hosts: which of them runs an arm, and what it receives."""

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from armwise.arms.base import ArmBuildError, ArmError, Passage, Query, Retrieval
from armwise.arms.corpus import CorpusSource, ingest_all
from armwise.arms.deployments import (
    ArmHost,
    ArmSettings,
    Embedders,
    HostedArms,
    hosted_arms,
    retrieval_cache,
)
from armwise.arms.deployments.arm_host import Specs, UnbuiltArmError
from armwise.arms.deployments.retrieval_cache import RetrievalCache
from armwise.arms.filters import Comparison
from armwise.arms.llm.base import ScriptedGenerator
from armwise.arms.models import Backbone
from armwise.arms.models.embedding import HashingEmbedder
from armwise.arms.profile import ProfileSpec
from armwise.arms.retrievers import ArmGraph, ArmSpec, Resources, prepare_profiles
from tests.arms.deployments.places import BACKBONES, SPECS, Light, Waiting, open_host, own

SEA = "Where is the sea?"

QUERY = Query(SEA, {"tiny": HashingEmbedder(64).encode_queries([SEA])[0]})


class Deployed:
    """A deployment that finds its own name, and needs the description of every arm once."""

    def __init__(self, name: str, version: str = "a1") -> None:
        self.name = name
        self.searches = self.versions = 0
        self.is_away: Callable[[], Awaitable[str]] | None = None
        self.found_in, self.now = version, version
        self.loaded: list[str] = []
        self.known: set[str] = set()

    async def load(self, arms: Mapping[str, Specs]) -> None:
        self.loaded += arms

    async def search(self, arm: str, key: str, query: Query, k: int, specs: Specs | None = None) -> Retrieval:
        del query, k
        if specs is not None:
            self.known.add(key)
        if key not in self.known:
            raise UnbuiltArmError(arm)
        self.searches += 1
        return Retrieval((Passage(self.name, "", ""),), index_version=self.found_in)

    search_version = search

    async def version(self, arm: str, key: str, specs: Specs | None = None) -> str | None:
        self.versions += 1
        if self.is_away is not None:
            return await self.is_away()
        if specs is None and key not in self.known:
            raise UnbuiltArmError(arm)
        return self.now


def hosted(
    folder: Path, specs: Mapping[str, ArmSpec], *deployed: Deployed, cache: RetrievalCache | None = None
) -> HostedArms:
    here = open_host(folder)
    return HostedArms(here, {one.name: one for one in deployed}, Embedders(BACKBONES), specs, cache)


async def first(arms: HostedArms, name: str) -> list[str]:
    return [passage.title or passage.id for passage in (await arms.search(name, QUERY, 1)).passages]


async def test_arms_that_embed_or_are_not_light_search_in_the_deployment(tmp_path: Path) -> None:
    specs = {**SPECS, "here": SPECS["dense"].model_copy(update={"host": "Ingress"})}
    arms = hosted(tmp_path, specs, Deployed("Arms"))
    found = {name: await first(arms, name) for name in specs}
    deployed = {name: ["Arms"] for name in ("dense", "rrf", "steps")}
    assert found == {"none": [], "bm25": ["sea"], "here": ["sea"], **deployed}


async def test_without_ray_all_arms_search_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    far = {"far": ArmSpec(kind="bm25", host="Far"), "near": ArmSpec(kind="bm25", host="Ingress")}
    arms = HostedArms(open_host(tmp_path), None, Embedders(BACKBONES), {**SPECS, **far})
    await arms.load({**SPECS, **far})
    found = {name: await first(arms, name) for name in (*SPECS, *far)}
    assert found == {name: [] if name == "none" else ["sea"] for name in found}
    assert caplog.text == ""


async def test_an_arm_that_names_a_host_searches_there(tmp_path: Path) -> None:
    specs = {"bm25": ArmSpec(kind="bm25", host="Far"), "here": ArmSpec(kind="bm25")}
    arms = hosted(tmp_path, specs, Deployed("Arms"), Deployed("Far"))
    assert (await first(arms, "bm25"), await first(arms, "here")) == (["Far"], ["sea"])


def test_an_arm_that_only_others_search_needs_no_host(tmp_path: Path) -> None:
    member = ArmSpec(kind="bm25", host="Gone", action=False)
    specs = {"member": member, "expanded": ArmSpec(kind="expand", params={"arm": "member"})}
    hosted(tmp_path, specs)
    with pytest.raises(ArmBuildError, match="no deployment 'Gone'"):
        hosted(tmp_path, specs | {"member": member.model_copy(update={"action": True})})


async def test_without_a_deployment_a_heavy_arm_searches_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arms = hosted(tmp_path, {"bm25": SPECS["bm25"]})
    assert caplog.text == ""
    specs = {"bm25": SPECS["bm25"], "steps": ArmSpec(kind="multistep", params={"arm": "bm25"})}
    await arms.load(specs)
    arms.know(specs)
    arms.know(specs)
    assert await first(arms, "steps") == ["sea"]
    (record,) = caplog.records
    assert "arm 'steps' of kind 'multistep' runs in the HTTP process" in record.getMessage()


async def test_arms_are_built_where_they_will_search(
    tmp_path: Path,
) -> None:
    far, encoders = Deployed("Arms"), Embedders(BACKBONES | {"other": Backbone(model="hashing:8")})
    arms = HostedArms(open_host(tmp_path), {"Arms": far}, encoders, {"bm25": SPECS["bm25"]})
    assert encoders.loaded == frozenset()
    await arms.load(SPECS)
    assert (far.loaded, encoders.loaded) == (["dense", "rrf", "steps"], {"tiny"})


async def test_a_replaced_arm_stays_known(tmp_path: Path) -> None:
    arms = hosted(tmp_path, {"bm25": SPECS["bm25"]})
    arms.know({"dense": SPECS["dense"]})
    assert (await first(arms, "bm25"), await first(arms, "dense")) == (["sea"], ["sea"])


@pytest.mark.parametrize(
    ("arms", "deployments"),
    [
        ({"a": SPECS["bm25"], "n": SPECS["none"]}, ()),
        ({"a": SPECS["bm25"], "m": ArmSpec(kind="multistep", params={"arm": "a"})}, ("Arms",)),
        ({"a": SPECS["bm25"], "m": ArmSpec(kind="multistep", params={"arm": "a"}, action=False)}, ()),
        ({"dense": SPECS["dense"]}, ("Arms",)),
        ({"dense": SPECS["dense"].model_copy(update={"host": "Ingress"})}, ()),
        ({"l": ArmSpec(kind="rrf", params={"arms": ["a", "b"]}), **dict.fromkeys("ab", SPECS["bm25"])}, ()),
        (
            {
                "m": SPECS["steps"].model_copy(update={"action": False}),
                "dense": SPECS["dense"],
                "f": ArmSpec(kind="rrf", params={"arms": ["dense", "m"]}),
            },
            ("Arms",),
        ),
        ({"a": ArmSpec(kind="bm25", host="Far")}, ("Far",)),
        ({"own": own(Waiting), "far": own(Waiting, "Far")}, ("Arms", "Far")),
        ({"own": own(Light)}, ()),
    ],
    ids=[
        "light",
        "heavy",
        "a member alone",
        "embeds",
        "embeds in the ingress",
        "light fusions",
        "a heavy fusion",
        "named",
        "a user's own",
        "a user's own and light",
    ],
)
def test_a_deployment_exists_only_where_an_arm_needs_it(
    arms: Mapping[str, ArmSpec], deployments: tuple[str, ...]
) -> None:
    assert ArmGraph(arms).deployments() == deployments


@pytest.mark.parametrize("groups", [(), ("crew",)])
async def test_a_query_keeps_filter_and_groups_to_its_host(tmp_path: Path, groups: tuple[str, ...]) -> None:
    kept: dict[str, Any] = {"allowed_groups": groups} if groups else {}
    sea = [
        {"id": f"{n}", "text": f"the sea of number {n}", "metadata": {"number": n} | kept} for n in range(9)
    ]
    arms = over(tmp_path, None, SPECS, sea)
    assert await arms.is_restricted() == bool(groups)
    late = Comparison(type="gte", key="number", value=7)
    for asked, expected in (((), set() if groups else {"7", "8"}), (groups, {"7", "8"})):
        query = pickle.loads(pickle.dumps(replace(QUERY, where=late, groups=frozenset(asked))))
        found = {passage.id for passage in (await arms.search("rrf", query, 4)).passages}
        assert found == expected


# -- several corpora ---------------------------------------------------------------------------------------

SEARCH_API = {"url": "https://a.example/search", "request": {"q": "{question}"}}

SEVERAL = {
    "docs": ArmSpec(kind="bm25", corpus="docs", cache=True),
    "both": ArmSpec(kind="rrf", params={"arms": ["docs", "tickets"]}),
    "tickets": ArmSpec(kind="dense", corpus="tickets", params={"backbone": "tiny"}),
    "elsewhere": ArmSpec(kind="remote", params=SEARCH_API),
}


@pytest.fixture
def several(tmp_path: Path) -> HostedArms:
    """Arms over two corpora, of which one is for a group alone."""
    corpora = []
    for name, groups in (("docs", []), ("tickets", ["crew"])):
        about = {"metadata": {"allowed_groups": groups}} if groups else {}
        rows = [{"id": f"{n}", "text": f"{name} of {SEA} {n}", **about} for n in range(3)]
        source = tmp_path / f"{name}.jsonl"
        source.write_bytes(b"\n".join(map(orjson.dumps, rows)))
        corpora.append(CorpusSource(str(source), tmp_path / "corpora" / name, name))
    settings = ArmSettings(tuple(corpora), tmp_path / "indexes", BACKBONES, 30.0)
    here = ArmHost(settings, {}, dict, Embedders(BACKBONES), ScriptedGenerator({}))
    return HostedArms(here, {}, Embedders(BACKBONES), SEVERAL)


async def test_a_host_searches_several_corpora(several: HostedArms) -> None:
    everyone = replace(QUERY, groups=frozenset({"crew"}))
    found = [passage.id for passage in (await several.search("both", everyone, 6)).passages]
    assert sorted(found) == [f"{name}/{n}" for name in ("docs", "tickets") for n in range(3)]
    assert [p.text for p in await several.passages(["tickets/2", "docs/0", "2"])] == [
        f"tickets of {SEA} 2",
        f"docs of {SEA} 0",
    ]
    assert (await several.vectors("tiny", ["docs/0", "tickets/1", "web/1"])).keys() == {"docs/0", "tickets/1"}


async def test_a_host_knows_what_the_sources_of_arms_are_about(several: HostedArms, tmp_path: Path) -> None:
    spec = ProfileSpec(backbone="tiny", passages=2)
    assert not any((await several.profiles(SEVERAL, spec)).values())
    have = Resources(
        ingest_all(
            [
                CorpusSource(str(tmp_path / f"{name}.jsonl"), tmp_path / "corpora" / name, name)
                for name in ("docs", "tickets")
            ]
        ),
        tmp_path / "indexes",
        BACKBONES,
        SEVERAL,
    )
    prepare_profiles(["docs", "tickets"], spec, have)
    found = await several.profiles(SEVERAL, spec)
    sizes = {
        name: [one.vectors is not None and len(one.vectors) for one in every] for name, every in found.items()
    }
    assert sizes == {"docs": [2], "both": [2, 2], "tickets": [2], "elsewhere": []}
    assert [*map(id, found["both"])] == [*map(id, (*found["docs"], *found["tickets"]))]
    with pytest.raises(ArmError, match="profiles of sources: KeyError: 'big'"):
        await several.profiles(SEVERAL, ProfileSpec(backbone="big"))


async def test_permissions_of_one_corpus_hold_in_arms_over_both(several: HostedArms) -> None:
    assert await several.is_restricted()
    found = {passage.id for passage in (await several.search("both", QUERY, 6)).passages}
    assert found == {f"docs/{n}" for n in range(3)}


async def test_an_arm_is_traced_with_the_corpora_that_it_searches(
    several: HostedArms, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources: dict[str, str] = {}

    def refuse(source: str, arm: str, *_: object) -> None:
        sources[arm] = source
        raise ArmError("searches nothing")

    monkeypatch.setattr("armwise.arms.deployments.spans.retrieval", refuse)
    for arm in SEVERAL:
        with pytest.raises(ArmError, match="searches nothing"):
            await several.search(arm, QUERY, 1)
    assert sources == {
        "docs": "docs",
        "tickets": "tickets",
        "both": "docs, tickets",
        "elsewhere": "elsewhere",
    }


# -- what is kept of searches ------------------------------------------------------------------------------

FAR = {"steps": SPECS["steps"].model_copy(update={"cache": True}), "dense": SPECS["dense"]}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a lookup take as long as it does on a busy machine."""
    monkeypatch.setattr(retrieval_cache, "LOOKUP_S", 30.0)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[RetrievalCache]:
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    cache = RetrievalCache(folder, 1 << 20)
    yield cache
    cache.close()


def over(
    folder: Path, cache: RetrievalCache | None, specs: Specs, passages: list[dict[str, Any]]
) -> HostedArms:
    """Arms over passages of their own."""
    folder.mkdir(exist_ok=True)
    source = folder / "passages.jsonl"
    source.write_bytes(b"\n".join(map(orjson.dumps, passages)))
    corpora = (CorpusSource(str(source), folder / "corpus"),)
    settings = ArmSettings(corpora, folder / "indexes", BACKBONES, 30.0)
    here = ArmHost(settings, {}, dict, Embedders(BACKBONES), ScriptedGenerator({}))
    return HostedArms(here, {}, Embedders(BACKBONES), specs, cache)


def kept(kind: str, **params: Any) -> ArmSpec:
    return ArmSpec(kind=kind, params=params, cache=True)


async def test_a_search_that_was_made_is_not_made_again(tmp_path: Path, cache: RetrievalCache) -> None:
    far = Deployed("Arms")
    arms = hosted(tmp_path, FAR, far, cache=cache)
    assert await arms.recall("steps", QUERY, 1) is None
    found = await arms.search("steps", QUERY, 1)
    await cache.flush()
    assert await arms.recall("steps", Query(SEA), 1) == replace(found, steps=0, cached=True)
    assert await arms.recall("steps", QUERY, 1) is not None
    assert await arms.recall("steps", QUERY, 2) is None
    assert far.searches == 1


async def test_what_is_recalled_is_not_paid_again(tmp_path: Path, cache: RetrievalCache) -> None:
    specs = {"words": kept("bm25").model_copy(update={"usd": 0.25})}
    arms = over(tmp_path / "c", cache, specs, [{"id": "a", "title": "", "text": SEA}])
    assert (await arms.search("words", Query(SEA), 1)).usage.usd == 0.25
    await cache.flush()
    again = await arms.recall("words", Query(SEA), 1)
    assert again is not None
    assert (len(again.passages), again.usage.usd) == (1, 0.0)


async def test_without_a_cache_an_arm_searches_each_time(tmp_path: Path) -> None:
    far = Deployed("Arms")
    arms = hosted(tmp_path, FAR, far)
    for _ in range(2):
        assert await arms.recall("steps", QUERY, 1) is None
        assert await first(arms, "steps") == ["Arms"]
    assert far.searches == 2


async def test_a_hit_is_what_the_arm_finds_with_scores_and_metadata(
    tmp_path: Path, cache: RetrievalCache
) -> None:
    specs = {"bm25": kept("bm25"), "dense": kept("dense", backbone="tiny")}
    specs["rrf"] = kept("rrf", arms=["bm25", "dense"])
    sea = [{"id": f"{n}", "text": f"the sea {n}", "metadata": {"n": n, "tags": ["a"]}} for n in range(9)]
    arms = over(tmp_path, cache, specs, sea)
    for name in specs:
        found = await arms.search(name, QUERY, 4)
        await cache.flush()
        again = await arms.recall(name, QUERY, 4)
        assert again == replace(found, steps=0, cached=True)
        assert len(found.passages) == 4


async def test_pipelines_that_search_the_same_share_the_cache(tmp_path: Path, cache: RetrievalCache) -> None:
    specs = {"a": kept("bm25"), "b": kept("bm25", k1=1.2), "c": kept("bm25", k1=0.9), "d": SPECS["bm25"]}
    specs["p"] = kept("plackett_luce", arm="a")
    specs["q"] = kept("plackett_luce", arm="a")
    arms = hosted(tmp_path, specs, cache=cache)
    await arms.search("a", QUERY, 1)
    await arms.search("p", QUERY, 1)
    await cache.flush()
    recalled = {name: await arms.recall(name, QUERY, 1) is not None for name in "abcdq"}
    assert recalled == {"a": True, "b": True, "c": False, "d": False, "q": False}


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "p", "text": "the sea is high"},
        {"id": "p", "text": "the sea is low", "metadata": {"allowed_groups": ["crew"]}},
        {"id": "p", "text": "the sea is low", "title": "sea"},
    ],
    ids=["text", "permissions", "title"],
)
async def test_nothing_is_recalled_of_a_corpus_that_has_changed(
    tmp_path: Path, cache: RetrievalCache, changed: dict[str, Any]
) -> None:
    specs, passage = {"bm25": kept("bm25")}, {"id": "p", "text": "the sea is low"}
    before = over(tmp_path / "before", cache, specs, [passage])
    await before.search("bm25", QUERY, 1)
    await cache.flush()
    same = over(tmp_path / "same", cache, specs, [passage])
    assert await same.recall("bm25", QUERY, 1) is not None
    assert await over(tmp_path / "after", cache, specs, [changed]).recall("bm25", QUERY, 1) is None


async def test_what_one_group_may_see_is_recalled_for_no_other(tmp_path: Path, cache: RetrievalCache) -> None:
    secret = {"id": "s", "text": "the sea of the crew", "metadata": {"allowed_groups": ["crew"]}}
    arms = over(tmp_path, cache, {"bm25": kept("bm25")}, [secret, {"id": "p", "text": "the sea of all"}])
    asked = {
        one: replace(QUERY, groups=frozenset(one)) for one in ((), ("crew",), ("deck",), ("crew", "deck"))
    }
    found = {}
    for groups, query in asked.items():
        assert await arms.recall("bm25", query, 2) is None
        await arms.search("bm25", query, 2)
        await cache.flush()
        again = await arms.recall("bm25", query, 2)
        assert again is not None
        found[groups] = {one.id for one in again.passages}
    assert found == {(): {"p"}, ("crew",): {"s", "p"}, ("deck",): {"p"}, ("crew", "deck"): {"s", "p"}}
    late = Comparison(type="eq", key="number", value=7)
    assert await arms.recall("bm25", replace(QUERY, where=late), 2) is None


@pytest.mark.parametrize(
    ("found_in", "now"), [("a1..a2", "a2"), ("a1+?", None), ("", None), ("a1", "a2"), ("a1", None)]
)
async def test_answers_of_a_changing_index_are_not_recalled(
    tmp_path: Path, cache: RetrievalCache, found_in: str, now: str | None
) -> None:
    far = Deployed("Arms")
    arms = hosted(tmp_path, FAR, far, cache=cache)
    far.found_in, far.now = found_in, now
    await arms.search("steps", QUERY, 1)
    await cache.flush()
    assert await arms.recall("steps", QUERY, 1) is None


class Turned:
    """The time of the running event loop, which a test turns forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.by, time = 0.0, loop.time
        began = time()
        monkeypatch.setattr(loop, "time", lambda: began + self.by if self.by else time())


async def test_a_version_holds_for_ten_seconds_of_each_arm(
    tmp_path: Path, cache: RetrievalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, clock = Deployed("Arms"), Turned(monkeypatch)
    clock.by = 100.0
    specs = FAR | {"more": kept("multistep", arm="dense", max_steps=2)}
    arms = hosted(tmp_path, specs, far, cache=cache)
    for name in ("steps", "more"):
        await arms.search(name, QUERY, 1)
    await cache.flush()
    assert await arms.recall("steps", QUERY, 1) is not None
    far.now = "a2"
    assert await arms.recall("more", QUERY, 1) is None
    clock.by += 9.99
    assert await arms.recall("steps", QUERY, 1) is not None
    assert far.versions == 2
    clock.by += 0.02
    assert await arms.recall("steps", QUERY, 1) is None, "its index has changed"
    assert far.versions == 3


async def never() -> str:
    await asyncio.Event().wait()
    return ""


async def failing() -> str:
    raise ArmError("the host is away")


@pytest.mark.parametrize("is_away", [never, failing], ids=["silent", "failing"])
async def test_a_host_that_names_no_version_holds_up_no_search_twice(
    tmp_path: Path,
    cache: RetrievalCache,
    monkeypatch: pytest.MonkeyPatch,
    is_away: Callable[[], Awaitable[str]],
) -> None:
    monkeypatch.setattr(hosted_arms, "ASK_S", 0.01)
    far = Deployed("Arms")
    arms = hosted(tmp_path, FAR, far, cache=cache)
    await arms.search("steps", QUERY, 1)
    await cache.flush()
    far.is_away = is_away
    for _ in range(2):
        assert await arms.recall("steps", QUERY, 1) is None
    assert far.versions == 1, "it is asked again after a while"


async def test_an_index_without_a_version_is_kept_for_its_time(tmp_path: Path) -> None:
    folder, now = tmp_path / "kept", [1000.0]
    folder.mkdir(mode=0o700)
    cache = RetrievalCache(folder, 1 << 20, 60.0, lambda: now[0])
    specs = {"own": own(Waiting).model_copy(update={"cache": True})}
    far = Deployed("Arms", version="")
    arms = hosted(tmp_path, specs, far, cache=cache)
    await arms.search("own", QUERY, 1)
    await cache.flush()
    assert await arms.recall("own", QUERY, 1) is not None
    now[0] += 60.0
    assert await arms.recall("own", QUERY, 1) is None
    cache.close()
