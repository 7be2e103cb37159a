"""Look up earlier turns of a conversation in the log: any replica continues it, also after a restart.

A turn reads the draw whose arm it keeps, and what language models have cached, before it decides. Two
indexes cover just the decisions that keep an arm, so only the newest of these in the episode and the turns of
its draw are read. What follows on a turn is looked up after it, where a reward asks for that.

Which answer a request continues is known by its marks: ids and digests that the answer came with, and that a
client sends back. Marks are indexed by caller, so a caller is matched with its own decisions alone, and a
mark that a million answers share costs as much to look up as any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from armwise.feedback.events import FAILURES, LABELS, AnsweredTurn, Decision, KeptDraw, Mode, Status
from armwise.feedback.log import tables as t
from armwise.feedback.log.backend import json_items
from armwise.feedback.log.facts import LONGEST_MARK, mark_digest
from armwise.feedback.log.rows import read_tokens, select_text
from armwise.feedback.log.store import Store


def find_kept_draw(store: Store, episode: str) -> KeptDraw | None:
    """Return the newest draw of an episode whose arm may be kept, if any."""
    with store.reading() as connection:
        rows = connection.execute(_TURNS_OF_DRAW, {"episode": episode}).all()
    draw = next((row for row in rows if row.mode == Mode.EXPLORE), None)
    if draw is None:
        return None
    failed = any(row.status in FAILURES for row in rows)
    return KeptDraw(
        *(draw.id, draw.drawn, draw.policy, draw.version, draw.decided_at),
        last_at=max(row.decided_at for row in rows),
        turns=len(rows),
        failed=failed or draw.status == Status.CANCELLED,
    )


_d, _e = t.decisions.c, t.executions.c

_IN_EPISODE = _d.episode_id == sa.bindparam("episode")

_NEWEST_DRAW = (
    sa.select(_d.draw_id).where(_IN_EPISODE, _d.draw_id.is_not(None)).order_by(_d.seq.desc()).limit(1)
)

_TURNS_OF_DRAW = (
    sa.select(_d.id, _d.mode, _d.drawn, _d.policy, _d.version, _d.decided_at, _e.status)
    .outerjoin_from(t.decisions, t.executions, _e.decision_id == _d.id)
    .where(_d.draw_id == _NEWEST_DRAW.scalar_subquery(), _d.draw_id.is_not(None))
    .order_by(_d.seq)
)

ROUND = 32
"""Turns before a decision among which that of its question is looked up."""


@dataclass(frozen=True, slots=True)
class EarlierTurn:
    """The turn of a conversation before another one.

    Attributes:
        decision_id: The decision that its answer is credited to: where it repeated an arm to answer the same
            question, as after calls of functions, the one that drew this arm.
        question: The question that it answered.
        served: The arm that answered it last; the drawn one if none has answered.
        decided_at: When it was last decided, seconds since the epoch.
    """

    decision_id: str
    question: str
    served: str
    decided_at: float


def list_answered_turns(store: Store, episode: str) -> list[AnsweredTurn]:
    """Return the first turn of an episode that asked a language model and the newest ones, oldest first."""
    with store.reading() as connection:
        rows = list(connection.execute(_NEWEST_TURNS, {"episode": episode}))
        if len(rows) == ROUND:
            rows += connection.execute(_FIRST_TURN, {"episode": episode, "before": rows[-1].seq})
    return [
        AnsweredTurn(tokens, row.decided_at, row.n_passages > 0)
        for row in reversed(rows)
        if (tokens := read_tokens(row.tokens_by_model))
    ]


_ANSWERED = (
    sa.select(_d.seq, _d.decided_at, _e.n_passages, _e.tokens_by_model)
    .join_from(t.decisions, t.executions, _e.decision_id == _d.id)
    .where(_IN_EPISODE, _d.policy != LABELS)
)

_NEWEST_TURNS = _ANSWERED.order_by(_d.seq.desc()).limit(ROUND)

_FIRST_TURN = _ANSWERED.where(_d.seq < sa.bindparam("before")).order_by(_d.seq).limit(1)


def previous_turn(store: Store, decision: Decision) -> EarlierTurn | None:
    """Return the turn before a decision in its episode; None: it is the first one, or is not in the log.

    Others may name the same episode: only turns of the same caller count.
    """
    with store.reading() as connection:
        rows = connection.execute(_TURNS_BEFORE, {**_conversation(decision), "named": decision.id}).all()
    if not rows:
        return None
    newest = rows[0]
    began = newest
    for row in rows[1:]:
        if began.mode != Mode.FORCED or row.question_digest != newest.question_digest:
            break
        began = row
    return EarlierTurn(began.id, newest.question or "", newest.served or newest.drawn, newest.decided_at)


def _conversation(decision: Decision) -> dict[str, str | None]:
    return {"episode": decision.episode_id, "asked_by": decision.asked_by}


_IN_CONVERSATION = _IN_EPISODE & _d.asked_by.is_not_distinct_from(sa.bindparam("asked_by"))

_QUESTION = select_text(t.decisions, "question").label("question")

_POSITION = sa.select(_d.seq).where(_d.id == sa.bindparam("named"), _IN_EPISODE)

_TURNS_BEFORE = (
    sa.select(_d.id, _d.mode, _d.question_digest, _d.drawn, _e.served, _d.decided_at, _QUESTION)
    .outerjoin_from(t.decisions, t.executions, _e.decision_id == _d.id)
    .where(_IN_CONVERSATION, _d.seq < _POSITION.scalar_subquery(), _d.policy != LABELS)
    .order_by(_d.seq.desc())
    .limit(ROUND)
)


def is_newest(store: Store, decision: Decision) -> bool:
    """Return whether a decision is its caller's newest one in its episode."""
    with store.reading() as connection:
        return bool(connection.scalar(_NEWEST, _conversation(decision)) == decision.id)


_NEWEST = sa.select(_d.id).where(_IN_CONVERSATION, _d.policy != LABELS).order_by(_d.seq.desc()).limit(1)


MOST_LOOKED_UP = 5000
"""Most marks of a request that are looked up: the last ones, which are of its newest messages."""

_AT_ONCE = 500
"""Marks that one query looks up."""


@dataclass(frozen=True, slots=True)
class MarkedAnswer:
    """An answer that a request continues.

    Attributes:
        decision_id: Id of its decision in the log.
        served: The arm that answered; None: none did.
        upstream_id: The id that the provider gave the answer; empty if it gave none.
        episode_id: Id of its episode in the log, if it is of one.
        question: The question that it answered.
    """

    decision_id: str
    served: str | None
    upstream_id: str
    episode_id: str | None
    question: str


def find_marked(store: Store, marks: Sequence[str], asked_by: str | None) -> dict[str, MarkedAnswer]:
    """Return, for each mark, the newest decision of a caller whose execution has it; others are left out.

    Args:
        store: The log.
        marks: Marks that a request shows, in its order; the last `MOST_LOOKED_UP` of them are looked up.
        asked_by: Who asks, as in `Decision.asked_by`; None, a caller that is not known, has no answers.
    """
    if asked_by is None:
        return {}
    named = {mark: mark_digest(mark) for mark in marks[-MOST_LOOKED_UP:] if 0 < len(mark) <= LONGEST_MARK}
    wanted, newest = [*named.values()], dict[str, int]()
    with store.reading() as connection:
        for first in range(0, len(wanted), _AT_ONCE):
            some = {"digests": wanted[first : first + _AT_ONCE], "asked_by": asked_by}
            rows = connection.execute(_NEWEST_OF_EACH, some)
            newest |= {digest: seq for digest, seq in rows if seq is not None}
        seqs, answers = [*dict.fromkeys(newest.values())], dict[int, MarkedAnswer]()
        for first in range(0, len(seqs), _AT_ONCE):
            for row in connection.execute(_MARKED, {"seqs": seqs[first : first + _AT_ONCE]}):
                upstream_id = row.document["marks"][0]
                answers[row.seq] = MarkedAnswer(
                    row.id, row.served, upstream_id, row.episode_id, row.question or ""
                )
    return {mark: answers[newest[digest]] for mark, digest in named.items() if newest.get(digest) in answers}


_m, _DIGESTS = t.answer_marks.c, json_items(sa.bindparam("digests")).table_valued("value")

_NEWEST_OF_EACH = sa.select(
    _DIGESTS.c.value,
    sa.select(sa.func.max(_m.decision_seq))
    .where(_m.asked_by == sa.bindparam("asked_by"), _m.mark == _DIGESTS.c.value)
    .correlate(_DIGESTS)
    .scalar_subquery(),
)
"""Each digest of a mark, and the position of the newest decision of a caller that has it."""

_MARKED = (
    sa.select(_d.seq, _d.id, _e.served, t.texts.c.document, _d.episode_id, _QUESTION)
    .join_from(t.decisions, t.executions, _e.decision_id == _d.id)
    .join(t.texts, t.texts.c.seq == _e.seq)
    .where(_d.seq.in_(sa.bindparam("seqs", expanding=True)))
)


def find_episodes(store: Store, ids: Sequence[str]) -> tuple[dict[str, str | None], set[str]]:
    """Return what the log has among a few thousand ids: the episode of each decision, and the episodes."""
    with store.reading() as connection:
        rows = connection.execute(sa.select(_d.id, _d.episode_id).where(_d.id.in_(ids)))
        of_decisions = {row.id: row.episode_id for row in rows}
        episodes = connection.scalars(sa.select(_d.episode_id).where(_d.episode_id.in_(ids)).distinct())
        return of_decisions, {episode for episode in episodes if episode is not None}
