"""What is PostgreSQL's own: words are weighted by what its planner has counted."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import ArmError, Passage, Query
from armwise.arms.engines import postgres as engine
from armwise.arms.engines.ingest import ingest
from armwise.arms.engines.postgres import PostgresTable, WordStatistics
from armwise.arms.retrievers import ArmSpec
from armwise.arms.retrievers.catalog import resolve_kind
from tests.arms.engines.passages import InMemory
from tests.pooler import SESSIONS, WITH_POOLER, pooled
from tests.postgres import Server

SHARES = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(1e-7, 1.0), min_size=1)
WORDS = st.lists(st.sampled_from("abcdefghij"), min_size=1, unique=True)


@pytest.fixture(scope="module")
def table(postgres: Server) -> Iterator[PostgresTable]:
    """Two hundred passages with the words of the question, one with the rarest of them, two with another."""
    url = postgres.fresh()
    table = PostgresTable(
        resolve_kind("arm", ArmSpec(kind="postgres", params={"url": url, "collection": "p"}))[1], 5.0
    )
    common = [Passage(f"p{n}", "", f"An old river, an old country, number {n}.") for n in range(200)]
    others = {
        "rare": "A bridge, and much that nobody asks for.",
        "longer": "A tunnel below the mountains, of many miles, which was dug by hand.",
        "short": "A tunnel.",
    }
    ingest(InMemory([*common, *(Passage(name, "", text) for name, text in others.items())]), table, None)
    yield table
    postgres.drop(url)


@pytest.mark.parametrize("looked_at", [(1_000, 10_000), (1, 100)], ids=["at once", "in steps"])
def test_the_rarest_word_of_a_question_decides(
    table: PostgresTable, looked_at: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LOOKED_AT", looked_at)
    found = table.lexical(Query("Which old bridge crosses the old river of the country?"), 3)
    assert found[0].id == "rare"
    assert len(found) == 3


def test_of_equal_passages_the_first_ids_are_found(table: PostgresTable) -> None:
    found = [passage.id for passage in table.lexical(Query("old country"), 5)]
    assert found == sorted(f"p{n}" for n in range(200))[:5]


def test_the_shorter_of_two_passages_comes_first(table: PostgresTable) -> None:
    assert [passage.id for passage in table.lexical(Query("tunnel"), 2)] == ["short", "longer"]


def test_nothing_has_none_of_the_words(table: PostgresTable) -> None:
    assert table.lexical(Query("cathedral"), 5) == []
    assert table.lexical(Query("the of and"), 5) == [], "words that the language leaves out"


@pytest.mark.parametrize(
    ("scheme", "wait_s", "connect_s"),
    [("postgresql", 7.5, 7), ("postgres", 0.25, 2), ("postgresql+psycopg", 2.9, 2)],
)
def test_a_database_is_connected_to_within_limits(
    scheme: str, wait_s: float, connect_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, disposed = list[tuple[str, dict[str, Any]]](), list[bool]()

    def create(url: sa.URL, **options: Any) -> Any:
        made.append((url.render_as_string(hide_password=False), options))
        return SimpleNamespace(dispose=lambda: disposed.append(True))

    monkeypatch.setattr(sa, "create_engine", create)
    monkeypatch.setenv("SEARCH_KEY", "secret")
    params = {"url": f"{scheme}://me@db/search", "collection": "p", "key_env": "SEARCH_KEY"}
    table = PostgresTable(resolve_kind("arm", ArmSpec(kind="postgres", params=params))[1], wait_s)
    options = {
        "pool_size": 8,
        "max_overflow": 0,
        "pool_timeout": wait_s,
        "pool_pre_ping": True,
        "hide_parameters": True,
        "connect_args": {"connect_timeout": connect_s, "prepare_threshold": None},
    }
    assert made == [("postgresql+psycopg://me:secret@db/search", options)]
    assert disposed == []
    del table
    assert disposed == [True]


@pytest.mark.slow
@WITH_POOLER
def test_behind_a_pooler_searches_keep_to_their_time_and_change_no_session(postgres: Server) -> None:
    with pooled(postgres, "transaction") as url:
        place = {"url": url, "collection": "p"}
        table = PostgresTable(resolve_kind("arm", ArmSpec(kind="postgres", params=place))[1], 0.5)
        ingest(InMemory([Passage(f"p{n}", "", f"An old river, number {n}.") for n in range(20)]), table, None)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: len(table.lexical(Query("Which old river?"), 3)), range(60)))
        assert found == [3] * 60
        with psycopg.connect(url.replace("+psycopg", "")) as other:
            other.execute("LOCK TABLE p")
            with pytest.raises(ArmError, match="statement timeout"):
                table.lexical(Query("Which old river?"), 3)
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as other:
            shown = [other.execute("SHOW statement_timeout").fetchall()[0][0] for _ in range(2 * SESSIONS)]
    assert shown == ["0"] * len(shown)


def test_an_error_of_the_database_does_not_show_the_question(postgres: Server) -> None:
    url = postgres.fresh()
    params = resolve_kind("arm", ArmSpec(kind="postgres", params={"url": url, "collection": "missing"}))[1]
    with pytest.raises(ArmError, match='relation "missing" does not exist') as failed:
        PostgresTable(params, 5.0).lexical(Query("secret"), 3)
    assert "missing" in str(failed.value.__cause__)
    assert "secret" not in str(failed.value.__cause__), "as a log with the cause would show it"
    postgres.drop(url)


def of_which_one_is_rare(common: str, rare: str) -> InMemory:
    """Passages of one word each: fifty of the first, and one of the second."""
    return InMemory([*(Passage(f"{common}{n}", "", common) for n in range(50)), Passage(rare, "", rare)])


def best(table: PostgresTable) -> str:
    return table.lexical(Query("river bridge"), 1)[0].id


def test_words_are_counted_anew_once_a_table_is_filled(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: now[0]))
    url = postgres.fresh()
    params = resolve_kind("arm", ArmSpec(kind="postgres", params={"url": url, "collection": "p"}))[1]
    here, elsewhere = PostgresTable(params, 5.0), PostgresTable(params, 5.0)
    ingest(of_which_one_is_rare("river", "bridge"), here, None)
    assert (best(here), best(elsewhere)) == ("bridge", "bridge")
    ingest(of_which_one_is_rare("bridge", "river"), here, None)
    assert best(here) == "river"
    now[0] += 599.9
    assert best(elsewhere) != "river", "by what it has counted before, a bridge is rarer"
    now[0] += 0.1
    assert best(elsewhere) == "river"
    postgres.drop(url)


@given(SHARES, st.integers(1, 10_000_000), WORDS)
def test_each_step_asks_for_more_words_to_all(shares: dict[str, float], rows: int, words: list[str]) -> None:
    known = WordStatistics(rows, shares)
    steps = list(known.steps(words))
    assert sorted(steps[-1]) == sorted(words)
    many = [step for step in steps[:-1] if len(step) > 1]
    assert all(sum(map(known.estimate_rows, step)) <= 10_000 for step in many)
    for fewer, more in pairwise(steps):
        assert set(fewer) < set(more)
        assert max(map(known.estimate_rows, fewer)) <= min(
            known.estimate_rows(word) for word in set(more) - set(fewer)
        )


def test_steps_look_at_a_thousand_then_ten_thousand_rows() -> None:
    known = WordStatistics(1e6, {"d": 0.5, "a": 0.0004, "c": 0.009, "b": 0.0006})
    assert [sorted(step) for step in known.steps(["d", "c", "b", "a"])] == [
        ["a", "b"],
        ["a", "b", "c"],
        ["a", "b", "c", "d"],
    ]
    more = WordStatistics(1e6, {"d": 0.5, "a": 0.0004, "c": 0.009001, "b": 0.000601})
    assert [sorted(step) for step in more.steps(["d", "c", "b", "a"])] == [
        ["a"],
        ["a", "b"],
        ["a", "b", "c", "d"],
    ]


@given(SHARES, st.integers(1, 10_000_000), WORDS)
def test_a_rarer_word_weighs_no_less(shares: dict[str, float], rows: int, words: list[str]) -> None:
    known = WordStatistics(rows, shares)
    weights = dict(zip(words, known.weights(words), strict=True))
    ordered = [weights[word] for word in sorted(words, key=known.estimate_rows)]
    assert ordered == sorted(ordered, reverse=True)
    assert min(ordered) >= 0.0


def test_an_uncounted_table_is_asked_for_all_words_alike() -> None:
    assert list(WordStatistics().steps(["a", "b"])) == [["a", "b"]]
    assert WordStatistics().weights(["a", "b"]) == [1.0, 1.0]
