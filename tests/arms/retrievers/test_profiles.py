"""Profiles of sources: drawn from a corpus, sampled through a search, compared with a question."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
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
from armwise.arms.profile import (
    CHARACTERS,
    OF_PASSAGES,
    OF_WORDS,
    Profile,
    ProfileSpec,
    hash_terms,
    similarities,
)
from armwise.arms.retrievers import (
    ArmSpec,
    Resources,
    prepare,
    prepare_profiles,
    profiles,
    read_profiles,
)
from armwise.arms.tokenizer import words
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


def vectors(found: Sequence[Profile]) -> NDArray[np.float32]:
    (one,) = found
    assert one.vectors is not None
    return one.vectors


@pytest.fixture
def two(tmp_path: Path) -> Corpus:
    cities = ["Vienna", "Oslo", "Rome", "Bonn", "Paris"]
    return ingest_all([write(tmp_path, "docs", cities), write(tmp_path, "tickets", cities[:2])])


@pytest.fixture
def have(two: Corpus, tmp_path: Path) -> Resources:
    return Resources(two, tmp_path / "indexes", TINY, SPECS)


def near(vectors: NDArray[np.float32]) -> Profile:
    """A source of which no word is known."""
    return Profile(np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.float32), vectors)


def counted(*texts: str, most: int = 1000) -> Profile:
    """A source of a few passages, of which no vector is known."""
    return Profile(*profiles.count_terms([[Passage(text, "", text)] for text in texts], most))


def odds(*of: Profile, question: str = "", vector: NDArray[np.float32] | None = None) -> NDArray[np.float64]:
    """The logarithms of the odds of each source against the first."""
    fit = similarities({str(n): [one] for n, one in enumerate(of)}, question, vector)
    return np.log([*fit.values()]) - np.log(fit["0"])


WORDS = st.lists(
    st.sampled_from(["lake", "mine", "gold", "\u6771\u4eac", "Straße", "zebra"]), max_size=6
).map(" ".join)


def plain_log_likelihoods(sources: list[list[str]], question: str) -> list[float]:
    """The mean log-likelihood of words and pairs, by counting them anew."""

    def terms(text: str) -> list[object]:
        return [*words(text), *pairwise(words(text))]

    counts = [Counter(term for text in texts for term in terms(text)) for texts in sources]
    asked, found = terms(question), []
    shares = [[count[term] / max(count.total(), 1) for term in asked] for count in counts]
    for own in shares:
        mean = [sum(column) / len(sources) for column in zip(*shares, strict=True)]
        found.append(sum(math.log(0.7 * p + 0.3 * m + 1e-12) for p, m in zip(own, mean, strict=True)))
    return [one / max(len(asked), 1) for one in found]


@given(sources=st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=1, max_size=4), question=WORDS)
def test_the_fit_of_words_is_a_likelihood_smoothed_by_all_sources(
    sources: list[list[str]], question: str
) -> None:
    known = [counted(*texts) for texts in sources]
    expected = OF_WORDS * np.array(plain_log_likelihoods(sources, question))
    np.testing.assert_allclose(odds(*known, question=question), expected - expected[0], atol=1e-4)


@given(sources=st.lists(st.lists(WORDS, min_size=1, max_size=3), min_size=2, max_size=4), question=WORDS)
def test_fits_are_probabilities_of_the_sources_in_any_order(sources: list[list[str]], question: str) -> None:
    known = {str(n): [counted(*texts)] for n, texts in enumerate(sources)}
    fit = similarities(known, question)
    assert sum(fit.values()) == pytest.approx(1.0)
    assert similarities(dict(reversed(known.items())), question) == pytest.approx(fit)
    whole = {**known, "all": [one for every in known.values() for one in every]}
    assert similarities(whole, question) == pytest.approx({**fit, "all": 1.0})
    assert similarities({**known, "unknown": []}, "") == pytest.approx(
        dict.fromkeys([*known, "unknown"], 1 / (len(known) + 1))
    )


def test_words_that_no_source_has_and_no_question_say_nothing() -> None:
    lake, mine = counted("people walk by the lake"), counted("the mine has gold")
    for question in ("", "?!", "xylophone quartet"):
        assert odds(lake, mine, question=question).tolist() == pytest.approx([0.0, 0.0])
    assert odds(lake, mine, question="a lake, xylophone quartet")[1] < 0.0
    assert similarities({"a": [lake]}, "the lake") == {"a": 1.0}
    assert similarities({"a": [], "b": []}, "the lake") == {}


def test_a_source_of_which_nothing_is_known_fits_as_well_as_the_others_on_average() -> None:
    known = {"lake": [counted("people walk by the lake")], "mine": [counted("the mine has gold")], "web": []}
    fit = similarities(known, "the lake")
    assert fit["web"] == pytest.approx(math.sqrt(fit["lake"] * fit["mine"]))


def test_pairs_of_words_tell_sources_apart_that_have_the_same_words() -> None:
    first, second = counted("gold of the mine", "lake"), counted("lake of the gold", "mine")
    assert odds(first, second, question="gold mine of the lake")[1] == pytest.approx(0.0, abs=1e-6)
    assert odds(first, second, question="of the mine")[1] < -0.1


@pytest.mark.parametrize(
    "question", ["gold " * 200_000, "\u6771" * 1_000_000, "a\ud800b " * 100_000, "\0" * 1_000_000]
)
def test_of_a_long_question_the_beginning_counts(question: str) -> None:
    sources = counted("the mine has gold"), counted("lake and \u6771\u4eac")
    began = time.process_time()
    found = odds(*sources, question=question)
    assert time.process_time() - began < 0.1
    np.testing.assert_array_equal(found, odds(*sources, question=question[:CHARACTERS] + "lake " * 9))


def test_the_most_frequent_terms_are_kept_with_their_share_of_all() -> None:
    cut = counted("sea sea sea", "sea sky", "ice", most=2)
    whole = counted("sea sea sea", "sea sky", "ice")
    assert len(cut.terms) == 2
    (sea,) = hash_terms("sea")
    pair = hash_terms("sea sea")[-1]
    asked = np.array(sorted([sea, pair]), dtype=np.uint32)
    np.testing.assert_array_equal(cut.terms, asked)
    np.testing.assert_allclose(cut.share(np.array([sea, pair], dtype=np.uint32)), [4 / 9, 2 / 9], rtol=1e-6)
    late = counted("ice ice", "sky", "sky", "sky", most=1)
    assert late.terms.tolist() == hash_terms("sky")
    assert whole.shares.sum() == pytest.approx(1.0)
    assert np.all(np.diff(whole.terms.astype(np.int64)) > 0)


@given(vectors=st.lists(st.lists(st.floats(-1, 1), min_size=3, max_size=3), min_size=1, max_size=8))
def test_the_nearness_of_a_source_is_the_mean_of_its_five_nearest_passages(
    vectors: list[list[float]],
) -> None:
    rows, question = np.array(vectors, dtype=np.float32), np.array([0.6, 0.0, 0.8], dtype=np.float32)
    highest = sorted((rows @ question).tolist(), reverse=True)[:5]
    found = odds(near(np.zeros_like(rows)), near(rows), vector=question)[1] / OF_PASSAGES
    assert found == pytest.approx(sum(highest) / len(highest), abs=1e-5)


def test_words_and_passages_add_up_and_passages_count_where_all_sources_have_some() -> None:
    lake, mine = counted("people walk by the lake"), counted("the mine has gold")
    axes = np.eye(2, dtype=np.float32)
    both = replace(lake, vectors=axes[:1]), replace(mine, vectors=axes[1:])
    asked = {"question": "the lake", "vector": axes[1]}
    assert odds(*both, **asked)[1] == pytest.approx(odds(lake, mine, question="the lake")[1] + OF_PASSAGES)
    np.testing.assert_array_equal(odds(both[0], mine, **asked), odds(lake, mine, question="the lake"))


def test_a_question_of_another_backbone_is_refused() -> None:
    with pytest.raises(ArmError, match=r"profile .* 4 numbers.* \(3,\)"):
        similarities({"a": [near(np.eye(4, dtype=np.float32))]}, "", np.ones(3, dtype=np.float32))


def test_a_profile_is_of_the_corpus_of_its_arm(have: Resources, two: Corpus) -> None:
    prepare_profiles(["docs", "tickets"], SPEC, have)
    found = read_profiles(["docs", "tickets"], SPEC, have)
    assert {name: vectors(one).shape for name, one in found.items()} == {
        "docs": (3, DIM),
        "tickets": (2, DIM),
    }
    texts = [compose_text(one) for one in two.part("docs")]
    known = {row.tobytes() for row in HashingEmbedder(DIM).encode_passages(texts)}
    assert {row.tobytes() for row in vectors(found["docs"])} < known
    every = counted(*(f"{one.title} {one.text}" for one in two.part("docs")))
    np.testing.assert_array_equal(found["docs"][0].terms, every.terms)
    np.testing.assert_allclose(found["docs"][0].shares, every.shares)


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
        vectors(read_profiles(["docs"], SPEC, replace(have, indexes=folder))["docs"])
        for folder in (have.indexes, have.indexes / "without")
    )
    assert np.array_equal(found, other), "the profile is the same with an index and without"


def test_arms_over_the_same_sources_share_a_profile(
    have: Resources,
) -> None:
    prepare_profiles(SPECS.keys() - {"web", "down", "empty"}, SPEC, have)
    found = read_profiles(["docs", "near", "tickets", "both", "none"], SPEC, have)
    assert [*found] == ["docs", "near", "tickets", "both"]
    assert found["docs"][0] is found["near"][0]
    assert [*map(id, found["both"])] == [*map(id, (*found["docs"], *found["tickets"]))]
    assert sorted(path.name.partition("-")[0] for path in have.indexes.iterdir()) == 2 * ["profile"] + 2 * [
        "words"
    ]


def test_a_profile_is_made_again_where_its_source_changes(have: Resources, tmp_path: Path) -> None:
    steps: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        steps.append(f"{what}: {done} of {total}")

    prepare_profiles(["docs"], SPEC, have, progress)
    prepare_profiles(["docs"], SPEC, have, progress)
    assert steps == ["words of docs: 5 of 5", "profile of docs: 3 of 3"]
    prepare_profiles(["docs"], SPEC.model_copy(update={"passages": 4}), have, progress)
    prepare_profiles(["docs"], SPEC.model_copy(update={"backbone": "other"}), have, progress)
    assert steps[2:] == ["profile of docs: 4 of 4", "profile of docs: 3 of 3"]
    (tmp_path / "later").mkdir()
    changed = ingest_all([write(tmp_path / "later", "docs", ["Lima"]), write(tmp_path, "tickets", ["Oslo"])])
    later = Resources(changed, have.indexes, TINY, SPECS)
    assert read_profiles(["docs"], SPEC, later) == {"docs": ()}
    prepare_profiles(["docs"], SPEC, later, progress)
    assert steps[4:] == ["words of docs: 1 of 1", "profile of docs: 1 of 1"]
    ((lima,),) = read_profiles(["docs"], SPEC, later).values()
    assert lima.share(np.array(hash_terms("Lima Oslo"), dtype=np.uint32)).astype(bool).tolist()[:2] == [
        True,
        False,
    ]


def test_without_passages_nothing_is_embedded(have: Resources) -> None:
    nothing = Resources(ingest_all([]), have.indexes, TINY, {"docs": ArmSpec(kind="bm25")})
    prepare_profiles(["docs"], SPEC, nothing)
    ((one,),) = read_profiles(["docs"], SPEC, nothing).values()
    assert (len(one.terms), one.vectors) == (0, None)


@pytest.mark.parametrize("file", ["profile-*/vectors.npy", "words-*/terms.npy", "words-*/shares.npy"])
def test_a_damaged_profile_is_made_again(have: Resources, file: str) -> None:
    prepare_profiles(["docs"], SPEC, have)
    before = read_profiles(["docs"], SPEC, have)["docs"][0]
    (path,) = have.indexes.glob(file)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:-1])
    damaged = read_profiles(["docs"], SPEC, have)["docs"]
    assert damaged == () if "words" in file else damaged[0].vectors is None
    prepare_profiles(["docs"], SPEC, have)
    assert path.read_bytes() == whole
    assert len(before.terms)


def test_words_alone_need_no_encoder_and_are_kept_where_vectors_come_later(have: Resources) -> None:
    alone = SPEC.model_copy(update={"backbone": None})
    prepare_profiles(["docs"], alone, replace(have, backbones={}))
    ((one,),) = read_profiles(["docs"], SPEC, have).values()
    assert one.vectors is None
    (words_file,) = have.indexes.glob("words-*/terms.npy")
    made = words_file.stat().st_mtime_ns
    prepare_profiles(["docs"], SPEC, have)
    assert words_file.stat().st_mtime_ns == made
    assert vectors(read_profiles(["docs"], SPEC, have)["docs"]).shape == (3, DIM)


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
    found = read_profiles(["down", "empty", "web"], SPEC, have)
    assert {name: len(every) for name, every in found.items()} == {"down": 0, "empty": 0, "web": 1}
    assert found["web"][0].share(np.array(hash_terms("lake"), dtype=np.uint32))[0] > 0.0
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
    assert {name: len(every) for name, every in read_profiles(["web", "docs"], spec, have).items()} == {
        "web": 0,
        "docs": 1,
    }


def drawn_near(mean: float, sizes: list[int], seed: int) -> list[NDArray[np.float32]]:
    """Passages whose similarity to a question along the first axis is normal, at .1 around a mean."""
    draw = np.random.default_rng(seed)
    return [np.column_stack([draw.normal(mean, 0.1, n), np.zeros(n)]).astype(np.float32) for n in sizes]


AXIS = np.array([1.0, 0.0], dtype=np.float32)


def test_a_smaller_sample_is_corrected_for_chance() -> None:
    worlds = [drawn_near(0.2, [50, 5000], seed) for seed in range(200)]
    apart = [odds(near(few), near(many), vector=AXIS)[1] / OF_PASSAGES for few, many in worlds]
    assert np.mean(apart) == pytest.approx(0.0, abs=0.01)
    by_chance = [np.sort(many[:, 0])[-5:].mean() - np.sort(few[:, 0])[-5:].mean() for few, many in worlds]
    assert np.mean(by_chance) > 0.1


def test_the_correction_is_by_the_variance_within_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("armwise.arms.profile.NEAREST", 1)
    few = np.array([[0.1, 0.0], [0.3, 0.0]], dtype=np.float32)
    many = np.array([[0.5, 0.0], [0.5, 0.0], [0.5, 0.0], [0.9, 0.0]], dtype=np.float32)
    within = (2 * 0.01 + 4 * 0.03) / 6
    highest = [NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) for n in (2, 4)]
    corrected = 0.3 + within**0.5 * (highest[1] - highest[0])
    apart = odds(near(many), near(few), vector=AXIS)[1] / OF_PASSAGES
    assert apart == pytest.approx(corrected - 0.9, abs=1e-6)


def test_an_arm_more_over_a_source_changes_no_similarity() -> None:
    few, many = (near(one) for one in drawn_near(0.2, [3, 6], 0))
    two = similarities({"few": [few], "many": [many]}, "", AXIS)
    three = similarities({"few": [few], "many": [many], "again": [many]}, "", AXIS)
    assert {name: three[name] for name in two} == two


def test_passages_are_drawn_once_and_embedded_whole(tmp_path: Path) -> None:
    names = [f"city {n}" for n in range(profiles.AT_ONCE + 6)]
    long = ingest_all([write(tmp_path, "docs", [*names, "x" * 400 + " end"])])
    have = Resources(long, tmp_path / "indexes", TINY, {"docs": ArmSpec(kind="bm25", corpus="docs")})
    spec = ProfileSpec(backbone="tiny", passages=1000)
    prepare_profiles(["docs"], spec, have)
    found = vectors(read_profiles(["docs"], spec, have)["docs"])
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
    sizes = {name: len(found) for name, found in read_profiles([*over, "down"], SPEC, every).items()}
    assert sizes == {"first": 1, "second": 1, "down": 0}
