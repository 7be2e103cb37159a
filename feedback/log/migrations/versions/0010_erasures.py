"""Schema 12: who asked, as a keyed hash, and which texts were erased."""

import sqlalchemy as sa
from alembic import op

revision = "12"

down_revision = "11"

_SEQ = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Add the columns and the table; decisions before this have no user."""
    op.add_column("decisions", sa.Column("user_digest", sa.String(64)))
    op.add_column("decisions", sa.Column("erased", _SEQ))
    given = sa.text("user_digest IS NOT NULL")
    op.create_index(
        "decisions_by_user_digest", "decisions", ["user_digest"], sqlite_where=given, postgresql_where=given
    )
    counts = ("n_decisions", "n_executions", "n_feedback", "n_observations")
    op.create_table(
        "erasures",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("by", sa.String(128), nullable=False),
        sa.Column("upto", _SEQ),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in counts),
        sa.PrimaryKeyConstraint("seq", name="erasures_key"),
        sqlite_autoincrement=True,
    )
