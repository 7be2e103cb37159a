"""Metadata of passages, and the passages that a query may find: those of `permits`, whatever is cached."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Passage, Query
from armwise.arms.corpus import Corpus, CorpusError, ingest
from armwise.arms.corpus.permissions import Permissions
from armwise.arms.filters import Comparison, Compound, Metadata, permits

NAMES = st.sampled_from(["year", "tag", "allowed_groups"])
VALUES = st.sampled_from(["a", "b", "", 1, 1.0, 0, True, False, 2.5])
GROUPS = st.frozensets(st.sampled_from(["a", "b", "c"]))
METADATA = st.lists(
    st.dictionaries(NAMES, VALUES | st.lists(st.sampled_from(["a", "b", "c"]), max_size=2)), max_size=12
)
COMPARISONS = st.one_of(
    st.builds(Comparison, type=st.sampled_from(["eq", "ne"]), key=NAMES, value=VALUES),
    st.builds(
        Comparison,
        type=st.sampled_from(["gt", "gte", "lt", "lte"]),
        key=NAMES,
        value=st.sampled_from([0, 1, 2.5]),
    ),
    st.builds(
        Comparison,
        type=st.sampled_from(["in", "nin"]),
        key=NAMES,
        value=st.lists(VALUES, max_size=2).map(tuple),
    ),
)
FILTERS = st.none() | st.recursive(
    COMPARISONS,
    lambda parts: st.builds(
        Compound,
        type=st.sampled_from(["and", "or"]),
        filters=st.lists(parts, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=4,
)


def record(name: str, **metadata: Any) -> bytes:
    return orjson.dumps({"id": name, "text": f"about {name}", "metadata": metadata})


def kept(folder: Path, *lines: bytes, skip_bad: bool = True) -> Corpus:
    source = folder / "source.jsonl"
    source.write_bytes(b"\n".join(lines))
    return ingest(source, folder / "corpus", skip_bad=skip_bad)


@given(METADATA, st.lists(st.tuples(FILTERS, GROUPS), min_size=1, max_size=4), st.sampled_from([0, 20_000]))
@pytest.mark.slow
def test_the_permitted_passages_are_those_of_the_definition(
    metadata: list[Metadata], queries: list[tuple[Any, frozenset[str]]], cached_bytes: int
) -> None:
    known = Permissions(lambda: enumerate(metadata), len(metadata), cached_bytes)
    for where, groups in [*queries, *queries]:
        expected = [permits(where, groups, one) for one in metadata]
        found = known.select(where, groups)
        if found is None:
            assert all(expected)
        else:
            assert (found.mask.tolist(), found.count) == (expected, sum(expected))


def test_of_three_conditions_all_must_hold_or_any_one_of_them() -> None:
    rows: list[Metadata] = [{"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1}, {"b": 1, "c": 1}, {"c": 1}, {}]
    known = Permissions(lambda: enumerate(rows), len(rows))
    three = tuple(Comparison(type="eq", key=key, value=1) for key in "abc")
    found = [known.select(Compound(type=how, filters=three), frozenset()) for how in ("and", "or")]
    assert [one and one.mask.tolist() for one in found] == [
        [True, False, False, False, False],
        [True, True, True, True, False],
    ]


def test_what_is_permitted_is_shared_and_cannot_be_written() -> None:
    known = Permissions(lambda: enumerate([{"a": 1}, {}]), 2)
    first, again = (known.select(Comparison(type="eq", key="a", value=1), frozenset()) for _ in range(2))
    assert first is not None
    assert first is again
    with pytest.raises(ValueError, match="read-only"):
        first.mask[1] = True


def test_true_is_not_the_cached_one() -> None:
    known = Permissions(lambda: enumerate([{"flag": True}, {"flag": 1}]), 2)
    found = [
        known.select(Comparison(type="eq", key="flag", value=value), frozenset()) for value in (True, 1, True)
    ]
    assert [one and one.mask.tolist() for one in found] == [[True, False], [False, True], [True, False]]


def counted(cached_bytes: int) -> tuple[Permissions, Callable[[str, int], int]]:
    """Return permissions of 100 passages, and a filter of them, which says how often rows were read."""
    read = []

    def rows() -> Iterator[tuple[int, Metadata]]:
        read.append(1)
        return iter([(place, {"year": place, "page": place}) for place in range(100)])

    known = Permissions(rows, 100, cached_bytes=cached_bytes)

    def ask(key: str, value: int) -> int:
        known.select(Comparison(type="gte", key=key, value=value), frozenset())
        return len(read)

    return known, ask


def test_a_filter_is_cached_within_a_bound() -> None:
    known, ask = counted(200_000)
    assert [ask("year", year) for year in (5, 5, 6)] == [2, 2, 2], "one column of groups, one of years"
    for year in range(100):
        ask("year", year)
    assert known.nbytes <= 200_000


def test_the_newest_filter_stays_in_a_small_cache() -> None:
    _, ask = counted(0)
    assert [ask("year", 2025) for _ in range(3)] == [2, 2, 2], "columns of groups and of years"


def test_a_filter_that_is_used_often_stays_cached() -> None:
    _, ask = counted(200_000)
    ask("page", 1)
    for year in range(100):
        ask("year", year)
        read = ask("page", 1)
    assert read == 3, "columns of groups, of pages and of years"


def test_metadata_is_kept_and_changes_no_index(tmp_path: Path) -> None:
    lists: dict[str, Any] = {"year": 2024, "draft": False, "tags": ["a", "b"], "allowed_groups": ["staff"]}
    (tmp_path / "plain").mkdir()
    without = kept(tmp_path / "plain", *map(record, ("1", "2")))
    corpus = kept(tmp_path, record("1", **lists, source=None), record("2"))
    assert corpus.passages([0, 1]) == [
        Passage("1", "", "about 1", metadata=lists),
        Passage("2", "", "about 2"),
    ]
    assert [passage.metadata for passage in corpus] == [lists, {}]
    assert corpus.digest == without.digest
    assert corpus.manifest.metadata != without.manifest.metadata == ""
    assert (corpus.restricted, without.restricted) == (True, False)


def test_changed_permissions_are_read_again(tmp_path: Path) -> None:
    board = Query("", groups=frozenset({"board"}))
    found = []
    for groups in (["staff"], ["staff", "board"]):
        permitted = kept(tmp_path, record("1", allowed_groups=groups)).find_permitted(board)
        found.append(permitted is None)  # where all of them are permitted
    assert found == [False, True]


def test_a_corpus_without_restrictions_permits_all(tmp_path: Path) -> None:
    corpus = kept(tmp_path, record("1", year=2024), record("2"))
    assert corpus.find_permitted(Query("", groups=frozenset({"staff"}))) is None
    newer = corpus.find_permitted(Query("", where=Comparison(type="gte", key="year", value=2024)))
    assert newer is not None
    assert newer.mask.tolist() == [True, False]


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ([1], "the metadata of passage '1' is not an object: [1]"),
        ({"a": {"b": 1}}, "'a' of passage '1' must be a text, a number, true, false or a list of texts"),
        ({"a": [1]}, "'a' of passage '1' is a list of other than texts, got [1]"),
        ({"a": ["x", ""]}, "'a' of passage '1' is a list of other than texts, got ['x', '']"),
        ({"allowed_groups": "staff"}, "must be a list of texts, empty for nobody, got 'staff'"),
        ({"allowed_groups": None}, "must be a list of texts, empty for nobody, got None"),
        ({"a": "x" * 513}, "has a text of more than 512 characters"),
        ({"a" * 65: 1}, "has a name of 65 characters: 1 to 64 were expected"),
        ({f"a{n}": 1 for n in range(65)}, "has 65 metadata names; at most 64"),
        ({"a": ["x"] * 257}, "has 257 texts: at most 256 fit"),
    ],
)
def test_bad_metadata_is_never_read_as_public(tmp_path: Path, metadata: object, problem: str) -> None:
    bad = orjson.dumps({"id": "1", "text": "about 1", "metadata": metadata})
    with pytest.raises(CorpusError, match=r"source\.jsonl:1: "):
        kept(tmp_path, bad, record("2"), skip_bad=False)
    corpus = kept(tmp_path, bad, record("2"))
    (skipped,) = corpus.list_skipped()
    assert problem in skipped
    assert corpus.ids() == ["2"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"a": "x" * 512},
        {"a" * 64: 1},
        {f"a{n}": 1 for n in range(64)},
        {"a": ["x"] * 256},
        {"a": ["x" * 512]},
        {"a": []},
        {"a": ""},
    ],
    ids=["text", "name", "names", "list", "text of a list", "empty list", "empty text"],
)
def test_the_largest_and_the_smallest_metadata_are_kept(tmp_path: Path, metadata: dict[str, Any]) -> None:
    (found,) = kept(tmp_path, record("1", **metadata))
    assert found.metadata == metadata


def test_the_digest_of_metadata_is_of_every_value(tmp_path: Path) -> None:
    digests, restricted = [], []
    for n, pair in enumerate(
        [
            ({"year": 1}, {}),
            ({}, {"year": 1}),
            ({"year": 1}, {"year": 1}),
            ({"year": 1}, {"year": 2}),
            ({"year": 2}, {"year": 1}),
            ({"page": 1}, {}),
            ({"allowed_groups": []}, {"allowed_groups": ["a"]}),
            ({"allowed_groups": ["a"]}, {}),
        ]
    ):
        (tmp_path / str(n)).mkdir()
        lines = [record(str(place), **metadata) for place, metadata in enumerate(pair)]
        manifest = kept(tmp_path / str(n), *lines).manifest
        digests.append(manifest.metadata)
        restricted.append(manifest.restricted)
    assert len(set(digests)) == len(digests)
    assert restricted == [0, 0, 0, 0, 0, 0, 2, 1]
