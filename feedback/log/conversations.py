"""Look up the draw whose arm a conversation keeps, so that any replica can continue it, also after a restart.

A turn reads it before it decides. Two indexes cover just the decisions that keep an arm, so only the newest
of these in the episode and the turns of its draw are read.
"""

import sqlalchemy as sa

from armwise.feedback.events import FAILURES, KeptDraw, Mode, Status
from armwise.feedback.log import tables as t
from armwise.feedback.log.store import Store


def kept_draw(store: Store, episode: str) -> KeptDraw | None:
    """Return the newest draw of an episode whose arm may be kept, if any.

    Raises:
        LogUnavailableError: Try again later.
    """
    d, e = t.decisions.c, t.executions.c
    newest = (
        sa.select(d.draw_id)
        .where(d.episode_id == episode, d.draw_id.is_not(None))
        .order_by(d.seq.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = (
        sa.select(d.id, d.mode, d.drawn, d.policy, d.version, d.decided_at, e.status)
        .outerjoin_from(t.decisions, t.executions, e.decision_id == d.id)
        .where(d.draw_id == newest, d.draw_id.is_not(None))
        .order_by(d.seq)
    )
    with store.reading() as connection:
        rows = connection.execute(query).all()
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
