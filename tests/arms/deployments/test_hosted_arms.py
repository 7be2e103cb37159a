"""The client of hosts: which of them runs an arm, and what it receives."""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from arms.base import ArmBuildError, Passage, Query, Retrieval
from arms.deployments import ArmHost, ArmSettings, Embedders, HostedArms, placement
from arms.deployments.arm_host import Specs, UnknownArmError
from arms.filters import Comparison
from arms.llm.base import ScriptedGenerator
from arms.models.embedding import HashingEmbedder
from arms.retrievers import ArmSpec
from tests.arms.deployments.places import BACKBONES, SPECS, Light, Waiting, open_host, own

SEA = "Where is the sea?"

QUERY = Query(SEA, {"tiny": HashingEmbedder(64).encode_queries([SEA])[0]})


class Deployed:
    """A deployment that finds its own name, and needs the description of every arm once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loaded: list[str] = []
        self.known: set[str] = set()

    async def load(self, arms: Mapping[str, Specs]) -> None:
        self.loaded += arms

    async def search(self, arm: str, key: str, query: Query, k: int, specs: Specs | None = None) -> Retrieval:
        del query, k
        if specs is not None:
            self.known.add(key)
        if key not in self.known:
            raise UnknownArmError(arm)
        return Retrieval((Passage(self.name, "", ""),))


def hosted(folder: Path, specs: Mapping[str, ArmSpec], *deployed: Deployed) -> HostedArms:
    here = open_host(folder)
    return HostedArms(here, {one.name: one for one in deployed}, Embedders(BACKBONES), specs)


async def first(arms: HostedArms, name: str) -> list[str]:
    return [passage.title or passage.id for passage in (await arms.search(name, QUERY, 1)).passages]


async def test_light_arms_search_here_and_others_in_the_deployment(tmp_path: Path) -> None:
    arms = hosted(tmp_path, SPECS, Deployed("Arms"))
    found = {name: await first(arms, name) for name in SPECS}
    assert found == {"none": [], "bm25": ["sea"], "dense": ["sea"], "rrf": ["sea"], "steps": ["Arms"]}


async def test_an_arm_that_names_a_host_searches_there(tmp_path: Path) -> None:
    specs = {"bm25": ArmSpec(kind="bm25", host="Far"), "here": ArmSpec(kind="bm25")}
    arms = hosted(tmp_path, specs, Deployed("Arms"), Deployed("Far"))
    assert (await first(arms, "bm25"), await first(arms, "here")) == (["Far"], ["sea"])


def test_a_host_that_is_no_deployment_is_an_error_that_names_the_closest(tmp_path: Path) -> None:
    specs = {"bm25": ArmSpec(kind="bm25", host="Fra")}
    with pytest.raises(ArmBuildError, match=r"arm 'bm25': no deployment 'Fra' hosts arms.*Far"):
        hosted(tmp_path, specs, Deployed("Far"))


async def test_an_arm_that_is_not_light_searches_here_without_a_deployment_and_this_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arms = hosted(tmp_path, {"bm25": SPECS["bm25"]})
    assert caplog.text == ""
    await arms.load(SPECS)
    arms.know(SPECS)
    arms.know(SPECS)
    assert await first(arms, "steps") == ["sea"]
    (record,) = caplog.records
    assert "arm 'steps' of kind 'multistep' is not light" in record.getMessage()


async def test_arms_are_built_where_they_will_search_with_the_encoders_of_their_questions(
    tmp_path: Path,
) -> None:
    far, encoders = Deployed("Arms"), Embedders(BACKBONES)
    arms = HostedArms(open_host(tmp_path), {"Arms": far}, encoders, {"bm25": SPECS["bm25"]})
    assert encoders.loaded == frozenset()
    await arms.load(SPECS)
    assert (far.loaded, encoders.loaded) == (["steps"], {"tiny"})


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
        ({"a": ArmSpec(kind="bm25", host="Far")}, ("Far",)),
        ({"own": own(Waiting), "far": own(Waiting, "Far")}, ("Arms", "Far")),
        ({"own": own(Light)}, ()),
    ],
    ids=["light", "heavy", "a member alone", "named", "a user's own", "a user's own and light"],
)
def test_a_deployment_exists_only_where_an_arm_needs_it(
    arms: Mapping[str, ArmSpec], deployments: tuple[str, ...]
) -> None:
    assert placement.needed(arms) == deployments


def test_a_fusion_is_as_heavy_as_its_heaviest_member() -> None:
    fused = {**SPECS, "f": ArmSpec(kind="rrf", params={"arms": ["bm25", "steps"]})}
    assert placement.place("rrf", fused, ["Arms"]) is None
    assert placement.place("f", fused, ["Arms"]) == "Arms"


@pytest.mark.parametrize("groups", [(), ("crew",)])
async def test_a_query_keeps_its_filter_and_groups_on_its_way_to_a_host(
    tmp_path: Path, groups: tuple[str, ...]
) -> None:
    kept: dict[str, Any] = {"allowed_groups": groups} if groups else {}
    sea = [
        {"id": f"{n}", "text": f"the sea of number {n}", "metadata": {"number": n} | kept} for n in range(9)
    ]
    source = tmp_path / "sea.jsonl"
    source.write_bytes(b"\n".join(map(orjson.dumps, sea)))
    settings = ArmSettings(str(source), tmp_path / "corpus", tmp_path / "indexes", BACKBONES, 30.0)
    here = ArmHost(settings, {}, dict, Embedders(BACKBONES), ScriptedGenerator({}))
    arms = HostedArms(here, {}, Embedders(BACKBONES), SPECS)
    assert await arms.restricted() == bool(groups)
    late = Comparison(type="gte", key="number", value=7)
    for asked, expected in (((), set() if groups else {"7", "8"}), (groups, {"7", "8"})):
        query = pickle.loads(pickle.dumps(replace(QUERY, where=late, groups=frozenset(asked))))
        found = {passage.id for passage in (await arms.search("rrf", query, 4)).passages}
        assert found == expected
