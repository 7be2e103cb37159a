"""Queries of a warm start: the decisions, questions and labels in the log."""

import hmac
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import sqlalchemy as sa
from orjson import loads

from armwise.feedback.events import LABELS
from armwise.feedback.log import Store
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.training_log.examples import name_episode

_d = t.decisions.c


def decisions_of_traffic(store: Store, join: str) -> int:
    """Return the number of decisions of the traffic, which excludes labels, in a training log."""
    return _count(store, join)


def count_rated_decisions(store: Store, join: str, after: int = 0, most: int | None = None) -> int:
    """Return the number of decisions of the traffic that have settled with feedback, in a training log.

    Args:
        store: The log.
        join: Digest of the rule by which it is joined.
        after: Position of the training log after which to count.
        most: Number at which to stop counting; None counts all.
    """
    rated = sa.cast(t.examples.c.metrics, sa.Text) != "{}"
    return _count(store, join, rated, t.examples.c.seq > after, most=most)


def _count(store: Store, join: str, *conditions: "sa.ColumnElement[bool]", most: int | None = None) -> int:
    rows = (
        sa.select(t.examples.c.seq)
        .join(t.decisions, _d.id == t.examples.c.decision_id)
        .where(t.examples.c.join == join, _d.policy != LABELS, *conditions)
        .limit(most)
    )
    query = sa.select(sa.func.count()).select_from(rows.subquery())
    with store.reading() as connection:
        return int(connection.scalar(query) or 0)


def count_logged_decisions(store: Store) -> int:
    """Return the number of decisions of the traffic in the log, learned or not."""
    with store.reading() as connection:
        query = sa.select(sa.func.count()).select_from(t.decisions).where(_d.policy != LABELS)
        return int(connection.scalar(query) or 0)


def exists(store: Store) -> bool:
    """Return whether the log has decisions of the traffic."""
    with store.reading() as connection:
        return connection.scalar(sa.select(_d.seq).where(_d.policy != LABELS).limit(1)) is not None


Caller = tuple[str, str]
"""Who asked: the key or address, and the digest of its end user; each empty if unknown."""


def list_asked_since(store: Store, since: float) -> dict[str, Caller]:
    """Return the questions of the traffic since a time, in the order of first use, with who used it."""
    query = (
        sa.select(log_rows.select_text(t.decisions, "question"), _d.asked_by, _d.user_digest)
        .where(_d.logged_at >= since, _d.policy != LABELS, _d.erased.is_(None))
        .order_by(_d.seq)
    )
    asked = dict[str, Caller]()
    with store.reading() as connection:
        for question, key, user in connection.execute(query):
            asked.setdefault(question or "", (key or "", user or ""))
    return asked


def draw_in_turns(asked: Mapping[str, Caller], n: int, secret: str) -> list[str]:
    """Draw `n` questions so that all keys have equal shares, and so do all users of a key.

    The order of a caller's questions depends on a secret, so nobody can choose their questions to be drawn.

    >>> asked = dict.fromkeys("abcdefgh", ("many", "")) | {"i": ("few", "")}
    >>> "i" in draw_in_turns(asked, 2, "a secret")
    True
    """

    def shuffle(question: str) -> bytes:
        return hmac.digest(secret.encode(), b"sample " + question.encode(), "sha256")

    def take_turns(questions: Iterable[str], group: Callable[[str], object]) -> list[str]:
        taken, turns = Counter[object](), list[tuple[int, int, str]]()
        for place, question in enumerate(questions):
            turns.append((taken[group(question)], place, question))
            taken[group(question)] += 1
        return [question for *_, question in sorted(turns)]

    by_user = take_turns(sorted(asked, key=shuffle), asked.__getitem__)
    return take_turns(by_user, lambda question: asked[question][0])[:n]


def find_confirmed_since(
    store: Store, join: str, metric: str, confirms: Callable[[float], bool], since: float
) -> dict[str, str]:
    """Return the newest answer that feedback confirmed to each question of the traffic since a time.

    Args:
        store: The log.
        join: Digest of the rule by which it is joined.
        metric: Metric whose values confirm an answer.
        confirms: Whether a value confirms it.
        since: Seconds since the epoch, UTC.
    """
    e, x = t.executions.c, t.examples.c
    query = (
        sa.select(
            *(log_rows.select_text(t.decisions, "question"), log_rows.select_text(t.executions, "answer")),
            sa.cast(x.metrics, sa.Text),
        )
        .join(t.examples, (x.decision_id == _d.id) & (x.join == join))
        .join(t.executions, e.decision_id == _d.id)
        .where(_d.logged_at >= since, _d.policy != LABELS, _d.erased.is_(None), e.answered)
        .order_by(_d.seq)
    )
    with store.reading() as connection:
        rows = connection.execute(query).all()
    answers = ((question, answer, loads(metrics).get(metric)) for question, answer, metrics in rows)
    return {
        question or "": answer
        for question, answer, value in answers
        if value is not None and confirms(value) and answer and answer.strip()
    }


def label_ids(store: Store, runs: Collection[int], join: str, *, after: int = 0) -> set[str]:
    """Return the ids of the labels of runs, and of the labels of no run that are learned after a position.

    Args:
        store: The log.
        runs: Numbers of the runs.
        join: Digest of the rule by which the training log is joined.
        after: Position of the training log; labels that are not joined yet come after every position.
    """
    x = t.examples.c
    before = sa.select(x.decision_id).where(x.join == join, x.seq <= after)
    others = _d.episode_id.is_(None) & _d.id.not_in(before)
    inserted = others | _d.episode_id.in_([name_episode(run) for run in runs])
    with store.reading() as connection:
        return set(connection.scalars(sa.select(_d.id).where(_d.policy == LABELS, inserted)))
