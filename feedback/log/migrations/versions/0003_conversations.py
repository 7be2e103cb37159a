"""Schema 18: the draw whose arm a conversation keeps, and what the turns of an example cost together."""

import sqlalchemy as sa
from alembic import op

revision = "18"

down_revision = "17"


def upgrade() -> None:
    """Add a column to decisions, with the indexes that find a draw and its turns, and one to examples."""
    op.add_column("decisions", sa.Column("draw_id", sa.String(128)))
    kept = sa.text("draw_id IS NOT NULL")
    for name, column in (("decisions_by_draw_id", "draw_id"), ("decisions_kept_by_episode", "episode_id")):
        columns = [column, "seq"]
        op.create_index(name, "decisions", columns, sqlite_where=kept, postgresql_where=kept)
    op.add_column("examples", sa.Column("turns", sa.JSON))
