"""Schema 13: the groups of keys."""

import sqlalchemy as sa
from alembic import op

revision = "13"

down_revision = "12"


def upgrade() -> None:
    """Add the column; keys before this have no groups."""
    op.add_column("keys", sa.Column("groups", sa.JSON))
