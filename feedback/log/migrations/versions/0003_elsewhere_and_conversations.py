"""Schema 18: decisions without a known propensity, and draws whose arm a conversation keeps."""

import sqlalchemy as sa
from alembic import op

revision = "18"

down_revision = "17"


def upgrade() -> None:
    """Let a propensity be null; add the draw of a decision, its indexes, and the turns of an example.

    SQLite has to copy the table of decisions for the first.
    """
    with op.batch_alter_table("decisions") as batch:
        batch.alter_column("propensity", existing_type=sa.Double, nullable=True)
    op.add_column("decisions", sa.Column("draw_id", sa.String(128)))
    kept = sa.text("draw_id IS NOT NULL")
    for name, column in (("decisions_by_draw_id", "draw_id"), ("decisions_kept_by_episode", "episode_id")):
        columns = [column, "seq"]
        op.create_index(name, "decisions", columns, sqlite_where=kept, postgresql_where=kept)
    op.add_column("examples", sa.Column("turns", sa.JSON))
