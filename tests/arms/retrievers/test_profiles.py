"""Profiles of sources: drawn from a corpus, sampled through a search, compared with a question."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from armwise.arms.base import ArmError, Passage, Query, Retrieval
from armwise.arms.corpus import Corpus, ingest_all
from armwise.arms.indexes import compose_text
from armwise.arms.models import Backbone, Embedder
from armwise.arms.models.embedding import HashingEmbedder
from armwise.arms.profile import Profile, ProfileSpec, similarities
from armwise.arms.retrievers import (
    ArmSpec,
    Resources,
    prepare,
    prepare_profiles,
    profiles,
    read_profiles,
)
from tests.arms.contract import DIM
from tests.arms.corpus.test_corpora import write

TINY = {"tiny": Backbone(model=f"hashing:{DIM}"), "other": Backbone(model="hashing:32")}
SPEC = ProfileSpec(backbone="tiny", passages=3)

SPECS = {
    "docs": ArmSpec(kind="bm25", corpus="docs"),
    "near": ArmSpec(kind="dense", corpus="docs", params={"backbone": "tiny"}),
    "tickets": ArmSpec(kind="bm25", corpus="tickets"),
    "both": ArmSpec(kind="rrf", params={"arms": ["near", "docs", "tickets"]}),
    "none": ArmSpec(kind="none"),
    "web": ArmSpec(kind="tests.arms.retrievers.test_profiles:Web"),
    "down": ArmSpec(kind="tests.arms.retrievers.test_profiles:Down"),
    "empty": ArmSpec(kind="tests.arms.retrievers.test_profiles:Empty"),
}


class Web:
    """A search over a few pages: those that contain a word of the query, two at a time."""

    backbones: frozenset[str] = frozenset()
    pages = (
        *("people walk by the lake", "the lake is deep", "a deep mine", "the mine has gold"),
        *("gold coins", "silver coins", "unreachable island"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[str] = []

    def search(self, query: Query, k: int) -> Retrieval:
        self.asked.append(query.text)
        found = [page for page in self.pages if query.text in page.split()]
        return Retrieval(tuple(Passage(page, "", page) for page in found[: min(k, 2)]))


class Down(Web):
    """A search that always fails."""

    def search(self, query: Query, k: int) -> Retrieval:
        super().search(query, k)
        raise ArmError("connection refused")


class Empty(Web):
    """A search that finds nothing."""

    pages = ()


def encoder(backbone: str) -> Embedder:
    return HashingEmbedder({"tiny": DIM, "other": 32}[backbone])


@pytest.fixture
def two(tmp_path: Path) -> Corpus:
    cities = ["Vienna", "Oslo", "Rome", "Bonn", "Paris"]
    return ingest_all([write(tmp_path, "docs", cities), write(tmp_path, "tickets", cities[:2])])


@pytest.fixture
def have(two: Corpus, tmp_path: Path) -> Resources:
    return Resources(two, tmp_path / "indexes", TINY, SPECS)


@given(vectors=st.lists(st.lists(st.floats(-1, 1), min_size=3, max_size=3), min_size=1, max_size=8))
def test_a_similarity_is_the_mean_of_the_five_nearest_passages(vectors: list[list[float]]) -> None:
    rows, question = np.array(vectors, dtype=np.float32), np.array([0.6, 0.0, 0.8], dtype=np.float32)
    highest = sorted((rows @ question).tolist(), reverse=True)[:5]
    found = similarities({"a": Profile(rows)}, question)
    assert found["a"] == pytest.approx(sum(highest) / len(highest), abs=1e-5)


def test_a_question_of_another_backbone_is_refused() -> None:
    with pytest.raises(ArmError, match=r"profile .* 4 numbers.* \(3,\)"):
        similarities({"a": Profile(np.eye(4, dtype=np.float32))}, np.ones(3, dtype=np.float32))


def test_a_profile_is_of_the_corpus_of_its_arm(have: Resources, two: Corpus) -> None:
    prepare_profiles(["docs", "tickets"], SPEC, have)
    found = read_profiles(["docs", "tickets"], SPEC, have)
    assert {name: one.vectors.shape for name, one in found.items()} == {"docs": (3, DIM), "tickets": (2, DIM)}
    texts = [compose_text(one) for one in two.part("docs")]
    known = {row.tobytes() for row in HashingEmbedder(DIM).encode_passages(texts)}
    assert {row.tobytes() for row in found["docs"].vectors} < known


def test_passages_that_an_index_has_are_not_embedded_again(
    have: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the first warm start embeds thousands of passages a second time."""
    prepare_profiles(["docs"], SPEC, replace(have, indexes=have.indexes / "without"))
    prepare(have, ["near"])
    embedded: list[str] = []

    class Counted(HashingEmbedder):
        def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
            embedded.extend(texts)
            return super().encode_passages(texts)

    monkeypatch.setattr(profiles, "build_passage_embedder", lambda _: Counted(DIM))
    prepare_profiles(["docs", "tickets"], SPEC, have)
    assert sorted(embedded) == sorted(compose_text(one) for one in have.corpus.part("tickets"))
    found, other = (
        read_profiles(["docs"], SPEC, replace(have, indexes=folder))["docs"].vectors
        for folder in (have.indexes, have.indexes / "without")
    )
    assert np.array_equal(found, other), "the profile is the same with an index and without"


def test_arms_over_the_same_sources_share_a_profile(
    have: Resources,
) -> None:
    prepare_profiles(SPECS.keys() - {"web", "down", "empty"}, SPEC, have)
    found = read_profiles(["docs", "near", "both", "none"], SPEC, have)
    assert [*found] == ["docs", "near", "both"]
    assert found["docs"].vectors is found["near"].vectors
    assert found["both"].vectors.shape == (5, DIM)
    assert len([*have.indexes.iterdir()]) == 2


def test_a_profile_is_made_again_where_its_source_changes(have: Resources, tmp_path: Path) -> None:
    steps: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        steps.append(f"{what}: {done} of {total}")

    prepare_profiles(["docs"], SPEC, have, progress)
    prepare_profiles(["docs"], SPEC, have, progress)
    assert steps == ["profile of docs: 3 of 3"]
    prepare_profiles(["docs"], SPEC.model_copy(update={"passages": 4}), have, progress)
    prepare_profiles(["docs"], SPEC.model_copy(update={"backbone": "other"}), have, progress)
    assert steps[1:] == ["profile of docs: 4 of 4", "profile of docs: 3 of 3"]
    (tmp_path / "later").mkdir()
    changed = ingest_all([write(tmp_path / "later", "docs", ["Lima"]), write(tmp_path, "tickets", ["Oslo"])])
    later = Resources(changed, have.indexes, TINY, SPECS)
    assert read_profiles(["docs"], SPEC, later) == {}
    prepare_profiles(["docs"], SPEC, later, progress)
    assert steps[3:] == ["profile of docs: 1 of 1"]


def test_a_damaged_profile_is_made_again(have: Resources) -> None:
    prepare_profiles(["docs"], SPEC, have)
    (file,) = have.indexes.glob("profile-*/vectors.npy")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert read_profiles(["docs"], SPEC, have) == {}
    prepare_profiles(["docs"], SPEC, have)
    assert file.read_bytes() == whole


def test_a_source_without_a_corpus_is_sampled() -> None:
    web = Web("web")
    found = profiles.sample_passages(web, ProfileSpec(backbone="tiny", passages=6), encoder)
    assert {one.text for one in found} == {*Web.pages} - {"unreachable island"}
    assert web.asked[:2] == ["information", "people"]
    assert len({*web.asked}) == len(web.asked)
    assert {*web.asked[2:]} <= {word for page in Web.pages for word in page.split()}


def test_no_more_is_searched_or_kept_than_was_asked_for() -> None:
    web = Web("web")
    assert len(profiles.sample_passages(web, ProfileSpec(backbone="tiny", passages=1), encoder)) == 1
    assert web.asked == ["information", "people"]
    few = Web("web")
    profiles.sample_passages(few, ProfileSpec(backbone="tiny", searches=4), encoder)
    assert len(few.asked) == 4


def test_words_are_embedded_for_an_arm_that_needs_it() -> None:
    class Near(Web):
        backbones = frozenset({"other"})

        def search(self, query: Query, k: int) -> Retrieval:
            assert query.embedding("other", arm=self.name).shape == (32,)
            return super().search(query, k)

    assert profiles.sample_passages(Near("near"), SPEC, encoder)


def test_an_arm_whose_search_fails_has_no_profile(have: Resources, caplog: pytest.LogCaptureFixture) -> None:
    prepare_profiles(["down", "empty", "web"], SPEC, have)
    assert [*read_profiles(["down", "empty", "web"], SPEC, have)] == ["web"]
    down, empty = (record.getMessage() for record in caplog.records)
    assert ("'down'" in down, "connection refused" in down, "'empty'" in empty) == (True, True, True)


def test_a_search_may_fail_twice_in_a_row() -> None:
    class Shaky(Web):
        def search(self, query: Query, k: int) -> Retrieval:
            found = super().search(query, k)
            if len(self.asked) % 3:
                raise ArmError("busy")
            return found

    shaky = Shaky("shaky")
    profiles.sample_passages(shaky, ProfileSpec(backbone="tiny", searches=10), encoder)
    assert len(shaky.asked) == 10
    down = Down("down")
    with pytest.raises(ArmError, match="refused"):
        profiles.sample_passages(down, SPEC, encoder)
    assert len(down.asked) == profiles.FAILURES


def test_a_source_that_may_not_be_searched_has_no_profile(have: Resources) -> None:
    spec = SPEC.model_copy(update={"searches": 0})
    prepare_profiles(["web", "docs"], spec, have)
    assert [*read_profiles(["web", "docs"], spec, have)] == ["docs"]


def drawn_near(mean: float, sizes: list[int], seed: int) -> list[NDArray[np.float32]]:
    """Passages whose similarity to a question along the first axis is normal, at .1 around a mean."""
    draw = np.random.default_rng(seed)
    return [np.column_stack([draw.normal(mean, 0.1, n), np.zeros(n)]).astype(np.float32) for n in sizes]


AXIS = np.array([1.0, 0.0], dtype=np.float32)


def test_a_smaller_sample_is_corrected_for_chance() -> None:
    worlds = [drawn_near(0.2, [50, 5000], seed) for seed in range(200)]
    near = [similarities({"few": Profile(few), "many": Profile(many)}, AXIS) for few, many in worlds]
    few, many = (float(np.mean([one[name] for one in near])) for name in ("few", "many"))
    assert few == pytest.approx(many, abs=0.01)
    alone = np.mean([similarities({"few": Profile(one)}, AXIS)["few"] for one, _ in worlds])
    assert alone < many - 0.1


@given(sizes=st.lists(st.integers(6, 14), min_size=2, max_size=4), seed=st.integers(0, 1000))
def test_the_largest_samples_are_not_corrected(sizes: list[int], seed: int) -> None:
    known = {str(n): Profile(one) for n, one in enumerate(drawn_near(0.2, sizes, seed))}
    together = similarities(known, AXIS)
    for name, one in known.items():
        alone = similarities({name: one}, AXIS)[name]
        if len(one.vectors) == max(sizes):
            assert together[name] == alone
        else:
            assert together[name] > alone


def test_the_correction_is_by_the_variance_within_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("armwise.arms.profile.NEAREST", 1)
    few = np.array([[0.1, 0.0], [0.3, 0.0]], dtype=np.float32)
    many = np.array([[0.5, 0.0], [0.5, 0.0], [0.5, 0.0], [0.9, 0.0]], dtype=np.float32)
    near = similarities({"few": Profile(few), "again": Profile(many), "many": Profile(many)}, AXIS)
    within = (2 * 0.01 + 2 * 4 * 0.03) / 10
    highest = [NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) for n in (2, 4)]
    assert near["few"] == pytest.approx(0.3 + within**0.5 * (highest[1] - highest[0]), abs=1e-6)


def test_an_arm_more_over_a_source_changes_no_similarity() -> None:
    few, many = (Profile(one) for one in drawn_near(0.2, [3, 6], 0))
    two = similarities({"few": few, "many": many}, AXIS)
    three = similarities({"few": few, "many": many, "again": many}, AXIS)
    assert {name: three[name] for name in two} == two


def test_passages_are_drawn_once_and_embedded_whole(tmp_path: Path) -> None:
    names = [f"city {n}" for n in range(profiles.AT_ONCE + 6)]
    long = ingest_all([write(tmp_path, "docs", [*names, "x" * 400 + " end"])])
    have = Resources(long, tmp_path / "indexes", TINY, {"docs": ArmSpec(kind="bm25", corpus="docs")})
    spec = ProfileSpec(backbone="tiny", passages=1000)
    prepare_profiles(["docs"], spec, have)
    found = read_profiles(["docs"], spec, have)["docs"].vectors
    texts = [compose_text(one) for one in long]
    assert found.shape == (len(names) + 1, DIM)
    np.testing.assert_array_equal(found, HashingEmbedder(DIM).encode_passages(texts))


def test_a_source_that_is_down_is_tried_once_for_all_arms(
    have: Resources, caplog: pytest.LogCaptureFixture
) -> None:
    over = {"first": {"arms": ["down", "docs"]}, "second": {"arms": ["tickets", "down"]}}
    specs = {**SPECS, **{name: ArmSpec(kind="rrf", params=params) for name, params in over.items()}}
    every = Resources(have.corpus, have.indexes, TINY, specs)
    prepare_profiles(["first", "down", "second"], SPEC, every)
    assert len(caplog.records) == 1
    sizes = {name: len(one.vectors) for name, one in read_profiles([*over, "down"], SPEC, every).items()}
    assert sizes == {"first": 3, "second": 2}
