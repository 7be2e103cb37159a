"""Federated search: which sources are asked, in which order, when it stops, and what it costs."""

from pathlib import Path

import numpy as np
import pytest

from armwise.arms.base import Arm, ArmError, Passage, Query, Retrieval
from armwise.arms.corpus import Corpus, ingest_all
from armwise.arms.models import Backbone, locate
from armwise.arms.more.federated import FederatedArm, FederatedParams
from armwise.arms.more.learned_fusion import PRETRAINED
from armwise.arms.profile import Profile, Profiles, ProfileSpec
from armwise.arms.relevance import read_model
from armwise.arms.retrievers import ArmGraph, ArmSpec, ArmSpecError, Resources, build_arm, catalog, prepare
from tests.arms.contract import DIM, ask, check_arm
from tests.arms.corpus.test_corpora import write

MODEL = read_model(Path(locate(PRETRAINED)))
AXES = np.eye(3, dtype=np.float32)
NAMES = ("north", "east", "west")
PROFILE = ProfileSpec(backbone="tiny")
NOTHING = np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.float32)
PROFILES: Profiles = {name: [Profile(*NOTHING, AXES[row : row + 1])] for row, name in enumerate(NAMES)}
QUESTION = "Which river flows through Vienna?"


class Side:
    """Finds one passage, and remembers how many it was asked for."""

    def __init__(self, name: str, text: str, *, steps: int = 1, tokens: int = 0) -> None:
        self.name, self.backbones = name, frozenset({f"of {name}"})
        self.asked: list[int] = []
        self._found = Retrieval((Passage(f"{name}/0", "", text),), steps, tokens)

    def search(self, query: Query, k: int) -> Retrieval:
        del query
        self.asked.append(k)
        return self._found


class Down(Side):
    """Fails."""

    def search(self, query: Query, k: int) -> Retrieval:
        super().search(query, k)
        raise ArmError(f"{self.name} is down")


def members(**others: Side) -> list[Side]:
    told = {
        "north": Side("north", "The river Danube flows through Vienna.", steps=1, tokens=3),
        "east": Side("east", "Oranges grow in Spain.", steps=2, tokens=4),
        "west": Side("west", "Nothing at all.", steps=4, tokens=5),
    }
    return [others.get(name, one) for name, one in told.items()]


def arm(sides: list[Side], known: Profiles | None = None, **params: object) -> FederatedArm:
    chosen = FederatedParams(arms=NAMES, profile=PROFILE, **params)
    return FederatedArm("f", list[Arm](sides), chosen, PROFILES if known is None else known, MODEL)


def query(*near: float, **expected: float) -> Query:
    return Query(QUESTION, {"tiny": np.array(near, dtype=np.float32)}, expected=expected)


def asked(found: Retrieval) -> list[str]:
    return [name for stage in found.stages for name in stage.arms]


@pytest.mark.parametrize(
    ("near", "order"),
    [
        ((0.1, 0.9, 0.5), ["east", "west", "north"]),
        ((0.9, 0.1, 0.5), ["north", "west", "east"]),
        ((0.5, 0.5, 0.5), ["north", "east", "west"]),
    ],
)
def test_sources_are_asked_in_the_order_of_their_similarity(
    near: tuple[float, ...], order: list[str]
) -> None:
    assert asked(arm(members(), most=3).search(query(*near), 4)) == order


def test_scores_of_a_router_come_before_the_profile() -> None:
    two = arm(members(), most=2)
    every = {"north": 0.1, "east": 0.3, "west": 0.2}
    assert asked(two.search(query(1.0, 0.0, 0.0, **every), 4)) == ["east", "west"]
    assert asked(two.search(query(1.0, 0.2, 0.0, north=0.1, east=0.3), 4)) == ["north", "east"]
    assert asked(two.search(query(1.0, 0.0, 0.0, **every, other=9.0), 4)) == ["east", "west"]


def test_a_member_without_a_profile_counts_as_the_mean() -> None:
    known = {**PROFILES, "west": []}
    assert asked(arm(members(), known, most=3).search(query(0.2, 0.6, 0.0), 4)) == ["east", "west", "north"]
    assert asked(arm(members(), {}, most=3).search(query(0.2, 0.6, 0.0), 4)) == [*NAMES]


@pytest.mark.parametrize("most", [1, 2, 3, 9])
def test_no_more_are_asked_than_it_says(most: int) -> None:
    sides = members()
    found = arm(sides, most=most).search(query(0.9, 0.5, 0.1), 4)
    assert asked(found) == [*NAMES[:most]]
    assert [len(side.asked) for side in sides] == [1] * min(most, 3) + [0] * (3 - most)


def test_it_stops_as_soon_as_enough_is_found() -> None:
    first = arm(members(), most=3).search(query(0.9, 0.5, 0.1), 4).stages[0].probability
    assert first is not None
    assert 0.0 < first < 1.0
    for enough, n in ((first, 1), (np.nextafter(first, 1.0), 3)):
        found = arm(members(), most=3, enough=float(enough)).search(query(0.9, 0.5, 0.1), 4)
        assert len(found.stages) == n


def test_it_stops_at_a_later_source() -> None:
    all_of_them = arm(members(), most=3).search(query(0.5, 0.9, 0.1), 4)
    first, second = (stage.probability for stage in all_of_them.stages[:2])
    assert first is not None
    assert second is not None
    assert first < second
    found = arm(members(), most=3, enough=second).search(query(0.5, 0.9, 0.1), 4)
    assert asked(found) == ["east", "north"]


def test_relevance_is_that_of_the_two_best_passages_so_far() -> None:
    sides = members()
    found = arm(sides, most=2).search(query(0.9, 0.5, 0.1), 4)
    rankings = {one.name: one.search(query(), 1).passages for one in sides[:2]}
    for n, stage in enumerate(found.stages, start=1):
        relevance = MODEL.relevance(QUESTION, dict([*rankings.items()][:n]))
        assert stage.probability == pytest.approx(sum(sorted(relevance.values())[-2:]) / 2)
    assert [one.score for one in found.passages] == sorted(relevance.values(), reverse=True)
    assert found.passages[0].id == "north/0"


def test_it_costs_what_all_that_were_asked_cost() -> None:
    found = arm(members(), most=2).search(query(0.1, 0.5, 0.9), 4)
    assert (found.steps, found.tokens) == (6, 9)
    assert [(one.steps, one.tokens, one.picked) for one in found.stages] == [(4, 5, "west"), (2, 4, "east")]


def test_members_are_asked_for_depth_or_k_passages() -> None:
    sides = members()
    deep = arm(sides, most=1)
    deep.search(query(0.9, 0.5, 0.1), 4)
    deep.search(query(0.9, 0.5, 0.1), 9)
    assert sides[0].asked == [8, 9]
    assert len(arm(members(), most=3).search(query(0.9, 0.5, 0.1), 2).passages) == 2


def test_in_place_of_a_failed_member_the_next_is_asked() -> None:
    sides = members(north=Down("north", ""))
    found = arm(sides, most=2).search(query(0.9, 0.5, 0.1), 4)
    assert [(one.arms, one.failed) for one in found.stages] == [
        (("north",), ("north",)),
        (("east",), ()),
        (("west",), ()),
    ]
    assert {one.id for one in found.passages} == {"east/0", "west/0"}
    assert found.steps == 6


def test_it_fails_where_every_member_fails_and_says_why() -> None:
    sides = members(**{name: Down(name, "") for name in NAMES})
    with pytest.raises(ArmError, match="every member of arm 'f' failed: east: east is down; west: "):
        arm(sides, most=1).search(query(0.1, 0.9, 0.5), 4)


def test_it_needs_embeddings_of_members_and_profile() -> None:
    assert arm(members()).backbones == {"tiny", "of north", "of east", "of west"}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("several")
    return ingest_all([write(folder, "docs", ["Vienna", "Rome"]), write(folder, "tickets", ["Oslo", "Bonn"])])


def built(several: Corpus, indexes: Path, **params: object) -> Resources:
    specs = {
        "docs": ArmSpec(kind="bm25", corpus="docs"),
        "tickets": ArmSpec(kind="bm25", corpus="tickets"),
        "none": ArmSpec(kind="none"),
        "f": ArmSpec(
            kind="federated",
            params={"arms": ["docs", "tickets"], "profile": {"backbone": "tiny", "passages": 2}, **params},
        ),
    }
    return Resources(several, indexes, {"tiny": Backbone(model=f"hashing:{DIM}")}, specs)


def test_it_asks_the_source_that_the_question_is_about(several: Corpus, tmp_path: Path) -> None:
    have = built(several, tmp_path, most=1)
    prepare(have)
    check_arm(build_arm("f", have), several)
    for corpus, city in (("docs", "Rome"), ("tickets", "Bonn")):
        (text,) = (one.text for one in several.part(corpus) if city in one.text)
        assert asked(build_arm("f", have).search(ask(text, frozenset({"tiny"})), 1)) == [corpus]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"profile": {"backbone": "big"}}, "unknown backbone 'big'"),
        ({"arms": ["docs", "ticket"]}, "unknown arm 'ticket'; did you mean 'tickets'"),
    ],
)
def test_wrong_parameters_are_refused_by_name(
    several: Corpus, tmp_path: Path, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(ArmSpecError, match=message):
        prepare(built(several, tmp_path, **wrong))


def test_its_expected_steps_are_its_searches(several: Corpus, tmp_path: Path) -> None:
    for most, steps in ((1, 1.0), (2, 2.0), (5, 2.0)):
        have = built(several, tmp_path, most=most)
        assert catalog.arm_features("f", have.specs["f"])["steps"] == steps
    graph = ArmGraph(have.specs)
    assert graph.random_part("f") == "f"
    assert graph.is_light("f")
    assert graph.filters("f")
