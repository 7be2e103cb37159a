"""Schema 16: a keyed hash of what an erasure is about, while turns from before may be under way."""

import sqlalchemy as sa
from alembic import op

revision = "16"

down_revision = "15"


def upgrade() -> None:
    """Add the column and its index; erasures from before this are over."""
    op.add_column("erasures", sa.Column("subject", sa.String(64)))
    given = sa.text("subject IS NOT NULL")
    op.create_index("erasures_under_way", "erasures", ["at"], sqlite_where=given, postgresql_where=given)
