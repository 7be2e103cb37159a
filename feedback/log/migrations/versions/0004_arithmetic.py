"""Schema 19: what computed a version."""

import sqlalchemy as sa
from alembic import op

revision = "19"

down_revision = "18"


def upgrade() -> None:
    """Add what computed a version; null for one of before: it is not known."""
    op.add_column("versions", sa.Column("arithmetic", sa.Text))
