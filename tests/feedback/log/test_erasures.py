"""Erasure: texts go and do not come back, numbers stay, and that it happened is on record."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from armwise.feedback.events import (
    Context,
    Decision,
    Execution,
    Feedback,
    FeedbackKind,
    Observation,
    ObservationSource,
)
from armwise.feedback.log import Fact, FeedbackStatus, Store, erasures
from armwise.feedback.log import tables as t
from armwise.feedback.log.facts import with_texts, without_texts
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.texts import pseudonym
from armwise.feedback.training_log import Joiner, find_difference, read_examples, take_epoch
from tests.feedback.conftest import decision, execution, value
from tests.postgres import Server

RULE = RewardRule(correction_time="PT0S", metrics={"right": Metric()})
NOW = 200.0
UNDER_WAY_S, DAY_S, PAUSE_S = 120.0, 86_400.0, 3600.0
"""How long a turn may be under way, a day, and how long a part that is not full waits."""

SECRETS = ("what is", "an answer", "p1", "left by Mary", "Mary's page", "second answer")


def of_user(store: Store, name: str, user: str, *, at: float = 100.0, episode: str | None = None) -> Decision:
    digest = erasures.user_digest(store, "default", user)
    return replace(decision(name, at=at), user_digest=digest, episode_id=episode)


def write(store: Store, name: str, user: str, **fields: str | None) -> None:
    said = {"comment": "left by Mary", "label": "good"}
    seen = Observation(
        name, ObservationSource.SHADOW, "a", 0.5, answer="second answer", passages=("p1",), observed_at=106.0
    )
    store.append(
        [
            of_user(store, name, user, **fields),  # type: ignore[arg-type]
            execution(name),
            replace(value(name), content=said, tags={"page": "Mary's page"}),
            seen,
        ]
    )


def dump(store: Store) -> str:
    """Everything in the tables of facts, as text."""
    tables = (t.texts, t.decisions, t.executions, t.answer_marks, t.feedback, t.observations, t.operations)
    with store.reading() as connection:
        # as tuples: the text of a row is cut short
        return repr([[*map(tuple, connection.execute(sa.select(table)))] for table in tables])


def learned(store: Store) -> list[tuple[object, ...]]:
    """What a policy learns: everything of each example but the texts."""
    rows = read_examples(store, RULE.join)
    bare = (replace(without_texts(one.decision), erased=False) for one in rows)
    found = [(one.context, one.arms, one.probabilities, one.drawn) for one in bare]
    return [*found, *((one.cost, one.metrics) for one in read_examples(store, RULE.join))]


def test_of_an_erased_answer_it_stays_known_that_there_was_one() -> None:
    seen = Observation("d1", ObservationSource.SHADOW, "a", 0.5, answer="second answer")
    assert without_texts(seen).answer == without_texts(execution("d1")).answer == ""
    assert without_texts(replace(seen, answer=None)).answer is None
    assert without_texts(replace(execution("d1"), answer=None)).answer is None


def test_the_texts_of_a_user_go_and_what_is_learned_stays(store: Store) -> None:
    write(store, "d1", "mary")
    write(store, "d2", "rob")
    joiner = Joiner(store, RULE, take_epoch(store, "test", NOW))
    joiner.advance(NOW)
    before = learned(store)
    done = erasures.erase_user(store, "default", "mary", "k1", NOW)
    assert (done.scope, done.by, done.decisions, done.executions, done.feedback, done.observations) == (
        erasures.Scope.USER, "k1", 1, 1, 1, 1,
    )  # fmt: skip
    assert learned(store) == before
    assert len(before) == 4
    found, other = store.record("d1"), store.record("d2")
    assert found is not None
    assert other is not None
    assert (found.decision.erased, other.decision.erased) == (True, False)
    assert other.decision.context.question == "what is d2?"
    assert (found.decision.context.question, found.execution and found.execution.answer) == ("", "")
    assert found.feedback[0].value == 1.0
    assert found.feedback[0].content == {"label": "good"}
    assert other.feedback[0].content == {"comment": "left by Mary", "label": "good"}
    again = erasures.erase_user(store, "default", "rob", "k2", NOW)
    assert (again.number, again.by) == (done.number + 1, "k2")
    left = dump(store)
    assert [text for text in (*SECRETS, "mary", "rob") if text in left] == []


def test_a_user_of_another_project_with_the_same_name_is_another_one(store: Store) -> None:
    write(store, "d1", "mary")
    assert erasures.erase_user(store, "shop", "mary", "k1", NOW).decisions == 0
    assert erasures.user_digest(store, "a", "b") != erasures.user_digest(store, "ab", "")
    assert erasures.erase_user(store, "default", "mary", "k1", NOW).decisions == 1
    assert erasures.erase_user(store, "default", "mary", "k1", NOW).decisions == 0, "the user is forgotten"


def test_an_episode_goes_with_the_feedback_on_it(store: Store) -> None:
    write(store, "d1", "mary", episode="e1")
    store.append(
        [Feedback("f", None, "comment", None, 107.0, episode_id="e1", content={"comment": "left by Mary"})]
    )
    done = erasures.erase_episode(store, "e1", "cli", NOW)
    assert (done.decisions, done.feedback) == (1, 2)
    assert [text for text in SECRETS if text in dump(store)] == []


def test_what_comes_later_on_an_erased_decision_is_kept_without_its_texts(store: Store) -> None:
    store.append([of_user(store, "d1", "mary")])
    erasures.erase_user(store, "default", "mary", "k1", NOW)
    late = replace(value("d1", at=150.0), content={"comment": "left by Mary"}, tags={"page": "Mary's page"})
    seen = Observation(
        "d1", ObservationSource.SHADOW, "b", 0.5, value=0.5, answer="second answer", observed_at=151.0
    )
    receipts = store.append([execution("d1"), late, seen])
    assert receipts[1].status is FeedbackStatus.STORED
    assert [text for text in SECRETS if text in dump(store)] == []
    found = store.record("d1")
    assert found is not None
    assert (found.feedback[0].value, found.observations[0].value) == (1.0, 0.5)


def said(name: str, *, at: float = 110.0, **about: str) -> Feedback:
    """A comment with a tag, on a decision or an episode."""
    about = about or {"decision_id": "never"}
    content = {"comment": "left by Mary"}
    return Feedback(
        name, about.get("decision_id"), "comment", None, at,
        tags={"page": "Mary's page"}, episode_id=about.get("episode_id"), content=content,
    )  # fmt: skip


@pytest.mark.parametrize("about", [{"decision_id": "never"}, {"episode_id": "never"}])
def test_feedback_on_nothing_is_erased_by_its_id(store: Store, about: dict[str, str]) -> None:
    store.append([said("Mary said", at=110.0, **about), said("other", decision_id="another", at=111.0)])
    erase = erasures.erase_decision if "decision_id" in about else erasures.erase_episode
    done = erase(store, "never", "k1", NOW)
    assert (done.decisions, done.feedback) == (0, 1)
    (found, other) = store.feedback(10)
    assert (found.id, found.content, found.tags) == (pseudonym("Mary said"), {}, {})
    assert other.content == {"comment": "left by Mary"}


def test_a_decision_is_erased_by_its_id_and_no_other(store: Store) -> None:
    write(store, "d1", "mary", episode="e1")
    write(store, "d2", "mary", episode="e1")
    done = erasures.erase_decision(store, "d1", "k1", NOW)
    assert (done.scope, done.decisions, done.feedback) == (erasures.Scope.DECISION, 1, 1)
    texts = [one.decision.context.question for name in ("d1", "d2") if (one := store.record(name))]
    assert texts == ["", "what is d2?"]


def test_names_of_features_become_pseudonyms_but_for_our_own(store: Store) -> None:
    ours = {"router": 0.5, "similarity": 0.25}
    seen = Context(
        "?", {"tier=Mary": 1.0, "length": 0.5}, (0.25,), {"a": {"kind=dense": 1.0, **ours}, "b": {}}
    )
    store.append([replace(of_user(store, "d1", "mary"), context=seen)])
    erasures.erase_user(store, "default", "mary", "k1", NOW)
    found = store.record("d1")
    assert found is not None
    expected = replace(seen, question="", features={pseudonym("tier=Mary"): 1.0, "length": 0.5})
    assert found.decision.context == expected
    assert "Mary" not in dump(store)


def test_a_retry_and_a_retraction_find_feedback_whose_id_was_erased(store: Store) -> None:
    item = replace(value("d1", at=110.0), id="Mary's value", tags={"page": "Mary's page"})
    store.append([of_user(store, "d1", "mary"), item])
    joiner = Joiner(store, RULE, take_epoch(store, "test", NOW))
    joiner.advance(120.0)
    erasures.erase_user(store, "default", "mary", "k1", NOW)
    (retried,) = store.append([item])
    assert retried.status is FeedbackStatus.DUPLICATE
    taken_back = replace(item, kind=FeedbackKind.RETRACTION, value=None, tags={}, received_at=112.0)
    store.append([taken_back, replace(execution("d1"), finished_at=113.0)])
    assert "Mary" not in dump(store)
    joiner.advance(120.0)
    assert list(read_examples(store, RULE.join)) == []
    assert not find_difference(store, RULE)[1]


def test_a_retraction_before_an_erasure_holds_for_the_value_after_it(store: Store) -> None:
    item = replace(value("d1", at=112.0), id="Mary's value")
    store.append(
        [
            of_user(store, "d1", "mary"),
            replace(item, kind=FeedbackKind.RETRACTION, value=None, received_at=111.0),
        ]
    )
    joiner = Joiner(store, RULE, take_epoch(store, "test", NOW))
    joiner.advance(120.0)
    erasures.erase_user(store, "default", "mary", "k1", NOW)
    store.append([item, replace(execution("d1"), finished_at=113.0)])
    joiner.advance(120.0)
    assert list(read_examples(store, RULE.join)) == []


def test_feedback_on_an_erased_episode_loses_its_texts_until_the_episode_goes_on(store: Store) -> None:
    write(store, "d1", "mary", episode="e1")
    erasures.erase_user(store, "default", "mary", "k1", NOW)
    store.append([said("late", episode_id="e1")])
    assert [text for text in SECRETS if text in dump(store)] == []
    write(store, "d2", "rob", episode="e1")
    store.append([said("later", episode_id="e1", at=120.0)])
    *_, last = store.feedback(10)
    assert last.content == {"comment": "left by Mary"}


@pytest.fixture
def at_noon(url: str) -> Iterator[Store]:
    """A log whose clock stands still."""
    store = Store(url, clock=lambda: NOW)
    yield store
    store.close()


def test_an_episode_goes_on_within_one_commit_too(at_noon: Store) -> None:
    """Its newest decision says whether feedback on it keeps its texts, be it of the log or of the commit."""
    erasures.erase_user(at_noon, "default", "mary", "k1", NOW)
    of_mary, of_rob = (of_user(at_noon, f"d-{user}", user, episode="e1") for user in ("mary", "rob"))
    at_noon.append([of_mary, said("f1", episode_id="e1"), of_rob, said("f2", episode_id="e1", at=120.0)])
    assert [one.content for one in at_noon.feedback(10)] == [{}, {"comment": "left by Mary"}]


@pytest.mark.parametrize("scope", ["user", "episode", "decision"])
@pytest.mark.parametrize("age", [0.0, UNDER_WAY_S - 1.0, UNDER_WAY_S])
def test_a_turn_under_way_is_erased_when_it_is_committed(at_noon: Store, scope: str, age: float) -> None:
    store, at = at_noon, NOW - age
    turn: list[Fact] = [
        of_user(store, "d1", "mary", at=at, episode="e1"),
        replace(execution("d1"), finished_at=at),
        said("f", decision_id="d1", at=at),
    ]
    other: list[Fact] = [of_user(store, "d2", "rob", at=at, episode="e2"), said("g", decision_id="d2", at=at)]
    match scope:
        case "user":
            done = erasures.erase_user(store, "default", "mary", "k1", at)
        case "episode":
            done = erasures.erase_episode(store, "e1", "k1", at)
        case _:
            done = erasures.erase_decision(store, "d1", "k1", at)
    assert done.decisions == 0, "nothing was there yet"
    store.append([*turn, *other])
    under_way = age < UNDER_WAY_S
    found, spared = store.record("d1"), store.record("d2")
    assert found is not None
    assert spared is not None
    assert found.decision.erased == under_way
    assert (found.decision.context.question == "") == under_way
    assert (found.execution is not None and found.execution.answer == "") == under_way
    assert (found.feedback[0].content == {}) == under_way
    assert (spared.decision.erased, spared.feedback[0].content) == (False, {"comment": "left by Mary"})
    with store.reading() as connection:
        numbers = connection.scalars(sa.select(t.decisions.c.erased).order_by(t.decisions.c.seq)).all()
    assert numbers == [done.number if under_way else None, None]


def test_the_record_of_an_erasure_forgets_whom_it_was_about(at_noon: Store) -> None:
    def subjects() -> list[str]:
        with at_noon.reading() as connection:
            return [*connection.scalars(sa.select(t.operations.c.subject).order_by(t.operations.c.seq))]

    erasures.erase_user(at_noon, "default", "mary", "k1", NOW)
    erasures.erase_user(at_noon, "default", "rob", "k1", NOW + 10.0)
    mary, rob = subjects()
    assert "" not in (mary, rob)
    assert mary != rob
    digest = erasures.user_digest(at_noon, "default", "mary")
    assert digest not in str(subjects())
    erasures.forget_subjects(at_noon, NOW + UNDER_WAY_S)
    assert subjects() == [mary, rob]
    erasures.forget_subjects(at_noon, NOW + UNDER_WAY_S + 5.0)
    assert subjects() == ["", rob]


@pytest.mark.parametrize(
    "about", [({}, {}), ({"episode_id": "e-1"}, {"episode_id": "e-2"})], ids=["decision", "episode"]
)
def test_feedback_alone_goes_by_its_own_age(
    store: Store, about: tuple[dict[str, str], dict[str, str]]
) -> None:
    old, young = about
    store.append([said("old", at=DAY_S, **old), said("young", at=3 * DAY_S, **young)])
    assert not erasures.erase_older(store, 1.0, 3.5 * DAY_S)
    assert [one.content for one in store.feedback(10)] == [{}, {"comment": "left by Mary"}]


def test_feedback_that_came_with_a_label_does_not_age_what_is_before_it(store: Store) -> None:
    day = DAY_S
    label = replace(decision("label", at=5 * day), policy="labels")
    store.append([of_user(store, "d1", "mary", at=5 * day), label, value("label", at=1.0)])
    erasures.erase_older(store, 1.0, 5.5 * day)
    found = store.record("d1")
    assert found is not None
    assert not found.decision.erased


def test_an_erasure_vacuums_the_tables_of_postgresql(postgres: Server) -> None:
    store = Store(postgres.fresh())
    for i in range(20):
        write(store, f"d{i}", "mary")
    erasures.erase_user(store, "default", "mary", "k1", NOW)
    query = "SELECT relname FROM pg_stat_user_tables WHERE vacuum_count > 0"
    with store.reading() as connection:
        vacuumed = {*connection.exec_driver_sql(query).scalars()}
    assert vacuumed == {"answer_marks", "decisions", "feedback", "texts"}
    store.close()


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_left_where_rows_of_any_size_moved_in_the_file(tmp_path: Path, seed: int) -> None:
    """Rows that get shorter are merged with their neighbours, which leaves copies on the pages they had."""
    rng, store = np.random.default_rng(seed), Store(f"sqlite:///{tmp_path / 'log.db'}", clock=lambda: NOW)
    for n in range(150):
        user = rng.choice(["mary", "rob"])
        question, answer, comment = (f"{what} {user}: " * rng.integers(1, 41) for what in ("of", "to", "by"))
        context = Context(question, {f"w={user}{i}": 1.0 for i in range(n % 9)})
        digest = erasures.user_digest(store, "default", user)
        asked = replace(decision(f"d{n}"), context=context, user_digest=digest, asked_by="app")
        said = replace(execution(asked.id), answer=answer, marks=(f"to {user}, {n}",))
        store.append([asked, said, replace(value(asked.id), content={"comment": comment})])
    erasures.erase_user(store, "default", "mary", "k1", NOW)
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert [text for text in (b"of mary", b"to mary", b"by mary", b"w=mary") if text in files] == []
    assert all(text in files for text in (b"of rob", b"to rob", b"by rob"))
    store.close()


def test_texts_go_by_age_a_bounded_part_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasures, "AT_ONCE", 8)
    day = DAY_S
    for i in range(6):
        write(store, f"d{i}", "mary", at=i * day)  # type: ignore[arg-type]
    now = 6.5 * day
    assert not erasures.erase_older(store, 7.0, now), "nothing is so old"
    assert erasures.erase_older(store, 2.0, now)
    names = [f"d{i}" for i in range(6)]
    gone = [one.decision.erased for name in names if (one := store.record(name))]
    assert gone == [True, True, False, False, False, False]
    while erasures.erase_older(store, 2.0, now):
        pass
    gone = [one.decision.erased for name in names if (one := store.record(name))]
    assert gone == [True, True, True, True, False, False], "a part that is not full waits"
    before = store.record("d4")
    assert not erasures.erase_older(store, 2.0, now + PAUSE_S - 1.0)
    assert store.record("d4") == before
    erasures.erase_older(store, 2.0, now + PAUSE_S)
    gone = [one.decision.erased for name in names if (one := store.record(name))]
    assert gone == [True, True, True, True, True, False]
    (day_one,) = erasures.erasures(store)
    assert (day_one.scope, day_one.decisions, day_one.feedback) == (erasures.Scope.AGE, 5, 5)
    erasures.erase_older(store, 2.0, now + day)
    assert [one.decisions for one in erasures.erasures(store)] == [1, 5]
    assert [text for text in SECRETS if text in dump(store)] == []


def test_every_text_is_redacted_before_it_is_written(tmp_path: Path) -> None:
    def redact(text: str) -> str:
        return re.sub(r"\d{4}", "####", text)

    store = Store(f"sqlite:///{tmp_path / 'log.db'}", redact=redact)
    asked = replace(decision("d1"), context=replace(decision("d1").context, question="is 1234 mine?"))
    done = replace(execution("d1"), answer="1234 is yours", error="1234", stages=({"query": "1234"},))
    said = replace(value("d1"), content={"comment": "no 1234", "over": "d1234"}, tags={"at": "1234"})
    store.append([asked, done, said])
    assert store.append([said])[0].status is FeedbackStatus.DUPLICATE
    seen = Observation(
        "d1", ObservationSource.SHADOW, "a", 0.5, answer="1234", error="not 1234", observed_at=106.0
    )
    store.append([seen])
    found = store.record("d1")
    assert found is not None
    assert found.execution is not None
    assert found.decision.context.question == "is #### mine?"
    assert (found.execution.answer, found.execution.error) == ("#### is yours", "####")
    assert found.execution.stages == ({"query": "####"},)
    assert found.feedback[0].content == {"comment": "no ####", "over": "d1234"}
    assert found.feedback[0].tags == {"at": "####"}
    assert found.observations == (replace(seen, answer="####", error="not ####"),)
    store.close()


@given(st.text(), st.text())
def test_a_change_of_nothing_gives_the_same_fact(answer: str, comment: str) -> None:
    for fact in (
        decision("d1"),
        replace(execution("d1"), answer=answer),
        replace(value("d1"), content={"comment": comment}),
    ):
        fact_before: Decision | Execution | Feedback = fact
        assert with_texts(fact_before, str) is fact_before


def test_an_erasure_reaches_what_it_was_about_and_nothing_of_the_same_name(at_noon: Store) -> None:
    erasures.erase_episode(at_noon, "x", "k1", NOW)
    erasures.erase_decision(at_noon, "y", "k1", NOW)
    at_noon.append([decision("x", at=NOW), replace(decision("z", at=NOW), episode_id="y")])
    assert [one.erased for one in at_noon.newest(5)] == [False, False]
    at_noon.append([decision("y", at=NOW), replace(decision("w", at=NOW), episode_id="x")])
    assert [one.erased for one in at_noon.newest(2)] == [True, True]


def test_texts_erased_by_two_are_counted_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store, "d1", "mary", at=1.0)  # type: ignore[arg-type]
    writing = store.writing

    def late() -> object:
        monkeypatch.setattr(store, "writing", writing)
        erasures.erase_older(store, 1.0, 2 * DAY_S)
        return writing()

    monkeypatch.setattr(store, "writing", late)
    assert erasures.erase_older(store, 1.0, 2 * DAY_S), "it looks again"
    (found,) = erasures.erasures(store)
    assert (found.decisions, found.executions, found.feedback, found.observations) == (1, 1, 1, 1)
