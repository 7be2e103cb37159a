"""Schema 21: who rated what is learned."""

import sqlalchemy as sa
from alembic import op

revision = "21"

down_revision = "20"


def upgrade() -> None:
    """Add the table of raters, and who sent feedback; null for that of before, which is not limited."""
    position = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.add_column("feedback", sa.Column("rater", sa.String(128)))
    op.add_column("alarms", sa.Column("rater", sa.String(128)))
    op.create_table(
        "raters",
        sa.Column("join", sa.String(64), nullable=False),
        sa.Column("seq", position, autoincrement=False, nullable=False),
        sa.Column("decision_id", sa.String(128), nullable=False),
        sa.Column("rater", sa.String(128), nullable=False),
        sa.Column("learned", sa.Boolean, nullable=False),
        sa.Column("joined_by", position, nullable=False),
        sa.PrimaryKeyConstraint("join", "seq", name="raters_key"),
    )
