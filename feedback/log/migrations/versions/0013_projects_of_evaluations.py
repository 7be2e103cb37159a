"""Schema 15: the project that asked for an evaluation."""

import sqlalchemy as sa
from alembic import op

revision = "15"

down_revision = "14"


def upgrade() -> None:
    """Add the column; whose evaluations those before were is unknown."""
    op.add_column("evaluations", sa.Column("project", sa.String(32)))
