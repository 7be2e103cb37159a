"""Every column of texts says what an erasure makes of it, the page says the same, and an erasure does it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.feedback.events import (
    Context,
    Cost,
    Execution,
    Feedback,
    FeedbackKind,
    Observation,
    ObservationSource,
    Status,
)
from armwise.feedback.log import Fact, FeedbackStatus, Store, erasures
from armwise.feedback.log import tables as t
from armwise.feedback.texts import digest_question
from tests.documents.texts import COLUMNS, Fate
from tests.feedback.conftest import decision


def test_every_column_of_texts_documents_or_bytes_has_a_row() -> None:
    found = {
        f"{table.name}.{column.name}"
        for table in t.metadata.tables.values()
        for column in table.c
        if isinstance(column.type, sa.String | sa.JSON | sa.LargeBinary)
    }
    assert {"texts.document", "keys.name", "summary.document", "versions.state"} <= found
    assert found - COLUMNS.keys() == set(), "say in `COLUMNS` what an erasure makes of a new column"
    assert COLUMNS.keys() - found == set(), "there is no such column"


# -- the ways in which a fact can meet an erasure --------------------------------------------------

NOW = 200.0

SCOPES: dict[str, Callable[[Store], object]] = {
    "user": lambda store: erasures.erase_user(store, "default", "ada", "k1", NOW),
    "episode": lambda store: erasures.erase_episode(store, "e1", "k1", NOW),
    "decision": lambda store: erasures.erase_decision(store, "d1", "k1", NOW),
    "age": lambda store: erasures.erase_older(store, 1.0, NOW + 2 * 86_400.0),
}
"""What is erased, of which every fact below is a part."""

KINDS = ("decision", "execution", "observation", "feedback", "feedback on the episode")

SPLITS = {kind: n for n, kind in enumerate(KINDS)}
"""The first fact that comes after the erasure: all before it are in the log."""

WAYS = [
    (scope, first, together)
    for scope, first, together in product(SCOPES, [*KINDS, "nothing"], [True, False])
    # what is young when it comes is not erased, nor what was said on the episode of one decision that is
    if (scope, first) not in {("age", "decision"), ("decision", "nothing")}
]
"""Scope, the first fact after the erasure, and whether those after it share a commit."""


@pytest.fixture
def at_noon(log_url: str) -> Iterator[Store]:
    """A log whose clock stands still."""
    store = Store(log_url, clock=lambda: NOW)
    yield store
    store.close()


def ada(store: Store) -> list[Fact]:
    """One fact of each kind, with a text of Ada in every column that may hold one."""
    context = Context("Ada asks", {"w=Ada": 1.0}, (0.5,), {"a": {}, "b": {}})
    said = {"comment": "Ada says", "demonstration": "Ada writes", "label": "good"}
    item = Feedback(*("Ada's value", "d1", "right", 1.0, 105.0, None, {"page": "Ada's page"}), content=said)
    shown = ("Ada's passage",), "Ada's answer", "Ada's error"
    return [
        replace(
            decision("d1", digest="Ada's request"),
            context=context,
            user_digest=erasures.user_digest(store, "default", "ada"),
            episode_id="e1",
            asked_by="k1",
        ),
        Execution(
            *("d1", "b", Status.OK, Cost(), *shown, 101.0, ({"query": "Ada asks"},)),
            marks=("Ada's answer",),
        ),
        Observation(
            *("d1", ObservationSource.SHADOW, "a", 0.5, 1.0, None),
            passages=shown[0], answer=shown[1], error=shown[2], observed_at=106.0,
        ),
        item,
        replace(item, id="Ada on all", decision_id=None, episode_id="e1"),
    ]  # fmt: skip


def with_ada(store: Store) -> set[str]:
    """Return the columns that hold a text of Ada, or a digest of one."""
    digests = erasures.user_digest(store, "default", "ada"), digest_question("Ada asks")
    return find_columns(store, "Ada", *digests)


def find_columns(store: Store, *texts: str) -> set[str]:
    """Return the columns of all tables that hold one of some texts."""
    found = set[str]()
    with store.reading() as connection:
        for table in t.metadata.sorted_tables:
            for row in connection.execute(sa.select(table)).mappings():
                found |= {
                    f"{table.name}.{name}" for name, held in row.items() if any(x in str(held) for x in texts)
                }
    return found


ERASED = {
    name
    for name, place in COLUMNS.items()
    if place.fate in (Fate.OVERWRITTEN, Fate.PSEUDONYM) and name != "operations.subject"
}
"""The columns that no text of Ada is left in."""


@pytest.mark.slow
def test_a_text_can_be_written_into_each_column_that_an_erasure_empties(at_noon: Store) -> None:
    at_noon.append(ada(at_noon))
    assert with_ada(at_noon) == ERASED, "`ada` writes into every one of them, so that the next test is of all"


@pytest.mark.parametrize(("scope", "first", "together"), WAYS)
def test_no_text_is_left_in_any_column_whichever_fact_comes_after_the_erasure(
    at_noon: Store, scope: str, first: str, together: bool
) -> None:
    facts = ada(at_noon)
    before = SPLITS.get(first, len(facts))
    if before:
        at_noon.append(facts[:before])
    SCOPES[scope](at_noon)
    for some in [facts[before:]] if together else [[fact] for fact in facts[before:]]:
        if some:
            at_noon.append(some)
    assert with_ada(at_noon) == set()
    with at_noon.reading() as connection:
        counts = [
            connection.scalar(sa.select(sa.func.count()).select_from(table))
            for table in (t.decisions, t.executions, t.observations, t.feedback)
        ]
    assert counts == [1, 1, 1, 2], "the facts are kept, but for their texts"


@pytest.mark.parametrize(
    ("scope", "about"), [pair for pair in product(SCOPES, ["d1", "e1"]) if pair != ("decision", "e1")]
)
@pytest.mark.parametrize("kind", [FeedbackKind.VALUE, FeedbackKind.RETRACTION])
def test_feedback_that_is_sent_again_after_an_erasure_is_what_the_log_has(
    at_noon: Store, scope: str, about: str, kind: FeedbackKind
) -> None:
    """A retry and a retraction are matched by the pseudonym of the id, on an episode as on a decision."""
    *facts, on_decision, on_episode = ada(at_noon)
    item = on_decision if about == "d1" else on_episode
    assert isinstance(item, Feedback)
    at_noon.append([*facts, item])
    SCOPES[scope](at_noon)
    again = item if kind is FeedbackKind.VALUE else replace(item, kind=kind, value=None, content={}, tags={})
    first, second = (at_noon.append([again])[0] for _ in range(2))
    assert second.status is FeedbackStatus.DUPLICATE
    assert (first.status is FeedbackStatus.DUPLICATE) == (kind is FeedbackKind.VALUE)
    assert with_ada(at_noon) == set()


# -- everywhere, and all the time -------------------------------------------------------------------

PLACES = (
    *("asks", "feature", "answer", "error", "passage", "stage", "mark", "second", "failed", "read"),
    *("page", "comment", "correction", "spoken", "titled"),
)
"""What the texts of a turn are about."""


def talk(store: Store, user: str, n: int, rng: np.random.Generator) -> tuple[list[Fact], set[str]]:
    """Return the facts of a turn, with a text of any length in each place, and the markers in these texts."""
    name, said = f"d{n}", {place: f"{place}-{user}-{n}-" for place in PLACES}
    long = {place: text * int(rng.integers(1, 40)) for place, text in said.items()}
    context = Context(long["asks"], {long["feature"]: 1.0}, (), {"a": {}, "b": {}})
    digest = erasures.user_digest(store, "default", user)
    asked = replace(decision(name), context=context, user_digest=digest, asked_by="app")
    stages, content = ({"query": long["stage"]},), {"comment": long["comment"], "label": "good"}
    return [
        replace(asked, episode_id=f"e-{user}"),
        Execution(
            *(name, "b", Status.OK, Cost(), (long["passage"],), long["answer"], long["error"], 101.0, stages),
            marks=(said["mark"],),
        ),
        Observation(
            *(name, ObservationSource.SHADOW, "a", 0.5, 1.0, None),
            passages=(long["read"],), answer=long["second"], error=long["failed"], observed_at=106.0,
        ),
        Feedback(
            *(f"f{n}", name, "right", 1.0, 105.0, None, {"page": long["page"]}),
            content={**content, "demonstration": long["correction"]},
        ),
        Feedback(
            *(f"g{n}", None, "comment", None, 107.0, None, {"title": long["titled"]}, f"e-{user}"),
            content={"comment": long["spoken"]},
        ),
    ], {*said.values()}  # fmt: skip


def find_markers(store: Store) -> set[str]:
    """Return the markers of texts in all tables of a log, and in all files of its folder."""
    with store.reading() as connection:
        tables = [connection.execute(sa.select(table)).all() for table in t.metadata.sorted_tables]
    found = [repr([tuple(row) for row in rows]).encode() for rows in tables]
    if store.engine.dialect.name == "sqlite":
        folder = Path(store.engine.url.database or "").parent
        found += [path.read_bytes() for path in folder.iterdir()]
    return {text.decode() for part in found for text in re.findall(rb"[a-z]+-[a-z0-9]+-[0-9]+-", part)}


@pytest.mark.parametrize("seed", range(3))
def test_no_text_of_a_subject_is_left_anywhere(at_noon: Store, seed: int) -> None:
    """One subject after another is erased from among the rest, and what is left of each is gone for good."""
    rng, users = np.random.default_rng(seed), [f"u{n}" for n in range(12)]
    markers = {user: set[str]() for user in users}
    for n in range(120):
        user = str(rng.choice(users))
        facts, said = talk(at_noon, user, n, rng)
        at_noon.append(facts)
        markers[user] |= said
    at_noon.forget()
    for user in users:
        assert markers[user] <= find_markers(at_noon)
        erasures.erase_user(at_noon, "default", user, "k1", NOW)
        del markers[user]
        left = set[str]().union(*markers.values())
        assert find_markers(at_noon) == left


def test_texts_that_go_by_age_leave_nothing_and_hardly_a_row(
    at_noon: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasures, "AT_ONCE", 200)  # 40 turns
    rng, left = np.random.default_rng(1), dict[int, set[str]]()
    for n in range(400):
        facts, left[n] = talk(at_noon, "ada", n, rng)
        at_noon.append(facts)
    at_noon.forget()
    for part in range(1, 11):
        assert find_markers(at_noon) == set[str]().union(*left.values())
        assert erasures.erase_older(at_noon, 1.0, NOW + 2 * 86_400.0) == (part < 10)
        at_noon.forget()
        for n in range(40 * (part - 1), 40 * part):
            del left[n]
    assert find_markers(at_noon) == set()
    with at_noon.reading() as connection:
        n_rows = connection.scalar(sa.select(sa.func.count()).select_from(t.texts))
    assert n_rows == (erasures.EMPTY if at_noon.engine.dialect.name == "sqlite" else 0)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_erased_later_has_not_moved_in_the_file_before(tmp_path: Path, seed: int) -> None:
    """Were rows deleted, SQLite would merge the pages around them, and leave copies of the rows that stay."""
    rng, users = np.random.default_rng(seed), [f"u{n}" for n in range(20)]
    store = Store(f"sqlite:///{tmp_path / 'log.db'}", clock=lambda: NOW)
    digests = {user: erasures.user_digest(store, "default", user) for user in users}
    facts: list[Fact] = []
    for n in range(600):
        user = users[rng.integers(20)]
        asked = Context(f"asks-{user}-{n}-" * int(rng.integers(1, 110)))
        facts.append(replace(decision(f"d{n}"), context=asked, user_digest=digests[user]))
    store.append(facts)
    for user in users:
        erasures.erase_user(store, "default", user, "k1", NOW)
        assert {text for text in find_markers(store) if f"-{user}-" in text} == set()
    store.close()
